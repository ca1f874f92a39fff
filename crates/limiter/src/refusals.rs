//! Refusals that hold for a time are given without asking the store: nothing but time frees a full bucket.
//!
//! When a store refuses a cost, it tells the delay after which that fits, and when the oldest permits leave
//! (`grow`). Until then the cost is refused here. The block ends early, never late: it counts from before the
//! call was sent, by 0.999 of the delay, since two clocks may run apart. What the caller is told counts from
//! after the reply, so that it is never too short. Each cost is told its own delay.
//!
//! A delay is exact if the store told it for this cost and no gateway can have been admitted since: the bucket was
//! full and its oldest permits are still there, or all requests of the limit cost the same. Otherwise the request
//! asks again, as far as an [`AskAllowance`] goes that some keys share. Past that it is told what is known: the last
//! delay of its own cost, or that of the next greater one.
//!
//! A flood on a full bucket costs the store next to nothing. An admission that took the last room is as good as a
//! refusal. When a block has ended, one request asks, and the others wait for its answer; if the room is to appear
//! at once, it asks when that is there, and those go along that come to the same worker meanwhile: one call takes
//! the room, which comes back at one time then. If room is left, as many of the others ask as it is for, and if
//! there is none, but nobody knows for how long, one of them, for all. What has been changed elsewhere is heard of
//! by message, or else after `REFRESH_EVERY`: then, too, one asks, and the others are refused until it has its
//! answer.
//!
//! A request that several limits refuse is told the longest delay. So it is refused here only if that is known of each that
//! refuses, and the others had room lately; otherwise it asks, as far as the allowance goes.
//!
//! What is charged while a block lasts makes its delays too short, and a change of the quota or a reset too
//! long: all of them end it. A refusal whose call was sent before a reset isn't kept. Blocks are bounded in
//! number: dropping one is always safe.
//!
//! The rules above hold together, so the functions that keep them stand in one file.

mod allowance;
mod block;
mod rooms;

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed},
    },
};

use bytes::Bytes;
use hashbrown::HashTable;
use parking_lot::Mutex;
use smallvec::SmallVec;
use tokio::{
    sync::{Notify, futures::OwnedNotified},
    time::{Instant, sleep_until, timeout_at},
};

use crate::{
    algorithm::{Algorithm, Quota},
    store::{Charge, Outcome},
    text,
};

pub(super) use self::block::Recollection;
use self::{
    allowance::AskAllowance,
    block::{Block, CostRefusal, Recall},
    rooms::Rooms,
};
use crate::limit::Costs;

const SHARDS: usize = 64;
/// Blocks in a shard.
const BLOCKS_MOST: usize = 1024;

/// The buckets that are known to be full. All threads share it.
pub(super) struct Refusals {
    shards: Box<[Mutex<BlockShard>]>,
    blocks: AtomicUsize,
    /// Rooms were noted since the start.
    has_rooms: AtomicBool,
    /// The number of times that anything was forgotten.
    epoch: AtomicU64,
}

/// The blocks of some buckets, and their common allowance of questions.
#[derive(Default)]
struct BlockShard {
    blocks: HashTable<Block>,
    rooms: Rooms,
    allowance: AskAllowance,
}

/// The result of a look at what is known.
pub(super) enum KnownAnswer<'r> {
    /// Nothing: the store is to be asked. To be kept until it has answered.
    Ask(Turns<'r>),
    /// It is refused; for each charge how its bucket stands, if that refuses.
    Refused(SmallVec<[Option<Outcome>; 1]>),
}

/// The knowledge of a request's charges.
struct Known<'r> {
    /// The state of each one's bucket, if that is known to refuse.
    outcomes: SmallVec<[Option<Outcome>; 1]>,
    /// The buckets about which this request asks for others.
    turns: Turns<'r>,
    /// The answer to another request that asks.
    asked: Option<OwnedNotified>,
    /// The time before which the store isn't to be asked.
    ask_at: Instant,
    /// False if one of them is surely refused, but not known for how long.
    is_delay_known: bool,
}

/// The time at which a call was sent.
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
            has_rooms: AtomicBool::new(false),
            epoch: AtomicU64::new(0),
        }
    }
}

impl Refusals {
    /// Returns the number of buckets that it remembers.
    pub(super) fn len(&self) -> usize {
        self.blocks.load(Relaxed)
    }

    /// Says whether one of the charges is refused now. Waits for the answer of a request that asks the same, but
    /// not beyond the time by which this one must ask itself. `answers` tells whether the store can be asked.
    pub(super) async fn check<'c, C: Iterator<Item = (&'c Charge, Costs)>>(
        &self,
        charges: impl Fn() -> C,
        mut now: Instant,
        ask_by: Instant,
        answers: impl Fn() -> bool,
    ) -> KnownAnswer<'_> {
        while self.blocks.load(Relaxed) > 0 {
            let Known { outcomes, turns, asked, ask_at, is_delay_known } = self.known_of_all(charges(), now);
            let charges = || charges().map(|(charge, _)| charge).zip(&outcomes);
            let refusing = charges().find_map(|(charge, outcome)| outcome.is_some().then_some(charge));
            let has_room =
                |(charge, outcome): (_, &Option<_>)| outcome.is_some() || self.has_room(charge, now);
            let is_nobody_to_ask = |refusing: &Charge| {
                is_delay_known && (charges().all(has_room) || !self.may_ask(&refusing.bucket, now))
                    || !answers()
            };
            if refusing.is_some_and(is_nobody_to_ask) {
                return KnownAnswer::Refused(outcomes);
            }
            let is_refused = refusing.is_some();
            let Some(answer) = asked else {
                if ask_at > now {
                    sleep_until(ask_at.min(ask_by)).await;
                }
                return KnownAnswer::Ask(turns);
            };
            // Its own turns are given up, so that two requests never wait for each other.
            drop(turns);
            match timeout_at(ask_by, answer).await {
                Ok(()) => now = Instant::now(),
                Err(_) if is_refused => return KnownAnswer::Refused(outcomes),
                Err(_) => break,
            }
        }
        KnownAnswer::Ask(Turns { refusals: self, taken: SmallVec::new() })
    }

    /// Returns what is known of the charges of a request.
    fn known_of_all<'c>(
        &self,
        charges: impl Iterator<Item = (&'c Charge, Costs)>,
        now: Instant,
    ) -> Known<'_> {
        let turns = Turns { refusals: self, taken: SmallVec::new() };
        let mut known =
            Known { outcomes: SmallVec::new(), turns, asked: None, ask_at: now, is_delay_known: true };
        for (charge, costs) in charges {
            known.outcomes.push(match self.known(charge, costs, now) {
                Recall::Nothing => None,
                Recall::Refused(outcome) => Some(outcome),
                Recall::Due { answered, ask_at, is_refused } => {
                    let (bucket, cost) = (charge.bucket.clone(), charge.cost.max(1));
                    known.turns.taken.push(AskTurn { bucket, cost, answered });
                    known.ask_at = known.ask_at.max(ask_at);
                    known.is_delay_known &= !is_refused;
                    None
                }
                Recall::Asked { answer, is_refused } => {
                    known.asked = Some(answer);
                    known.is_delay_known &= !is_refused;
                    None
                }
            });
        }
        known
    }

    /// Returns how a bucket stands that surely refuses this cost, unless the store is to be asked for the delay.
    pub(super) fn remembered(&self, bucket: &Bytes, quota: Quota, cost: u32) -> Option<Outcome> {
        let now = Instant::now();
        self.look(bucket, quota, |block, allowance| {
            let refusal = block.refusal(cost, now)?;
            let is_to_ask = !refusal.is_exact(Costs::Vary) && allowance.take(now);
            (!is_to_ask).then_some(refusal.outcome)
        })
    }

    /// Returns what is known of a charge now, without asking.
    pub(super) fn recollection(&self, charge: &Charge, costs: Costs, now: Instant) -> Recollection {
        let Charge { bucket, quota, cost, .. } = charge;
        let known =
            self.look(bucket, *quota, |block, _| Some(block.recollection((*cost).max(1), costs, now)));
        known.unwrap_or(Recollection::Nothing)
    }

    fn look<T>(
        &self,
        bucket: &Bytes,
        quota: Quota,
        look: impl FnOnce(&Block, &mut AskAllowance) -> Option<T>,
    ) -> Option<T> {
        let hash = text::hash(bucket);
        let BlockShard { blocks, allowance, .. } = &mut *self.shard(hash).lock();
        let block =
            blocks.find(hash, |block| block.bucket == *bucket).filter(|block| block.quota == quota)?;
        look(block, allowance)
    }

    /// Returns true if a charge is taken to have room, or if there is no telling when a permit will be free.
    pub(super) fn has_room(&self, charge: &Charge, now: Instant) -> bool {
        charge.quota.algorithm == Algorithm::Concurrency
            || self.shard(text::hash(&charge.bucket)).lock().rooms.has(charge, now)
    }

    /// Returns true if the store may be asked about other limits of a request that this bucket refuses. The allowance is that of the
    /// full bucket, because a client may invent keys for the others.
    pub(super) fn may_ask(&self, full: &Bytes, now: Instant) -> bool {
        self.shard(text::hash(full)).lock().allowance.take(now)
    }

    /// Remembers that a charge would have fitted, just after the store's reply.
    pub(super) fn note_room(&self, charge: &Charge, sending: Sending) {
        self.has_rooms.store(true, Relaxed);
        let rooms = &mut self.shard(text::hash(&charge.bucket)).lock().rooms;
        if self.epoch.load(Relaxed) == sending.epoch {
            rooms.note(charge, sending.at);
        }
    }

    /// To be called just before a call of the store.
    pub(super) fn sending(&self) -> Sending {
        Sending { epoch: self.epoch.load(Relaxed), at: Instant::now() }
    }

    /// Learns from a decision of the store, just after its reply. An admission that took the last room is as good
    /// as a refusal, unless the request asks other limits, too: one of them might refuse for longer.
    pub(super) fn learn(&self, charge: &Charge, outcome: &Outcome, sending: Sending, is_alone: bool) {
        if outcome.charged {
            self.charged(charge, outcome.remaining, sending);
        } else if outcome.delay_us == Some(0) {
            self.note_room(charge, sending);
        }
        if !outcome.charged || (outcome.remaining == 0 && is_alone) {
            self.note(charge, outcome, sending);
        }
    }

    /// Remembers what surely is refused now, just after the store's reply.
    pub(super) fn note(&self, charge: &Charge, outcome: &Outcome, sending: Sending) {
        let step = CostRefusal::new(charge, outcome, sending.at);
        let Some(step) = step.filter(|_| charge.quota.algorithm != Algorithm::Concurrency) else { return };
        let Charge { bucket, quota, .. } = charge;
        let hash = text::hash(bucket);
        let blocks = &mut self.shard(hash).lock().blocks;
        if self.epoch.load(Relaxed) != sending.epoch {
            return;
        }
        if let Some(block) = blocks.find_mut(hash, |block| block.bucket == *bucket) {
            return block.note(*quota, step);
        }
        if blocks.len() >= BLOCKS_MOST {
            self.make_place(blocks);
        }
        let mut block = Block::new(bucket.clone(), *quota);
        block.note(*quota, step);
        blocks.insert_unique(hash, block, |block| text::hash(&block.bucket));
        self.blocks.fetch_add(1, Relaxed);
    }

    /// Has the store asked again soon for a bucket to which permits may come back, wherever they are given back.
    pub(super) fn refresh_soon(&self, bucket: &Bytes) {
        self.change(bucket, |block, _| {
            block.refresh_soon();
            false
        });
    }

    /// Notes that a bucket has been charged and has so much room left. That says nothing of what another quota refuses.
    pub(super) fn charged(&self, charge: &Charge, remaining: u64, sending: Sending) {
        if self.has_rooms.load(Relaxed) {
            self.shard(text::hash(&charge.bucket)).lock().rooms.charged(&charge.bucket, remaining);
        }
        if self.blocks.load(Relaxed) == 0 {
            return;
        }
        self.change(&charge.bucket, |block, _| {
            block.quota != charge.quota || block.charged(charge.cost.max(1), remaining, sending.at)
        });
    }

    /// Ends the block of a bucket whose count has been changed.
    pub(super) fn forget(&self, bucket: &Bytes) {
        self.epoch.fetch_add(1, Relaxed);
        self.shard(text::hash(bucket)).lock().rooms.forget(bucket);
        self.change(bucket, |_, _| true);
    }

    /// Ends all blocks.
    pub(super) fn forget_all(&self) {
        self.epoch.fetch_add(1, Relaxed);
        for shard in &self.shards {
            let BlockShard { blocks, rooms, .. } = &mut *shard.lock();
            self.blocks.fetch_sub(blocks.len(), Relaxed);
            blocks.clear();
            rooms.clear();
        }
    }

    fn known(&self, charge: &Charge, costs: Costs, now: Instant) -> Recall {
        let mut known = Recall::Nothing;
        self.change(&charge.bucket, |block, allowance| {
            let holds = block.quota == charge.quota;
            if holds {
                known = block.known(charge.cost.max(1), costs, allowance, now);
            }
            !holds
        });
        known
    }

    /// Drops a block: of a few one that has ended, or else any.
    fn make_place(&self, blocks: &mut HashTable<Block>) {
        let now = Instant::now();
        let ended = blocks.iter().take(8).find(|block| block.has_ended(now)).or_else(|| blocks.iter().next());
        let Some(bucket) = ended.map(|block| block.bucket.clone()) else { return };
        if let Ok(found) = blocks.find_entry(text::hash(&bucket), |block| block.bucket == bucket) {
            found.remove();
            self.blocks.fetch_sub(1, Relaxed);
        }
    }

    /// Changes the block of a bucket, if there is one, and drops it if that says so.
    fn change(&self, bucket: &Bytes, change: impl FnOnce(&mut Block, &mut AskAllowance) -> bool) {
        let hash = text::hash(bucket);
        let BlockShard { blocks, allowance, .. } = &mut *self.shard(hash).lock();
        let Ok(mut found) = blocks.find_entry(hash, |block| block.bucket == *bucket) else { return };
        if change(found.get_mut(), allowance) {
            found.remove();
            self.blocks.fetch_sub(1, Relaxed);
        }
    }

    /// Returns the shard of a hash, by bits that its table doesn't use.
    fn shard(&self, hash: u64) -> &Mutex<BlockShard> {
        &self.shards[(hash >> 32) as usize % SHARDS]
    }
}

impl fmt::Debug for Refusals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Refusals").field("blocks", &self.blocks).finish_non_exhaustive()
    }
}

/// The buckets about which a request asks for others, which wait until this is dropped.
pub(super) struct Turns<'r> {
    refusals: &'r Refusals,
    taken: SmallVec<[AskTurn; 1]>,
}

struct AskTurn {
    bucket: Bytes,
    cost: u32,
    answered: Arc<Notify>,
}

impl Drop for Turns<'_> {
    fn drop(&mut self) {
        for AskTurn { bucket, cost, answered } in &self.taken {
            self.refusals.change(bucket, |block, _| {
                // It may be another one by now.
                let is_same = Arc::ptr_eq(&block.answered, answered);
                // About one reference is the block's, and one is that of each request that asks.
                let waiting = Arc::strong_count(answered).saturating_sub(1 + block.asking());
                is_same && block.end_turn(waiting as u64 * u64::from(*cost))
            });
            // All waiting requests look at it again.
            answered.notify_waiters();
        }
    }
}

#[cfg(test)]
mod tests;
