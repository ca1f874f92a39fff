//! Forwarding takes an admitted request to a server of its upstream and streams the answer back.
//!
//! An [`Upstream`] picks one of its servers that are fit ([`health`]) by its [`balance`], and the [`pool`] gives a
//! connection to it. Bodies stream in both directions and are never held whole: hyper reads on as far as the
//! other side takes what it has. What is safe to send again ([`retry`]) goes to a new connection if a kept one was
//! closed by the server, and to another server if the first can't be reached; nothing else is sent twice.

pub mod address;
pub mod balance;
pub mod body;
pub mod connection;
mod echo;
pub mod headers;
pub mod health;
pub mod pool;
pub mod retry;

use std::{
    error::Error,
    fmt, io,
    pin::pin,
    sync::{Arc, atomic::AtomicUsize},
    time::Duration,
};

use hyper::{Request, Response, StatusCode, Version, body::Incoming, header::HOST};
use parking_lot::Mutex;
use tokio::{
    task::JoinSet,
    time::{Instant, timeout_at},
};

use crate::{
    config::{self, Target},
    metrics::Page,
};

use self::{
    balance::{Balancer, Member, Places},
    body::{Body, Relayed, Upload},
    connection::{Connection, Connector},
    health::Ejector,
    pool::{InFlight, Lease, Server},
    retry::Budget,
};

/// Why an upstream gave no answer.
#[derive(Debug)]
pub enum Failure {
    /// It has as many requests in flight as it may have connections.
    Busy,
    /// No server answers its probes. They are probed again in this time.
    NoneHealthy {
        /// From one probe to the next.
        interval: Duration,
    },
    /// No connection to the server could be made.
    Unreachable(io::Error),
    /// The server's name has no address.
    Unresolved,
    /// The server's certificate can't be trusted, or TLS be agreed on.
    Tls(io::Error),
    /// Connecting took too long.
    ConnectTimeout,
    /// The connection broke before the answer, or the answer isn't HTTP.
    Broken(hyper::Error),
    /// The answer switches protocols, which nobody asked for.
    Switched,
    /// The client stopped sending its request.
    RequestTimeout,
    /// The answer took too long to begin.
    ResponseTimeout,
}

impl Failure {
    /// What metrics call the causes that are about one server.
    pub const KINDS: [&str; 9] = [
        "busy",
        "unreachable",
        "unresolved",
        "tls",
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
            Self::NoneHealthy { .. } => "unhealthy",
            Self::Unreachable(_) => "unreachable",
            Self::Unresolved => "unresolved",
            Self::Tls(_) => "tls",
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
            Self::NoneHealthy { .. } => "no server of the upstream is healthy",
            Self::Busy => "all connections to the upstream are busy",
            Self::Unreachable(_) => "the upstream could not be reached",
            Self::Unresolved => "the upstream's name has no address",
            Self::Tls(cause) if is_about_certificate(cause) => "the upstream's certificate can't be trusted",
            Self::Tls(_) => "TLS could not be agreed on with the upstream",
            Self::ConnectTimeout => "connecting to the upstream took too long",
            Self::Broken(_) => "the upstream broke off before it answered",
            Self::Switched => "the upstream switched protocols without being asked",
            Self::RequestTimeout => "the request's body stopped on its way",
            Self::ResponseTimeout => "the upstream took too long to answer",
        })
    }
}

impl Failure {
    /// What is behind it, for those who know the servers.
    pub fn cause(&self) -> String {
        self.source().map_or_else(|| self.to_string(), |cause| format!("{self}: {cause}"))
    }
}

impl Error for Failure {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Unreachable(cause) | Self::Tls(cause) => Some(cause),
            Self::Broken(cause) => Some(cause),
            _ => None,
        }
    }
}

fn is_about_certificate(error: &io::Error) -> bool {
    let cause = error.get_ref().and_then(|cause| cause.downcast_ref::<rustls::Error>());
    matches!(cause, Some(rustls::Error::InvalidCertificate(_)))
}

/// Where a route's requests go.
#[derive(Debug)]
pub enum Upstream {
    /// Servers reached over the network.
    Servers(Box<Servers>),
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
    members: Vec<Member>,
    connector: Arc<Connector>,
    balancer: Balancer,
    ejector: Option<Ejector>,
    attempts: usize,
    budget: Budget,
    in_flight: Arc<AtomicUsize>,
    /// Connections for HTTP/2 are bounded instead.
    in_flight_most: usize,
    connect_timeout: Duration,
    response_timeout: Duration,
    idle_timeout: Duration,
    /// From one probe to the next; none if there are none.
    probe_interval: Option<Duration>,
    /// What watches the servers. It ends with this value.
    watchers: Mutex<JoinSet<()>>,
}

/// What is known of a server of an upstream.
#[derive(Debug)]
pub struct Standing<'s> {
    /// The server.
    pub server: &'s Server,
    /// Its share of the requests is this by the sum of all.
    pub weight: u32,
    /// Whether it answers its probes, or there are none.
    pub is_up: bool,
    /// For how long it is left out yet, because it failed too often.
    pub ejected_for: Option<Duration>,
}

impl Upstream {
    /// Makes an upstream of the configuration ready. Servers that `before` had, too, keep their connections and
    /// what is known of them; what watched them ends. Must be called in a tokio runtime, by which servers are watched.
    pub fn new(name: &str, config: &config::Upstream, before: Option<&Self>) -> Self {
        let Target::Servers(servers) = &config.target else { return Self::Echo };
        let before = match before {
            Some(Self::Servers(before)) => Some(before),
            _ => None,
        };
        let connector = Connector::new(config, before.map(|before| &before.connector));
        // A server that is spoken to in another way is another one.
        let before = before.filter(|before| Arc::ptr_eq(&before.connector, &connector));
        let known = before.map_or(&[][..], |before| &before.members);
        let mut members = Vec::<Member>::with_capacity(servers.len());
        for config::Weighted { url, weight } in servers {
            // One that is named twice is one all the same, with both shares.
            if let Some(member) = members.iter_mut().find(|member| member.server.url() == url) {
                member.weight += weight;
                continue;
            }
            let server = known.iter().map(|member| &member.server).find(|server| server.url() == url);
            let server =
                server.cloned().unwrap_or_else(|| Arc::new(Server::new(url.clone(), connector.clone())));
            if config.health.is_none() {
                server.condition.forget_probes();
            }
            members.push(Member { server, weight: *weight });
        }
        let mut watchers = JoinSet::new();
        if let Some(health) = config.health.clone() {
            let servers = members.iter().map(|member| member.server.clone()).collect();
            watchers.spawn(health::probe(name.to_owned(), servers, health, config.connect_timeout));
        }
        for member in members.iter().filter(|member| member.server.location().named().is_some()) {
            watchers.spawn(address::resolve(name.to_owned(), member.server.clone()));
        }
        Self::Servers(Box::new(Servers {
            members,
            connector,
            balancer: Balancer::new(config.balance),
            ejector: config.eject.map(Ejector::new),
            attempts: config.retries.attempts,
            budget: Budget::new(config.retries.budget),
            in_flight: before.map(|before| before.in_flight.clone()).unwrap_or_default(),
            in_flight_most: if config.http2 { usize::MAX } else { config.max_connections },
            connect_timeout: config.connect_timeout,
            response_timeout: config.response_timeout,
            idle_timeout: config.idle_timeout,
            probe_interval: config.health.as_ref().map(|health| health.interval),
            watchers: Mutex::new(watchers),
        }))
    }

    /// Ends what watches its servers, another upstream having taken its place. Requests in flight go on.
    pub fn retire(&self) {
        if let Self::Servers(servers) = self {
            servers.watchers.lock().abort_all();
        }
    }

    /// What is known of its servers.
    pub fn standings(&self) -> impl Iterator<Item = Standing<'_>> {
        let members = match self {
            Self::Servers(servers) => &servers.members[..],
            Self::Echo => &[],
        };
        members.iter().map(|Member { server, weight }| Standing {
            server,
            weight: *weight,
            is_up: server.condition.is_up(),
            ejected_for: server.condition.ejected_for(),
        })
    }

    /// Sends a request whose header is ready for the upstream, and gives the answer as it begins. Who wants to
    /// know which server was asked is told in `visit`.
    ///
    /// # Errors
    /// No answer, or none in time.
    pub async fn send(
        &self,
        request: Request<Incoming>,
        visit: Option<&mut Option<Visit>>,
    ) -> Result<Response<Body>, Failure> {
        match self {
            Self::Servers(servers) => servers.send(request, visit).await,
            Self::Echo => Ok(echo::answer(request).await),
        }
    }

    /// Closes this thread's connections that have idled too long.
    pub fn close_idle(&self) {
        if let Self::Servers(servers) = self {
            for Member { server, .. } in &servers.members {
                server.close_idle(servers.idle_timeout);
            }
        }
    }
}

/// Whether a connection has had requests before.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Age {
    New,
    Kept,
}

impl Servers {
    async fn send(
        &self,
        request: Request<Incoming>,
        mut visit: Option<&mut Option<Visit>>,
    ) -> Result<Response<Body>, Failure> {
        self.budget.deposit();
        let upload = Upload::watch(request.body());
        let request = request.map(|body| Body::Request(body, upload.clone()));
        let (mut request, mut tried) = (Some(request), Places::new());
        let mut place = self.pick(&tried).ok_or_else(|| self.none_healthy())?;
        loop {
            let server = &self.members[place].server;
            let sent = Instant::now();
            let answered = self.ask(server, &mut request, upload.as_deref()).await;
            let took = sent.elapsed();
            match &answered {
                Ok(_) => server.answers.observe_time(took),
                Err(failure) => server.failures.add(failure.kind()),
            }
            if let Some(visit) = &mut visit {
                **visit = Some(Visit { server: server.url().name(), took });
            }
            if let Some(ejector) = &self.ejector {
                let servers = self.members.iter().map(|member| &member.server);
                ejector.note(server, answered.as_ref().map(Response::status), servers);
            }
            // Of all servers together, there are too many connections.
            let is_busy = matches!(answered, Err(Failure::Busy));
            if answered.is_ok() || is_busy || request.is_none() || tried.len() == self.attempts {
                return answered;
            }
            tried.push(place);
            match self.pick(&tried) {
                Some(other) if self.budget.withdraw() => place = other,
                _ => return answered,
            }
        }
    }

    /// Asks a server. The request is taken as it is sent; it is there again if it may be sent to another one.
    async fn ask(
        &self,
        server: &Arc<Server>,
        request: &mut Option<Request<Body>>,
        upload: Option<&Upload>,
    ) -> Result<Response<Body>, Failure> {
        let in_flight = InFlight::begin(server, &self.in_flight, self.in_flight_most)?;
        if let Some(request) = request.as_mut().filter(|request| !request.headers().contains_key(HOST)) {
            request.headers_mut().insert(HOST, server.host().clone());
        }
        if let Some(mut kept) = server.reuse(self.idle_timeout) {
            match self.exchange(server, &mut kept, Age::Kept, request, upload).await {
                Ok(response) => return receive(response, Lease::new(kept, in_flight)),
                // A server may close an idle connection whenever it likes, also as a request arrives.
                Err(Failure::Broken(_)) if request.is_some() => {}
                Err(failure) => return Err(failure),
            }
        }
        let deadline = Instant::now() + self.connect_timeout;
        let mut connection = server.connect(deadline, self.idle_timeout).await?;
        let response = self.exchange(server, &mut connection, Age::New, request, upload).await?;
        receive(response, Lease::new(connection, in_flight))
    }

    /// Sends the request on a connection. It is there again if it may be sent once more.
    async fn exchange(
        &self,
        server: &Server,
        connection: &mut Connection,
        age: Age,
        request: &mut Option<Request<Body>>,
        upload: Option<&Upload>,
    ) -> Result<Response<Incoming>, Failure> {
        let sent = request.take().expect("a request is there as long as it may be sent");
        let is_idempotent = sent.method().is_idempotent();
        let may_go_stale = age == Age::Kept && is_idempotent;
        let copy = if may_go_stale || connection.is_http2() { retry::copy(&sent) } else { None };
        match self.in_time(upload, connection.send(sent, server.url())).await {
            Ok(Ok(response)) => Ok(response),
            Ok(Err(mut unsent)) => {
                let given_back = unsent.take_message();
                let cause = unsent.into_error();
                let is_safe = may_go_stale && !connection.has_heard() || retry::was_refused(&cause);
                *request = given_back.or(copy.filter(|_| is_safe));
                Err(Failure::Broken(cause))
            }
            Err(failure) => {
                connection.suspect();
                Err(failure)
            }
        }
    }

    /// Waits for an answer to begin: for the timeout, counted anew with each piece of the request's body.
    async fn in_time<T>(
        &self,
        upload: Option<&Upload>,
        answer: impl Future<Output = T>,
    ) -> Result<T, Failure> {
        let sent = Instant::now();
        let mut answer = pin!(answer);
        loop {
            let deadline = upload.map_or(sent, |upload| upload.moved().max(sent)) + self.response_timeout;
            if let Ok(answered) = timeout_at(deadline, answer.as_mut()).await {
                return Ok(answered);
            }
            match upload {
                Some(upload) if upload.moved() + self.response_timeout > deadline => {}
                Some(upload) if upload.awaits_client() => return Err(Failure::RequestTimeout),
                _ => return Err(Failure::ResponseTimeout),
            }
        }
    }

    /// A server that is fit and wasn't tried. If all of these are ejected, they are asked all the same.
    fn pick(&self, tried: &[usize]) -> Option<usize> {
        let is_up = |place: &usize| self.members[*place].server.condition.is_up() && !tried.contains(place);
        let is_in = |place: &usize| self.members[*place].server.condition.ejected_for().is_none();
        let up = (0..self.members.len()).filter(is_up).collect::<Places>();
        let fit = up.iter().copied().filter(is_in).collect::<Places>();
        self.balancer.pick(&self.members, if fit.is_empty() { &up } else { &fit })
    }

    fn none_healthy(&self) -> Failure {
        Failure::NoneHealthy { interval: self.probe_interval.unwrap_or_default() }
    }
}

/// Writes the metrics of upstreams, by name.
pub fn write_metrics<'u>(
    page: &mut Page<'_>,
    upstreams: impl Iterator<Item = (&'u String, &'u Arc<Upstream>)>,
) {
    let mut servers = Vec::new();
    for (upstream, target) in upstreams {
        let Upstream::Servers(target) = &**target else { continue };
        for Member { server, .. } in &target.members {
            servers.push((upstream.as_str(), server.url().name(), server));
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
