//! What limits decided: counted by effect and origin, and recorded for a single request.

use std::sync::{Arc, atomic::Ordering};

use tollgate_limiter::{
    Effect, Key, Limit, Origin,
    metrics::{Counts, Page},
};

use super::Rule;

/// The number of requests by effect and origin.
#[derive(Debug)]
pub(super) struct Decisions(Counts);

const EFFECTS: usize = Effect::Skipped as usize + 1;
const ORIGINS: usize = Origin::Terms as usize + 1;

/// The origins that each effect can have.
const DECISIONS: [(Effect, &[Origin]); 5] = [
    (Effect::Admitted, &[Origin::Store, Origin::FallbackLocal, Origin::FallbackAllow, Origin::Shadow]),
    (
        Effect::Refused,
        &[
            Origin::Store,
            Origin::LocalRefusal,
            Origin::FallbackLocal,
            Origin::FallbackDeny,
            Origin::Ban,
            Origin::Shadow,
            Origin::Terms,
        ],
    ),
    (Effect::Uncharged, &[Origin::Store, Origin::FallbackLocal, Origin::Shadow]),
    (Effect::Exempt, &[Origin::Terms]),
    (Effect::Skipped, &[Origin::Terms]),
];

impl Default for Decisions {
    fn default() -> Self {
        Self(Counts::new(EFFECTS * ORIGINS))
    }
}

impl Decisions {
    fn place(effect: Effect, origin: Origin) -> usize {
        effect as usize * ORIGINS + origin as usize
    }

    /// Counts a decision.
    pub(super) fn add(&self, effect: Effect, origin: Origin) {
        self.0.add(Self::place(effect, origin));
    }

    /// Returns the number of decisions with this effect.
    pub(super) fn count(&self, effect: Effect) -> u64 {
        (0..ORIGINS).map(|origin| self.0.sum(effect as usize * ORIGINS + origin)).sum()
    }
}

/// Writes what limits decided.
pub fn write_metrics<'r>(page: &mut Page<'_>, rules: impl Iterator<Item = &'r Rule>) {
    let rules: Vec<_> = rules.collect();
    let counted = rules.iter().filter(|rule| rule.tally.decisions.0.have_counted());
    let values = counted.flat_map(|Rule { limit, tally, .. }| {
        let pairs =
            DECISIONS.iter().flat_map(|(effect, origins)| origins.iter().map(|origin| (*effect, *origin)));
        pairs.map(|(effect, origin)| {
            let labels = [("limit", limit.name()), ("outcome", effect.name()), ("origin", origin.name())];
            (labels, tally.decisions.0.sum(Decisions::place(effect, origin)))
        })
    });
    page.counters("tollgate_decisions", "Decisions of limits on requests, by outcome and origin", values);
    let estimating = rules.iter().filter(|rule| rule.config.cost.is_of_response());
    let kept = estimating
        .map(|rule| ([("limit", rule.limit.name())], rule.tally.estimates_kept.load(Ordering::Relaxed)));
    page.counters("tollgate_estimates_kept", "Responses that didn't state the cost of their request", kept);
    let banning = rules.into_iter().filter(|rule| rule.config.ban.is_some());
    let bans = banning.map(|rule| ([("limit", rule.limit.name())], rule.tally.breaches.bans()));
    page.counters("tollgate_bans", "Bans of keys that this gateway has refused too often", bans);
}

/// The decisions of limits on a request. `None` if nothing records them.
pub type DecisionLog = Option<Vec<Decided>>;

/// The decision of a limit on a request.
#[derive(Debug)]
pub struct Decided {
    /// The limit.
    pub limit: Arc<Limit>,
    /// The effect on the request.
    pub effect: Effect,
    /// The origin of the decision.
    pub origin: Origin,
    /// The permits that are left, if that is known.
    pub remaining: Option<u64>,
    /// The time until there is room for the request, if that is known: 0 if there was.
    pub delay_us: Option<u64>,
    /// The key that was counted, if one was.
    pub key: Option<Key>,
}

impl Decided {
    /// Returns true if the limit refused the request.
    pub fn refuses(&self) -> bool {
        self.effect == Effect::Refused && !self.limit.shadows()
    }
}
