//! Requests that wait for room: a queue a bucket, first come first served in this gateway.
//!
//! A request that a limit refuses joins the queue of the bucket with the greatest delay. While a queue isn't
//! empty, newcomers of any cost join its end. When there will be room for a waiter is known: it is the delay for
//! its permits and those ahead of it. One that this would keep beyond its deadline is refused at once. Nobody
//! polls: the one at the front sleeps until its room appears, and then all are asked for, in one call, whose
//! room has appeared by then. Where other gateways wait for the same bucket, all get equal shares ([`fairness`]).
//!
//! Who leaves gives up the place, and those behind are looked at anew. If others have taken the room meanwhile,
//! as other gateways may, a waiter keeps its place; one of a smaller cost, asked for in the same call, may then
//! be served before it. No task belongs to a queue: its waiters do what is to be done, wherever they run.

mod fairness;
mod queue;
mod renewed;

use std::{collections::HashMap, sync::Arc, time::Duration};

use bytes::Bytes;
use futures_util::future::join_all;
use smallvec::smallvec;
use tokio::{
    select,
    time::{Instant, timeout_at},
};

use crate::{
    algorithm::{Quota, Rate},
    store::{Charge, Outcome, StoreError},
};

use super::{
    Admission, Ask, Asks, Key, Limit, Limited, Limiter, Origin, Refusal, Scope, Standing, limiter::denial,
};

pub(super) use self::queue::Waits;
use self::queue::{End, Next, Place, Room};

/// How long a request may wait.
#[derive(Clone, Copy, Debug)]
pub(super) enum Patience {
    /// As long as the limits that refuse it say, but not beyond this time.
    OfLimits(Option<Instant>),
    /// Until then, whatever the limits say; without an end, until it is served.
    Until(Option<Instant>),
}

impl Patience {
    /// Until when a request may wait that these limits refuse.
    fn until<'l>(self, arrival: Instant, limits: impl IntoIterator<Item = &'l Limit>) -> Option<Instant> {
        match self {
            Self::OfLimits(end) => limits.into_iter().map(|limit| arrival + limit.wait).chain(end).min(),
            Self::Until(until) => until,
        }
    }

    /// Whether it may wait at all.
    fn outlasts(self, limited: &Limited) -> bool {
        matches!(self, Self::Until(_)) || limited.refusing().all(|standing| !standing.limit.wait.is_zero())
    }
}

/// A request that waits, or may have to.
struct Request {
    asks: Asks,
    arrival: Instant,
    patience: Patience,
}

/// The bucket that a request waits for.
struct Awaited {
    ask: Ask,
    bucket: Bytes,
    quota: Quota,
    scope: Scope,
    /// Other gateways may wait for it, too.
    is_shared: bool,
    /// Until when it may wait; without an end, until it is served.
    until: Option<Instant>,
}

/// How a wait ends.
enum Answer {
    Taken(Result<Admission, Refusal>),
    /// By now another bucket refuses it for longer, or for good.
    Elsewhere(Box<Limited>),
}

impl Limiter {
    /// Takes what a request asks as soon as there is room, if that is in time.
    pub(super) async fn take_in_time(
        self: &Arc<Self>,
        asks: &[Ask],
        arrival: Instant,
        patience: Patience,
    ) -> Result<Admission, Refusal> {
        let request = || Arc::new(Request { asks: asks.iter().cloned().collect(), arrival, patience });
        let (request, mut answer) = match self.queue_to_join(asks, arrival, patience)? {
            Some(awaited) => {
                let request = request();
                let answer = Box::pin(self.wait(&request, &awaited, None)).await;
                (request, answer)
            }
            None => match self.take(asks, arrival).await {
                Err(Refusal::Limited(limited)) if patience.outlasts(&limited) => {
                    (request(), Answer::Elsewhere(limited))
                }
                taken => return taken,
            },
        };
        loop {
            let limited = match answer {
                Answer::Taken(taken) => return taken,
                Answer::Elsewhere(limited) => limited,
            };
            let Some((awaited, free_at)) = self.hope(&request, &limited) else {
                return Err(Refusal::Limited(limited));
            };
            answer = Box::pin(self.wait(&request, &awaited, Some(free_at))).await;
        }
    }

    /// The queue that a newcomer joins, since others wait there.
    fn queue_to_join(
        &self,
        asks: &[Ask],
        arrival: Instant,
        patience: Patience,
    ) -> Result<Option<Awaited>, Refusal> {
        if self.waits.are_empty() {
            return Ok(None);
        }
        self.refuse_what_never_fits(asks)?;
        let enforcing = asks.iter().filter(|ask| !ask.limit.shadows());
        let mut awaited = enforcing.map(|ask| self.awaited(ask, patience.until(arrival, [&*ask.limit])));
        Ok(awaited.find(|awaited| self.waits.has_waiters(&awaited.bucket)))
    }

    /// The bucket to wait for after a refusal, and when there will be room; `None` if the request would wait
    /// in vain.
    fn hope(&self, request: &Request, limited: &Limited) -> Option<(Awaited, Instant)> {
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
    pub fn renew_waits<'l>(&self, limits: impl IntoIterator<Item = (&'l Limit, HashMap<Key, Rate>)>) {
        self.waits.renewed.replace(limits);
        self.waits.forget(None);
    }

    fn awaited(&self, ask: &Ask, until: Option<Instant>) -> Awaited {
        let ask = &self.waits.renewed.ask(ask);
        let (Charge { bucket, quota, .. }, scope) = self.charge(ask);
        let is_shared = self.is_shared(scope);
        Awaited { ask: ask.clone(), bucket, quota, scope, is_shared, until }
    }

    /// Waits in the queue of a bucket, in which there will be room for the request at `free_at` if it is the first.
    async fn wait(
        self: &Arc<Self>,
        request: &Arc<Request>,
        awaited: &Awaited,
        free_at: Option<Instant>,
    ) -> Answer {
        let Some((mut place, mut answer)) = self.waits.join(request, awaited, free_at) else {
            return self.turn_away(awaited).await;
        };
        loop {
            let next = match self.waits.next(&place, Instant::now()) {
                Next::Ask(asked) => {
                    // What this one asks for others goes on should it leave.
                    let call = Call { limiter: self.clone(), bucket: awaited.bucket.clone(), asked };
                    tokio::spawn(call.make());
                    continue;
                }
                next => next,
            };
            let step = async {
                match next {
                    Next::Rest(until) => place.rest(until).await,
                    _ => self.look_ahead(awaited).await,
                }
            };
            select! {
                biased;
                answer = &mut answer => {
                    let answer = answer.expect("who is taken from a queue gets an answer");
                    place.end = if matches!(answer, Answer::Taken(Ok(_))) { End::Admitted } else { End::Refused };
                    return answer;
                }
                () = self.waits.ended() => break,
                () = step => {}
            }
        }
        place.end = End::Refused;
        drop(place);
        self.turn_away(awaited).await
    }

    /// Refuses a request since too many wait, or nobody may any more.
    async fn turn_away(&self, awaited: &Awaited) -> Answer {
        let now = Instant::now();
        let refusal = match self.waits.room_behind(awaited) {
            Room::At(free_at) => awaited.refusal(None, Some(free_at), now),
            Room::Told(permits) => match self.look(awaited, permits).await {
                Ok(outcome) => awaited.refusal(Some(outcome), None, now),
                Err(cause) => {
                    let Awaited { ask, quota, .. } = awaited;
                    Refusal::StoreUnavailable { cause, denied_by: vec![denial(ask, *quota)] }
                }
            },
            Room::Unknown => {
                let window = Duration::from_micros(awaited.quota.window_us);
                awaited.refusal(None, Some(now + window), now)
            }
        };
        Answer::Taken(Err(refusal))
    }

    /// Learns when there will be room for the waiters of a queue of whom that isn't known yet.
    async fn look_ahead(&self, awaited: &Awaited) {
        // The limit may have been changed since.
        let awaited = &self.awaited(&awaited.ask, awaited.until);
        let wanted = self.waits.settle(awaited, |permits| {
            self.refusals.remembered(&awaited.bucket, awaited.quota, permits).map(Ok)
        });
        let looks = wanted.iter().map(async |permits| (*permits, self.look(awaited, *permits).await));
        let told = join_all(looks).await;
        self.waits.settle(awaited, |permits| {
            told.iter().find(|(other, _)| *other == permits).map(|(_, outcome)| outcome.clone())
        });
    }

    /// When so many permits are free.
    async fn look(&self, awaited: &Awaited, permits: u32) -> Result<Outcome, StoreError> {
        let mut asked = self.asked(&awaited.ask);
        let (bucket, quota) = (awaited.bucket.clone(), awaited.quota);
        asked.charge = Charge { bucket, quota, cost: permits, shadow: false };
        asked.scope = awaited.scope;
        self.look_at(&mut asked).await
    }
}

impl Awaited {
    /// Permits that must be free, of which it may take none.
    fn needs(&self) -> u64 {
        u64::from(self.ask.cost.max(1))
    }

    /// As the store has told, or else until the waiters ahead have made room.
    fn refusal(&self, told: Option<Outcome>, free_at: Option<Instant>, now: Instant) -> Refusal {
        let us_until = |at: Instant| at.saturating_duration_since(now).as_micros() as u64 + 1;
        let delay_us = free_at.map(us_until).or(told.and_then(|outcome| outcome.delay_us));
        let (remaining, grow_us) =
            told.map_or((0, delay_us.unwrap_or(0)), |told| (told.remaining, told.grow_us));
        let outcome = Outcome { charged: false, remaining, grow_us, delay_us: delay_us.map(|us| us.max(1)) };
        let standing = Standing::new(&self.ask, self.quota, outcome, Origin::LocalRefusal);
        Refusal::Limited(Box::new(Limited { standings: smallvec![standing] }))
    }
}

/// A call for waiters at the front of a queue. The next may be made when this is dropped, however it ends.
struct Call {
    limiter: Arc<Limiter>,
    bucket: Bytes,
    asked: Vec<(u64, Arc<Request>)>,
}

impl Call {
    async fn make(self) {
        let (limiter, now) = (&self.limiter, Instant::now());
        let asks = self.asked.iter().map(|(_, request)| limiter.waits.renewed.asks(&request.asks));
        let asks: Vec<Asks> = asks.collect();
        let decisions = join_all(asks.iter().map(|asks| limiter.decide(asks, now))).await;
        if decisions.iter().any(|decision| matches!(decision, Err(Refusal::Limited(_)))) {
            limiter.waits.lost(&self.bucket);
        }
        for ((id, request), decision) in self.asked.iter().zip(decisions) {
            match decision {
                Err(Refusal::Limited(limited)) => self.keep_place(*id, request, limited),
                taken => limiter.waits.answer(&self.bucket, *id, Answer::Taken(taken)),
            }
        }
    }

    /// Others have taken the room of a waiter. It stays where it is if the same bucket still refuses most.
    fn keep_place(&self, id: u64, request: &Request, limited: Box<Limited>) {
        let waits = &self.limiter.waits;
        match self.limiter.hope(request, &limited) {
            Some((awaited, free_at)) if awaited.bucket == self.bucket => {
                waits.keep(&self.bucket, id, awaited.until, free_at);
            }
            _ => waits.answer(&self.bucket, id, Answer::Elsewhere(limited)),
        }
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        self.limiter.waits.end_call(&self.bucket);
    }
}

impl Place<'_> {
    /// Until then, or until there may be something to do.
    async fn rest(&self, until: Option<Instant>) {
        match until {
            Some(until) => drop(timeout_at(until, self.turn.notified()).await),
            None => self.turn.notified().await,
        }
    }
}
