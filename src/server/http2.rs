//! HTTP/2 with clients: its bounds, and what hyper leaves to us of it.
//!
//! A connection carries several answers, each as far as the client gives it room. One for which it gives none is no
//! reason to close the connection, but holds a connection upstream, and what was read of it. So it is given up after a
//! while. Whether it waits for room is seen by its body: what has been taken of it isn't sent until the next is asked for.
//! Of the last piece h2 takes care when the request is done with; it is seen to have been sent when it is dropped.

use std::{
    cell::Cell,
    future::poll_fn,
    pin::{Pin, pin},
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::Bytes;
use http_body::{Body as HttpBody, Frame, SizeHint};
use hyper::{Response, StatusCode, header::CONTENT_LENGTH, rt::Executor, server::conn::http2};
use tokio::{
    sync::oneshot,
    task_local,
    time::{Instant, timeout},
};
use tokio_util::task::TaskTracker;

use crate::gateway::{AnswerBody, Timer};

use super::client::{InFlight, Watch};

/// Requests in flight on a connection.
pub(super) const STREAMS_MOST: u32 = 100;
/// Bytes of a request's body that wait to be taken, and of those of all requests of a connection.
const WINDOW: u32 = 256 << 10;
const CONNECTION_WINDOW: u32 = 1 << 20;
/// Bytes of an answer that the client has given room for and that wait to be sent.
const SEND_BUFFER: usize = 64 << 10;
/// Bytes of an answer's piece that aren't worth the trouble of seeing when they are sent.
const SMALL: usize = 1 << 10;
/// Requests that a client may take back before anybody has looked at them, and malformed ones; then the connection ends.
const TAKEN_BACK_MOST: usize = 20;
const MALFORMED_MOST: usize = 1024;

/// How a connection is served whose heads may have so many bytes.
pub(super) fn builder(header_bytes_most: usize, streams: Streams) -> http2::Builder<Streams> {
    let mut builder = http2::Builder::new(streams);
    builder
        .max_concurrent_streams(STREAMS_MOST)
        .max_header_list_size(u32::try_from(header_bytes_most).unwrap_or(u32::MAX))
        .initial_stream_window_size(WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_send_buf_size(SEND_BUFFER)
        .max_pending_accept_reset_streams(TAKEN_BACK_MOST)
        .max_local_error_reset_streams(MALFORMED_MOST);
    builder
}

/// Where the requests of a connection are answered, each as a task.
#[derive(Clone, Debug)]
pub(super) struct Streams {
    /// Those of all connections of the worker.
    pub(super) tasks: TaskTracker,
    /// How long an answer may wait for room.
    pub(super) patience: Duration,
}

task_local! {
    static SENDING: Sending;
}

/// How far the answer of a task has gone.
#[derive(Default)]
struct Sending {
    /// Since when it waits for room, if it does.
    waits_since: Cell<Option<Instant>>,
    /// The piece that was taken last.
    last: Cell<Option<Unsent>>,
}

/// A piece of an answer that h2 may hold yet.
struct Unsent {
    sent: oneshot::Receiver<()>,
    watch: Arc<Watch>,
}

/// Bytes that tell by their end that they have been sent, or never will be.
struct Piece {
    bytes: Bytes,
    _sent: oneshot::Sender<()>,
}

impl AsRef<[u8]> for Piece {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Sending {
    /// Takes note of a piece on its way to h2, to a client whose connection `watch` is over.
    fn note(&self, bytes: Bytes, watch: &Arc<Watch>) -> Bytes {
        self.waits_since.set(Some(Instant::now()));
        if bytes.len() <= SMALL {
            return bytes;
        }
        let (_sent, sent) = oneshot::channel();
        self.last.set(Some(Unsent { sent, watch: watch.clone() }));
        Bytes::from_owner(Piece { bytes, _sent })
    }
}

impl Unsent {
    /// Waits until it is sent. A client that gives no room for so long is told that the connection ends.
    async fn wait(mut self, patience: Duration) {
        if timeout(patience, &mut self.sent).await.is_err() {
            self.watch.end();
            let _ = self.sent.await;
        }
    }
}

impl<F: Future<Output = ()> + Send + 'static> Executor<F> for Streams {
    fn execute(&self, stream: F) {
        let patience = self.patience;
        let answered = async move {
            unless_stalled(stream, patience).await;
            // As long as it isn't sent it takes memory, and counts among what is in flight.
            if let Some(unsent) = SENDING.with(|sending| sending.last.take()) {
                unsent.wait(patience).await;
            }
        };
        self.tasks.spawn(SENDING.scope(Sending::default(), answered));
    }
}

/// Answers a request, or gives it up, which resets it, when the client has given no room for so long.
async fn unless_stalled(stream: impl Future<Output = ()>, patience: Duration) {
    let (mut stream, mut timer) = (pin!(stream), Timer::default());
    poll_fn(|context| {
        if stream.as_mut().poll(context).is_ready() {
            return Poll::Ready(());
        }
        let Some(since) = SENDING.with(|sending| sending.waits_since.get()) else { return Poll::Pending };
        timer.poll_until(since + patience, context)
    })
    .await;
}

/// The body of an answer, with which the request ends.
#[derive(Debug)]
pub(super) struct Answer {
    body: AnswerBody,
    /// It has none, whatever the body says, which hyper looks at for HTTP/1.1 only.
    is_bodiless: bool,
    in_flight: InFlight,
}

impl Answer {
    /// The answer to a request, perhaps to a HEAD.
    pub(super) fn of(
        mut response: Response<AnswerBody>,
        is_to_head: bool,
        mut in_flight: InFlight,
    ) -> Response<Self> {
        in_flight.note_answer();
        let status = response.status();
        if status == StatusCode::NO_CONTENT {
            response.headers_mut().remove(CONTENT_LENGTH);
        } else if let (true, Some(length @ 1..)) = (is_to_head, response.body().size_hint().exact()) {
            response.headers_mut().entry(CONTENT_LENGTH).or_insert(length.into());
        }
        let is_bodiless = is_to_head || matches!(status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED);
        response.map(|body| Self { body, is_bodiless, in_flight })
    }
}

impl HttpBody for Answer {
    type Data = Bytes;
    type Error = <AnswerBody as HttpBody>::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        SENDING.with(|sending| {
            sending.waits_since.set(None);
            let frame = ready!(Pin::new(&mut self.body).poll_frame(context));
            let note = |bytes| sending.note(bytes, self.in_flight.watch());
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
