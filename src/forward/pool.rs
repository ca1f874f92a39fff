//! Connections to a server: each thread keeps its own, the one used last on top.
//!
//! A connection is lent for one exchange at a time as a [`Lease`], and comes back when the answer's
//! body has ended. Those that idle longer than the upstream's idle timeout are closed.

use std::{
    cell::RefCell,
    fmt,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use hyper::{
    client::conn::http1::{self, SendRequest},
    header::HeaderValue,
};
use hyper_util::rt::TokioIo;
use thread_local::ThreadLocal;
use tokio::{
    net::TcpStream,
    time::{Instant, timeout},
};

use crate::{
    config::ServerUrl,
    metrics::{CountsByWord, Histogram},
};

use super::{Failure, body::Body};

/// Fields that an answer may have.
const RESPONSE_FIELDS_MOST: usize = 256;
/// Bytes that are read ahead of an answer, which its head must fit into.
const RESPONSE_BUFFER: usize = 128 << 10;
/// How long a connection may take to be ready again once the answer has ended, before it is closed: a client
/// may never end a request that is answered already.
const READY_WITHIN: Duration = Duration::from_secs(5);

/// A server of an upstream. It outlives reloads that leave it in its upstream.
pub struct Server {
    url: ServerUrl,
    host: HeaderValue,
    in_flight: AtomicUsize,
    /// How long it took to answer, and why it didn't.
    pub(super) answers: Histogram,
    pub(super) failures: CountsByWord,
    idle: ThreadLocal<RefCell<Vec<Idle>>>,
}

struct Idle {
    sender: SendRequest<Body>,
    since: Instant,
}

impl Server {
    /// A server without connections yet.
    pub fn new(url: ServerUrl) -> Self {
        let host = HeaderValue::from_str(&url.authority()).expect("a url's authority is visible ASCII");
        let (answers, failures) = (Histogram::of_times(), CountsByWord::of(&Failure::KINDS));
        Self { url, host, in_flight: AtomicUsize::new(0), answers, failures, idle: ThreadLocal::new() }
    }

    /// The server's own name, for a request that names no host.
    pub fn host(&self) -> &HeaderValue {
        &self.host
    }

    /// Where it is.
    pub fn url(&self) -> &ServerUrl {
        &self.url
    }

    /// Requests that it hasn't answered completely.
    pub fn in_flight(&self) -> usize {
        self.in_flight.load(Relaxed)
    }

    /// The connection of this thread that was used last, if one is fit for use.
    pub fn reuse(&self, idle_timeout: Duration) -> Option<SendRequest<Body>> {
        let mut idle = self.idle.get_or_default().borrow_mut();
        while let Some(kept) = idle.pop() {
            if kept.sender.is_ready() && kept.since.elapsed() < idle_timeout {
                return Some(kept.sender);
            }
        }
        None
    }

    /// Makes a connection.
    ///
    /// # Errors
    /// The server can't be reached, or not in time.
    pub async fn connect(&self, connect_timeout: Duration) -> Result<SendRequest<Body>, Failure> {
        let connecting = TcpStream::connect((self.url.host.as_str(), self.url.port));
        let stream = match timeout(connect_timeout, connecting).await {
            Ok(stream) => stream.map_err(Failure::Unreachable)?,
            Err(_) => return Err(Failure::ConnectTimeout),
        };
        stream.set_nodelay(true).map_err(Failure::Unreachable)?;
        let mut builder = http1::Builder::new();
        builder.max_headers(RESPONSE_FIELDS_MOST).max_buf_size(RESPONSE_BUFFER);
        let (sender, connection) = builder.handshake(TokioIo::new(stream)).await.map_err(Failure::Broken)?;
        // How it ends is for the exchange on it to report.
        tokio::spawn(async { drop(connection.await) });
        Ok(sender)
    }

    /// Closes this thread's connections that have idled too long or that the server has closed.
    pub fn close_idle(&self, idle_timeout: Duration) {
        let mut idle = self.idle.get_or_default().borrow_mut();
        idle.retain(|kept| kept.sender.is_ready() && kept.since.elapsed() < idle_timeout);
    }

    fn keep(&self, sender: SendRequest<Body>) {
        self.idle.get_or_default().borrow_mut().push(Idle { sender, since: Instant::now() });
    }
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server")
            .field("url", &self.url)
            .field("in_flight", &self.in_flight())
            .finish_non_exhaustive()
    }
}

/// A request that is being answered by a server, counted there and among those of the upstream.
#[derive(Debug)]
pub struct InFlight {
    server: Arc<Server>,
    upstream: Arc<AtomicUsize>,
}

impl InFlight {
    /// Counts a request until its answer has ended.
    ///
    /// # Errors
    /// The upstream has `most` requests in flight already.
    pub fn begin(server: &Arc<Server>, upstream: &Arc<AtomicUsize>, most: usize) -> Result<Self, Failure> {
        let within = |in_flight| (in_flight < most).then_some(in_flight + 1);
        upstream.fetch_update(Relaxed, Relaxed, within).map_err(|_| Failure::Busy)?;
        server.in_flight.fetch_add(1, Relaxed);
        Ok(Self { server: server.clone(), upstream: upstream.clone() })
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.server.in_flight.fetch_sub(1, Relaxed);
        self.upstream.fetch_sub(1, Relaxed);
    }
}

/// A connection lent for one exchange. Dropped before its end, it closes the connection.
#[derive(Debug)]
pub struct Lease {
    sender: SendRequest<Body>,
    in_flight: InFlight,
}

impl Lease {
    /// Lends a connection until [`Self::release`].
    pub fn new(sender: SendRequest<Body>, in_flight: InFlight) -> Self {
        Self { sender, in_flight }
    }

    /// Gives the connection back, the answer having ended.
    pub fn release(self) {
        let Self { mut sender, in_flight } = self;
        if sender.is_ready() {
            in_flight.server.keep(sender);
        } else if !sender.is_closed() {
            // The request's body may still be on its way.
            tokio::spawn(async move {
                if let Ok(Ok(())) = timeout(READY_WITHIN, sender.ready()).await {
                    in_flight.server.keep(sender);
                }
            });
        }
    }
}
