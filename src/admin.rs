//! The second listener, for operators: what limits hold, what is in use, and changes to them.
//!
//! A page in a browser reaches loopback, too. So the Host must name this machine, or the request bear the
//! token; a foreign Origin is turned away, and a change must be `application/json`, which no form can send.
//! Each change is logged with who made it.
//!
//! Connections are few and none lasts without a request, so that nobody who reaches this port takes from the
//! requests that the gateway is for.

mod config;
mod explain;
mod limits;

use std::{net::SocketAddr, sync::Arc, time::Duration};

use arc_swap::ArcSwap;
use axum::{
    Router,
    extract::{ConnectInfo, DefaultBodyLimit, Request, State},
    http::{
        HeaderMap, StatusCode,
        header::{AUTHORIZATION, CONTENT_TYPE, HOST, ORIGIN},
        uri::Authority,
    },
    middleware::{self, Next},
    response::{IntoResponse, Response},
    routing::get,
};
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use serde_json::json;
use sha2::{Digest, Sha256};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::Semaphore,
    time::{sleep, timeout},
};
use tower::ServiceExt;

use crate::{gateway::Gateway, metrics, reload::Reloader, server::Status};

/// A change is a few words.
const BODY_BYTES_MOST: usize = 16 << 10;
/// Beyond it they wait in the listener's backlog.
const CONNECTIONS_MOST: usize = 64;
/// How long a head may take, the wait for it included, and then its body with the answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// When connections can't be accepted, the system needs time.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// What the operators' requests are about.
pub(crate) struct Admin {
    gateway: Arc<ArcSwap<Gateway>>,
    status: Arc<Status>,
    token: Option<String>,
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
    let router = router(token, gateway, status, reloads);
    let connections = Arc::new(Semaphore::new(CONNECTIONS_MOST));
    loop {
        let permit = connections.clone().acquire_owned().await;
        match listener.accept().await {
            Ok((stream, peer)) => {
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

/// What operators may ask, and more.
pub(crate) fn router(
    token: Option<String>,
    gateway: Arc<ArcSwap<Gateway>>,
    status: Arc<Status>,
    more: Router<Arc<Admin>>,
) -> Router {
    let admin = Arc::new(Admin { gateway, status, token });
    Router::new()
        .route("/livez", get(async || "ok\n"))
        .route("/readyz", get(readiness))
        .route("/metrics", get(metrics))
        .merge(more)
        .nest("/api/limits", limits::router())
        .route("/api/explain", get(explain::explain))
        .fallback(async || Problem::new(StatusCode::NOT_FOUND, "there is nothing here"))
        .layer(DefaultBodyLimit::max(BODY_BYTES_MOST))
        .layer(middleware::from_fn_with_state(admin.clone(), guard))
        .with_state(admin)
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

/// Turns away who isn't an operator.
async fn guard(State(admin): State<Arc<Admin>>, request: Request, next: Next) -> Result<Response, Problem> {
    let headers = request.headers();
    match &admin.token {
        Some(token) if !bears(headers, token) => {
            return Err(Problem::new(StatusCode::UNAUTHORIZED, "send `Authorization: Bearer TOKEN`"));
        }
        None if !names_this_machine(headers) => {
            return Err(Problem::new(StatusCode::FORBIDDEN, "use `localhost` or an address as the host"));
        }
        _ => {}
    }
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

/// Compared by their hashes, which takes the same time for any guess.
fn bears(headers: &HeaderMap, token: &str) -> bool {
    let borne = headers.get(AUTHORIZATION).and_then(|value| value.as_bytes().strip_prefix(b"Bearer "));
    borne.is_some_and(|borne| Sha256::digest(borne) == Sha256::digest(token))
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
