//! What a server tells of itself: whether it drains, its connections, and its reloads.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed},
    },
    time::{SystemTime, UNIX_EPOCH},
};

use parking_lot::Mutex;
use tollgate_limiter::metrics::{CountsByWord, Page};

/// Reasons to close a client's connection: no head of a request came in time; no further request; none of a response was
/// taken; most requests were given up; too many [frames without effect](super::frames); to make room for another
/// connection; or there was no room for this one.
const CLOSED_FOR: &[&str] = &["head", "request", "answer", "resets", "frames", "room", "surplus"];
/// Reasons why a request can't be read: the codes of the problems that answer it, or a fault against HTTP/2 that ends
/// the connection.
const UNREADABLE_FOR: &[&str] = &["request-malformed", "head-too-large", "target-too-long", "http2"];

/// Shared by the server with those who want to know.
#[derive(Debug)]
pub struct Status {
    is_draining: Arc<AtomicBool>,
    /// Of each worker.
    connections: Vec<Arc<AtomicUsize>>,
    accepted: AtomicU64,
    accept_failures: AtomicU64,
    failed_handshakes: AtomicU64,
    closed: CountsByWord,
    unreadable: CountsByWord,
    reloads: Mutex<Reloads>,
}

#[derive(Debug)]
struct Reloads {
    good: u64,
    bad: u64,
    last_good: SystemTime,
    last: Option<Reload>,
}

/// A reload that has ended.
#[derive(Clone, Debug)]
pub struct Reload {
    /// When.
    pub time: SystemTime,
    /// What it changed, or what is wrong with the configuration, so that the running one stays.
    pub outcome: Result<Vec<String>, String>,
}

impl Status {
    /// Of a server that starts now.
    pub(crate) fn new(is_draining: Arc<AtomicBool>, connections: Vec<Arc<AtomicUsize>>) -> Self {
        let (accepted, accept_failures, failed_handshakes) = Default::default();
        let reloads = Mutex::new(Reloads { good: 0, bad: 0, last_good: SystemTime::now(), last: None });
        let (closed, unreadable) = (CountsByWord::of(CLOSED_FOR), CountsByWord::of(UNREADABLE_FOR));
        Self {
            is_draining,
            connections,
            accepted,
            accept_failures,
            failed_handshakes,
            closed,
            unreadable,
            reloads,
        }
    }

    /// Whether a balancer should send no more requests here.
    pub fn is_draining(&self) -> bool {
        self.is_draining.load(Relaxed)
    }

    /// Connections of clients that are open.
    pub fn connections(&self) -> usize {
        self.connections.iter().map(|open| open.load(Relaxed)).sum()
    }

    /// How many threads serve them.
    pub(super) fn workers(&self) -> usize {
        self.connections.len()
    }

    /// How the last reload ended, if there was any.
    pub fn last_reload(&self) -> Option<Reload> {
        self.reloads.lock().last.clone()
    }

    pub(super) fn note_accepted(&self) {
        self.accepted.fetch_add(1, Relaxed);
    }

    pub(super) fn note_accept_failure(&self) {
        self.accept_failures.fetch_add(1, Relaxed);
    }

    /// Notes that a client and the gateway didn't agree on TLS.
    pub(super) fn note_failed_handshake(&self) {
        self.failed_handshakes.fetch_add(1, Relaxed);
    }

    /// Notes that a client's connection is closed for a reason of [`CLOSED_FOR`].
    pub(super) fn note_closed(&self, reason: &str) {
        self.closed.add(reason);
    }

    /// Notes that a request couldn't be read for a reason of [`UNREADABLE_FOR`].
    pub(super) fn note_unreadable(&self, reason: &str) {
        self.unreadable.add(reason);
    }

    /// Notes how a reload has ended.
    pub fn note_reload(&self, outcome: Result<Vec<String>, String>) {
        let (mut reloads, time) = (self.reloads.lock(), SystemTime::now());
        if outcome.is_ok() {
            reloads.good += 1;
            reloads.last_good = time;
        } else {
            reloads.bad += 1;
        }
        reloads.last = Some(Reload { time, outcome });
    }

    /// Writes the metrics of the server.
    pub fn write(&self, page: &mut Page<'_>) {
        page.gauge("tollgate_connections", "Connections of clients that are open", self.connections());
        page.counter(
            "tollgate_connections_accepted",
            "Connections of clients that were accepted",
            self.accepted.load(Relaxed),
        );
        page.counter(
            "tollgate_accept_failures",
            "Attempts to accept a connection that failed, as with too many open files",
            self.accept_failures.load(Relaxed),
        );
        page.counter(
            "tollgate_tls_handshake_failures",
            "Connections of clients on which TLS wasn't agreed on, as for want of a certificate",
            self.failed_handshakes.load(Relaxed),
        );
        page.counters(
            "tollgate_connections_closed",
            "Connections of clients that were closed as clients did nothing in time, or for want of room",
            self.closed.iter().map(|(reason, count)| ([("reason", reason)], count)),
        );
        page.counters(
            "tollgate_requests_unreadable",
            "Requests that couldn't be read: malformed, or with too large a head",
            self.unreadable.iter().map(|(reason, count)| ([("reason", reason)], count)),
        );
        let Reloads { good, bad, last_good, .. } = &*self.reloads.lock();
        page.counters(
            "tollgate_reloads",
            "Reloads of the configuration; after a bad one the running configuration stays",
            [([("result", "good")], *good), ([("result", "bad")], *bad)],
        );
        let since = last_good.duration_since(UNIX_EPOCH).unwrap_or_default();
        page.gauge(
            "tollgate_configuration_time_seconds",
            "When the running configuration was read, in seconds since 1970",
            since.as_secs_f64(),
        );
        page.gauge("tollgate_draining", "Whether the server drains", u32::from(self.is_draining()));
        page.gauges(
            "tollgate_build_info",
            "The version that runs",
            [([("version", env!("CARGO_PKG_VERSION"))], 1_u32)],
        );
    }
}
