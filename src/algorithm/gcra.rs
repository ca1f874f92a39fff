//! The generic cell rate algorithm (ITU-T I.371), as the leaky bucket that is a meter: each permit adds to
//! a level that drains evenly, and the level has a bound. A token bucket of B tokens, seen from below.
//!
//! Twin of lua/gcra.lua. Up to B + L permits can pass within W. The level is in units of which a permit
//! adds W (as many as its microseconds) and a microsecond drains L; it may not exceed B * W.

use super::{Count, MOST_USED, Quota};

/// The greatest level: integers up to it are exact in Lua's numbers.
pub const MOST_LEVEL: u64 = 1 << 53;

/// How full a bucket is.
#[derive(Debug, Default)]
pub struct Meter {
    /// At the last grant. Looking changes nothing of it, as in Redis.
    granted: Level,
    /// At the last advance.
    now: Level,
}

#[derive(Clone, Copy, Debug, Default)]
struct Level {
    level: u64,
    at_us: u64,
    /// The W of the level's units; 0 if the bucket is new.
    window_us: u64,
}

impl Level {
    /// The level in another W's units: the permits outstanding stay, whole ones and the fraction.
    /// In floating point, by the same steps as in Lua.
    fn rescaled(self, window_us: u64) -> u64 {
        if self.window_us == window_us || self.window_us == 0 {
            return self.level;
        }
        let whole = (self.level / self.window_us) as f64 * window_us as f64;
        let fraction = (self.level % self.window_us) as f64 / self.window_us as f64;
        let level = whole + (fraction * window_us as f64).ceil();
        level.min(MOST_LEVEL as f64) as u64
    }
}

impl Meter {
    /// Microseconds until no more than `used` permits are in use.
    fn until_used(&self, used: u64, quota: Quota, time_us: u64) -> u64 {
        let excess = self.now.level.saturating_sub(used.saturating_mul(quota.window_us));
        excess.div_ceil(drained_in_1us(quota)) + self.now.at_us - time_us
    }
}

/// Where nothing passes, what is there drains as slowly as it can.
fn drained_in_1us(quota: Quota) -> u64 {
    u64::from(quota.permits.max(1))
}

impl Count for Meter {
    fn advance(&mut self, quota: Quota, time_us: u64) {
        // A clock that stepped back drains nothing.
        let at_us = self.granted.at_us.max(time_us);
        let drained = drained_in_1us(quota).saturating_mul(at_us - self.granted.at_us);
        let level = self.granted.rescaled(quota.window_us).saturating_sub(drained);
        self.now = Level { level, at_us, window_us: quota.window_us };
    }

    fn used(&self, quota: Quota) -> u64 {
        self.now.level.div_ceil(quota.window_us)
    }

    fn charge(&mut self, quota: Quota, time_us: u64, cost: u32) {
        if self.now.window_us == 0 {
            self.advance(quota, time_us);
        }
        let cost = u64::from(cost).min(MOST_USED.saturating_sub(self.used(quota)));
        if cost == 0 {
            return;
        }
        self.now.level = self.now.level.saturating_add(cost.saturating_mul(quota.window_us)).min(MOST_LEVEL);
        self.granted = self.now;
    }

    /// But for what may have drained of it.
    fn give_back(&mut self, quota: Quota, granted_us: u64, cost: u32) {
        let drained = drained_in_1us(quota).saturating_mul(self.now.at_us.saturating_sub(granted_us));
        let given = u64::from(cost).saturating_mul(quota.window_us).saturating_sub(drained);
        self.now.level = self.now.level.saturating_sub(given);
        self.granted = self.now;
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
        self.now.at_us + self.now.level.div_ceil(drained_in_1us(quota))
    }
}
