//! The number of open connections, and of those that are served.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed},
};

use arc_swap::ArcSwap;
use tokio::sync::Notify;

use super::{listener::Door, settings::ConnectionSettings};

/// The most connections beyond `max_connections`, whose clients get a 503. Further ones wait in the backlog.
const REJECTED_MOST: usize = 64;
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
    pub(super) fn at(door: Door) -> Self {
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
pub(super) struct ConnectionSlot(Arc<ServedPlace>);

/// A connection's place among those that are served, if it has one. Without it, its requests get a 503.
#[derive(Debug)]
pub(super) struct ServedPlace {
    slots: Arc<ConnectionSlots>,
    kind: PeerKind,
    is_taken: AtomicBool,
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
    pub(super) async fn take(self: &Arc<Self>, kind: PeerKind) -> ConnectionSlot {
        loop {
            let changed = self.changes.notified();
            if let Some(slot) = self.take_now(kind) {
                return slot;
            }
            changed.await;
        }
    }

    /// Takes a slot for a peer of this kind, if one is free.
    pub(super) fn take_now(self: &Arc<Self>, kind: PeerKind) -> Option<ConnectionSlot> {
        let most = self.most();
        let another = |taken| (taken < most).then_some(taken + 1);
        let taken = self.counts[kind as usize].taken.fetch_update(Relaxed, Relaxed, another);
        taken.ok()?;
        Some(ConnectionSlot(Arc::new(ServedPlace::new(self.clone(), kind))))
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

impl ServedPlace {
    pub(super) fn new(slots: Arc<ConnectionSlots>, kind: PeerKind) -> Self {
        Self { slots, kind, is_taken: false.into() }
    }

    pub(super) fn is_taken(&self) -> bool {
        self.is_taken.load(Relaxed)
    }

    /// Takes a place. Returns true if `max_connections` others have one.
    pub(super) fn take(&self) -> bool {
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

impl ConnectionSlot {
    pub(super) fn kind(&self) -> PeerKind {
        self.0.kind
    }

    pub(super) fn place(&self) -> &Arc<ServedPlace> {
        &self.0
    }
}

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        let ServedPlace { slots, kind, .. } = &*self.0;
        self.0.free();
        slots.counts[*kind as usize].taken.fetch_sub(1, Relaxed);
        slots.changes.notify_waiters();
    }
}
