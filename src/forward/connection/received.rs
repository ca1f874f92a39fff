//! Response bodies that arrive over HTTP/2.
//!
//! A server may send up to a window of a response before the client takes any of it, in pieces of a byte. h2 keeps some 0.5 KB with each
//! piece, and the buffer that it was read into. So after some small pieces, those that clients haven't taken are put together.
//! docs/adr/0062-http2-towards-servers.md has the figures.

use std::{
    mem,
    sync::{
        Arc, Weak,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    task::{Context, Poll, Waker, ready},
};

use bytes::{Bytes, BytesMut};
use h2::{Reason, RecvStream};
use http_body::{Frame, SizeHint};
use hyper::HeaderMap;
use parking_lot::Mutex;
use tollgate_http1::head::FIELDS_MOST;

use crate::forward::body::BoxError;

use super::http1::malformed;

/// The bytes of a piece that isn't small.
pub(super) const LARGE: usize = 4 << 10;
/// The small pieces of all responses on a connection after which they are put together.
const SMALL_MOST: usize = 256;

/// The body of a response.
#[derive(Debug)]
pub struct ReceivedBody {
    received: Arc<Mutex<Received>>,
    /// The number of bytes still to come, if the server has stated it.
    left: Option<u64>,
}

/// A body as far as it has arrived.
#[derive(Debug)]
struct Received {
    stream: RecvStream,
    /// Pieces that the client hasn't taken, put together.
    kept: BytesMut,
    /// The rest of the body behind them.
    rest: Rest,
    /// The task that waits for more.
    reader: Waker,
}

/// The rest of a body behind the pieces that are kept.
#[derive(Debug)]
enum Rest {
    /// The rest is still to be taken from h2.
    Stream,
    /// Trailers, if there are any, and then the end.
    End(Option<HeaderMap>),
    /// The body has failed.
    Error(h2::Error),
}

/// The bodies of all responses on a connection.
#[derive(Debug, Default)]
pub(super) struct ReceivedBodies {
    bodies: Mutex<Vec<Weak<Mutex<Received>>>>,
    /// The number of small pieces since those that weren't taken were put together.
    small: AtomicUsize,
}

impl ReceivedBodies {
    /// Counts small pieces that have arrived.
    pub(super) fn note_small(&self, pieces: usize) {
        self.small.fetch_add(pieces, Relaxed);
    }

    /// Has the pieces put together soon, as if many small ones had arrived.
    pub(super) fn expect_no_more(&self) {
        self.small.store(SMALL_MOST, Relaxed);
    }

    /// Returns true if so many have arrived that nothing more should be read before [`Self::compact_if_due`].
    pub(super) fn are_due(&self) -> bool {
        self.small.load(Relaxed) >= SMALL_MOST
    }

    /// Puts together the pieces of each body that the client hasn't taken, if many have arrived.
    pub(super) fn compact_if_due(&self) {
        if !self.are_due() {
            return;
        }
        self.small.store(0, Relaxed);
        // A body may end meanwhile, and is then dropped without the lock.
        let bodies = self.bodies.lock().iter().filter_map(Weak::upgrade).collect::<Vec<_>>();
        bodies.iter().for_each(|body| body.lock().compact());
    }

    fn add(&self, body: &Arc<Mutex<Received>>) {
        let mut bodies = self.bodies.lock();
        if bodies.len() == bodies.capacity() {
            bodies.retain(|body| body.strong_count() > 0);
        }
        bodies.push(Arc::downgrade(body));
    }
}

impl Received {
    fn compact(&mut self) {
        let reader = self.reader.clone();
        let mut context = Context::from_waker(&reader);
        while let Rest::Stream = self.rest
            && let Poll::Ready(piece) = self.stream.poll_data(&mut context)
        {
            match piece {
                Some(Ok(piece)) => self.kept.extend_from_slice(&piece),
                Some(Err(error)) => self.rest = Rest::Error(error),
                None => match self.stream.poll_trailers(&mut context) {
                    Poll::Ready(Ok(trailers)) => self.rest = Rest::End(trailers),
                    Poll::Ready(Err(error)) => self.rest = Rest::Error(error),
                    Poll::Pending => break,
                },
            }
        }
    }

    fn poll_frame(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, h2::Error>>> {
        let piece = if !self.kept.is_empty() {
            mem::take(&mut self.kept).freeze()
        } else {
            match mem::replace(&mut self.rest, Rest::Stream) {
                Rest::Stream => {}
                Rest::End(trailers) => {
                    self.rest = Rest::End(None);
                    return Poll::Ready(trailers.map(|trailers| Ok(Frame::trailers(trailers))));
                }
                Rest::Error(error) => return Poll::Ready(Some(Err(error))),
            }
            self.reader.clone_from(context.waker());
            match ready!(self.stream.poll_data(context)?) {
                Some(piece) => piece,
                None => {
                    let trailers = ready!(self.stream.poll_trailers(context)?);
                    return Poll::Ready(trailers.map(|trailers| Ok(Frame::trailers(trailers))));
                }
            }
        };
        // The server may send as much again.
        let _ = self.stream.flow_control().release_capacity(piece.len());
        Poll::Ready(Some(Ok(Frame::data(piece))))
    }

    fn has_ended(&self) -> bool {
        let is_behind = match &self.rest {
            Rest::Stream => self.stream.is_end_stream(),
            Rest::End(trailers) => trailers.is_none(),
            Rest::Error(_) => false,
        };
        self.kept.is_empty() && is_behind
    }
}

impl ReceivedBody {
    /// Returns the body on a stream, which has this length if it is known.
    pub(super) fn new(stream: RecvStream, length: Option<u64>, bodies: &ReceivedBodies) -> Self {
        let has_ended = stream.is_end_stream();
        let received =
            Received { stream, kept: BytesMut::new(), rest: Rest::Stream, reader: Waker::noop().clone() };
        let received = Arc::new(Mutex::new(received));
        if !has_ended {
            bodies.add(&received);
        }
        Self { received, left: length.or(has_ended.then_some(0)) }
    }

    /// Returns the next frame. Only END_STREAM ends the body (RFC 9113, section 8.1).
    pub fn poll_frame(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let frame = ready!(self.received.lock().poll_frame(context).map_err(behind_head)?);
        let received = frame.as_ref().and_then(Frame::data_ref).map_or(0, Bytes::len);
        self.left = self.left.map(|left| left.saturating_sub(received as u64));
        let trailers = frame.as_ref().and_then(Frame::trailers_ref);
        if trailers.is_some_and(|trailers| trailers.len() > FIELDS_MOST) {
            return Poll::Ready(Some(Err(malformed("too many trailers"))));
        }
        Poll::Ready(frame.map(Ok))
    }

    /// Returns true if all of the body has been taken.
    pub fn is_end_stream(&self) -> bool {
        self.received.lock().has_ended()
    }

    /// Returns the length of the rest, if it is known.
    pub fn size_hint(&self) -> SizeHint {
        self.left.map_or_else(SizeHint::default, SizeHint::with_exact)
    }
}

/// Returns the error of a response whose head has been received. HTTP/2 clients get its code if that says why the server gave up. With
/// others they would take the part that they have for the whole (NO_ERROR), or send the request again.
fn behind_head(error: h2::Error) -> BoxError {
    match error.reason() {
        Some(Reason::CANCEL | Reason::ENHANCE_YOUR_CALM) => error.into(),
        _ => format!("the server ended the response: {error}").into(),
    }
}
