//! The in-process store: buckets in sharded maps, bounded in bytes.
//!
//! A decision locks the shards of its buckets in order, so it is atomic as the script is. Each limit has a share of the
//! memory. Past it, new keys of the limit are counted by client network, and a key's bucket grows no more: its count
//! becomes coarser, never smaller. A live bucket is never dropped. Expired ones are swept as a shard doubles, and a few
//! at a time while a limit is past its share.
//!
//! All operations take the same locks and keep the same bounds, so they stand in one file.

mod shard;
mod shares;

use std::{
    borrow::Cow,
    fmt, slice,
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed},
    },
    time::{Instant, SystemTime, UNIX_EPOCH},
};

use bytes::Bytes;
use parking_lot::Mutex;
use smallvec::{SmallVec, smallvec};

use crate::{
    algorithm::{Algorithm, Quota, Rate, State},
    metrics::Page,
    text,
};

use self::{
    shard::{Bucket, Locked, Name, Shard, named_bytes},
    shares::{Pool, Share, Shares},
};
use super::{
    Act, BucketTotal, Charge, Decision, Lease, LeaseId, Operation, Outcome, Overflow, Placed, Purpose,
    Refund, Reply, StoreError, Usage, overrides::OverrideTable, total_of,
};

const SHARDS_LEAST: usize = 64;
const SHARDS_MOST: usize = 1 << 16;
/// So many bytes of the bound make a shard, so that sweeping one takes some 50 microseconds at most.
const SHARD_BYTES: usize = 256 << 10;
/// While a limit is past its share, a few shards are swept at most so often: all of 256 MiB within a second.
const SWEEP_EVERY_US: u64 = 500;
/// Buckets that such a sweep looks at, and the shards that it does.
const SWEPT_BUCKETS: usize = 256;
const SWEPT_SHARDS: usize = 64;

/// Buckets in this process. Its clock starts with it at the system's time, and is monotonic.
///
/// # Examples
///
/// ```
/// # use tollgate_limiter::{Algorithm, Quota, store::{Charge, Operation, Reply, memory::MemoryStore}};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let quota = Quota::new(Algorithm::SlidingWindow, "5/s".parse()?);
/// let charge = Charge { bucket: "logins:sw:{alice}".into(), quota, cost: 5, shadow: false };
/// let store = MemoryStore::new(1 << 20);
/// let take = Operation::Take([charge].into_iter().collect());
/// let admitted = |reply| matches!(reply, Reply::Decision(decision) if decision.admitted);
/// assert!(admitted(store.operate(&take)?) && !admitted(store.operate(&take)?));
/// assert!(store.bytes() > 0);
/// # Ok(())
/// # }
/// ```
pub struct MemoryStore {
    shards: Box<[Mutex<Shard>]>,
    started: Instant,
    /// The system's time then, in microseconds since 1970.
    started_us: u64,
    shares: Shares,
    /// The shard to sweep next, and when the last one was.
    to_sweep: AtomicUsize,
    swept_us: AtomicU64,
    /// Operations that the bound forbade.
    turned_away: AtomicU64,
    pub(super) overrides: OverrideTable,
}

/// The hashes of the names of a request's buckets.
type Hashes = SmallVec<[u64; 2]>;

/// The place where a charge is counted.
enum Choice {
    /// In the bucket that it names.
    Own,
    /// In the bucket of its client's network.
    Network,
    /// In the bucket of all that fits nowhere else.
    Rest,
    /// Nowhere: the bound forbids it.
    Nowhere,
}

/// The state of a charge's bucket before anything was charged.
struct Look<'c> {
    name: Name<'c>,
    /// The index of its shard.
    index: usize,
    /// The permits that the request takes of it.
    total: BucketTotal,
    /// Microseconds until there is room for that; `None` if there never is.
    delay_us: Option<u64>,
}

impl Look<'_> {
    /// Returns true if there is room now.
    fn fits(&self) -> bool {
        self.delay_us == Some(0)
    }
}

impl MemoryStore {
    /// An empty store that will hold at most about `max_bytes`.
    pub fn new(max_bytes: usize) -> Self {
        let shards = (max_bytes / SHARD_BYTES).next_power_of_two().clamp(SHARDS_LEAST, SHARDS_MOST);
        Self {
            shards: (0..shards).map(|_| Mutex::default()).collect(),
            started: Instant::now(),
            started_us: system_time_us(),
            shares: Shares::new(max_bytes),
            to_sweep: AtomicUsize::new(0),
            swept_us: AtomicU64::new(0),
            turned_away: AtomicU64::new(0),
            overrides: OverrideTable::default(),
        }
    }

    /// Divides the memory among the limits of these names. Without this, a limit has a share from its first charge on.
    pub(crate) fn announce<'l>(&self, limits: impl IntoIterator<Item = &'l str>) {
        self.shares.announce(limits);
    }

    /// Does an operation at the time of the store's clock.
    ///
    /// # Errors
    /// [`StoreError::Full`]: nothing was done.
    pub fn operate(&self, operation: &Operation) -> Result<Reply, StoreError> {
        self.operate_at(self.time_us(), operation)
    }

    /// Decides a request as of this time, and charges it if it is admitted. A charge whose key is counted
    /// elsewhere is replaced by the one that is made.
    ///
    /// # Errors
    /// [`StoreError::Full`]: nothing was done.
    pub(crate) fn take<P: Placed>(&self, charges: &mut [P], now: Instant) -> Result<Decision, StoreError> {
        let time_us = self.time_us_at(now);
        if let [only] = charges
            && let Some(decision) = self.decide_known(time_us, only.charge())
        {
            return Ok(decision);
        }
        self.take_at(time_us, charges)
    }

    /// Decides as [`Self::take`] does, for the most frequent case: one charge, on a bucket that is there and needs no
    /// more memory. The bucket is found once, not at each step.
    fn decide_known(&self, time_us: u64, charge: &Charge) -> Option<Decision> {
        let Charge { quota, cost, shadow, .. } = *charge;
        let name = Name::of(&charge.bucket);
        let mut shard = self.shard(name).lock();
        let bucket = shard.find_mut(name)?;
        bucket.advance(quota, time_us);
        let delay_us = delay_us(&bucket.state, quota, cost, time_us);
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

    /// Returns where the bucket of a charge stands that is refused now; nothing is charged otherwise.
    pub(crate) fn refuse(&self, charge: &Charge, now: Instant) -> Option<Outcome> {
        let (time_us, name) = (self.time_us_at(now), Name::of(&charge.bucket));
        let mut shard = self.shard(name).lock();
        let bucket = shard.find_mut(name)?;
        bucket.advance(charge.quota, time_us);
        let delay_us = delay_us(&bucket.state, charge.quota, charge.cost, time_us);
        let is_refused = delay_us != Some(0) && !charge.shadow;
        is_refused.then(|| outcome(&bucket.state, charge.quota, time_us, false, delay_us))
    }

    /// Looks how much is in use where a charge is counted, and when it fits. Says whether that is elsewhere than in the
    /// bucket of its key, or may be.
    ///
    /// # Errors
    /// [`StoreError::Full`]: there is no place for it.
    pub(crate) fn peek<P: Placed>(&self, placed: &mut P) -> Result<(Usage, bool), StoreError> {
        let time_us = self.time_us();
        let (mut shards, hashes) = self.place(time_us, slice::from_mut(placed))?;
        let charge = placed.charge();
        // The key may be counted by its network: only its requests tell which one that is.
        let has_networks = || self.shares.of(placed.limit()).networks.buckets() > 0;
        let is_unknown =
            has_networks() && placed.overflow().is_some_and(|overflow| overflow.network.is_none());
        let name = Name::hashed(&charge.bucket, hashes[0]);
        let shard = shards.of(self.index(name.hash));
        let usage = usage(shard, name, charge.quota, charge.cost.max(1), time_us);
        Ok((usage, placed.is_moved() || is_unknown && shard.find(name).is_none()))
    }

    /// Records the cost of a charge where it is counted, whether it fits or not.
    ///
    /// # Errors
    /// [`StoreError::Full`]: nothing was done.
    pub(crate) fn record<P: Placed>(&self, charge: &mut P) -> Result<(), StoreError> {
        self.record_at(self.time_us(), charge)
    }

    /// Records the cost of a charge where it is counted, and returns the use of the bucket afterwards. The delay is 0 if
    /// the cost fitted, or else that of one permit.
    ///
    /// # Errors
    /// [`StoreError::Full`]: nothing was done.
    pub(crate) fn report<P: Placed>(&self, charge: &mut P) -> Result<Usage, StoreError> {
        self.report_at(self.time_us(), charge)
    }

    fn report_at<P: Placed>(&self, time_us: u64, charge: &mut P) -> Result<Usage, StoreError> {
        let (mut shards, hashes) = self.place_noted(time_us, slice::from_mut(charge))?;
        let Charge { bucket, quota, cost, .. } = charge.charge().clone();
        let name = Name::hashed(&bucket, hashes[0]);
        let shard = shards.of(self.index(name.hash));
        let before = usage(shard, name, quota, cost, time_us);
        if cost > 0 {
            self.charge(shard, name, charge, charge.charge(), time_us);
        }
        let after = usage(shard, name, quota, 1, time_us);
        let fitted = before.delay_us == Some(0);
        Ok(if fitted { Usage { delay_us: Some(0), ..after } } else { after })
    }

    fn record_at<P: Placed>(&self, time_us: u64, charge: &mut P) -> Result<(), StoreError> {
        let (mut shards, hashes) = self.place_noted(time_us, slice::from_mut(charge))?;
        let bucket = charge.charge().bucket.clone();
        let name = Name::hashed(&bucket, hashes[0]);
        let shard = shards.of(self.index(name.hash));
        shard.advance(name, charge.charge().quota, time_us);
        self.charge(shard, name, charge, charge.charge(), time_us);
        Ok(())
    }

    fn time_us_at(&self, now: Instant) -> u64 {
        now.saturating_duration_since(self.started).as_micros() as u64 + self.started_us
    }

    fn time_us(&self) -> u64 {
        self.time_us_at(Instant::now())
    }

    /// Does an operation at `time_us`, microseconds of any clock of the caller's that keeps to one origin.
    ///
    /// # Examples
    ///
    /// ```
    /// # use tollgate_limiter::{Algorithm, Quota, store::{Charge, Operation, Reply, memory::MemoryStore}};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let quota = Quota::new(Algorithm::SlidingWindow, "5/s".parse()?);
    /// let charge = Charge { bucket: "logins:sw:{alice}".into(), quota, cost: 5, shadow: false };
    /// let store = MemoryStore::new(1 << 20);
    /// let take = Operation::Take([charge].into_iter().collect());
    /// let admitted = |time_us| match store.operate_at(time_us, &take) {
    ///     Ok(Reply::Decision(decision)) => decision.admitted,
    ///     other => panic!("{other:?}"),
    /// };
    /// assert_eq!([7, 1_000_006, 1_000_007].map(admitted), [true, false, true]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`StoreError::Full`]: nothing was done.
    pub fn operate_at(&self, time_us: u64, operation: &Operation) -> Result<Reply, StoreError> {
        match operation {
            Operation::Take(charges) => self.take_at(time_us, &mut charges.clone()).map(Reply::Decision),
            Operation::On { bucket, quota, act } => self.act(time_us, bucket, *quota, *act),
        }
    }

    /// Writes how full it is.
    pub(crate) fn write_metrics(&self, page: &mut Page<'_>) {
        let (keys, networks) = self.shares.buckets();
        page.gauge("tollgate_memory_buckets", "Buckets in this process", keys + networks);
        page.gauge(
            "tollgate_memory_networks",
            "Buckets of client networks, which count keys for which their limit has no memory",
            networks,
        );
        page.gauge("tollgate_memory_bytes", "Approximate memory of these buckets", self.bytes());
        page.gauge(
            "tollgate_memory_max_bytes",
            "Limit of that memory: `max_memory`",
            self.shares.max_bytes(),
        );
        page.counter(
            "tollgate_memory_full",
            "Charges in this process for which there was no room in `max_memory`",
            self.turned_away.load(Relaxed),
        );
        page.counter(
            "tollgate_memory_overflows",
            "Decisions and reports on keys that were counted by client network, because their limit has no memory for more keys",
            self.shares.spilled(),
        );
    }

    /// Bytes that the buckets take, by the same count that is held to the bound.
    pub fn bytes(&self) -> usize {
        self.shares.bytes()
    }

    /// Bytes that the buckets may take.
    pub(crate) fn max_bytes(&self) -> usize {
        self.shares.max_bytes()
    }

    /// The limits that have counted new keys by client network within the last minute.
    pub(crate) fn overflowing(&self) -> Vec<String> {
        self.shares.spilling(self.time_us())
    }

    fn act(&self, time_us: u64, bucket: &Bytes, quota: Quota, act: Act) -> Result<Reply, StoreError> {
        let name = Name::of(bucket);
        match act {
            Act::Record(cost) => {
                self.record_at(time_us, &mut Charge { bucket: bucket.clone(), quota, cost, shadow: false })?;
            }
            Act::Report(cost) => {
                let mut charge = Charge { bucket: bucket.clone(), quota, cost, shadow: false };
                return self.report_at(time_us, &mut charge).map(Reply::Usage);
            }
            Act::Renew(id) => self.renew(time_us, bucket, quota, id)?,
            Act::Release(id) => {
                let mut shard = self.shard(name).lock();
                shard.advance(name, quota, time_us);
                if let Some(bucket) = shard.find_mut(name) {
                    // Without leases the bucket has ended, however long its last one would have lasted.
                    bucket.change(quota, |state| {
                        if let State::Leases(leases) = state {
                            leases.release(id);
                        }
                    });
                }
            }
            Act::Refund(refund) => return Ok(Reply::Refunded(self.refund(time_us, name, quota, refund))),
            Act::Peek(cost) => {
                return Ok(Reply::Usage(usage(&mut self.shard(name).lock(), name, quota, cost, time_us)));
            }
            Act::Reset => self.shard(name).lock().remove(name),
        }
        Ok(Reply::Done)
    }

    fn renew(&self, time_us: u64, bucket: &Bytes, quota: Quota, id: LeaseId) -> Result<(), StoreError> {
        let mut lease = [Charge { bucket: bucket.clone(), quota, cost: 1, shadow: false }];
        let (mut shards, _) = self.place(time_us, &mut lease)?;
        let name = Name::of(bucket);
        let shard = shards.of(self.index(name.hash));
        shard.advance(name, quota, time_us);
        let bucket = shard.begin(name, quota, time_us, || self.shares.of(None).keys.clone());
        bucket.change(quota, |state| {
            if let State::Leases(leases) = state {
                leases.renew(quota, time_us, id);
            }
        });
        Ok(())
    }

    /// Gives permits back, and returns by how many fewer are in use then.
    fn refund(&self, time_us: u64, name: Name<'_>, quota: Quota, refund: Refund) -> u64 {
        let mut shard = self.shard(name).lock();
        shard.advance(name, quota, time_us);
        let Some(bucket) = shard.find_mut(name) else { return 0 };
        let before = bucket.state.count().used(quota);
        bucket.state.count_mut().give_back(quota, time_us, refund);
        before - bucket.state.count().used(quota)
    }

    fn take_at<P: Placed>(&self, time_us: u64, charges: &mut [P]) -> Result<Decision, StoreError> {
        let (mut shards, hashes) = self.place_noted(time_us, charges)?;
        Ok(self.decide(&mut shards, time_us, charges, &hashes))
    }

    /// Locks the shards of charges, as [`Self::place`] does, and notes which limits count keys elsewhere.
    fn place_noted<P: Placed>(
        &self,
        time_us: u64,
        charges: &mut [P],
    ) -> Result<(Locked<'_>, Hashes), StoreError> {
        let placed = self.place(time_us, charges)?;
        for charge in charges.iter().filter(|charge| charge.is_moved()) {
            self.shares.note_spilled(&self.shares.of(charge.limit()), time_us);
        }
        Ok(placed)
    }

    /// Locks the shards of charges, and replaces those whose keys are counted elsewhere. Returns the shards, and the
    /// hashes of the buckets' names.
    fn place<P: Placed>(&self, time_us: u64, charges: &mut [P]) -> Result<(Locked<'_>, Hashes), StoreError> {
        let hashes: Hashes = charges.iter().map(|charge| text::hash(&charge.charge().bucket)).collect();
        let mut shards = self.lock(hashes.iter().map(|hash| self.index(*hash)).collect());
        let is_own = |(charge, hash): (&P, &u64)| {
            let name = Name::hashed(&charge.charge().bucket, *hash);
            shards.of(self.index(*hash)).find(name).is_some() || self.may_begin(charge)
        };
        if charges.iter().zip(&hashes).all(is_own) {
            return Ok((shards, hashes));
        }
        drop(shards);
        self.sweep_some(time_us);
        self.place_elsewhere(time_us, charges, hashes)
    }

    /// Locks the shards of charges and of their overflows, and chooses where each is counted.
    fn place_elsewhere<P: Placed>(
        &self,
        time_us: u64,
        charges: &mut [P],
        mut hashes: Hashes,
    ) -> Result<(Locked<'_>, Hashes), StoreError> {
        let mut indexes: SmallVec<[usize; 4]> = hashes.iter().map(|hash| self.index(*hash)).collect();
        let overflows: SmallVec<[Option<Overflow>; 2]> = charges.iter().map(Placed::overflow).collect();
        for Overflow { network, rest } in overflows.iter().flatten() {
            let buckets = network.iter().chain([rest]).map(|charge| Name::of(&charge.bucket));
            indexes.extend(buckets.map(|name| self.index(name.hash)));
        }
        let mut shards = self.lock(indexes);
        let mut choices: SmallVec<[Choice; 2]> = SmallVec::new();
        for (charge, overflow) in charges.iter().zip(&overflows) {
            choices.push(self.choose(&mut shards, time_us, charge, overflow.as_ref()));
        }
        if choices.iter().any(|choice| matches!(choice, Choice::Nowhere)) {
            self.turned_away.fetch_add(1, Relaxed);
            return Err(StoreError::Full);
        }
        for (at, (overflow, choice)) in overflows.into_iter().zip(choices).enumerate() {
            let moved = overflow.and_then(|Overflow { network, rest }| match choice {
                Choice::Network => network,
                Choice::Rest => Some(rest),
                Choice::Own | Choice::Nowhere => None,
            });
            if let Some(mut moved) = moved {
                hashes[at] = text::hash(&moved.bucket);
                if charges[at].is_other_reading() {
                    pay_once(&mut charges[..at], &mut moved);
                }
                charges[at].move_to(moved);
            }
        }
        Ok((shards, hashes))
    }

    /// Returns true if a new key may have a bucket, and no key of its limit is counted by network.
    fn may_begin<P: Placed>(&self, charge: &P) -> bool {
        let share = self.shares.of(charge.limit());
        let is_own = charge.purpose() != Purpose::NewKey || share.networks.buckets() == 0;
        is_own && self.has_room_for_key(&share, charge)
    }

    fn has_room_for_key<P: Placed>(&self, share: &Share, charge: &P) -> bool {
        self.shares.has_room(share, new_bytes(charge.charge()), charge.purpose())
    }

    /// Says where a charge is counted: each key in one place at a time. Who is counted by network stays so until that
    /// bucket is empty.
    fn choose<P: Placed>(
        &self,
        shards: &mut Locked<'_>,
        time_us: u64,
        charge: &P,
        overflow: Option<&Overflow>,
    ) -> Choice {
        let own = Name::of(&charge.charge().bucket);
        if shards.of(self.index(own.hash)).find(own).is_some() {
            return Choice::Own;
        }
        let share = self.shares.of(charge.limit());
        let has_room = self.has_room_for_key(&share, charge);
        if has_room && charge.purpose() != Purpose::NewKey {
            return Choice::Own;
        }
        let Some(Overflow { network, .. }) = overflow else {
            // A look begins no bucket.
            return if has_room || charge.charge().cost == 0 { Choice::Own } else { Choice::Nowhere };
        };
        let network = network.as_ref().map(|network| (network, Name::of(&network.bucket)));
        if let Some((_, name)) = network
            && shards.of(self.index(name.hash)).is_live(name, time_us)
        {
            return Choice::Network;
        }
        if has_room {
            return Choice::Own;
        }
        match network {
            Some((network, name))
                if shards.of(self.index(name.hash)).find(name).is_some()
                    || self.shares.has_room(&share, new_bytes(network), Purpose::Network) =>
            {
                Choice::Network
            }
            _ => Choice::Rest,
        }
    }

    /// Looks at the bucket of each charge, in their order.
    fn look_at<'c, P: Placed>(
        &self,
        shards: &mut Locked<'_>,
        time_us: u64,
        charges: &'c [P],
        hashes: &[u64],
    ) -> SmallVec<[Look<'c>; 2]> {
        let looks = charges.iter().zip(hashes).enumerate().map(|(at, (placed, hash))| {
            let (charge, index, total) = (placed.charge(), self.index(*hash), total_of(charges, at));
            let name = Name::hashed(&charge.bucket, *hash);
            let delay_us = shards.of(index).delay_us(charge, total.cost, name, time_us);
            Look { name, index, total, delay_us }
        });
        looks.collect()
    }

    /// Decides a request at one time, and charges it if all that enforces has room.
    fn decide<P: Placed>(
        &self,
        shards: &mut Locked<'_>,
        time_us: u64,
        charges: &[P],
        hashes: &[u64],
    ) -> Decision {
        let looks = self.look_at(shards, time_us, charges, hashes);
        let looked = || charges.iter().zip(&looks);
        let admitted = looked().all(|(placed, look)| placed.charge().shadow || look.fits());

        let mut leases = Vec::new();
        for (placed, Look { name, index, total, .. }) in looked() {
            if admitted && !total.only_looks && looks[total.first].fits() && placed.charge().cost > 0 {
                let shard = shards.of(*index);
                let mut held = Cow::Borrowed(placed.charge());
                if total.is_mixed {
                    held.to_mut().quota = charges[total.first].charge().quota;
                    shard.advance(*name, held.quota, time_us);
                }
                let bucket = self.charge(shard, *name, placed, &held, time_us);
                leases.extend(newest_lease(bucket, &held));
            }
        }
        // The delay is what it was: nothing was charged to a bucket in which its cost didn't fit.
        let outcomes = looked().map(|(placed, look)| {
            let (quota, shard) = (placed.charge().quota, shards.of(look.index));
            if look.total.is_mixed {
                shard.advance(look.name, quota, time_us);
            }
            let charged = admitted && !look.total.only_looks && look.fits();
            shard.look(look.name, quota, |state| outcome(state, quota, time_us, charged, look.delay_us))
        });
        Decision { time_us, admitted, outcomes: outcomes.collect(), leases }
    }

    /// Records a charge in the bucket that it names, which begins if it isn't there, in the memory for what is placed.
    fn charge<'s, P: Placed>(
        &self,
        shard: &'s mut Shard,
        name: Name<'_>,
        placed: &P,
        charge: &Charge,
        time_us: u64,
    ) -> &'s Bucket {
        let share = || self.shares.of(placed.limit());
        let pool = || -> Arc<Pool> {
            let share = share();
            if placed.is_moved() { share.networks.clone() } else { share.keys.clone() }
        };
        let bucket = shard.begin(name, charge.quota, time_us, pool);
        bucket.charge(charge, time_us, share, &self.shares);
        bucket
    }

    /// Sweeps the next few shards, unless that was done just now. A request must never wait for all of them.
    fn sweep_some(&self, time_us: u64) {
        let swept_us = self.swept_us.load(Relaxed);
        let due = time_us.abs_diff(swept_us) >= SWEEP_EVERY_US;
        if !due || self.swept_us.compare_exchange(swept_us, time_us, Relaxed, Relaxed).is_err() {
            return;
        }
        let mut looked_at = 0;
        for _ in 0..SWEPT_SHARDS {
            let next = self.to_sweep.fetch_add(1, Relaxed) % self.shards.len();
            let mut shard = self.shards[next].lock();
            looked_at += shard.len();
            shard.sweep(time_us);
            if looked_at >= SWEPT_BUCKETS {
                break;
            }
        }
    }

    /// Goes by bits of the hash that the shard's table doesn't go by.
    fn index(&self, hash: u64) -> usize {
        (hash >> 32) as usize % self.shards.len()
    }

    fn shard(&self, name: Name<'_>) -> &Mutex<Shard> {
        &self.shards[self.index(name.hash)]
    }

    /// Locks in ascending order, so that two decisions never wait for each other.
    fn lock(&self, mut indexes: SmallVec<[usize; 4]>) -> Locked<'_> {
        indexes.sort_unstable();
        indexes.dedup();
        Locked(indexes.into_iter().map(|index| (index, self.shards[index].lock())).collect())
    }
}

impl fmt::Debug for MemoryStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryStore").field("shares", &self.shares).finish_non_exhaustive()
    }
}

/// Returns the system's time in microseconds since 1970, but at least a year, so that no window reaches back before zero.
fn system_time_us() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    (since.as_micros() as u64).max(Rate::MAX_WINDOW_US)
}

/// Microseconds until a bucket has room for a charge of this cost.
fn delay_us(state: &State, quota: Quota, cost: u32, time_us: u64) -> Option<u64> {
    state.delay_us(quota, time_us, cost.max(1))
}

/// Returns the outcome of a charge that was made, or wasn't, for which there is room after this delay.
fn outcome(state: &State, quota: Quota, time_us: u64, charged: bool, delay_us: Option<u64>) -> Outcome {
    let count = state.count();
    let remaining = u64::from(quota.capacity()).saturating_sub(count.used(quota));
    Outcome { charged, remaining, grow_us: count.grow_us(quota, time_us), delay_us, rate: None }
}

fn usage(shard: &mut Shard, bucket: Name<'_>, quota: Quota, cost: u32, time_us: u64) -> Usage {
    shard.advance(bucket, quota, time_us);
    shard.look(bucket, quota, |state| Usage {
        used: state.count().used(quota),
        grow_us: state.count().grow_us(quota, time_us),
        delay_us: state.delay_us(quota, time_us, cost),
        rate: None,
    })
}

/// Returns the lease that a charge has just got, if the bucket has leases.
fn newest_lease(bucket: &Bucket, charge: &Charge) -> Option<Lease> {
    let State::Leases(held) = &bucket.state else { return None };
    Some(Lease { bucket: charge.bucket.clone(), quota: charge.quota, id: held.newest()? })
}

/// The bytes of a bucket that a charge begins.
fn new_bytes(charge: &Charge) -> usize {
    named_bytes(&charge.bucket) + State::new(charge.quota.algorithm).count().growth_bytes()
}

/// Charges the readings of one request that are counted together once, at the highest cost, since the request has only one of these
/// keys. A place in flight can't be shared.
fn pay_once<P: Placed>(before: &mut [P], moved: &mut Charge) {
    let pays =
        |other: &&mut P| other.is_moved() && other.charge().bucket == moved.bucket && other.charge().cost > 0;
    if moved.quota.algorithm != Algorithm::Concurrency
        && let Some(other) = before.iter_mut().find(pays)
    {
        let cost = other.charge().cost.max(moved.cost);
        other.move_to(Charge { cost, ..other.charge().clone() });
        moved.cost = 0;
    }
}

#[cfg(test)]
mod tests;
