//! The record of a request for the access log and the trace, and its forms in the log.

mod texts;

use std::{
    net::IpAddr,
    time::{Duration, SystemTime},
};

use hyper::{Method, header::HeaderValue, http::request::Parts};
use serde::Serialize;
use smallvec::SmallVec;
use tokio::time::Instant;
use tollgate_limiter::Key;

use crate::{
    forward::{Visits, headers::Client},
    rules::Decided,
    trace::Context,
};
use tollgate_routing::pattern::Pattern;

use self::texts::{TEXT_MOST, cut, quotable, referer, target, user_agent};
use super::{Peer, target};

const MONTHS: [&str; 12] =
    ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];

/// The record of a request, completed while it is processed.
#[derive(Debug)]
pub(super) struct Record {
    pub(super) time: SystemTime,
    pub(super) arrival: Instant,
    client: IpAddr,
    pub(super) scheme: &'static str,
    pub(super) method: String,
    pub(super) target: String,
    pub(super) protocol: String,
    referer: Option<String>,
    user_agent: Option<String>,
    request_id: Option<HeaderValue>,
    /// The code of the reason why the gateway answered itself, other than a limit.
    pub(super) error: Option<&'static str>,
    /// True for HEAD: the response has no body, whatever its header says.
    is_head: bool,
    /// The host of the request, and the path of its route.
    pub(super) host_and_path: Option<(String, String)>,
    /// The times at which the limits were asked, and at which they had decided.
    pub(super) asked_at: Option<Instant>,
    pub(super) decided_at: Option<Instant>,
    /// The requests to upstream servers.
    pub(super) visits: Visits,
}

/// The outcome of a request.
pub(super) struct Ending<'e> {
    pub(super) status: u16,
    /// True if a response was sent, at least in part. Otherwise the status is made up.
    pub(super) is_answered: bool,
    /// The bytes of the response's body.
    pub(super) bytes: u64,
    /// The time since the request's arrival.
    pub(super) duration: Duration,
    /// True if the whole response was passed to the connection.
    pub(super) is_whole: bool,
    /// The name of the route. Empty if there was none.
    pub(super) route: &'e str,
    pub(super) decided: &'e [Decided],
}

/// The fields of a JSON line.
#[derive(Serialize)]
struct JsonLine<'e> {
    time: String,
    client: IpAddr,
    method: &'e str,
    target: &'e str,
    protocol: &'e str,
    status: u16,
    bytes: u64,
    duration_ms: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    broken_off: Option<bool>,
    #[serde(skip_serializing_if = "str::is_empty")]
    route: &'e str,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<&'e str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    upstream: Option<LoggedUpstream<'e>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    limits: Vec<LoggedDecision<'e>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    request_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    trace_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    referer: Option<&'e str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    user_agent: Option<&'e str>,
}

#[derive(Serialize)]
struct LoggedUpstream<'e> {
    server: &'e str,
    duration_ms: f64,
    /// The kind of a failure.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<&'static str>,
}

#[derive(Serialize)]
struct LoggedDecision<'e> {
    limit: &'e str,
    decision: &'static str,
    origin: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    remaining: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    key: Option<&'e str>,
}

impl Ending<'_> {
    /// Returns the outcome of a request without a route that got this response at once.
    pub(super) fn unrouted(status: u16, bytes: u64) -> Self {
        let duration = Duration::ZERO;
        Self { status, is_answered: true, bytes, duration, is_whole: true, route: "", decided: &[] }
    }
}

impl Record {
    /// Begins the record of a request that has just arrived. `traced` is its span, if it is traced.
    pub(super) fn begin(peer: Peer, request: &Parts, arrival: Instant, traced: Option<Context>) -> Self {
        let line =
            [cut(request.method.as_str(), TEXT_MOST), target(&request.uri), format!("{:?}", request.version)];
        Self {
            referer: referer(&request.headers),
            user_agent: user_agent(&request.headers),
            is_head: request.method == Method::HEAD,
            visits: Visits { request_span: traced, list: SmallVec::new() },
            ..Self::of_line(peer, arrival, line)
        }
    }

    /// Returns the record of an unreadable message. It shows the first line, if that is valid.
    pub(super) fn unreadable(peer: Peer, head: &[u8]) -> Self {
        let line = request_line(head).unwrap_or_else(|| ["-"; 3].map(str::to_owned));
        Self::of_line(peer, Instant::now(), line)
    }

    /// Returns the record of a request of which only the method, the target and the protocol are known.
    fn of_line(peer: Peer, arrival: Instant, [method, target, protocol]: [String; 3]) -> Self {
        Self {
            time: SystemTime::now(),
            arrival,
            client: peer.address.to_canonical(),
            scheme: peer.scheme,
            method,
            target,
            protocol,
            referer: None,
            user_agent: None,
            request_id: None,
            error: None,
            is_head: false,
            host_and_path: None,
            asked_at: None,
            decided_at: None,
            visits: Visits { request_span: None, list: SmallVec::new() },
        }
    }

    /// Notes the client, and the request id if a trusted proxy has stated it.
    pub(super) fn identify(&mut self, client: &Client, request_id: Option<HeaderValue>) {
        (self.client, self.request_id) = (client.address, request_id);
    }

    /// Notes the host and the path of the route, if the request is traced.
    pub(super) fn note_route(&mut self, request: &Parts, path: &Pattern) {
        if self.visits.request_span.is_some() {
            let host = target::host(request).unwrap_or_default();
            self.host_and_path = Some((cut(&host, TEXT_MOST), path.to_string()));
        }
    }

    /// Notes the request id.
    pub(super) fn note_id(&mut self, id: &HeaderValue) {
        self.request_id = Some(id.clone());
    }

    /// Returns true if the response broke off.
    pub(super) fn is_broken_off(&self, end: &Ending<'_>) -> bool {
        !end.is_whole && !self.is_head
    }

    /// Formats the line as JSON.
    pub(super) fn json(&self, end: &Ending<'_>) -> String {
        let limits = end.decided.iter().map(|decided| LoggedDecision {
            limit: decided.limit.name(),
            decision: decided.effect.name(),
            origin: decided.origin.name(),
            remaining: decided.remaining,
            key: decided.key.as_ref().map(Key::as_str),
        });
        let upstream = self.visits.list.last().map(|visit| {
            let took = visit.ended.map_or_else(|| visit.sent.elapsed(), |(took, _)| took);
            let error = visit.ended.as_ref().and_then(|(_, answered)| answered.as_ref().err().copied());
            LoggedUpstream { server: &visit.server, duration_ms: milliseconds(took), error }
        });
        let line = JsonLine {
            time: humantime::format_rfc3339_millis(self.time).to_string(),
            client: self.client,
            method: &self.method,
            target: &self.target,
            protocol: &self.protocol,
            status: end.status,
            bytes: end.bytes,
            duration_ms: milliseconds(end.duration),
            broken_off: self.is_broken_off(end).then_some(true),
            route: end.route,
            error: self.error,
            upstream,
            limits: limits.collect(),
            request_id: self
                .request_id
                .as_ref()
                .map(|id| cut(&String::from_utf8_lossy(id.as_bytes()), TEXT_MOST)),
            trace_id: self.visits.request_span.map(|span| format!("{:032x}", span.trace_id)),
            referer: self.referer.as_deref(),
            user_agent: self.user_agent.as_deref(),
        };
        serde_json::to_string(&line).expect("strings and numbers are always serializable") + "\n"
    }

    /// Formats the line as nginx and Apache do: `192.0.2.7 - - [21/Nov/2026:07:45:12 +0000] "GET / HTTP/1.1" 200 5 "-" "curl"`.
    pub(super) fn combined(&self, end: &Ending<'_>) -> String {
        // For example `2026-11-21T07:45:12Z`.
        let time = humantime::format_rfc3339_seconds(self.time).to_string();
        let (date, clock) = time.trim_end_matches('Z').split_once('T').expect("a date and a time");
        let [year, month, day] = [&date[..4], &date[5..7], &date[8..]];
        let month = MONTHS[month.parse::<usize>().expect("a month") - 1];
        format!(
            "{} - - [{day}/{month}/{year}:{clock} +0000] \"{} {} {}\" {} {} \"{}\" \"{}\"\n",
            self.client,
            self.method,
            quotable(&self.target),
            self.protocol,
            end.status,
            end.bytes,
            quotable(self.referer.as_deref().unwrap_or("-")),
            quotable(self.user_agent.as_deref().unwrap_or("-")),
        )
    }
}

/// Returns the method, the target and the version in the first line of a head. `None` if it isn't a valid request line.
fn request_line(head: &[u8]) -> Option<[String; 3]> {
    let line = str::from_utf8(head.split(|byte| *byte == b'\n').next()?).ok()?;
    let mut words = line.trim_end_matches('\r').split(' ');
    let words = (words.next(), words.next(), words.next(), words.next());
    let (Some(method), Some(sent), Some(version @ ("HTTP/1.0" | "HTTP/1.1")), None) = words else {
        return None;
    };
    let method = method.parse::<Method>().ok()?;
    Some([cut(method.as_str(), TEXT_MOST), target(&sent.parse().ok()?), version.to_owned()])
}

fn milliseconds(duration: Duration) -> f64 {
    duration.as_micros() as f64 / 1_000.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unreadable_message_shows_its_first_line_if_valid() {
        let peer = Peer { address: [192, 0, 2, 7].into(), scheme: "http" };
        for (head, shown) in [
            ("GET /a?b=secret HTTP/1.1\r\nbad line\r\n\r\n", "GET /a?b=* HTTP/1.1"),
            ("PUT http://me:secret@host/a HTTP/1.0\n", "PUT /a HTTP/1.0"),
            ("GET /a b HTTP/1.1\r\n", "- - -"),
            ("GET /a HTTP/3\r\n", "- - -"),
            ("GET  /a HTTP/1.1\r\n", "- - -"),
            ("\x16\x03\x01\x02", "- - -"),
            ("", "- - -"),
        ] {
            let record = Record::unreadable(peer, head.as_bytes());
            assert_eq!(format!("{} {} {}", record.method, record.target, record.protocol), shown, "{head:?}");
        }
        let Record { method, .. } = Record::unreadable(peer, b"\xff\xfe / HTTP/1.1");
        assert_eq!(method, "-");
    }
}
