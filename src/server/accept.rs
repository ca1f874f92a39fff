//! Accepting connections: each takes a slot, and goes to a worker.

use std::{
    io,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use tokio::{
    select,
    sync::{mpsc, oneshot},
    time::{Instant, sleep},
};

use super::{
    Control, OpenListeners, Stage,
    listener::{ClientStream, Door, Entrance, Listener},
    slots::{ConnectionSlot, PeerKind, ServedPlace},
};

/// The most connections that are accepted from the backlog of a listener being closed. Few systems allow a
/// longer backlog.
const QUEUED_MOST: usize = 65_535;
/// The pause after accepting has failed, for example because of too many open files.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// The interval at which an ongoing problem is logged.
const LOG_AGAIN_AFTER: Duration = Duration::from_secs(60);

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
    /// True if there are more than `max_connections` of this kind.
    pub(super) is_surplus: bool,
}

/// Counts a connection for the server and for its worker until it is dropped.
pub(super) struct ConnectionGuard {
    connections: Arc<AtomicUsize>,
    slot: ConnectionSlot,
}

impl ConnectionGuard {
    /// Returns the place of the connection.
    pub(super) fn place(&self) -> &Arc<ServedPlace> {
        self.slot.place()
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
        let slot = match slot.kind() {
            PeerKind::Caller if !may_ask() => self.slots.take_now(PeerKind::Stranger),
            _ => Some(slot),
        };
        let Some(mut slot) = slot else { return self.status.note_closed("surplus") };
        let draw = || &self.inboxes[fastrand::usize(..self.inboxes.len())];
        let (one, other) = (draw(), draw());
        let inbox = if other.connections.load(Relaxed) < one.connections.load(Relaxed) { other } else { one };
        inbox.connections.fetch_add(1, Relaxed);
        let (kind, is_surplus) = (slot.kind(), slot.open());
        let guard = ConnectionGuard { connections: inbox.connections.clone(), slot };
        if inbox.accepted.send(Accepted { stream, peer, door, kind, guard, is_surplus }).await.is_err() {
            tracing::error!("closed a connection because its worker has ended");
        }
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
