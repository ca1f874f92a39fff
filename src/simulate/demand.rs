//! What a key asked for, whether it got it or not: the permits that were in use at most, had all been granted.
//!
//! That is the smallest rate under which the key is never refused: below it, what is in use would exceed the rate at
//! the time of the peak, unless a request had been refused before. It holds for each algorithm whose count doesn't
//! depend on the rate, so for all but `gcra`. There it is the peak of a sliding window, which `gcra` with as much burst
//! as rate never refuses, but a smaller rate might do.

use crate::algorithm::{Algorithm, Quota, State};

/// Once there is no more memory for exact counts, requests in such a part of a window are one.
const COARSE_CELLS: u32 = 16;

/// The permits in use of a key that is never refused.
#[derive(Debug)]
pub(super) struct Demand {
    state: State,
    /// Under `concurrency`: requests in flight.
    running: u64,
    peak: u64,
}

/// How much of memory a change took, in bytes; it may be less than nothing.
pub(super) type Growth = isize;

impl Demand {
    pub(super) fn new(algorithm: Algorithm) -> Self {
        Self { state: State::new(counted_as(algorithm)), running: 0, peak: 0 }
    }

    /// A request that takes so many permits. With none at all it takes what it does when it has been answered, and
    /// needs one free until then.
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

    /// So many permits more, which its answer tells.
    pub(super) fn owe(&mut self, quota: Quota, is_coarse: bool, time_us: u64, debt: u32) -> Growth {
        self.used(quota, time_us);
        self.charge(quota, is_coarse, time_us, debt)
    }

    /// A request in flight that has ended.
    pub(super) fn end(&mut self) {
        self.running -= 1;
    }

    /// The smallest rate under which nothing is refused, in permits.
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
            Algorithm::FixedWindow => Algorithm::FixedWindow,
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
