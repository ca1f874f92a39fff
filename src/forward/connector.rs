//! Opening connections to the servers of an upstream, and their number.

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use parking_lot::Mutex;
use rustls::pki_types::ServerName;
use tokio::{
    net::UnixStream,
    time::{Instant, timeout_at},
};
use tokio_rustls::TlsConnector;
use tollgate_limiter::ClientTls;

use crate::{
    config::{self, ServerUrl},
    keepalive,
};

use super::{Failure, address::ServerAddress, connection::UpstreamConnection};

const H2: &[u8] = b"h2";
const HTTP_1_1: &[u8] = b"http/1.1";

/// The number of connections of an upstream that may be given up early at once for a cause. Each has other requests wait for a new one, and
/// nginx ends one with trailers, which `eject` counts: by default it acts after five failures.
const EARLY_ENDS_AT_ONCE: u32 = 4;
/// The time after which one more may be.
const EARLY_END_EVERY: Duration = Duration::from_secs(1);

/// The protocol of an upstream's servers, and the number of connections to them.
pub struct Connector {
    terms: Option<Arc<ClientTls>>,
    http2: bool,
    /// The TLS configuration, which also holds sessions for resumption, or the error that prevents TLS.
    tls: Option<Result<TlsConnector, rustls::Error>>,
    connections: AtomicUsize,
    connections_most: AtomicUsize,
    /// Connections that are given up for trailers.
    pub(super) for_trailers: EarlyEnds,
    /// Connections that are given up because the server wants calm.
    pub(super) for_calm: EarlyEnds,
}

/// A bound on the connections of an upstream that are given up early. Holds the time at which [`EARLY_ENDS_AT_ONCE`] may be again.
#[derive(Debug, Default)]
pub(super) struct EarlyEnds(Mutex<Option<Instant>>);

impl EarlyEnds {
    /// Takes one of the connections that may be given up. Returns false if there is none.
    fn take(&self) -> bool {
        let (mut at, now) = (self.0.lock(), Instant::now());
        let next = at.map_or(now, |at| at.max(now)) + EARLY_END_EVERY;
        let is_allowed = next <= now + EARLY_END_EVERY * EARLY_ENDS_AT_ONCE;
        if is_allowed {
            *at = Some(next);
        }
        is_allowed
    }
}

impl Connector {
    /// Returns the connector of a configuration. If `before` has the same settings, it is kept with its connections.
    pub fn new(config: &config::UpstreamSettings, before: Option<&Arc<Self>>) -> Arc<Self> {
        let alike = before.filter(|before| before.terms == config.tls && before.http2 == config.http2);
        let connector =
            alike.cloned().unwrap_or_else(|| Arc::new(Self::of(config.tls.clone(), config.http2)));
        connector.connections_most.store(config.max_connections, Relaxed);
        connector
    }

    /// Builds a connector that uses TLS where a URL asks for it, and HTTP/2 if configured.
    pub(crate) fn of(terms: Option<Arc<ClientTls>>, http2: bool) -> Self {
        let tls = terms.as_ref().map(|terms| {
            let mut client = terms.client()?;
            client.alpn_protocols = match http2 {
                true => vec![H2.to_vec(), HTTP_1_1.to_vec()],
                false => vec![HTTP_1_1.to_vec()],
            };
            Ok(TlsConnector::from(Arc::new(client)))
        });
        Self {
            terms,
            http2,
            tls,
            connections: AtomicUsize::new(0),
            connections_most: AtomicUsize::new(usize::MAX),
            for_trailers: EarlyEnds::default(),
            for_calm: EarlyEnds::default(),
        }
    }

    /// Returns true if HTTP/2 is used with servers that support it.
    pub fn prefers_http2(&self) -> bool {
        self.http2
    }

    /// Returns true if there are more connections than allowed. Requests in flight can't cause that alone, but together with idle
    /// connections they can.
    pub fn has_too_many(&self) -> bool {
        self.connections.load(Relaxed) > self.connections_most.load(Relaxed)
    }

    /// Opens a connection to a server.
    ///
    /// # Errors
    /// The server can't be reached in time.
    pub(super) async fn connect(
        &self,
        url: &ServerUrl,
        location: &ServerAddress,
        counted: CountedConnection,
        deadline: Instant,
    ) -> Result<UpstreamConnection, Failure> {
        match location {
            ServerAddress::Unix(path) => {
                let connecting = timeout_at(deadline, UnixStream::connect(path)).await;
                let stream =
                    connecting.map_err(|_| Failure::ConnectTimeout)?.map_err(Failure::Unreachable)?;
                UpstreamConnection::begin(stream, self.http2, None, counted, deadline).await
            }
            ServerAddress::Tcp(addresses) => {
                let (stream, address) = addresses.connect(deadline).await?;
                stream.set_nodelay(true).map_err(Failure::Unreachable)?;
                keepalive::enable(&stream).map_err(Failure::Unreachable)?;
                let Some((name, tls)) = self.tls_to(url)? else {
                    return UpstreamConnection::begin(stream, self.http2, Some(address), counted, deadline)
                        .await;
                };
                // Boxed, so that connections without TLS don't reserve its memory.
                Box::pin(async move {
                    let shaking = timeout_at(deadline, tls.connect(name, stream)).await;
                    let stream = shaking.map_err(|_| Failure::ConnectTimeout)?.map_err(Failure::Tls)?;
                    let speaks_http2 = stream.get_ref().1.alpn_protocol() == Some(H2);
                    UpstreamConnection::begin(stream, speaks_http2, Some(address), counted, deadline).await
                })
                .await
            }
        }
    }

    /// Returns the TLS configuration and the server's name for its certificate, if the URL asks for TLS.
    fn tls_to(&self, url: &ServerUrl) -> Result<Option<(ServerName<'static>, &TlsConnector)>, Failure> {
        let (ServerUrl::Tcp { tls: true, host, .. }, Some(tls)) = (url, &self.tls) else { return Ok(None) };
        let failed = |error: rustls::Error| Failure::Tls(io::Error::other(error));
        let tls = tls.as_ref().map_err(|error| failed(error.clone()))?;
        let named = self.terms.as_ref().and_then(|terms| terms.server_name.clone());
        let name = named.map_or_else(|| ServerName::try_from(host.clone()), Ok);
        let name = name.map_err(|error| Failure::Tls(io::Error::other(error)))?;
        Ok(Some((name, tls)))
    }
}

impl std::fmt::Debug for Connector {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Connector").field("http2", &self.http2).finish_non_exhaustive()
    }
}

/// A connection of an upstream, counted until it is dropped. The default isn't counted.
#[derive(Debug, Default)]
pub(crate) struct CountedConnection(Option<(Arc<Connector>, Arc<AtomicUsize>)>);

impl CountedConnection {
    /// Counts a connection for the upstream, and for a worker that has `of_worker` to the same server.
    ///
    /// # Errors
    /// The upstream has the most connections for HTTP/2 already, and this isn't the worker's only one to the server: a worker can't
    /// use those of others. (Connections for HTTP/1.1 are bounded by the requests in flight.)
    pub(super) fn begin(
        connector: &Arc<Connector>,
        of_worker: &Arc<AtomicUsize>,
        is_for_http2: bool,
    ) -> Result<Self, Failure> {
        let is_bounded = is_for_http2 && of_worker.load(Relaxed) > 0;
        let most = if is_bounded { connector.connections_most.load(Relaxed) } else { usize::MAX };
        let within = |connections| (connections < most).then_some(connections + 1);
        connector.connections.fetch_update(Relaxed, Relaxed, within).map_err(|_| Failure::Busy)?;
        of_worker.fetch_add(1, Relaxed);
        Ok(Self(Some((connector.clone(), of_worker.clone()))))
    }

    /// Takes one of the connections that may be given up for a cause. Returns false if there is none. One that isn't counted gets no more
    /// requests anyway.
    pub(super) fn take_early_end(&self, of: impl Fn(&Connector) -> &EarlyEnds) -> bool {
        self.0.as_ref().is_none_or(|(connector, _)| of(connector).take())
    }
}

impl Drop for CountedConnection {
    fn drop(&mut self) {
        if let Some((connector, of_worker)) = &self.0 {
            connector.connections.fetch_sub(1, Relaxed);
            of_worker.fetch_sub(1, Relaxed);
        }
    }
}
