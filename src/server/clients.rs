//! The clients whose connections are open, and which of them make room for others.
//!
//! A slot is for an open connection, a place for one that is served. A connection takes a place with its first request, so that
//! those that haven't asked don't keep out those who do. If no place is free, it takes that of a connection that waits.

use std::{net::SocketAddr, sync::Arc};

use parking_lot::{Mutex, MutexGuard};
use tokio::{task::AbortHandle, time::Instant};

use super::{
    Status,
    accept::LogThrottle,
    client::{ClientTimeouts, Watch},
    slots::PeerKind,
};

/// The most connections of a worker that are compared to find the one that waits longest; comparing all would take time.
const COMPARED_MOST: usize = 256;

/// The clients of all workers.
pub(super) struct Clients {
    /// The clients of each worker. Those whose connections are closed are removed at the next check. Other workers look here only
    /// if they need room.
    lists: Box<[Mutex<Vec<WatchedClient>>]>,
    status: Arc<Status>,
    full_log: Mutex<LogThrottle>,
}

/// A client, and the task that serves it.
pub(super) struct WatchedClient {
    pub(super) peer: SocketAddr,
    pub(super) kind: PeerKind,
    pub(super) watch: Arc<Watch>,
    pub(super) task: AbortHandle,
}

impl Clients {
    pub(super) fn new(status: Arc<Status>) -> Self {
        let lists = (0..status.workers()).map(|_| Mutex::default()).collect();
        Self { lists, status, full_log: Mutex::default() }
    }

    /// Adds a client of this worker.
    pub(super) fn add(&self, worker: usize, client: WatchedClient) {
        self.lists[worker].lock().push(client);
    }

    /// Returns the number of requests in flight.
    pub(super) fn requests_in_flight(&self) -> u32 {
        let of_each = |list: MutexGuard<'_, Vec<WatchedClient>>| -> u32 {
            list.iter().filter(|client| !client.is_closed()).map(|client| client.watch.in_flight()).sum()
        };
        self.from(0).map(of_each).sum()
    }

    /// Closes all connections of this worker after the requests in flight.
    pub(super) fn end(&self, worker: usize) {
        self.lists[worker].lock().iter().for_each(|client| client.watch.end());
    }

    /// Closes the connections of this worker's clients that are late.
    pub(super) fn close_late(&self, worker: usize, timeouts: ClientTimeouts, now: Instant) {
        self.lists[worker].lock().retain(|client| match client.watch.missed(timeouts, now) {
            _ if client.is_closed() => false,
            Some(missed) => !client.close(missed, &self.status),
            None => true,
        });
    }

    /// Closes the connection to a peer of this kind that has been idle longest, unless its next request has come. It is one of this
    /// worker if possible. Returns false if none is idle.
    pub(super) fn make_room(&self, worker: usize, kind: PeerKind) -> bool {
        let make_room = |list: MutexGuard<'_, Vec<WatchedClient>>| {
            let Some(client) = longest(&list, kind, Watch::idle_since) else { return false };
            if client.watch.leave() {
                note_closed(client.peer, "room", &self.status);
            }
            true
        };
        self.from(worker).any(make_room)
    }

    /// Takes a place for a request that has come, unless its connection has one: a free one, or that of the connection that waits
    /// longest. Returns false if there is none.
    pub(super) fn claim_place(&self, kind: PeerKind, asking: &Watch) -> bool {
        let take = |list: MutexGuard<'_, Vec<WatchedClient>>| {
            longest(&list, kind, Watch::waits_since).is_some_and(|client| asking.take_place_of(&client.watch))
        };
        let claims = asking.has_place()
            || asking.take_free_place()
            || self.from(fastrand::usize(..self.lists.len())).any(take);
        if !claims && asking.note_refused() {
            self.note_full(kind);
        }
        claims
    }

    fn note_full(&self, kind: PeerKind) {
        self.status.note_closed("surplus");
        if self.full_log.lock().is_due() {
            let others = match kind {
                PeerKind::Client => "clients",
                PeerKind::Caller => "callers of [decisions]",
                PeerKind::Stranger => "callers of [decisions] that may not ask",
            };
            tracing::warn!(
                "all connections are in use, so further {others} get 503\nraise server.max_connections"
            );
        }
    }

    /// Returns the clients of this worker, and then of the others.
    fn from(&self, worker: usize) -> impl Iterator<Item = MutexGuard<'_, Vec<WatchedClient>>> {
        let (before, rest) = self.lists.split_at(worker);
        rest.iter().chain(before).map(Mutex::lock)
    }
}

/// Returns the client of this kind, among some, for which `since` is earliest.
fn longest(
    list: &[WatchedClient],
    kind: PeerKind,
    since: impl Fn(&Watch) -> Option<Instant>,
) -> Option<&WatchedClient> {
    let draw = |at| if list.len() <= COMPARED_MOST { at } else { fastrand::usize(..list.len()) };
    let some = (0..list.len().min(COMPARED_MOST)).map(|at| &list[draw(at)]);
    let open = some.filter(|client| client.kind == kind && !client.is_closed());
    let waiting = open.filter_map(|client| Some((since(&client.watch)?, client)));
    waiting.min_by_key(|(since, _)| *since).map(|(_, client)| client)
}

impl WatchedClient {
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
