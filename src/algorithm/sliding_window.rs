//! The sliding window, exactly: at most L permits in any window of length W, wherever it starts.
//!
//! Twin of lua/sliding_window.lua. The log of a bucket is its grants in order of time, each with the
//! running total of permits before it. What is used is the end of the newest less the beginning of
//! the oldest alive one, and a delay is a binary search, whatever the costs.

use std::collections::VecDeque;

use super::Quota;

/// Entries that a new log has room for.
const FIRST_CAPACITY: usize = 4;

/// The grants of one bucket. Times are microseconds of the store's clock.
#[derive(Debug, Default)]
pub struct Log {
    entries: VecDeque<Entry>,
    /// Permits granted since the log was empty: where the next entry begins.
    total: u64,
}

#[derive(Debug)]
struct Entry {
    at_us: u64,
    before: u64,
}

impl Log {
    /// An empty log with its first memory. (The default has none yet.)
    pub fn new() -> Self {
        Self { entries: VecDeque::with_capacity(FIRST_CAPACITY), total: 0 }
    }

    /// Drops what is dead at `time_us`: an entry is alive iff its time > now - W.
    ///
    /// The newest entry's time stands in for a clock that stepped back behind it.
    pub fn trim(&mut self, quota: Quota, time_us: u64) {
        let now = self.now(time_us);
        while self.entries.front().is_some_and(|entry| entry.at_us + quota.window_us <= now) {
            self.entries.pop_front();
        }
    }

    /// Permits in use, once what is dead has been [trimmed](Self::trim).
    pub fn used(&self) -> u64 {
        self.entries.front().map_or(0, |oldest| self.total - oldest.before)
    }

    /// Records a grant of `cost` permits.
    pub fn charge(&mut self, time_us: u64, cost: u32) {
        let at_us = self.now(time_us);
        if self.entries.back().is_none_or(|newest| newest.at_us < at_us) {
            if self.entries.len() == self.entries.capacity() {
                self.entries.reserve_exact(self.next_growth());
            }
            self.entries.push_back(Entry { at_us, before: self.total });
        }
        self.total += u64::from(cost);
    }

    /// Microseconds until the oldest alive entry ends, which is when there is more room; 0 if all is free.
    pub fn grow_us(&self, quota: Quota, time_us: u64) -> u64 {
        self.entries.front().map_or(0, |oldest| oldest.at_us + quota.window_us - time_us)
    }

    /// Microseconds until `cost` fits, 0 if it fits now: until U + n - L of the oldest permits have left.
    /// `None` if it never can, being more than the quota.
    pub fn delay_us(&self, quota: Quota, time_us: u64, cost: u32) -> Option<u64> {
        if cost > quota.permits {
            return None;
        }
        let excess = (self.used() + u64::from(cost)).saturating_sub(u64::from(quota.permits));
        if excess == 0 {
            return Some(0);
        }
        // The last entry that begins before the excess ends is the one whose leaving makes the room.
        let first = self.entries.front()?.before;
        let leaving = self.entries.partition_point(|entry| entry.before - first < excess) - 1;
        Some(self.entries[leaving].at_us + quota.window_us - time_us)
    }

    /// The newest entry's time, if there is one.
    pub fn newest_us(&self) -> Option<u64> {
        self.entries.back().map(|entry| entry.at_us)
    }

    /// Bytes of memory that the entries take, with the room kept for more.
    pub fn bytes(&self) -> usize {
        self.entries.capacity() * size_of::<Entry>()
    }

    /// The bytes by which a charge makes the log grow, at most.
    pub fn growth_bytes(&self) -> usize {
        let is_full = self.entries.len() == self.entries.capacity();
        if is_full { self.next_growth() * size_of::<Entry>() } else { 0 }
    }

    /// Gives back memory that a past burst left behind.
    pub fn shrink(&mut self) {
        self.entries.shrink_to_fit();
    }

    /// Entries for which to make room when there is none.
    fn next_growth(&self) -> usize {
        self.entries.capacity().max(FIRST_CAPACITY)
    }

    fn now(&self, time_us: u64) -> u64 {
        self.newest_us().map_or(time_us, |newest_us| newest_us.max(time_us))
    }
}

#[cfg(test)]
mod tests {
    use super::{super::Rate, *};

    fn quota(permits: u32, window_us: u64) -> Quota {
        Rate { permits, window_us }.into()
    }

    fn admit(log: &mut Log, quota: Quota, time_us: u64, cost: u32) -> Result<(), Option<u64>> {
        log.trim(quota, time_us);
        match log.delay_us(quota, time_us, cost) {
            Some(0) => {
                log.charge(time_us, cost);
                Ok(())
            }
            delay_us => Err(delay_us),
        }
    }

    #[test]
    fn an_entry_frees_at_exactly_its_time_plus_the_window() {
        let (mut log, quota) = (Log::default(), quota(1, 1_000_000));
        assert_eq!(admit(&mut log, quota, 5_000_000, 1), Ok(()));
        assert_eq!(admit(&mut log, quota, 5_999_999, 1), Err(Some(1)));
        assert_eq!(admit(&mut log, quota, 6_000_000, 1), Ok(()));
    }

    /// Not from the oldest entry, and not from the newest.
    #[test]
    fn the_delay_is_when_enough_permits_have_left() {
        let (mut log, quota) = (Log::default(), quota(5, 1_000_000));
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
        let mut log = Log::default();
        for at_ms in [0, 100, 200, 300] {
            assert_eq!(admit(&mut log, quota(4, 1_000_000), at_ms * 1_000, 1), Ok(()));
        }
        assert_eq!(log.delay_us(quota(2, 1_000_000), 400_000, 1), Some(800_000));
        assert_eq!(admit(&mut log, quota(5, 1_000_000), 400_000, 1), Ok(()));
    }

    #[test]
    fn a_clock_that_steps_back_makes_the_limiter_stricter() {
        let (mut log, quota) = (Log::default(), quota(2, 1_000_000));
        assert_eq!(admit(&mut log, quota, 9_000_000, 1), Ok(()));
        assert_eq!(admit(&mut log, quota, 4_000_000, 1), Ok(()));
        assert_eq!(admit(&mut log, quota, 4_000_001, 1), Err(Some(5_999_999)));
        assert_eq!(admit(&mut log, quota, 10_000_000, 2), Ok(()));
    }

    #[test]
    fn big_costs_are_single_entries() {
        let (mut log, quota) = (Log::default(), quota(1_000_000, 1_000_000));
        assert_eq!(admit(&mut log, quota, 1, 999_998), Ok(()));
        assert_eq!(admit(&mut log, quota, 2, 3), Err(Some(999_999)));
        assert_eq!(admit(&mut log, quota, 3, 2), Ok(()));
        assert_eq!(log.entries.len(), 2);
    }
}
