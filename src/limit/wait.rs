//! Requests that wait for room: a queue a bucket, first come first served in this gateway.
//!
//! A request that a limit refuses joins the queue of the bucket with the greatest delay. While a queue isn't
//! empty, newcomers of any cost join its end. Nobody polls: each queue has a task that sleeps until the first
//! one's room appears, and then asks for all whose room has appeared by then, in one call. When that is, is
//! known: the delay for a waiter's permits and those ahead of it, which the store tells when it joins. One that
//! this would keep beyond its deadline is refused at once.
//!
//! Who leaves gives up the place, and those behind are looked at anew when they come to the front. If others
//! have taken the room meanwhile, as other gateways may, a waiter keeps its place.

use std::{
    collections::{HashMap, VecDeque},
    fmt,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use bytes::Bytes;
use futures_util::future::join_all;
use parking_lot::Mutex;
use smallvec::smallvec;
use tokio::{
    sync::{Notify, oneshot},
    time::{Instant, timeout_at},
};

use crate::{
    algorithm::Quota,
    store::{Charge, Outcome, StoreError},
};

use super::{Admission, Ask, Asks, Limit, Limited, Limiter, Refusal, Standing};

/// Requests that may wait, in all queues. Past that they are refused.
const WAITING_MOST: usize = 10_000;
/// Requests that are asked for in one go.
const TOGETHER_MOST: usize = 256;

/// How much later than its end a waiter gives up by itself: the one at the front is asked for at that end.
const GRACE: Duration = Duration::from_millis(1);

/// The queues.
#[derive(Default)]
pub(super) struct Waits {
    queues: Mutex<Queues>,
    waiting: AtomicUsize,
}

/// A plain lock: held to look at a queue or to change it, never across an await.
#[derive(Default)]
struct Queues {
    /// Each of them has a task.
    by_bucket: HashMap<Bytes, Queue>,
    next_id: u64,
}

#[derive(Default)]
struct Queue {
    waiters: VecDeque<Waiter>,
    /// Tells its task that the front has changed.
    changed: Arc<Notify>,
}

struct Waiter {
    id: u64,
    asks: Arc<Asks>,
    cost: u64,
    /// When there will be room for it and for those ahead of it; unknown until the store has told.
    free_at: Option<Instant>,
    until: Option<Instant>,
    answer: oneshot::Sender<Answer>,
}

/// How a wait ends.
enum Answer {
    Admitted(Admission),
    Refused(Refusal),
    /// Another bucket has a greater delay by now.
    Elsewhere,
}

/// The bucket that a request waits for.
#[derive(Clone)]
struct Awaited {
    ask: Ask,
    bucket: Bytes,
    quota: Quota,
    /// Until when it may wait; without an end, until it is served.
    until: Option<Instant>,
}

/// How long a request may wait.
#[derive(Clone, Copy, Debug)]
pub(super) enum Patience {
    /// As long as the limits that refuse it say.
    OfLimits,
    /// Until then, whatever the limits say; without an end, until it is served.
    Until(Option<Instant>),
}

impl Patience {
    fn until(self, arrival: Instant, limit: &Limit) -> Option<Instant> {
        match self {
            Self::OfLimits => Some(arrival + limit.wait),
            Self::Until(until) => until,
        }
    }
}

impl Limiter {
    /// Takes what a request asks as soon as there is room, if that is in time.
    pub(super) async fn take_in_time(
        self: &Arc<Self>,
        asks: &Asks,
        arrival: Instant,
        patience: Patience,
    ) -> Result<Admission, Refusal> {
        let mut asked_at = arrival;
        loop {
            let (awaited, free_at) = match self.queue_to_join(asks, arrival, patience) {
                Some(awaited) => (awaited, None),
                None => match self.take(asks, asked_at).await {
                    Err(Refusal::Limited(limited)) => match self.hope(asks, &limited, arrival, patience) {
                        Some((awaited, free_at)) => (awaited, Some(free_at)),
                        None => return Err(Refusal::Limited(limited)),
                    },
                    taken => return taken,
                },
            };
            match self.wait(asks, &awaited, free_at).await {
                Answer::Admitted(admission) => return Ok(admission),
                Answer::Refused(refusal) => return Err(refusal),
                Answer::Elsewhere => asked_at = Instant::now(),
            }
        }
    }

    /// The queue that a newcomer joins, since others wait there.
    fn queue_to_join(&self, asks: &Asks, arrival: Instant, patience: Patience) -> Option<Awaited> {
        if self.waits.are_empty() {
            return None;
        }
        let enforcing = asks.iter().filter(|ask| !ask.limit.shadows());
        let mut candidates = enforcing.map(|ask| self.awaited(ask, patience.until(arrival, &ask.limit)));
        candidates.find(|awaited| self.waits.has_waiters(&awaited.bucket))
    }

    /// The bucket to wait for after a refusal, and when there will be room; `None` if the request would wait
    /// in vain.
    fn hope(
        &self,
        asks: &Asks,
        limited: &Limited,
        arrival: Instant,
        patience: Patience,
    ) -> Option<(Awaited, Instant)> {
        // There is no telling when a lease ends.
        let delay_us = limited.delay_us().filter(|_| limited.is_exact())?;
        let free_at = Instant::now() + Duration::from_micros(delay_us);
        let untils = limited.refusing().map(|standing| patience.until(arrival, &standing.limit));
        let until = untils.flatten().min();
        if until.is_some_and(|until| free_at > until) {
            return None;
        }
        let greatest = limited.refusing().max_by_key(|standing| standing.outcome.delay_us)?;
        let ask = asks.iter().find(|ask| Arc::ptr_eq(&ask.limit, &greatest.limit))?;
        Some((self.awaited(ask, until), free_at))
    }

    fn awaited(&self, ask: &Ask, until: Option<Instant>) -> Awaited {
        let (Charge { bucket, quota, .. }, _) = self.charge(ask);
        Awaited { ask: ask.clone(), bucket, quota, until }
    }

    async fn wait(self: &Arc<Self>, asks: &Asks, awaited: &Awaited, free_at: Option<Instant>) -> Answer {
        let cost = awaited.cost();
        let (place, mut answer) = match self.waits.join(asks, awaited, free_at) {
            Ok(joined) => joined,
            Err(Crowded { ahead }) => return self.refuse_waiter(awaited, ahead + cost).await,
        };
        if place.is_new {
            tokio::spawn(self.clone().serve(awaited.clone()));
        }
        if place.ahead > 0 {
            let Ok(outcome) = self.look(awaited, place.ahead + cost).await else { return Answer::Elsewhere };
            let free_at = outcome.delay_us.map(|delay_us| Instant::now() + Duration::from_micros(delay_us));
            if free_at.is_none_or(|free_at| awaited.until.is_some_and(|until| free_at > until)) {
                return refused(awaited, outcome);
            }
            self.waits.expect(&place, free_at);
        }
        let answered = match awaited.until {
            // The one at the front is asked for once more at its very end.
            Some(until) => timeout_at(until + GRACE, &mut answer).await,
            None => Ok(answer.await),
        };
        match answered {
            Ok(Ok(answer)) => answer,
            // The task has ended with its thread.
            Ok(Err(_)) => Answer::Elsewhere,
            Err(_) => {
                let ahead = self.waits.ahead_of(&place);
                drop(place);
                self.refuse_waiter(awaited, ahead + cost).await
            }
        }
    }

    /// Refuses a waiter for which so many permits must become free.
    async fn refuse_waiter(&self, awaited: &Awaited, permits: u64) -> Answer {
        match self.look(awaited, permits).await {
            Ok(outcome) => refused(awaited, outcome),
            Err(error) => Answer::Refused(Refusal::StoreUnavailable(error)),
        }
    }

    /// When so many permits will have become free, those beyond the quota a window later each time.
    async fn look(&self, awaited: &Awaited, permits: u64) -> Result<Outcome, StoreError> {
        let Awaited { ask, bucket, quota, .. } = awaited;
        let capacity = u64::from(quota.capacity()).max(1);
        let (windows, rest) = ((permits - 1) / capacity, (permits - 1) % capacity + 1);
        let usage = self.peek_at(ask, bucket.clone(), *quota, rest as u32).await?;
        Ok(Outcome {
            charged: false,
            remaining: capacity.saturating_sub(usage.used),
            grow_us: usage.grow_us,
            delay_us: usage.delay_us.map(|delay_us| (delay_us + windows * quota.window_us).max(1)),
        })
    }

    /// Serves the queue of a bucket until it is empty.
    async fn serve(self: Arc<Self>, awaited: Awaited) {
        let Awaited { bucket, .. } = &awaited;
        loop {
            match self.waits.next(bucket) {
                Next::Nobody => return,
                Next::Sleep(until, changed) => {
                    // Either is a reason to look at the front again.
                    let _ = timeout_at(until, changed.notified()).await;
                }
                Next::Look { id, cost, until } => {
                    let free_at = match self.look(&awaited, cost).await {
                        Ok(outcome) => {
                            outcome.delay_us.map(|delay_us| Instant::now() + Duration::from_micros(delay_us))
                        }
                        // The failure policy decides.
                        Err(_) => Some(Instant::now()),
                    };
                    let is_in_time =
                        free_at.is_some_and(|free_at| until.is_none_or(|until| free_at <= until));
                    if is_in_time {
                        self.waits.expect_at(bucket, id, free_at);
                    } else {
                        self.waits.answer(bucket, id, Answer::Elsewhere);
                    }
                }
                Next::Ask(asked) => self.ask_together(bucket, asked).await,
            }
        }
    }

    async fn ask_together(&self, bucket: &Bytes, asked: Vec<(u64, Arc<Asks>)>) {
        let now = Instant::now();
        let decisions = join_all(asked.iter().map(|(_, asks)| self.decide(asks, now))).await;
        for ((id, asks), decision) in asked.iter().zip(decisions) {
            match decision {
                Ok(admission) => self.waits.answer(bucket, *id, Answer::Admitted(admission)),
                Err(Refusal::Limited(limited)) => self.ask_again(bucket, *id, asks, limited),
                Err(refusal) => self.waits.answer(bucket, *id, Answer::Refused(refusal)),
            }
        }
    }

    /// Keeps the place of a waiter whose room others have taken, if the same bucket still refuses most.
    fn ask_again(&self, bucket: &Bytes, id: u64, asks: &Asks, limited: Box<Limited>) {
        let Some(until) = self.waits.until(bucket, id) else { return };
        let hope = self.hope(asks, &limited, Instant::now(), Patience::Until(until));
        match hope {
            Some((awaited, free_at)) if awaited.bucket == *bucket => {
                self.waits.expect_at(bucket, id, Some(free_at));
            }
            Some(_) => self.waits.answer(bucket, id, Answer::Elsewhere),
            None => self.waits.answer(bucket, id, Answer::Refused(Refusal::Limited(limited))),
        }
    }
}

impl Awaited {
    fn cost(&self) -> u64 {
        u64::from(self.ask.cost.max(1))
    }
}

fn refused(awaited: &Awaited, outcome: Outcome) -> Answer {
    let standing = Standing { limit: awaited.ask.limit.clone(), quota: awaited.quota, outcome };
    Answer::Refused(Refusal::Limited(Box::new(Limited { standings: smallvec![standing] })))
}

/// What the task of a queue does next.
enum Next {
    /// Nobody waits: it ends.
    Nobody,
    /// Nothing, until then or until the front changes.
    Sleep(Instant, Arc<Notify>),
    /// Look when there will be room for the one at the front.
    Look { id: u64, cost: u64, until: Option<Instant> },
    /// Ask for these.
    Ask(Vec<(u64, Arc<Asks>)>),
}

/// No more requests may wait.
struct Crowded {
    ahead: u64,
}

/// A place in a queue. It is given up with this value.
struct Place<'w> {
    waits: &'w Waits,
    bucket: Bytes,
    id: u64,
    /// Permits of those who came before.
    ahead: u64,
    /// The queue needs a task.
    is_new: bool,
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.waits.leave(&self.bucket, self.id);
    }
}

impl Waits {
    fn are_empty(&self) -> bool {
        self.waiting.load(Relaxed) == 0
    }

    fn has_waiters(&self, bucket: &Bytes) -> bool {
        self.queues.lock().by_bucket.get(bucket).is_some_and(|queue| !queue.waiters.is_empty())
    }

    /// Takes a place at the end of a queue.
    fn join(
        &self,
        asks: &Asks,
        awaited: &Awaited,
        free_at: Option<Instant>,
    ) -> Result<(Place<'_>, oneshot::Receiver<Answer>), Crowded> {
        let mut queues = self.queues.lock();
        let ahead = queues.by_bucket.get(&awaited.bucket).map_or(0, Queue::permits);
        if self.waiting.load(Relaxed) >= WAITING_MOST {
            return Err(Crowded { ahead });
        }
        self.waiting.fetch_add(1, Relaxed);
        queues.next_id += 1;
        let id = queues.next_id;
        let is_new = !queues.by_bucket.contains_key(&awaited.bucket);
        let queue = queues.by_bucket.entry(awaited.bucket.clone()).or_default();
        if queue.waiters.is_empty() {
            queue.changed.notify_one();
        }
        let (answer, receiver) = oneshot::channel();
        queue.waiters.push_back(Waiter {
            id,
            asks: Arc::new(asks.clone()),
            cost: awaited.cost(),
            free_at: free_at.filter(|_| ahead == 0),
            until: awaited.until,
            answer,
        });
        let place = Place { waits: self, bucket: awaited.bucket.clone(), id, ahead, is_new };
        Ok((place, receiver))
    }

    /// Permits of those ahead of a place.
    fn ahead_of(&self, place: &Place<'_>) -> u64 {
        let queues = self.queues.lock();
        let queue = queues.by_bucket.get(&place.bucket);
        let ahead = queue.map(|queue| queue.waiters.iter().take_while(|waiter| waiter.id != place.id));
        ahead.map_or(0, |ahead| ahead.map(|waiter| waiter.cost).sum())
    }

    /// Notes when there will be room for a waiter.
    fn expect(&self, place: &Place<'_>, free_at: Option<Instant>) {
        self.expect_at(&place.bucket, place.id, free_at);
    }

    fn expect_at(&self, bucket: &Bytes, id: u64, free_at: Option<Instant>) {
        let mut queues = self.queues.lock();
        let Some(queue) = queues.by_bucket.get_mut(bucket) else { return };
        if let Some(waiter) = queue.waiters.iter_mut().find(|waiter| waiter.id == id) {
            waiter.free_at = free_at;
        }
    }

    /// Until when a waiter may wait; `None` if it has left.
    fn until(&self, bucket: &Bytes, id: u64) -> Option<Option<Instant>> {
        let queues = self.queues.lock();
        let mut waiters = queues.by_bucket.get(bucket)?.waiters.iter();
        waiters.find(|waiter| waiter.id == id).map(|waiter| waiter.until)
    }

    /// Gives a waiter its answer, if it is still there.
    fn answer(&self, bucket: &Bytes, id: u64, answer: Answer) {
        if let Some(waiter) = self.remove(bucket, id, false) {
            // One that leaves this very moment keeps what it was charged.
            let _ = waiter.answer.send(answer);
        }
    }

    /// Gives up a place. Those behind it may be served earlier than they know.
    fn leave(&self, bucket: &Bytes, id: u64) {
        self.remove(bucket, id, true);
    }

    fn remove(&self, bucket: &Bytes, id: u64, frees_room: bool) -> Option<Waiter> {
        let mut queues = self.queues.lock();
        let queue = queues.by_bucket.get_mut(bucket)?;
        let at = queue.waiters.iter().position(|waiter| waiter.id == id)?;
        let waiter = queue.waiters.remove(at)?;
        self.waiting.fetch_sub(1, Relaxed);
        if frees_room {
            queue.waiters.iter_mut().skip(at).for_each(|waiter| waiter.free_at = None);
            queue.changed.notify_one();
        }
        Some(waiter)
    }

    /// What the task of a queue does next. The queue goes when nobody waits.
    fn next(&self, bucket: &Bytes) -> Next {
        let mut queues = self.queues.lock();
        let Some(queue) = queues.by_bucket.get(bucket) else { return Next::Nobody };
        let Some(first) = queue.waiters.front() else {
            queues.by_bucket.remove(bucket);
            return Next::Nobody;
        };
        let now = Instant::now();
        let Some(free_at) = first.free_at else {
            return Next::Look { id: first.id, cost: first.cost, until: first.until };
        };
        if free_at > now {
            return Next::Sleep(free_at, queue.changed.clone());
        }
        // Those of another cost go by themselves: it could be admitted where one before it is refused.
        let together = queue.waiters.iter().take(TOGETHER_MOST).take_while(|waiter| {
            waiter.cost == first.cost && waiter.free_at.is_some_and(|free_at| free_at <= now)
        });
        Next::Ask(together.map(|waiter| (waiter.id, waiter.asks.clone())).collect())
    }
}

impl Queue {
    fn permits(&self) -> u64 {
        self.waiters.iter().map(|waiter| waiter.cost).sum()
    }
}

impl fmt::Debug for Waits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Waits").field("waiting", &self.waiting).finish_non_exhaustive()
    }
}
