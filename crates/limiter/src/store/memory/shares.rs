//! The memory of the in-process store, divided among limits.
//!
//! Each limit has an equal share of `max_memory`. Six eighths of it are for the buckets of keys, one more for what known
//! keys need to grow and for bans, and the last for the buckets of networks, in which new keys are counted past that. A limit can
//! therefore take nothing from another one. The reasons and the bounds are in docs/adr/0001-memory-per-limit.md.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{
            AtomicBool, AtomicU64, AtomicUsize,
            Ordering::{AcqRel, Acquire, Relaxed},
        },
    },
};

use parking_lot::RwLock;

use crate::store::Purpose;

/// Shares of limits that were not announced; further limits count in the common share.
const SHARES_MOST: usize = 1_000;
/// The time for which a limit counts as counting by network after it last did.
const RECENT_US: u64 = 60_000_000;
const SAY_AGAIN_AFTER_US: u64 = 60_000_000;

/// Bytes and number of some buckets.
#[derive(Debug)]
pub(super) struct Pool {
    bytes: AtomicUsize,
    buckets: AtomicUsize,
    /// Bytes of all pools of the store.
    all: Arc<AtomicUsize>,
}

impl Pool {
    fn new(all: &Arc<AtomicUsize>) -> Arc<Self> {
        Arc::new(Self { bytes: AtomicUsize::new(0), buckets: AtomicUsize::new(0), all: all.clone() })
    }

    pub(super) fn buckets(&self) -> usize {
        self.buckets.load(Relaxed)
    }

    pub(super) fn begin(&self, bytes: usize) {
        self.buckets.fetch_add(1, Relaxed);
        self.grow(bytes);
    }

    pub(super) fn end(&self, bytes: usize) {
        self.buckets.fetch_sub(1, Relaxed);
        self.shrink(bytes);
    }

    pub(super) fn grow(&self, bytes: usize) {
        if bytes > 0 {
            self.bytes.fetch_add(bytes, Relaxed);
            self.all.fetch_add(bytes, Relaxed);
        }
    }

    pub(super) fn shrink(&self, bytes: usize) {
        if bytes > 0 {
            self.bytes.fetch_sub(bytes, Relaxed);
            self.all.fetch_sub(bytes, Relaxed);
        }
    }
}

/// The memory of one limit.
#[derive(Debug)]
pub(super) struct Share {
    limit: String,
    /// The memory of the buckets of keys.
    pub(super) keys: Arc<Pool>,
    /// The memory of the buckets of networks.
    pub(super) networks: Arc<Pool>,
    /// The time at which a key was last counted by its network.
    spilled_us: AtomicU64,
    said_us: AtomicU64,
}

impl Share {
    fn new(limit: &str, all: &Arc<AtomicUsize>) -> Arc<Self> {
        Arc::new(Self {
            limit: limit.to_owned(),
            keys: Pool::new(all),
            networks: Pool::new(all),
            spilled_us: AtomicU64::new(0),
            said_us: AtomicU64::new(0),
        })
    }

    fn is_empty(&self) -> bool {
        self.keys.buckets() + self.networks.buckets() == 0
    }

    fn spilled_lately(&self, time_us: u64) -> bool {
        let spilled_us = self.spilled_us.load(Relaxed);
        spilled_us > 0 && time_us.saturating_sub(spilled_us) < RECENT_US
    }
}

/// The shares of all limits.
#[derive(Debug)]
pub(super) struct Shares {
    max_bytes: usize,
    bytes: Arc<AtomicUsize>,
    /// The share of operations without a limit, and of limits beyond `SHARES_MOST`. Only the whole bounds it.
    common: Arc<Share>,
    by_limit: RwLock<HashMap<String, Arc<Share>>>,
    /// True if all limits are known. If not, one more share is always reserved for the next limit.
    is_announced: AtomicBool,
    /// The number of shares into which the memory is divided.
    count: AtomicUsize,
    /// Decisions and reports on keys that were counted by their network.
    spilled: AtomicU64,
}

impl Shares {
    pub(super) fn new(max_bytes: usize) -> Self {
        let bytes = Arc::new(AtomicUsize::new(0));
        Self {
            max_bytes,
            common: Share::new("", &bytes),
            bytes,
            by_limit: RwLock::default(),
            is_announced: AtomicBool::new(false),
            count: AtomicUsize::new(1),
            spilled: AtomicU64::new(0),
        }
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes.load(Relaxed)
    }

    pub(super) fn max_bytes(&self) -> usize {
        self.max_bytes
    }

    /// Divides the memory among these limits. One that isn't named keeps its share until it has no bucket any more.
    pub(super) fn announce<'l>(&self, limits: impl IntoIterator<Item = &'l str>) {
        let mut by_limit = self.by_limit.write();
        let mut named: HashMap<String, Arc<Share>> = HashMap::new();
        for limit in limits {
            let share = by_limit.remove(limit).unwrap_or_else(|| Share::new(limit, &self.bytes));
            named.insert(limit.to_owned(), share);
        }
        named.extend(by_limit.drain().filter(|(_, share)| !share.is_empty()));
        *by_limit = named;
        self.is_announced.store(true, Relaxed);
        self.recount(&by_limit);
    }

    /// The share of a limit, which has one from now on.
    pub(super) fn of(&self, limit: Option<&str>) -> Arc<Share> {
        let Some(limit) = limit else { return self.common.clone() };
        if let Some(share) = self.by_limit.read().get(limit) {
            return share.clone();
        }
        let mut by_limit = self.by_limit.write();
        if by_limit.len() >= SHARES_MOST {
            by_limit.retain(|_, share| !share.is_empty());
        }
        let share = match by_limit.get(limit) {
            Some(share) => share.clone(),
            None if by_limit.len() >= SHARES_MOST => self.common.clone(),
            None => {
                let share = Share::new(limit, &self.bytes);
                by_limit.insert(limit.to_owned(), share.clone());
                share
            }
        };
        self.recount(&by_limit);
        share
    }

    fn recount(&self, by_limit: &HashMap<String, Arc<Share>>) {
        let spare = usize::from(!self.is_announced.load(Relaxed));
        self.count.store((by_limit.len() + spare).max(1), Relaxed);
    }

    /// Bytes that a limit may use.
    fn share_bytes(&self) -> usize {
        self.max_bytes / self.count.load(Relaxed)
    }

    /// Returns true if a limit can use so many bytes more. Two threads at once can exceed a bound by one bucket each.
    pub(super) fn has_room(&self, share: &Share, bytes: usize, purpose: Purpose) -> bool {
        // Networks have some room beyond the whole: after a reload, counts of other limits may exceed their share, and fill the whole for as
        // long as they are used.
        let whole = match purpose {
            Purpose::Network if !share.limit.is_empty() => self.max_bytes / 8 * 9,
            _ => self.max_bytes,
        };
        if self.bytes().saturating_add(bytes) > whole {
            return false;
        }
        if share.limit.is_empty() {
            return true;
        }
        let (pool, eighths) = match purpose {
            Purpose::NewKey => (&share.keys, 6),
            Purpose::NamedKey => (&share.keys, 8),
            Purpose::Ban | Purpose::Growth => (&share.keys, 7),
            Purpose::Network => (&share.networks, 1),
        };
        let most = self.share_bytes() / 8 * eighths;
        pool.bytes.load(Relaxed).saturating_add(bytes) <= most
    }

    /// Notes that a new key of a limit was counted by its network, and says so once a minute.
    pub(super) fn note_spilled(&self, share: &Share, time_us: u64) {
        self.spilled.fetch_add(1, Relaxed);
        share.spilled_us.store(time_us, Relaxed);
        let said_us = share.said_us.load(Acquire);
        let is_due = said_us == 0 || time_us.saturating_sub(said_us) >= SAY_AGAIN_AFTER_US;
        if is_due && share.said_us.compare_exchange(said_us, time_us, AcqRel, Relaxed).is_ok() {
            tracing::warn!(
                limit = share.limit,
                keys = share.keys.buckets(),
                networks = share.networks.buckets(),
                "the limit `{}` has used up its share of the memory, {} KiB: new keys are counted by client network. \
                 See \"Keys that clients choose\" in docs/operations.md",
                share.limit,
                self.share_bytes() >> 10,
            );
        }
    }

    /// The limits that have counted new keys by network within the last minute.
    pub(super) fn spilling(&self, time_us: u64) -> Vec<String> {
        let by_limit = self.by_limit.read();
        let spilling = by_limit.values().filter(|share| share.spilled_lately(time_us));
        spilling.map(|share| share.limit.clone()).collect()
    }

    /// Buckets of keys and of networks.
    pub(super) fn buckets(&self) -> (usize, usize) {
        let by_limit = self.by_limit.read();
        let shares = by_limit.values().chain([&self.common]);
        shares.fold((0, 0), |(keys, networks), share| {
            (keys + share.keys.buckets(), networks + share.networks.buckets())
        })
    }

    /// Returns the number of decisions by network.
    pub(super) fn spilled(&self) -> u64 {
        self.spilled.load(Relaxed)
    }
}
