//! What only limits have that are shared with Redisson: rates that Java reads, too, and times to live.

use std::time::Duration;

use bytes::Bytes;
use tokio::time::Instant;

use crate::{Ask, Counted, Key, Limit, Override, Quota, Rate, SetWhen, store::StoreError};

use super::{Limiter, operators::PATIENCE};

const EXPIRES_BY_ITSELF: &str =
    "only limits that are shared with Redisson have a time to live: other counts expire by themselves";

impl Limiter {
    /// Lets a limiter that is [shared with Redisson](Limit::shared_with_redisson) expire after some time, or with `None` stay.
    /// Returns false if there is none.
    ///
    /// A [time to keep it alive](Self::keep_alive) starts again with each call, and then replaces this.
    ///
    /// # Errors
    /// The store gives no answer: it may or may not have been changed. Or the limit isn't shared so: other counts expire
    /// by themselves.
    pub async fn expire(&self, ask: &Ask, after: Option<Duration>) -> Result<bool, StoreError> {
        self.act_on_redisson(ask, "expire", after).await
    }

    /// Lets a limiter that is [shared with Redisson](Limit::shared_with_redisson) expire when nobody has asked it for some
    /// time, or with `None` stay. Returns false if there is none.
    ///
    /// # Errors
    /// The store gives no answer: it may or may not have been changed. Or the limit isn't shared so, or the time is shorter
    /// than the window of the rate: what counts would be forgotten.
    pub async fn keep_alive(&self, ask: &Ask, idle: Option<Duration>) -> Result<bool, StoreError> {
        self.act_on_redisson(ask, "keep-alive", idle).await
    }

    /// Returns the time after which a limiter that is [shared with Redisson](Limit::shared_with_redisson) expires. `None` if
    /// it stays, or if there is none.
    ///
    /// # Errors
    /// The store gives no answer. Or the limit isn't shared so.
    pub async fn time_to_live(&self, ask: &Ask) -> Result<Option<Duration>, StoreError> {
        let (charge, _) = self.charge(ask);
        if !self.is_shared_with_java(&ask.limit) {
            return Err(StoreError::Unsupported(EXPIRES_BY_ITSELF));
        }
        self.store.redisson_ttl(&charge.bucket, Instant::now() + PATIENCE).await
    }

    async fn act_on_redisson(
        &self,
        ask: &Ask,
        act: &str,
        time: Option<Duration>,
    ) -> Result<bool, StoreError> {
        let (charge, _) = self.charge(ask);
        if !self.is_shared_with_java(&ask.limit) {
            return Err(StoreError::Unsupported(EXPIRES_BY_ITSELF));
        }
        // A time of 0 would be none.
        let ms = time.map_or(0, |time| time.as_millis().clamp(1, LONGEST_MS));
        self.store.act_on_redisson(&charge.bucket, act, ms as u64, Instant::now() + PATIENCE).await
    }

    pub(super) async fn delete_in_redisson(&self, ask: &Ask) -> Result<bool, StoreError> {
        let (charge, _) = self.charge(ask);
        let deadline = Instant::now() + PATIENCE;
        let was_there = self.store.act_on_redisson(&charge.bucket, "delete", 0, deadline).await?;
        self.forget(&charge.bucket);
        Ok(was_there)
    }

    /// Sets what Redis holds for a name where Java reads it, too.
    pub(super) async fn set_in_redisson(
        &self,
        limit: &Limit,
        key: Option<&Key>,
        set: &Override,
        when: SetWhen,
    ) -> Result<bool, StoreError> {
        if set.scope.is_some() || set.lasts.is_some() {
            return Err(StoreError::Unsupported(
                "Redisson knows only rates that hold for good: set one without a scope or an end",
            ));
        }
        let bucket = limit.redisson_bucket(key).ok_or(StoreError::Unsupported(
            "Redisson has a rate for each key, none for the limit: name the key",
        ))?;
        self.change_in_redisson(&bucket, limit, set.rate, when, Counted::Kept).await
    }

    pub(super) async fn change_in_redisson(
        &self,
        bucket: &Bytes,
        limit: &Limit,
        rate: Rate,
        when: SetWhen,
        counted: Counted,
    ) -> Result<bool, StoreError> {
        if rate.permits == 0 {
            return Err(StoreError::Unsupported(
                "Redisson has no rate that lets nothing pass: set at least 1 permit",
            ));
        }
        let quota = Quota::new(limit.quota.algorithm, rate);
        let deadline = Instant::now() + PATIENCE;
        let is_changed = self.store.change_rate(bucket, quota, when, counted, deadline).await?;
        self.forget(bucket);
        Ok(is_changed)
    }
}

/// A century: longer times aren't exact in the script.
const LONGEST_MS: u128 = 100 * Rate::MAX_WINDOW_US as u128 / 1_000;
