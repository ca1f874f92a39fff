//! Upstreams: the servers that requests are forwarded to, and how to treat them.

use std::{fmt, path::PathBuf, sync::Arc, time::Duration};

use hyper::http::uri::PathAndQuery;

use super::ClientTls;

/// Where requests are forwarded to.
#[derive(Debug, PartialEq)]
pub struct UpstreamSettings {
    /// Who answers.
    pub target: Target,
    /// Which of the servers gets a request.
    pub balance: Balance,
    /// To connect.
    pub connect_timeout: Duration,
    /// From the end of the request to the head of the response.
    pub response_timeout: Duration,
    /// For which an unused connection is kept.
    pub idle_timeout: Duration,
    /// When to ask another server.
    pub retries: Retries,
    /// How servers are asked whether they are well, if they are.
    pub health: Option<Health>,
    /// When a server that fails is left out for a while, if ever.
    pub eject: Option<Eject>,
    /// Requests in flight to its servers at a time, each on a connection of its own, or connections for HTTP/2; at least 1.
    pub max_connections: usize,
    /// Whether servers are spoken to by HTTP/2: those with TLS if they agree, the others in any case.
    pub http2: bool,
    /// How servers with TLS prove who they are, and the gateway to them; none if there are none.
    pub tls: Option<Arc<ClientTls>>,
}

/// Who answers for an upstream.
#[derive(Debug, PartialEq, Eq)]
pub enum Target {
    /// These servers, at least one.
    Servers(Vec<Weighted>),
    /// The gateway itself, with what it was sent.
    Echo,
}

/// A server, and its share of the requests.
#[derive(Debug, PartialEq, Eq)]
pub struct Weighted {
    /// The server.
    pub url: ServerUrl,
    /// Its share is this by the sum of all, at least 1.
    pub weight: u32,
}

/// Where a server is. Prints as it is written: `http://host:port`, `unix:/run/app.sock`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ServerUrl {
    /// A host and a port.
    Tcp {
        /// Whether it is spoken to by TLS: `https://`.
        tls: bool,
        /// A name, or an address without brackets.
        host: String,
        /// The port.
        port: u16,
    },
    /// The path of a unix socket, from the root.
    Unix(PathBuf),
}

impl ServerUrl {
    /// What a Host field says: the authority, without the port if it is the scheme's own (RFC 9110, section 7.2).
    pub fn host(&self) -> String {
        let mut authority = self.authority();
        let own = if self.is_tls() { ":443" } else { ":80" };
        if matches!(self, Self::Tcp { .. }) && authority.ends_with(own) {
            authority.truncate(authority.len() - own.len());
        }
        authority
    }

    /// `host:port`; a unix socket is `localhost`.
    pub fn authority(&self) -> String {
        match self {
            Self::Tcp { host, port, .. } if host.contains(':') => format!("[{host}]:{port}"),
            Self::Tcp { host, port, .. } => format!("{host}:{port}"),
            Self::Unix(_) => "localhost".to_owned(),
        }
    }

    /// What logs and metrics call the server: `host:port`, `unix:/run/app.sock`.
    pub fn name(&self) -> String {
        match self {
            Self::Tcp { .. } => self.authority(),
            Self::Unix(_) => self.to_string(),
        }
    }

    /// Whether it is spoken to by TLS.
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

/// Which of several servers gets a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Balance {
    /// Of two drawn at random, the one with fewer requests in flight for its weight.
    LeastRequest,
    /// Each in turn, as often as its weight says.
    RoundRobin,
    /// One drawn at random.
    Random,
}

/// A part of a hundred, at most 100.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Percent(pub u32);

/// When to ask another server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retries {
    /// Servers asked after the first one, at most.
    pub attempts: usize,
    /// Share of the requests that may be asked of another server.
    pub budget: Percent,
}

/// How servers are asked whether they are well.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Health {
    /// What is asked for by GET.
    pub path: PathAndQuery,
    /// From one probe of a server to the next.
    pub interval: Duration,
    /// For one probe.
    pub timeout: Duration,
    /// Good probes in a row after which a server is up again, at least 1.
    pub rise: u32,
    /// Bad probes in a row after which a server is down, at least 1.
    pub fall: u32,
}

/// When a server that fails is left out for a while.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Eject {
    /// Failures in a row, at least 1.
    pub failures: u32,
    /// For how long.
    pub duration: Duration,
    /// Share of the servers that may be out at a time.
    pub most: Percent,
}
