//! The observable state of a server: draining, connections, and reloads.

use std::{
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed},
    },
    time::{SystemTime, UNIX_EPOCH},
};

use parking_lot::Mutex;
use tollgate_limiter::metrics::{CountsByWord, Page};

use crate::config::Expiry;

/// The reasons to close a client's connection: the head of a request was late; no further request; a response
/// wasn't read; most requests were cancelled; too many [frames without effect](super::frames); to make room
/// for another connection; or there was no room for this one.
const CLOSED_FOR: &[&str] = &["head", "request", "answer", "resets", "frames", "room", "surplus"];
/// The reasons why a request can't be read: the code of the problem in the response, or an HTTP/2 error that
/// ends the connection.
const UNREADABLE_FOR: &[&str] = &["request-malformed", "head-too-large", "target-too-long", "http2"];

/// The observable state of a server.
#[derive(Debug)]
pub struct Status {
    started: SystemTime,
    /// The certificates of the running configuration.
    expiries: Mutex<Vec<Expiry>>,
    is_draining: Arc<AtomicBool>,
    /// The number of open connections of each worker.
    connections: Vec<Arc<AtomicUsize>>,
    accepted: AtomicU64,
    accept_failures: AtomicU64,
    failed_handshakes: AtomicU64,
    closed: CountsByWord,
    unreadable: CountsByWord,
    reloads: Mutex<Reloads>,
    /// True while rules that come by xDS are up to date. Unset without such a feed.
    rules_feed: OnceLock<Arc<AtomicBool>>,
}

#[derive(Debug)]
struct Reloads {
    good: u64,
    bad: u64,
    last_good: SystemTime,
    last: Option<Reload>,
}

/// A finished reload.
#[derive(Clone, Debug)]
pub struct Reload {
    /// The time of the reload.
    pub time: SystemTime,
    /// The changes, or the errors of a configuration that was rejected.
    pub outcome: Result<Vec<String>, String>,
}

impl Status {
    /// Creates the state of a server that starts now.
    pub(crate) fn new(connections: Vec<Arc<AtomicUsize>>) -> Self {
        let (accepted, accept_failures, failed_handshakes) = Default::default();
        let reloads = Mutex::new(Reloads { good: 0, bad: 0, last_good: SystemTime::now(), last: None });
        let (closed, unreadable) = (CountsByWord::of(CLOSED_FOR), CountsByWord::of(UNREADABLE_FOR));
        Self {
            started: SystemTime::now(),
            expiries: Mutex::default(),
            is_draining: Arc::default(),
            connections,
            accepted,
            accept_failures,
            failed_handshakes,
            closed,
            unreadable,
            reloads,
            rules_feed: OnceLock::new(),
        }
    }

    /// Returns the time at which the server started.
    pub fn started(&self) -> SystemTime {
        self.started
    }

    /// Returns the expiry of the running configuration's certificates.
    pub fn expiries(&self) -> Vec<Expiry> {
        self.expiries.lock().clone()
    }

    /// Records the expiry of the running configuration's certificates.
    pub(crate) fn note_expiries(&self, expiries: Vec<Expiry>) {
        *self.expiries.lock() = expiries;
    }

    /// Records that the server drains.
    pub(super) fn note_draining(&self) {
        self.is_draining.store(true, Relaxed);
    }

    /// Returns true if a load balancer should send no more requests here.
    pub fn is_draining(&self) -> bool {
        self.is_draining.load(Relaxed)
    }

    /// Returns the flag that is set while the server drains.
    pub(super) fn drain_flag(&self) -> &Arc<AtomicBool> {
        &self.is_draining
    }

    /// Returns the number of open client connections.
    pub fn connections(&self) -> usize {
        self.connections.iter().map(|open| open.load(Relaxed)).sum()
    }

    /// Returns the number of workers.
    pub(super) fn workers(&self) -> usize {
        self.connections.len()
    }

    /// Returns the last reload, if there was any.
    pub fn last_reload(&self) -> Option<Reload> {
        self.reloads.lock().last.clone()
    }

    /// Returns whether the rules that come by xDS are up to date. `None` if none come so.
    pub fn rules_feed_is_up(&self) -> Option<bool> {
        self.rules_feed.get().map(|is_up| is_up.load(Relaxed))
    }

    /// Records the flag that is set while rules come by xDS.
    pub(crate) fn note_rules_feed(&self, is_up: Arc<AtomicBool>) {
        // There is one feed in a process.
        let _ = self.rules_feed.set(is_up);
    }

    pub(super) fn note_accepted(&self) {
        self.accepted.fetch_add(1, Relaxed);
    }

    pub(super) fn note_accept_failure(&self) {
        self.accept_failures.fetch_add(1, Relaxed);
    }

    /// Records a failed TLS handshake with a client.
    pub(super) fn note_failed_handshake(&self) {
        self.failed_handshakes.fetch_add(1, Relaxed);
    }

    /// Records that a client's connection is closed. The reason is one of [`CLOSED_FOR`].
    pub(super) fn note_closed(&self, reason: &str) {
        self.closed.add(reason);
    }

    /// Records a request that couldn't be read. The reason is one of [`UNREADABLE_FOR`].
    pub(super) fn note_unreadable(&self, reason: &str) {
        self.unreadable.add(reason);
    }

    /// Records the result of a reload.
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
        page.gauge("tollgate_connections", "Open client connections", self.connections());
        page.counter(
            "tollgate_connections_accepted",
            "Accepted client connections",
            self.accepted.load(Relaxed),
        );
        page.counter(
            "tollgate_accept_failures",
            "Failed attempts to accept a connection (for example: too many open files)",
            self.accept_failures.load(Relaxed),
        );
        page.counter(
            "tollgate_tls_handshake_failures",
            "Failed TLS handshakes with clients (for example: no client certificate)",
            self.failed_handshakes.load(Relaxed),
        );
        page.counters(
            "tollgate_connections_closed",
            "Client connections closed by the gateway because of inactivity, abuse or lack of room",
            self.closed.iter().map(|(reason, count)| ([("reason", reason)], count)),
        );
        page.counters(
            "tollgate_requests_unreadable",
            "Requests that couldn't be read: malformed, or the head is too large",
            self.unreadable.iter().map(|(reason, count)| ([("reason", reason)], count)),
        );
        page.gauge(
            "tollgate_draining",
            "1 while the server drains, otherwise 0",
            u32::from(self.is_draining()),
        );
        page.gauges(
            "tollgate_build_info",
            "The running version",
            [([("version", env!("CARGO_PKG_VERSION"))], 1_u32)],
        );
        if let Some(is_up) = self.rules_feed_is_up() {
            page.gauge(
                "tollgate_rules_feed_up",
                "1 while the management server is connected and its rules are in use, otherwise 0",
                u32::from(is_up),
            );
        }
        self.write_reloads(page);
    }

    fn write_reloads(&self, page: &mut Page<'_>) {
        let Reloads { good, bad, last_good, .. } = &*self.reloads.lock();
        page.counters(
            "tollgate_reloads",
            "Reloads of the configuration; after a bad one, the running configuration stays",
            [([("result", "good")], *good), ([("result", "bad")], *bad)],
        );
        let since = last_good.duration_since(UNIX_EPOCH).unwrap_or_default();
        page.gauge(
            "tollgate_configuration_time_seconds",
            "Time when the running configuration was read, in seconds since 1970",
            since.as_secs_f64(),
        );
    }
}
