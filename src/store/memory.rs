//! The in-process store: buckets in sharded maps, bounded in bytes.
//!
//! A decision locks the shards of its buckets in order, so it is atomic as the script is. Expired
//! buckets are swept when a shard has doubled, and all shards when the bound is reached. At the
//! bound a live bucket is never dropped: whatever would make the store grow gets no decision.

use std::{
    collections::HashMap,
    fmt,
    hash::{BuildHasher, RandomState},
    sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed},
    time::Instant,
};

use bytes::Bytes;
use parking_lot::{Mutex, MutexGuard};
use smallvec::SmallVec;

use crate::algorithm::{Rate, sliding_window::Log};

use super::{Charge, Decision, Outcome, StoreError};

const SHARDS: usize = 64;
/// A shard isn't swept before it has so many buckets.
const SWEEP_AT_LEAST: usize = 64;
/// While the bound is reached, all shards are swept at most so often.
const SWEEP_ALL_EVERY_US: u64 = 100_000;
/// An entry of the map with its control byte, at the map's lowest fill after it has grown, and the
/// allocation of the name.
const BUCKET_BYTES: usize = 2 * (size_of::<(Bytes, Bucket)>() + 1) + 32;

/// Buckets in this process. Its clock is monotonic and starts with it.
pub struct MemoryStore {
    shards: Box<[Mutex<Shard>]>,
    hasher: RandomState,
    started: Instant,
    max_bytes: usize,
    bytes: AtomicUsize,
    swept_us: AtomicU64,
}

/// A plain lock: it is held for a decision's arithmetic, never across an await.
#[derive(Default)]
struct Shard {
    buckets: HashMap<Bytes, Bucket>,
    sweep_at: usize,
}

struct Bucket {
    log: Log,
    /// The longest window that the bucket was held to since its last charge, by which it expires.
    window_us: u64,
}

impl MemoryStore {
    /// An empty store that will hold at most about `max_bytes`.
    pub fn new(max_bytes: usize) -> Self {
        Self {
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            hasher: RandomState::new(),
            started: Instant::now(),
            max_bytes,
            bytes: AtomicUsize::new(0),
            swept_us: AtomicU64::new(0),
        }
    }

    /// Decides a request at the time of the store's clock.
    ///
    /// # Errors
    /// [`StoreError::Full`]: nothing was charged.
    pub fn take(&self, charges: &[Charge]) -> Result<Decision, StoreError> {
        // Microseconds since the start, plus a year, so that no window reaches back before zero.
        let time_us = self.started.elapsed().as_micros() as u64 + Rate::MAX_WINDOW_US;
        self.take_at(time_us, charges)
    }

    /// Decides a request at `time_us`, microseconds of any clock of the caller's that keeps to one origin.
    ///
    /// # Errors
    /// [`StoreError::Full`]: nothing was charged.
    pub fn take_at(&self, time_us: u64, charges: &[Charge]) -> Result<Decision, StoreError> {
        match self.decide(time_us, charges) {
            Err(StoreError::Full) if self.sweep_all(time_us) => self.decide(time_us, charges),
            decided => decided,
        }
    }

    /// Bytes that the buckets take, by the same count that is held to the bound.
    pub fn bytes(&self) -> usize {
        self.bytes.load(Relaxed)
    }

    fn decide(&self, time_us: u64, charges: &[Charge]) -> Result<Decision, StoreError> {
        let homes: SmallVec<[usize; 2]> =
            charges.iter().map(|charge| self.shard_of(&charge.bucket)).collect();
        let mut shards = self.lock(&homes);

        let mut delays: SmallVec<[Option<u64>; 2]> = SmallVec::new();
        for (charge, home) in charges.iter().zip(&homes) {
            delays.push(shards.of(*home).delay_us(charge, time_us));
        }
        let admitted = charges.iter().zip(&delays).all(|(charge, delay)| charge.shadow || *delay == Some(0));

        if admitted {
            let charged = || charges.iter().zip(&homes).zip(&delays).filter(|(_, delay)| **delay == Some(0));
            for ((charge, home), _) in charged() {
                self.count_freed(shards.of(*home).make_place(charge, time_us));
            }
            let growth = charged().map(|((charge, home), _)| shards.of(*home).growth(charge)).sum();
            self.reserve(growth)?;
            let grown: usize =
                charged().map(|((charge, home), _)| shards.of(*home).charge(charge, time_us)).sum();
            self.count_freed(growth - grown);
        }
        let outcomes = (charges.iter().zip(&homes).zip(&delays))
            .map(|((charge, home), delay)| {
                shards.of(*home).outcome(charge, time_us, admitted && *delay == Some(0))
            })
            .collect();
        Ok(Decision { admitted, outcomes })
    }

    /// Counts `growth` bytes, unless the bound forbids it.
    fn reserve(&self, growth: usize) -> Result<(), StoreError> {
        if growth == 0 {
            return Ok(());
        }
        let within = |bytes: usize| bytes.checked_add(growth).filter(|bytes| *bytes <= self.max_bytes);
        self.bytes.fetch_update(Relaxed, Relaxed, within).map(drop).map_err(|_| StoreError::Full)
    }

    /// Drops what has expired in all shards. False if that was done just now.
    fn sweep_all(&self, time_us: u64) -> bool {
        let swept_us = self.swept_us.load(Relaxed);
        let due = time_us.abs_diff(swept_us) >= SWEEP_ALL_EVERY_US;
        if !due || self.swept_us.compare_exchange(swept_us, time_us, Relaxed, Relaxed).is_err() {
            return false;
        }
        for shard in &self.shards {
            self.count_freed(shard.lock().sweep(time_us));
        }
        true
    }

    fn count_freed(&self, bytes: usize) {
        self.bytes.fetch_sub(bytes, Relaxed);
    }

    fn shard_of(&self, bucket: &Bytes) -> usize {
        self.hasher.hash_one(bucket) as usize % SHARDS
    }

    /// Locks in ascending order, so that two decisions never wait for each other.
    fn lock(&self, homes: &[usize]) -> Locked<'_> {
        let mut ordered: SmallVec<[usize; 2]> = homes.into();
        ordered.sort_unstable();
        ordered.dedup();
        Locked(ordered.into_iter().map(|home| (home, self.shards[home].lock())).collect())
    }
}

impl fmt::Debug for MemoryStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { max_bytes, .. } = self;
        f.debug_struct("MemoryStore").field("max_bytes", max_bytes).field("bytes", &self.bytes()).finish()
    }
}

/// The shards that a decision holds.
struct Locked<'a>(SmallVec<[(usize, MutexGuard<'a, Shard>); 2]>);

impl Locked<'_> {
    fn of(&mut self, home: usize) -> &mut Shard {
        let held = self.0.iter_mut().find(|(index, _)| *index == home);
        &mut held.expect("every charge's shard is locked").1
    }
}

impl Shard {
    fn delay_us(&mut self, charge: &Charge, time_us: u64) -> Option<u64> {
        match self.buckets.get_mut(&charge.bucket) {
            Some(bucket) => {
                bucket.window_us = bucket.window_us.max(charge.quota.window_us);
                bucket.log.trim(charge.quota, time_us);
                bucket.log.delay_us(charge.quota, time_us, charge.cost)
            }
            None => Log::default().delay_us(charge.quota, time_us, charge.cost),
        }
    }

    /// Sweeps if a charge is about to bring one bucket more than is due; returns the bytes that frees.
    fn make_place(&mut self, charge: &Charge, time_us: u64) -> usize {
        let is_due = self.buckets.len() >= self.sweep_at && !self.buckets.contains_key(&charge.bucket);
        if is_due { self.sweep(time_us) } else { 0 }
    }

    /// The bytes by which a charge makes the store grow, at most.
    fn growth(&self, charge: &Charge) -> usize {
        match self.buckets.get(&charge.bucket) {
            Some(bucket) => bucket.log.growth_bytes(),
            None => named_bytes(&charge.bucket) + Log::new().bytes(),
        }
    }

    /// Records a charge, and returns the bytes by which it made the store grow.
    fn charge(&mut self, charge: &Charge, time_us: u64) -> usize {
        let mut grown = 0;
        let bucket = self.buckets.entry(charge.bucket.clone()).or_insert_with(|| {
            let log = Log::new();
            grown = named_bytes(&charge.bucket) + log.bytes();
            Bucket { log, window_us: 0 }
        });
        let before = bucket.log.bytes();
        bucket.log.charge(time_us, charge.cost);
        bucket.window_us = charge.quota.window_us;
        grown + bucket.log.bytes() - before
    }

    fn outcome(&self, charge: &Charge, time_us: u64, charged: bool) -> Outcome {
        let empty = Log::default();
        let log = self.buckets.get(&charge.bucket).map_or(&empty, |bucket| &bucket.log);
        Outcome {
            charged,
            remaining: u64::from(charge.quota.permits).saturating_sub(log.used()),
            grow_us: log.grow_us(charge.quota, time_us),
            delay_us: if charged { Some(0) } else { log.delay_us(charge.quota, time_us, charge.cost) },
        }
    }

    /// Drops the buckets whose newest entry has ended, and returns the bytes that frees.
    fn sweep(&mut self, time_us: u64) -> usize {
        let mut freed = 0;
        self.buckets.retain(|name, bucket| {
            let before = bucket.log.bytes();
            let live = bucket.log.newest_us().is_some_and(|newest_us| newest_us + bucket.window_us > time_us);
            if live {
                bucket.log.shrink();
                freed += before - bucket.log.bytes();
            } else {
                freed += named_bytes(name) + before;
            }
            live
        });
        self.buckets.shrink_to(2 * self.buckets.len());
        self.sweep_at = (2 * self.buckets.len()).max(SWEEP_AT_LEAST);
        freed
    }
}

/// The bytes of a bucket without its log.
fn named_bytes(name: &Bytes) -> usize {
    BUCKET_BYTES + name.len()
}

#[cfg(test)]
mod tests {
    use proptest::collection;
    use proptest::prelude::*;

    use super::*;

    fn charge(bucket: &str, permits: u32, window_us: u64) -> Charge {
        let bucket = Bytes::copy_from_slice(bucket.as_bytes());
        Charge { bucket, quota: Rate { permits, window_us }.into(), cost: 1, shadow: false }
    }

    #[test]
    fn nothing_is_charged_where_one_limit_refuses() {
        let store = MemoryStore::new(1 << 20);
        let (tight, wide) = (charge("tight", 1, 1_000_000), charge("wide", 9, 1_000_000));
        let both = [tight.clone(), wide.clone()];
        assert!(store.take_at(5_000_000, &both).unwrap().admitted);
        let refused = store.take_at(5_000_001, &both).unwrap();
        assert!(!refused.admitted);
        assert_eq!(refused.outcomes[0].delay_us, Some(999_999));
        assert_eq!(refused.outcomes[1].remaining, 8);
    }

    #[test]
    fn a_shadowing_limit_refuses_nobody_and_counts_what_it_has_room_for() {
        let store = MemoryStore::new(1 << 20);
        let shadow = Charge { shadow: true, ..charge("shadow", 1, 1_000_000) };
        let both = [shadow, charge("wide", 9, 1_000_000)];
        let charged = |time_us| {
            let decision = store.take_at(time_us, &both).unwrap();
            assert!(decision.admitted);
            [decision.outcomes[0].charged, decision.outcomes[1].charged]
        };
        assert_eq!(charged(5_000_000), [true, true]);
        assert_eq!(charged(5_000_001), [false, true]);
    }

    #[test]
    fn the_bound_holds_new_keys_off_and_drops_no_live_bucket() {
        let store = MemoryStore::new(64 << 10);
        let quota = |name: usize| charge(&format!("bucket-{name}"), 1, 10_000_000);
        let admitted =
            (0..10_000).take_while(|name| store.take_at(20_000_000, &[quota(*name)]).is_ok()).count();
        assert!((100..1_000).contains(&admitted), "{admitted}");
        assert!(store.bytes() <= 64 << 10);
        for name in 0..admitted {
            assert!(!store.take_at(20_500_000, &[quota(name)]).unwrap().admitted, "{name} was dropped");
        }
        // Once the old ones have expired, there is room again.
        assert!(store.take_at(31_000_000, &[quota(99_999)]).unwrap().admitted);
    }

    #[test]
    fn expired_buckets_are_swept_as_new_ones_come() {
        let store = MemoryStore::new(1 << 30);
        for name in 0..200_000_u64 {
            let bucket = charge(&format!("bucket-{name}"), 1, 1_000);
            assert!(store.take_at(10_000_000 + name * 100, &[bucket]).unwrap().admitted);
        }
        assert!(store.bytes() < 4 << 20, "{} bytes", store.bytes());
    }

    proptest! {
        /// Sweeps, shrinking logs and charges in one microsecond included.
        #[test]
        fn the_count_of_bytes_is_that_of_the_buckets(
            steps in collection::vec((0..2_000_u64, 0..300_u32, 0..3_u32, any::<bool>()), 1..600),
        ) {
            let store = MemoryStore::new(1 << 20);
            let mut time_us = 10_000_000;
            for (pause_us, name, shared, is_long) in steps {
                time_us += pause_us;
                let window_us = if is_long { 200_000 } else { 5_000 };
                let both = [charge(&format!("one-{name}"), 50, window_us), charge(&format!("all-{shared}"), 300, window_us)];
                store.take_at(time_us, &both).unwrap();
                let shards = store.shards.iter().map(|shard| shard.lock());
                let counted: usize = shards
                    .map(|shard| {
                        let buckets = shard.buckets.iter();
                        buckets.map(|(name, bucket)| named_bytes(name) + bucket.log.bytes()).sum::<usize>()
                    })
                    .sum();
                prop_assert_eq!(store.bytes(), counted);
            }
        }
    }

    #[test]
    fn the_count_of_bytes_comes_back_to_zero() {
        let store = MemoryStore::new(1 << 30);
        for time_us in 0..5_000 {
            let name = format!("bucket-{}", time_us % 70);
            assert!(store.take_at(1_000_000 + time_us, &[charge(&name, 5_000, 1_000)]).is_ok());
        }
        assert!(store.sweep_all(9_000_000));
        assert_eq!(store.bytes(), 0);
    }
}
