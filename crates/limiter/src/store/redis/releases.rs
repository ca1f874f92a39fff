//! Releases of leases that the server hasn't confirmed.
//!
//! An unreleased lease takes up its limit until it ends by itself. If releases were lost in an outage, a limit could stay full after
//! Redis is back. A release names its lease and may be done twice: it is sent until it is answered. If a call's reply wasn't read,
//! all leases that it may have granted are released, too.
//!
//! Releases go by the thread's connection, so that a server that stood still runs the call first. If the connection was replaced
//! meanwhile, the call may still arrive later, and then its leases end by themselves.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use parking_lot::Mutex;
use tokio::time::sleep;

use super::{Act, LANE, Lease, Operation, batcher::Batcher};

/// Leases of a thread that are kept here. What is more ends by itself.
const LEASES_MOST: usize = 65_536;
/// The time between attempts.
const REPEAT_EVERY: Duration = Duration::from_millis(100);
/// Releases in an attempt, which leave room for requests among what waits.
const REPEATED_MOST: usize = 1_024;

/// The leases of a thread that are still to be released.
#[derive(Default)]
pub(super) struct Releases(Mutex<Unreleased>);

#[derive(Default)]
struct Unreleased {
    leases: VecDeque<Lease>,
    /// A task repeats their releases.
    is_repeated: bool,
}

impl Releases {
    /// Returns true if no release is pending.
    pub(super) fn are_done(&self) -> bool {
        !self.0.lock().is_repeated
    }

    /// Has leases released later.
    pub(super) fn add(&self, leases: impl IntoIterator<Item = Lease>, batcher: &Arc<Batcher>) {
        let mut unreleased = self.0.lock();
        let room = LEASES_MOST - unreleased.leases.len();
        unreleased.leases.extend(leases.into_iter().take(room));
        if !unreleased.leases.is_empty() && !unreleased.is_repeated {
            unreleased.is_repeated = true;
            batcher.runtime.spawn(repeat(batcher.clone()));
        }
    }

    /// Takes the next leases to release. If there are none, the task that asks ends.
    fn next(&self) -> Vec<Lease> {
        let mut unreleased = self.0.lock();
        let count = unreleased.leases.len().min(REPEATED_MOST);
        unreleased.is_repeated = count > 0;
        unreleased.leases.drain(..count).collect()
    }
}

/// Sends releases again until none is left: those that fail are added again. Ends when the store is dropped. In a Cluster, releases
/// of a node that was removed go on through the others.
async fn repeat(batcher: Arc<Batcher>) {
    loop {
        sleep(REPEAT_EVERY).await;
        let cluster = batcher.link.cluster();
        let has_store = cluster.is_some() || Arc::strong_count(&batcher) > 1;
        let leases = batcher.releases.next();
        if leases.is_empty() || !has_store {
            return;
        }
        for Lease { bucket, quota, id } in leases {
            let release = Operation::On { bucket, quota, act: Act::Release(id) };
            match &cluster {
                Some(cluster) => cluster.send(release),
                None => batcher.send(LANE, release),
            }
        }
    }
}
