//! What only limits have that are shared with Redisson: rates that Java reads, too, and times to live.

use std::{collections::HashMap, time::Duration};

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::time::Instant;

use crate::{
    Ask, Counted, Key, Limit, Override, Quota, Rate, SetWhen,
    charged_ask::ChargedAsks,
    store::{Decision, Placed, StoreError},
};

use super::{Limiter, operators::OPERATOR_TIMEOUT};

const EXPIRES_BY_ITSELF: &str =
    "only limits that are shared with Redisson have a time to live: other counts expire by themselves";

impl Limiter {
    /// Lets a limiter that is [shared with Redisson](Limit::shared_with_redisson) expire after some time, or with `None` stay.
    /// Returns false if there is none.
    ///
    /// A [time to keep it alive](Self::keep_alive) starts again with each call, and then replaces this.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use tollgate_limiter::{Ask, Key, Limit, Limiter, Rate, RedissonType};
    /// # use std::time::Duration;
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/src/limiter/redis_of_examples.rs"));
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # if !cfg!(feature = "redis") { return Ok(()) }
    /// # let Redis(_, url) = &Redis::start();
    /// let limiter = Limiter::connect(url)?; // "redis://127.0.0.1:6379"
    /// # limiter.warm_up().await?;
    /// let logins = Limit::new("logins", "5/min".parse::<Rate>()?)
    ///     .shared_with_redisson("logins:{key}".parse()?, RedissonType::Overall);
    /// let alice = Ask::new(&Arc::new(logins), Key::verbatim("alice"));
    /// limiter.set_rate_if_absent(&alice, "5/min".parse()?).await?;
    /// assert!(limiter.expire(&alice, Some(Duration::from_secs(3_600))).await?);
    /// # Ok(())
    /// # }
    /// ```
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
    /// One that Tollgate creates expires after two windows, and at least a minute, with the rate that was set for it.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use tollgate_limiter::{Ask, Key, Limit, Limiter, Rate, RedissonType};
    /// # use std::time::Duration;
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/src/limiter/redis_of_examples.rs"));
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # if !cfg!(feature = "redis") { return Ok(()) }
    /// # let Redis(_, url) = &Redis::start();
    /// let limiter = Limiter::connect(url)?; // "redis://127.0.0.1:6379"
    /// # limiter.warm_up().await?;
    /// let logins = Limit::new("logins", "5/min".parse::<Rate>()?)
    ///     .shared_with_redisson("logins:{key}".parse()?, RedissonType::Overall);
    /// let alice = Ask::new(&Arc::new(logins), Key::verbatim("alice"));
    /// limiter.set_rate_if_absent(&alice, "5/min".parse()?).await?;
    /// assert!(limiter.keep_alive(&alice, Some(Duration::from_secs(3_600))).await?);
    /// assert!(limiter.time_to_live(&alice).await?.is_some());
    ///
    /// assert!(limiter.keep_alive(&alice, None).await?);
    /// assert_eq!(limiter.time_to_live(&alice).await?, None);
    /// # Ok(())
    /// # }
    /// ```
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
    /// # Examples
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use tollgate_limiter::{Ask, Key, Limit, Limiter, Rate, RedissonType};
    /// # use std::time::Duration;
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/src/limiter/redis_of_examples.rs"));
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # if !cfg!(feature = "redis") { return Ok(()) }
    /// # let Redis(_, url) = &Redis::start();
    /// let limiter = Limiter::connect(url)?; // "redis://127.0.0.1:6379"
    /// # limiter.warm_up().await?;
    /// let logins = Limit::new("logins", "5/min".parse::<Rate>()?)
    ///     .shared_with_redisson("logins:{key}".parse()?, RedissonType::Overall);
    /// let alice = Ask::new(&Arc::new(logins), Key::verbatim("alice"));
    /// limiter.set_rate_if_absent(&alice, "5/min".parse()?).await?;
    /// let left = limiter.time_to_live(&alice).await?;
    /// assert!(left.is_some_and(|left| left <= Duration::from_secs(120)));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The store gives no answer. Or the limit isn't shared so.
    pub async fn time_to_live(&self, ask: &Ask) -> Result<Option<Duration>, StoreError> {
        let (charge, _) = self.charge(ask);
        if !self.is_shared_with_java(&ask.limit) {
            return Err(StoreError::Unsupported(EXPIRES_BY_ITSELF));
        }
        self.store.redisson_ttl(&charge.bucket, Instant::now() + OPERATOR_TIMEOUT).await
    }

    /// Returns the names of limiters in Redis that count for a limit which is
    /// [shared with Redisson](Limit::shared_with_redisson), and whose rate isn't the limit's own, with that rate. It looks
    /// through some 10,000 keys of one server at most.
    ///
    /// # Examples
    ///
    /// ```
    /// # use tollgate_limiter::{Limit, Limiter, Rate, RedissonType};
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/src/limiter/redis_of_examples.rs"));
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # if !cfg!(feature = "redis") { return Ok(()) }
    /// # let Redis(_, url) = &Redis::start();
    /// let limiter = Limiter::connect(url)?; // "redis://127.0.0.1:6379"
    /// # limiter.warm_up().await?;
    /// let logins = Limit::new("logins", "5/min".parse::<Rate>()?)
    ///     .shared_with_redisson("logins:{key}".parse()?, RedissonType::Overall);
    /// // Java has set no other rate.
    /// assert!(limiter.rates_of_redis(&logins).await?.is_empty());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The store gives no answer.
    pub async fn rates_of_redis(&self, limit: &Limit) -> Result<Vec<(String, Rate)>, StoreError> {
        let mut found = Vec::new();
        let Some(name) = limit.redisson_name.as_ref().filter(|_| self.is_shared_with_java(limit)) else {
            return Ok(found);
        };
        let deadline = || Instant::now() + OPERATOR_TIMEOUT;
        let names = match name.has_key() {
            true => self.store.redisson_names(name, deadline()).await?,
            false => vec![name.of("")],
        };
        for name in names {
            let rate = self.store.known_rate(name.as_bytes(), limit.quota, deadline()).await?;
            found.extend(rate.filter(|rate| *rate != limit.quota.rate()).map(|rate| (name, rate)));
        }
        Ok(found)
    }

    /// Notes the rates that Redis has instead of those of limits, and logs each limit's at most once a minute.
    pub(super) fn note_redis_rates(&self, asked: &ChargedAsks<'_>, decision: &Decision) {
        for (asked, outcome) in asked.iter().zip(&decision.outcomes) {
            let Some(rate) = outcome.rate else { continue };
            let (name, own) = (asked.ask.limit.name(), asked.charge().quota.rate());
            if self.redis_rates.note(name, rate) {
                // Without the key, which clients choose.
                tracing::warn!(
                    "limit `{name}`: Redis has the rate {rate} for a limiter of Redisson, which wins over {own}: \
                     change the limit's rate, or that in Redis with `tollgate limits set {name} KEY {own}`"
                );
            }
        }
    }

    /// Returns the rate that Redis has had lately for a key of a limit, instead of the limit's.
    pub(super) fn redis_rate(&self, limit: &Limit) -> Option<Rate> {
        self.redis_rates.lately(limit.name())
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
        self.store.act_on_redisson(&charge.bucket, act, ms as u64, Instant::now() + OPERATOR_TIMEOUT).await
    }

    pub(super) async fn delete_in_redisson(&self, ask: &Ask) -> Result<bool, StoreError> {
        let (charge, _) = self.charge(ask);
        let deadline = Instant::now() + OPERATOR_TIMEOUT;
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
        let deadline = Instant::now() + OPERATOR_TIMEOUT;
        let is_changed = self.store.change_rate(bucket, quota, when, counted, deadline).await?;
        self.forget(bucket);
        Ok(is_changed)
    }
}

/// The time for which a rate is remembered that Redis had, and after which it is logged again.
const LATELY: Duration = Duration::from_secs(60);
/// The most limits whose rates in Redis are remembered.
const LIMITS_MOST: usize = 1_000;

/// The rates of Redis that won over those of limits, by the limit's name.
#[derive(Debug, Default)]
pub(super) struct RedisRates(Mutex<HashMap<String, RedisRate>>);

#[derive(Debug)]
struct RedisRate {
    rate: Rate,
    seen_at: Instant,
    logged_at: Instant,
}

impl RedisRates {
    /// Notes the rate of a key of a limit. Returns true if it is time to log it.
    fn note(&self, limit: &str, rate: Rate) -> bool {
        let (now, mut noted) = (Instant::now(), self.0.lock());
        if let Some(noted) = noted.get_mut(limit) {
            (noted.rate, noted.seen_at) = (rate, now);
            let is_due = noted.logged_at.elapsed() >= LATELY;
            if is_due {
                noted.logged_at = now;
            }
            return is_due;
        }
        if noted.len() >= LIMITS_MOST {
            noted.retain(|_, noted| noted.seen_at.elapsed() < LATELY);
        }
        let has_room = noted.len() < LIMITS_MOST;
        if has_room {
            noted.insert(limit.to_owned(), RedisRate { rate, seen_at: now, logged_at: now });
        }
        has_room
    }

    fn lately(&self, limit: &str) -> Option<Rate> {
        let noted = self.0.lock();
        noted.get(limit).filter(|noted| noted.seen_at.elapsed() < LATELY).map(|noted| noted.rate)
    }
}

/// A century: longer times aren't exact in the script.
const LONGEST_MS: u128 = 100 * Rate::MAX_WINDOW_US as u128 / 1_000;
