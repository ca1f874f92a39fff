//! The page that metrics are written to.

use std::fmt;

use prometheus_client::{
    encoding::{
        DescriptorEncoder, EncodeCounterValue, EncodeGaugeValue, EncodeLabelSet, MetricEncoder, NoLabelSet,
    },
    metrics::MetricType,
};

use super::Histogram;

/// The reason why writing can't fail.
const WRITTEN: &str = "writing to a string succeeds";

/// The page that metrics are written to, each with its name, help and values by label.
///
/// # Examples
///
/// ```
/// # use prometheus_client::{collector::Collector, encoding::{DescriptorEncoder, text}, registry::Registry};
/// use tollgate_limiter::metrics::{Histogram, Page};
///
/// /// A collector for a registry of `prometheus-client`.
/// #[derive(Debug)]
/// struct Example(Histogram);
///
/// impl Collector for Example {
///     fn encode(&self, encoder: DescriptorEncoder<'_>) -> std::fmt::Result {
///         let mut page = Page(encoder);
///         page.counter("requests", "All requests", 3_u64);
///         page.counters("responses", "Responses, by status", [([("status", "200")], 2_u64), ([("status", "429")], 1)]);
///         page.gauge("waiting", "Requests that wait", 1_u32);
///         page.gauges("idle", "Connections, by server", [([("server", "a")], 4_u32)]);
///         page.histograms("duration", "Seconds, by server", [([("server", "a")], &self.0)]);
///         Ok(())
///     }
/// }
///
/// # fn main() -> std::fmt::Result {
/// let mut registry = Registry::default();
/// registry.register_collector(Box::new(Example(Histogram::of_times())));
/// let mut page = String::new();
/// text::encode(&mut page, &registry)?;
/// assert!(page.contains("\nresponses_total{status=\"429\"} 1\n"));
/// # Ok(())
/// # }
/// ```
pub struct Page<'p>(pub DescriptorEncoder<'p>);

impl Page<'_> {
    /// Writes counters. The suffix `_total` is added to their name.
    pub fn counters<L: EncodeLabelSet, V: EncodeCounterValue>(
        &mut self,
        name: &str,
        help: &str,
        values: impl IntoIterator<Item = (L, V)>,
    ) {
        self.write(name, help, MetricType::Counter, values, |mut encoder, count| {
            encoder.encode_counter::<NoLabelSet, _, f64>(&count, None)
        });
    }

    /// Writes a counter.
    pub fn counter(&mut self, name: &str, help: &str, count: impl EncodeCounterValue + Copy) {
        let mut encoder = self.describe(name, help, MetricType::Counter);
        encoder.encode_counter::<NoLabelSet, _, f64>(&count, None).expect(WRITTEN);
    }

    /// Writes gauges.
    pub fn gauges<L: EncodeLabelSet, V: EncodeGaugeValue>(
        &mut self,
        name: &str,
        help: &str,
        values: impl IntoIterator<Item = (L, V)>,
    ) {
        self.write(name, help, MetricType::Gauge, values, |mut encoder, value| encoder.encode_gauge(&value));
    }

    /// Writes a gauge.
    pub fn gauge(&mut self, name: &str, help: &str, value: impl EncodeGaugeValue + Copy) {
        self.describe(name, help, MetricType::Gauge).encode_gauge(&value).expect(WRITTEN);
    }

    /// Writes histograms.
    pub fn histograms<'h, L: EncodeLabelSet>(
        &mut self,
        name: &str,
        help: &str,
        values: impl IntoIterator<Item = (L, &'h Histogram)>,
    ) {
        self.write(name, help, MetricType::Histogram, values, |encoder, histogram| histogram.encode(encoder));
    }

    fn write<L: EncodeLabelSet, V>(
        &mut self,
        name: &str,
        help: &str,
        kind: MetricType,
        values: impl IntoIterator<Item = (L, V)>,
        encode: impl Fn(MetricEncoder<'_>, V) -> fmt::Result,
    ) {
        let mut encoder = self.describe(name, help, kind);
        for (labels, value) in values {
            encoder.encode_family(&labels).and_then(|encoder| encode(encoder, value)).expect(WRITTEN);
        }
    }

    fn describe<'e>(&'e mut self, name: &'e str, help: &str, kind: MetricType) -> MetricEncoder<'e> {
        self.0.encode_descriptor(name, help, None, kind).expect(WRITTEN)
    }
}
