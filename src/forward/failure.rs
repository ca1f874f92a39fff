//! Why an upstream gave no answer.

use std::{error::Error, fmt, io, time::Duration};

use super::body::{BoxError, Fault};

/// Why an upstream gave no answer.
#[derive(Debug)]
pub enum Failure {
    /// It has as many requests in flight as it may have connections.
    Busy,
    /// No server answers its probes. They are probed again in this time.
    NoneHealthy {
        /// From one probe to the next.
        interval: Duration,
    },
    /// No connection to the server could be made.
    Unreachable(io::Error),
    /// The server's name has no address.
    Unresolved,
    /// The server's certificate can't be trusted, or TLS be agreed on.
    Tls(io::Error),
    /// Connecting took too long.
    ConnectTimeout,
    /// The connection broke before the answer, or the answer isn't HTTP.
    Broken(BoxError),
    /// The answer switches protocols, which nobody asked for.
    Switched,
    /// The client's body couldn't be passed on: the server has nothing to do with it.
    Request(Fault),
    /// The answer took too long to begin.
    ResponseTimeout,
    /// The route's time for the whole exchange was over before the answer began.
    ExchangeTimeout,
}

impl Failure {
    /// What metrics call the causes that are about one server.
    pub const KINDS: [&str; 12] = [
        "busy",
        "unreachable",
        "unresolved",
        "tls",
        "connect_timeout",
        "broken",
        "switched",
        "request_timeout",
        "request_too_large",
        "request_broken",
        "response_timeout",
        "exchange_timeout",
    ];

    /// Of a connection that broke so.
    pub(super) fn broken(cause: impl Into<BoxError>) -> Self {
        Self::Broken(cause.into())
    }

    /// What metrics call its cause.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Busy => "busy",
            Self::NoneHealthy { .. } => "unhealthy",
            Self::Unreachable(_) => "unreachable",
            Self::Unresolved => "unresolved",
            Self::Tls(_) => "tls",
            Self::ConnectTimeout => "connect_timeout",
            Self::Broken(_) => "broken",
            Self::Switched => "switched",
            Self::Request(Fault::TooSlow) => "request_timeout",
            Self::Request(Fault::TooLarge) => "request_too_large",
            Self::Request(Fault::Broken) => "request_broken",
            Self::ResponseTimeout => "response_timeout",
            Self::ExchangeTimeout => "exchange_timeout",
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Request(fault) => return fault.fmt(f),
            Self::NoneHealthy { .. } => "no server of the upstream is healthy",
            Self::Busy => "all connections to the upstream are busy",
            Self::Unreachable(_) => "the upstream could not be reached",
            Self::Unresolved => "the upstream's name has no address",
            Self::Tls(cause) if is_about_certificate(cause) => "the upstream's certificate can't be trusted",
            Self::Tls(_) => "TLS could not be agreed on with the upstream",
            Self::ConnectTimeout => "connecting to the upstream took too long",
            Self::Broken(_) => "the upstream broke off before it answered",
            Self::Switched => "the upstream switched protocols without being asked",
            Self::ResponseTimeout => "the upstream took too long to answer",
            Self::ExchangeTimeout => "the request took longer than its route allows",
        })
    }
}

impl Failure {
    /// What is behind it, for those who know the servers.
    pub fn cause(&self) -> String {
        self.source().map_or_else(|| self.to_string(), |cause| format!("{self}: {cause}"))
    }
}

impl Error for Failure {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Unreachable(cause) | Self::Tls(cause) => Some(cause),
            Self::Broken(cause) => Some(&**cause),
            _ => None,
        }
    }
}

fn is_about_certificate(error: &io::Error) -> bool {
    let cause = error.get_ref().and_then(|cause| cause.downcast_ref::<rustls::Error>());
    matches!(cause, Some(rustls::Error::InvalidCertificate(_)))
}

impl From<Fault> for Failure {
    fn from(fault: Fault) -> Self {
        Self::Request(fault)
    }
}

impl Failure {
    /// Whether it is the client's doing, and says nothing about the upstream.
    pub fn is_of_client(&self) -> bool {
        matches!(self, Self::Request(_))
    }
}
