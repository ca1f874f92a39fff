//! What is known of one bucket that refuses, and the requests that ask about it.
//!
//! Nothing here waits or asks.
//!
//! A block's numbers depend on each other, so all that changes them stands in one file.

use std::{
    sync::Arc,
    thread::{self, ThreadId},
    time::Duration,
};

use bytes::Bytes;
use smallvec::SmallVec;
use tokio::{
    sync::{Notify, futures::OwnedNotified},
    time::Instant,
};

use crate::{
    algorithm::{Algorithm, Quota},
    store::{Charge, Outcome},
};

use super::{AskAllowance, Costs};

/// Within which a change made elsewhere is noticed, should its message be lost.
const REFRESH_EVERY: Duration = Duration::from_secs(5);
/// Within which permits that were given back elsewhere are noticed.
const REFUNDED_WITHIN: Duration = Duration::from_millis(100);
/// From so long before the earliest instant at which there may be room a request is held until there is, so that it
/// doesn't ask just before.
const HELD: Duration = Duration::from_micros(300);
/// For which it is held at most, however long the store took to answer.
const HELD_MOST: Duration = Duration::from_millis(2);
/// Requests that are held together at most: as many as go in one call.
const TOGETHER_MOST: usize = 256;
/// Costs of which a block remembers the delay.
pub(super) const STEPS_MOST: usize = 16;

/// The refusals of a full bucket, and the requests that ask about it.
pub(super) struct Block {
    pub(super) bucket: Bytes,
    pub(super) quota: Quota,
    /// The refusals in the order of their costs.
    steps: SmallVec<[CostRefusal; 1]>,
    refresh_at: Instant,
    turn: Turn,
    /// Wakes the waiting requests when one that asks has its answer.
    pub(super) answered: Arc<Notify>,
}

/// The requests that ask about a block, and how many more may join them.
enum Turn {
    /// No request asks. The next one does, and as many others with it as there is room for.
    Free { room: u64 },
    /// Requests ask for all others, which wait unless there is room for them.
    Taken { asking: usize, room: u64, held: Option<HeldCall> },
    /// Requests ask, and the last answer left no room for another one: when all have ended, the next one asks for all others.
    Full { asking: usize, room: u64, held: Option<HeldCall> },
}

/// The worker that delays its next call for a block, and until when. Requests that arrive there meanwhile join the call.
#[derive(Clone, Copy)]
struct HeldCall {
    worker: ThreadId,
    until: Instant,
}

impl Turn {
    /// Returns the number of requests that ask.
    fn asking(&self) -> usize {
        match *self {
            Self::Free { .. } => 0,
            Self::Taken { asking, .. } | Self::Full { asking, .. } => asking,
        }
    }

    /// Returns the permits for which more requests may ask at the same time.
    fn room(&self) -> u64 {
        match *self {
            Self::Free { room } | Self::Taken { room, .. } | Self::Full { room, .. } => room,
        }
    }

    fn held(&self) -> Option<HeldCall> {
        match *self {
            Self::Free { .. } => None,
            Self::Taken { held, .. } | Self::Full { held, .. } => held,
        }
    }

    /// Adds a request that asks for so many permits, in a call that may be held.
    fn join(&mut self, cost: u32, held: Option<HeldCall>) {
        let room = self.room().saturating_sub(u64::from(cost));
        *self = Self::Taken { asking: self.asking() + 1, room, held };
    }

    /// Notes that an answer left so much room, which may be enough for another request or not.
    fn answer(&mut self, room: u64, is_full: bool) {
        *self = match (self.asking(), self.held()) {
            (0, _) => Self::Free { room },
            (asking, held) if is_full => Self::Full { asking, room, held },
            (asking, held) => Self::Taken { asking, room, held },
        }
    }
}

/// The answer to a charge by what is known.
pub(super) enum Recall {
    Nothing,
    Refused(Outcome),
    /// The request asks for all others, but not before this time. It may be sure that it is refused, but not for how long.
    Due {
        answered: Arc<Notify>,
        ask_at: Instant,
        is_refused: bool,
    },
    /// Other requests ask. This one waits for an answer.
    Asked {
        answer: OwnedNotified,
        is_refused: bool,
    },
}

/// The answer to a charge by what is known, if nobody asks.
pub(crate) enum Recollection {
    Nothing,
    Refused(Outcome),
    /// It is refused, but the store is to be asked for how long.
    RefusedForUnknownTime,
}

/// A refusal by what is known.
pub(super) struct RecalledRefusal {
    pub(super) outcome: Outcome,
    /// The delay was told for this cost.
    is_own: bool,
    /// No request can have been admitted since it was told, at any cost.
    was_full_since: bool,
}

impl RecalledRefusal {
    /// Returns true if the store would tell the same delay. Where all requests cost the same, none is admitted as long as one
    /// is refused.
    pub(super) fn is_exact(&self, costs: Costs) -> bool {
        self.is_own && (self.was_full_since || costs == Costs::Equal)
    }
}

/// A refusal of a cost by the store.
pub(super) struct CostRefusal {
    cost: u32,
    room: u64,
    delay_us: u64,
    grow_us: u64,
    sent: Instant,
    told_at: Instant,
}

impl CostRefusal {
    /// Returns what a decision of the store says about refusals. An admission refuses one permit more than is left, until there
    /// is more room.
    pub(super) fn new(charge: &Charge, outcome: &Outcome, sent: Instant) -> Option<Self> {
        let Outcome { charged, remaining: room, grow_us, delay_us, .. } = *outcome;
        let (cost, delay_us) = match charged {
            true => (room as u32 + 1, grow_us),
            false => (charge.cost.max(1), delay_us.unwrap_or(0)),
        };
        (delay_us > 0).then(|| Self { cost, room, delay_us, grow_us, sent, told_at: Instant::now() })
    }

    /// Returns true if less than this time has surely passed since the store decided.
    fn is_within(&self, us: u64, now: Instant) -> bool {
        now < self.sent + Duration::from_micros(us - us.div_ceil(1_000))
    }

    fn blocks(&self, cost: u32, now: Instant) -> bool {
        (self.cost <= cost && self.is_within(self.delay_us, now))
            || (u64::from(cost) > self.room && self.is_within(self.grow_us, now))
    }

    /// Returns true if its delay is that of this cost, too, which isn't greater: so it is if the oldest permits, without which
    /// nothing more fits, are all that must leave.
    fn tells_delay_of(&self, cost: u32) -> bool {
        cost == self.cost || (u64::from(cost) > self.room && self.delay_us == self.grow_us)
    }

    /// Returns true if nothing can be refused by it any more.
    fn has_ended(&self, now: Instant) -> bool {
        !self.is_within(self.delay_us.max(self.grow_us), now)
    }

    /// Returns the time at which the cost surely fits, unless another request takes the room.
    fn free_at(&self) -> Instant {
        self.told_at + Duration::from_micros(self.delay_us)
    }

    /// Returns true if the cost is about to fit.
    fn is_free_soon(&self, now: Instant) -> bool {
        now + HELD >= self.sent + Duration::from_micros(self.delay_us)
    }
}

impl Block {
    pub(super) fn new(bucket: Bytes, quota: Quota) -> Self {
        let (steps, answered) = Default::default();
        Self { bucket, quota, steps, refresh_at: Instant::now(), turn: Turn::Free { room: 0 }, answered }
    }

    /// Returns what is known of a cost now.
    pub(super) fn known(
        &mut self,
        cost: u32,
        costs: Costs,
        allowance: &mut AskAllowance,
        now: Instant,
    ) -> Recall {
        let (mut ask_at, mut held, is_refused) = (now, self.turn.held(), self.blocks(cost, now));
        match self.refusal(cost, now) {
            Some(refusal) if self.is_fresh(now) && (refusal.is_exact(costs) || !allowance.take(now)) => {
                return Recall::Refused(refusal.outcome);
            }
            Some(_) => {}
            None if !self.has_ended(now) && !is_refused => return Recall::Nothing,
            None => match self.held_until(now) {
                Some(until) => ask_at = until,
                None if self.turn.asking() == 0 => {
                    let longest = self.longest_refusal(cost, now);
                    if let Some(outcome) = longest.filter(|_| !allowance.take(now)) {
                        return Recall::Refused(outcome);
                    }
                    let own = self.steps.iter().find(|step| step.cost == cost && step.is_free_soon(now));
                    ask_at = own.map_or(now, |step| step.free_at().clamp(now, now + HELD_MOST));
                    held = Some(HeldCall { worker: thread::current().id(), until: ask_at });
                }
                None if self.turn.room() < u64::from(cost) => {
                    let answer = self.answered.clone().notified_owned();
                    return Recall::Asked { answer, is_refused };
                }
                None => {}
            },
        }
        self.turn.join(cost, held);
        Recall::Due { answered: self.answered.clone(), ask_at, is_refused }
    }

    /// Returns what is known of a cost now, without asking.
    pub(super) fn recollection(&self, cost: u32, costs: Costs, now: Instant) -> Recollection {
        match self.refusal(cost, now) {
            Some(refusal) if self.is_fresh(now) && refusal.is_exact(costs) => {
                Recollection::Refused(refusal.outcome)
            }
            None if !self.blocks(cost, now) => Recollection::Nothing,
            _ => Recollection::RefusedForUnknownTime,
        }
    }

    /// Returns the number of requests that ask now, for all others.
    pub(super) fn asking(&self) -> usize {
        self.turn.asking()
    }

    /// Returns the time of a held call of this worker that another request may join.
    fn held_until(&self, now: Instant) -> Option<Instant> {
        let HeldCall { worker, until } = self.turn.held().filter(|_| self.asking() < TOGETHER_MOST)?;
        (now < until && worker == thread::current().id()).then_some(until)
    }

    /// Returns true if the bucket surely refuses this cost.
    fn blocks(&self, cost: u32, now: Instant) -> bool {
        self.steps.iter().any(|step| step.blocks(cost, now))
    }

    /// Returns how the bucket stands, if it surely refuses this cost, with the delay of this cost or of the next
    /// greater one that is known.
    pub(super) fn refusal(&self, cost: u32, now: Instant) -> Option<RecalledRefusal> {
        if !self.blocks(cost, now) {
            return None;
        }
        let told = self.steps.iter().find(|step| step.cost >= cost && step.free_at() > now)?;
        let us_until = |at: Instant| at.saturating_duration_since(now).as_micros() as u64;
        let outcome = Outcome {
            charged: false,
            remaining: told.room,
            grow_us: us_until(told.told_at + Duration::from_micros(told.grow_us)),
            // A microsecond that has begun is to be waited for, too.
            delay_us: Some(us_until(told.free_at()) + 1),
            rate: None,
        };
        Some(RecalledRefusal {
            outcome,
            is_own: told.tells_delay_of(cost),
            was_full_since: told.room == 0 && told.is_within(told.grow_us, now),
        })
    }

    /// Returns how the bucket stands, if it surely refuses this cost, of which nothing else is known, with the longest
    /// delay that there may be: all that is in use now leaves within a window. `None` if the algorithm knows no such
    /// time.
    fn longest_refusal(&self, cost: u32, now: Instant) -> Option<Outcome> {
        let Quota { window_us, algorithm, .. } = self.quota;
        let delay_us = match algorithm {
            Algorithm::SlidingWindow
            | Algorithm::FixedWindow
            | Algorithm::Calendar(_)
            | Algorithm::SlidingCells { .. }
            | Algorithm::Refundable { .. } => window_us + self.quota.lag_us(),
            Algorithm::Gcra { .. } | Algorithm::Concurrency | Algorithm::Redisson(_) => return None,
        };
        let last = self.steps.last().filter(|_| self.blocks(cost, now))?;
        let grow_at = last.told_at + Duration::from_micros(last.grow_us);
        let grow_us = grow_at.saturating_duration_since(now).as_micros() as u64;
        Some(Outcome { charged: false, remaining: last.room, grow_us, delay_us: Some(delay_us), rate: None })
    }

    /// Returns true if no further request has to ask: what is known is recent, or a request asks already.
    pub(super) fn is_fresh(&self, now: Instant) -> bool {
        now < self.refresh_at || self.asking() > 0
    }

    pub(super) fn has_ended(&self, now: Instant) -> bool {
        self.steps.iter().all(|step| step.has_ended(now))
    }

    /// Notes a charge: other delays hold now, except those that were told meanwhile, when there was no more room than
    /// it left. Returns whether nothing is known any more.
    pub(super) fn charged(&mut self, cost: u32, remaining: u64, sent: Instant) -> bool {
        let now = Instant::now();
        let is_later = |step: &CostRefusal| step.told_at > sent && step.room <= remaining;
        self.steps.retain(|step| is_later(step) && step.is_within(step.grow_us, now));
        if !self.steps.is_empty() {
            return false;
        }
        let room = if self.asking() == 1 { remaining } else { self.turn.room().min(remaining) };
        let is_full = remaining < u64::from(cost);
        self.turn.answer(room, is_full);
        self.asking() == 0 && !is_full
    }

    /// Notes that a request asks no more, while others wait for so many permits. Returns true if nothing is known any
    /// more.
    pub(super) fn end_turn(&mut self, waiting: u64) -> bool {
        let now = Instant::now();
        let has_ended = now >= self.refresh_at || self.has_ended(now);
        match &mut self.turn {
            Turn::Taken { asking: 1, room, .. } => {
                let room = if has_ended && *room == 0 { waiting } else { *room };
                self.turn = Turn::Free { room };
                return has_ended && waiting == 0;
            }
            Turn::Full { asking: 1, room, .. } => self.turn = Turn::Free { room: *room },
            Turn::Taken { asking, .. } | Turn::Full { asking, .. } => *asking -= 1,
            Turn::Free { .. } => {}
        }
        false
    }

    /// Makes the next request ask within a short time.
    pub(super) fn refresh_soon(&mut self) {
        self.refresh_at = self.refresh_at.min(Instant::now() + REFUNDED_WITHIN);
    }

    /// Remembers a refusal.
    pub(super) fn note(&mut self, quota: Quota, step: CostRefusal) {
        if self.quota != quota {
            self.quota = quota;
            self.steps.clear();
        }
        self.steps.retain(|other| other.cost != step.cost && other.free_at() > step.sent);
        if self.steps.len() == STEPS_MOST {
            self.steps.remove(STEPS_MOST / 2);
        }
        let at = self.steps.partition_point(|other| other.cost < step.cost);
        self.turn.answer(0, true);
        self.refresh_at = step.sent + REFRESH_EVERY;
        self.steps.insert(at, step);
    }
}
