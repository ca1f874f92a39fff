//! A connection of a client, from its handshake to its end: TLS if that is spoken here, then HTTP/1.1 or HTTP/2.

use std::{
    convert::Infallible,
    net::SocketAddr,
    pin::{Pin, pin},
    sync::Arc,
};

use arc_swap::ArcSwap;
use bytes::Bytes;
use futures_util::FutureExt;
use hyper::{
    Method, Request, StatusCode,
    body::Incoming,
    header::{CONNECTION, HeaderValue},
    server::conn::{http1, http2 as hyper_http2},
    service::service_fn,
};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio_rustls::TlsAcceptor;
use tokio_util::task::TaskTracker;

use crate::gateway::{Gateway, Peer, Upload};

use super::{
    Status, Terms,
    client::{Answer, InFlight, Watch, Watched},
    http2::{self, Streams},
    parting::Parting,
    preface,
    terms::H2,
};

/// Bytes that a connection buffers of a body on its way, beside what its header may take.
const BODY_BUFFER: usize = 64 << 10;
/// To who speaks HTTP/2 where it isn't spoken.
const NO_HTTP2: &[u8] = b"HTTP/1.1 400 Bad Request\r\nconnection: close\r\ncontent-length: 0\r\n\r\n";

/// What a connection is made on.
pub(super) trait Stream: AsyncRead + AsyncWrite + Unpin + Send + 'static {}
impl<S: AsyncRead + AsyncWrite + Unpin + Send + 'static> Stream for S {}

/// A connection that is served, by what the configuration said when it was made.
pub(super) struct Connection {
    /// The other end, or whom a proxy names.
    pub(super) peer: SocketAddr,
    /// `http`, or with TLS `https`.
    pub(super) scheme: &'static str,
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
        let Some(Ok((speaks_http2, mut stream))) = self.watch.unless_ended(preface::read(stream)).await
        else {
            return;
        };
        if !speaks_http2 {
            self.serve_http1(stream).await;
        } else if self.terms.http2 {
            // In a box, lest all connections keep room for it.
            Box::pin(self.serve_http2(Box::new(stream))).await;
        } else {
            // It may have gone.
            let _ = stream.write_all_buf(&mut Bytes::from_static(NO_HTTP2)).await;
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
        match speaks_http2 {
            true => self.serve_http2(stream).await,
            false => self.serve_http1(stream).await,
        }
    }

    async fn serve_http1(self, stream: impl Stream) {
        let connection = Arc::new(self);
        let header_bytes_most = connection.terms.max_header_bytes;
        let watched = Watched::new(stream, connection.watch.clone());
        let io = TokioIo::new(Parting::new(watched, header_bytes_most));
        let mut http = http1::Builder::new();
        http.preserve_header_case(true)
            .max_header_size(header_bytes_most)
            .max_buf_size(header_bytes_most + BODY_BUFFER)
            // Header and body in one write. (`pipeline_flush` would do that, too, but withholds an answer while
            // more of the connection is to be read, and buffers a body without bound for a slow reader.)
            .writev(false);
        let served = connection.clone();
        let service = service_fn(move |request: Request<Incoming>| {
            let (served, watch) = (served.clone(), served.watch.clone());
            let request = served.paced(request);
            watch.begin_request(request.body().progress());
            // In a box, lest a connection that idles keep room for it; and made in there, lest it be copied.
            Box::into_pin(Box::write(Box::new_uninit(), async move {
                let gateway = served.gateway.load_full();
                let mut response = gateway.answer(served.peer(), request, !served.is_turned_away).await;
                if served.is_last() && response.status() != StatusCode::SWITCHING_PROTOCOLS {
                    response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
                }
                Ok::<_, Infallible>(Answer::of(response, watch))
            }))
        });
        let http = http.serve_connection(io, service).with_upgrades();
        // Boxed here, where the compiler can see that it may be sent to another thread.
        let ended = connection.drive(http, http1::UpgradeableConnection::graceful_shutdown).boxed();
        if let Err(error) = ended.await {
            return connection.note_end(&error);
        }
        if let Some(answer) = connection.watch.take_tunnel()
            // In a box, lest all connections keep room for it.
            && let Err(error) = answer.tunnel(connection.terms.patience.idle).boxed().await
        {
            connection.note_end(&error);
        }
    }

    async fn serve_http2(self, stream: Box<dyn Stream>) {
        self.watch.begin_http2();
        let connection = Arc::new(self);
        let io = TokioIo::new(Watched::new(stream, connection.watch.clone()));
        let streams = Streams { tasks: connection.streams.clone(), patience: connection.terms.patience.idle };
        let http = http2::builder(connection.terms.max_header_bytes, streams);
        let served = connection.clone();
        let service = service_fn(move |request: Request<Incoming>| {
            let (served, in_flight) = (served.clone(), InFlight::begin(&served.watch));
            async move {
                let is_head = request.method() == Method::HEAD;
                let has_room = !served.is_turned_away && served.streams.len() <= served.terms.streams_most;
                let gateway = served.gateway.load_full();
                let response = gateway.answer(served.peer(), served.paced(request), has_room).await;
                if served.is_last() {
                    served.watch.end();
                }
                Ok::<_, Infallible>(http2::Answer::of(response, is_head, in_flight))
            }
        });
        let ended =
            connection.drive(http.serve_connection(io, service), hyper_http2::Connection::graceful_shutdown);
        if let Err(error) = ended.await {
            connection.note_end(&error);
        }
    }

    /// A request whose body has to come on.
    fn paced(&self, request: Request<Incoming>) -> Request<Upload> {
        let version = request.version();
        request.map(|body| Upload::new(body, version, self.terms.patience.idle))
    }

    fn peer(&self) -> Peer {
        Peer { address: self.peer.ip(), scheme: self.scheme }
    }

    /// Whether it is to be the last request of the connection that is answered now.
    fn is_last(&self) -> bool {
        self.is_turned_away || self.status.is_draining()
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
