//! The second listener, for operators: what goes on, what limits hold, and changes to them, by those who [may](access).
//! Each change is logged with who made it.
//!
//! Connections are few and none lasts without a request, so that nobody who reaches this port takes from the
//! requests that the gateway is for: those that are [silent](connections) make room for others. Fewer yet may listen to
//! [events](history).

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

use crate::{gateway::Gateway, metrics, reload::Reloader, rules::Rule, server::Status};

use self::{access::Operator, guesses::Guesses, history::History, sessions::Sessions, views::Snapshot};

/// A change is a few words.
const BODY_BYTES_MOST: usize = 16 << 10;
/// How long a head may take, the wait for it included, and then its body with the answer.
const PATIENCE: Duration = Duration::from_secs(5);

/// What the operators' requests are about.
pub(crate) struct Admin {
    gateway: Arc<ArcSwap<Gateway>>,
    status: Arc<Status>,
    token: Option<String>,
    guesses: Guesses,
    sessions: Sessions,
    history: History,
}

/// Answers operators until the program ends.
pub async fn serve(
    listener: TcpListener,
    token: Option<String>,
    gateway: Arc<ArcSwap<Gateway>>,
    status: Arc<Status>,
    reloader: Arc<Reloader>,
) {
    let reloads = config::router(reloader, status.clone());
    let admin = Arc::new(Admin::new(token, gateway, status));
    tokio::spawn(admin.clone().keep_history());
    connections::accept(listener, router(admin, reloads)).await;
}

impl Admin {
    /// Of a gateway whose operators bear this token.
    pub(crate) fn new(token: Option<String>, gateway: Arc<ArcSwap<Gateway>>, status: Arc<Status>) -> Self {
        let history = History::begin(Snapshot::of(&gateway.load()));
        Self { gateway, status, token, guesses: Guesses::new(), sessions: Sessions::default(), history }
    }
}

/// What operators may ask, and more.
pub(crate) fn router(admin: Arc<Admin>, more: Router<Arc<Admin>>) -> Router {
    Router::new()
        .merge(dashboard::router())
        .merge(limits::router())
        .route("/livez", get(async || "ok\n"))
        .route("/readyz", get(readiness))
        .route("/metrics", get(metrics))
        .route("/events", get(history::events))
        .route("/api/session", get(access::session).post(access::log_in).delete(access::log_out))
        .route("/api/routes", get(async |State(admin): Shared| Json(admin.view(views::routes))))
        .route("/api/upstreams", get(async |State(admin): Shared| Json(admin.view(views::upstreams))))
        .route("/api/top", get(top))
        .route("/api/openapi.json", get(async || ([(CONTENT_TYPE, "application/json")], OPENAPI)))
        .merge(more)
        .route("/api/explain", get(explain::explain))
        .fallback(async || Problem::new(StatusCode::NOT_FOUND, "there is nothing here"))
        .method_not_allowed_fallback(async || {
            Problem::new(StatusCode::METHOD_NOT_ALLOWED, "that can't be done with this")
        })
        .layer(DefaultBodyLimit::max(BODY_BYTES_MOST))
        .layer(middleware::from_fn_with_state(admin.clone(), access::guard))
        .layer(middleware::map_response(access::secured))
        .with_state(admin)
}

type Shared = State<Arc<Admin>>;

/// All of this, for programs that make clients.
const OPENAPI: &str = include_str!("admin/openapi.json");

/// Says whether clients should come: also while the store can't answer, since each limit's fallback does, and while keys
/// are counted by network.
async fn readiness(State(admin): State<Arc<Admin>>) -> (StatusCode, &'static str) {
    if admin.status.is_draining() {
        (StatusCode::SERVICE_UNAVAILABLE, "draining\n")
    } else if admin.gateway.load().limiter().is_degraded() {
        (StatusCode::OK, "degraded\n")
    } else {
        (StatusCode::OK, "ready\n")
    }
}

/// In the form that is asked for, else the older one, which all scrapers know.
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

/// The keys that ask most, or that are refused most.
async fn top(
    State(admin): Shared,
    wanted: Result<Query<TopQuery>, QueryRejection>,
) -> Result<Json<Value>, Problem> {
    let noted = match wanted.as_ref().map(|Query(wanted)| wanted.by.as_str()) {
        Ok("requests") => Rule::busiest,
        Ok("refused") => Rule::most_refused,
        _ => return Err(Problem::new(StatusCode::BAD_REQUEST, "ask with `?by=requests` or `?by=refused`")),
    };
    Ok(Json(views::top(&admin.gateway.load(), noted)))
}

/// An answer that something is wrong (RFC 9457).
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
