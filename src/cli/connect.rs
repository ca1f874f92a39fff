//! The surroundings of a configuration: addresses to listen on, the store, servers, the keys of token issuers, and the dates of
//! certificates.

use std::{
    fs::{self, OpenOptions},
    net::{SocketAddr, TcpListener},
    os::unix::net::UnixStream,
    path::Path,
    sync::Arc,
    time::SystemTime,
};

use humantime::format_rfc3339_seconds;
use serde_json::{Value, json};
use tokio::{net, time::timeout};
use tollgate_limiter::{Ask, Limit, Limiter, OnFailure, Rate, StoreUrl};

use crate::{
    config::{
        Config, EXPIRES_SOON, Expiry, JwksUrl, JwtSettings, ListenAddress, ServerUrl, Target,
        UpstreamSettings,
    },
    gateway::{
        Gateway,
        jwks::{self, FetchError},
    },
    outbound::with_causes,
};

/// A thing that a configuration needs, and the problem with it, if there is one.
pub(super) struct Finding {
    /// The thing: ``upstream `orders`, http://orders:3000``.
    pub(super) what: String,
    /// The problem.
    pub(super) problem: Option<String>,
}

impl Finding {
    fn of(what: impl Into<String>, outcome: Result<(), String>) -> Self {
        Self { what: what.into(), problem: outcome.err() }
    }

    /// Returns the finding as JSON.
    pub(super) fn to_json(&self) -> Value {
        json!({ "what": self.what, "problem": self.problem })
    }
}

/// Tries what a configuration needs: listens, decides a request of its own in the store, connects to each server, and fetches the
/// keys of tokens.
pub(super) async fn findings(config: &Config) -> Vec<Finding> {
    let decisions = config.decisions.as_ref().map(|decisions| &decisions.listen);
    let admin = config.admin.as_ref().map(|admin| ListenAddress::Tcp(admin.listen));
    let addresses = config.server.listen.iter().chain(decisions).chain(&admin);
    let mut findings: Vec<_> =
        addresses.map(|address| Finding::of(format!("listen {address}"), listens(address))).collect();
    let store = match &config.store.url {
        StoreUrl::Memory => "store memory:".to_owned(),
        StoreUrl::Redis(url) => format!("store {url}"),
    };
    findings.push(Finding::of(store, store_decides(config).await));
    findings.extend(rates_in_redis(config).await);
    for (name, upstream) in &config.upstreams {
        let Target::Servers(servers) = &upstream.target else { continue };
        for server in servers {
            let outcome = connects(&server.url, upstream).await;
            findings.push(Finding::of(format!("upstream `{name}`, {}", server.url), outcome));
        }
    }
    if let Some(jwt) = &config.jwt
        && let Some(url) = &jwt.published
    {
        findings.push(Finding::of(format!("jwks_url {url}"), keys_are_published(jwt, url).await));
    }
    let log = config.access_log.as_ref().and_then(|log| log.path.as_ref());
    findings.extend(log.map(|path| Finding::of(format!("access_log {}", path.display()), is_writable(path))));
    findings.extend(config.expiries().iter().map(|expiry| Finding::of(&expiry.place, lasts(expiry))));
    findings
}

/// Listens on an address for a moment.
fn listens(address: &ListenAddress) -> Result<(), String> {
    match address {
        ListenAddress::Tcp(address) => TcpListener::bind(address).map(drop).map_err(|error| {
            format!("can't listen: {error}: stop the program that has the port, or use another one")
        }),
        ListenAddress::Unix(path) if UnixStream::connect(path).is_ok() => {
            Err("another program listens on this socket: stop it, or use another path".to_owned())
        }
        ListenAddress::Unix(path) => match path.parent().map(fs::metadata) {
            Some(Ok(folder)) if folder.is_dir() => Ok(()),
            _ => Err("its folder doesn't exist: create it".to_owned()),
        },
    }
}

/// Opens a file for writing at its end. One that isn't there yet is removed again.
fn is_writable(path: &Path) -> Result<(), String> {
    let is_there = path.exists();
    let opened = OpenOptions::new().append(true).create(true).open(path);
    if opened.is_ok() && !is_there {
        fs::remove_file(path).map_err(|error| format!("can't remove it again: {error}"))?;
    }
    opened.map(drop).map_err(|error| {
        format!("can't open it: {error}: create its folder, or let the gateway's user write there")
    })
}

/// Decides a request of a limit of its own, reads the rates that are set, and removes the count again.
async fn store_decides(config: &Config) -> Result<(), String> {
    let limiter = Limiter::open(&config.store).map_err(|error| with_causes(&error))?;
    limiter.warm_up().await.map_err(|error| with_causes(&error))?;
    limiter.overrides().await.map_err(|error| with_causes(&error))?;
    let limit = Limit::new("tollgate-check", Rate { permits: 1_000_000, window_us: 1_000_000 });
    let limit = Arc::new(limit.on_failure(OnFailure::Deny));
    let ask = Ask::new(&limit, "check");
    limiter
        .try_acquire(std::slice::from_ref(&ask))
        .await
        .map_err(|refusal| format!("it can't decide: {refusal}"))?;
    limiter.reset(&ask).await.map_err(|error| with_causes(&error))
}

/// Looks for rates in Redis that win over those of the file, of limits that Java shares.
async fn rates_in_redis(config: &Config) -> Vec<Finding> {
    let mut findings = Vec::new();
    let Ok(limiter) = Limiter::open(&config.store) else { return findings };
    let gateway = Gateway::build(config, &limiter, None);
    let is_shared = matches!(config.store.url, StoreUrl::Redis(_));
    for rule in gateway.rules().values().filter(|rule| is_shared && rule.limit().redisson_name().is_some()) {
        let (name, own) = (rule.limit().name(), rule.limit().quota());
        // The store's own finding says why it can't be asked. And a user may lack the right to look through the keys.
        let Ok(mut rates) = limiter.rates_of_redis(rule.limit()).await else { continue };
        rates.retain(|(_, rate)| rule.own_rates().all(|(_, own)| own != *rate));
        let others = rates.len().saturating_sub(1);
        let outcome = rates.first().map_or(Ok(()), |(limiter, rate)| {
            Err(format!(
                "Redis has the rate {rate} for `{limiter}`, and others for {others} more keys. It wins over {own} in the \
                 file: write rate = \"{rate}\", or change Redis with `tollgate limits set {name} KEY {own}`"
            ))
        });
        findings.push(Finding::of(format!("limit `{name}`, shared with Redisson"), outcome));
    }
    findings
}

/// Resolves the name of a server, and connects to it.
async fn connects(server: &ServerUrl, upstream: &UpstreamSettings) -> Result<(), String> {
    let limit = upstream.connect_timeout;
    let ServerUrl::Tcp { host, port, .. } = server else {
        let ServerUrl::Unix(path) = server else { return Ok(()) };
        return UnixStream::connect(path).map(drop).map_err(|error| format!("can't connect: {error}"));
    };
    let found = timeout(limit, net::lookup_host((host.as_str(), *port))).await;
    let found = found.map_err(|_| format!("`{host}` wasn't resolved in time"))?;
    let addresses: Vec<SocketAddr> =
        found.map_err(|error| format!("can't resolve `{host}`: {error}"))?.collect();
    let connected = timeout(limit, net::TcpStream::connect(&*addresses)).await;
    let connected = connected.map_err(|_| "no connection in time".to_owned())?;
    connected.map(drop).map_err(|error| format!("can't connect: {error}"))
}

/// Fetches the keys of the token issuer, as a gateway does.
async fn keys_are_published(jwt: &JwtSettings, url: &JwksUrl) -> Result<(), String> {
    match jwks::fetch(url).await {
        Ok(_) => Ok(()),
        Err(FetchError::NoResponse(cause)) => Err(format!("can't fetch the keys: {cause}")),
        Err(FetchError::NoKeys(cause)) => {
            let issuer = jwt.issuers.iter().find(|issuer| issuer.starts_with("https://"));
            let issuer = issuer.map_or("ISSUER", |issuer| issuer.trim_end_matches('/'));
            Err(format!(
                "{cause}: the URL of the JWKS is usually the `jwks_uri` in {issuer}/.well-known/openid-configuration"
            ))
        }
    }
}

/// Reports a certificate that has expired, or soon will.
fn lasts(expiry: &Expiry) -> Result<(), String> {
    let (now, date) = (SystemTime::now(), format_rfc3339_seconds(expiry.at));
    match expiry.at.duration_since(now) {
        Err(_) => Err(format!("expired on {date}: renew it")),
        Ok(left) if left < EXPIRES_SOON => Err(format!("expires on {date}, within 14 days: renew it")),
        Ok(_) => Ok(()),
    }
}
