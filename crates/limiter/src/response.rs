//! The response to a refused request: status, header fields, and `application/problem+json` (RFC 9457) or a gRPC
//! status.

use std::fmt::{self, Write};

use bytes::Bytes;
use http::{
    Response, StatusCode,
    header::{CONTENT_TYPE, HeaderValue, RETRY_AFTER, WWW_AUTHENTICATE},
};

use crate::{
    Limited, RatelimitHeaders, Refusal,
    fields::{self, Fields, Value},
    grpc,
};

/// The usual size of a problem, in bytes.
const PROBLEM_BYTES: usize = 512;
/// The media type of a [`problem`].
///
/// # Examples
///
/// ```
/// assert_eq!(tollgate_limiter::response::PROBLEM, "application/problem+json");
/// ```
pub static PROBLEM: HeaderValue = HeaderValue::from_static("application/problem+json");
const QUOTA_EXCEEDED: &str = "https://iana.org/assignments/http-problem-types#quota-exceeded";

/// The challenge to a bearer of an unknown key (RFC 6750, section 3). A 401 must have one (RFC 9110, section 15.5.2).
static BEARER: HeaderValue = HeaderValue::from_static("Bearer realm=\"tollgate\", error=\"invalid_token\"");
/// The challenge to a request with an unknown key elsewhere.
static API_KEY: HeaderValue = HeaderValue::from_static("ApiKey realm=\"tollgate\"");

/// Returns the response to a refused request, which may be a gRPC call, with the RateLimit fields in this form.
pub(crate) fn respond(refusal: &Refusal, is_grpc: bool, form: RatelimitHeaders) -> Response<Bytes> {
    let (status, code) = status_and_code(refusal);
    let mut response = Response::default();
    if is_grpc {
        grpc::write(response.headers_mut(), status, &refusal.to_string());
    } else {
        *response.status_mut() = status;
        *response.body_mut() = problem(status, code, refusal, limited_by(refusal)).into();
        response.headers_mut().insert(CONTENT_TYPE, PROBLEM.clone());
    }
    write_fields(response.headers_mut(), refusal, is_grpc, form);
    response
}

/// Returns the limits without room, if these are the reason for the refusal.
///
/// # Examples
///
/// ```
/// # use std::sync::Arc;
/// # use tollgate_limiter::{Ask, Limit, Limiter, Rate, response};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let limiter = Limiter::connect("memory:")?;
/// # let logins = Arc::new(Limit::new("logins", "5/min".parse::<Rate>()?));
/// let refusal = limiter.try_acquire(Ask::new(&logins, "alice").cost(6)).await.unwrap_err();
/// assert!(response::limited_by(&refusal).is_some_and(|limited| limited.violated().eq(["logins"])));
/// # Ok(())
/// # }
/// ```
pub fn limited_by(refusal: &Refusal) -> Option<&Limited> {
    match refusal {
        Refusal::Limited(limited) => Some(limited),
        _ => None,
    }
}

/// Writes the header fields of a refusal: those of a full limit, or else Retry-After or a challenge.
///
/// # Examples
///
/// ```
/// # use std::sync::Arc;
/// # use tollgate_limiter::{Ask, Limit, Limiter, Rate, RatelimitHeaders, response};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let limiter = Limiter::connect("memory:")?;
/// # let logins = Arc::new(Limit::new("logins", "5/min".parse::<Rate>()?));
/// let alice = Ask::new(&logins, "alice").cost(5);
/// limiter.try_acquire(&alice).await?;
/// let refusal = limiter.try_acquire(&alice).await.unwrap_err();
/// let mut headers = http::HeaderMap::new();
/// response::write_fields(&mut headers, &refusal, false, RatelimitHeaders::Draft11);
/// assert!(headers.contains_key("ratelimit") && headers.contains_key("retry-after"));
/// # Ok(())
/// # }
/// ```
pub fn write_fields(fields: &mut impl Fields, refusal: &Refusal, is_grpc: bool, form: RatelimitHeaders) {
    match refusal {
        Refusal::Limited(limited) => {
            fields::write(fields, limited.standings(), form);
            fields::write_retry_after(fields, limited);
            if let Some(delay_us) = limited.delay_us().filter(|_| is_grpc) {
                grpc::write_pushback(fields, delay_us);
            }
        }
        Refusal::StoreUnavailable { .. } | Refusal::TokenUnverified => {
            fields.insert(RETRY_AFTER, Value::Number(1));
        }
        Refusal::KeyUnknown { part } if part == "header:authorization" => {
            fields.insert(WWW_AUTHENTICATE, Value::Ready(&BEARER));
        }
        Refusal::KeyUnknown { .. } => fields.insert(WWW_AUTHENTICATE, Value::Ready(&API_KEY)),
        _ => {}
    }
}

/// Returns the status and the code of a refusal.
///
/// # Examples
///
/// ```
/// # use std::sync::Arc;
/// # use tollgate_limiter::{Ask, Limit, Limiter, Rate, response};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let limiter = Limiter::connect("memory:")?;
/// # let logins = Arc::new(Limit::new("logins", "5/min".parse::<Rate>()?));
/// let refusal = limiter.try_acquire(Ask::new(&logins, "alice").cost(6)).await.unwrap_err();
/// assert_eq!(response::status_and_code(&refusal), (http::StatusCode::TOO_MANY_REQUESTS, "quota-exceeded"));
/// # Ok(())
/// # }
/// ```
pub fn status_and_code(refusal: &Refusal) -> (StatusCode, &'static str) {
    match refusal {
        Refusal::Limited(_) => (StatusCode::TOO_MANY_REQUESTS, "quota-exceeded"),
        Refusal::KeyMissing { .. } => (StatusCode::TOO_MANY_REQUESTS, "key-missing"),
        Refusal::KeyUnknown { .. } => (StatusCode::UNAUTHORIZED, "key-unknown"),
        Refusal::TokenUnverified => (StatusCode::SERVICE_UNAVAILABLE, "token-unverified"),
        Refusal::KeyAmbiguous { .. } => (StatusCode::BAD_REQUEST, "key-ambiguous"),
        Refusal::CostInvalid { .. } => (StatusCode::BAD_REQUEST, "cost-invalid"),
        Refusal::StoreUnavailable { .. } => (StatusCode::SERVICE_UNAVAILABLE, "store-unavailable"),
    }
}

/// Returns a problem (RFC 9457, section 3) as a line of its own, for those who read it in a terminal. It is written without a
/// serializer, because refusals come in floods.
///
/// # Examples
///
/// ```
/// use http::StatusCode;
/// use tollgate_limiter::response;
///
/// let problem = response::problem(StatusCode::NOT_FOUND, "no-route", &"no route matches `/`", None);
/// assert!(problem.trim_end().ends_with(r#""status":404,"code":"no-route","detail":"no route matches `/`"}"#));
/// ```
pub fn problem(
    status: StatusCode,
    code: &str,
    detail: &dyn fmt::Display,
    limited: Option<&Limited>,
) -> String {
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
        write!(body, "{detail}").expect("writing to a string succeeds");
        escape(&mut body, start);
        body.push('"');
    }
    body.push_str("}\n");
    body
}

/// Escapes the end of a text, from `start`, for a JSON string.
fn escape(text: &mut String, start: usize) {
    let is_escaped = |byte| byte < b' ' || byte == b'"' || byte == b'\\';
    // `fold` instead of `any`, because it has no early end and so is vectorized.
    if text[start..].bytes().fold(false, |found, byte| found | is_escaped(byte)) {
        let quoted = serde_json::to_string(&text[start..]).expect("strings are always serializable");
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
