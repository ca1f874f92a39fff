//! The in-process store: buckets in sharded maps, bounded in bytes.
//!
//! A decision locks the shards of its buckets in order, so it is atomic as the script is. Expired
//! buckets are swept when a shard has doubled, and all shards when the bound is reached. At the
//! bound a live bucket is never dropped: whatever would make the store grow gets no decision.

use std::{
    fmt,
    sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed},
    time::Instant,
};

use bytes::Bytes;
use hashbrown::{HashTable, hash_table::Entry};
use parking_lot::{Mutex, MutexGuard};
use smallvec::{SmallVec, smallvec};

use crate::{
    algorithm::{Algorithm, Quota, Rate, State},
    metrics::Page,
    text,
};

use super::{Act, Charge, Decision, Lease, Operation, Outcome, Reply, StoreError, Usage, overrides::Table};

const SHARDS: usize = 64;
/// A shard isn't swept before it has so many buckets.
const SWEEP_AT_LEAST: usize = 64;
/// While the bound is reached, all shards are swept at most so often.
const SWEEP_ALL_EVERY_US: u64 = 100_000;
/// An entry of the map with its control byte, at the map's lowest fill after it has grown, and the
/// allocation of the name.
const BUCKET_BYTES: usize = 2 * (size_of::<Bucket>() + 1) + 32;

/// Buckets in this process. Its clock is monotonic and starts with it.
pub struct MemoryStore {
    shards: Box<[Mutex<Shard>]>,
    started: Instant,
    max_bytes: usize,
    bytes: AtomicUsize,
    swept_us: AtomicU64,
    /// Operations that the bound forbade.
    turned_away: AtomicU64,
    pub(super) overrides: Table,
}

/// A plain lock: it is held for a decision's arithmetic, never across an await.
struct Shard {
    buckets: HashTable<Bucket>,
    sweep_at: usize,
}

/// A bucket's name with its hash, so that an operation hashes it once.
#[derive(Clone, Copy)]
struct Name<'o> {
    name: &'o Bytes,
    hash: u64,
}

impl<'o> Name<'o> {
    fn of(name: &'o Bytes) -> Self {
        Self { name, hash: text::hash(name) }
    }

    /// By bits of the hash that the shard's table doesn't go by.
    fn shard(self) -> usize {
        (self.hash >> 32) as usize % SHARDS
    }
}

struct Bucket {
    name: Bytes,
    state: State,
    /// When nothing of it counts any more, by the longest window that it was held to since its last charge.
    ends_us: u64,
}

impl MemoryStore {
    /// An empty store that will hold at most about `max_bytes`.
    pub fn new(max_bytes: usize) -> Self {
        let shard = |_| Shard { buckets: HashTable::new(), sweep_at: 0 };
        Self {
            shards: (0..SHARDS).map(shard).map(Mutex::new).collect(),
            started: Instant::now(),
            max_bytes,
            bytes: AtomicUsize::new(0),
            swept_us: AtomicU64::new(0),
            turned_away: AtomicU64::new(0),
            overrides: Table::default(),
        }
    }

    /// Does an operation at the time of the store's clock.
    ///
    /// # Errors
    /// [`StoreError::Full`]: nothing was done.
    pub fn operate(&self, operation: &Operation) -> Result<Reply, StoreError> {
        self.operate_at(self.time_us(), operation)
    }

    /// As [`Self::operate`], for what a request is to be charged that has come at this time.
    ///
    /// # Errors
    /// [`StoreError::Full`]: nothing was done.
    pub fn take<C: AsRef<Charge>>(&self, charges: &[C], now: Instant) -> Result<Decision, StoreError> {
        let time_us = self.time_us_at(now);
        if let [only] = charges
            && let Some(decision) = self.decide_known(time_us, only.as_ref())
        {
            return Ok(decision);
        }
        self.within_bound(time_us, || self.decide(time_us, charges))
    }

    /// As [`Self::decide`], of what most requests ask: one charge, on a bucket that is there and needs no more memory. It is
    /// found once, not at each step.
    fn decide_known(&self, time_us: u64, charge: &Charge) -> Option<Decision> {
        let Charge { quota, cost, shadow, .. } = *charge;
        let name = Name::of(&charge.bucket);
        let mut shard = self.shards[name.shard()].lock();
        let bucket = shard.find_mut(name)?;
        bucket.advance(quota, time_us);
        let delay_us = delay_us(&bucket.state, charge, time_us);
        let fits = delay_us == Some(0);
        if fits && cost > 0 {
            if quota.algorithm == Algorithm::Concurrency || bucket.state.count().growth_bytes() > 0 {
                return None;
            }
            bucket.change(quota, |state| state.count_mut().charge(quota, time_us, cost));
        }
        let outcome = outcome(&bucket.state, quota, time_us, fits, delay_us);
        Some(Decision { time_us, admitted: fits || shadow, outcomes: smallvec![outcome], leases: Vec::new() })
    }

    /// How the bucket of a charge stands that is refused now; nothing is charged otherwise.
    pub fn refuse(&self, charge: &Charge, now: Instant) -> Option<Outcome> {
        let (time_us, name) = (self.time_us_at(now), Name::of(&charge.bucket));
        let mut shard = self.shards[name.shard()].lock();
        let bucket = shard.find_mut(name)?;
        bucket.advance(charge.quota, time_us);
        let delay_us = delay_us(&bucket.state, charge, time_us);
        let is_refused = delay_us != Some(0) && !charge.shadow;
        is_refused.then(|| outcome(&bucket.state, charge.quota, time_us, false, delay_us))
    }

    /// Gives back what a decision at `time_us` charged a bucket, as if it had refused.
    pub fn give_back(&self, bucket: &Bytes, quota: Quota, time_us: u64, cost: u32) {
        let name = Name::of(bucket);
        let mut shard = self.shards[name.shard()].lock();
        shard.advance(name, quota, self.time_us());
        if let Some(bucket) = shard.find_mut(name) {
            bucket.state.count_mut().give_back(quota, time_us, cost);
        }
    }

    /// Microseconds since the start, plus a year, so that no window reaches back before zero.
    fn time_us_at(&self, now: Instant) -> u64 {
        now.saturating_duration_since(self.started).as_micros() as u64 + Rate::MAX_WINDOW_US
    }

    fn time_us(&self) -> u64 {
        self.time_us_at(Instant::now())
    }

    /// Does an operation at `time_us`, microseconds of any clock of the caller's that keeps to one origin.
    ///
    /// # Errors
    /// [`StoreError::Full`]: nothing was done.
    pub fn operate_at(&self, time_us: u64, operation: &Operation) -> Result<Reply, StoreError> {
        self.within_bound(time_us, || match operation {
            Operation::Take(charges) => self.decide(time_us, charges).map(Reply::Decision),
            Operation::On { bucket, quota, act } => self.act(time_us, Name::of(bucket), *quota, *act),
        })
    }

    /// Does what may make it grow; where the bound forbids that, once more when what has expired is dropped.
    fn within_bound<T>(
        &self,
        time_us: u64,
        attempt: impl Fn() -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let done = match attempt() {
            Err(StoreError::Full) if self.sweep_all(time_us) => attempt(),
            done => done,
        };
        if matches!(done, Err(StoreError::Full)) {
            self.turned_away.fetch_add(1, Relaxed);
        }
        done
    }

    /// Writes how full it is.
    pub fn write_metrics(&self, page: &mut Page<'_>) {
        let buckets: usize = self.shards.iter().map(|shard| shard.lock().buckets.len()).sum();
        page.gauge("tollgate_memory_buckets", "Buckets that are counted in this process", buckets);
        page.gauge("tollgate_memory_bytes", "Memory that these buckets take, about", self.bytes());
        page.gauge("tollgate_memory_max_bytes", "Memory that they may take: `max_memory`", self.max_bytes);
        page.counter(
            "tollgate_memory_full",
            "Charges in this process that had no place in `max_memory`",
            self.turned_away.load(Relaxed),
        );
    }

    /// Bytes that the buckets take, by the same count that is held to the bound.
    pub fn bytes(&self) -> usize {
        self.bytes.load(Relaxed)
    }

    /// Bytes that the buckets may take.
    pub fn max_bytes(&self) -> usize {
        self.max_bytes
    }

    fn act(&self, time_us: u64, bucket: Name<'_>, quota: Quota, act: Act) -> Result<Reply, StoreError> {
        let mut shard = self.shards[bucket.shard()].lock();
        shard.advance(bucket, quota, time_us);
        match act {
            Act::Record(cost) => {
                self.count_freed(shard.make_place(bucket, time_us));
                let growth = shard.growth(bucket, quota);
                self.reserve(growth)?;
                self.count_freed(growth - shard.charge(bucket, quota, time_us, cost));
            }
            Act::Renew(id) => {
                let growth = shard.growth(bucket, quota);
                self.reserve(growth)?;
                let renew = |state: &mut State| {
                    if let State::Leases(leases) = state {
                        leases.renew(quota, time_us, id);
                    }
                };
                self.count_freed(growth - shard.change(bucket, quota, time_us, renew));
            }
            Act::Release(id) => {
                if let Some(Bucket { state: State::Leases(leases), .. }) = shard.find_mut(bucket) {
                    leases.release(id);
                }
            }
            Act::Peek(cost) => {
                let usage = shard.look(bucket, quota, |state| Usage {
                    used: state.count().used(quota),
                    grow_us: state.count().grow_us(quota, time_us),
                    delay_us: state.delay_us(quota, time_us, cost),
                });
                return Ok(Reply::Usage(usage));
            }
            Act::Reset => {
                let found = shard.buckets.find_entry(bucket.hash, |other| other.name == *bucket.name);
                if let Ok(found) = found {
                    self.count_freed(found.remove().0.bytes());
                }
            }
        }
        Ok(Reply::Done)
    }

    fn decide<C: AsRef<Charge>>(&self, time_us: u64, charges: &[C]) -> Result<Decision, StoreError> {
        let charges = || charges.iter().map(AsRef::as_ref);
        let names: SmallVec<[Name<'_>; 2]> = charges().map(|charge| Name::of(&charge.bucket)).collect();
        let mut shards = self.lock(&names);

        let mut delays: SmallVec<[Option<u64>; 2]> = SmallVec::new();
        for (charge, name) in charges().zip(&names) {
            delays.push(shards.of(*name).delay_us(charge, *name, time_us));
        }
        let admitted = charges().zip(&delays).all(|(charge, delay_us)| charge.shadow || *delay_us == Some(0));

        let mut leases = Vec::new();
        if admitted {
            let charged = || {
                let charges = charges().zip(&names).zip(&delays);
                let fitting =
                    charges.filter(|((charge, _), delay_us)| **delay_us == Some(0) && charge.cost > 0);
                fitting.map(|(charge, _)| charge)
            };
            for (_, name) in charged() {
                self.count_freed(shards.of(*name).make_place(*name, time_us));
            }
            let growth = charged().map(|(charge, name)| shards.of(*name).growth(*name, charge.quota)).sum();
            self.reserve(growth)?;
            let mut grown = 0;
            for (Charge { bucket, quota, cost, .. }, name) in charged() {
                let shard = shards.of(*name);
                grown += shard.charge(*name, *quota, time_us, *cost);
                if quota.algorithm == Algorithm::Concurrency
                    && let Some(Bucket { state: State::Leases(held), .. }) = shard.find(*name)
                {
                    let id = held.newest();
                    leases.extend(id.map(|id| Lease { bucket: bucket.clone(), quota: *quota, id }));
                }
            }
            self.count_freed(growth - grown);
        }
        // The delay is what it was: nothing was charged to a bucket in which its cost didn't fit.
        let outcomes = (charges().zip(&names).zip(&delays))
            .map(|((Charge { quota, .. }, name), delay_us)| {
                let charged = admitted && *delay_us == Some(0);
                let look = |state: &State| outcome(state, *quota, time_us, charged, *delay_us);
                shards.of(*name).look(*name, *quota, look)
            })
            .collect();
        Ok(Decision { time_us, admitted, outcomes, leases })
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
        if bytes > 0 {
            self.bytes.fetch_sub(bytes, Relaxed);
        }
    }

    /// Locks in ascending order, so that two decisions never wait for each other.
    fn lock(&self, names: &[Name<'_>]) -> Locked<'_> {
        let mut ordered: SmallVec<[usize; 2]> = names.iter().map(|name| name.shard()).collect();
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
    fn of(&mut self, name: Name<'_>) -> &mut Shard {
        let held = self.0.iter_mut().find(|(index, _)| *index == name.shard());
        &mut held.expect("every charge's shard is locked").1
    }
}

impl Shard {
    fn find(&self, Name { name, hash }: Name<'_>) -> Option<&Bucket> {
        self.buckets.find(hash, |bucket| bucket.name == *name)
    }

    fn find_mut(&mut self, Name { name, hash }: Name<'_>) -> Option<&mut Bucket> {
        self.buckets.find_mut(hash, |bucket| bucket.name == *name)
    }

    /// Brings a bucket, if there is one, to this time and quota.
    fn advance(&mut self, bucket: Name<'_>, quota: Quota, time_us: u64) -> Option<&State> {
        let bucket = self.find_mut(bucket)?;
        bucket.advance(quota, time_us);
        Some(&bucket.state)
    }

    /// Looks at what a bucket holds, which may be nothing.
    fn look<T>(&self, bucket: Name<'_>, quota: Quota, look: impl FnOnce(&State) -> T) -> T {
        match self.find(bucket) {
            Some(bucket) => look(&bucket.state),
            None => look(&State::new(quota.algorithm)),
        }
    }

    fn delay_us(&mut self, charge: &Charge, bucket: Name<'_>, time_us: u64) -> Option<u64> {
        let delay_us = |state: &State| delay_us(state, charge, time_us);
        let state = self.advance(bucket, charge.quota, time_us);
        state.map_or_else(|| delay_us(&State::new(charge.quota.algorithm)), delay_us)
    }

    /// Sweeps if a charge is about to bring one bucket more than is due; returns the bytes that frees.
    fn make_place(&mut self, bucket: Name<'_>, time_us: u64) -> usize {
        let is_due = self.buckets.len() >= self.sweep_at && self.find(bucket).is_none();
        if is_due { self.sweep(time_us) } else { 0 }
    }

    /// The bytes by which a charge makes the store grow, at most.
    fn growth(&self, bucket: Name<'_>, quota: Quota) -> usize {
        match self.find(bucket) {
            Some(bucket) => bucket.state.count().growth_bytes(),
            None => named_bytes(bucket.name) + State::new(quota.algorithm).count().growth_bytes(),
        }
    }

    /// Records a charge, and returns the bytes by which it made the store grow.
    fn charge(&mut self, bucket: Name<'_>, quota: Quota, time_us: u64, cost: u32) -> usize {
        self.change(bucket, quota, time_us, |state| state.count_mut().charge(quota, time_us, cost))
    }

    /// Changes what a bucket holds, and returns the bytes by which that made the store grow.
    fn change(
        &mut self,
        Name { name, hash }: Name<'_>,
        quota: Quota,
        time_us: u64,
        change: impl FnOnce(&mut State),
    ) -> usize {
        let mut grown = 0;
        let hash_of = |bucket: &Bucket| text::hash(&bucket.name);
        let mut entry = match self.buckets.entry(hash, |bucket| bucket.name == *name, hash_of) {
            Entry::Occupied(entry) => entry,
            Entry::Vacant(entry) => {
                grown = named_bytes(name);
                let mut state = State::new(quota.algorithm);
                state.count_mut().advance(quota, time_us);
                entry.insert(Bucket { name: name.clone(), state, ends_us: 0 })
            }
        };
        grown + entry.get_mut().change(quota, change)
    }

    /// Drops the buckets whose newest entry has ended, and returns the bytes that frees.
    fn sweep(&mut self, time_us: u64) -> usize {
        let mut freed = 0;
        self.buckets.retain(|bucket| {
            let before = bucket.bytes();
            let live = bucket.ends_us > time_us;
            if live {
                bucket.state.count_mut().shrink();
            }
            freed += before - if live { bucket.bytes() } else { 0 };
            live
        });
        self.buckets.shrink_to(2 * self.buckets.len(), |bucket| text::hash(&bucket.name));
        self.sweep_at = (2 * self.buckets.len()).max(SWEEP_AT_LEAST);
        freed
    }
}

impl Bucket {
    /// Brings it to this time and quota.
    fn advance(&mut self, quota: Quota, time_us: u64) {
        let count = self.state.count_mut();
        count.advance(quota, time_us);
        self.ends_us = self.ends_us.max(count.ends_us(quota));
    }

    /// Changes what it holds, and returns the bytes by which that made it grow.
    fn change(&mut self, quota: Quota, change: impl FnOnce(&mut State)) -> usize {
        let before = self.state.count().bytes();
        change(&mut self.state);
        let count = self.state.count();
        self.ends_us = count.ends_us(quota);
        count.bytes() - before
    }

    fn bytes(&self) -> usize {
        named_bytes(&self.name) + self.state.count().bytes()
    }
}

/// Microseconds until a bucket has room for a charge.
fn delay_us(state: &State, Charge { quota, cost, .. }: &Charge, time_us: u64) -> Option<u64> {
    state.delay_us(*quota, time_us, (*cost).max(1))
}

/// Where a bucket stands after a charge was made, or wasn't, for which there was room after this delay.
fn outcome(state: &State, quota: Quota, time_us: u64, charged: bool, delay_us: Option<u64>) -> Outcome {
    let count = state.count();
    let remaining = u64::from(quota.capacity()).saturating_sub(count.used(quota));
    Outcome { charged, remaining, grow_us: count.grow_us(quota, time_us), delay_us }
}

/// The bytes of a bucket without what it holds.
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

    fn take_at(store: &MemoryStore, time_us: u64, charges: &[Charge]) -> Result<Decision, StoreError> {
        store.operate_at(time_us, &Operation::Take(charges.into())).map(|reply| match reply {
            Reply::Decision(decision) => decision,
            reply => panic!("{reply:?}"),
        })
    }

    #[test]
    fn nothing_is_charged_where_one_limit_refuses() {
        let store = MemoryStore::new(1 << 20);
        let (tight, wide) = (charge("tight", 1, 1_000_000), charge("wide", 9, 1_000_000));
        let both = [tight.clone(), wide.clone()];
        assert!(take_at(&store, 5_000_000, &both).unwrap().admitted);
        let refused = take_at(&store, 5_000_001, &both).unwrap();
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
            let decision = take_at(&store, time_us, &both).unwrap();
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
            (0..10_000).take_while(|name| take_at(&store, 20_000_000, &[quota(*name)]).is_ok()).count();
        assert!((100..1_000).contains(&admitted), "{admitted}");
        assert!(store.bytes() <= 64 << 10);
        for name in 0..admitted {
            assert!(!take_at(&store, 20_500_000, &[quota(name)]).unwrap().admitted, "{name} was dropped");
        }
        // Once the old ones have expired, there is room again.
        assert!(take_at(&store, 31_000_000, &[quota(99_999)]).unwrap().admitted);
    }

    #[test]
    fn expired_buckets_are_swept_as_new_ones_come() {
        let store = MemoryStore::new(1 << 30);
        for name in 0..200_000_u64 {
            let bucket = charge(&format!("bucket-{name}"), 1, 1_000);
            assert!(take_at(&store, 10_000_000 + name * 100, &[bucket]).unwrap().admitted);
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
                take_at(&store, time_us, &both).unwrap();
                let shards = store.shards.iter().map(|shard| shard.lock());
                let counted: usize = shards
                    .map(|shard| {
                        shard.buckets.iter().map(Bucket::bytes).sum::<usize>()
                    })
                    .sum();
                prop_assert_eq!(store.bytes(), counted);
            }
        }
    }

    proptest! {
        #[test]
        fn a_bucket_that_is_known_is_decided_alike(
            algorithm in prop::sample::select(vec![
                Algorithm::SlidingWindow,
                Algorithm::SlidingCells { cells: 4 },
                Algorithm::FixedWindow,
                Algorithm::Gcra { burst: Some(3) },
                Algorithm::Concurrency,
            ]),
            steps in collection::vec((0..2_000_u64, 0..4_u32, any::<bool>()), 1..100),
        ) {
            let (fast, slow) = (MemoryStore::new(1 << 20), MemoryStore::new(1 << 20));
            let mut time_us = 10_000_000;
            for (pause_us, cost, shadow) in steps {
                time_us += pause_us;
                let quota = Quota::new(algorithm, Rate { permits: 5, window_us: 5_000 });
                let bucket = Bytes::from_static(b"b");
                let charges = [Charge { bucket, quota, cost, shadow }];
                let expected = take_at(&slow, time_us, &charges).unwrap();
                let decided = fast.decide_known(time_us, &charges[0]);
                let decided = decided.unwrap_or_else(|| take_at(&fast, time_us, &charges).unwrap());
                prop_assert_eq!((decided.admitted, decided.outcomes), (expected.admitted, expected.outcomes));
                prop_assert_eq!(fast.bytes(), slow.bytes());
            }
        }
    }

    #[test]
    fn the_count_of_bytes_comes_back_to_zero() {
        let store = MemoryStore::new(1 << 30);
        for time_us in 0..5_000 {
            let name = format!("bucket-{}", time_us % 70);
            assert!(take_at(&store, 1_000_000 + time_us, &[charge(&name, 5_000, 1_000)]).is_ok());
        }
        assert!(store.sweep_all(9_000_000));
        assert_eq!(store.bytes(), 0);
    }
}
