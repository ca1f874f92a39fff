//! A page of metrics, parsed as strictly as any scraper does.

use std::collections::{BTreeMap, HashMap};

use super::client::Client;

/// The content of a page.
#[derive(Debug)]
pub(crate) struct Metrics {
    series: BTreeMap<String, f64>,
    pub(crate) text: String,
}

impl Metrics {
    /// Fetches the page of an admin port.
    pub(crate) fn scrape(admin: &str) -> Self {
        let ask =
            "GET /metrics\nHost: localhost\nAccept: application/openmetrics-text; version=1.0.0, text/plain";
        let answer = Client::connect(admin.parse().unwrap()).ask(ask);
        assert_eq!(answer.status, 200, "{answer:?}");
        let content_type = answer.header("content-type");
        assert_eq!(content_type, Some("application/openmetrics-text; version=1.0.0; charset=utf-8"));
        Self::parse(answer.text())
    }

    fn parse(text: String) -> Self {
        let (mut series, mut kinds) = (BTreeMap::new(), HashMap::new());
        let mut family = "";
        let body = text.strip_suffix("# EOF\n").expect("an end");
        for line in body.lines() {
            if let Some(help) = line.strip_prefix("# HELP ") {
                family = help.split_once(' ').expect(line).0;
                assert!(!kinds.contains_key(family), "twice: {family}");
            } else if let Some(kind) = line.strip_prefix("# TYPE ") {
                let (name, kind) = kind.split_once(' ').unwrap();
                assert_eq!(name, family, "no help");
                kinds.insert(name, kind);
            } else {
                let (name, value) = line.rsplit_once(' ').unwrap_or_else(|| panic!("no sample: {line}"));
                let bare = name.split('{').next().unwrap();
                let endings: &[&str] = match kinds[family] {
                    "counter" => &["_total"],
                    "histogram" => &["_bucket", "_count", "_sum"],
                    _ => &[""],
                };
                let is_of_family = endings.iter().any(|ending| bare.strip_suffix(*ending) == Some(family));
                assert!(is_of_family, "`{bare}` in {family}");
                let twice = series.insert(name.to_owned(), value.parse().expect(line));
                assert!(twice.is_none(), "twice: {name}");
            }
        }
        Self { series, text }
    }

    /// Returns the value of a series, which must exist.
    pub(crate) fn of(&self, series: &str) -> f64 {
        *self.series.get(series).unwrap_or_else(|| panic!("no `{series}` in {}", self.text))
    }

    /// Returns the names of the metrics, as in queries; those of histograms without a suffix.
    pub(crate) fn names(&self) -> Vec<String> {
        let types = self.text.lines().filter_map(|line| line.strip_prefix("# TYPE "));
        let names = types.map(|line| match line.strip_suffix(" counter") {
            Some(name) => format!("{name}_total"),
            None => line.split(' ').next().unwrap().to_owned(),
        });
        names.collect()
    }

    /// Returns the growth of series since `before`, without those that haven't grown.
    pub(crate) fn since(&self, before: &Self) -> BTreeMap<&str, f64> {
        let grown = self.series.iter().map(|(name, value)| {
            (name.as_str(), value - before.series.get(name).copied().unwrap_or_default())
        });
        grown.filter(|(_, growth)| *growth != 0.0).collect()
    }
}
