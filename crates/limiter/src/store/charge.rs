//! What a request takes of its buckets.

use bytes::Bytes;
use smallvec::SmallVec;

use crate::algorithm::Quota;

/// A charge on one bucket.
///
/// # Examples
///
/// ```
/// # use tollgate_limiter::{Algorithm, Quota, store::Charge};
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

/// The purpose for which a limit needs memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// The bucket of a new key.
    NewKey,
    /// The bucket of a new key that an operator has given a quota of its own, not that of a group: nobody can invent such keys.
    NamedKey,
    /// A ban of a key, which is none of its network's. Those of keys that clients invent must leave room for networks.
    Ban,
    /// More entries of a key's bucket.
    Growth,
    /// The bucket of a network, or more entries of it.
    Network,
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

    /// Returns for what its bucket would need memory.
    fn purpose(&self) -> Purpose {
        Purpose::NewKey
    }

    /// Returns true if its key is one of several that servers may read in the request, and not the first.
    fn is_other_reading(&self) -> bool {
        false
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
pub(super) struct BucketTotal {
    /// Permits that all of them take.
    pub(super) cost: u32,
    /// The place of the first of them, with whose quota all are recorded.
    pub(super) first: usize,
    /// The quotas on the bucket differ, those of shadowing charges included. The cost must fit each of its own kind.
    pub(super) is_mixed: bool,
    /// It shadows where enforcing charges are recorded, so it isn't recorded.
    pub(super) only_looks: bool,
}

/// Returns what a request takes of the bucket of the charge at this place. Shadowing and enforcing charges count apart.
pub(super) fn total_of<P: Placed>(charges: &[P], at: usize) -> BucketTotal {
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
