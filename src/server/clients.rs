//! The clients of a worker, and which of them make room for others.

use std::{net::SocketAddr, sync::Arc};

use parking_lot::Mutex;
use tokio::{task::AbortHandle, time::Instant};

use super::{
    Status,
    client::{ClientTimeouts, Watch},
    slots::PeerKind,
};

/// The most connections that are compared to find the one that has been idle longest; comparing all would
/// take time.
const COMPARED_MOST: usize = 256;

/// The clients of a worker's connections. Those of closed ones are removed at the next check. One thread uses it, so the
/// lock is always free.
pub(super) struct Clients {
    list: Mutex<Vec<Client>>,
    status: Arc<Status>,
}

/// A client, and the task that serves it.
pub(super) struct Client {
    pub(super) peer: SocketAddr,
    pub(super) kind: PeerKind,
    pub(super) watch: Arc<Watch>,
    pub(super) task: AbortHandle,
}

impl Clients {
    pub(super) fn new(status: Arc<Status>) -> Self {
        Self { list: Mutex::default(), status }
    }

    pub(super) fn add(&self, client: Client) {
        self.list.lock().push(client);
    }

    /// Closes all connections after the requests in flight.
    pub(super) fn end(&self) {
        self.list.lock().iter().for_each(|client| client.watch.end());
    }

    /// Closes the connections of clients that are late.
    pub(super) fn close_late(&self, timeouts: ClientTimeouts, now: Instant) {
        self.list.lock().retain(|client| match client.watch.missed(timeouts, now) {
            _ if client.is_closed() => false,
            Some(missed) => !client.close(missed, &self.status),
            None => true,
        });
    }

    /// Returns true if some connections are to get a 503.
    pub(super) fn have_rejected(&self) -> bool {
        self.list.lock().iter().any(|client| client.watch.is_rejected() && !client.is_closed())
    }

    /// Closes the connections to peers of this kind that are to get a 503 and are idle.
    pub(super) fn close_rejected(&self, kind: PeerKind) {
        let list = self.list.lock();
        let rejected = list.iter().filter(|client| client.kind == kind && client.watch.is_rejected());
        let idle = rejected.filter(|client| client.watch.idle_since().is_some());
        idle.for_each(|client| client.watch.leave());
    }

    /// Closes the connection to a peer of this kind that has been idle longest, or else one of those that get a 503, unless its next
    /// request has come. Returns false if that makes no room: it was one of these, or none is idle.
    pub(super) fn make_room(&self, kind: PeerKind) -> bool {
        let list = self.list.lock();
        let idle = sample(&list, kind).filter_map(|client| {
            let watch = &client.watch;
            Some((watch.is_rejected(), watch.idle_since()?, watch))
        });
        let longest = idle.min_by_key(|(is_rejected, since, _)| (*is_rejected, *since));
        let Some((is_rejected, _, watch)) = longest else { return false };
        watch.leave();
        !is_rejected
    }

    /// Gives a connection whose request has come the place of the one to a peer of this kind that waits for a request longest.
    /// Returns false if none waits.
    pub(super) fn give_place(&self, kind: PeerKind, asking: &Watch) -> bool {
        let list = self.list.lock();
        let served = sample(&list, kind).filter(|client| !client.watch.is_rejected());
        let waiting = served.filter_map(|client| Some((client.watch.waits_since()?, &client.watch)));
        let longest = waiting.min_by_key(|(since, _)| *since);
        longest.map(|(_, waiting)| asking.take_place_of(waiting)).is_some()
    }
}

/// Returns some clients of this kind whose connections are open.
fn sample(list: &[Client], kind: PeerKind) -> impl Iterator<Item = &Client> {
    let from = fastrand::usize(..list.len().max(1));
    let all = list[from..].iter().chain(&list[..from]);
    all.filter(move |client| client.kind == kind && !client.is_closed()).take(COMPARED_MOST)
}

impl Client {
    /// Returns true if the connection has been closed: nothing else holds its watch.
    fn is_closed(&self) -> bool {
        Arc::strong_count(&self.watch) == 1
    }

    /// Closes the connection at once, or gracefully if the client can be informed over HTTP/2. Returns true
    /// if it is closed.
    fn close(&self, reason: &str, status: &Status) -> bool {
        if !self.watch.is_ending() {
            note_closed(self.peer, reason, status);
            if reason == "request" && self.watch.is_http2() {
                self.watch.end();
                return false;
            }
        }
        self.task.abort();
        true
    }
}

pub(super) fn note_closed(peer: SocketAddr, reason: &str, status: &Status) {
    tracing::debug!(%peer, reason, "closing a client's connection");
    status.note_closed(reason);
}
