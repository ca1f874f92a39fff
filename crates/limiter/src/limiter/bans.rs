//! Bans: keys of which all requests are refused for a time.
//!
//! A ban is a bucket beside the key's own, in the same slot, with one permit that is taken for as long as the ban lasts. Each
//! request of a limit with bans looks at it in the step that decides, so a banned key charges nothing anywhere.

use std::time::Duration;

use tokio::time::Instant;

use crate::{Ask, OnFailure, charged_ask::ChargedAsk, store::StoreError};

use super::{Limiter, operators::OPERATOR_TIMEOUT};

impl Limiter {
    /// Bans the key of an ask for as long as [its limit says](crate::Limit::with_bans_of), for all processes that use the
    /// store. A ban that lasts already is neither longer nor shorter then. Returns false if the limit has no bans.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::{sync::Arc, time::Duration};
    /// use tollgate_limiter::{Ask, Limit, Limiter, Rate};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let limiter = Limiter::connect("memory:")?;
    /// let logins = Limit::new("logins", "5/min".parse::<Rate>()?).with_bans_of(Duration::from_secs(60));
    /// let mallory = Ask::new(&Arc::new(logins), "mallory");
    ///
    /// assert!(limiter.ban(&mallory).await?);
    /// let refusal = limiter.try_acquire(&mallory).await.unwrap_err();
    /// assert!(refusal.retry_after() > Some(Duration::from_secs(58)));
    ///
    /// limiter.reset(&mallory).await?;
    /// limiter.try_acquire(&mallory).await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The store gives no answer: the key may or may not be banned. If the limit counts in this process meanwhile, it is
    /// banned here.
    pub async fn ban(&self, ask: &Ask) -> Result<bool, StoreError> {
        let own = self.charged(ask);
        let Some(mut ban) = own.look_at_ban(&self.key_prefix) else { return Ok(false) };
        ban.charge.cost = 1;
        let deadline = Instant::now() + OPERATOR_TIMEOUT;
        let banned = self.store_of(ban.scope).report_placed(&mut ban, deadline).await;
        if banned.is_err() && ask.limit.on_failure == OnFailure::Local {
            self.local.report_placed(&mut ban, deadline).await?;
        }
        // Its refusals told an earlier time, and until now the key wasn't known to be banned.
        let told = self.forget_everywhere(&own.charge.bucket, deadline).await;
        let told = told.and(self.forget_everywhere(&ban.charge.bucket, deadline).await);
        banned.and(told).map(|()| true)
    }

    /// Returns the time until the ban of an ask's key ends. `None` if it isn't banned.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::{sync::Arc, time::Duration};
    /// # use tollgate_limiter::{Ask, Limit, Limiter, Rate};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let limiter = Limiter::connect("memory:")?;
    /// let logins = Limit::new("logins", "5/min".parse::<Rate>()?).with_bans_of(Duration::from_secs(60));
    /// let mallory = Ask::new(&Arc::new(logins), "mallory");
    /// assert_eq!(limiter.banned_for(&mallory).await?, None);
    /// limiter.ban(&mallory).await?;
    /// assert!(limiter.banned_for(&mallory).await? > Some(Duration::from_secs(58)));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The store gives no answer.
    pub async fn banned_for(&self, ask: &Ask) -> Result<Option<Duration>, StoreError> {
        self.ban_of(&self.charged(ask), Instant::now() + OPERATOR_TIMEOUT).await
    }

    /// Returns the time until the ban of a key ends. `None` if it isn't banned.
    pub(super) async fn ban_of(
        &self,
        own: &ChargedAsk<'_>,
        deadline: Instant,
    ) -> Result<Option<Duration>, StoreError> {
        let Some(mut ban) = own.look_at_ban(&self.key_prefix) else { return Ok(None) };
        let (usage, _) = self.store_of(ban.scope).peek_placed(&mut ban, deadline).await?;
        Ok(usage.delay_us.filter(|delay_us| *delay_us > 0).map(Duration::from_micros))
    }
}
