//! Buckets that had room lately for a cost that another limit of the request refused.
//!
//! Such a request is refused again without asking the store only if none of its other limits refuses it for longer. A bucket that had
//! room is taken to have it for a while, unless this process charges it.

use std::{collections::HashMap, time::Duration};

use bytes::Bytes;
use tokio::time::Instant;

use crate::{algorithm::Quota, store::Charge};

/// Rooms that are remembered.
const ROOMS_MOST: usize = 1_024;
/// Within which it is noticed that others have taken the room.
const KNOWN_FOR: Duration = Duration::from_secs(5);

/// The room of some buckets.
#[derive(Default)]
pub(super) struct Rooms(HashMap<Bytes, Room>);

/// The room of a bucket for requests under one quota.
struct Room {
    quota: Quota,
    /// A cost that fitted.
    cost: u32,
    until: Instant,
}

impl Rooms {
    /// Notes that a charge would have fitted at a time.
    pub(super) fn note(&mut self, charge: &Charge, at: Instant) {
        if self.has(charge, at) {
            return;
        }
        if self.0.len() >= ROOMS_MOST {
            self.0.retain(|_, room| at < room.until);
            if self.0.len() >= ROOMS_MOST {
                self.0.clear();
            }
        }
        let room = Room { quota: charge.quota, cost: charge.cost.max(1), until: at + KNOWN_FOR };
        self.0.insert(charge.bucket.clone(), room);
    }

    /// Returns true if a charge is taken to fit.
    pub(super) fn has(&self, charge: &Charge, now: Instant) -> bool {
        self.0.get(&charge.bucket).is_some_and(|room| {
            room.quota == charge.quota && charge.cost.max(1) <= room.cost && now < room.until
        })
    }

    /// Notes that a bucket has been charged and has so much room left.
    pub(super) fn charged(&mut self, bucket: &Bytes, remaining: u64) {
        if let Some(room) = self.0.get_mut(bucket) {
            room.cost = u32::try_from(remaining).map_or(room.cost, |remaining| room.cost.min(remaining));
        }
    }

    /// Forgets the room of a bucket.
    pub(super) fn forget(&mut self, bucket: &Bytes) {
        self.0.remove(bucket);
    }

    /// Forgets all.
    pub(super) fn clear(&mut self) {
        self.0.clear();
    }
}
