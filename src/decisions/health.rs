//! The health of this service, `grpc.health.v1`, as load balancers and Kubernetes ask for it.

use std::time::Duration;

use bytes::Bytes;
use futures_util::stream;
use http_body::Body;
use hyper::Response;
use prost::{Enumeration, Message};
use tokio::time::sleep;

use super::grpc::{self, Code, Reply, Status};

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
    #[prost(enumeration = "Health", tag = "1")]
    status: i32,
}

/// The health of a service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Enumeration)]
enum Health {
    Unknown = 0,
    Serving = 1,
    NotServing = 2,
    ServiceUnknown = 3,
}

impl Health {
    fn of(is_serving: bool) -> Self {
        if is_serving { Self::Serving } else { Self::NotServing }
    }

    fn message(self) -> HealthCheckResponse {
        HealthCheckResponse { status: self.into() }
    }
}

/// Answers `Check`: whether the service accepts calls now.
pub async fn check(
    body: impl Body<Data = Bytes, Error = impl std::fmt::Display> + Unpin,
    is_serving: impl Fn() -> bool,
) -> Response<Reply> {
    let answer = grpc::read::<HealthCheckRequest>(body).await.and_then(|asked| {
        let is_known = SERVICES.contains(&&*asked.service);
        let unknown = || Status::new(Code::NotFound, format!("there is no service `{}`", asked.service));
        if is_known { Ok(Health::of(is_serving()).message()) } else { Err(unknown()) }
    });
    grpc::response(answer)
}

/// Answers `Watch`: whether the service accepts calls, now and whenever that changes.
pub async fn watch(
    body: impl Body<Data = Bytes, Error = impl std::fmt::Display> + Unpin,
    is_serving: impl Fn() -> bool + Send + Sync + 'static,
) -> Response<Reply> {
    let asked = match grpc::read::<HealthCheckRequest>(body).await {
        Ok(asked) => asked,
        Err(status) => return grpc::response(Err::<(), _>(status)),
    };
    let is_known = SERVICES.contains(&&*asked.service);
    let health = move || if is_known { Health::of(is_serving()) } else { Health::ServiceUnknown };
    let changes = stream::unfold((None, health), |(told, health)| async move {
        while told == Some(health()) {
            sleep(LOOK_EVERY).await;
        }
        let now = health();
        Some((grpc::framed(&now.message()), (Some(now), health)))
    });
    grpc::streamed(Box::pin(changes))
}
