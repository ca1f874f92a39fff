//! A rejection is an answer of the gateway's own, in place of the upstream's.
//!
//! All of them are here: what they are called, their status, and what they say. They are
//! `application/problem+json` (RFC 9457) and name the cause, never an upstream's address. Clients of [`grpc`] get a
//! status of theirs.

pub mod grpc;

use bytes::Bytes;
use hyper::{
    Response, StatusCode,
    header::{CONTENT_TYPE, HeaderValue, RETRY_AFTER},
};
use serde::Serialize;

use crate::{
    config::{OnLimit, RatelimitHeaders},
    forward::{Failure, body::Fault},
    limit::{Limited, Refusal, fields},
};

/// What the body of an answer mostly takes.
const PROBLEM_BYTES: usize = 512;
const QUOTA_EXCEEDED: &str = "https://iana.org/assignments/http-problem-types#quota-exceeded";

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

/// The body of the answer: RFC 9457, section 3.
#[derive(Serialize)]
#[serde(rename_all = "snake_case")]
struct Problem<'a> {
    r#type: &'a str,
    title: &'a str,
    status: u16,
    code: &'a str,
    detail: &'a str,
    #[serde(rename = "violated-policies", skip_serializing_if = "<[_]>::is_empty")]
    violated_policies: &'a [&'a str],
    #[serde(skip_serializing_if = "Option::is_none")]
    retry_after_ms: Option<u64>,
}

impl Rejection {
    /// Status, code and detail.
    pub(crate) fn terms(&self) -> (StatusCode, &'static str, String) {
        let (status, code, detail) = match self {
            Self::Malformed => (400, "request-malformed", "what came is no request of HTTP/1.1"),
            Self::HeadTooLarge => (431, "head-too-large", "the request's head is larger than it may be"),
            Self::TargetTooLong => (414, "target-too-long", "the request's target is longer than it may be"),
            Self::HostMissing => (400, "host-missing", "the request has no Host field"),
            Self::HostRepeated => (400, "host-repeated", "the request has more than one Host field"),
            Self::HostInvalid => (400, "host-invalid", "the Host field names no host"),
            Self::TargetInvalid => {
                (400, "target-invalid", "the request's target is neither a path nor an http url")
            }
            Self::EscapedSlash => (400, "escaped-slash", "the path has an escaped slash or backslash"),
            Self::PathAmbiguous => {
                (400, "path-ambiguous", "servers read the path in several ways, which aren't limited alike")
            }
            Self::PathClimbs => {
                (400, "path-ambiguous", "some servers read the path as going up, past its limits")
            }
            Self::ExpectationUnknown => {
                (417, "expectation-unknown", "the request expects something else than 100-continue")
            }
            Self::Connect => (501, "connect", "this gateway opens no tunnels"),
            Self::Overloaded => (503, "overloaded", "the gateway has no room for another connection"),
            Self::NoRoute => (404, "no-route", "no route matches the request"),
            Self::Refused(refusal) => return refused(refusal),
            Self::Failed(failure) => return failed(failure),
        };
        (StatusCode::from_u16(status).expect("a status of this table"), code, detail.to_owned())
    }

    /// The answer, to a call of gRPC or another request, with the limits' fields in this form. Whom a limit refuses is
    /// told so in the words of the route, if it has any.
    pub fn into_response(
        self,
        is_grpc: bool,
        form: RatelimitHeaders,
        on_limit: Option<&OnLimit>,
    ) -> Response<Bytes> {
        let (status, code, detail) = self.terms();
        let limited = match &self {
            Self::Refused(Refusal::Limited(limited)) => Some(&**limited),
            _ => None,
        };
        let refused = matches!(&self, Self::Refused(Refusal::Limited(_) | Refusal::KeyMissing { .. }));
        let own = on_limit.filter(|_| refused);
        let mut response = if is_grpc {
            grpc::answer(status, &detail)
        } else {
            let status = own.map_or(status, |own| own.status);
            match own.and_then(|own| own.body.as_ref()) {
                Some((body, content_type)) => answer(status, body.clone(), content_type.clone()),
                None => problem(status, code, &detail, limited),
            }
        };
        match &self {
            Self::Refused(Refusal::Limited(limited)) => {
                fields::write(response.headers_mut(), limited.standings(), form);
                fields::write_retry_after(response.headers_mut(), limited);
                if let Some(delay_us) = limited.delay_us().filter(|_| is_grpc) {
                    grpc::write_pushback(response.headers_mut(), delay_us);
                }
            }
            Self::Overloaded
            | Self::Refused(Refusal::StoreUnavailable { .. })
            | Self::Failed(Failure::Busy) => {
                response.headers_mut().insert(RETRY_AFTER, 1.into());
            }
            Self::Failed(Failure::NoneHealthy { interval }) => {
                let seconds = interval.as_secs() + u64::from(interval.subsec_nanos() > 0);
                response.headers_mut().insert(RETRY_AFTER, seconds.into());
            }
            _ => {}
        }
        response
    }
}

fn failed(failure: &Failure) -> (StatusCode, &'static str, String) {
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
    (status, code, failure.to_string())
}

fn refused(refusal: &Refusal) -> (StatusCode, &'static str, String) {
    let (status, code) = match refusal {
        Refusal::Limited(_) => (StatusCode::TOO_MANY_REQUESTS, "quota-exceeded"),
        Refusal::KeyMissing { .. } => (StatusCode::TOO_MANY_REQUESTS, "key-missing"),
        Refusal::KeyAmbiguous { .. } => (StatusCode::BAD_REQUEST, "key-ambiguous"),
        Refusal::CostInvalid { .. } => (StatusCode::BAD_REQUEST, "cost-invalid"),
        Refusal::StoreUnavailable { .. } => (StatusCode::SERVICE_UNAVAILABLE, "store-unavailable"),
    };
    (status, code, refusal.to_string())
}

fn problem(status: StatusCode, code: &str, detail: &str, limited: Option<&Limited>) -> Response<Bytes> {
    let violated: Vec<_> = limited.map(|limited| limited.violated().collect()).unwrap_or_default();
    let problem = Problem {
        r#type: if limited.is_some() { QUOTA_EXCEEDED } else { "about:blank" },
        title: status.canonical_reason().unwrap_or_default(),
        status: status.as_u16(),
        code,
        detail,
        violated_policies: &violated,
        retry_after_ms: limited
            .filter(|limited| limited.is_exact())
            .and_then(Limited::delay_us)
            .map(|delay_us| delay_us.div_ceil(1_000)),
    };
    let mut body = Vec::with_capacity(PROBLEM_BYTES);
    serde_json::to_writer(&mut body, &problem).expect("strings and numbers are always written");
    answer(status, body, HeaderValue::from_static("application/problem+json"))
}

fn answer(status: StatusCode, body: impl Into<Bytes>, content_type: HeaderValue) -> Response<Bytes> {
    let mut response = Response::new(body.into());
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, content_type);
    response
}
