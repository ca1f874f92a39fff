//! Watches a client's connection, so that an inactive client can be disconnected.
//!
//! With each request, what is awaited of the client changes, but the timeouts don't. So no request sets a
//! timer. The connection records what is awaited and since when, and its worker checks that periodically.
//!
//! While a response is being sent, the client is late only if it doesn't read the available data, since the
//! response itself may take its time. Request bodies are watched where they are read, since only the reader
//! knows if it wants more. The same holds for the responses of HTTP/2 ([`super::http2`]).
//!
//! All of it reads or changes the record of one connection, so it stands in one file.

use std::{
    future::poll_fn,
    mem,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    task::{Context, Poll, Waker},
    time::Duration,
};

use parking_lot::Mutex;
use tokio::{task::yield_now, time::Instant};

use super::slots::ServedPlace;

/// The number of HTTP/2 requests that a client may always cancel. Beyond it, at most half of its requests.
const CANCELLED_MOST: u32 = 500;

/// The time for which a new connection isn't idle once it waits, or one without a place after the beginning of a request. The rest may
/// be on its way.
pub(super) const EXPECTED_WITHIN: Duration = Duration::from_millis(50);

/// The time for which others that need room wait for the client of an HTTP/2 connection that is being closed: until it confirms that it
/// has received everything. It begins again when the client sends anything, since then it may still receive, and would be reset.
const CONFIRMED_WITHIN: Duration = Duration::from_millis(250);
/// The time after which it doesn't begin again.
const CONFIRMED_LAST: Duration = Duration::from_secs(1);

/// The time within which a slow client receives what the system has taken, and the bytes for which none needs time.
pub(super) const RECEIVED_WITHIN: Duration = Duration::from_secs(10);
const RECEIVED_AT_ONCE: usize = 16 << 10;

/// The timeouts for a client.
#[derive(Clone, Copy, Debug)]
pub(super) struct ClientTimeouts {
    /// The time for sending the head of a request; for the first one, counted from connecting.
    pub(super) header: Duration,
    /// The time for any activity: beginning another request, or reading some of a response.
    pub(super) idle: Duration,
}

/// The state of a client's connection. One thread uses it, and others only if they need room, so the lock is almost always free.
#[derive(Debug)]
pub(super) struct Watch {
    state: Mutex<WatchState>,
    /// True if the connection is to be closed. It is outside the lock, since every poll of the connection
    /// reads it.
    is_ending: AtomicBool,
    /// True if the connection is to be closed, unless its next request has come. It is read like `is_ending`.
    is_leaving: AtomicBool,
    /// True if the connection has been polled since it last read.
    begins_turn: AtomicBool,
    /// The place of the connection, which may be taken or not.
    place: Arc<ServedPlace>,
}

#[derive(Debug)]
struct WatchState {
    expected: Expected,
    /// The number of requests in flight.
    in_flight: u32,
    /// With HTTP/2: the number of requests so far, and of those that were cancelled. `None` with HTTP/1.1.
    streams: Option<(u32, u32)>,
    /// True if any number of HTTP/2 requests may be cancelled.
    may_cancel_all: bool,
    /// Woken when the connection is to be closed.
    task: Option<Waker>,
    /// The time since when the client hasn't read any of the data to be sent.
    blocked_since: Option<Instant>,
    /// True if a leaving connection waits for the runtime to look for bytes that have come.
    is_looking: bool,
    /// Set once the connection is only to wait for the client to receive the last response: when that began, and from when it may be
    /// closed nevertheless.
    ended: Option<(Instant, Instant)>,
    /// With HTTP/2: the bytes of recent responses, and when the last ones were sent.
    sent: Option<(usize, Instant)>,
}

#[derive(Clone, Copy, Debug)]
enum Expected {
    /// The first request, and since when the connection waits for it. `None` if the connection hasn't looked yet.
    First(Instant, Option<Instant>),
    /// The rest of a request's head. Without a time, the wait begins at the worker's next check: usually the
    /// head is complete by then, and reading the clock is saved.
    Head(Option<Instant>),
    /// Nothing, because a request is in flight.
    Nothing,
    /// Nothing more: the connection ends within a time of its own.
    End,
    /// Another request.
    Next(Instant),
}

impl WatchState {
    /// Returns the time since when the connection has waited for a request or the rest of its head.
    fn waits_since(&self) -> Option<Instant> {
        match self.expected {
            _ if self.blocked_since.is_some() => None,
            Expected::First(since, _) | Expected::Head(Some(since)) | Expected::Next(since) => Some(since),
            Expected::Head(None) => Some(Instant::now()),
            Expected::Nothing | Expected::End => None,
        }
    }
}

impl Watch {
    /// Creates the watch of a new connection.
    pub(super) fn new(place: Arc<ServedPlace>) -> Self {
        let state = WatchState {
            expected: Expected::First(Instant::now(), None),
            in_flight: 0,
            streams: None,
            may_cancel_all: false,
            task: None,
            blocked_since: None,
            is_looking: false,
            ended: None,
            sent: None,
        };
        let (is_ending, is_leaving, begins_turn) = Default::default();
        Self { state: Mutex::new(state), is_ending, is_leaving, begins_turn, place }
    }

    /// Returns true if the connection has a place. Otherwise its next request needs one.
    pub(super) fn has_place(&self) -> bool {
        self.place.is_taken()
    }

    /// Takes a place if one is free.
    pub(super) fn take_free_place(&self) -> bool {
        self.place.take_free()
    }

    /// Takes the place of another connection, unless its next request has come.
    pub(super) fn take_place_of(&self, other: &Self) -> bool {
        let state = other.state.lock();
        state.waits_since().is_some() && self.place.take_from(&other.place)
    }

    /// Returns the time since when the connection has waited for a request or the rest of its head, if it does and has a place. Such a
    /// connection may lose its place, but only an idle one may be closed.
    pub(super) fn waits_since(&self) -> Option<Instant> {
        if self.has_place() { self.state.lock().waits_since() } else { None }
    }

    /// Switches to HTTP/2, where bytes received between requests needn't belong to a head.
    pub(super) fn begin_http2(&self, may_cancel_all: bool) {
        let mut state = self.state.lock();
        (state.streams, state.may_cancel_all) = (Some((0, 0)), may_cancel_all);
    }

    /// Returns true for HTTP/2, where the client can be informed that the connection will be closed.
    pub(super) fn is_http2(&self) -> bool {
        self.state.lock().streams.is_some()
    }

    /// Returns the number of requests so far on an HTTP/2 connection.
    pub(super) fn requests(&self) -> u32 {
        self.state.lock().streams.map_or(0, |(requests, _)| requests)
    }

    /// Returns the number of requests in flight.
    pub(super) fn in_flight(&self) -> u32 {
        self.state.lock().in_flight
    }

    /// Closes the connection after the requests in flight.
    pub(super) fn end(&self) {
        let mut state = self.state.lock();
        if !self.is_ending.swap(true, Relaxed) {
            if state.in_flight == 0 {
                state.expected = Expected::Head(None);
                self.note_ended(&mut state, CONFIRMED_WITHIN);
            }
            state.task.take().into_iter().for_each(Waker::wake);
        }
    }

    /// Returns true if the connection is to be closed.
    pub(super) fn is_ending(&self) -> bool {
        self.is_ending.load(Relaxed)
    }

    /// Closes the connection if it is still idle once the runtime has looked for its next request. If it is one of HTTP/2 that has
    /// had requests, it is closed gracefully, which this returns: its client may still receive a response, and closing would cut that off.
    pub(super) fn leave(&self) -> bool {
        if self.requests() > 0 && !self.is_ending() {
            self.end();
            return true;
        }
        self.is_leaving.store(true, Relaxed);
        self.state.lock().task.take().into_iter().for_each(Waker::wake);
        false
    }

    /// Completes when the connection has to leave. It is polled after the connection, which so has read what has come.
    pub(super) fn poll_leave(&self, context: &mut Context<'_>) -> Poll<()> {
        if !self.is_leaving.load(Relaxed) {
            if self.is_ending() {
                self.note_task(context.waker());
            }
            return Poll::Pending;
        }
        let has_looked = mem::replace(&mut self.state.lock().is_looking, true);
        if !has_looked {
            // The runtime looks at all sockets before it polls this task again.
            let _ = pin!(yield_now()).poll(context);
            return Poll::Pending;
        }
        self.state.lock().is_looking = false;
        self.is_leaving.store(false, Relaxed);
        if self.idle_since().is_some() { Poll::Ready(()) } else { Poll::Pending }
    }

    /// Records that the connection is polled.
    pub(super) fn begin_turn(&self) {
        self.begins_turn.store(true, Relaxed);
    }

    /// Returns true at the first call since the connection was polled.
    pub(super) fn begins_turn(&self) -> bool {
        self.begins_turn.swap(false, Relaxed)
    }

    /// Sets the task to be woken when the connection is to be closed.
    pub(super) fn note_task(&self, waker: &Waker) {
        let WatchState { task, expected, .. } = &mut *self.state.lock();
        if !task.as_ref().is_some_and(|task| task.will_wake(waker)) {
            *task = Some(waker.clone());
        }
        if let Expected::First(_, waits_since) = expected {
            waits_since.get_or_insert_with(Instant::now);
        }
    }

    /// Waits for a future. Returns `None` if the connection is to be closed first.
    pub(super) async fn unless_ended<T>(&self, outcome: impl Future<Output = T>) -> Option<T> {
        let mut outcome = pin!(outcome);
        poll_fn(|context| {
            if let Poll::Ready(outcome) = outcome.as_mut().poll(context) {
                return Poll::Ready(Some(outcome));
            }
            if self.is_ending() {
                return Poll::Ready(None);
            }
            self.note_task(context.waker());
            Poll::Pending
        })
        .await
    }

    /// Returns the time since when the connection has been idle, if it is and isn't leaving.
    pub(super) fn idle_since(&self) -> Option<Instant> {
        let state = self.state.lock();
        let is_young = |since: Option<Instant>| since.is_none_or(|since| since.elapsed() < EXPECTED_WITHIN);
        if self.is_leaving.load(Relaxed) || state.blocked_since.is_some() {
            return None;
        }
        if let Some((_, since)) = state.ended
            && !self.has_place()
        {
            return if is_young(Some(since)) { None } else { Some(since) };
        }
        match state.expected {
            Expected::First(_, waits_since) if is_young(waits_since) => None,
            // The beginning of a request keeps only a connection with a place.
            Expected::Head(since) if self.has_place() || is_young(since) => None,
            _ => state.waits_since(),
        }
    }

    /// Returns what is overdue: a `head`, a further `request`, or reading an `answer`; or `resets` if too
    /// many requests were cancelled.
    pub(super) fn missed(&self, timeouts: ClientTimeouts, now: Instant) -> Option<&'static str> {
        let mut state = self.state.lock();
        let has_passed = |since: Instant, timeout| now.saturating_duration_since(since) >= timeout;
        if let Some(since) = state.blocked_since {
            return has_passed(since, timeouts.idle).then_some("answer");
        }
        if let Some((requests, cancelled)) = state.streams
            && cancelled > CANCELLED_MOST.max(requests / 2)
            && !state.may_cancel_all
        {
            return Some("resets");
        }
        match &mut state.expected {
            Expected::First(since, _) => has_passed(*since, timeouts.header).then_some("head"),
            Expected::Head(since) => has_passed(*since.get_or_insert(now), timeouts.header).then_some("head"),
            Expected::Next(since) => has_passed(*since, timeouts.idle).then_some("request"),
            Expected::Nothing | Expected::End => None,
        }
    }

    /// Records that a request is in flight: its head has been received, or the rest of it still arrives behind its response.
    pub(super) fn begin_request(&self) {
        let mut state = self.state.lock();
        state.expected = Expected::Nothing;
        state.in_flight += 1;
        if let Some((requests, _)) = &mut state.streams {
            *requests = requests.saturating_add(1);
        }
    }

    /// Records that a response has ended, apart from data still to be written.
    pub(super) fn end_request(&self, now: Instant) {
        let mut state = self.state.lock();
        state.in_flight -= 1;
        if state.in_flight == 0 && !matches!(state.expected, Expected::End) {
            state.expected = Expected::Next(now);
            // A connection that is to be closed waits only for the client to close it.
            if self.is_ending() {
                state.expected = Expected::Head(Some(now));
                self.note_ended(&mut state, CONFIRMED_WITHIN);
            }
        }
    }

    /// Records that an HTTP/2 request was cancelled.
    pub(super) fn note_cancelled(&self) {
        if let Some((_, cancelled)) = &mut self.state.lock().streams {
            *cancelled = cancelled.saturating_add(1);
        }
    }

    /// Records that the client gets a 503 because the connection has no place. Returns true for the first one.
    pub(super) fn note_refused(&self) -> bool {
        let mut state = self.state.lock();
        let is_first = state.ended.is_none();
        self.note_ended(&mut state, Duration::ZERO);
        is_first
    }

    /// Records that the connection only waits for the client, and may be closed after this time.
    fn note_ended(&self, state: &mut WatchState, patience: Duration) {
        self.place.free();
        let now = Instant::now();
        state.ended.get_or_insert((now, now + patience));
    }

    /// Records that nothing more is awaited of the client: the connection ends within a time of its own.
    pub(super) fn await_nothing(&self) {
        let mut state = self.state.lock();
        state.expected = Expected::End;
        self.note_ended(&mut state, Duration::ZERO);
    }

    /// Records bytes of a response over HTTP/2 that are sent.
    pub(super) fn note_sent(&self, bytes: usize) {
        let (sent, now) = (&mut self.state.lock().sent, Instant::now());
        let recent = sent.filter(|(_, at)| now - *at < RECEIVED_WITHIN).map_or(0, |(bytes, _)| bytes);
        *sent = Some((recent + bytes, now));
    }

    /// Returns true if the client of an HTTP/2 connection may still receive what was sent, which only the system knows.
    pub(super) fn may_receive(&self) -> bool {
        let sent = self.state.lock().sent;
        sent.is_some_and(|(bytes, at)| bytes >= RECEIVED_AT_ONCE && at.elapsed() < RECEIVED_WITHIN)
    }

    /// Records that bytes have been received.
    pub(super) fn note_read(&self) {
        let mut state = self.state.lock();
        // Without patience from the beginning, there is none later.
        if let Some((ended, since)) = &mut state.ended
            && *since > *ended
            && ended.elapsed() < CONFIRMED_LAST
        {
            *since = Instant::now() + CONFIRMED_WITHIN;
        }
        match state.expected {
            Expected::First(since, _) => state.expected = Expected::Head(Some(since)),
            Expected::Next(_) if state.streams.is_none() => state.expected = Expected::Head(None),
            Expected::Next(_) | Expected::Head(_) | Expected::Nothing | Expected::End => {}
        }
    }

    /// Records whether the client doesn't read what is to be sent.
    pub(super) fn note_write(&self, is_blocked: bool) {
        let mut state = self.state.lock();
        if is_blocked {
            state.blocked_since.get_or_insert_with(Instant::now);
        } else if state.blocked_since.take().is_some()
            && let Expected::Next(since) = &mut state.expected
        {
            // The client has only now read the rest of the last response.
            *since = Instant::now();
        }
    }
}

#[cfg(test)]
mod tests;
