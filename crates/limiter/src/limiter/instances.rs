//! The number of processes that share the limits. While the store can't answer, each counts its part of a quota.
//!
//! If they are to be counted, each process gives a sign of life in the store every five seconds, and learns how many did
//! so lately. The larger of the last two answers holds, because the first processes that give signs, at the start or after
//! the store has lost them, are told of too few. It stays in use when the store fails.

use std::{
    sync::{
        Weak,
        atomic::{AtomicU32, Ordering::Relaxed},
    },
    time::Duration,
};

use tokio::time::{Instant, sleep};

use crate::store::Store;

use super::{Limiter, operators::OPERATOR_TIMEOUT};

/// The time between two signs of life.
const COUNT_EVERY: Duration = Duration::from_secs(5);
/// The time between two attempts while the store fails.
const TRY_EVERY: Duration = Duration::from_secs(1);

/// The number of processes that share the limits, or 0 if it isn't known yet.
#[derive(Debug)]
pub(super) struct KnownInstances(AtomicU32);

impl KnownInstances {
    /// Returns the number of a configuration. A process that counts in its own memory shares with none.
    pub(super) fn of(instances: u32, store: &Store) -> Self {
        Self(AtomicU32::new(match store {
            Store::Memory(_) => 1,
            Store::Redis(_) => instances,
        }))
    }

    fn number(&self) -> Option<u32> {
        Some(self.0.load(Relaxed)).filter(|number| *number > 0)
    }
}

impl Limiter {
    /// Returns the number of processes that share the limits. `None` if they are to be counted, and the store hasn't
    /// answered twice yet. 1 if they are counted in this process.
    ///
    /// # Examples
    ///
    /// ```
    /// # use tollgate_limiter::{Limiter, StoreSettings};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let store = StoreSettings::at("memory:")?;
    /// let limiter = Limiter::open(&StoreSettings { instances: 3, ..store })?;
    /// assert_eq!(limiter.instances(), Some(1));
    /// # Ok(())
    /// # }
    /// ```
    pub fn instances(&self) -> Option<u32> {
        self.instances.number()
    }

    /// Counts the processes that share the limits, this one included, for as long as the limiter lives.
    pub(super) async fn count_instances(limiter: Weak<Self>) {
        let (mut last, mut is_said) = (None, false);
        while let Some(limiter) = limiter.upgrade() {
            let deadline = Instant::now() + OPERATOR_TIMEOUT;
            let pause = match limiter.store.count_instances(&limiter.key_prefix, deadline).await {
                Ok(number) => {
                    let known = last.replace(number).map_or(0, |last| number.max(last));
                    let before = limiter.instances.0.swap(known, Relaxed);
                    if before != known {
                        tracing::debug!(before, known, "the number of gateways that share the limits");
                    }
                    COUNT_EVERY
                }
                Err(error) => {
                    tracing::debug!("the gateways that share the limits can't be counted: {error}");
                    if limiter.instances().is_none() && !is_said {
                        tracing::warn!(
                            "the gateways that share the limits haven't been counted (store.instances = \"auto\"): until the store \
                             answers, limits with on_failure = \"local\" refuse all requests\nwrite a number for store.instances to count meanwhile"
                        );
                        is_said = true;
                    }
                    TRY_EVERY
                }
            };
            drop(limiter);
            sleep(pause).await;
        }
    }
}
