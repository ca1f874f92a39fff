//! Releases of leases that the server hasn't confirmed.
//!
//! An unreleased lease takes up its limit until it ends by itself. If releases were lost in an outage, a limit could stay full after
//! Redis is back. A release names its lease and may be done twice: it is sent until it is done, for at most twice the time that a
//! lease lasts. If a call's reply wasn't read, all leases that it may have granted are released, too.
//!
//! Releases go by the thread's connection, so that a server that stood still runs the call first. If the connection was replaced
//! meanwhile, the call may still arrive later, and then its leases end by themselves.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use futures_util::future::join_all;
use parking_lot::Mutex;
use tokio::time::{Instant, sleep};

use super::{LANE, Lease, Reply, StoreError, batcher::Batcher};

/// Leases of a thread that are kept here. What is more ends by itself.
const LEASES_MOST: usize = 65_536;
/// The time between attempts.
const REPEAT_EVERY: Duration = Duration::from_millis(100);
/// Releases in an attempt, which leave room for requests among what waits.
const REPEATED_MOST: usize = 1_024;

/// The leases of a thread that are still to be released.
#[derive(Default)]
pub(super) struct Releases(Mutex<Pending>);

#[derive(Default)]
struct Pending {
    leases: VecDeque<Unreleased>,
    /// A task repeats their releases.
    is_repeated: bool,
}

/// A lease that nobody uses.
struct Unreleased {
    lease: Lease,
    /// The time by which it has ended by itself, even if a call that waits at the server has yet to grant it.
    repeated_until: Instant,
}

impl Releases {
    /// Returns true if no release is pending.
    pub(super) fn are_done(&self) -> bool {
        !self.0.lock().is_repeated
    }

    /// Has leases released later.
    pub(super) fn add(&self, leases: impl IntoIterator<Item = Lease>, batcher: &Arc<Batcher>) {
        let now = Instant::now();
        let unreleased = leases.into_iter().map(|lease| {
            let repeated_until = now + 2 * Duration::from_micros(lease.quota.window_us);
            Unreleased { lease, repeated_until }
        });
        let mut pending = self.0.lock();
        pending.keep(unreleased);
        if !pending.leases.is_empty() && !pending.is_repeated {
            pending.is_repeated = true;
            batcher.runtime.spawn(repeat(batcher.clone()));
        }
    }

    /// Takes the next leases to release. If there are none, the task that asks ends.
    fn next(&self) -> Vec<Unreleased> {
        let mut pending = self.0.lock();
        let count = pending.leases.len().min(REPEATED_MOST);
        pending.is_repeated = count > 0;
        pending.leases.drain(..count).collect()
    }
}

impl Pending {
    fn keep(&mut self, leases: impl Iterator<Item = Unreleased>) {
        let room = LEASES_MOST.saturating_sub(self.leases.len());
        self.leases.extend(leases.take(room));
    }
}

/// Releases leases until none is left. An attempt takes as long as the slowest server, at most the store's timeout. Ends when the store is dropped. In a Cluster, releases of a node that was removed go on
/// through the others.
async fn repeat(batcher: Arc<Batcher>) {
    loop {
        sleep(REPEAT_EVERY).await;
        let has_store = batcher.shared.cluster().is_some() || Arc::strong_count(&batcher) > 1;
        let leases = batcher.releases.next();
        if leases.is_empty() || !has_store {
            return;
        }
        let attempts = join_all(leases.iter().map(|Unreleased { lease, .. }| release(&batcher, lease))).await;
        let now = Instant::now();
        let is_left = |(unreleased, attempt): &(Unreleased, Result<Reply, StoreError>)| {
            attempt.is_err() && unreleased.repeated_until > now
        };
        let kept = leases.into_iter().zip(attempts).filter(is_left);
        batcher.releases.0.lock().keep(kept.map(|(unreleased, _)| unreleased));
    }
}

async fn release(batcher: &Arc<Batcher>, lease: &Lease) -> Result<Reply, StoreError> {
    let release = lease.clone().release();
    let deadline = Instant::now() + batcher.shared.timeout;
    match batcher.shared.cluster() {
        Some(cluster) => cluster.operate(&release, deadline).await,
        None if batcher.shared.breaker.is_open() => Err(StoreError::Open),
        None => batcher.clone().operate(batcher.deadlines(), LANE, release, deadline)?.await,
    }
}
