//! The health of this service, `grpc.health.v1`, as load balancers and Kubernetes ask for it.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use bytes::Bytes;
use futures_util::stream;
use hyper::{Request, Response, StatusCode};
use prost::{Enumeration, Message};
use tokio::time::sleep;

use crate::gateway::{AnswerBody, Body, Upload};

use super::grpc::{self, Code, ReplyBody, Status};

/// The paths of the methods.
pub(super) const CHECK: &str = "/grpc.health.v1.Health/Check";
pub(super) const WATCH: &str = "/grpc.health.v1.Health/Watch";

/// The services that can be asked about: all together, and the rate limit service.
const SERVICES: [&str; 2] = ["", "ratelimit"];
/// The time between two looks at a health that is watched.
const LOOK_EVERY: Duration = Duration::from_millis(250);

#[derive(Clone, PartialEq, Message)]
struct HealthCheckRequest {
    #[prost(string, tag = "1")]
    service: String,
}

#[derive(Clone, Copy, PartialEq, Message)]
struct HealthCheckResponse {
    #[prost(enumeration = "ServiceHealth", tag = "1")]
    status: i32,
}

/// The health of a service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Enumeration)]
enum ServiceHealth {
    Unknown = 0,
    Serving = 1,
    NotServing = 2,
    ServiceUnknown = 3,
}

impl ServiceHealth {
    fn of(is_serving: bool) -> Self {
        if is_serving { Self::Serving } else { Self::NotServing }
    }

    fn message(self) -> HealthCheckResponse {
        HealthCheckResponse { status: self.into() }
    }
}

/// Answers a call of `CHECK` or `WATCH`. A server that drains isn't serving.
pub(super) async fn answer(call: Request<Upload>, is_draining: &Arc<AtomicBool>) -> Response<AnswerBody> {
    let is_draining = is_draining.clone();
    let is_serving = move || !is_draining.load(Relaxed);
    let (parts, body) = call.into_parts();
    let response = match parts.uri.path() {
        WATCH => watch(body, is_serving).await,
        _ => check(body, is_serving).await,
    };
    response.map(|reply| AnswerBody::unrecorded(Body::Local(axum::body::Body::new(reply))))
}

/// Answers a probe over HTTP: 200 if calls are accepted now, otherwise 503.
pub(super) fn probed(is_draining: &AtomicBool) -> Response<AnswerBody> {
    let (status, text) = match is_draining.load(Relaxed) {
        false => (StatusCode::OK, "OK"),
        true => (StatusCode::SERVICE_UNAVAILABLE, "draining"),
    };
    let body = Body::Whole(Some(Bytes::from_static(text.as_bytes())));
    let mut response = Response::new(AnswerBody::unrecorded(body));
    *response.status_mut() = status;
    response
}

/// Answers `Check`: whether the service accepts calls now.
async fn check(body: Upload, is_serving: impl Fn() -> bool) -> Response<ReplyBody> {
    let answer = grpc::read::<HealthCheckRequest>(body).await.and_then(|asked| {
        let is_known = SERVICES.contains(&&*asked.service);
        let unknown = || Status::new(Code::NotFound, format!("there is no service `{}`", asked.service));
        if is_known { Ok(ServiceHealth::of(is_serving()).message()) } else { Err(unknown()) }
    });
    grpc::response(answer)
}

/// Answers `Watch`: whether the service accepts calls, now and whenever that changes.
async fn watch(body: Upload, is_serving: impl Fn() -> bool + Send + Sync + 'static) -> Response<ReplyBody> {
    let asked = match grpc::read::<HealthCheckRequest>(body).await {
        Ok(asked) => asked,
        Err(status) => return grpc::response(Err::<(), _>(status)),
    };
    let is_known = SERVICES.contains(&&*asked.service);
    // A drain is the only change, and the last one. Then the stream ends, so that the server needn't wait for the caller.
    let changes = stream::unfold((None, is_serving), move |(told, is_serving)| async move {
        while matches!(told, Some(ServiceHealth::Serving | ServiceHealth::ServiceUnknown)) && is_serving() {
            sleep(LOOK_EVERY).await;
        }
        let now = match told {
            None if !is_known => ServiceHealth::ServiceUnknown,
            None => ServiceHealth::of(is_serving()),
            Some(ServiceHealth::Serving) => ServiceHealth::NotServing,
            Some(_) => return None,
        };
        Some((grpc::framed(&now.message()), (Some(now), is_serving)))
    });
    grpc::streamed(Box::pin(changes))
}
