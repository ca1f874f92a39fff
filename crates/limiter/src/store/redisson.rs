//! What is done to a limiter in the layout of Redisson beside deciding requests.

use std::time::Duration;

use tokio::time::Instant;

use crate::{
    Counted, RedissonName,
    algorithm::{Quota, Rate},
};

use super::{Store, StoreError, overrides::SetWhen};

const NOT_SHARED: StoreError = StoreError::Unsupported("a limit in this process isn't shared with Redisson");

impl Store {
    /// Returns the rate that a bucket is held to, if the store knows it better than the limit.
    ///
    /// # Errors
    /// No answer, within `deadline`.
    pub(crate) async fn known_rate(
        &self,
        bucket: &[u8],
        quota: Quota,
        deadline: Instant,
    ) -> Result<Option<Rate>, StoreError> {
        match self {
            Self::Redis(store) if quota.algorithm.is_changed_by_others() => {
                store.redisson_rate(bucket, deadline).await
            }
            _ => Ok(None),
        }
    }

    /// Returns the names of limiters that Java shares, of those that it finds among some 10,000 keys of one server.
    pub(crate) async fn redisson_names(
        &self,
        name: &RedissonName,
        deadline: Instant,
    ) -> Result<Vec<String>, StoreError> {
        match self {
            Self::Memory(_) => Err(NOT_SHARED),
            Self::Redis(store) => store.redisson_names(name, deadline).await,
        }
    }

    /// Changes the rate of a limiter that Java shares to that of the quota. Returns true if something was changed.
    ///
    /// # Errors
    /// No answer, within `deadline`: it may or may not have been changed. Or the store keeps no rates for buckets.
    pub(crate) async fn change_rate(
        &self,
        bucket: &[u8],
        quota: Quota,
        when: SetWhen,
        counted: Counted,
        deadline: Instant,
    ) -> Result<bool, StoreError> {
        match self {
            Self::Memory(_) => Err(NOT_SHARED),
            Self::Redis(store) => store.change_redisson(bucket, quota, when, counted, deadline).await,
        }
    }

    /// Deletes a limiter that Java shares, or sets a time to live. Returns false if there is none.
    pub(crate) async fn act_on_redisson(
        &self,
        bucket: &[u8],
        act: &str,
        ms: u64,
        deadline: Instant,
    ) -> Result<bool, StoreError> {
        match self {
            Self::Memory(_) => Err(NOT_SHARED),
            Self::Redis(store) => store.act_on_redisson(bucket, act, ms, deadline).await,
        }
    }

    /// Returns the time after which a limiter that Java shares expires.
    pub(crate) async fn redisson_ttl(
        &self,
        bucket: &[u8],
        deadline: Instant,
    ) -> Result<Option<Duration>, StoreError> {
        match self {
            Self::Memory(_) => Err(NOT_SHARED),
            Self::Redis(store) => store.redisson_ttl(bucket, deadline).await,
        }
    }

    /// Gives permits back to a limiter that Java shares. Returns true if it had less than its rate.
    ///
    /// # Errors
    /// No answer, within `deadline`: they may or may not have been given back. Or the store can't.
    pub(crate) async fn release_permits(
        &self,
        bucket: &[u8],
        quota: Quota,
        permits: u32,
        deadline: Instant,
    ) -> Result<bool, StoreError> {
        match self {
            Self::Redis(store) if quota.algorithm.is_changed_by_others() => {
                store.release_redisson(bucket, permits, deadline).await
            }
            _ => Err(StoreError::Unsupported("only limits that are shared with Redisson take permits back")),
        }
    }
}
