//! The built-in upstream: it answers with what it was sent, as JSON.

use std::{convert::Infallible, sync::LazyLock};

use axum::{Json, Router, http::request::Parts};
use http_body_util::BodyExt;
use hyper::{Request, Response, body::Incoming};
use serde_json::{Map, Value, json};
use tower::ServiceExt;

use super::body::Body;

static ROUTER: LazyLock<Router> = LazyLock::new(|| Router::new().fallback(describe));

/// The answer to a request.
pub(super) async fn answer(request: Request<Incoming>) -> Response<Body> {
    let answered: Result<_, Infallible> = ROUTER.clone().oneshot(request).await;
    match answered {
        Ok(response) => response.map(Body::Local),
        Err(never) => match never {},
    }
}

async fn describe(parts: Parts, mut body: axum::body::Body) -> Json<Value> {
    // Counted as it streams by: an echo of an endless body would need endless memory.
    let mut body_bytes = 0;
    while let Some(Ok(frame)) = body.frame().await {
        body_bytes += frame.data_ref().map_or(0, bytes::Bytes::len);
    }
    let mut headers = Map::new();
    for name in parts.headers.keys() {
        let lines = parts.headers.get_all(name).into_iter();
        let lines: Vec<_> = lines.map(|line| String::from_utf8_lossy(line.as_bytes())).collect();
        headers.insert(name.to_string(), lines.join(", ").into());
    }
    Json(json!({
        "method": parts.method.as_str(),
        "path": parts.uri.path(),
        "query": parts.uri.query(),
        "headers": headers,
        "body_bytes": body_bytes,
    }))
}
