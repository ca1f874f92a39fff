//! The way through a queue: a request waits there for its room, and asks for those that go along.
//!
//! A request that waits goes from one function here to the next, so they stand in one file.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use futures_util::future::join_all;
use smallvec::SmallVec;
use tokio::{select, task::yield_now, time::Instant};

use crate::{
    Admission, Algorithm, Ask, Asks, Limit, Limited, Refusal,
    store::{Charge, Outcome, StoreError},
    wait::{
        Awaited, HeldBeside, NextStep, Patience, RateOfKey, RoomEstimate, StayEnd, WaitResult, WaiterId,
        WaitingRequest,
    },
};

use super::{Limiter, failure::denial};

/// The difference of two times for the same room, told one after the other, that means nothing.
const JITTER: Duration = Duration::from_millis(50);

impl Limiter {
    /// Returns the queue that a newcomer joins, if others wait there: of several, the one whose room is known to be the latest, or else
    /// the last.
    pub(super) fn queue_to_join(
        &self,
        asks: &[Ask],
        arrival: Instant,
        patience: Patience,
    ) -> Result<Option<Awaited>, Refusal> {
        if self.waits.are_empty() {
            return Ok(None);
        }
        drop(self.charges_of(asks)?);
        let enforcing = asks.iter().filter(|ask| !ask.limit.shadows());
        let awaited = enforcing.map(|ask| self.awaited(ask, patience.until(arrival, [&*ask.limit])));
        let mut queues: SmallVec<[Awaited; 1]> =
            awaited.filter(|awaited| self.waits.has_waiters(&awaited.bucket)).collect();
        if queues.len() > 1 {
            queues.sort_by_cached_key(|awaited| match self.waits.room_behind(awaited, None) {
                RoomEstimate::At(free_at) => Some(free_at),
                _ => None,
            });
        }
        Ok(queues.pop())
    }

    /// Returns the bucket to wait for after a refusal, and the time of its room. `None` if the request would wait
    /// in vain.
    pub(super) fn hope(&self, request: &WaitingRequest, limited: &Limited) -> Option<(Awaited, Instant)> {
        // There is no telling when a lease ends.
        let delay_us = limited.delay_us().filter(|_| limited.is_exact())?;
        let free_at = Instant::now() + Duration::from_micros(delay_us);
        let until =
            request.patience.until(request.arrival, limited.refusing().map(|standing| &*standing.limit));
        if until.is_some_and(|until| free_at > until) {
            return None;
        }
        let greatest = limited.refusing().max_by_key(|standing| standing.outcome.delay_us)?;
        let ask = request.asks.iter().find(|ask| greatest.is_of(ask))?;
        Some((self.awaited(ask, until), free_at))
    }

    /// Holds the requests that wait to the rates of these limits, by name, and of the keys that have one of their own,
    /// as the configuration has them now.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use tollgate_limiter::{Ask, Limit, Limiter, Rate};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let limiter = Limiter::connect("memory:")?;
    /// # let logins = Arc::new(Limit::new("logins", "5/min".parse::<Rate>()?));
    /// limiter.try_acquire(Ask::new(&logins, "alice").cost(5)).await?;
    /// let waits = tokio::spawn({
    ///     let (limiter, alice) = (limiter.clone(), Ask::new(&logins, "alice"));
    ///     async move { limiter.acquire(&alice, None).await.is_ok() }
    /// });
    /// while limiter.waiting() == 0 {
    ///     tokio::task::yield_now().await;
    /// }
    /// // A new configuration permits six logins, so the sixth needn't wait for a minute.
    /// let edited = Limit::new("logins", "6/min".parse::<Rate>()?);
    /// limiter.renew_waits([(&edited, Box::new(|_: &_| None) as _)]);
    /// assert!(waits.await?);
    /// # Ok(())
    /// # }
    /// ```
    pub fn renew_waits<'l>(&self, limits: impl IntoIterator<Item = (&'l Limit, RateOfKey)>) {
        self.waits.renewed.replace(limits);
        self.waits.forget(None);
    }

    pub(super) fn awaited(&self, ask: &Ask, until: Option<Instant>) -> Awaited {
        let ask = &self.waits.renewed.ask(ask);
        let (Charge { bucket, quota, .. }, scope) = self.charge(ask);
        let is_shared = self.is_shared(scope);
        Awaited { ask: ask.clone(), bucket, quota, scope, is_shared, until }
    }

    /// Waits in the queue of a bucket, if the request's other limits can serve it, too. If one without `wait` is known to be full,
    /// or can't serve all in the queue before this request's deadline, the request is rejected. If one with `wait` refuses it for
    /// longer than this queue takes, it waits there.
    pub(super) async fn wait_in_line(
        self: &Arc<Self>,
        request: &Arc<WaitingRequest>,
        awaited: &Awaited,
        free_at: Option<Instant>,
    ) -> WaitResult {
        let enforcing = request.asks.iter().filter(|ask| !ask.limit.shadows());
        let others = enforcing.map(|ask| self.awaited(ask, awaited.until));
        // Leases end with their requests: there is no telling how many will be free.
        let others = others.filter(|other| {
            other.bucket != awaited.bucket && other.quota.algorithm != Algorithm::Concurrency
        });
        let held = self.waits.beside.hold(&awaited.bucket, others);
        if !held.buckets.is_empty()
            && let Some(limited) = self.refuse_by_other_limits(request, awaited, &held, free_at).await
        {
            return WaitResult::Elsewhere(limited);
        }
        self.wait(request, awaited, free_at).await
    }

    /// Refuses a request that is to wait for a bucket, if its other limits can't serve it as [`Self::wait_in_line`] says.
    async fn refuse_by_other_limits(
        &self,
        request: &WaitingRequest,
        awaited: &Awaited,
        held: &HeldBeside<'_>,
        free_at: Option<Instant>,
    ) -> Option<Box<Limited>> {
        let now = Instant::now();
        let free_at = free_at.unwrap_or_else(|| match self.waits.room_behind(awaited, None) {
            RoomEstimate::At(free_at) => free_at,
            _ => now,
        });
        if let Some(limited) = self.refuse_known_beside(&request.asks, &awaited.bucket, now) {
            let delay = limited.delay_us().map(Duration::from_micros);
            let is_later = delay.is_none_or(|delay| now + delay > free_at);
            if is_later || !request.patience.outlasts(&limited) {
                return Some(limited);
            }
        }
        for (other, before) in &held.buckets {
            if *before == 0 || self.waits.has_waiters(&other.bucket) {
                continue;
            }
            let (before, until) = match request.patience.is_for(&other.ask.limit) {
                true => (0, Some(free_at)),
                false => (*before, awaited.until),
            };
            if let Some(until) = until
                && let Some(limited) = self.refuse_behind(other, before, until).await
            {
                return Some(limited);
            }
        }
        None
    }

    /// Refuses a request if a bucket has no room for it by a time, behind others that are to take so many permits.
    async fn refuse_behind(&self, awaited: &Awaited, before: u64, until: Instant) -> Option<Box<Limited>> {
        let (quota, permits) = (awaited.quota, before + awaited.needs());
        let excess = permits.saturating_sub(quota.capacity().into());
        let delay_us = if excess > 0 && !quota.algorithm.is_changed_by_others() {
            // Those ahead take all of it, and it comes back at its rate.
            excess.saturating_mul(quota.window_us) / u64::from(quota.permits.max(1))
        } else {
            let permits = u32::try_from(permits).unwrap_or(u32::MAX);
            let outcome = match self.refusals.remembered(&awaited.bucket, quota, permits) {
                Some(outcome) => outcome,
                None => self.look(awaited, permits).await.ok()?,
            };
            outcome.delay_us?
        };
        let now = Instant::now();
        let free_at = now + Duration::from_micros(delay_us);
        match awaited.refusal(None, Some(free_at), now) {
            Refusal::Limited(limited) if delay_us > 0 && free_at > until => Some(limited),
            _ => None,
        }
    }

    /// Waits in the queue of a bucket, in which there will be room for the request at `free_at` if it is the first.
    pub(super) async fn wait(
        self: &Arc<Self>,
        request: &Arc<WaitingRequest>,
        awaited: &Awaited,
        free_at: Option<Instant>,
    ) -> WaitResult {
        let Some((mut place, mut answer)) = self.waits.join(request, awaited, free_at) else {
            return self.turn_away(awaited).await;
        };
        loop {
            let next = match self.waits.next(&place, Instant::now()) {
                NextStep::Ask(asked) => {
                    // What this one asks for others goes on should it leave.
                    let (bucket, is_shared) = (awaited.bucket.clone(), awaited.is_shared);
                    let call = QueueCall { limiter: self.clone(), bucket, is_shared, asked };
                    tokio::spawn(call.make());
                    continue;
                }
                next => next,
            };
            let step = async {
                match next {
                    NextStep::Rest(until) => place.rest(until).await,
                    NextStep::LookAgain(first, free_at) => self.look_again(&first, free_at).await,
                    _ => {
                        self.look_ahead(&awaited.bucket).await;
                        // It may have had nothing to wait for.
                        yield_now().await;
                    }
                }
            };
            select! {
                biased;
                answer = &mut answer => {
                    let answer = answer.expect("a request that is taken from a queue gets an answer");
                    place.end = if matches!(answer, WaitResult::Taken(Ok(_))) { StayEnd::Admitted } else { StayEnd::Refused };
                    return answer;
                }
                () = self.waits.ended() => break,
                () = step => {}
            }
        }
        place.end = StayEnd::Refused;
        drop(place);
        self.turn_away(awaited).await
    }

    /// Refuses a request since too many wait, or nobody may any more.
    pub(super) async fn turn_away(&self, awaited: &Awaited) -> WaitResult {
        let (mut room, mut stated) = (self.waits.room_behind(awaited, None), None);
        if let RoomEstimate::AskStore(permits) = room {
            stated = match self.look(awaited, permits).await {
                Ok(outcome) => Some(outcome),
                Err(cause) => {
                    let denied_by = vec![denial(&awaited.ask, awaited.quota)];
                    return WaitResult::Taken(Err(Refusal::StoreUnavailable { cause, denied_by }));
                }
            };
            room = self.waits.room_behind(awaited, stated);
        }
        let now = Instant::now();
        let free_at = match room {
            RoomEstimate::At(free_at) => Some(free_at),
            RoomEstimate::Never => None,
            _ => Some(now + Duration::from_micros(awaited.quota.window_us)),
        };
        WaitResult::Taken(Err(awaited.refusal(stated, free_at, now)))
    }

    /// Asks the store about the waiters of a queue for which the time of room isn't known yet.
    pub(super) async fn look_ahead(&self, bucket: &Bytes) {
        // The limits may have been changed since.
        let renewed = |awaited: &Awaited| self.awaited(&awaited.ask, awaited.until);
        let wanted = self.waits.estimate_rooms(bucket, renewed, |awaited, permits| {
            self.refusals.remembered(bucket, awaited.quota, permits)
        });
        let looks = wanted.iter().map(async |(awaited, permits)| {
            // Without an answer the failure policy decides, when it is its turn.
            (awaited.quota, *permits, self.look(awaited, *permits).await.unwrap_or(Outcome::UNKNOWN_ROOM))
        });
        let told = join_all(looks).await;
        self.waits.estimate_rooms(bucket, renewed, |awaited, permits| {
            let of_these = |(quota, of, _): &&_| (*quota, *of) == (awaited.quota, permits);
            told.iter().find(of_these).map(|(.., outcome)| *outcome)
        });
    }

    /// Asks the store whether there will be room at `free_at` for the first waiter of a queue. If not, or if its rate is
    /// another by now, something was changed of which no message told, and all that is known of the bucket is forgotten.
    async fn look_again(&self, first: &Awaited, free_at: Instant) {
        let awaited = self.awaited(&first.ask, first.until);
        let holds = awaited.quota == first.quota
            && match self.look(&awaited, first.ask.cost.max(1)).await {
                Ok(Outcome { delay_us, .. }) => delay_us.is_some_and(|delay_us| {
                    let now = Instant::now();
                    let (told, known) = (now + Duration::from_micros(delay_us), free_at.max(now));
                    told.max(known) - told.min(known) < JITTER
                }),
                // The failure policy decides, when it is its turn.
                Err(_) => true,
            };
        if !holds {
            self.forget(&first.bucket);
        }
    }

    /// Asks the store when `permits` are free.
    pub(super) async fn look(&self, awaited: &Awaited, permits: u32) -> Result<Outcome, StoreError> {
        let mut asked = self.charged(&awaited.ask);
        let (bucket, quota) = (awaited.bucket.clone(), awaited.quota);
        asked.charge = Charge { bucket, quota, cost: permits, shadow: false };
        asked.scope = awaited.scope;
        self.look_at(&mut asked).await
    }
}

/// A call for waiters at the front of a queue. The next may be made when this is dropped, however it ends.
struct QueueCall {
    limiter: Arc<Limiter>,
    bucket: Bytes,
    /// True if the store that others share counts the bucket.
    is_shared: bool,
    asked: Vec<(WaiterId, Arc<WaitingRequest>)>,
}

impl QueueCall {
    async fn make(self) {
        let limiter = &self.limiter;
        let decisions = self.decide().await;
        if decisions.iter().any(|decision| matches!(decision, Err(Refusal::Limited(_)))) {
            limiter.waits.lost(&self.bucket);
        }
        for ((id, request), decision) in self.asked.iter().zip(decisions) {
            match decision {
                Err(Refusal::Limited(limited)) => self.keep_place(*id, request, limited),
                taken => limiter.waits.answer(&self.bucket, *id, WaitResult::Taken(taken)),
            }
        }
    }

    /// Returns the decisions on the waiters in their order: on all, or up to the first that is refused. Those behind it keep their places.
    async fn decide(&self) -> Vec<Result<Admission, Refusal>> {
        let (limiter, now) = (&self.limiter, Instant::now());
        let asked = self.asked.iter().map(|(_, request)| {
            (limiter.waits.renewed.asks(&request.asks), limiter.within_timeout(now, request.deadline))
        });
        let asked: Vec<(Asks, Instant)> = asked.collect();
        if self.is_shared {
            // The server decides all at one time, when who needs as much as one that is refused is refused, too.
            return join_all(asked.iter().map(|(asks, by)| limiter.decide_awaited(asks, *by))).await;
        }
        // Here, room may appear between two decisions.
        let mut decisions = Vec::with_capacity(asked.len());
        for (asks, deadline) in &asked {
            decisions.push(limiter.decide_awaited(asks, *deadline).await);
            if matches!(decisions.last(), Some(Err(Refusal::Limited(_)))) {
                break;
            }
        }
        decisions
    }

    /// Others have taken the room of a waiter. It stays where it is if the same bucket still refuses most.
    fn keep_place(&self, id: WaiterId, request: &WaitingRequest, limited: Box<Limited>) {
        let waits = &self.limiter.waits;
        match self.limiter.hope(request, &limited) {
            Some((awaited, free_at)) if awaited.bucket == self.bucket => {
                waits.keep(&self.bucket, id, awaited.until, free_at);
            }
            _ => waits.answer(&self.bucket, id, WaitResult::Elsewhere(limited)),
        }
    }
}

impl Drop for QueueCall {
    fn drop(&mut self) {
        self.limiter.waits.end_call(&self.bucket);
    }
}
