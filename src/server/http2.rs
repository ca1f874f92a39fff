//! HTTP/2 with clients: its bounds, and what hyper leaves to us of it.
//!
//! A connection carries several answers, each as far as the client gives it room. One for which it gives none is no
//! reason to close the connection, but holds a connection upstream, and what was read of it. So it is given up after a
//! while. Whether it waits for room is seen by its body: what has been taken of it isn't sent until the next is asked for.

use std::{
    cell::Cell,
    future::poll_fn,
    pin::{Pin, pin},
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::Bytes;
use http_body::{Body as HttpBody, Frame, SizeHint};
use hyper::{Response, StatusCode, header::CONTENT_LENGTH, rt::Executor, server::conn::http2};
use tokio::{
    task_local,
    time::{Instant, sleep_until},
};
use tokio_util::task::TaskTracker;

use crate::gateway::AnswerBody;

use super::client::InFlight;

/// Requests in flight on a connection.
pub(super) const STREAMS_MOST: u32 = 100;
/// Bytes of a request's body that wait to be taken, and of those of all requests of a connection.
const WINDOW: u32 = 256 << 10;
const CONNECTION_WINDOW: u32 = 1 << 20;
/// Bytes of an answer that the client has given room for and that wait to be sent.
const SEND_BUFFER: usize = 64 << 10;
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
    /// Since when the answer of this task waits for room, if it does.
    static WAITS_SINCE: Cell<Option<Instant>>;
}

impl<F: Future<Output = ()> + Send + 'static> Executor<F> for Streams {
    fn execute(&self, stream: F) {
        self.tasks.spawn(WAITS_SINCE.scope(Cell::new(None), unless_stalled(stream, self.patience)));
    }
}

/// Answers a request, or gives it up, which resets it, when the client has given no room for so long.
async fn unless_stalled(stream: impl Future<Output = ()>, patience: Duration) {
    let (mut stream, mut timer) = (pin!(stream), None);
    poll_fn(|context| {
        if stream.as_mut().poll(context).is_ready() {
            return Poll::Ready(());
        }
        let Some(since) = WAITS_SINCE.with(Cell::get) else { return Poll::Pending };
        let until = since + patience;
        let timer = timer.get_or_insert_with(|| Box::pin(sleep_until(until)));
        // It is set for an earlier wait as long as that hasn't passed.
        while timer.as_mut().poll(context).is_ready() {
            if timer.deadline() >= until {
                return Poll::Ready(());
            }
            timer.as_mut().reset(until);
        }
        Poll::Pending
    })
    .await;
}

/// The body of an answer, with which the request ends.
#[derive(Debug)]
pub(super) struct Answer {
    body: AnswerBody,
    /// It has none, whatever the body says, which hyper looks at for HTTP/1.1 only.
    is_bodiless: bool,
    _in_flight: InFlight,
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
        response.map(|body| Self { body, is_bodiless, _in_flight: in_flight })
    }
}

impl HttpBody for Answer {
    type Data = Bytes;
    type Error = <AnswerBody as HttpBody>::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        WAITS_SINCE.with(|waits| waits.set(None));
        let frame = ready!(Pin::new(&mut self.body).poll_frame(context));
        if matches!(&frame, Some(Ok(frame)) if frame.is_data()) {
            WAITS_SINCE.with(|waits| waits.set(Some(Instant::now())));
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.is_bodiless || self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
