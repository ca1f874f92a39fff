//! The error of a server that can't start.

use std::{fmt, io};

use crate::config::ListenAddress;

/// The error of a server that can't start, or can't apply another configuration.
#[derive(Debug)]
pub enum StartError {
    /// Listening on an address failed.
    Listen(ListenAddress, io::Error),
    /// A socket from the supervisor can't be used.
    Inherited(io::Error),
    /// The supervisor passed a socket whose address the configuration doesn't contain.
    Unnamed(ListenAddress),
    /// The TLS settings can't be used.
    Tls(rustls::Error),
    /// The server is shutting down.
    Draining,
    /// The system provides no more threads or signal handlers.
    System(io::Error),
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Listen(address, cause) => write!(
                f,
                "can't listen on `{address}`: {cause}\nstop what listens there, or name another address; \
                 a reload can change to an address that overlaps the old one only by way of a third"
            ),
            Self::Inherited(cause) => write!(
                f,
                "can't use a socket passed in LISTEN_FDS: {cause}\npass listening TCP or unix sockets"
            ),
            Self::Unnamed(address) => write!(
                f,
                "LISTEN_FDS has a socket that the configuration doesn't use: `{address}`\n\
                 add listen = \"{address}\" in [server] or [admin]"
            ),
            Self::Tls(cause) => {
                write!(f, "can't use TLS: {cause}\ncorrect the certificates in server.tls")
            }
            Self::Draining => f.write_str("the gateway is shutting down, so it can't reload"),
            Self::System(cause) => write!(f, "can't start: {cause}"),
        }
    }
}

impl std::error::Error for StartError {}

impl From<io::Error> for StartError {
    fn from(cause: io::Error) -> Self {
        Self::System(cause)
    }
}
