//! Whether to ask a server.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};

use super::StoreError;

/// Timeouts in a row that are enough. A broken connection is enough by itself.
const TIMEOUTS_MOST: u32 = 3;

/// Counts timeouts in a row: those of a server, and those of one connection, which may be broken alone.
#[derive(Default)]
pub(super) struct Timeouts(AtomicU32);

impl Timeouts {
    /// Notes how a call ended. True if that is enough.
    fn are_enough_by<T>(&self, call: &Result<T, StoreError>) -> bool {
        match call {
            Err(StoreError::Timeout) => self.0.fetch_add(1, Relaxed) + 1 >= TIMEOUTS_MOST,
            Err(StoreError::Connection(_)) => true,
            _ => {
                self.forget();
                false
            }
        }
    }

    pub(super) fn forget(&self) {
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
}

impl Breaker {
    pub(super) fn is_open(&self) -> bool {
        self.open.load(Relaxed)
    }

    pub(super) fn openings(&self) -> u64 {
        self.openings.load(Relaxed)
    }

    /// Notes how a call on a connection ended. True if this opens the breaker: the caller then probes.
    pub(super) fn opened_by<T>(&self, call: &Result<T, StoreError>, of_connection: &Timeouts) -> bool {
        let is_enough = [&self.timeouts, of_connection].map(|timeouts| timeouts.are_enough_by(call));
        let opens = is_enough.contains(&true) && !self.open.swap(true, Relaxed);
        self.openings.fetch_add(opens.into(), Relaxed);
        opens
    }

    pub(super) fn close(&self) {
        self.timeouts.forget();
        self.open.store(false, Relaxed);
    }
}
