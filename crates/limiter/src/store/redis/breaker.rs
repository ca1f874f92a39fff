//! Whether to ask a server.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};

use parking_lot::Mutex;
use tokio::{sync::Notify, time::Instant};

use super::StoreError;

/// Timeouts in a row that are too many.
const TIMEOUTS_MOST: u32 = 3;

/// Counts timeouts in a row: those of a server, or those of one connection, which may be broken alone.
#[derive(Default)]
pub(super) struct Timeouts(AtomicU32);

impl Timeouts {
    /// Notes how a call ended. Returns true if these are too many now; then they are counted from 0 again.
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

/// Tells timeouts of a connection apart: calls that are in flight together meet the same silence.
#[derive(Default)]
pub(super) struct Silence {
    /// The time of the last timeout that told something new.
    noted_at: Mutex<Option<Instant>>,
}

impl Silence {
    /// Notes that a call which was sent then has timed out. Returns whether none that was in flight with it has before.
    pub(super) fn is_news(&self, sent: Instant) -> bool {
        let mut noted_at = self.noted_at.lock();
        let is_news = noted_at.is_none_or(|at| sent >= at);
        if is_news {
            *noted_at = Some(Instant::now());
        }
        is_news
    }
}

/// Closed while the server answers.
#[derive(Default)]
pub(super) struct Breaker {
    open: AtomicBool,
    timeouts: Timeouts,
    /// The number of times that the breaker has opened.
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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::advance;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn calls_that_are_in_flight_together_time_out_once() {
        const TIMEOUT: Duration = Duration::from_millis(50);
        let (silence, breaker) = (Silence::default(), Breaker::default());
        let times_out = |sent| silence.is_news(sent) && breaker.opened_by::<()>(&Err(StoreError::Timeout));
        // Sixteen calls, 3 ms apart, and the server stands still for a moment.
        let begin = Instant::now();
        let sent: Vec<Instant> = (0..16).map(|turn| begin + Duration::from_millis(3) * turn).collect();
        advance(TIMEOUT).await;
        for sent in sent {
            assert!(!times_out(sent));
            advance(Duration::from_millis(3)).await;
        }
        // Three of which each was sent after the one before had timed out.
        let next = Instant::now();
        advance(TIMEOUT).await;
        assert!(!times_out(next));
        let last = Instant::now();
        advance(TIMEOUT).await;
        assert!(times_out(last) && breaker.is_open());
    }
}
