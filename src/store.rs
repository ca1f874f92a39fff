//! A store decides the charges of a request and records them, as one atomic step.
//!
//! One contract, two stores: [`memory`] counts in this process, [`redis`] runs the script of lua/ on
//! a server that all gateways share. No other call sees the state in between, and a refused request
//! leaves every bucket as it was. Time is the store's own.

pub mod memory;
pub mod redis;
pub mod script;

use std::fmt;

use bytes::Bytes;
use smallvec::SmallVec;
use tokio::time::Instant;

use crate::{algorithm::Quota, config};

use self::{memory::MemoryStore, redis::RedisStore};

/// What a request asks of one bucket.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Charge {
    /// The bucket's name, `<limit>:<tag>:{<key>}`, with the store's prefix before it.
    pub bucket: Bytes,
    /// The quota it is held to now; the bucket's count doesn't depend on it.
    pub quota: Quota,
    /// Permits, at least 1 and at most the quota's.
    pub cost: u32,
    /// Whether the limit only shadows: charged if it has room once the others admit, refusing nobody.
    pub shadow: bool,
}

/// The charges of one request, each on another bucket.
pub type Charges = SmallVec<[Charge; 2]>;

/// Whether a request is admitted, and where each of its buckets stands after it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    /// Every enforcing limit had room, and all of them were charged.
    pub admitted: bool,
    /// One for each charge, in order.
    pub outcomes: SmallVec<[Outcome; 2]>,
}

/// Where a bucket stands after a decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// Whether the charge was made.
    pub charged: bool,
    /// Permits left: L - U, or 0 where a lowered limit has less than nothing left.
    pub remaining: u64,
    /// Microseconds until there is more room; 0 if all of it is free.
    pub grow_us: u64,
    /// Microseconds until the cost fits, 0 if it fits now or was charged; `None` if it never can.
    pub delay_us: Option<u64>,
}

/// Why a store gave no decision. What it means for the request is for its limits' failure policy to say.
#[derive(Clone, Debug)]
pub enum StoreError {
    /// No answer within the deadline; the charge may or may not have been made.
    Timeout,
    /// The breaker is open: the store failed lately and hasn't answered a probe since.
    Open,
    /// More decisions wait than the bound allows.
    Overloaded,
    /// The in-process store is at its bound, and the bucket would have made it grow.
    Full,
    /// The server couldn't be reached, or the connection broke.
    Connection(fred::error::Error),
    /// The server answered with an error.
    Answer(fred::error::Error),
    /// The server's answer has another shape than the script's.
    Malformed,
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Timeout => "the store did not answer in time",
            Self::Open => "the store failed lately and is being probed",
            Self::Overloaded => "too many decisions wait for the store",
            Self::Full => "the in-process store is full",
            Self::Connection(_) => "the connection to the store failed",
            Self::Answer(_) => "the store answered with an error",
            Self::Malformed => "the store's answer is not the script's",
        })
    }
}

impl std::error::Error for StoreError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Connection(cause) | Self::Answer(cause) => Some(cause),
            _ => None,
        }
    }
}

/// The store of a gateway. It outlives reloads of the configuration.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "a gateway has one")]
pub enum Store {
    /// Counts in this process.
    Memory(MemoryStore),
    /// Counts on a Redis server.
    Redis(RedisStore),
}

impl Store {
    /// Opens the store of a configuration. Nothing is connected yet: see [`Self::warm_up`].
    ///
    /// # Errors
    /// A url that the client can't read.
    pub fn open(config: &config::Store) -> Result<Self, StoreError> {
        Ok(match &config.url {
            config::StoreUrl::Memory => Self::Memory(MemoryStore::new(config.max_memory)),
            config::StoreUrl::Redis(url) => Self::Redis(RedisStore::new(url.as_str(), config.timeout)?),
        })
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
    pub async fn take(&self, charges: Charges, deadline: Instant) -> Result<Decision, StoreError> {
        match self {
            Self::Memory(store) => store.take(&charges),
            Self::Redis(store) => store.take(charges, deadline).await,
        }
    }
}
