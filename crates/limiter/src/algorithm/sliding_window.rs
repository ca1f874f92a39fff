//! The sliding window, exactly: at most L permits in any window of length W, wherever it starts.
//!
//! Twin of lua/sliding_window.lua. The log of a bucket is its grants in order of time, each with the
//! running total of permits before it. What is used is the end of the newest less the beginning of
//! the oldest alive one, and a delay is a binary search, whatever the costs.

use std::collections::VecDeque;

use super::{Algorithm, Count, MOST_USED, Quota, Refund, refundable, sliding_cells};

/// Entries that a log begins with room for.
const FIRST_CAPACITY: usize = 4;

/// The number of newest entries among which two are joined.
const JOINED_AMONG: usize = 64;

/// The grants of one bucket. No two have the same time: what is granted less than a cell (here of one
/// microsecond) after the newest one began is added to it, and it gets that time.
#[derive(Debug, Default)]
pub struct Log {
    entries: VecDeque<Entry>,
    /// Permits granted since the log was empty: where the next entry begins.
    total: u64,
    /// The time at which the newest entry's first permit was granted.
    newest_began_us: u64,
}

#[derive(Debug)]
struct Entry {
    at_us: u64,
    before: u64,
}

impl Log {
    fn newest_us(&self) -> Option<u64> {
        self.entries.back().map(|entry| entry.at_us)
    }

    /// Drops the oldest permits in use.
    fn drop_oldest(&mut self, permits: u32) {
        let used = self.entries.front().map_or(0, |oldest| self.total - oldest.before);
        let first = self.total - used + u64::from(permits).min(used);
        let ended = self.entries.iter().skip(1).take_while(|next| next.before <= first).count();
        self.entries.drain(..ended);
        if first == self.total {
            self.entries.clear();
        }
        if let Some(oldest) = self.entries.front_mut() {
            oldest.before = first;
        }
    }

    /// Joins those two of the newest entries between which the least time has passed.
    fn join_two(&mut self) {
        let first = self.entries.len().saturating_sub(JOINED_AMONG);
        let gap = |at: usize| self.entries[at + 1].at_us - self.entries[at].at_us;
        let closest = (first..self.entries.len().saturating_sub(1)).min_by_key(|at| gap(*at));
        if let Some(later) = closest.and_then(|at| self.entries.remove(at + 1).map(|later| (at, later))) {
            let (at, Entry { at_us, .. }) = later;
            self.entries[at].at_us = at_us;
        }
    }

    /// The newest entry's time stands in for a clock that stepped back behind it.
    fn now(&self, time_us: u64) -> u64 {
        self.newest_us().map_or(time_us, |newest_us| newest_us.max(time_us))
    }
}

impl Count for Log {
    /// An entry is alive iff its time > now - W.
    fn advance(&mut self, quota: Quota, time_us: u64) {
        let now = self.now(time_us);
        while self.entries.front().is_some_and(|entry| entry.at_us + quota.window_us <= now) {
            self.entries.pop_front();
        }
    }

    fn used(&self, _: Quota) -> u64 {
        self.entries.front().map_or(0, |oldest| self.total - oldest.before)
    }

    fn charge(&mut self, quota: Quota, time_us: u64, cost: u32) {
        let cost = u64::from(cost).min(MOST_USED - self.used(quota));
        if cost == 0 {
            return;
        }
        let at_us = self.now(time_us);
        let cell_us = match quota.algorithm {
            Algorithm::SlidingCells { cells } => sliding_cells::cell_us(quota.window_us, cells),
            Algorithm::Refundable { cells } => {
                refundable::cell_us(quota.window_us, cells, self.entries.len())
            }
            _ => 1,
        };
        match self.entries.back_mut() {
            Some(newest) if at_us - self.newest_began_us < cell_us => newest.at_us = at_us,
            _ => {
                if self.entries.len() == self.entries.capacity() {
                    self.entries.reserve_exact(self.entries.capacity().max(FIRST_CAPACITY));
                }
                self.entries.push_back(Entry { at_us, before: self.total });
                self.newest_began_us = at_us;
            }
        }
        self.total += cost;
    }

    /// Makes place for an entry by joining two neighbours, which then end with the later one.
    fn charge_in_place(&mut self, quota: Quota, time_us: u64, cost: u32) {
        if self.growth_bytes() > 0 {
            self.join_two();
        }
        self.charge(quota, time_us, cost);
    }

    fn give_back(&mut self, quota: Quota, time_us: u64, Refund { permits, granted_us }: Refund) {
        let Some(granted_us) = granted_us else { return self.drop_oldest(permits) };
        if granted_us + quota.window_us <= self.now(time_us) {
            return;
        }
        // The first entry that isn't older: a cell's time moves on as it takes more.
        let at = self.entries.partition_point(|entry| entry.at_us < granted_us);
        let Some(entry) = self.entries.get(at) else { return };
        let end = self.entries.get(at + 1).map_or(self.total, |next| next.before);
        let given = u64::from(permits).min(end - entry.before);
        let is_empty = given == end - entry.before;
        self.entries.iter_mut().skip(at + 1).for_each(|entry| entry.before -= given);
        self.total -= given;
        if is_empty {
            self.entries.remove(at);
            if at == self.entries.len() {
                // The one before it takes no more.
                self.newest_began_us = 0;
            }
        }
    }

    /// Returns the time until the oldest alive entry ends.
    fn grow_us(&self, quota: Quota, time_us: u64) -> u64 {
        self.entries.front().map_or(0, |oldest| oldest.at_us + quota.window_us - time_us)
    }

    /// Returns the time until U + n - L of the oldest permits have left.
    fn wait_us(&self, quota: Quota, time_us: u64, cost: u32) -> u64 {
        let excess = self.used(quota) + u64::from(cost) - u64::from(quota.permits);
        // The last entry that begins before the excess ends is the one whose leaving makes the room.
        let first = self.entries.front().map_or(0, |oldest| oldest.before);
        let leaving = self.entries.partition_point(|entry| entry.before - first < excess);
        leaving.checked_sub(1).map_or(0, |at| self.entries[at].at_us + quota.window_us - time_us)
    }

    fn ends_us(&self, quota: Quota) -> u64 {
        self.newest_us().map_or(0, |newest_us| newest_us + quota.window_us)
    }

    fn bytes(&self) -> usize {
        self.entries.capacity() * size_of::<Entry>()
    }

    fn growth_bytes(&self) -> usize {
        let is_full = self.entries.len() == self.entries.capacity();
        if is_full { self.entries.capacity().max(FIRST_CAPACITY) * size_of::<Entry>() } else { 0 }
    }

    fn shrink(&mut self) {
        // A bucket keeps its room for some more entries, also where there is no memory.
        if self.entries.len() < self.entries.capacity() / 2 {
            self.entries.shrink_to(FIRST_CAPACITY.max(2 * self.entries.len()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::{Rate, State},
        *,
    };

    fn quota(permits: u32, window_us: u64) -> Quota {
        Rate { permits, window_us }.into()
    }

    fn log() -> State {
        State::new(Algorithm::SlidingWindow)
    }

    fn admit(log: &mut State, quota: Quota, time_us: u64, cost: u32) -> Result<(), Option<u64>> {
        log.count_mut().advance(quota, time_us);
        match log.delay_us(quota, time_us, cost) {
            Some(0) => {
                log.count_mut().charge(quota, time_us, cost);
                Ok(())
            }
            delay_us => Err(delay_us),
        }
    }

    #[test]
    fn an_entry_frees_at_exactly_its_time_plus_the_window() {
        let (mut log, quota) = (log(), quota(1, 1_000_000));
        assert_eq!(admit(&mut log, quota, 5_000_000, 1), Ok(()));
        assert_eq!(admit(&mut log, quota, 5_999_999, 1), Err(Some(1)));
        assert_eq!(admit(&mut log, quota, 6_000_000, 1), Ok(()));
    }

    /// The delay counts neither from the oldest entry nor from the newest.
    #[test]
    fn the_delay_is_when_enough_permits_have_left() {
        let (mut log, quota) = (log(), quota(5, 1_000_000));
        for at_ms in [0, 100, 200, 300, 400] {
            assert_eq!(admit(&mut log, quota, at_ms * 1_000, 1), Ok(()));
        }
        for (cost, delay_ms) in [(1, 500), (2, 600), (5, 900)] {
            assert_eq!(log.delay_us(quota, 500_000, cost), Some(delay_ms * 1_000));
        }
        assert_eq!(log.delay_us(quota, 500_000, 6), None);
    }

    #[test]
    fn a_lowered_limit_counts_what_was_granted_before() {
        let mut log = log();
        for at_ms in [0, 100, 200, 300] {
            assert_eq!(admit(&mut log, quota(4, 1_000_000), at_ms * 1_000, 1), Ok(()));
        }
        assert_eq!(log.delay_us(quota(2, 1_000_000), 400_000, 1), Some(800_000));
        assert_eq!(admit(&mut log, quota(5, 1_000_000), 400_000, 1), Ok(()));
    }

    #[test]
    fn a_clock_that_steps_back_makes_the_limiter_stricter() {
        let (mut log, quota) = (log(), quota(2, 1_000_000));
        assert_eq!(admit(&mut log, quota, 9_000_000, 1), Ok(()));
        assert_eq!(admit(&mut log, quota, 4_000_000, 1), Ok(()));
        assert_eq!(admit(&mut log, quota, 4_000_001, 1), Err(Some(5_999_999)));
        assert_eq!(admit(&mut log, quota, 10_000_000, 2), Ok(()));
    }

    #[test]
    fn big_costs_are_single_entries() {
        let (mut log, quota) = (log(), quota(1_000_000, 1_000_000));
        assert_eq!(admit(&mut log, quota, 1, 999_998), Ok(()));
        assert_eq!(admit(&mut log, quota, 2, 3), Err(Some(999_999)));
        assert_eq!(admit(&mut log, quota, 3, 2), Ok(()));
        assert!(matches!(log, State::Log(Log { entries, .. }) if entries.len() == 2));
    }
}
