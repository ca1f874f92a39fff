//! Releases of leases that the server hasn't confirmed, and costs that it certainly hasn't recorded.
//!
//! An unreleased lease takes up its limit until it ends by itself. If releases were lost in an outage, a limit could stay full after
//! Redis is back. A release names its lease and may be done twice: it is sent until it is done, for at most twice the time that a
//! lease lasts. If a call's reply wasn't read, all leases that it may have granted are released, too.
//!
//! Releases go by the thread's connection, so that a server that stood still runs the call first. If the connection was replaced
//! meanwhile, the call may still arrive later, and then its leases end by themselves.
//!
//! A cost of a request that was admitted mustn't be recorded twice. So it is sent again only if it certainly wasn't recorded, since
//! the breaker was open, too many operations waited, or the server refused the whole call, and within the limit's window.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use futures_util::stream::{self, StreamExt};
use parking_lot::Mutex;
use tokio::time::{Instant, sleep};

use super::{Act, LANE, Operation, Reply, StoreError, batcher::Batcher};

/// Operations of a thread that are kept here. What is more is lost: leases end by themselves.
const KEPT_MOST: usize = 65_536;
/// The time between attempts.
const REPEAT_EVERY: Duration = Duration::from_millis(100);
/// Operations in an attempt, which leave room for requests among what waits.
const REPEATED_MOST: usize = 1_024;
/// Operations that are attempted at a time in a Cluster, where each slot has calls of its own: more would wait too long for theirs.
const AT_A_TIME_IN_CLUSTER: usize = 16;

/// The operations of a thread that are still to be done.
#[derive(Default)]
pub(super) struct Releases(Mutex<Pending>);

#[derive(Default)]
struct Pending {
    operations: VecDeque<Repeated>,
    /// A task repeats them.
    is_repeated: bool,
}

/// An operation that is to be done, for whose reply nobody waits.
struct Repeated {
    operation: Operation,
    /// The time by which it has no effect any more: the lease has ended by itself, or the cost is out of its window.
    until: Instant,
}

impl Repeated {
    /// Returns a release or a cost, to be done for as long as it has an effect.
    fn from_now(operation: Operation) -> Option<Self> {
        let Operation::On { quota, act, .. } = &operation else { return None };
        let window = Duration::from_micros(quota.window_us);
        let lasts = match act {
            // A call that waits at the server may grant the lease later.
            Act::Release(_) => 2 * window,
            _ => window,
        };
        Some(Self { until: Instant::now() + lasts, operation })
    }
}

impl Releases {
    /// Returns true if nothing is pending.
    pub(super) fn are_done(&self) -> bool {
        !self.0.lock().is_repeated
    }

    /// Has operations done later.
    pub(super) fn add(&self, operations: impl IntoIterator<Item = Operation>, batcher: &Arc<Batcher>) {
        let mut pending = self.0.lock();
        pending.keep(operations.into_iter().filter_map(Repeated::from_now), batcher);
        if !pending.operations.is_empty() && !pending.is_repeated {
            pending.is_repeated = true;
            batcher.runtime.spawn(repeat(batcher.clone()));
        }
    }

    /// Takes the next operations. If there are none, the task that asks ends.
    fn next(&self) -> Vec<Repeated> {
        let mut pending = self.0.lock();
        let count = pending.operations.len().min(REPEATED_MOST);
        pending.is_repeated = count > 0;
        pending.operations.drain(..count).collect()
    }
}

impl Pending {
    fn keep(&mut self, operations: impl Iterator<Item = Repeated>, batcher: &Arc<Batcher>) {
        for repeated in operations {
            match self.operations.len() < KEPT_MOST {
                true => self.operations.push_back(repeated),
                false => batcher.note_lost(&repeated.operation),
            }
        }
    }
}

/// Does operations until none is left. An attempt takes as long as the slowest server, at most the store's timeout. Ends when the store is
/// dropped. In a Cluster, those of a node that was removed go on through the others.
async fn repeat(batcher: Arc<Batcher>) {
    loop {
        sleep(REPEAT_EVERY).await;
        let has_store = batcher.shared.cluster().is_some() || Arc::strong_count(&batcher) > 1;
        let operations = batcher.releases.next();
        if operations.is_empty() || !has_store {
            return;
        }
        let at_a_time = if batcher.shared.cluster().is_some() { AT_A_TIME_IN_CLUSTER } else { REPEATED_MOST };
        let attempts = operations.into_iter().map(|repeated| attempt(batcher.clone(), repeated));
        let attempts = stream::iter(attempts).buffer_unordered(at_a_time).collect::<Vec<_>>().await;
        let now = Instant::now();
        let kept = attempts.into_iter().filter_map(|(repeated, attempt)| {
            let error = attempt.err()?;
            if repeated.until > now && may_be_repeated(&repeated.operation, &error) {
                return Some(repeated);
            }
            batcher.note_lost(&repeated.operation);
            None
        });
        batcher.releases.0.lock().keep(kept, &batcher);
    }
}

/// The beginnings of errors by which the server refuses a call for a time. It refuses the first command that writes, so nothing has been
/// written.
const REFUSALS: [&str; 13] = [
    "ASK ",
    "BUSY ",
    "CLUSTERDOWN",
    "LOADING",
    "MASTERDOWN",
    "MISCONF",
    "MOVED ",
    "NOAUTH",
    "NOREPLICAS",
    "OOM ",
    "READONLY",
    "TRYAGAIN",
    "WRONGPASS",
];

/// Returns true if the server has refused a call for a time. If the script had caught the error, it is told behind `ERR`, and before Redis 7
/// it is anyway, as `ERR Error running script (call to f_0): @user_script:1: @user_script: 1: -OOM command not allowed …`.
fn is_refusal(error: &str) -> bool {
    let own = error.strip_prefix("ERR ").unwrap_or(error);
    let is_told = |refusal: &&str| {
        own.strip_prefix("Error running script")
            .map_or(own.starts_with(*refusal), |script| script.contains(&format!("-{refusal}")))
    };
    REFUSALS.iter().any(is_told)
}

/// Returns true if an operation that failed with this error may be done again: a release anyway, and a cost that wasn't recorded.
pub(super) fn may_be_repeated(operation: &Operation, error: &StoreError) -> bool {
    let is_unsent = match error {
        StoreError::Open | StoreError::Overloaded => true,
        StoreError::Answer(error) => is_refusal(error.details()),
        _ => false,
    };
    match operation {
        Operation::On { act: Act::Release(_), .. } => true,
        Operation::On { act: Act::Record(_), .. } => is_unsent,
        _ => false,
    }
}

async fn attempt(batcher: Arc<Batcher>, repeated: Repeated) -> (Repeated, Result<Reply, StoreError>) {
    let now = Instant::now();
    let reply = match repeated.until > now {
        true => operate(batcher, &repeated.operation, now).await,
        false => Err(StoreError::Timeout),
    };
    (repeated, reply)
}

async fn operate(batcher: Arc<Batcher>, operation: &Operation, now: Instant) -> Result<Reply, StoreError> {
    let deadline = now + batcher.shared.timeout;
    match batcher.shared.cluster() {
        Some(cluster) => cluster.operate(operation, deadline).await,
        // Another thread's connection may be the only one that the server accepts.
        None if batcher.shared.breaker.is_open() || !batcher.is_connected() => Err(StoreError::Open),
        None => batcher.clone().operate(batcher.deadlines(), LANE, operation.clone(), deadline)?.await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_are_known_however_the_server_tells_them() {
        for error in [
            "OOM command not allowed when used memory > 'maxmemory'. script: f_0, on @user_script:1.",
            "ERR READONLY You can't write against a read only replica., script: f_0, on @user_script:1439.",
            "ERR Error running script (call to f_0): @user_script:279: @user_script: 279: -OOM command not allowed when used memory > 'maxmemory'.",
            "NOAUTH Authentication required.",
        ] {
            assert!(is_refusal(error), "{error}");
        }
        for error in [
            "WRONGTYPE Operation against a key holding the wrong kind of value",
            "ERR Error running script (call to f_0): @user_script:1: OOM",
            "ERR unknown command 'OOM'",
        ] {
            assert!(!is_refusal(error), "{error}");
        }
    }
}
