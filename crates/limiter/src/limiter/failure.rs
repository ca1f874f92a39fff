//! The failure policy: what limits decide while the store can't.

use tokio::time::Instant;

use crate::{
    Admission, Ask, OnFailure, Origin, Quota, Refusal, Standing,
    charged_ask::{ChargedAsk, ChargedAsks},
    store::{Outcome, StoreError},
};

use super::{Limiter, outcome::refused};

impl Limiter {
    /// Decides by the limits' failure policy: one `deny` refuses, else the `local` ones count here.
    /// If this process can't count, for lack of memory or because the number of gateways isn't known yet, `local` is
    /// `deny`.
    pub(super) async fn take_without_store(
        &self,
        asked: ChargedAsks<'_>,
        error: StoreError,
        deadline: Instant,
    ) -> Result<Admission, Refusal> {
        let instances = match error {
            StoreError::Full => None,
            _ => self.instances(),
        };
        let denies = |asked: &ChargedAsk<'_>| match asked.ask.limit.on_failure {
            OnFailure::Deny => !asked.charge.shadow,
            OnFailure::Local => !asked.charge.shadow && instances.is_none(),
            OnFailure::Allow => false,
        };
        if asked.iter().any(denies) {
            return Err(deny(&asked, error, denies));
        }
        let counts =
            |asked: &ChargedAsk<'_>| asked.ask.limit.on_failure == OnFailure::Local && instances.is_some();
        let (mut counted, passed): (ChargedAsks<'_>, ChargedAsks<'_>) = asked.into_iter().partition(counts);
        for ChargedAsk { charge, common, .. } in &mut counted {
            let instances = instances.unwrap_or(1);
            charge.quota = charge.quota.share(instances);
            *common = common.share(instances);
            charge.cost = charge.cost.min(charge.quota.capacity());
        }
        fit_together(&mut counted);
        let mut admission = Admission::default();
        let passed = passed.iter().filter(|asked| !asked.charge.shadow && !asked.is_of_ban());
        admission
            .standings
            .extend(passed.map(|asked| asked.standing(Outcome::UNKNOWN_ROOM, Origin::FallbackAllow)));
        match self.local.take_placed(&mut counted, deadline).await {
            Ok(decision) if decision.admitted => {
                Ok(self.admit(&self.local, Origin::FallbackLocal, &counted, decision, admission))
            }
            Ok(decision) => Err(Refusal::Limited(refused(&counted, &decision, Origin::FallbackLocal))),
            Err(cause) if counted.iter().any(|asked| !asked.charge.shadow) => {
                Err(deny(&counted, cause, |asked| !asked.charge.shadow))
            }
            Err(_) => Ok(admission),
        }
    }
}

/// Lowers the costs of several charges on one bucket until their sum fits the smallest of its quotas. Those for which nothing is
/// left look whether it has room.
fn fit_together(asked: &mut ChargedAsks<'_>) {
    for at in 0..asked.len() {
        let own = &asked[at];
        if !own.is_repeated() {
            continue;
        }
        let is_same = |other: &&ChargedAsk<'_>| {
            (&other.charge.bucket, other.charge.shadow) == (&own.charge.bucket, own.charge.shadow)
        };
        let capacities = asked.iter().filter(is_same).map(|asked| asked.charge.quota.capacity());
        let least = capacities.min().unwrap_or(0);
        let taken = asked[..at].iter().filter(is_same).map(|asked| asked.charge.cost).sum();
        let cost = own.charge.cost.min(least.saturating_sub(taken));
        asked[at].charge.cost = cost;
    }
}

/// The outcome of a limit that refuses in any case.
pub(super) const NO_ROOM: Outcome =
    Outcome { charged: false, remaining: 0, grow_us: 0, delay_us: None, rate: None };

/// Returns the refusal of the limits that refuse since the store can't answer.
pub(super) fn deny(
    asked: &ChargedAsks<'_>,
    cause: StoreError,
    denies: impl Fn(&ChargedAsk<'_>) -> bool,
) -> Refusal {
    let denying = asked.iter().filter(|asked| denies(asked) && !asked.is_of_ban());
    let denied_by = denying.map(|asked| denial(asked.ask, asked.charge.quota)).collect();
    Refusal::StoreUnavailable { cause, denied_by }
}

/// Returns the standing of a limit that refuses since the store can't answer.
pub(super) fn denial(ask: &Ask, quota: Quota) -> Standing {
    Standing::new(ask, quota, NO_ROOM, Origin::FallbackDeny)
}
