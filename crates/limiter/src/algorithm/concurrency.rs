//! Concurrency: at most C requests in flight, each with a lease that ends when it does.
//!
//! Twin of lua/concurrency.lua. A lease ends by itself unless it is renewed within the quota's window. There
//! is no telling when there will be room; a refusal says a second.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::{Count, Quota, Refund};

/// The delay that refusals state, in microseconds.
pub(crate) const COME_BACK_US: u64 = 1_000_000;

static GRANTS: AtomicU64 = AtomicU64::new(0);

/// The identity of a lease among those of all gateways: the store call that made it, and its turn in the call.
///
/// # Examples
///
/// ```
/// use tollgate_limiter::store::LeaseId;
///
/// assert!(LeaseId { call: 1, turn: 2 } < LeaseId { call: 2, turn: 1 });
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LeaseId {
    /// The call, as this process counts them; 0 for the in-process store.
    pub call: u64,
    /// The turn among the grants that a bucket made in the call, from 1.
    pub turn: u64,
}

/// The leases of one bucket.
#[derive(Debug, Default)]
pub struct Leases {
    /// In order of their ids, each with the time at which it ends.
    held: Vec<(LeaseId, u64)>,
}

impl Leases {
    /// The lease that was granted last.
    pub fn newest(&self) -> Option<LeaseId> {
        self.held.last().map(|(id, _)| *id)
    }

    /// Makes a lease last from `time_us`, also one that had ended.
    pub fn renew(&mut self, quota: Quota, time_us: u64, id: LeaseId) {
        let lease = (id, time_us + quota.window_us);
        match self.held.binary_search_by_key(&id, |(id, _)| *id) {
            Ok(at) => self.held[at] = lease,
            Err(at) => {
                if self.held.len() == self.held.capacity() {
                    self.held.reserve_exact(self.held.capacity().max(1));
                }
                self.held.insert(at, lease);
            }
        }
    }

    /// Ends a lease.
    pub fn release(&mut self, id: LeaseId) {
        if let Ok(at) = self.held.binary_search_by_key(&id, |(id, _)| *id) {
            self.held.remove(at);
        }
    }
}

impl Count for Leases {
    fn advance(&mut self, _: Quota, time_us: u64) {
        self.held.retain(|(_, ends_us)| *ends_us > time_us);
    }

    fn used(&self, _: Quota) -> u64 {
        self.held.len() as u64
    }

    fn charge(&mut self, quota: Quota, time_us: u64, _: u32) {
        let turn = GRANTS.fetch_add(1, Relaxed) + 1;
        self.renew(quota, time_us, LeaseId { call: 0, turn });
    }

    /// A lease is released instead.
    fn give_back(&mut self, _: Quota, _: u64, _: Refund) {}

    fn grow_us(&self, _: Quota, _: u64) -> u64 {
        if self.held.is_empty() { 0 } else { COME_BACK_US }
    }

    fn wait_us(&self, _: Quota, _: u64, _: u32) -> u64 {
        COME_BACK_US
    }

    fn ends_us(&self, _: Quota) -> u64 {
        self.held.iter().map(|(_, ends_us)| *ends_us).max().unwrap_or(0)
    }

    fn bytes(&self) -> usize {
        self.held.capacity() * size_of::<(LeaseId, u64)>()
    }

    fn growth_bytes(&self) -> usize {
        let is_full = self.held.len() == self.held.capacity();
        if is_full { self.held.capacity().max(1) * size_of::<(LeaseId, u64)>() } else { 0 }
    }

    fn shrink(&mut self) {
        self.held.shrink_to_fit();
    }
}
