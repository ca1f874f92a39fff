//! HTTP/2 connections to servers. Many requests share a connection, which has a task of its own.

use std::{
    borrow::Cow,
    future::poll_fn,
    iter,
    pin::{Pin, pin},
    sync::{Arc, atomic::Ordering::Relaxed},
    task::{Context, Poll, Waker, ready},
};

use bytes::Bytes;
use h2::{
    Reason, SendStream,
    client::{Builder, ResponseFuture, SendRequest},
};
use http_body::Body as HttpBody;
use hyper::{
    HeaderMap, Method, Request, Response, Uri, Version,
    header::{
        AUTHORIZATION, CONNECTION, CONTENT_LENGTH, CONTENT_RANGE, COOKIE, HOST, HeaderName, HeaderValue,
        IF_MATCH, IF_MODIFIED_SINCE, IF_NONE_MATCH, IF_RANGE, IF_UNMODIFIED_SINCE, TRANSFER_ENCODING,
        UPGRADE,
    },
    http::uri::{Authority, PathAndQuery, Scheme},
};
use percent_encoding::{AsciiSet, utf8_percent_encode};
use tokio::{
    sync::oneshot,
    time::{Instant, timeout_at},
};
use tokio_util::task::AbortOnDropHandle;
use tollgate_http1::{Stream as Io, head::FIELDS_MOST};
use tollgate_routing::{path::is_escape, template::NOT_IN_URLS};

use crate::config::ServerUrl;
use crate::forward::{
    Failure,
    body::{Body, Gathered},
    connector::CountedConnection,
    headers::is_metadata,
    hints::Hints,
    retry,
};

use super::{
    RESPONSE_BUFFER, Unanswered, discard,
    http1::malformed,
    observed::ObservedStream,
    received::ReceivedBody,
    streams::{AwaitedResponse, Blocked, CANCELLED_IN_ALL, Http2Handle, Http2Streams},
};

/// The receive window for all responses on a connection: the maximum (RFC 9113, section 6.9.1). With less, clients that don't read
/// their responses would block those of others.
const CONNECTION_WINDOW: u32 = (1 << 31) - 1;

/// The most bytes of a request body that h2 holds after the server has given credit for them.
const SEND_BUFFER: usize = 64 << 10;

/// A handle of an HTTP/2 connection to a server, for one request.
#[derive(Debug)]
pub(super) struct Http2 {
    sender: SendRequest<Bytes>,
    stream: Arc<Http2Handle>,
}

impl Http2 {
    /// Starts HTTP/2, and waits for the server's settings with the number of streams.
    pub(super) async fn begin(
        stream: impl Io,
        counted: CountedConnection,
        deadline: Instant,
    ) -> Result<Self, Failure> {
        let streams = Arc::new(Http2Streams::default());
        let (sender, connection) = Builder::new()
            .enable_push(false)
            .initial_max_send_streams(0)
            .max_header_list_size(RESPONSE_BUFFER as u32)
            .initial_window_size(RESPONSE_BUFFER as u32)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .max_send_buffer_size(SEND_BUFFER)
            // Late responses to all cancelled requests are ignored, for a second (RFC 9113, section 5.1).
            .max_concurrent_reset_streams(CANCELLED_IN_ALL)
            // The bound would count what comes later, and end the requests of others.
            .max_local_error_reset_streams(None)
            .handshake(ObservedStream::new(stream, streams.clone()))
            .await
            .map_err(Failure::broken)?;
        let shared = streams.clone();
        tokio::spawn(async move {
            let mut connection = pin!(connection);
            poll_fn(|context| {
                let ended = connection.as_mut().poll(context);
                shared.received.compact_if_due();
                ended.map(drop)
            })
            .await;
            shared.is_closed.store(true, Relaxed);
            shared.changed.notify_one();
        });
        let settled = async {
            while streams.most.load(Relaxed) == 0 && !streams.is_closed.load(Relaxed) {
                streams.changed.notified().await;
            }
        };
        timeout_at(deadline, settled).await.map_err(|_| Failure::ConnectTimeout)?;
        streams.lent.store(1, Relaxed);
        *streams.counted.lock() = counted;
        Ok(Self { sender, stream: Http2Handle::new(streams) })
    }

    /// Returns another handle, if the server allows one more stream.
    pub(super) fn share(&self) -> Option<Self> {
        let stream = self.stream.streams.lend()?;
        Some(Self { sender: self.sender.clone(), stream })
    }

    /// Returns the streams of the connection.
    pub(super) fn streams(&self) -> &Http2Streams {
        &self.stream.streams
    }

    /// Notes that the response has ended, so that the request doesn't count as cancelled.
    pub(super) fn end(&self) {
        self.stream.has_ended.store(true, Relaxed);
    }

    /// Returns true if a request can be sent.
    pub(super) fn is_ready(&mut self) -> bool {
        let accepts = self.sender.poll_ready(&mut Context::from_waker(Waker::noop()));
        !matches!(accepts, Poll::Ready(Err(_))) && !self.streams().is_suspect.load(Relaxed)
    }

    /// Sends a request, as [`super::UpstreamConnection::send`] does.
    pub(super) async fn send(
        &mut self,
        request: &mut Option<Request<Body>>,
        url: &ServerUrl,
    ) -> Result<Response<ReceivedBody>, Unanswered> {
        let streams = self.stream.streams.clone();
        streams.expect();
        let _awaited = AwaitedResponse::begin(&streams);
        if let Err(closed) = poll_fn(|context| self.sender.poll_ready(context)).await {
            return Err(self.unanswered(closed, true));
        }
        let mut sent = request.take().expect("a request is there as long as it may be sent");
        adapt(&mut sent, url);
        let copy = retry::copy(&sent);
        let (head, body) = sent.into_parts();
        let answered = match self.sender.send_request(Request::from_parts(head, ()), body.is_end_stream()) {
            Ok((response, stream)) => self.answer(response, stream, body).await,
            Err(unsent) => Err(unsent),
        };
        let answer = answered.map_err(|cause| {
            let is_safe = retry::was_refused(&cause);
            // A server that resets a request without refusing it may have processed it.
            *request = copy.filter(|_| is_safe || !cause.is_reset());
            self.unanswered(cause, is_safe)
        })?;
        if answer.headers().len() > FIELDS_MOST {
            let cause = malformed("the response has too many fields");
            return Err(Unanswered { cause, is_safe: false });
        }
        let length =
            answer.headers().get(CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse().ok());
        Ok(answer.map(|stream| ReceivedBody::new(stream, length, &streams.received)))
    }

    /// Waits for the response while the body is sent. The body is sent on if the response comes first.
    async fn answer(
        &self,
        response: ResponseFuture,
        stream: SendStream<Bytes>,
        body: Body,
    ) -> Result<Response<h2::RecvStream>, h2::Error> {
        let response = behind_hints(response, body.hints().cloned());
        if body.is_end_stream() {
            return response.await;
        }
        let mut upload = Box::pin(SendingBody {
            body: Gathered::new(body),
            stream,
            unsent: None,
            is_open: false,
            blocked: None,
            handle: self.stream.clone(),
        });
        // The connection's task opens the stream meanwhile.
        if poll_fn(|context| Poll::Ready(upload.as_mut().poll(context))).await.is_ready() {
            return response.await;
        }
        upload.is_open = true;
        let (has_response, response_came) = oneshot::channel();
        let mut upload = AbortOnDropHandle::new(tokio::spawn(async move {
            let rest = upload.await;
            if !rest.is_end_stream() && response_came.await.is_ok() {
                discard(rest);
            }
        }));
        let answered = response.await;
        if answered.is_ok() {
            let _ = has_response.send(());
            upload.detach();
        } else {
            // Without a response, the client's connection ends as soon as the body is dropped.
            upload.abort();
            let _ = (&mut upload).await;
        }
        answered
    }

    /// Returns the error of a request. If the server hasn't processed it, the connection is about to end, or the server would
    /// probably refuse the request again.
    fn unanswered(&self, cause: h2::Error, is_safe: bool) -> Unanswered {
        if is_safe {
            self.streams().is_suspect.store(true, Relaxed);
        }
        if cause.is_remote() && cause.is_reset() && cause.reason() == Some(Reason::ENHANCE_YOUR_CALM) {
            self.streams().retire_for_calm();
        }
        Unanswered { cause: cause.into(), is_safe }
    }
}

/// A request body that is being sent. Its request counts as a stream until then, even if the response ends earlier.
struct SendingBody {
    body: Gathered<Body>,
    stream: SendStream<Bytes>,
    /// The rest of a piece of the body that h2 hasn't got yet, and whether the piece is the last.
    unsent: Option<(Bytes, bool)>,
    /// False until the connection's task has opened the stream, before which h2 gives it no room.
    is_open: bool,
    blocked: Option<Blocked>,
    handle: Arc<Http2Handle>,
}

/// Ends with the rest of the body, if the server doesn't take all of it.
impl Future for SendingBody {
    type Output = Gathered<Body>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let sent = ready!(self.poll_send(context));
        // There is nobody to tell if the stream has ended: the response says how.
        drop(sent);
        Poll::Ready(std::mem::replace(&mut self.body, Gathered::new(Body::Whole(None))))
    }
}

impl SendingBody {
    /// Resets the stream. The server counts it as cancelled, too.
    fn cancel(&mut self) {
        self.handle.has_ended.store(false, Relaxed);
        self.stream.send_reset(Reason::CANCEL);
    }

    /// Sends the rest of a piece as far as the server gives room for it, so that it has given room for the whole body when that has been
    /// sent. Returns true if nothing is to be sent any more.
    fn poll_rest(&mut self, context: &mut Context<'_>) -> Poll<Result<bool, h2::Error>> {
        while let Some((piece, is_last)) = &mut self.unsent {
            let room = self.stream.capacity();
            if room > 0 || piece.is_empty() {
                let part = piece.split_to(room.min(piece.len()));
                let (is_whole, is_last) = (piece.is_empty(), *is_last);
                self.blocked = None;
                self.stream.send_data(part, is_whole && is_last)?;
                if is_whole {
                    self.unsent = None;
                    if is_last {
                        return Poll::Ready(Ok(true));
                    }
                }
                continue;
            }
            let Poll::Ready(room) = self.stream.poll_capacity(context) else {
                if !self.is_open {
                    return Poll::Pending;
                }
                let blocked = self.blocked.get_or_insert_with(|| Blocked::begin(&self.handle.streams));
                ready!(blocked.poll_useless(&self.handle, context));
                self.cancel();
                return Poll::Ready(Ok(true));
            };
            let Some(room) = room else { return Poll::Ready(Ok(true)) };
            room?;
        }
        Poll::Ready(Ok(false))
    }

    fn poll_send(&mut self, context: &mut Context<'_>) -> Poll<Result<(), h2::Error>> {
        loop {
            if self.stream.poll_reset(context).is_ready() {
                return Poll::Ready(Ok(()));
            }
            if ready!(self.poll_rest(context))? {
                return Poll::Ready(Ok(()));
            }
            let Some(frame) = ready!(Pin::new(&mut self.body).poll_frame(context)) else {
                return Poll::Ready(self.stream.send_data(Bytes::new(), true));
            };
            let Ok(frame) = frame else {
                self.cancel();
                return Poll::Ready(Ok(()));
            };
            match frame.into_data() {
                Ok(piece) => {
                    self.stream.reserve_capacity(piece.len());
                    self.unsent = Some((piece, self.body.is_end_stream()));
                }
                // nginx and gRPC for Go end the connection for trailers, and Go if it has answered before they come.
                Err(_trailers) if !self.handle.streams.keep_for_one() => {
                    return Poll::Ready(self.stream.send_data(Bytes::new(), true));
                }
                Err(frame) => {
                    self.stream.reserve_capacity(0);
                    return Poll::Ready(self.stream.send_trailers(frame.into_trailers().unwrap_or_default()));
                }
            }
        }
    }
}

/// Waits for a response, and forwards the interim ones before it.
async fn behind_hints(
    mut response: ResponseFuture,
    hints: Option<Hints>,
) -> Result<Response<h2::RecvStream>, h2::Error> {
    if let Some(hints) = hints {
        while let Some(Ok(hint)) = poll_fn(|context| response.poll_informational(context)).await {
            hints.forward(hint.map(|()| None));
        }
    }
    response.await
}

/// Puts a request into the form of HTTP/2, with the host in the target (RFC 9113, section 8.3.1).
fn adapt(request: &mut Request<Body>, url: &ServerUrl) {
    *request.version_mut() = Version::HTTP_2;
    let is_bodiless = matches!(*request.method(), Method::GET | Method::HEAD | Method::DELETE);
    let length = request.body().size_hint().exact().filter(|length| *length > 0 || !is_bodiless);
    if let Some(length) = length {
        request.headers_mut().entry(CONTENT_LENGTH).or_insert(length.into());
    }
    if request.uri().authority().is_some() {
        return;
    }
    // Fields of HTTP/1.1 connections (section 8.2.2), and of upgrades to HTTP/2 (RFC 7540, section 3.2.1).
    const HTTP2_SETTINGS: HeaderName = HeaderName::from_static("http2-settings");
    for name in [TRANSFER_ENCODING, CONNECTION, UPGRADE, HTTP2_SETTINGS] {
        request.headers_mut().remove(name);
    }
    remove_empty(request.headers_mut());
    join_metadata(request.headers_mut());
    let host = request.headers_mut().remove(HOST);
    let named = host.and_then(|host| without_invalid_port(Authority::from_maybe_shared(host).ok()?));
    let mut parts = std::mem::take(request.uri_mut()).into_parts();
    parts.scheme = Some(if url.is_tls() { Scheme::HTTPS } else { Scheme::HTTP });
    parts.authority = named.or_else(|| url.authority().parse().ok());
    // It may be too long then, where `max_header_bytes` allows a target of 64 KiB.
    if let Some(encoded) = parts.path_and_query.as_ref().and_then(encoded_target)
        && let Ok(encoded) = encoded.try_into()
    {
        parts.path_and_query = Some(encoded);
    }
    *request.uri_mut() = Uri::from_parts(parts).unwrap_or_default();
}

/// Removes empty fields for which servers end the connection. Hypercorn joins cookies, so an empty one makes the value invalid. nginx
/// rejects a request that repeats one of `ONCE`, but reads on, and ends the connection at an empty field.
fn remove_empty(headers: &mut HeaderMap) {
    const ONCE: [HeaderName; 7] = [
        AUTHORIZATION,
        CONTENT_RANGE,
        IF_MATCH,
        IF_MODIFIED_SINCE,
        IF_NONE_MATCH,
        IF_RANGE,
        IF_UNMODIFIED_SINCE,
    ];
    if !headers.values().any(HeaderValue::is_empty) {
        return;
    }
    let is_repeated = ONCE.iter().any(|name| headers.get_all(name).iter().nth(1).is_some());
    let mut last = None;
    for (name, value) in std::mem::take(headers) {
        last = name.or(last);
        if let Some(name) = &last
            && !(value.is_empty() && (is_repeated || name == COOKIE))
        {
            headers.append(name.clone(), value);
        }
    }
}

/// Removes white space around the values of binary metadata, which gRPC for Java takes for invalid base64. Browsers and Node.js join lines with
/// a space.
fn join_metadata(headers: &mut HeaderMap) {
    for (name, value) in headers {
        if is_metadata(name) && value.as_bytes().iter().any(u8::is_ascii_whitespace) {
            let joined: Vec<u8> =
                value.as_bytes().iter().copied().filter(|byte| !byte.is_ascii_whitespace()).collect();
            *value = HeaderValue::from_bytes(&joined).expect("a part of a value is one");
        }
    }
}

/// Returns an authority without a port that is empty or that no server has. Jetty 12 ends an HTTP/2 connection for it.
fn without_invalid_port(authority: Authority) -> Option<Authority> {
    let host = authority.host();
    match authority.port_u16() {
        None | Some(0) if host.len() < authority.as_str().len() => host.parse().ok(),
        _ => Some(authority),
    }
}

/// Characters that no target has, but that browsers and others send.
const NOT_IN_TARGETS: &AsciiSet = &NOT_IN_URLS.add(b'[').add(b']');
/// The most bytes of a target with escapes, unless it has grown by few. nginx ends a connection for a field that doesn't fit into 8 KiB.
const MOST_ENCODED: usize = 7 << 10;
/// The most bytes by which a longer one may have grown.
const MOST_ESCAPES: usize = 1 << 10;

/// Returns true if a target that is percent-encoded for HTTP/2 servers has at most [`MOST_ENCODED`] bytes, or at most [`MOST_ESCAPES`] more
/// than the one sent.
pub(crate) fn can_be_encoded(target: &PathAndQuery) -> bool {
    let sent = target.as_str().len();
    // No target has more (`PathAndQuery`).
    let longest = usize::from(u16::MAX) - 1;
    let is_fine = |encoded: String| encoded.len() <= longest.min(MOST_ENCODED.max(sent + MOST_ESCAPES));
    // An escape takes three bytes.
    sent <= MOST_ENCODED / 3 || encoded_target(target).is_none_or(is_fine)
}

/// Returns a target with escapes for what no URI has: some characters of ASCII, all others, and each `%` that begins no escape. `None`
/// if it has none of these. Servers end an HTTP/2 connection for them: Hypercorn for a letter, Undertow and older versions of Jetty for
/// a `%`, Pekko, Helidon and Undertow for the characters of ASCII.
fn encoded_target(target: &PathAndQuery) -> Option<String> {
    let mut parts = target.as_str().split('%');
    let first = ("", parts.next().unwrap_or_default());
    let behind = parts.map(|part| (if is_escape(part.as_bytes()) { "%" } else { "%25" }, part));
    let encoded = iter::once(first)
        .chain(behind)
        .map(|(percent, part)| (percent, Cow::from(utf8_percent_encode(part, NOT_IN_TARGETS))));
    // A text of one such byte would be borrowed, too, but the first begins with a slash or a question mark, and each other with digits.
    let is_as_sent =
        |(percent, part): (&str, Cow<'_, str>)| percent != "%25" && matches!(part, Cow::Borrowed(_));
    if encoded.clone().all(is_as_sent) {
        return None;
    }
    Some(encoded.flat_map(|(percent, part)| [percent.into(), part]).collect())
}
