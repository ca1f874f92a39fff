//! The operators' listener: metrics, the dashboard, and an API to inspect limits and to change rates at run time.
//! [Access](access) is checked, and each change is logged with its author.
//!
//! The number of [connections](connections) is small, and idle ones make room for new ones, so this port can't take
//! resources from the gateway's requests. [Event streams](history) have a smaller bound of their own.

mod access;
mod config;
mod connections;
mod dashboard;
mod explain;
mod guesses;
mod history;
mod limits;
mod sessions;
mod views;

use std::{sync::Arc, time::Duration};

use arc_swap::ArcSwap;
use axum::{
    Json, Router,
    extract::{
        DefaultBodyLimit, Query, State,
        rejection::{JsonRejection, QueryRejection},
    },
    http::{
        HeaderMap, StatusCode,
        header::{ACCEPT, CONTENT_TYPE, RETRY_AFTER},
    },
    middleware,
    response::{AppendHeaders, IntoResponse, Response},
    routing::get,
};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::net::TcpListener;

use crate::{config::AdminTokens, gateway::Gateway, metrics, reload::Reloader, rules::Rule, server::Status};

use self::{access::Operator, guesses::Guesses, history::History, sessions::Sessions, views::Snapshot};

/// The largest body of a request in bytes. A change of a rate needs much less.
const BODY_BYTES_MOST: usize = 16 << 10;
/// The time limit for a request's header, including the wait for it, and again for its body and the response.
const PATIENCE: Duration = Duration::from_secs(5);

/// The state shared by the admin port's handlers.
pub(crate) struct Admin {
    gateway: Arc<ArcSwap<Gateway>>,
    status: Arc<Status>,
    tokens: Arc<ArcSwap<AdminTokens>>,
    guesses: Guesses,
    sessions: Sessions,
    history: History,
}

/// Answers operators until the program ends.
pub async fn serve(
    listener: TcpListener,
    metrics_listener: Option<TcpListener>,
    gateway: Arc<ArcSwap<Gateway>>,
    status: Arc<Status>,
    reloader: Arc<Reloader>,
) {
    let tokens = reloader.tokens();
    let reloads = config::router(reloader, status.clone());
    let admin = Arc::new(Admin::new(tokens, gateway, status));
    tokio::spawn(admin.clone().keep_history());
    if let Some(listener) = metrics_listener {
        // Every path has the metrics, so that it is the scraper's choice.
        let router = Router::new().fallback_service(get(metrics).with_state(admin.clone()));
        tokio::spawn(connections::accept(listener, router));
    }
    connections::accept(listener, router(admin, reloads)).await;
}

impl Admin {
    /// Returns the state for a gateway whose operators need these tokens.
    pub(crate) fn new(
        tokens: Arc<ArcSwap<AdminTokens>>,
        gateway: Arc<ArcSwap<Gateway>>,
        status: Arc<Status>,
    ) -> Self {
        let history = History::begin(Snapshot::of(&gateway.load()));
        let (guesses, sessions) = (Guesses::new(), Sessions::default());
        Self { gateway, status, tokens, guesses, sessions, history }
    }
}

/// Returns the routes of the admin port, and `more` routes.
pub(crate) fn router(admin: Arc<Admin>, more: Router<Arc<Admin>>) -> Router {
    Router::new()
        .merge(dashboard::router())
        .merge(limits::router())
        .route("/metrics", get(metrics))
        .route("/events", get(history::events))
        .route("/api/session", get(access::session).post(access::log_in).delete(access::log_out))
        .route("/api/routes", get(async |State(admin): AdminState| Json(admin.view(views::routes))))
        .route("/api/upstreams", get(async |State(admin): AdminState| Json(admin.view(views::upstreams))))
        .route("/api/top", get(top))
        .route("/api/openapi.json", get(async || ([(CONTENT_TYPE, "application/json")], OPENAPI)))
        .merge(more)
        .route("/api/explain", get(explain::explain))
        .fallback(async || Problem::new(StatusCode::NOT_FOUND, "unknown path; see /api/openapi.json"))
        .method_not_allowed_fallback(async || {
            Problem::new(StatusCode::METHOD_NOT_ALLOWED, "the path doesn't support this method")
        })
        .layer(DefaultBodyLimit::max(BODY_BYTES_MOST))
        .layer(middleware::from_fn_with_state(admin.clone(), access::guard))
        // Whoever asks needs no access, and may use any host.
        .route("/livez", get(async || "ok\n"))
        .route("/readyz", get(readiness))
        .layer(middleware::map_response(access::secured))
        .with_state(admin)
}

type AdminState = State<Arc<Admin>>;

/// The OpenAPI description of the admin port.
const OPENAPI: &str = include_str!("admin/openapi.json");

/// Returns 503 while draining, otherwise 200.
async fn readiness(State(admin): AdminState) -> (StatusCode, &'static str) {
    admin.status.readiness(&admin.gateway.load())
}

/// Returns the metrics as OpenMetrics if the client accepts it, else as Prometheus text.
async fn metrics(State(admin): State<Arc<Admin>>, headers: HeaderMap) -> impl IntoResponse {
    let page = metrics::page(move |page| {
        admin.status.write(page);
        page.counter(
            "tollgate_admin_wrong_tokens",
            "Wrong tokens sent to the admin port",
            admin.guesses.count(),
        );
        admin.gateway.load().write_metrics(page);
    });
    let mut accepted = headers.get_all(ACCEPT).into_iter().filter_map(|line| line.to_str().ok());
    match accepted.any(|line| line.contains("application/openmetrics-text")) {
        true => ([(CONTENT_TYPE, metrics::CONTENT_TYPE)], page),
        false => ([(CONTENT_TYPE, metrics::OLDER_CONTENT_TYPE)], metrics::older_form(&page)),
    }
}

#[derive(Deserialize)]
struct TopQuery {
    by: String,
}

/// Returns the keys with the most requests, or with the most refused requests.
async fn top(
    State(admin): AdminState,
    wanted: Result<Query<TopQuery>, QueryRejection>,
) -> Result<Json<Value>, Problem> {
    let noted = match wanted.as_ref().map(|Query(wanted)| wanted.by.as_str()) {
        Ok("requests") => Rule::busiest,
        Ok("refused") => Rule::most_refused,
        _ => {
            return Err(Problem::new(
                StatusCode::BAD_REQUEST,
                "`by` must be `requests` or `refused`: add `?by=requests` to the URL",
            ));
        }
    };
    Ok(Json(views::top(&admin.gateway.load(), noted)))
}

/// An error response (RFC 9457).
#[derive(Debug)]
struct Problem {
    status: StatusCode,
    detail: String,
    retry_after: Option<Duration>,
}

impl Problem {
    fn new(status: StatusCode, detail: impl Into<String>) -> Self {
        Self { status, detail: detail.into(), retry_after: None }
    }
}

impl From<JsonRejection> for Problem {
    fn from(wrong: JsonRejection) -> Self {
        Self::new(wrong.status(), wrong.body_text())
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let title = self.status.canonical_reason().unwrap_or_default();
        let problem = json!({
            "type": "about:blank", "title": title, "status": self.status.as_u16(), "detail": self.detail,
        });
        let content_type = [(CONTENT_TYPE, "application/problem+json")];
        let seconds = self.retry_after.map(|wait| wait.as_millis().div_ceil(1_000).to_string());
        let retry_after = AppendHeaders(seconds.map(|seconds| (RETRY_AFTER, seconds)));
        (self.status, content_type, retry_after, problem.to_string() + "\n").into_response()
    }
}
