//! The rates of limits that are shared with Redisson, which Redis keeps and Java reads, too.

use tokio::time::Instant;

use crate::{
    Ask, Key, Limit, Quota, Rate,
    store::{Charge, StoreError, overrides::Override, redisson::RateChange},
};

use super::{Limiter, operators::PATIENCE};

impl Limiter {
    /// Changes the rate of a key of a limit that is [shared with Redisson](Limit::shared_with_redisson), for Java services,
    /// too. Returns true if something was changed.
    ///
    /// # Errors
    /// The store gives no answer: it may or may not have been changed. Or the limit isn't shared so.
    pub async fn change_rate(&self, ask: &Ask, rate: Rate, change: RateChange) -> Result<bool, StoreError> {
        if !ask.limit.quota.algorithm.is_changed_by_others() {
            return Err(StoreError::Unsupported("the limit isn't shared with Redisson: set its rate"));
        }
        let charge = ask.charge(&self.key_prefix, rate);
        let deadline = Instant::now() + PATIENCE;
        let is_changed = self.store.change_rate(&charge.bucket, charge.quota, change, deadline).await?;
        self.forget(&charge.bucket);
        Ok(is_changed)
    }

    /// Gives back the permits that an ask took of a limit that is [shared with Redisson](Limit::shared_with_redisson), as
    /// its `release` does: they can be taken again, up to the rate. Returns true if it had less than that.
    ///
    /// # Errors
    /// The store gives no answer: they may or may not have been given back. Or the limit isn't shared so.
    pub async fn release(&self, ask: &Ask) -> Result<bool, StoreError> {
        let (Charge { bucket, quota, cost, .. }, _) = self.charge(ask);
        let is_given = self.store.release_permits(&bucket, quota, cost, Instant::now() + PATIENCE).await?;
        // Those who wait here needn't wait for a grant to end.
        self.forget(&bucket);
        Ok(is_given)
    }

    /// Sets the rate where Java reads it, too. What was counted stays.
    pub(super) async fn set_in_redisson(
        &self,
        limit: &Limit,
        key: Option<&Key>,
        set: &Override,
        if_absent: bool,
    ) -> Result<bool, StoreError> {
        if set.scope.is_some() || set.lasts.is_some() || set.rate.permits == 0 {
            return Err(StoreError::Unsupported(
                "Redisson knows only rates, at least 1, that hold for good: set one without a scope or an end",
            ));
        }
        let bucket = limit.redisson_bucket(key).ok_or(StoreError::Unsupported(
            "Redisson has a rate for each key, none for the limit: name the key",
        ))?;
        let quota = Quota::new(limit.quota.algorithm, set.rate);
        let deadline = Instant::now() + PATIENCE;
        let change = |change| self.store.change_rate(&bucket, quota, change, deadline);
        let is_changed = !if_absent && change(RateChange::Update { keeps_counts: true }).await?;
        let is_set = is_changed || change(RateChange::SetIfAbsent).await?;
        self.forget(&bucket);
        Ok(is_set)
    }
}
