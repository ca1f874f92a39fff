//! The generic cell rate algorithm (ITU-T I.371), as the leaky bucket that is a meter: each permit adds to
//! a level that drains evenly, and the level has a bound. A token bucket of B tokens, seen from below.
//!
//! Twin of lua/gcra.lua. Up to B + L permits can pass within W. The level is in units of which a permit
//! adds W (as many as its microseconds) and a microsecond drains L. Without debts it may not exceed B * W.

use super::{Count, MOST_USED, Quota, Refund};

/// The greatest level of a burst, and the longest delay in microseconds: integers up to it are exact in Lua's numbers.
pub(crate) const MOST_LEVEL: u64 = 1 << 53;

/// The level of a bucket.
#[derive(Debug, Default)]
pub struct Meter {
    /// At the last grant. Looking changes nothing of it, as in Redis.
    granted: Level,
    /// The W of that level's units; 0 if the bucket is new.
    granted_window_us: u64,
    /// At the last advance, in units of the quota's W.
    now: Level,
}

/// A level as whole permits and the units left over: with debts it is more than 64 bits hold.
#[derive(Clone, Copy, Debug, Default)]
struct Level {
    permits: u32,
    units: u64,
    at_us: u64,
}

impl Level {
    /// A level of so many units of this W, at most [`MOST_USED`] permits and a fraction.
    fn new(level: u128, window_us: u64, at_us: u64) -> Self {
        let window = u128::from(window_us.max(1));
        Self { permits: (level / window) as u32, units: (level % window) as u64, at_us }
    }

    /// The level in units of this W.
    fn units(self, window_us: u64) -> u128 {
        u128::from(self.permits) * u128::from(window_us) + u128::from(self.units)
    }
}

impl Meter {
    /// The level at the last grant in another W's units: the permits outstanding stay, whole ones and the fraction.
    /// The fraction in floating point, by the same steps as in Lua.
    fn rescaled(&self, window_us: u64) -> u128 {
        let Self { granted, granted_window_us, .. } = *self;
        if granted_window_us == window_us || granted_window_us == 0 {
            return granted.units(window_us);
        }
        let rest = (granted.units as f64 / granted_window_us as f64 * window_us as f64).ceil();
        u128::from(granted.permits) * u128::from(window_us) + rest as u128
    }

    /// Microseconds until no more than `used` permits are in use.
    fn until_used(&self, used: u64, quota: Quota, time_us: u64) -> u64 {
        let excess = self.now.units(quota.window_us).saturating_sub(units(used, quota));
        drain_us(excess, quota) + self.now.at_us - time_us
    }
}

/// Returns the level that drains in a microsecond: with a rate of 0, the least possible.
fn drained_in_1us(quota: Quota) -> u128 {
    u128::from(quota.permits.max(1))
}

/// Units that drain in so many microseconds.
fn drained(quota: Quota, us: u64) -> u128 {
    drained_in_1us(quota) * u128::from(us)
}

/// Microseconds in which so many units drain.
fn drain_us(units: u128, quota: Quota) -> u64 {
    units.div_ceil(drained_in_1us(quota)).min(u128::from(MOST_LEVEL)) as u64
}

/// Units that permits add.
fn units(permits: u64, quota: Quota) -> u128 {
    u128::from(permits) * u128::from(quota.window_us)
}

impl Count for Meter {
    fn advance(&mut self, quota: Quota, time_us: u64) {
        // A clock that stepped back drains nothing.
        let at_us = self.granted.at_us.max(time_us);
        let drained = drained(quota, at_us - self.granted.at_us);
        let level = self.rescaled(quota.window_us).saturating_sub(drained);
        self.now = Level::new(level, quota.window_us, at_us);
    }

    fn used(&self, _: Quota) -> u64 {
        u64::from(self.now.permits) + u64::from(self.now.units > 0)
    }

    fn charge(&mut self, quota: Quota, time_us: u64, cost: u32) {
        if self.now.at_us == 0 {
            self.advance(quota, time_us);
        }
        let cost = u64::from(cost).min(MOST_USED.saturating_sub(self.used(quota)));
        if cost == 0 {
            return;
        }
        self.now.permits += cost as u32;
        (self.granted, self.granted_window_us) = (self.now, quota.window_us);
    }

    /// But for what may have drained of it.
    fn give_back(&mut self, quota: Quota, _: u64, Refund { permits, granted_us }: Refund) {
        let level = self.now.units(quota.window_us);
        let drained_us = granted_us.map_or(0, |granted_us| self.now.at_us.saturating_sub(granted_us));
        let left = units(u64::from(permits), quota).saturating_sub(drained(quota, drained_us));
        if left.min(level) == 0 {
            return;
        }
        let left = level - left.min(level);
        self.now = Level::new(left, quota.window_us, self.now.at_us);
        // Nothing is left of an empty bucket, as in Redis.
        let is_empty = left == 0;
        self.granted = if is_empty { Level::default() } else { self.now };
        self.granted_window_us = if is_empty { 0 } else { quota.window_us };
    }

    fn grow_us(&self, quota: Quota, time_us: u64) -> u64 {
        match self.used(quota).min(u64::from(quota.capacity()).max(1)) {
            0 => 0,
            used => self.until_used(used - 1, quota, time_us),
        }
    }

    fn wait_us(&self, quota: Quota, time_us: u64, cost: u32) -> u64 {
        self.until_used(u64::from(quota.capacity() - cost), quota, time_us)
    }

    fn ends_us(&self, quota: Quota) -> u64 {
        self.now.at_us + drain_us(self.now.units(quota.window_us), quota)
    }
}
