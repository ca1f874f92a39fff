//! Whether to ask a server.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};

use super::StoreError;

/// Failed calls in a row that open the breaker. A broken connection opens it at once.
const FAILURES_TO_OPEN: u32 = 3;

/// Closed while the server answers.
#[derive(Default)]
pub(super) struct Breaker {
    open: AtomicBool,
    failures: AtomicU32,
}

impl Breaker {
    pub(super) fn is_open(&self) -> bool {
        self.open.load(Relaxed)
    }

    /// Notes how a call ended. True if this opens the breaker: the caller then probes.
    pub(super) fn opened_by<T>(&self, call: &Result<T, StoreError>) -> bool {
        match call {
            Err(StoreError::Timeout) if self.failures.fetch_add(1, Relaxed) + 1 < FAILURES_TO_OPEN => false,
            Err(StoreError::Timeout | StoreError::Connection(_)) => !self.open.swap(true, Relaxed),
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
