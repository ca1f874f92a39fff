//! Permits that waiting requests will take from their other limits.
//!
//! A request that waits holds up those behind it, so one that another limit refuses in the end must not wait. For it, those ahead of it
//! in the queue count as if they had these permits already. Those in other queues don't: their turns may come much later.

use std::collections::HashMap;

use bytes::Bytes;
use parking_lot::Mutex;
use smallvec::SmallVec;

use super::Awaited;

/// The permits that the requests of each queue are to take, by the queue's bucket and the other one.
#[derive(Default)]
pub(crate) struct BesideWaits(Mutex<HashMap<(Bytes, Bytes), u64>>);

/// The permits that a request is to take beside those that it waits for. They are counted for as long as this value lives.
pub(crate) struct HeldBeside<'w> {
    waits: &'w BesideWaits,
    /// The bucket that is waited for.
    queue: Bytes,
    /// The other buckets, each with the permits that others in the queue are to take.
    pub(crate) buckets: SmallVec<[(Awaited, u64); 2]>,
}

impl BesideWaits {
    /// Counts the permits of a request that is to join a queue.
    pub(crate) fn hold(&self, queue: &Bytes, others: impl Iterator<Item = Awaited>) -> HeldBeside<'_> {
        let mut held = self.0.lock();
        let buckets = others.map(|awaited| {
            let all = held.entry((queue.clone(), awaited.bucket.clone())).or_default();
            let before = *all;
            *all += awaited.cost();
            (awaited, before)
        });
        HeldBeside { waits: self, queue: queue.clone(), buckets: buckets.collect() }
    }
}

impl Drop for HeldBeside<'_> {
    fn drop(&mut self) {
        let mut held = self.waits.0.lock();
        for (awaited, _) in &self.buckets {
            let key = (self.queue.clone(), awaited.bucket.clone());
            let Some(all) = held.get_mut(&key) else { continue };
            *all = all.saturating_sub(awaited.cost());
            if *all == 0 {
                held.remove(&key);
            }
        }
    }
}
