//! The settings of the main listener and the admin port.

use std::{fmt, net::SocketAddr, path::PathBuf, sync::Arc, time::Duration};

use hyper::http::uri::PathAndQuery;
use ipnet::IpNet;
use tollgate_limiter::RatelimitHeaders;

use super::ServerTls;

/// The settings of the main listener.
#[derive(Debug, PartialEq)]
pub struct ServerSettings {
    /// The addresses to listen on, at least one.
    pub listen: Vec<ListenAddress>,
    /// The number of threads that serve requests; 0 means one per CPU.
    pub workers: usize,
    /// The networks from which `X-Forwarded-For` is trusted.
    pub trusted_proxies: Vec<IpNet>,
    /// True if connections from `trusted_proxies` begin with a PROXY protocol header.
    pub proxy_protocol: bool,
    /// True if clients may use HTTP/2.
    pub http2: bool,
    /// The TLS settings for TCP addresses. `None` if TLS is off.
    pub tls: Option<Arc<ServerTls>>,
    /// The rate limit header fields of responses.
    pub ratelimit_headers: RatelimitHeaders,
    /// The largest request head in bytes, at least 8192.
    pub max_header_bytes: usize,
    /// The largest request body in bytes. `None` if it is unlimited.
    pub max_body: Option<u64>,
    /// The most client connections at a time, at least 1.
    pub max_connections: usize,
    /// The treatment of `%2F` and `%5C` in paths.
    pub escaped_slashes: EscapedSlashes,
    /// True if responses have an X-Request-Id.
    pub request_id: bool,
    /// True if other processes may listen on the same TCP addresses.
    pub reuse_port: bool,
    /// The path at which the main listener answers health checks. `None` if it doesn't.
    pub health: Option<PathAndQuery>,
    /// The timeout for receiving a request head.
    pub header_timeout: Duration,
    /// The timeout for an idle client.
    pub idle_timeout: Duration,
    /// The time that requests in flight have to finish at shutdown.
    pub drain_timeout: Duration,
}

/// An address to listen on. Displays as it is written in the file: `127.0.0.1:8080`,
/// `unix:/run/tollgate.sock`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ListenAddress {
    /// An IP address and a port. With port 0 the system chooses one.
    Tcp(SocketAddr),
    /// The absolute path of a unix socket.
    Unix(PathBuf),
}

impl fmt::Display for ListenAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => address.fmt(f),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

/// The treatment of `%2F` and `%5C` in paths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EscapedSlashes {
    /// Keep them as ordinary characters of a segment.
    Keep,
    /// Reject the request with 400.
    Reject,
}

/// The settings of the admin port.
#[derive(Debug, PartialEq)]
pub struct AdminSettings {
    /// The address to listen on.
    pub listen: SocketAddr,
    /// A further address, where anyone can read the metrics. `None` if there is none.
    pub metrics_listen: Option<SocketAddr>,
    /// The tokens that requests must carry.
    pub tokens: AdminTokens,
}

/// The tokens of the admin port.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct AdminTokens {
    /// The token for everything. Always present if the address isn't loopback.
    pub admin: Option<AdminToken>,
    /// A token that is accepted for `/metrics` only.
    pub metrics: Option<AdminToken>,
}

/// A token of the admin port. Its `Debug` output hides it.
#[derive(Clone, PartialEq)]
pub struct AdminToken(pub String);

impl AdminToken {
    /// Returns the token itself. It must not be printed.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for AdminToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("******")
    }
}
