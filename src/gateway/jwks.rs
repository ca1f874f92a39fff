//! Fetches the keys that a token issuer publishes, and keeps them fresh.
//!
//! Only the URL of the configuration is asked: no redirect is followed, and a token's `jku` is ignored.

use std::{error, fmt, future::pending, sync::Arc, time::Duration};

use bytes::Bytes;
use http_body_util::{BodyExt, Empty, Limited};
use hyper::{
    Request, Response, StatusCode,
    body::Incoming,
    client::conn::http1,
    header::{ACCEPT, HOST, USER_AGENT},
};
use hyper_util::rt::TokioIo;
use tokio::{
    select,
    time::{Instant, sleep, timeout, timeout_at},
};
use tokio_util::task::AbortOnDropHandle;

use crate::{
    config::{self, JwksUrl, JwtKey},
    outbound::{Pauses, connect, with_causes},
    rules::key::jwt::FetchedKeys,
};

/// The time limit for a fetch.
const TIMEOUT: Duration = Duration::from_secs(5);
/// The largest response in bytes.
const BYTES_MOST: usize = 1 << 20;
/// The pauses after which a failed fetch is tried again.
const RETRY_PAUSES: Pauses = Pauses { first: Duration::from_secs(1), most: Duration::from_secs(30) };
/// The part of the refresh time by which fetches vary, so that gateways that started together don't ask together.
const JITTER: f64 = 0.1;

/// Fetches the keys now, and again from time to time, until they are retired. Fetches that requests wait for end with the handle.
pub(super) fn keep_fresh(keys: Arc<FetchedKeys>) -> AbortOnDropHandle<()> {
    AbortOnDropHandle::new(tokio::spawn(async move {
        let mut failures = 0;
        loop {
            keys.begin();
            let pause = fetch_next(&keys, &mut failures).await;
            keys.end();
            let refresh = async {
                sleep(pause).await;
                if keys.is_retired() {
                    pending::<()>().await;
                }
            };
            select! {
                () = refresh => {}
                () = keys.wanted() => {}
            }
        }
    }))
}

/// Waits for a fetch, but not beyond `until`.
pub(super) async fn wait(fetch: impl Future<Output = ()>, until: Option<Instant>) {
    match until {
        // If it takes longer, the request is planned with the keys that are there.
        Some(until) => drop(timeout_at(until, fetch).await),
        None => fetch.await,
    }
}

/// Fetches the keys, and returns the time until the next fetch. `failures` counts the failures in a row. If it fails, the keys stay
/// as they are.
async fn fetch_next(keys: &FetchedKeys, failures: &mut u32) -> Duration {
    let url = keys.url();
    let fetched = fetch(url).await;
    keys.count(&fetched);
    match fetched {
        Ok(published) => {
            let count = published.len();
            if keys.install(published) {
                tracing::info!(%url, keys = count, "fetched the keys of the token issuer");
            } else if *failures > 0 {
                tracing::info!(%url, "the token issuer answers again");
            }
            *failures = 0;
            url.refresh.mul_f64(1.0 - JITTER * fastrand::f64())
        }
        Err(cause) => {
            if *failures == 0 {
                tracing::warn!(%url, "can't fetch the keys of the token issuer: {cause}");
            }
            let pause = RETRY_PAUSES.after(*failures);
            *failures = failures.saturating_add(1);
            pause
        }
    }
}

/// The reason why there are no keys.
#[derive(Debug)]
pub(crate) enum FetchError {
    /// The server can't be reached, or gives no response.
    NoResponse(String),
    /// The response has no keys.
    NoKeys(String),
}

impl fmt::Display for FetchError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Self::NoResponse(cause) | Self::NoKeys(cause)) = self;
        f.write_str(cause)
    }
}

impl error::Error for FetchError {}

impl FetchError {
    fn no_response(error: impl fmt::Display) -> Self {
        Self::NoResponse(error.to_string())
    }

    fn of_http(error: impl error::Error + 'static) -> Self {
        Self::NoResponse(with_causes(&error))
    }
}

/// Fetches the keys once.
///
/// # Errors
/// The response has no keys, or doesn't arrive in time.
pub(crate) async fn fetch(url: &JwksUrl) -> Result<Vec<JwtKey>, FetchError> {
    let fetched = async { read(request(url).await?).await };
    timeout(TIMEOUT, fetched).await.unwrap_or_else(|_| Err(FetchError::no_response("no response in time")))
}

/// A response, and its connection, which ends with it.
type KeysResponse = (Response<Incoming>, AbortOnDropHandle<()>);

/// Requests the keys.
async fn request(url: &JwksUrl) -> Result<KeysResponse, FetchError> {
    let connecting = connect(&url.server, url.tls.as_ref(), b"http/1.1");
    let io = connecting.await.map_err(FetchError::no_response)?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(io)).await.map_err(FetchError::of_http)?;
    let connection = AbortOnDropHandle::new(tokio::spawn(async {
        // The response reports it, too.
        drop(connection.await);
    }));
    let request = Request::get(url.target.as_str())
        .header(HOST, url.server.host())
        .header(ACCEPT, "application/json")
        .header(USER_AGENT, concat!("tollgate/", env!("CARGO_PKG_VERSION")));
    let request = request.body(Empty::<Bytes>::new()).map_err(FetchError::no_response)?;
    let response = sender.send_request(request).await.map_err(FetchError::of_http)?;
    Ok((response, connection))
}

/// Reads the keys in a response.
async fn read((response, _connection): KeysResponse) -> Result<Vec<JwtKey>, FetchError> {
    let status = response.status();
    if status.is_redirection() {
        return Err(FetchError::NoKeys(format!("it answers {status}, and redirects aren't followed")));
    }
    if status != StatusCode::OK {
        return Err(FetchError::NoKeys(format!("it answers {status}")));
    }
    let body = Limited::new(response.into_body(), BYTES_MOST).collect().await;
    let body = body.map_err(|error| {
        FetchError::NoKeys(format!("the response can't be read, or has more than 1 MiB: {error}"))
    })?;
    let mut keys = config::read_jwks(&body.to_bytes()).map_err(|error| {
        let (line, column) = (error.line(), error.column());
        FetchError::NoKeys(format!("the response is not a JWKS: line {line}, column {column}"))
    })?;
    // A published secret isn't secret.
    keys.retain(JwtKey::is_public);
    if keys.is_empty() {
        return Err(FetchError::NoKeys("it publishes no public key that can verify signatures".to_owned()));
    }
    Ok(keys)
}
