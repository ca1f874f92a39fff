//! The number of open connections, and of those that are served.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed},
};

use arc_swap::ArcSwap;
use tokio::sync::Notify;

use super::{listener::Door, settings::ConnectionSettings};

/// The most open connections beyond `max_connections`. Further ones wait in the backlog.
pub(super) const BEYOND_MOST: usize = 64;

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

/// The slots for the connections of each [kind](PeerKind) of peers: `max_connections`, and some more, which wait for a place or get a 503.
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
    /// The open connections.
    open: AtomicUsize,
    /// The taken places.
    served: AtomicUsize,
}

/// A slot for a connection, in use until it is dropped.
pub(super) struct ConnectionSlot {
    place: Arc<ServedPlace>,
    is_open: bool,
}

/// A connection's place among the `max_connections` that are served, if it has taken one.
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

    /// Returns by how many the connections of a kind that are served exceed `max_connections`, which a reload may have lowered.
    pub(super) fn surplus(&self, kind: PeerKind) -> usize {
        self.counts[kind as usize].served.load(Relaxed).saturating_sub(self.settings.load().clients_most)
    }

    /// Returns true if all slots of a kind are taken, so that further connections wait in the backlog.
    pub(super) fn are_taken(&self, kind: PeerKind) -> bool {
        self.counts[kind as usize].taken.load(Relaxed) >= self.most()
    }

    /// Returns the number of slots of each kind.
    fn most(&self) -> usize {
        self.settings.load().clients_most + BEYOND_MOST
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
        Some(ConnectionSlot { place: ServedPlace::new(self.clone(), kind).into(), is_open: false })
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

    /// Takes a place if one is free. Must not be called if it is taken.
    pub(super) fn take_free(&self) -> bool {
        let most = self.slots.settings.load().clients_most;
        let another = |served| (served < most).then_some(served + 1);
        let is_free = self.counts().served.fetch_update(Relaxed, Relaxed, another).is_ok();
        self.is_taken.store(is_free, Relaxed);
        is_free
    }

    /// Takes the place of another connection of this kind. Returns false if that has none.
    pub(super) fn take_from(&self, other: &Self) -> bool {
        let is_there = other.is_taken.swap(false, Relaxed);
        self.is_taken.fetch_or(is_there, Relaxed);
        is_there
    }

    /// Frees the place, if it is taken.
    pub(super) fn free(&self) {
        if self.is_taken.swap(false, Relaxed) {
            self.counts().served.fetch_sub(1, Relaxed);
        }
    }

    fn counts(&self) -> &SlotCounts {
        &self.slots.counts[self.kind as usize]
    }
}

impl ConnectionSlot {
    /// Records that its connection is open. Returns true if there are more than `max_connections` now.
    pub(super) fn open(&mut self) -> bool {
        self.is_open = true;
        let others = self.place.counts().open.fetch_add(1, Relaxed);
        others >= self.place.slots.settings.load().clients_most
    }

    pub(super) fn kind(&self) -> PeerKind {
        self.place.kind
    }

    /// Returns the place of the connection.
    pub(super) fn place(&self) -> &Arc<ServedPlace> {
        &self.place
    }
}

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        self.place.free();
        let counts = self.place.counts();
        counts.open.fetch_sub(self.is_open.into(), Relaxed);
        counts.taken.fetch_sub(1, Relaxed);
        self.place.slots.changes.notify_waiters();
    }
}
