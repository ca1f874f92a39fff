//! Upstreams as they are typed.

use std::{fmt, time::Duration};

use hyper::http::uri::PathAndQuery;
use schemars::JsonSchema;
use serde::{
    Deserialize, Deserializer,
    de::{self, value::MapAccessDeserializer},
};

use super::{Spanned, Table, Tls};
use crate::config::{
    Balance, Percent, ServerUrl,
    value::{Echo, Interval, Text, Whole, Written},
};

/// `[upstreams.NAME]`: servers that are each as good as the other.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(in crate::config) struct Upstream {
    /// The servers, one or a list: `"http://127.0.0.1:3000"`, `"https://orders.internal"`, `"unix:/run/app.sock"`, or
    /// `{ url = "http://127.0.0.1:3000", weight = 2 }`. Required, unless `builtin` is given.
    pub servers: Option<Spanned<Servers>>,
    /// `"echo"`: the gateway itself answers with what it was sent. Default: none.
    pub builtin: Option<Spanned<Text<Echo>>>,
    /// Which server gets a request: of two drawn at random the one with fewer requests in flight
    /// (`"least-request"`), each in turn (`"round-robin"`), or one drawn at random (`"random"`).
    /// Default: `"least-request"`.
    pub balance: Text<Balance>,
    /// How long to wait for a server.
    pub timeouts: Table<Timeouts>,
    /// When to ask another server.
    pub retries: Table<Retries>,
    /// How to find out which servers are well. Default: not at all.
    pub health: Option<Table<Health>>,
    /// When to leave out a server that fails. Default: never.
    pub eject: Option<Table<Eject>>,
    /// Requests in flight to its servers at a time, each on a connection of its own, or connections for HTTP/2; 503
    /// beyond it. At least 1. Default: 1024.
    pub max_connections: Whole<1, 1_000_000>,
    /// Whether to speak HTTP/2: to servers with TLS if they agree, to the others without asking. Default: false.
    pub http2: bool,
    /// How to trust servers with TLS, and to be trusted by them. Default: the roots of the system.
    pub tls: Option<Table<Tls>>,
}

impl Default for Upstream {
    fn default() -> Self {
        Self {
            servers: None,
            builtin: None,
            balance: Text(Balance::LeastRequest),
            timeouts: Table::default(),
            retries: Table::default(),
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
pub(in crate::config) struct Timeouts {
    /// To connect. Default: `"2s"`.
    pub connect: Text<Duration>,
    /// From the end of the request to the head of the response, and for any pause of a request's body on its
    /// way. Default: `"30s"`.
    pub response: Text<Duration>,
    /// For which an unused connection is kept; choose it shorter than the server's own. Default: `"4s"`.
    pub idle: Text<Duration>,
}

impl Default for Timeouts {
    fn default() -> Self {
        let seconds = |seconds| Text(Duration::from_secs(seconds));
        Self { connect: seconds(2), response: seconds(30), idle: seconds(4) }
    }
}

/// `retries` of an upstream: when the server can't be reached, or the request is safe to send again.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(in crate::config) struct Retries {
    /// Other servers to ask after the first one, 0 to 10. Default: 1.
    pub attempts: Whole<0, 10>,
    /// Share of the requests that may be asked of another server. Default: `"20%"`.
    pub budget: Text<Percent>,
}

impl Default for Retries {
    fn default() -> Self {
        Self { attempts: Whole(1), budget: Text(Percent(20)) }
    }
}

/// `health` of an upstream: each server is asked by GET, and is well if it answers with a status from 200 to 399.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(in crate::config) struct Health {
    /// The path to ask for: `"/healthz"`. Required.
    pub path: Option<Text<PathAndQuery>>,
    /// From one probe of a server to the next, `"10ms"` to `"1h"`. Default: `"5s"`.
    pub interval: Text<Interval>,
    /// For one probe. Default: `"1s"`.
    pub timeout: Text<Duration>,
    /// Good probes in a row after which a server gets requests again, 1 to 100. Default: 2.
    pub rise: Whole<1, 100>,
    /// Bad probes in a row after which a server gets none, 1 to 100; the first one of all suffices. Default: 3.
    pub fall: Whole<1, 100>,
}

impl Default for Health {
    fn default() -> Self {
        Self {
            path: None,
            interval: Text(Interval(Duration::from_secs(5))),
            timeout: Text(Duration::from_secs(1)),
            rise: Whole(2),
            fall: Whole(3),
        }
    }
}

/// `eject` of an upstream: a failure is no answer, none in time, or 502, 503 or 504.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(in crate::config) struct Eject {
    /// Failures in a row after which a server gets no requests for a while, 1 to 1000. Default: 5.
    pub failures: Whole<1, 1000>,
    /// For how long. Default: `"10s"`.
    #[serde(rename = "for")]
    pub duration: Text<Duration>,
    /// Share of the servers that may be left out at a time. Default: `"50%"`.
    pub max: Text<Percent>,
}

impl Default for Eject {
    fn default() -> Self {
        Self { failures: Whole(5), duration: Text(Duration::from_secs(10)), max: Text(Percent(50)) }
    }
}

/// The servers of an upstream, at least one. One alone may be written without brackets.
#[derive(Debug)]
pub(in crate::config) struct Servers(pub Vec<Server>);

const SERVERS: &str = "an url such as \"http://127.0.0.1:3000\", or a list of such";

impl<'de> Deserialize<'de> for Servers {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(ServersVisitor)
    }
}

struct ServersVisitor;

impl<'de> de::Visitor<'de> for ServersVisitor {
    type Value = Servers;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(SERVERS)
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Servers, E> {
        ServerVisitor.visit_str(text).map(|server| Servers(vec![server]))
    }

    fn visit_map<A: de::MapAccess<'de>>(self, map: A) -> Result<Servers, A::Error> {
        ServerVisitor.visit_map(map).map(|server| Servers(vec![server]))
    }

    fn visit_seq<A: de::SeqAccess<'de>>(self, mut list: A) -> Result<Servers, A::Error> {
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
        Ok(Servers(servers))
    }
}

/// A server in the list: its url, or a table.
#[derive(Debug)]
pub(in crate::config) struct Server {
    /// Where it is.
    pub url: ServerUrl,
    /// Its share of the requests.
    pub weight: u32,
}

impl<'de> Deserialize<'de> for Server {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(ServerVisitor)
    }
}

struct ServerVisitor;

impl<'de> de::Visitor<'de> for ServerVisitor {
    type Value = Server;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(
            "an url such as \"http://127.0.0.1:3000\", or { url = \"http://127.0.0.1:3000\", weight = 2 }",
        )
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Server, E> {
        ServerUrl::read(text).map(|url| Server { url, weight: 1 }).map_err(E::custom)
    }

    fn visit_map<A: de::MapAccess<'de>>(self, map: A) -> Result<Server, A::Error> {
        let ServerTable { url, weight } = ServerTable::deserialize(MapAccessDeserializer::new(map))?;
        let missing = "this server lacks its `url`\nsay where it is: url = \"http://127.0.0.1:3000\"";
        let Text(url) = url.ok_or_else(|| de::Error::custom(missing))?;
        Ok(Server { url, weight: weight.0 })
    }
}

/// A server of an upstream as a table.
#[derive(Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(in crate::config) struct ServerTable {
    /// Where it is. Required.
    url: Option<Text<ServerUrl>>,
    /// Its share of the requests is this by the sum of all weights, 1 to 1000. Default: 1.
    weight: Whole<1, 1000>,
}

impl Default for ServerTable {
    fn default() -> Self {
        Self { url: None, weight: Whole(1) }
    }
}
