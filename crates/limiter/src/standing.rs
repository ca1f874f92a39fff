//! The standing of a limit after a decision: its quota, what is left, and where the decision comes from.

use std::sync::Arc;

use smallvec::SmallVec;

use crate::{
    algorithm::Quota,
    limit::{Ask, Limit},
    store::Outcome,
};

/// The standing of one limit after a request.
///
/// # Examples
///
/// ```
/// # use std::sync::Arc;
/// # use tollgate_limiter::{Ask, Effect, Limit, Limiter, Origin, Rate};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let limiter = Limiter::connect("memory:")?;
/// # let logins = Arc::new(Limit::new("logins", "5/min".parse::<Rate>()?));
/// let alice = Ask::new(&logins, "alice");
/// let admission = limiter.try_acquire(&alice).await?;
/// let standing = &admission.standings()[0];
/// assert!(standing.is_of(&alice) && !standing.refuses());
/// assert_eq!((standing.origin, standing.effect(true)), (Origin::Store, Effect::Admitted));
/// assert_eq!((standing.remaining(), standing.tightness()), (Some(4), -0.8));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Standing {
    /// The limit.
    pub limit: Arc<Limit>,
    /// The quota it was held to: the limit's, the key's own, the one that Redis has for Java, too, or this gateway's share
    /// while the store is away.
    pub quota: Quota,
    /// The store's statement, now or lately. If it wasn't asked since the cost is more than the quota ever
    /// allows, only that holds.
    pub outcome: Outcome,
    /// The origin of the decision.
    pub origin: Origin,
    /// The number that sets it apart from the request's others for the same limit.
    pub number: u16,
}

/// The origin of a limit's decision.
///
/// # Examples
///
/// ```
/// use tollgate_limiter::Origin;
///
/// assert_eq!(Origin::LocalRefusal.name(), "local_refusal");
/// ```
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
    /// The key is banned for a time, because it was refused too often.
    Ban,
    /// The limit only shadows: what it decides has no effect.
    Shadow,
    /// The limit's terms: its exemptions, and its demands on a request.
    Terms,
}

impl Origin {
    /// Returns its name in metrics and logs.
    pub fn name(self) -> &'static str {
        match self {
            Self::Store => "store",
            Self::LocalRefusal => "local_refusal",
            Self::FallbackLocal => "fallback_local",
            Self::FallbackAllow => "fallback_allow",
            Self::FallbackDeny => "fallback_deny",
            Self::Ban => "ban",
            Self::Shadow => "shadow",
            Self::Terms => "terms",
        }
    }
}

/// The effect of a limit on a request.
///
/// # Examples
///
/// ```
/// use tollgate_limiter::Effect;
///
/// assert_eq!(Effect::Admitted.name(), "admitted");
/// ```
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
    /// Returns its name in metrics and logs.
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
    /// Returns the standing of a limit. If the store holds it to another rate, that is shown. For a shadowing limit the origin is
    /// always [`Origin::Shadow`].
    pub(crate) fn new(ask: &Ask, quota: Quota, outcome: Outcome, origin: Origin) -> Self {
        let Ask { limit, number, .. } = ask;
        let origin = if limit.shadows() { Origin::Shadow } else { origin };
        let quota = quota.at(outcome.rate);
        Self { limit: limit.clone(), quota, outcome, origin, number: *number }
    }

    /// Orders the standings of a limit: of those that refused the one with the greatest delay is the tightest, else the
    /// one with the smallest share left.
    pub fn tightness(&self) -> f64 {
        match self.outcome.delay_us {
            Some(0) => -(self.outcome.remaining as f64 / f64::from(self.quota.permits)),
            Some(delay_us) => delay_us as f64,
            None => f64::INFINITY,
        }
    }

    /// Returns true if it is the standing of this ask.
    pub fn is_of(&self, ask: &Ask) -> bool {
        Arc::ptr_eq(&self.limit, &ask.limit) && self.number == ask.number
    }

    /// Returns the effect on a request that all limits admitted, or didn't.
    pub fn effect(&self, admitted: bool) -> Effect {
        match self.outcome.delay_us {
            Some(0) if admitted => Effect::Admitted,
            Some(0) => Effect::Uncharged,
            _ => Effect::Refused,
        }
    }

    /// Returns the permits that are left, if that is known.
    pub fn remaining(&self) -> Option<u64> {
        let is_known = !matches!(self.origin, Origin::FallbackAllow | Origin::FallbackDeny);
        is_known.then_some(self.outcome.remaining)
    }

    /// Returns true if the limit refuses: it doesn't shadow, and has no room.
    pub fn refuses(&self) -> bool {
        !self.limit.shadows() && self.outcome.delay_us != Some(0)
    }
}

/// The standings of a request, one for each ask.
///
/// # Examples
///
/// ```
/// # use std::sync::Arc;
/// # use tollgate_limiter::{Ask, Limit, Limiter, Rate, Standings};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let limiter = Limiter::connect("memory:")?;
/// # let logins = Arc::new(Limit::new("logins", "5/min".parse::<Rate>()?));
/// let admission = limiter.try_acquire(Ask::new(&logins, "alice")).await?;
/// let standings: Standings = admission.standings().iter().cloned().collect();
/// assert_eq!(standings.len(), 1);
/// # Ok(())
/// # }
/// ```
pub type Standings = SmallVec<[Standing; 1]>;

/// Returns the tightest standing of each limit, in the order of the limits.
///
/// # Examples
///
/// ```
/// # use std::sync::Arc;
/// # use tollgate_limiter::{Ask, Limit, Limiter, Rate, tightest_of_each};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let limiter = Limiter::connect("memory:")?;
/// # let logins = Arc::new(Limit::new("logins", "5/min".parse::<Rate>()?));
/// let alice = Ask::new(&logins, "alice");
/// let admission = limiter.try_acquire([alice.clone(), alice]).await?;
/// assert!(tightest_of_each(admission.standings()).count() <= 2);
/// # Ok(())
/// # }
/// ```
pub fn tightest_of_each(standings: &[Standing]) -> impl Iterator<Item = &Standing> {
    standings.iter().enumerate().filter_map(|(at, first)| {
        let is_of_its_limit = |other: &&Standing| Arc::ptr_eq(&first.limit, &other.limit);
        let is_first = !standings[..at].iter().any(|other| is_of_its_limit(&other));
        is_first.then(|| {
            standings[at + 1..].iter().filter(is_of_its_limit).fold(first, |tightest, other| {
                if tightest.tightness().total_cmp(&other.tightness()).is_lt() { other } else { tightest }
            })
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Rate;

    #[test]
    fn of_each_limit_the_tightest_is_told_in_the_place_of_its_first() {
        let [one, other] =
            ["a", "b"].map(|name| Arc::new(Limit::new(name, "9/min".parse::<Rate>().unwrap())));
        let standing = |limit: &Arc<Limit>, remaining, delay_us| {
            let outcome =
                Outcome { charged: false, remaining, grow_us: 0, delay_us: Some(delay_us), rate: None };
            Standing::new(&Ask::new(limit, "k"), limit.quota(), outcome, Origin::Store)
        };
        let standings =
            [standing(&one, 5, 0), standing(&other, 1, 0), standing(&one, 3, 0), standing(&other, 0, 7)];
        let told = |standings| {
            tightest_of_each(standings)
                .map(|standing| (standing.limit.name(), standing.outcome.remaining))
                .collect::<Vec<_>>()
        };
        assert_eq!(told(&standings), [("a", 3), ("b", 0)]);
        assert_eq!(told(&standings[..2]), [("a", 5), ("b", 1)]);
        assert_eq!(told(&[]), []);
    }
}
