//! What a client of gRPC is told: HTTP's 200, and the status of gRPC in a header without a body ("trailers-only").

use http::{
    HeaderMap, StatusCode,
    header::{CONTENT_TYPE, HeaderName, HeaderValue},
};
use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};

use crate::fields::{Fields, Value};

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

/// Writes the answer in place of one with this status.
pub fn write(fields: &mut impl Fields, status: StatusCode, detail: &str) {
    fields.insert(CONTENT_TYPE, Value::Ready(&HeaderValue::from_static("application/grpc")));
    fields.insert(GRPC_STATUS, Value::Number(code(status)));
    fields.insert(GRPC_MESSAGE, Value::Text(utf8_percent_encode(detail, ESCAPED).to_string()));
}

/// Tells clients that try again by themselves when to, as far as the number goes (gRFC A6, "Pushback").
pub fn write_pushback(fields: &mut impl Fields, delay_us: u64) {
    let delay_ms = delay_us.div_ceil(1_000);
    if delay_ms <= i32::MAX as u64 {
        fields.insert(GRPC_RETRY_PUSHBACK_MS, Value::Number(delay_ms));
    }
}

/// The status of gRPC for one of HTTP: by "HTTP to gRPC Status Code Mapping", but that a refusal by a limit is
/// RESOURCE_EXHAUSTED, and an upstream that is late DEADLINE_EXCEEDED.
fn code(status: StatusCode) -> u64 {
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
        let mut fields = HeaderMap::new();
        write(&mut fields, StatusCode::TOO_MANY_REQUESTS, "over 100 % of `grün`\n");
        assert_eq!(fields["grpc-message"], "over 100 %25 of `gr%C3%BCn`%0A");
        assert_eq!(fields["grpc-status"], "8");
    }
}
