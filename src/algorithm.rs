//! An algorithm decides from numbers alone whether a bucket has room: no clock, no I/O.
//!
//! Each one is the twin of a file in lua/ and gives the same decision for the same state and the
//! same time. What calls them holds the state, the lock and the clock: [`crate::store`].

pub mod sliding_window;

use std::{fmt, str::FromStr};

use serde::Deserialize;

use crate::duration;

/// A rate compiled to numbers: at most `permits` in any window of `window_us`.
///
/// Written `N/DURATION`: `100/10s`, `5/s`, `60/min`, `1000/h`, `10000/day`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Deserialize)]
#[serde(try_from = "String")]
pub struct Quota {
    /// Permits in a window, from 1 to [`Quota::MAX_PERMITS`].
    pub permits: u32,
    /// Length of the window in microseconds, a whole number of milliseconds.
    pub window_us: u64,
}

impl Quota {
    /// The most permits a window can have, and so the greatest cost of a request.
    pub const MAX_PERMITS: u32 = i32::MAX as u32;
    /// The longest window: 366 days.
    pub const MAX_WINDOW_US: u64 = 366 * 24 * 3600 * 1_000_000;

    /// The window in whole seconds, if it is a whole number of them.
    pub fn window_seconds(self) -> Option<u64> {
        self.window_us.is_multiple_of(1_000_000).then_some(self.window_us / 1_000_000)
    }

    /// This gateway's share of the quota when `instances` count apart: `max(1, floor(L / instances))`.
    pub fn share(self, instances: u32) -> Self {
        Self { permits: (self.permits / instances).max(1), ..self }
    }
}

impl fmt::Display for Quota {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.permits, duration::Text(self.window_us))
    }
}

impl FromStr for Quota {
    type Err = String;

    /// The error is a message and, on a line of its own, the remedy.
    fn from_str(text: &str) -> Result<Self, String> {
        let malformed = || {
            format!(
                "`{text}` is no rate\nwrite permits, a slash and a duration: \"100/10s\", \"5/s\", \"60/min\""
            )
        };
        let (permits, window) = text.split_once('/').ok_or_else(malformed)?;
        let permits: u64 = permits.trim().parse().map_err(|_| malformed())?;
        let window_us = duration::parse_us(window.trim()).map_err(|_| malformed())?;
        if permits == 0 {
            return Err(format!(
                "`{text}` would refuse everybody\nuse at least 1 permit; to turn a path away, give its route a `respond`"
            ));
        }
        if permits > u64::from(Self::MAX_PERMITS) {
            return Err(format!("`{text}` has too many permits\nuse at most {}", Self::MAX_PERMITS));
        }
        if window_us == 0 || !window_us.is_multiple_of(1_000) {
            return Err(format!(
                "the window of `{text}` is no whole number of milliseconds\nuse 1ms or a multiple of it"
            ));
        }
        if window_us > Self::MAX_WINDOW_US {
            return Err(format!("the window of `{text}` is too long\nuse at most 366 days"));
        }
        Ok(Self { permits: permits as u32, window_us })
    }
}

impl TryFrom<String> for Quota {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_permits_in_a_window() {
        for (text, permits, window_us) in [
            ("100/10s", 100, 10_000_000),
            ("5/s", 5, 1_000_000),
            ("60/min", 60, 60_000_000),
            ("1000/h", 1000, 3_600_000_000),
            ("10000/day", 10_000, 86_400_000_000),
            ("1/500ms", 1, 500_000),
            ("7/1m 30s", 7, 90_000_000),
        ] {
            assert_eq!(text.parse(), Ok(Quota { permits, window_us }), "{text}");
        }
    }

    #[test]
    fn a_rate_that_cannot_be_kept_is_refused() {
        for text in [
            "",
            "5",
            "/s",
            "5/",
            "0/s",
            "-1/s",
            "1.5/s",
            "5/0s",
            "1/500us",
            "5/1.5ms",
            "9999999999/s",
            "5/2years",
            "5/M",
            "1/s/s",
        ] {
            assert!(text.parse::<Quota>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_quota_prints_as_it_is_written() {
        for text in ["100/10s", "5/s", "60/min", "1000/h", "10000/day", "1/500ms", "7/90s"] {
            assert_eq!(text.parse::<Quota>().map(|q| q.to_string()), Ok(text.to_owned()));
        }
    }

    #[test]
    fn a_share_is_never_zero() {
        let quota = Quota { permits: 5, window_us: 1_000 };
        assert_eq!(quota.share(2).permits, 2);
        assert_eq!(quota.share(9).permits, 1);
    }
}
