//! The demand of a key: the most permits that would have been in use if no request had been refused.
//!
//! That is the smallest rate that never refuses the key. With a smaller one, the use at the peak would exceed
//! the rate, unless an earlier request had been refused. This holds for all algorithms whose count doesn't
//! depend on the rate, so for all but `gcra`. There, the demand is the peak of a sliding window. `gcra` with
//! that rate and as much burst never refuses the key, but a smaller rate might be enough.

use tollgate_limiter::{Algorithm, Quota, algorithm::State, store::Act};

/// The number of cells per window once the memory for exact counts is used up.
const COARSE_CELLS: u32 = 16;

/// The permits in use by a key that is never refused.
#[derive(Debug)]
pub(super) struct Demand {
    state: State,
    /// The requests in flight. Used under `concurrency` only.
    running: u64,
    peak: u64,
}

/// The growth of memory use in bytes. Negative if memory was freed.
pub(super) type Growth = isize;

impl Demand {
    pub(super) fn new(algorithm: Algorithm) -> Self {
        Self { state: State::new(counted_as(algorithm)), running: 0, peak: 0 }
    }

    /// Counts a request that takes `cost` permits. A request that costs nothing until its response arrives
    /// still needs one free permit.
    pub(super) fn arrive(&mut self, quota: Quota, is_coarse: bool, time_us: u64, cost: u32) -> Growth {
        if quota.algorithm == Algorithm::Concurrency {
            self.running += 1;
            self.peak = self.peak.max(self.running);
            return 0;
        }
        let used = self.used(quota, time_us);
        self.peak = self.peak.max(used + u64::from(cost.max(1)));
        self.charge(quota, is_coarse, time_us, cost)
    }

    /// Counts permits that are charged, or given back, when the response arrives.
    pub(super) fn correct(&mut self, quota: Quota, is_coarse: bool, time_us: u64, act: Act) -> Growth {
        self.used(quota, time_us);
        match act {
            Act::Record(debt) => self.charge(quota, is_coarse, time_us, debt),
            Act::Refund(refund) => {
                let quota = Quota { algorithm: counted_as(quota.algorithm), ..quota };
                self.state.count_mut().give_back(quota, time_us, refund);
                0
            }
            _ => 0,
        }
    }

    /// Ends a request in flight.
    pub(super) fn end(&mut self) {
        self.running -= 1;
    }

    /// Returns the smallest rate that refuses nothing, in permits.
    pub(super) fn peak(&self) -> u64 {
        self.peak
    }

    fn used(&mut self, quota: Quota, time_us: u64) -> u64 {
        let quota = Quota { algorithm: counted_as(quota.algorithm), ..quota };
        let count = self.state.count_mut();
        count.advance(quota, time_us);
        count.used(quota)
    }

    fn charge(&mut self, quota: Quota, is_coarse: bool, time_us: u64, cost: u32) -> Growth {
        let algorithm = match counted_as(quota.algorithm) {
            same @ (Algorithm::FixedWindow | Algorithm::Calendar(_)) => same,
            _ if is_coarse => Algorithm::SlidingCells { cells: COARSE_CELLS },
            exact => exact,
        };
        let before = self.state.count().bytes();
        if cost > 0 {
            self.state.count_mut().charge(Quota { algorithm, ..quota }, time_us, cost);
        }
        self.state.count().bytes() as Growth - before as Growth
    }
}

fn counted_as(algorithm: Algorithm) -> Algorithm {
    match algorithm {
        Algorithm::Gcra { .. } => Algorithm::SlidingWindow,
        other => other,
    }
}
