//! What a client of gRPC is told: HTTP's 200, and the status of gRPC in a header without a body ("trailers-only").

use bytes::Bytes;
use hyper::{
    HeaderMap, Response, StatusCode,
    header::{CONTENT_TYPE, HeaderName, HeaderValue},
};
use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};

const GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");
const GRPC_MESSAGE: HeaderName = HeaderName::from_static("grpc-message");
const GRPC_RETRY_PUSHBACK_MS: HeaderName = HeaderName::from_static("grpc-retry-pushback-ms");

/// What is escaped in a message: all but what can be printed in ASCII, and `%` itself.
const ESCAPED: &AsciiSet = &CONTROLS.add(b'%');

/// Whether a request is a call: `application/grpc`, also with a message format (`application/grpc+proto`); not gRPC-Web.
pub fn is_call(request: &HeaderMap) -> bool {
    let content_type = request.get(CONTENT_TYPE).map(HeaderValue::as_bytes).unwrap_or_default();
    let rest = content_type.strip_prefix(b"application/grpc");
    rest.is_some_and(|rest| rest.first().is_none_or(|byte| b"+; ".contains(byte)))
}

/// The answer in place of one with this status.
pub(super) fn answer(status: StatusCode, detail: &str) -> Response<Bytes> {
    let mut response = Response::new(Bytes::new());
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    headers.insert(GRPC_STATUS, code(status).into());
    let message = utf8_percent_encode(detail, ESCAPED).to_string();
    headers.insert(GRPC_MESSAGE, message.try_into().expect("what is escaped is visible ASCII"));
    response
}

/// Tells clients that try again by themselves when to, as far as the number goes (gRFC A6, "Pushback").
pub(super) fn write_pushback(headers: &mut HeaderMap, delay_us: u64) {
    if let Ok(delay_ms) = i32::try_from(delay_us.div_ceil(1_000)) {
        headers.insert(GRPC_RETRY_PUSHBACK_MS, delay_ms.into());
    }
}

/// The status of gRPC for one of HTTP: by "HTTP to gRPC Status Code Mapping", but that a refusal by a limit is
/// RESOURCE_EXHAUSTED, and an upstream that is late DEADLINE_EXCEEDED.
fn code(status: StatusCode) -> u16 {
    match status.as_u16() {
        400 => 13,       // INTERNAL
        401 => 16,       // UNAUTHENTICATED
        403 => 7,        // PERMISSION_DENIED
        404 => 12,       // UNIMPLEMENTED
        429 => 8,        // RESOURCE_EXHAUSTED
        502 | 503 => 14, // UNAVAILABLE
        504 => 4,        // DEADLINE_EXCEEDED
        _ => 2,          // UNKNOWN
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_escaped() {
        let answer = answer(StatusCode::TOO_MANY_REQUESTS, "over 100 % of `grün`\n");
        assert_eq!(answer.headers()["grpc-message"], "over 100 %25 of `gr%C3%BCn`%0A");
        assert_eq!(answer.headers()["grpc-status"], "8");
    }
}
