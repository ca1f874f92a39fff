//! Windows one after the other: the first grant begins one, and all of it is free W after it.
//!
//! Twin of lua/fixed_window.lua. Up to 2L - 1 permits can pass within W, across an end.

use super::{Count, MOST_USED, Quota, Refund};

/// The window of the last grant.
#[derive(Debug, Default)]
pub struct Window {
    start_us: u64,
    used: u64,
    /// At the last advance. Looking changes nothing else, as in Redis.
    is_over: bool,
}

impl Count for Window {
    fn advance(&mut self, quota: Quota, time_us: u64) {
        self.is_over = self.start_us + quota.window_us <= time_us;
    }

    fn used(&self, _: Quota) -> u64 {
        if self.is_over { 0 } else { self.used }
    }

    fn charge(&mut self, quota: Quota, time_us: u64, cost: u32) {
        if self.used(quota) == 0 {
            *self = Self { start_us: time_us, used: 0, is_over: false };
        }
        self.used = (self.used + u64::from(cost)).min(MOST_USED);
    }

    fn give_back(&mut self, _: Quota, _: u64, Refund { permits, granted_us }: Refund) {
        if granted_us.is_none_or(|granted_us| self.start_us <= granted_us) {
            self.used = self.used.saturating_sub(u64::from(permits));
        }
    }

    fn grow_us(&self, quota: Quota, time_us: u64) -> u64 {
        if self.used(quota) == 0 { 0 } else { self.ends_us(quota) - time_us }
    }

    fn wait_us(&self, quota: Quota, time_us: u64, _: u32) -> u64 {
        self.grow_us(quota, time_us)
    }

    fn ends_us(&self, quota: Quota) -> u64 {
        self.start_us + quota.window_us
    }
}
