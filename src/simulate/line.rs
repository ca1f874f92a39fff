//! A line of an access log, read as the request that it tells of.
//!
//! Two forms are known, and told apart line by line: the combined one of nginx and Apache, also with the host before it
//! (`vhost_combined`) or without its last two fields (`common`), and an object of JSON, with the field names of this
//! gateway, nginx, Caddy and Traefik. What a log doesn't tell is unknown, which isn't the same as absent.

mod combined;
mod json;

use std::net::{IpAddr, Ipv4Addr};

use hyper::{
    Method, StatusCode, Uri,
    header::{HeaderName, HeaderValue},
};
use time::{Date, Month, OffsetDateTime, UtcOffset, format_description::well_known::Rfc3339};

/// A request as a log tells of it.
#[derive(Debug, PartialEq)]
pub(super) struct Logged {
    /// When it arrived, in microseconds since 1970.
    pub(super) at_us: u64,
    /// How long it took, if the log has that.
    pub(super) took_us: Option<u64>,
    pub(super) client: IpAddr,
    pub(super) method: Method,
    pub(super) target: Uri,
    /// As `Host` had it, if the log has that.
    pub(super) host: Option<HeaderValue>,
    pub(super) status: Option<StatusCode>,
    /// What the log tells of the request's header, as far as it is wanted; none for a field that it knows to have
    /// been absent.
    pub(super) headers: Vec<(HeaderName, Option<HeaderValue>)>,
    /// The log has every field of the header.
    pub(super) has_all_headers: bool,
    /// What the log tells of the answer's header, as far as it is wanted.
    pub(super) answer_headers: Vec<(HeaderName, HeaderValue)>,
    /// What limits made of it, if it is a log of this gateway's.
    pub(super) limits: Vec<(String, Told)>,
}

/// Whom a limit counted, as a log tells.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Told {
    /// This key, as in the bucket's name.
    Key(String),
    /// Nobody: the request was exempt.
    Exempt,
    /// Nobody: the request lacked the key.
    Skipped,
}

/// The fields of headers that anything depends on. Others aren't kept.
#[derive(Debug, Default)]
pub(super) struct Wanted {
    pub(super) of_request: Vec<HeaderName>,
    pub(super) of_answer: Vec<HeaderName>,
}

impl Logged {
    /// Reads a line, without its end.
    ///
    /// # Errors
    /// Why it is none that is known.
    pub(super) fn read(line: &[u8], wanted: &Wanted) -> Result<Self, &'static str> {
        let line = line.trim_ascii();
        match line.first() {
            None => Err("it is empty"),
            Some(b'{') => json::read(line, wanted),
            Some(_) => combined::read(line, wanted),
        }
    }

    /// What the log says of a field of the request's header: nothing, or what it was, or that it wasn't there.
    pub(super) fn header(&self, name: &HeaderName) -> Option<Option<&HeaderValue>> {
        let found = self.headers.iter().find(|(other, _)| other == name).map(|(_, value)| value.as_ref());
        found.or(self.has_all_headers.then_some(None))
    }

    /// Notes what the log says of a field of the request's header: `-` and nothing are what servers write for none.
    fn note_header(&mut self, wanted: &Wanted, name: &HeaderName, value: &[u8]) {
        if wanted.of_request.contains(name) {
            let value = if is_absent(value) { None } else { HeaderValue::from_bytes(value).ok() };
            self.headers.push((name.clone(), value));
        }
    }
}

fn is_absent(value: &[u8]) -> bool {
    matches!(value, b"" | b"-")
}

/// The first line of a request: `GET /a?b HTTP/1.1`, also without the protocol.
fn read_request(text: &[u8]) -> Result<(Method, Uri), &'static str> {
    let mut words = text.split(|byte| *byte == b' ');
    let (method, target) = (words.next().unwrap_or_default(), words.next().ok_or("it has no request")?);
    Ok((read_method(method)?, read_target(target)?))
}

fn read_method(text: &[u8]) -> Result<Method, &'static str> {
    Method::from_bytes(text).map_err(|_| "its method is none")
}

fn read_target(text: &[u8]) -> Result<Uri, &'static str> {
    Uri::try_from(text).map_err(|_| "its target is none")
}

/// An address, also with brackets. nginx writes `unix:` for a client on a unix socket, who counts as this machine.
fn read_client(text: &str) -> Result<IpAddr, &'static str> {
    if text == "unix:" {
        return Ok(Ipv4Addr::LOCALHOST.into());
    }
    let bare = text.strip_prefix('[').and_then(|text| text.strip_suffix(']')).unwrap_or(text);
    bare.parse().map(|address: IpAddr| address.to_canonical()).map_err(|_| "its client is no address")
}

const NO_TIME: &str = "its time is none";

/// `21/Nov/2026:07:45:12 +0000`, in microseconds since 1970.
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
        // A leap second is the one before it.
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

/// A time as JSON has it: RFC 3339, that of the combined form, or a number of seconds, milliseconds or microseconds.
fn read_time(text: &str) -> Result<u64, &'static str> {
    if let Ok(time) = OffsetDateTime::parse(text, &Rfc3339) {
        return since_1970(time).ok_or(NO_TIME);
    }
    match text.parse::<f64>() {
        Ok(number) => read_number_of_time(number),
        Err(_) => read_clf_time(text),
    }
}

/// Whichever unit makes it a time of these centuries.
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
    u64::try_from(time.unix_timestamp_nanos() / 1_000).ok()
}
