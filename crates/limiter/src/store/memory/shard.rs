//! A shard of the in-process store: some of the buckets, under one lock.

use std::sync::Arc;

use bytes::Bytes;
use hashbrown::{HashTable, hash_table::Entry};
use parking_lot::MutexGuard;
use smallvec::SmallVec;

use crate::{
    algorithm::{Quota, State},
    store::{Charge, Purpose},
    text,
};

use super::{
    delay_us,
    shares::{Pool, Share, Shares},
};

/// A shard isn't swept before it has so many buckets.
const SWEEP_AT_LEAST: usize = 4;
/// An entry of the map with its control byte, at the map's lowest fill after it has grown, and the
/// allocation of the name.
const BUCKET_BYTES: usize = 2 * (size_of::<Bucket>() + 1) + 32;

/// A plain lock protects it: it is held for a decision's arithmetic, never across an await.
#[derive(Default)]
pub(super) struct Shard {
    buckets: HashTable<Bucket>,
    sweep_at: usize,
}

/// A bucket's name with its hash, so that an operation hashes it once.
#[derive(Clone, Copy)]
pub(super) struct Name<'o> {
    name: &'o Bytes,
    pub(super) hash: u64,
}

impl<'o> Name<'o> {
    pub(super) fn of(name: &'o Bytes) -> Self {
        Self::hashed(name, text::hash(name))
    }

    pub(super) fn hashed(name: &'o Bytes, hash: u64) -> Self {
        Self { name, hash }
    }
}

pub(super) struct Bucket {
    name: Bytes,
    pub(super) state: State,
    /// The time after which nothing in the bucket counts, by the longest window that applied since its last charge.
    ends_us: u64,
    /// The pool that counts its memory.
    pool: Arc<Pool>,
}

/// The shards that an operation holds, by their index.
pub(super) struct Locked<'a>(pub(super) SmallVec<[(usize, MutexGuard<'a, Shard>); 2]>);

impl Locked<'_> {
    pub(super) fn of(&mut self, index: usize) -> &mut Shard {
        let held = self.0.iter_mut().find(|(held, _)| *held == index);
        &mut held.expect("the shard of every bucket is locked").1
    }
}

impl Shard {
    pub(super) fn len(&self) -> usize {
        self.buckets.len()
    }

    pub(super) fn find(&self, Name { name, hash }: Name<'_>) -> Option<&Bucket> {
        self.buckets.find(hash, |bucket| bucket.name == *name)
    }

    pub(super) fn find_mut(&mut self, Name { name, hash }: Name<'_>) -> Option<&mut Bucket> {
        self.buckets.find_mut(hash, |bucket| bucket.name == *name)
    }

    /// Brings a bucket, if there is one, to this time and quota.
    pub(super) fn advance(&mut self, bucket: Name<'_>, quota: Quota, time_us: u64) -> Option<&State> {
        let bucket = self.find_mut(bucket)?;
        bucket.advance(quota, time_us);
        Some(&bucket.state)
    }

    /// Looks at what a bucket holds, which may be nothing.
    pub(super) fn look<T>(&self, bucket: Name<'_>, quota: Quota, look: impl FnOnce(&State) -> T) -> T {
        match self.find(bucket) {
            Some(bucket) => look(&bucket.state),
            None => look(&State::new(quota.algorithm)),
        }
    }

    /// Microseconds until a bucket has room for this cost of a charge.
    pub(super) fn delay_us(
        &mut self,
        charge: &Charge,
        cost: u32,
        bucket: Name<'_>,
        time_us: u64,
    ) -> Option<u64> {
        let delay_us = |state: &State| delay_us(state, charge.quota, cost, time_us);
        let state = self.advance(bucket, charge.quota, time_us);
        state.map_or_else(|| delay_us(&State::new(charge.quota.algorithm)), delay_us)
    }

    /// Returns true if there is a bucket that still counts something.
    pub(super) fn is_live(&self, bucket: Name<'_>, time_us: u64) -> bool {
        self.find(bucket).is_some_and(|bucket| bucket.ends_us > time_us)
    }

    /// Returns a bucket, which begins if it isn't there, in the memory of this pool. The shard is swept if that is due.
    pub(super) fn begin(
        &mut self,
        Name { name, hash }: Name<'_>,
        quota: Quota,
        time_us: u64,
        pool: impl FnOnce() -> Arc<Pool>,
    ) -> &mut Bucket {
        if self.buckets.len() >= self.sweep_at && self.find(Name { name, hash }).is_none() {
            self.sweep(time_us);
        }
        let hash_of = |bucket: &Bucket| text::hash(&bucket.name);
        match self.buckets.entry(hash, |bucket| bucket.name == *name, hash_of) {
            Entry::Occupied(entry) => entry.into_mut(),
            Entry::Vacant(entry) => {
                let mut state = State::new(quota.algorithm);
                state.count_mut().advance(quota, time_us);
                let bucket = Bucket { name: name.clone(), state, ends_us: 0, pool: pool() };
                bucket.pool.begin(bucket.bytes());
                entry.insert(bucket).into_mut()
            }
        }
    }

    /// Forgets a bucket.
    pub(super) fn remove(&mut self, Name { name, hash }: Name<'_>) {
        if let Ok(found) = self.buckets.find_entry(hash, |bucket| bucket.name == *name) {
            let (bucket, _) = found.remove();
            bucket.pool.end(bucket.bytes());
        }
    }

    /// Drops the buckets whose newest entry has ended.
    pub(super) fn sweep(&mut self, time_us: u64) {
        self.buckets.retain(|bucket| {
            let before = bucket.bytes();
            if bucket.ends_us <= time_us {
                bucket.pool.end(before);
                return false;
            }
            bucket.state.count_mut().shrink();
            bucket.pool.shrink(before - bucket.bytes());
            true
        });
        self.buckets.shrink_to(2 * self.buckets.len(), |bucket| text::hash(&bucket.name));
        self.sweep_at = (2 * self.buckets.len()).max(SWEEP_AT_LEAST);
    }

    #[cfg(test)]
    pub(super) fn bytes(&self) -> usize {
        self.buckets.iter().map(Bucket::bytes).sum()
    }
}

impl Bucket {
    /// Brings it to this time and quota.
    pub(super) fn advance(&mut self, quota: Quota, time_us: u64) {
        let count = self.state.count_mut();
        count.advance(quota, time_us);
        self.ends_us = self.ends_us.max(count.ends_us(quota));
    }

    /// Changes what it holds.
    pub(super) fn change(&mut self, quota: Quota, change: impl FnOnce(&mut State)) {
        let before = self.state.count().bytes();
        change(&mut self.state);
        let count = self.state.count();
        self.ends_us = count.ends_us(quota);
        self.pool.grow(count.bytes() - before);
    }

    /// Records a charge: in no more memory than it has, if the limit has none to spare.
    pub(super) fn charge(
        &mut self,
        charge: &Charge,
        time_us: u64,
        share: impl FnOnce() -> Arc<Share>,
        shares: &Shares,
    ) {
        let Charge { quota, cost, .. } = *charge;
        let growth = self.state.count().growth_bytes();
        let fits = growth == 0 || {
            let share = share();
            let is_network = Arc::ptr_eq(&self.pool, &share.networks);
            let purpose = if is_network { Purpose::Network } else { Purpose::Growth };
            shares.has_room(&share, growth, purpose)
        };
        self.change(quota, |state| match fits {
            true => state.count_mut().charge(quota, time_us, cost),
            false => state.count_mut().charge_in_place(quota, time_us, cost),
        });
    }

    fn bytes(&self) -> usize {
        named_bytes(&self.name) + self.state.count().bytes()
    }
}

/// The bytes of a bucket without what it holds.
pub(super) fn named_bytes(name: &Bytes) -> usize {
    BUCKET_BYTES + name.len()
}
