//! Permits that are given back.

use tokio::time::Instant;

use crate::{
    Admission, Ask,
    grants::RefundableGrant,
    store::{Charge, Refund, StoreError},
};

use super::{Limiter, operators::OPERATOR_TIMEOUT};

impl Limiter {
    /// Gives back as many permits as the ask names, of a [limit with refunds](crate::Limit::with_refunds) or of one that is
    /// [shared with Redisson](crate::Limit::shared_with_redisson). Returns true if more permits can be taken since.
    ///
    /// With the admission that took them, it is as if that request had cost less from the start: at most what it took comes
    /// back, and nothing once its permits have come back by themselves. Without one, the oldest permits in use come back.
    /// That is safe only for permits that were taken within the last window, and gives less: they would have come back soon.
    /// Redisson always adds to what is left, up to the rate, as its `release` does.
    ///
    /// # Errors
    /// The store gives no answer: they may or may not have been given back. Or the limit has no refunds.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::sync::Arc;
    /// use tollgate_limiter::{Ask, Limit, Limiter, Rate};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let limiter = Limiter::connect("memory:")?;
    /// let tokens = Arc::new(Limit::new("tokens", "1000/min".parse::<Rate>()?).with_refunds());
    /// let estimate = Ask::new(&tokens, "alice").cost(1000);
    ///
    /// let admission = limiter.try_acquire(&[estimate.clone()]).await?;
    /// // It needed 100 only.
    /// assert!(limiter.release(&estimate.cost(900), Some(&admission)).await?);
    /// limiter.try_acquire(&[Ask::new(&tokens, "alice").cost(900)]).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn release(&self, ask: &Ask, admission: Option<&Admission>) -> Result<bool, StoreError> {
        self.release_by(ask, admission, Instant::now() + OPERATOR_TIMEOUT).await
    }

    /// Gives permits back as [`Self::release`] does, for a caller that doesn't wait beyond the deadline. The store's own deadline
    /// holds, too.
    ///
    /// # Errors
    /// As those of [`Self::release`].
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::{sync::Arc, time::Duration};
    /// # use tokio::time::Instant;
    /// # use tollgate_limiter::{Ask, Limit, Limiter, Rate};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let limiter = Limiter::connect("memory:")?;
    /// let tokens = Arc::new(Limit::new("tokens", "1000/min".parse::<Rate>()?).with_refunds());
    /// let admission = limiter.try_acquire(Ask::new(&tokens, "alice").cost(1000)).await?;
    ///
    /// let (unused, deadline) = (Ask::new(&tokens, "alice").cost(900), Instant::now() + Duration::from_millis(20));
    /// assert!(limiter.release_before(&unused, Some(&admission), Some(deadline)).await?);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn release_before(
        &self,
        ask: &Ask,
        admission: Option<&Admission>,
        deadline: Option<Instant>,
    ) -> Result<bool, StoreError> {
        self.release_by(ask, admission, self.within_timeout(Instant::now(), deadline)).await
    }

    async fn release_by(
        &self,
        ask: &Ask,
        admission: Option<&Admission>,
        deadline: Instant,
    ) -> Result<bool, StoreError> {
        let (Charge { bucket, quota, cost, .. }, scope) = self.charge(ask);
        if self.is_shared_with_java(&ask.limit) {
            let is_given = self.store.release_permits(&bucket, quota, cost, deadline).await?;
            // Those who wait here needn't wait for a grant to end.
            self.forget(&bucket);
            return Ok(is_given);
        }
        if !ask.limit.has_refunds() {
            return Err(StoreError::Unsupported("the limit has no refunds: build it with `with_refunds()`"));
        }
        let Some(admission) = admission else {
            let refund = Refund { permits: cost, granted_us: None };
            let given = self.store_of(scope).refund(bucket.clone(), quota, refund, deadline).await?;
            self.forget(&bucket);
            return Ok(given > 0);
        };
        let is_its = |grant: &&RefundableGrant| grant.is_of(&ask.limit) && grant.ask.key == ask.key;
        let Some(grant) = admission.grants.iter().find(is_its) else { return Ok(false) };
        let Some(refund) = grant.withdraw(cost) else { return Ok(false) };
        let given = grant.store.refund(grant.bucket.clone(), grant.quota, refund, deadline).await?;
        grant.forget_refusals();
        Ok(given > 0)
    }
}
