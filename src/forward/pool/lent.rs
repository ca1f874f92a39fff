//! A connection that is lent for one exchange, and the counts that it keeps meanwhile.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering::Relaxed},
};

use tollgate_http1::{Ahead, Stream};

use super::{READY_WITHIN, UpstreamServer};
use crate::forward::{
    Failure,
    connection::{Http1, UpstreamConnection},
    connector::CountedConnection,
};

/// A request in flight, counted for its server and its upstream.
#[derive(Debug)]
pub struct RequestInFlight {
    server: Arc<UpstreamServer>,
    upstream: Arc<AtomicUsize>,
}

impl RequestInFlight {
    /// Counts a request until the value is dropped.
    ///
    /// # Errors
    /// The upstream already has `most` requests in flight.
    pub fn begin(
        server: &Arc<UpstreamServer>,
        upstream: &Arc<AtomicUsize>,
        most: usize,
    ) -> Result<Self, Failure> {
        let within = |in_flight| (in_flight < most).then_some(in_flight + 1);
        upstream.fetch_update(Relaxed, Relaxed, within).map_err(|_| Failure::Busy)?;
        server.in_flight.fetch_add(1, Relaxed);
        Ok(Self { server: server.clone(), upstream: upstream.clone() })
    }
}

impl Drop for RequestInFlight {
    fn drop(&mut self) {
        self.server.in_flight.fetch_sub(1, Relaxed);
        self.upstream.fetch_sub(1, Relaxed);
    }
}

/// A connection that is lent for one exchange. Dropping it before the end closes the connection.
#[derive(Debug)]
pub struct LentConnection {
    connection: UpstreamConnection,
    in_flight: RequestInFlight,
}

impl LentConnection {
    /// Lends a connection until [`Self::release`].
    pub fn new(connection: UpstreamConnection, in_flight: RequestInFlight) -> Self {
        Self { connection, in_flight }
    }

    /// Returns the HTTP/1.1 connection, if it is one.
    pub(in crate::forward) fn http1(&self) -> Option<&Http1> {
        self.connection.http1()
    }

    /// Returns the HTTP/1.1 connection for reading, if it is one.
    pub(in crate::forward) fn http1_mut(&mut self) -> Option<&mut Http1> {
        self.connection.http1_mut()
    }

    /// Returns the stream below the connection for another protocol, and the value that counts it.
    pub(in crate::forward) fn into_tunnel(self) -> Option<(Ahead<Box<dyn Stream>>, TunnelCounts)> {
        let (stream, counted) = self.connection.into_stream()?;
        Some((stream, TunnelCounts { _counted: counted, _in_flight: self.in_flight }))
    }

    /// Returns the connection to the pool after the response has ended.
    pub fn release(self) {
        let Self { mut connection, in_flight } = self;
        if connection.is_http2() {
            // An HTTP/2 connection stays in the pool.
            connection.end();
        } else if connection.is_ready() && connection.omits_body() {
            in_flight.server.keep_after_silence(connection);
        } else if connection.is_ready() {
            in_flight.server.keep(connection);
        } else if connection.http1().is_some_and(|http1| http1.is_closed() && http1.is_sent()) {
            connection.http1_mut().into_iter().for_each(Http1::discard_unread);
        } else {
            // The request body may still be in transit, also to a server that has said that it will close the connection.
            tokio::spawn(async move {
                let Some(http1) = connection.http1_mut() else { return };
                let is_sent = http1.ready(READY_WITHIN).await;
                if is_sent && connection.is_ready() {
                    in_flight.server.keep(connection);
                } else {
                    connection.http1_mut().into_iter().for_each(Http1::discard_unread);
                }
            });
        }
    }
}

/// The counts of a tunnel: as a connection, and as a request in flight.
#[derive(Debug)]
pub struct TunnelCounts {
    _counted: CountedConnection,
    _in_flight: RequestInFlight,
}
