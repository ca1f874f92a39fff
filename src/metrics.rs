//! The page of metrics (OpenMetrics text 1.0, or Prometheus text).

mod process;

use std::{collections::HashSet, fmt};

use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, text},
    registry::Registry,
};
use tollgate_limiter::metrics::{Counts, Page};

/// The media type of a page.
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
/// The media type of a page in [`older_form`].
pub const OLDER_CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// The classes of response statuses.
pub const STATUS_CLASSES: [&str; 5] = ["1xx", "2xx", "3xx", "4xx", "5xx"];

const WRITTEN: &str = "writing to a string succeeds";

/// Counts of responses, by class of their status.
#[derive(Debug)]
pub struct CountsByStatus(Counts);

impl CountsByStatus {
    /// Counts a response with this status.
    pub fn add(&self, status: u16) {
        self.0.add(usize::from((status / 100).clamp(1, 5) - 1));
    }

    /// Returns true if any response was counted.
    pub fn have_counted(&self) -> bool {
        self.0.have_counted()
    }

    /// Returns the numbers of responses, in the order of [`STATUS_CLASSES`].
    pub fn sums(&self) -> [u64; STATUS_CLASSES.len()] {
        std::array::from_fn(|class| self.0.sum(class))
    }

    /// Returns the classes with their numbers of responses.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> {
        STATUS_CLASSES.into_iter().zip(self.sums())
    }
}

impl Default for CountsByStatus {
    fn default() -> Self {
        Self(Counts::new(STATUS_CLASSES.len()))
    }
}

/// Returns a page with the metrics that `write` adds, and those of the process.
pub fn page(write: impl Fn(&mut Page<'_>) + Send + Sync + 'static) -> String {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(Writer(write)));
    let mut page = String::new();
    text::encode(&mut page, &registry).expect(WRITTEN);
    page
}

/// Converts a page to Prometheus text 0.0.4, which all scrapers can read: a counter's description has the name of
/// its samples, and there is no end mark.
pub fn older_form(page: &str) -> String {
    let counter = |line: &'_ str| line.strip_prefix("# TYPE ")?.strip_suffix(" counter").map(str::to_owned);
    let counters: HashSet<String> = page.lines().filter_map(counter).collect();
    let mut older = String::with_capacity(page.len() + 8 * counters.len());
    for line in page.lines().filter(|line| *line != "# EOF") {
        let described = ["# HELP ", "# TYPE "].iter().find_map(|what| Some((what, line.strip_prefix(what)?)));
        match described.and_then(|(what, rest)| Some((what, rest.split_once(' ')?))) {
            Some((what, (name, rest))) if counters.contains(name) => {
                older.extend([what, name, "_total ", rest]);
            }
            _ => older.push_str(line),
        }
        older.push('\n');
    }
    older
}

struct Writer<W>(W);

impl<W: Fn(&mut Page<'_>) + Send + Sync + 'static> Collector for Writer<W> {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut page = Page(encoder);
        (self.0)(&mut page);
        process::write(&mut page);
        Ok(())
    }
}

impl<W> fmt::Debug for Writer<W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Writer")
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tollgate_limiter::metrics::Histogram;

    use super::*;

    #[test]
    fn a_bound_belongs_to_its_bucket() {
        let sizes = Histogram::of_sizes();
        [0, 1, 2, 3, 256, 257].iter().for_each(|size| sizes.observe(*size));
        let sizes = Arc::new(sizes);
        let page = page(move |page| page.histograms("sizes", "Sizes", [([("of", "a \"b\"\\")], &*sizes)]));
        let labels = |le| format!("sizes_bucket{{le=\"{le}\",of=\"a \\\"b\\\"\\\\\"}}");
        for (bound, up_to) in [("1.0", 2), ("2.0", 3), ("4.0", 4), ("128.0", 4), ("256.0", 5), ("+Inf", 6)] {
            assert!(page.contains(&format!("{} {up_to}\n", labels(bound))), "{bound}: {page}");
        }
        assert!(page.contains("} 519.0\n") && page.ends_with("# EOF\n"), "{page}");
    }
}
