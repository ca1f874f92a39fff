//! A request and its answer, from arrival until the answer's body has ended or broken off: then it is counted,
//! and written to the access log.

use std::{
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::Bytes;
use http_body::{Body as HttpBody, Frame, SizeHint};
use hyper::{HeaderMap, Response, StatusCode, Version, http::request::Parts};
use tokio::time::Instant;
use tollgate_limiter::{
    Admission, RatelimitHeaders, fields, grpc,
    metrics::{Counts, Distribution, Histogram},
};

use crate::{
    forward::{body::Body, headers::Client},
    reject::{LINES_BYTES, Rejection},
    rules::{self, Rule, Settlement},
};
use tollgate_http1::Stream;
use tollgate_http1::head::Spelling;

use super::{
    Gateway, Peer, client,
    entry::{End, Entry},
    plan::{Plan, Unplanned},
    refused::Refused,
    spans,
};

/// The requests of a route.
#[derive(Debug)]
pub struct Traffic {
    /// By [`STATUS_CLASSES`].
    pub(super) answers: Counts,
    /// By limits.
    pub(super) refused: Counts,
    pub(super) durations: Histogram,
}

impl Traffic {
    /// Counts a request that has ended with this status.
    pub(super) fn note(&self, status: u16, is_refused: bool, duration: Duration) {
        self.answers.add(usize::from((status / 100).clamp(1, 5) - 1));
        if is_refused {
            self.refused.add(0);
        }
        self.durations.observe_time(duration);
    }

    /// How many there were, by [`STATUS_CLASSES`].
    pub fn answers(&self) -> [u64; STATUS_CLASSES.len()] {
        std::array::from_fn(|class| self.answers.sum(class))
    }

    /// How many of them limits refused.
    pub fn refused(&self) -> u64 {
        self.refused.sum(0)
    }

    /// How long they took.
    pub fn durations(&self) -> Distribution {
        self.durations.read()
    }
}

impl Default for Traffic {
    fn default() -> Self {
        let (answers, refused) = (Counts::new(STATUS_CLASSES.len()), Counts::new(1));
        Self { answers, refused, durations: Histogram::of_times() }
    }
}

/// What metrics call the classes of status codes that an answer can have.
pub const STATUS_CLASSES: [&str; 5] = ["1xx", "2xx", "3xx", "4xx", "5xx"];

/// The client left before there was an answer. (nginx's, and known to what reads logs.)
const CLIENT_LEFT: u16 = 499;

/// A request and its answer.
#[derive(Debug)]
pub(crate) struct Exchange {
    pub(super) gateway: Arc<Gateway>,
    pub(super) facts: Facts,
}

/// What is known of a request and its answer.
#[derive(Debug)]
pub(super) struct Facts {
    pub(super) arrival: Instant,
    /// It is a call of gRPC.
    pub(super) is_grpc: bool,
    /// The index of the route that the request took, once that is known.
    pub(super) route: Option<usize>,
    /// The index of the route's traffic.
    pub(super) traffic: usize,
    /// If there is an access log, or the request is traced: what will be told of it, and what limits decided.
    pub(super) entry: Option<Box<Entry>>,
    pub(super) decided: rules::Log,
    /// What the answer still owes its limits, and holds of them.
    pub(super) settlement: Option<Box<Settlement>>,
    /// Lines of the answer's head, beside its fields; none if all has to be in these.
    pub(super) lines: Option<Vec<u8>>,
    /// A limit refused it.
    pub(super) is_refused: bool,
    /// By what it can be refused again.
    pub(super) refused: Option<Box<Refused>>,
    status: Option<StatusCode>,
    /// Of the answer's body, so far.
    bytes: u64,
    /// There is no more of it.
    is_whole: bool,
    /// It has been counted.
    has_ended: bool,
}

impl Facts {
    /// The lines of the answer's head, with room for what limits say.
    pub(super) fn lines(&mut self) -> Option<&mut Vec<u8>> {
        let lines = self.lines.as_mut()?;
        lines.reserve(LINES_BYTES);
        Some(lines)
    }
}

/// Observations of a request on its way. The entry is only there if an access log or a trace needs it.
impl Facts {
    /// Notes the client.
    pub(super) fn identified(&mut self, client: &Client, parts: &Parts) {
        if let Some(entry) = &mut self.entry {
            entry.identify(client, &parts.headers);
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
            (self.route, self.traffic) = (Some(route.place), route.traffic);
            if route.response_headers.is_some() {
                // Edits apply to a map of header fields.
                self.lines = None;
            }
        }
        let plan = planned.map_err(|unplanned| unplanned.rejection)?;
        if let Some(entry) = &mut self.entry {
            entry.note_route(parts, plan.pattern);
        }
        Ok(plan)
    }

    /// Notes that the limits are asked now.
    pub(super) fn asking(&mut self) {
        if let Some(entry) = &mut self.entry {
            entry.asked_at = Some(Instant::now());
        }
    }

    /// Notes that the limits have decided.
    pub(super) fn decided(&mut self) {
        if let Some(entry) = &mut self.entry {
            entry.decided_at = Some(Instant::now());
        }
    }

    /// Notes the id with which a request goes to its upstream.
    pub(super) fn sending(&mut self, headers: &HeaderMap) {
        if let Some(entry) = &mut self.entry {
            entry.note_id(headers);
        }
    }

    /// Adds the RateLimit fields to a response, and records the costs that it states. The rest of the admission is kept until the
    /// response has ended.
    pub(super) fn settle(
        &mut self,
        admission: Admission,
        limits: &[Arc<Rule>],
        form: RatelimitHeaders,
        response: &mut Response<Body>,
    ) {
        let standings = admission.standings();
        match self.lines() {
            // The legacy fields may have to replace fields of the upstream.
            Some(lines) if form == RatelimitHeaders::Draft11 => fields::write(lines, standings, form),
            _ => fields::write(response.headers_mut(), standings, form),
        }
        let settlement = Settlement::begin(admission, limits, response.status(), response.headers());
        self.settlement = settlement.map(Box::new);
    }
}

impl Exchange {
    /// With a request that has just arrived.
    pub(crate) fn begin(gateway: Arc<Gateway>, peer: Peer, request: &Parts) -> Self {
        let arrival = Instant::now();
        let is_trusted = || client::is_trusted(peer.address, &gateway.trusted_proxies);
        let traced = gateway.tracer.as_ref().and_then(|tracer| tracer.sample(&request.headers, is_trusted));
        let is_told = gateway.access_log.is_some() || traced.is_some();
        let facts = Facts {
            arrival,
            is_grpc: grpc::is_call(&request.headers),
            route: None,
            traffic: Gateway::UNROUTED,
            entry: is_told.then(|| Box::new(Entry::begin(peer, request, arrival, traced))),
            decided: is_told.then(Vec::new),
            settlement: None,
            lines: (request.version < Version::HTTP_2).then(Vec::new),
            is_refused: false,
            refused: None,
            status: None,
            bytes: 0,
            is_whole: false,
            has_ended: false,
        };
        Self { gateway, facts }
    }

    /// The answer, whose body ends it.
    pub(super) fn answered(mut self, response: Response<Body>) -> Response<AnswerBody> {
        let status = response.status();
        self.facts.status = Some(status);
        let has_none = matches!(status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED);
        self.facts.is_whole = has_none || response.body().size_hint().exact() == Some(0);
        if status == StatusCode::SWITCHING_PROTOCOLS {
            // No trace waits for the end of a tunnel.
            self.trace(&self.end_at(Instant::now()));
        }
        response.map(|body| AnswerBody { body, exchange: Some(self) })
    }

    /// How it ends then.
    fn end_at(&self, now: Instant) -> End<'_> {
        let Self { gateway, facts } = self;
        End {
            status: facts.status.map_or(CLIENT_LEFT, |status| status.as_u16()),
            is_answered: facts.status.is_some(),
            bytes: facts.bytes,
            duration: now.saturating_duration_since(facts.arrival),
            is_whole: facts.is_whole,
            route: &gateway.traffic[facts.traffic].0,
            decided: facts.decided.as_deref().unwrap_or_default(),
        }
    }

    /// Counts it, and tells of it, as it ends now.
    fn end(&mut self, now: Instant) {
        self.facts.has_ended = true;
        let (Self { gateway, facts }, end) = (&*self, self.end_at(now));
        let (_, traffic) = &gateway.traffic[facts.traffic];
        traffic.note(end.status, facts.is_refused, end.duration);
        if let (Some(log), Some(entry)) = (&gateway.access_log, &facts.entry) {
            log.log(entry, &end);
        }
        if facts.status != Some(StatusCode::SWITCHING_PROTOCOLS) {
            self.trace(&end);
        }
    }

    /// Has its spans sent, if it is traced.
    fn trace(&self, end: &End<'_>) {
        if let (Some(tracer), Some(entry)) = (&self.gateway.tracer, &self.facts.entry)
            && let Some(span) = entry.visits.within
        {
            tracer.send(spans::of(entry, span, end));
        }
    }
}

impl Drop for Exchange {
    fn drop(&mut self) {
        if !self.facts.has_ended {
            self.end(Instant::now());
        }
    }
}

/// The body of an answer on its way to the client.
#[derive(Debug)]
pub struct AnswerBody {
    body: Body,
    /// `None` for answers that aren't recorded.
    exchange: Option<Exchange>,
}

impl AnswerBody {
    /// Returns the body of an answer that is neither counted nor logged.
    pub(crate) fn unrecorded(body: Body) -> Self {
        Self { body, exchange: None }
    }

    /// Replaces a body that is whole by another one, which may hold it.
    #[must_use]
    pub(crate) fn replaced(mut self, by: impl FnOnce(Bytes) -> Body) -> Self {
        let whole = if let Body::Whole(bytes) = &mut self.body { bytes.take() } else { None };
        self.body = by(whole.unwrap_or_default());
        self
    }

    /// How the head was spelt that it comes with.
    pub fn spelling(&self) -> Option<&Spelling> {
        self.body.spelling()
    }

    /// The lines that the head has beside its fields.
    pub fn lines(&self) -> &[u8] {
        let lines = self.exchange.as_ref().and_then(|exchange| exchange.facts.lines.as_deref());
        lines.unwrap_or_default()
    }

    /// By what the request can be refused again, if it was refused and comes again.
    pub fn take_refused(&mut self) -> Option<Box<Refused>> {
        self.exchange.as_mut()?.facts.refused.take()
    }

    /// Ends the exchange, as of now: who has looked at the clock spares another look.
    pub fn end(&mut self, now: Instant) {
        if let Some(exchange) = &mut self.exchange {
            exchange.end(now);
        }
    }

    /// Keeps the tunnel open to the client that the answer has opened, until its end, or until nothing has come from either end for
    /// `idle` or five minutes, whichever is longer. The client must have its answer.
    ///
    /// # Errors
    /// The tunnel broke, or was idle.
    pub async fn tunnel(self, client: impl Stream, idle: Duration) -> io::Result<()> {
        let Self { body, mut exchange } = self;
        if let (Body::Tunnel(tunnel), Some(exchange)) = (body, &mut exchange) {
            tunnel.run(client, idle, &mut exchange.facts.bytes).await?;
            exchange.facts.is_whole = true;
        }
        Ok(())
    }
}

impl HttpBody for AnswerBody {
    type Data = Bytes;
    type Error = <Body as HttpBody>::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(context));
        let Self { body, exchange } = &mut *self;
        let Some(Exchange { facts, .. }) = exchange else { return Poll::Ready(frame) };
        facts.is_whole = frame.is_none() || body.is_end_stream();
        if let Some(Ok(frame)) = &frame {
            if let (Some(settlement), Some(trailers)) = (&mut facts.settlement, frame.trailers_ref()) {
                settlement.settle(trailers);
            }
            facts.bytes += frame.data_ref().map_or(0, Bytes::len) as u64;
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
