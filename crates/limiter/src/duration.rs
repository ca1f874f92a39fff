//! Durations as people write them: `50ms`, `10s`, `1h 30m`, or just a unit for one of it (`s`, `min`, `day`).

use std::fmt;

/// Parses a duration into whole microseconds, rounded down.
///
/// # Examples
///
/// ```
/// use tollgate_limiter::duration::parse_us;
///
/// assert_eq!((parse_us("1h 30m"), parse_us("min")), (Ok(5_400_000_000), Ok(60_000_000)));
/// assert!(parse_us("5M").is_err());
/// ```
///
/// # Errors
/// The text isn't a duration. `M` is not accepted, because it could mean minutes or, as in humantime, months.
pub fn parse_us(text: &str) -> Result<u64, String> {
    let remedy = "write a number and a unit: \"50ms\", \"10s\", \"5m\", \"1h\", \"1d\"";
    let bare_unit = text.starts_with(|c: char| c.is_ascii_alphabetic());
    let number = if bare_unit { "1" } else { "" };
    let duration = match humantime::parse_duration(&format!("{number}{text}")) {
        Ok(duration) if !text.contains('M') => duration,
        _ => return Err(format!("`{text}` is not a valid duration\n{remedy}")),
    };
    u64::try_from(duration.as_micros()).map_err(|_| format!("`{text}` is too long\n{remedy}"))
}

/// A number of microseconds that displays in the largest unit that divides it. With `{:#}` a single unit has
/// no number, as in a rate.
///
/// # Examples
///
/// ```
/// use tollgate_limiter::duration::DurationText;
///
/// assert_eq!(format!("{} {:#}", DurationText(60_000_000), DurationText(60_000_000)), "1m min");
/// let mut text = "retry in ".to_owned();
/// DurationText(1_500).write(&mut text);
/// assert_eq!(text, "retry in 1500us");
/// ```
pub struct DurationText(pub u64);

impl DurationText {
    /// Returns the number of units, and the unit's name by itself and after a number.
    fn parts(&self) -> (u64, [&'static str; 2]) {
        let units = [
            (86_400_000_000, ["day", "d"]),
            (3_600_000_000, ["h", "h"]),
            (60_000_000, ["min", "m"]),
            (1_000_000, ["s", "s"]),
            (1_000, ["ms", "ms"]),
            (1, ["us", "us"]),
        ];
        let (unit_us, names) = units
            .into_iter()
            .find(|(unit_us, _)| self.0 >= *unit_us && self.0.is_multiple_of(*unit_us))
            .unwrap_or((1, ["us", "us"]));
        (self.0 / unit_us, names)
    }

    /// Appends the duration to a text.
    pub fn write(&self, text: &mut String) {
        let (count, [_, unit]) = self.parts();
        text.extend([itoa::Buffer::new().format(count), unit]);
    }
}

impl fmt::Display for DurationText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.parts() {
            (1, [alone, _]) if f.alternate() => f.write_str(alone),
            (count, [_, unit]) => write!(f, "{count}{unit}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read_as_written() {
        assert_eq!(parse_us("50ms"), Ok(50_000));
        assert_eq!(parse_us("1h 30m"), Ok(5_400_000_000));
        assert_eq!(parse_us("day"), Ok(86_400_000_000));
        for text in ["", "5", "-1s", "ten seconds", "5M", "s10"] {
            assert!(parse_us(text).is_err(), "{text}");
        }
    }

    #[test]
    fn durations_are_printed_in_their_greatest_unit() {
        assert_eq!(DurationText(90_000_000).to_string(), "90s");
        assert_eq!(DurationText(60_000_000).to_string(), "1m");
        assert_eq!(format!("{:#}", DurationText(60_000_000)), "min");
        assert_eq!(DurationText(1_500).to_string(), "1500us");
    }
}
