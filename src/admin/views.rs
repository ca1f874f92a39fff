//! The views for operators of routes, limits, keys, upstreams and the store: totals since the start, and
//! rates of the last seconds.

use std::{
    cmp::Reverse,
    collections::BTreeMap,
    env, fs, process,
    sync::LazyLock,
    time::{SystemTime, UNIX_EPOCH},
};

use hyper::Method;
use serde_json::{Value, json};
use tokio::time::Instant;
use tollgate_limiter::{Effect, metrics::Distribution, store::NodeState};

use crate::{
    config::EXPIRES_SOON,
    gateway::Gateway,
    metrics::STATUS_CLASSES,
    rules::{Rule, heavy_hitters::HeavyHitters, key},
    server::{Reload, Status},
};

/// The most keys to show per limit.
pub(super) const KEYS_MOST: usize = 10;
/// The most characters to show of a failed reload.
const FAULTS_MOST: usize = 4_096;

/// A snapshot of all counts.
pub(super) struct Snapshot {
    at: Instant,
    pub(super) time: SystemTime,
    /// The counts of routes by name.
    routes: BTreeMap<String, RouteCounts>,
    limits: BTreeMap<String, [u64; EFFECTS.len()]>,
    /// The counts of servers by the names of upstream and server.
    servers: BTreeMap<(String, String), ServerCounts>,
    nodes: BTreeMap<String, NodeState>,
    store_failures: u64,
}

const EFFECTS: [Effect; 5] =
    [Effect::Admitted, Effect::Refused, Effect::Uncharged, Effect::Exempt, Effect::Skipped];

/// The counts of a route.
#[derive(Clone)]
pub(super) struct RouteCounts {
    /// The responses by class of status.
    pub(super) answers: [u64; STATUS_CLASSES.len()],
    /// The requests that limits refused.
    pub(super) refused: u64,
    pub(super) durations: Distribution,
}

struct ServerCounts {
    answers: Distribution,
    failures: u64,
}

impl Snapshot {
    pub(super) fn of(gateway: &Gateway) -> Self {
        let servers = gateway.upstreams().iter().flat_map(|(upstream, target)| {
            target.standings().map(move |standing| {
                let server = standing.server;
                let of = ServerCounts { answers: server.answers(), failures: server.failures() };
                ((upstream.clone(), server.url().name()), of)
            })
        });
        let routes = gateway.traffic().map(|(name, traffic)| {
            (
                name.to_owned(),
                RouteCounts {
                    answers: traffic.answers(),
                    refused: traffic.refused(),
                    durations: traffic.durations(),
                },
            )
        });
        let limits = gateway.rules().iter();
        Self {
            at: Instant::now(),
            time: SystemTime::now(),
            routes: routes.collect(),
            limits: limits
                .map(|(name, rule)| (name.clone(), EFFECTS.map(|effect| rule.count(effect))))
                .collect(),
            servers: servers.collect(),
            nodes: gateway
                .limiter()
                .store_nodes()
                .into_iter()
                .map(|node| (node.name.clone(), node))
                .collect(),
            store_failures: gateway.limiter().store_failures(),
        }
    }

    pub(super) fn seconds_since(&self, before: &Self) -> f64 {
        self.at.duration_since(before.at).as_secs_f64()
    }

    /// Returns the requests of all current routes since `before`.
    pub(super) fn traffic_since(&self, before: &Self) -> RouteCounts {
        let durations = Distribution::of_no_times();
        let mut all = RouteCounts { answers: Default::default(), refused: 0, durations };
        for (name, traffic) in &self.routes {
            let traffic = traffic.since(before.routes.get(name));
            all.answers.iter_mut().zip(traffic.answers).for_each(|(sum, more)| *sum += more);
            all.refused += traffic.refused;
            all.durations.add(&traffic.durations);
        }
        all
    }

    fn limit_since(&self, before: &Self, name: &str) -> [u64; EFFECTS.len()] {
        let none = [0; EFFECTS.len()];
        let (now, before) = (self.limits.get(name), before.limits.get(name));
        let (now, before) = (now.unwrap_or(&none), before.unwrap_or(&none));
        std::array::from_fn(|effect| now[effect].saturating_sub(before[effect]))
    }
}

impl RouteCounts {
    fn since(&self, before: Option<&Self>) -> Self {
        let Some(before) = before else { return self.clone() };
        Self {
            answers: std::array::from_fn(|at| self.answers[at].saturating_sub(before.answers[at])),
            refused: self.refused.saturating_sub(before.refused),
            durations: self.durations.since(&before.durations),
        }
    }
}

/// The time between two snapshots.
pub(super) struct Period<'v> {
    pub(super) gateway: &'v Gateway,
    pub(super) status: &'v Status,
    pub(super) now: &'v Snapshot,
    pub(super) before: &'v Snapshot,
}

impl Period<'_> {
    fn per_second(&self, count: u64) -> f64 {
        let seconds = self.now.seconds_since(self.before);
        if seconds > 0.0 { rounded(count as f64 / seconds) } else { 0.0 }
    }
}

/// Returns all views.
pub(super) fn all(view: &Period<'_>) -> Value {
    json!({
        "time_ms": milliseconds_since_1970(view.now.time),
        "version": env!("CARGO_PKG_VERSION"),
        "instance": &*INSTANCE,
        "started_ms": milliseconds_since_1970(view.status.started()),
        "degraded": view.gateway.limiter().is_degraded(),
        "certificates": certificates(view),
        "rules_feed_up": view.status.rules_feed_is_up(),
        "draining": view.status.is_draining(),
        "connections": view.status.connections(),
        "waiting": view.gateway.limiter().waiting(),
        "routes": routes(view),
        "limits": limits(view),
        "top": { "requests": top(view.gateway, Rule::busiest), "refused": top(view.gateway, Rule::most_refused) },
        "upstreams": upstreams(view),
        "store": store(view),
        "reload": view.status.last_reload().map(|reload| show_reload(&reload)),
    })
}

/// The name of this machine, and the process.
static INSTANCE: LazyLock<String> = LazyLock::new(|| {
    let host =
        fs::read_to_string("/proc/sys/kernel/hostname").or_else(|_| fs::read_to_string("/etc/hostname"));
    let host = host.unwrap_or_else(|_| env::var("HOSTNAME").unwrap_or_default());
    format!("{} (process {})", host.trim(), process::id())
});

/// Returns the certificates that have expired, or soon will.
fn certificates(view: &Period<'_>) -> Value {
    let soon = view.now.time + EXPIRES_SOON;
    let expiries = view.status.expiries().into_iter().filter(|expiry| expiry.at < soon);
    let expiries = expiries
        .map(|expiry| json!({ "place": expiry.place, "expires_ms": milliseconds_since_1970(expiry.at) }));
    expiries.collect()
}

/// Returns the routes by name, with what each one matches. Requests without a route come first, under an
/// empty name.
pub(super) fn routes(view: &Period<'_>) -> Value {
    let mut matches = BTreeMap::<&str, Vec<Value>>::new();
    for route in view.gateway.routes() {
        let matcher = route.matcher;
        matches.entry(route.name).or_default().push(json!({
            "host": matcher.host.as_ref().map(ToString::to_string),
            "path": matcher.path.to_string(),
            "methods": matcher.methods.iter().map(Method::as_str).collect::<Vec<_>>(),
            "upstream": route.upstream,
            "limits": route.limits,
        }));
    }
    let routes = view.now.routes.iter().map(|(name, traffic)| {
        let recent = traffic.since(view.before.routes.get(name));
        let by_class = |answers: [u64; STATUS_CLASSES.len()]| {
            STATUS_CLASSES.iter().zip(answers).collect::<BTreeMap<_, _>>()
        };
        json!({
            "route": name,
            "matches": matches.get(name.as_str()).map_or(&[][..], Vec::as_slice),
            "requests": by_class(traffic.answers),
            "recent": by_class(recent.answers),
            "refused": traffic.refused,
            "per_second": view.per_second(recent.answers.iter().sum()),
            "refused_per_second": view.per_second(recent.refused),
            "p50_ms": milliseconds(recent.durations.quantile(0.5)),
            "p99_ms": milliseconds(recent.durations.quantile(0.99)),
        })
    });
    routes.collect()
}

fn limits(view: &Period<'_>) -> Value {
    let limits = view.gateway.rules().iter().map(|(name, rule)| {
        let limit = rule.limit();
        let recent = view.now.limit_since(view.before, name);
        let mut shown = json!({
            "limit": name,
            "rate": view.gateway.limiter().quota(limit, None).to_string(),
            "file_rate": limit.quota().to_string(),
            "algorithm": limit.quota().algorithm.name(),
            "shadows": limit.shadows(),
        });
        for effect in EFFECTS {
            shown["decisions"][effect.name()] = json!(rule.count(effect));
            shown["per_second"][effect.name()] = json!(view.per_second(recent[effect as usize]));
        }
        shown
    });
    limits.collect()
}

/// Returns the upstreams with their servers.
pub(super) fn upstreams(view: &Period<'_>) -> Value {
    let upstreams = view.gateway.upstreams().iter().map(|(upstream, target)| {
        let servers = target.standings().map(|standing| {
            let name = standing.server.url().name();
            let place = (upstream.clone(), name);
            let (now, before) = (view.now.servers.get(&place), view.before.servers.get(&place));
            let recent = now.zip(before).map(|(now, before)| ServerCounts {
                answers: now.answers.since(&before.answers),
                failures: now.failures.saturating_sub(before.failures),
            });
            let quantile = |share| recent.as_ref().and_then(|recent| recent.answers.quantile(share));
            json!({
                "server": place.1,
                "weight": standing.weight,
                "up": standing.is_up,
                "ejected_for_ms": standing.ejected_for.map(|left| left.as_millis() as u64),
                "in_flight": standing.server.in_flight(),
                "answers": standing.server.answers().count(),
                "failures": standing.server.failures(),
                "answers_per_second":
                    view.per_second(recent.as_ref().map_or(0, |recent| recent.answers.count())),
                "failures_per_second": view.per_second(recent.as_ref().map_or(0, |recent| recent.failures)),
                "p50_ms": milliseconds(quantile(0.5)),
                "p99_ms": milliseconds(quantile(0.99)),
            })
        });
        json!({ "upstream": upstream, "servers": servers.collect::<Value>() })
    });
    upstreams.collect()
}

fn store(view: &Period<'_>) -> Value {
    let limiter = view.gateway.limiter();
    let nodes = view.now.nodes.values().map(|node| {
        let before = view.before.nodes.get(&node.name);
        let since = |now: &Distribution, before: Option<&Distribution>| {
            before.map_or_else(|| now.clone(), |before| now.since(before))
        };
        let calls = since(&node.calls, before.map(|before| &before.calls));
        let charges = since(&node.charges, before.map(|before| &before.charges));
        json!({
            "node": node.name,
            "breaker_open": node.is_open,
            "breaker_openings": node.openings,
            "calls_per_second": view.per_second(calls.count()),
            "charges_per_call": charges.mean().map(rounded),
            "p50_ms": milliseconds(calls.quantile(0.5)),
            "p99_ms": milliseconds(calls.quantile(0.99)),
        })
    });
    let (bytes, max_bytes) = limiter.local_bytes();
    let failures = view.now.store_failures.saturating_sub(view.before.store_failures);
    json!({
        "up": limiter.store_answers(),
        "instances": limiter.instances(),
        "nodes": nodes.collect::<Value>(),
        "failures_per_second": view.per_second(failures),
        "memory_bytes": bytes,
        "memory_max_bytes": max_bytes,
    })
}

/// Returns the top keys of each limit, in descending order of their counts.
pub(super) fn top(gateway: &Gateway, noted: fn(&Rule) -> &HeavyHitters) -> Value {
    let now = Instant::now();
    let mut keys = Vec::new();
    for (name, rule) in gateway.rules() {
        let hitters = noted(rule);
        let seconds = hitters.weighed_seconds(now).max(1.0);
        keys.extend(hitters.read(now).into_iter().take(KEYS_MOST).map(|hits| (name, rule, seconds, hits)));
    }
    keys.sort_by_key(|(_, _, _, hits)| Reverse(hits.at_least));
    let keys = keys.into_iter().map(|(name, rule, seconds, hits)| {
        json!({
            "limit": name,
            "key": hits.key,
            "written": key::written(rule.config(), &hits.key),
            "name": key::name_of(rule.config(), &hits.key),
            "at_least": hits.at_least,
            "at_most": hits.at_most,
            "per_second": rounded(hits.at_least as f64 / seconds),
        })
    });
    keys.collect()
}

fn show_reload(Reload { time, outcome }: &Reload) -> Value {
    let fault = outcome.as_ref().err().map(|faults| faults.chars().take(FAULTS_MOST).collect::<String>());
    json!({
        "time_ms": milliseconds_since_1970(*time),
        "good": outcome.is_ok(),
        "changes": outcome.as_deref().unwrap_or_default(),
        "fault": fault,
    })
}

pub(super) fn milliseconds_since_1970(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).unwrap_or_default().as_millis() as u64
}

/// Converts microseconds.
pub(super) fn milliseconds(us: Option<f64>) -> Option<f64> {
    us.map(|us| rounded(us / 1_000.0))
}

/// Rounds to two places, since the numbers shown are estimates.
fn rounded(number: f64) -> f64 {
    (number * 100.0).round() / 100.0
}
