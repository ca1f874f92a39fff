//! The server accepts connections and hands each to a worker; it takes the signals.
//!
//! Workers are threads, each with a runtime, upstream connections and a store connection of its own:
//! nothing is handed between threads on the path of a request. A new connection goes to the worker
//! with fewer connections of two drawn at random, so that a few busy ones don't crowd one thread.
//!
//! SIGHUP reloads, SIGTERM and SIGINT drain, in the order of [`Stage`]; a second of these ends at once.

mod client;
mod connection;
mod files;
mod frames;
pub(crate) mod http1;
mod http2;
mod listener;
mod parting;
pub(crate) mod proxy_protocol;
mod status;
mod systemd;
mod terms;
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
use futures_util::future::join_all;
use tokio::{
    net::TcpListener,
    runtime::{Builder, Handle},
    select,
    signal::unix::{Signal, SignalKind, signal},
    sync::{Mutex, Notify, mpsc, oneshot, watch},
    task::JoinSet,
    time::{Instant, sleep, timeout, timeout_at},
};
use tollgate_limiter::StoreError;

pub use self::status::{Reload, Status};
use self::{
    listener::{Door, Entrance, Listener, Listeners, Stream},
    terms::{Terms, TlsOfDoors},
};
use crate::{
    config::{Config, ListenAddress},
    gateway::Gateway,
};

/// Accepted connections that may wait for a worker to look at them.
const HANDED_OVER_MOST: usize = 1024;
/// Connections from its backlog that a listener still accepts when it closes. Few systems allow a longer backlog.
const QUEUED_MOST: usize = 65_535;
/// Connections beyond `max_connections`, whose clients are told to come back. Any more wait in the backlog.
const TURNED_AWAY_MOST: usize = 64;
/// How long to leave off when no connection can be accepted, as with too many open files.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// How often trouble is told that goes on.
const SAY_AGAIN_AFTER: Duration = Duration::from_secs(60);
/// The most of a [notice](notice).
const NOTICE_MOST: Duration = Duration::from_secs(10);

/// Why the server can't start, or go by another configuration.
#[derive(Debug)]
pub enum StartError {
    /// An address can't be listened on.
    Listen(ListenAddress, io::Error),
    /// What the supervisor has handed on isn't a socket to listen on.
    Inherited(io::Error),
    /// The supervisor has handed on a socket of an address that the configuration doesn't name.
    Unnamed(ListenAddress),
    /// TLS can't be spoken as the configuration says.
    Tls(rustls::Error),
    /// It is about to end.
    Draining,
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
            Self::Tls(cause) => {
                write!(f, "can't speak TLS: {cause}\ngive other certificates in server.tls")
            }
            Self::Draining => f.write_str("the gateway is ending: start it anew"),
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
    addresses: Vec<ListenAddress>,
    decisions: Option<ListenAddress>,
    admin: Option<TcpListener>,
    crew: Crew,
    hang_ups: Signal,
    terminations: Signal,
    interrupts: Signal,
}

/// The workers, and how they end.
struct Crew {
    control: Arc<Control>,
    threads: Vec<thread::JoinHandle<()>>,
    runtimes: Vec<Handle>,
    is_draining: Arc<AtomicBool>,
    /// Operators have a listener, by which a balancer can see it.
    readiness_is_seen: bool,
}

/// What a reload changes of a server.
pub struct Control {
    gateway: Arc<ArcSwap<Gateway>>,
    terms: Arc<ArcSwap<Terms>>,
    places: Arc<Places>,
    inboxes: Arc<[Inbox]>,
    status: Arc<Status>,
    stage: watch::Sender<Stage>,
    listening: Mutex<Listening>,
}

/// The listeners that are accepted from.
#[derive(Default)]
struct Listening {
    /// Their entrances as the configuration has them. One that is dropped closes.
    open: Vec<(Entrance, oneshot::Sender<()>)>,
    acceptors: JoinSet<()>,
}

/// Places for connections: as many as there may be, and some for those who are told to come back.
struct Places {
    taken: AtomicUsize,
    terms: Arc<ArcSwap<Terms>>,
    changes: Notify,
}

/// A place for a connection, until it is dropped.
struct Place(Arc<Places>);

/// A worker as the acceptors see it.
struct Inbox {
    accepted: mpsc::Sender<Accepted>,
    connections: Arc<AtomicUsize>,
}

/// A connection on its way to its worker. It counts until it is dropped.
struct Accepted {
    stream: Stream,
    peer: SocketAddr,
    door: Door,
    counted: Counted,
    /// There are already as many as there may be.
    is_surplus: bool,
}

/// A place among the connections of the server and of a worker.
struct Counted {
    connections: Arc<AtomicUsize>,
    _place: Place,
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.connections.fetch_sub(1, Relaxed);
    }
}

impl Server {
    /// Listens, and starts the workers, which serve at once. They try to reach the store before this returns, but not longer
    /// than a call of it may take.
    ///
    /// # Errors
    /// An address that can't be listened on, a socket that was handed on in vain, or a system that gives no threads.
    pub async fn start(config: &Config, gateway: Gateway) -> Result<Self, StartError> {
        // First of all: until they are taken, these signals kill the process.
        let hang_ups = signal(SignalKind::hangup())?;
        let (terminations, interrupts) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
        let Listeners { open: listeners, admin } = Listeners::open(config).await?;
        let addresses = |door| {
            let of_door = listeners.iter().filter(move |(entrance, _)| entrance.door == door);
            of_door.filter_map(|(_, listener)| listener.address().ok())
        };
        let (addresses, decisions) = (addresses(Door::Requests).collect(), addresses(Door::Decisions).next());
        let server = &config.server;
        let count = match server.workers {
            0 => thread::available_parallelism()?.get(),
            workers => workers,
        };
        let tls = TlsOfDoors::new(config, None).map_err(StartError::Tls)?;
        let terms = Arc::new(ArcSwap::from_pointee(Terms::new(server, tls, &gateway, count)));
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
            let (terms, gateway) = (terms.clone(), gateway.clone());
            let (stage, status) = (is_at.clone(), status.clone());
            let work = move || runtime.block_on(worker::work(terms, &gateway, inbox, ready, stage, status));
            threads.push(thread::Builder::new().name("worker".to_owned()).spawn(work)?);
            inboxes.push(Inbox { accepted, connections });
            readies.push(is_ready);
        }
        let places = Places { taken: AtomicUsize::new(0), terms: terms.clone(), changes: Notify::new() };
        let control = Arc::new(Control {
            gateway,
            terms,
            places: Arc::new(places),
            inboxes: inboxes.into(),
            status,
            stage,
            listening: Mutex::default(),
        });
        control.accept_from(listeners, &mut *control.listening.lock().await);
        let reached = tokio::spawn(reach_store(readies));
        drop(timeout(config.store.timeout, reached).await);
        let readiness_is_seen = config.admin.is_some();
        let crew = Crew { control, threads, runtimes, is_draining, readiness_is_seen };
        Ok(Self { addresses, decisions, admin, crew, hang_ups, terminations, interrupts })
    }

    /// The addresses it listens on, with the ports that the system chose.
    pub fn addresses(&self) -> &[ListenAddress] {
        &self.addresses
    }

    /// Returns the address on which other proxies ask for decisions, with the port that the system chose.
    pub fn decisions_address(&self) -> Option<&ListenAddress> {
        self.decisions.as_ref()
    }

    /// What listens for operators, if anything is to. It can be had once.
    pub fn take_admin(&mut self) -> Option<TcpListener> {
        self.admin.take()
    }

    /// The running gateway.
    pub fn gateway(&self) -> Arc<ArcSwap<Gateway>> {
        self.crew.control.gateway.clone()
    }

    /// What it tells of itself.
    pub fn status(&self) -> Arc<Status> {
        self.crew.control.status.clone()
    }

    /// What has it go by another configuration.
    pub fn control(&self) -> Arc<Control> {
        self.crew.control.clone()
    }

    /// Serves until it is told to end. On SIGHUP, `reload` may have it go by another configuration.
    pub async fn run(self, mut reload: impl AsyncFnMut()) {
        let Self { crew, mut hang_ups, mut terminations, mut interrupts, .. } = self;
        tokio::spawn(systemd::watchdog(crew.runtimes.clone()));
        systemd::ready();
        loop {
            select! {
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
        select! {
            () = crew.drain() => {}
            _ = terminations.recv() => tracing::warn!("ending at once"),
            _ = interrupts.recv() => tracing::warn!("ending at once"),
        }
    }
}

/// Waits until all workers have tried to reach the store, and logs why one couldn't.
async fn reach_store(tries: Vec<oneshot::Receiver<Result<(), StoreError>>>) {
    // A worker that is gone has ended with the server.
    let mut tried = join_all(tries).await.into_iter().flatten();
    if let Some(error) = tried.find_map(Result::err) {
        tracing::warn!("starting without the store: {error}");
    }
}

impl Control {
    /// Has the server go by another configuration: with the gateway that is built in the running one's place, on other
    /// addresses if it names other ones. Those that aren't named any more are closed; who is connected by them is served.
    /// Must be called in the runtime that the server was started in.
    ///
    /// # Errors
    /// An address can't be listened on, TLS can't be spoken, or it is too late for a reload. Nothing has changed then.
    pub async fn reload(
        self: &Arc<Self>,
        config: &Config,
        build: impl FnOnce(&Gateway) -> Gateway,
    ) -> Result<(), StartError> {
        let mut listening = self.listening.lock().await;
        if self.status.is_draining() {
            return Err(StartError::Draining);
        }
        let tls = TlsOfDoors::new(config, Some(&self.terms.load().tls)).map_err(StartError::Tls)?;
        let mut unnamed: Vec<_> = listening.open.iter().map(|(entrance, _)| entrance.clone()).collect();
        let mut opened = Vec::new();
        for entrance in Entrance::all(config) {
            match unnamed.iter().position(|open| *open == entrance) {
                Some(place) => drop(unnamed.swap_remove(place)),
                None => {
                    let listener = Listener::open(&entrance.address, &mut Vec::new()).await?;
                    opened.push((entrance, listener));
                }
            }
        }
        let gateway = build(&self.gateway.load());
        let terms = Terms::new(&config.server, tls, &gateway, self.inboxes.len());
        self.gateway.store(Arc::new(gateway));
        self.terms.store(Arc::new(terms));
        self.places.changes.notify_waiters();
        for entrance in unnamed {
            if let Some(place) = listening.open.iter().position(|(open, _)| *open == entrance) {
                listening.open.swap_remove(place);
                tracing::info!("listens no more on {}", entrance.address);
            }
        }
        for (entrance, listener) in &opened {
            tracing::info!("listens on {}", listener.address().as_ref().unwrap_or(&entrance.address));
        }
        self.accept_from(opened, &mut listening);
        Ok(())
    }

    fn accept_from(self: &Arc<Self>, listeners: Vec<(Entrance, Listener)>, listening: &mut Listening) {
        while listening.acceptors.try_join_next().is_some() {}
        for (entrance, listener) in listeners {
            let (close, closed) = oneshot::channel();
            listening.acceptors.spawn(self.clone().accept(listener, entrance.door, closed));
            listening.open.push((entrance, close));
        }
    }

    /// Accepts connections until the listener is to be closed.
    async fn accept(self: Arc<Self>, mut listener: Listener, door: Door, mut closed: oneshot::Receiver<()>) {
        let (mut trouble, mut stage) = (NowAndThen::default(), self.stage.subscribe());
        loop {
            let next = async {
                // Beyond all bounds they wait in the listener's backlog.
                let place = self.places.take().await;
                (listener.accept().await, place)
            };
            let (accepted, place) = select! {
                next = next => next,
                _ = stage.wait_for(|stage| *stage >= Stage::Deaf) => break,
                _ = &mut closed => break,
            };
            match accepted {
                Ok((stream, peer)) => {
                    self.status.note_accepted();
                    self.hand_over(stream, peer, door, place).await;
                }
                // The client has gone already.
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
                Err(error) => {
                    self.status.note_accept_failure();
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
            let place = self.places.take().await;
            match listener.accept_waiting().await {
                Some(Ok((stream, peer))) => {
                    self.status.note_accepted();
                    self.hand_over(stream, peer, door, place).await;
                }
                Some(Err(_)) => {}
                None => break,
            }
        }
    }

    async fn hand_over(&self, stream: Stream, peer: SocketAddr, door: Door, place: Place) {
        let draw = || &self.inboxes[fastrand::usize(..self.inboxes.len())];
        let (one, other) = (draw(), draw());
        let inbox = if other.connections.load(Relaxed) < one.connections.load(Relaxed) { other } else { one };
        inbox.connections.fetch_add(1, Relaxed);
        let counted = Counted { connections: inbox.connections.clone(), _place: place };
        let is_surplus = self.status.connections() > self.terms.load().clients_most;
        if inbox.accepted.send(Accepted { stream, peer, door, counted, is_surplus }).await.is_err() {
            tracing::error!("a worker has ended: a connection is closed unserved");
        }
    }
}

impl Places {
    /// A place, as soon as there is one.
    async fn take(self: &Arc<Self>) -> Place {
        loop {
            let changed = self.changes.notified();
            let most = self.terms.load().clients_most + TURNED_AWAY_MOST;
            let another = |taken| (taken < most).then_some(taken + 1);
            if self.taken.fetch_update(Relaxed, Relaxed, another).is_ok() {
                return Place(self.clone());
            }
            changed.await;
        }
    }

    /// Waits until none is taken.
    async fn all_free(&self) {
        loop {
            let changed = self.changes.notified();
            if self.taken.load(Relaxed) == 0 {
                return;
            }
            changed.await;
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.taken.fetch_sub(1, Relaxed);
        self.0.changes.notify_waiters();
    }
}

impl Crew {
    /// Ends, within `timeouts.drain`, so that no client sees more of it than a connection that is closed before
    /// any byte of an answer.
    async fn drain(self) {
        let Control { places, listening, stage, terms, .. } = &*self.control;
        let drain_timeout = terms.load().drain_timeout;
        let (end, notice) = (Instant::now() + drain_timeout, notice(drain_timeout));
        let all_gone = async |until| timeout_at(until, places.all_free()).await;
        self.is_draining.store(true, Relaxed);
        tracing::info!("draining: requests in flight get their answers");
        if self.readiness_is_seen {
            sleep(notice).await;
        }
        stage.send_replace(Stage::Deaf);
        let mut listening = listening.lock().await;
        let acceptors = async { while listening.acceptors.join_next().await.is_some() {} };
        let _ = timeout_at(end - notice, acceptors).await;
        listening.acceptors.abort_all();
        let _ = all_gone(Instant::now() + notice).await;
        stage.send_replace(Stage::Closing);
        if all_gone(end - notice).await.is_err() {
            self.control.gateway.load().end_waits();
        }
        if all_gone(end).await.is_err() {
            let left = places.taken.load(Relaxed);
            tracing::warn!("requests in flight that were cut off at the end of the drain: {left}");
        }
        stage.send_replace(Stage::Ending);
        // A thread of its own: one of the runtime's would keep the process from ending before it ends.
        let (ended, have_ended) = oneshot::channel::<()>();
        let threads = self.threads;
        thread::spawn(move || {
            // One that panicked has nothing left to end.
            threads.into_iter().for_each(|worker| drop(worker.join()));
            drop(ended);
        });
        let _ = have_ended.await;
    }
}

/// Of a drain so long: how long balancers have to see that the gateway isn't ready, then idle clients to send one
/// more request, and in the end those to be answered who have waited for room in vain.
fn notice(drain: Duration) -> Duration {
    (drain / 10).min(NOTICE_MOST)
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
