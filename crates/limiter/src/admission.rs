//! What a limiter says: a request may pass, and its [`Admission`] holds what it took; or it may not, and
//! the [`Refusal`] knows when to come back.

mod refusal;

use std::{sync::Arc, time::Duration};

use tokio::{
    task::AbortHandle,
    time::{Instant, sleep},
};

use crate::{
    algorithm::Quota,
    charged_ask::ChargedAsk,
    grants::RefundableGrant,
    limit::{Ask, Limit},
    refusals::Refusals,
    standing::{Standing, Standings},
    store::{Charge, Lease, Store},
};

pub use self::refusal::{Limited, Refusal};

/// A request that may pass, where its limits stand, and what it holds of them while it runs.
///
/// # Examples
///
/// ```
/// use std::sync::Arc;
/// use tollgate_limiter::{Ask, Limit, Limiter, Quota};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let limiter = Limiter::connect("memory:")?;
/// let exports = Arc::new(Limit::new("exports", Quota::concurrency(1)));
/// let ask = Ask::new(&exports, "alice");
///
/// let running = limiter.try_acquire(&ask).await?;
/// assert!(limiter.try_acquire(&ask).await.is_err());
/// drop(running);
/// limiter.try_acquire(&ask).await?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Default)]
pub struct Admission {
    pub(super) standings: Standings,
    pub(super) leases: Vec<Arc<HeldLease>>,
    pub(super) accounts: Vec<Account>,
    /// The permits that it took of limits with refunds.
    pub(super) grants: Vec<RefundableGrant>,
}

impl Admission {
    /// Returns the standings of the limits that were asked.
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
    /// let admission = limiter.try_acquire(Ask::new(&logins, "alice")).await?;
    /// assert_eq!(admission.standings()[0].remaining(), Some(4));
    /// # Ok(())
    /// # }
    /// ```
    pub fn standings(&self) -> &[Standing] {
        &self.standings
    }

    /// Returns the fewest permits that one of the limits has left. `None` if none of them knows, as while a store is away.
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
    /// let admission = limiter.try_acquire(Ask::new(&logins, "alice")).await?;
    /// assert_eq!(admission.remaining(), Some(4));
    /// # Ok(())
    /// # }
    /// ```
    pub fn remaining(&self) -> Option<u64> {
        let enforcing = self.standings.iter().filter(|standing| !standing.limit.shadows());
        enforcing.filter_map(Standing::remaining).min()
    }

    /// Adds the result of a later question of the same request.
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
    /// let first = limiter.try_acquire(&alice).await?;
    /// let both = first.and(limiter.try_acquire(&alice).await)?;
    /// assert_eq!(both.standings().len(), 2);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The later question was refused. What this admission holds is released.
    pub fn and(mut self, later: Result<Self, Refusal>) -> Result<Self, Refusal> {
        match later {
            Ok(later) => {
                self.standings.extend(later.standings);
                self.leases.extend(later.leases);
                self.accounts.extend(later.accounts);
                self.grants.extend(later.grants);
                Ok(self)
            }
            Err(Refusal::Limited(limited)) => {
                self.standings.extend(limited.standings);
                Err(Refusal::Limited(Box::new(Limited { standings: self.standings })))
            }
            Err(refusal) => Err(refusal),
        }
    }

    /// Records permits beyond those that the request was admitted for, whether they fit or not, on a limit that
    /// it was [asked to settle](super::Ask::settled_later) with. What the store can't take now is recorded as soon as it
    /// answers, within the limit's window. What fails while it is sent may be lost.
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
    /// let ask = Ask::new(&tokens, "alice");
    /// let admission = limiter.try_acquire(ask.clone().settled_later(200)).await?;
    /// admission.record("tokens", 180);
    /// assert_eq!(limiter.peek(&ask).await?.used(), 181);
    /// # Ok(())
    /// # }
    /// ```
    pub fn record(&self, limit: &str, cost: u32) {
        let accounts = self.accounts.iter().filter(|account| account.ask.limit.name() == limit && cost > 0);
        for Account { store, refusals, ask, charge, common, .. } in accounts {
            let asked = ChargedAsk::new(ask, Charge { cost, ..charge.clone() }, *common);
            // A debt lengthens the delays that were told.
            refusals.forget(&charge.bucket);
            store.record(asked);
        }
    }

    /// Gives back permits that the request took of a [limit with refunds](super::Limit::with_refunds) and didn't need, for all
    /// keys that it counts for, without waiting for it. At most what it took is given back, and nothing once the grant
    /// has ended. What the store can't take now stays charged.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use tollgate_limiter::{Ask, Limit, Limiter, Rate};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let limiter = Limiter::connect("memory:")?;
    /// let tokens = Arc::new(Limit::new("tokens", "1000/min".parse::<Rate>()?).with_refunds());
    /// let ask = Ask::new(&tokens, "alice");
    /// let admission = limiter.try_acquire(ask.clone().cost(500)).await?;
    /// admission.give_back("tokens", 400);
    /// assert_eq!(limiter.peek(&ask).await?.used(), 100);
    /// # Ok(())
    /// # }
    /// ```
    pub fn give_back(&self, limit: &str, permits: u32) {
        let grants = self.grants.iter().filter(|grant| grant.ask.limit.name() == limit);
        grants.for_each(|grant| grant.give_back(permits));
    }

    /// The limits that [`record`](Self::record) is for, each with what its request was estimated to cost, or owes if the
    /// response makes it so.
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
    /// let ask = Ask::new(&logins, "alice").settled_later(3);
    /// let admission = limiter.try_acquire(ask).await?;
    /// assert_eq!(admission.owed().count(), 1);
    /// # Ok(())
    /// # }
    /// ```
    pub fn owed(&self) -> impl Iterator<Item = (&Arc<Limit>, u32)> {
        self.accounts.iter().map(|account| (&account.ask.limit, account.cost))
    }

    /// Returns true if it holds permits of limits on requests in flight.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use tollgate_limiter::{Ask, Limit, Limiter, Quota};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let limiter = Limiter::connect("memory:")?;
    /// let reports = Arc::new(Limit::new("reports", Quota::concurrency(5)));
    /// let running = limiter.try_acquire(Ask::new(&reports, "alice")).await?;
    /// assert!(running.has_leases()); // until it is dropped
    /// # Ok(())
    /// # }
    /// ```
    pub fn has_leases(&self) -> bool {
        !self.leases.is_empty()
    }

    /// Returns a share of the permits of limits on requests in flight: they are held until the admission and all shares are dropped.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use tollgate_limiter::{Ask, Limit, Limiter, Quota};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let limiter = Limiter::connect("memory:")?;
    /// let reports = Arc::new(Limit::new("reports", Quota::concurrency(1)));
    /// let running = limiter.try_acquire(Ask::new(&reports, "alice")).await?;
    /// let share = running.share_leases();
    /// drop(running);
    /// assert!(limiter.try_acquire(Ask::new(&reports, "alice")).await.is_err());
    /// # drop(share);
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn share_leases(&self) -> impl Send + Sync + use<> {
        self.leases.clone()
    }

    /// Returns true if it holds nothing that must outlive the decision.
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
    /// assert!(limiter.try_acquire(Ask::new(&logins, "alice")).await?.is_settled());
    /// # Ok(())
    /// # }
    /// ```
    pub fn is_settled(&self) -> bool {
        self.leases.is_empty() && self.accounts.is_empty()
    }
}

/// An open account, on which more may be recorded for a request.
#[derive(Debug)]
pub(super) struct Account {
    pub(super) ask: Ask,
    pub(super) store: Arc<Store>,
    pub(super) refusals: Arc<Refusals>,
    /// The charge on the bucket of the key, also if it was counted elsewhere.
    pub(super) charge: Charge,
    /// The quota of keys that have none of their own.
    pub(super) common: Quota,
    /// The estimate, or the cost that the response may make due.
    pub(super) cost: u32,
}

/// A lease that is renewed for as long as this value lives, and released with it.
#[derive(Debug)]
pub(super) struct HeldLease {
    store: Arc<Store>,
    lease: Lease,
    renewal: AbortHandle,
}

impl HeldLease {
    /// Holds a lease in the store where it was taken. It must be called in a tokio runtime.
    pub(super) fn new(store: &Arc<Store>, lease: Lease) -> Self {
        let (store, renewed) = (store.clone(), lease.clone());
        // Two thirds of the lease are left to repeat a renewal that fails.
        let every = Duration::from_micros(lease.quota.window_us / 3);
        let renewal = tokio::spawn({
            let store = store.clone();
            async move {
                loop {
                    sleep(every).await;
                    while store.renew(&renewed, Instant::now() + every).await.is_err() {
                        sleep(every / 8).await;
                    }
                }
            }
        });
        Self { store, lease, renewal: renewal.abort_handle() }
    }
}

impl Drop for HeldLease {
    fn drop(&mut self) {
        self.renewal.abort();
        self.store.release(&self.lease);
    }
}
