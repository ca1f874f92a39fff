//! The listener for other proxies and services, which keep their traffic and ask whether limits admit it.
//!
//! The server accepts its connections, with its bounds, timeouts and TLS. A call's path selects the service, a file each:
//!
//! ```text
//! check          forward authentication (HTTP), and questions in JSON
//! authorization  Envoy's external authorization by gRPC
//! grpc           messages, statuses and deadlines of gRPC
//! health         grpc.health.v1
//! ratelimit      Envoy's rate limit service, for proxies that describe requests by descriptors
//! ```

mod authorization;
mod check;
pub(crate) mod grpc;
mod health;
mod ratelimit;

#[cfg(any(test, feature = "fuzzing"))]
pub use self::{authorization::properties::authorization, ratelimit::properties::descriptors};

pub(crate) use self::ratelimit::{Unit, json_of};

use std::{
    borrow::Cow,
    sync::{Arc, atomic::AtomicBool},
};

use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt;
use hyper::{Method, Request, Response, Uri, http::request::Parts};
use tollgate_routing::path;

use crate::{
    forward::{Failure, body::Fault, headers::Client},
    gateway::{AnswerBody, Exchange, Gateway, Peer, Upload},
    reject::Rejection,
};

/// The largest body of a call in bytes.
const BODY_MOST: u64 = 1 << 20;

/// Answers a call. Without room for it, the answer is 503.
pub(crate) async fn answer(
    gateway: Arc<Gateway>,
    peer: Peer,
    call: Request<Upload>,
    has_room: bool,
    is_draining: &Arc<AtomicBool>,
) -> Response<AnswerBody> {
    if is_probe(&call) {
        return health::probed(is_draining);
    }
    let rejection = if !gateway.admits_caller(peer.address, peer.scheme == "https") {
        Rejection::CallerUnknown
    } else if !has_room {
        Rejection::Overloaded
    } else {
        return dispatch(gateway, peer, call, is_draining).await;
    };
    let (call, _) = call.into_parts();
    let begin = if check::serves(call.uri.path()) { Exchange::begin_described } else { Exchange::begin };
    begin(gateway, peer, &call).conclude(Err(rejection))
}

/// Turns the head of a call into the request that it describes, and returns that request's client. `None` if such calls
/// may be answered differently each time.
pub(crate) fn describe(gateway: &Gateway, peer: Peer, call: &mut Parts) -> Option<Client> {
    let is_admitted = gateway.admits_caller(peer.address, peer.scheme == "https");
    (is_admitted && check::serves(call.uri.path())).then(|| check::client_of(gateway, peer, call))?
}

/// Reads the target of a described request. The proxy forwards it as it came, so what the gateway would leave out or resolve in a
/// target that it forwards itself is rejected: no client needs it, and limits would count another path than the upstream sees.
///
/// # Errors
/// The target is invalid, or has a fragment or dot segments.
fn target(text: &[u8]) -> Result<Uri, Rejection> {
    let uri = Uri::try_from(text).map_err(|_| Rejection::TargetInvalid)?;
    if text.contains(&b'#') {
        return Err(Rejection::TargetInvalid);
    }
    match uri.path() {
        path if path.starts_with('/') && matches!(path::forwarded(path), Cow::Owned(_)) => {
            Err(Rejection::DotsHidden)
        }
        _ => Ok(uri),
    }
}

/// Returns true for the call of a probe. Anyone may probe.
fn is_probe(call: &Request<Upload>) -> bool {
    matches!(*call.method(), Method::GET | Method::HEAD) && call.uri().path() == "/healthcheck"
}

/// Hands a call to the service of its path. Each future has a box of its own, so that a call moves no larger one than it needs.
async fn dispatch(
    gateway: Arc<Gateway>,
    peer: Peer,
    call: Request<Upload>,
    is_draining: &Arc<AtomicBool>,
) -> Response<AnswerBody> {
    let path = call.uri().path();
    if check::serves(path) {
        return Box::pin(check::answer(gateway, peer, call)).await;
    }
    match (call.method(), path) {
        (&Method::POST, ratelimit::SHOULD_RATE_LIMIT) => {
            Box::pin(ratelimit::answer(gateway, peer, call)).await
        }
        (&Method::POST, "/json") => Box::pin(ratelimit::answer_json(gateway, peer, call)).await,
        (&Method::POST, health::CHECK | health::WATCH) => health::answer(call, is_draining).await,
        (&Method::POST, authorization::CHECK) => Box::pin(authorization::answer(gateway, peer, call)).await,
        _ => Exchange::begin(gateway, peer, &call.into_parts().0).conclude(Err(Rejection::NoRoute)),
    }
}

/// Receives the whole body of a call.
///
/// # Errors
/// It is too large, comes too slowly, or breaks off.
async fn whole(body: Upload) -> Result<Bytes, Rejection> {
    let mut body = body.at_most(Some(BODY_MOST)).map_err(Failure::Request)?;
    let mut bytes = BytesMut::new();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| {
            let fault = error.downcast_ref::<Fault>().copied();
            Failure::Request(fault.unwrap_or(Fault::Broken))
        })?;
        if let Some(data) = frame.data_ref() {
            bytes.extend_from_slice(data);
        }
    }
    Ok(bytes.freeze())
}
