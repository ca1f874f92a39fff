//! The replay of requests with one configuration, through its routes and the keys of its limits, in an
//! in-process store whose clock is that of the log.
//!
//! All of it changes the state of one replay, so it stands in one file.

mod ends;
mod limit;

use std::{
    cmp::Reverse,
    collections::{BinaryHeap, HashMap},
    sync::Arc,
};

use hyper::{
    Request, Version,
    header::{COOKIE, HOST, HeaderValue},
    http::{request::Parts, uri::PathAndQuery},
};
use smallvec::SmallVec;
use tollgate_limiter::{
    Algorithm, Ask, Rate,
    store::{Charge, Operation, Reply, memory::MemoryStore},
};
use tollgate_routing::Matcher;

use crate::{
    config::{Config, Cost, KeyPart},
    forward::headers::{Client, from_client},
    gateway::{
        plan::{Planner, Unplanned},
        target::{self, Target},
    },
    reject::Rejection,
    rules::{Rule, key::jwt::Claims},
};

pub(super) use self::limit::ReplayedLimit;
use self::{
    ends::{ResponseEnd, correction},
    limit::{Denied, is_in_log},
};
use super::{
    line::{Logged, Wanted},
    tally::Timeline,
};

/// The memory limit for the store's counts, in bytes.
const STORE_BYTES_MOST: usize = 1 << 30;
/// The memory limit for the demand of keys, in bytes. Beyond it, demand is counted coarsely.
const DEMAND_BYTES_MOST: isize = 256 << 20;
/// The most keys with statistics.
const KEYS_MOST: usize = 500_000;
/// The prefix of keys in the names of buckets.
const KEY_PREFIX: &str = "";

/// A configuration and its state during a replay.
pub(super) struct Replay {
    planner: Arc<Planner>,
    host: Option<HeaderValue>,
    /// The path at which the gateway answers health checks.
    health: Option<PathAndQuery>,
    /// The header fields and query parameters that routes match.
    conditions: Vec<KeyPart>,
    /// True if a route matches claims.
    matches_claims: bool,
    pub(super) limits: Vec<ReplayedLimit>,
    store: MemoryStore,
    /// The ends of requests in flight, by time.
    running: BinaryHeap<Reverse<(u64, u64)>>,
    ends: HashMap<u64, SmallVec<[ResponseEnd; 2]>>,
    started: u64,
    keys: usize,
    demand_bytes: isize,
    parts: Parts,
    pub(super) counts: OutcomeCounts,
    pub(super) timeline: Timeline,
    /// The requests that this configuration refuses and the other one doesn't.
    pub(super) differing: u64,
}

/// The numbers of requests by outcome.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct OutcomeCounts {
    /// Requests that passed all their limits, or had none.
    pub(super) admitted: u64,
    /// Requests that a limit refused.
    pub(super) refused: u64,
    /// Requests without a matching route.
    pub(super) unrouted: u64,
    /// Requests whose target or host can't be read.
    pub(super) rejected: u64,
    /// Requests that the store had no memory for.
    pub(super) undecided: u64,
    /// Requests without a known host.
    pub(super) without_host: u64,
    /// Requests that may have had a header field or a query parameter that a route matches.
    pub(super) without_condition: u64,
    /// Requests that may have had a claim that a route matches.
    pub(super) without_claims: u64,
}

/// The outcome of a request.
pub(super) enum Replayed {
    /// It passed all its limits.
    Admitted,
    /// These limits refused it.
    Refused(RefusedBy),
    /// It didn't reach the limits.
    NotAsked,
}

/// Limits that refused a request, each with the index of its key, if known.
pub(super) type RefusedBy = SmallVec<[(usize, Option<usize>); 2]>;

/// A limit that a request has to pass.
struct PendingAsk {
    limit: usize,
    /// The index of its key in the tally.
    key: Option<usize>,
    ask: Ask,
    charge: Charge,
}

impl Replay {
    /// Creates the replay of a configuration. Requests without a host in the log get this one.
    pub(super) fn new(config: &Config, host: Option<HeaderValue>) -> Self {
        let limits: Vec<_> = config.limits.values().map(ReplayedLimit::new).collect();
        let rules = limits.iter().map(|own| (own.rule.limit().name().to_owned(), own.rule.clone()));
        Self {
            planner: Arc::new(Planner::new(config, rules.collect())),
            host,
            health: config.server.health.clone(),
            conditions: conditions(config),
            matches_claims: config.routes.iter().any(|route| !route.matcher.claims.is_empty()),
            limits,
            store: MemoryStore::new(STORE_BYTES_MOST),
            running: BinaryHeap::new(),
            ends: HashMap::new(),
            started: 0,
            keys: 0,
            demand_bytes: 0,
            parts: Request::new(()).into_parts().0,
            counts: OutcomeCounts::default(),
            timeline: Timeline::default(),
            differing: 0,
        }
    }

    /// Adds the header fields that this configuration depends on.
    pub(super) fn want(&self, wanted: &mut Wanted) {
        let Wanted { of_request, of_answer } = wanted;
        let mut parts: Vec<&KeyPart> = self.conditions.iter().collect();
        for config in self.limits.iter().map(|limit| limit.rule.config()) {
            parts.extend(config.key.iter().chain(config.rate_from.iter().map(|from| &from.source)));
            match &config.cost {
                Cost::Fixed(_) | Cost::ResponseJson { .. } => {}
                Cost::Header(name) => of_request.push(name.clone()),
                Cost::Response { header, .. } => of_answer.push(header.clone()),
            }
        }
        of_request.extend(parts.into_iter().filter_map(|part| match part {
            KeyPart::Header(name) => Some(name.clone()),
            KeyPart::Cookie(_) => Some(COOKIE),
            _ => None,
        }));
    }

    /// Returns true if a route matches a single host only.
    pub(super) fn has_hosts(&self) -> bool {
        self.planner.routes.routes().any(|(matcher, _)| matcher.host.is_some())
    }

    /// Decides a request. Times never go back.
    pub(super) fn decide(&mut self, logged: &Logged) -> Replayed {
        self.end_until(logged.at_us);
        let mut parts = std::mem::replace(&mut self.parts, Request::new(()).into_parts().0);
        self.fill(&mut parts, logged);
        let verdict = self.decide_request(&parts, logged);
        self.parts = parts;
        let counts = &mut self.counts;
        match &verdict {
            Replayed::Admitted => counts.admitted += 1,
            Replayed::Refused(_) => counts.refused += 1,
            Replayed::NotAsked => {}
        }
        self.timeline.note(logged.at_us, matches!(verdict, Replayed::Refused(_)));
        verdict
    }

    /// Counts a request that these limits refused and the other configuration doesn't.
    pub(super) fn differ(&mut self, refused_by: RefusedBy) {
        self.differing += 1;
        for (limit, key) in refused_by {
            self.limits[limit].tally.differ(key);
        }
    }

    /// Builds the request as the gateway would have received it.
    fn fill(&self, parts: &mut Parts, logged: &Logged) {
        parts.method = logged.method.clone();
        parts.uri = logged.target.clone();
        parts.headers.clear();
        for (name, value) in &logged.headers {
            if let Some(value) = value {
                parts.headers.append(name, value.clone());
            }
        }
        from_client(&mut parts.headers, &[]);
        let host = logged.host.as_ref().or(self.host.as_ref());
        // HTTP/1.0 requests need no host.
        parts.version = if host.is_some() { Version::HTTP_11 } else { Version::HTTP_10 };
        if let Some(host) = host {
            parts.headers.insert(HOST, host.clone());
        }
    }

    fn decide_request(&mut self, parts: &Parts, logged: &Logged) -> Replayed {
        if self.is_for_gateway(parts) {
            return Replayed::Admitted;
        }
        let planner = self.planner.clone();
        let address = logged.client;
        // The fields that proxies set are in the log as the gateway got them.
        let client = Client { peer: address, peer_is_trusted: true, address, scheme: "http" };
        let plan = match planner.plan(&client, parts, &Claims::new(None, &parts.headers)) {
            Ok(plan) => Some(plan),
            Err(Unplanned { rejection: Rejection::NoRoute, .. }) => None,
            Err(_) => {
                self.counts.rejected += 1;
                return Replayed::NotAsked;
            }
        };
        self.count_unknown(parts, logged);
        let Some(plan) = plan else {
            self.counts.unrouted += 1;
            return Replayed::NotAsked;
        };
        let (mut asked, mut denied) = (SmallVec::<[PendingAsk; 2]>::new(), None);
        for (rule, terms) in plan.rules.iter().zip(plan.terms) {
            let limit = self.place(rule);
            match self.limits[limit].ask(rule, terms, parts, logged) {
                Ok(asks) => asked.extend(asks.into_iter().map(|ask| self.pending(limit, ask))),
                Err(Denied) => denied = denied.or(Some(limit)),
            }
        }
        self.note_demand(&asked, logged);
        match denied {
            // It is refused before any limit is charged.
            Some(limit) => Replayed::Refused([(limit, None)].into_iter().collect()),
            None => self.decide_asked(&asked, logged),
        }
    }

    /// Returns true if the gateway answers a request itself, before any route.
    fn is_for_gateway(&self, parts: &Parts) -> bool {
        target::is_health_check(self.health.as_ref(), &parts.method, &parts.uri)
            || target::is_about_server(parts) && target::host(parts).is_ok()
    }

    /// Returns what a request asks of a limit, with its charge and the place of its key.
    fn pending(&mut self, limit: usize, ask: Ask) -> PendingAsk {
        let mut charge = ask.charge(KEY_PREFIX, ask.rate_of_file());
        if charge.quota.algorithm == Algorithm::Concurrency {
            // A lease lasts as long as its request here, without being renewed.
            charge.quota.window_us = Rate::MAX_WINDOW_US;
        }
        let may_add = self.keys < KEYS_MOST;
        let key = self.limits[limit].tally.place(ask.key().as_str(), may_add, charge.quota);
        self.keys += usize::from(key.is_new);
        PendingAsk { limit, key: key.place, ask, charge }
    }

    /// Counts what the log doesn't tell of a request, though its route may depend on it.
    fn count_unknown(&mut self, parts: &Parts, logged: &Logged) {
        self.counts.without_host += u64::from(target::host(parts).is_ok_and(|host| host.is_empty()));
        let is_unknown = |part| !is_in_log(part, parts, logged);
        self.counts.without_condition += u64::from(self.conditions.iter().any(is_unknown));
        self.counts.without_claims += u64::from(self.asks_for_claims(parts));
    }

    /// Returns true if the route of a request depends on the claims of its token, which no log has.
    fn asks_for_claims(&self, parts: &Parts) -> bool {
        let target = || Target::read(parts, self.planner.escaped_slashes, &self.planner.routes).ok();
        self.matches_claims.then(target).flatten().is_some_and(|target| {
            let claims = Claims::new(None, &parts.headers);
            // Only the question matters, not its outcome.
            drop(self.planner.route(parts, &target, &claims));
            claims.were_asked()
        })
    }

    /// Returns the place of a limit in [`Replay::limits`], which has the order of their names.
    fn place(&self, rule: &Rule) -> usize {
        let name = rule.limit().name();
        self.limits.binary_search_by(|own| own.rule.limit().name().cmp(name)).expect("each limit has a place")
    }

    fn decide_asked(&mut self, asked: &[PendingAsk], logged: &Logged) -> Replayed {
        let fits = |asked: &&PendingAsk| asked.charge.cost.max(1) <= asked.charge.quota.capacity();
        let mut never: RefusedBy =
            asked.iter().filter(|asked| !fits(asked)).map(|asked| (asked.limit, asked.key)).collect();
        never.dedup_by_key(|(limit, _)| *limit);
        for &(limit, key) in &never {
            self.limits[limit].tally.refuse(key, false);
        }
        let refuses = |&(limit, _): &(usize, _)| !self.limits[limit].rule.limit().shadows();
        if never.iter().any(refuses) {
            return Replayed::Refused(never.into_iter().filter(refuses).collect());
        }
        let asked: SmallVec<[&PendingAsk; 2]> = asked.iter().filter(fits).collect();
        if asked.is_empty() {
            return Replayed::Admitted;
        }
        let charges = asked.iter().map(|asked| asked.charge.clone()).collect();
        let Ok(Reply::Decision(decision)) =
            self.store.operate_at(store_time(logged.at_us), &Operation::Take(charges))
        else {
            self.counts.undecided += 1;
            return Replayed::NotAsked;
        };
        let (mut refused, mut last) = (RefusedBy::new(), None);
        for (PendingAsk { limit, key, .. }, outcome) in asked.iter().zip(&decision.outcomes) {
            // A limit refuses a request once, however many keys servers may read in it.
            if outcome.delay_us != Some(0) && last.replace(*limit) != Some(*limit) {
                let ReplayedLimit { rule, tally, .. } = &mut self.limits[*limit];
                let wait_us = rule.limit().wait().as_micros() as u64;
                tally.refuse(*key, outcome.delay_us.is_some_and(|delay_us| delay_us <= wait_us));
                if !rule.limit().shadows() {
                    refused.push((*limit, *key));
                }
            }
        }
        if !decision.admitted {
            return Replayed::Refused(refused);
        }
        self.settle(&asked, &decision, logged);
        Replayed::Admitted
    }

    /// Adds a request to the demand of its keys, whether it is admitted or not.
    fn note_demand(&mut self, asked: &[PendingAsk], logged: &Logged) {
        let is_coarse = self.demand_bytes > DEMAND_BYTES_MOST;
        let mut ends = SmallVec::new();
        for PendingAsk { limit, key, ask, charge } in asked {
            let ReplayedLimit { rule, tally, .. } = &mut self.limits[*limit];
            let Some(of_key) = tally.arrive(*key) else { continue };
            let key = key.expect("it has a place");
            self.demand_bytes +=
                of_key.demand.arrive(charge.quota, is_coarse, store_time(logged.at_us), charge.cost);
            tally.is_coarse |= is_coarse;
            if charge.quota.algorithm == Algorithm::Concurrency {
                ends.push(ResponseEnd::Ran { limit: *limit, key });
            }
            if let Some(act) = correction(rule, ask, logged) {
                ends.push(ResponseEnd::Demanded { limit: *limit, key, quota: charge.quota, act });
            }
        }
        self.end_later(logged, ends);
    }
}

/// Returns the header fields and query parameters that routes match.
fn conditions(config: &Config) -> Vec<KeyPart> {
    let matchers = config.routes.iter().map(|route| &route.matcher);
    let of_route = |matcher: &Matcher| {
        let headers = matcher.headers.iter().map(|(name, _)| KeyPart::Header(name.clone()));
        let query = matcher.query.iter().map(|(name, _)| KeyPart::Query(name.clone()));
        headers.chain(query).collect::<Vec<_>>()
    };
    matchers.flat_map(of_route).collect()
}

/// Shifts a time so that no window begins before zero: by 400 years, after which the calendar repeats itself.
fn store_time(time_us: u64) -> u64 {
    const DAYS: u64 = 146_097;
    time_us + DAYS * 24 * 3600 * 1_000_000
}
