//! Refusals that hold for a time are given without asking the store: nothing but time frees a full bucket.
//!
//! When a store refuses a cost, it tells the delay after which that fits, and when the oldest permits leave
//! (`grow`). Until then the cost is refused here. The block ends early, never late: it counts from before the
//! call was sent, by 0.999 of the delay, since two clocks may run apart. What the caller is told counts from
//! after the reply, so that it is never too short. A smaller cost than the one refused is blocked until `grow`
//! if it is more than the room that was left; a greater one for as long as the smaller. A cost is told the
//! delay that the store gave for it, or else for the next greater one; the greatest so far asks.
//!
//! What has been changed elsewhere is heard of by message, or else after [`REFRESH_EVERY`]: then one request
//! asks again, and the others are refused until it has its answer. When a block has ended, too, one asks first
//! and the others wait for its answer, so that a flood on a full bucket costs the store next to nothing.
//!
//! A change of the quota ends a block, and so does [`Refusals::forget`]; a refusal whose call was sent before
//! that isn't kept. Blocks are bounded in number: dropping one is always safe.

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
    time::{Instant, timeout_at},
};

use crate::{
    algorithm::{Algorithm, Quota},
    store::{Charge, Outcome},
};

/// Within which a change made elsewhere is noticed, should its message be lost.
const REFRESH_EVERY: Duration = Duration::from_secs(5);
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
    /// Tells when the one that asks has its answer.
    asking: Option<Arc<Notify>>,
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
    Ask(Probes<'r>),
    /// It is refused; for each charge how its bucket stands, if that refuses.
    Refused(SmallVec<[Option<Outcome>; 2]>),
}

/// What is known of a charge.
enum Known {
    Nothing,
    Refused(Outcome),
    /// One request is to ask, for all others.
    Due,
    /// Another request asks.
    Asked(OwnedNotified),
}

/// When a call was sent.
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
    /// Says whether one of the charges is refused. Waits for the answer of a request that asks the same, but
    /// not beyond the deadline.
    pub(super) async fn check<'c, C: Iterator<Item = &'c Charge>>(
        &self,
        charges: impl Fn() -> C,
        deadline: Instant,
    ) -> Verdict<'_> {
        while self.blocks.load(Relaxed) > 0 {
            let now = Instant::now();
            let mut outcomes = SmallVec::new();
            let mut asked = None;
            let mut probes = Probes { refusals: self, buckets: SmallVec::new() };
            for charge in charges() {
                let known = self.known(charge, now);
                outcomes.push(if let Known::Refused(outcome) = known { Some(outcome) } else { None });
                match known {
                    Known::Due => probes.buckets.push(charge.bucket.clone()),
                    Known::Asked(answer) => asked = Some(answer),
                    Known::Nothing | Known::Refused(_) => {}
                }
            }
            if outcomes.iter().any(Option::is_some) {
                return Verdict::Refused(outcomes);
            }
            match asked {
                // Its own turns to ask are given up, lest two requests wait for each other.
                Some(answer) => {
                    drop(probes);
                    if timeout_at(deadline, answer).await.is_err() {
                        break;
                    }
                }
                None => return Verdict::Ask(probes),
            }
        }
        Verdict::Ask(Probes { refusals: self, buckets: SmallVec::new() })
    }

    /// To be called just before a call of the store.
    pub(super) fn sending(&self) -> Sending {
        Sending { epoch: self.epoch.load(Relaxed), at: Instant::now() }
    }

    /// Remembers a refusal by the store, just after its reply.
    pub(super) fn note(&self, charge: &Charge, outcome: &Outcome, sending: &Sending) {
        let Some(delay_us @ 1..) = outcome.delay_us else { return };
        if charge.quota.algorithm == Algorithm::Concurrency {
            return;
        }
        let after = |us: u64| Instant::now() + Duration::from_micros(us);
        let surely_before = |us: u64| sending.at + Duration::from_micros(us - us.div_ceil(1_000));
        let step = Step {
            cost: charge.cost.max(1),
            until: surely_before(delay_us),
            free_at: after(delay_us),
            room: outcome.remaining,
            grow_until: surely_before(outcome.grow_us),
            grow_at: after(outcome.grow_us),
        };
        let mut shard = self.shard(&charge.bucket).lock();
        if self.epoch.load(Relaxed) != sending.epoch {
            return;
        }
        if shard.len() >= BLOCKS_MOST && !shard.contains_key(&charge.bucket) {
            self.make_place(&mut shard);
        }
        let block = shard.entry(charge.bucket.clone()).or_insert_with(|| {
            self.blocks.fetch_add(1, Relaxed);
            Block { quota: charge.quota, steps: SmallVec::new(), refresh_at: sending.at, asking: None }
        });
        block.note(charge.quota, step, sending.at);
    }

    /// Ends the block of a bucket whose count has been changed.
    pub(super) fn forget(&self, bucket: &Bytes) {
        self.epoch.fetch_add(1, Relaxed);
        if self.shard(bucket).lock().remove(bucket).is_some() {
            self.blocks.fetch_sub(1, Relaxed);
        }
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
        let Some(block) = shard.get_mut(&charge.bucket) else { return Known::Nothing };
        let known = if block.quota == charge.quota {
            block.known(charge.cost.max(1), now)
        } else {
            shard.remove(&charge.bucket);
            self.blocks.fetch_sub(1, Relaxed);
            return Known::Nothing;
        };
        if matches!(known, Known::Due) {
            block.asking = Some(Arc::default());
        }
        known
    }

    /// Drops the blocks that have ended, or else any.
    fn make_place(&self, shard: &mut HashMap<Bytes, Block>) {
        let (before, now) = (shard.len(), Instant::now());
        shard.retain(|_, block| !block.has_ended(now));
        if shard.len() == before
            && let Some(any) = shard.keys().next().cloned()
        {
            shard.remove(&any);
        }
        self.blocks.fetch_sub(before - shard.len(), Relaxed);
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

impl Block {
    fn known(&self, cost: u32, now: Instant) -> Known {
        match (self.refusal(cost, now), &self.asking) {
            (Some(outcome), Some(_)) => Known::Refused(outcome),
            (Some(outcome), None) if now < self.refresh_at => Known::Refused(outcome),
            (Some(_), None) => Known::Due,
            (None, _) if !self.has_ended(now) => Known::Nothing,
            (None, Some(asking)) => Known::Asked(asking.clone().notified_owned()),
            (None, None) => Known::Due,
        }
    }

    /// How the bucket stands, if it surely refuses this cost.
    fn refusal(&self, cost: u32, now: Instant) -> Option<Outcome> {
        let told = self.steps.iter().find(|step| step.cost >= cost && step.free_at > now)?;
        let is_more_than_the_room = u64::from(cost) > told.room && now < told.grow_until;
        let is_blocked = self.steps.iter().any(|step| step.cost <= cost && now < step.until);
        let us_until = |at: Instant| at.saturating_duration_since(now).as_micros() as u64;
        (is_blocked || is_more_than_the_room).then(|| Outcome {
            charged: false,
            remaining: told.room,
            grow_us: us_until(told.grow_at),
            delay_us: Some(us_until(told.free_at).max(1)),
        })
    }

    fn has_ended(&self, now: Instant) -> bool {
        self.steps.iter().all(|step| now >= step.until && now >= step.grow_until)
    }

    fn note(&mut self, quota: Quota, step: Step, now: Instant) {
        if self.quota != quota {
            self.quota = quota;
            self.steps.clear();
        }
        self.steps.retain(|other| other.cost != step.cost && other.free_at > now);
        if self.steps.len() == STEPS_MOST {
            self.steps.remove(STEPS_MOST / 2);
        }
        let at = self.steps.partition_point(|other| other.cost < step.cost);
        self.steps.insert(at, step);
        self.refresh_at = now + REFRESH_EVERY;
    }
}

/// The buckets that a request asks of for all others, which wait until this is dropped.
pub(super) struct Probes<'r> {
    refusals: &'r Refusals,
    buckets: SmallVec<[Bytes; 1]>,
}

impl Drop for Probes<'_> {
    fn drop(&mut self) {
        for bucket in &self.buckets {
            let mut shard = self.refusals.shard(bucket).lock();
            let Some(block) = shard.get_mut(bucket) else { continue };
            if let Some(asking) = block.asking.take() {
                asking.notify_waiters();
            }
            // No refusal has renewed it.
            let now = Instant::now();
            if now >= block.refresh_at || block.has_ended(now) {
                shard.remove(bucket);
                self.refusals.blocks.fetch_sub(1, Relaxed);
            }
        }
    }
}
