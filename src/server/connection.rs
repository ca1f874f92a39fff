//! A client's connection from the handshake to the end: TLS if configured, then HTTP/1.1 or HTTP/2.

use std::{
    convert::Infallible,
    future::poll_fn,
    net::SocketAddr,
    pin::{Pin, pin},
    sync::Arc,
    task::{Context, Poll, ready},
};

use arc_swap::ArcSwap;
use hyper::{
    Method, Request, Response, body::Incoming, server::conn::http2 as hyper_http2, service::service_fn,
};
use hyper_util::rt::TokioIo;
use tokio::io::{self, AsyncRead, AsyncWriteExt};
use tokio_rustls::TlsAcceptor;
use tokio_util::task::TaskTracker;

use crate::{
    decisions,
    gateway::{AnswerBody, Describe, Gateway, Peer, Upload},
};
use tollgate_http1::{Input, Stream};

use super::{
    ConnectionSettings, Door, Status,
    client::Watch,
    clients::Clients,
    frames::Metered,
    health,
    http1::Http1Server,
    http2::{self, Http2Request, StreamExecutor, Turns},
    linger,
    settings::H2,
    slots::PeerKind,
    watched::Watched,
};

/// Sent to an HTTP/2 client if HTTP/2 is disabled.
const NO_HTTP2: &[u8] = b"HTTP/1.1 400 Bad Request\r\nconnection: close\r\ncontent-length: 0\r\n\r\n";

/// The preface of an HTTP/2 client that doesn't negotiate the protocol (RFC 9113, section 3.3).
const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// A client's connection, with the settings at the time it was accepted.
pub(super) struct ClientConnection {
    /// The address of the other end, or the one that a trusted proxy states.
    pub(super) peer: SocketAddr,
    /// The scheme: `https` with TLS, otherwise `http`.
    pub(super) scheme: &'static str,
    /// The door that it came in by.
    pub(super) door: Door,
    /// The kind of the other end.
    pub(super) kind: PeerKind,
    pub(super) settings: Arc<ConnectionSettings>,
    pub(super) gateway: Arc<ArcSwap<Gateway>>,
    pub(super) status: Arc<Status>,
    pub(super) watch: Arc<Watch>,
    pub(super) clients: Arc<Clients>,
    /// The tasks of the HTTP/2 requests of peers of its kind, at the worker.
    pub(super) streams: TaskTracker,
}

impl ClientConnection {
    /// Serves a connection without TLS until it ends.
    pub(super) async fn serve(self, stream: impl Stream) {
        let (mut stream, mut input) = (Watched::new(stream, self.watch.clone()), Input::default());
        let speaks_http2 = poll_fn(|context| poll_preface(&mut input, &mut stream, context));
        let Some(Ok(speaks_http2)) = self.watch.unless_ended(speaks_http2).await else { return };
        if !speaks_http2 {
            self.serve_http1(stream, input).await;
        } else if self.settings.http2 || self.door != Door::Requests {
            // Boxed, so that other connections don't reserve its memory.
            Box::pin(self.serve_http2(Box::new(input.before(stream)))).await;
        } else {
            // The client may have left.
            let _ = stream.write_all(NO_HTTP2).await;
        }
    }

    /// Serves a connection with TLS until it ends.
    pub(super) async fn serve_tls(self, stream: impl Stream, acceptor: TlsAcceptor) {
        let Some(shaken) = self.watch.unless_ended(acceptor.accept(stream).into_fallible()).await else {
            return;
        };
        let stream = match shaken {
            Ok(stream) => stream,
            Err((error, mut stream)) => {
                self.status.note_failed_handshake();
                self.note_end(&error);
                // A client that has sent a request behind its part of the handshake would lose the alert, which says why.
                // The client may have left.
                let _ = linger::close(&mut stream, true).await;
                return;
            }
        };
        let speaks_http2 = stream.get_ref().1.alpn_protocol() == Some(H2);
        // Boxed, so that everything below is compiled once for TLS.
        let stream: Box<dyn Stream> = Box::new(stream);
        let stream = Watched::new(stream, self.watch.clone());
        match speaks_http2 {
            true => self.serve_http2(Box::new(stream)).await,
            false => self.serve_http1(stream, Input::default()).await,
        }
    }

    async fn serve_http1(self, stream: Watched<impl Stream>, input: Input) {
        if let Err(error) = Http1Server::new(&self, stream, input).serve().await {
            self.note_end(&error);
        }
    }

    async fn serve_http2(self, stream: Box<dyn Stream>) {
        let is_of_many = self.is_of_many_clients();
        self.watch.begin_http2(is_of_many);
        let connection = Arc::new(self);
        let stream: Box<dyn Stream> = match is_of_many {
            true => stream,
            false => Box::new(Metered::new(stream, connection.watch.clone(), connection.status.clone())),
        };
        let io = TokioIo::new(stream);
        let most = match connection.kind {
            PeerKind::Client | PeerKind::Stranger => connection.settings.streams_most,
            // It may let requests pass that it can't ask about, and has a bound of its own.
            PeerKind::Caller => usize::MAX,
        };
        let streams =
            StreamExecutor::new(connection.streams.clone(), most, connection.settings.timeouts.idle);
        let http = http2::builder(connection.settings.max_header_bytes, is_of_many, streams.clone());
        let (served, turns) = (connection.clone(), Arc::new(Turns::default()));
        let service = service_fn(move |request: Request<Incoming>| {
            let (served, turns) = (served.clone(), turns.clone());
            let in_flight = Http2Request::begin(&served.watch);
            // Its own task isn't among the others yet.
            let has_room = served.claim_place() && streams.has_room();
            // Created in its box, because a stream's task would otherwise be copied several times.
            Box::into_pin(Box::write(Box::new_uninit(), async move {
                let is_head = request.method() == Method::HEAD;
                let mut request = request.map(|body| Upload::http2(body, served.settings.timeouts.idle));
                request.body_mut().hold(in_flight.clone());
                turns.wait_for(&request).await;
                let response = served.respond(request, has_room).await;
                if served.is_last() {
                    served.watch.end();
                }
                Ok::<_, Infallible>(http2::Http2Body::of(response, is_head, in_flight))
            }))
        });
        let ended =
            connection.drive(http.serve_connection(io, service), hyper_http2::Connection::graceful_shutdown);
        if let Err(error) = ended.await {
            let fault = std::error::Error::source(&error).and_then(|cause| cause.downcast_ref::<h2::Error>());
            if fault.is_some_and(h2::Error::is_library) {
                connection.status.note_unreadable("http2");
            }
            connection.note_end(&error);
        }
    }

    /// Answers a request with the service of its door.
    pub(super) async fn respond(&self, request: Request<Upload>, has_room: bool) -> Response<AnswerBody> {
        let (gateway, peer) = (self.gateway.load_full(), self.peer());
        match self.door {
            Door::Requests => match health::answer(&gateway, &self.status, &request).filter(|_| has_room) {
                Some(response) => response,
                None => gateway.answer(peer, request, has_room).await,
            },
            Door::Decisions | Door::PlainDecisions => {
                let is_draining = self.status.drain_flag();
                decisions::answer(gateway, peer, request, has_room, is_draining).await
            }
        }
    }

    /// Returns how a call by its door describes a request. `None` if it is the request itself.
    pub(super) fn describe(&self) -> Option<Describe> {
        match self.door {
            Door::Requests => None,
            Door::Decisions | Door::PlainDecisions => Some(decisions::describe),
        }
    }

    /// Returns true for the connection of a proxy. Its clients cancel requests as they like, and a connection that is closed for that
    /// would fail the requests of all others.
    fn is_of_many_clients(&self) -> bool {
        match self.door {
            Door::Requests => self.gateway.load().is_proxy(self.peer.ip()),
            Door::Decisions | Door::PlainDecisions => self.kind == PeerKind::Caller,
        }
    }

    /// [Takes a place](Clients::claim_place) for the current request, unless the connection has one.
    pub(super) fn claim_place(&self) -> bool {
        self.clients.claim_place(self.kind, &self.watch)
    }

    /// Returns the other end of the connection.
    pub(super) fn peer(&self) -> Peer {
        Peer { address: self.peer.ip(), scheme: self.scheme }
    }

    /// Returns true if the current request is the last on this connection.
    pub(super) fn is_last(&self) -> bool {
        !self.watch.has_place() || self.status.is_draining() || self.watch.is_ending()
    }

    /// Drives the connection to its end. If it is to be closed, it ends after the requests in flight.
    async fn drive<C: Future>(&self, connection: C, end: fn(Pin<&mut C>)) -> C::Output {
        let mut connection = pin!(connection);
        let poll = |connection: Pin<&mut C>, context: &mut Context<'_>| {
            self.watch.begin_turn();
            connection.poll(context)
        };
        match self.watch.unless_ended(poll_fn(|context| poll(connection.as_mut(), context))).await {
            Some(ended) => ended,
            None => {
                end(connection.as_mut());
                poll_fn(|context| poll(connection.as_mut(), context)).await
            }
        }
    }

    fn note_end(&self, error: &dyn std::error::Error) {
        tracing::debug!(peer = %self.peer, "a connection ended early: {error}");
    }
}

/// Reads until it is known whether the connection begins with the HTTP/2 preface.
///
/// # Errors
/// The connection failed.
fn poll_preface(
    input: &mut Input,
    stream: &mut (impl AsyncRead + Unpin),
    context: &mut Context<'_>,
) -> Poll<io::Result<bool>> {
    while input.bytes().len() < PREFACE.len() && PREFACE.starts_with(input.bytes()) {
        if ready!(input.poll_more(stream, context))? == 0 {
            break;
        }
    }
    Poll::Ready(Ok(input.bytes().starts_with(PREFACE)))
}
