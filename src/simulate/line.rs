//! A line of an access log, parsed as a request.
//!
//! Two formats are recognized, line by line: the combined format of nginx and Apache, also with the host in
//! front (`vhost_combined`) or without the last two fields (`common`), and JSON objects with the field names
//! of this gateway, nginx, Caddy and Traefik. Something that a log doesn't contain is unknown, which is
//! different from absent.

mod combined;
mod json;

use std::net::{IpAddr, Ipv4Addr};

use hyper::{
    Method, StatusCode, Uri,
    header::{HeaderName, HeaderValue},
};
use time::{Date, Month, OffsetDateTime, UtcOffset, format_description::well_known::Rfc3339};

/// A logged request.
#[derive(Debug, PartialEq)]
pub(super) struct Logged {
    /// The time of arrival, in microseconds since 1970.
    pub(super) at_us: u64,
    /// The duration, if the log has it.
    pub(super) took_us: Option<u64>,
    pub(super) client: IpAddr,
    pub(super) method: Method,
    pub(super) target: Uri,
    /// The value of `Host`, if the log has it.
    pub(super) host: Option<HeaderValue>,
    pub(super) status: Option<StatusCode>,
    /// The wanted request header fields that the log has. The value is `None` if the log says that the field
    /// was absent.
    pub(super) headers: Vec<(HeaderName, Option<HeaderValue>)>,
    /// True if the log has all request header fields.
    pub(super) has_all_headers: bool,
    /// The wanted request header fields whose value the log hides.
    pub(super) hidden: Vec<HeaderName>,
    /// The wanted response header fields that the log has.
    pub(super) answer_headers: Vec<(HeaderName, HeaderValue)>,
    /// The decisions of the limits, if this gateway wrote the log.
    pub(super) limits: Vec<(String, DecisionInLog)>,
}

/// A limit's decision for a logged request.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum DecisionInLog {
    /// The request was counted for this key, written as in the bucket's name.
    Key(String),
    /// The request was exempt.
    Exempt,
    /// The request didn't have the key, and the limit was skipped.
    Skipped,
    /// The request didn't have the key, or one that isn't known, and was refused.
    Denied,
}

/// The header fields that the simulation needs. Others aren't kept.
#[derive(Debug, Default)]
pub(super) struct Wanted {
    pub(super) of_request: Vec<HeaderName>,
    pub(super) of_answer: Vec<HeaderName>,
}

impl Logged {
    /// Parses a line, without its line break.
    ///
    /// # Errors
    /// The reason why it can't be parsed.
    pub(super) fn read(line: &[u8], wanted: &Wanted) -> Result<Self, &'static str> {
        let line = line.trim_ascii();
        match line.first() {
            None => Err("empty line"),
            Some(b'{') => json::read(line, wanted),
            Some(_) => combined::read(line, wanted),
        }
    }

    /// Returns what the log says about a request header field: `None` if nothing, `Some(None)` if it was
    /// absent.
    pub(super) fn header(&self, name: &HeaderName) -> Option<Option<&HeaderValue>> {
        let found = self.headers.iter().find(|(other, _)| other == name).map(|(_, value)| value.as_ref());
        let is_complete = self.has_all_headers && !self.hidden.contains(name);
        found.or(is_complete.then_some(None))
    }

    /// Records a request header field. Servers write `-` or nothing for an absent field.
    fn note_header(&mut self, wanted: &Wanted, name: &HeaderName, value: &[u8]) {
        if !wanted.of_request.contains(name) {
            return;
        }
        if value == HIDDEN {
            self.hidden.push(name.clone());
        } else {
            let value = if is_absent(value) { None } else { HeaderValue::from_bytes(value).ok() };
            self.headers.push((name.clone(), value));
        }
    }
}

/// The text that Caddy and Traefik write in place of a credential.
const HIDDEN: &[u8] = b"REDACTED";

fn is_absent(value: &[u8]) -> bool {
    matches!(value, b"" | b"-")
}

/// Parses the first line of a request: `GET /a?b HTTP/1.1`. The protocol may be missing.
fn read_request(text: &[u8]) -> Result<(Method, Uri), &'static str> {
    let mut words = text.split(|byte| *byte == b' ');
    let (method, target) = (words.next().unwrap_or_default(), words.next().ok_or("no request")?);
    Ok((read_method(method)?, read_target(target)?))
}

fn read_method(text: &[u8]) -> Result<Method, &'static str> {
    Method::from_bytes(text).map_err(|_| "invalid method")
}

fn read_target(text: &[u8]) -> Result<Uri, &'static str> {
    Uri::try_from(text).map_err(|_| "invalid target")
}

/// Parses an address, also in brackets. nginx writes `unix:` for a client on a unix socket, which counts as
/// this machine.
fn read_client(text: &str) -> Result<IpAddr, &'static str> {
    if text == "unix:" {
        return Ok(Ipv4Addr::LOCALHOST.into());
    }
    let bare = text.strip_prefix('[').and_then(|text| text.strip_suffix(']')).unwrap_or(text);
    bare.parse().map(|address: IpAddr| address.to_canonical()).map_err(|_| "invalid client address")
}

const NO_TIME: &str = "invalid time";
/// The latest time in seconds since 1970, in the year 5138, also of a time that is a number. Later ones can't be written.
const TIME_MOST: i64 = 100_000_000_000;

/// Parses `21/Nov/2026:07:45:12 +0000`. Returns microseconds since 1970.
fn read_clf_time(text: &str) -> Result<u64, &'static str> {
    let read = || {
        let number = |from: usize, to: usize| text.get(from..to)?.parse::<u8>().ok();
        let month = match text.get(3..6)? {
            "Jan" => Month::January,
            "Feb" => Month::February,
            "Mar" => Month::March,
            "Apr" => Month::April,
            "May" => Month::May,
            "Jun" => Month::June,
            "Jul" => Month::July,
            "Aug" => Month::August,
            "Sep" => Month::September,
            "Oct" => Month::October,
            "Nov" => Month::November,
            "Dec" => Month::December,
            _ => return None,
        };
        let date = Date::from_calendar_date(text.get(7..11)?.parse().ok()?, month, number(0, 2)?).ok()?;
        // A leap second counts as the second before it.
        let time = date.with_hms(number(12, 14)?, number(15, 17)?, number(18, 20)?.min(59)).ok()?;
        let (hours, minutes) = (number(22, 24)? as i8, number(24, 26)? as i8);
        let offset = match text.get(20..22)? {
            " +" => UtcOffset::from_hms(hours, minutes, 0),
            " -" => UtcOffset::from_hms(-hours, -minutes, 0),
            _ => return None,
        };
        since_1970(time.assume_offset(offset.ok()?))
    };
    read().ok_or(NO_TIME)
}

/// Parses the time in a JSON log: RFC 3339, the format of the combined log, or a number of seconds,
/// milliseconds or microseconds.
fn read_time(text: &str) -> Result<u64, &'static str> {
    if let Ok(time) = OffsetDateTime::parse(text, &Rfc3339) {
        return since_1970(time).ok_or(NO_TIME);
    }
    match text.parse::<f64>() {
        Ok(number) => read_number_of_time(number),
        Err(_) => read_clf_time(text),
    }
}

/// Picks the unit that gives a time in the current centuries.
fn read_number_of_time(number: f64) -> Result<u64, &'static str> {
    let unit_us = match number {
        0.0..1e11 => 1e6,
        1e11..1e14 => 1e3,
        1e14..1e17 => 1.0,
        _ => return Err(NO_TIME),
    };
    Ok((number * unit_us) as u64)
}

fn since_1970(time: OffsetDateTime) -> Option<u64> {
    let is_early = time.unix_timestamp() < TIME_MOST;
    u64::try_from(time.unix_timestamp_nanos() / 1_000).ok().filter(|_| is_early)
}
