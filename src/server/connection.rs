//! A connection of a client, from its handshake to its end: TLS if that is spoken here, then HTTP/1.1 or HTTP/2.

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
    gateway::{AnswerBody, Gateway, Peer, Upload},
};
use tollgate_http1::{Input, Stream};

use super::{
    Door, Status, Terms,
    client::{InFlight, Watch, Watched},
    frames::Metered,
    http1::Http1,
    http2::{self, Streams},
    terms::H2,
};

/// To who speaks HTTP/2 where it isn't spoken.
const NO_HTTP2: &[u8] = b"HTTP/1.1 400 Bad Request\r\nconnection: close\r\ncontent-length: 0\r\n\r\n";

/// The preface with which a client says that it speaks HTTP/2, without having been asked (RFC 9113, section 3.3).
const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// A connection that is served, by what the configuration said when it was made.
pub(super) struct Connection {
    /// The other end, or whom a proxy names.
    pub(super) peer: SocketAddr,
    /// `http`, or with TLS `https`.
    pub(super) scheme: &'static str,
    /// The door that it came by.
    pub(super) door: Door,
    /// There is no room for it.
    pub(super) is_turned_away: bool,
    pub(super) terms: Arc<Terms>,
    pub(super) gateway: Arc<ArcSwap<Gateway>>,
    pub(super) status: Arc<Status>,
    pub(super) watch: Arc<Watch>,
    /// Where requests of HTTP/2 are answered.
    pub(super) streams: TaskTracker,
}

impl Connection {
    /// Serves it without TLS, to its end.
    pub(super) async fn serve(self, stream: impl Stream) {
        let (mut stream, mut input) = (Watched::new(stream, self.watch.clone()), Input::default());
        let speaks_http2 = poll_fn(|context| poll_preface(&mut input, &mut stream, context));
        let Some(Ok(speaks_http2)) = self.watch.unless_ended(speaks_http2).await else { return };
        if !speaks_http2 {
            self.serve_http1(stream, input).await;
        } else if self.terms.http2 || self.door == Door::Decisions {
            // In a box, lest all connections keep room for it.
            Box::pin(self.serve_http2(Box::new(input.before(stream)))).await;
        } else {
            // It may have gone.
            let _ = stream.write_all(NO_HTTP2).await;
        }
    }

    /// Serves it with TLS, to its end.
    pub(super) async fn serve_tls(self, stream: impl Stream, acceptor: TlsAcceptor) {
        let Some(shaken) = self.watch.unless_ended(acceptor.accept(stream)).await else { return };
        let stream = match shaken {
            Ok(stream) => stream,
            Err(error) => {
                self.status.note_failed_handshake();
                return self.note_end(&error);
            }
        };
        let speaks_http2 = stream.get_ref().1.alpn_protocol() == Some(H2);
        // In a box, so that all the rest is compiled once for it.
        let stream: Box<dyn Stream> = Box::new(stream);
        let stream = Watched::new(stream, self.watch.clone());
        match speaks_http2 {
            true => self.serve_http2(Box::new(stream)).await,
            false => self.serve_http1(stream, Input::default()).await,
        }
    }

    async fn serve_http1(self, stream: Watched<impl Stream>, input: Input) {
        if let Err(error) = Http1::new(&self, stream, input).serve().await {
            self.note_end(&error);
        }
    }

    async fn serve_http2(self, stream: Box<dyn Stream>) {
        self.watch.begin_http2();
        let connection = Arc::new(self);
        let stream = Metered::new(stream, connection.watch.clone(), connection.status.clone());
        let io = TokioIo::new(stream);
        let streams = Streams { tasks: connection.streams.clone(), patience: connection.terms.patience.idle };
        let http = http2::builder(connection.terms.max_header_bytes, streams);
        let served = connection.clone();
        let service = service_fn(move |request: Request<Incoming>| {
            let (served, in_flight) = (served.clone(), InFlight::begin(&served.watch));
            // In a box that it is made in: a stream's task is copied as often as it is made, begun and ended.
            Box::into_pin(Box::write(Box::new_uninit(), async move {
                let is_head = request.method() == Method::HEAD;
                let has_room = !served.is_turned_away && served.streams.len() <= served.terms.streams_most;
                let request = request.map(|body| Upload::http2(body, served.terms.patience.idle));
                let response = served.respond(request, has_room).await;
                if served.is_last() {
                    served.watch.end();
                }
                Ok::<_, Infallible>(http2::Answer::of(response, is_head, in_flight))
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

    /// Answers a request as the door says.
    pub(super) async fn respond(&self, request: Request<Upload>, has_room: bool) -> Response<AnswerBody> {
        let (gateway, peer) = (self.gateway.load_full(), self.peer());
        match self.door {
            Door::Requests => gateway.answer(peer, request, has_room).await,
            // In a box, lest requests to be forwarded keep room for it.
            Door::Decisions => Box::pin(decisions::answer(gateway, peer, request, has_room)).await,
        }
    }

    /// Whom it is with.
    pub(super) fn peer(&self) -> Peer {
        Peer { address: self.peer.ip(), scheme: self.scheme }
    }

    /// Whether it is to be the last request of the connection that is answered now.
    pub(super) fn is_last(&self) -> bool {
        self.is_turned_away || self.status.is_draining() || self.watch.is_ending()
    }

    /// Serves to the end, which comes with what is in flight when the connection is to end.
    async fn drive<C: Future>(&self, connection: C, end: fn(Pin<&mut C>)) -> C::Output {
        let mut connection = pin!(connection);
        match self.watch.unless_ended(connection.as_mut()).await {
            Some(ended) => ended,
            None => {
                end(connection.as_mut());
                connection.await
            }
        }
    }

    fn note_end(&self, error: &dyn std::error::Error) {
        tracing::debug!(peer = %self.peer, "a connection ended early: {error}");
    }
}

/// Reads as much as tells whether the connection begins with the preface of HTTP/2.
///
/// # Errors
/// It broke.
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
