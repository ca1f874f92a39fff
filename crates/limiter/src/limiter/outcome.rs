//! The result of a decision: what the store has charged becomes an admission, and what it hasn't a refusal.

use std::sync::Arc;

use crate::{
    Admission, Limited, Origin, Standings,
    admission::{Account, HeldLease},
    charged_ask::{ChargedAsk, ChargedAsks},
    grants::RefundableGrant,
    store::{Decision, Placed, Refund, Store},
};

use super::Limiter;

impl Limiter {
    /// Adds the decision of a store to an admission.
    pub(super) fn admit(
        &self,
        store: &Arc<Store>,
        origin: Origin,
        asked: &ChargedAsks<'_>,
        mut decision: Decision,
        mut admission: Admission,
    ) -> Admission {
        admission.leases.extend(hold(store, &mut decision));
        admission.standings.reserve(asked.len());
        for (asked, outcome) in asked.iter().zip(&decision.outcomes) {
            asked.stand(*outcome, origin, &mut admission.standings);
            if asked.is_of_ban() {
                continue;
            }
            let (refusals, waits) = (&self.refusals, &self.waits);
            let grant = RefundableGrant::new(asked, &decision, outcome, store, refusals, waits);
            admission.grants.extend(grant);
            if let Some(cost) = asked.ask.settles.filter(|_| outcome.charged) {
                let (ask, charge, common) = (asked.ask.clone(), asked.charge.clone(), asked.common);
                let (store, refusals) = (store.clone(), self.refusals.clone());
                admission.accounts.push(Account { ask, store, refusals, charge, common, cost });
            }
        }
        admission
    }

    /// Gives back what a decision in this process has charged.
    pub(super) fn give_back(&self, asked: &ChargedAsks<'_>, decision: &Decision) {
        for (charge, outcome) in asked.iter().map(ChargedAsk::charge).zip(&decision.outcomes) {
            if outcome.charged {
                let refund = Refund { permits: charge.cost, granted_us: Some(decision.time_us) };
                self.local.send_refund(&charge.bucket, charge.quota, refund);
            }
        }
    }
}

/// Holds the leases that a decision has granted.
pub(super) fn hold(store: &Arc<Store>, decision: &mut Decision) -> Vec<Arc<HeldLease>> {
    decision.leases.drain(..).map(|lease| HeldLease::new(store, lease).into()).collect()
}

/// Returns the refusal that a decision is.
pub(super) fn refused(asked: &ChargedAsks<'_>, decision: &Decision, origin: Origin) -> Box<Limited> {
    let mut limited = Box::new(Limited { standings: Standings::with_capacity(asked.len()) });
    for (asked, outcome) in asked.iter().zip(&decision.outcomes) {
        asked.stand(*outcome, origin, &mut limited.standings);
    }
    limited
}
