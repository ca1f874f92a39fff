//! The connection pool of a server. Each thread has its own connections, and reuses the last used one first.
//!
//! A connection is lent for one exchange as a [`LentConnection`], and is returned when the response body has ended. An HTTP/2 connection is
//! lent to as many exchanges at a time as the server allows, at most 100, and to no more while a request body waits for room; others need another connection. Connections that are idle longer than the
//! upstream's idle timeout are closed.

mod lent;

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
use tokio::time::{Instant, sleep, timeout_at};
use tollgate_limiter::metrics::{CountsByWord, Distribution, Histogram};

use crate::{config::ServerUrl, metrics::CountsByStatus};

pub use self::lent::{LentConnection, RequestInFlight, TunnelCounts};
use super::{
    Failure,
    address::ServerAddress,
    body::Body,
    connection::UpstreamConnection,
    connector::{Connector, CountedConnection},
    health::Condition,
    outage::Outages,
};

/// The time within which more of a request body must be sent after the response has ended, before the connection is closed.
const READY_WITHIN: Duration = Duration::from_secs(5);

/// The silence after which a connection is used again whose response has no body, as to HEAD. Some servers send one nevertheless
/// (gevent), in a packet of its own, for which Linux may wait 40 ms.
const SILENT_FOR: Duration = Duration::from_millis(100);

/// A server of an upstream. It survives reloads that keep it in its upstream.
pub struct UpstreamServer {
    url: ServerUrl,
    host: HeaderValue,
    location: ServerAddress,
    connector: Arc<Connector>,
    /// True if the server was offered HTTP/2 and chose HTTP/1.1.
    declines_http2: AtomicBool,
    in_flight: AtomicUsize,
    /// True if a reload has removed the server.
    is_retired: AtomicBool,
    pub(super) condition: Condition,
    /// Response times, responses by status, and failures by cause.
    pub(super) answers: Histogram,
    pub(super) statuses: CountsByStatus,
    pub(super) failures: CountsByWord,
    pub(super) outages: Outages,
    kept: ThreadLocal<Kept>,
}

/// The connections of one thread.
#[derive(Default)]
struct Kept {
    connections: RefCell<Vec<Idle>>,
    /// The number of all connections, kept or in use.
    count: Arc<AtomicUsize>,
    /// Held while an HTTP/2 connection is opened, so that all waiting exchanges share it.
    connecting: Arc<tokio::sync::Mutex<()>>,
}

struct Idle {
    connection: UpstreamConnection,
    /// The time since when the connection is idle. `None` until the next periodic check: mostly it is in use again by then, and
    /// reading the clock is saved.
    since: Option<Instant>,
}

impl UpstreamServer {
    /// Returns a server without connections.
    pub fn new(url: ServerUrl, connector: Arc<Connector>) -> Self {
        let host = HeaderValue::from_str(&url.host()).expect("a url's authority is visible ASCII");
        Self {
            location: ServerAddress::of(&url),
            url,
            host,
            connector,
            declines_http2: AtomicBool::new(false),
            in_flight: AtomicUsize::new(0),
            is_retired: AtomicBool::new(false),
            condition: Condition::default(),
            answers: Histogram::of_times(),
            statuses: CountsByStatus::default(),
            failures: CountsByWord::of(&Failure::KINDS),
            outages: Outages::default(),
            kept: ThreadLocal::new(),
        }
    }

    #[cfg(test)]
    pub(super) fn test(port: u16) -> Self {
        let url = ServerUrl::Tcp { tls: false, host: "127.0.0.1".to_owned(), port };
        Self::new(url, Arc::new(Connector::of(None, false)))
    }

    /// Returns the server's own name, for a request without a host.
    pub fn host(&self) -> &HeaderValue {
        &self.host
    }

    /// Returns the URL of the server.
    pub fn url(&self) -> &ServerUrl {
        &self.url
    }

    /// Returns the addresses of the server.
    pub fn location(&self) -> &ServerAddress {
        &self.location
    }

    /// Returns true if the server passes its probes, isn't ejected, and hasn't failed its last request within ten minutes.
    pub fn is_healthy(&self) -> bool {
        self.condition.is_up() && self.condition.ejected_for().is_none() && self.outages.is_well()
    }

    /// Returns true if the server is expected to speak HTTP/2: it is offered, and the last connection didn't decline it.
    pub fn expects_http2(&self) -> bool {
        self.connector.prefers_http2() && !self.declines_http2.load(Relaxed)
    }

    /// Returns the number of requests in flight.
    pub fn in_flight(&self) -> usize {
        self.in_flight.load(Relaxed)
    }

    /// Returns the distribution of response times.
    pub fn answers(&self) -> Distribution {
        self.answers.read()
    }

    /// Returns the number of requests without a response.
    pub fn failures(&self) -> u64 {
        self.failures.iter().map(|(_, count)| count).sum()
    }

    /// Returns the last used connection of this thread that is usable.
    pub fn reuse(&self, idle_timeout: Duration) -> Option<UpstreamConnection> {
        let mut kept = self.kept.get_or_default().connections.borrow_mut();
        let mut shared = SmallVec::<[Idle; 2]>::new();
        let mut lent = None;
        while lent.is_none()
            && let Some(mut last) = kept.pop()
        {
            if !last.is_fit(idle_timeout) {
                continue;
            }
            if !last.connection.is_http2() {
                lent = Some(last.connection);
                break;
            }
            lent = last.connection.share();
            last.since = None;
            shared.push(last);
        }
        kept.extend(shared);
        lent
    }

    /// Opens a connection, or returns one that has just been opened. Those of servers that chose HTTP/1.1 are opened side by side,
    /// until one chooses HTTP/2 again.
    ///
    /// # Errors
    /// The server can't be reached in time.
    pub async fn connect(
        self: &Arc<Self>,
        deadline: Instant,
        idle_timeout: Duration,
    ) -> Result<UpstreamConnection, Failure> {
        if !self.connector.prefers_http2() {
            return self.open(deadline).await;
        }
        if !self.expects_http2() {
            return self.open_shared(deadline).await;
        }
        let connecting = self.kept.get_or_default().connecting.clone();
        let alone = timeout_at(deadline, connecting.lock_owned()).await;
        let alone = alone.map_err(|_| Failure::ConnectTimeout)?;
        if let Some(made) = self.reuse(idle_timeout) {
            return Ok(made);
        }
        // In a task of its own, because others wait for the connection even if this request is cancelled.
        let server = self.clone();
        let opening = tokio::spawn(async move {
            let _alone = alone;
            server.open_shared(deadline).await
        });
        opening.await.map_err(Failure::broken)?
    }

    /// Opens a connection, and keeps it if it can be shared.
    async fn open_shared(&self, deadline: Instant) -> Result<UpstreamConnection, Failure> {
        let connection = self.open(deadline).await?;
        self.declines_http2.store(!connection.is_http2(), Relaxed);
        match connection.share() {
            Some(lent) => {
                self.keep(connection);
                Ok(lent)
            }
            None => Ok(connection),
        }
    }

    async fn open(&self, deadline: Instant) -> Result<UpstreamConnection, Failure> {
        let counted = CountedConnection::begin(
            &self.connector,
            &self.kept.get_or_default().count,
            self.expects_http2(),
        )?;
        self.connector.connect(&self.url, &self.location, counted, deadline).await
    }

    /// Sends a GET on a connection of its own, which doesn't count, and returns the status of the response.
    ///
    /// # Errors
    /// There was no response.
    pub async fn probe(&self, path: &PathAndQuery, deadline: Instant) -> Result<StatusCode, Failure> {
        let mut request = Request::new(Body::Whole(None));
        *request.method_mut() = Method::GET;
        *request.uri_mut() = path.clone().into();
        *request.version_mut() = Version::HTTP_11;
        request.headers_mut().insert(HOST, self.host.clone());
        request.headers_mut().insert(USER_AGENT, HeaderValue::from_static("tollgate"));
        let uncounted = CountedConnection::default();
        let connecting = self.connector.connect(&self.url, &self.location, uncounted, deadline);
        let mut connection = connecting.await?;
        match connection.send(&mut Some(request), &self.url).await {
            Ok(response) => Ok(response.status()),
            Err(unanswered) => Err(Failure::Broken(unanswered.cause)),
        }
    }

    /// Keeps no connections from now on, because a reload has removed the server. Each thread closes its own soon
    /// ([`Self::close_idle`]).
    pub fn retire(&self) {
        self.is_retired.store(true, Relaxed);
    }

    /// Returns true if a reload has removed the server.
    pub fn is_retired(&self) -> bool {
        self.is_retired.load(Relaxed)
    }

    /// Closes this thread's connections that have been idle too long or that the server has closed.
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

    /// Keeps a connection once the server has had time to send what doesn't belong there; [`Self::reuse`] then closes it.
    fn keep_after_silence(self: &Arc<Self>, connection: UpstreamConnection) {
        if !self.connector.has_too_many() {
            let server = self.clone();
            tokio::spawn(async move {
                sleep(SILENT_FOR).await;
                server.keep(connection);
            });
        }
    }

    fn keep(&self, connection: UpstreamConnection) {
        if self.is_retired() {
            return;
        }
        let mut kept = self.kept.get_or_default().connections.borrow_mut();
        // With HTTP/2, each thread may have one connection.
        if !self.connector.has_too_many() || self.connector.prefers_http2() && kept.is_empty() {
            kept.push(Idle { connection, since: None });
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

impl fmt::Debug for UpstreamServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UpstreamServer")
            .field("url", &self.url)
            .field("in_flight", &self.in_flight())
            .finish_non_exhaustive()
    }
}
