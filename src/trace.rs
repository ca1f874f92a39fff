//! OpenTelemetry traces: the choice of requests to trace, and the trace headers for upstreams ([`context`]).
//! Spans are sent to a collector ([`collector`]).
//!
//! A request that isn't traced costs no span and no allocation here, except for the header that tells the
//! upstream not to trace it.

#[cfg(feature = "opentelemetry")]
pub mod collector;
#[cfg(not(feature = "opentelemetry"))]
#[path = "trace/no_collector.rs"]
pub mod collector;
pub mod context;

use std::sync::Arc;

use hyper::HeaderMap;
use tollgate_limiter::metrics::Page;

use crate::config;

use self::{
    collector::Collector,
    context::{TRACEPARENT, TRACESTATE},
};
pub use self::{collector::Spans, context::Context};

/// Selects the requests to trace, and exports their spans.
#[derive(Clone, Debug)]
pub struct Tracer {
    /// The fraction of requests to trace among those without a trace of their own, from 0 to 1.
    sample: f64,
    collector: Arc<Collector>,
}

impl Tracer {
    /// Creates a tracer that exports to the collector of a configuration. Must be called in a tokio runtime,
    /// which later sends the spans. Doesn't connect yet.
    ///
    /// # Errors
    /// One of the environment variables `OTEL_…` is invalid.
    pub fn open(config: &config::TracingSettings) -> Result<Self, String> {
        Ok(Self { sample: config.sample, collector: Arc::new(Collector::open(&config.otlp)?) })
    }

    /// Returns a tracer with the settings of another configuration and the same collector.
    #[must_use]
    pub fn with(&self, config: Option<&config::TracingSettings>) -> Self {
        Self { sample: config.map_or(self.sample, |config| config.sample), collector: self.collector.clone() }
    }

    /// Returns a span for the request, if it is to be traced. The `traceparent` decides if there is one,
    /// otherwise chance. For untrusted clients, [`Collector::allows_forced`] bounds the traces that they
    /// can force.
    pub fn sample(&self, header: &HeaderMap, is_trusted: impl FnOnce() -> bool) -> Option<Context> {
        let drawn = || fastrand::f64() < self.sample;
        match Context::read(header) {
            Some(sender) if sender.is_sampled() => {
                let is_traced = is_trusted() || drawn() || self.collector.allows_forced();
                is_traced.then(|| sender.child())
            }
            Some(_) => None,
            None => drawn().then(Context::sampled),
        }
    }

    /// Queues spans for export. They are dropped if the queue is full.
    pub fn send(&self, spans: Spans) {
        self.collector.queue(spans);
    }

    /// Exports all queued spans, within a deadline.
    pub async fn flush(&self) {
        self.collector.flush().await;
    }

    /// Writes the metrics of spans.
    pub fn write_metrics(&self, page: &mut Page<'_>) {
        self.collector.write_metrics(page);
    }
}

/// Sets the trace header fields for the upstream.
///
/// If the request is traced, they name its span. Otherwise the client's fields stay as they are, and a
/// request without a trace gets a new one that isn't sampled.
pub fn propagate(header: &mut HeaderMap, traced: Option<Context>) {
    let is_in_none = Context::read(header).is_none();
    if is_in_none {
        // Without a valid `traceparent`, the state belongs to no trace.
        header.remove(TRACESTATE);
    }
    if let Some(context) = traced.or_else(|| is_in_none.then(Context::unsampled)) {
        header.insert(TRACEPARENT, context.to_field());
    }
}

#[cfg(test)]
mod tests {
    use hyper::header::HeaderValue;

    use super::*;

    const PARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    fn header(fields: &[(&'static str, &'static str)]) -> HeaderMap {
        let fields = fields.iter();
        fields.map(|(name, value)| (name.parse().unwrap(), HeaderValue::from_static(value))).collect()
    }

    #[test]
    fn headers_of_an_untraced_request_are_unchanged() {
        let sent = header(&[("traceparent", PARENT), ("tracestate", "a=1"), ("tracestate", "b=2")]);
        let mut forwarded = sent.clone();
        propagate(&mut forwarded, None);
        assert_eq!(forwarded, sent);
    }

    #[test]
    fn a_trace_that_begins_here_has_no_state() {
        for fields in [&[("tracestate", "a=1")][..], &[("traceparent", "00-x"), ("tracestate", "a=1")]] {
            let mut forwarded = header(fields);
            propagate(&mut forwarded, None);
            let unsampled = Context::read(&forwarded).unwrap();
            assert!(!unsampled.is_sampled() && !forwarded.contains_key("tracestate"), "{forwarded:?}");
            let mut forwarded = header(fields);
            propagate(&mut forwarded, Some(Context::sampled()));
            assert!(
                Context::read(&forwarded).unwrap().is_sampled() && !forwarded.contains_key("tracestate"),
                "{forwarded:?}"
            );
        }
    }
}
