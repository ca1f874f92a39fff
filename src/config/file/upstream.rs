//! Upstreams as they are typed.

use std::{fmt, time::Duration};

use hyper::http::uri::PathAndQuery;
use schemars::JsonSchema;
use serde::{
    Deserialize, Deserializer,
    de::{self, value::MapAccessDeserializer},
};

use super::{ClientTlsTable, Spanned, SpannedTable};
use crate::config::{
    Balance, Percent, ServerUrl,
    value::{Echo, FromText, Interval, ParsedText, Whole},
};

/// `[upstreams.NAME]`: servers that are each as good as the other.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(in crate::config) struct UpstreamTable {
    /// The servers, one or a list: `"http://127.0.0.1:3000"`, `"https://orders.internal"`, `"unix:/run/app.sock"`, or
    /// `{ url = "http://127.0.0.1:3000", weight = 2 }`. Required, unless `builtin` is given.
    pub servers: Option<Spanned<ServerList>>,
    /// `"echo"`: the gateway itself answers with what it was sent. Default: none.
    pub builtin: Option<Spanned<ParsedText<Echo>>>,
    /// Which server gets a request: of two drawn at random the one with fewer requests in flight
    /// (`"least-request"`), each in turn (`"round-robin"`), or one drawn at random (`"random"`).
    /// Default: `"least-request"`.
    pub balance: ParsedText<Balance>,
    /// How long to wait for a server.
    pub timeouts: SpannedTable<UpstreamTimeoutsTable>,
    /// When to ask another server.
    pub retries: SpannedTable<RetriesTable>,
    /// How to find out which servers are well. Default: not at all.
    pub health: Option<SpannedTable<HealthTable>>,
    /// When to leave out a server that fails. Default: never.
    pub eject: Option<SpannedTable<EjectTable>>,
    /// Requests in flight to its servers at a time, each on a connection of its own, or connections for HTTP/2; 503
    /// beyond it. At least 1. Default: 1024.
    pub max_connections: Whole<1, 1_000_000>,
    /// Whether to speak HTTP/2: to servers with TLS if they agree, to the others without asking. Default: false.
    pub http2: bool,
    /// How to trust servers with TLS, and to be trusted by them. Default: the roots of the system.
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
            max_connections: Whole(1024),
            http2: false,
            tls: None,
        }
    }
}

/// `timeouts` of an upstream.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(in crate::config) struct UpstreamTimeoutsTable {
    /// To connect. Default: `"2s"`.
    pub connect: ParsedText<Duration>,
    /// From the end of the request to the head of the response, and for any pause of a request's body on its
    /// way. Default: `"30s"`.
    pub response: ParsedText<Duration>,
    /// For which an unused connection is kept; choose it shorter than the server's own. Default: `"4s"`.
    pub idle: ParsedText<Duration>,
}

impl Default for UpstreamTimeoutsTable {
    fn default() -> Self {
        let seconds = |seconds| ParsedText(Duration::from_secs(seconds));
        Self { connect: seconds(2), response: seconds(30), idle: seconds(4) }
    }
}

/// `retries` of an upstream: when the server can't be reached, or the request is safe to send again.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(in crate::config) struct RetriesTable {
    /// Other servers to ask after the first one, 0 to 10. Default: 1.
    pub attempts: Whole<0, 10>,
    /// Share of the requests that may be asked of another server. Default: `"20%"`.
    pub budget: ParsedText<Percent>,
}

impl Default for RetriesTable {
    fn default() -> Self {
        Self { attempts: Whole(1), budget: ParsedText(Percent(20)) }
    }
}

/// `health` of an upstream: each server is asked by GET, and is well if it answers with a status from 200 to 399.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(in crate::config) struct HealthTable {
    /// The path to ask for: `"/healthz"`. Required.
    pub path: Option<ParsedText<PathAndQuery>>,
    /// From one probe of a server to the next, `"10ms"` to `"1h"`. Default: `"5s"`.
    pub interval: ParsedText<Interval>,
    /// For one probe. Default: `"1s"`.
    pub timeout: ParsedText<Duration>,
    /// Good probes in a row after which a server gets requests again, 1 to 100. Default: 2.
    pub rise: Whole<1, 100>,
    /// Bad probes in a row after which a server gets none, 1 to 100; the first one of all suffices. Default: 3.
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

/// `eject` of an upstream: a failure is no answer, none in time, or 502, 503 or 504.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(in crate::config) struct EjectTable {
    /// Failures in a row after which a server gets no requests for a while, 1 to 1000. Default: 5.
    pub failures: Whole<1, 1000>,
    /// For how long. Default: `"10s"`.
    #[serde(rename = "for")]
    pub duration: ParsedText<Duration>,
    /// Share of the servers that may be left out at a time. Default: `"50%"`.
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

/// The servers of an upstream, at least one. One alone may be written without brackets.
#[derive(Debug)]
pub(in crate::config) struct ServerList(pub Vec<ServerEntry>);

const SERVERS: &str = "an url such as \"http://127.0.0.1:3000\", or a list of such";

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
                "this list is empty\nwrite at least {}",
                ServerUrl::EXPECTED
            )));
        }
        Ok(ServerList(servers))
    }
}

/// A server in the list: its url, or a table.
#[derive(Debug)]
pub(in crate::config) struct ServerEntry {
    /// Where it is.
    pub url: ServerUrl,
    /// Its share of the requests.
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
            "an url such as \"http://127.0.0.1:3000\", or { url = \"http://127.0.0.1:3000\", weight = 2 }",
        )
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<ServerEntry, E> {
        ServerUrl::read(text).map(|url| ServerEntry { url, weight: 1 }).map_err(E::custom)
    }

    fn visit_map<A: de::MapAccess<'de>>(self, map: A) -> Result<ServerEntry, A::Error> {
        let UpstreamServerTable { url, weight } =
            UpstreamServerTable::deserialize(MapAccessDeserializer::new(map))?;
        let missing = "this server lacks its `url`\nsay where it is: url = \"http://127.0.0.1:3000\"";
        let ParsedText(url) = url.ok_or_else(|| de::Error::custom(missing))?;
        Ok(ServerEntry { url, weight: weight.0 })
    }
}

/// A server of an upstream as a table.
#[derive(Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(in crate::config) struct UpstreamServerTable {
    /// Where it is. Required.
    url: Option<ParsedText<ServerUrl>>,
    /// Its share of the requests is this by the sum of all weights, 1 to 1000. Default: 1.
    weight: Whole<1, 1000>,
}

impl Default for UpstreamServerTable {
    fn default() -> Self {
        Self { url: None, weight: Whole(1) }
    }
}
