//! Forwards admitted requests to a server of their upstream, and streams the responses back.
//!
//! An [`Upstream`] picks a healthy server ([`health`]) with its [`balance`], and the [`pool`] provides a
//! connection to it. Bodies are streamed in both directions and never buffered whole. A request that may
//! safely be sent again ([`retry`]) goes to a new connection if the server had closed the reused one, and to
//! another server if the first can't be reached.

pub(crate) mod address;
pub(crate) mod balance;
pub(crate) mod body;
pub(crate) mod connection;
pub(crate) mod connector;
mod echo;
mod failure;
pub mod headers;
pub(crate) mod health;
pub(crate) mod hints;
pub(crate) mod outage;
pub(crate) mod pool;
pub(crate) mod retry;
pub(crate) mod servers;
pub(crate) mod timer;
pub(crate) mod tunnel;

use std::{
    pin::{Pin, pin},
    sync::Arc,
    time::Duration,
};

use hyper::{HeaderMap, Request, Response, StatusCode};
use smallvec::SmallVec;
use tokio::time::{Instant, timeout_at};
use tollgate_limiter::metrics::Page;

use crate::{
    config::{self, Target},
    trace::{Context, context::TRACEPARENT},
};

use self::{balance::Member, body::Body, pool::UpstreamServer, servers::Servers};

pub(crate) use self::connection::can_be_encoded;
pub use self::failure::Failure;

/// The target of a route's requests.
#[derive(Debug)]
pub enum Upstream {
    /// Servers reached over the network.
    Servers(Box<Servers>),
    /// The built-in service that describes the request in its response.
    Echo,
}

/// The servers that were tried for a request, in order. Recorded for the access log and traces.
#[derive(Debug)]
pub struct Visits {
    /// The span of the request, if it is traced. Each visit gets a child span.
    pub request_span: Option<Context>,
    /// The visits. The last one may still be in progress.
    pub list: SmallVec<[Visit; 1]>,
}

/// An attempt to get a response from a server.
#[derive(Debug)]
pub struct Visit {
    /// `host:port`.
    pub server: String,
    /// The span that the server was given in `traceparent`.
    pub span: Option<Context>,
    /// The time when the attempt began.
    pub sent: Instant,
    /// The time until the head of the response, with its status, or until a failure, with its kind.
    pub ended: Option<(Duration, Result<StatusCode, &'static str>)>,
}

impl Visits {
    /// Records that a server is tried now.
    fn begin(&mut self, server: &UpstreamServer, sent: Instant, header: &mut HeaderMap) {
        let span = self.request_span.map(|request| request.child());
        // A route may have removed the header.
        if let (Some(span), Some(traceparent)) = (span, header.get_mut(TRACEPARENT)) {
            *traceparent = span.to_field();
        }
        self.list.push(Visit { server: server.url().name(), span, sent, ended: None });
    }

    /// Records the result of the last visit.
    fn end<B>(&mut self, took: Duration, answered: &Result<Response<B>, Failure>) {
        if let Some(visit) = self.list.last_mut() {
            visit.ended = Some((took, answered.as_ref().map(Response::status).map_err(Failure::kind)));
        }
    }
}

/// The state of a server of an upstream.
#[derive(Debug)]
pub struct ServerStatus<'s> {
    /// The server.
    pub server: &'s UpstreamServer,
    /// The weight. A server's share is its weight divided by the sum of all weights.
    pub weight: u32,
    /// True if the server passes its probes, or if there are none.
    pub is_up: bool,
    /// The time for which the server is still ejected because of failures.
    pub ejected_for: Option<Duration>,
    /// True if the server takes requests, and has answered the last one.
    pub is_healthy: bool,
}

impl Upstream {
    /// Creates an upstream from the configuration. Servers that are also in `before` keep their connections
    /// and their state. Must be called in a tokio runtime, which then runs the health checks and resolves names.
    pub fn new(name: &str, config: &config::UpstreamSettings, before: Option<&Self>) -> Self {
        let before = match before {
            Some(Self::Servers(before)) => Some(&**before),
            _ => None,
        };
        match &config.target {
            Target::Servers(servers) => Self::Servers(Servers::new(name, servers, config, before).into()),
            Target::Echo => Self::Echo,
        }
    }

    /// Stops the health checks and the resolution of names after another upstream has replaced this one. Requests in flight continue.
    pub fn retire(&self) {
        if let Self::Servers(servers) = self {
            servers.retire();
        }
    }

    /// Returns the state of each server.
    pub fn standings(&self) -> impl Iterator<Item = ServerStatus<'_>> {
        let members = match self {
            Self::Servers(servers) => servers.members(),
            Self::Echo => &[],
        };
        members.iter().map(|Member { server, weight }| ServerStatus {
            server,
            weight: *weight,
            is_up: server.condition.is_up(),
            ejected_for: server.condition.ejected_for(),
            is_healthy: server.is_healthy(),
        })
    }

    /// Sends a request whose header is ready for the upstream. Returns the response when its head has
    /// arrived; it must be complete by the deadline. The servers tried are recorded in `visits`.
    ///
    /// The request is passed in its place and taken when it is sent, because it is large and moving it costs
    /// time.
    ///
    /// # Errors
    /// There is no response, or not in time.
    pub async fn send(
        &self,
        request: &mut Option<Request<Body>>,
        deadline: Option<Instant>,
        visits: Option<&mut Visits>,
    ) -> Result<Response<Body>, Failure> {
        match self {
            Self::Servers(servers) => servers.send(request, deadline, visits).await,
            Self::Echo => {
                let request = request.take().expect("a request is there to be sent");
                within(deadline, pin!(echo::answer(request))).await
            }
        }
    }

    /// Returns the most connections with this number of workers.
    pub fn connections_most(&self, workers: usize) -> usize {
        match self {
            Self::Servers(servers) => servers.connections_most(workers),
            Self::Echo => 0,
        }
    }

    /// Closes this thread's connections that have been idle too long.
    pub fn close_idle(&self) {
        if let Self::Servers(servers) = self {
            servers.close_idle();
        }
    }
}

/// Waits for a response until the deadline, if there is one.
async fn within<T>(
    deadline: Option<Instant>,
    answer: Pin<&mut impl Future<Output = Result<T, Failure>>>,
) -> Result<T, Failure> {
    match deadline {
        Some(deadline) => timeout_at(deadline, answer).await.unwrap_or(Err(Failure::ExchangeTimeout)),
        None => answer.await,
    }
}

/// Returns the servers of upstreams, with the names of both.
pub(crate) fn servers_of(upstreams: &[(String, Arc<Upstream>)]) -> Vec<(&str, String, &Arc<UpstreamServer>)> {
    let mut servers = Vec::new();
    for (upstream, target) in upstreams {
        let Upstream::Servers(target) = &**target else { continue };
        for Member { server, .. } in target.members() {
            servers.push((upstream.as_str(), server.url().name(), server));
        }
    }
    servers
}

/// Writes the metrics of upstreams, by name.
pub fn write_metrics(page: &mut Page<'_>, upstreams: &[(String, Arc<Upstream>)]) {
    let servers = servers_of(upstreams);
    let servers = || {
        let labels = |upstream, name| [("upstream", upstream), ("server", name)];
        servers.iter().map(move |(upstream, name, server)| (labels(*upstream, name.as_str()), *server))
    };
    page.gauges(
        "tollgate_upstream_requests_in_flight",
        "Requests in flight to the server",
        servers().map(|(labels, server)| (labels, server.in_flight())),
    );
    page.gauges(
        "tollgate_upstream_healthy",
        "1 if the server passes its probes, isn't ejected, and hasn't failed its last request within ten minutes; otherwise 0",
        servers().map(|(labels, server)| (labels, u32::from(server.is_healthy()))),
    );
    page.histograms(
        "tollgate_upstream_response_seconds",
        "Time from sending a request to a server to the head of its response, including the time to connect",
        servers().map(|(labels, server)| (labels, &server.answers)),
    );
    page.counters(
        "tollgate_upstream_responses",
        "Responses of the server, by class of their status",
        servers().filter(|(_, server)| server.statuses.have_counted()).flat_map(
            |([upstream, name], server)| {
                server.statuses.iter().map(move |(class, count)| ([upstream, name, ("status", class)], count))
            },
        ),
    );
    write_failures(page, upstreams, servers());
}

/// Writes how many requests had no response, by server.
fn write_failures<'a>(
    page: &mut Page<'_>,
    upstreams: &'a [(String, Arc<Upstream>)],
    servers: impl Iterator<Item = ([(&'a str, &'a str); 2], &'a Arc<UpstreamServer>)>,
) {
    let without_server = upstreams.iter().filter_map(|(upstream, target)| match &**target {
        Upstream::Servers(target) => Some((upstream, target.without_healthy())),
        Upstream::Echo => None,
    });
    let without_server = without_server.filter(|(_, count)| *count > 0).map(|(upstream, count)| {
        ([("upstream", upstream.as_str()), ("server", ""), ("kind", "unhealthy")], count)
    });
    page.counters(
        "tollgate_upstream_failures",
        "Requests without a response from the server, by cause; without a server, if none was healthy",
        servers
            .flat_map(|([upstream, name], server)| {
                server.failures.iter().map(move |(kind, count)| ([upstream, name, ("kind", kind)], count))
            })
            .chain(without_server),
    );
}
