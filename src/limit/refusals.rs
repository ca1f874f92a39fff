//! Refusals that hold for a time are given without asking the store: nothing but time frees a full bucket.
//!
//! When a store refuses a cost, it tells the delay after which that fits, and when the oldest permits leave
//! (`grow`). Until then the cost is refused here. The block ends early, never late: it counts from before the
//! call was sent, by 0.999 of the delay, since two clocks may run apart. What the caller is told counts from
//! after the reply, so that it is never too short. Each cost is told its own delay: one of which there is none
//! yet asks, and past [`STEPS_MOST`] costs it is told the next greater one's and refused as long as any smaller
//! one is, or until `grow` if it is more than the room that was left.
//!
//! A flood on a full bucket costs the store next to nothing. When a block has ended, one request asks, and the
//! others wait for its answer; if the room is to appear at once, it asks when that is there. If it is admitted,
//! as many of the others ask as there is room for, and if there is none, one of them, for all. What has been changed elsewhere is heard of by message, or
//! else after [`REFRESH_EVERY`]: then, too, one asks, and the others are refused until it has its answer.
//!
//! What is charged while a block lasts makes its delays too short, and a change of the quota or a reset too
//! long: all of them end it. A refusal whose call was sent before a reset isn't kept. Blocks are bounded in
//! number: dropping one is always safe.

use std::{
    collections::HashMap,
    fmt,
    hash::{BuildHasher, RandomState},
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use bytes::Bytes;
use parking_lot::Mutex;
use smallvec::SmallVec;
use tokio::{
    sync::{Notify, futures::OwnedNotified},
    time::{Instant, sleep_until, timeout_at},
};

use crate::{
    algorithm::{Algorithm, Quota},
    store::{Charge, Outcome},
};

/// Within which a change made elsewhere is noticed, should its message be lost.
const REFRESH_EVERY: Duration = Duration::from_secs(5);
/// For which a request is held at most at a block's end, so that it asks when there is room and not just before.
const HELD_MOST: Duration = Duration::from_micros(300);
const SHARDS: usize = 64;
/// Blocks in a shard.
const BLOCKS_MOST: usize = 1024;
/// Costs of which a block remembers the delay.
const STEPS_MOST: usize = 8;

/// What is refused here. One for all threads.
pub(super) struct Refusals {
    shards: Box<[Mutex<HashMap<Bytes, Block>>]>,
    hasher: RandomState,
    blocks: AtomicUsize,
    /// How often anything was forgotten.
    epoch: AtomicU64,
}

/// What a bucket refuses.
struct Block {
    quota: Quota,
    /// By cost.
    steps: SmallVec<[Step; 1]>,
    refresh_at: Instant,
    /// Requests that ask now, for the others.
    asking: usize,
    /// Permits for which more may ask at the same time.
    room: u64,
    /// The last of the room was just taken: the next one to ask will be refused, for all others.
    is_full: bool,
    /// Tells those who wait that one of them has its answer.
    answered: Arc<Notify>,
}

/// A refusal of a cost.
struct Step {
    cost: u32,
    until: Instant,
    free_at: Instant,
    room: u64,
    grow_until: Instant,
    grow_at: Instant,
}

/// What is known of a request.
pub(super) enum Verdict<'r> {
    /// Nothing: the store is to be asked. To be kept until it has answered.
    Ask(Turns<'r>),
    /// It is refused; for each charge how its bucket stands, if that refuses.
    Refused(SmallVec<[Option<Outcome>; 2]>),
}

/// What is known of a charge.
enum Known {
    Nothing,
    Refused(Outcome),
    /// It is to ask, for all others, and not before this.
    Due(Arc<Notify>, Instant),
    /// Others ask.
    Asked(OwnedNotified),
}

/// When a call was sent.
#[derive(Clone, Copy)]
pub(super) struct Sending {
    at: Instant,
    epoch: u64,
}

impl Default for Refusals {
    fn default() -> Self {
        Self {
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            hasher: RandomState::new(),
            blocks: AtomicUsize::new(0),
            epoch: AtomicU64::new(0),
        }
    }
}

impl Refusals {
    /// How many buckets it remembers.
    pub(super) fn len(&self) -> usize {
        self.blocks.load(Relaxed)
    }

    /// Says whether one of the charges is refused. Waits for the answer of a request that asks the same, but
    /// not beyond the deadline.
    pub(super) async fn check<'c, C: Iterator<Item = &'c Charge>>(
        &self,
        charges: impl Fn() -> C,
        deadline: Instant,
    ) -> Verdict<'_> {
        while self.blocks.load(Relaxed) > 0 {
            let now = Instant::now();
            let mut turns = Turns { refusals: self, taken: SmallVec::new() };
            let (mut outcomes, mut asked, mut ask_at) = (SmallVec::new(), None, now);
            for charge in charges() {
                let mut refused = None;
                match self.known(charge, now) {
                    Known::Nothing => {}
                    Known::Refused(outcome) => refused = Some(outcome),
                    Known::Due(answered, at) => {
                        let (bucket, cost) = (charge.bucket.clone(), charge.cost.max(1));
                        turns.taken.push(Turn { bucket, cost, answered });
                        ask_at = ask_at.max(at);
                    }
                    Known::Asked(answer) => asked = Some(answer),
                }
                outcomes.push(refused);
            }
            if outcomes.iter().any(Option::is_some) {
                return Verdict::Refused(outcomes);
            }
            let Some(answer) = asked else {
                if ask_at > now {
                    sleep_until(ask_at.min(deadline)).await;
                }
                return Verdict::Ask(turns);
            };
            // Its own turns are given up, lest two requests wait for each other.
            drop(turns);
            if timeout_at(deadline, answer).await.is_err() {
                break;
            }
        }
        Verdict::Ask(Turns { refusals: self, taken: SmallVec::new() })
    }

    /// How a bucket stands that surely refuses this cost.
    pub(super) fn remembered(&self, bucket: &Bytes, quota: Quota, cost: u32) -> Option<Outcome> {
        let shard = self.shard(bucket).lock();
        let block = shard.get(bucket).filter(|block| block.quota == quota)?;
        block.refusal(cost, Instant::now())
    }

    /// To be called just before a call of the store.
    pub(super) fn sending(&self) -> Sending {
        Sending { epoch: self.epoch.load(Relaxed), at: Instant::now() }
    }

    /// Remembers a refusal by the store, just after its reply.
    pub(super) fn note(&self, charge: &Charge, outcome: &Outcome, sending: Sending) {
        let Some(delay_us @ 1..) = outcome.delay_us else { return };
        if charge.quota.algorithm == Algorithm::Concurrency {
            return;
        }
        let step = Step::new(charge.cost.max(1), delay_us, outcome, sending.at);
        let mut shard = self.shard(&charge.bucket).lock();
        if self.epoch.load(Relaxed) != sending.epoch {
            return;
        }
        if shard.len() >= BLOCKS_MOST && !shard.contains_key(&charge.bucket) {
            self.make_place(&mut shard);
        }
        let block = shard.entry(charge.bucket.clone()).or_insert_with(|| {
            self.blocks.fetch_add(1, Relaxed);
            Block::new(charge.quota)
        });
        block.note(charge.quota, step, sending.at);
    }

    /// Notes that a bucket has been charged and has so much room left: other delays hold now.
    pub(super) fn charged(&self, bucket: &Bytes, remaining: u64) {
        if self.blocks.load(Relaxed) == 0 {
            return;
        }
        let mut shard = self.shard(bucket).lock();
        let Some(block) = shard.get_mut(bucket) else { return };
        block.steps.clear();
        block.room = if block.asking == 1 { remaining } else { block.room.min(remaining) };
        block.is_full = remaining == 0;
        if block.asking == 0 && !block.is_full {
            self.remove(&mut shard, bucket);
        }
    }

    /// Ends the block of a bucket whose count has been changed.
    pub(super) fn forget(&self, bucket: &Bytes) {
        self.epoch.fetch_add(1, Relaxed);
        self.remove(&mut self.shard(bucket).lock(), bucket);
    }

    /// Ends all blocks.
    pub(super) fn forget_all(&self) {
        self.epoch.fetch_add(1, Relaxed);
        for shard in &self.shards {
            let mut shard = shard.lock();
            self.blocks.fetch_sub(shard.len(), Relaxed);
            shard.clear();
        }
    }

    fn known(&self, charge: &Charge, now: Instant) -> Known {
        let mut shard = self.shard(&charge.bucket).lock();
        match shard.get_mut(&charge.bucket) {
            Some(block) if block.quota == charge.quota => block.known(charge.cost.max(1), now),
            Some(_) => {
                self.remove(&mut shard, &charge.bucket);
                Known::Nothing
            }
            None => Known::Nothing,
        }
    }

    /// Drops a block: of a few one that has ended, or else any.
    fn make_place(&self, shard: &mut HashMap<Bytes, Block>) {
        let now = Instant::now();
        let has_ended = |(_, block): &(&Bytes, &Block)| block.has_ended(now);
        let ended = shard.iter().take(8).find(has_ended).or_else(|| shard.iter().next());
        if let Some(bucket) = ended.map(|(bucket, _)| bucket.clone()) {
            self.remove(shard, &bucket);
        }
    }

    fn remove(&self, shard: &mut HashMap<Bytes, Block>, bucket: &Bytes) {
        if shard.remove(bucket).is_some() {
            self.blocks.fetch_sub(1, Relaxed);
        }
    }

    fn shard(&self, bucket: &Bytes) -> &Mutex<HashMap<Bytes, Block>> {
        &self.shards[self.hasher.hash_one(bucket) as usize % SHARDS]
    }
}

impl fmt::Debug for Refusals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Refusals").field("blocks", &self.blocks).finish_non_exhaustive()
    }
}

impl Step {
    /// Of a cost that the store refused for so long.
    fn new(cost: u32, delay_us: u64, outcome: &Outcome, sent: Instant) -> Self {
        let received = Instant::now();
        let after = |us: u64| received + Duration::from_micros(us);
        let surely_before = |us: u64| sent + Duration::from_micros(us - us.div_ceil(1_000));
        Self {
            cost,
            until: surely_before(delay_us),
            free_at: after(delay_us),
            room: outcome.remaining,
            grow_until: surely_before(outcome.grow_us),
            grow_at: after(outcome.grow_us),
        }
    }
}

impl Block {
    fn new(quota: Quota) -> Self {
        let (steps, answered) = Default::default();
        Self { quota, steps, refresh_at: Instant::now(), asking: 0, room: 0, is_full: false, answered }
    }

    fn known(&mut self, cost: u32, now: Instant) -> Known {
        let mut ask_at = now;
        match self.refusal(cost, now) {
            Some(outcome) if now < self.refresh_at || self.asking > 0 => return Known::Refused(outcome),
            Some(_) => {}
            None if !self.has_ended(now) => return Known::Nothing,
            None if self.asking > 0 && self.room < u64::from(cost) => {
                return Known::Asked(self.answered.clone().notified_owned());
            }
            None => {
                let own = self.steps.iter().find(|step| step.cost == cost);
                let free_at = own.map(|step| step.free_at).filter(|free_at| *free_at <= now + HELD_MOST);
                ask_at = free_at.unwrap_or(now);
            }
        }
        self.asking += 1;
        self.is_full = false;
        self.room = self.room.saturating_sub(u64::from(cost));
        Known::Due(self.answered.clone(), ask_at)
    }

    /// How the bucket stands, if it surely refuses this cost.
    fn refusal(&self, cost: u32, now: Instant) -> Option<Outcome> {
        let mut told = self.steps.iter().filter(|step| step.cost >= cost && step.free_at > now);
        let told = told.next().filter(|step| step.cost == cost || self.steps.len() == STEPS_MOST)?;
        let is_more_than_the_room = u64::from(cost) > told.room && now < told.grow_until;
        let is_blocked = self.steps.iter().any(|step| step.cost <= cost && now < step.until);
        let us_until = |at: Instant| at.saturating_duration_since(now).as_micros() as u64;
        (is_blocked || is_more_than_the_room).then(|| Outcome {
            charged: false,
            remaining: told.room,
            grow_us: us_until(told.grow_at),
            // A microsecond that has begun is to be waited for, too.
            delay_us: Some(us_until(told.free_at) + 1),
        })
    }

    fn has_ended(&self, now: Instant) -> bool {
        self.steps.iter().all(|step| now >= step.until && now >= step.grow_until)
    }

    fn note(&mut self, quota: Quota, step: Step, sent: Instant) {
        if self.quota != quota {
            self.quota = quota;
            self.steps.clear();
        }
        self.steps.retain(|other| other.cost != step.cost && other.free_at > sent);
        if self.steps.len() == STEPS_MOST {
            self.steps.remove(STEPS_MOST / 2);
        }
        let at = self.steps.partition_point(|other| other.cost < step.cost);
        self.steps.insert(at, step);
        self.room = 0;
        self.is_full = false;
        self.refresh_at = sent + REFRESH_EVERY;
    }
}

/// The buckets of which a request asks for others, too, who wait until this is dropped.
pub(super) struct Turns<'r> {
    refusals: &'r Refusals,
    taken: SmallVec<[Turn; 1]>,
}

struct Turn {
    bucket: Bytes,
    cost: u32,
    answered: Arc<Notify>,
}

impl Turn {
    /// Changes the block, if it is still the same, knowing how many permits those want who wait, about. It goes
    /// if the change says so. Then all who wait look at it again.
    fn update(&self, refusals: &Refusals, change: impl FnOnce(&mut Block, u64) -> bool) {
        let mut shard = refusals.shard(&self.bucket).lock();
        let block = shard.get_mut(&self.bucket).filter(|block| Arc::ptr_eq(&block.answered, &self.answered));
        if let Some(block) = block {
            // One hold of it is the block's, and one each of those who ask.
            let waiting = Arc::strong_count(&self.answered).saturating_sub(1 + block.asking);
            if change(block, waiting as u64 * u64::from(self.cost)) {
                refusals.remove(&mut shard, &self.bucket);
            }
        }
        self.answered.notify_waiters();
    }
}

impl Drop for Turns<'_> {
    fn drop(&mut self) {
        for turn in &self.taken {
            turn.update(self.refusals, |block, waiting| {
                block.asking -= 1;
                let now = Instant::now();
                let has_ended = block.asking == 0 && (now >= block.refresh_at || block.has_ended(now));
                if block.is_full {
                    return false;
                }
                if has_ended && block.room == 0 {
                    block.room = waiting;
                }
                has_ended && waiting == 0
            });
        }
    }
}

#[cfg(test)]
mod tests;
