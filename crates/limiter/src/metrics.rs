//! Counters and histograms, and the page that shows them (OpenMetrics text 1.0, or Prometheus text).
//!
//! Each thread counts in its own memory, and a page adds the threads up. So counting takes no lock, and threads
//! share no cache line. Each module keeps its own [`Counts`] and [`Histogram`]s, and writes them to a [`Page`]. A
//! label is a name from the configuration or from a fixed set, never a client's key.

mod page;

use std::{
    fmt,
    iter::once,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::Duration,
};

use prometheus_client::encoding::{MetricEncoder, NoLabelSet};
use thread_local::ThreadLocal;

pub use self::page::Page;

/// Upper bounds of the buckets of times, in microseconds.
const TIMES_US: &[u64] = &[
    100, 250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000, 1_000_000,
    2_500_000, 5_000_000, 10_000_000, 30_000_000, 60_000_000,
];
/// Upper bounds of the buckets of sizes.
const SIZES: &[u64] = &[1, 2, 4, 8, 16, 32, 64, 128, 256, 1_024, 4_096, 16_384];

/// A fixed number of counters.
///
/// # Examples
///
/// ```
/// use tollgate_limiter::metrics::Counts;
///
/// let statuses = Counts::new(600);
/// statuses.add(429);
/// assert!(statuses.have_counted() && statuses.sum(429) == 1);
/// ```
#[derive(Debug)]
pub struct Counts {
    len: usize,
    /// One row per thread, which only that thread writes. Rows outlive their threads.
    rows: ThreadLocal<Box<[AtomicU64]>>,
}

impl Counts {
    /// Returns `len` counters at zero.
    pub fn new(len: usize) -> Self {
        Self { len, rows: ThreadLocal::new() }
    }

    /// Increments the counter at an index.
    pub fn add(&self, index: usize) {
        add(&self.row()[index], 1);
    }

    /// Returns this thread's row.
    fn row(&self) -> &[AtomicU64] {
        self.rows.get_or(|| (0..self.len).map(|_| AtomicU64::new(0)).collect())
    }

    /// Returns true if any counter was incremented.
    pub fn have_counted(&self) -> bool {
        self.rows.iter().flat_map(|row| row.iter()).any(|number| number.load(Relaxed) > 0)
    }

    /// Returns the value of the counter at an index.
    pub fn sum(&self, index: usize) -> u64 {
        self.rows.iter().map(|row| row[index].load(Relaxed)).fold(0, u64::wrapping_add)
    }
}

/// Adds to a number that only this thread writes.
fn add(number: &AtomicU64, more: u64) {
    number.store(number.load(Relaxed).wrapping_add(more), Relaxed);
}

/// Counters with one of a fixed set of words each.
///
/// # Examples
///
/// ```
/// use tollgate_limiter::metrics::CountsByWord;
///
/// let failures = CountsByWord::of(&["timeout", "connection"]);
/// failures.add("timeout");
/// assert!(failures.iter().eq([("timeout", 1), ("connection", 0)]));
/// ```
#[derive(Debug)]
pub struct CountsByWord {
    words: &'static [&'static str],
    counts: Counts,
}

impl CountsByWord {
    /// Returns a counter at zero for each word.
    pub fn of(words: &'static [&'static str]) -> Self {
        Self { words, counts: Counts::new(words.len()) }
    }

    /// Increments the counter of a word. Other words aren't counted.
    pub fn add(&self, word: &str) {
        if let Some(at) = self.words.iter().position(|other| *other == word) {
            self.counts.add(at);
        }
    }

    /// Returns the words with their counts.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> {
        self.words.iter().enumerate().map(|(at, word)| (*word, self.counts.sum(at)))
    }
}

/// A histogram with fixed bounds.
///
/// # Examples
///
/// ```
/// # use std::time::Duration;
/// use tollgate_limiter::metrics::Histogram;
///
/// let (times, sizes) = (Histogram::of_times(), Histogram::of_sizes());
/// times.observe_time(Duration::from_micros(700));
/// sizes.observe(3);
/// assert_eq!((times.read().mean(), sizes.read().mean()), (Some(700.0), Some(3.0)));
/// ```
#[derive(Debug)]
pub struct Histogram {
    bounds: &'static [u64],
    /// The number by which values are divided on the page.
    unit: f64,
    /// The number of values between each bound and the one before, then of those above all bounds, then the sum.
    counts: Counts,
}

impl Histogram {
    /// Returns a histogram of times between 100 µs and a minute.
    pub fn of_times() -> Self {
        Self { bounds: TIMES_US, unit: 1e6, counts: Counts::new(TIMES_US.len() + 2) }
    }

    /// Returns a histogram of numbers between 1 and 16,384.
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

    /// Returns the current values.
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

/// The values of a [`Histogram`] at one moment. Times are in microseconds.
///
/// # Examples
///
/// ```
/// # use std::time::Duration;
/// use tollgate_limiter::metrics::{Distribution, Histogram};
///
/// let times = Histogram::of_times();
/// let before = times.read();
/// times.observe_time(Duration::from_micros(700));
/// let mut lately = times.read().since(&before);
/// lately.add(&Distribution::of_no_times());
/// assert_eq!((lately.count(), lately.mean(), lately.quantile(0.5)), (1, Some(700.0), Some(750.0)));
/// ```
#[derive(Clone, Debug)]
pub struct Distribution {
    bounds: &'static [u64],
    /// The number of values between each bound and the one before, then of those above all bounds.
    counts: Vec<u64>,
    sum: u64,
}

impl Distribution {
    /// Returns an empty distribution of times.
    pub fn of_no_times() -> Self {
        Self { bounds: TIMES_US, counts: vec![0; TIMES_US.len() + 1], sum: 0 }
    }

    /// Returns the number of values.
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// Returns the mean. `None` without values.
    pub fn mean(&self) -> Option<f64> {
        let count = self.count();
        (count > 0).then(|| self.sum as f64 / count as f64)
    }

    /// Returns the values that were added since `before`.
    #[must_use]
    pub fn since(&self, before: &Self) -> Self {
        let counts = self.counts.iter().zip(&before.counts);
        let counts = counts.map(|(count, before)| count.saturating_sub(*before)).collect();
        Self { bounds: self.bounds, counts, sum: self.sum.saturating_sub(before.sum) }
    }

    /// Adds the values of another distribution with the same bounds.
    pub fn add(&mut self, other: &Self) {
        self.counts.iter_mut().zip(&other.counts).for_each(|(count, more)| *count += more);
        self.sum += other.sum;
    }

    /// Estimates a quantile. `None` without values. Like Prometheus' `histogram_quantile`, it assumes that values are
    /// spread evenly within a bucket, and that values above the last bound equal it.
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
