//! A store decides the charges of a request and records them, as one atomic step.
//!
//! One contract, two stores: [`memory`] counts in this process, [`redis`] runs the script of lua/ on
//! a server that all gateways share. No other call sees the state in between, and a refused request
//! leaves every bucket as it was. Time is the store's own.
//!
//! The words of the contract, and the choice between the stores, stand in one file.

pub mod memory;
pub mod overrides;
#[cfg(feature = "redis")]
pub mod redis;
#[cfg(not(feature = "redis"))]
#[path = "store/without_redis.rs"]
pub mod redis;
mod redisson;
#[cfg(feature = "redis")]
pub mod script;
mod settings;

use std::{fmt, sync::Arc};

use bytes::Bytes;
use smallvec::SmallVec;
use tokio::time::Instant;

pub use crate::algorithm::{Refund, concurrency::LeaseId};
use crate::{
    algorithm::{Quota, Rate},
    metrics::{Distribution, Page},
};

pub use self::settings::{StoreSettings, StoreUrl};
use self::{memory::MemoryStore, redis::RedisStore};

/// A charge on one bucket.
///
/// # Examples
///
/// ```
/// # use tollgate_limiter::{Algorithm, Quota, store::{Charge}};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let quota = Quota::new(Algorithm::SlidingWindow, "5/s".parse()?);
/// let charge = Charge { bucket: "logins:sw:{alice}".into(), quota, cost: 5, shadow: false };
/// assert_eq!(charge.quota.capacity(), 5);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Charge {
    /// The bucket's name, `<limit>:<tag>:{<key>}`, with the store's prefix before it.
    pub bucket: Bytes,
    /// The quota it is held to now; the bucket's count doesn't depend on it.
    pub quota: Quota,
    /// Permits to record. With 0 nothing is recorded, and the charge is admitted iff one permit fits: what it
    /// costs is recorded later. A charge on a concurrency quota has a cost of 1.
    pub cost: u32,
    /// True if the limit only shadows: it is charged if it has room once the others admit, and refuses nothing. Where another
    /// charge of the request on the same bucket enforces, it isn't recorded beside that one.
    pub shadow: bool,
}

/// A charge with what the in-process store must know to count it elsewhere if its limit has no memory for a new key.
pub(crate) trait Placed {
    /// The charge that is made: of its key or, once it has been moved, of the client's network.
    fn charge(&self) -> &Charge;

    /// The name of the limit whose share of the memory the charge uses. Without one, only the whole memory bounds it.
    fn limit(&self) -> Option<&str> {
        None
    }

    /// Returns the charges that replace it if there is no memory for the key.
    fn overflow(&self) -> Option<Overflow> {
        None
    }

    /// Returns true if the key has a quota of its own, so that an operator named it: nobody can invent such keys.
    fn has_own_quota(&self) -> bool {
        false
    }

    /// Returns the number of its key among those that servers may read in the request for the same limit.
    fn reading(&self) -> u16 {
        0
    }

    /// Replaces the charge by one of its overflow's.
    fn move_to(&mut self, charge: Charge);

    /// Notes the time of the decision by the clock of the charge's own server, if several took part.
    fn note_time(&mut self, _time_us: u64) {}

    /// Returns true if the charge has been replaced.
    fn is_moved(&self) -> bool {
        false
    }
}

/// A charge that is counted in its bucket or nowhere.
impl Placed for Charge {
    fn charge(&self) -> &Charge {
        self
    }

    fn move_to(&mut self, charge: Charge) {
        *self = charge;
    }
}

/// The charges that stand in for one whose key has no bucket of its own.
#[derive(Clone, Debug)]
pub(crate) struct Overflow {
    /// On the bucket of the client's network, if the client is known.
    pub network: Option<Charge>,
    /// On the limit's bucket of all that fits nowhere else.
    pub rest: Charge,
}

/// The charges of a request on one bucket.
#[derive(Clone, Copy)]
struct BucketTotal {
    /// Permits that all of them take.
    cost: u32,
    /// The place of the first of them, with whose quota all are recorded.
    first: usize,
    /// The quotas on the bucket differ, those of shadowing charges included. The cost must fit each of its own kind.
    is_mixed: bool,
    /// It shadows where enforcing charges are recorded, so it isn't recorded.
    only_looks: bool,
}

/// Returns what a request takes of the bucket of the charge at this place. Shadowing and enforcing charges count apart.
fn total_of<P: Placed>(charges: &[P], at: usize) -> BucketTotal {
    let own = charges[at].charge();
    let mut total = BucketTotal { cost: 0, first: at, is_mixed: false, only_looks: false };
    let on_bucket =
        || charges.iter().map(Placed::charge).enumerate().filter(|(_, other)| other.bucket == own.bucket);
    for (place, other) in on_bucket() {
        total.is_mixed |= other.quota != own.quota;
        if other.shadow == own.shadow {
            total.cost = total.cost.saturating_add(other.cost);
            total.first = total.first.min(place);
        }
    }
    total.only_looks = own.shadow && on_bucket().any(|(_, other)| !other.shadow);
    total
}

/// The charges of one request. The costs of those that name one bucket add up. If their quotas differ, the sum must fit each.
///
/// # Examples
///
/// ```
/// # use tollgate_limiter::{Algorithm, Quota, store::{Charge, Charges, Operation}};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let quota = Quota::new(Algorithm::SlidingWindow, "5/s".parse()?);
/// let charge = Charge { bucket: "logins:sw:{alice}".into(), quota, cost: 5, shadow: false };
/// let charges: Charges = [charge].into_iter().collect();
/// let operation = Operation::Take(charges);
/// # Ok(())
/// # }
/// ```
pub type Charges = SmallVec<[Charge; 1]>;

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

#[cfg(feature = "redis")]
impl Operation {
    /// A bucket that it is about; all of them, where it is one step.
    fn bucket(&self) -> &[u8] {
        match self {
            Self::Take(charges) => charges.first().map(|charge| charge.bucket.as_ref()).unwrap_or_default(),
            Self::On { bucket, .. } => bucket,
        }
    }

    /// The buckets that it is about, with their quotas.
    fn buckets(&self) -> impl Iterator<Item = (&Bytes, &Quota)> {
        let (charges, held) = match self {
            Self::Take(charges) => (&charges[..], None),
            Self::On { bucket, quota, .. } => (&[][..], Some((bucket, quota))),
        };
        charges.iter().map(|charge| (&charge.bucket, &charge.quota)).chain(held)
    }

    /// Returns its size in a call, in charges.
    fn size(&self) -> usize {
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

/// The state of a server of a store.
///
/// # Examples
///
/// ```
/// # use tollgate_limiter::Limiter;
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let limiter = Limiter::connect("memory:")?;
/// for node in limiter.store_nodes() {
///     println!("{} has failed {} times", node.name, node.openings);
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct NodeState {
    /// The server's name in metrics.
    pub name: String,
    /// It has failed, and isn't asked until it answers a probe.
    pub is_open: bool,
    /// The number of its failures.
    pub openings: u64,
    /// The durations of calls.
    pub calls: Distribution,
    /// The numbers of charges in a call.
    pub charges: Distribution,
}

/// The reason why a store gave no decision. The failure policy of each limit then decides.
///
/// # Examples
///
/// ```
/// use tollgate_limiter::{Limiter, StoreError};
///
/// let error = Limiter::connect("not a URL").unwrap_err();
/// assert!(matches!(error, StoreError::Url(_)), "{error}");
/// ```
#[derive(Clone, Debug)]
pub enum StoreError {
    /// The URL is invalid: a message and a line that says how to fix it.
    Url(String),
    /// No answer within the deadline; the charge may or may not have been made.
    Timeout,
    /// The breaker is open: the store failed lately and hasn't answered a probe since.
    Open,
    /// More decisions wait than the bound allows.
    Overloaded,
    /// The in-process store is at its bound, and the bucket would have made it grow.
    Full,
    /// The number of overridden rates has reached its bound.
    OverridesFull,
    /// The limit or the store can't do this.
    Unsupported(&'static str),
    /// The server couldn't be reached, or the connection broke.
    #[cfg(feature = "redis")]
    Connection(fred::error::Error),
    /// The server answered with an error.
    #[cfg(feature = "redis")]
    Answer(fred::error::Error),
    /// The server's answer has another shape than the script's.
    Malformed,
}

impl StoreError {
    /// The names of the causes in metrics.
    ///
    /// # Examples
    ///
    /// ```
    /// use tollgate_limiter::StoreError;
    ///
    /// assert!(StoreError::KINDS.contains(&StoreError::Timeout.kind()));
    /// ```
    pub const KINDS: [&str; 8] =
        ["timeout", "open", "overloaded", "full", "connection", "answer", "malformed", "other"];

    /// Returns the name of its cause in metrics.
    ///
    /// # Examples
    ///
    /// ```
    /// use tollgate_limiter::StoreError;
    ///
    /// assert_eq!(StoreError::Timeout.kind(), "timeout");
    /// ```
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Timeout => "timeout",
            Self::Open => "open",
            Self::Overloaded => "overloaded",
            Self::Full => "full",
            #[cfg(feature = "redis")]
            Self::Connection(_) => "connection",
            #[cfg(feature = "redis")]
            Self::Answer(_) => "answer",
            Self::Malformed => "malformed",
            // No decision fails of these.
            Self::Url(_) | Self::OverridesFull | Self::Unsupported(_) => "other",
        }
    }
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Url(fault) => fault,
            Self::Timeout => "the store did not answer in time",
            Self::Open => "the store failed lately and is being probed",
            Self::Overloaded => "too many decisions wait for the store",
            Self::Full => "the in-process store is full",
            Self::OverridesFull => "too many rates are set already",
            Self::Unsupported(reason) => reason,
            #[cfg(feature = "redis")]
            Self::Connection(_) => "the connection to the store failed",
            #[cfg(feature = "redis")]
            Self::Answer(_) => "the store answered with an error",
            Self::Malformed => "the store's answer is not the script's",
        })
    }
}

impl std::error::Error for StoreError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            #[cfg(feature = "redis")]
            Self::Connection(cause) | Self::Answer(cause) => Some(cause),
            _ => None,
        }
    }
}

/// The store of a gateway. It outlives reloads of the configuration.
///
/// # Examples
///
/// ```
/// # use std::time::Duration;
/// # use tokio::time::Instant;
/// # use tollgate_limiter::{Algorithm, Quota, StoreSettings, store::{Charge, Store}};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let store = Store::open(&StoreSettings::at("memory:")?)?;
/// store.warm_up().await?;
/// let quota = Quota::new(Algorithm::SlidingWindow, "5/s".parse()?);
/// let charge = Charge { bucket: "logins:sw:{alice}".into(), quota, cost: 5, shadow: false };
/// let deadline = Instant::now() + Duration::from_millis(50);
/// assert!(store.take(&[charge.clone()], deadline).await?.admitted);
/// assert_eq!(store.peek(charge.bucket, quota, 1, deadline).await?.used, 5);
/// assert_eq!(store.charges_left_behind(), 0);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "a gateway has one")]
pub enum Store {
    /// Counts in this process.
    Memory(Arc<MemoryStore>),
    /// Counts on a Redis server.
    Redis(RedisStore),
}

impl Store {
    /// Opens the store of a configuration. Nothing is connected yet: see [`Self::warm_up`].
    ///
    /// # Errors
    /// The files of its TLS can't be used together, which a checked configuration rules out.
    pub fn open(settings: &StoreSettings) -> Result<Self, StoreError> {
        Ok(match &settings.url {
            StoreUrl::Memory => Self::in_process(settings.max_memory),
            #[cfg(feature = "redis")]
            StoreUrl::Redis(url) => {
                let store =
                    RedisStore::new(url, settings.tls.as_ref(), settings.timeout, &settings.key_prefix)?;
                if settings.replicated {
                    store.wait_for_replicas();
                }
                Self::Redis(store)
            }
        })
    }

    /// A store that counts in this process, in at most about `max_bytes`.
    pub(crate) fn in_process(max_bytes: usize) -> Self {
        Self::Memory(Arc::new(MemoryStore::new(max_bytes)))
    }

    /// Uses the users and passwords of a URL that leads to the same place. Another URL changes nothing.
    #[cfg_attr(not(feature = "redis"), expect(unused_variables, reason = "memory needs no login"))]
    pub(crate) fn log_in(&self, url: &StoreUrl) {
        #[cfg(feature = "redis")]
        if let (Self::Redis(store), StoreUrl::Redis(url)) = (self, url) {
            store.log_in(url);
        }
    }

    /// Connects this thread to the store, so that its first decision needn't wait.
    ///
    /// # Errors
    /// The store can't be reached now. It is tried again for as long as it takes.
    pub async fn warm_up(&self) -> Result<(), StoreError> {
        match self {
            Self::Memory(_) => Ok(()),
            Self::Redis(store) => store.warm_up().await,
        }
    }

    /// Decides a request, and charges all of its enforcing limits if all have room, else none.
    ///
    /// # Errors
    /// No decision, within `deadline`.
    pub async fn take(&self, charges: &[Charge], deadline: Instant) -> Result<Decision, StoreError> {
        self.take_placed(&mut Charges::from(charges), deadline).await
    }

    /// Decides as [`Self::take`] does. A charge whose key is counted elsewhere is replaced by the one that is made.
    ///
    /// # Errors
    /// No decision, within `deadline`.
    pub(crate) async fn take_placed<P: Placed>(
        &self,
        charges: &mut [P],
        deadline: Instant,
    ) -> Result<Decision, StoreError> {
        let store = match self {
            Self::Memory(store) => return store.take(charges, Instant::now().into_std()),
            Self::Redis(store) => store,
        };
        let asked = charges.iter().map(|charge| charge.charge().clone()).collect();
        let (decision, times) = store.take(asked, deadline).await?;
        charges.iter_mut().zip(times).for_each(|(charge, time_us)| charge.note_time(time_us));
        Ok(decision)
    }

    /// Returns when a decision must be asked for at the latest, to be there by its deadline.
    pub(crate) fn ask_by(&self, deadline: Instant) -> Instant {
        match self {
            Self::Memory(_) => deadline,
            Self::Redis(store) => store.ask_by(deadline),
        }
    }

    /// Looks how much of a bucket is in use and when `cost` permits fit, and writes nothing.
    ///
    /// # Errors
    /// No answer, within `deadline`.
    pub async fn peek(
        &self,
        bucket: Bytes,
        quota: Quota,
        cost: u32,
        deadline: Instant,
    ) -> Result<Usage, StoreError> {
        match self.operate(Operation::On { bucket, quota, act: Act::Peek(cost) }, deadline).await? {
            Reply::Usage(usage) => Ok(usage),
            Reply::Decision(_) | Reply::Refunded(_) | Reply::Done => Err(StoreError::Malformed),
        }
    }

    /// Looks as [`Self::peek`] does, where a charge is counted. Says whether that is elsewhere than in the bucket of its
    /// key, or may be.
    ///
    /// # Errors
    /// No answer, within `deadline`.
    pub(crate) async fn peek_placed<P: Placed>(
        &self,
        charge: &mut P,
        deadline: Instant,
    ) -> Result<(Usage, bool), StoreError> {
        if let Self::Memory(store) = self {
            return store.peek(charge);
        }
        let Charge { bucket, quota, cost, .. } = charge.charge().clone();
        Ok((self.peek(bucket, quota, cost, deadline).await?, false))
    }

    /// Forgets all that was counted in a bucket.
    ///
    /// # Errors
    /// No answer, within `deadline`: it may or may not have been forgotten.
    pub(crate) async fn reset(
        &self,
        bucket: Bytes,
        quota: Quota,
        deadline: Instant,
    ) -> Result<(), StoreError> {
        self.operate(Operation::On { bucket, quota, act: Act::Reset }, deadline).await.map(drop)
    }

    /// Records the cost of a charge where it is counted, whether it fits or not, without waiting for it: the debt of a
    /// request that has been admitted. A store that can't answer now forgets it.
    pub(crate) fn record<P: Placed>(&self, mut charge: P) {
        match self {
            Self::Memory(store) => drop(store.record(&mut charge)),
            Self::Redis(store) => {
                let Charge { bucket, quota, cost, .. } = charge.charge().clone();
                store.send(Operation::On { bucket, quota, act: Act::Record(cost) });
            }
        }
    }

    /// Records the cost of a charge where it is counted, as [`Self::record`] does, and returns the use of the bucket
    /// afterwards. The delay is 0 if the cost fitted, or else that of one permit.
    ///
    /// # Errors
    /// No answer, within `deadline`: it may or may not have been recorded.
    pub(crate) async fn report_placed<P: Placed>(
        &self,
        charge: &mut P,
        deadline: Instant,
    ) -> Result<Usage, StoreError> {
        if let Self::Memory(store) = self {
            return store.report(charge);
        }
        let Charge { bucket, quota, cost, .. } = charge.charge().clone();
        match self.operate(Operation::On { bucket, quota, act: Act::Report(cost) }, deadline).await? {
            Reply::Usage(usage) => Ok(usage),
            Reply::Decision(_) | Reply::Refunded(_) | Reply::Done => Err(StoreError::Malformed),
        }
    }

    /// Lets a lease last for a whole window from now, without waiting for it.
    pub(crate) fn renew(&self, lease: &Lease) {
        let Lease { bucket, quota, id } = lease.clone();
        self.send(Operation::On { bucket, quota, act: Act::Renew(id) });
    }

    /// Ends a lease, without waiting for it. Redis is asked until it answers.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tokio::time::Instant;
    /// # use tollgate_limiter::{Quota, StoreSettings, store::{Charge, Store}};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let store = Store::open(&StoreSettings::at("memory:")?)?;
    /// # let deadline = Instant::now() + Duration::from_millis(50);
    /// let charge = Charge { bucket: "uploads:cc:{alice}".into(), quota: Quota::concurrency(1), cost: 1, shadow: false };
    /// for lease in store.take(&[charge.clone()], deadline).await?.leases {
    ///     store.release(&lease);
    /// }
    /// assert!(store.take(&[charge], deadline).await?.admitted);
    /// # Ok(())
    /// # }
    /// ```
    pub fn release(&self, lease: &Lease) {
        let Lease { bucket, quota, id } = lease.clone();
        self.send(Operation::On { bucket, quota, act: Act::Release(id) });
    }

    /// Gives a sign of life of this process, and returns how many processes with this prefix have lately given one.
    ///
    /// # Errors
    /// No answer, within `deadline`.
    pub(crate) async fn count_instances(
        &self,
        key_prefix: &str,
        deadline: Instant,
    ) -> Result<u32, StoreError> {
        match self {
            Self::Memory(_) => Ok(1),
            Self::Redis(store) => store.count_instances(key_prefix, deadline).await,
        }
    }

    /// Waits until what was sent without waiting for it, by any thread, has been done or given up.
    pub(crate) async fn flush(&self) {
        match self {
            Self::Memory(_) => {}
            Self::Redis(store) => store.flush().await,
        }
    }

    /// Returns the number of charges that stayed although their request was refused or had no decision.
    pub fn charges_left_behind(&self) -> u64 {
        match self {
            Self::Memory(_) => 0,
            Self::Redis(store) => store.charges_left_behind(),
        }
    }

    /// Returns true if it can be asked, as far as is known.
    pub(crate) fn answers(&self) -> bool {
        match self {
            Self::Memory(_) => true,
            Self::Redis(store) => store.answers(),
        }
    }

    /// Returns the state of each of its servers. There is none if it counts in this process.
    pub(crate) fn nodes(&self) -> Vec<NodeState> {
        match self {
            Self::Memory(_) => Vec::new(),
            Self::Redis(store) => store.nodes(),
        }
    }

    /// Writes what it tells of itself.
    pub(crate) fn write_metrics(&self, page: &mut Page<'_>) {
        match self {
            Self::Memory(store) => store.write_metrics(page),
            Self::Redis(store) => store.write_metrics(page),
        }
    }

    /// Gives permits of a bucket back. Returns by how many fewer are in use then.
    ///
    /// # Errors
    /// No answer, within `deadline`: they may or may not have been given back.
    pub(crate) async fn refund(
        &self,
        bucket: Bytes,
        quota: Quota,
        refund: Refund,
        deadline: Instant,
    ) -> Result<u64, StoreError> {
        match self.operate(Operation::On { bucket, quota, act: Act::Refund(refund) }, deadline).await? {
            Reply::Refunded(permits) => Ok(permits),
            Reply::Decision(_) | Reply::Usage(_) | Reply::Done => Err(StoreError::Malformed),
        }
    }

    /// Gives permits of a bucket back, without waiting for it. A store that can't answer now forgets it.
    pub(crate) fn send_refund(&self, bucket: &Bytes, quota: Quota, refund: Refund) {
        self.send(Operation::On { bucket: bucket.clone(), quota, act: Act::Refund(refund) });
    }

    async fn operate(&self, operation: Operation, deadline: Instant) -> Result<Reply, StoreError> {
        match self {
            Self::Memory(store) => store.operate(&operation),
            Self::Redis(store) => store.operate(operation, deadline).await,
        }
    }

    fn send(&self, operation: Operation) {
        match self {
            Self::Memory(store) => drop(store.operate(&operation)),
            Self::Redis(store) => store.send(operation),
        }
    }
}
