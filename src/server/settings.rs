//! The settings for client connections. A reload replaces them: new connections use the new settings, and
//! open ones the new timeouts.

use std::{sync::Arc, time::Duration};

use tokio_rustls::TlsAcceptor;

use crate::{
    config::{self, Config, ServerTls},
    gateway::Gateway,
};

use super::{client::ClientTimeouts, files, http2::STREAMS_MOST, listener::Door};

/// The protocol names for TLS (RFC 7301).
pub(super) const H2: &[u8] = b"h2";
const HTTP_1_1: &[u8] = b"http/1.1";

/// The settings for client connections.
#[derive(Debug)]
pub(super) struct ConnectionSettings {
    pub(super) max_header_bytes: usize,
    pub(super) timeouts: ClientTimeouts,
    pub(super) drain_timeout: Duration,
    pub(super) http2: bool,
    pub(super) tls: TlsOfDoors,
    /// The most connections of clients, and of callers.
    pub(super) clients_most: usize,
    /// The most HTTP/2 requests in flight of a worker's clients.
    pub(super) streams_most: usize,
}

/// The TLS settings with the acceptor built from them.
pub(super) struct Tls {
    config: Arc<ServerTls>,
    http2: bool,
    pub(super) acceptor: TlsAcceptor,
}

impl ConnectionSettings {
    /// Creates the settings of a configuration. The limit of open files may reduce the number of connections.
    pub(super) fn new(
        server: &config::ServerSettings,
        tls: TlsOfDoors,
        gateway: &Gateway,
        workers: usize,
    ) -> Self {
        let clients_most =
            files::clients_most(server.max_connections, gateway.upstream_connections_most(workers));
        Self {
            max_header_bytes: server.max_header_bytes,
            timeouts: ClientTimeouts { header: server.header_timeout, idle: server.idle_timeout },
            drain_timeout: server.drain_timeout,
            http2: server.http2,
            tls,
            clients_most,
            streams_most: clients_most.div_ceil(workers).max(STREAMS_MOST as usize),
        }
    }
}

/// The TLS settings of each door. `None` without TLS.
#[derive(Debug, Default)]
pub(super) struct TlsOfDoors {
    requests: Option<Tls>,
    decisions: Option<Tls>,
}

impl TlsOfDoors {
    /// Creates the acceptors of a configuration, or keeps the current ones if nothing has changed.
    ///
    /// # Errors
    /// The TLS settings can't be used.
    pub(super) fn new(config: &Config, before: Option<&Self>) -> Result<Self, rustls::Error> {
        let server = &config.server;
        let decisions = config.decisions.as_ref().and_then(|decisions| decisions.tls.as_ref());
        let before_at = |door| before.and_then(|before| before.at(door));
        Ok(Self {
            requests: Tls::of(server.tls.as_ref(), server.http2, before_at(Door::Requests))?,
            decisions: Tls::of(decisions, true, before_at(Door::Decisions))?,
        })
    }

    /// Returns the TLS settings of a door.
    pub(super) fn at(&self, door: Door) -> Option<&Tls> {
        match door {
            Door::Requests => self.requests.as_ref(),
            Door::Decisions => self.decisions.as_ref(),
            Door::PlainDecisions => None,
        }
    }
}

impl Tls {
    /// Creates the acceptor of a configuration, or keeps the current one if nothing has changed, so that
    /// sessions can be resumed.
    ///
    /// # Errors
    /// The TLS settings can't be used.
    fn of(
        config: Option<&Arc<ServerTls>>,
        http2: bool,
        before: Option<&Self>,
    ) -> Result<Option<Self>, rustls::Error> {
        let Some(config) = config else { return Ok(None) };
        let alike = before.filter(|before| before.config == *config && before.http2 == http2);
        let acceptor = match alike {
            Some(before) => before.acceptor.clone(),
            None => {
                let mut tls = config.server()?;
                let protocols: &[&[u8]] = if http2 { &[H2, HTTP_1_1] } else { &[HTTP_1_1] };
                tls.alpn_protocols = protocols.iter().map(|protocol| protocol.to_vec()).collect();
                TlsAcceptor::from(Arc::new(tls))
            }
        };
        Ok(Some(Self { config: config.clone(), http2, acceptor }))
    }
}

impl std::fmt::Debug for Tls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tls").field("http2", &self.http2).finish_non_exhaustive()
    }
}
