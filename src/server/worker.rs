//! A worker serves its connections on one thread.

use std::{
    future::poll_fn,
    io,
    net::SocketAddr,
    pin::pin,
    sync::{Arc, Weak, atomic::AtomicUsize},
    task::Poll,
    thread,
    time::Duration,
};

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use tokio::{
    net::{TcpStream, UnixStream},
    runtime::{Builder, Handle},
    sync::{mpsc, oneshot, watch},
    task::JoinSet,
    time::{Instant, MissedTickBehavior, interval, timeout},
};
use tokio_rustls::TlsAcceptor;
use tokio_util::task::TaskTracker;
use tollgate_limiter::StoreError;

use crate::gateway::Gateway;

use super::{
    FirstConnection, Stage, Status,
    accept::{Accepted, ConnectionGuard, Inbox},
    client::{EXPECTED_WITHIN, Watch},
    clients::{Clients, WatchedClient, note_closed},
    connection::ClientConnection,
    listener::{ClientStream, Door},
    proxy_protocol,
    settings::ConnectionSettings,
    slots::{BEYOND_MOST, ConnectionSlots, PeerKind},
};

/// The most accepted connections that wait for a worker.
const ACCEPTED_MOST: usize = 1024;
/// The interval at which connections are checked: of clients for inactivity, and to upstreams for idleness.
const CHECK_EVERY: Duration = Duration::from_millis(250);
/// The interval at which connections are checked for idle ones while there are too many. It is a little longer than the time after
/// which new ones are idle, so that those accepted just after a check are idle at the next one.
const CHECK_CROWD_EVERY: Duration = EXPECTED_WITHIN.saturating_add(Duration::from_millis(10));
/// The most time at shutdown to wait for the store to receive records and releases that are sent in the
/// background.
const FLUSHED_WITHIN: Duration = Duration::from_secs(1);

/// The state that all workers share.
#[derive(Clone)]
pub(super) struct WorkerContext {
    pub(super) settings: Arc<ArcSwap<ConnectionSettings>>,
    pub(super) slots: Arc<ConnectionSlots>,
    pub(super) gateway: Arc<ArcSwap<Gateway>>,
    pub(super) retired: RetiredGateways,
    pub(super) stage: watch::Receiver<Stage>,
    pub(super) status: Arc<Status>,
    pub(super) clients: Arc<Clients>,
}

/// The gateways that reloads have replaced. Requests that began before may keep them for hours, and each worker closes its
/// connections to servers that only they have.
pub(super) type RetiredGateways = Arc<Mutex<Vec<Weak<Gateway>>>>;

/// A worker that has been started.
pub(super) struct Started {
    pub(super) inbox: Inbox,
    pub(super) thread: thread::JoinHandle<()>,
    pub(super) runtime: Handle,
    /// Receives the result of trying to connect to the store.
    pub(super) is_ready: FirstConnection,
}

impl WorkerContext {
    /// Starts the worker thread with this index. `connections` is the number of its connections.
    ///
    /// # Errors
    /// The system provides no thread or runtime.
    pub(super) fn start_worker(&self, index: usize, connections: Arc<AtomicUsize>) -> io::Result<Started> {
        let (accepted, inbox) = mpsc::channel(ACCEPTED_MOST);
        let (ready, is_ready) = oneshot::channel();
        let worker = Builder::new_current_thread().enable_all().build()?;
        let (runtime, context) = (worker.handle().clone(), self.clone());
        let work = move || worker.block_on(run(index, context, inbox, ready));
        let thread = thread::Builder::new().name("worker".to_owned()).spawn(work)?;
        Ok(Started { inbox: Inbox { accepted, connections }, thread, runtime, is_ready })
    }
}

/// Serves accepted connections until the server ends.
async fn run(
    index: usize,
    context: WorkerContext,
    mut accepted: mpsc::Receiver<Accepted>,
    ready: oneshot::Sender<Result<(), StoreError>>,
) {
    let warm = context.gateway.load_full();
    // Requests are served meanwhile. Sending fails only if the server has failed to start.
    tokio::spawn(async move { ready.send(warm.warm_up().await) });

    let mut worker = Worker::new(index, &context);
    let WorkerContext { gateway, retired, mut stage, .. } = context;
    let [mut checks, mut crowd_checks] = [CHECK_EVERY, CHECK_CROWD_EVERY].map(|every| {
        let mut checks = interval(every);
        checks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        checks
    });
    loop {
        tokio::select! {
            Some(accepted) = accepted.recv() => worker.accept(accepted),
            Some(_) = worker.connections.join_next() => {}
            // A pattern that fails to match would disable this branch until another one completes, so it
            // matches any result.
            Some(identified) = worker.unidentified.join_next() => {
                if let Ok(Some(identified)) = identified {
                    identified(&mut worker);
                }
            }
            now = checks.tick() => {
                worker.close_late(now);
                worker.enforce_limit();
                gateway.load().close_idle();
                retired.lock().retain(|gateway| {
                    let gateway = gateway.upgrade();
                    gateway.inspect(|gateway| gateway.close_retired()).is_some()
                });
            }
            _ = crowd_checks.tick(), if worker.is_crowded => worker.enforce_limit(),
            Ok(()) = stage.changed() => match *stage.borrow() {
                Stage::Serving | Stage::NotListening => {}
                Stage::Closing => worker.end(),
                Stage::Ending => break,
            },
        }
    }
    worker.shut_down().await;
}

/// The state of a worker.
struct Worker {
    settings: Arc<ArcSwap<ConnectionSettings>>,
    slots: Arc<ConnectionSlots>,
    gateway: Arc<ArcSwap<Gateway>>,
    status: Arc<Status>,
    /// The connections whose proxies haven't stated the client yet. Draining closes them.
    unidentified: JoinSet<Option<Identified>>,
    connections: JoinSet<()>,
    /// The tasks of the HTTP/2 requests of each kind of peers.
    streams: [TaskTracker; PeerKind::ALL.len()],
    clients: Arc<Clients>,
    /// The number of this worker.
    index: usize,
    /// True if all slots were taken at the last check, or more than `max_connections` are open since.
    is_crowded: bool,
    /// True if connections are to be closed after the requests in flight.
    is_closing: bool,
}

/// A connection that isn't served yet.
struct Arrival {
    peer: SocketAddr,
    door: Door,
    kind: PeerKind,
    guard: ConnectionGuard,
}

/// Serves a connection after its client's address is known.
type Identified = Box<dyn FnOnce(&mut Worker) + Send>;

impl Worker {
    fn new(index: usize, context: &WorkerContext) -> Self {
        let WorkerContext { settings, slots, gateway, status, clients, .. } = context.clone();
        Self {
            settings,
            slots,
            gateway,
            status,
            unidentified: JoinSet::new(),
            connections: JoinSet::new(),
            streams: Default::default(),
            clients,
            index,
            is_crowded: false,
            is_closing: false,
        }
    }

    fn accept(&mut self, Accepted { stream, peer, door, kind, guard, is_surplus }: Accepted) {
        if is_surplus {
            self.is_crowded = true;
            self.clients.make_room(self.index, kind);
        }
        let (settings, arrival) = (self.settings.load_full(), Arrival { peer, door, kind, guard });
        let served = match stream {
            ClientStream::Tcp(stream) => TcpStream::from_std(stream).map(|stream| {
                let tls = settings.tls.at(door).map(|tls| tls.acceptor.clone());
                self.receive(stream, tls, arrival);
            }),
            ClientStream::Unix(stream) => UnixStream::from_std(stream).map(|stream| {
                // Boxed, so that everything below is compiled once for unix sockets and TLS.
                let stream: Box<dyn tollgate_http1::Stream> = Box::new(stream);
                self.receive(stream, None, arrival);
            }),
        };
        if let Err(error) = served {
            tracing::warn!("can't serve a connection: {error}");
        }
    }

    fn receive(
        &mut self,
        mut stream: impl tollgate_http1::Stream,
        tls: Option<TlsAcceptor>,
        arrival: Arrival,
    ) {
        let has_proxy_header =
            arrival.door == Door::Requests && self.gateway.load().expects_proxy_header(arrival.peer.ip());
        if !has_proxy_header {
            return self.serve(stream, tls, arrival);
        }
        let within = self.settings.load().timeouts.header;
        self.unidentified.spawn(async move {
            let peer = proxy_protocol::client(&mut stream, arrival.peer, within).await?;
            let serve = move |worker: &mut Self| worker.serve(stream, tls, Arrival { peer, ..arrival });
            Some(Box::new(serve) as Identified)
        });
    }

    fn serve(
        &mut self,
        stream: impl tollgate_http1::Stream,
        tls: Option<TlsAcceptor>,
        Arrival { peer, door, kind, guard }: Arrival,
    ) {
        let watch = Arc::new(Watch::new(guard.place().clone()));
        let connection = ClientConnection {
            peer,
            scheme: if tls.is_some() { "https" } else { "http" },
            door,
            kind,
            settings: self.settings.load_full(),
            gateway: self.gateway.clone(),
            status: self.status.clone(),
            watch: watch.clone(),
            clients: self.clients.clone(),
            streams: self.streams[kind as usize].clone(),
        };
        let (status, own_watch) = (self.status.clone(), watch.clone());
        let task = self.connections.spawn(async move {
            let mut served = pin!(async move {
                match tls {
                    // Boxed, so that other connections don't reserve its memory.
                    Some(tls) => Box::pin(connection.serve_tls(stream, tls)).await,
                    None => connection.serve(stream).await,
                }
            });
            // Dropped before the connection: a client that sees it closed may connect again at once.
            let guard = guard;
            poll_fn(|context| match served.as_mut().poll(context) {
                Poll::Pending => own_watch.poll_leave(context).map(|()| {
                    if !own_watch.is_ending() {
                        note_closed(peer, "room", &status);
                    }
                }),
                ended => ended,
            })
            .await;
            drop(guard);
        });
        if self.is_closing {
            watch.end();
        }
        self.clients.add(self.index, WatchedClient { peer, kind, watch, task });
    }

    /// Cuts off all connections, and sends what is left for the store.
    async fn shut_down(&mut self) {
        self.connections.shutdown().await;
        let flushed = async {
            // The requests end with their connections.
            for streams in &self.streams {
                streams.close();
                streams.wait().await;
            }
            self.gateway.load().flush().await;
        };
        if timeout(FLUSHED_WITHIN, flushed).await.is_err() {
            tracing::warn!("some records for the store couldn't be sent at shutdown and are lost");
        }
    }

    /// Closes all connections after the requests in flight.
    fn end(&mut self) {
        self.is_closing = true;
        self.unidentified.abort_all();
        self.clients.end(self.index);
    }

    /// Closes the connections of clients that are late.
    fn close_late(&self, now: Instant) {
        self.clients.close_late(self.index, self.settings.load().timeouts, now);
    }

    /// Closes this worker's share of the idle connections that are too many: a reload may have lowered the limit, or further ones can't
    /// even be accepted. Those that are accepted then make room on their own.
    fn enforce_limit(&mut self) {
        if self.is_closing {
            return;
        }
        for kind in PeerKind::ALL {
            let surplus = if self.slots.are_taken(kind) { BEYOND_MOST } else { self.slots.surplus(kind) };
            for _ in 0..surplus.div_ceil(self.status.workers()) {
                if !self.clients.make_room(self.index, kind) {
                    break;
                }
            }
        }
        self.is_crowded = PeerKind::ALL.into_iter().any(|kind| self.slots.are_taken(kind));
    }
}
