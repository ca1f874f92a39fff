//! The file as it is typed: every key, its default, and its position in the file.
//!
//! Each value is checked by itself while it is read ([`super::value`]). The rules that involve several values
//! are checked afterwards ([`super::check`]). Required keys are optional here: if one is missing or invalid,
//! the others are still checked.

mod container;
mod decisions;
mod descriptors;
mod limit;
mod route;
mod server;
mod spanned;
mod split;
mod upstream;

use std::{
    collections::BTreeMap,
    net::{Ipv4Addr, SocketAddr},
    time::Duration,
};

use serde::Deserialize;
use tollgate_limiter::{OnFailure, StoreUrl};
use tracing::Level;

pub(super) use self::{
    container::{Pairs, SpannedTable, ValueList},
    decisions::{CountHeadersTable, DecisionsTable, DecisionsTlsTable, RatelimitServiceTable, XdsTable},
    descriptors::DescriptorsTable,
    limit::{LimitTable, OverrideTable, RateOrZero, RouteLimit},
    route::{EditsTable, OnLimitTable, RedirectTable, RespondTable, RouteTable},
    server::{CertificateTable, ServerTable, ServerTlsTable},
    spanned::Spanned,
    split::RouteUpstreams,
    upstream::{EjectTable, HealthTable, RetriesTable, ServerList, UpstreamTable},
};
#[cfg(test)]
pub(super) use self::{
    limit::ResponseCostTable,
    upstream::{ServerEntry, UpstreamServerTable},
};
use super::{
    AccessLogFormat, LogFormat, ServerUrl,
    value::{Fraction, GatewayCount, JwksLocation, Otlp, Output, ParsedText, RefreshTime, Secret, Size},
};

/// A complete gateway.toml.
#[derive(Debug, Default, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub(super) struct ConfigFile {
    /// The main listener.
    pub server: SpannedTable<ServerTable>,
    /// The store that holds the counts.
    pub store: SpannedTable<StoreTable>,
    /// A second listener, for operators. Default: none.
    pub admin: Option<SpannedTable<AdminTable>>,
    /// A listener for other proxies, which ask Tollgate whether limits admit a request. Default: none.
    pub decisions: Option<SpannedTable<DecisionsTable>>,
    /// The gateway's own log, on stderr.
    pub log: SpannedTable<LogTable>,
    /// A log with a line per request. Default: none.
    pub access_log: Option<SpannedTable<AccessLogTable>>,
    /// The export of traces. Default: none.
    pub tracing: Option<SpannedTable<TracingTable>>,
    /// The servers behind the gateway, by name.
    pub upstreams: BTreeMap<Spanned<String>, SpannedTable<UpstreamTable>>,
    /// The rate limits, by name. Names consist of lower-case letters, digits and hyphens.
    pub limits: BTreeMap<Spanned<String>, SpannedTable<LimitTable>>,
    /// The issuers whose tokens are trusted. Required if a limit counts by `"jwt:CLAIM"`. Default: none.
    pub jwt: Option<SpannedTable<JwtTable>>,
    /// The routes. If several match a request, the most specific one is used; of equally specific ones the
    /// first.
    pub routes: Vec<SpannedTable<RouteTable>>,
    /// The limits of descriptors, by which Envoy and others ask `[decisions]`. Default: none.
    pub descriptors: Vec<SpannedTable<DescriptorsTable>>,
}

/// `[store]`: the place of the counts. A change of `on_failure`, or of user and password in `url`, takes effect
/// with a reload, any other change at the next start.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub(super) struct StoreTable {
    /// URL of the store. `"memory:"` counts in this process. With Redis 6.2 or newer, all gateways count
    /// together: `"redis://USER:PASSWORD@HOST:PORT/DATABASE"`, `"redis-cluster://HOST:PORT?node=HOST:PORT"`,
    /// `"redis-sentinel://HOST:PORT?node=HOST:PORT&service=NAME"` (with TLS each begins with `"rediss"`), or
    /// `"redis+unix:///PATH?db=DATABASE"`. Default: `"memory:"`.
    pub url: ParsedText<StoreUrl>,
    /// TLS settings for Redis. Default: trust the system's root certificates.
    pub tls: Option<SpannedTable<ClientTlsTable>>,
    /// Deadline of a decision, from when the limits are asked to the answer. Default: `"50ms"`.
    pub timeout: ParsedText<Duration>,
    /// Failure policy while the store is unavailable: count in this process (`"local"`), `"allow"` the
    /// request, or `"deny"` it with 503. Limits can override it. Default: `"local"`.
    pub on_failure: ParsedText<OnFailure>,
    /// Number of gateways that share the limits, at least 1, or `"auto"`: they are counted in Redis. With `on_failure =
    /// "local"` each enforces its share. Default: 1.
    pub instances: GatewayCount,
    /// If true, a decision counts only once all replicas of the server have it, so that a failover loses no grant. For
    /// Sentinel and standalone servers; costs a round trip to the replicas. Default: false.
    pub replicated: Spanned<bool>,
    /// Prefix of all keys in the store. Default: `"tollgate"`.
    pub key_prefix: Spanned<ParsedText<String>>,
    /// Memory limit for counts kept in this process, at least `"1MiB"`. Default: `"256MiB"`.
    pub max_memory: Spanned<ParsedText<Size>>,
}

impl Default for StoreTable {
    fn default() -> Self {
        Self {
            url: ParsedText(StoreUrl::Memory),
            tls: None,
            timeout: ParsedText(Duration::from_millis(50)),
            on_failure: ParsedText(OnFailure::Local),
            instances: GatewayCount(1),
            replicated: Spanned::new(0..0, false),
            key_prefix: Spanned::new(0..0, ParsedText("tollgate".to_owned())),
            max_memory: Spanned::new(0..0, ParsedText(Size(256 << 20))),
        }
    }
}

/// `tls` of `[store]` and of an upstream. Files are in PEM format. Their paths are relative to the folder of
/// this file.
#[derive(Debug, Default, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub(super) struct ClientTlsTable {
    /// File with the certificates to trust. Default: the system's root certificates.
    pub ca: Option<Spanned<String>>,
    /// File with the gateway's own certificate, followed by the intermediate ones. Default: none.
    pub cert: Option<Spanned<String>>,
    /// File with the private key of `cert`. Default: none.
    pub key: Option<Spanned<String>>,
    /// Name that the server's certificate must be valid for. Default: the host of the server.
    pub server_name: Option<Spanned<String>>,
}

/// `[admin]`: a second listener, for operators. A change of its addresses takes effect at the next start, any other change with a reload.
#[derive(Debug, Default, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub(super) struct AdminTable {
    /// Address to listen on: `"127.0.0.1:9901"`. Required.
    pub listen: Option<Spanned<ParsedText<SocketAddr>>>,
    /// Further address, where anyone can read the metrics, and nothing else: `"0.0.0.0:9090"`. Default: none.
    pub metrics_listen: Option<Spanned<ParsedText<SocketAddr>>>,
    /// Token that requests must carry as `Authorization: Bearer TOKEN`; `/livez` and `/readyz` need none. Required
    /// unless the address is loopback. Default: none.
    pub token: Option<Spanned<ParsedText<Secret>>>,
    /// Token that is accepted for `/metrics` only, for Prometheus. Default: none.
    pub metrics_token: Option<Spanned<ParsedText<Secret>>>,
}

/// `[log]`: the gateway's own log, on stderr. A change takes effect at the next start.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub(super) struct LogTable {
    /// `"text"`, or `"json"` for a JSON object per line. Default: `"text"`.
    pub format: ParsedText<LogFormat>,
    /// Least severe level that is logged: `"error"`, `"warn"`, `"info"`, `"debug"` or `"trace"`. The environment
    /// variable `TOLLGATE_LOG` overrides it. Default: `"info"`.
    pub level: ParsedText<Level>,
}

impl Default for LogTable {
    fn default() -> Self {
        Self { format: ParsedText(LogFormat::Text), level: ParsedText(Level::INFO) }
    }
}

/// `[access_log]`: a line per request. A change takes effect at the next start.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub(super) struct AccessLogTable {
    /// `"-"` for stdout, or a file, relative to the folder of this file. SIGUSR1 reopens it, for log
    /// rotation. Default: `"-"`.
    pub path: ParsedText<Output>,
    /// `"json"` for a JSON object per line, or `"combined"` for the format of nginx and Apache. Default:
    /// `"json"`.
    pub format: ParsedText<AccessLogFormat>,
}

impl Default for AccessLogTable {
    fn default() -> Self {
        Self { path: ParsedText(Output(None)), format: ParsedText(AccessLogFormat::Json) }
    }
}

/// `[tracing]`: OpenTelemetry traces. A change of `sample` takes effect with a reload, any other change at
/// the next start.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub(super) struct TracingTable {
    /// URL of the collector, which takes OTLP over gRPC. `https://` uses TLS. Default:
    /// `"http://127.0.0.1:4317"`.
    pub otlp: ParsedText<Otlp>,
    /// Fraction of the requests to trace, from 0 to 1. For a request with a `traceparent`, its sampled flag
    /// decides. Default: 0.01.
    pub sample: Fraction,
}

impl Default for TracingTable {
    fn default() -> Self {
        let otlp = ServerUrl::Tcp { tls: false, host: Ipv4Addr::LOCALHOST.to_string(), port: 4317 };
        Self { otlp: ParsedText(Otlp(otlp)), sample: Fraction(0.01) }
    }
}

/// `[jwt]`: the trusted token issuers.
#[derive(Debug, Default, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub(super) struct JwtTable {
    /// File with a JWKS, the public keys that verify tokens: `"keys.json"`. A reload reads it again.
    /// Required, unless `jwks_url` or `hmac_secret` is given.
    pub jwks_file: Option<Spanned<ParsedText<String>>>,
    /// URL of a JWKS that the issuer publishes: `"https://id.example.com/.well-known/jwks.json"`. `http://` is only for this
    /// machine. At most 1 MiB; redirects aren't followed. Default: none.
    pub jwks_url: Option<Spanned<ParsedText<JwksLocation>>>,
    /// Time after which the keys of `jwks_url` are fetched again, `"1s"` to `"24h"`. A token that names an unknown key has them
    /// fetched at once, at most every 30 seconds. Default: `"10m"`.
    pub refresh: Option<Spanned<ParsedText<RefreshTime>>>,
    /// Shared secret that signs and verifies tokens, 32 bytes or more: `"${JWT_SECRET}"`. Default: none.
    pub hmac_secret: Option<Spanned<ParsedText<Secret>>>,
    /// Accepted issuers (`iss`) of a token, one or a list. Default: any.
    pub issuer: Option<ValueList<String>>,
    /// Accepted audiences (`aud`) of a token, one or a list. A token needs one of them. Default: any.
    pub audience: Option<ValueList<String>>,
}
