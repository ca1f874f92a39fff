//! The second listener, for operators: what goes on, what limits hold, and changes to them.
//!
//! A page in a browser reaches loopback, too. So the Host must name this machine, or the request bear the
//! token or a login by it; a foreign Origin is turned away, and a change must be `application/json`, which no form can send.
//! Each change is logged with who made it.
//!
//! Connections are few and none lasts without a request, so that nobody who reaches this port takes from the
//! requests that the gateway is for. Fewer yet may listen to [events](history).

mod config;
mod dashboard;
mod history;
mod limits;
mod sessions;
mod views;

use std::{fmt, net::SocketAddr, sync::Arc, time::Duration};

use arc_swap::ArcSwap;
use axum::{
    Extension, Json, Router,
    extract::{
        ConnectInfo, DefaultBodyLimit, Query, Request, State,
        rejection::{JsonRejection, QueryRejection},
    },
    http::{
        HeaderMap, StatusCode,
        header::{
            AUTHORIZATION, CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HOST, HeaderValue, ORIGIN,
            REFERRER_POLICY, SET_COOKIE, X_CONTENT_TYPE_OPTIONS, X_FRAME_OPTIONS,
        },
        uri::Authority,
    },
    middleware::{self, Next},
    response::{IntoResponse, Response},
    routing::get,
};
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use serde::Deserialize;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::Semaphore,
    time::{sleep, timeout},
};
use tower::ServiceExt;

use crate::{gateway::Gateway, limit::request::Rule, metrics, reload::Reloader, server::Status};

use self::{history::History, sessions::Sessions, views::Reading};

/// A change is a few words.
const BODY_BYTES_MOST: usize = 16 << 10;
/// Beyond it they wait in the listener's backlog.
const CONNECTIONS_MOST: usize = 64;
/// How long a head may take, the wait for it included, and then its body with the answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long an operator's system may leave unacknowledged what it is sent: who listens to events sends nothing.
const SILENCE_MOST: Duration = Duration::from_secs(30);
/// When connections can't be accepted, the system needs time.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// What the operators' requests are about.
pub(crate) struct Admin {
    gateway: Arc<ArcSwap<Gateway>>,
    status: Arc<Status>,
    token: Option<String>,
    sessions: Sessions,
    history: History,
}

/// Who asks.
#[derive(Clone, Copy)]
struct Operator {
    peer: SocketAddr,
    by: &'static str,
}

impl fmt::Display for Operator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} by {}", self.peer, self.by)
    }
}

/// Answers operators until the program ends.
pub async fn serve(
    listener: TcpListener,
    token: Option<String>,
    gateway: Arc<ArcSwap<Gateway>>,
    status: Arc<Status>,
    reloader: Arc<Reloader>,
) {
    let admin = Arc::new(Admin::new(token, gateway, status));
    tokio::spawn(admin.clone().keep_history());
    let router = router(admin, reloader);
    let connections = Arc::new(Semaphore::new(CONNECTIONS_MOST));
    loop {
        let permit = connections.clone().acquire_owned().await;
        match listener.accept().await {
            Ok((stream, peer)) => {
                #[cfg(target_os = "linux")]
                let _ = socket2::SockRef::from(&stream).set_tcp_user_timeout(Some(SILENCE_MOST));
                let connection = serve_connection(stream, peer, router.clone());
                tokio::spawn(async move {
                    connection.await;
                    drop(permit);
                });
            }
            Err(error) => {
                tracing::warn!("can't accept an operator's connection: {error}");
                sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

impl Admin {
    /// Of a gateway whose operators bear this token.
    pub(crate) fn new(token: Option<String>, gateway: Arc<ArcSwap<Gateway>>, status: Arc<Status>) -> Self {
        let history = History::begin(Reading::of(&gateway.load()));
        Self { gateway, status, token, sessions: Sessions::default(), history }
    }
}

/// What operators may ask.
pub(crate) fn router(admin: Arc<Admin>, reloader: Arc<Reloader>) -> Router {
    Router::new()
        .merge(dashboard::router())
        .merge(limits::router())
        .route("/livez", get(async || "ok\n"))
        .route("/readyz", get(readiness))
        .route("/metrics", get(metrics))
        .route("/events", get(history::events))
        .route("/api/session", get(session).post(log_in).delete(log_out))
        .route("/api/routes", get(async |State(admin): Shared| Json(admin.view(views::routes))))
        .route("/api/upstreams", get(async |State(admin): Shared| Json(admin.view(views::upstreams))))
        .route("/api/top", get(top))
        .route("/api/openapi.json", get(async || ([(CONTENT_TYPE, "application/json")], OPENAPI)))
        .merge(config::router(reloader, admin.status.clone()))
        .fallback(async || Problem::new(StatusCode::NOT_FOUND, "there is nothing here"))
        .method_not_allowed_fallback(async || {
            Problem::new(StatusCode::METHOD_NOT_ALLOWED, "that can't be done with this")
        })
        .layer(DefaultBodyLimit::max(BODY_BYTES_MOST))
        .layer(middleware::from_fn_with_state(admin.clone(), guard))
        .layer(middleware::map_response(secured))
        .with_state(admin)
}

type Shared = State<Arc<Admin>>;

/// All of this, for programs that make clients.
const OPENAPI: &str = include_str!("admin/openapi.json");

/// An answer that no other site can frame, keep or take for something else, and in which no other script runs than ours.
async fn secured(mut response: Response) -> Response {
    let headers = response.headers_mut();
    let policy = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; \
                  base-uri 'none'; form-action 'none'; frame-ancestors 'none'";
    for (name, value) in [
        (CONTENT_SECURITY_POLICY, policy),
        (X_FRAME_OPTIONS, "DENY"),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (REFERRER_POLICY, "no-referrer"),
        (CACHE_CONTROL, "no-store"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    response
}

async fn serve_connection(stream: TcpStream, peer: SocketAddr, router: Router) {
    let service = service_fn(move |mut request: hyper::Request<Incoming>| {
        request.extensions_mut().insert(ConnectInfo(peer));
        router.clone().oneshot(request)
    });
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(PATIENCE);
    if let Err(error) = http.serve_connection(TokioIo::new(stream), service).await {
        tracing::debug!(%peer, "an operator's connection ended early: {error}");
    }
}

/// Whether clients should come: also while the store can't answer, since each limit's fallback does.
async fn readiness(State(admin): State<Arc<Admin>>) -> (StatusCode, &'static str) {
    if admin.status.is_draining() {
        (StatusCode::SERVICE_UNAVAILABLE, "draining\n")
    } else if admin.gateway.load().limiter().store_answers() {
        (StatusCode::OK, "ready\n")
    } else {
        (StatusCode::OK, "degraded\n")
    }
}

async fn metrics(State(admin): State<Arc<Admin>>) -> impl IntoResponse {
    let page = metrics::page(move |page| {
        admin.status.write(page);
        admin.gateway.load().write_metrics(page);
    });
    ([(CONTENT_TYPE, metrics::CONTENT_TYPE)], page)
}

#[derive(Deserialize)]
struct Wanted {
    by: String,
}

/// The keys that ask most, or that are refused most.
async fn top(
    State(admin): Shared,
    wanted: Result<Query<Wanted>, QueryRejection>,
) -> Result<Json<Value>, Problem> {
    let noted = match wanted.as_ref().map(|Query(wanted)| wanted.by.as_str()) {
        Ok("requests") => Rule::busiest,
        Ok("refused") => Rule::most_refused,
        _ => return Err(Problem::new(StatusCode::BAD_REQUEST, "ask with `?by=requests` or `?by=refused`")),
    };
    Ok(Json(views::top(&admin.gateway.load(), noted)))
}

/// By what who asks is known.
async fn session(Extension(Operator { by, .. }): Extension<Operator>) -> Json<Value> {
    Json(json!({ "by": by }))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Login {
    token: String,
}

/// Gives a browser that shows the token a cookie to show instead.
async fn log_in(
    State(admin): Shared,
    ConnectInfo(peer): ConnectInfo<SocketAddr>,
    headers: HeaderMap,
    login: Result<Json<Login>, JsonRejection>,
) -> Result<impl IntoResponse, Problem> {
    let Json(login) = login.map_err(Problem::from)?;
    let Some(token) = &admin.token else {
        return Err(Problem::new(StatusCode::CONFLICT, "this port demands no token"));
    };
    if !are_same(login.token.as_bytes(), token) {
        tracing::warn!(%peer, "an operator's login with a wrong token");
        return Err(Problem::new(StatusCode::UNAUTHORIZED, "that isn't the token"));
    }
    tracing::info!(%peer, "an operator has logged in");
    Ok((StatusCode::NO_CONTENT, [(SET_COOKIE, admin.sessions.begin(&headers))]))
}

async fn log_out(State(admin): Shared, headers: HeaderMap) -> impl IntoResponse {
    (StatusCode::NO_CONTENT, [(SET_COOKIE, admin.sessions.end(&headers))])
}

/// Turns away who isn't an operator.
async fn guard(
    State(admin): State<Arc<Admin>>,
    ConnectInfo(peer): ConnectInfo<SocketAddr>,
    mut request: Request,
    next: Next,
) -> Result<Response, Problem> {
    let by = admin.admits(&request)?;
    request.extensions_mut().insert(Operator { peer, by });
    let headers = request.headers();
    if !is_same_origin(headers) {
        return Err(Problem::new(StatusCode::FORBIDDEN, "the request comes from another site"));
    }
    let is_json =
        headers.get(CONTENT_TYPE).is_some_and(|kind| kind.as_bytes().starts_with(b"application/json"));
    if !request.method().is_safe() && !is_json {
        return Err(Problem::new(
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            "send changes with `Content-Type: application/json`",
        ));
    }
    let answer = timeout(PATIENCE, next.run(request)).await;
    answer.map_err(|_| Problem::new(StatusCode::REQUEST_TIMEOUT, "the request took too long"))
}

impl Admin {
    /// By what an operator is known, if it is one. What says nothing of this gateway is for anybody.
    fn admits(&self, request: &Request) -> Result<&'static str, Problem> {
        let (headers, path) = (request.headers(), request.uri().path());
        let is_for_all = path == "/api/session" || dashboard::PATHS.contains(&path);
        match &self.token {
            Some(token) if bears(headers, token) => Ok("token"),
            Some(_) if self.sessions.has(headers) => Ok("login"),
            Some(_) if is_for_all => Ok("nothing"),
            Some(_) => {
                let how = "log in on the dashboard, or send `Authorization: Bearer TOKEN`";
                Err(Problem::new(StatusCode::UNAUTHORIZED, how))
            }
            None if names_this_machine(headers) => Ok("this machine"),
            None => Err(Problem::new(StatusCode::FORBIDDEN, "use `localhost` or an address as the host")),
        }
    }
}

fn bears(headers: &HeaderMap, token: &str) -> bool {
    let borne = headers.get(AUTHORIZATION).and_then(|value| value.as_bytes().strip_prefix(b"Bearer "));
    borne.is_some_and(|borne| are_same(borne, token))
}

/// Compared by their hashes, which takes the same time for any guess.
fn are_same(guess: &[u8], token: &str) -> bool {
    Sha256::digest(guess) == Sha256::digest(token)
}

/// A name that somebody else may have pointed here is none of ours.
fn names_this_machine(headers: &HeaderMap) -> bool {
    let host = headers.get(HOST).and_then(|host| host.to_str().ok()?.parse::<Authority>().ok());
    host.is_some_and(|host| {
        let host = host.host().trim_matches(['[', ']']);
        host.eq_ignore_ascii_case("localhost") || host.parse::<std::net::IpAddr>().is_ok()
    })
}

fn is_same_origin(headers: &HeaderMap) -> bool {
    let Some(origin) = headers.get(ORIGIN) else { return true };
    let host = headers.get(HOST).map_or(&b""[..], |host| host.as_bytes());
    let origin = origin.as_bytes();
    [&b"http://"[..], b"https://"].iter().any(|scheme| origin.strip_prefix(*scheme) == Some(host))
}

/// An answer that something is wrong (RFC 9457).
#[derive(Debug)]
struct Problem {
    status: StatusCode,
    detail: String,
}

impl Problem {
    fn new(status: StatusCode, detail: impl Into<String>) -> Self {
        Self { status, detail: detail.into() }
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
        (self.status, content_type, problem.to_string() + "\n").into_response()
    }
}
