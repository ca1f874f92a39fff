//! The time that the store takes to answer, as it was observed lately, and what follows from it for calls.
//!
//! While one call is in flight, operations gather for the next one. That is enough if two calls can follow each
//! other within the store's timeout. If the store is farther away, a call must leave behind others that are in flight:
//! as late as its oldest operation allows, so that it takes as many along as possible.

use std::{
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::Duration,
};

use tokio::time::Instant;

/// The least time for which an answer is remembered. The most is twice that, while others come.
const PERIOD: Duration = Duration::from_secs(1);
/// The time that an operation has beyond a round trip when it is sent.
const RESERVE: Duration = Duration::from_millis(5);
/// Calls in flight on a connection.
pub(super) const CALLS_MOST: usize = 16;

/// The longest round trip of the last one or two seconds.
pub(super) struct RoundTrip {
    timeout: Duration,
    begun: Instant,
    /// Microseconds: the longest of this period and of the one before it, 0 if there was none; and when this one began.
    longest_us: AtomicU64,
    before_us: AtomicU64,
    since_us: AtomicU64,
}

impl RoundTrip {
    /// Nothing has been observed yet.
    pub(super) fn unknown(timeout: Duration) -> Self {
        let (longest_us, before_us, since_us) = Default::default();
        Self { timeout, begun: Instant::now(), longest_us, before_us, since_us }
    }

    /// Returns the time that the store has for a call.
    pub(super) fn timeout(&self) -> Duration {
        self.timeout
    }

    /// Learns from a call that was answered now. What two threads tell at the turn of a period may get lost.
    pub(super) fn observe(&self, took: Duration) {
        let (took_us, now_us) = (microseconds(took).max(1), microseconds(self.begun.elapsed()));
        if now_us.saturating_sub(self.since_us.load(Relaxed)) >= microseconds(PERIOD) {
            self.since_us.store(now_us, Relaxed);
            self.before_us.store(self.longest_us.swap(took_us, Relaxed), Relaxed);
        } else if took_us > self.longest_us.load(Relaxed) {
            self.longest_us.fetch_max(took_us, Relaxed);
        }
    }

    /// The longest round trip that was observed lately, `None` before the first one.
    pub(super) fn observed(&self) -> Option<Duration> {
        let longest_us = self.longest_us.load(Relaxed).max(self.before_us.load(Relaxed));
        (longest_us > 0).then(|| Duration::from_micros(longest_us))
    }

    /// The round trip to reckon with: before the first one the longest that is of any use.
    fn expected(&self) -> Duration {
        self.observed().map_or(self.timeout, |observed| observed.min(self.timeout))
    }

    /// Returns the latest time at which an operation must be sent to be answered by its deadline.
    pub(super) fn send_by(&self, deadline: Instant) -> Instant {
        let needed = self.expected() + RESERVE.min(self.timeout / 10);
        deadline.checked_sub(needed).unwrap_or(deadline)
    }

    /// Returns true if operations can't wait for the call in flight, because a call of their own would be too late then.
    pub(super) fn is_far(&self) -> bool {
        2 * (self.expected() + RESERVE.min(self.timeout / 10)) > self.timeout
    }

    /// The least time between calls, by which there is always room for one more in flight.
    pub(super) fn pace(&self) -> Duration {
        self.expected() / CALLS_MOST as u32
    }
}

fn microseconds(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    const fn ms(milliseconds: u64) -> Duration {
        Duration::from_millis(milliseconds)
    }

    #[tokio::test(start_paused = true)]
    async fn the_longest_of_a_second_or_two_counts() {
        let trip = RoundTrip::unknown(ms(50));
        assert_eq!((trip.observed(), trip.is_far()), (None, true));
        for (took, longest) in [(3, 3), (24, 24), (2, 24)] {
            trip.observe(ms(took));
            assert_eq!(trip.observed(), Some(ms(longest)));
        }
        for longest in [24, 2] {
            advance(PERIOD).await;
            trip.observe(ms(2));
            assert_eq!(trip.observed(), Some(ms(longest)));
        }
        // It is all that is known, however long ago it was.
        advance(60 * PERIOD).await;
        assert_eq!(trip.observed(), Some(ms(2)));
    }

    #[tokio::test(start_paused = true)]
    async fn operations_wait_for_the_call_in_flight_only_if_another_can_follow_in_time() {
        let deadline = Instant::now() + ms(50);
        for (took, is_far, leaves_ms) in
            [(1, false, 44), (20, false, 25), (21, true, 24), (45, true, 0), (60, true, 0)]
        {
            let trip = RoundTrip::unknown(ms(50));
            trip.observe(ms(took));
            assert_eq!(trip.is_far(), is_far, "{took}");
            let leaves = trip.send_by(deadline).saturating_duration_since(Instant::now());
            assert_eq!(leaves, ms(leaves_ms), "{took}");
            assert!(trip.pace() * CALLS_MOST as u32 <= ms(took.min(50)), "{took}");
        }
    }
}
