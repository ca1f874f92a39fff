//! The counts of keys, by the limiter's own algorithm: of the store, of gateways without it, and of the ideal. Only keys that
//! were asked within a window have any.

use std::collections::HashMap;

use tollgate_limiter::{Quota, algorithm::State};

use super::{Parameters, sampling::Hash};

/// A decision of the store.
pub(super) struct Decided {
    pub(super) is_admitted: bool,
    pub(super) room: u64,
    /// The time until there is more room, or room for the request.
    pub(super) delay_us: u64,
}

struct Bucket {
    store: State,
    /// The count of one limiter that decides the same requests as soon as they arrive, and never fails.
    ideal: State,
    /// All that passed, whoever admitted it.
    passed: State,
}

pub(super) struct Counts {
    quota: Quota,
    share: Quota,
    buckets: HashMap<u32, Bucket, Hash>,
    local: HashMap<u64, State, Hash>,
    most_over: u64,
}

impl Counts {
    pub(super) fn new(parameters: &Parameters, gateways: u32) -> Self {
        let quota = Quota::from(parameters.rate);
        let share = quota.share(parameters.instances.unwrap_or(gateways));
        let (buckets, local) = Default::default();
        Self { quota, share, buckets, local, most_over: 0 }
    }

    /// Returns whether one exact limiter for all gateways would admit a request that comes now.
    pub(super) fn would_admit(&mut self, key: u32, at_us: u64) -> bool {
        let quota = self.quota;
        take(&mut self.bucket(key).ideal, quota, at_us).is_admitted
    }

    /// Decides a request in the store.
    pub(super) fn take(&mut self, key: u32, at_us: u64) -> Decided {
        let quota = self.quota;
        let decided = take(&mut self.bucket(key).store, quota, at_us);
        if decided.is_admitted {
            self.pass(key, at_us);
        }
        decided
    }

    /// Decides a request by what its gateway counts itself, of its share of the quota.
    pub(super) fn take_locally(&mut self, bucket: u64, at_us: u64) -> bool {
        let share = self.share;
        let count = self.local.entry(bucket).or_insert_with(|| State::new(share.algorithm));
        let is_admitted = take(count, share, at_us).is_admitted;
        is_admitted && self.allow(bucket as u32, at_us)
    }

    /// Admits a request that is counted nowhere.
    pub(super) fn allow(&mut self, key: u32, at_us: u64) -> bool {
        self.pass(key, at_us);
        true
    }

    /// Returns the most permits beyond L that passed in any window.
    pub(super) fn most_over(&self) -> u64 {
        self.most_over
    }

    /// Forgets what no longer counts.
    pub(super) fn sweep(&mut self, at_us: u64) {
        let (quota, share) = (self.quota, self.share);
        let counts = |state: &State, quota: Quota| state.count().ends_us(quota) > at_us;
        self.buckets.retain(|_, Bucket { store, ideal, passed }| {
            counts(store, quota) || counts(ideal, quota) || counts(passed, quota)
        });
        self.local.retain(|_, count| counts(count, share));
    }

    fn bucket(&mut self, key: u32) -> &mut Bucket {
        let state = || State::new(self.quota.algorithm);
        self.buckets.entry(key).or_insert_with(|| Bucket { store: state(), ideal: state(), passed: state() })
    }

    fn pass(&mut self, key: u32, at_us: u64) {
        let quota = self.quota;
        let count = self.bucket(key).passed.count_mut();
        count.advance(quota, at_us);
        count.charge(quota, at_us, 1);
        let used = count.used(quota);
        self.most_over = self.most_over.max(used.saturating_sub(u64::from(quota.permits)));
    }
}

fn take(state: &mut State, quota: Quota, at_us: u64) -> Decided {
    state.count_mut().advance(quota, at_us);
    let delay_us = state.delay_us(quota, at_us, 1).unwrap_or(quota.window_us);
    let is_admitted = delay_us == 0;
    if is_admitted {
        state.count_mut().charge(quota, at_us, 1);
    }
    let count = state.count();
    let room = u64::from(quota.permits).saturating_sub(count.used(quota));
    let delay_us = if is_admitted { count.grow_us(quota, at_us) } else { delay_us };
    Decided { is_admitted, room, delay_us }
}
