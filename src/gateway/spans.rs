//! The spans of a traced request: one for the request, with children for the decision of its limits and for each
//! request to a server. Names follow OpenTelemetry's semantic conventions for HTTP. The gateway's own attributes begin
//! with `tollgate.`.
//!
//! Spans contain no secrets and don't identify clients: no query, no header field except Host, no key and no client
//! address.

use std::{borrow::Cow, time::Duration};

use hyper::StatusCode;
use opentelemetry::{
    Array, InstrumentationScope, KeyValue, StringValue, Value,
    trace::{SpanContext, SpanId, SpanKind, Status, TraceFlags, TraceId, TraceState},
};
use opentelemetry_sdk::trace::{SpanData, SpanEvents, SpanLinks};
use tokio::time::Instant;

use crate::{
    forward::Visit,
    rules::Decided,
    trace::{Context, Spans},
};

use super::record::{Ending, Record};

/// The methods that appear in span names. With arbitrary methods, the number of names would have no bound.
const METHODS: [&str; 9] = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "CONNECT"];

/// Returns the spans of a request that has ended. `own` is the span of the request itself.
pub(super) fn of(record: &Record, own: Context, end: &Ending<'_>) -> Spans {
    let mut spans = vec![of_request(record, own, end)];
    spans.extend(of_decision(record, own, end));
    spans.extend(
        record.visits.list.iter().enumerate().map(|(at, visit)| of_visit(record, own, end, at, visit)),
    );
    spans
}

fn of_request(record: &Record, own: Context, end: &Ending<'_>) -> SpanData {
    let method = known(&record.method);
    let path = record.target.split_once('?').map_or(&*record.target, |(path, _)| path);
    let version = record.protocol.trim_start_matches("HTTP/").trim_end_matches(".0");
    let mut attributes = vec![
        KeyValue::new("http.request.method", method.unwrap_or("_OTHER")),
        KeyValue::new("url.scheme", record.scheme),
        KeyValue::new("url.path", path.to_owned()),
        // HTTP/1.0 is the only version written with its zero.
        KeyValue::new("network.protocol.version", if version == "1" { "1.0" } else { version }.to_owned()),
    ];
    if method.is_none() {
        attributes.push(KeyValue::new("http.request.method_original", record.method.clone()));
    }
    let mut name = Cow::Borrowed(method.unwrap_or("HTTP"));
    if let Some((host, path)) = &record.host_and_path {
        name = format!("{name} {path}").into();
        attributes.push(KeyValue::new("server.address", host.clone()));
        attributes.push(KeyValue::new("http.route", path.clone()));
        attributes.push(KeyValue::new("tollgate.route", end.route.to_owned()));
    }
    if end.is_answered {
        attributes.push(KeyValue::new("http.response.status_code", i64::from(end.status)));
    }
    if end.status != StatusCode::SWITCHING_PROTOCOLS && record.is_broken_off(end) {
        attributes.push(KeyValue::new("tollgate.broken_off", true));
    }
    let failed = (end.status >= 500).then(|| Cow::Owned(end.status.to_string()));
    let kind = SpanKind::Server;
    Part { own, kind, name, attributes, began: record.arrival, took: end.duration, failed }.span(record)
}

/// Returns the span of the limits' decision. It ends with the request if the client left before they decided.
fn of_decision(record: &Record, request: Context, end: &Ending<'_>) -> Option<SpanData> {
    let began = record.asked_at?;
    let ended = record.decided_at.unwrap_or(record.arrival + end.duration);
    if end.decided.is_empty() && record.decided_at.is_some() {
        return None;
    }
    let each = |word: fn(&Decided) -> String| {
        Value::Array(Array::String(
            end.decided.iter().map(|decided| StringValue::from(word(decided))).collect(),
        ))
    };
    let mut attributes = vec![
        KeyValue::new("tollgate.limits", each(|decided| decided.limit.name().to_owned())),
        KeyValue::new("tollgate.decisions", each(|decided| decided.effect.name().to_owned())),
        KeyValue::new("tollgate.origins", each(|decided| decided.origin.name().to_owned())),
    ];
    let refusing = end.decided.iter().filter(|decided| decided.refuses());
    if let Some(delay_us) = refusing.filter_map(|decided| decided.delay_us).max() {
        attributes.push(KeyValue::new("tollgate.retry_after_ms", delay_us.div_ceil(1_000) as i64));
    }
    let (own, kind, name, took) = (request.child(), SpanKind::Internal, "decision".into(), ended - began);
    Some(Part { own, kind, name, attributes, began, took, failed: None }.span(record))
}

/// Returns the span of a request to a server. It ends with the head of the response.
fn of_visit(record: &Record, request: Context, end: &Ending<'_>, at: usize, visit: &Visit) -> SpanData {
    let method = known(&record.method);
    let (host, port) = match visit.server.rsplit_once(':') {
        Some((host, port)) if !visit.server.starts_with("unix:") => (host, port.parse().ok()),
        _ => (&*visit.server, None::<i64>),
    };
    let mut attributes = vec![
        KeyValue::new("http.request.method", method.unwrap_or("_OTHER")),
        KeyValue::new("server.address", host.trim_matches(['[', ']']).to_owned()),
    ];
    attributes.extend(port.map(|port| KeyValue::new("server.port", port)));
    if at > 0 {
        attributes.push(KeyValue::new("http.request.resend_count", at as i64));
    }
    let left = || (record.arrival + end.duration) - visit.sent;
    let (took, outcome) = visit.ended.unwrap_or_else(|| (left(), Err("client_left")));
    let failed = match outcome {
        Ok(status) => {
            attributes.push(KeyValue::new("http.response.status_code", i64::from(status.as_u16())));
            (status.is_client_error() || status.is_server_error()).then(|| status.as_str().to_owned().into())
        }
        Err(kind) => Some(kind.into()),
    };
    let (own, kind) = (visit.span.unwrap_or_else(|| request.child()), SpanKind::Client);
    let (name, began) = (method.unwrap_or("HTTP").into(), visit.sent);
    Part { own, kind, name, attributes, began, took, failed }.span(record)
}

/// The parts in which spans differ.
struct Part {
    own: Context,
    kind: SpanKind,
    name: Cow<'static, str>,
    attributes: Vec<KeyValue>,
    began: Instant,
    took: Duration,
    /// The type of the error, if there was one.
    failed: Option<Cow<'static, str>>,
}

impl Part {
    fn span(mut self, record: &Record) -> SpanData {
        let Context { trace_id, span_id, parent_id, .. } = self.own;
        let (trace_id, flags) = (TraceId::from(trace_id), TraceFlags::new(self.own.flags()));
        let start_time = record.time + (self.began - record.arrival);
        let mut status = Status::Unset;
        if let Some(by) = self.failed {
            self.attributes.push(KeyValue::new("error.type", Value::String(by.into())));
            status = Status::error("");
        }
        SpanData {
            span_context: SpanContext::new(trace_id, SpanId::from(span_id), flags, false, TraceState::NONE),
            parent_span_id: SpanId::from(parent_id),
            parent_span_is_remote: self.kind == SpanKind::Server,
            span_kind: self.kind,
            name: self.name,
            start_time,
            end_time: start_time + self.took,
            attributes: self.attributes,
            dropped_attributes_count: 0,
            events: SpanEvents::default(),
            links: SpanLinks::default(),
            status,
            instrumentation_scope: InstrumentationScope::builder("tollgate").build(),
        }
    }
}

/// Returns a well-known method.
fn known(method: &str) -> Option<&'static str> {
    METHODS.into_iter().find(|known| *known == method)
}
