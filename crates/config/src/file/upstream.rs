//! Upstreams as they are typed.

use std::{fmt, time::Duration};

use hyper::http::uri::PathAndQuery;
use serde::{
    Deserialize, Deserializer,
    de::{self, value::MapAccessDeserializer},
};

use super::{ClientTlsTable, Spanned, SpannedTable};
use crate::{
    Balance, Percent, ServerUrl,
    value::{Echo, FromText, Interval, ParsedText, Whole},
};

/// `[upstreams.NAME]`: a group of interchangeable servers.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub(crate) struct UpstreamTable {
    /// Servers, one or a list: `"http://127.0.0.1:3000"`, `"https://orders.internal"`,
    /// `"unix:/run/app.sock"`, or `{ url = "http://127.0.0.1:3000", weight = 2 }`. Required, unless `builtin`
    /// is given.
    pub servers: Option<Spanned<ServerList>>,
    /// `"echo"`: the gateway itself answers and describes the request it got. Default: none.
    pub builtin: Option<Spanned<ParsedText<Echo>>>,
    /// Load balancing: `"least-request"` draws two servers at random and takes the one with fewer requests in
    /// flight, `"round-robin"` takes each in turn, `"random"` draws one. Default: `"least-request"`.
    pub balance: ParsedText<Balance>,
    /// Timeouts for servers.
    pub timeouts: SpannedTable<UpstreamTimeoutsTable>,
    /// Retries on other servers.
    pub retries: SpannedTable<RetriesTable>,
    /// Active health checks. Default: none.
    pub health: Option<SpannedTable<HealthTable>>,
    /// Passive health checks: servers that keep failing get no requests for a while. Default: none.
    pub eject: Option<SpannedTable<EjectTable>>,
    /// Most requests in flight at a time, at least 1; for HTTP/2, most connections, but each worker may always
    /// have one to each server. Beyond it, requests get a 503. Default: 1024.
    pub max_connections: Spanned<Whole<1, 1_000_000>>,
    /// Uses HTTP/2: on TLS connections if the server selects it by ALPN, on others with prior knowledge.
    /// Default: `false`.
    pub http2: bool,
    /// TLS settings for the servers. Default: trust the system's root certificates.
    pub tls: Option<SpannedTable<ClientTlsTable>>,
}

impl Default for UpstreamTable {
    fn default() -> Self {
        Self {
            servers: None,
            builtin: None,
            balance: ParsedText(Balance::LeastRequest),
            timeouts: SpannedTable::default(),
            retries: SpannedTable::default(),
            health: None,
            eject: None,
            max_connections: Spanned::new(0..0, Whole(1024)),
            http2: false,
            tls: None,
        }
    }
}

/// `timeouts` of an upstream.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub(crate) struct UpstreamTimeoutsTable {
    /// Time to connect. Default: `"2s"`.
    pub connect: ParsedText<Duration>,
    /// Time from the end of the request to the head of the response. Also the longest pause while a request
    /// body is forwarded. Default: `"30s"`.
    pub response: ParsedText<Duration>,
    /// Time for which an idle connection is kept open. Choose it shorter than the server's own idle timeout.
    /// Default: `"4s"`.
    pub idle: ParsedText<Duration>,
}

impl Default for UpstreamTimeoutsTable {
    fn default() -> Self {
        let seconds = |seconds| ParsedText(Duration::from_secs(seconds));
        Self { connect: seconds(2), response: seconds(30), idle: seconds(4) }
    }
}

/// `retries` of an upstream. A request is retried if the server can't be reached, or if it is safe to send
/// again.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub(crate) struct RetriesTable {
    /// Most other servers to try after the first one, 0 to 10. Default: 1.
    pub attempts: Whole<0, 10>,
    /// Largest share of the requests that may be retried. Default: `"20%"`.
    pub budget: ParsedText<Percent>,
}

impl Default for RetriesTable {
    fn default() -> Self {
        Self { attempts: Whole(1), budget: ParsedText(Percent(20)) }
    }
}

/// `health` of an upstream: each server is probed with GET. A response with a status from 200 to 399 is a
/// success.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub(crate) struct HealthTable {
    /// Path to request: `"/healthz"`. Required.
    pub path: Option<ParsedText<PathAndQuery>>,
    /// Time between two probes of a server, `"10ms"` to `"1h"`. Default: `"5s"`.
    pub interval: ParsedText<Interval>,
    /// Timeout of a probe. Default: `"1s"`.
    pub timeout: ParsedText<Duration>,
    /// Successful probes in a row that make a server healthy again, 1 to 100. Default: 2.
    pub rise: Whole<1, 100>,
    /// Failed probes in a row that make a server unhealthy, 1 to 100. If the very first probe fails, that is
    /// enough. Default: 3.
    pub fall: Whole<1, 100>,
}

impl Default for HealthTable {
    fn default() -> Self {
        Self {
            path: None,
            interval: ParsedText(Interval(Duration::from_secs(5))),
            timeout: ParsedText(Duration::from_secs(1)),
            rise: Whole(2),
            fall: Whole(3),
        }
    }
}

/// `eject` of an upstream. A failure is a connection that fails, a timeout, or a response with status 502,
/// 503 or 504.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub(crate) struct EjectTable {
    /// Failures in a row after which a server gets no requests for a while, 1 to 1000. Default: 5.
    pub failures: Whole<1, 1000>,
    /// Time for which the server gets no requests. Default: `"10s"`.
    #[serde(rename = "for")]
    pub duration: ParsedText<Duration>,
    /// Largest share of the servers that can be ejected at a time. Default: `"50%"`.
    pub max: ParsedText<Percent>,
}

impl Default for EjectTable {
    fn default() -> Self {
        Self {
            failures: Whole(5),
            duration: ParsedText(Duration::from_secs(10)),
            max: ParsedText(Percent(50)),
        }
    }
}

/// The servers of an upstream, at least one. A single one may be written without brackets.
#[derive(Debug)]
pub(crate) struct ServerList(pub Vec<ServerEntry>);

const SERVERS: &str = "a URL such as \"http://127.0.0.1:3000\", or a list of such";

impl<'de> Deserialize<'de> for ServerList {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(ServerListVisitor)
    }
}

struct ServerListVisitor;

impl<'de> de::Visitor<'de> for ServerListVisitor {
    type Value = ServerList;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(SERVERS)
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<ServerList, E> {
        ServerEntryVisitor.visit_str(text).map(|server| ServerList(vec![server]))
    }

    fn visit_map<A: de::MapAccess<'de>>(self, map: A) -> Result<ServerList, A::Error> {
        ServerEntryVisitor.visit_map(map).map(|server| ServerList(vec![server]))
    }

    fn visit_seq<A: de::SeqAccess<'de>>(self, mut list: A) -> Result<ServerList, A::Error> {
        let mut servers = Vec::new();
        while let Some(server) = list.next_element()? {
            servers.push(server);
        }
        if servers.is_empty() {
            return Err(de::Error::custom(format!(
                "this list is empty\nwrite at least one: {}",
                ServerUrl::EXPECTED
            )));
        }
        Ok(ServerList(servers))
    }
}

/// A server in the list, written as a URL or as a table.
#[derive(Debug)]
pub(crate) struct ServerEntry {
    /// The server's URL.
    pub url: ServerUrl,
    /// The server's weight in load balancing.
    pub weight: u32,
}

impl<'de> Deserialize<'de> for ServerEntry {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(ServerEntryVisitor)
    }
}

struct ServerEntryVisitor;

impl<'de> de::Visitor<'de> for ServerEntryVisitor {
    type Value = ServerEntry;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(
            "a URL such as \"http://127.0.0.1:3000\", or { url = \"http://127.0.0.1:3000\", weight = 2 }",
        )
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<ServerEntry, E> {
        ServerUrl::read(text).map(|url| ServerEntry { url, weight: 1 }).map_err(E::custom)
    }

    fn visit_map<A: de::MapAccess<'de>>(self, map: A) -> Result<ServerEntry, A::Error> {
        let UpstreamServerTable { url, weight } =
            UpstreamServerTable::deserialize(MapAccessDeserializer::new(map))?;
        let missing = "missing key `url`\nadd the server's URL: url = \"http://127.0.0.1:3000\"";
        let ParsedText(url) = url.ok_or_else(|| de::Error::custom(missing))?;
        Ok(ServerEntry { url, weight: weight.0 })
    }
}

/// A server of an upstream as a table.
#[derive(Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub(crate) struct UpstreamServerTable {
    /// URL of the server. Required.
    url: Option<ParsedText<ServerUrl>>,
    /// Weight, 1 to 1000. A server's share of the requests is its weight divided by the sum of all weights.
    /// Default: 1.
    weight: Whole<1, 1000>,
}

impl Default for UpstreamServerTable {
    fn default() -> Self {
        Self { url: None, weight: Whole(1) }
    }
}
