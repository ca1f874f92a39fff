//! What is known of a server's health: whether to ask it, and what has been said of it.

use std::{
    sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed},
    time::{Duration, Instant},
};

use parking_lot::Mutex;

use super::StoreError;

/// Failed calls in a row that open the breaker. A broken connection opens it at once.
const FAILURES_TO_OPEN: u32 = 3;
/// Causes that are told in that time, each once: they may take turns, also with calls that succeed.
const SAID_MOST: usize = 16;
const SAY_AGAIN_AFTER: Duration = Duration::from_secs(60);

/// Closed while the server answers.
#[derive(Default)]
pub(super) struct Breaker {
    open: AtomicBool,
    failures: AtomicU32,
    /// How often it has opened.
    openings: AtomicU64,
}

impl Breaker {
    pub(super) fn is_open(&self) -> bool {
        self.open.load(Relaxed)
    }

    pub(super) fn openings(&self) -> u64 {
        self.openings.load(Relaxed)
    }

    /// Notes how a call ended. True if this opens the breaker: the caller then probes.
    pub(super) fn opened_by<T>(&self, call: &Result<T, StoreError>) -> bool {
        match call {
            Err(StoreError::Timeout) if self.failures.fetch_add(1, Relaxed) + 1 < FAILURES_TO_OPEN => false,
            Err(StoreError::Timeout | StoreError::Connection(_)) => {
                let opens = !self.open.swap(true, Relaxed);
                self.openings.fetch_add(opens.into(), Relaxed);
                opens
            }
            _ => {
                self.failures.store(0, Relaxed);
                false
            }
        }
    }

    pub(super) fn close(&self) {
        self.failures.store(0, Relaxed);
        self.open.store(false, Relaxed);
    }
}

/// What is wrong with a server, so that the log says it now and then and not at each attempt.
pub(super) struct Trouble {
    server: String,
    said: Mutex<Vec<(String, Instant)>>,
}

impl Trouble {
    pub(super) fn with(server: String) -> Self {
        Self { server, said: Mutex::default() }
    }

    pub(super) fn say(&self, trouble: String) {
        let mut said = self.said.lock();
        said.retain(|(_, at)| at.elapsed() < SAY_AGAIN_AFTER);
        if said.len() < SAID_MOST && said.iter().all(|(text, _)| *text != trouble) {
            tracing::warn!(server = self.server, "the store: {trouble}");
            said.push((trouble, Instant::now()));
        }
    }

    /// It has been mended: should it come again, it is news.
    pub(super) fn forget(&self) {
        self.said.lock().clear();
    }
}
