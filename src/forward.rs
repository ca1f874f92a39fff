//! Forwarding takes an admitted request to a server of its upstream and streams the answer back.
//!
//! An [`Upstream`] picks one of its servers that are fit ([`health`]) by its [`balance`], and the [`pool`] gives a
//! connection to it. Bodies stream in both directions and are never held whole: one side is read as the other
//! takes what came before. What is safe to send again ([`retry`]) goes to a new connection if a kept one was
//! closed by the server, and to another server if the first can't be reached; nothing else is sent twice.

pub mod address;
pub mod balance;
pub mod body;
pub mod connection;
pub mod connector;
mod echo;
mod failure;
pub mod headers;
pub mod health;
pub mod hints;
pub mod pool;
pub mod retry;
pub mod servers;
pub mod timer;
pub mod tunnel;

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

use self::{balance::Member, body::Body, pool::Server, servers::Servers};

pub use self::failure::Failure;

/// Where a route's requests go.
#[derive(Debug)]
pub enum Upstream {
    /// Servers reached over the network.
    Servers(Box<Servers>),
    /// The built-in service that answers with what it was sent.
    Echo,
}

/// Which servers were asked for an answer, in turn, for who wants to know.
#[derive(Debug)]
pub struct Visits {
    /// The span of the request, if it is traced: each server is told a span within it.
    pub within: Option<Context>,
    /// The last one may not have ended.
    pub list: SmallVec<[Visit; 1]>,
}

/// A server that was asked, and how that ended.
#[derive(Debug)]
pub struct Visit {
    /// `host:port`.
    pub server: String,
    /// What it was told of the request's trace.
    pub span: Option<Context>,
    /// When it began to be asked.
    pub sent: Instant,
    /// How long it took to the head of the answer, with this status, or to a failure of this kind.
    pub ended: Option<(Duration, Result<StatusCode, &'static str>)>,
}

impl Visits {
    /// A server is asked now.
    fn begin(&mut self, server: &Server, sent: Instant, header: &mut HeaderMap) {
        let span = self.within.map(|request| request.child());
        // Unless it is to be told nothing.
        if let (Some(span), Some(told)) = (span, header.get_mut(TRACEPARENT)) {
            *told = span.to_field();
        }
        self.list.push(Visit { server: server.url().name(), span, sent, ended: None });
    }

    /// It has answered, or failed.
    fn end<B>(&mut self, took: Duration, answered: &Result<Response<B>, Failure>) {
        if let Some(visit) = self.list.last_mut() {
            visit.ended = Some((took, answered.as_ref().map(Response::status).map_err(Failure::kind)));
        }
    }
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
    /// what is known of them. Must be called in a tokio runtime, by which servers are watched.
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

    /// Ends what watches its servers, another upstream having taken its place. Requests in flight go on.
    pub fn retire(&self) {
        if let Self::Servers(servers) = self {
            servers.retire();
        }
    }

    /// What is known of its servers.
    pub fn standings(&self) -> impl Iterator<Item = Standing<'_>> {
        let members = match self {
            Self::Servers(servers) => servers.members(),
            Self::Echo => &[],
        };
        members.iter().map(|Member { server, weight }| Standing {
            server,
            weight: *weight,
            is_up: server.condition.is_up(),
            ejected_for: server.condition.ejected_for(),
        })
    }

    /// Sends a request whose header is ready for the upstream, and gives the answer as it begins, which has to end by
    /// the deadline. Who wants to know which servers were asked is told in `visits`.
    ///
    /// The request is taken from its place when it is sent: it is large, and moved no more often than it must be.
    ///
    /// # Errors
    /// No answer, or none in time.
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

    /// Requests that may be in flight at a time, each on a connection of its own.
    pub fn connections_most(&self) -> usize {
        match self {
            Self::Servers(servers) => servers.connections_most(),
            Self::Echo => 0,
        }
    }

    /// Closes this thread's connections that have idled too long.
    pub fn close_idle(&self) {
        if let Self::Servers(servers) = self {
            servers.close_idle();
        }
    }
}

/// An answer that begins by the deadline, if there is one.
async fn within<T>(
    deadline: Option<Instant>,
    answer: Pin<&mut impl Future<Output = Result<T, Failure>>>,
) -> Result<T, Failure> {
    match deadline {
        Some(deadline) => timeout_at(deadline, answer).await.unwrap_or(Err(Failure::ExchangeTimeout)),
        None => answer.await,
    }
}

/// Writes the metrics of upstreams, by name.
pub fn write_metrics(page: &mut Page<'_>, upstreams: &[(String, Arc<Upstream>)]) {
    let mut servers = Vec::new();
    for (upstream, target) in upstreams {
        let Upstream::Servers(target) = &**target else { continue };
        for Member { server, .. } in target.members() {
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
