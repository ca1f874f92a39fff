//! A worker serves its connections on one thread.

use std::{mem, net::SocketAddr, pin::pin, sync::Arc, time::Duration};

use arc_swap::ArcSwap;
use tokio::{
    net::{TcpStream, UnixStream},
    sync::{mpsc, oneshot, watch},
    task::{AbortHandle, JoinSet},
    time::{Instant, MissedTickBehavior, interval, timeout},
};
use tokio_rustls::TlsAcceptor;
use tokio_util::task::TaskTracker;
use tollgate_limiter::StoreError;

use crate::gateway::Gateway;

use super::{
    Accepted, Counted, Door, NowAndThen, Stage, Status, Stream, Terms, client::Watch, connection::Connection,
    proxy_protocol,
};

/// How often connections are looked through: for clients who do nothing, and to upstreams for idle ones.
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// Connections among which the one that idles longest goes to make room: looking at all of very many takes time.
const LOOKED_AT_MOST: usize = 256;
/// How long to wait in the end until the store has what was recorded and released without waiting for it.
const STORE_PATIENCE: Duration = Duration::from_secs(1);

/// Serves what is accepted until the server ends.
pub(super) async fn work(
    terms: Arc<ArcSwap<Terms>>,
    gateway: &Arc<ArcSwap<Gateway>>,
    mut accepted: mpsc::Receiver<Accepted>,
    ready: oneshot::Sender<Result<(), StoreError>>,
    mut stage: watch::Receiver<Stage>,
    status: Arc<Status>,
) {
    let warm = gateway.load_full();
    // Requests are served meanwhile. The server waits for it, unless it has failed to start and is gone.
    tokio::spawn(async move { ready.send(warm.warm_up().await) });

    let mut serving = Serving {
        terms,
        gateway: gateway.clone(),
        status,
        unknown: JoinSet::new(),
        connections: JoinSet::new(),
        streams: TaskTracker::new(),
        clients: Vec::new(),
        beyond: 0,
        lacks_room: NowAndThen::default(),
    };
    let mut looks = interval(LOOK_EVERY);
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            Some(accepted) = accepted.recv() => serving.accept(accepted),
            Some(_) = serving.connections.join_next() => {}
            // Whatever comes of it: what doesn't match would be looked at no more until something else happens.
            Some(known) = serving.unknown.join_next() => {
                if let Ok(Some(known)) = known {
                    known(&mut serving);
                }
            }
            now = looks.tick() => {
                serving.cut_off(now);
                serving.keep_to_bound();
                gateway.load().close_idle();
            }
            Ok(()) = stage.changed() => match *stage.borrow() {
                Stage::Serving | Stage::Deaf => {}
                Stage::Closing => serving.end(),
                Stage::Ending => break,
            },
        }
    }
    serving.connections.shutdown().await;
    let flushed = async {
        // They end with their connections.
        serving.streams.close();
        serving.streams.wait().await;
        gateway.load().flush().await;
    };
    if timeout(STORE_PATIENCE, flushed).await.is_err() {
        tracing::warn!("the store hasn't taken all that was to be recorded: it is lost");
    }
}

/// What serves a worker's connections.
struct Serving {
    terms: Arc<ArcSwap<Terms>>,
    gateway: Arc<ArcSwap<Gateway>>,
    status: Arc<Status>,
    /// Connections whose proxies haven't said yet whose they are. A drain closes them.
    unknown: JoinSet<Option<Known>>,
    connections: JoinSet<()>,
    /// Requests of HTTP/2 that are answered.
    streams: TaskTracker,
    /// At the other ends of these, those that have ended lately included.
    clients: Vec<Client>,
    /// Connections beyond the bound at the last look.
    beyond: usize,
    lacks_room: NowAndThen,
}

/// A client whose connection isn't served yet.
struct Caller {
    peer: SocketAddr,
    door: Door,
    counted: Counted,
    is_turned_away: bool,
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

    /// Closes the connection; or has it end, if the client can be told so by HTTP/2. Whether it is closed by now.
    fn close(&self, reason: &str, status: &Status) -> bool {
        if !self.watch.is_ending() {
            tracing::debug!(peer = %self.peer, reason, "a client's connection is closed");
            status.note_closed(reason);
            if reason == "request" && self.watch.is_http2() {
                self.watch.end();
                return false;
            }
        }
        self.task.abort();
        true
    }
}

/// Serves a connection of which is known by now whose it is.
type Known = Box<dyn FnOnce(&mut Serving) + Send>;

impl Serving {
    fn accept(&mut self, Accepted { stream, peer, door, counted, is_surplus }: Accepted) {
        let is_turned_away = is_surplus && !self.make_room();
        if is_turned_away {
            self.status.note_closed("surplus");
            if self.lacks_room.is_due() {
                tracing::warn!("all connections are in use: others get 503\nraise server.max_connections");
            }
        }
        let (terms, caller) = (self.terms.load_full(), Caller { peer, door, counted, is_turned_away });
        let served = match stream {
            Stream::Tcp(stream) => TcpStream::from_std(stream).map(|stream| {
                let tls = terms.tls.at(door).map(|tls| tls.acceptor.clone());
                self.receive(stream, tls, caller);
            }),
            Stream::Unix(stream) => UnixStream::from_std(stream).map(|stream| {
                // In a box, so that all the rest is compiled once for it and for TLS.
                let stream: Box<dyn tollgate_http1::Stream> = Box::new(stream);
                self.receive(stream, None, caller);
            }),
        };
        if let Err(error) = served {
            tracing::warn!("can't serve a connection: {error}");
        }
    }

    fn receive(&mut self, mut stream: impl tollgate_http1::Stream, tls: Option<TlsAcceptor>, caller: Caller) {
        let has_proxy_header =
            caller.door == Door::Requests && self.gateway.load().expects_proxy_header(caller.peer.ip());
        if !has_proxy_header {
            return self.serve(stream, tls, caller);
        }
        let within = self.terms.load().patience.header;
        self.unknown.spawn(async move {
            let peer = proxy_protocol::client(&mut stream, caller.peer, within).await?;
            let serve = move |serving: &mut Self| serving.serve(stream, tls, Caller { peer, ..caller });
            Some(Box::new(serve) as Known)
        });
    }

    fn serve(
        &mut self,
        stream: impl tollgate_http1::Stream,
        tls: Option<TlsAcceptor>,
        Caller { peer, door, counted, is_turned_away }: Caller,
    ) {
        let watch = Arc::new(Watch::new());
        let connection = Connection {
            peer,
            scheme: if tls.is_some() { "https" } else { "http" },
            door,
            is_turned_away,
            terms: self.terms.load_full(),
            gateway: self.gateway.clone(),
            status: self.status.clone(),
            watch: watch.clone(),
            streams: self.streams.clone(),
        };
        let task = self.connections.spawn(async move {
            let served = pin!(async move {
                match tls {
                    // In a box, lest all connections keep room for it.
                    Some(tls) => Box::pin(connection.serve_tls(stream, tls)).await,
                    None => connection.serve(stream).await,
                }
            });
            // Dropped before what is served: who sees that it has closed may connect anew at once.
            let counted = counted;
            served.await;
            drop(counted);
        });
        self.clients.push(Client { peer, watch, task });
    }

    /// Has all connections end, with what is in flight on them.
    fn end(&mut self) {
        self.unknown.abort_all();
        self.clients.iter().for_each(|client| client.watch.end());
    }

    /// Closes the connections of clients who should have done something by now.
    fn cut_off(&mut self, now: Instant) {
        let Self { clients, terms, status, .. } = self;
        let patience = terms.load().patience;
        clients.retain(|client| match client.watch.missed(patience, now) {
            _ if client.has_gone() => false,
            Some(missed) => !client.close(missed, status),
            None => true,
        });
    }

    /// Closes this worker's share of the connections beyond the bound, as far as they idle: a reload may have lowered it.
    /// Those that were there at the last look already: for one that has just been accepted, room is made as it arrives.
    fn keep_to_bound(&mut self) {
        let beyond = self.status.connections().saturating_sub(self.terms.load().clients_most);
        let lasting = beyond.min(mem::replace(&mut self.beyond, beyond));
        for _ in 0..lasting.div_ceil(self.status.workers()) {
            if !self.make_room() {
                break;
            }
        }
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
