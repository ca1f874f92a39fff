//! A request and its response, from arrival until the response's body has ended or broken off. Then it is counted and
//! logged.

use std::{sync::Arc, time::Duration};

use http_body::Body as _;
use hyper::{HeaderMap, Response, StatusCode, Version, header::HeaderValue, http::request::Parts};
use tokio::time::Instant;
use tollgate_limiter::{
    Admission, RatelimitHeaders,
    fields::{self, Fields, Value},
    grpc,
    metrics::{Counts, Distribution, Histogram},
};

use crate::{
    forward::{
        body::Body,
        headers::{self, Client, X_REQUEST_ID},
    },
    metrics::{CountsByStatus, STATUS_CLASSES},
    reject::{LINES_BYTES, Rejection},
    rules::{self, Rule, Settlement},
};

use super::{
    AnswerBody, Gateway, Peer, client,
    plan::{Plan, Unplanned},
    record::{Ending, Record},
    spans,
};

/// The counts of a route's requests.
#[derive(Debug)]
pub struct Traffic {
    pub(super) answers: CountsByStatus,
    /// The requests that limits refused.
    pub(super) refused: Counts,
    pub(super) durations: Histogram,
}

impl Traffic {
    /// Counts a request that has ended with this status.
    pub(super) fn note(&self, status: u16, is_refused: bool, duration: Duration) {
        self.answers.add(status);
        if is_refused {
            self.refused.add(0);
        }
        self.durations.observe_time(duration);
    }

    /// Returns the numbers of responses, in the order of [`STATUS_CLASSES`].
    pub fn answers(&self) -> [u64; STATUS_CLASSES.len()] {
        self.answers.sums()
    }

    /// Returns the number of requests that limits refused.
    pub fn refused(&self) -> u64 {
        self.refused.sum(0)
    }

    /// Returns the durations.
    pub fn durations(&self) -> Distribution {
        self.durations.read()
    }
}

impl Default for Traffic {
    fn default() -> Self {
        Self { answers: CountsByStatus::default(), refused: Counts::new(1), durations: Histogram::of_times() }
    }
}

/// The status that is logged if the client left before the response, as nginx does.
const CLIENT_LEFT: u16 = 499;

/// A request and its response. Dropping it counts and logs the request.
#[derive(Debug)]
pub(crate) struct Exchange {
    pub(super) gateway: Arc<Gateway>,
    pub(super) facts: Facts,
}

/// The facts about a request and its response, collected while it is processed.
#[derive(Debug)]
pub(super) struct Facts {
    pub(super) arrival: Instant,
    /// The time at which its caller gives up waiting, if the caller states one.
    pub(super) waits_until: Option<Instant>,
    /// True for a gRPC call.
    pub(super) is_grpc: bool,
    /// The index of the route that the request took, once that is known.
    pub(super) route: Option<usize>,
    /// The record for the access log or the trace, if either needs one. `decided` has the limits' decisions for it.
    pub(super) record: Option<Box<Record>>,
    pub(super) decided: rules::DecisionLog,
    /// The costs to record and leases to release when the response ends.
    pub(super) settlement: Option<Box<Settlement>>,
    /// Header lines of the response, in addition to its fields. `None` if all must be fields.
    pub(super) lines: Option<Vec<u8>>,
    /// The id with which the request is forwarded, or would be. `None` until it is known.
    request_id: Option<HeaderValue>,
    /// True if a limit refused the request.
    pub(super) is_refused: bool,
    pub(super) delivery: Delivery,
}

/// The progress of a response.
#[derive(Debug)]
pub(super) enum Delivery {
    /// There is no response yet.
    Pending,
    /// The head was passed on, and this many bytes of the body. `is_whole` is true once the body has ended.
    Begun { status: StatusCode, bytes: u64, is_whole: bool },
    /// The request was counted and logged.
    Recorded,
}

impl Facts {
    /// Returns the header lines of the response. The first ones make room for the others.
    pub(super) fn lines(&mut self) -> Option<&mut Vec<u8>> {
        let lines = self.lines.as_mut()?;
        if lines.is_empty() {
            lines.reserve(LINES_BYTES);
        }
        Some(lines)
    }
}

/// Notes of a request on its way. The record exists only if an access log or a trace needs it.
impl Facts {
    /// Notes the client.
    pub(super) fn identified(&mut self, client: &Client, parts: &Parts) {
        self.request_id =
            client.peer_is_trusted.then(|| headers::request_id(&parts.headers).cloned()).flatten();
        if let Some(record) = &mut self.record {
            record.identify(client, self.request_id.clone());
        }
    }

    /// Notes the route of a request, also if it is rejected.
    pub(super) fn planned<'g>(
        &mut self,
        planned: Result<Plan<'g>, Unplanned<'g>>,
        parts: &Parts,
    ) -> Result<Plan<'g>, Rejection> {
        let route = match &planned {
            Ok(plan) => Some(plan.route),
            Err(unplanned) => unplanned.route,
        };
        if let Some(route) = route {
            self.route = Some(route.place);
            if route.response_headers.is_some() {
                // Edits apply to a map of header fields.
                self.lines = None;
            }
        }
        let plan = planned.map_err(|unplanned| unplanned.rejection)?;
        if let Some(record) = &mut self.record {
            record.note_route(parts, plan.pattern);
        }
        Ok(plan)
    }

    /// Notes that the limits are asked now.
    pub(super) fn note_asked(&mut self) {
        if let Some(record) = &mut self.record {
            record.asked_at = Some(Instant::now());
        }
    }

    /// Notes that the limits have decided.
    pub(super) fn note_decided(&mut self) {
        if let Some(record) = &mut self.record {
            record.decided_at = Some(Instant::now());
        }
    }

    /// Takes the id of the request, or gives it a new one.
    pub(super) fn take_id(&mut self) -> HeaderValue {
        self.request_id.take().unwrap_or_else(headers::new_request_id)
    }

    /// Notes the id with which a request goes to its upstream.
    pub(super) fn sending(&mut self, id: Option<HeaderValue>) {
        if let (Some(record), Some(id)) = (&mut self.record, &id) {
            record.note_id(id);
        }
        self.request_id = id;
    }

    /// Notes the code of the reason why the gateway answers itself.
    pub(super) fn failed(&mut self, code: &'static str) {
        if let Some(record) = &mut self.record {
            record.error = Some(code);
        }
    }

    /// Writes the request's id into its response, in place of one that the upstream states.
    pub(super) fn state_id(&mut self, fields: &mut HeaderMap) {
        let id = self.take_id();
        if let Some(record) = &mut self.record {
            record.note_id(&id);
        }
        match self.lines() {
            Some(lines) if !fields.contains_key(X_REQUEST_ID) => {
                Fields::insert(lines, X_REQUEST_ID, Value::Ready(&id));
            }
            _ => drop(fields.insert(X_REQUEST_ID, id)),
        }
    }

    /// Adds the RateLimit fields to a response, and records the costs that it states. The rest of the admission is kept until the
    /// response has ended.
    pub(super) fn settle(
        &mut self,
        admission: Admission,
        rules: &[Arc<Rule>],
        form: RatelimitHeaders,
        response: &mut Response<Body>,
    ) {
        let standings = admission.standings();
        match self.lines() {
            // The legacy fields may have to replace fields of the upstream.
            Some(lines) if form == RatelimitHeaders::Draft11 => fields::write(lines, standings, form),
            _ => fields::write(response.headers_mut(), standings, form),
        }
        let settlement = Settlement::begin(admission, rules, response.status(), response.headers());
        self.settlement = settlement.map(Box::new);
    }
}

impl Exchange {
    /// Begins the exchange of a request that has just arrived. Boxed, because it moves with the response.
    pub(crate) fn begin(gateway: Arc<Gateway>, peer: Peer, request: &Parts) -> Box<Self> {
        let arrival = Instant::now();
        let is_trusted = || client::is_trusted(peer.address, &gateway.trusted_proxies);
        let traced = gateway.tracer.as_ref().and_then(|tracer| tracer.sample(&request.headers, is_trusted));
        let is_observed = gateway.access_log.is_some() || traced.is_some();
        let facts = Facts {
            arrival,
            waits_until: None,
            is_grpc: grpc::is_call(&request.headers),
            route: None,
            record: is_observed.then(|| Box::new(Record::begin(peer, request, arrival, traced))),
            decided: is_observed.then(Vec::new),
            settlement: None,
            lines: (request.version < Version::HTTP_2).then(Vec::new),
            request_id: None,
            is_refused: false,
            delivery: Delivery::Pending,
        };
        Box::new(Self { gateway, facts })
    }

    /// Begins the exchange of a request that a call describes. Its client may speak gRPC, but the answer is the caller's, and must not
    /// depend on a field of the client.
    pub(crate) fn begin_described(gateway: Arc<Gateway>, peer: Peer, request: &Parts) -> Box<Self> {
        let mut exchange = Self::begin(gateway, peer, request);
        exchange.facts.is_grpc = false;
        exchange
    }

    /// Returns the response. Its body ends the exchange.
    pub(super) fn answered(mut self: Box<Self>, response: Response<Body>) -> Response<AnswerBody> {
        let status = response.status();
        let has_none = matches!(status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED);
        let is_whole = has_none || response.body().size_hint().exact() == Some(0);
        self.facts.delivery = Delivery::Begun { status, bytes: 0, is_whole };
        if status == StatusCode::SWITCHING_PROTOCOLS {
            // The trace doesn't wait for the end of a tunnel.
            self.trace(&self.end_at(Instant::now()));
        }
        response.map(|body| AnswerBody::new(body, self))
    }

    /// Returns the outcome, if the exchange ends now.
    fn end_at(&self, now: Instant) -> Ending<'_> {
        let facts = &self.facts;
        let (status, bytes, is_whole) = match facts.delivery {
            Delivery::Begun { status, bytes, is_whole } => (Some(status), bytes, is_whole),
            Delivery::Pending | Delivery::Recorded => (None, 0, false),
        };
        Ending {
            status: status.map_or(CLIENT_LEFT, |status| status.as_u16()),
            is_answered: status.is_some(),
            bytes,
            duration: now.saturating_duration_since(facts.arrival),
            is_whole,
            route: &self.traffic().0,
            decided: facts.decided.as_deref().unwrap_or_default(),
        }
    }

    /// Returns the name and counts of the request's route.
    fn traffic(&self) -> &(String, Arc<Traffic>) {
        let route = self.gateway.route(&self.facts);
        &self.gateway.traffic[route.map_or(Gateway::UNROUTED, |route| route.traffic)]
    }

    /// Counts and logs the request.
    pub(super) fn end(&mut self, now: Instant) {
        let (Self { gateway, facts }, end) = (&*self, self.end_at(now));
        self.traffic().1.note(end.status, facts.is_refused, end.duration);
        if let (Some(log), Some(record)) = (&gateway.access_log, &facts.record) {
            log.log(record, &end);
        }
        if end.status != StatusCode::SWITCHING_PROTOCOLS {
            self.trace(&end);
        }
        self.facts.delivery = Delivery::Recorded;
    }

    /// Exports the spans of the request, if it is traced.
    fn trace(&self, end: &Ending<'_>) {
        if let (Some(tracer), Some(record)) = (&self.gateway.tracer, &self.facts.record)
            && let Some(span) = record.visits.request_span
        {
            tracer.send(spans::of(record, span, end));
        }
    }
}

impl Drop for Exchange {
    fn drop(&mut self) {
        if !matches!(self.facts.delivery, Delivery::Recorded) {
            self.end(Instant::now());
        }
    }
}
