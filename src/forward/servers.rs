//! The servers of an upstream: one is picked for a request, and another one if that is of no use and it is safe.

use std::{
    future::poll_fn,
    pin::{Pin, pin},
    sync::{Arc, atomic::AtomicUsize},
    task::Poll,
    time::Duration,
};

use hyper::{
    Request, Response, StatusCode, Uri, Version,
    body::Incoming,
    header::{CONTENT_LENGTH, HOST},
};
use parking_lot::Mutex;
use tokio::{task::JoinSet, time::Instant};

use crate::config::{self, Weighted};

use super::{
    Failure, Visits, address,
    balance::{Balancer, Member, Places},
    body::{Body, Progress, Relayed},
    connection::{Connection, Unanswered},
    connector::Connector,
    headers,
    health::{self, Ejector},
    pool::{InFlight, Lease, Server},
    retry::Budget,
    timer::Timer,
    tunnel::{self, Asked, Tunnel},
    within,
};

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
    /// With HTTP/2 only connections are bounded.
    in_flight_most: usize,
    connections_most: usize,
    connect_timeout: Duration,
    response_timeout: Duration,
    idle_timeout: Duration,
    /// From one probe to the next; none if there are none.
    probe_interval: Option<Duration>,
    /// What watches the servers. It ends with this value.
    watchers: Mutex<JoinSet<()>>,
}

/// Whether a connection has had requests before.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Age {
    New,
    Kept,
}

impl Servers {
    /// Makes servers of the configuration ready. Those that `before` had, too, keep their connections and what is known
    /// of them. Must be called in a tokio runtime, by which they are watched.
    pub fn new(
        name: &str,
        servers: &[Weighted],
        config: &config::UpstreamSettings,
        before: Option<&Self>,
    ) -> Self {
        let connector = Connector::new(config, before.map(|before| &before.connector));
        // A server that is spoken to in another way is another one.
        let before = before.filter(|before| Arc::ptr_eq(&before.connector, &connector));
        let known = before.map_or(&[][..], |before| &before.members);
        let mut members = Vec::<Member>::with_capacity(servers.len());
        for Weighted { url, weight } in servers {
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
        Self {
            members,
            connector,
            balancer: Balancer::new(config.balance),
            ejector: config.eject.map(Ejector::new),
            attempts: config.retries.attempts,
            budget: Budget::new(config.retries.budget),
            in_flight: before.map(|before| before.in_flight.clone()).unwrap_or_default(),
            connections_most: config.max_connections,
            in_flight_most: if config.http2 { usize::MAX } else { config.max_connections },
            connect_timeout: config.connect_timeout,
            response_timeout: config.response_timeout,
            idle_timeout: config.idle_timeout,
            probe_interval: config.health.as_ref().map(|health| health.interval),
            watchers: Mutex::new(watchers),
        }
    }

    /// The servers, each once.
    pub fn members(&self) -> &[Member] {
        &self.members
    }

    /// Requests that may be in flight at a time, each on a connection of its own; or connections for HTTP/2.
    pub fn connections_most(&self) -> usize {
        self.connections_most
    }

    /// Ends what watches the servers.
    pub fn retire(&self) {
        self.watchers.lock().abort_all();
    }

    /// Closes this thread's connections that have idled too long.
    pub fn close_idle(&self) {
        for Member { server, .. } in &self.members {
            server.close_idle(self.idle_timeout);
        }
    }

    /// Sends a request, as [`super::Upstream::send`] does.
    ///
    /// # Errors
    /// No answer, or none in time.
    pub async fn send(
        &self,
        request: &mut Option<Request<Body>>,
        deadline: Option<Instant>,
        mut visits: Option<&mut Visits>,
    ) -> Result<Response<Body>, Failure> {
        self.budget.deposit();
        let (upload, asked, names_host) = {
            let request = request.as_mut().expect("a request is there to be sent");
            let asked = request.extensions_mut().remove::<Asked>();
            if asked.is_some() {
                tunnel::write(request.headers_mut());
            }
            (request.body().progress(), asked, request.headers().contains_key(HOST))
        };
        let mut tried = Places::new();
        let mut place = self.pick(&tried).ok_or_else(|| self.none_healthy())?;
        loop {
            let server = &self.members[place].server;
            if let Some(request) = request.as_mut().filter(|_| !names_host) {
                address_to(server, request);
            }
            let sent = Instant::now();
            if let (Some(visits), Some(request)) = (&mut visits, request.as_mut()) {
                visits.begin(server, sent, request.headers_mut());
            }
            let answered = {
                let asking = pin!(self.ask(server, request, upload.as_deref(), asked, sent));
                within(deadline, asking).await
            };
            let took = sent.elapsed();
            match &answered {
                Ok(_) => server.answers.observe_time(took),
                Err(failure) => server.failures.add(failure.kind()),
            }
            if let Some(visits) = &mut visits {
                visits.end(took, &answered);
            }
            if let Some(ejector) = &self.ejector {
                let servers = self.members.iter().map(|member| &member.server);
                ejector.note(server, answered.as_ref().map(Response::status), servers);
            }
            // Of all servers together, there are too many connections.
            let is_busy = matches!(answered, Err(Failure::Busy));
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

    /// Asks a server. The request is taken as it is sent; it is there again if it may be sent to another one. It may have
    /// asked for a tunnel.
    async fn ask(
        &self,
        server: &Arc<Server>,
        request: &mut Option<Request<Body>>,
        upload: Option<&Progress>,
        asked: Option<Asked>,
        now: Instant,
    ) -> Result<Response<Body>, Failure> {
        let in_flight = InFlight::begin(server, &self.in_flight, self.in_flight_most)?;
        let (mut kept, mut sent, mut is_again) = (server.reuse(self.idle_timeout), now, false);
        loop {
            let (age, mut connection) = match kept.take() {
                Some(kept) => (Age::Kept, kept),
                None => {
                    let deadline = Instant::now() + self.connect_timeout;
                    // In a box, lest each request keep room for what it needs once in a while.
                    let made = Box::pin(server.connect(deadline, self.idle_timeout)).await?;
                    sent = Instant::now();
                    (Age::New, made)
                }
            };
            match self.exchange(server, &mut connection, age, request, upload, sent).await {
                Ok(response) => return receive(response, Lease::new(connection, in_flight), asked),
                Err(Failure::Broken(_))
                    if request.is_some() && !is_again && self.may_renew(age, &connection) =>
                {
                    is_again = true;
                }
                Err(failure) => return Err(failure),
            }
        }
    }

    /// Whether a request that nothing was done for is sent on a new connection once more. A server may close an idle connection
    /// whenever it likes, also as a request arrives; one that refuses a stream of a new one may have too much to do.
    fn may_renew(&self, age: Age, connection: &Connection) -> bool {
        age == Age::Kept || connection.is_http2() && self.budget.withdraw()
    }

    /// Sends the request on a connection. It is there again if it may be sent once more.
    async fn exchange(
        &self,
        server: &Server,
        connection: &mut Connection,
        age: Age,
        request: &mut Option<Request<Body>>,
        upload: Option<&Progress>,
        now: Instant,
    ) -> Result<Response<Option<Incoming>>, Failure> {
        let is_idempotent = request.as_ref().is_some_and(|request| request.method().is_idempotent());
        let may_go_stale = age == Age::Kept && is_idempotent;
        let mut timer = std::mem::take(&mut connection.timer);
        let answered = {
            let answer = pin!(connection.send(request, server.url()));
            self.in_time(now, upload, &mut timer, answer).await
        };
        connection.timer = timer;
        match answered {
            Ok(Ok(response)) => Ok(response),
            Ok(Err(Unanswered { cause, is_safe })) => {
                if !(is_safe || may_go_stale && !connection.has_heard()) {
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

    /// Waits for an answer to begin: for the timeout, counted anew with each piece of the request's body, and not
    /// while the client is waited for, which the body ends if need be.
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

    /// A server that is fit and wasn't tried. If all of these are ejected, they are asked all the same.
    fn pick(&self, tried: &[usize]) -> Option<usize> {
        let is_up = |place: &usize| self.members[*place].server.condition.is_up() && !tried.contains(place);
        if self.members.len() == 1 {
            // There is nothing to choose.
            return Some(0).filter(is_up);
        }
        let is_in = |place: &usize| self.members[*place].server.condition.ejected_for().is_none();
        let up = (0..self.members.len()).filter(is_up).collect::<Places>();
        let fit = up.iter().copied().filter(is_in).collect::<Places>();
        self.balancer.pick(&self.members, if fit.is_empty() { &up } else { &fit })
    }

    fn none_healthy(&self) -> Failure {
        Failure::NoneHealthy { interval: self.probe_interval.unwrap_or_default() }
    }
}

/// Names a server in a request that names no host, in place of another one that was asked before.
fn address_to(server: &Server, request: &mut Request<Body>) {
    request.headers_mut().insert(HOST, server.host().clone());
    if request.uri().authority().is_some() {
        let path = request.uri().path_and_query().cloned();
        *request.uri_mut() = path.map(Uri::from).unwrap_or_default();
    }
}

/// The answer as it goes on to the client. Its body holds the connection until its end.
fn receive(
    response: Response<Option<Incoming>>,
    lease: Lease,
    asked: Option<Asked>,
) -> Result<Response<Body>, Failure> {
    let (mut parts, incoming) = response.into_parts();
    let body = match parts.status {
        StatusCode::SWITCHING_PROTOCOLS => Body::Tunnel(Tunnel::new(asked, &parts, lease)?.into()),
        _ => Body::Response(Relayed::new(incoming, lease).into()),
    };
    headers::towards_client(&mut parts.headers);
    if matches!(body, Body::Tunnel(_)) {
        parts.headers.remove(CONTENT_LENGTH);
        tunnel::write(&mut parts.headers);
    }
    // What the upstream speaks is its own affair; the client is answered in its version.
    parts.version = Version::HTTP_11;
    Ok(Response::from_parts(parts, body))
}
