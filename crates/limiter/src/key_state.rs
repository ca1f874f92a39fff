//! The state of a key, as operators and users of the library look it up.

use std::time::Duration;

use crate::{Quota, store::Usage};

/// The state of a key: its quota and its use.
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
/// let reports = Arc::new(Limit::new("reports", "5/min".parse::<Rate>()?));
/// let two = Ask::new(&reports, "alice").cost(2);
/// limiter.try_acquire([two.clone(), two.clone()]).await?;
///
/// let state = limiter.peek(&two).await?;
/// assert_eq!((state.used(), state.remaining()), (4, 1));
/// // Two more fit when there are more.
/// assert_eq!(state.fits_in(), state.grows_in());
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug)]
pub struct KeyState {
    /// The quota that holds now.
    pub quota: Quota,
    /// True if an override set it.
    pub is_overridden: bool,
    /// The use of its permits.
    pub usage: Usage,
    /// True if the use is that of the client's network, as the limit has no memory for more keys.
    pub is_by_network: bool,
    /// The time until the ban of the key ends, if it is banned.
    pub banned_for: Option<Duration>,
}

impl KeyState {
    /// Returns the permits in use. They may be more than a rate that was lowered.
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
    /// let alice = Ask::new(&logins, "alice");
    /// limiter.try_acquire(&alice).await?;
    /// assert_eq!(limiter.peek(&alice).await?.used(), 1);
    /// # Ok(())
    /// # }
    /// ```
    pub fn used(&self) -> u64 {
        self.usage.used
    }

    /// Returns the permits that are left.
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
    /// let alice = Ask::new(&logins, "alice");
    /// limiter.try_acquire(&alice).await?;
    /// assert_eq!(limiter.peek(&alice).await?.remaining(), 4);
    /// # Ok(())
    /// # }
    /// ```
    pub fn remaining(&self) -> u64 {
        u64::from(self.quota.capacity()).saturating_sub(self.usage.used)
    }

    /// Returns the time until more permits are left than now. `None` if all are.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::{sync::Arc, time::Duration};
    /// # use tollgate_limiter::{Ask, Limit, Limiter, Rate};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let limiter = Limiter::connect("memory:")?;
    /// # let logins = Arc::new(Limit::new("logins", "5/min".parse::<Rate>()?));
    /// let alice = Ask::new(&logins, "alice");
    /// limiter.try_acquire(&alice).await?;
    /// assert!(limiter.peek(&alice).await?.grows_in() <= Some(Duration::from_secs(60)));
    /// # Ok(())
    /// # }
    /// ```
    pub fn grows_in(&self) -> Option<Duration> {
        Some(Duration::from_micros(self.usage.grow_us)).filter(|grows_in| !grows_in.is_zero())
    }

    /// Returns the time until the cost of the ask fits: zero if it does now, `None` if it never will.
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
    /// let alice = Ask::new(&logins, "alice");
    /// limiter.try_acquire(&alice).await?;
    /// assert!(limiter.peek(&alice).await?.fits_in().is_some_and(|fits_in| fits_in.is_zero()));
    /// assert_eq!(limiter.peek(&alice.cost(6)).await?.fits_in(), None);
    /// # Ok(())
    /// # }
    /// ```
    pub fn fits_in(&self) -> Option<Duration> {
        self.usage.delay_us.map(Duration::from_micros)
    }
}
