//! The settings of upstreams: the servers that requests are forwarded to, and how to treat them.

use std::{fmt, path::PathBuf, sync::Arc, time::Duration};

use hyper::http::uri::PathAndQuery;
use tollgate_limiter::ClientTls;

/// The settings of an upstream.
#[derive(Debug, PartialEq)]
pub struct UpstreamSettings {
    /// The servers that respond, or the gateway itself.
    pub target: Target,
    /// The load balancing method.
    pub balance: Balance,
    /// The time to connect.
    pub connect_timeout: Duration,
    /// The time from the end of the request to the head of the response.
    pub response_timeout: Duration,
    /// The time for which an idle connection is kept open.
    pub idle_timeout: Duration,
    /// The retries on other servers.
    pub retries: Retries,
    /// The active health checks. `None` if there are none.
    pub health: Option<Health>,
    /// The ejection of failing servers. `None` if they are never ejected.
    pub eject: Option<Eject>,
    /// The most requests in flight at a time; for HTTP/2, the most connections beyond the first ones of each worker to
    /// each server. At least 1.
    pub max_connections: usize,
    /// True if HTTP/2 is used: with TLS if the server selects it, without TLS always.
    pub http2: bool,
    /// The TLS settings. `None` if no server uses TLS.
    pub tls: Option<Arc<ClientTls>>,
}

/// The origin of an upstream's responses.
#[derive(Debug, PartialEq, Eq)]
pub enum Target {
    /// These servers, at least one.
    Servers(Vec<Weighted>),
    /// The gateway itself, which describes the request it got.
    Echo,
}

/// A server and its weight in load balancing.
#[derive(Debug, PartialEq, Eq)]
pub struct Weighted {
    /// The server's URL.
    pub url: ServerUrl,
    /// The weight, at least 1. A server's share of the requests is its weight divided by the sum of all.
    pub weight: u32,
}

/// The URL of a server. Displays as it is written in the file: `http://host:port`, `unix:/run/app.sock`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ServerUrl {
    /// A host and a port.
    Tcp {
        /// True for `https://`.
        tls: bool,
        /// A name, or an address without brackets.
        host: String,
        /// The port.
        port: u16,
    },
    /// The absolute path of a unix socket.
    Unix(PathBuf),
}

impl ServerUrl {
    /// Returns the value of the Host field: the authority, without the port if it is the scheme's default
    /// (RFC 9110, section 7.2).
    pub fn host(&self) -> String {
        let mut authority = self.authority();
        let own = if self.is_tls() { ":443" } else { ":80" };
        if matches!(self, Self::Tcp { .. }) && authority.ends_with(own) {
            authority.truncate(authority.len() - own.len());
        }
        authority
    }

    /// Returns `host:port`, or `localhost` for a unix socket.
    pub fn authority(&self) -> String {
        match self {
            Self::Tcp { host, port, .. } if host.contains(':') => format!("[{host}]:{port}"),
            Self::Tcp { host, port, .. } => format!("{host}:{port}"),
            Self::Unix(_) => "localhost".to_owned(),
        }
    }

    /// Returns the server's name in logs and metrics: `host:port`, `unix:/run/app.sock`.
    pub fn name(&self) -> String {
        match self {
            Self::Tcp { .. } => self.authority(),
            Self::Unix(_) => self.to_string(),
        }
    }

    /// Returns true if connections use TLS.
    pub fn is_tls(&self) -> bool {
        matches!(self, Self::Tcp { tls: true, .. })
    }
}

impl fmt::Display for ServerUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp { tls, .. } => write!(f, "http{}://{}", if *tls { "s" } else { "" }, self.authority()),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

/// A load balancing method.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Balance {
    /// Draw two servers at random and take the one with fewer requests in flight in proportion to its weight.
    LeastRequest,
    /// Take each in turn, as often as its weight says.
    RoundRobin,
    /// Draw one at random.
    Random,
}

/// A percentage, at most 100.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Percent(pub u32);

/// The retries on other servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retries {
    /// The most servers to try after the first one.
    pub attempts: usize,
    /// The largest share of the requests that may be retried.
    pub budget: Percent,
}

/// The active health checks of servers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Health {
    /// The path to request with GET.
    pub path: PathAndQuery,
    /// The time between two probes of a server.
    pub interval: Duration,
    /// The timeout of a probe.
    pub timeout: Duration,
    /// The successful probes in a row that make a server healthy again, at least 1.
    pub rise: u32,
    /// The failed probes in a row that make a server unhealthy, at least 1.
    pub fall: u32,
}

/// The ejection of failing servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Eject {
    /// The failures in a row that eject a server, at least 1.
    pub failures: u32,
    /// The time for which a server stays ejected.
    pub duration: Duration,
    /// The largest share of the servers that can be ejected at a time.
    pub most: Percent,
}
