//! Rejections for gRPC clients: HTTP status 200, and the gRPC status in the header without a body ("trailers-only").

use http::{
    HeaderMap, StatusCode,
    header::{CONTENT_TYPE, HeaderName, HeaderValue},
};
use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};

use crate::fields::{Fields, Value};

const GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");
const GRPC_MESSAGE: HeaderName = HeaderName::from_static("grpc-message");
const GRPC_RETRY_PUSHBACK_MS: HeaderName = HeaderName::from_static("grpc-retry-pushback-ms");

/// The characters to escape in a message: everything but printable ASCII, and `%` itself.
const ESCAPED: &AsciiSet = &CONTROLS.add(b'%');

/// Returns true for a gRPC call: `application/grpc`, also with a message format (`application/grpc+proto`), but not gRPC-Web.
///
/// # Examples
///
/// ```
/// use http::{HeaderMap, HeaderValue};
/// use tollgate_limiter::grpc;
///
/// let call = HeaderMap::from_iter([(http::header::CONTENT_TYPE, HeaderValue::from_static("application/grpc+proto"))]);
/// assert!(grpc::is_call(&call) && !grpc::is_call(&HeaderMap::new()));
/// ```
pub fn is_call(request: &HeaderMap) -> bool {
    let content_type = request.get(CONTENT_TYPE).map(HeaderValue::as_bytes).unwrap_or_default();
    let rest = content_type.strip_prefix(b"application/grpc");
    rest.is_some_and(|rest| rest.first().is_none_or(|byte| b"+; ".contains(byte)))
}

/// Writes the gRPC response that stands for an HTTP response with this status.
///
/// # Examples
///
/// ```
/// use http::{HeaderMap, StatusCode};
/// use tollgate_limiter::grpc;
///
/// let mut headers = HeaderMap::new();
/// grpc::write(&mut headers, StatusCode::TOO_MANY_REQUESTS, "retry in 5s");
/// assert_eq!(headers["grpc-status"], "8"); // RESOURCE_EXHAUSTED
/// ```
pub fn write(fields: &mut impl Fields, status: StatusCode, detail: &str) {
    fields.insert(CONTENT_TYPE, Value::Ready(&HeaderValue::from_static("application/grpc")));
    fields.insert(GRPC_STATUS, Value::Number(code(status)));
    fields.insert(GRPC_MESSAGE, Value::Text(utf8_percent_encode(detail, ESCAPED).to_string()));
}

/// Writes the delay for clients that retry automatically, if it fits into the field (gRFC A6, "Pushback").
pub(crate) fn write_pushback(fields: &mut impl Fields, delay_us: u64) {
    let delay_ms = delay_us.div_ceil(1_000);
    if delay_ms <= i32::MAX as u64 {
        fields.insert(GRPC_RETRY_PUSHBACK_MS, Value::Number(delay_ms));
    }
}

/// Maps an HTTP status to a gRPC status. It follows "HTTP to gRPC Status Code Mapping", except that a limit's refusal is
/// RESOURCE_EXHAUSTED, and an upstream timeout is DEADLINE_EXCEEDED.
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
