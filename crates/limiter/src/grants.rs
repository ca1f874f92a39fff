//! The permits that an admission took of limits with refunds, and can give back.

use std::sync::{
    Arc,
    atomic::{AtomicU32, Ordering::Relaxed},
};

use bytes::Bytes;

use crate::{
    Ask, Limit,
    algorithm::Quota,
    charged_ask::ChargedAsk,
    refusals::Refusals,
    store::{Charge, Decision, Outcome, Placed, Refund, Store},
    wait::Waits,
};

/// Permits that were taken of a limit with refunds.
#[derive(Debug)]
pub(super) struct RefundableGrant {
    pub(super) ask: Ask,
    pub(super) store: Arc<Store>,
    refusals: Arc<Refusals>,
    waits: Arc<Waits>,
    /// The bucket in which they were counted.
    pub(super) bucket: Bytes,
    pub(super) quota: Quota,
    granted_us: u64,
    /// The permits that were charged.
    charged: u32,
    /// The permits that were asked for and not given back yet. Fewer are charged where a share or a network has no more: then what
    /// is given back first was never charged.
    left: AtomicU32,
}

impl RefundableGrant {
    /// Returns what a decision of this store took for an ask. `None` if its limit gives nothing back.
    pub(super) fn new(
        asked: &ChargedAsk<'_>,
        decision: &Decision,
        outcome: &Outcome,
        store: &Arc<Store>,
        refusals: &Arc<Refusals>,
        waits: &Arc<Waits>,
    ) -> Option<Self> {
        let Charge { bucket, quota, cost, .. } = asked.charge();
        let is_given = outcome.charged && *cost > 0 && asked.ask.limit.has_refunds();
        is_given.then(|| Self {
            ask: asked.ask.clone(),
            store: store.clone(),
            refusals: refusals.clone(),
            waits: waits.clone(),
            bucket: bucket.clone(),
            quota: *quota,
            granted_us: asked.granted_us(decision),
            charged: *cost,
            left: AtomicU32::new(asked.cost()),
        })
    }

    pub(super) fn is_of(&self, limit: &Limit) -> bool {
        self.ask.limit.name() == limit.name()
    }

    /// Takes permits out of the grant, as far as it has them. `None` if it has none left.
    pub(super) fn withdraw(&self, permits: u32) -> Option<Refund> {
        let take = |left: u32| Some(left.saturating_sub(permits));
        let before = self.left.fetch_update(Relaxed, Relaxed, take).unwrap_or_default();
        let after = before.saturating_sub(permits);
        let permits = before.min(self.charged) - after.min(self.charged);
        (permits > 0).then_some(Refund { permits, granted_us: Some(self.granted_us) })
    }

    /// Forgets what is known of the bucket here, since it has more room.
    pub(super) fn forget_refusals(&self) {
        self.refusals.forget(&self.bucket);
        self.waits.forget(Some(&self.bucket));
    }

    /// Gives permits back, without waiting for it. What the store can't take now is lost.
    pub(super) fn give_back(&self, permits: u32) {
        let Some(refund) = self.withdraw(permits) else { return };
        self.store.send_refund(&self.bucket, self.quota, refund);
        self.forget_refusals();
    }
}
