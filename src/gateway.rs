//! The path of a request through the gateway: identify the client, plan, decide, forward.
//!
//! [`Gateway::answer`] is the entry, and `relay` the spine. A [`Gateway`] is built from a configuration (`build`). A reload
//! builds another one, which takes over the stores and the connections to upstreams; requests in flight finish with the
//! gateway they started with.

mod access_log;
mod answer_body;
mod ask;
mod build;
mod call;
pub(crate) mod client;
mod exchange;
mod hops;
pub(crate) mod jwks;
mod listing;
pub(crate) mod plan;
mod record;
mod repeats;
#[cfg(feature = "opentelemetry")]
mod spans;
#[cfg(not(feature = "opentelemetry"))]
#[path = "gateway/no_spans.rs"]
mod spans;
pub(crate) mod split;
pub(crate) mod target;

use std::{pin::pin, sync::Arc, time::Duration};

use bytes::Bytes;
use http_body::Body as _;
use hyper::{
    Method, Request, Response, StatusCode, Uri, Version,
    header::{HOST, HeaderValue, LOCATION},
    http::{request::Parts, uri::PathAndQuery},
};
use ipnet::IpNet;
use tokio::time::Instant;
use tokio_util::task::AbortOnDropHandle;
use tollgate_http1::head::{FIELDS_MOST, Unreadable};
use tollgate_limiter::{
    Admission, Limiter, RatelimitHeaders,
    fields::{Fields, Value},
};

use crate::{
    config::{Callers, RatelimitSettings},
    forward::{
        Failure, Upstream,
        headers::{self, Client, X_REQUEST_ID},
        tunnel,
    },
    reject::Rejection,
    rules::{
        self, Rule, Terms,
        key::jwt::{Claims, Verifier},
    },
    trace::{self, Tracer},
};

use self::{
    exchange::Facts,
    plan::{Aim, Plan, Planner, Route, fixed},
    record::{Ending, Record},
};

pub use self::{
    access_log::AccessLog,
    answer_body::AnswerBody,
    client::Peer,
    exchange::Traffic,
    repeats::{Describe, Repeats},
};
pub(crate) use self::{ask::CallDecision, exchange::Exchange};
pub use crate::{
    forward::{
        body::{Body, Gathered, SILENCE_LEAST, Upload},
        timer::Timer,
    },
    reject::Written,
};

/// A configuration that is ready to serve requests.
#[derive(Debug)]
pub struct Gateway {
    pub(crate) planner: Planner,
    limiter: Arc<Limiter>,
    /// Verifies the tokens of requests.
    verifier: Option<Verifier>,
    /// Fetches the keys of tokens, if an issuer publishes them.
    _key_fetches: Option<AbortOnDropHandle<()>>,
    ratelimit_headers: RatelimitHeaders,
    /// True if responses have an X-Request-Id.
    request_id: bool,
    ratelimit_service: RatelimitSettings,
    /// The upstreams in the order of their names.
    upstreams: Vec<(String, Arc<Upstream>)>,
    trusted_proxies: Vec<IpNet>,
    proxy_protocol: bool,
    /// The path at which the main listener answers health checks.
    health: Option<PathAndQuery>,
    /// The peers that may ask for decisions.
    callers: Option<Callers>,
    /// The traffic of requests without a route, then of the routes in the order of their names.
    traffic: Vec<(String, Arc<Traffic>)>,
    access_log: Option<Arc<AccessLog>>,
    tracer: Option<Tracer>,
}

impl Gateway {
    /// Answers a request from `peer`. Without `has_room`, the response is 503.
    pub async fn answer(
        self: Arc<Self>,
        peer: Peer,
        request: Request<Upload>,
        has_room: bool,
    ) -> Response<AnswerBody> {
        let (mut parts, body) = request.into_parts();
        let mut exchange = Exchange::begin(self, peer, &parts);
        if exchange.facts.is_grpc {
            body.allow_silence();
        }
        tunnel::mark_if_requested(&mut parts, !body.is_end_stream());
        match parts.version {
            Version::HTTP_2 => headers::from_http2(&mut parts.headers),
            _ => headers::join_cookie(&mut parts.headers),
        }
        let Exchange { gateway, facts } = &mut *exchange;
        gateway.remove_unforwarded(peer, &mut parts.headers);
        let answered = match has_room {
            true => gateway.relay(peer, &mut parts, body, facts).await,
            false => Err(Rejection::Overloaded),
        };
        let mut response = answered.unwrap_or_else(|rejection| gateway.reject(&rejection, facts));
        if gateway.request_id {
            facts.state_id(response.headers_mut());
        }
        if let Some(edits) = gateway.route(facts).and_then(|route| route.response_headers.as_ref()) {
            edits.apply(response.headers_mut());
        }
        exchange.answered(response)
    }

    /// Returns true if a request to the main listener is a health check of this gateway.
    pub(crate) fn is_health_check(&self, method: &Method, uri: &Uri) -> bool {
        target::is_health_check(self.health.as_ref(), method, uri)
    }

    /// Writes a new request id into an answer, if responses have one.
    fn state_new_id(&self, answer: &mut Written) {
        if self.request_id {
            Fields::insert(&mut answer.lines, X_REQUEST_ID, Value::Ready(&headers::new_request_id()));
        }
    }

    /// Answers a message that isn't a request, or has too large a head, and counts and logs it as a request without a route.
    /// `head` is what arrived of it.
    pub fn answer_unreadable(&self, peer: Peer, head: &[u8], fault: Unreadable) -> Written {
        let mut answer = Self::answer_to_unreadable(fault);
        self.state_new_id(&mut answer);
        let status = answer.status.as_u16();
        self.traffic[Self::UNROUTED].1.note(status, false, Duration::ZERO);
        if let Some(log) = &self.access_log {
            log.log(&Record::unreadable(peer, head), &Ending::unrouted(status, answer.body.len() as u64));
        }
        answer
    }

    /// Returns the answer to a message that isn't a request, or has too large a head.
    pub fn answer_to_unreadable(fault: Unreadable) -> Written {
        let rejection = match fault {
            Unreadable::Malformed => Rejection::Malformed,
            Unreadable::TooLarge => Rejection::HeadTooLarge,
            Unreadable::TargetTooLong => Rejection::TargetTooLong,
        };
        rejection.write(RatelimitHeaders::Off, None)
    }

    /// Answers a request: identifies the client, plans, lets the limits decide, and carries the plan out.
    async fn relay(
        self: &Arc<Self>,
        peer: Peer,
        parts: &mut Parts,
        body: Upload,
        facts: &mut Facts,
    ) -> Result<Response<Body>, Rejection> {
        let client = self.client(peer, &parts.headers);
        facts.identified(&client, parts);
        // HTTP/2 only bounds the bytes of a header. A map holds a limited number of fields, and some are added on the way.
        if parts.headers.len() > FIELDS_MOST {
            return Err(Rejection::HeadTooLarge);
        }
        if target::is_about_server(parts) {
            target::host(parts)?;
            return Ok(whole(fixed(StatusCode::NO_CONTENT, "", &[])));
        }
        // As `Gateway::with_claims` does, but in place, because a plan is expensive to move.
        let claims = self.claims(parts);
        let mut planned = self.planner.plan(&client, parts, &claims);
        if let Some(fetch) = claims.fetch() {
            Box::pin(jwks::wait(fetch, facts.waits_until)).await;
            planned = self.planner.plan(&client, parts, &self.claims(parts));
        }
        let plan = facts.planned(planned, parts)?;
        let Plan { route, aim, rules, terms, .. } = plan;
        let mut body = body.at_most(route.max_body).map_err(Failure::Request)?;
        body.withhold(&self.planner.fields_known);
        let admission = self.decide(&rules, terms, facts).await?;
        if let Some(admission) = admission.as_ref().filter(|admission| admission.has_leases()) {
            // The rest of a request may arrive behind its response.
            body.hold(Arc::new(admission.share_leases()));
        }
        // Pinned here, because `.await` would copy the whole future.
        let answered = pin!(self.carry_out(aim, route, &client, parts, body, facts)).await;
        let mut response = answered.unwrap_or_else(|failure| self.reject(&failure.into(), facts));
        if let Some(admission) = admission {
            facts.settle(admission, &rules, self.ratelimit_headers, &mut response);
        }
        Ok(response)
    }

    /// Plans with the claims of a request. If its token needs keys that are being fetched, it is planned when they have arrived, or at
    /// `until`.
    async fn with_claims<T>(
        &self,
        parts: &Parts,
        until: Option<Instant>,
        plan: impl Fn(&Claims<'_>) -> T,
    ) -> T {
        let claims = self.claims(parts);
        let planned = plan(&claims);
        let Some(fetch) = claims.fetch() else { return planned };
        drop(planned);
        Box::pin(jwks::wait(fetch, until)).await;
        plan(&self.claims(parts))
    }

    /// Lets the limits of a request decide: `rules::asks` pairs each limit with its keys and cost, and `rules::admit` passes them to
    /// `Limiter::acquire_within_waits_until`. `None` if the request has no limits.
    ///
    /// # Errors
    /// The refusal.
    async fn decide(
        self: &Arc<Self>,
        rules: &[Arc<Rule>],
        terms: impl IntoIterator<Item = Terms>,
        facts: &mut Facts,
    ) -> Result<Option<Admission>, Rejection> {
        if rules.is_empty() {
            return Ok(None);
        }
        facts.note_asked();
        let asks = rules::asks(rules, terms, &mut facts.decided);
        let decided = match asks {
            Ok(asks) => {
                let (arrival, end) = (facts.arrival, facts.waits_until);
                rules::admit(&self.limiter, rules, &asks, arrival, end, &mut facts.decided).await
            }
            Err(refusal) => Err(refusal),
        };
        facts.note_decided();
        Ok(Some(decided?))
    }

    /// Does what a plan says with a request that is admitted.
    async fn carry_out(
        &self,
        aim: Aim<'_>,
        route: &Route,
        client: &Client,
        parts: &mut Parts,
        body: Upload,
        facts: &mut Facts,
    ) -> Result<Response<Body>, Failure> {
        let (upstream, uri) = match aim {
            Aim::Upstream(split, uri) => (&self.upstreams[split.draw()].1, uri),
            Aim::Fixed(response) => return Ok(whole(response.clone())),
            Aim::Redirect(to, status) => return Ok(whole(fixed(status, "", &[(LOCATION, to)]))),
        };
        if let Some(response) = hops::count_down(parts) {
            return Ok(whole(response));
        }
        if self.tracer.is_some() {
            let traced = facts.record.as_ref().and_then(|record| record.visits.request_span);
            trace::propagate(&mut parts.headers, traced);
        }
        let mut request = Some(outgoing(parts, uri, body));
        // It is edited in place, because a request is expensive to move.
        if let Some(request) = &mut request {
            let id = facts.take_id();
            headers::towards_upstream(request.headers_mut(), client, parts.version, id.clone());
            facts.sending(route.edit(request, id));
        }
        let deadline = route.timeout.map(|timeout| Instant::now() + timeout);
        upstream.send(&mut request, deadline, facts.record.as_mut().map(|record| &mut record.visits)).await
    }

    /// Returns the route that a request took.
    fn route(&self, facts: &Facts) -> Option<&Route> {
        facts.route.and_then(|place| self.planner.routes.get(place))
    }

    /// Returns the response of a rejected request.
    fn reject(&self, rejection: &Rejection, facts: &mut Facts) -> Response<Body> {
        facts.is_refused = matches!(rejection, Rejection::Refused(_));
        if !facts.is_refused {
            facts.failed(rejection.summary().1);
        }
        let on_limit = self.route(facts).and_then(|route| route.on_limit.as_ref());
        let (is_grpc, form, mut response) = (facts.is_grpc, self.ratelimit_headers, Response::default());
        let (status, body) = match facts.lines() {
            // Of HTTP/1.1, whose connection takes the lines from the exchange.
            Some(lines) => rejection.answer(is_grpc, form, on_limit, lines),
            None => rejection.answer(is_grpc, form, on_limit, response.headers_mut()),
        };
        *response.status_mut() = status;
        response.map(|()| Body::Whole(Some(body)))
    }
}

/// Returns the request to the upstream: the same method and header, and the target as it is forwarded.
fn outgoing(parts: &mut Parts, uri: Option<Uri>, body: Upload) -> Request<Body> {
    if let Some(authority) = parts.uri.authority() {
        // A full URL as the target overrides Host (RFC 9112, section 3.2.2).
        let host = HeaderValue::from_str(authority.as_str()).expect("an authority is visible ASCII");
        parts.headers.insert(HOST, host);
    }
    let mut request = Request::new(Body::Request(body));
    *request.method_mut() = parts.method.clone();
    *request.uri_mut() = uri.unwrap_or_else(|| std::mem::take(&mut parts.uri));
    *request.version_mut() = parts.version;
    *request.headers_mut() = std::mem::take(&mut parts.headers);
    // They hold the spelling of the header names.
    *request.extensions_mut() = std::mem::take(&mut parts.extensions);
    request
}

/// Returns a response with a body that is complete.
fn whole(response: Response<Bytes>) -> Response<Body> {
    response.map(|body| Body::Whole(Some(body)))
}
