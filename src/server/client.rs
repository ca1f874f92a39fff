//! A watch over a client's connection, so that a client who does nothing can be cut off.
//!
//! What a client is waited for changes with each request, and how long doesn't. So no request sets a timer: the
//! connection notes what is awaited since when, and its worker looks at that now and then. While a request is
//! answered, the client is waited for only if it takes less than is there for it: an answer may take its time.
//! A request's body is watched where it is read, since only there is known whether more of it is wanted; so is what
//! HTTP/2 sends of several answers ([`super::http2`]).

use std::{
    future::poll_fn,
    io::IoSlice,
    pin::{Pin, pin},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    task::{Context, Poll, Waker, ready},
    time::Duration,
};

use parking_lot::Mutex;
use tokio::{
    io::{self, AsyncRead, AsyncWrite, ReadBuf},
    time::Instant,
};

/// Requests that a client of HTTP/2 may give up before they are answered, if they are most of its requests.
const GIVEN_UP_MOST: u32 = 500;

/// How long a client may take.
#[derive(Clone, Copy, Debug)]
pub(super) struct Patience {
    /// To send the head of a request, of the first one from when it has connected.
    pub(super) header: Duration,
    /// To do anything at all: to begin another request, or to take some of an answer.
    pub(super) idle: Duration,
}

/// What is awaited of a client. It is used by one thread, so the lock is always free.
#[derive(Debug)]
pub(super) struct Watch {
    state: Mutex<State>,
    /// The connection is to end. It is in no lock, as each poll of the connection asks for it.
    is_ending: AtomicBool,
}

#[derive(Debug)]
struct State {
    awaited: Awaited,
    /// Requests that are being answered.
    in_flight: u32,
    /// Requests so far, and those that were given up, if several can be in flight: it is a connection for HTTP/2.
    streams: Option<(u32, u32)>,
    /// Woken when the connection is to end.
    task: Option<Waker>,
    /// The client takes nothing of what waits to be written.
    blocked_since: Option<Instant>,
}

#[derive(Clone, Copy, Debug)]
enum Awaited {
    /// Its first request.
    First(Instant),
    /// The rest of a request's head. If it isn't said since when, it is since the next look at it: mostly the head is whole
    /// by then, and nobody had to look at the clock for it.
    Head(Option<Instant>),
    /// Nothing: a request is being answered.
    Nothing,
    /// Another request.
    Next(Instant),
}

impl Watch {
    /// Of a connection that has just been made.
    pub(super) fn new() -> Self {
        let state = State {
            awaited: Awaited::First(Instant::now()),
            in_flight: 0,
            streams: None,
            task: None,
            blocked_since: None,
        };
        Self { state: Mutex::new(state), is_ending: AtomicBool::new(false) }
    }

    /// Notes that the connection is one for HTTP/2: what comes while nothing is in flight needn't be a head.
    pub(super) fn begin_http2(&self) {
        self.state.lock().streams = Some((0, 0));
    }

    /// Whether it is one for HTTP/2, whose client can be told that it ends.
    pub(super) fn is_http2(&self) -> bool {
        self.state.lock().streams.is_some()
    }

    /// Returns how many requests have begun on a connection for HTTP/2.
    pub(super) fn requests(&self) -> u32 {
        self.state.lock().streams.map_or(0, |(requests, _)| requests)
    }

    /// Has the connection end with what is in flight on it.
    pub(super) fn end(&self) {
        let mut state = self.state.lock();
        if !self.is_ending.swap(true, Relaxed) {
            if state.in_flight == 0 {
                state.awaited = Awaited::Head(None);
            }
            state.task.take().into_iter().for_each(Waker::wake);
        }
    }

    /// Whether it is to end.
    pub(super) fn is_ending(&self) -> bool {
        self.is_ending.load(Relaxed)
    }

    /// Has this be woken when the connection is to end.
    pub(super) fn note_task(&self, waker: &Waker) {
        let task = &mut self.state.lock().task;
        if !task.as_ref().is_some_and(|task| task.will_wake(waker)) {
            *task = Some(waker.clone());
        }
    }

    /// What comes of this, unless the connection is to end before.
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

    /// Since when the connection is of no use to anybody, if it is of none.
    pub(super) fn idle_since(&self) -> Option<Instant> {
        let state = self.state.lock();
        match state.awaited {
            Awaited::First(since) | Awaited::Next(since) if state.blocked_since.is_none() => Some(since),
            _ => None,
        }
    }

    /// What should have come or gone by now: a `head`, a further `request`, some of an `answer`; or no more `resets`.
    pub(super) fn missed(&self, patience: Patience, now: Instant) -> Option<&'static str> {
        let mut state = self.state.lock();
        let has_passed = |since: Instant, patience| now.saturating_duration_since(since) >= patience;
        if let Some(since) = state.blocked_since {
            return has_passed(since, patience.idle).then_some("answer");
        }
        if let Some((requests, given_up)) = state.streams
            && given_up > GIVEN_UP_MOST.max(requests / 2)
        {
            return Some("resets");
        }
        match &mut state.awaited {
            Awaited::First(since) => has_passed(*since, patience.header).then_some("head"),
            Awaited::Head(since) => has_passed(*since.get_or_insert(now), patience.header).then_some("head"),
            Awaited::Next(since) => has_passed(*since, patience.idle).then_some("request"),
            Awaited::Nothing => None,
        }
    }

    /// Notes that a request's head has come.
    pub(super) fn begin_request(&self) {
        let mut state = self.state.lock();
        state.awaited = Awaited::Nothing;
        state.in_flight += 1;
        if let Some((requests, _)) = &mut state.streams {
            *requests = requests.saturating_add(1);
        }
    }

    /// Notes that a request is answered, but for what waits to be written.
    pub(super) fn end_request(&self, now: Instant) {
        let mut state = self.state.lock();
        state.in_flight -= 1;
        if state.in_flight == 0 {
            // Whether the client lets it end is all that is left to see.
            state.awaited = if self.is_ending() { Awaited::Head(Some(now)) } else { Awaited::Next(now) };
        }
    }

    fn note_read(&self) {
        let mut state = self.state.lock();
        match state.awaited {
            Awaited::First(since) => state.awaited = Awaited::Head(Some(since)),
            Awaited::Next(_) if state.streams.is_none() => state.awaited = Awaited::Head(None),
            Awaited::Next(_) | Awaited::Head(_) | Awaited::Nothing => {}
        }
    }

    fn note_write(&self, is_blocked: bool) {
        let mut state = self.state.lock();
        if is_blocked {
            state.blocked_since.get_or_insert_with(Instant::now);
        } else if state.blocked_since.take().is_some()
            && let Awaited::Next(since) = &mut state.awaited
        {
            // The client has only now taken so much of the last answer.
            *since = Instant::now();
        }
    }
}

/// A connection that keeps its watch.
#[derive(Debug)]
pub(super) struct Watched<S> {
    pub(super) stream: S,
    pub(super) watch: Arc<Watch>,
    /// The watch knows that the client takes nothing.
    is_blocked: bool,
}

impl<S> Watched<S> {
    /// A connection that this is to watch over.
    pub(super) fn new(stream: S, watch: Arc<Watch>) -> Self {
        Self { stream, watch, is_blocked: false }
    }

    fn note_write(&mut self, is_blocked: bool) {
        if is_blocked || self.is_blocked {
            self.is_blocked = is_blocked;
            self.watch.note_write(is_blocked);
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Watched<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(context, buffer))?;
        if buffer.filled().len() > before {
            self.watch.note_read();
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Watched<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.note_write(written.is_pending());
        written
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(context, slices);
        self.note_write(written.is_pending());
        written
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(context);
        // TLS takes what is written, and holds it back.
        self.note_write(flushed.is_pending());
        flushed
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

/// A request on a connection for HTTP/2, in flight until this is dropped.
#[derive(Debug)]
pub(super) struct InFlight {
    watch: Arc<Watch>,
    is_answered: bool,
}

impl InFlight {
    /// Notes that a request's head has come.
    pub(super) fn begin(watch: &Arc<Watch>) -> Self {
        watch.begin_request();
        Self { watch: watch.clone(), is_answered: false }
    }

    /// The watch over its connection.
    pub(super) fn watch(&self) -> &Arc<Watch> {
        &self.watch
    }

    /// Notes that the client has waited for its answer.
    pub(super) fn note_answer(&mut self) {
        self.is_answered = true;
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        if !self.is_answered
            && let Some((_, given_up)) = &mut self.watch.state.lock().streams
        {
            *given_up = given_up.saturating_add(1);
        }
        self.watch.end_request(Instant::now());
    }
}
