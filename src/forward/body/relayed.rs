//! An upstream's response body, which holds the connection that it is received on.

use std::{
    future::poll_fn,
    mem,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use bytes::Bytes;
use http_body::{Frame, SizeHint};
use parking_lot::Mutex;
use tokio::{task::AbortHandle, time::Sleep};
use tollgate_http1::head::Spelt;

use crate::forward::{
    Failure,
    connection::{Http1, ReceivedBody},
    headers,
    pool::LentConnection,
};

use super::{BoxError, Progress, with_trailers};

/// An upstream's response body, with the connection that it is received on.
#[derive(Debug)]
pub struct Relayed {
    /// The body over HTTP/2. Over HTTP/1.1, it is read from the connection.
    received: Option<ReceivedBody>,
    connection: ResponseConnection,
    /// The spelling of the response's header names.
    pub(super) spelling: Spelt,
    /// The progress of the client's body, to be updated when bytes of the response arrive in a stream.
    pub(super) upload: Option<Arc<Progress>>,
    /// Fires at the end of the route's timeout.
    pub(super) timer: Option<Pin<Box<Sleep>>>,
}

/// The connection that a response is received on.
#[derive(Debug)]
enum ResponseConnection {
    Lent(LentConnection),
    /// The request isn't sent completely yet.
    Duplex(Duplex),
    /// The connection has been returned to the pool.
    Nothing,
}

/// A connection on which the response arrives while the rest of the request is being sent. A task of its own
/// sends it, since a client may read nothing of the response before it has sent everything.
#[derive(Debug)]
struct Duplex {
    lent: Arc<Mutex<Option<LentConnection>>>,
    upload: AbortHandle,
}

impl Duplex {
    fn begin(lent: LentConnection) -> Self {
        let lent = Arc::new(Mutex::new(Some(lent)));
        let shared = lent.clone();
        let upload =
            poll_fn(move |context| match shared.lock().as_mut().and_then(LentConnection::http1_mut) {
                Some(http1) => http1.poll_rest(context),
                None => Poll::Ready(()),
            });
        Self { lent, upload: tokio::spawn(upload).abort_handle() }
    }
}

impl Drop for Duplex {
    fn drop(&mut self) {
        self.upload.abort();
    }
}

impl ResponseConnection {
    /// Reads from the HTTP/1.1 connection. `None` if it isn't one.
    fn with<T>(&self, read: impl FnOnce(&Http1) -> T) -> Option<T> {
        match self {
            Self::Lent(lent) => lent.http1().map(read),
            Self::Duplex(duplex) => duplex.lent.lock().as_ref().and_then(LentConnection::http1).map(read),
            Self::Nothing => None,
        }
    }

    /// Reads from the HTTP/1.1 connection and may change it. `None` if it isn't one.
    fn with_mut<T>(&mut self, read: impl FnOnce(&mut Http1) -> T) -> Option<T> {
        match self {
            Self::Lent(lent) => lent.http1_mut().map(read),
            Self::Duplex(duplex) => duplex.lent.lock().as_mut().and_then(LentConnection::http1_mut).map(read),
            Self::Nothing => None,
        }
    }

    fn take(&mut self) -> Option<LentConnection> {
        match mem::replace(self, Self::Nothing) {
            Self::Lent(lent) => Some(lent),
            Self::Duplex(duplex) => duplex.lent.lock().take(),
            Self::Nothing => None,
        }
    }
}

impl Relayed {
    /// Returns the body of a response. It holds the connection until the body ends. If it is dropped earlier,
    /// the connection is closed.
    pub fn new(received: Option<ReceivedBody>, mut lent: LentConnection) -> Self {
        let spelling = lent.http1_mut().and_then(Http1::take_spelling);
        let connection = match lent.http1().is_none_or(Http1::is_sent) {
            true => ResponseConnection::Lent(lent),
            false => ResponseConnection::Duplex(Duplex::begin(lent)),
        };
        let mut relayed = Self { received, connection, spelling, upload: None, timer: None };
        relayed.release_at_end();
        relayed
    }

    pub(super) fn poll_frame(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let is_late = self.timer.as_mut().is_some_and(|timer| timer.as_mut().poll(context).is_ready());
        let frame = match is_late {
            true => Poll::Ready(Some(Err(Failure::ExchangeTimeout.into()))),
            false => {
                self.poll_next(context).map_ok(|frame| with_trailers(frame, headers::trailers_towards_client))
            }
        };
        match &frame {
            Poll::Ready(Some(Ok(_))) => {
                self.upload.iter().for_each(|upload| upload.note_answer());
                self.release_at_end();
            }
            Poll::Ready(None) => self.release(),
            // A body that failed closes its connection when it is dropped.
            Poll::Ready(Some(Err(_))) | Poll::Pending => {}
        }
        frame
    }

    fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        match &mut self.received {
            Some(received) => received.poll_frame(context),
            None => self.connection.with_mut(|http1| http1.poll_frame(context)).unwrap_or(Poll::Ready(None)),
        }
    }

    pub(super) fn is_end_stream(&self) -> bool {
        match &self.received {
            Some(received) => received.is_end_stream(),
            None => self.connection.with(Http1::has_ended).unwrap_or(true),
        }
    }

    pub(super) fn size_hint(&self) -> SizeHint {
        match &self.received {
            Some(received) => received.size_hint(),
            None => self.connection.with(Http1::size_hint).unwrap_or(SizeHint::with_exact(0)),
        }
    }

    fn release_at_end(&mut self) {
        if self.is_end_stream() {
            self.release();
        }
    }

    fn release(&mut self) {
        if let Some(lent) = self.connection.take() {
            lent.release();
        }
    }
}
