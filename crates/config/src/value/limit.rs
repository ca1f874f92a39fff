//! The types of a limit's values.

use std::{ops::RangeInclusive, time::Duration};

use super::FromText;
use tollgate_limiter::{CalendarRate, CalendarUnit, Rate, RedissonName, duration};

use crate::{JsonPointer, StatusRange};

/// A rate in either of its forms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AnyRate {
    /// Permits per time.
    InTime(Rate),
    /// Permits per month or year, which have no fixed length.
    InCalendar(CalendarRate),
    /// Permits in use at a time.
    AtATime(u32),
}

impl FromText for AnyRate {
    const EXPECTED: &'static str = "a rate such as \"100/10s\"";
    const FORM: Option<&'static str> = Some(r" *\d+ *(/.+)?");

    fn read(text: &str) -> Result<Self, String> {
        if let Ok(rate @ CalendarRate { unit: CalendarUnit::Month | CalendarUnit::Year, .. }) = text.parse() {
            return Ok(Self::InCalendar(rate));
        }
        if text.is_empty() || !text.bytes().all(|b| b.is_ascii_digit()) {
            let hint = || nginx_hint(text).or_else(|| fraction_hint(text)).or_else(|| no_limit_hint(text));
            return text.parse().map(Self::InTime).map_err(|remedy| hint().unwrap_or(remedy));
        }
        // The bounds on the number are those of a rate; the unit is irrelevant.
        let rate = format!("{text}/s").parse::<Rate>();
        rate.map(|rate| Self::AtATime(rate.permits)).map_err(|remedy| remedy.replacen("/s`", "`", 1))
    }
}

/// The remedy for a rate that stands for no limit in other programs.
pub(crate) const NO_LIMIT: &str = "a rate has at least 1 permit: \"20/s\"; to admit all requests, remove the limit from its routes, and to admit some callers, list them in its `exempt`";

/// Returns what to write for `-1` and `unlimited`.
fn no_limit_hint(text: &str) -> Option<String> {
    let is_for_none = text == "unlimited" || text.starts_with('-');
    is_for_none.then(|| format!("`{text}` is not a valid rate\n{NO_LIMIT}"))
}

/// Returns what to write for a rate in nginx's form, such as `10r/s`.
fn nginx_hint(text: &str) -> Option<String> {
    let (permits, unit) = text.split_once("r/")?;
    let unit = match unit {
        "s" => "s",
        "m" => "min",
        _ => return None,
    };
    permits.parse::<u32>().ok()?;
    Some(format!(
        "`{text}` is a rate in nginx's form\nwrite \"{permits}/{unit}\"; for `burst=`, add algorithm = \"gcra\" and burst"
    ))
}

/// Returns what to write for a rate with a fraction of a permit, such as `0.5/s`.
fn fraction_hint(text: &str) -> Option<String> {
    let (permits, _) = text.split_once('/')?;
    let is_fraction = permits.contains('.') && permits.trim().parse::<f64>().is_ok();
    is_fraction.then(|| {
        format!("`{text}` is not a valid rate\npermits are whole numbers: for \"0.5/s\" write \"1/2s\"")
    })
}

/// Descriptors by their domain and the keys of their entries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ReportedDescriptors {
    pub(crate) domain: String,
    pub(crate) keys: Vec<String>,
}

impl FromText for ReportedDescriptors {
    const EXPECTED: &'static str = "a domain and the keys of the entries, such as \"envoy:api_key,model\"";

    fn read(text: &str) -> Result<Self, String> {
        let (domain, keys) = text.split_once(':').unwrap_or_default();
        let keys: Vec<String> = keys.split(',').map(|key| key.trim().to_owned()).collect();
        if domain.is_empty() || keys.iter().any(String::is_empty) {
            return Err(format!("`{text}` doesn't name descriptors\nwrite {}", Self::EXPECTED));
        }
        Ok(Self { domain: domain.to_owned(), keys })
    }
}

impl FromText for JsonPointer {
    const EXPECTED: &'static str = "a JSON pointer such as \"/usage/total_tokens\"";
    const FORM: Option<&'static str> = Some("/.*");

    fn read(text: &str) -> Result<Self, String> {
        Self::parse(text)
            .ok_or_else(|| format!("`{text}` is not a valid JSON pointer\nwrite {}", Self::EXPECTED))
    }
}

impl FromText for RedissonName {
    const EXPECTED: &'static str = "a name such as \"logins:{key}\"";

    fn read(text: &str) -> Result<Self, String> {
        text.parse()
    }
}

/// The offset from UTC of the clock by which a calendar goes, in minutes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CalendarOffset(pub i16);

impl FromText for CalendarOffset {
    const EXPECTED: &'static str = "\"UTC\", or a fixed offset from it such as \"+08:00\"";
    const FORM: Option<&'static str> = Some(r"UTC|[+-]\d\d:\d\d");

    fn read(text: &str) -> Result<Self, String> {
        let two_digits = |text: &str| match text.as_bytes() {
            [tens @ b'0'..=b'9', ones @ b'0'..=b'9'] => Some(i16::from((tens - b'0') * 10 + (ones - b'0'))),
            _ => None,
        };
        let minutes = |text: &str| {
            let (hours, minutes) = text.split_once(':')?;
            Some((two_digits(hours)?, two_digits(minutes)?))
        };
        let sign = match text.as_bytes().first() {
            _ if text == "UTC" => return Ok(Self(0)),
            Some(b'+') => 1,
            Some(b'-') => -1,
            _ => 0,
        };
        match minutes(text.get(1..).unwrap_or_default()) {
            Some((hours, minutes)) if sign != 0 && hours * 60 + minutes <= 14 * 60 && minutes < 60 => {
                Ok(Self(sign * (hours * 60 + minutes)))
            }
            _ => Err(format!(
                "`{text}` is not an offset from UTC\nwrite {}; regions with daylight saving time are not supported",
                Self::EXPECTED
            )),
        }
    }
}

/// The upper bound of waits, leases and probe intervals.
pub(super) const HOUR_US: u64 = 3_600_000_000;

/// The time after which permits of a gateway that died are free again, in microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LeaseDuration(pub u64);

impl Default for LeaseDuration {
    fn default() -> Self {
        Self(30_000_000)
    }
}

impl FromText for LeaseDuration {
    const EXPECTED: &'static str = "a duration from \"1s\" to \"1h\"";

    fn read(text: &str) -> Result<Self, String> {
        within(text, 1_000_000..=HOUR_US, Self::EXPECTED).map(Self)
    }
}

/// The duration of a ban.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BanDuration(pub Duration);

impl FromText for BanDuration {
    const EXPECTED: &'static str = "a duration from \"1s\" to \"366d\"";

    fn read(text: &str) -> Result<Self, String> {
        within(text, 1_000_000..=Rate::MAX_WINDOW_US, Self::EXPECTED)
            .map(|us| Self(Duration::from_micros(us)))
    }
}

impl FromText for Rate {
    const EXPECTED: &'static str = "a number per time such as \"10/min\"";
    const FORM: Option<&'static str> = Some(r" *\d+ */.+");

    fn read(text: &str) -> Result<Self, String> {
        text.parse()
    }
}

/// The time after which an issuer's keys are fetched again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RefreshTime(pub Duration);

impl Default for RefreshTime {
    fn default() -> Self {
        Self(Duration::from_secs(600))
    }
}

impl FromText for RefreshTime {
    const EXPECTED: &'static str = "a duration from \"1s\" to \"24h\"";

    fn read(text: &str) -> Result<Self, String> {
        within(text, 1_000_000..=24 * HOUR_US, Self::EXPECTED).map(|us| Self(Duration::from_micros(us)))
    }
}

/// The longest time to hold a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Wait(pub Duration);

impl FromText for Wait {
    const EXPECTED: &'static str = "a duration from \"0s\" to \"1h\"";

    fn read(text: &str) -> Result<Self, String> {
        within(text, 0..=HOUR_US, Self::EXPECTED).map(|us| Self(Duration::from_micros(us)))
    }
}

/// Parses a duration within bounds, in whole milliseconds. Returns microseconds.
pub(super) fn within(text: &str, bounds: RangeInclusive<u64>, expected: &str) -> Result<u64, String> {
    let us = duration::parse_us(text)?;
    if bounds.contains(&us) && us.is_multiple_of(1_000) {
        Ok(us)
    } else {
        Err(format!("`{text}` is out of range\nwrite {expected}, in whole milliseconds"))
    }
}

impl FromText for StatusRange {
    const EXPECTED: &'static str = "a status such as \"401\", or a class such as \"4xx\"";
    const FORM: Option<&'static str> = Some(r"[1-5](\d\d|xx)");

    fn read(text: &str) -> Result<Self, String> {
        let status = |text: &str| text.parse().ok().filter(|status| (100..=599).contains(status));
        let first = status(&text.replace("xx", "00")).filter(|_| text.len() == 3);
        let last = status(&text.replace("xx", "99"));
        let range = first.zip(last).map(|(first, last)| Self { first, last });
        range.ok_or_else(|| {
            let expected = match text.contains(',') {
                true => "each by itself: [\"401\", \"403\"]",
                false => Self::EXPECTED,
            };
            format!("`{text}` is not a valid status\nwrite {expected}")
        })
    }
}

#[cfg(test)]
mod tests {
    use hyper::StatusCode;

    use super::*;

    #[test]
    fn a_rate_may_lack_its_time() {
        assert_eq!(AnyRate::read("20"), Ok(AnyRate::AtATime(20)));
        assert!(matches!(AnyRate::read("20/s"), Ok(AnyRate::InTime(_))));
        assert!(
            AnyRate::read("0").is_err_and(|remedy| remedy.starts_with("`0` would reject every request\n"))
        );
        for text in ["", "-1", "2147483648", "99999999999999999999", "/s", "20 /"] {
            assert!(AnyRate::read(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_calendar_has_an_offset() {
        for (text, minutes) in [("UTC", 0), ("+00:00", 0), ("+08:00", 480), ("-03:30", -210), ("+14:00", 840)]
        {
            assert_eq!(CalendarOffset::read(text), Ok(CalendarOffset(minutes)), "{text}");
        }
        for text in
            ["", "utc", "Z", "08:00", "+8:00", "+08:60", "+14:01", "+99:99", "Europe/Berlin", "é08:00", "+é"]
        {
            assert!(CalendarOffset::read(text).is_err(), "{text}");
        }
    }

    #[test]
    fn leases_and_waits_have_bounds() {
        assert_eq!(Wait::read("0s"), Ok(Wait(Duration::ZERO)));
        assert_eq!(Wait::read("500ms"), Ok(Wait(Duration::from_millis(500))));
        assert_eq!(LeaseDuration::read("1h"), Ok(LeaseDuration(HOUR_US)));
        assert!(
            LeaseDuration::read("999ms").is_err() && Wait::read("61m").is_err() && Wait::read("1us").is_err()
        );
    }

    #[test]
    fn statuses_are_single_or_a_class() {
        let matches = |text: &str, status: u16| {
            StatusRange::read(text).expect(text).matches(StatusCode::from_u16(status).expect("a status"))
        };
        assert!(matches("401", 401) && !matches("401", 403));
        assert!(matches("4xx", 400) && matches("4xx", 499) && !matches("4xx", 500) && !matches("4xx", 399));
        for text in ["", "99", "600", "0xx", "6xx", "xx", "4XX", "40x", "65535xx", "+401x", "-1"] {
            assert!(StatusRange::read(text).is_err(), "{text}");
        }
    }
}
