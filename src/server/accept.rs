//! Accepting connections: each takes a slot, and goes to a worker.

use std::{
    io,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use arc_swap::ArcSwap;
use tokio::{
    select,
    sync::{Notify, mpsc, oneshot},
    time::{Instant, sleep},
};

use super::{
    Control, OpenListeners, Stage,
    listener::{ClientStream, Door, Entrance, Listener},
    settings::ConnectionSettings,
};

/// The most connections that are accepted from the backlog of a listener being closed. Few systems allow a
/// longer backlog.
const QUEUED_MOST: usize = 65_535;
/// The most connections beyond `max_connections`, whose clients get a 503. Further ones wait in the backlog.
const REJECTED_MOST: usize = 64;
/// The pause after accepting has failed, for example because of too many open files.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// The interval at which an ongoing problem is logged.
const LOG_AGAIN_AFTER: Duration = Duration::from_secs(60);

/// The kind of a connection's peer. None takes connections or requests from another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PeerKind {
    /// A client, which sends requests to be forwarded.
    Client,
    /// A caller of `[decisions]` that may ask.
    Caller,
    /// A caller of `[decisions]` that may only ask whether the gateway is healthy.
    Stranger,
}

impl PeerKind {
    pub(super) const ALL: [Self; 3] = [Self::Client, Self::Caller, Self::Stranger];

    /// Returns the kind of most peers at this door.
    fn at(door: Door) -> Self {
        match door {
            Door::Requests => Self::Client,
            Door::Decisions | Door::PlainDecisions => Self::Caller,
        }
    }
}

/// The slots for the connections of each [kind](PeerKind) of peers: `max_connections`, and some for those that get a 503.
#[derive(Debug)]
pub(super) struct ConnectionSlots {
    counts: [SlotCounts; PeerKind::ALL.len()],
    settings: Arc<ArcSwap<ConnectionSettings>>,
    changes: Notify,
}

#[derive(Debug, Default)]
struct SlotCounts {
    /// The slots of open connections, and of listeners that wait for their next one.
    taken: AtomicUsize,
    /// The slots of connections that are served, unlike those that get a 503.
    served: AtomicUsize,
}

/// A slot for a connection, in use until it is dropped.
pub(super) struct ConnectionSlot(Arc<Place>);

/// A connection's place among those that are served, if it has one. Without it, its requests get a 503.
#[derive(Debug)]
pub(super) struct Place {
    slots: Arc<ConnectionSlots>,
    kind: PeerKind,
    is_taken: AtomicBool,
}

/// The acceptors' view of a worker.
pub(super) struct Inbox {
    pub(super) accepted: mpsc::Sender<Accepted>,
    pub(super) connections: Arc<AtomicUsize>,
}

/// An accepted connection on its way to a worker.
pub(super) struct Accepted {
    pub(super) stream: ClientStream,
    pub(super) peer: SocketAddr,
    pub(super) door: Door,
    pub(super) kind: PeerKind,
    pub(super) guard: ConnectionGuard,
    /// True if `max_connections` others of this kind are served already.
    pub(super) is_surplus: bool,
}

/// Counts a connection for the server and for its worker until it is dropped.
pub(super) struct ConnectionGuard {
    connections: Arc<AtomicUsize>,
    slot: ConnectionSlot,
}

impl ConnectionGuard {
    /// Returns the place of the connection among those that are served.
    pub(super) fn place(&self) -> &Arc<Place> {
        &self.slot.0
    }
}

impl Drop for ConnectionGuard {
    fn drop(&mut self) {
        self.connections.fetch_sub(1, Relaxed);
    }
}

impl Control {
    pub(super) fn accept_from(
        self: &Arc<Self>,
        listeners: Vec<(Entrance, Listener)>,
        listening: &mut OpenListeners,
    ) {
        while listening.acceptors.try_join_next().is_some() {}
        for (entrance, listener) in listeners {
            let (close, closed) = oneshot::channel();
            listening.acceptors.spawn(self.clone().accept(listener, entrance.door, closed));
            listening.open.push((entrance, close));
        }
    }

    /// Accepts connections until the listener is closed.
    async fn accept(self: Arc<Self>, mut listener: Listener, door: Door, mut closed: oneshot::Receiver<()>) {
        let (mut log, mut stage) = (LogThrottle::default(), self.stage.subscribe());
        loop {
            let next = async {
                // Beyond all limits, connections wait in the listener's backlog.
                let slot = self.slots.take(PeerKind::at(door)).await;
                (listener.accept().await, slot)
            };
            let (accepted, slot) = select! {
                next = next => next,
                _ = stage.wait_for(|stage| *stage >= Stage::NotListening) => break,
                _ = &mut closed => break,
            };
            match accepted {
                Ok((stream, peer)) => {
                    self.status.note_accepted();
                    self.assign(stream, peer, door, slot).await;
                }
                // The client has already left.
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
                Err(error) => {
                    self.status.note_accept_failure();
                    if log.is_due() {
                        tracing::warn!(
                            "can't accept connections now: {error}\n\
                             if there are too many open files, raise the limit (`ulimit -n`) or lower server.max_connections"
                        );
                    }
                    sleep(ACCEPT_PAUSE).await;
                }
            }
        }
        // Connections in the backlog are served, since closing the socket would reset them.
        listener.hide();
        for _ in 0..QUEUED_MOST {
            let slot = self.slots.take(PeerKind::at(door)).await;
            match listener.accept_waiting().await {
                Some(Ok((stream, peer))) => {
                    self.status.note_accepted();
                    self.assign(stream, peer, door, slot).await;
                }
                Some(Err(_)) => {}
                None => break,
            }
        }
    }

    async fn assign(&self, stream: ClientStream, peer: SocketAddr, door: Door, slot: ConnectionSlot) {
        let may_ask =
            || self.gateway.load().admits_caller(peer.ip(), self.settings.load().tls.at(door).is_some());
        let slot = match slot.0.kind {
            PeerKind::Caller if !may_ask() => self.slots.take_now(PeerKind::Stranger),
            _ => Some(slot),
        };
        let Some(slot) = slot else { return self.status.note_closed("surplus") };
        let draw = || &self.inboxes[fastrand::usize(..self.inboxes.len())];
        let (one, other) = (draw(), draw());
        let inbox = if other.connections.load(Relaxed) < one.connections.load(Relaxed) { other } else { one };
        inbox.connections.fetch_add(1, Relaxed);
        let (kind, is_surplus) = (slot.0.kind, slot.0.take());
        let guard = ConnectionGuard { connections: inbox.connections.clone(), slot };
        if inbox.accepted.send(Accepted { stream, peer, door, kind, guard, is_surplus }).await.is_err() {
            tracing::error!("closed a connection because its worker has ended");
        }
    }
}

impl ConnectionSlots {
    pub(super) fn new(settings: Arc<ArcSwap<ConnectionSettings>>) -> Arc<Self> {
        Arc::new(Self { counts: Default::default(), settings, changes: Notify::new() })
    }

    /// Returns the number of slots that are taken.
    pub(super) fn taken(&self) -> usize {
        self.counts.iter().map(|counts| counts.taken.load(Relaxed)).sum()
    }

    /// Returns by how many the connections of a kind that are served exceed `max_connections`.
    pub(super) fn surplus(&self, kind: PeerKind) -> usize {
        self.counts[kind as usize].served.load(Relaxed).saturating_sub(self.settings.load().clients_most)
    }

    /// Returns true if all slots of a kind are taken, so that further connections wait in the backlog.
    pub(super) fn are_taken(&self, kind: PeerKind) -> bool {
        self.counts[kind as usize].taken.load(Relaxed) >= self.most()
    }

    /// Returns the number of slots of each kind.
    fn most(&self) -> usize {
        self.settings.load().clients_most + REJECTED_MOST
    }

    /// Lets acceptors look at the settings again.
    pub(super) fn note_settings_changed(&self) {
        self.changes.notify_waiters();
    }

    /// Waits for a free slot for a peer of this kind and takes it.
    async fn take(self: &Arc<Self>, kind: PeerKind) -> ConnectionSlot {
        loop {
            let changed = self.changes.notified();
            if let Some(slot) = self.take_now(kind) {
                return slot;
            }
            changed.await;
        }
    }

    /// Takes a slot for a peer of this kind, if one is free.
    fn take_now(self: &Arc<Self>, kind: PeerKind) -> Option<ConnectionSlot> {
        let most = self.most();
        let another = |taken| (taken < most).then_some(taken + 1);
        let taken = self.counts[kind as usize].taken.fetch_update(Relaxed, Relaxed, another);
        taken.ok()?;
        Some(ConnectionSlot(Arc::new(Place::new(self.clone(), kind))))
    }

    /// Waits until all slots are free.
    pub(super) async fn all_free(&self) {
        loop {
            let changed = self.changes.notified();
            if self.taken() == 0 {
                return;
            }
            changed.await;
        }
    }
}

impl Place {
    pub(super) fn new(slots: Arc<ConnectionSlots>, kind: PeerKind) -> Self {
        Self { slots, kind, is_taken: false.into() }
    }

    pub(super) fn is_taken(&self) -> bool {
        self.is_taken.load(Relaxed)
    }

    /// Takes a place. Returns true if `max_connections` others have one.
    fn take(&self) -> bool {
        self.is_taken.store(true, Relaxed);
        self.served().fetch_add(1, Relaxed) >= self.most()
    }

    /// Takes a place if one is free.
    pub(super) fn take_free(&self) -> bool {
        let another = |served| (served < self.most()).then_some(served + 1);
        let is_free = self.served().fetch_update(Relaxed, Relaxed, another).is_ok();
        self.is_taken.fetch_or(is_free, Relaxed);
        is_free
    }

    /// Takes the place of another connection.
    pub(super) fn take_from(&self, other: &Self) {
        other.is_taken.store(false, Relaxed);
        self.is_taken.store(true, Relaxed);
    }

    /// Frees the place, if it is taken.
    pub(super) fn free(&self) {
        if self.is_taken.swap(false, Relaxed) {
            self.served().fetch_sub(1, Relaxed);
        }
    }

    fn served(&self) -> &AtomicUsize {
        &self.slots.counts[self.kind as usize].served
    }

    fn most(&self) -> usize {
        self.slots.settings.load().clients_most
    }
}

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        let Place { slots, kind, .. } = &*self.0;
        self.0.free();
        slots.counts[*kind as usize].taken.fetch_sub(1, Relaxed);
        slots.changes.notify_waiters();
    }
}

/// Limits how often an ongoing problem is logged: at once, then at intervals.
#[derive(Default)]
pub(super) struct LogThrottle(Option<Instant>);

impl LogThrottle {
    pub(super) fn is_due(&mut self) -> bool {
        let is_due = self.0.is_none_or(|logged_at| logged_at.elapsed() >= LOG_AGAIN_AFTER);
        if is_due {
            self.0 = Some(Instant::now());
        }
        is_due
    }
}
