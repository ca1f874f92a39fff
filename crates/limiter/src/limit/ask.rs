//! What a request asks of a limit.
//!
//! Most of this file is examples: each item that users of the library call has one.

use std::{net::IpAddr, slice, sync::Arc};

use smallvec::SmallVec;

use crate::{
    Key,
    algorithm::{Algorithm, Quota, Rate},
    store::Charge,
    text,
};

use super::Limit;

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
    /// True if that is the rate of a group of keys.
    pub(crate) is_rate_of_group: bool,
    /// The cost that may become known when the request has been served.
    pub(crate) settles: Option<u32>,
    /// The client's address.
    pub(crate) client: Option<IpAddr>,
    /// The number that sets it apart from the request's others for the same limit.
    pub(crate) number: u16,
    /// True if its key is one of several that servers may read in the request, and not the first.
    pub(crate) is_other_reading: bool,
}

impl Ask {
    /// Asks for one permit for a key.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use tollgate_limiter::{Ask, Limit, Rate};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let limit = Arc::new(Limit::new("logins", "5/min".parse::<Rate>()?));
    /// let ask = Ask::new(&limit, "alice");
    /// assert_eq!(ask.permits(), 1);
    /// # Ok(())
    /// # }
    /// ```
    pub fn new(limit: &Arc<Limit>, key: impl Into<Key>) -> Self {
        let limit = limit.clone();
        Self {
            limit,
            key: key.into(),
            cost: 1,
            rate: None,
            is_rate_of_group: false,
            settles: None,
            client: None,
            number: 0,
            is_other_reading: false,
        }
    }

    /// Returns the limit.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use tollgate_limiter::{Ask, Key, Limit, Rate};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let logins = Arc::new(Limit::new("logins", "5/min".parse::<Rate>()?));
    /// assert_eq!(Ask::new(&logins, "alice").limit().name(), "logins");
    /// # Ok(())
    /// # }
    /// ```
    pub fn limit(&self) -> &Arc<Limit> {
        &self.limit
    }

    /// Returns the key.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use tollgate_limiter::{Ask, Key, Limit, Rate};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let logins = Arc::new(Limit::new("logins", "5/min".parse::<Rate>()?));
    /// assert_eq!(*Ask::new(&logins, "alice").key(), Key::from("alice"));
    /// # Ok(())
    /// # }
    /// ```
    pub fn key(&self) -> &Key {
        &self.key
    }

    /// Returns the number of permits that it asks for.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use tollgate_limiter::{Ask, Key, Limit, Rate};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let logins = Arc::new(Limit::new("logins", "5/min".parse::<Rate>()?));
    /// assert_eq!(Ask::new(&logins, "alice").permits(), 1);
    /// # Ok(())
    /// # }
    /// ```
    pub fn permits(&self) -> u32 {
        self.cost
    }

    /// Sets the number of permits. With 0 it asks whether one fits, and takes none. From a limit on requests
    /// in flight a request always takes one.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use tollgate_limiter::{Ask, Limit, Rate};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let limit = Arc::new(Limit::new("logins", "5/min".parse::<Rate>()?));
    /// let three = Ask::new(&limit, "alice").cost(3);
    /// assert_eq!(three.permits(), 3);
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn cost(self, cost: u32) -> Self {
        let is_rate = self.limit.quota.algorithm != Algorithm::Concurrency;
        Self { cost: if is_rate { cost } else { 1 }, ..self }
    }

    /// Declares that the request may [record](crate::Admission::record) more permits when it has been served: about
    /// this many in all.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use tollgate_limiter::{Ask, Limit, Limiter, Rate};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let limiter = Limiter::connect("memory:")?;
    /// let tokens = Arc::new(Limit::new("tokens", "1000/min".parse::<Rate>()?));
    /// let admission = limiter.try_acquire(Ask::new(&tokens, "alice").settled_later(200)).await?;
    /// // The answer took 180 tokens more than the one that it was admitted for.
    /// admission.record("tokens", 180);
    /// assert_eq!(limiter.peek(&Ask::new(&tokens, "alice")).await?.used(), 181);
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn settled_later(self, cost: u32) -> Self {
        Self { settles: Some(cost), ..self }
    }

    /// Sets the client's address. The in-process store counts new keys by the client's network, a /24 or /48,
    /// if the limit has used up its share of the memory. Requests without an address are counted together then.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use tollgate_limiter::{Ask, Limit, Rate};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let limit = Arc::new(Limit::new("logins", "5/min".parse::<Rate>()?));
    /// let ask = Ask::new(&limit, "alice").from_client([192, 0, 2, 7].into());
    /// # Ok(())
    /// # }
    /// ```
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

    /// Sets the key's own rate, which replaces the limit's. Its unit may be another one, also for a limit by the calendar.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use tollgate_limiter::{Ask, Limit, Limiter, Rate};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let limiter = Limiter::connect("memory:")?;
    /// let logins = Arc::new(Limit::new("logins", "5/min".parse::<Rate>()?));
    /// let vip = Ask::new(&logins, "alice").rate(Some("50/min".parse()?));
    /// assert_eq!(limiter.try_acquire(&vip).await?.remaining(), Some(49));
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn rate(self, rate: Option<Rate>) -> Self {
        Self { rate, ..self }
    }

    /// Declares that the key's own rate is that of a group of keys, such as those of a plan. Nobody has named the key then, so that
    /// clients may have invented it, and the in-process store keeps no memory free for it.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use tollgate_limiter::{Ask, Limit, Rate};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let calls = Arc::new(Limit::new("calls", "5/min".parse::<Rate>()?));
    /// let rate: Rate = "50/min".parse()?;
    /// let ask = Ask::new(&calls, "plan=pro,key=k1").rate(Some(rate)).rate_of_group(true);
    /// assert_eq!(ask.own_rate(), Some(rate));
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn rate_of_group(self, is_rate_of_group: bool) -> Self {
        Self { is_rate_of_group, ..self }
    }

    /// Sets the number that sets it apart from others of a request, for which the same limit is asked. Without it, their standings
    /// can't be told apart.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use tollgate_limiter::{Ask, Limit, Limiter, Rate};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let limiter = Limiter::connect("memory:")?;
    /// # let logins = Arc::new(Limit::new("logins", "5/min".parse::<Rate>()?));
    /// let admission = limiter.try_acquire([Ask::new(&logins, "alice"), Ask::new(&logins, "bob").number(1)]).await?;
    /// assert!(admission.standings().iter().map(|standing| standing.number).eq([0, 1]));
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn number(self, number: u16) -> Self {
        Self { number, ..self }
    }

    /// Sets the number of its key among those that servers may read in the request. The request has only one of these keys.
    /// It also sets [`Self::number`]: call that afterwards.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use tollgate_limiter::{Ask, Limit, Limiter, Rate};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let limiter = Limiter::connect("memory:")?;
    /// # let logins = Arc::new(Limit::new("logins", "5/min".parse::<Rate>()?));
    /// // One server may read `alice` in the request, another one `bob`.
    /// let asks = [Ask::new(&logins, "alice").reading(0), Ask::new(&logins, "bob").reading(1)];
    /// let admission = limiter.try_acquire(asks).await?;
    /// assert!(admission.standings().iter().map(|standing| standing.number).eq([0, 1]));
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn reading(self, reading: u16) -> Self {
        Self { number: reading, is_other_reading: reading > 0, ..self }
    }

    /// Returns the key's own rate from the file, if any.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use tollgate_limiter::{Ask, Key, Limit, Rate};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let logins = Arc::new(Limit::new("logins", "5/min".parse::<Rate>()?));
    /// assert_eq!(Ask::new(&logins, "alice").own_rate(), None);
    /// # Ok(())
    /// # }
    /// ```
    pub fn own_rate(&self) -> Option<Rate> {
        self.rate
    }

    /// Returns the cost that may become known when the request has been served.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use tollgate_limiter::{Ask, Key, Limit, Rate};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let logins = Arc::new(Limit::new("logins", "5/min".parse::<Rate>()?));
    /// assert_eq!(Ask::new(&logins, "alice").settled_later(200).settles(), Some(200));
    /// # Ok(())
    /// # }
    /// ```
    pub fn settles(&self) -> Option<u32> {
        self.settles
    }

    /// Returns the rate that holds unless it was overridden.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use tollgate_limiter::{Ask, Key, Limit, Rate};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let logins = Arc::new(Limit::new("logins", "5/min".parse::<Rate>()?));
    /// assert_eq!(Ask::new(&logins, "alice").rate_of_file(), "5/min".parse()?);
    /// # Ok(())
    /// # }
    /// ```
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

    /// Returns its charge at this rate, on a bucket with this prefix. A limit by the calendar counts a rate for another unit than its
    /// own in windows of that unit, apart from its own.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use tollgate_limiter::{Ask, Key, Limit, Rate};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let logins = Arc::new(Limit::new("logins", "5/min".parse::<Rate>()?));
    /// let charge = Ask::new(&logins, "alice").charge("tollgate", "5/min".parse()?);
    /// assert_eq!(charge.bucket, "tollgate:logins:sw:{caller=alice}");
    /// # Ok(())
    /// # }
    /// ```
    pub fn charge(&self, key_prefix: &str, rate: Rate) -> Charge {
        let Self { limit, key, cost, .. } = self;
        let quota = Quota::new(limit.quota.algorithm.at_window(rate.window_us), rate);
        let bucket = limit.bucket(key_prefix, quota.algorithm, key.as_str());
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
///
/// # Examples
///
/// ```
/// # use std::sync::Arc;
/// # use tollgate_limiter::{Ask, Asks, Limit, Limiter, Rate};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let limiter = Limiter::connect("memory:")?;
/// # let logins = Arc::new(Limit::new("logins", "5/min".parse::<Rate>()?));
/// let asks: Asks = ["alice", "10.0.0.1"].map(|key| Ask::new(&logins, key)).into_iter().collect();
/// assert_eq!(limiter.try_acquire(&asks).await?.standings().len(), 2);
/// # Ok(())
/// # }
/// ```
pub type Asks = SmallVec<[Ask; 1]>;
