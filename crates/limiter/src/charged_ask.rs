//! A question to one limit, with its charge.

use std::net::IpAddr;

use smallvec::SmallVec;

use crate::{
    algorithm::{Algorithm, Quota},
    store::{Charge, Decision, Outcome, Overflow, Placed, Purpose},
    text,
};

use crate::{Ask, Origin, Scope, Standing, Standings, key::Prefixes, limit::Costs};

/// The networks by which clients are counted if their keys can't be.
const NETWORKS: Prefixes = Prefixes { ipv4: 24, ipv6: 48 };

/// A question to one limit, with its charge.
pub(super) struct ChargedAsk<'r> {
    pub(super) ask: &'r Ask,
    /// On the bucket of the key.
    pub(super) charge: Charge,
    /// The permits that the request asks for. The charge may be lowered.
    cost: u32,
    pub(super) scope: Scope,
    /// The quota of keys that have none of their own.
    pub(super) common: Quota,
    /// For the look at a key's ban: the quota of the key, as which the ban is shown.
    banned_from: Option<Quota>,
    is_repeated: bool,
    /// The charge that is made instead, since the limit has no memory for the key.
    moved: Option<Box<Charge>>,
    /// The time of the decision by the clock of its own server, if several took part.
    time_us: Option<u64>,
}

pub(super) type ChargedAsks<'r> = SmallVec<[ChargedAsk<'r>; 1]>;

impl<'r> ChargedAsk<'r> {
    pub(super) fn new(ask: &'r Ask, charge: Charge, common: Quota) -> Self {
        Self {
            ask,
            cost: charge.cost,
            charge,
            scope: ask.limit.scope,
            common,
            banned_from: None,
            is_repeated: false,
            moved: None,
            time_us: None,
        }
    }

    /// Returns the look at the ban of the same key. `None` if its limit has no bans.
    pub(super) fn look_at_ban(&self, key_prefix: &str) -> Option<Self> {
        let charge = self.ask.look_at_ban(key_prefix)?;
        let banned_from = Some(self.charge.quota);
        Some(Self {
            ask: self.ask,
            scope: self.scope,
            common: charge.quota,
            banned_from,
            cost: charge.cost,
            charge,
            is_repeated: false,
            moved: None,
            time_us: None,
        })
    }

    /// Returns the permits that the request asks for, of which fewer may be charged.
    pub(super) fn cost(&self) -> u32 {
        self.cost
    }

    /// Returns the time at which a decision made its charge, by the clock of its server.
    pub(super) fn granted_us(&self, decision: &Decision) -> u64 {
        self.time_us.unwrap_or(decision.time_us)
    }

    /// Returns true if it is about the ban of a key.
    pub(super) fn is_of_ban(&self) -> bool {
        self.banned_from.is_some()
    }

    /// Returns how the costs of requests compare.
    pub(super) fn costs(&self) -> Costs {
        if self.is_of_ban() { Costs::Equal } else { self.ask.limit.costs }
    }

    /// Adds the cost of another one, if it is for the same bucket. Leases stay apart: each request has its own.
    pub(super) fn join(&mut self, other: &mut Self) -> bool {
        if !is_same_bucket(&self.charge.bucket, &other.charge.bucket) {
            return false;
        }
        let quota = self.charge.quota;
        let joins = (quota, self.scope, self.charge.shadow)
            == (other.charge.quota, other.scope, other.charge.shadow)
            && quota.algorithm != Algorithm::Concurrency;
        if joins {
            self.charge.cost = self.charge.cost.saturating_add(other.charge.cost);
            self.cost = self.charge.cost;
            if self.ask.settles.is_none() {
                self.ask = other.ask;
            }
        } else {
            (self.is_repeated, other.is_repeated) = (true, true);
        }
        joins
    }

    /// Returns true if another one is for the same bucket. The store's answer about the bucket then covers both costs.
    pub(super) fn is_repeated(&self) -> bool {
        self.is_repeated
    }

    /// Returns true if it can ever be admitted, as far as is known here.
    pub(super) fn is_within_quota(&self) -> bool {
        let quota = self.charge.quota;
        self.charge.cost.max(1) <= quota.capacity() || quota.algorithm.is_changed_by_others()
    }

    pub(super) fn standing(&self, outcome: Outcome, origin: Origin) -> Standing {
        Standing::new(self.ask, self.charge().quota, outcome, origin)
    }

    /// Adds its standing to those of the others. A ban replaces the standing of its key, which comes before it, and says
    /// nothing if there is none. The longer delay of both is that of the key.
    pub(super) fn stand(&self, mut outcome: Outcome, origin: Origin, standings: &mut Standings) {
        match self.banned_from {
            None => standings.push(self.standing(outcome, origin)),
            Some(_) if outcome.delay_us == Some(0) => {}
            Some(quota) => {
                if standings.last().is_some_and(|standing| standing.is_of(self.ask))
                    && let Some(own) = standings.pop()
                {
                    outcome.delay_us =
                        outcome.delay_us.zip(own.outcome.delay_us).map(|(ban, own)| ban.max(own));
                }
                standings.push(Standing::new(self.ask, quota, outcome, Origin::Ban));
            }
        }
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

/// Compares the ends first: those of a limit's buckets differ there.
fn is_same_bucket(left: &[u8], right: &[u8]) -> bool {
    left.len() == right.len() && left.last_chunk::<8>() == right.last_chunk() && left == right
}

impl Placed for ChargedAsk<'_> {
    fn charge(&self) -> &Charge {
        self.moved.as_deref().unwrap_or(&self.charge)
    }

    fn limit(&self) -> Option<&str> {
        Some(self.ask.limit.name())
    }

    fn overflow(&self) -> Option<Overflow> {
        if self.is_of_ban() {
            return None;
        }
        let network = |client: IpAddr| {
            let client = client.to_canonical();
            let bits = if client.is_ipv4() { NETWORKS.ipv4 } else { NETWORKS.ipv6 };
            self.instead(&format!("{}-{bits}", text::address(NETWORKS.network(client))))
        };
        Some(Overflow { network: self.ask.client.map(network), rest: self.instead("others") })
    }

    fn purpose(&self) -> Purpose {
        if self.is_of_ban() {
            Purpose::Ban
        } else if self.charge.quota != self.common && !self.ask.is_rate_of_group {
            Purpose::NamedKey
        } else {
            Purpose::NewKey
        }
    }

    fn is_other_reading(&self) -> bool {
        self.ask.is_other_reading
    }

    fn move_to(&mut self, charge: Charge) {
        self.moved = Some(Box::new(charge));
    }

    fn note_time(&mut self, time_us: u64) {
        self.time_us = Some(time_us);
    }

    fn is_moved(&self) -> bool {
        self.moved.is_some()
    }
}
