//! The server accepts connections, hands each to a worker, and handles signals.
//!
//! Workers are threads. Each has its own runtime, upstream connections and store connection, so a request
//! never crosses threads. A new connection goes to the less loaded of two random workers, so that one thread
//! doesn't get most of the busy connections.
//!
//! SIGHUP reloads the configuration. SIGTERM and SIGINT drain the server in the order of [`Stage`]; a second
//! one ends it at once.

mod accept;
mod client;
mod clients;
mod connection;
mod files;
mod frames;
mod health;
pub(crate) mod http1;
mod http2;
mod linger;
mod listener;
pub(crate) mod proxy_protocol;
mod settings;
mod slots;
mod start_error;
mod status;
mod systemd;
mod watched;
mod worker;
mod workers;

use std::sync::Arc;

use arc_swap::ArcSwap;
use futures_util::future::join_all;
use tokio::{
    net::TcpListener,
    select,
    signal::unix::{Signal, SignalKind, signal},
    sync::{Mutex, oneshot, watch},
    task::JoinSet,
    time::timeout,
};
use tollgate_limiter::StoreError;

use self::{
    accept::Inbox,
    listener::{Door, Entrance, Listener, Listeners},
    settings::{ConnectionSettings, TlsOfDoors},
    slots::ConnectionSlots,
    worker::RetiredGateways,
    workers::Workers,
};
pub use self::{
    start_error::StartError,
    status::{Reload, Status},
};
use crate::{
    config::{Config, ListenAddress},
    gateway::Gateway,
};

/// The stages of a shutdown. While the server drains, each response is the last of its connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Stage {
    /// Accepts connections. Draining may have begun.
    Serving,
    /// No longer listens. Idle connections have some time for one more request.
    NotListening,
    /// Closes idle connections.
    Closing,
    /// Cuts off requests still in flight.
    Ending,
}

/// A listening server with running workers.
pub struct Server {
    addresses: Vec<ListenAddress>,
    decisions: Option<ListenAddress>,
    admin: Option<TcpListener>,
    metrics: Option<TcpListener>,
    workers: Workers,
    hang_ups: Signal,
    terminations: Signal,
    interrupts: Signal,
}

/// The parts of a server that a reload changes.
pub struct Control {
    gateway: Arc<ArcSwap<Gateway>>,
    settings: Arc<ArcSwap<ConnectionSettings>>,
    slots: Arc<ConnectionSlots>,
    inboxes: Arc<[Inbox]>,
    retired: RetiredGateways,
    status: Arc<Status>,
    stage: watch::Sender<Stage>,
    listening: Mutex<OpenListeners>,
}

/// The open listeners.
#[derive(Default)]
struct OpenListeners {
    /// The configured entrances of the listeners. Dropping a sender closes its listener.
    open: Vec<(Entrance, oneshot::Sender<()>)>,
    acceptors: JoinSet<()>,
}

impl Server {
    /// Starts to listen, and starts the workers, which serve at once. Waits for them to try to connect to the
    /// store, but at most for the store's timeout.
    ///
    /// # Errors
    /// An address can't be listened on, a socket from the supervisor isn't configured, or the system provides
    /// no threads.
    pub async fn start(config: &Config, gateway: Gateway) -> Result<Self, StartError> {
        // This comes first, since these signals kill the process until they have handlers.
        let hang_ups = signal(SignalKind::hangup())?;
        let (terminations, interrupts) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
        let Listeners { open: listeners, admin, metrics } = Listeners::open(config).await?;
        let addresses = |door| {
            let of_door = listeners.iter().filter(move |(entrance, _)| entrance.door == door);
            of_door.filter_map(|(_, listener)| listener.address().ok())
        };
        let (addresses, decisions) = (addresses(Door::Requests).collect(), addresses(Door::Decisions).next());
        let (workers, readies) = Workers::start(config, gateway)?;
        let control = &workers.control;
        control.accept_from(listeners, &mut *control.listening.lock().await);
        let reached = tokio::spawn(reach_store(readies));
        drop(timeout(config.store.timeout, reached).await);
        Ok(Self { addresses, decisions, admin, metrics, workers, hang_ups, terminations, interrupts })
    }

    /// Returns the addresses that the server listens on, with the ports that the system chose.
    pub fn addresses(&self) -> &[ListenAddress] {
        &self.addresses
    }

    /// Returns the address on which other proxies ask for decisions, with the port that the system chose.
    pub fn decisions_address(&self) -> Option<&ListenAddress> {
        self.decisions.as_ref()
    }

    /// Takes the listener for operators, if one is configured. It can be taken once.
    pub fn take_admin(&mut self) -> Option<TcpListener> {
        self.admin.take()
    }

    /// Takes the listener for the metrics alone, if one is configured. It can be taken once.
    pub fn take_metrics(&mut self) -> Option<TcpListener> {
        self.metrics.take()
    }

    /// Returns the running gateway.
    pub fn gateway(&self) -> Arc<ArcSwap<Gateway>> {
        self.workers.control.gateway.clone()
    }

    /// Returns the state of the server.
    pub fn status(&self) -> Arc<Status> {
        self.workers.control.status.clone()
    }

    /// Returns the handle that applies another configuration.
    pub fn control(&self) -> Arc<Control> {
        self.workers.control.clone()
    }

    /// Serves until a signal ends the server. On SIGHUP, calls `reload`.
    pub async fn run(self, mut reload: impl AsyncFnMut()) {
        let Self { workers, mut hang_ups, mut terminations, mut interrupts, .. } = self;
        tokio::spawn(systemd::watchdog(workers.runtimes.clone()));
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
            () = workers.drain() => {}
            _ = terminations.recv() => tracing::warn!("exiting at once"),
            _ = interrupts.recv() => tracing::warn!("exiting at once"),
        }
    }
}

/// Receives the result of a worker's first connection to the store.
type FirstConnection = oneshot::Receiver<Result<(), StoreError>>;

/// Waits until all workers have tried to connect to the store, and logs the first error.
async fn reach_store(tries: Vec<FirstConnection>) {
    // A receiver fails only if its worker has ended with the server.
    let mut tried = join_all(tries).await.into_iter().flatten();
    if let Some(error) = tried.find_map(Result::err) {
        tracing::warn!("starting without the store: {error}");
    }
}

impl Control {
    /// Applies another configuration: replaces the gateway with the one that `build` returns, opens new
    /// listeners, and closes those whose address is no longer configured. Existing connections are kept. Must
    /// be called in the runtime in which the server was started.
    ///
    /// # Errors
    /// An address can't be listened on, the TLS settings can't be used, or the server is shutting down.
    /// Nothing has changed then.
    pub async fn reload(
        self: &Arc<Self>,
        config: &Config,
        build: impl FnOnce(&Gateway) -> Gateway,
    ) -> Result<(), StartError> {
        let mut listening = self.listening.lock().await;
        if self.status.is_draining() {
            return Err(StartError::Draining);
        }
        let tls = TlsOfDoors::new(config, Some(&self.settings.load().tls)).map_err(StartError::Tls)?;
        let mut unnamed: Vec<_> = listening.open.iter().map(|(entrance, _)| entrance.clone()).collect();
        let mut opened = Vec::new();
        for entrance in Entrance::all(config) {
            match unnamed.iter().position(|open| *open == entrance) {
                Some(place) => drop(unnamed.swap_remove(place)),
                None => {
                    let listener =
                        Listener::open(&entrance.address, config.server.reuse_port, &mut Vec::new()).await?;
                    opened.push((entrance, listener));
                }
            }
        }
        let before = self.gateway.load_full();
        let gateway = build(&before);
        self.retired.lock().push(Arc::downgrade(&before));
        let settings = ConnectionSettings::new(&config.server, tls, &gateway, self.inboxes.len());
        self.gateway.store(Arc::new(gateway));
        self.settings.store(Arc::new(settings));
        self.slots.note_settings_changed();
        for entrance in unnamed {
            if let Some(place) = listening.open.iter().position(|(open, _)| *open == entrance) {
                listening.open.swap_remove(place);
                tracing::info!("stopped listening on {}", entrance.address);
            }
        }
        for (entrance, listener) in &opened {
            tracing::info!("listening on {}", listener.address().as_ref().unwrap_or(&entrance.address));
        }
        self.accept_from(opened, &mut listening);
        Ok(())
    }
}
