//! Rejections: the gateway's own responses, in place of the upstream's.
//!
//! This module has the code, status and text of each one; those of limits' refusals come from
//! `tollgate_limiter::response`. They are `application/problem+json` (RFC 9457) and name the cause, never an
//! upstream's address. gRPC clients get a gRPC status.

use std::fmt;

use bytes::Bytes;
use hyper::{
    Response, StatusCode,
    header::{CONTENT_TYPE, HeaderValue, RETRY_AFTER, WWW_AUTHENTICATE},
};
use tollgate_limiter::{
    RatelimitHeaders, Refusal,
    fields::{Fields, Value},
    grpc,
    response::{self, PROBLEM, problem},
};

use crate::{
    config::{BodyTemplate, OnLimit},
    forward::{Failure, body::Fault},
};

/// The usual size of a response's RateLimit lines, in bytes.
pub(crate) const LINES_BYTES: usize = 256;

/// The challenge to a request without a token (RFC 6750, section 3).
static TOKEN_NEEDED: HeaderValue = HeaderValue::from_static("Bearer realm=\"tollgate\"");
/// The challenge to a request with an invalid one.
static TOKEN_REFUSED: HeaderValue =
    HeaderValue::from_static("Bearer realm=\"tollgate\", error=\"invalid_token\"");

/// A response as HTTP/1.1 sends it: its status, header lines and body.
#[derive(Debug)]
pub struct Written {
    /// The status.
    pub status: StatusCode,
    /// The header lines.
    pub lines: Vec<u8>,
    /// The body.
    pub body: Bytes,
}

/// The reason why the gateway responds in place of the upstream.
#[derive(Debug)]
pub enum Rejection {
    /// The bytes aren't an HTTP/1.1 request.
    Malformed,
    /// The request's header is too large.
    HeadTooLarge,
    /// The request's target alone is too long.
    TargetTooLong,
    /// An HTTP/1.1 request without Host.
    HostMissing,
    /// More than one Host.
    HostRepeated,
    /// A Host that isn't a valid host.
    HostInvalid,
    /// A rewritten path that could leave the route's directory, names a host, or is too long.
    RewriteInvalid,
    /// A query with too many parameters on which routes have conditions.
    QueryAmbiguous,
    /// A target that is neither a path nor a full URL.
    TargetInvalid,
    /// The path has an escaped NUL, or a `%` that begins no escape.
    EscapeInvalid,
    /// An escaped slash in the path, where the configuration rejects them.
    EscapedSlash,
    /// A path that servers may read in more ways than limits can be charged for, or that a route rewrites to what another one
    /// protects.
    PathAmbiguous,
    /// A path with a dot segment that only some servers see, which could escape limits.
    DotsHidden,
    /// A method that isn't in upper case.
    MethodInvalid,
    /// A field with the byte FF.
    FieldInvalid,
    /// An expectation other than `100-continue`.
    ExpectationUnknown,
    /// CONNECT: the gateway isn't a forward proxy.
    Connect,
    /// The gateway has the most connections it may have, and all of them are in use.
    Overloaded,
    /// No route matches.
    NoRoute,
    /// A peer that isn't allowed to ask for decisions.
    CallerUnknown,
    /// A proxy's request for a decision doesn't name the path.
    ForwardedUriMissing,
    /// A service's request for a decision is invalid.
    QuestionInvalid(String),
    /// A request without a token, on a route that requires one.
    TokenMissing,
    /// A request with an invalid token, on a route that requires a valid one, and the reason why it isn't valid.
    TokenInvalid(&'static str),
    /// A route needs claims of a token that can't be verified now, or isn't the only one.
    ClaimsUnknown(Refusal),
    /// A limit refuses the request, or the store can't answer.
    Refused(Refusal),
    /// There is no response from the upstream.
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
    /// Returns the status, code and detail.
    pub(crate) fn summary(&self) -> (StatusCode, &'static str, &dyn fmt::Display) {
        let (status, code, detail): (_, _, &&str) = match self {
            Self::Malformed => (400, "request-malformed", &"this is not an HTTP/1.1 request"),
            Self::HeadTooLarge => (431, "head-too-large", &"the request's header is too large"),
            Self::TargetTooLong => (414, "target-too-long", &"the request's target is too long"),
            Self::HostMissing => (400, "host-missing", &"the request has no Host field"),
            Self::HostRepeated => (400, "host-repeated", &"the request has more than one Host field"),
            Self::HostInvalid => (400, "host-invalid", &"the Host field is not a valid host"),
            Self::TargetInvalid => {
                (400, "target-invalid", &"the request's target is neither a path nor an http URL")
            }
            Self::RewriteInvalid => (
                400,
                "target-invalid",
                &"the rewritten path could leave the route's directory, names a host, or is too long",
            ),
            Self::QueryAmbiguous => (
                400,
                "path-ambiguous",
                &"the query has more than 64 parameters on which routes have conditions",
            ),
            Self::EscapeInvalid => (
                400,
                "target-invalid",
                &"the path has `%00`, or a `%` without two hexadecimal digits behind it",
            ),
            Self::EscapedSlash => (400, "escaped-slash", &"the path has an escaped slash or backslash"),
            Self::PathAmbiguous => (
                400,
                "path-ambiguous",
                &"servers may read the path in ways whose limits can't all be applied",
            ),
            Self::DotsHidden => (
                400,
                "path-ambiguous",
                &"some servers see a dot segment in the path, by which it would escape limits",
            ),
            Self::MethodInvalid => {
                (400, "method-invalid", &"the method has other characters than capital letters, - and _")
            }
            Self::FieldInvalid => (
                400,
                "field-invalid",
                &"a header field has the byte FF, or its name ends in -bin and its value isn't base64",
            ),
            Self::ExpectationUnknown => {
                (417, "expectation-unknown", &"the only supported expectation is 100-continue")
            }
            Self::Connect => (501, "connect", &"CONNECT is not supported"),
            Self::Overloaded => (503, "overloaded", &"the gateway has too many connections"),
            Self::CallerUnknown => (
                403,
                "caller-unknown",
                &"this address may not ask: decisions.trusted_proxies doesn't name it",
            ),
            Self::ForwardedUriMissing => (
                400,
                "forwarded-uri-missing",
                &"the request has no X-Forwarded-Uri field; for a question in JSON, send Content-Type: application/json",
            ),
            Self::QuestionInvalid(fault) => return (StatusCode::BAD_REQUEST, "question-invalid", fault),
            Self::TokenMissing => {
                (401, "token-missing", &"the request needs a token: Authorization: Bearer TOKEN")
            }
            Self::TokenInvalid(_) => (401, "token-invalid", &"the token is invalid or has expired"),
            Self::NoRoute => (404, "no-route", &"no route matches the request"),
            Self::Refused(refusal) | Self::ClaimsUnknown(refusal) => {
                let (status, code) = response::status_and_code(refusal);
                return (status, code, refusal);
            }
            Self::Failed(failure) => return failed(failure),
        };
        (StatusCode::from_u16(status).expect("a status of this table"), code, detail)
    }

    /// Returns the response to a gRPC call or another request, with the RateLimit fields in this form. A limit's refusal
    /// has the status and body of `on_limit`, if the route has one.
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

    /// Writes the response to an HTTP/1.1 request that isn't a gRPC call.
    pub fn write(&self, form: RatelimitHeaders, on_limit: Option<&OnLimit>) -> Written {
        let mut lines = Vec::with_capacity(LINES_BYTES);
        let (status, body) = self.answer(false, form, on_limit, &mut lines);
        Written { status, lines, body }
    }

    /// Returns a route's own body for a refusal.
    fn render(&self, body: &BodyTemplate) -> Bytes {
        match self {
            Self::Refused(Refusal::Limited(limited)) => {
                let seconds = limited.delay_us().map(|delay_us| delay_us.div_ceil(1_000_000).max(1));
                body.render(limited.violated().next().unwrap_or_default(), seconds)
            }
            Self::Refused(Refusal::KeyMissing { limit, .. }) => body.render(limit, None),
            _ => body.render("", None),
        }
    }

    /// Writes the header fields of the response, and returns its status and body.
    pub(crate) fn answer(
        &self,
        is_grpc: bool,
        form: RatelimitHeaders,
        on_limit: Option<&OnLimit>,
        fields: &mut impl Fields,
    ) -> (StatusCode, Bytes) {
        let (status, code, detail) = self.summary();
        let limited = match self {
            Self::Refused(refusal) => response::limited_by(refusal),
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
                Some((body, content_type)) => (self.render(body), content_type),
                None => (problem(status, code, detail, limited).into(), &PROBLEM),
            };
            fields.insert(CONTENT_TYPE, Value::Ready(content_type));
            (status, body)
        };
        match self {
            // Retry-After and the RateLimit fields.
            Self::Refused(refusal) | Self::ClaimsUnknown(refusal) => {
                response::write_fields(fields, refusal, is_grpc, form);
            }
            Self::TokenMissing => fields.insert(WWW_AUTHENTICATE, Value::Ready(&TOKEN_NEEDED)),
            Self::TokenInvalid(_) => fields.insert(WWW_AUTHENTICATE, Value::Ready(&TOKEN_REFUSED)),
            Self::Overloaded | Self::Failed(Failure::Busy) => {
                fields.insert(RETRY_AFTER, Value::Number(1));
            }
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
        Failure::Broken(_) | Failure::Unfinished(_) => (StatusCode::BAD_GATEWAY, "upstream-broken"),
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
