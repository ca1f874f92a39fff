//! Forward authentication: a proxy describes a request in a call's header, and forwards it if the answer is 200.
//!
//! Traefik, Caddy and nginx describe it in X-Forwarded-Method, -Uri, -Host, -Proto and -For. Envoy calls with the request's own
//! method and host, and with its path behind `/check/envoy`. Access to the listener is restricted, so these are believed.

mod question;

use std::{borrow::Cow, sync::Arc};

use hyper::{
    Method, Request, Response, Uri,
    header::{HOST, HeaderMap, HeaderName, HeaderValue},
    http::request::Parts,
};

use super::grpc;
use crate::{
    forward::headers::Client,
    gateway::{AnswerBody, Exchange, Gateway, Peer, Upload},
    reject::Rejection,
};

const PATH: &str = "/check";
/// The path under which Envoy's HTTP service calls.
const ENVOY: &str = "/check/envoy";

const X_FORWARDED_METHOD: HeaderName = HeaderName::from_static("x-forwarded-method");
const X_FORWARDED_URI: HeaderName = HeaderName::from_static("x-forwarded-uri");
const X_FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
const X_FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");

/// Returns true if calls of this path are answered here.
pub(super) fn serves(path: &str) -> bool {
    path.strip_prefix(PATH).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// Decides the request that a call describes: 200, or the complete response of a rejected one.
pub(super) async fn answer(gateway: Arc<Gateway>, peer: Peer, call: Request<Upload>) -> Response<AnswerBody> {
    let (mut parts, body) = call.into_parts();
    if question::is_question(&parts) {
        return question::answer(gateway, peer, &parts, body).await;
    }
    let client = gateway.described_client(peer, &parts.headers);
    let peer = Peer { scheme: scheme(&parts.headers), ..peer };
    if let Err(rejection) = describe(&mut parts) {
        return Exchange::begin_described(gateway, peer, &parts).conclude(Err(rejection));
    }
    let timeout = grpc::timeout(&parts.headers);
    let mut exchange = Exchange::begin_described(gateway, peer, &parts).waiting_at_most(timeout);
    let outcome = exchange.decide_described(&client, &mut parts).await;
    exchange.conclude(outcome)
}

/// Turns a call into the request that it describes, and returns that request's client. `None` if the call asks a question in its
/// body, or is invalid.
pub(super) fn client_of(gateway: &Gateway, peer: Peer, call: &mut Parts) -> Option<Client> {
    let client = gateway.described_client(peer, &call.headers);
    (!question::is_question(call) && describe(call).is_ok()).then_some(client)
}

/// Turns a call into the request that it describes.
///
/// # Errors
/// The call doesn't say for which path it asks, or what it says is invalid.
fn describe(call: &mut Parts) -> Result<(), Rejection> {
    // HTTP/2 has the host in `:authority` alone.
    if let Some(authority) = call.uri.authority()
        && !call.headers.contains_key(HOST)
    {
        let host = HeaderValue::from_str(authority.as_str()).map_err(|_| Rejection::Malformed)?;
        call.headers.insert(HOST, host);
    }
    if let Some(target) = behind_envoy(&call.uri) {
        call.uri = super::target(target.as_bytes())?;
        return Ok(());
    }
    // Of several lines, the client may have sent one.
    let is_repeated = |name| call.headers.get_all(name).into_iter().nth(1).is_some();
    if [&X_FORWARDED_URI, &X_FORWARDED_METHOD, &X_FORWARDED_HOST].into_iter().any(is_repeated) {
        return Err(Rejection::Malformed);
    }
    let uri = call.headers.remove(&X_FORWARDED_URI).ok_or(Rejection::ForwardedUriMissing)?;
    if let Some(method) = call.headers.remove(&X_FORWARDED_METHOD) {
        call.method = Method::from_bytes(method.as_bytes()).map_err(|_| Rejection::Malformed)?;
    }
    if let Some(host) = call.headers.get(&X_FORWARDED_HOST).cloned() {
        call.headers.insert(HOST, host);
    }
    call.uri = super::target(uri.as_bytes())?;
    Ok(())
}

/// Returns the target of the request that Envoy asks for. `None` if it isn't Envoy's call.
fn behind_envoy(uri: &Uri) -> Option<Cow<'_, str>> {
    let behind = uri.path_and_query()?.as_str().strip_prefix(ENVOY)?;
    match behind.bytes().next() {
        None => Some("/".into()),
        Some(b'/') => Some(behind.into()),
        Some(b'?') => Some(format!("/{behind}").into()),
        Some(_) => None,
    }
}

/// Returns the scheme by which the request came to the proxy.
fn scheme(headers: &HeaderMap) -> &'static str {
    let proto = headers.get(X_FORWARDED_PROTO).map(HeaderValue::as_bytes);
    if proto.is_some_and(|proto| proto.eq_ignore_ascii_case(b"https")) { "https" } else { "http" }
}
