//! A limit in a replay, which works with what the log contains about a request.

use std::sync::Arc;

use hyper::{header::COOKIE, http::request::Parts};
use smallvec::smallvec;
use tollgate_limiter::{Algorithm, Asks, Key};

use crate::{
    config::{self, Cost, KeyPart, Missing, UnknownKey},
    gateway::target,
    rules::{
        Rule, Terms,
        key::{OwnRates, is_of},
        key_missing,
    },
};

use super::super::{
    line::{DecisionInLog, Logged},
    tally::LimitTally,
};

/// A limit and its statistics.
pub(in crate::simulate) struct ReplayedLimit {
    pub(in crate::simulate) rule: Arc<Rule>,
    own_rates: OwnRates,
    pub(in crate::simulate) tally: LimitTally,
}

/// A refusal because the request has no key.
pub(super) struct Denied;

impl ReplayedLimit {
    pub(super) fn new(config: &Arc<config::LimitSettings>) -> Self {
        Self {
            rule: Arc::new(Rule::new(config, None)),
            own_rates: OwnRates::new(config),
            tally: LimitTally::default(),
        }
    }

    /// Returns the request's asks of the limit, and tallies its terms. There are none if the limit doesn't count it. `planned` is
    /// the limit at the cost that the route states.
    pub(super) fn ask(
        &mut self,
        planned: &Rule,
        terms: Terms,
        parts: &Parts,
        logged: &Logged,
    ) -> Result<Asks, Denied> {
        let terms = self.terms_in_log(planned, terms, parts, logged);
        let Self { rule, tally, .. } = self;
        tally.requests += 1;
        let config = rule.config();
        let is_concurrency = rule.limit().quota().algorithm == Algorithm::Concurrency;
        match terms {
            Terms::Counts(_) if is_concurrency && logged.took_us.is_none() => {
                tally.unknown_time += 1;
                Ok(Asks::new())
            }
            Terms::Counts(_) if rule.takes_reports() => {
                tally.unreported += 1;
                Ok(Asks::new())
            }
            Terms::Counts(asks) => {
                tally.unknown_costs += u64::from(!has_cost(config, logged));
                let source = config.rate_from.as_ref().map(|from| &from.source);
                tally.unknown_rates += u64::from(source.is_some_and(|part| !is_in_log(part, parts, logged)));
                Ok(asks)
            }
            Terms::Exempts { .. } => {
                tally.exempt += 1;
                Ok(Asks::new())
            }
            Terms::Skips => {
                tally.skipped += 1;
                Ok(Asks::new())
            }
            Terms::Refuses(_) => {
                tally.refuse(None, false);
                tally.denied += 1;
                if rule.limit().shadows() { Ok(Asks::new()) } else { Err(Denied) }
            }
        }
    }

    /// Replaces the terms of a request if the log lacks a part of its key: with the decision in this gateway's log, if it
    /// has one.
    fn terms_in_log(&mut self, planned: &Rule, terms: Terms, parts: &Parts, logged: &Logged) -> Terms {
        let Self { rule, own_rates, tally } = self;
        let config = rule.config();
        let Some(part) = config.key.iter().find(|part| !is_in_log(part, parts, logged)) else { return terms };
        match (decision_in_log(config, logged), terms) {
            (_, terms @ Terms::Exempts { .. }) => terms,
            (Some(DecisionInLog::Exempt), _) => Terms::Exempts { entry: None },
            (Some(DecisionInLog::Denied), _) if denies(config) => Terms::Refuses(key_missing(config)),
            // The terms are those of a request without the key.
            (Some(DecisionInLog::Denied | DecisionInLog::Skipped), terms) => terms,
            (Some(DecisionInLog::Key(key)), _) => {
                let cost = planned.cost(&parts.headers).unwrap_or(1);
                let key = Key::of_text(key.clone());
                let rate = own_rates.of(&key);
                Terms::Counts(smallvec![planned.ask_of(key, rate, cost)])
            }
            (None, terms) => {
                tally.note_unknown(part);
                // The request may have had the key, so it isn't refused.
                if config.missing == Missing::Deny { Terms::Skips } else { terms }
            }
        }
    }
}

/// Returns true if a limit refuses requests without a key, or with one that isn't known.
fn denies(config: &config::LimitSettings) -> bool {
    config.missing == Missing::Deny || config.known_keys.is_some() && config.unknown == UnknownKey::Deny
}

/// Returns the decision in this gateway's log for a limit with this name and the same key parts.
fn decision_in_log<'l>(config: &config::LimitSettings, logged: &'l Logged) -> Option<&'l DecisionInLog> {
    let decision = logged.limits.iter().find(|(name, _)| *name == config.name).map(|(_, decision)| decision);
    decision.filter(|decision| match decision {
        DecisionInLog::Key(key) => is_of(key, &config.key),
        DecisionInLog::Exempt | DecisionInLog::Skipped | DecisionInLog::Denied => true,
    })
}

/// Returns true if the log has everything that the cost of a request depends on.
fn has_cost(config: &config::LimitSettings, logged: &Logged) -> bool {
    let has_cost = match &config.cost {
        Cost::Fixed(_) => true,
        Cost::Header(name) => logged.header(name).is_some(),
        Cost::Response { header, .. } => logged.answer_headers.iter().any(|(name, _)| name == header),
        // No log has bodies.
        Cost::ResponseJson { .. } => false,
    };
    has_cost && (config.when_status.is_empty() || logged.status.is_some())
}

/// Returns true if the log has this part of a request, or says that it was absent.
pub(super) fn is_in_log(part: &KeyPart, parts: &Parts, logged: &Logged) -> bool {
    match part {
        KeyPart::Header(name) => logged.header(name).is_some(),
        KeyPart::Cookie(_) => logged.header(&COOKIE).is_some(),
        // A token that was valid at the time has expired since.
        KeyPart::Jwt(_) => false,
        // This gateway's log contains only the names.
        KeyPart::Query(name) => {
            let query = parts.uri.query().unwrap_or_default();
            !form_urlencoded::parse(query.as_bytes()).any(|(other, value)| other == *name && value == "*")
        }
        KeyPart::Host => target::host(parts).is_ok_and(|host| !host.is_empty()),
        KeyPart::Ip | KeyPart::Path(_) | KeyPart::Method | KeyPart::Route => true,
        KeyPart::Descriptor(_) | KeyPart::Global => true,
    }
}
