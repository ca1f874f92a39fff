//! What a server tells of itself: whether it drains, its connections, and its reloads.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    time::{SystemTime, UNIX_EPOCH},
};

use parking_lot::Mutex;
use tokio::sync::Semaphore;

use crate::metrics::Page;

/// Shared by the server with those who want to know.
#[derive(Debug)]
pub struct Status {
    draining: AtomicBool,
    pub(super) connections_most: usize,
    /// Places for connections.
    pub(super) connections: Arc<Semaphore>,
    pub(super) accepted: AtomicU64,
    pub(super) accept_failures: AtomicU64,
    reloads: Mutex<Reloads>,
}

#[derive(Debug)]
struct Reloads {
    good: u64,
    bad: u64,
    last_good: SystemTime,
}

impl Status {
    /// Of a server that has started just now.
    pub(super) fn new(connections_most: usize) -> Arc<Self> {
        Arc::new(Self {
            draining: AtomicBool::new(false),
            connections_most,
            connections: Arc::new(Semaphore::new(connections_most)),
            accepted: AtomicU64::new(0),
            accept_failures: AtomicU64::new(0),
            reloads: Mutex::new(Reloads { good: 0, bad: 0, last_good: SystemTime::now() }),
        })
    }

    /// Whether no new clients should come.
    pub fn is_draining(&self) -> bool {
        self.draining.load(Relaxed)
    }

    /// Says that no new clients should come.
    pub fn drain(&self) {
        self.draining.store(true, Relaxed);
    }

    /// Notes how a reload has ended.
    pub fn note_reload(&self, was_good: bool) {
        let mut reloads = self.reloads.lock();
        if was_good {
            reloads.good += 1;
            reloads.last_good = SystemTime::now();
        } else {
            reloads.bad += 1;
        }
    }

    /// Writes the metrics of the server.
    pub fn write(&self, page: &mut Page<'_>) {
        let open = self.connections_most - self.connections.available_permits();
        page.gauge("tollgate_connections", "Connections of clients that are open", open);
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
        let Reloads { good, bad, last_good } = &*self.reloads.lock();
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
