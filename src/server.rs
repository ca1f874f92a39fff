//! The server accepts connections and hands each to a worker; it takes the signals.
//!
//! Workers are threads, each with a runtime, upstream connections and a store connection of its own:
//! nothing is handed between threads on the path of a request. A new connection goes to the worker
//! with fewer connections of two drawn at random, so that a few busy ones don't crowd one thread.
//!
//! SIGHUP reloads, SIGTERM and SIGINT drain, in the order of [`Stage`]; a second of these ends at once.

mod client;
mod files;
mod listener;
pub(crate) mod proxy_protocol;
mod status;
mod systemd;
mod worker;

use std::{
    fmt, io,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed},
    },
    thread,
    time::Duration,
};

use arc_swap::ArcSwap;
use tokio::{
    net::TcpListener,
    runtime::{Builder, Handle},
    signal::unix::{Signal, SignalKind, signal},
    sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot, watch},
    task::JoinSet,
    time::{Instant, error::Elapsed, sleep, timeout_at},
};

pub use self::status::{Reload, Status};
use self::{
    client::Patience,
    listener::{Listener, Listeners, Stream},
};
use crate::{
    config::{Config, ListenAddress},
    gateway::Gateway,
};

/// Accepted connections that may wait for a worker to look at them.
const HANDED_OVER_MOST: usize = 1024;
/// Connections that are accepted yet when a listener closes: as many as may wait in its backlog.
const QUEUED_MOST: usize = 1024;
/// Connections beyond `max_connections`, whose clients are told to come back. Any more wait in the backlog.
const TURNED_AWAY_MOST: usize = 64;
/// How long to leave off when no connection can be accepted, as with too many open files.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// How often trouble is told that goes on.
const SAY_AGAIN_AFTER: Duration = Duration::from_secs(60);
/// The most of a [notice](notice).
const NOTICE_MOST: Duration = Duration::from_secs(10);

/// Why the server can't start.
#[derive(Debug)]
pub enum StartError {
    /// An address can't be listened on.
    Listen(ListenAddress, io::Error),
    /// What the supervisor has handed on isn't a socket to listen on.
    Inherited(io::Error),
    /// The supervisor has handed on a socket of an address that the configuration doesn't name.
    Unnamed(ListenAddress),
    /// The system gives no threads or signals.
    System(io::Error),
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Listen(address, cause) => write!(
                f,
                "can't listen on `{address}`: {cause}\nname another address with --listen or server.listen"
            ),
            Self::Inherited(cause) => write!(
                f,
                "can't use what was handed on by LISTEN_FDS: {cause}\nhand on TCP and unix sockets that listen"
            ),
            Self::Unnamed(address) => write!(
                f,
                "a socket was handed on by LISTEN_FDS that nothing is to listen on: `{address}`\n\
                 write listen = \"{address}\" in [server] or [admin]"
            ),
            Self::System(cause) => write!(f, "can't start: {cause}"),
        }
    }
}

impl std::error::Error for StartError {}

impl From<io::Error> for StartError {
    fn from(cause: io::Error) -> Self {
        Self::System(cause)
    }
}

/// What the configuration says of connections. It holds until the next start.
#[derive(Clone, Copy, Debug)]
struct Terms {
    max_header_bytes: usize,
    patience: Patience,
}

/// How far a server is with its end. As long as it drains, each answer is the last of its connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Stage {
    /// It may drain already, and accepts connections.
    Serving,
    /// It doesn't listen any more. Connections that are idle have a while for one more request.
    Deaf,
    /// Idle connections are closed.
    Closing,
    /// What is still in flight is cut off.
    Ending,
}

/// A server that listens, with its workers running.
pub struct Server {
    listeners: Listeners,
    crew: Crew,
    hang_ups: Signal,
    terminations: Signal,
    interrupts: Signal,
}

/// The workers, and what they share with the acceptors.
struct Crew {
    gateway: Arc<ArcSwap<Gateway>>,
    inboxes: Arc<Inboxes>,
    threads: Vec<thread::JoinHandle<()>>,
    runtimes: Vec<Handle>,
    connections: Arc<Semaphore>,
    connections_most: usize,
    stage: watch::Sender<Stage>,
    is_draining: Arc<AtomicBool>,
    status: Arc<Status>,
    drain_timeout: Duration,
    /// Operators have a listener, by which a balancer can see it.
    readiness_is_seen: bool,
}

/// The workers as the acceptors see them.
struct Inboxes {
    all: Vec<Inbox>,
    clients_most: usize,
}

/// A worker as the acceptors see it.
struct Inbox {
    accepted: mpsc::Sender<Accepted>,
    connections: Arc<AtomicUsize>,
}

/// A connection on its way to its worker. It counts until it is dropped.
struct Accepted {
    stream: Stream,
    peer: SocketAddr,
    counted: Counted,
    /// There are already as many as there may be.
    is_surplus: bool,
}

/// A place among the connections of the server and of a worker.
struct Counted {
    connections: Arc<AtomicUsize>,
    _permit: OwnedSemaphorePermit,
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.connections.fetch_sub(1, Relaxed);
    }
}

impl Server {
    /// Listens, and starts the workers, which try to reach the store before this returns.
    ///
    /// # Errors
    /// An address that can't be listened on, a socket that was handed on in vain, or a system that gives no threads.
    pub async fn start(config: &Config, gateway: Gateway) -> Result<Self, StartError> {
        // First of all: until they are taken, these signals kill the process.
        let hang_ups = signal(SignalKind::hangup())?;
        let (terminations, interrupts) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
        let listeners = Listeners::open(config).await?;
        let server = &config.server;
        let count = match server.workers {
            0 => thread::available_parallelism()?.get(),
            workers => workers,
        };
        let patience = Patience { header: server.header_timeout, idle: server.idle_timeout };
        let terms = Terms { max_header_bytes: server.max_header_bytes, patience };
        let clients_most = files::clients_most(server.max_connections, gateway.upstream_connections_most());
        let gateway = Arc::new(ArcSwap::from_pointee(gateway));
        let (stage, is_at) = watch::channel(Stage::Serving);
        let is_draining = Arc::<AtomicBool>::default();
        let connections: Vec<Arc<AtomicUsize>> = (0..count).map(|_| Arc::default()).collect();
        let status = Arc::new(Status::new(is_draining.clone(), connections.clone()));
        let (mut inboxes, mut threads, mut runtimes, mut readies) =
            <(Vec<_>, Vec<_>, Vec<_>, Vec<_>)>::default();
        for connections in connections {
            let (accepted, inbox) = mpsc::channel(HANDED_OVER_MOST);
            let (ready, is_ready) = oneshot::channel();
            let runtime = Builder::new_current_thread().enable_all().build()?;
            runtimes.push(runtime.handle().clone());
            let (gateway, stage, status) = (gateway.clone(), is_at.clone(), status.clone());
            let work = move || runtime.block_on(worker::work(terms, &gateway, inbox, ready, stage, status));
            threads.push(thread::Builder::new().name("worker".to_owned()).spawn(work)?);
            inboxes.push(Inbox { accepted, connections });
            readies.push(is_ready);
        }
        let mut unreachable = None;
        for is_ready in readies {
            unreachable = is_ready.await.map_err(io::Error::other)?.err().or(unreachable);
        }
        if let Some(error) = unreachable {
            tracing::warn!("starting without the store: {error}");
        }
        let crew = Crew {
            gateway,
            inboxes: Arc::new(Inboxes { all: inboxes, clients_most }),
            status,
            threads,
            runtimes,
            connections: Arc::new(Semaphore::new(clients_most + TURNED_AWAY_MOST)),
            connections_most: clients_most + TURNED_AWAY_MOST,
            stage,
            is_draining,
            drain_timeout: server.drain_timeout,
            readiness_is_seen: config.admin.is_some(),
        };
        Ok(Self { listeners, crew, hang_ups, terminations, interrupts })
    }

    /// The addresses it listens on, with the ports that the system chose.
    pub fn addresses(&self) -> Vec<ListenAddress> {
        self.listeners.server.iter().filter_map(|listener| listener.address().ok()).collect()
    }

    /// What listens for operators, if anything is to. It can be had once.
    pub fn take_admin(&mut self) -> Option<TcpListener> {
        self.listeners.admin.take()
    }

    /// The running gateway.
    pub fn gateway(&self) -> Arc<ArcSwap<Gateway>> {
        self.crew.gateway.clone()
    }

    /// What it tells of itself.
    pub fn status(&self) -> Arc<Status> {
        self.crew.status.clone()
    }

    /// Serves until it is told to end. On SIGHUP, `reload` may put another gateway in the running one's place.
    pub async fn run(self, mut reload: impl AsyncFnMut()) {
        let Self { listeners, crew, mut hang_ups, mut terminations, mut interrupts } = self;
        let mut acceptors = JoinSet::new();
        for listener in listeners.server {
            let (inboxes, connections) = (crew.inboxes.clone(), crew.connections.clone());
            let (status, stage) = (crew.status.clone(), crew.stage.subscribe());
            acceptors.spawn(accept(listener, inboxes, connections, status, stage));
        }
        tokio::spawn(systemd::watchdog(crew.runtimes.clone()));
        systemd::ready();
        loop {
            tokio::select! {
                _ = hang_ups.recv() => {
                    systemd::reloading();
                    reload().await;
                    systemd::ready();
                }
                _ = terminations.recv() => break,
                _ = interrupts.recv() => break,
            }
        }
        systemd::stopping();
        tokio::select! {
            () = crew.drain(acceptors) => {}
            _ = terminations.recv() => tracing::warn!("ending at once"),
            _ = interrupts.recv() => tracing::warn!("ending at once"),
        }
    }
}

impl Crew {
    /// Ends, within `timeouts.drain`, so that no client sees more of it than a connection that is closed before
    /// any byte of an answer.
    async fn drain(self, mut acceptors: JoinSet<()>) {
        let (end, notice) = (Instant::now() + self.drain_timeout, notice(self.drain_timeout));
        self.is_draining.store(true, Relaxed);
        tracing::info!("draining: requests in flight get their answers");
        if self.readiness_is_seen {
            sleep(notice).await;
        }
        self.stage.send_replace(Stage::Deaf);
        let _ = timeout_at(end - notice, async { while acceptors.join_next().await.is_some() {} }).await;
        drop(acceptors);
        let _ = self.all_gone(Instant::now() + notice).await;
        self.stage.send_replace(Stage::Closing);
        if self.all_gone(end - notice).await.is_err() {
            self.gateway.load().end_waits();
        }
        if self.all_gone(end).await.is_err() {
            let left = self.connections_most - self.connections.available_permits();
            tracing::warn!("requests in flight that were cut off at the end of the drain: {left}");
        }
        self.stage.send_replace(Stage::Ending);
        // A thread of its own: one of the runtime's would keep the process from ending before it ends.
        let (ended, have_ended) = oneshot::channel::<()>();
        thread::spawn(move || {
            // One that panicked has nothing left to end.
            self.threads.into_iter().for_each(|worker| drop(worker.join()));
            drop(ended);
        });
        let _ = have_ended.await;
    }

    /// Waits until there are no connections any more, at most until then.
    async fn all_gone(&self, until: Instant) -> Result<(), Elapsed> {
        let all = self.connections.acquire_many(self.connections_most as u32);
        timeout_at(until, all).await.map(drop)
    }
}

/// Of a drain so long: how long balancers have to see that the gateway isn't ready, then idle clients to send one
/// more request, and in the end those to be answered who have waited for room in vain.
fn notice(drain: Duration) -> Duration {
    (drain / 10).min(NOTICE_MOST)
}

async fn accept(
    mut listener: Listener,
    inboxes: Arc<Inboxes>,
    connections: Arc<Semaphore>,
    status: Arc<Status>,
    mut stage: watch::Receiver<Stage>,
) {
    let mut trouble = NowAndThen::default();
    // Beyond all bounds they wait in the listener's backlog.
    let place = async || connections.clone().acquire_owned().await.expect("the semaphore is never closed");
    loop {
        let next = async {
            let permit = place().await;
            (listener.accept().await, permit)
        };
        let (accepted, permit) = tokio::select! {
            next = next => next,
            _ = stage.wait_for(|stage| *stage >= Stage::Deaf) => break,
        };
        match accepted {
            Ok((stream, peer)) => {
                status.note_accepted();
                hand_over(stream, peer, permit, &inboxes).await;
            }
            // The client has gone already.
            Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
            Err(error) => {
                status.note_accept_failure();
                if trouble.is_due() {
                    tracing::warn!(
                        "can't accept connections now: {error}\n\
                         if files have run out, raise their limit (`ulimit -n`) or lower server.max_connections"
                    );
                }
                sleep(ACCEPT_PAUSE).await;
            }
        }
    }
    // Who has connected by now is served: a socket that closes resets them.
    listener.hide();
    for _ in 0..QUEUED_MOST {
        let permit = place().await;
        match listener.accept_waiting().await {
            Some(Ok((stream, peer))) => {
                status.note_accepted();
                hand_over(stream, peer, permit, &inboxes).await;
            }
            Some(Err(_)) => {}
            None => break,
        }
    }
}

async fn hand_over(stream: Stream, peer: SocketAddr, permit: OwnedSemaphorePermit, inboxes: &Inboxes) {
    let Inboxes { all, clients_most } = inboxes;
    let draw = || &all[fastrand::usize(..all.len())];
    let (one, other) = (draw(), draw());
    let inbox = if other.connections.load(Relaxed) < one.connections.load(Relaxed) { other } else { one };
    inbox.connections.fetch_add(1, Relaxed);
    let counted = Counted { connections: inbox.connections.clone(), _permit: permit };
    let is_surplus = all.iter().map(|inbox| inbox.connections.load(Relaxed)).sum::<usize>() > *clients_most;
    if inbox.accepted.send(Accepted { stream, peer, counted, is_surplus }).await.is_err() {
        tracing::error!("a worker has ended: a connection is closed unserved");
    }
}

/// Whether to tell of trouble that goes on: at once, and then now and then.
#[derive(Default)]
struct NowAndThen(Option<Instant>);

impl NowAndThen {
    fn is_due(&mut self) -> bool {
        let is_due = self.0.is_none_or(|said_at| said_at.elapsed() >= SAY_AGAIN_AFTER);
        if is_due {
            self.0 = Some(Instant::now());
        }
        is_due
    }
}
