//! One stream of the aggregated discovery service, over an HTTP/2 connection of its own.

use std::{io, time::Duration};

use bytes::{Buf, Bytes, BytesMut};
use futures_util::stream;
use http_body::Frame;
use http_body_util::{BodyExt, StreamBody, combinators::UnsyncBoxBody};
use hyper::{
    HeaderMap, Request, Response, StatusCode,
    body::Incoming,
    client::conn::http2,
    header::{CONTENT_TYPE, TE},
};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use prost::Message;
use tokio::{sync::mpsc, time::timeout};
use tokio_util::task::AbortOnDropHandle;

use crate::{
    config::{ServerUrl, XdsSettings},
    decisions::grpc::{self, PREFIX_BYTES},
    outbound::{connect, with_causes},
};

use super::messages::{ClientNode, DiscoveryRequest, DiscoveryResponse, RULES, RejectionStatus};

const METHOD: &str = "/envoy.service.discovery.v3.AggregatedDiscoveryService/StreamAggregatedResources";
/// The most bytes of a response, the most that gRPC in Go accepts by default.
const RESPONSE_MOST: usize = 4 << 20;
/// The most bytes of the reason of a rejection.
const REASON_MOST: usize = 4 << 10;
/// The time limit for connecting.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// The interval of pings, and the time limit for their answers. A server may have nothing to send for days.
const PING_EVERY: Duration = Duration::from_secs(30);
const PING_TIMEOUT: Duration = Duration::from_secs(20);
/// The code of a rejection: an invalid argument.
const INVALID_ARGUMENT: i32 = 3;
/// The most requests that wait to be sent. There is one for each response.
const REQUESTS_MOST: usize = 4;

/// The frames of the requests.
type RequestFrames = UnsyncBoxBody<Bytes, io::Error>;

/// A stream that is open.
pub(super) struct Stream {
    requests: mpsc::Sender<Bytes>,
    state: StreamState,
    received: BytesMut,
    _connection: AbortOnDropHandle<()>,
}

/// The progress of a stream's response.
enum StreamState {
    /// The server hasn't answered yet, which it may do with its first message only.
    Asked(AbortOnDropHandle<hyper::Result<Response<Incoming>>>),
    /// Messages arrive.
    Answered(Incoming),
}

impl Stream {
    /// Connects to the server and opens a stream.
    ///
    /// # Errors
    /// The server can't be reached in time.
    pub(super) async fn open(settings: &XdsSettings) -> Result<Self, String> {
        let connecting = timeout(CONNECT_TIMEOUT, connect(&settings.url, settings.tls.as_ref(), b"h2"));
        let io = connecting.await.map_err(|_| "the server can't be reached in time".to_owned())?;
        let io = io.map_err(|error| error.to_string())?;
        let mut http = http2::Builder::new(TokioExecutor::new());
        http.timer(TokioTimer::new()).keep_alive_interval(PING_EVERY).keep_alive_timeout(PING_TIMEOUT);
        http.keep_alive_while_idle(true);
        let handshake = timeout(CONNECT_TIMEOUT, http.handshake(TokioIo::new(io)));
        let handshake = handshake.await.map_err(|_| "the server doesn't speak HTTP/2".to_owned())?;
        let (mut sender, connection) = handshake.map_err(|error| with_causes(&error))?;
        let connection = AbortOnDropHandle::new(tokio::spawn(async {
            // The stream reports it, too.
            drop(connection.await);
        }));
        let (requests, queue) = mpsc::channel(REQUESTS_MOST);
        let request = request(&settings.url, queue)?;
        let response = tokio::spawn(async move { sender.send_request(request).await });
        let state = StreamState::Asked(AbortOnDropHandle::new(response));
        Ok(Self { requests, state, received: BytesMut::new(), _connection: connection })
    }

    /// Asks for all rules. It states no version, so that the server sends them in any case: one that has started again may give
    /// the version that is in use to other rules, and one that sends nothing can't be told from one that has none.
    ///
    /// # Errors
    /// The stream has ended.
    pub(super) fn begin(&self, node: &str) -> Result<(), String> {
        let node = Some(ClientNode { id: node.to_owned() });
        self.send(&DiscoveryRequest { node, ..verdict("", "") })
    }

    /// Accepts a response.
    ///
    /// # Errors
    /// The stream has ended.
    pub(super) fn accept(&self, version: &str, nonce: &str) -> Result<(), String> {
        self.send(&verdict(version, nonce))
    }

    /// Rejects a response. The accepted version stays in use.
    ///
    /// # Errors
    /// The stream has ended.
    pub(super) fn reject(&self, accepted: &str, nonce: &str, reason: &str) -> Result<(), String> {
        let reason = &reason[..reason.floor_char_boundary(REASON_MOST)];
        let detail = RejectionStatus { code: INVALID_ARGUMENT, message: reason.to_owned() };
        self.send(&DiscoveryRequest { error_detail: Some(detail), ..verdict(accepted, nonce) })
    }

    fn send(&self, request: &DiscoveryRequest) -> Result<(), String> {
        let sent = self.requests.try_send(grpc::framed(request));
        sent.map_err(|_| "the server doesn't read requests".to_owned())
    }

    /// Receives the next response.
    ///
    /// # Errors
    /// The stream has ended, or the response is too large or malformed.
    pub(super) async fn next(&mut self) -> Result<DiscoveryResponse, String> {
        loop {
            let length =
                grpc::message_length(&self.received, RESPONSE_MOST).map_err(|status| status.message)?;
            if let Some(length) = length.filter(|length| self.received.len() >= PREFIX_BYTES + length) {
                self.received.advance(PREFIX_BYTES);
                let message = self.received.split_to(length).freeze();
                let malformed = |error| format!("the response is malformed: {error}");
                return DiscoveryResponse::decode(message).map_err(malformed);
            }
            let body = self.body().await?;
            let frame = body.frame().await.ok_or("the server has ended the stream")?;
            let frame = frame.map_err(|error| with_causes(&error))?;
            match frame.into_data() {
                Ok(data) => self.received.extend_from_slice(&data),
                Err(frame) => return Err(ended(frame.trailers_ref().unwrap_or(&HeaderMap::new()))),
            }
        }
    }

    /// Returns the body of the server's response, once that has begun.
    async fn body(&mut self) -> Result<&mut Incoming, String> {
        if let StreamState::Asked(response) = &mut self.state {
            let response = response.await.map_err(|error| error.to_string())?;
            let (head, body) = response.map_err(|error| with_causes(&error))?.into_parts();
            let is_grpc = head
                .headers
                .get(CONTENT_TYPE)
                .is_some_and(|kind| kind.as_bytes().starts_with(b"application/grpc"));
            if head.status != StatusCode::OK || !is_grpc {
                return Err(format!("the server answers {}, not gRPC", head.status));
            }
            if head.headers.contains_key("grpc-status") {
                return Err(ended(&head.headers));
            }
            self.state = StreamState::Answered(body);
        }
        match &mut self.state {
            StreamState::Answered(body) => Ok(body),
            StreamState::Asked(_) => Err("the server hasn't answered".to_owned()),
        }
    }
}

/// Returns why a stream has ended.
fn ended(fields: &HeaderMap) -> String {
    let text = |name| fields.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
    format!("the server has ended the stream with status {} {}", text("grpc-status"), text("grpc-message"))
}

fn verdict(version: &str, nonce: &str) -> DiscoveryRequest {
    DiscoveryRequest {
        version_info: version.to_owned(),
        node: None,
        type_url: RULES.to_owned(),
        response_nonce: nonce.to_owned(),
        error_detail: None,
    }
}

/// Returns the call, whose messages are those of a queue.
fn request(url: &ServerUrl, queue: mpsc::Receiver<Bytes>) -> Result<Request<RequestFrames>, String> {
    let (scheme, authority) = (if url.is_tls() { "https" } else { "http" }, url.authority());
    let messages = stream::unfold(queue, async |mut queue| {
        let message = queue.recv().await?;
        Some((Ok(Frame::data(message)), queue))
    });
    let request = Request::post(format!("{scheme}://{authority}{METHOD}"))
        .header(CONTENT_TYPE, "application/grpc")
        .header(TE, "trailers");
    request.body(UnsyncBoxBody::new(StreamBody::new(messages))).map_err(|error| error.to_string())
}
