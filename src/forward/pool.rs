//! Connections to a server: each thread keeps its own, the one used last on top.
//!
//! A connection is lent for one exchange at a time as a [`Lease`], and comes back when the answer's
//! body has ended. One for HTTP/2 stays, and is lent to as many at a time as the server takes; beyond that there is
//! another one. Those that idle longer than the upstream's idle timeout are closed.

use std::{
    cell::RefCell,
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use hyper::{
    Method, Request, StatusCode, Version,
    header::{HOST, HeaderValue, USER_AGENT},
    http::uri::PathAndQuery,
};
use smallvec::SmallVec;
use thread_local::ThreadLocal;
use tokio::time::{Instant, timeout, timeout_at};

use crate::{
    config::ServerUrl,
    metrics::{CountsByWord, Distribution, Histogram},
};
use tollgate_http1::{Ahead, Stream};

use super::{
    Failure,
    address::Location,
    body::Body,
    connection::{Connection, Http1},
    connector::{Connector, Counted},
    health::Condition,
};

/// How long a connection may take to be ready again once the answer has ended, before it is closed: a client
/// may never end a request that is answered already.
const READY_WITHIN: Duration = Duration::from_secs(5);

/// A server of an upstream. It outlives reloads that leave it in its upstream.
pub struct Server {
    url: ServerUrl,
    host: HeaderValue,
    location: Location,
    connector: Arc<Connector>,
    /// Whether it has been offered HTTP/2, and took HTTP/1.1.
    declines_http2: AtomicBool,
    in_flight: AtomicUsize,
    pub(super) condition: Condition,
    /// How long it took to answer, and why it didn't.
    pub(super) answers: Histogram,
    pub(super) failures: CountsByWord,
    kept: ThreadLocal<Kept>,
}

/// What a thread keeps.
#[derive(Default)]
struct Kept {
    connections: RefCell<Vec<Idle>>,
    /// Held while one for HTTP/2 is made, so that all who want one share it.
    connecting: Arc<tokio::sync::Mutex<()>>,
}

struct Idle {
    connection: Connection,
    /// Since when it idles; if that isn't said, since the next look at it: mostly it is in use again by then, and nobody had to
    /// look at the clock for it.
    since: Option<Instant>,
}

impl Server {
    /// A server without connections yet.
    pub fn new(url: ServerUrl, connector: Arc<Connector>) -> Self {
        let host = HeaderValue::from_str(&url.host()).expect("a url's authority is visible ASCII");
        Self {
            location: Location::of(&url),
            url,
            host,
            connector,
            declines_http2: AtomicBool::new(false),
            in_flight: AtomicUsize::new(0),
            condition: Condition::default(),
            answers: Histogram::of_times(),
            failures: CountsByWord::of(&Failure::KINDS),
            kept: ThreadLocal::new(),
        }
    }

    #[cfg(test)]
    pub(super) fn test(port: u16) -> Self {
        let url = ServerUrl::Tcp { tls: false, host: "127.0.0.1".to_owned(), port };
        Self::new(url, Arc::new(Connector::of(None, false)))
    }

    /// The server's own name, for a request that names no host.
    pub fn host(&self) -> &HeaderValue {
        &self.host
    }

    /// Where it is.
    pub fn url(&self) -> &ServerUrl {
        &self.url
    }

    /// Its addresses.
    pub fn location(&self) -> &Location {
        &self.location
    }

    /// Requests that it hasn't answered completely.
    pub fn in_flight(&self) -> usize {
        self.in_flight.load(Relaxed)
    }

    /// How long it took to answer, whenever it did.
    pub fn answers(&self) -> Distribution {
        self.answers.read()
    }

    /// How often it gave no answer.
    pub fn failures(&self) -> u64 {
        self.failures.iter().map(|(_, count)| count).sum()
    }

    /// The connection of this thread that was used last, if one is fit for use.
    pub fn reuse(&self, idle_timeout: Duration) -> Option<Connection> {
        let mut kept = self.kept.get_or_default().connections.borrow_mut();
        let mut shared = SmallVec::<[Idle; 2]>::new();
        let mut lent = None;
        while let (None, Some(mut last)) = (&lent, kept.pop()) {
            if !last.is_fit(idle_timeout) {
                continue;
            }
            if !last.connection.is_http2() {
                return Some(last.connection);
            }
            lent = last.connection.share();
            last.since = None;
            shared.push(last);
        }
        kept.extend(shared);
        lent
    }

    /// Makes a connection, or finds one that has just been made.
    ///
    /// # Errors
    /// The server can't be reached, or not in time.
    pub async fn connect(&self, deadline: Instant, idle_timeout: Duration) -> Result<Connection, Failure> {
        if !self.connector.prefers_http2() || self.declines_http2.load(Relaxed) {
            return self.open(deadline).await;
        }
        let connecting = self.kept.get_or_default().connecting.clone();
        let alone = timeout_at(deadline, connecting.lock_owned()).await;
        let _alone = alone.map_err(|_| Failure::ConnectTimeout)?;
        if let Some(made) = self.reuse(idle_timeout) {
            return Ok(made);
        }
        let connection = self.open(deadline).await?;
        match connection.share() {
            Some(lent) => {
                self.keep(connection);
                Ok(lent)
            }
            None => {
                self.declines_http2.store(!connection.is_http2(), Relaxed);
                Ok(connection)
            }
        }
    }

    async fn open(&self, deadline: Instant) -> Result<Connection, Failure> {
        self.connector.connect(&self.url, &self.location, deadline).await
    }

    /// The status with which it answers a GET, on a connection of its own.
    ///
    /// # Errors
    /// No answer.
    pub async fn probe(&self, path: &PathAndQuery, deadline: Instant) -> Result<StatusCode, Failure> {
        let mut request = Request::new(Body::Whole(None));
        *request.method_mut() = Method::GET;
        *request.uri_mut() = path.clone().into();
        *request.version_mut() = Version::HTTP_11;
        request.headers_mut().insert(HOST, self.host.clone());
        request.headers_mut().insert(USER_AGENT, HeaderValue::from_static("tollgate"));
        let mut connection = self.open(deadline).await?;
        match connection.send(&mut Some(request), &self.url).await {
            Ok(response) => Ok(response.status()),
            Err(unanswered) => Err(Failure::Broken(unanswered.cause)),
        }
    }

    /// Closes this thread's connections that have idled too long or that the server has closed.
    pub fn close_idle(&self, idle_timeout: Duration) {
        let mut kept = self.kept.get_or_default().connections.borrow_mut();
        let now = Instant::now();
        kept.retain_mut(|kept| {
            if !kept.connection.is_idle() {
                kept.since = None;
            }
            kept.since.get_or_insert(now);
            kept.is_fit(idle_timeout)
        });
    }

    fn keep(&self, connection: Connection) {
        if !self.connector.has_too_many() {
            let kept = Idle { connection, since: None };
            self.kept.get_or_default().connections.borrow_mut().push(kept);
        }
    }
}

impl Idle {
    fn is_fit(&mut self, idle_timeout: Duration) -> bool {
        self.connection.is_ready()
            && self.connection.is_open()
            && self.since.is_none_or(|since| since.elapsed() < idle_timeout)
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
    connection: Connection,
    in_flight: InFlight,
}

impl Lease {
    /// Lends a connection until [`Self::release`].
    pub fn new(connection: Connection, in_flight: InFlight) -> Self {
        Self { connection, in_flight }
    }

    /// What is said on the connection, if that is HTTP/1.1.
    pub(super) fn http1(&self) -> Option<&Http1> {
        self.connection.http1()
    }

    /// The same, to read on.
    pub(super) fn http1_mut(&mut self) -> Option<&mut Http1> {
        self.connection.http1_mut()
    }

    /// What is under the connection, if another protocol is spoken on it now, and what it counts by.
    pub(super) fn into_tunnel(self) -> Option<(Ahead<Box<dyn Stream>>, Held)> {
        let (stream, counted) = self.connection.into_stream()?;
        Some((stream, Held { _counted: counted, _in_flight: self.in_flight }))
    }

    /// Gives the connection back, the answer having ended.
    pub fn release(self) {
        let Self { mut connection, in_flight } = self;
        if connection.is_http2() {
            // It was never away.
        } else if connection.is_ready() {
            in_flight.server.keep(connection);
        } else if !connection.is_closed() {
            // The request's body may still be on its way.
            tokio::spawn(async move {
                if let Ok(Ok(())) = timeout(READY_WITHIN, connection.ready()).await {
                    in_flight.server.keep(connection);
                }
            });
        }
    }
}

/// What a tunnel counts by: as a connection, and as a request in flight.
#[derive(Debug)]
pub struct Held {
    _counted: Counted,
    _in_flight: InFlight,
}
