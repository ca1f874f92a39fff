//! What a store is asked to do, and what it replies.

use bytes::Bytes;
use smallvec::SmallVec;

use crate::algorithm::{Quota, Rate, Refund, concurrency::LeaseId};

use super::Charges;

/// The decision of a request, with the state of each of its buckets after it.
///
/// # Examples
///
/// ```
/// # use tollgate_limiter::{Algorithm, Quota, store::{Charge, Operation, Reply, memory::MemoryStore}};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let quota = Quota::new(Algorithm::SlidingWindow, "5/s".parse()?);
/// let charge = Charge { bucket: "logins:sw:{alice}".into(), quota, cost: 5, shadow: false };
/// let store = MemoryStore::new(1 << 20);
/// let Reply::Decision(decision) = store.operate(&Operation::Take([charge].into_iter().collect()))? else {
///     panic!("a decision was asked for")
/// };
/// assert!(decision.admitted && decision.leases.is_empty());
/// assert_eq!(decision.outcomes[0].remaining, 0);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    /// The time in microseconds of the store's clock: the earliest, if several servers took part.
    pub time_us: u64,
    /// Every enforcing limit had room, and all of them were charged.
    pub admitted: bool,
    /// One for each charge, in order.
    pub outcomes: SmallVec<[Outcome; 1]>,
    /// One for each charge made on a concurrency quota, in order. They are the caller's to release.
    pub leases: Vec<Lease>,
}

/// A permit of a concurrency quota, held until it is released, or isn't renewed in time.
///
/// # Examples
///
/// ```
/// use tollgate_limiter::{Quota, store::{Act, Lease, LeaseId, Operation}};
///
/// let Lease { bucket, quota, id } =
///     Lease { bucket: "uploads:cc:{alice}".into(), quota: Quota::concurrency(1), id: LeaseId { call: 1, turn: 1 } };
/// let ends = Operation::On { bucket, quota, act: Act::Release(id) };
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lease {
    /// The bucket that it was taken from.
    pub bucket: Bytes,
    /// The quota, whose window is the time in which it must be renewed.
    pub quota: Quota,
    /// The name that sets it apart from the bucket's others.
    pub id: LeaseId,
}

/// The use of a bucket.
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
/// let usage = limiter.peek(&Ask::new(&logins, "alice")).await?.usage;
/// assert_eq!((usage.used, usage.delay_us), (0, Some(0)));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Usage {
    /// Permits in use: U, which may be more than a lowered limit or, with debts, than any.
    pub used: u64,
    /// Microseconds until there is more room; 0 if all of it is free.
    pub grow_us: u64,
    /// Microseconds until the cost fits, 0 if it fits now; `None` if it never can.
    pub delay_us: Option<u64>,
    /// The rate that the bucket is held to, if the store has another one than the quota's.
    pub rate: Option<Rate>,
}

impl Usage {
    /// Returns the outcome of a charge on a bucket that is used so afterwards.
    pub(crate) fn outcome(self, quota: Quota, charged: bool) -> Outcome {
        let Self { used, grow_us, delay_us, rate } = self;
        let remaining = u64::from(quota.at(rate).capacity()).saturating_sub(used);
        Outcome { charged, remaining, grow_us, delay_us, rate }
    }
}

/// An operation of a store, done in one step.
///
/// # Examples
///
/// ```
/// # use tollgate_limiter::{Algorithm, Quota, store::{Act, Charge, Operation, Reply, memory::MemoryStore}};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let quota = Quota::new(Algorithm::SlidingWindow, "5/s".parse()?);
/// let charge = Charge { bucket: "logins:sw:{alice}".into(), quota, cost: 5, shadow: false };
/// let store = MemoryStore::new(1 << 20);
/// store.operate(&Operation::Take([charge.clone()].into_iter().collect()))?;
/// let forget = Operation::On { bucket: charge.bucket, quota, act: Act::Reset };
/// assert_eq!(store.operate(&forget)?, Reply::Done);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Decide a request, and charge it if it is admitted.
    Take(Charges),
    /// Do something to one bucket.
    On {
        /// The bucket.
        bucket: Bytes,
        /// The quota that it is held to.
        quota: Quota,
        /// The act.
        act: Act,
    },
}

impl Lease {
    /// Returns the operation that ends it.
    pub(super) fn release(self) -> Operation {
        let Self { bucket, quota, id } = self;
        Operation::On { bucket, quota, act: Act::Release(id) }
    }
}

#[cfg(feature = "redis")]
impl Operation {
    /// A bucket that it is about; all of them, where it is one step.
    pub(super) fn bucket(&self) -> &[u8] {
        match self {
            Self::Take(charges) => charges.first().map(|charge| charge.bucket.as_ref()).unwrap_or_default(),
            Self::On { bucket, .. } => bucket,
        }
    }

    /// The buckets that it is about, with their quotas.
    pub(super) fn buckets(&self) -> impl Iterator<Item = (&Bytes, &Quota)> {
        let (charges, held) = match self {
            Self::Take(charges) => (&charges[..], None),
            Self::On { bucket, quota, .. } => (&[][..], Some((bucket, quota))),
        };
        charges.iter().map(|charge| (&charge.bucket, &charge.quota)).chain(held)
    }

    /// Returns its number of charges.
    pub(super) fn size(&self) -> usize {
        match self {
            Self::Take(charges) => charges.len(),
            Self::On { .. } => 1,
        }
    }
}

/// An act on one bucket, other than a decision.
///
/// # Examples
///
/// ```
/// # use tollgate_limiter::{Algorithm, Quota, store::{Act, Charge, Operation, Reply, memory::MemoryStore}};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let quota = Quota::new(Algorithm::SlidingWindow, "5/s".parse()?);
/// let charge = Charge { bucket: "logins:sw:{alice}".into(), quota, cost: 5, shadow: false };
/// let store = MemoryStore::new(1 << 20);
/// let record = Operation::On { bucket: charge.bucket, quota, act: Act::Record(7) };
/// assert_eq!(store.operate(&record)?, Reply::Done);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Act {
    /// Record so many permits, whether they fit or not: the debt of a request that has been admitted.
    Record(u32),
    /// Record so many permits as [`Self::Record`] does, and say whether they fitted.
    Report(u32),
    /// Let a lease last for a whole window from now. One that has ended is taken again.
    Renew(LeaseId),
    /// End a lease.
    Release(LeaseId),
    /// Give permits back.
    Refund(Refund),
    /// Look when so many permits fit, and write nothing.
    Peek(u32),
    /// Forget all that was counted.
    Reset,
}

/// A store's answer to an operation.
///
/// # Examples
///
/// ```
/// # use tollgate_limiter::{Algorithm, Quota, store::{Act, Charge, Operation, Reply, memory::MemoryStore}};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let quota = Quota::new(Algorithm::SlidingWindow, "5/s".parse()?);
/// let charge = Charge { bucket: "logins:sw:{alice}".into(), quota, cost: 5, shadow: false };
/// let store = MemoryStore::new(1 << 20);
/// let look = Operation::On { bucket: charge.bucket, quota, act: Act::Peek(1) };
/// assert!(matches!(store.operate(&look)?, Reply::Usage(usage) if usage.used == 0));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// To [`Operation::Take`].
    Decision(Decision),
    /// To [`Act::Peek`], and to [`Act::Report`]: then its delay is 0 if the cost fitted, or else that of one permit.
    Usage(Usage),
    /// To [`Act::Refund`]: by so many permits fewer are in use.
    Refunded(u64),
    /// To the other acts.
    Done,
}

/// The state of a bucket after a decision.
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
/// let admission = limiter.try_acquire(Ask::new(&logins, "alice")).await?;
/// assert!(admission.standings()[0].outcome.charged);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// True if the charge was made.
    pub charged: bool,
    /// Permits left: L - U, or 0 where a lowered limit has less than nothing left.
    pub remaining: u64,
    /// Microseconds until there is more room; 0 if all of it is free.
    pub grow_us: u64,
    /// Microseconds until the cost fits, 0 if it fits now or was charged; `None` if it never can.
    pub delay_us: Option<u64>,
    /// The rate that the bucket is held to, if the store has another one than the charge's quota.
    pub rate: Option<Rate>,
}

impl Outcome {
    /// The outcome of a limit that admits without knowing.
    pub(crate) const UNKNOWN_ROOM: Self =
        Self { charged: false, remaining: 0, grow_us: 0, delay_us: Some(0), rate: None };
}
