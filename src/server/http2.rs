//! HTTP/2 with clients: limits, and responses that clients don't read.
//!
//! A connection carries several responses, and the client's flow control may block each of them. A blocked
//! response is no reason to close the connection, but it holds an upstream connection and memory, so it is
//! cancelled after a while. hyper asks a body for its next piece only when the last one has been sent; that
//! shows whether a response is blocked. After the last piece, h2 holds the data on its own; dropping the data
//! shows that it was sent.

use std::{
    cell::Cell,
    future::poll_fn,
    pin::{Pin, pin},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::Bytes;
use http_body::{Body as HttpBody, Frame, SizeHint};
use hyper::{Request, Response, StatusCode, header::CONTENT_LENGTH, rt::Executor, server::conn::http2};
use tokio::{
    sync::{Mutex, oneshot},
    task::yield_now,
    task_local,
    time::{Instant, timeout},
};
use tokio_util::task::TaskTracker;

use crate::gateway::{AnswerBody, Gathered, Timer};
use tollgate_http1::head::FIELDS_MOST;

use super::client::Watch;

/// The most requests in flight on a connection.
pub(super) const STREAMS_MOST: u32 = 100;
/// The receive window of a request body, and of all request bodies on a connection.
const WINDOW: u32 = 256 << 10;
const CONNECTION_WINDOW: u32 = 1 << 20;
/// The window of all request bodies on a connection of a proxy. h2 closes a connection whose unread frames have fewer than 256 bytes, when what
/// they lack exceeds half of that: with 1 MiB, one client of the proxy could do so with 2,000 bytes.
const PROXY_WINDOW: u32 = 64 << 20;
/// The most bytes of a response that h2 holds after the client has given credit for them.
const SEND_BUFFER: usize = 64 << 10;
/// The size in bytes up to which a piece isn't tracked, because that costs more than it saves.
const SMALL: usize = 1 << 10;
/// The number of requests cancelled before they are accepted, and of malformed ones, after which the connection is closed.
const CANCELLED_MOST: usize = 20;
const MALFORMED_MOST: usize = 1024;
/// The most requests in flight on a connection of a proxy, and cancelled ones. Envoy sends all that are pending on a new connection
/// before it knows the bound, by default at most 1,024, and lets those pass that are refused.
const OF_PROXY_MOST: u32 = 4096;
/// The bytes of a head from which on a request waits for its turn. A few bytes can be sent for it (RFC 7541), and keys in unusual
/// spellings take long to read.
const LARGE_HEAD: usize = 2 << 10;
/// The bytes of a target from which on it does, too: a path in unusual spellings has many readings.
const LARGE_TARGET: usize = 512;

/// Returns the settings for a connection with this limit for heads, of one client or of many.
pub(super) fn builder(
    header_bytes_most: usize,
    is_of_many: bool,
    streams: StreamExecutor,
) -> http2::Builder<StreamExecutor> {
    let (streams_most, window, cancelled_most, malformed_most) = match is_of_many {
        false => (STREAMS_MOST, CONNECTION_WINDOW, CANCELLED_MOST, Some(MALFORMED_MOST)),
        // Those beyond the bound count as malformed, too.
        true => (OF_PROXY_MOST, PROXY_WINDOW, OF_PROXY_MOST as usize, None),
    };
    let mut builder = http2::Builder::new(streams);
    builder
        .max_concurrent_streams(streams_most)
        .max_header_list_size(u32::try_from(header_bytes_most).unwrap_or(u32::MAX))
        .initial_stream_window_size(WINDOW)
        .initial_connection_window_size(window)
        .max_send_buf_size(SEND_BUFFER)
        .max_pending_accept_reset_streams(cancelled_most)
        .max_local_error_reset_streams(malformed_most);
    builder
}

/// Runs the requests of a connection, each as a task.
#[derive(Clone, Debug)]
pub(super) struct StreamExecutor {
    /// The tasks of the connection.
    own: TaskTracker,
    /// The tasks of all connections of the worker that share a bound, and that bound.
    all: TaskTracker,
    most: usize,
    /// The time for which a response may be blocked.
    patience: Duration,
}

impl StreamExecutor {
    /// Creates the executor of a new connection. `all` are the requests of all connections that share the bound `most`.
    pub(super) fn new(all: TaskTracker, most: usize, patience: Duration) -> Self {
        Self { own: TaskTracker::new(), all, most, patience }
    }

    /// Returns true if another request may be in flight: if there are fewer than the bound, or none on this connection, so that one client
    /// can't block all others.
    pub(super) fn has_room(&self) -> bool {
        self.own.is_empty() || self.all.len() < self.most
    }
}

/// The turns of a connection's requests with large heads: one at a time, and the worker's other connections in between.
#[derive(Debug, Default)]
pub(super) struct Turns(Mutex<()>);

impl Turns {
    /// Waits for the turn of a request, if it has a large head. One that is refused for its head is not to be kept for that.
    pub(super) async fn wait_for<B>(&self, request: &Request<B>) {
        if request.headers().len() > FIELDS_MOST {
            return;
        }
        let fields = request.headers().iter().map(|(name, value)| name.as_str().len() + value.len());
        let target = request.uri().path_and_query().map_or(0, |path| path.as_str().len());
        if target >= LARGE_TARGET || target + fields.sum::<usize>() >= LARGE_HEAD {
            let _turn = self.0.lock().await;
            yield_now().await;
        }
    }
}

task_local! {
    static SENDING: SendState;
}

/// The progress of a task's response.
#[derive(Default)]
struct SendState {
    /// The time since when the response is blocked, if it is.
    blocked_since: Cell<Option<Instant>>,
    /// The last piece given to h2.
    last: Cell<Option<Unsent>>,
}

/// A piece of a response that h2 may still hold. Its request is in flight meanwhile.
struct Unsent {
    sent: oneshot::Receiver<()>,
    request: Arc<Http2Request>,
}

/// Bytes whose drop shows that they were sent or discarded.
struct TrackedBytes {
    bytes: Bytes,
    _sent: oneshot::Sender<()>,
}

impl AsRef<[u8]> for TrackedBytes {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl SendState {
    /// Records a piece of the response to a request that is given to h2.
    fn note(&self, bytes: Bytes, request: &Arc<Http2Request>) -> Bytes {
        self.blocked_since.set(Some(Instant::now()));
        if bytes.len() <= SMALL {
            return bytes;
        }
        request.watch.note_sent(bytes.len());
        let (_sent, sent) = oneshot::channel();
        self.last.set(Some(Unsent { sent, request: request.clone() }));
        Bytes::from_owner(TrackedBytes { bytes, _sent })
    }
}

impl Unsent {
    /// Waits until the piece has been sent. If the client blocks it for too long, the request isn't in flight any more unless its body still
    /// arrives, and the connection will be closed.
    async fn wait(self, patience: Duration) {
        let Self { mut sent, request } = self;
        let is_sent = timeout(patience, &mut sent).await.is_ok();
        request.watch.note_sent(0);
        if !is_sent {
            request.watch.end();
            drop(request);
            let _ = sent.await;
        }
    }
}

impl<F: Future<Output = ()> + Send + 'static> Executor<F> for StreamExecutor {
    fn execute(&self, stream: F) {
        let patience = self.patience;
        let answered = async move {
            unless_stalled(stream, patience).await;
            if let Some(unsent) = SENDING.with(|sending| sending.last.take()) {
                unsent.wait(patience).await;
            }
        };
        let answered = self.own.track_future(SENDING.scope(SendState::default(), answered));
        // Boxed, because a task's future is copied several times before it is polled.
        self.all.spawn(Box::pin(answered));
    }
}

/// Processes a request. Cancels it, which resets the stream, if the response is blocked for too long.
async fn unless_stalled(stream: impl Future<Output = ()>, patience: Duration) {
    let (mut stream, mut timer) = (pin!(stream), Timer::default());
    poll_fn(|context| {
        if stream.as_mut().poll(context).is_ready() {
            return Poll::Ready(());
        }
        let Some(since) = SENDING.with(|sending| sending.blocked_since.get()) else { return Poll::Pending };
        timer.poll_until(since + patience, context)
    })
    .await;
}

/// A request on an HTTP/2 connection, in flight until it is dropped: by its response, and by its body, which a server may still read then.
#[derive(Debug)]
pub(super) struct Http2Request {
    watch: Arc<Watch>,
    is_answered: AtomicBool,
}

impl Http2Request {
    /// Records that the head of a request has been received.
    pub(super) fn begin(watch: &Arc<Watch>) -> Arc<Self> {
        watch.begin_request();
        Arc::new(Self { watch: watch.clone(), is_answered: AtomicBool::new(false) })
    }

    /// Records that the client has waited for its response.
    fn note_answer(&self) {
        self.is_answered.store(true, Relaxed);
    }
}

impl Drop for Http2Request {
    fn drop(&mut self) {
        if !self.is_answered.load(Relaxed) {
            self.watch.note_cancelled();
        }
        self.watch.end_request(Instant::now());
    }
}

/// The body of a response. The request is in flight until it is dropped, and the last piece sent.
#[derive(Debug)]
pub(super) struct Http2Body {
    body: Gathered<AnswerBody>,
    /// True for a response without a body, such as to HEAD. hyper checks this for HTTP/1.1 only.
    is_bodiless: bool,
    in_flight: Arc<Http2Request>,
}

impl Http2Body {
    /// Returns the response in the form of HTTP/2.
    pub(super) fn of(
        mut response: Response<AnswerBody>,
        is_to_head: bool,
        in_flight: Arc<Http2Request>,
    ) -> Response<Self> {
        in_flight.note_answer();
        let status = response.status();
        if status == StatusCode::NO_CONTENT {
            response.headers_mut().remove(CONTENT_LENGTH);
        } else if let (true, Some(length @ 1..)) = (is_to_head, response.body().size_hint().exact()) {
            response.headers_mut().entry(CONTENT_LENGTH).or_insert(length.into());
        }
        let is_bodiless = is_to_head || matches!(status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED);
        response.map(|body| Self { body: Gathered::new(body), is_bodiless, in_flight })
    }
}

impl HttpBody for Http2Body {
    type Data = Bytes;
    type Error = <AnswerBody as HttpBody>::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        // While there is no room, the response stays blocked.
        ready!(self.body.poll_room(context));
        SENDING.with(|sending| {
            sending.blocked_since.set(None);
            let frame = ready!(Pin::new(&mut self.body).poll_frame(context));
            let note = |bytes| sending.note(bytes, &self.in_flight);
            Poll::Ready(frame.map(|frame| frame.map(|frame| frame.map_data(note))))
        })
    }

    fn is_end_stream(&self) -> bool {
        self.is_bodiless || self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

    use super::*;

    /// The test's task stands for the worker's other connections.
    #[tokio::test]
    async fn a_client_with_large_heads_gets_few_answers_a_turn() {
        const REQUESTS: usize = 100;
        let (turns, answered) = (Arc::new(Turns::default()), Arc::new(AtomicUsize::new(0)));
        for place in 0..REQUESTS {
            let (turns, answered) = (turns.clone(), answered.clone());
            tokio::spawn(async move {
                let large = match place % 2 {
                    0 => Request::builder().header("x", "a".repeat(LARGE_HEAD)),
                    _ => Request::builder().uri("/a".repeat(LARGE_TARGET / 2)),
                };
                let request = large.body(()).unwrap();
                turns.wait_for(&request).await;
                answered.fetch_add(1, Relaxed);
            });
        }
        let mut before = 0;
        while before < REQUESTS {
            yield_now().await;
            let now = answered.load(Relaxed);
            assert!(now - before <= 2, "{before} {now}");
            before = now;
        }
    }
}
