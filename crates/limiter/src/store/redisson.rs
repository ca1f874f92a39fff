//! What is done to a limiter in the layout of Redisson beside deciding requests.

use tokio::time::Instant;

use crate::algorithm::{Quota, Rate};

use super::{Store, StoreError};

/// A change of a limiter's rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RateChange {
    /// Set it, and forget what was counted, as Redisson's `setRate` does.
    Set,
    /// Set it only if there is none, as Redisson's `trySetRate` does.
    SetIfAbsent,
    /// Change it if there is one, as Redisson's `updateRate` does.
    Update {
        /// True if the permits that were taken count on.
        keeps_counts: bool,
    },
}

impl Store {
    /// Returns the rate that a bucket is held to, if the store knows it better than the limit.
    ///
    /// # Errors
    /// No answer, within `deadline`.
    pub async fn known_rate(
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

    /// Changes the rate of a limiter that Java shares to that of the quota. Returns true if something was changed.
    ///
    /// # Errors
    /// No answer, within `deadline`: it may or may not have been changed. Or the store keeps no rates for buckets.
    pub async fn change_rate(
        &self,
        bucket: &[u8],
        quota: Quota,
        change: RateChange,
        deadline: Instant,
    ) -> Result<bool, StoreError> {
        match self {
            Self::Memory(_) => {
                Err(StoreError::Unsupported("a limit in this process isn't shared with Redisson"))
            }
            Self::Redis(store) => store.change_redisson(bucket, quota, change, deadline).await,
        }
    }

    /// Gives permits back to a limiter that Java shares. Returns true if it had less than its rate.
    ///
    /// # Errors
    /// No answer, within `deadline`: they may or may not have been given back. Or the store can't.
    pub async fn release_permits(
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
