//! Limits, and what requests ask of them.
//!
//! A [`Limit`] is a named rule. An [`Ask`] is what a request asks of one: the key to count for, and a cost.

use std::{net::IpAddr, slice, sync::Arc, time::Duration};

use bytes::Bytes;
use http::header::HeaderValue;
use smallvec::SmallVec;

use crate::{
    Key, OnFailure, RedissonName, Scope,
    algorithm::{Algorithm, Quota, Rate, RedissonType},
    store::Charge,
    text,
};

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
            stem: format!(":{name}:{}:{{", quota.algorithm.tag()),
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
        let stem = format!(":{}:{}:{{", self.name, quota.algorithm.tag());
        Self { quota, stem, costs: Costs::Refunded, ..self }
    }

    /// Returns true if it gives permits back.
    pub fn has_refunds(&self) -> bool {
        self.costs == Costs::Refunded
    }

    /// Returns the names by which Java knows the limiters of this limit, if it shares them.
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

    /// Returns the name of a key's bucket in a store with this prefix.
    fn bucket(&self, key_prefix: &str, key: &str) -> Bytes {
        match &self.redisson_name {
            Some(name) => name.of_key(key).into(),
            None => text::concat([key_prefix, &self.stem, key, "}"]).into(),
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
    #[must_use]
    pub fn shadow(self) -> Self {
        Self { is_shadow: true, ..self }
    }

    /// Makes the limit count in this process alone, without the store.
    #[must_use]
    pub fn in_this_process(self) -> Self {
        Self { scope: Scope::Instance, ..self }
    }

    /// Declares that all requests cost the same, on all gateways: while one is refused, no other one is admitted.
    #[must_use]
    pub fn of_equal_costs(self) -> Self {
        let costs = if self.has_refunds() { Costs::Refunded } else { Costs::Equal };
        Self { costs, ..self }
    }

    /// Sets the failure policy.
    #[must_use]
    pub fn on_failure(self, on_failure: OnFailure) -> Self {
        Self { on_failure, ..self }
    }

    /// Sets the longest time to hold a request until there is room. It applies to requests of a
    /// `RateLimitLayer` and of the gateway; [`Limiter::acquire`](crate::Limiter::acquire) has its own deadline.
    #[must_use]
    pub fn wait_at_most(self, wait: Duration) -> Self {
        Self { wait, ..self }
    }

    /// Returns the name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the quota of keys that have none of their own.
    pub fn quota(&self) -> Quota {
        self.quota
    }

    /// Returns true if it only counts and reports.
    pub fn shadows(&self) -> bool {
        self.is_shadow
    }

    /// Returns the longest time to hold a request that it refuses.
    pub fn wait(&self) -> Duration {
        self.wait
    }
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

/// A request's question to one limit: a key to count by, and a cost.
///
/// # Examples
///
/// ```
/// use std::sync::Arc;
/// use tollgate_limiter::{Ask, Key, Limit, Rate};
///
/// # fn main() -> Result<(), String> {
/// let limit = Arc::new(Limit::new("per-user", "100/10s".parse::<Rate>()?));
/// let one = Ask::new(&limit, "alice");
/// let ten = Ask::new(&limit, Key::caller("alice")).cost(10);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Ask {
    pub(crate) limit: Arc<Limit>,
    pub(crate) key: Key,
    pub(crate) cost: u32,
    /// The file's for this key.
    rate: Option<Rate>,
    /// The cost that may become known when the request has been served.
    pub(crate) settles: Option<u32>,
    /// The client's address.
    pub(crate) client: Option<IpAddr>,
    /// The number of its key among those that servers may read in the request for the same limit.
    pub(crate) reading: u16,
}

impl Ask {
    /// Asks for one permit for a key.
    pub fn new(limit: &Arc<Limit>, key: impl Into<Key>) -> Self {
        let limit = limit.clone();
        Self { limit, key: key.into(), cost: 1, rate: None, settles: None, client: None, reading: 0 }
    }

    /// Returns the limit.
    pub fn limit(&self) -> &Arc<Limit> {
        &self.limit
    }

    /// Returns the key.
    pub fn key(&self) -> &Key {
        &self.key
    }

    /// Returns the number of permits that it asks for.
    pub fn permits(&self) -> u32 {
        self.cost
    }

    /// Sets the number of permits. With 0 it asks whether one fits, and takes none. From a limit on requests
    /// in flight a request always takes one.
    #[must_use]
    pub fn cost(self, cost: u32) -> Self {
        let is_rate = self.limit.quota.algorithm != Algorithm::Concurrency;
        Self { cost: if is_rate { cost } else { 1 }, ..self }
    }

    /// Declares that the request may [record](crate::Admission::record) more permits when it has been served: about
    /// this many in all.
    #[must_use]
    pub fn settled_later(self, cost: u32) -> Self {
        Self { settles: Some(cost), ..self }
    }

    /// Sets the client's address. The in-process store counts new keys by the client's network, a /24 or /48,
    /// if the limit has used up its share of the memory. Requests without an address are counted together then.
    #[must_use]
    pub fn from_client(self, client: IpAddr) -> Self {
        Self { client: Some(client), ..self }
    }

    /// Sets the client's address unless it is set.
    #[cfg(feature = "layer")]
    pub(crate) fn or_from_client(mut self, client: IpAddr) -> Self {
        self.client.get_or_insert(client);
        self
    }

    /// Sets the key's own rate, which replaces the limit's.
    #[must_use]
    pub fn rate(self, rate: Option<Rate>) -> Self {
        Self { rate, ..self }
    }

    /// Sets the number of its key among those that servers may read in the request.
    #[must_use]
    pub fn reading(self, reading: u16) -> Self {
        Self { reading, ..self }
    }

    /// Returns the key's own rate from the file, if any.
    pub fn own_rate(&self) -> Option<Rate> {
        self.rate
    }

    /// Returns the cost that may become known when the request has been served.
    pub fn settles(&self) -> Option<u32> {
        self.settles
    }

    /// Returns the rate that holds unless it was overridden.
    pub fn rate_of_file(&self) -> Rate {
        self.rate.unwrap_or(self.limit.quota.rate())
    }

    /// Returns the look at the ban of its key, on a bucket with this prefix: a permit that is taken while the ban lasts. `None`
    /// if the limit has no bans.
    pub(crate) fn look_at_ban(&self, key_prefix: &str) -> Option<Charge> {
        let window_us = self.limit.ban_us.filter(|_| !self.limit.shadows())?;
        let bucket =
            text::concat([key_prefix, ":", &self.limit.name, ":ban:{", self.key.as_str(), "}"]).into();
        let quota = Quota::new(Algorithm::FixedWindow, Rate { permits: 1, window_us });
        Some(Charge { bucket, quota, cost: 0, shadow: false })
    }

    /// Returns its charge at this rate, on a bucket with this prefix.
    pub fn charge(&self, key_prefix: &str, rate: Rate) -> Charge {
        let Self { limit, key, cost, .. } = self;
        let bucket = limit.bucket(key_prefix, key.as_str());
        let quota = Quota::new(limit.quota.algorithm, rate);
        Charge { bucket, quota, cost: *cost, shadow: limit.shadows() }
    }
}

/// One ask is as good as a list of them.
impl AsRef<[Ask]> for Ask {
    fn as_ref(&self) -> &[Ask] {
        slice::from_ref(self)
    }
}

/// The questions of a request: one for each limit, and for each key that servers may read in it.
pub type Asks = SmallVec<[Ask; 1]>;
