//! Connections to servers, and sending a request on one.

mod http1;
mod observed;
mod streams;

use std::sync::{Arc, atomic::Ordering::Relaxed};

use http_body::Body as _;
use hyper::{
    Request, Response, Uri, Version,
    body::Incoming,
    client::conn::http2,
    header::{CONNECTION, HOST, HeaderValue, TE, TRANSFER_ENCODING},
    http::uri::{Authority, Scheme},
};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::time::{Instant, timeout_at};

use crate::config::ServerUrl;
use tollgate_http1::{Ahead, Stream as Io, head::FIELDS_MOST};

pub(crate) use self::http1::Http1;

use self::{
    observed::{FrameScanner, ObservedStream},
    streams::{Awaited, CANCELLED_IN_ALL, Http2Handle, Http2Streams, StreamBody},
};

use super::{
    Failure,
    address::Address,
    body::{Body, BoxError},
    connector::CountedConnection,
    retry,
    timer::Timer,
};

/// The most bytes that are buffered of a response. Its head must fit.
const RESPONSE_BUFFER: usize = 128 << 10;
/// The receive window for all responses on an HTTP/2 connection: the maximum (RFC 9113, section 6.9.1). With less, clients that
/// don't read their responses would block those of others.
const CONNECTION_WINDOW: u32 = (1 << 31) - 1;

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
    Http2 { sender: http2::SendRequest<StreamBody>, stream: Arc<Http2Handle> },
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
        if http2 {
            // Boxed, so that HTTP/1.1 connections don't reserve its memory.
            return Box::pin(Self::begin_http2(stream, address, counted, deadline)).await;
        }
        Ok(Self {
            sender: Sender::Http1(Box::new(Http1::new(stream, counted))),
            address,
            timer: Timer::default(),
        })
    }

    /// Starts HTTP/2, and waits for the server's settings with the number of streams.
    async fn begin_http2(
        stream: impl Io,
        address: Option<Arc<Address>>,
        counted: CountedConnection,
        deadline: Instant,
    ) -> Result<Self, Failure> {
        let streams = Arc::new(Http2Streams::default());
        let (read, mut frames) = (streams.clone(), FrameScanner::default());
        let listener = move |bytes: &[u8]| {
            *read.silent_since.lock() = None;
            let heads = frames.scan(bytes);
            read.note_most(frames.streams_most());
            read.note_heads(heads)
        };
        let io = TokioIo::new(ObservedStream::new(stream, listener));
        let mut builder = http2::Builder::new(TokioExecutor::new());
        builder
            .initial_max_send_streams(0)
            .max_header_list_size(RESPONSE_BUFFER as u32)
            .initial_stream_window_size(RESPONSE_BUFFER as u32)
            .initial_connection_window_size(CONNECTION_WINDOW)
            // Late responses to all cancelled requests are ignored, for a second (RFC 9113, section 5.1).
            .max_concurrent_reset_streams(CANCELLED_IN_ALL)
            // The bound would count what comes later, and end the requests of others.
            .max_local_error_reset_streams(None);
        let (sender, connection) = builder.handshake(io).await.map_err(Failure::broken)?;
        let shared = streams.clone();
        tokio::spawn(async move {
            drop(connection.await);
            shared.changed.notify_one();
        });
        let settled = async {
            while streams.most.load(Relaxed) == 0 && !sender.is_closed() {
                streams.changed.notified().await;
            }
        };
        timeout_at(deadline, settled).await.map_err(|_| Failure::ConnectTimeout)?;
        streams.lent.store(1, Relaxed);
        *streams.counted.lock() = counted;
        Ok(Self {
            sender: Sender::Http2 { sender, stream: Http2Handle::new(streams) },
            address,
            timer: Timer::default(),
        })
    }

    /// Returns another handle of the connection, if the server allows one more stream.
    pub fn share(&self) -> Option<Self> {
        let Sender::Http2 { sender, stream } = &self.sender else { return None };
        let sender = Sender::Http2 { sender: sender.clone(), stream: stream.streams.lend()? };
        Some(Self { sender, address: self.address.clone(), timer: Timer::default() })
    }

    /// Returns true if this is an HTTP/2 connection, which can be shared.
    pub fn is_http2(&self) -> bool {
        matches!(self.sender, Sender::Http2 { .. })
    }

    /// Notes that the response has ended, so that the request doesn't count as cancelled.
    pub fn end(&self) {
        if let Sender::Http2 { stream, .. } = &self.sender {
            stream.has_ended.store(true, Relaxed);
        }
    }

    /// Returns true if there is no other handle.
    pub fn is_idle(&self) -> bool {
        match &self.sender {
            Sender::Http1(_) => true,
            Sender::Http2 { stream, .. } => stream.streams.lent.load(Relaxed) <= 1,
        }
    }

    /// Sends a request and returns the head of the response. The body is the HTTP/2 body, or is read from
    /// [`Self::http1`].
    ///
    /// # Errors
    /// The connection or the request failed before the response. The request is left in its place if it can be sent again, because it
    /// has no body or wasn't sent, unless an HTTP/2 server has reset it. The error says if that is safe.
    pub async fn send(
        &mut self,
        request: &mut Option<Request<Body>>,
        url: &ServerUrl,
    ) -> Result<Response<Option<Incoming>>, Unanswered> {
        let there = request.as_mut().expect("a request is there as long as it may be sent");
        match &mut self.sender {
            Sender::Http1(http1) => {
                for_http1(there);
                let has_body = !there.body().is_end_stream();
                let answered = http1.send(there).await;
                if has_body || answered.is_ok() {
                    *request = None;
                }
                let is_safe = !http1.has_sent();
                answered.map(|head| head.map(|()| None)).map_err(|cause| Unanswered { cause, is_safe })
            }
            Sender::Http2 { sender, stream } => {
                stream.streams.expect();
                let _awaited = Awaited::begin(&stream.streams);
                for_http2(there, url);
                let copy = retry::copy(there);
                let counted = |body| StreamBody { body, _stream: stream.clone() };
                let sent =
                    request.take().into_iter().map(|request| sender.try_send_request(request.map(counted)));
                let answered = sent.last().expect("it was there").await;
                if answered.as_ref().is_ok_and(|answer| answer.headers().len() > FIELDS_MOST) {
                    let cause = http1::malformed("the response has too many fields");
                    return Err(Unanswered { cause, is_safe: false });
                }
                answered.map(|answer| answer.map(Some)).map_err(|mut unsent| {
                    let given_back = unsent.take_message().map(|request| request.map(|counted| counted.body));
                    let cause = unsent.into_error();
                    let is_safe = given_back.is_some() || retry::was_refused(&cause);
                    if is_safe {
                        // The connection is about to end, or the server would probably refuse the request again.
                        stream.streams.is_suspect.store(true, Relaxed);
                    }
                    // A server that resets a request without refusing it may have processed it.
                    let copy = copy.filter(|_| is_safe || !retry::was_reset(&cause));
                    *request = given_back.or(copy);
                    Unanswered { cause: cause.into(), is_safe }
                })
            }
        }
    }

    /// Returns the HTTP/1.1 connection, if it is one.
    pub(super) fn http1(&self) -> Option<&Http1> {
        match &self.sender {
            Sender::Http1(http1) => Some(http1),
            Sender::Http2 { .. } => None,
        }
    }

    /// Returns the HTTP/1.1 connection for reading, if it is one.
    pub(super) fn http1_mut(&mut self) -> Option<&mut Http1> {
        match &mut self.sender {
            Sender::Http1(http1) => Some(http1),
            Sender::Http2 { .. } => None,
        }
    }

    /// Returns the byte stream for another protocol, and the value that counts the connection. `None` for
    /// HTTP/2.
    pub(super) fn into_stream(self) -> Option<(Ahead<Box<dyn Io>>, CountedConnection)> {
        match self.sender {
            Sender::Http1(http1) => Some(http1.into_stream()),
            Sender::Http2 { .. } => None,
        }
    }

    /// Returns true if the server has sent anything since the request was sent. Always false with HTTP/2,
    /// where it isn't known.
    pub fn has_received(&self) -> bool {
        match &self.sender {
            Sender::Http1(http1) => http1.has_received(),
            Sender::Http2 { .. } => false,
        }
    }

    /// Sends no more requests on an HTTP/2 connection whose response was late.
    pub fn suspect(&self) {
        if let Sender::Http2 { stream, .. } = &self.sender {
            stream.streams.is_suspect.store(true, Relaxed);
        }
    }

    /// Returns true if a request can be sent now and the address still belongs to the server.
    pub fn is_ready(&self) -> bool {
        let is_ready = match &self.sender {
            Sender::Http1(http1) => http1.is_ready(),
            Sender::Http2 { sender, stream } => sender.is_ready() && !stream.streams.is_suspect.load(Relaxed),
        };
        is_ready && !self.address.as_ref().is_some_and(|address| address.is_gone())
    }

    /// Returns true if the server has neither closed an idle connection nor sent anything on it.
    pub fn is_open(&mut self) -> bool {
        match &mut self.sender {
            Sender::Http1(http1) => http1.is_quiet(),
            Sender::Http2 { .. } => true,
        }
    }

    /// Returns true if the server may still send a body that the response doesn't have.
    pub fn omits_body(&self) -> bool {
        matches!(&self.sender, Sender::Http1(http1) if http1.omits_body())
    }

    /// Returns true if no request can be sent any more.
    pub fn is_closed(&self) -> bool {
        match &self.sender {
            Sender::Http1(http1) => http1.is_closed(),
            Sender::Http2 { sender, .. } => sender.is_closed(),
        }
    }

    /// Waits until another request can be sent, or fails.
    pub async fn ready(&mut self) -> Result<(), BoxError> {
        match &mut self.sender {
            Sender::Http1(http1) => http1.ready().await,
            Sender::Http2 { sender, .. } => Ok(sender.ready().await?),
        }
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

/// Puts a request into the form of HTTP/2, with the host in the target (RFC 9113, section 8.3.1).
fn for_http2(request: &mut Request<Body>, url: &ServerUrl) {
    *request.version_mut() = Version::HTTP_2;
    if request.uri().authority().is_some() {
        return;
    }
    request.headers_mut().remove(TRANSFER_ENCODING);
    request.headers_mut().remove(CONNECTION);
    let host = request.headers_mut().remove(HOST);
    let named = host.and_then(|host| Authority::from_maybe_shared(host).ok());
    let mut parts = std::mem::take(request.uri_mut()).into_parts();
    parts.scheme = Some(if url.is_tls() { Scheme::HTTPS } else { Scheme::HTTP });
    parts.authority = named.or_else(|| url.authority().parse().ok());
    *request.uri_mut() = Uri::from_parts(parts).unwrap_or_default();
}
