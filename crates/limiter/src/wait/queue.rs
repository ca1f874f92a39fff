//! The queues: the requests that wait for a bucket, their order, their deadlines, and the next step for them.
//!
//! Nothing here asks the store. A waiter looks for what is [`NextStep`] when it has joined, when it is told to, and
//! when the time has come that it was given. The one at the front is told of all changes.
//!
//! All of it changes the queues of a bucket under one lock, so it stands in one file.

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
use parking_lot::Mutex;
use tokio::{
    sync::{Notify, oneshot, watch},
    time::Instant,
};

use crate::{
    algorithm::{Algorithm, Quota},
    metrics::{Histogram, Page},
    store::Outcome,
};

use super::{
    Awaited, WaitResult, WaitingRequest,
    beside::BesideWaits,
    fairness::{AskPace, Fairness},
    renewed::Renewed,
};

/// Requests that may wait, in all queues. Past that they are refused.
const WAITING_MOST: usize = 10_000;
/// Requests that are asked for, or looked for, in one go.
const TOGETHER_MOST: usize = 256;
/// The number of times of room that may be worked out at once, in all queues. Those of a whole queue change when its first one leaves, and
/// many may leave in turn. The first one's time is always worked out.
const ESTIMATES_MOST: usize = WAITING_MOST;
/// The number that may be worked out further in each millisecond.
const ESTIMATES_PER_MS: usize = 20;
/// The time after which the first one looks again, if no more estimates are left.
const ESTIMATE_AFTER: Duration = Duration::from_millis(10);
/// The time within which a queue notices what was changed without a message.
const LOOK_AGAIN_EVERY: Duration = Duration::from_secs(5);
/// The time within which it does where others often change rates and counts, or give permits back.
const LOOK_AGAIN_SOON: Duration = Duration::from_secs(1);

/// The queues.
pub(crate) struct Waits {
    queues: Mutex<Queues>,
    waiting: AtomicUsize,
    /// The times that requests stayed in a queue, by [`StayEnd`].
    stays: [Histogram; 3],
    /// Nobody is to wait any more.
    ended: watch::Sender<bool>,
    /// The rates of the last reload.
    pub(crate) renewed: Renewed,
    /// The permits that waiting requests will take from their other limits.
    pub(crate) beside: BesideWaits,
}

/// The end of a stay in a queue.
#[derive(Clone, Copy)]
pub(crate) enum StayEnd {
    Admitted,
    Refused,
    /// The client has left.
    Left,
}

/// A plain lock: held to look at a queue or to change it, never across an await.
#[derive(Default)]
struct Queues {
    by_bucket: HashMap<Bytes, Queue>,
    next_number: u64,
    /// They outlive the queues.
    fairness: Fairness,
    estimates: Estimates,
}

/// The times of room that may be worked out now.
struct Estimates {
    left: usize,
    refilled: Instant,
}

#[derive(Default)]
struct Queue {
    /// In the order of their ids. Boxed, since those behind one that leaves or joins move.
    waiters: VecDeque<Box<Waiter>>,
    /// The permits that all of them take.
    permits: u64,
    /// The room of the first of them, as far as it is known.
    rooms: VecDeque<WaiterRoom>,
    /// A call is made for some of them.
    is_asking: bool,
    look_again_at: Option<Instant>,
}

/// The room of a waiter.
struct WaiterRoom {
    /// The time of room for it and for those ahead of it, and not before theirs.
    free_at: Instant,
    /// The permits that it and those ahead of it take, and those that were ahead of them.
    taken: u64,
}

/// A waiter, ordered by the time at which its request came to the limiter. It may join after others that came later, if the store
/// was asked about it first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct WaiterId {
    came: Instant,
    /// That of its joining.
    number: u64,
}

struct Waiter {
    id: WaiterId,
    request: Arc<WaitingRequest>,
    awaited: Awaited,
    /// Tells it to look for what is next.
    turn: Arc<Notify>,
    answer: oneshot::Sender<WaitResult>,
}

/// A place in a queue. It is given up with this value.
pub(crate) struct QueuePlace<'w> {
    waits: &'w Waits,
    bucket: Bytes,
    id: WaiterId,
    since: Instant,
    pub(crate) end: StayEnd,
    pub(crate) turn: Arc<Notify>,
}

/// The next step of a waiter.
pub(crate) enum NextStep {
    /// Nothing, until then or until it is told.
    Rest(Option<Instant>),
    /// Ask when there will be room for the waiters for which it isn't known.
    Look,
    /// Ask whether there will still be room for the first one, which is this, at the time that is known.
    LookAgain(Box<Awaited>, Instant),
    /// Ask for these.
    Ask(Vec<(WaiterId, Arc<WaitingRequest>)>),
}

/// An estimate of the time at which permits are free.
pub(crate) enum RoomEstimate {
    /// Unknown: the store is to be asked when so many are free.
    AskStore(u32),
    /// The time, as far as it is known.
    At(Instant),
    /// Never: the quota is smaller.
    Never,
    /// Unknown until the times of waiters ahead are known.
    Unknown,
}

impl RoomEstimate {
    /// Returns the time, as far as it is known.
    fn time(&self) -> Option<Instant> {
        if let Self::At(time) = self { Some(*time) } else { None }
    }
}

impl Default for Estimates {
    fn default() -> Self {
        Self { left: ESTIMATES_MOST, refilled: Instant::now() }
    }
}

impl Estimates {
    /// Returns the number that is left.
    fn left(&mut self, now: Instant) -> usize {
        let ms = now.saturating_duration_since(self.refilled).as_millis() as u64;
        self.left = self.left.saturating_add(ms as usize * ESTIMATES_PER_MS).min(ESTIMATES_MOST);
        self.refilled += Duration::from_millis(ms);
        self.left
    }
}

impl Default for Waits {
    fn default() -> Self {
        let (queues, waiting, ended, renewed, beside) = Default::default();
        Self { queues, waiting, stays: [(); 3].map(|()| Histogram::of_times()), ended, renewed, beside }
    }
}

impl Waits {
    /// Writes the metrics of the queues.
    pub(crate) fn write_metrics(&self, page: &mut Page<'_>) {
        page.gauge("tollgate_waiting", "Requests that are waiting for room", self.waiting.load(Relaxed));
        let ends = ["admitted", "refused", "left"].map(|end| [("outcome", end)]);
        page.histograms(
            "tollgate_wait_seconds",
            "Time that requests waited for room, until they were admitted or rejected, or their client left",
            ends.into_iter().zip(&self.stays),
        );
    }

    /// Returns the number of requests that wait.
    pub(crate) fn count(&self) -> usize {
        self.waiting.load(Relaxed)
    }

    /// Has all waiters leave, and those that come.
    pub(crate) fn end(&self) {
        self.ended.send_replace(true);
    }

    /// Waits until waiters are to leave.
    pub(crate) async fn ended(&self) {
        // The sender is this value's.
        let _ = self.ended.subscribe().wait_for(|ended| *ended).await;
    }

    pub(crate) fn are_empty(&self) -> bool {
        self.count() == 0
    }

    pub(crate) fn has_waiters(&self, bucket: &Bytes) -> bool {
        self.queues.lock().by_bucket.get(bucket).is_some_and(|queue| !queue.waiters.is_empty())
    }

    /// Estimates when there would be room at the end of a queue. `stated` is what the store told of the permits.
    pub(crate) fn room_behind(&self, awaited: &Awaited, stated: Option<Outcome>) -> RoomEstimate {
        let (queues, empty) = (self.queues.lock(), Queue::default());
        let queue = queues.by_bucket.get(&awaited.bucket).filter(|_| !*self.ended.borrow()).unwrap_or(&empty);
        queue.room(awaited, queue.waiters.len(), queue.permits, stated)
    }

    /// Takes a place in a queue, behind those that came before, unless too many wait. `free_at` holds if it is alone.
    pub(crate) fn join(
        &self,
        request: &Arc<WaitingRequest>,
        awaited: &Awaited,
        free_at: Option<Instant>,
    ) -> Option<(QueuePlace<'_>, oneshot::Receiver<WaitResult>)> {
        let mut queues = self.queues.lock();
        if self.waiting.load(Relaxed) >= WAITING_MOST {
            return None;
        }
        self.waiting.fetch_add(1, Relaxed);
        queues.next_number += 1;
        let (id, turn) =
            (WaiterId { came: request.came, number: queues.next_number }, Arc::<Notify>::default());
        let queue = queues.by_bucket.entry(awaited.bucket.clone()).or_default();
        let (answer, answered) = oneshot::channel();
        let (request, bucket) = (request.clone(), awaited.bucket.clone());
        let waiter = Waiter { id, request, awaited: awaited.clone(), turn: turn.clone(), answer };
        let at = queue.waiters.partition_point(|other| other.id < id);
        queue.forget_from(at);
        queue.permits += awaited.cost();
        queue.waiters.insert(at, Box::new(waiter));
        if let (1, Some(free_at)) = (queue.waiters.len(), free_at) {
            queue.note_room(free_at);
        }
        queue.tell_first();
        let (since, end) = (Instant::now(), StayEnd::Left);
        Some((QueuePlace { waits: self, bucket, id, since, end, turn }, answered))
    }

    /// Returns the next step of a waiter, which must take it if it is to ask.
    pub(crate) fn next(&self, place: &QueuePlace<'_>, now: Instant) -> NextStep {
        let Queues { by_bucket, fairness, estimates, .. } = &mut *self.queues.lock();
        let queue = by_bucket.get_mut(&place.bucket);
        let Some((queue, at)) = queue.and_then(|queue| queue.find(place.id).map(|at| (queue, at))) else {
            // Its answer is there.
            return NextStep::Rest(None);
        };
        let waiter = &queue.waiters[at];
        let until = waiter.awaited.until.filter(|until| *until > now);
        // The one at the front acts for all. Should it be late, so does one whose time is over.
        let is_over = waiter.awaited.until.is_some() && until.is_none();
        if queue.is_asking || (at > 0 && !is_over) {
            return NextStep::Rest(until);
        }
        let pace =
            queue.shared_quota().map_or(AskPace::ALONE, |quota| fairness.pace(&place.bucket, quota, now));
        let ask_at = queue.ask_at(pace);
        if ask_at.is_some_and(|at| at <= now) || (is_over && queue.free_by(now) > 0) {
            queue.is_asking = true;
            let together = queue.waiters.iter().take(queue.together(pace, now));
            return NextStep::Ask(together.map(|waiter| (waiter.id, waiter.request.clone())).collect());
        }
        let Some((room, ask_at)) = queue.rooms.front().zip(ask_at) else { return NextStep::Look };
        let first = &queue.waiters[0].awaited;
        let look_again_at = *queue.look_again_at.get_or_insert_with(|| now + first.look_again_every());
        if look_again_at <= now {
            queue.look_again_at = None;
            return NextStep::LookAgain(Box::new(first.clone()), room.free_at);
        }
        let rest_until = ask_at.min(look_again_at);
        if queue.rooms.len() == queue.waiters.len() {
            NextStep::Rest(Some(rest_until))
        } else if estimates.left(now) > 0 {
            NextStep::Look
        } else if is_over {
            // Nobody has room now, so this one's time has ended without.
            self.refuse_late(queue, at, now);
            NextStep::Rest(None)
        } else {
            NextStep::Rest(Some(rest_until.min(now + ESTIMATE_AFTER)))
        }
    }

    /// Works out when there will be room for the first waiters whose time isn't known, by the quota that each has now, and
    /// refuses those that would get it too late. Returns the numbers of permits that the store is to be asked about.
    pub(crate) fn estimate_rooms(
        &self,
        bucket: &Bytes,
        renewed: impl Fn(&Awaited) -> Awaited,
        told: impl Fn(&Awaited, u32) -> Option<Outcome>,
    ) -> Vec<(Awaited, u32)> {
        let (Queues { by_bucket, estimates, .. }, mut wanted) = (&mut *self.queues.lock(), Vec::new());
        // Who is asked for isn't refused meanwhile. After the call the first one looks.
        let queue = by_bucket.get_mut(bucket).filter(|queue| !queue.is_asking);
        let Some(queue) = queue else { return wanted };
        queue.forget_former_quota(&renewed);
        let (mut at, mut ahead) = (queue.rooms.len(), queue.taken_by_known());
        for _ in 0..estimates.left(Instant::now()).clamp(1, TOGETHER_MOST) {
            let Some(waiter) = queue.waiters.get(at) else { break };
            let awaited = renewed(&waiter.awaited);
            let (mut room, mut stated) = (queue.room(&awaited, at, ahead, None), None);
            if let RoomEstimate::AskStore(permits) = room {
                stated = told(&awaited, permits);
                match stated {
                    Some(_) => room = queue.room(&awaited, at, ahead, stated),
                    None => want(&mut wanted, &awaited, permits),
                }
            }
            let now = Instant::now();
            let (free_at, is_never) = (room.time(), matches!(room, RoomEstimate::Never));
            estimates.left = estimates.left.saturating_sub((free_at.is_some() || is_never).into());
            let is_late = |until: Instant| free_at.is_some_and(|free_at| free_at > until.max(now));
            if is_never || awaited.until.is_some_and(is_late) {
                let refusal = awaited.refusal(stated, free_at, now);
                self.take_out(queue, at, WaitResult::Taken(Err(refusal)));
                continue;
            }
            ahead += awaited.cost();
            // A lower or higher quota also changes how fast the queue asks.
            queue.waiters[at].awaited = awaited;
            if let Some(free_at) = free_at {
                queue.note_room(free_at);
            }
            at += 1;
        }
        queue.tell_first();
        wanted
    }

    /// Gives a waiter its answer, if it is still there.
    pub(crate) fn answer(&self, bucket: &Bytes, id: WaiterId, answer: WaitResult) {
        let Queues { by_bucket, fairness, .. } = &mut *self.queues.lock();
        let Some(queue) = by_bucket.get_mut(bucket) else { return };
        let Some(at) = queue.find(id) else { return };
        let awaited = &queue.waiters[at].awaited;
        if awaited.is_shared && matches!(answer, WaitResult::Taken(Ok(_))) {
            fairness.granted(bucket, awaited.quota, awaited.cost(), Instant::now());
        }
        self.take_out(queue, at, answer);
    }

    /// Forgets the rooms of a queue, since others have taken one that a waiter was to get.
    pub(crate) fn lost(&self, bucket: &Bytes) {
        let Queues { by_bucket, fairness, .. } = &mut *self.queues.lock();
        let Some(queue) = by_bucket.get_mut(bucket) else { return };
        queue.forget_from(0);
        if let Some(quota) = queue.shared_quota() {
            fairness.lost(bucket, quota, Instant::now());
        }
    }

    /// Notes of a waiter that there will be room for it, if nobody is ahead, at `free_at`.
    pub(crate) fn keep(&self, bucket: &Bytes, id: WaiterId, until: Option<Instant>, free_at: Instant) {
        let mut queues = self.queues.lock();
        let Some(queue) = queues.by_bucket.get_mut(bucket) else { return };
        if let Some(at) = queue.find(id) {
            queue.forget_from(at);
            queue.waiters[at].awaited.until = until;
            if at == 0 {
                queue.note_room(free_at);
            }
        }
    }

    /// Looks again at the waiters of a bucket, or of all.
    pub(crate) fn forget(&self, bucket: Option<&Bytes>) {
        let mut queues = self.queues.lock();
        for (_, queue) in
            queues.by_bucket.iter_mut().filter(|(name, _)| bucket.is_none_or(|bucket| bucket == *name))
        {
            queue.forget_from(0);
            queue.tell_first();
        }
    }

    /// Notes that the call for waiters of a bucket has ended.
    pub(crate) fn end_call(&self, bucket: &Bytes) {
        self.change(bucket, |queue| queue.is_asking = false);
    }

    fn leave(&self, bucket: &Bytes, id: WaiterId) {
        self.change(bucket, |queue| {
            if let Some(at) = queue.find(id) {
                queue.remove(at);
                queue.forget_from(at);
                self.waiting.fetch_sub(1, Relaxed);
            }
        });
    }

    /// Changes a queue, and tells its first. It goes when nobody is in it.
    fn change(&self, bucket: &Bytes, change: impl FnOnce(&mut Queue)) {
        let mut queues = self.queues.lock();
        let Some(queue) = queues.by_bucket.get_mut(bucket) else { return };
        change(queue);
        if queue.waiters.is_empty() && !queue.is_asking {
            queues.by_bucket.remove(bucket);
        } else {
            queue.tell_first();
        }
    }

    /// Refuses a waiter that can wait no longer. If the time of its room isn't known, it is told to come back in a window.
    fn refuse_late(&self, queue: &mut Queue, at: usize, now: Instant) {
        let awaited = &queue.waiters[at].awaited;
        let in_a_window = || now + Duration::from_micros(awaited.quota.window_us);
        let free_at = queue.rooms.get(at).map_or_else(in_a_window, |room| room.free_at);
        let refusal = awaited.refusal(None, Some(free_at), now);
        self.take_out(queue, at, WaitResult::Taken(Err(refusal)));
    }

    /// Takes a waiter out of its queue. Behind the first one, nobody's time changes: it has its permits.
    fn take_out(&self, queue: &mut Queue, at: usize, answer: WaitResult) {
        match at {
            0 => drop(queue.rooms.pop_front()),
            _ => queue.forget_from(at),
        }
        if let Some(waiter) = queue.remove(at) {
            self.waiting.fetch_sub(1, Relaxed);
            // One that leaves this very moment keeps what it was charged.
            let _ = waiter.answer.send(answer);
        }
    }
}

/// Adds a number of permits to those that the store is to be asked about, unless it is there for the same quota.
fn want(wanted: &mut Vec<(Awaited, u32)>, awaited: &Awaited, permits: u32) {
    let is_same = |(other, of): &(Awaited, u32)| *of == permits && other.quota == awaited.quota;
    if !wanted.iter().rev().any(is_same) {
        wanted.push((awaited.clone(), permits));
    }
}

impl Queue {
    fn find(&self, id: WaiterId) -> Option<usize> {
        self.waiters.binary_search_by_key(&id, |waiter| waiter.id).ok()
    }

    /// Returns the first one's quota, if other gateways count the bucket, too.
    fn shared_quota(&self) -> Option<Quota> {
        let awaited = &self.waiters.front()?.awaited;
        awaited.is_shared.then_some(awaited.quota)
    }

    /// Returns when the first is to ask: some time after its room has appeared, but not beyond the time of anybody who
    /// goes along.
    fn ask_at(&self, pace: AskPace) -> Option<Instant> {
        let free_at = self.rooms.front()?.free_at;
        let ask_at = free_at + pace.pause;
        let along = self.waiters.iter().take(self.free_by(ask_at));
        let until = along.filter_map(|waiter| waiter.awaited.until).min();
        Some(until.map_or(ask_at, |until| until.clamp(free_at, ask_at)))
    }

    /// Returns how many go in one call: those whose room has appeared, the first in any case, and all up to one that
    /// can wait no longer. Before the pause has ended, no others.
    fn together(&self, pace: AskPace, now: Instant) -> usize {
        let is_paused = self.rooms.front().is_none_or(|room| room.free_at + pace.pause > now);
        let (mut left, mut count) = (if is_paused { 0 } else { pace.permits }, 0);
        let with_room = self.waiters.iter().take(self.free_by(now).min(TOGETHER_MOST));
        for (at, waiter) in with_room.enumerate() {
            let (needs, is_over) =
                (waiter.awaited.needs(), waiter.awaited.until.is_some_and(|until| until <= now));
            if at == count && (at == 0 || needs <= left) || is_over {
                count = at + 1;
            }
            left = left.saturating_sub(needs);
        }
        count
    }

    /// Estimates when there is room for a request behind the first `before` waiters, which take `ahead` permits: no fewer
    /// waiters than those whose time is known. `stated` is what the store told of all these permits, if it was asked.
    fn room(&self, awaited: &Awaited, before: usize, ahead: u64, stated: Option<Outcome>) -> RoomEstimate {
        let permits = ahead + awaited.needs();
        let quota = awaited.quota.at(stated.and_then(|stated| stated.rate));
        let excess = permits.saturating_sub(quota.capacity().into());
        if stated.is_none() && (excess == 0 || quota.algorithm.is_changed_by_others()) {
            return RoomEstimate::AskStore(permits.try_into().unwrap_or(u32::MAX));
        }
        let are_known = before == self.rooms.len();
        let free_at = match stated.and_then(|stated| stated.delay_us) {
            Some(delay_us) => Instant::now() + Duration::from_micros(delay_us),
            None => {
                // All that is in use by now must leave, and then so many that those ahead will have taken.
                let start = self.start();
                let last = self.rooms.partition_point(|room| room.taken - start < excess);
                match self.rooms.get(last) {
                    Some(WaiterRoom { free_at, taken }) => {
                        *free_at + Duration::from_micros(back_in_us(quota, permits.abs_diff(taken - start)))
                    }
                    None if are_known || ahead < excess => return RoomEstimate::Never,
                    None => return RoomEstimate::Unknown,
                }
            }
        };
        // Quotas may differ, and nobody is served before those ahead.
        match self.rooms.back() {
            _ if !are_known => RoomEstimate::Unknown,
            Some(others) => RoomEstimate::At(free_at.max(others.free_at)),
            None => RoomEstimate::At(free_at),
        }
    }

    /// Notes when there is room for the first waiter of which that isn't known.
    fn note_room(&mut self, free_at: Instant) {
        let cost = self.waiters[self.rooms.len()].awaited.cost();
        let taken = self.rooms.back().map_or(0, |room| room.taken) + cost;
        self.rooms.push_back(WaiterRoom { free_at, taken });
    }

    /// Returns the permits that were taken before those of the first waiter.
    fn start(&self) -> u64 {
        let first = self.rooms.front().zip(self.waiters.front());
        first.map_or(0, |(room, first)| room.taken - first.awaited.cost())
    }

    /// Returns the permits that the first waiters take, whose room is known.
    fn taken_by_known(&self) -> u64 {
        self.rooms.back().map_or(0, |room| room.taken - self.start())
    }

    fn remove(&mut self, at: usize) -> Option<Box<Waiter>> {
        let waiter = self.waiters.remove(at)?;
        self.permits -= waiter.awaited.cost();
        Some(waiter)
    }

    /// Returns the number of waiters that have room by this time.
    fn free_by(&self, time: Instant) -> usize {
        self.rooms.partition_point(|room| room.free_at <= time)
    }

    /// Forgets the rooms from this waiter on: they may appear earlier or later.
    fn forget_from(&mut self, at: usize) {
        self.rooms.truncate(at);
    }

    /// Forgets all rooms if the first one's quota is another by now. No message tells that a rate has ended which was set for a time.
    fn forget_former_quota(&mut self, renewed: impl Fn(&Awaited) -> Awaited) {
        if self.waiters.front().is_some_and(|first| renewed(&first.awaited).quota != first.awaited.quota) {
            self.forget_from(0);
        }
    }

    fn tell_first(&self) {
        if let Some(first) = self.waiters.front() {
            first.turn.notify_one();
        }
    }
}

impl Awaited {
    /// Returns the time after which it is looked for again, should nobody tell of a change.
    fn look_again_every(&self) -> Duration {
        let changes = self.quota.algorithm.is_changed_by_others() || self.ask.limit.has_refunds();
        if changes && self.is_shared { LOOK_AGAIN_SOON } else { LOOK_AGAIN_EVERY }
    }
}

/// Returns the time after which permits are free again that have been taken last, and so many more.
fn back_in_us(quota: Quota, more: u64) -> u64 {
    match quota.algorithm {
        // Permits drain one after the other.
        Algorithm::Gcra { .. } => more.saturating_mul(quota.window_us).div_ceil(quota.permits.max(1).into()),
        _ => quota.window_us + quota.lag_us(),
    }
}

impl Drop for QueuePlace<'_> {
    fn drop(&mut self) {
        self.waits.leave(&self.bucket, self.id);
        self.waits.stays[self.end as usize].observe_time(self.since.elapsed());
    }
}

impl fmt::Debug for Waits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Waits").field("waiting", &self.waiting).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
