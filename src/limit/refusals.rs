//! Refusals that hold for a time are given without asking the store: nothing but time frees a full bucket.
//!
//! When a store refuses a cost, it tells the delay after which that fits, and when the oldest permits leave
//! (`grow`). Until then the cost is refused here. The block ends early, never late: it counts from before the
//! call was sent, by 0.999 of the delay, since two clocks may run apart. What the caller is told counts from
//! after the reply, so that it is never too short. Each cost is told its own delay: one of which there is none
//! yet asks, and past `STEPS_MOST` costs it is told the next greater one's and refused as long as any smaller
//! one is, or until `grow` if it is more than the room that was left.
//!
//! A flood on a full bucket costs the store next to nothing. An admission that took the last room is as good as a
//! refusal. When a block has ended, one request asks, and the others wait for its answer; if the room is to appear
//! at once, it asks when that is there, and those go along that come to the same worker meanwhile: one call takes
//! the room, which comes back at one time then. If room is left, as many of the others ask as it is for, and if
//! there is none, but nobody knows for how long, one of them, for all. What has been changed elsewhere is heard of
//! by message, or else after `REFRESH_EVERY`: then, too, one asks, and the others are refused until it has its
//! answer.
//!
//! What is charged while a block lasts makes its delays too short, and a change of the quota or a reset too
//! long: all of them end it. A refusal whose call was sent before a reset isn't kept. Blocks are bounded in
//! number: dropping one is always safe.

mod block;

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed},
    },
};

use bytes::Bytes;
use hashbrown::HashTable;
use parking_lot::Mutex;
use smallvec::SmallVec;
use tokio::{
    sync::Notify,
    time::{Instant, sleep_until, timeout_at},
};

use crate::{
    algorithm::{Algorithm, Quota},
    store::{Charge, Outcome},
    text,
};

use self::block::{Block, Known, Step};

const SHARDS: usize = 64;
/// Blocks in a shard.
const BLOCKS_MOST: usize = 1024;

/// What is refused here. One for all threads.
pub(super) struct Refusals {
    shards: Box<[Mutex<HashTable<Block>>]>,
    blocks: AtomicUsize,
    /// How often anything was forgotten.
    epoch: AtomicU64,
}

/// What is known of a request.
pub(super) enum Verdict<'r> {
    /// Nothing: the store is to be asked. To be kept until it has answered.
    Ask(Turns<'r>),
    /// It is refused; for each charge how its bucket stands, if that refuses.
    Refused(SmallVec<[Option<Outcome>; 1]>),
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

    /// Says whether one of the charges is refused now. Waits for the answer of a request that asks the same, but
    /// not beyond the time by which this one must ask itself.
    pub(super) async fn check<'c, C: Iterator<Item = &'c Charge>>(
        &self,
        charges: impl Fn() -> C,
        mut now: Instant,
        ask_by: Instant,
    ) -> Verdict<'_> {
        while self.blocks.load(Relaxed) > 0 {
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
                    sleep_until(ask_at.min(ask_by)).await;
                }
                return Verdict::Ask(turns);
            };
            // Its own turns are given up, lest two requests wait for each other.
            drop(turns);
            if timeout_at(ask_by, answer).await.is_err() {
                break;
            }
            now = Instant::now();
        }
        Verdict::Ask(Turns { refusals: self, taken: SmallVec::new() })
    }

    /// How a bucket stands that surely refuses this cost.
    pub(super) fn remembered(&self, bucket: &Bytes, quota: Quota, cost: u32) -> Option<Outcome> {
        self.look(bucket, quota, |block| block.refusal(cost, Instant::now()))
    }

    /// How the bucket of a charge stands that is refused now, unless somebody is to ask whether that still holds.
    pub(super) fn refused(
        &self,
        Charge { bucket, quota, cost, .. }: &Charge,
        now: Instant,
    ) -> Option<Outcome> {
        self.look(bucket, *quota, |block| block.refusal((*cost).max(1), now).filter(|_| block.is_fresh(now)))
    }

    fn look(
        &self,
        bucket: &Bytes,
        quota: Quota,
        look: impl FnOnce(&Block) -> Option<Outcome>,
    ) -> Option<Outcome> {
        let hash = text::hash(bucket);
        let shard = self.shard(hash).lock();
        look(shard.find(hash, |block| block.bucket == *bucket).filter(|block| block.quota == quota)?)
    }

    /// To be called just before a call of the store.
    pub(super) fn sending(&self) -> Sending {
        Sending { epoch: self.epoch.load(Relaxed), at: Instant::now() }
    }

    /// Learns from a decision of the store, just after its reply. An admission that took the last room is as good
    /// as a refusal, unless the request asks other limits, too: one of them might refuse for longer.
    pub(super) fn learn(&self, charge: &Charge, outcome: &Outcome, sending: Sending, is_alone: bool) {
        if outcome.charged {
            self.charged(charge, outcome.remaining, sending.at);
        }
        if !outcome.charged || (outcome.remaining == 0 && is_alone) {
            self.note(charge, outcome, sending);
        }
    }

    /// Remembers what surely is refused now, just after the store's reply.
    pub(super) fn note(&self, charge: &Charge, outcome: &Outcome, sending: Sending) {
        let step = Step::new(charge, outcome, sending.at);
        let Some(step) = step.filter(|_| charge.quota.algorithm != Algorithm::Concurrency) else { return };
        let Charge { bucket, quota, .. } = charge;
        let hash = text::hash(bucket);
        let mut shard = self.shard(hash).lock();
        if self.epoch.load(Relaxed) != sending.epoch {
            return;
        }
        if let Some(block) = shard.find_mut(hash, |block| block.bucket == *bucket) {
            return block.note(*quota, step);
        }
        if shard.len() >= BLOCKS_MOST {
            self.make_place(&mut shard);
        }
        let mut block = Block::new(bucket.clone(), *quota);
        block.note(*quota, step);
        shard.insert_unique(hash, block, |block| text::hash(&block.bucket));
        self.blocks.fetch_add(1, Relaxed);
    }

    /// Notes that a bucket has been charged and has so much room left.
    fn charged(&self, charge: &Charge, remaining: u64, sent: Instant) {
        if self.blocks.load(Relaxed) == 0 {
            return;
        }
        self.change(&charge.bucket, |block| block.charged(charge.cost.max(1), remaining, sent));
    }

    /// Ends the block of a bucket whose count has been changed.
    pub(super) fn forget(&self, bucket: &Bytes) {
        self.epoch.fetch_add(1, Relaxed);
        self.change(bucket, |_| true);
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
        let mut known = Known::Nothing;
        self.change(&charge.bucket, |block| {
            let holds = block.quota == charge.quota;
            if holds {
                known = block.known(charge.cost.max(1), now);
            }
            !holds
        });
        known
    }

    /// Drops a block: of a few one that has ended, or else any.
    fn make_place(&self, shard: &mut HashTable<Block>) {
        let now = Instant::now();
        let ended = shard.iter().take(8).find(|block| block.has_ended(now)).or_else(|| shard.iter().next());
        let Some(bucket) = ended.map(|block| block.bucket.clone()) else { return };
        if let Ok(found) = shard.find_entry(text::hash(&bucket), |block| block.bucket == bucket) {
            found.remove();
            self.blocks.fetch_sub(1, Relaxed);
        }
    }

    /// Changes the block of a bucket, if there is one, and drops it if that says so.
    fn change(&self, bucket: &Bytes, change: impl FnOnce(&mut Block) -> bool) {
        let hash = text::hash(bucket);
        let mut shard = self.shard(hash).lock();
        let Ok(mut found) = shard.find_entry(hash, |block| block.bucket == *bucket) else { return };
        if change(found.get_mut()) {
            found.remove();
            self.blocks.fetch_sub(1, Relaxed);
        }
    }

    /// By bits of the hash that the shard's table doesn't go by.
    fn shard(&self, hash: u64) -> &Mutex<HashTable<Block>> {
        &self.shards[(hash >> 32) as usize % SHARDS]
    }
}

impl fmt::Debug for Refusals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Refusals").field("blocks", &self.blocks).finish_non_exhaustive()
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

impl Drop for Turns<'_> {
    fn drop(&mut self) {
        for Turn { bucket, cost, answered } in &self.taken {
            self.refusals.change(bucket, |block| {
                // It may be another one by now.
                let is_same = Arc::ptr_eq(&block.answered, answered);
                // One hold of it is the block's, and one each of those who ask; about.
                let waiting = Arc::strong_count(answered).saturating_sub(1 + block.asking);
                is_same && block.end_turn(waiting as u64 * u64::from(*cost))
            });
            // All who wait look at it again.
            answered.notify_waiters();
        }
    }
}

#[cfg(test)]
mod tests;
