//! Metrics: numbers that requests move, and the page that tells them (OpenMetrics text, 1.0, or Prometheus text).
//!
//! Each thread counts in memory of its own, and a page sums up: to count costs a request neither a lock nor a
//! cache line that another thread wants, too. Who counts keeps its [`Counts`] and [`Histogram`]s itself, and
//! writes them on a [`Page`]. A label is a name of the configuration or of a fixed set, never a client's key.

use std::{
    fmt,
    iter::once,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::Duration,
};

use prometheus_client::{
    encoding::{
        DescriptorEncoder, EncodeCounterValue, EncodeGaugeValue, EncodeLabelSet, MetricEncoder, NoLabelSet,
    },
    metrics::MetricType,
};
use thread_local::ThreadLocal;

/// Upper bounds of the buckets of times, in microseconds.
const TIMES_US: &[u64] = &[
    100, 250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000, 1_000_000,
    2_500_000, 5_000_000, 10_000_000, 30_000_000, 60_000_000,
];
/// Upper bounds of the buckets of sizes.
const SIZES: &[u64] = &[1, 2, 4, 8, 16, 32, 64, 128, 256];

/// Some numbers that only grow.
#[derive(Debug)]
pub struct Counts {
    len: usize,
    /// Each thread has a row, and nobody else writes to it. It stays when the thread has ended.
    rows: ThreadLocal<Box<[AtomicU64]>>,
}

impl Counts {
    /// So many of them, at zero.
    pub fn new(len: usize) -> Self {
        Self { len, rows: ThreadLocal::new() }
    }

    /// Adds one to one of them.
    pub fn add(&self, index: usize) {
        add(&self.row()[index], 1);
    }

    /// This thread's.
    fn row(&self) -> &[AtomicU64] {
        self.rows.get_or(|| (0..self.len).map(|_| AtomicU64::new(0)).collect())
    }

    /// Returns whether any of them has been added to.
    pub fn have_counted(&self) -> bool {
        self.rows.iter().flat_map(|row| row.iter()).any(|number| number.load(Relaxed) > 0)
    }

    /// One of them.
    pub fn sum(&self, index: usize) -> u64 {
        self.rows.iter().map(|row| row[index].load(Relaxed)).fold(0, u64::wrapping_add)
    }
}

/// Adds to a number of this thread's.
fn add(number: &AtomicU64, more: u64) {
    number.store(number.load(Relaxed).wrapping_add(more), Relaxed);
}

/// Numbers that only grow, one for each of a few words.
#[derive(Debug)]
pub struct CountsByWord {
    words: &'static [&'static str],
    counts: Counts,
}

impl CountsByWord {
    /// One for each of the words, at zero.
    pub fn of(words: &'static [&'static str]) -> Self {
        Self { words, counts: Counts::new(words.len()) }
    }

    /// Adds one to that of a word. What isn't one of the words isn't counted.
    pub fn add(&self, word: &str) {
        if let Some(at) = self.words.iter().position(|other| *other == word) {
            self.counts.add(at);
        }
    }

    /// The words with their numbers.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> {
        self.words.iter().enumerate().map(|(at, word)| (*word, self.counts.sum(at)))
    }
}

/// How values are distributed: how many there are up to some bounds, and their sum.
#[derive(Debug)]
pub struct Histogram {
    bounds: &'static [u64],
    /// How many of a value is one.
    unit: f64,
    /// For each bound how many values are up to it and above the one before, then those above all, then the sum.
    counts: Counts,
}

impl Histogram {
    /// Of times between 100 µs and a minute.
    pub fn of_times() -> Self {
        Self { bounds: TIMES_US, unit: 1e6, counts: Counts::new(TIMES_US.len() + 2) }
    }

    /// Of numbers between 1 and 256.
    pub fn of_sizes() -> Self {
        Self { bounds: SIZES, unit: 1.0, counts: Counts::new(SIZES.len() + 2) }
    }

    /// Adds a time.
    pub fn observe_time(&self, time: Duration) {
        self.observe(time.as_micros() as u64);
    }

    /// Adds a number.
    pub fn observe(&self, value: u64) {
        let bucket = self.bounds.iter().position(|bound| value <= *bound).unwrap_or(self.bounds.len());
        let row = self.counts.row();
        add(&row[bucket], 1);
        add(&row[self.bounds.len() + 1], value);
    }

    /// What it says now.
    pub fn read(&self) -> Distribution {
        let counts = (0..=self.bounds.len()).map(|at| self.counts.sum(at)).collect();
        Distribution { bounds: self.bounds, counts, sum: self.counts.sum(self.bounds.len() + 1) }
    }

    fn encode(&self, mut encoder: MetricEncoder<'_>) -> fmt::Result {
        let bounds = self.bounds.iter().map(|bound| *bound as f64 / self.unit).chain(once(f64::INFINITY));
        let buckets: Vec<_> = bounds.enumerate().map(|(at, bound)| (bound, self.counts.sum(at))).collect();
        let count = buckets.iter().map(|(_, count)| count).sum();
        let sum = self.counts.sum(buckets.len()) as f64 / self.unit;
        encoder.encode_histogram::<NoLabelSet>(sum, count, &buckets, None)
    }
}

/// How values of a [`Histogram`] are distributed, in its unit: microseconds, if they are times.
#[derive(Clone, Debug)]
pub struct Distribution {
    bounds: &'static [u64],
    /// For each bound how many are up to it and above the one before, then those above all.
    counts: Vec<u64>,
    sum: u64,
}

impl Distribution {
    /// Of no times.
    pub fn of_no_times() -> Self {
        Self { bounds: TIMES_US, counts: vec![0; TIMES_US.len() + 1], sum: 0 }
    }

    /// How many values there are.
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// Their mean, if there are any.
    pub fn mean(&self) -> Option<f64> {
        let count = self.count();
        (count > 0).then(|| self.sum as f64 / count as f64)
    }

    /// What has come since the same histogram said `before`.
    #[must_use]
    pub fn since(&self, before: &Self) -> Self {
        let counts = self.counts.iter().zip(&before.counts);
        let counts = counts.map(|(count, before)| count.saturating_sub(*before)).collect();
        Self { bounds: self.bounds, counts, sum: self.sum.saturating_sub(before.sum) }
    }

    /// Adds the values of another one with the same bounds.
    pub fn add(&mut self, other: &Self) {
        self.counts.iter_mut().zip(&other.counts).for_each(|(count, more)| *count += more);
        self.sum += other.sum;
    }

    /// The value that this share of them doesn't exceed, if there are any. Within a bucket they are taken to lie evenly, and
    /// above the last bound on it, as Prometheus' `histogram_quantile` does.
    pub fn quantile(&self, share: f64) -> Option<f64> {
        let rank = share * self.count() as f64;
        let (mut below, mut lower) = (0, 0);
        for (bound, count) in self.bounds.iter().zip(&self.counts) {
            if *count > 0 && (below + count) as f64 >= rank {
                let part = (rank - below as f64) / *count as f64;
                return Some(lower as f64 + part * (bound - lower) as f64);
            }
            (below, lower) = (below + count, *bound);
        }
        (self.counts.last() > Some(&0)).then_some(lower as f64)
    }
}

/// Where metrics are written: each with its name, what it tells, and its values by their labels.
pub struct Page<'p>(pub DescriptorEncoder<'p>);

impl Page<'_> {
    /// Writes numbers that only grow. Their name gets the ending `_total`.
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

    /// Writes a number that only grows.
    pub fn counter(&mut self, name: &str, help: &str, count: impl EncodeCounterValue + Copy) {
        let mut encoder = self.describe(name, help, MetricType::Counter);
        encoder.encode_counter::<NoLabelSet, _, f64>(&count, None).expect(WRITTEN);
    }

    /// Writes numbers as they are now.
    pub fn gauges<L: EncodeLabelSet, V: EncodeGaugeValue>(
        &mut self,
        name: &str,
        help: &str,
        values: impl IntoIterator<Item = (L, V)>,
    ) {
        self.write(name, help, MetricType::Gauge, values, |mut encoder, value| encoder.encode_gauge(&value));
    }

    /// Writes a number as it is now.
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

const WRITTEN: &str = "writing to a string succeeds";

#[cfg(test)]
mod tests {
    use std::{sync::Arc, thread};

    use super::*;

    #[test]
    fn what_all_threads_have_counted_is_summed_up() {
        let counts = Arc::new(Counts::new(2));
        let threads = (0..4).map(|_| {
            let counts = counts.clone();
            thread::spawn(move || (0..500).for_each(|_| counts.add(1)))
        });
        threads.collect::<Vec<_>>().into_iter().for_each(|thread| thread.join().unwrap());
        assert_eq!((counts.sum(0), counts.sum(1)), (0, 2_000));
    }

    #[test]
    fn quantiles_lie_evenly_within_their_bucket() {
        let times = Histogram::of_times();
        assert_eq!((times.read().quantile(0.5), times.read().mean()), (None, None));
        let before = times.read();
        (0..4).for_each(|_| times.observe_time(Duration::from_micros(700)));
        times.observe_time(Duration::from_secs(100));
        let read = times.read().since(&before);
        assert_eq!((read.count(), read.mean()), (5, Some(20_000_560.0)));
        assert_eq!([0.4, 0.8, 0.99].map(|share| read.quantile(share)), [750.0, 1_000.0, 6e7].map(Some));
        assert_eq!(times.read().since(&times.read()).quantile(0.99), None);
    }
}
