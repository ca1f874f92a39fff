//! The main listener as it is typed.

use std::{net::Ipv4Addr, time::Duration};

use hyper::http::uri::PathAndQuery;
use ipnet::IpNet;
use serde::Deserialize;

use super::{Spanned, SpannedTable, ValueList};
use tollgate_limiter::RatelimitHeaders;

use crate::{
    EscapedSlashes, ListenAddress,
    value::{BodyMost, ParsedText, Size, Whole},
};

/// `[server]`: the main listener. A change of `workers` or `reuse_port` takes effect at the next start, any other change with
/// a reload. Changes of `max_header_bytes`, `http2`, `tls` and, for bodies, `timeouts.idle` apply to new
/// connections only.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub(crate) struct ServerTable {
    /// Addresses to listen on, one or a list: `"0.0.0.0:8080"`, `"unix:/run/tollgate.sock"`. Default:
    /// `"127.0.0.1:8080"`.
    pub listen: ValueList<ListenAddress>,
    /// Number of threads that serve requests, 0 to 1024. Default: 0, one per CPU.
    pub workers: Whole<0, 1024>,
    /// Networks of proxies whose `X-Forwarded-For` is trusted. The field is read from the right. Default:
    /// none.
    pub trusted_proxies: Vec<Spanned<ParsedText<IpNet>>>,
    /// `true` if connections from `trusted_proxies` begin with a PROXY protocol header (version 1 or 2).
    /// Default: `false`.
    pub proxy_protocol: Spanned<bool>,
    /// Accepts HTTP/2: on TLS connections if the client selects it by ALPN, on others with prior knowledge.
    /// Default: `true`.
    pub http2: bool,
    /// Enables TLS on all TCP addresses; unix sockets stay without. Default: no TLS.
    pub tls: Option<SpannedTable<ServerTlsTable>>,
    /// Header fields that tell clients about their limits: `"draft-11"` (`RateLimit` and `RateLimit-Policy`),
    /// `"x-ratelimit"` (`X-RateLimit-Limit`, `-Remaining` and `-Reset`), `"both"` or `"off"`. Default:
    /// `"draft-11"`.
    pub ratelimit_headers: ParsedText<RatelimitHeaders>,
    /// Largest request head, at least `"8KiB"`. Larger ones are rejected with 431. Default: `"32KiB"`.
    pub max_header_bytes: Spanned<ParsedText<Size>>,
    /// Largest request body, such as `"10MiB"`. Larger ones are rejected with 413. Routes can override it.
    /// Default: `"none"`.
    pub max_body: ParsedText<BodyMost>,
    /// Most client connections at a time, 1 to 1000000, and as many of callers of `[decisions]`, and of those who may not ask there. Beyond
    /// it, the connections that have been idle longest are closed; if none is idle, new ones get a 503. Default: 20000.
    pub max_connections: Whole<1, 1_000_000>,
    /// Treatment of `%2F` and `%5C` in a path: `"keep"` them, or `"reject"` the request with 400. Default:
    /// `"keep"`.
    pub escaped_slashes: ParsedText<EscapedSlashes>,
    /// Sends `X-Request-Id` with every response: the id that the upstream got. Default: `true`.
    pub request_id: bool,
    /// `true` lets several gateways listen on the same TCP addresses (SO_REUSEPORT). The system distributes connections
    /// among them. Takes effect at the next start. Default: `false`.
    pub reuse_port: bool,
    /// Path at which the listener answers health checks, before routing and without limits: 200, or 503 while the
    /// gateway drains. Default: none.
    pub health: Option<ParsedText<PathAndQuery>>,
    /// Timeouts for clients.
    pub timeouts: SpannedTable<ServerTimeoutsTable>,
}

impl Default for ServerTable {
    fn default() -> Self {
        Self {
            listen: ValueList::of(ListenAddress::Tcp((Ipv4Addr::LOCALHOST, 8080).into())),
            workers: Whole(0),
            trusted_proxies: Vec::new(),
            proxy_protocol: Spanned::new(0..0, false),
            http2: true,
            tls: None,
            ratelimit_headers: ParsedText(RatelimitHeaders::Draft11),
            max_header_bytes: Spanned::new(0..0, ParsedText(Size(32 << 10))),
            max_body: ParsedText(BodyMost(None)),
            max_connections: Whole(20_000),
            escaped_slashes: ParsedText(EscapedSlashes::Keep),
            request_id: true,
            reuse_port: false,
            health: None,
            timeouts: SpannedTable::default(),
        }
    }
}

/// `tls` of `[server]`. Files are in PEM format. Their paths are relative to the folder of this file. A
/// reload reads them again.
#[derive(Debug, Default, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub(crate) struct ServerTlsTable {
    /// The gateway's certificates. A client gets the one that is valid for the host name it asks for, exactly
    /// or by a wildcard, otherwise the first. Required.
    pub certs: Vec<SpannedTable<CertificateTable>>,
    /// File with the authorities that must have issued the clients' certificates. Default: clients need no
    /// certificate.
    pub client_ca: Option<Spanned<String>>,
}

/// One of `certs`.
#[derive(Debug, Default, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub(crate) struct CertificateTable {
    /// File with the certificate, followed by the intermediate ones. Required.
    pub cert: Option<Spanned<String>>,
    /// File with the private key of `cert`. Required.
    pub key: Option<Spanned<String>>,
}

/// `timeouts` of `[server]`.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub(crate) struct ServerTimeoutsTable {
    /// Time to receive a complete request head, from its first byte, or from the start of the connection.
    /// Default: `"10s"`.
    pub header: ParsedText<Duration>,
    /// Time without activity after which a connection is closed: no new request, no further part of a request
    /// body, or no part of the response accepted. Default: `"75s"`.
    pub idle: ParsedText<Duration>,
    /// Time that requests in flight have to finish at shutdown. The first tenth of it, at most 10 s, is for
    /// load balancers to notice that the gateway isn't ready any more; idle connections have as long again.
    /// Default: `"30s"`.
    pub drain: ParsedText<Duration>,
}

impl Default for ServerTimeoutsTable {
    fn default() -> Self {
        let [header, idle, drain] = [10, 75, 30].map(|seconds| ParsedText(Duration::from_secs(seconds)));
        Self { header, idle, drain }
    }
}
