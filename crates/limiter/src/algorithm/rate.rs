//! Rates: permits per time.

use std::{fmt, str::FromStr};

use super::calendar;
use crate::duration;

/// A number of permits per time, as people write it: `100/10s`, `5/s`, `60/min`, `1000/h`, `10000/day`.
///
/// # Examples
///
/// ```
/// use tollgate_limiter::Rate;
///
/// # fn main() -> Result<(), String> {
/// let rate: Rate = "100/10s".parse()?;
/// assert_eq!((rate.permits, rate.window_us, rate.to_string()), (100, 10_000_000, "100/10s".to_owned()));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Rate {
    /// Permits in a window, from 1 to [`Rate::MAX_PERMITS`].
    pub permits: u32,
    /// Length of the window in microseconds, a whole number of milliseconds.
    pub window_us: u64,
}

impl Rate {
    /// The most permits a window can have, and so the greatest cost of a request.
    ///
    /// # Examples
    ///
    /// ```
    /// # use tollgate_limiter::Rate;
    /// assert!(format!("{}/s", Rate::MAX_PERMITS).parse::<Rate>().is_ok());
    /// assert!(format!("{}/s", Rate::MAX_PERMITS + 1).parse::<Rate>().is_err());
    /// ```
    pub const MAX_PERMITS: u32 = i32::MAX as u32;
    /// The longest window: 366 days.
    ///
    /// # Examples
    ///
    /// ```
    /// # use tollgate_limiter::{Rate};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// assert_eq!("1/366d".parse::<Rate>()?.window_us, Rate::MAX_WINDOW_US);
    /// assert!("1/367d".parse::<Rate>().is_err());
    /// # Ok(())
    /// # }
    /// ```
    pub const MAX_WINDOW_US: u64 = 366 * 24 * 3600 * 1_000_000;
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{:#}", self.permits, duration::DurationText(self.window_us))
    }
}

impl FromStr for Rate {
    type Err = String;

    /// The error is a message and, on a line of its own, the remedy.
    fn from_str(text: &str) -> Result<Self, String> {
        let (permits, window) = parts_of_rate(text)?;
        let window_us = duration::parse_us(window).map_err(|_| malformed_rate(text))?;
        if let Some(hint) = calendar::fixed_length_hint(text, permits, window) {
            return Err(hint);
        }
        if window_us == 0 || !window_us.is_multiple_of(1_000) {
            return Err(format!(
                "the window of `{text}` is no whole number of milliseconds\nuse 1ms or a multiple of it"
            ));
        }
        if window_us > Self::MAX_WINDOW_US {
            return Err(format!("the window of `{text}` is too long\nuse at most 366 days"));
        }
        Ok(Self { permits, window_us })
    }
}

/// Returns the permits of a written rate, and its time.
pub(super) fn parts_of_rate(text: &str) -> Result<(u32, &str), String> {
    let (permits, time) = text.split_once('/').ok_or_else(|| malformed_rate(text))?;
    let permits: u64 = permits.trim().parse().map_err(|_| malformed_rate(text))?;
    if permits == 0 {
        return Err(format!(
            "`{text}` would reject every request\nuse at least 1 permit; to turn a path away, give its route a `respond`"
        ));
    }
    if permits > u64::from(Rate::MAX_PERMITS) {
        return Err(format!("`{text}` has too many permits\nuse at most {}", Rate::MAX_PERMITS));
    }
    Ok((permits as u32, time.trim()))
}

fn malformed_rate(text: &str) -> String {
    format!(
        "`{text}` is not a valid rate\nwrite permits, a slash and a duration: \"100/10s\", \"5/s\", \"60/min\""
    )
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
            assert_eq!(text.parse(), Ok(Rate { permits, window_us }), "{text}");
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
            assert!(text.parse::<Rate>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_rate_prints_as_it_is_written() {
        for text in ["100/10s", "5/s", "60/min", "1000/h", "10000/day", "1/500ms", "7/90s"] {
            assert_eq!(text.parse::<Rate>().map(|rate| rate.to_string()), Ok(text.to_owned()));
        }
    }
}
