//! Readiness, for load balancers and orchestrators: `/readyz` of the admin port, and `server.health` of the main listener.

use bytes::Bytes;
use hyper::{
    Request, Response, StatusCode,
    header::{CACHE_CONTROL, CONTENT_TYPE, HeaderValue},
};

use crate::gateway::{AnswerBody, Body, Gateway, Upload};

use super::Status;

/// Answers a request on the main listener, if it is a health check. Health checks are neither limited, counted nor logged.
pub(super) fn answer(
    gateway: &Gateway,
    status: &Status,
    request: &Request<Upload>,
) -> Option<Response<AnswerBody>> {
    if !gateway.is_health_check(request.method(), request.uri()) {
        return None;
    }
    let (code, text) = status.readiness(gateway);
    let body = Body::Whole(Some(Bytes::from_static(text.as_bytes())));
    let mut response = Response::new(AnswerBody::unrecorded(body));
    *response.status_mut() = code;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    Some(response)
}

impl Status {
    /// Returns the readiness of a gateway as a status and a text. It is 503 only while draining: a gateway is ready even if
    /// the store is down or keys are counted by network, since each limit has a fallback.
    pub(crate) fn readiness(&self, gateway: &Gateway) -> (StatusCode, &'static str) {
        if self.is_draining() {
            (StatusCode::SERVICE_UNAVAILABLE, "draining\n")
        } else if gateway.limiter().is_degraded() {
            (StatusCode::OK, "degraded\n")
        } else {
            (StatusCode::OK, "ready\n")
        }
    }
}
