//! Requests that are waiting for room: a queue a bucket, first come first served in this gateway.
//!
//! A request that a limit refuses joins the queue of the bucket with the greatest delay. While a queue isn't
//! empty, newcomers of any cost join its end; one that the store was asked about before joins ahead of those that came
//! later. When there will be room for a waiter is known: it is the delay for
//! its permits and those ahead of it, by its own quota, but not before theirs. One that this would keep beyond its
//! deadline is refused at once. Nobody polls: the one at the front sleeps until its room appears, and then all are asked
//! for, in one call, whose room has appeared by then. Every few seconds the store is asked whether that time still holds,
//! in case something was changed of which no message told. Where other gateways wait for the same bucket, all get equal
//! shares ([`fairness`]).
//!
//! Other limits of a request must have room for it before it joins, beside what those ahead in the queue are to take of them
//! ([`beside`]).
//!
//! A waiter that leaves gives up its place, and those behind are looked at again. If others have taken the room meanwhile,
//! as other gateways may, a waiter keeps its place; one of a smaller cost, asked for in the same call, may then
//! be served before it. No task belongs to a queue: its waiters do what is to be done, wherever they run.

mod beside;
mod fairness;
mod queue;
mod renewed;

use bytes::Bytes;
use smallvec::smallvec;
use tokio::time::{Instant, timeout_at};

use crate::{Admission, Ask, Asks, Limit, Limited, Origin, Quota, Refusal, Scope, Standing, store::Outcome};

pub(crate) use self::beside::HeldBeside;
pub(crate) use self::queue::{NextStep, QueuePlace, RoomEstimate, StayEnd, WaiterId, Waits};
pub use self::renewed::RateOfKey;

/// The time that a request may wait.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Patience {
    /// The waits of the limits that refuse it, but not beyond this time.
    OfLimits(Option<Instant>),
    /// The end of the wait, also if the limits allow more. `None` means until it is served.
    Until(Option<Instant>),
}

impl Patience {
    /// Returns the end of the wait of a request that these limits refuse.
    pub(crate) fn until<'l>(
        self,
        arrival: Instant,
        limits: impl IntoIterator<Item = &'l Limit>,
    ) -> Option<Instant> {
        match self {
            Self::OfLimits(end) => limits.into_iter().map(|limit| arrival + limit.wait).chain(end).min(),
            Self::Until(until) => until,
        }
    }

    /// Returns true if a request that is refused so may wait at all.
    pub(crate) fn outlasts(self, limited: &Limited) -> bool {
        limited.refusing().all(|standing| self.is_for(&standing.limit))
    }

    /// Returns true if a request may wait for this limit.
    pub(crate) fn is_for(self, limit: &Limit) -> bool {
        matches!(self, Self::Until(_)) || !limit.wait.is_zero()
    }
}

/// A request that waits, or may have to.
pub(crate) struct WaitingRequest {
    pub(crate) asks: Asks,
    pub(crate) arrival: Instant,
    /// The time at which it came to the limiter, perhaps after its body: its place in a queue.
    pub(crate) came: Instant,
    pub(crate) patience: Patience,
    /// The time by which the store must decide when it is asked, if that is earlier than the store's own deadline.
    pub(crate) deadline: Option<Instant>,
}

/// The bucket that a request waits for.
#[derive(Clone)]
pub(crate) struct Awaited {
    pub(crate) ask: Ask,
    pub(crate) bucket: Bytes,
    pub(crate) quota: Quota,
    pub(crate) scope: Scope,
    /// Other gateways may wait for it, too.
    pub(crate) is_shared: bool,
    /// The end of the wait. `None` means until it is served.
    pub(crate) until: Option<Instant>,
}

/// The result of a wait.
pub(crate) enum WaitResult {
    Taken(Result<Admission, Refusal>),
    /// Another bucket refuses it for longer by now, or for good.
    Elsewhere(Box<Limited>),
}

impl Awaited {
    /// Permits that it takes.
    pub(crate) fn cost(&self) -> u64 {
        self.ask.cost.into()
    }

    /// Permits that must be free, of which it may take none.
    pub(crate) fn needs(&self) -> u64 {
        self.cost().max(1)
    }

    /// Returns the refusal, with the delay that the store stated, or until the waiters ahead have made room.
    pub(crate) fn refusal(&self, told: Option<Outcome>, free_at: Option<Instant>, now: Instant) -> Refusal {
        let us_until = |at: Instant| at.saturating_duration_since(now).as_micros() as u64 + 1;
        let delay_us = free_at.map(us_until).or(told.and_then(|outcome| outcome.delay_us));
        let (remaining, grow_us) =
            told.map_or((0, delay_us.unwrap_or(0)), |told| (told.remaining, told.grow_us));
        let delay_us = delay_us.map(|us| us.max(1));
        let rate = told.and_then(|told| told.rate);
        let outcome = Outcome { charged: false, remaining, grow_us, delay_us, rate };
        let standing = Standing::new(&self.ask, self.quota, outcome, Origin::LocalRefusal);
        Refusal::Limited(Box::new(Limited { standings: smallvec![standing] }))
    }
}

impl QueuePlace<'_> {
    /// Sleeps until this time, or until there may be something to do.
    pub(crate) async fn rest(&self, until: Option<Instant>) {
        match until {
            Some(until) => drop(timeout_at(until, self.turn.notified()).await),
            None => self.turn.notified().await,
        }
    }
}
