//! Limits, and what requests ask of them.
//!
//! A [`Limit`] is a named rule. An [`Ask`] is what a request asks of one: the key to count for, and a cost.
//!
//! Most of this file is examples: each item that users of the library call has one.

mod ask;

use std::time::Duration;

use bytes::Bytes;
use http::header::HeaderValue;

use crate::{
    Key, OnFailure, RedissonName, Scope,
    algorithm::{Algorithm, Quota, Rate, RedissonType},
    text,
};

pub use self::ask::{Ask, Asks};

/// A named limit: a quota, and how to apply it.
///
/// A bucket is named by the limit's name, its algorithm and a key, never by numbers: a limit of the same name
/// with another rate goes on with the counts.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use tollgate_limiter::{Algorithm, Limit, OnFailure, Quota, Rate};
///
/// # fn main() -> Result<(), String> {
/// let exact = Limit::new("per-user", "100/10s".parse::<Rate>()?);
/// let even = Limit::new("mails", Quota::new(Algorithm::Gcra { burst: Some(5) }, "60/min".parse()?));
/// let running = Limit::new("exports", Quota::concurrency(4)).on_failure(OnFailure::Deny);
/// let patient = exact.clone().wait_at_most(Duration::from_millis(500));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Limit {
    pub(crate) name: String,
    pub(crate) quota: Quota,
    is_shadow: bool,
    pub(crate) scope: Scope,
    pub(crate) on_failure: OnFailure,
    pub(crate) wait: Duration,
    pub(crate) costs: Costs,
    /// The part of a bucket's name between the store's prefix and the key: `:<limit>:<tag>:{`.
    stem: String,
    /// The names of its buckets where Java shares them.
    pub(crate) redisson_name: Option<RedissonName>,
    /// The value of `RateLimit-Policy` for the quota.
    pub(crate) policy: HeaderValue,
    /// The duration of a ban in microseconds, if its keys can be banned.
    ban_us: Option<u64>,
}

/// A comparison of the costs of a limit's requests, on all gateways.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Costs {
    /// All cost the same: where one is refused, no other one is admitted.
    Equal,
    /// A smaller one may be admitted, elsewhere, while a larger one is refused.
    Vary,
    /// They vary, and permits may come back at any time.
    Refunded,
}

impl Limit {
    /// Returns a limit that enforces, counts for all gateways of a store, refuses at once, and counts in this process
    /// while the store is away.
    ///
    /// # Examples
    ///
    /// ```
    /// # use tollgate_limiter::{Limit, Rate};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let logins = Limit::new("logins", "5/min".parse::<Rate>()?);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Panics
    /// If the name has anything else than lower-case letters, digits and hyphens.
    pub fn new(name: &str, quota: impl Into<Quota>) -> Self {
        let is_good = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
        assert!(!name.is_empty() && name.bytes().all(is_good), "`{name}` can't be the name of a limit");
        let quota = quota.into();
        Self {
            name: name.to_owned(),
            quota,
            is_shadow: false,
            scope: Scope::Shared,
            on_failure: OnFailure::Local,
            wait: Duration::ZERO,
            costs: Costs::Vary,
            stem: stem(name, quota.algorithm),
            redisson_name: None,
            policy: policy(name, quota),
            ban_us: None,
        }
    }

    /// Makes the limit a sliding window in the layout of Redisson, so that Java services with an `RRateLimiter` of
    /// this name share it. The rate that Redis has for the name holds; the limit's own is written if there is none.
    ///
    /// # Examples
    ///
    /// ```
    /// use tollgate_limiter::{Limit, Rate, RedissonType};
    ///
    /// # fn main() -> Result<(), String> {
    /// // In Java: redisson.getRateLimiter("logins:alice")
    /// let logins = Limit::new("logins", "5/min".parse::<Rate>()?)
    ///     .shared_with_redisson("logins:{key}".parse()?, RedissonType::Overall);
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn shared_with_redisson(self, name: RedissonName, counted: RedissonType) -> Self {
        let quota = Quota::new(Algorithm::Redisson(counted), self.quota.rate());
        Self { quota, redisson_name: Some(name), ..self }
    }

    /// Lets the limit give permits back: see [`Limiter::release`](crate::Limiter::release). A sliding window then counts in
    /// another layout: exactly up to 128 grants in a window, and further ones in cells of a 128th of it.
    ///
    /// # Panics
    /// If the limit counts requests in flight, or is shared with Redisson, which gives back without this.
    ///
    /// # Examples
    ///
    /// ```
    /// use tollgate_limiter::{Limit, Rate};
    ///
    /// # fn main() -> Result<(), String> {
    /// let tokens = Limit::new("tokens", "100000/min".parse::<Rate>()?).with_refunds();
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn with_refunds(self) -> Self {
        let quota = Quota::new(self.quota.algorithm.with_refunds(), self.quota.rate());
        let gives_back = !matches!(quota.algorithm, Algorithm::Concurrency | Algorithm::Redisson(_));
        assert!(gives_back, "`{}` can't have refunds", self.name);
        let stem = stem(&self.name, quota.algorithm);
        Self { quota, stem, costs: Costs::Refunded, ..self }
    }

    /// Returns true if it gives permits back.
    ///
    /// # Examples
    ///
    /// ```
    /// # use tollgate_limiter::{Limit, Rate};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// assert!(Limit::new("tokens", "1000/min".parse::<Rate>()?).with_refunds().has_refunds());
    /// # Ok(())
    /// # }
    /// ```
    pub fn has_refunds(&self) -> bool {
        self.costs == Costs::Refunded
    }

    /// Returns the names by which Java knows the limiters of this limit, if it shares them.
    ///
    /// # Examples
    ///
    /// ```
    /// # use tollgate_limiter::{Limit, Rate};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// assert!(Limit::new("logins", "5/min".parse::<Rate>()?).redisson_name().is_none());
    /// # Ok(())
    /// # }
    /// ```
    pub fn redisson_name(&self) -> Option<&RedissonName> {
        self.redisson_name.as_ref()
    }

    /// Lets keys of the limit be [banned](crate::Limiter::ban): then all their requests are refused for this long, in whole
    /// milliseconds. A limit that shadows bans nobody.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use tollgate_limiter::{Limit, Rate};
    ///
    /// # fn main() -> Result<(), String> {
    /// let logins = Limit::new("logins", "5/min".parse::<Rate>()?).with_bans_of(Duration::from_secs(3600));
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn with_bans_of(self, lasts: Duration) -> Self {
        let us = u64::try_from(lasts.as_millis()).unwrap_or(u64::MAX).saturating_mul(1_000);
        Self { ban_us: Some(us.clamp(1_000, Rate::MAX_WINDOW_US)), ..self }
    }

    /// Returns the name of a key's bucket under this algorithm, in a store with this prefix.
    fn bucket(&self, key_prefix: &str, algorithm: Algorithm, key: &str) -> Bytes {
        match &self.redisson_name {
            Some(name) => name.of_key(key).into(),
            None if algorithm == self.quota.algorithm => {
                text::concat([key_prefix, &self.stem, key, "}"]).into()
            }
            None => text::concat([key_prefix, &stem(&self.name, algorithm), key, "}"]).into(),
        }
    }

    /// Returns the name of a key's limiter in Redisson. `None` if each key has one, and none is given.
    pub(crate) fn redisson_bucket(&self, key: Option<&Key>) -> Option<Bytes> {
        let name = self.redisson_name.as_ref()?;
        match key {
            Some(key) => Some(name.of_key(key.as_str()).into()),
            None => (!name.has_key()).then(|| name.of("").into()),
        }
    }

    /// Returns the name of the bucket that counts several keys from one place, beside the bucket of a key.
    pub(crate) fn bucket_beside(&self, bucket: &[u8], key: &str, place: &str) -> Bytes {
        match &self.redisson_name {
            Some(name) => name.of(&["network=", place].concat()).into(),
            None => {
                let stem = &bucket[..bucket.len() - key.len() - 1];
                Bytes::from([stem, b"network=", place.as_bytes(), b"}"].concat())
            }
        }
    }

    /// Makes the limit count and report only, and refuse nothing.
    ///
    /// # Examples
    ///
    /// ```
    /// # use tollgate_limiter::{Limit, Rate};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let observed = Limit::new("logins", "5/min".parse::<Rate>()?).shadow();
    /// assert!(observed.shadows());
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn shadow(self) -> Self {
        Self { is_shadow: true, ..self }
    }

    /// Makes the limit count in this process alone, without the store.
    ///
    /// # Examples
    ///
    /// ```
    /// # use tollgate_limiter::{Limit, Rate};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let own = Limit::new("reports", "5/min".parse::<Rate>()?).in_this_process();
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn in_this_process(self) -> Self {
        Self { scope: Scope::Instance, ..self }
    }

    /// Declares that all requests cost the same, on all gateways: while one is refused, no other one is admitted.
    ///
    /// # Examples
    ///
    /// ```
    /// # use tollgate_limiter::{Limit, Rate};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let logins = Limit::new("logins", "5/min".parse::<Rate>()?).of_equal_costs();
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn of_equal_costs(self) -> Self {
        let costs = if self.has_refunds() { Costs::Refunded } else { Costs::Equal };
        Self { costs, ..self }
    }

    /// Sets the failure policy.
    ///
    /// # Examples
    ///
    /// ```
    /// # use tollgate_limiter::{Limit, OnFailure, Rate};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// // Without the store, nobody may try a password.
    /// let logins = Limit::new("logins", "5/min".parse::<Rate>()?).on_failure(OnFailure::Deny);
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn on_failure(self, on_failure: OnFailure) -> Self {
        Self { on_failure, ..self }
    }

    /// Sets the longest time to hold a request until there is room. It applies to requests of a
    /// `RateLimitLayer` and of the gateway; [`Limiter::acquire`](crate::Limiter::acquire) has its own deadline.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tollgate_limiter::{Limit, Rate};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let mails = Limit::new("mails", "5/min".parse::<Rate>()?).wait_at_most(Duration::from_secs(2));
    /// assert_eq!(mails.wait(), Duration::from_secs(2));
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn wait_at_most(self, wait: Duration) -> Self {
        Self { wait, ..self }
    }

    /// Returns the name.
    ///
    /// # Examples
    ///
    /// ```
    /// # use tollgate_limiter::{Limit, Rate};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// assert_eq!(Limit::new("logins", "5/min".parse::<Rate>()?).name(), "logins");
    /// # Ok(())
    /// # }
    /// ```
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the quota of keys that have none of their own.
    ///
    /// # Examples
    ///
    /// ```
    /// # use tollgate_limiter::{Limit, Rate};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// assert_eq!(Limit::new("logins", "5/min".parse::<Rate>()?).quota().permits, 5);
    /// # Ok(())
    /// # }
    /// ```
    pub fn quota(&self) -> Quota {
        self.quota
    }

    /// Returns true if it only counts and reports.
    ///
    /// # Examples
    ///
    /// ```
    /// # use tollgate_limiter::{Limit, Rate};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// assert!(Limit::new("logins", "5/min".parse::<Rate>()?).shadow().shadows());
    /// # Ok(())
    /// # }
    /// ```
    pub fn shadows(&self) -> bool {
        self.is_shadow
    }

    /// Returns the longest time to hold a request that it refuses.
    ///
    /// # Examples
    ///
    /// ```
    /// # use tollgate_limiter::{Limit, Rate};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// assert!(Limit::new("logins", "5/min".parse::<Rate>()?).wait().is_zero());
    /// # Ok(())
    /// # }
    /// ```
    pub fn wait(&self) -> Duration {
        self.wait
    }
}

/// Returns the part of a bucket's name between the store's prefix and the key.
fn stem(name: &str, algorithm: Algorithm) -> String {
    format!(":{name}:{}:{{", algorithm.tag())
}

/// Returns the value of `RateLimit-Policy` for a limit alone, as long as its quota is this one.
fn policy(name: &str, quota: Quota) -> HeaderValue {
    HeaderValue::from_maybe_shared(Bytes::from(policy_of(name, quota))).expect("it is visible ASCII")
}

/// Returns the member of `RateLimit-Policy` that stands for a limit.
pub(crate) fn policy_of(name: &str, quota: Quota) -> String {
    let [mut permits, mut window] = [itoa::Buffer::new(); 2];
    let permits = permits.format(quota.permits);
    match (quota.algorithm, quota.window_seconds()) {
        (Algorithm::Concurrency, _) => {
            text::concat(["\"", name, "\";q=", permits, ";qu=\"concurrent-requests\""])
        }
        (_, Some(seconds)) => text::concat(["\"", name, "\";q=", permits, ";w=", window.format(seconds)]),
        (_, None) => text::concat(["\"", name, "\";q=", permits]),
    }
}
