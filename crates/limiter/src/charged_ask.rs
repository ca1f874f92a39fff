//! A question to one limit, with its charge.

use std::net::IpAddr;

use smallvec::SmallVec;

use crate::{
    algorithm::{Algorithm, Quota},
    store::{Charge, Outcome, Overflow, Placed},
    text,
};

use crate::{Ask, Origin, Scope, Standing, key::Prefixes};

/// The networks by which clients are counted if their keys can't be.
const NETWORKS: Prefixes = Prefixes { ipv4: 24, ipv6: 48 };

/// A question to one limit, with its charge.
pub(super) struct ChargedAsk<'r> {
    pub(super) ask: &'r Ask,
    /// On the bucket of the key.
    pub(super) charge: Charge,
    pub(super) scope: Scope,
    /// The quota of keys that have none of their own.
    pub(super) common: Quota,
    /// The charge that is made instead, since the limit has no memory for the key.
    moved: Option<Box<Charge>>,
}

pub(super) type ChargedAsks<'r> = SmallVec<[ChargedAsk<'r>; 1]>;

impl<'r> ChargedAsk<'r> {
    pub(super) fn new(ask: &'r Ask, charge: Charge, common: Quota) -> Self {
        Self { ask, charge, scope: ask.limit.scope, common, moved: None }
    }

    /// Adds the cost of another one, if it is for the same bucket. Leases stay apart: each request has its own.
    pub(super) fn join(&mut self, other: &Self) -> bool {
        let quota = self.charge.quota;
        let is_same = self.charge.bucket == other.charge.bucket
            && (quota, self.scope) == (other.charge.quota, other.scope)
            && quota.algorithm != Algorithm::Concurrency;
        if is_same {
            self.charge.cost = self.charge.cost.saturating_add(other.charge.cost);
            if self.ask.settles.is_none() {
                self.ask = other.ask;
            }
        }
        is_same
    }

    /// Returns true if it can ever be admitted, as far as is known here.
    pub(super) fn is_within_quota(&self) -> bool {
        let quota = self.charge.quota;
        self.charge.cost.max(1) <= quota.capacity() || quota.algorithm.is_changed_by_others()
    }

    pub(super) fn standing(&self, outcome: Outcome, origin: Origin) -> Standing {
        Standing::new(self.ask, self.charge().quota, outcome, origin)
    }

    /// The charge on the bucket that counts all keys of this limit from one place. It is held to the window that most keys
    /// have, since a key's own might drop what others count, and to a key's own permits if they are fewer.
    fn instead(&self, place: &str) -> Charge {
        let Charge { bucket, cost, shadow, .. } = &self.charge;
        let bucket = self.ask.limit.bucket_beside(bucket, self.ask.key.as_str(), place);
        let quota = Quota { permits: self.common.permits.min(self.charge.quota.permits), ..self.common };
        Charge { bucket, quota, cost: (*cost).min(self.common.capacity()), shadow: *shadow }
    }
}

impl Placed for ChargedAsk<'_> {
    fn charge(&self) -> &Charge {
        self.moved.as_deref().unwrap_or(&self.charge)
    }

    fn limit(&self) -> Option<&str> {
        Some(self.ask.limit.name())
    }

    fn overflow(&self) -> Option<Overflow> {
        let network = |client: IpAddr| {
            let client = client.to_canonical();
            let bits = if client.is_ipv4() { NETWORKS.ipv4 } else { NETWORKS.ipv6 };
            self.instead(&format!("{}-{bits}", text::address(NETWORKS.network(client))))
        };
        Some(Overflow { network: self.ask.client.map(network), rest: self.instead("others") })
    }

    fn has_own_quota(&self) -> bool {
        self.charge.quota != self.common
    }

    fn move_to(&mut self, charge: Charge) {
        self.moved = Some(Box::new(charge));
    }

    fn is_moved(&self) -> bool {
        self.moved.is_some()
    }
}
