//! Whether to ask a server.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};

use tokio::sync::Notify;

use super::StoreError;

/// Timeouts in a row that are too many.
const TIMEOUTS_MOST: u32 = 3;

/// Counts timeouts in a row: those of a server, or those of one connection, which may be broken alone.
#[derive(Default)]
pub(super) struct Timeouts(AtomicU32);

impl Timeouts {
    /// Notes how a call ended. True if these are too many now; they count anew then.
    pub(super) fn are_too_many_with<T>(&self, call: &Result<T, StoreError>) -> bool {
        let is_timeout = matches!(call, Err(StoreError::Timeout));
        if is_timeout && self.0.fetch_add(1, Relaxed) + 1 < TIMEOUTS_MOST {
            return false;
        }
        self.forget();
        is_timeout
    }

    fn forget(&self) {
        self.0.store(0, Relaxed);
    }
}

/// Closed while the server answers.
#[derive(Default)]
pub(super) struct Breaker {
    open: AtomicBool,
    timeouts: Timeouts,
    /// How often it has opened.
    openings: AtomicU64,
    opens: Notify,
}

impl Breaker {
    pub(super) fn is_open(&self) -> bool {
        self.open.load(Relaxed)
    }

    pub(super) fn openings(&self) -> u64 {
        self.openings.load(Relaxed)
    }

    /// Waits until it is open.
    pub(super) async fn opened(&self) {
        loop {
            let opens = self.opens.notified();
            if self.is_open() {
                return;
            }
            opens.await;
        }
    }

    /// Notes how a call ended. True if this opens the breaker: the caller then probes.
    pub(super) fn opened_by<T>(&self, call: &Result<T, StoreError>) -> bool {
        let is_broken = matches!(call, Err(StoreError::Connection(_)));
        let opens = (self.timeouts.are_too_many_with(call) || is_broken) && !self.open.swap(true, Relaxed);
        if opens {
            self.openings.fetch_add(1, Relaxed);
            self.opens.notify_waiters();
        }
        opens
    }

    pub(super) fn close(&self) {
        self.timeouts.forget();
        self.open.store(false, Relaxed);
    }
}
