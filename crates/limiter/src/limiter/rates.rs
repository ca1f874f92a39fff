//! The rates of single keys, set at run time by the programs that use a limiter.

use tokio::time::Instant;

use crate::{Ask, Counted, Limit, Override, Quota, Rate, SetWhen, store::StoreError};

use super::{Limiter, operators::OPERATOR_TIMEOUT};

impl Limiter {
    /// Sets the rate of the key of an ask, for all processes that use the store. It holds in place of the limit's own rate
    /// until it is set again or [deleted](Self::delete). Others apply it within a second.
    ///
    /// The store keeps the rates of 10,000 keys; there is no such bound for limits that are
    /// [shared with Redisson](Limit::shared_with_redisson).
    ///
    /// # Examples
    ///
    /// ```
    /// use std::sync::Arc;
    /// use tollgate_limiter::{Ask, Counted, Limit, Limiter, Rate};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let limiter = Limiter::connect("memory:")?;
    /// let logins = Arc::new(Limit::new("logins", "5/min".parse::<Rate>()?));
    /// let alice = Ask::new(&logins, "alice");
    /// limiter.try_acquire(&alice).await?;
    ///
    /// limiter.set_rate(&alice, "20/min".parse()?, Counted::Kept).await?;
    /// assert_eq!(limiter.peek(&alice).await?.remaining(), 19);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The store gives no answer: it may or may not have been set. Or the limit can't have this rate.
    pub async fn set_rate(&self, ask: &Ask, rate: Rate, counted: Counted) -> Result<(), StoreError> {
        self.change_rate(ask, rate, SetWhen::Always, counted).await.map(drop)
    }

    /// Sets the rate of the key of an ask, as [`Self::set_rate`] does, unless one is set. Returns true if it did.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use tollgate_limiter::{Ask, Limit, Limiter, Rate};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let limiter = Limiter::connect("memory:")?;
    /// # let alice = Ask::new(&Arc::new(Limit::new("logins", "5/min".parse::<Rate>()?)), "alice");
    /// assert!(limiter.set_rate_if_absent(&alice, "20/min".parse()?).await?);
    /// assert!(!limiter.set_rate_if_absent(&alice, "30/min".parse()?).await?);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The store gives no answer: it may or may not have been set. Or the limit can't have this rate.
    pub async fn set_rate_if_absent(&self, ask: &Ask, rate: Rate) -> Result<bool, StoreError> {
        self.change_rate(ask, rate, SetWhen::IfAbsent, Counted::Kept).await
    }

    /// Changes the rate that was set for the key of an ask. If none is set, nothing changes. Returns true if it did.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use tollgate_limiter::{Ask, Counted, Limit, Limiter, Rate};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let limiter = Limiter::connect("memory:")?;
    /// # let alice = Ask::new(&Arc::new(Limit::new("logins", "5/min".parse::<Rate>()?)), "alice");
    /// assert!(!limiter.update_rate(&alice, "20/min".parse()?, Counted::Kept).await?);
    ///
    /// limiter.set_rate_if_absent(&alice, "10/min".parse()?).await?;
    /// limiter.try_acquire(&alice).await?;
    /// assert!(limiter.update_rate(&alice, "20/min".parse()?, Counted::Forgotten).await?);
    /// assert_eq!(limiter.peek(&alice).await?.remaining(), 20);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The store gives no answer: it may or may not have been changed. Or the limit can't have this rate.
    pub async fn update_rate(&self, ask: &Ask, rate: Rate, counted: Counted) -> Result<bool, StoreError> {
        self.change_rate(ask, rate, SetWhen::IfPresent, counted).await
    }

    /// Returns the rate that was set for the key of an ask, or for all keys of its limit. `None` if the limit's own holds.
    /// A rate that another process sets is known within a second.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use tollgate_limiter::{Ask, Limit, Limiter, Rate};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let limiter = Limiter::connect("memory:")?;
    /// # let alice = Ask::new(&Arc::new(Limit::new("logins", "5/min".parse::<Rate>()?)), "alice");
    /// assert_eq!(limiter.rate(&alice).await?, None);
    ///
    /// let rate: Rate = "20/min".parse()?;
    /// limiter.set_rate_if_absent(&alice, rate).await?;
    /// assert_eq!(limiter.rate(&alice).await?, Some(rate));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The store gives no answer.
    pub async fn rate(&self, ask: &Ask) -> Result<Option<Rate>, StoreError> {
        if self.is_shared_with_java(&ask.limit) {
            let (charge, _) = self.charge(ask);
            return self
                .store
                .known_rate(&charge.bucket, charge.quota, Instant::now() + OPERATOR_TIMEOUT)
                .await;
        }
        Ok(self.overridden.of(&ask.limit, Some(&ask.key)).map(|(rate, _)| rate))
    }

    /// Forgets what was counted for the key of an ask, and the rate that was set for it. Returns true if there was any.
    /// Java finds its limiter [deleted](Limit::shared_with_redisson), too.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use tollgate_limiter::{Ask, Limit, Limiter, Rate};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let limiter = Limiter::connect("memory:")?;
    /// # let alice = Ask::new(&Arc::new(Limit::new("logins", "5/min".parse::<Rate>()?)), "alice");
    /// limiter.set_rate_if_absent(&alice, "20/min".parse()?).await?;
    /// assert!(limiter.delete(&alice).await?);
    /// assert!(!limiter.delete(&alice).await?);
    /// assert_eq!(limiter.peek(&alice).await?.remaining(), 5);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The store gives no answer: it may or may not have been deleted.
    pub async fn delete(&self, ask: &Ask) -> Result<bool, StoreError> {
        if self.is_shared_with_java(&ask.limit) {
            return self.delete_in_redisson(ask).await;
        }
        let is_used = self.peek(ask).await?.used() > 0;
        let was_set = self.unset_override(&ask.limit, Some(&ask.key)).await?;
        self.reset(ask).await?;
        Ok(is_used || was_set)
    }

    async fn change_rate(
        &self,
        ask: &Ask,
        rate: Rate,
        when: SetWhen,
        counted: Counted,
    ) -> Result<bool, StoreError> {
        if self.is_shared_with_java(&ask.limit) {
            let bucket = ask.charge(&self.key_prefix, rate).bucket;
            return self.change_in_redisson(&bucket, &ask.limit, rate, when, counted).await;
        }
        if !Quota::new(ask.limit.quota.algorithm, rate).is_countable() {
            return Err(StoreError::Unsupported("`gcra` can't count this rate exactly: use a shorter time"));
        }
        let set = Override { rate, scope: None, lasts: None };
        let is_set = self.set_override(&ask.limit, Some(&ask.key), &set, when).await?;
        if is_set && counted == Counted::Forgotten {
            self.reset(ask).await?;
        }
        Ok(is_set)
    }

    /// Returns true if the rates of a limit are those that Redis holds for Java, too.
    pub(super) fn is_shared_with_java(&self, limit: &Limit) -> bool {
        limit.quota.algorithm.is_changed_by_others() && self.is_shared(limit.scope)
    }
}
