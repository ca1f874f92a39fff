//! Max-Forwards of OPTIONS and TRACE requests (RFC 9110, section 7.6.2).

use bytes::Bytes;
use hyper::{
    Method, Response, StatusCode,
    header::{CONTENT_TYPE, HOST, HeaderName, HeaderValue, MAX_FORWARDS, VIA},
    http::request::Parts,
};

/// The header fields in the response to TRACE. Others may be credentials.
const SHOWN: [HeaderName; 3] = [HOST, MAX_FORWARDS, VIA];

/// Decrements Max-Forwards of a request. Returns the gateway's own response if it is zero.
///
/// An invalid number is left as it is.
pub(super) fn count_down(parts: &mut Parts) -> Option<Response<Bytes>> {
    if parts.method != Method::OPTIONS && parts.method != Method::TRACE {
        return None;
    }
    let mut lines = parts.headers.get_all(MAX_FORWARDS).into_iter();
    let (Some(line), None) = (lines.next(), lines.next()) else { return None };
    let digits = str::from_utf8(line.as_bytes()).ok()?;
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    // Greater numbers are reduced to the largest that is supported.
    match digits.parse().unwrap_or(u32::MAX).checked_sub(1) {
        Some(left) => {
            parts.headers.insert(MAX_FORWARDS, left.into());
            None
        }
        None => Some(answer(parts)),
    }
}

/// Returns the response of the final recipient (RFC 9110, sections 9.3.7 and 9.3.8).
fn answer(parts: &Parts) -> Response<Bytes> {
    if parts.method == Method::OPTIONS {
        return super::plan::fixed(StatusCode::NO_CONTENT, "", &[]);
    }
    let target = parts.uri.path_and_query().map_or("/", |target| target.as_str());
    let mut message = format!("TRACE {target} {:?}\r\n", parts.version).into_bytes();
    for name in &SHOWN {
        for line in parts.headers.get_all(name) {
            message.extend_from_slice(&[name.as_str().as_bytes(), b": ", line.as_bytes(), b"\r\n"].concat());
        }
    }
    message.extend_from_slice(b"\r\n");
    let mut response = Response::new(message.into());
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("message/http"));
    response
}
