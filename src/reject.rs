//! A rejection is an answer of the gateway's own, in place of the upstream's.
//!
//! All of them are here: what they are called, their status, and what they say. They are
//! `application/problem+json` (RFC 9457) and name the cause, never an upstream's address. Clients of [`grpc`] get a
//! status of theirs.

pub mod grpc;

use std::fmt::{self, Write};

use bytes::Bytes;
use hyper::{
    Response, StatusCode,
    header::{CONTENT_TYPE, HeaderValue, RETRY_AFTER},
};

use crate::{
    config::{OnLimit, RatelimitHeaders},
    forward::{Failure, body::Fault},
    limit::{
        Limited, Refusal,
        fields::{self, Fields, Value},
    },
};

/// What the body of an answer mostly takes.
const PROBLEM_BYTES: usize = 512;
/// What the lines of its head mostly take that tell of its limits.
pub(crate) const LINES_BYTES: usize = 256;
static PROBLEM: HeaderValue = HeaderValue::from_static("application/problem+json");
const QUOTA_EXCEEDED: &str = "https://iana.org/assignments/http-problem-types#quota-exceeded";

/// An answer as it stands on the wire of HTTP/1.1: its status, lines of its head, and its body.
#[derive(Debug)]
pub struct Written {
    /// The status.
    pub status: StatusCode,
    /// Lines of the head.
    pub lines: Vec<u8>,
    /// The body.
    pub body: Bytes,
}

/// Why the gateway answers in place of the upstream.
#[derive(Debug)]
pub enum Rejection {
    /// What came is no request.
    Malformed,
    /// The head of the request is larger than it may be.
    HeadTooLarge,
    /// The target of the request alone is.
    TargetTooLong,
    /// An HTTP/1.1 request without Host.
    HostMissing,
    /// More than one Host.
    HostRepeated,
    /// A Host that names no host.
    HostInvalid,
    /// A target that is neither a path nor a whole url, or has a NUL.
    TargetInvalid,
    /// An escaped slash in the path, where the configuration rejects them.
    EscapedSlash,
    /// A path that servers read differently, each of them as one that has limits.
    PathAmbiguous,
    /// A path that some servers read as going up, of a route with limits.
    PathClimbs,
    /// Something else is expected than `100-continue`.
    ExpectationUnknown,
    /// CONNECT: the gateway is no forward proxy.
    Connect,
    /// The gateway has as many connections as it may have, and all of them are in use.
    Overloaded,
    /// No route matches.
    NoRoute,
    /// A peer that may not ask for decisions.
    CallerUnknown,
    /// A proxy asks for a decision, but doesn't say for which path.
    ForwardedUriMissing,
    /// A service asks for a decision in a way that can't be read.
    QuestionInvalid(String),
    /// A limit refuses, or can't be asked.
    Refused(Refusal),
    /// The upstream gives no answer.
    Failed(Failure),
}

impl From<Refusal> for Rejection {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

impl From<Failure> for Rejection {
    fn from(failure: Failure) -> Self {
        Self::Failed(failure)
    }
}

impl Rejection {
    /// Status, code and detail.
    pub(crate) fn terms(&self) -> (StatusCode, &'static str, &dyn fmt::Display) {
        let (status, code, detail): (_, _, &&str) = match self {
            Self::Malformed => (400, "request-malformed", &"what came is no request of HTTP/1.1"),
            Self::HeadTooLarge => (431, "head-too-large", &"the request's head is larger than it may be"),
            Self::TargetTooLong => (414, "target-too-long", &"the request's target is longer than it may be"),
            Self::HostMissing => (400, "host-missing", &"the request has no Host field"),
            Self::HostRepeated => (400, "host-repeated", &"the request has more than one Host field"),
            Self::HostInvalid => (400, "host-invalid", &"the Host field names no host"),
            Self::TargetInvalid => {
                (400, "target-invalid", &"the request's target is neither a path nor an http url")
            }
            Self::EscapedSlash => (400, "escaped-slash", &"the path has an escaped slash or backslash"),
            Self::PathAmbiguous => {
                (400, "path-ambiguous", &"servers read the path in several ways, which aren't limited alike")
            }
            Self::PathClimbs => {
                (400, "path-ambiguous", &"some servers read the path as going up, past its limits")
            }
            Self::ExpectationUnknown => {
                (417, "expectation-unknown", &"the request expects something else than 100-continue")
            }
            Self::Connect => (501, "connect", &"this gateway opens no tunnels"),
            Self::Overloaded => (503, "overloaded", &"the gateway has no room for another connection"),
            Self::CallerUnknown => (
                403,
                "caller-unknown",
                &"this address may not ask: decisions.trusted_proxies doesn't name it",
            ),
            Self::ForwardedUriMissing => {
                (400, "forwarded-uri-missing", &"the request has no X-Forwarded-Uri field")
            }
            Self::QuestionInvalid(fault) => return (StatusCode::BAD_REQUEST, "question-invalid", fault),
            Self::NoRoute => (404, "no-route", &"no route matches the request"),
            Self::Refused(refusal) => return refused(refusal),
            Self::Failed(failure) => return failed(failure),
        };
        (StatusCode::from_u16(status).expect("a status of this table"), code, detail)
    }

    /// The answer, to a call of gRPC or another request, with the limits' fields in this form. Whom a limit refuses is
    /// told so in the words of the route, if it has any.
    pub fn into_response(
        self,
        is_grpc: bool,
        form: RatelimitHeaders,
        on_limit: Option<&OnLimit>,
    ) -> Response<Bytes> {
        let mut response = Response::default();
        (*response.status_mut(), *response.body_mut()) =
            self.answer(is_grpc, form, on_limit, response.headers_mut());
        response
    }

    /// The same, to a request of HTTP/1.1 that is no call of gRPC.
    pub fn write(&self, form: RatelimitHeaders, on_limit: Option<&OnLimit>) -> Written {
        let mut lines = Vec::with_capacity(LINES_BYTES);
        let (status, body) = self.answer(false, form, on_limit, &mut lines);
        Written { status, lines, body }
    }

    /// The same, with its fields written elsewhere: its status and its body.
    pub(crate) fn answer(
        &self,
        is_grpc: bool,
        form: RatelimitHeaders,
        on_limit: Option<&OnLimit>,
        fields: &mut impl Fields,
    ) -> (StatusCode, Bytes) {
        let (status, code, detail) = self.terms();
        let limited = match self {
            Self::Refused(Refusal::Limited(limited)) => Some(&**limited),
            _ => None,
        };
        let refused = matches!(self, Self::Refused(Refusal::Limited(_) | Refusal::KeyMissing { .. }));
        let own = on_limit.filter(|_| refused);
        let answer = if is_grpc {
            grpc::write(fields, status, &detail.to_string());
            (StatusCode::OK, Bytes::new())
        } else {
            let status = own.map_or(status, |own| own.status);
            let (body, content_type) = match own.and_then(|own| own.body.as_ref()) {
                Some((body, content_type)) => (body.clone(), content_type),
                None => (problem(status, code, detail, limited).into(), &PROBLEM),
            };
            fields.insert(CONTENT_TYPE, Value::Ready(content_type));
            (status, body)
        };
        match self {
            Self::Refused(Refusal::Limited(limited)) => {
                fields::write(fields, limited.standings(), form);
                fields::write_retry_after(fields, limited);
                if let Some(delay_us) = limited.delay_us().filter(|_| is_grpc) {
                    grpc::write_pushback(fields, delay_us);
                }
            }
            Self::Overloaded
            | Self::Refused(Refusal::StoreUnavailable { .. })
            | Self::Failed(Failure::Busy) => fields.insert(RETRY_AFTER, Value::Number(1)),
            Self::Failed(Failure::NoneHealthy { interval }) => {
                let seconds = interval.as_secs() + u64::from(interval.subsec_nanos() > 0);
                fields.insert(RETRY_AFTER, Value::Number(seconds));
            }
            _ => {}
        }
        answer
    }
}

fn failed(failure: &Failure) -> (StatusCode, &'static str, &dyn fmt::Display) {
    let (status, code) = match failure {
        Failure::NoneHealthy { .. } => (StatusCode::SERVICE_UNAVAILABLE, "upstream-unhealthy"),
        Failure::Busy => (StatusCode::SERVICE_UNAVAILABLE, "upstream-busy"),
        Failure::Unreachable(_) => (StatusCode::BAD_GATEWAY, "upstream-unreachable"),
        Failure::Unresolved => (StatusCode::BAD_GATEWAY, "upstream-unresolved"),
        Failure::Tls(_) => (StatusCode::BAD_GATEWAY, "upstream-tls"),
        Failure::Broken(_) => (StatusCode::BAD_GATEWAY, "upstream-broken"),
        Failure::Switched => (StatusCode::BAD_GATEWAY, "upstream-switched"),
        Failure::Request(Fault::TooSlow) => (StatusCode::REQUEST_TIMEOUT, "request-timeout"),
        Failure::Request(Fault::TooLarge) => (StatusCode::PAYLOAD_TOO_LARGE, "body-too-large"),
        Failure::Request(Fault::Broken) => (StatusCode::BAD_REQUEST, "body-malformed"),
        Failure::ConnectTimeout => (StatusCode::GATEWAY_TIMEOUT, "upstream-connect-timeout"),
        Failure::ExchangeTimeout => (StatusCode::GATEWAY_TIMEOUT, "exchange-timeout"),
        Failure::ResponseTimeout => (StatusCode::GATEWAY_TIMEOUT, "upstream-response-timeout"),
    };
    (status, code, failure)
}

fn refused(refusal: &Refusal) -> (StatusCode, &'static str, &dyn fmt::Display) {
    let (status, code) = match refusal {
        Refusal::Limited(_) => (StatusCode::TOO_MANY_REQUESTS, "quota-exceeded"),
        Refusal::KeyMissing { .. } => (StatusCode::TOO_MANY_REQUESTS, "key-missing"),
        Refusal::KeyAmbiguous { .. } => (StatusCode::BAD_REQUEST, "key-ambiguous"),
        Refusal::CostInvalid { .. } => (StatusCode::BAD_REQUEST, "cost-invalid"),
        Refusal::StoreUnavailable { .. } => (StatusCode::SERVICE_UNAVAILABLE, "store-unavailable"),
    };
    (status, code, refusal)
}

/// A problem: RFC 9457, section 3. Refusals may come in floods, so it is written as it is.
fn problem(status: StatusCode, code: &str, detail: &dyn fmt::Display, limited: Option<&Limited>) -> String {
    let kind = if limited.is_some() { QUOTA_EXCEEDED } else { "about:blank" };
    let title = status.canonical_reason().unwrap_or_default();
    let mut body = String::with_capacity(PROBLEM_BYTES);
    body.extend(["{\"type\":\"", kind, "\",\"title\":\"", title, "\",\"status\":", status.as_str()]);
    body.extend([",\"code\":\"", code, "\",\"detail\":\""]);
    if let Some(limited) = limited {
        limited.write(&mut body);
        // The names of limits need no escapes.
        body.push_str("\",\"violated-policies\":[");
        for (at, name) in limited.violated().enumerate() {
            body.extend([if at == 0 { "\"" } else { ",\"" }, name, "\""]);
        }
        body.push(']');
        if let Some(delay_us) = limited.delay_us().filter(|_| limited.is_exact()) {
            let delay_ms = delay_us.div_ceil(1_000);
            body.extend([",\"retry_after_ms\":", itoa::Buffer::new().format(delay_ms)]);
        }
    } else {
        let start = body.len();
        write!(body, "{detail}").expect("a string can be written to");
        escape(&mut body, start);
        body.push('"');
    }
    body.push('}');
    body
}

/// Escapes the end of a text, from `start` on, for the quotes of JSON.
fn escape(text: &mut String, start: usize) {
    let is_escaped = |byte| byte < b' ' || byte == b'"' || byte == b'\\';
    // Not `any`: without an early end it goes by many bytes at a time.
    if text[start..].bytes().fold(false, |found, byte| found | is_escaped(byte)) {
        let quoted = serde_json::to_string(&text[start..]).expect("a string is always written");
        text.replace_range(start.., &quoted[1..quoted.len() - 1]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn details_are_escaped() {
        for detail in ["plain, with `ticks`", "a \"quoted\" \\ and\n\u{1}", "grün 🙂", ""] {
            let problem = problem(StatusCode::BAD_REQUEST, "a-code", &detail, None);
            let read: serde_json::Value = serde_json::from_str(&problem).unwrap();
            assert_eq!(
                read,
                serde_json::json!({
                    "type": "about:blank", "title": "Bad Request", "status": 400, "code": "a-code", "detail": detail,
                })
            );
        }
    }
}
