//! Forwarding takes an admitted request to a server of its upstream and streams the answer back.
//!
//! An [`Upstream`] picks the server with fewer requests in flight of two drawn at random, and the
//! [`pool`] gives a connection to it. Bodies stream in both directions and are never held whole:
//! hyper reads on as far as the other side takes what it has. A request that a kept connection
//! closed on before taking it is sent on another one; nothing else is sent twice.

pub mod body;
mod echo;
pub mod headers;
pub mod pool;

use std::{
    error::Error,
    fmt, io,
    pin::pin,
    sync::{Arc, atomic::AtomicUsize},
    time::Duration,
};

use http_body::Body as _;
use hyper::{
    Request, Response, StatusCode, Version,
    body::Incoming,
    header::{HOST, HeaderValue, TRANSFER_ENCODING},
};
use tokio::time::{Instant, timeout_at};

use crate::{
    config::{self, Target},
    metrics::Page,
};

use self::{
    body::{Body, Progress, Relayed, TooSlow, Upload},
    pool::{InFlight, Lease, Server},
};

/// Why an upstream gave no answer.
#[derive(Debug)]
pub enum Failure {
    /// It has as many requests in flight as it may have connections.
    Busy,
    /// No connection to the server could be made.
    Unreachable(io::Error),
    /// Connecting took too long.
    ConnectTimeout,
    /// The connection broke before the answer, or the answer isn't HTTP.
    Broken(hyper::Error),
    /// The answer switches protocols, which nobody asked for.
    Switched,
    /// The client sends its request's body too slowly, or has stopped.
    RequestTimeout,
    /// The answer took too long to begin.
    ResponseTimeout,
}

impl Failure {
    /// What metrics call the causes.
    pub const KINDS: [&str; 7] = [
        "busy",
        "unreachable",
        "connect_timeout",
        "broken",
        "switched",
        "request_timeout",
        "response_timeout",
    ];

    /// What metrics call its cause.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Busy => "busy",
            Self::Unreachable(_) => "unreachable",
            Self::ConnectTimeout => "connect_timeout",
            Self::Broken(_) => "broken",
            Self::Switched => "switched",
            Self::RequestTimeout => "request_timeout",
            Self::ResponseTimeout => "response_timeout",
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Busy => "all connections to the upstream are busy",
            Self::Unreachable(_) => "the upstream could not be reached",
            Self::ConnectTimeout => "connecting to the upstream took too long",
            Self::Broken(_) => "the upstream broke off before it answered",
            Self::Switched => "the upstream switched protocols without being asked",
            Self::RequestTimeout => "the request's body stopped on its way, or came too slowly",
            Self::ResponseTimeout => "the upstream took too long to answer",
        })
    }
}

impl Error for Failure {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Unreachable(cause) => Some(cause),
            Self::Broken(cause) => Some(cause),
            _ => None,
        }
    }
}

impl From<hyper::Error> for Failure {
    fn from(error: hyper::Error) -> Self {
        match error.source() {
            Some(cause) if cause.is::<TooSlow>() => Self::RequestTimeout,
            _ => Self::Broken(error),
        }
    }
}

/// Where a route's requests go.
#[derive(Debug)]
pub enum Upstream {
    /// Servers reached over the network.
    Servers(Servers),
    /// The built-in service that answers with what it was sent.
    Echo,
}

/// Which server was asked, and how long it took to answer, or to fail.
#[derive(Debug)]
pub struct Visit {
    /// `host:port`.
    pub server: String,
    /// From when the request was sent to the head of the answer.
    pub took: Duration,
}

/// The servers of an upstream, any of which can answer.
#[derive(Debug)]
pub struct Servers {
    servers: Vec<Arc<Server>>,
    in_flight: Arc<AtomicUsize>,
    in_flight_most: usize,
    connect_timeout: Duration,
    response_timeout: Duration,
    idle_timeout: Duration,
}

impl Upstream {
    /// Makes an upstream of the configuration ready. Servers that `before` had, too, keep their connections.
    pub fn new(config: &config::Upstream, before: Option<&Self>) -> Self {
        let Target::Servers(urls) = &config.target else { return Self::Echo };
        let (known, in_flight) = match before {
            Some(Self::Servers(before)) => (&before.servers[..], before.in_flight.clone()),
            _ => (&[][..], Arc::default()),
        };
        let mut servers = Vec::<Arc<Server>>::with_capacity(urls.len());
        for url in urls {
            // One that is named twice is one all the same, which is picked more often.
            let known = known.iter().chain(&servers).find(|server| server.url() == url);
            servers.push(known.cloned().unwrap_or_else(|| Arc::new(Server::new(url.clone()))));
        }
        Self::Servers(Servers {
            servers,
            in_flight,
            in_flight_most: config.max_connections,
            connect_timeout: config.connect_timeout,
            response_timeout: config.response_timeout,
            idle_timeout: config.idle_timeout,
        })
    }

    /// Sends a request whose header is ready for the upstream, and gives the answer as it begins. Who wants to
    /// know which server was asked is told in `visit`.
    ///
    /// # Errors
    /// No answer, or none in time.
    pub async fn send(
        &self,
        mut request: Request<Upload>,
        visit: Option<&mut Option<Visit>>,
    ) -> Result<Response<Body>, Failure> {
        if request.body().size_hint().exact().is_none() {
            // hyper would take a GET for one without a body.
            request.headers_mut().insert(TRANSFER_ENCODING, HeaderValue::from_static("chunked"));
        }
        match self {
            Self::Servers(servers) => servers.send(request, visit).await,
            Self::Echo => echo::answer(request).await,
        }
    }

    /// Requests that may be in flight at a time, each on a connection of its own.
    pub fn connections_most(&self) -> usize {
        match self {
            Self::Servers(servers) => servers.in_flight_most,
            Self::Echo => 0,
        }
    }

    /// Closes this thread's connections that have idled too long.
    pub fn close_idle(&self) {
        if let Self::Servers(servers) = self {
            for server in &servers.servers {
                server.close_idle(servers.idle_timeout);
            }
        }
    }
}

impl Servers {
    async fn send(
        &self,
        request: Request<Upload>,
        visit: Option<&mut Option<Visit>>,
    ) -> Result<Response<Body>, Failure> {
        let server = self.pick();
        let sent = Instant::now();
        let answer = self.exchange(server, request).await;
        let took = sent.elapsed();
        match &answer {
            Ok(_) => server.answers.observe_time(took),
            Err(failure) => server.failures.add(failure.kind()),
        }
        if let Some(visit) = visit {
            *visit = Some(Visit { server: server.url().authority(), took });
        }
        answer
    }

    async fn exchange(
        &self,
        server: &Arc<Server>,
        request: Request<Upload>,
    ) -> Result<Response<Body>, Failure> {
        let in_flight = InFlight::begin(server, &self.in_flight, self.in_flight_most)?;
        let upload = request.body().progress();
        let mut request = request.map(Body::Request);
        *request.version_mut() = Version::HTTP_11;
        if !request.headers().contains_key(HOST) {
            request.headers_mut().insert(HOST, server.host().clone());
        }
        loop {
            let kept = server.reuse(self.idle_timeout);
            let reused = kept.is_some();
            let mut sender = match kept {
                Some(sender) => sender,
                None => server.connect(self.connect_timeout).await?,
            };
            match self.in_time(upload.as_deref(), sender.try_send_request(request)).await? {
                Ok(response) => return receive(response, Lease::new(sender, in_flight)),
                Err(mut unsent) => match unsent.take_message() {
                    Some(message) if reused => request = message,
                    _ => return Err(unsent.into_error().into()),
                },
            }
        }
    }

    /// Waits for an answer to begin: for the timeout, counted anew with each piece of the request's body, and not
    /// while the client is waited for, which the body ends if need be.
    async fn in_time<T>(
        &self,
        upload: Option<&Progress>,
        answer: impl Future<Output = T>,
    ) -> Result<T, Failure> {
        let sent = Instant::now();
        let mut answer = pin!(answer);
        loop {
            let since = || upload.map_or(sent, |upload| upload.awaits_upstream_since().max(sent));
            let deadline = since() + self.response_timeout;
            if let Ok(answered) = timeout_at(deadline, answer.as_mut()).await {
                return Ok(answered);
            }
            if since() + self.response_timeout <= deadline {
                return Err(Failure::ResponseTimeout);
            }
        }
    }

    /// Of two servers drawn at random, the one with fewer requests in flight.
    fn pick(&self) -> &Arc<Server> {
        let draw = || &self.servers[fastrand::usize(..self.servers.len())];
        if self.servers.len() == 1 {
            return &self.servers[0];
        }
        let (one, other) = (draw(), draw());
        if other.in_flight() < one.in_flight() { other } else { one }
    }
}

/// Writes the metrics of upstreams, by name.
pub fn write_metrics<'u>(
    page: &mut Page<'_>,
    upstreams: impl Iterator<Item = (&'u String, &'u Arc<Upstream>)>,
) {
    let mut servers = Vec::new();
    for (upstream, target) in upstreams {
        let Upstream::Servers(Servers { servers: own, .. }) = &**target else { continue };
        for (at, server) in own.iter().enumerate() {
            if !own[..at].iter().any(|other| Arc::ptr_eq(other, server)) {
                servers.push((upstream.as_str(), server.url().authority(), server));
            }
        }
    }
    let servers = || {
        let labels = |upstream, name| [("upstream", upstream), ("server", name)];
        servers.iter().map(move |(upstream, name, server)| (labels(*upstream, name.as_str()), *server))
    };
    page.gauges(
        "tollgate_upstream_requests_in_flight",
        "Requests that the server hasn't answered completely",
        servers().map(|(labels, server)| (labels, server.in_flight())),
    );
    page.histograms(
        "tollgate_upstream_response_seconds",
        "From when a request was sent to a server, a new connection included, to the head of the answer",
        servers().map(|(labels, server)| (labels, &server.answers)),
    );
    page.counters(
        "tollgate_upstream_failures",
        "Requests to which a server gave no answer, by cause",
        servers().flat_map(|([upstream, name], server)| {
            server.failures.iter().map(move |(kind, count)| ([upstream, name, ("kind", kind)], count))
        }),
    );
}

/// The answer as it goes on to the client. Its body holds the connection until its end.
fn receive(response: Response<Incoming>, lease: Lease) -> Result<Response<Body>, Failure> {
    if response.status() == StatusCode::SWITCHING_PROTOCOLS {
        return Err(Failure::Switched);
    }
    let (mut parts, incoming) = response.into_parts();
    headers::towards_client(&mut parts.headers);
    // What the upstream speaks is its own affair; the client is answered in its version.
    parts.version = Version::HTTP_11;
    Ok(Response::from_parts(parts, Body::Response(Relayed::new(incoming, lease))))
}
