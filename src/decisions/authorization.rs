//! Envoy's external authorization over gRPC: `Check` describes a request, and the limits of its route decide.

mod messages;
#[cfg(any(test, feature = "fuzzing"))]
#[path = "../../fuzz/properties/authorization.rs"]
pub(super) mod properties;

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use hyper::{
    HeaderMap, Method, Request, Response, StatusCode, Version,
    header::{CONTENT_LENGTH, HOST, HeaderName, HeaderValue},
    http::{request::Parts, response},
};
use tollgate_http1::head::FIELDS_MOST;

use self::messages::{
    CheckRequest, CheckResponse, DeniedHttpResponse, Header, HeaderOption, HttpRequest, HttpResponse,
    HttpStatus, OkHttpResponse, RpcStatus,
};
use super::grpc::{self, Status};
use crate::{
    gateway::{AnswerBody, Body, Exchange, Gateway, Peer, Upload},
    reject::Rejection,
};

/// The path of the only method.
pub(super) const CHECK: &str = "/envoy.service.auth.v3.Authorization/Check";

/// The codes of gRPC in a decision. Envoy only tells 0 from the others.
const PERMISSION_DENIED: i32 = 7;
const RESOURCE_EXHAUSTED: i32 = 8;

/// Answers `Check`.
pub(super) async fn answer(gateway: Arc<Gateway>, peer: Peer, call: Request<Upload>) -> Response<AnswerBody> {
    let (call, body) = call.into_parts();
    match described(body).await {
        Ok((source, http)) => {
            let timeout = grpc::timeout(&call.headers);
            decide(gateway, peer, source.as_deref(), &http, timeout).await
        }
        Err(status) => {
            let response = grpc::response(Err::<CheckResponse, _>(status));
            let response = response.map(|reply| Body::Local(axum::body::Body::new(reply)));
            Exchange::begin(gateway, peer, &call).conclude(Ok(response))
        }
    }
}

/// Returns the request that a call describes, and the address of its client as the proxy sees it.
///
/// # Errors
/// The call can't be read, or doesn't describe an HTTP request.
async fn described(body: Upload) -> Result<(Option<String>, HttpRequest), Status> {
    let attributes = grpc::read::<CheckRequest>(body).await?.attributes.unwrap_or_default();
    let http = attributes.request.and_then(|request| request.http);
    let http = http.ok_or_else(|| Status::invalid("the call describes no HTTP request"))?;
    let source = attributes.source.and_then(|source| source.address?.socket_address);
    Ok((source.map(|socket| socket.address), http))
}

/// Decides the request that a call describes.
async fn decide(
    gateway: Arc<Gateway>,
    peer: Peer,
    source: Option<&str>,
    http: &HttpRequest,
    timeout: Option<Duration>,
) -> Response<AnswerBody> {
    let address = source.and_then(|source| source.parse().ok()).unwrap_or(peer.address);
    let scheme = if http.scheme == "https" { "https" } else { "http" };
    let (peer, (mut parts, read)) = (Peer { address, scheme }, parts(http));
    let mut exchange = Exchange::begin_described(gateway.clone(), peer, &parts).waiting_at_most(timeout);
    let outcome = match read {
        Ok(()) => {
            let client = gateway.client(peer, &parts.headers);
            exchange.decide_described(&client, &mut parts).await
        }
        Err(rejection) => Err(rejection),
    };
    let (head, body) = exchange.conclude(outcome).into_parts();
    let mut framed = Response::default();
    let body = body.replaced(|whole| {
        framed = grpc::response(Ok(decision(&head, &whole)));
        Body::Local(axum::body::Body::new(std::mem::take(framed.body_mut())))
    });
    framed.map(|_| body)
}

/// Returns the decision as Envoy takes it: the header of the response to its client, and the whole response if it is refused.
fn decision(head: &response::Parts, body: &Bytes) -> CheckResponse {
    let headers = options(&head.headers);
    let code = match head.status {
        StatusCode::OK => 0,
        StatusCode::TOO_MANY_REQUESTS => RESOURCE_EXHAUSTED,
        _ => PERMISSION_DENIED,
    };
    let http_response = match head.status {
        StatusCode::OK => HttpResponse::Ok(OkHttpResponse { response_headers_to_add: headers }),
        status => HttpResponse::Denied(DeniedHttpResponse {
            status: Some(HttpStatus { code: status.as_u16().into() }),
            headers,
            body: String::from_utf8_lossy(body).into_owned(),
        }),
    };
    CheckResponse { status: Some(RpcStatus { code }), http_response: Some(http_response) }
}

/// Returns header fields that replace those of the upstream, if it has them.
fn options(headers: &HeaderMap) -> Vec<HeaderOption> {
    let of_body = |name: &HeaderName| name == CONTENT_LENGTH;
    let fields = headers.iter().filter(|(name, _)| !of_body(name));
    let option = |(name, value): (&HeaderName, &HeaderValue)| HeaderOption {
        header: Some(Header {
            key: name.as_str().to_owned(),
            value: String::from_utf8_lossy(value.as_bytes()).into_owned(),
        }),
        append_action: messages::OVERWRITE_IF_EXISTS_OR_ADD,
    };
    fields.map(option).collect()
}

/// Returns the head of a request as Envoy describes it, as far as it can be read, and whether that is all of it.
fn parts(http: &HttpRequest) -> (Parts, Result<(), Rejection>) {
    let (mut parts, ()) = Request::new(()).into_parts();
    // Its response is written as header fields.
    parts.version = Version::HTTP_2;
    let lines = || http.lines().filter(|(name, _)| !name.starts_with(b":"));
    for (name, value) in lines().take(FIELDS_MOST) {
        if let (Ok(name), Ok(value)) = (HeaderName::from_bytes(name), HeaderValue::from_bytes(value)) {
            parts.headers.append(name, value);
        }
    }
    if let Ok(host) = HeaderValue::from_bytes(&http.host) {
        parts.headers.insert(HOST, host);
    }
    let method = Method::from_bytes(http.method.as_bytes());
    let uri = super::target(http.path.as_ref());
    let read = match (method, uri) {
        (Ok(method), Ok(uri)) => {
            (parts.method, parts.uri) = (method, uri);
            // Lines that can't be read, or are dropped, count as in a head of HTTP/1.
            let is_whole = lines().nth(FIELDS_MOST).is_none();
            is_whole.then_some(()).ok_or(Rejection::HeadTooLarge)
        }
        (Err(_), _) => Err(Rejection::Malformed),
        (_, Err(rejection)) => Err(rejection),
    };
    (parts, read)
}
