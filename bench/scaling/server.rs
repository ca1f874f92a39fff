//! The Redis of the model: one server with a queue, which is silent during a failure; and what a gateway knows of it.

use super::Parameters;

/// One server that works off calls in the order in which they were sent. The way there and back always takes the same time,
/// so when a call is sent, it is known when it will be served.
pub(super) struct Server {
    way_ns: u64,
    free_at: u64,
    /// During this time calls are lost, also those that wait then.
    silent: (u64, u64),
    call_ns: f64,
    bucket_ns: f64,
    equal_ns: f64,
}

/// The times of a call that is served.
pub(super) struct Served {
    pub(super) decided_at: u64,
    pub(super) answered_at: u64,
    pub(super) busy_ns: u64,
}

impl Server {
    pub(super) fn new(parameters: &Parameters, silent: (u64, u64)) -> Self {
        Self {
            way_ns: (parameters.round_trip_us * 500.0) as u64,
            free_at: 0,
            silent,
            call_ns: parameters.call_us * 1e3,
            bucket_ns: parameters.bucket_us * 1e3,
            equal_ns: parameters.equal_us * 1e3,
        }
    }

    /// Serves a call that is sent now, about so many buckets and further equal requests; `None` if it is lost.
    pub(super) fn serve(&mut self, now: u64, buckets: usize, equals: usize) -> Option<Served> {
        let ns = self.call_ns + self.bucket_ns * buckets as f64 + self.equal_ns * equals as f64;
        let decided_at = self.free_at.max(now + self.way_ns);
        let done_at = decided_at + ns as u64;
        let (from, until) = self.silent;
        if done_at > from && decided_at < until {
            return None;
        }
        self.free_at = done_at;
        Some(Served { decided_at, answered_at: done_at + self.way_ns, busy_ns: ns as u64 })
    }
}

/// The least time for which a round trip is remembered, and an operation's time beyond it:
/// crates/limiter/src/store/redis/round_trip.rs.
const PERIOD_NS: u64 = 1_000_000_000;
const RESERVE_NS: u64 = 5_000_000;
pub(super) const CALLS_MOST: u32 = 16;

/// The longest round trip that a gateway has seen in the last one or two seconds.
#[derive(Clone)]
pub(super) struct RoundTrip {
    pub(super) timeout: u64,
    longest: u64,
    before: u64,
    since: u64,
}

impl RoundTrip {
    pub(super) fn new(timeout: u64, first: u64) -> Self {
        Self { timeout, longest: first, before: 0, since: 0 }
    }

    pub(super) fn observe(&mut self, took: u64, now: u64) {
        if now - self.since >= PERIOD_NS {
            (self.since, self.before, self.longest) = (now, self.longest, took);
        }
        self.longest = self.longest.max(took);
    }

    fn needed(&self) -> u64 {
        self.longest.max(self.before).min(self.timeout) + RESERVE_NS.min(self.timeout / 10)
    }

    pub(super) fn is_far(&self) -> bool {
        2 * self.needed() > self.timeout
    }

    /// Returns the latest time at which a request of this arrival must be sent.
    pub(super) fn send_by(&self, arrival: u64) -> u64 {
        (arrival + self.timeout).saturating_sub(self.needed())
    }

    pub(super) fn pace(&self) -> u64 {
        self.longest.max(self.before).min(self.timeout) / u64::from(CALLS_MOST)
    }
}

/// A gateway's breaker: crates/limiter/src/store/redis/breaker.rs.
#[derive(Clone, Default)]
pub(super) struct Breaker {
    pub(super) is_open: bool,
    timeouts: u8,
}

impl Breaker {
    pub(super) fn answered(&mut self) {
        self.timeouts = 0;
    }

    /// Notes a timeout. Returns true if this opens it.
    pub(super) fn timed_out(&mut self) -> bool {
        self.timeouts += 1;
        let opens = self.timeouts >= 3 && !self.is_open;
        if opens {
            (self.timeouts, self.is_open) = (0, true);
        }
        opens
    }

    pub(super) fn close(&mut self) {
        *self = Self::default();
    }
}
