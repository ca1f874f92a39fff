//! Explains a request: its route and why the others don't match, the readings of its path, and each limit's key and
//! count. Nothing is forwarded, and nothing is charged.
//!
//! An explanation is the gateway's own [plan](crate::gateway::plan), described.
//!
//! Each part of the plan is described by a function of this file, so that what is missing is seen.

mod descriptor;
mod explanation;
mod question;
mod untaken;

use std::{collections::BTreeSet, ptr};

use hyper::{StatusCode, Uri, http::request::Parts};

pub use self::{
    descriptor::{DescriptorExplanation, DescriptorQuestion},
    explanation::{
        DescribedLimit, DescribedRoute, Explanation, Live, NextDecision, Reading, Rejected, UntakenRoute,
    },
    question::Question,
};
use tollgate_limiter::{Algorithm, Ask, Asks, KeyState, OnFailure, Quota, Rate, Scope};

use crate::{
    config::{self, Cost, Exemption, Missing, Mode, Requirement, UnknownKey},
    forward::headers::Client,
    gateway::{
        Gateway, Peer,
        plan::{Aim, Planner, Route},
        target::{self, Target},
    },
    reject::Rejection,
    rules::{
        Rule, Terms,
        key::{self, jwt::Claims},
    },
};
use tollgate_routing::{Matcher, View, path};

impl Explanation {
    /// Explains a request from the configuration alone.
    pub fn of(gateway: &Gateway, question: Question) -> Self {
        explain(gateway, question).0
    }

    /// Explains a request, with the current counts from the store and the decision for the next identical request.
    pub async fn live(gateway: &Gateway, question: Question) -> Self {
        // A request with the token would wait for its key, too.
        let fetch = {
            let claims = gateway.claims(&question.parts);
            claims.require().err().and_then(|_| claims.fetch())
        };
        if let Some(fetch) = fetch {
            fetch.await;
        }
        let (mut explanation, asks) = explain(gateway, question);
        if explanation.rejected.is_some() {
            return explanation;
        }
        explanation.next = Some(look(gateway, &mut explanation.limits, &asks).await);
        explanation
    }
}

/// Looks where limits stand, and returns the decision on the next request that asks this of each.
async fn look(gateway: &Gateway, limits: &mut [DescribedLimit], asks: &[Asks]) -> NextDecision {
    let mut next = NextDecision { admitted: true, refused_by: Vec::new(), unknown: None };
    for (limit, asks) in limits.iter_mut().zip(asks) {
        let mut admits = limit.outcome != "refused";
        for ask in asks {
            match gateway.limiter().peek(ask).await {
                // Shows the first key without room, else the first key.
                Ok(state) if admits => {
                    admits = state.usage.delay_us == Some(0);
                    if limit.live.is_none() || !admits {
                        limit.note(ask, &state);
                    }
                }
                Ok(_) => {}
                Err(error) => next.unknown = Some(error.to_string()),
            }
        }
        if !admits && limit.mode == "enforce" {
            next.admitted = false;
            next.refused_by.push(limit.limit.clone());
        }
    }
    next.admitted &= next.unknown.is_none();
    next
}

/// Explains a request, and returns its asks of each limit.
fn explain(gateway: &Gateway, question: Question) -> (Explanation, Vec<Asks>) {
    let Question { mut parts, peer } = question;
    let peer = Peer { address: peer, scheme: "http" };
    gateway.remove_unforwarded(peer, &mut parts.headers);
    let client = gateway.client(peer, &parts.headers);
    let mut explanation = Explanation::new(&client, &parts);
    if gateway.is_health_check(&parts.method, &parts.uri) {
        explanation.rejected = Some(Rejected::health_check());
        return (explanation, Vec::new());
    }
    if target::is_about_server(&parts) {
        let host = target::host(&parts);
        explanation.rejected = Some(host.err().map_or_else(Rejected::about_server, Rejected::from));
        return (explanation, Vec::new());
    }
    if let Ok(target) = Target::read(&parts, gateway.planner.escaped_slashes, &gateway.planner.routes) {
        // These claims are also asked for by routes that aren't tried for the plan.
        explanation.describe_routes(&gateway.planner, &parts, &target, &gateway.claims(&parts));
    }
    match gateway.planner.plan(&client, &parts, &gateway.claims(&parts)) {
        Ok(plan) => {
            explanation.route = Some(DescribedRoute::new(gateway, plan.route, Some(plan.aim), &parts.uri));
            let limits = plan.rules.iter().zip(plan.terms);
            let (limits, asks) = limits.map(|(rule, terms)| DescribedLimit::new(rule, terms)).unzip();
            explanation.limits = limits;
            (explanation, asks)
        }
        Err(unplanned) => {
            explanation.route =
                unplanned.route.map(|route| DescribedRoute::new(gateway, route, None, &parts.uri));
            explanation.rejected = Some(unplanned.rejection.into());
            (explanation, Vec::new())
        }
    }
}

impl Explanation {
    /// Returns what the request itself shows.
    fn new(client: &Client, parts: &Parts) -> Self {
        let forwarded = path::forwarded(parts.uri.path());
        Self {
            method: parts.method.to_string(),
            host: String::new(),
            client: client.address,
            peer: client.peer,
            path: parts.uri.path().to_owned(),
            matched: path::matched(&forwarded).into_owned(),
            forwarded: forwarded.into_owned(),
            readings: Vec::new(),
            rejected: None,
            route: None,
            others: Vec::new(),
            limits: Vec::new(),
            next: None,
        }
    }

    /// Describes the readings of the path, and the routes that aren't taken.
    fn describe_routes(
        &mut self,
        planner: &Planner,
        parts: &Parts,
        target: &Target<'_>,
        claims: &Claims<'_>,
    ) {
        self.host = target.host.to_string();
        let view = target.view(parts, claims);
        let taken = planner.route(parts, target, claims).ok().map(|found| found.route);
        // Where there are too many, those of the path tell why.
        let of_path = |_| target.readings.iter().flatten().map(|path| View { path, ..view }).collect();
        let views = target.other_views(parts, claims, &planner.routes).unwrap_or_else(of_path);
        let different =
            views.iter().map(|view| (view.path, planner.routes.find(view).map(|found| &found.route.name)));
        let own = (&*target.matched, taken.map(|taken| &taken.name));
        let different: BTreeSet<_> = different.filter(|reading| *reading != own).collect();
        let reading =
            |(path, route): (&str, Option<&String>)| Reading { path: path.to_owned(), route: route.cloned() };
        self.readings = different.into_iter().map(reading).collect();
        let is_other = |(_, route): &&(Matcher, Route)| taken.is_none_or(|taken| !ptr::eq(taken, route));
        let others = planner.routes.routes().filter(is_other);
        self.others = others
            .map(|(matcher, route)| UntakenRoute::new(matcher, route, (&view, claims), taken))
            .collect();
    }
}

impl DescribedRoute {
    /// Describes a route, and the next step of a request that isn't rejected.
    fn new(gateway: &Gateway, route: &Route, aim: Option<Aim<'_>>, as_sent: &Uri) -> Self {
        let mut routes = gateway.planner.routes.routes();
        let (matcher, _) = routes.nth(route.place).expect("it is one of them");
        let (upstream, target, responds) = match aim {
            None => (None, None, None),
            Some(Aim::Upstream(split, uri)) => {
                let name = gateway.upstream_text(split);
                (Some(name), Some(uri.as_ref().unwrap_or(as_sent).to_string()), None)
            }
            Some(Aim::Fixed(response)) => (None, None, Some(response.status().as_u16())),
            Some(Aim::Redirect(to, status)) => {
                (None, Some(String::from_utf8_lossy(to.as_bytes()).into_owned()), Some(status.as_u16()))
            }
        };
        Self {
            name: route.name.clone(),
            matches: matcher.to_string(),
            upstream,
            target,
            responds,
            timeout_ms: route.timeout.map(|timeout| timeout.as_millis() as u64),
            requires: route.requires.map(|Requirement::Jwt| "jwt"),
        }
    }
}

impl Rejected {
    /// Returns the response to a health check.
    fn health_check() -> Self {
        let detail =
            "`server.health` is this path, so the gateway answers it, with 503 while it drains; it isn't counted"
                .to_owned();
        Self { status: StatusCode::OK.as_u16(), code: "health-check", detail }
    }

    /// Returns the response to `OPTIONS *`.
    fn about_server() -> Self {
        let detail = "`OPTIONS *` is about the server as a whole, so the gateway answers it".to_owned();
        Self { status: StatusCode::NO_CONTENT.as_u16(), code: "about-server", detail }
    }
}

impl From<Rejection> for Rejected {
    fn from(rejection: Rejection) -> Self {
        let (status, code, detail) = rejection.summary();
        let detail = match &rejection {
            // Clients aren't told what is wrong with a token.
            Rejection::TokenInvalid(reason) => format!("the token isn't valid: {reason}"),
            _ => detail.to_string(),
        };
        Self { status: status.as_u16(), code, detail }
    }
}

impl DescribedLimit {
    /// Describes a limit, and returns the request's asks of it.
    fn new(rule: &Rule, terms: Terms) -> (Self, Asks) {
        let mut described = Self::without_request(rule);
        let asks = described.note_terms(rule, terms);
        (described, asks)
    }

    /// Describes what the file says of a limit.
    fn without_request(rule: &Rule) -> Self {
        let (limit, config) = (rule.limit(), rule.config());
        Self {
            limit: limit.name().to_owned(),
            outcome: "counted",
            counts_by: config.key.iter().map(ToString::to_string).collect(),
            key: None,
            known_as: None,
            exempted_by: None,
            other_keys: Vec::new(),
            reason: None,
            rate: limit.quota().to_string(),
            rate_from: "limit",
            algorithm: limit.quota().algorithm.name(),
            calendar: match limit.quota().algorithm {
                Algorithm::Calendar(calendar) => Some(calendar.to_string()),
                _ => None,
            },
            cost: cost(rule),
            scope: match config.scope {
                Scope::Shared => "shared",
                Scope::Instance => "instance",
            },
            mode: match config.mode {
                Mode::Enforce => "enforce",
                Mode::Shadow => "shadow",
            },
            missing: match config.missing {
                Missing::Ip => "ip",
                Missing::Skip => "skip",
                Missing::Deny => "deny",
            },
            ban: config.ban.map(|ban| ban.to_string()),
            unknown: config.known_keys.as_ref().map(|_| match config.unknown {
                UnknownKey::Ip => "ip",
                UnknownKey::Deny => "deny",
            }),
            wait_ms: Some(config.wait.as_millis() as u64).filter(|wait_ms| *wait_ms > 0),
            on_failure: match config.on_failure {
                OnFailure::Local => "local",
                OnFailure::Allow => "allow",
                OnFailure::Deny => "deny",
            },
            live: None,
        }
    }

    /// Adds what the limit does with the request, and returns the request's asks of it.
    fn note_terms(&mut self, rule: &Rule, terms: Terms) -> Asks {
        let config = rule.config();
        match terms {
            Terms::Counts(asks) => {
                let name = asks.first().and_then(|ask| key::name_of(config, ask.key().as_str()));
                self.known_as = name.map(str::to_owned);
                let mut keys = asks.iter().map(|ask| ask.key().as_str().to_owned());
                self.key = keys.next();
                self.other_keys = keys.collect();
                self.note_own_rate(rule, &asks);
                return asks;
            }
            Terms::Exempts { entry } => {
                self.outcome = "exempt";
                self.exempted_by =
                    entry.and_then(|entry| config.exempt.get(entry)).map(|entry| exemption(config, entry));
            }
            Terms::Skips => self.outcome = "skipped",
            Terms::Refuses(refusal) => {
                self.outcome = "refused";
                self.reason = Some(refusal.to_string());
            }
        }
        Asks::new()
    }

    /// Adds the rate that the file or the request gives to the first key, if any.
    fn note_own_rate(&mut self, rule: &Rule, asks: &Asks) {
        if let Some(rate) = asks.first().and_then(Ask::own_rate) {
            let quota = Quota::new(rule.limit().quota().algorithm, rate);
            let is_stated = rule.config().rate_from.is_some() && own_rate(rule, asks) != Some(rate);
            self.rate = quota.to_string();
            self.rate_from = if is_stated { "request" } else { "overrides" };
        }
    }

    /// Adds the current count of a key.
    fn note(&mut self, ask: &Ask, state: &KeyState) {
        let quota = state.quota;
        if state.is_overridden {
            (self.rate, self.rate_from) = (quota.to_string(), "set");
        } else if let Some(rate) = ask.own_rate() {
            self.rate = Quota::new(quota.algorithm, rate).to_string();
            if self.rate_from == "limit" {
                self.rate_from = "overrides";
            }
        }
        let is_exact = quota.algorithm != Algorithm::Concurrency;
        let delay_us = state.usage.delay_us.filter(|_| is_exact);
        self.live = Some(Live {
            used: state.usage.used,
            remaining: u64::from(quota.capacity()).saturating_sub(state.usage.used),
            admits: state.usage.delay_us == Some(0),
            retry_after_ms: delay_us.map(|delay_us| delay_us.div_ceil(1_000)),
            banned_for_ms: state.banned_for.map(|banned_for| banned_for.as_micros().div_ceil(1_000) as u64),
            by_network: state.is_by_network,
        });
    }
}

/// Returns the rate that the file's overrides give to the first key of a request.
fn own_rate(rule: &Rule, asks: &Asks) -> Option<Rate> {
    rule.ask_for(asks.first()?.key().clone()).own_rate()
}

/// Returns an entry of `exempt` without what may be a credential: a key appears as it does in a bucket's name.
fn exemption(config: &config::LimitSettings, entry: &Exemption) -> String {
    match entry {
        Exemption::Network(network) => network.to_string(),
        Exemption::Key(values) => key::of_values(config, values).as_str().to_owned(),
    }
}

fn cost(rule: &Rule) -> String {
    let config = rule.config();
    let cost = match &config.cost {
        Cost::Fixed(_) => rule.fixed_cost().to_string(),
        Cost::Header(name) => format!("the value of the header `{name}`, or 1"),
        Cost::Response { header, estimate } => {
            format!("{estimate}, then corrected by the response's `{header}`")
        }
        Cost::ResponseJson { pointer, estimate } => {
            format!("{estimate}, then corrected by `{pointer}` in the response's JSON")
        }
    };
    match &config.when_status[..] {
        [] => cost,
        statuses => {
            let statuses: Vec<_> = statuses.iter().map(ToString::to_string).collect();
            format!("{cost}, if the response's status is {}", statuses.join(" or "))
        }
    }
}
