//! The servers of an upstream: picks one for a request, and tries another if the first fails and it is safe.
//!
//! An exchange goes from one function here to the next, so they stand in one file.

use std::{
    future::poll_fn,
    pin::{Pin, pin},
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed},
    },
    task::Poll,
    time::Duration,
};

use hyper::{
    Request, Response, StatusCode, Uri, Version,
    header::{CONTENT_LENGTH, HOST},
};
use parking_lot::Mutex;
use tokio::{task::JoinSet, time::Instant};

use crate::config::{self, Weighted};

use super::{
    Failure, Visits, address,
    balance::{Balancer, Member, MemberIndexes},
    body::{Body, Fault, Progress, Relayed},
    connection::{ReceivedBody, Unanswered, UpstreamConnection},
    connector::Connector,
    headers,
    health::{self, Ejector},
    pool::{LentConnection, RequestInFlight, UpstreamServer},
    retry::Budget,
    timer::Timer,
    tunnel::{self, Tunnel, TunnelRequested},
    within,
};

/// Servers wait at least so long for the rest of a request.
const PATIENCE_LEAST: Duration = Duration::from_secs(1);

/// The servers of an upstream.
#[derive(Debug)]
pub struct Servers {
    name: String,
    members: Vec<Member>,
    connector: Arc<Connector>,
    balancer: Balancer,
    ejector: Option<Ejector>,
    attempts: usize,
    budget: Budget,
    in_flight: Arc<AtomicUsize>,
    /// The most requests in flight, or with HTTP/2 the most connections.
    connections_most: usize,
    connect_timeout: Duration,
    response_timeout: Duration,
    idle_timeout: Duration,
    /// The requests for which no server was healthy.
    without_healthy: AtomicU64,
    /// The interval of the probes. `None` if there are none.
    probe_interval: Option<Duration>,
    /// The tasks that probe servers and resolve names. They end with this value.
    watchers: Mutex<JoinSet<()>>,
}

/// The history of a connection: opened for this request, or used before.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Age {
    New,
    Reused,
}

impl Servers {
    /// Creates the servers of a configuration. Those that are also in `before` keep their connections and
    /// their state. Must be called in a tokio runtime, which then runs the health checks.
    pub fn new(
        name: &str,
        servers: &[Weighted],
        config: &config::UpstreamSettings,
        before: Option<&Self>,
    ) -> Self {
        let connector = Connector::new(config, before.map(|before| &before.connector));
        // With other TLS or protocol settings, a server counts as a new one.
        let before = before.filter(|before| Arc::ptr_eq(&before.connector, &connector));
        let known = before.map_or(&[][..], |before| &before.members);
        let members = members(servers, known, &connector);
        if config.health.is_none() {
            members.iter().for_each(|member| member.server.condition.forget_probes());
        }
        let mut watchers = JoinSet::new();
        if let Some(health) = config.health.clone() {
            let servers = members.iter().map(|member| member.server.clone()).collect();
            watchers.spawn(health::probe(name.to_owned(), servers, health, config.connect_timeout));
        }
        for member in members.iter().filter(|member| member.server.location().named().is_some()) {
            watchers.spawn(address::resolve(name.to_owned(), member.server.clone()));
        }
        Self {
            name: name.to_owned(),
            members,
            connector,
            balancer: Balancer::new(config.balance),
            ejector: config.eject.map(Ejector::new),
            attempts: config.retries.attempts,
            budget: Budget::new(config.retries.budget),
            in_flight: before.map(|before| before.in_flight.clone()).unwrap_or_default(),
            connections_most: config.max_connections,
            connect_timeout: config.connect_timeout,
            response_timeout: config.response_timeout,
            idle_timeout: config.idle_timeout,
            without_healthy: AtomicU64::new(before.map_or(0, Self::without_healthy)),
            probe_interval: config.health.as_ref().map(|health| health.interval),
            watchers: Mutex::new(watchers),
        }
    }

    /// Returns the servers, each once.
    pub fn members(&self) -> &[Member] {
        &self.members
    }

    /// Returns the most connections. With HTTP/2, each worker may have one to each server, whatever the bound.
    pub fn connections_most(&self, workers: usize) -> usize {
        match self.connector.prefers_http2() {
            true => self.connections_most.max(workers * self.members.len()),
            false => self.connections_most,
        }
    }

    /// Returns the number of requests for which no server was healthy.
    pub fn without_healthy(&self) -> u64 {
        self.without_healthy.load(Relaxed)
    }

    /// Stops the health checks and the resolution of names.
    pub fn retire(&self) {
        self.watchers.lock().abort_all();
    }

    /// Closes this thread's connections that have been idle too long.
    pub fn close_idle(&self) {
        for Member { server, .. } in &self.members {
            server.close_idle(self.idle_timeout);
        }
    }

    /// Sends a request, as [`super::Upstream::send`] does.
    ///
    /// # Errors
    /// There is no response, or not in time.
    pub async fn send(
        &self,
        request: &mut Option<Request<Body>>,
        deadline: Option<Instant>,
        mut visits: Option<&mut Visits>,
    ) -> Result<Response<Body>, Failure> {
        self.budget.deposit();
        let (upload, tunnel, names_host) = {
            let request = request.as_mut().expect("a request is there to be sent");
            let tunnel = request.extensions_mut().remove::<TunnelRequested>();
            if tunnel.is_some() {
                tunnel::write(request.headers_mut());
            }
            (request.body().progress(), tunnel, request.headers().contains_key(HOST))
        };
        let mut tried = MemberIndexes::new();
        let mut place = self.pick(&tried).ok_or_else(|| self.none_healthy())?;
        loop {
            let server = &self.members[place].server;
            if let Some(request) = request.as_mut().filter(|_| !names_host) {
                set_host(server, request);
            }
            let sent = Instant::now();
            if let (Some(visits), Some(request)) = (&mut visits, request.as_mut()) {
                visits.begin(server, sent, request.headers_mut());
            }
            let answered = {
                let asking = pin!(self.ask(server, request, upload.as_deref(), tunnel, sent));
                within(deadline, asking).await
            };
            let took = sent.elapsed();
            let answered = answered.map_err(|failure| blame(failure, took, upload.as_deref()));
            if let Some(visits) = &mut visits {
                visits.end(took, &answered);
            }
            self.note_result(server, took, answered.as_ref().map(Response::status));
            // The bound on requests is the upstream's, so another server wouldn't help. That of a connection for HTTP/2 is the server's.
            let is_busy = matches!(answered, Err(Failure::Busy)) && !server.expects_http2();
            let is_late = deadline.is_some_and(|deadline| deadline <= sent + took);
            if answered.is_ok() || is_busy || is_late || request.is_none() || tried.len() == self.attempts {
                return answered.map(|response| response.map(|body| body.until(deadline, upload)));
            }
            tried.push(place);
            match self.pick(&tried) {
                Some(other) if self.budget.withdraw() => place = other,
                _ => return answered,
            }
        }
    }

    /// Records a result for metrics, the log and ejection.
    fn note_result(&self, server: &UpstreamServer, took: Duration, answered: Result<StatusCode, &Failure>) {
        match &answered {
            Ok(status) => {
                server.answers.observe_time(took);
                server.statuses.add(status.as_u16());
            }
            Err(failure) => server.failures.add(failure.kind()),
        }
        server.outages.note(&self.name, server, answered.err());
        if let Some(ejector) = &self.ejector {
            ejector.note(server, answered, self.members.iter().map(|member| &member.server));
        }
    }

    /// Sends a request to one server. The request is left in its place if it may be sent to another one.
    /// `tunnel` is set if the request asks for a tunnel.
    async fn ask(
        &self,
        server: &Arc<UpstreamServer>,
        request: &mut Option<Request<Body>>,
        upload: Option<&Progress>,
        tunnel: Option<TunnelRequested>,
        now: Instant,
    ) -> Result<Response<Body>, Failure> {
        let most = if server.expects_http2() { usize::MAX } else { self.connections_most };
        let in_flight = RequestInFlight::begin(server, &self.in_flight, most)?;
        let (mut reused, mut sent, mut is_retry) = (server.reuse(self.idle_timeout), now, false);
        loop {
            let (age, mut connection) = match reused.take() {
                Some(reused) => (Age::Reused, reused),
                None => {
                    let deadline = Instant::now() + self.connect_timeout;
                    // Boxed, so that each request doesn't reserve memory for connecting, which is rare.
                    let made = Box::pin(server.connect(deadline, self.idle_timeout)).await?;
                    sent = Instant::now();
                    (Age::New, made)
                }
            };
            match self.exchange(server, &mut connection, age, request, upload, sent).await {
                Ok(response) => return receive(response, LentConnection::new(connection, in_flight), tunnel),
                Err(Failure::Broken(_))
                    if request.is_some() && !is_retry && self.may_renew(age, &connection) =>
                {
                    is_retry = true;
                }
                Err(failure) => return Err(failure),
            }
        }
    }

    /// Returns true if an unprocessed request may be sent once more, on a new connection. A server may close
    /// an idle connection at any time, even while a request arrives. A server that refuses a stream on a new
    /// connection may be overloaded, so such a retry is charged to the budget.
    fn may_renew(&self, age: Age, connection: &UpstreamConnection) -> bool {
        age == Age::Reused || connection.is_http2() && self.budget.withdraw()
    }

    /// Sends a request on a connection. The request is left in its place if it may be sent once more.
    async fn exchange(
        &self,
        server: &UpstreamServer,
        connection: &mut UpstreamConnection,
        age: Age,
        request: &mut Option<Request<Body>>,
        upload: Option<&Progress>,
        now: Instant,
    ) -> Result<Response<Option<ReceivedBody>>, Failure> {
        let is_idempotent = request.as_ref().is_some_and(|request| request.method().is_idempotent());
        let may_go_stale = age == Age::Reused && is_idempotent;
        let mut timer = std::mem::take(&mut connection.timer);
        let answered = {
            let answer = pin!(connection.send(request, server.url()));
            self.in_time(now, upload, &mut timer, answer).await
        };
        connection.timer = timer;
        match answered {
            Ok(Ok(response)) => Ok(response),
            Ok(Err(Unanswered { cause, is_safe })) => {
                if !(is_safe || may_go_stale && !connection.has_received()) {
                    *request = None;
                }
                let fault = upload.and_then(Progress::fault);
                Err(fault.map_or(Failure::Broken(cause), Failure::Request))
            }
            Err(failure) => {
                *request = None;
                connection.suspect();
                Err(failure)
            }
        }
    }

    /// Waits for the head of a response until the timeout. It starts again with each piece of the request
    /// body, and doesn't run while the client is waited for; a body that is too slow fails by itself.
    async fn in_time<T>(
        &self,
        sent: Instant,
        upload: Option<&Progress>,
        timer: &mut Timer,
        mut answer: Pin<&mut impl Future<Output = T>>,
    ) -> Result<T, Failure> {
        poll_fn(|context| {
            if let Poll::Ready(answered) = answer.as_mut().poll(context) {
                return Poll::Ready(Ok(answered));
            }
            let since = upload.map_or(sent, |upload| upload.awaits_upstream_since().max(sent));
            let is_late = timer.poll_until(since + self.response_timeout, context);
            is_late.map(|()| Err(Failure::ResponseTimeout))
        })
        .await
    }

    /// Picks a server that is healthy and wasn't tried. If all of these are ejected, it picks one of them.
    fn pick(&self, tried: &[usize]) -> Option<usize> {
        let is_up = |place: &usize| self.members[*place].server.condition.is_up() && !tried.contains(place);
        if self.members.len() == 1 {
            // With a single server, there is nothing to choose.
            return Some(0).filter(is_up);
        }
        let is_in = |place: &usize| self.members[*place].server.condition.ejected_for().is_none();
        let up = (0..self.members.len()).filter(is_up).collect::<MemberIndexes>();
        let fit = up.iter().copied().filter(is_in).collect::<MemberIndexes>();
        self.balancer.pick(&self.members, if fit.is_empty() { &up } else { &fit })
    }

    fn none_healthy(&self) -> Failure {
        self.without_healthy.fetch_add(1, Relaxed);
        Failure::NoneHealthy { interval: self.probe_interval.unwrap_or_default() }
    }
}

/// Returns the members of an upstream with these servers. Those that are known are kept.
fn members(servers: &[Weighted], known: &[Member], connector: &Arc<Connector>) -> Vec<Member> {
    let mut members = Vec::<Member>::with_capacity(servers.len());
    for Weighted { url, weight } in servers {
        // A server that is listed twice is one server with the sum of the weights.
        if let Some(member) = members.iter_mut().find(|member| member.server.url() == url) {
            member.weight += weight;
            continue;
        }
        let server = known.iter().map(|member| &member.server).find(|server| server.url() == url);
        let server =
            server.cloned().unwrap_or_else(|| Arc::new(UpstreamServer::new(url.clone(), connector.clone())));
        members.push(Member { server, weight: *weight });
    }
    members
}

/// Returns the failure of a request that took so long. If its server didn't have the whole request, the client was slow.
fn blame(failure: Failure, took: Duration, upload: Option<&Progress>) -> Failure {
    match failure {
        failure if !upload.is_some_and(Progress::awaits_client) => failure,
        Failure::ExchangeTimeout => Fault::TooSlow.into(),
        Failure::Broken(cause) if took >= PATIENCE_LEAST => Failure::Unfinished(cause),
        failure => failure,
    }
}

/// Sets the host of a request that has none to that of the server, replacing the host of a server tried
/// before.
fn set_host(server: &UpstreamServer, request: &mut Request<Body>) {
    request.headers_mut().insert(HOST, server.host().clone());
    if request.uri().authority().is_some() {
        let path = request.uri().path_and_query().cloned();
        *request.uri_mut() = path.map(Uri::from).unwrap_or_default();
    }
}

/// Returns the response to be forwarded to the client. Its body holds the connection until it ends.
fn receive(
    response: Response<Option<ReceivedBody>>,
    lent: LentConnection,
    tunnel: Option<TunnelRequested>,
) -> Result<Response<Body>, Failure> {
    let (mut parts, incoming) = response.into_parts();
    let body = match parts.status {
        StatusCode::SWITCHING_PROTOCOLS => Body::Tunnel(Tunnel::new(tunnel, &parts, lent)?.into()),
        _ => Body::Response(Relayed::new(incoming, lent).into()),
    };
    headers::towards_client(&mut parts.headers);
    if matches!(body, Body::Tunnel(_)) {
        parts.headers.remove(CONTENT_LENGTH);
        tunnel::write(&mut parts.headers);
    }
    // The protocol of the upstream doesn't matter to the client. Its connection sets the version.
    parts.version = Version::HTTP_11;
    Ok(Response::from_parts(parts, body))
}
