//! Fetches the keys that a token issuer publishes, and keeps them fresh.
//!
//! Only the URL of the configuration is asked: no redirect is followed, and a token's `jku` is ignored.

use std::{io, sync::Arc, time::Duration};

use bytes::Bytes;
use http_body_util::{BodyExt, Empty, Limited};
use hyper::{
    Request, StatusCode,
    client::conn::http1,
    header::{ACCEPT, HOST, USER_AGENT},
};
use hyper_util::rt::TokioIo;
use rustls::{ClientConfig, pki_types::ServerName};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
    select,
    time::{Instant, sleep, timeout, timeout_at},
};
use tokio_rustls::TlsConnector;
use tokio_util::task::AbortOnDropHandle;

use crate::{
    config::{self, JwksUrl, JwtKey},
    rules::key::jwt::FetchedKeys,
};

/// The time limit for a fetch.
const TIMEOUT: Duration = Duration::from_secs(5);
/// The largest response in bytes.
const BYTES_MOST: usize = 1 << 20;
/// The times after which a failed fetch is tried again. They double from the first to the last.
const RETRY_FIRST: Duration = Duration::from_secs(1);
const RETRY_LAST: Duration = Duration::from_secs(30);
/// The part of the refresh time by which fetches vary, so that gateways that started together don't ask together.
const JITTER: f64 = 0.1;

trait Io: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Io for T {}

/// Fetches the keys now, and again from time to time, until the handle is dropped. `None` if the settings name no URL.
pub(super) fn keep_fresh(
    settings: &Arc<config::JwtSettings>,
    keys: Option<&Arc<FetchedKeys>>,
) -> Option<AbortOnDropHandle<()>> {
    let (settings, keys) = (settings.clone(), keys?.clone());
    Some(AbortOnDropHandle::new(tokio::spawn(async move {
        let mut fetches = Fetches { retry: RETRY_FIRST, is_failing: false };
        loop {
            keys.begin();
            let pause = fetches.next(&settings, &keys).await;
            keys.end();
            select! {
                () = sleep(pause) => {}
                () = keys.wanted() => {}
            }
        }
    })))
}

/// Waits for a fetch, but not beyond `until`.
pub(super) async fn wait(fetch: impl Future<Output = ()>, until: Option<Instant>) {
    match until {
        // The keys are as they are then.
        Some(until) => drop(timeout_at(until, fetch).await),
        None => fetch.await,
    }
}

/// The fetches of an issuer's keys.
struct Fetches {
    /// The time after which the next failed fetch is tried again.
    retry: Duration,
    is_failing: bool,
}

impl Fetches {
    /// Fetches the keys. Returns the time until the next fetch. If it fails, the keys stay as they are.
    async fn next(&mut self, settings: &config::JwtSettings, keys: &FetchedKeys) -> Duration {
        let Some(url) = &settings.published else { return Duration::MAX };
        let fetched =
            timeout(TIMEOUT, fetch(url)).await.unwrap_or_else(|_| Err("no response in time".into()));
        match fetched {
            Ok(published) => {
                let count = published.len();
                if keys.install(settings, published) {
                    tracing::info!(%url, keys = count, "fetched the keys of the token issuer");
                } else if self.is_failing {
                    tracing::info!(%url, "the token issuer answers again");
                }
                *self = Self { retry: RETRY_FIRST, is_failing: false };
                url.refresh.mul_f64(1.0 - JITTER * fastrand::f64())
            }
            Err(cause) => {
                if !self.is_failing {
                    tracing::warn!(%url, "can't fetch the keys of the token issuer: {cause}");
                }
                let pause = self.retry;
                *self = Self { retry: (pause * 2).min(RETRY_LAST), is_failing: true };
                pause
            }
        }
    }
}

/// Fetches the keys.
///
/// # Errors
/// The reason why there are none.
async fn fetch(url: &JwksUrl) -> Result<Vec<JwtKey>, String> {
    let io = connect(url).await.map_err(|error| error.to_string())?;
    let (mut sender, connection) =
        http1::handshake(TokioIo::new(io)).await.map_err(|error| error.to_string())?;
    let _connection = AbortOnDropHandle::new(tokio::spawn(async {
        // The response reports it, too.
        drop(connection.await);
    }));
    let request = Request::get(url.target.as_str())
        .header(HOST, url.authority())
        .header(ACCEPT, "application/json")
        .header(USER_AGENT, concat!("tollgate/", env!("CARGO_PKG_VERSION")));
    let request = request.body(Empty::<Bytes>::new()).map_err(|error| error.to_string())?;
    let response = sender.send_request(request).await.map_err(|error| error.to_string())?;
    if response.status().is_redirection() {
        return Err(format!("it answers {}, and redirects aren't followed", response.status()));
    }
    if response.status() != StatusCode::OK {
        return Err(format!("it answers {}", response.status()));
    }
    let body = Limited::new(response.into_body(), BYTES_MOST).collect().await;
    let body =
        body.map_err(|error| format!("the response can't be read, or has more than 1 MiB: {error}"))?;
    let mut keys = config::read_jwks(&body.to_bytes()).map_err(|error| {
        format!("the response is not a JWKS: line {}, column {}", error.line(), error.column())
    })?;
    // A secret that is published is none.
    keys.retain(JwtKey::is_public);
    if keys.is_empty() {
        return Err("it publishes no public key that can verify signatures".to_owned());
    }
    Ok(keys)
}

/// Opens a connection to the issuer.
async fn connect(url: &JwksUrl) -> io::Result<Box<dyn Io>> {
    let stream = TcpStream::connect((url.host.as_str(), url.port)).await?;
    stream.set_nodelay(true)?;
    let Some(tls) = &url.tls else { return Ok(Box::new(stream)) };
    let mut client: ClientConfig = tls.client().map_err(io::Error::other)?;
    client.alpn_protocols = vec![b"http/1.1".to_vec()];
    let name = ServerName::try_from(url.host.clone()).map_err(io::Error::other)?;
    Ok(Box::new(TlsConnector::from(Arc::new(client)).connect(name, stream).await?))
}
