//! Who may use the admin port, and what a browser may do with its answers.
//!
//! Without a token those on this machine may: so a page in a browser could, too, whose site has its name point to loopback,
//! and the Host must be a name of this machine. With one those who bear it, or the cookie of a login by it. A foreign Origin is
//! turned away in any case, and a change must be `application/json`, which no form can send.

use std::{fmt, net::SocketAddr, sync::Arc};

use axum::{
    Extension, Json,
    extract::{ConnectInfo, Request, State, rejection::JsonRejection},
    http::{
        HeaderMap, Method, StatusCode,
        header::{
            AUTHORIZATION, CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HOST, HeaderValue, ORIGIN,
            REFERRER_POLICY, SET_COOKIE, X_CONTENT_TYPE_OPTIONS, X_FRAME_OPTIONS,
        },
        uri::Authority,
    },
    middleware::Next,
    response::{IntoResponse, Response},
};
use percent_encoding::percent_decode_str;
use serde::Deserialize;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tokio::time::{Instant, timeout};

use super::{Admin, PATIENCE, Problem, Shared, dashboard};

/// Who asks.
#[derive(Clone, Copy)]
pub(super) struct Operator {
    peer: SocketAddr,
    /// How it is known.
    by: &'static str,
}

impl fmt::Display for Operator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} by {}", self.peer, self.by)
    }
}

/// Turns away who isn't an operator.
pub(super) async fn guard(
    State(admin): State<Arc<Admin>>,
    ConnectInfo(peer): ConnectInfo<SocketAddr>,
    mut request: Request,
    next: Next,
) -> Result<Response, Problem> {
    let by = admin.admits(&request, peer)?;
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
    if percent_decode_str(request.uri().path()).decode_utf8().is_err() {
        return Err(Problem::new(StatusCode::BAD_REQUEST, "the path isn't UTF-8"));
    }
    let answer = timeout(PATIENCE, next.run(request)).await;
    answer.map_err(|_| Problem::new(StatusCode::REQUEST_TIMEOUT, "the request took too long"))
}

impl Admin {
    /// By what an operator is known, if it is one. What says nothing of this gateway is for anybody.
    fn admits(&self, request: &Request, peer: SocketAddr) -> Result<&'static str, Problem> {
        let (headers, path) = (request.headers(), request.uri().path());
        // To log in needs no other token. But to ask how one is known tells whether a token is right.
        let is_login = path == "/api/session" && request.method() != Method::GET;
        let is_for_all = is_login || dashboard::PATHS.contains(&path);
        match (&self.token, borne(headers)) {
            (Some(token), Some(borne)) if are_same(borne, token) => {
                self.guesses.note_right(peer);
                Ok("token")
            }
            (Some(_), _) if self.sessions.has(headers) => Ok("login"),
            (Some(_), _) if is_for_all => Ok("nothing"),
            (Some(_), Some(_)) => Err(self.wrong_token(peer)),
            (Some(_), None) if path == "/api/session" => Ok("nothing"),
            (Some(_), None) => {
                let how = "log in on the dashboard, or send `Authorization: Bearer TOKEN`";
                Err(Problem::new(StatusCode::UNAUTHORIZED, how))
            }
            (None, _) if names_this_machine(headers) => Ok("this machine"),
            (None, _) => {
                Err(Problem::new(StatusCode::FORBIDDEN, "use `localhost` or an address as the host"))
            }
        }
    }

    /// Notes a wrong token, and returns the answer: 401, or 429 after too many.
    fn wrong_token(&self, peer: SocketAddr) -> Problem {
        match self.guesses.note_wrong(peer, Instant::now()) {
            None => Problem::new(StatusCode::UNAUTHORIZED, "that isn't the token"),
            Some(wait) => Problem {
                retry_after: Some(wait),
                ..Problem::new(StatusCode::TOO_MANY_REQUESTS, "too many wrong tokens: send the right one")
            },
        }
    }
}

/// Returns the token that a request bears.
fn borne(headers: &HeaderMap) -> Option<&[u8]> {
    headers.get(AUTHORIZATION)?.as_bytes().strip_prefix(b"Bearer ")
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

/// By what who asks is known.
pub(super) async fn session(Extension(Operator { by, .. }): Extension<Operator>) -> Json<Value> {
    Json(json!({ "by": by }))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Login {
    token: String,
}

/// Gives a browser that shows the token a cookie to show instead.
pub(super) async fn log_in(
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
        return Err(admin.wrong_token(peer));
    }
    admin.guesses.note_right(peer);
    tracing::info!(%peer, "an operator has logged in");
    Ok((StatusCode::NO_CONTENT, [(SET_COOKIE, admin.sessions.begin(&headers))]))
}

pub(super) async fn log_out(State(admin): Shared, headers: HeaderMap) -> impl IntoResponse {
    (StatusCode::NO_CONTENT, [(SET_COOKIE, admin.sessions.end(&headers))])
}

/// An answer that no other site can frame, keep or take for something else, and in which no other script runs than ours.
pub(super) async fn secured(mut response: Response) -> Response {
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
