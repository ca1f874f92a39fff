//! The server accepts connections and hands each to a worker; it takes the signals.
//!
//! Workers are threads, each with a runtime, upstream connections and a store connection of its own:
//! nothing is handed between threads on the path of a request. A new connection goes to the worker
//! with fewer connections of two drawn at random, so that a few busy ones don't crowd one thread.
//!
//! SIGHUP reloads, SIGTERM and SIGINT drain: no new connections, requests in flight get their answers.
//! A second of these ends at once.

mod status;
mod worker;

use std::{
    fmt, io,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    thread,
    time::Duration,
};

use arc_swap::ArcSwap;
use tokio::{
    net::{TcpListener, TcpStream},
    runtime::Builder,
    signal::unix::{Signal, SignalKind, signal},
    sync::{OwnedSemaphorePermit, mpsc, oneshot},
    task::JoinSet,
    time::sleep,
};

pub use self::status::Status;
use crate::{config, gateway::Gateway};

/// Accepted connections that may wait for a worker to look at them.
const HANDED_OVER_MOST: usize = 1024;
/// How long to leave off when no connection can be accepted, as with too many open files.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Why the server can't start.
#[derive(Debug)]
pub enum StartError {
    /// An address can't be listened on.
    Listen(SocketAddr, io::Error),
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
    header_timeout: Duration,
    drain_timeout: Duration,
}

/// A server that listens, with its workers running.
pub struct Server {
    listeners: Vec<TcpListener>,
    inboxes: Arc<[Inbox]>,
    threads: Vec<thread::JoinHandle<()>>,
    gateway: Arc<ArcSwap<Gateway>>,
    status: Arc<Status>,
    hang_ups: Signal,
    terminations: Signal,
    interrupts: Signal,
}

/// A worker as the acceptors see it. It drains when all of them have let go of this.
struct Inbox {
    accepted: mpsc::Sender<Accepted>,
    connections: Arc<AtomicUsize>,
}

/// A connection on its way to its worker. It counts until it is dropped.
struct Accepted {
    stream: std::net::TcpStream,
    peer: SocketAddr,
    counted: Counted,
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
    /// An address that can't be listened on, or a system that gives no threads.
    pub async fn start(config: &config::Server, gateway: Gateway) -> Result<Self, StartError> {
        // First of all: until they are taken, these signals kill the process.
        let hang_ups = signal(SignalKind::hangup())?;
        let (terminations, interrupts) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
        let mut listeners = Vec::with_capacity(config.listen.len());
        for address in &config.listen {
            let listener = TcpListener::bind(address).await;
            listeners.push(listener.map_err(|cause| StartError::Listen(*address, cause))?);
        }
        let count = match config.workers {
            0 => thread::available_parallelism()?.get(),
            workers => workers,
        };
        let terms = Terms {
            max_header_bytes: config.max_header_bytes,
            header_timeout: config.header_timeout,
            drain_timeout: config.drain_timeout,
        };
        let gateway = Arc::new(ArcSwap::from_pointee(gateway));
        let (mut inboxes, mut threads, mut readies) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..count {
            let (accepted, inbox) = mpsc::channel(HANDED_OVER_MOST);
            let (ready, is_ready) = oneshot::channel();
            let (runtime, gateway) = (Builder::new_current_thread().enable_all().build()?, gateway.clone());
            let work = move || runtime.block_on(worker::work(terms, &gateway, inbox, ready));
            threads.push(thread::Builder::new().name("worker".to_owned()).spawn(work)?);
            inboxes.push(Inbox { accepted, connections: Arc::default() });
            readies.push(is_ready);
        }
        let mut unreachable = None;
        for is_ready in readies {
            unreachable = is_ready.await.map_err(io::Error::other)?.err().or(unreachable);
        }
        if let Some(error) = unreachable {
            tracing::warn!("starting without the store: {error}");
        }
        Ok(Self {
            listeners,
            inboxes: inboxes.into(),
            threads,
            gateway,
            status: Status::new(config.max_connections),
            hang_ups,
            terminations,
            interrupts,
        })
    }

    /// The addresses it listens on, with the ports that the system chose.
    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.listeners.iter().filter_map(|listener| listener.local_addr().ok()).collect()
    }

    /// The running gateway.
    pub fn gateway(&self) -> Arc<ArcSwap<Gateway>> {
        self.gateway.clone()
    }

    /// What it tells of itself.
    pub fn status(&self) -> Arc<Status> {
        self.status.clone()
    }

    /// Serves until it is told to end. On SIGHUP, `reload` may put another gateway in the running one's place.
    pub async fn run(mut self, mut reload: impl FnMut(&ArcSwap<Gateway>)) {
        let mut acceptors = JoinSet::new();
        for listener in self.listeners {
            acceptors.spawn(accept(listener, self.inboxes.clone(), self.status.clone()));
        }
        loop {
            tokio::select! {
                _ = self.hang_ups.recv() => reload(&self.gateway),
                _ = self.terminations.recv() => break,
                _ = self.interrupts.recv() => break,
            }
        }
        self.status.drain();
        tracing::info!("draining: requests in flight get their answers");
        acceptors.shutdown().await;
        drop(self.inboxes);
        // A thread of its own: one of the runtime's would keep the process from ending before it ends.
        let (drained, is_drained) = oneshot::channel::<()>();
        thread::spawn(move || {
            // One that panicked has nothing left to drain.
            self.threads.into_iter().for_each(|worker| drop(worker.join()));
            drop(drained);
        });
        tokio::select! {
            _ = is_drained => {}
            _ = self.terminations.recv() => tracing::warn!("ending at once"),
            _ = self.interrupts.recv() => tracing::warn!("ending at once"),
        }
    }
}

async fn accept(listener: TcpListener, inboxes: Arc<[Inbox]>, status: Arc<Status>) {
    loop {
        match listener.accept().await {
            Ok((stream, peer)) => {
                status.accepted.fetch_add(1, Relaxed);
                // At the bound this one waits, and those after it in the listener's backlog.
                let permit = status.connections.clone().acquire_owned().await;
                let permit = permit.expect("the semaphore is never closed");
                hand_over(stream, peer, permit, &inboxes).await;
            }
            Err(error) => {
                status.accept_failures.fetch_add(1, Relaxed);
                tracing::warn!("can't accept a connection: {error}");
                sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

async fn hand_over(stream: TcpStream, peer: SocketAddr, permit: OwnedSemaphorePermit, inboxes: &[Inbox]) {
    // Without it, an answer in two writes waits for the client's delayed acknowledgement.
    let prepared = stream.set_nodelay(true).and_then(|()| stream.into_std());
    let Ok(stream) = prepared else { return };
    let draw = || &inboxes[fastrand::usize(..inboxes.len())];
    let (one, other) = (draw(), draw());
    let inbox = if other.connections.load(Relaxed) < one.connections.load(Relaxed) { other } else { one };
    inbox.connections.fetch_add(1, Relaxed);
    let counted = Counted { connections: inbox.connections.clone(), _permit: permit };
    if inbox.accepted.send(Accepted { stream, peer, counted }).await.is_err() {
        tracing::error!("a worker has ended: a connection is closed unserved");
    }
}
