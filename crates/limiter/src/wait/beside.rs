//! Permits that waiting requests are to take of other buckets than the one that they wait for.
//!
//! A request that waits holds up those behind it, so one that another limit refuses in the end must not wait. For it, those that came
//! before count as if they had these permits already.

use std::collections::HashMap;

use bytes::Bytes;
use parking_lot::Mutex;
use smallvec::SmallVec;

use super::Awaited;

/// The permits that are held, by bucket. Without those that nobody holds.
#[derive(Default)]
pub(crate) struct BesideWaits(Mutex<HashMap<Bytes, u64>>);

/// The permits that a request holds for as long as this value lives.
pub(crate) struct HeldBeside<'w> {
    waits: &'w BesideWaits,
    /// The other buckets, each with the permits that those before hold.
    pub(crate) buckets: SmallVec<[(Awaited, u64); 2]>,
}

impl BesideWaits {
    /// Holds the permits of a request, one charge a bucket.
    pub(crate) fn hold(&self, charges: impl Iterator<Item = Awaited>) -> HeldBeside<'_> {
        let mut held = self.0.lock();
        let buckets = charges.map(|awaited| {
            let all = held.entry(awaited.bucket.clone()).or_default();
            let before = *all;
            *all += awaited.cost();
            (awaited, before)
        });
        HeldBeside { waits: self, buckets: buckets.collect() }
    }
}

impl Drop for HeldBeside<'_> {
    fn drop(&mut self) {
        let mut held = self.waits.0.lock();
        for (awaited, _) in &self.buckets {
            let Some(all) = held.get_mut(&awaited.bucket) else { continue };
            *all = all.saturating_sub(awaited.cost());
            if *all == 0 {
                held.remove(&awaited.bucket);
            }
        }
    }
}
