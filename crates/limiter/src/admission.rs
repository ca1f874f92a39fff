//! What a limiter says: a request may pass, and its [`Admission`] holds what it took; or it may not, and
//! the [`Refusal`] knows when to come back.

use std::{error::Error, fmt, sync::Arc, time::Duration};

use tokio::{task::AbortHandle, time::sleep};

use crate::{
    algorithm::{Algorithm, Quota},
    charged_ask::ChargedAsk,
    duration,
    grants::RefundableGrant,
    limit::{Ask, Limit},
    refusals::Refusals,
    standing::{Standing, Standings, tightest_of_each},
    store::{Charge, Lease, Store, StoreError},
};

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
    pub(super) leases: Vec<HeldLease>,
    pub(super) accounts: Vec<Account>,
    /// The permits that it took of limits with refunds.
    pub(super) grants: Vec<RefundableGrant>,
}

impl Admission {
    /// Returns the standings of the limits that were asked.
    pub fn standings(&self) -> &[Standing] {
        &self.standings
    }

    /// Returns the fewest permits that one of the limits has left. `None` if none of them knows, as while a store is away.
    pub fn remaining(&self) -> Option<u64> {
        let enforcing = self.standings.iter().filter(|standing| !standing.limit.shadows());
        enforcing.filter_map(Standing::remaining).min()
    }

    /// Adds the result of a later question of the same request.
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
    /// it was [asked to settle](super::Ask::settled_later) with. What the store can't take now is forgotten.
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
    pub fn give_back(&self, limit: &str, permits: u32) {
        let grants = self.grants.iter().filter(|grant| grant.ask.limit.name() == limit);
        grants.for_each(|grant| grant.give_back(permits));
    }

    /// The limits that [`record`](Self::record) is for, each with what its request was estimated to cost, or owes if the
    /// response makes it so.
    pub fn owed(&self) -> impl Iterator<Item = (&Arc<Limit>, u32)> {
        self.accounts.iter().map(|account| (&account.ask.limit, account.cost))
    }

    /// Returns true if it holds permits of limits on requests in flight.
    pub fn has_leases(&self) -> bool {
        !self.leases.is_empty()
    }

    /// Returns true if it holds nothing that must outlive the decision.
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
        // So that one renewal may be lost.
        let every = Duration::from_micros(lease.quota.window_us / 3);
        let renewal = tokio::spawn({
            let store = store.clone();
            async move {
                loop {
                    sleep(every).await;
                    store.renew(&renewed);
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

/// A request that may not pass.
///
/// # Examples
///
/// ```
/// use std::{sync::Arc, time::Duration};
/// use tollgate_limiter::{Ask, Limit, Limiter, Rate, Refusal};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let limiter = Limiter::connect("memory:")?;
/// let logins = Arc::new(Limit::new("logins", "1/min".parse::<Rate>()?));
/// let ask = Ask::new(&logins, "alice");
///
/// limiter.try_acquire(&ask).await?;
/// match limiter.try_acquire(&ask).await {
///     Ok(_) => unreachable!("one a minute"),
///     Err(Refusal::Limited(limited)) => {
///         assert!(limited.violated().eq(["logins"]));
///         assert!(limited.retry_after() <= Some(Duration::from_secs(60)));
///     }
///     Err(other) => println!("{other}"),
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub enum Refusal {
    /// A limit has no room.
    Limited(Box<Limited>),
    /// The request lacks the key of a limit that refuses such requests.
    KeyMissing {
        /// The limit's name.
        limit: String,
    },
    /// The request has a key that isn't one of those that a limit knows.
    KeyUnknown {
        /// The part of the key, as in the configuration: `header:x-api-key`.
        part: String,
    },
    /// A limit counts by a claim of the request's token, which can't be verified now.
    TokenUnverified,
    /// The request has two different values for one part of a limit's key.
    KeyAmbiguous {
        /// The part, as in the configuration: `header:x-api-key`.
        part: String,
    },
    /// The request doesn't say in a header what it costs, as one of its limits demands, but something else.
    CostInvalid {
        /// The header's name.
        header: String,
    },
    /// The store can't answer, and a limit says to refuse then.
    StoreUnavailable {
        /// The cause.
        cause: StoreError,
        /// The limits that say so.
        denied_by: Vec<Standing>,
    },
}

impl Refusal {
    /// Returns the time after which the request is admitted, if nobody else takes the room. `None` if it never is, or if
    /// that isn't known.
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Limited(limited) => limited.retry_after(),
            _ => None,
        }
    }

    /// Returns the standings of the limits that decided.
    pub fn standings(&self) -> &[Standing] {
        match self {
            Self::Limited(limited) => limited.standings(),
            Self::StoreUnavailable { denied_by, .. } => denied_by,
            Self::KeyMissing { .. }
            | Self::KeyUnknown { .. }
            | Self::TokenUnverified
            | Self::KeyAmbiguous { .. }
            | Self::CostInvalid { .. } => &[],
        }
    }
}

/// Writes the message for the caller.
impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Limited(limited) => limited.fmt(f),
            Self::KeyMissing { limit } => {
                write!(f, "the request lacks a part of the key of limit `{limit}`")
            }
            Self::KeyUnknown { part } => write!(f, "the key in `{part}` is not known"),
            Self::TokenUnverified => f.write_str("the token can't be verified now"),
            Self::KeyAmbiguous { part } => {
                write!(f, "the request has different values for `{part}`, which is a part of its key")
            }
            Self::CostInvalid { header } => {
                write!(f, "`{header}` must state the cost of the request: an integer from 1 to 2147483647")
            }
            Self::StoreUnavailable { .. } => f.write_str("the limits can't be checked now"),
        }
    }
}

impl Error for Refusal {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::StoreUnavailable { cause, .. } => Some(cause),
            _ => None,
        }
    }
}

/// The limits that refused, and the time until there is room.
#[derive(Debug)]
pub struct Limited {
    pub(super) standings: Standings,
}

impl Limited {
    /// Returns the standings of the limits that were asked.
    pub fn standings(&self) -> &[Standing] {
        &self.standings
    }

    /// Returns the names of the limits that refused.
    pub fn violated(&self) -> impl Iterator<Item = &str> {
        tightest_of_each(&self.standings)
            .filter(|standing| standing.refuses())
            .map(|standing| standing.limit.name())
    }

    /// Returns the microseconds until the request fits, if nobody else takes the room; `None` if it never does.
    pub fn delay_us(&self) -> Option<u64> {
        let mut delays = self.refusing().map(|standing| standing.outcome.delay_us);
        delays.try_fold(0, |greatest, delay_us| Some(delay_us?.max(greatest)))
    }

    /// Returns the delay as a duration.
    pub fn retry_after(&self) -> Option<Duration> {
        self.delay_us().map(Duration::from_micros)
    }

    /// Returns true if the delay is a promise. Nobody knows when a request in flight ends.
    pub fn is_exact(&self) -> bool {
        self.refusing().all(|standing| standing.quota.algorithm != Algorithm::Concurrency)
    }

    /// Returns true if a limit is set to no permits at all.
    pub(crate) fn lets_nothing_pass(&self) -> bool {
        self.refusing().any(|standing| standing.quota.capacity() == 0)
    }

    pub(super) fn refusing(&self) -> impl Iterator<Item = &Standing> {
        self.standings.iter().filter(|standing| standing.refuses())
    }
}

impl Limited {
    /// Writes the reason for the caller. It needs no escapes in JSON.
    pub(crate) fn write(&self, text: &mut String) {
        let has_several = self.standings.len() > 1 && self.violated().nth(1).is_some();
        text.push_str(if has_several { "limits " } else { "limit " });
        for (at, name) in self.violated().enumerate() {
            text.extend([if at == 0 { "`" } else { ", `" }, name, "`"]);
        }
        text.push_str(match self.delay_us() {
            Some(_) if !self.is_exact() => " exceeded: too many requests are in flight",
            Some(delay_us) => {
                text.push_str(" exceeded: retry in ");
                return duration::DurationText(delay_us.div_ceil(1_000) * 1_000).write(text);
            }
            None if self.lets_nothing_pass() => " exceeded: no requests are admitted at present",
            None => " exceeded: the request costs more than the limit ever allows",
        });
    }
}

impl fmt::Display for Limited {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = String::new();
        self.write(&mut text);
        f.write_str(&text)
    }
}
