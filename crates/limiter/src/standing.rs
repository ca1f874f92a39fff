//! The standing of a limit after a decision: its quota, what is left, and where the decision comes from.

use std::{cmp::Ordering, sync::Arc};

use smallvec::SmallVec;

use crate::{
    algorithm::Quota,
    limit::{Ask, Limit},
    store::Outcome,
};

/// Where one limit stands after a request.
#[derive(Clone, Debug)]
pub struct Standing {
    /// The limit.
    pub limit: Arc<Limit>,
    /// The quota it was held to: the limit's, the key's own, or this gateway's share while the store is away.
    pub quota: Quota,
    /// What the store said, now or lately. Where it wasn't asked since the cost is more than the quota ever
    /// allows, only that holds.
    pub outcome: Outcome,
    /// Where that comes from.
    pub origin: Origin,
    /// Its place among the keys that servers may read in the request, of which each is asked for.
    pub reading: u8,
}

/// Where a limit's decision comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// The store in which the limit counts.
    Store,
    /// Here, without asking: only time could make room, others wait for it, or the cost never fits.
    LocalRefusal,
    /// The store can't answer, and the limit counts in this process meanwhile.
    FallbackLocal,
    /// The store can't answer, and the limit lets pass meanwhile. It says nothing of where it stands.
    FallbackAllow,
    /// The store can't answer, and the limit refuses meanwhile. It says nothing of where it stands.
    FallbackDeny,
    /// The limit only shadows: what it decides has no effect.
    Shadow,
    /// The limit's terms: whom it exempts, and what it demands of a request.
    Terms,
}

impl Origin {
    /// What metrics and logs call it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Store => "store",
            Self::LocalRefusal => "local_refusal",
            Self::FallbackLocal => "fallback_local",
            Self::FallbackAllow => "fallback_allow",
            Self::FallbackDeny => "fallback_deny",
            Self::Shadow => "shadow",
            Self::Terms => "terms",
        }
    }
}

/// What a limit did to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// It admitted it.
    Admitted,
    /// It refused it. If it shadows, it would have.
    Refused,
    /// It had room, but another limit refused.
    Uncharged,
    /// It doesn't count such clients.
    Exempt,
    /// It doesn't count requests without its key.
    Skipped,
}

impl Effect {
    /// What metrics and logs call it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Admitted => "admitted",
            Self::Refused => "refused",
            Self::Uncharged => "uncharged",
            Self::Exempt => "exempt",
            Self::Skipped => "skipped",
        }
    }
}

impl Standing {
    /// Of a limit that decided so. One that shadows is the origin itself.
    pub fn new(ask: &Ask, quota: Quota, outcome: Outcome, origin: Origin) -> Self {
        let Ask { limit, reading, .. } = ask;
        let origin = if limit.shadows() { Origin::Shadow } else { origin };
        Self { limit: limit.clone(), quota, outcome, origin, reading: *reading }
    }

    /// Orders the standings of a limit: of those that refused the one with the greatest delay is the tightest, else the
    /// one with the smallest share left.
    pub(crate) fn tightness(&self) -> f64 {
        match self.outcome.delay_us {
            Some(0) => -(self.outcome.remaining as f64 / f64::from(self.quota.permits)),
            Some(delay_us) => delay_us as f64,
            None => f64::INFINITY,
        }
    }

    /// Whether it tells where this ask stands.
    pub fn is_of(&self, ask: &Ask) -> bool {
        Arc::ptr_eq(&self.limit, &ask.limit) && self.reading == ask.reading
    }

    /// What the limit did to the request, which was admitted by all limits or wasn't.
    pub fn effect(&self, admitted: bool) -> Effect {
        match self.outcome.delay_us {
            Some(0) if admitted => Effect::Admitted,
            Some(0) => Effect::Uncharged,
            _ => Effect::Refused,
        }
    }

    /// How many permits are left, if that is known.
    pub fn remaining(&self) -> Option<u64> {
        let is_known = !matches!(self.origin, Origin::FallbackAllow | Origin::FallbackDeny);
        is_known.then_some(self.outcome.remaining)
    }

    /// Whether the limit refuses: it doesn't shadow, and has no room.
    pub fn refuses(&self) -> bool {
        !self.limit.shadows() && self.outcome.delay_us != Some(0)
    }
}

/// One for each ask, of which a limit has several if servers may read several keys in the request.
pub type Standings = SmallVec<[Standing; 1]>;

/// The tightest standing of each limit, in their order.
pub fn tightest_of_each(standings: &[Standing]) -> impl Iterator<Item = &Standing> {
    standings
        .iter()
        .enumerate()
        .filter(|(at, standing)| {
            standings.iter().enumerate().all(|(other_at, other)| {
                let is_tighter = match other.tightness().total_cmp(&standing.tightness()) {
                    Ordering::Greater => true,
                    Ordering::Equal => other_at < *at,
                    Ordering::Less => false,
                };
                !is_tighter || !Arc::ptr_eq(&standing.limit, &other.limit)
            })
        })
        .map(|(_, standing)| standing)
}
