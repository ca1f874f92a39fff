//! Traces, as OpenTelemetry has them: which requests are traced, and what upstreams are told of that
//! ([`context`]); spans go to a collector ([`collector`]).
//!
//! A request that isn't traced costs no span and no allocation here, but for the field that tells an upstream so.

pub mod collector;
pub mod context;

use std::sync::Arc;

use hyper::HeaderMap;

use crate::{config, metrics::Page};

use self::{
    collector::Collector,
    context::{TRACEPARENT, TRACESTATE},
};
pub use self::{collector::Spans, context::Context};

/// Traces a share of the requests.
#[derive(Clone, Debug)]
pub struct Tracer {
    /// Of the requests that are in no trace yet, from 0 to 1.
    sample: f64,
    collector: Arc<Collector>,
}

impl Tracer {
    /// Sends what is traced to the collector of a configuration. Must be called in a tokio runtime, in which spans are
    /// sent. Nothing is connected yet.
    ///
    /// # Errors
    /// What of the environment's variables `OTEL_…` can't be used.
    pub fn open(config: &config::TracingSettings) -> Result<Self, String> {
        Ok(Self { sample: config.sample, collector: Arc::new(Collector::open(&config.otlp)?) })
    }

    /// The same by another configuration, but for the collector, which stays.
    #[must_use]
    pub fn with(&self, config: Option<&config::TracingSettings>) -> Self {
        Self { sample: config.map_or(self.sample, |config| config.sample), collector: self.collector.clone() }
    }

    /// The span of a request with this header, if the request is traced: as its sender says, and if that says nothing,
    /// by chance. So many at most as [`Collector::has_room_for_asked`] are traced because somebody says so who isn't
    /// trusted.
    pub fn sample(&self, header: &HeaderMap, is_trusted: impl FnOnce() -> bool) -> Option<Context> {
        let drawn = || fastrand::f64() < self.sample;
        match Context::read(header) {
            Some(sender) if sender.is_sampled() => {
                let is_traced = is_trusted() || drawn() || self.collector.has_room_for_asked();
                is_traced.then(|| sender.child())
            }
            Some(_) => None,
            None => drawn().then(Context::sampled),
        }
    }

    /// Has spans sent, soon, unless too many wait already.
    pub fn send(&self, spans: Spans) {
        self.collector.hand_in(spans);
    }

    /// Sends all that waits, as far as the collector takes it in time.
    pub async fn flush(&self) {
        self.collector.flush().await;
    }

    /// Writes the metrics of what was traced.
    pub fn write_metrics(&self, page: &mut Page<'_>) {
        self.collector.write_metrics(page);
    }
}

/// Writes into a request's header what its upstream is told of its trace. The span is that of the request, if it is
/// traced; if it isn't, what the sender said goes on as it is, or else that there is no need to trace it.
pub fn carry_on(header: &mut HeaderMap, traced: Option<Context>) {
    let is_in_none = Context::read(header).is_none();
    if is_in_none {
        // It belongs to what can't be read.
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
    fn what_is_not_traced_goes_on_as_it_came() {
        let sent = header(&[("traceparent", PARENT), ("tracestate", "a=1"), ("tracestate", "b=2")]);
        let mut told = sent.clone();
        carry_on(&mut told, None);
        assert_eq!(told, sent);
    }

    #[test]
    fn a_trace_that_begins_here_has_no_state() {
        for fields in [&[("tracestate", "a=1")][..], &[("traceparent", "00-x"), ("tracestate", "a=1")]] {
            let mut told = header(fields);
            carry_on(&mut told, None);
            let unsampled = Context::read(&told).unwrap();
            assert!(!unsampled.is_sampled() && !told.contains_key("tracestate"), "{told:?}");
            let mut told = header(fields);
            carry_on(&mut told, Some(Context::sampled()));
            assert!(
                Context::read(&told).unwrap().is_sampled() && !told.contains_key("tracestate"),
                "{told:?}"
            );
        }
    }
}
