//! Calendar windows: one hour, day, ISO week, month or year by the clock on the wall, UTC or at a fixed offset.
//!
//! Twin of lua/calendar_window.lua. Up to 2L - 1 permits can pass within W, across a boundary.

use std::{fmt, str::FromStr};

use super::{Count, MOST_USED, Quota, Rate, Refund, rate::parts_of_rate};
use crate::duration;

const HOUR_US: u64 = 3_600_000_000;
const DAY_US: u64 = 24 * HOUR_US;

/// A unit of the calendar.
///
/// # Examples
///
/// ```
/// use tollgate_limiter::CalendarUnit;
///
/// assert_eq!(CalendarUnit::Month.name(), "month");
/// assert!(CalendarUnit::Week.is_of_one_length() && !CalendarUnit::Year.is_of_one_length());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum CalendarUnit {
    /// An hour.
    Hour,
    /// A day.
    Day,
    /// An ISO week, from Monday on.
    Week,
    /// A month.
    Month,
    /// A year.
    Year,
}

impl CalendarUnit {
    /// Returns the name, as in a rate.
    pub fn name(self) -> &'static str {
        match self {
            Self::Hour => "h",
            Self::Day => "day",
            Self::Week => "week",
            Self::Month => "month",
            Self::Year => "year",
        }
    }

    /// Returns the unit that is this long, in microseconds. Months have 28 to 31 days, and years 365 or 366.
    fn of_length(us: u64) -> Option<Self> {
        if us == HOUR_US {
            return Some(Self::Hour);
        }
        match (us / DAY_US, us % DAY_US) {
            (1, 0) => Some(Self::Day),
            (7, 0) => Some(Self::Week),
            (28..=31, 0) => Some(Self::Month),
            (365 | 366, 0) => Some(Self::Year),
            _ => None,
        }
    }

    /// Returns the length of the longest one, in microseconds.
    pub(crate) fn longest_us(self) -> u64 {
        match self {
            Self::Hour => HOUR_US,
            Self::Day => DAY_US,
            Self::Week => 7 * DAY_US,
            Self::Month => 31 * DAY_US,
            Self::Year => 366 * DAY_US,
        }
    }

    /// Returns true if all of them have the same length.
    pub fn is_of_one_length(self) -> bool {
        !matches!(self, Self::Month | Self::Year)
    }

    /// Returns the letter that stands for it in a bucket's name, and in a call of the script.
    fn letter(self) -> &'static str {
        match self {
            Self::Hour => "h",
            Self::Day => "d",
            Self::Week => "w",
            Self::Month => "m",
            Self::Year => "y",
        }
    }
}

/// Permits in a unit of the calendar: `10000/month`.
///
/// # Examples
///
/// ```
/// # use tollgate_limiter::{CalendarRate, CalendarUnit};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let rate: CalendarRate = "10000/month".parse()?;
/// assert_eq!((rate.permits, rate.unit), (10_000, CalendarUnit::Month));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CalendarRate {
    /// The permits, from 1 to [`Rate::MAX_PERMITS`].
    pub permits: u32,
    /// The unit.
    pub unit: CalendarUnit,
}

impl FromStr for CalendarRate {
    type Err = String;

    /// The error is a message and, on a line of its own, the remedy.
    fn from_str(text: &str) -> Result<Self, String> {
        let (permits, time) = parts_of_rate(text)?;
        let named = time.strip_prefix('1').unwrap_or(time).trim_start();
        let unit = match named {
            "month" => Some(CalendarUnit::Month),
            "year" => Some(CalendarUnit::Year),
            _ => match duration::parse_us(time) {
                Ok(HOUR_US) => Some(CalendarUnit::Hour),
                Ok(DAY_US) => Some(CalendarUnit::Day),
                Ok(us) if us == CalendarUnit::Week.longest_us() => Some(CalendarUnit::Week),
                _ => None,
            },
        };
        let unit = unit.ok_or_else(|| {
            format!("`{text}` isn't a rate in calendar windows\nwrite one unit: {permits}/h, {permits}/day, {permits}/week, {permits}/month or {permits}/year")
        })?;
        Ok(Self { permits, unit })
    }
}

impl From<CalendarRate> for Rate {
    fn from(CalendarRate { permits, unit }: CalendarRate) -> Self {
        Self { permits, window_us: unit.longest_us() }
    }
}

/// Returns the message about a rate per month or year where time has a fixed length. `None` if the time has neither.
pub(super) fn fixed_length_hint(text: &str, permits: u32, time: &str) -> Option<String> {
    let days = match time.trim_start_matches(|c: char| c.is_ascii_digit() || c == ' ') {
        unit if unit.starts_with("month") => 30,
        unit if unit.starts_with('y') => 365,
        _ => return None,
    };
    Some(format!(
        "`{text}` is ambiguous: months and years differ in length\nwrite \"{permits}/{days}d\" for any {days} days, or count by the calendar: algorithm = \"fixed-window\", calendar = \"UTC\""
    ))
}

/// The windows of a calendar: a unit, and the offset of its clock from UTC.
///
/// # Examples
///
/// ```
/// # use tollgate_limiter::{Algorithm, Calendar, CalendarRate, Limit, Quota};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let rate: CalendarRate = "10000/month".parse()?;
/// let utc = Algorithm::Calendar(Calendar { unit: rate.unit, offset_minutes: 0 });
/// let calls = Limit::new("calls", Quota::new(utc, rate.into()));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Calendar {
    /// The unit.
    pub unit: CalendarUnit,
    /// Minutes by which its clock is ahead of UTC.
    pub offset_minutes: i16,
}

impl Calendar {
    /// Returns the beginning and the end of the window at a time, in microseconds since 1970 began in UTC.
    ///
    /// # Examples
    ///
    /// ```
    /// use tollgate_limiter::{Calendar, CalendarUnit};
    ///
    /// let months = Calendar { unit: CalendarUnit::Month, offset_minutes: 0 };
    /// assert_eq!(months.window(0), (0, 31 * 86_400 * 1_000_000));
    /// ```
    pub fn window(self, time_us: u64) -> (u64, u64) {
        let offset_us = i64::from(self.offset_minutes) * 60_000_000;
        let local_us = time_us as i64 + offset_us;
        let (start_us, end_us) = match self.unit {
            CalendarUnit::Hour => {
                let start_us = local_us - local_us.rem_euclid(HOUR_US as i64);
                (start_us, start_us + HOUR_US as i64)
            }
            unit => {
                let day = local_us.div_euclid(DAY_US as i64);
                let first = first_day(unit, day);
                // The longest unit later, the next one has begun, and no other.
                let next = first_day(unit, first + (unit.longest_us() / DAY_US) as i64);
                (first * DAY_US as i64, next * DAY_US as i64)
            }
        };
        ((start_us - offset_us).max(0) as u64, (end_us - offset_us) as u64)
    }

    /// Returns the calendar of the same clock whose windows are this long. `None` if it has no such unit.
    pub(super) fn with_windows_of(self, us: u64) -> Option<Self> {
        CalendarUnit::of_length(us).map(|unit| Self { unit, ..self })
    }

    /// Returns the part of a bucket's name that tells its windows from others: `cm`, `cd+0800`.
    pub(super) fn tag(self) -> String {
        let offset = if self.offset_minutes == 0 { String::new() } else { self.to_string().replace(':', "") };
        format!("c{}{offset}", self.unit.letter())
    }

    /// Returns the parameter of the script: the unit's letter, and the offset.
    #[cfg(feature = "redis")]
    pub(crate) fn parameter(self) -> String {
        format!("{}{}", self.unit.letter(), self.offset_minutes)
    }
}

/// Writes the offset as in the file: `UTC`, `+08:00`.
impl fmt::Display for Calendar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let minutes = self.offset_minutes.unsigned_abs();
        match self.offset_minutes {
            0 => f.write_str("UTC"),
            offset => {
                let sign = if offset < 0 { '-' } else { '+' };
                write!(f, "{sign}{:02}:{:02}", minutes / 60, minutes % 60)
            }
        }
    }
}

/// Returns the first day of the unit that a day lies in. Days count from 1970-01-01.
fn first_day(unit: CalendarUnit, day: i64) -> i64 {
    if matches!(unit, CalendarUnit::Hour | CalendarUnit::Day) {
        return day;
    }
    if unit == CalendarUnit::Week {
        // The first day of 1970 was a Thursday.
        return day - (day + 3).rem_euclid(7);
    }
    // In years that begin in March, so that the leap day is the last one: eras of 400 years, the year of the era, the day of
    // the year, and the month (Hinnant: chrono-compatible low-level date algorithms).
    let day_of_era = (day + 719_468).rem_euclid(146_097);
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month = (5 * day_of_year + 2) / 153;
    if unit == CalendarUnit::Month {
        return day - (day_of_year - (153 * month + 2) / 5);
    }
    if month >= 10 {
        return day - (day_of_year - 306);
    }
    let is_leap = year_of_era % 4 == 0 && (year_of_era % 100 != 0 || year_of_era == 0);
    day - (day_of_year + if is_leap { 60 } else { 59 })
}

/// The window of the last grant.
#[derive(Debug)]
pub struct CalendarWindow {
    calendar: Calendar,
    start_us: u64,
    used: u64,
    /// At the last advance. Looking changes nothing else, as in Redis.
    is_over: bool,
}

impl CalendarWindow {
    pub(super) fn new(calendar: Calendar) -> Self {
        Self { calendar, start_us: 0, used: 0, is_over: true }
    }

    fn end_us(&self) -> u64 {
        self.calendar.window(self.start_us).1
    }
}

impl Count for CalendarWindow {
    fn advance(&mut self, _: Quota, time_us: u64) {
        self.is_over = self.start_us < self.calendar.window(time_us).0;
    }

    fn used(&self, _: Quota) -> u64 {
        if self.is_over { 0 } else { self.used }
    }

    fn charge(&mut self, quota: Quota, time_us: u64, cost: u32) {
        if self.used(quota) == 0 {
            let (start_us, _) = self.calendar.window(time_us);
            *self = Self { start_us, used: 0, is_over: false, ..*self };
        }
        self.used = (self.used + u64::from(cost)).min(MOST_USED);
    }

    fn give_back(&mut self, quota: Quota, _: u64, Refund { permits, granted_us }: Refund) {
        if self.used(quota) > 0 && granted_us.is_none_or(|granted_us| self.start_us <= granted_us) {
            self.used = self.used.saturating_sub(u64::from(permits));
        }
    }

    fn grow_us(&self, quota: Quota, time_us: u64) -> u64 {
        if self.used(quota) == 0 { 0 } else { self.end_us() - time_us }
    }

    fn wait_us(&self, quota: Quota, time_us: u64, _: u32) -> u64 {
        self.grow_us(quota, time_us)
    }

    fn ends_us(&self, _: Quota) -> u64 {
        self.end_us()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_has_one_unit_of_the_calendar() {
        for (text, permits, unit) in [
            ("10000/month", 10_000, CalendarUnit::Month),
            ("1/1 month", 1, CalendarUnit::Month),
            ("5/year", 5, CalendarUnit::Year),
            ("5/1h", 5, CalendarUnit::Hour),
            ("7/day", 7, CalendarUnit::Day),
            ("7/7d", 7, CalendarUnit::Week),
        ] {
            assert_eq!(text.parse(), Ok(CalendarRate { permits, unit }), "{text}");
        }
        for text in ["5/s", "5/2months", "5/2h", "0/month", "month", "5/fortnight"] {
            assert!(text.parse::<CalendarRate>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_rolling_rate_has_no_months() {
        for (text, days) in
            [("5/month", "5/30d"), ("5/2 months", "5/30d"), ("5/year", "5/365d"), ("5/1y", "5/365d")]
        {
            let fault = text.parse::<Rate>().unwrap_err();
            assert!(fault.contains(days) && fault.contains("calendar = \"UTC\""), "{fault}");
        }
    }

    #[test]
    fn offsets_are_shown_as_they_are_written() {
        let shown = |offset_minutes| Calendar { unit: CalendarUnit::Day, offset_minutes }.to_string();
        assert_eq!([0, 480, -210].map(shown), ["UTC", "+08:00", "-03:30"]);
    }
}
