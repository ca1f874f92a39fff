//! Alert rules and dashboards use only metrics and labels that exist.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
};

use super::metrics::NOBODYS_RULES;
use crate::harness::{gateway::Gateway, metrics::Metrics, redis::Redis, upstream::Upstream};

/// The values of each label of each metric, by names as they are asked for: those of histograms with an ending.
type Labels = BTreeMap<String, BTreeMap<String, BTreeSet<String>>>;

/// What Prometheus and its rules add to what they scrape.
const ADDED: [&str; 2] = ["instance", "job"];
/// Labels whose values are words of a fixed set, so that one that isn't there is a mistake.
const WORDS: [&str; 6] = ["status", "outcome", "origin", "reason", "result", "kind"];

/// All that a gateway tells that has everything.
fn labels() -> Labels {
    let (redis, upstream, folder) = (Redis::start(), Upstream::mirror(), tempfile::tempdir().unwrap());
    let gateway = Gateway::start(&format!(
        "{}\n[admin]\nlisten = \"127.0.0.1:0\"\n[access_log]\npath = \"{}/log\"\n[upstreams.u]\nservers = [\"{}\"]\n\
         [limits.l]\nkey = \"ip\"\nrate = \"5/h\"\n[[routes]]\npath = \"/\"\nupstream = \"u\"\nlimits = [\"l\"]\n{}",
        redis.store(),
        folder.path().display(),
        upstream.url(),
        NOBODYS_RULES,
    ));
    assert_eq!(gateway.get("/").status, 200);
    let mut labels = Labels::new();
    for line in
        Metrics::scrape(&crate::admin::admin(&gateway)).text.lines().filter(|line| !line.starts_with('#'))
    {
        let series = line.rsplit_once(' ').unwrap().0;
        let (name, told) = series.split_once('{').unwrap_or((series, ""));
        let of_metric = labels.entry(name.to_owned()).or_default();
        for (label, _, value) in matchers(told.trim_end_matches('}')) {
            of_metric.entry(label).or_default().insert(value);
        }
    }
    labels
}

/// The names, operators and values in `name="value",other=~"value"`.
fn matchers(text: &str) -> Vec<(String, String, String)> {
    let mut found = Vec::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('"') {
        let (value, next) = after.split_once('"').expect("a value ends");
        let name = before.trim_start_matches([',', ' ']);
        let end = name.find(['=', '!']).expect("a name and an operator");
        found.push((name[..end].to_owned(), name[end..].to_owned(), value.to_owned()));
        rest = next;
    }
    found
}

fn is_of_name(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_'
}

/// What is wrong with the metrics and labels that a text asks for; and how many it asks for.
fn faults(text: &str, labels: &Labels) -> (Vec<String>, usize) {
    let (mut faults, mut count) = (Vec::new(), 0);
    let all: BTreeSet<&str> =
        labels.values().flat_map(BTreeMap::keys).map(String::as_str).chain(ADDED).collect();
    for (at, _) in ["tollgate_", "process_"].iter().flat_map(|prefix| text.match_indices(prefix)) {
        if text[..at].ends_with(is_of_name) {
            continue;
        }
        count += 1;
        let rest = &text[at..];
        let end = rest.find(|c| !is_of_name(c)).unwrap_or(rest.len());
        let name = &rest[..end];
        let Some(of_metric) = labels.get(name) else {
            faults.push(format!("no metric `{name}`"));
            continue;
        };
        let Some(inner) = rest[end..].strip_prefix('{') else { continue };
        for (label, operator, value) in matchers(inner.split('}').next().unwrap()) {
            let values = of_metric.get(&label);
            if values.is_none() && !ADDED.contains(&label.as_str()) {
                faults.push(format!("`{name}` has no label `{label}`"));
            } else if WORDS.contains(&label.as_str()) {
                let is_known = |word: &str| {
                    values.unwrap().iter().any(|value| match word.strip_suffix(".*") {
                        Some(prefix) => value.starts_with(prefix),
                        None => value == word,
                    })
                };
                let words: Vec<&str> =
                    if operator.ends_with('~') { value.split('|').collect() } else { vec![&value] };
                faults.extend(
                    words
                        .iter()
                        .filter(|word| !is_known(word))
                        .map(|word| format!("`{name}` is never `{word}`")),
                );
            }
        }
    }
    let lists = text.split("by (").skip(1).flat_map(|rest| rest.split(')').next().unwrap().split(','));
    let in_texts = text.split("$labels.").skip(1).map(|rest| rest.split(|c| !is_of_name(c)).next().unwrap());
    let in_legends = text.split("{{").skip(1).map(|rest| rest.split('}').next().unwrap());
    let in_legends = in_legends.filter(|label| label.starts_with(char::is_alphabetic));
    let unknown = lists.chain(in_texts).chain(in_legends).map(str::trim).filter(|label| !all.contains(label));
    faults.extend(unknown.map(|label| format!("no label `{label}`")));
    (faults, count)
}

#[test]
fn dashboards_and_alerts_ask_for_what_there_is() {
    let labels = labels();
    for (path, least) in [("contrib/grafana/tollgate.json", 30), ("contrib/prometheus/alerts.yml", 20)] {
        let text = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(path)).unwrap();
        // As Grafana reads it.
        let text = if path.ends_with("json") {
            let _: serde_json::Value = serde_json::from_str(&text).unwrap();
            text.replace("\\\"", "\"")
        } else {
            text
        };
        let (faults, count) = faults(&text, &labels);
        assert_eq!(faults, [""; 0], "{path}");
        assert!(count >= least, "{path}: {count}");
    }
    let wrong = "sum by (rout) (tollgate_request_total) + tollgate_reloads_total{result=\"worse\"} \
                 + tollgate_waiting{limit=\"l\"} {{ $labels.nod }}";
    let told = faults(wrong, &labels).0;
    assert_eq!(
        told,
        [
            "no metric `tollgate_request_total`",
            "`tollgate_reloads_total` is never `worse`",
            "`tollgate_waiting` has no label `limit`",
            "no label `rout`",
            "no label `nod`",
        ]
    );
}
