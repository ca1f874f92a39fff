//! A worker serves its connections on one thread.

use std::{convert::Infallible, future::pending, net::SocketAddr, sync::Arc, time::Duration};

use arc_swap::ArcSwap;
use hyper::{
    Request,
    body::Incoming,
    header::{CONNECTION, HeaderValue},
    server::conn::http1,
    service::service_fn,
};
use hyper_util::{rt::TokioIo, server::graceful::GracefulShutdown};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpStream, UnixStream},
    sync::{mpsc, oneshot, watch},
    task::{AbortHandle, JoinSet},
    time::{Instant, MissedTickBehavior, interval, timeout},
};

use crate::gateway::{Gateway, StoreError, Upload};

use super::{
    Accepted, Counted, NowAndThen, Stage, Status, Stream, Terms,
    client::{Answer, Patience, Watch, Watched},
    parting::Parting,
    proxy_protocol,
};

/// How often connections are looked through: for clients who do nothing, and to upstreams for idle ones.
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// Connections among which the one that idles longest goes to make room: looking at all of very many takes time.
const LOOKED_AT_MOST: usize = 256;
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
    status: Arc<Status>,
) {
    let warm = gateway.load_full().warm_up().await;
    // The server waits for it, unless it has failed to start and is gone.
    let _ = ready.send(warm);

    let mut http = http1::Builder::new();
    http.preserve_header_case(true)
        .max_header_size(terms.max_header_bytes)
        .max_buf_size(terms.max_header_bytes + BODY_BUFFER)
        // Header and body in one write. (`pipeline_flush` would do that, too, but withholds an answer while
        // more of the connection is to be read, and buffers a body without bound for a slow reader.)
        .writev(false);
    let mut serving = Serving {
        http,
        patience: terms.patience,
        gateway: gateway.clone(),
        status,
        unknown: JoinSet::new(),
        graceful: GracefulShutdown::new(),
        connections: JoinSet::new(),
        clients: Vec::new(),
        lacks_room: NowAndThen::default(),
    };
    let mut looks = interval(LOOK_EVERY);
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            Some(accepted) = accepted.recv() => serving.accept(accepted),
            Some(_) = serving.connections.join_next() => {}
            Some(Ok(Some(known))) = serving.unknown.join_next() => known(&mut serving),
            now = looks.tick() => {
                serving.cut_off(now);
                gateway.load().close_idle();
            }
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
    patience: Patience,
    gateway: Arc<ArcSwap<Gateway>>,
    status: Arc<Status>,
    /// Connections whose proxies haven't said yet whose they are. A drain closes them.
    unknown: JoinSet<Option<Known>>,
    graceful: GracefulShutdown,
    connections: JoinSet<()>,
    /// At the other ends of these, those that have ended lately included.
    clients: Vec<Client>,
    lacks_room: NowAndThen,
}

/// A client, and the task that serves it.
struct Client {
    peer: SocketAddr,
    watch: Arc<Watch>,
    task: AbortHandle,
}

impl Client {
    /// Nobody else has its watch any more.
    fn has_gone(&self) -> bool {
        Arc::strong_count(&self.watch) == 1
    }

    fn close(&self, reason: &str, status: &Status) {
        tracing::debug!(peer = %self.peer, reason, "a client's connection is closed");
        status.note_closed(reason);
        self.task.abort();
    }
}

/// Serves a connection of which is known by now whose it is.
type Known = Box<dyn FnOnce(&mut Serving) + Send>;

impl Serving {
    fn accept(&mut self, Accepted { stream, peer, counted, is_surplus }: Accepted) {
        let is_turned_away = is_surplus && !self.make_room();
        if is_turned_away {
            self.status.note_closed("surplus");
            if self.lacks_room.is_due() {
                tracing::warn!("all connections are in use: others get 503\nraise server.max_connections");
            }
        }
        let served =
            match stream {
                Stream::Tcp(stream) => TcpStream::from_std(stream)
                    .map(|stream| self.receive(stream, peer, counted, is_turned_away)),
                Stream::Unix(stream) => UnixStream::from_std(stream)
                    .map(|stream| self.receive(stream, peer, counted, is_turned_away)),
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
        is_turned_away: bool,
    ) {
        if !self.gateway.load().expects_proxy_header(peer.ip()) {
            return self.serve(stream, peer, counted, is_turned_away);
        }
        let within = self.patience.header;
        self.unknown.spawn(async move {
            let client = proxy_protocol::client(&mut stream, peer, within).await?;
            let serve = move |serving: &mut Self| serving.serve(stream, client, counted, is_turned_away);
            Some(Box::new(serve) as Known)
        });
    }

    fn serve(
        &mut self,
        stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
        peer: SocketAddr,
        counted: Counted,
        is_turned_away: bool,
    ) {
        let (gateway, status) = (self.gateway.clone(), self.status.clone());
        let (watch, patience) = (Arc::new(Watch::new()), self.patience);
        let stream = Parting::new(Watched { stream, watch: watch.clone() });
        let watched = watch.clone();
        let service = service_fn(move |request: Request<Incoming>| {
            let (gateway, status) = (gateway.load_full(), status.clone());
            let request = request.map(|body| Upload::new(body, patience.idle));
            let watch = watched.clone();
            watch.begin_request(request.body().progress());
            // In a box, lest a connection that idles keep room for it.
            Box::pin(async move {
                let mut response = match is_turned_away {
                    true => gateway.turn_away(peer.ip(), request),
                    false => gateway.answer(peer.ip(), request).await,
                };
                if is_turned_away || status.is_draining() {
                    response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
                }
                Ok::<_, Infallible>(response.map(|body| Answer { body, watch }))
            })
        });
        let connection = self.graceful.watch(self.http.serve_connection(TokioIo::new(stream), service));
        let task = self.connections.spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(%peer, "a connection ended early: {error}");
            }
            drop(counted);
        });
        self.clients.push(Client { peer, watch, task });
    }

    /// Closes the connections of clients who should have done something by now.
    fn cut_off(&mut self, now: Instant) {
        let Self { clients, patience, status, .. } = self;
        clients.retain(|client| {
            if client.has_gone() {
                return false;
            }
            let missed = client.watch.missed(*patience, now);
            if let Some(missed) = missed {
                client.close(missed, status);
            }
            missed.is_none()
        });
    }

    /// Closes the connection that idles longest, if one does.
    fn make_room(&mut self) -> bool {
        let (count, from) = (self.clients.len(), fastrand::usize(..self.clients.len().max(1)));
        let looked_at = (0..count.min(LOOKED_AT_MOST)).map(|step| (from + step) % count);
        let there = looked_at.filter(|at| !self.clients[*at].has_gone());
        let idle = there.filter_map(|at| Some((self.clients[at].watch.idle_since()?, at)));
        let Some((_, longest)) = idle.min() else { return false };
        self.clients.swap_remove(longest).close("room", &self.status);
        true
    }
}
