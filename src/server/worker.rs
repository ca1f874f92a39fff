//! A worker serves its connections on one thread.

use std::{
    convert::Infallible,
    future::pending,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use arc_swap::ArcSwap;
use hyper::{
    header::{CONNECTION, HeaderValue},
    server::conn::http1,
    service::service_fn,
};
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    server::graceful::GracefulShutdown,
};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpStream, UnixStream},
    sync::{mpsc, oneshot, watch},
    task::JoinSet,
    time::{MissedTickBehavior, interval, timeout},
};

use crate::gateway::{Gateway, StoreError};

use super::{Accepted, Counted, Stage, Stream, Terms, proxy_protocol};

/// How often connections to upstreams are looked through for idle ones.
const CLOSE_IDLE_EVERY: Duration = Duration::from_secs(1);
/// Bytes that a connection buffers of a body on its way, beside what its header may take.
const BODY_BUFFER: usize = 64 << 10;

/// How long to wait in the end until the store has what was recorded and released without waiting for it.
const STORE_PATIENCE: Duration = Duration::from_secs(1);

/// Serves what is accepted until the server ends.
pub(super) async fn work(
    terms: Terms,
    gateway: &Arc<ArcSwap<Gateway>>,
    mut accepted: mpsc::Receiver<Accepted>,
    ready: oneshot::Sender<Result<(), StoreError>>,
    mut stage: watch::Receiver<Stage>,
    is_draining: Arc<AtomicBool>,
) {
    let warm = gateway.load_full().warm_up().await;
    // The server waits for it, unless it has failed to start and is gone.
    let _ = ready.send(warm);

    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new())
        .header_read_timeout(terms.header_timeout)
        .max_header_size(terms.max_header_bytes)
        .max_buf_size(terms.max_header_bytes + BODY_BUFFER)
        // Header and body in one write. (`pipeline_flush` would do that, too, but withholds an answer while
        // more of the connection is to be read, and buffers a body without bound for a slow reader.)
        .writev(false);
    let mut serving = Serving {
        http,
        header_timeout: terms.header_timeout,
        gateway: gateway.clone(),
        is_draining,
        unknown: JoinSet::new(),
        graceful: GracefulShutdown::new(),
        connections: JoinSet::new(),
    };
    let mut idle = interval(CLOSE_IDLE_EVERY);
    idle.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            Some(accepted) = accepted.recv() => serving.accept(accepted),
            Some(_) = serving.connections.join_next() => {}
            Some(Ok(Some(known))) = serving.unknown.join_next() => known(&mut serving),
            _ = idle.tick() => gateway.load().close_idle(),
            Ok(()) = stage.changed() => match *stage.borrow() {
                Stage::Serving | Stage::Deaf => {}
                Stage::Closing | Stage::Ending => break,
            },
        }
    }
    let Serving { unknown, graceful, mut connections, .. } = serving;
    drop(unknown);
    tokio::select! {
        () = async { graceful.shutdown().await; pending().await } => {}
        _ = stage.wait_for(|stage| *stage == Stage::Ending) => {}
    }
    connections.shutdown().await;
    if timeout(STORE_PATIENCE, gateway.load().flush()).await.is_err() {
        tracing::warn!("the store hasn't taken all that was to be recorded: it is lost");
    }
}

/// What serves a worker's connections.
struct Serving {
    http: http1::Builder,
    header_timeout: Duration,
    gateway: Arc<ArcSwap<Gateway>>,
    is_draining: Arc<AtomicBool>,
    /// Connections whose proxies haven't said yet whose they are. A drain closes them.
    unknown: JoinSet<Option<Known>>,
    graceful: GracefulShutdown,
    connections: JoinSet<()>,
}

/// Serves a connection of which is known by now whose it is.
type Known = Box<dyn FnOnce(&mut Serving) + Send>;

impl Serving {
    fn accept(&mut self, Accepted { stream, peer, counted }: Accepted) {
        let served = match stream {
            Stream::Tcp(stream) => {
                TcpStream::from_std(stream).map(|stream| self.receive(stream, peer, counted))
            }
            Stream::Unix(stream) => {
                UnixStream::from_std(stream).map(|stream| self.receive(stream, peer, counted))
            }
        };
        if let Err(error) = served {
            tracing::warn!("can't serve a connection: {error}");
        }
    }

    fn receive(
        &mut self,
        mut stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
        peer: SocketAddr,
        counted: Counted,
    ) {
        if !self.gateway.load().expects_proxy_header(peer.ip()) {
            return self.serve(stream, peer, counted);
        }
        let within = self.header_timeout;
        self.unknown.spawn(async move {
            let client = proxy_protocol::client(&mut stream, peer, within).await?;
            Some(Box::new(move |serving: &mut Self| serving.serve(stream, client, counted)) as Known)
        });
    }

    fn serve(
        &mut self,
        stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
        peer: SocketAddr,
        counted: Counted,
    ) {
        let (gateway, is_draining) = (self.gateway.clone(), self.is_draining.clone());
        let service = service_fn(move |request| {
            let (gateway, is_draining) = (gateway.load_full(), is_draining.clone());
            async move {
                let mut response = gateway.answer(peer.ip(), request).await;
                if is_draining.load(Relaxed) {
                    response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
                }
                Ok::<_, Infallible>(response)
            }
        });
        let connection = self.graceful.watch(self.http.serve_connection(TokioIo::new(stream), service));
        self.connections.spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(%peer, "a connection ended early: {error}");
            }
            drop(counted);
        });
    }
}
