//! The streams of an HTTP/2 connection to a server.

use std::{
    io, mem,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed},
    },
    task::{Context, Poll, ready},
    time::Duration,
};

use parking_lot::Mutex;
use tokio::{
    sync::Notify,
    time::{Instant, Interval, MissedTickBehavior, interval_at},
};

use crate::forward::{connector::CountedConnection, hints::HINTS_MOST};

use super::received::ReceivedBodies;

/// The silence after which an HTTP/2 connection gets no new requests meanwhile, and seems dead to a request that is given up. PINGs would
/// tell sooner, but gRPC servers close connections that send them every few seconds.
const SILENCE_MOST: Duration = Duration::from_secs(5);

/// The time within which a server must make room for the rest of a request's body once there is no response any more.
const ROOM_WITHIN: Duration = Duration::from_secs(1);

/// The number of interim responses allowed on an HTTP/2 connection in addition to those that each request
/// allows.
const HINTS_RESERVE: usize = 10 * HINTS_MOST;

/// The most requests on an HTTP/2 connection at a time. Many servers allow about as many.
const AT_A_TIME_MOST: usize = 100;
/// The number of cancelled requests after which an HTTP/2 connection gets no new ones. Even if all that are in flight are then cancelled, too,
/// there are fewer than servers accept: Envoy and Tollgate close a connection with 250, Node.js one with 1,000.
const CANCELLED_MOST: usize = 100;
/// The number of cancelled requests after which it gets no new ones, for each request that the server allows at a time. Go closes a
/// connection with four whose handlers have yet to start.
const CANCELLED_PER_STREAM: usize = 3;
/// The most requests that can be cancelled on an HTTP/2 connection.
pub(super) const CANCELLED_IN_ALL: usize = CANCELLED_MOST + AT_A_TIME_MOST;

/// The number of requests after which an HTTP/2 connection gets no new ones. nginx ends a connection at once with the 1,000th, and what is
/// then on its way there is lost, unless it may be sent again.
const REQUESTS_MOST: usize = 1_000 - AT_A_TIME_MOST;

/// The streams of an HTTP/2 connection.
#[derive(Debug, Default)]
pub(super) struct Http2Streams {
    /// The number of handles: one per request until its response and its body have ended, and one in the pool.
    pub(super) lent: AtomicUsize,
    /// The number of streams that the server allows by its last settings; 0 before the first ones.
    pub(super) most: AtomicUsize,
    /// True once the connection has ended.
    pub(super) is_closed: AtomicBool,
    /// Notified when one of these changes.
    pub(super) changed: Notify,
    /// True if a response was late, the server refused a request or wants calm, the connection seems dead, many requests were cancelled or
    /// sent, or one has trailers. No new requests are then sent on it.
    pub(super) is_suspect: AtomicBool,
    /// The number of requests whose body waits for room at the server. It may need all the room of the connection.
    blocked: AtomicUsize,
    /// The number of requests that were sent.
    sent: AtomicUsize,
    /// The number of requests that were given up before their response had ended.
    cancelled: AtomicUsize,
    /// The number of requests whose response is awaited.
    awaited: AtomicUsize,
    /// The time of the first request since anything was read. `None` if there is none, or if no response is awaited any more.
    pub(super) silent_since: Mutex<Option<Instant>>,
    /// The number of response heads that may still arrive, see [`Self::expect`].
    heads_left: AtomicUsize,
    /// The bodies of responses.
    pub(super) received: ReceivedBodies,
    /// Counts the connection until it [retires](Self::retire), or its last handle is dropped. It is closed soon after.
    pub(super) counted: Mutex<CountedConnection>,
}

impl Http2Streams {
    /// Returns another handle, unless there are as many requests as the connection may have at a time, another request would have no
    /// room, or the connection is silent.
    pub(super) fn lend(self: &Arc<Self>) -> Option<Arc<Http2Handle>> {
        if self.blocked.load(Relaxed) > 0 || self.is_silent() {
            return None;
        }
        let most = self.most.load(Relaxed).min(AT_A_TIME_MOST);
        let more = |lent| (lent <= most).then_some(lent + 1);
        self.lent.fetch_update(Relaxed, Relaxed, more).ok()?;
        Some(Http2Handle::new(self.clone()))
    }

    /// Keeps the connection for a request whose trailers are to be sent. Returns false if there may be others on it, or too many connections
    /// were given up for trailers. The pool has a handle beside theirs, unless the connection gets no more.
    pub(super) fn keep_for_one(&self) -> bool {
        let is_suspect = self.is_suspect.load(Relaxed);
        let is_alone = self.lent.load(Relaxed) <= 2 - usize::from(is_suspect);
        let is_kept = is_alone && (is_suspect || self.counted.lock().take_early_end(|of| &of.for_trailers));
        if is_kept {
            self.retire();
        }
        is_kept
    }

    /// Sends no new requests on the connection, since the server has refused one to have calm, unless too many were given up so. Node.js does
    /// that while responses on it that aren't read take 10 MB.
    pub(super) fn retire_for_calm(&self) {
        if !self.is_suspect.load(Relaxed) && self.counted.lock().take_early_end(|of| &of.for_calm) {
            self.retire();
        }
    }

    /// Returns true if nothing has been read since a request for [`SILENCE_MOST`]. Anything that arrives ends the silence.
    fn is_silent(&self) -> bool {
        self.silent_since.lock().is_some_and(|since| since.elapsed() >= SILENCE_MOST)
    }

    /// Records the number of streams that the server allows. A server may change it at any time.
    pub(super) fn note_most(&self, most: Option<usize>) {
        let most = most.unwrap_or(0);
        if self.most.swap(most, Relaxed) != most {
            self.changed.notify_one();
        }
    }

    /// Records that a request is sent. It allows for a response and some interim responses.
    pub(super) fn expect(&self) {
        let most = self.lent.load(Relaxed) + HINTS_RESERVE;
        let more = |left: usize| Some((left + 1 + HINTS_MOST).min(most));
        let _ = self.heads_left.fetch_update(Relaxed, Relaxed, more);
        if self.sent.fetch_add(1, Relaxed) + 1 >= REQUESTS_MOST {
            self.retire();
        }
    }

    /// Sends no new requests on the connection. It no longer counts: otherwise a client could use up all with one slow request on each.
    fn retire(&self) {
        self.is_suspect.store(true, Relaxed);
        drop(mem::take(&mut *self.counted.lock()));
    }

    /// Records that response heads have arrived.
    ///
    /// # Errors
    /// There are more heads than the requests allow. h2 keeps any number of interim responses until their
    /// stream is read.
    pub(super) fn note_heads(&self, heads: usize) -> io::Result<()> {
        let fewer = |left: usize| left.checked_sub(heads);
        let counted = self.heads_left.fetch_update(Relaxed, Relaxed, fewer);
        let too_many = |_| io::Error::new(io::ErrorKind::InvalidData, "too many interim responses");
        counted.map(drop).map_err(too_many)
    }
}

/// A request whose response is awaited. If it is given up when the connection has been silent for [`SILENCE_MOST`], the connection
/// gets no more requests.
pub(super) struct AwaitedResponse<'s>(&'s Http2Streams);

impl<'s> AwaitedResponse<'s> {
    pub(super) fn begin(streams: &'s Http2Streams) -> Self {
        streams.awaited.fetch_add(1, Relaxed);
        streams.silent_since.lock().get_or_insert_with(Instant::now);
        Self(streams)
    }
}

impl Drop for AwaitedResponse<'_> {
    fn drop(&mut self) {
        if self.0.is_silent() {
            self.0.is_suspect.store(true, Relaxed);
        }
        if self.0.awaited.fetch_sub(1, Relaxed) == 1 {
            *self.0.silent_since.lock() = None;
        }
    }
}

/// A request body that waits for room at the server. It counts until it is dropped.
pub(super) struct Blocked {
    streams: Arc<Http2Streams>,
    looks: Interval,
    /// True if there was no response any more at the last look.
    was_alone: bool,
}

impl Blocked {
    /// Counts a body.
    pub(super) fn begin(streams: &Arc<Http2Streams>) -> Self {
        streams.blocked.fetch_add(1, Relaxed);
        let mut looks = interval_at(Instant::now() + ROOM_WITHIN, ROOM_WITHIN);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Self { streams: streams.clone(), looks, was_alone: false }
    }

    /// Waits until the response has ended, or was given up, for [`ROOM_WITHIN`]: until the body is the last that holds this handle. Node.js, for
    /// one, then neither reads the body nor resets the stream if the response has no content.
    pub(super) fn poll_useless(&mut self, handle: &Arc<Http2Handle>, context: &mut Context<'_>) -> Poll<()> {
        loop {
            ready!(self.looks.poll_tick(context));
            if mem::replace(&mut self.was_alone, Arc::strong_count(handle) == 1) {
                return Poll::Ready(());
            }
        }
    }
}

impl Drop for Blocked {
    fn drop(&mut self) {
        self.streams.blocked.fetch_sub(1, Relaxed);
    }
}

/// A handle of an HTTP/2 connection. Counts as a stream.
#[derive(Debug)]
pub(super) struct Http2Handle {
    pub(super) streams: Arc<Http2Streams>,
    /// True once the response has ended, unless the body is given up after that. Else the request counts as cancelled.
    pub(super) has_ended: AtomicBool,
}

impl Http2Handle {
    /// Returns a handle that is already counted.
    pub(super) fn new(streams: Arc<Http2Streams>) -> Arc<Self> {
        Self { streams, has_ended: AtomicBool::new(false) }.into()
    }
}

impl Drop for Http2Handle {
    fn drop(&mut self) {
        let streams = &self.streams;
        let most = streams.most.load(Relaxed).saturating_mul(CANCELLED_PER_STREAM).min(CANCELLED_MOST);
        let has_enough = !self.has_ended.load(Relaxed) && streams.cancelled.fetch_add(1, Relaxed) + 1 >= most;
        if streams.lent.fetch_sub(1, Relaxed) == 1 || has_enough {
            streams.retire();
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_connection_is_silent_only_while_a_response_is_awaited() {
        let streams = Arc::new(Http2Streams::default());
        streams.note_most(Some(AT_A_TIME_MOST));
        let first = AwaitedResponse::begin(&streams);
        advance(SILENCE_MOST / 2).await;
        let second = AwaitedResponse::begin(&streams);
        drop(first);
        advance(SILENCE_MOST / 4).await;
        drop(second);
        advance(SILENCE_MOST).await;
        assert!(streams.lend().is_some());
        let third = AwaitedResponse::begin(&streams);
        advance(SILENCE_MOST / 2).await;
        assert!(streams.lend().is_some());
        advance(SILENCE_MOST / 2).await;
        assert!(streams.lend().is_none());
        drop(third);
        assert!(streams.is_suspect.load(Relaxed));
    }
}
