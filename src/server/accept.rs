//! Accepting connections: each takes a slot, and goes to a worker.

use std::{
    io, mem,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
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
pub(super) struct ConnectionSlots {
    counts: [SlotCounts; PeerKind::ALL.len()],
    settings: Arc<ArcSwap<ConnectionSettings>>,
    changes: Notify,
}

#[derive(Default)]
struct SlotCounts {
    /// The slots of open connections, and of listeners that wait for their next one.
    taken: AtomicUsize,
    /// The slots of connections that are served, unlike those that get a 503.
    served: AtomicUsize,
}

/// A slot for a connection, in use until it is dropped.
pub(super) struct ConnectionSlot {
    slots: Arc<ConnectionSlots>,
    kind: PeerKind,
    is_served: bool,
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
    /// Notes that the connection gets a 503, so that it takes no place of those that are served.
    pub(super) fn note_rejected(&mut self) {
        self.slot.end_serving();
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
        let slot = match slot.kind {
            PeerKind::Caller if !may_ask() => self.slots.take_now(PeerKind::Stranger),
            _ => Some(slot),
        };
        let Some(mut slot) = slot else { return self.status.note_closed("surplus") };
        let draw = || &self.inboxes[fastrand::usize(..self.inboxes.len())];
        let (one, other) = (draw(), draw());
        let inbox = if other.connections.load(Relaxed) < one.connections.load(Relaxed) { other } else { one };
        inbox.connections.fetch_add(1, Relaxed);
        let (kind, is_surplus) = (slot.kind, slot.begin_serving());
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
        taken.ok().map(|_| ConnectionSlot { slots: self.clone(), kind, is_served: false })
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

impl ConnectionSlot {
    /// Counts its connection as served. Returns true if there are already `max_connections` others.
    fn begin_serving(&mut self) -> bool {
        self.is_served = true;
        let others = self.slots.counts[self.kind as usize].served.fetch_add(1, Relaxed);
        others >= self.slots.settings.load().clients_most
    }

    fn end_serving(&mut self) {
        if mem::take(&mut self.is_served) {
            self.slots.counts[self.kind as usize].served.fetch_sub(1, Relaxed);
        }
    }
}

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        self.end_serving();
        self.slots.counts[self.kind as usize].taken.fetch_sub(1, Relaxed);
        self.slots.changes.notify_waiters();
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
