//! Access to the admin port, and the browser policy of its responses.
//!
//! With a token, a request needs the token or the cookie of a login. Without one, the port is on loopback and anybody on this
//! machine has access. Then the Host must be `localhost` or an address, because a website could resolve its own name to
//! loopback (DNS rebinding). `/metrics` also takes a token of its own and any Host, since Prometheus asks by the name of a
//! service; `/livez` and `/readyz` need nothing. A foreign Origin is always rejected, and changes must be `application/json`, which HTML forms
//! can't send.

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

use crate::config::AdminToken;

use super::{Admin, AdminState, PATIENCE, Problem, dashboard};

/// The author of a request.
#[derive(Clone, Copy)]
pub(super) struct Operator {
    peer: SocketAddr,
    /// The means of authentication.
    by: &'static str,
}

impl fmt::Display for Operator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} by {}", self.peer, self.by)
    }
}

/// Rejects requests without access, from other sites, and of the wrong type.
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
    /// Returns the means by which a request is authenticated. Static files and logins need none.
    fn admits(&self, request: &Request, peer: SocketAddr) -> Result<&'static str, Problem> {
        let (headers, path) = (request.headers(), request.uri().path());
        // A login has the token in its body. Other methods show whether a token is right, so they need access.
        let is_login = path == "/api/session" && matches!(*request.method(), Method::POST | Method::DELETE);
        let is_for_all = is_login || dashboard::PATHS.contains(&path);
        let is_scrape = path == "/metrics";
        let (borne, tokens) = (borne(headers), self.tokens.load());
        if let (Some(token), Some(borne)) = (&tokens.metrics, borne)
            && is_scrape
            && are_same(borne, token)
        {
            self.guesses.note_right(peer);
            return Ok("metrics token");
        }
        let needed = tokens.admin.as_ref().or_else(|| tokens.metrics.as_ref().filter(|_| is_scrape));
        match (needed, borne) {
            (Some(token), Some(borne)) if are_same(borne, token) => {
                self.guesses.note_right(peer);
                Ok("token")
            }
            (Some(token), _) if self.sessions.has(headers, token) => Ok("login"),
            (Some(_), _) if is_for_all => Ok("nothing"),
            (Some(_), Some(_)) => Err(self.wrong_token(peer)),
            (Some(_), None) if path == "/api/session" => Ok("nothing"),
            (Some(_), None) => {
                let how = "log in on the dashboard, or send `Authorization: Bearer TOKEN`; commands take the token from the file or TOLLGATE_ADMIN_TOKEN";
                Err(Problem::new(StatusCode::UNAUTHORIZED, how))
            }
            (None, _) if is_scrape || names_this_machine(headers) => Ok("this machine"),
            (None, _) => {
                Err(Problem::new(StatusCode::FORBIDDEN, "use `localhost` or an address as the host"))
            }
        }
    }

    /// Returns true if a request with these header fields would still have access.
    pub(super) fn still_admits(&self, headers: &HeaderMap) -> bool {
        match &self.tokens.load().admin {
            Some(token) => {
                borne(headers).is_some_and(|borne| are_same(borne, token))
                    || self.sessions.has(headers, token)
            }
            None => names_this_machine(headers),
        }
    }

    /// Notes a wrong token, and returns the answer: 401, or 429 after too many.
    fn wrong_token(&self, peer: SocketAddr) -> Problem {
        match self.guesses.note_wrong(peer, Instant::now()) {
            None => Problem::new(StatusCode::UNAUTHORIZED, "wrong token"),
            Some(wait) => Problem {
                retry_after: Some(wait),
                ..Problem::new(
                    StatusCode::TOO_MANY_REQUESTS,
                    "too many wrong tokens; the right one is still accepted",
                )
            },
        }
    }
}

/// Returns the bearer token of a request.
fn borne(headers: &HeaderMap) -> Option<&[u8]> {
    headers.get(AUTHORIZATION)?.as_bytes().strip_prefix(b"Bearer ")
}

/// Compares a guess with the token, by their hashes, which takes the same time for any guess.
fn are_same(guess: &[u8], token: &AdminToken) -> bool {
    Sha256::digest(guess) == Sha256::digest(token.as_str())
}

/// Returns true if the Host is `localhost` or an address. Other names may be under the control of an attacker.
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

/// Returns the means by which the request is authenticated.
pub(super) async fn session(Extension(Operator { by, .. }): Extension<Operator>) -> Json<Value> {
    Json(json!({ "by": by }))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Login {
    token: String,
}

/// Logs a browser in: checks the token and sets a cookie.
pub(super) async fn log_in(
    State(admin): AdminState,
    ConnectInfo(peer): ConnectInfo<SocketAddr>,
    headers: HeaderMap,
    login: Result<Json<Login>, JsonRejection>,
) -> Result<impl IntoResponse, Problem> {
    let Json(login) = login.map_err(Problem::from)?;
    let tokens = admin.tokens.load();
    let Some(token) = &tokens.admin else {
        return Err(Problem::new(StatusCode::CONFLICT, "this port needs no token"));
    };
    if !are_same(login.token.as_bytes(), token) {
        return Err(admin.wrong_token(peer));
    }
    admin.guesses.note_right(peer);
    tracing::info!(%peer, "operator logged in");
    Ok((StatusCode::NO_CONTENT, [(SET_COOKIE, admin.sessions.begin(&headers, token))]))
}

pub(super) async fn log_out(State(admin): AdminState, headers: HeaderMap) -> impl IntoResponse {
    (StatusCode::NO_CONTENT, [(SET_COOKIE, admin.sessions.end(&headers))])
}

/// Adds security headers to a response: no frames, no caching, no type sniffing, and no scripts but the dashboard's.
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
