//! Connections to a server: each thread keeps its own, the one used last on top.
//!
//! A connection is lent for one exchange at a time as a [`Lease`], and comes back when the answer's
//! body has ended. At the upstream's bound a thread takes what another one has idle. Those that idle longer than the upstream's idle timeout are closed.

use std::{
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
use parking_lot::Mutex;
use thread_local::ThreadLocal;
use tokio::{
    net::TcpStream,
    time::{Instant, timeout},
};

use crate::config::ServerUrl;

use super::{Failure, body::Body};

/// Fields that an answer may have.
const RESPONSE_FIELDS_MOST: usize = 256;

/// How many connections the servers of an upstream have, and may have, over all threads.
#[derive(Debug, Default)]
pub struct Connections {
    open: AtomicUsize,
    most: AtomicUsize,
}

impl Connections {
    /// Sets how many there may be. More than that are closed as they come free.
    pub fn allow(&self, most: usize) {
        self.most.store(most, Relaxed);
    }

    fn open(self: &Arc<Self>) -> Result<OpenConnection, Failure> {
        let most = self.most.load(Relaxed);
        let within = |open| (open < most).then_some(open + 1);
        self.open.fetch_update(Relaxed, Relaxed, within).map_err(|_| Failure::Busy)?;
        Ok(OpenConnection(self.clone()))
    }
}

/// One connection, counted.
struct OpenConnection(Arc<Connections>);

impl Drop for OpenConnection {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Relaxed);
    }
}

/// A server of an upstream. It outlives reloads that leave it in its upstream.
pub struct Server {
    url: ServerUrl,
    host: HeaderValue,
    connections: Arc<Connections>,
    in_flight: AtomicUsize,
    /// Locked to push or to pop, never across an await, and by other threads at the bound only.
    idle: ThreadLocal<Mutex<Vec<Idle>>>,
}

struct Idle {
    sender: SendRequest<Body>,
    since: Instant,
}

impl Server {
    /// A server without connections yet, which counts towards `connections`.
    pub fn new(url: ServerUrl, connections: Arc<Connections>) -> Self {
        let host = HeaderValue::from_str(&url.authority()).expect("a url's authority is visible ASCII");
        Self { url, host, connections, in_flight: AtomicUsize::new(0), idle: ThreadLocal::new() }
    }

    /// The server's own name, for a request that names no host.
    pub fn host(&self) -> &HeaderValue {
        &self.host
    }

    /// Where it is.
    pub fn url(&self) -> &ServerUrl {
        &self.url
    }

    /// The count that its connections are part of.
    pub fn connections(&self) -> &Arc<Connections> {
        &self.connections
    }

    /// Requests that it hasn't answered completely.
    pub fn in_flight(&self) -> usize {
        self.in_flight.load(Relaxed)
    }

    /// Counts a request until its answer has ended.
    pub fn begin(self: &Arc<Self>) -> InFlight {
        self.in_flight.fetch_add(1, Relaxed);
        InFlight(self.clone())
    }

    /// The connection of this thread that was used last, if one is fit for use.
    pub fn reuse(&self, idle_timeout: Duration) -> Option<SendRequest<Body>> {
        take_fit(self.idle.get_or_default(), idle_timeout)
    }

    /// A connection that any thread has idle, if one is fit for use.
    pub fn reuse_of_any_thread(&self, idle_timeout: Duration) -> Option<SendRequest<Body>> {
        self.idle.iter().find_map(|idle| take_fit(idle, idle_timeout))
    }

    /// Makes a connection.
    ///
    /// # Errors
    /// The server can't be reached, or not in time, or there are enough connections.
    pub async fn connect(&self, connect_timeout: Duration) -> Result<SendRequest<Body>, Failure> {
        let counted = self.connections.open()?;
        let connecting = TcpStream::connect((self.url.host.as_str(), self.url.port));
        let stream = match timeout(connect_timeout, connecting).await {
            Ok(stream) => stream.map_err(Failure::Unreachable)?,
            Err(_) => return Err(Failure::ConnectTimeout),
        };
        stream.set_nodelay(true).map_err(Failure::Unreachable)?;
        let mut builder = http1::Builder::new();
        builder.max_headers(RESPONSE_FIELDS_MOST);
        let (sender, connection) = builder.handshake(TokioIo::new(stream)).await.map_err(Failure::Broken)?;
        tokio::spawn(async move {
            // How it ends is for the exchange on it to report.
            let _ = connection.await;
            drop(counted);
        });
        Ok(sender)
    }

    /// Closes this thread's connections that have idled too long or that the server has closed.
    pub fn close_idle(&self, idle_timeout: Duration) {
        let mut idle = self.idle.get_or_default().lock();
        idle.retain(|kept| kept.sender.is_ready() && kept.since.elapsed() < idle_timeout);
    }

    fn keep(&self, sender: SendRequest<Body>) {
        if self.connections.open.load(Relaxed) <= self.connections.most.load(Relaxed) {
            self.idle.get_or_default().lock().push(Idle { sender, since: Instant::now() });
        }
    }
}

fn take_fit(idle: &Mutex<Vec<Idle>>, idle_timeout: Duration) -> Option<SendRequest<Body>> {
    let mut idle = idle.lock();
    while let Some(kept) = idle.pop() {
        if kept.sender.is_ready() && kept.since.elapsed() < idle_timeout {
            return Some(kept.sender);
        }
    }
    None
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server")
            .field("url", &self.url)
            .field("in_flight", &self.in_flight())
            .finish_non_exhaustive()
    }
}

/// A request that is being answered by a server.
#[derive(Debug)]
pub struct InFlight(Arc<Server>);

impl Drop for InFlight {
    fn drop(&mut self) {
        self.0.in_flight.fetch_sub(1, Relaxed);
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
            in_flight.0.keep(sender);
        } else if !sender.is_closed() {
            // The request's body may still be on its way.
            tokio::spawn(async move {
                if sender.ready().await.is_ok() {
                    in_flight.0.keep(sender);
                }
            });
        }
    }
}
