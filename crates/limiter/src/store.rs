//! A store decides the charges of a request and records them, as one atomic step.
//!
//! One contract, two stores: [`memory`] counts in this process, [`redis`] runs the script of lua/ on
//! a server that all gateways share. No other call sees the state in between, and a refused request
//! leaves every bucket as it was. Time is the store's own.
//!
//! [`Operation`] has the words of the contract. This file has the choice between the stores.

mod charge;
mod error;
pub mod memory;
mod operation;
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

use std::sync::Arc;

use bytes::Bytes;
use tokio::time::Instant;

pub use crate::algorithm::{Refund, concurrency::LeaseId};
use crate::{
    algorithm::Quota,
    metrics::{Distribution, Page},
};

pub(crate) use self::charge::{Overflow, Placed, Purpose};
use self::{
    charge::{BucketTotal, total_of},
    memory::MemoryStore,
    redis::RedisStore,
};
pub use self::{
    charge::{Charge, Charges},
    error::StoreError,
    operation::{Act, Decision, Lease, Operation, Outcome, Reply, Usage},
    settings::{StoreSettings, StoreUrl},
};

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
#[cfg_attr(feature = "redis", expect(clippy::large_enum_variant, reason = "a gateway has one"))]
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

    /// Looks as [`Self::peek`] does, where a charge is counted, for one permit if it costs nothing. Says whether that is elsewhere than in the bucket of its
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
        Ok((self.peek(bucket, quota, cost.max(1), deadline).await?, false))
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
    /// request that has been admitted. A store that isn't asked now, because it fails, is told as soon as it answers, within the limit's
    /// window. What fails while it is sent may be lost.
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

    /// Notes that a report has failed with this error, although it was answered as if it had been recorded. It is
    /// [recorded](Self::record) later if it certainly wasn't.
    pub(crate) fn note_unreported(&self, charge: &Charge, error: &StoreError) {
        if let Self::Redis(store) = self {
            let Charge { bucket, quota, cost, .. } = charge.clone();
            store.note_undone(Operation::On { bucket, quota, act: Act::Record(cost) }, error);
        }
    }

    /// Lets a lease last for a whole window from now.
    ///
    /// # Errors
    /// No answer, within `deadline`: it may or may not have been renewed.
    pub(crate) async fn renew(&self, lease: &Lease, deadline: Instant) -> Result<(), StoreError> {
        let Lease { bucket, quota, id } = lease.clone();
        self.operate(Operation::On { bucket, quota, act: Act::Renew(id) }, deadline).await.map(drop)
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
        self.send(lease.clone().release());
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
