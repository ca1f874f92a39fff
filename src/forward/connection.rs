//! Connections to servers, and sending a request on one.

mod http1;
mod http2;
mod observed;
mod received;
mod streams;

use std::{
    future::poll_fn,
    pin::pin,
    sync::{Arc, atomic::Ordering::Relaxed},
    time::Duration,
};

use bytes::Bytes;
use http_body::Body as HttpBody;
use hyper::{
    Request, Response, Uri,
    header::{CONNECTION, HOST, HeaderValue, TE},
};
use tokio::time::{Instant, timeout};

use crate::config::ServerUrl;
use tollgate_http1::{Ahead, Stream as Io};

use self::http2::Http2;
pub(crate) use self::{http1::Http1, http2::can_be_encoded, received::ReceivedBody};

use super::{
    Failure,
    address::Address,
    body::{Body, BoxError},
    connector::CountedConnection,
    timer::Timer,
};

/// The most bytes that are buffered of a response. Its head must fit.
const RESPONSE_BUFFER: usize = 128 << 10;
/// The time in which the rest of a body that a server doesn't take must arrive. Its client's connection is closed then.
const DISCARD_WITHIN: Duration = Duration::from_secs(5);

/// A connection to a server. With HTTP/2, one of several handles.
#[derive(Debug)]
pub struct UpstreamConnection {
    sender: Sender,
    /// The address. `None` for a unix socket.
    address: Option<Arc<Address>>,
    /// The timer for the pending response.
    pub(super) timer: Timer,
}

#[derive(Debug)]
enum Sender {
    Http1(Box<Http1>),
    Http2(Http2),
}

impl UpstreamConnection {
    /// Starts HTTP on a byte stream.
    pub(super) async fn begin(
        stream: impl Io,
        http2: bool,
        address: Option<Arc<Address>>,
        counted: CountedConnection,
        deadline: Instant,
    ) -> Result<Self, Failure> {
        let sender = match http2 {
            // Boxed, so that HTTP/1.1 connections don't reserve its memory.
            true => Sender::Http2(Box::pin(Http2::begin(stream, counted, deadline)).await?),
            false => Sender::Http1(Box::new(Http1::new(stream, counted))),
        };
        Ok(Self { sender, address, timer: Timer::default() })
    }

    /// Returns another handle of the connection, if the server allows one more stream.
    pub fn share(&self) -> Option<Self> {
        let Sender::Http2(http2) = &self.sender else { return None };
        Some(Self {
            sender: Sender::Http2(http2.share()?),
            address: self.address.clone(),
            timer: Timer::default(),
        })
    }

    /// Returns true if this is an HTTP/2 connection, which can be shared.
    pub fn is_http2(&self) -> bool {
        matches!(self.sender, Sender::Http2(_))
    }

    /// Notes that the response has ended, so that the request doesn't count as cancelled.
    pub fn end(&self) {
        if let Sender::Http2(http2) = &self.sender {
            http2.end();
        }
    }

    /// Returns true if there is no other handle.
    pub fn is_idle(&self) -> bool {
        match &self.sender {
            Sender::Http1(_) => true,
            Sender::Http2(http2) => http2.streams().lent.load(Relaxed) <= 1,
        }
    }

    /// Sends a request and returns the head of the response. The body is the HTTP/2 body, or is read from
    /// [`Self::http1`].
    ///
    /// # Errors
    /// The connection or the request failed before the response. The request is left in its place if it could be sent again: it has no
    /// body or, with HTTP/2, the connection was closed before it was sent. It isn't left where an HTTP/2 server has reset it without
    /// refusing it. `is_safe` says whether the server can't have processed it.
    pub async fn send(
        &mut self,
        request: &mut Option<Request<Body>>,
        url: &ServerUrl,
    ) -> Result<Response<Option<ReceivedBody>>, Unanswered> {
        match &mut self.sender {
            Sender::Http1(http1) => {
                let there = request.as_mut().expect("a request is there as long as it may be sent");
                for_http1(there);
                let has_body = !there.body().is_end_stream();
                let answered = http1.send(there).await;
                if has_body || answered.is_ok() {
                    *request = None;
                }
                let is_safe = !http1.has_sent();
                answered.map(|head| head.map(|()| None)).map_err(|cause| Unanswered { cause, is_safe })
            }
            Sender::Http2(http2) => Ok(http2.send(request, url).await?.map(Some)),
        }
    }

    /// Returns the HTTP/1.1 connection, if it is one.
    pub(super) fn http1(&self) -> Option<&Http1> {
        match &self.sender {
            Sender::Http1(http1) => Some(http1),
            Sender::Http2(_) => None,
        }
    }

    /// Returns the HTTP/1.1 connection for reading, if it is one.
    pub(super) fn http1_mut(&mut self) -> Option<&mut Http1> {
        match &mut self.sender {
            Sender::Http1(http1) => Some(http1),
            Sender::Http2(_) => None,
        }
    }

    /// Returns the byte stream for another protocol, and the value that counts the connection. `None` for
    /// HTTP/2.
    pub(super) fn into_stream(self) -> Option<(Ahead<Box<dyn Io>>, CountedConnection)> {
        match self.sender {
            Sender::Http1(http1) => Some(http1.into_stream()),
            Sender::Http2(_) => None,
        }
    }

    /// Returns true if the server has sent anything since the request was sent. Always false with HTTP/2,
    /// where it isn't known.
    pub fn has_received(&self) -> bool {
        match &self.sender {
            Sender::Http1(http1) => http1.has_received(),
            Sender::Http2(_) => false,
        }
    }

    /// Sends no more requests on an HTTP/2 connection whose response was late.
    pub fn suspect(&self) {
        if let Sender::Http2(http2) = &self.sender {
            http2.streams().is_suspect.store(true, Relaxed);
        }
    }

    /// Returns true if a request can be sent now and the address still belongs to the server.
    pub fn is_ready(&mut self) -> bool {
        let is_ready = match &mut self.sender {
            Sender::Http1(http1) => http1.is_ready(),
            Sender::Http2(http2) => http2.is_ready(),
        };
        is_ready && !self.address.as_ref().is_some_and(|address| address.is_gone())
    }

    /// Returns true if the server has neither closed an idle connection nor sent anything on it.
    pub fn is_open(&mut self) -> bool {
        match &mut self.sender {
            Sender::Http1(http1) => http1.is_quiet(),
            Sender::Http2(_) => true,
        }
    }

    /// Returns true if the server may still send a body that the response doesn't have.
    pub fn omits_body(&self) -> bool {
        matches!(&self.sender, Sender::Http1(http1) if http1.omits_body())
    }
}

/// The error of a request without a response.
#[derive(Debug)]
pub struct Unanswered {
    /// The error of the connection, or of the request body.
    pub cause: BoxError,
    /// True if the server hasn't processed the request.
    pub is_safe: bool,
}

/// Puts a request into the form of HTTP/1.1.
fn for_http1(request: &mut Request<Body>) {
    if let Some(authority) = request.uri().authority() {
        // The request was prepared for HTTP/2.
        let host = HeaderValue::from_str(authority.as_str()).expect("an authority is visible ASCII");
        request.headers_mut().insert(HOST, host);
        let path = request.uri().path_and_query().cloned();
        *request.uri_mut() = path.map(Uri::from).unwrap_or_default();
    }
    if request.headers().contains_key(TE) {
        // TE is for the next server only (RFC 9110, section 10.1.4).
        request.headers_mut().insert(CONNECTION, HeaderValue::from_static("TE"));
    }
}

/// Has the rest of a body read that the server of a response doesn't take, so that the client's connection serves on.
fn discard(body: impl HttpBody<Data = Bytes> + Send + 'static) {
    tokio::spawn(timeout(DISCARD_WITHIN, async move {
        let mut body = pin!(body);
        while let Some(Ok(_)) = poll_fn(|context| body.as_mut().poll_frame(context)).await {}
    }));
}
