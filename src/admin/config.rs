//! `/api/config` and `/api/reload`: shows the running configuration, and reloads it.

use std::sync::Arc;

use axum::{
    Extension, Json, Router,
    extract::State,
    http::{StatusCode, header::CONTENT_TYPE},
    response::{IntoResponse, Response},
    routing::{get, post},
};
use serde_json::{Value, json};

use crate::{
    reload::Reloader,
    server::{Reload, Status},
};

use super::{Operator, Problem};

/// The state that the handlers share.
#[derive(Clone)]
struct Configured {
    reloader: Arc<Reloader>,
    status: Arc<Status>,
}

pub(super) fn router<S>(reloader: Arc<Reloader>, status: Arc<Status>) -> Router<S> {
    Router::new()
        .route("/api/config", get(show))
        .route("/api/reload", post(reload))
        .with_state(Configured { reloader, status })
}

async fn show(State(Configured { reloader, status }): State<Configured>) -> Json<Value> {
    let last = status.last_reload().map(|Reload { time, outcome }| {
        let time = humantime::format_rfc3339_millis(time).to_string();
        match outcome {
            Ok(changes) => json!({ "time": time, "good": true, "changes": changes }),
            Err(faults) => json!({ "time": time, "good": false, "faults": faults }),
        }
    });
    Json(json!({ "file": reloader.source(), "config": reloader.shown().await, "last_reload": last }))
}

async fn reload(
    State(Configured { reloader, .. }): State<Configured>,
    Extension(author): Extension<Operator>,
) -> Response {
    // The reload completes even if the operator disconnects.
    let reloading = tokio::spawn(async move { reloader.reload(&format!("the operator at {author}")).await });
    match reloading.await {
        Ok(Ok(changes)) => Json(json!({ "changes": changes })).into_response(),
        Ok(Err(faults)) => {
            let status = StatusCode::UNPROCESSABLE_ENTITY;
            let problem = json!({
                "type": "about:blank",
                "title": status.canonical_reason(),
                "status": status.as_u16(),
                "detail": "the configuration can't be used; the running one stays in use",
                "faults": faults.to_json(),
            });
            (status, [(CONTENT_TYPE, "application/problem+json")], problem.to_string() + "\n").into_response()
        }
        Err(error) => Problem::new(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}
