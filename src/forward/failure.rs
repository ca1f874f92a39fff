//! Failures of requests to upstreams.

use std::{error::Error, fmt, io, time::Duration};

use super::body::{BoxError, Fault};

/// The cause of a request without a response.
#[derive(Debug)]
pub enum Failure {
    /// The upstream already has the most requests in flight or, with HTTP/2, no connection to the server has room for another one.
    Busy,
    /// No server answers its probes.
    NoneHealthy {
        /// The interval of the probes.
        interval: Duration,
    },
    /// Connecting to the server failed.
    Unreachable(io::Error),
    /// The server's name has no address.
    Unresolved,
    /// The TLS handshake failed, for example because of an untrusted certificate.
    Tls(io::Error),
    /// Connecting timed out.
    ConnectTimeout,
    /// The connection broke before the response, or the response isn't HTTP.
    Broken(BoxError),
    /// The connection broke after a second or more, while the rest of the request was awaited: servers close connections of clients that
    /// are too slow for them.
    Unfinished(BoxError),
    /// The response switches protocols although the request didn't ask for it.
    Switched,
    /// The client's request body failed; the server isn't at fault.
    Request(Fault),
    /// The response didn't start in time.
    ResponseTimeout,
    /// The route's timeout ended before the response started, while the server was waited for.
    ExchangeTimeout,
}

impl Failure {
    /// The names in metrics of the causes that concern a single server.
    pub const KINDS: [&str; 13] = [
        "busy",
        "unreachable",
        "unresolved",
        "tls",
        "connect_timeout",
        "broken",
        "request_unfinished",
        "switched",
        "request_timeout",
        "request_too_large",
        "request_broken",
        "response_timeout",
        "exchange_timeout",
    ];

    /// Returns the failure of a connection that broke with this error.
    pub(super) fn broken(cause: impl Into<BoxError>) -> Self {
        Self::Broken(cause.into())
    }

    /// Returns the cause's name in metrics and logs.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Busy => "busy",
            Self::NoneHealthy { .. } => "unhealthy",
            Self::Unreachable(_) => "unreachable",
            Self::Unresolved => "unresolved",
            Self::Tls(_) => "tls",
            Self::ConnectTimeout => "connect_timeout",
            Self::Broken(_) => "broken",
            Self::Unfinished(_) => "request_unfinished",
            Self::Switched => "switched",
            Self::Request(Fault::TooSlow) => "request_timeout",
            Self::Request(Fault::TooLarge) => "request_too_large",
            Self::Request(Fault::Broken) => "request_broken",
            Self::ResponseTimeout => "response_timeout",
            Self::ExchangeTimeout => "exchange_timeout",
        }
    }

    /// Returns the underlying error, for operators.
    pub fn cause(&self) -> String {
        self.source().map_or_else(|| self.to_string(), |cause| format!("{self}: {cause}"))
    }

    /// Returns true if the client caused the failure, or may have.
    pub fn is_of_client(&self) -> bool {
        matches!(self, Self::Request(_) | Self::Unfinished(_))
    }

    /// Returns true if the failure says something of the server: not if the client may have caused it, nor if no server was asked.
    pub(super) fn is_of_server(&self) -> bool {
        let was_asked = !matches!(self, Self::Busy | Self::NoneHealthy { .. });
        was_asked && !self.is_of_client() && !self.is_of_request_alone()
    }

    /// Returns true if an HTTP/2 server has reset only this request. It is alive, and the cause may lie in the request: PROTOCOL_ERROR if it
    /// is malformed (RFC 9113, section 8.1.1), ENHANCE_YOUR_CALM for a head that is too large (Tomcat), CANCEL when the time in
    /// `grpc-timeout` is over, INTERNAL_ERROR for a call without `te: trailers` (gRPC).
    fn is_of_request_alone(&self) -> bool {
        let Self::Broken(cause) = self else { return false };
        cause.downcast_ref::<h2::Error>().is_some_and(|error| error.is_reset() && error.is_remote())
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
            Self::Tls(_) => "the TLS handshake with the upstream failed",
            Self::ConnectTimeout => "connecting to the upstream took too long",
            Self::Broken(_) => "no valid response from the upstream",
            Self::Unfinished(_) => {
                "no valid response from the upstream, which did not have the whole request yet"
            }
            Self::Switched => "the upstream switched protocols without being asked",
            Self::ResponseTimeout => "the upstream took too long to answer",
            Self::ExchangeTimeout => "the request took longer than its route allows",
        })
    }
}

impl Error for Failure {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Unreachable(cause) | Self::Tls(cause) => Some(cause),
            Self::Broken(cause) | Self::Unfinished(cause) => Some(&**cause),
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
