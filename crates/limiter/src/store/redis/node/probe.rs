//! The probes of a node that fails: while they run, its breaker is open.

use std::{sync::Arc, time::Duration};

use futures_util::future::join_all;
use tokio::time::{Instant, sleep};

use crate::store::{
    redis::{
        batcher::{Batcher, SendMode},
        call,
    },
    script::Call,
};

use super::SharedNode;

const PROBE_EVERY: Duration = Duration::from_millis(100);
/// A probe waits as long as a call may take, but not less than this.
const PROBE_WAIT: Duration = Duration::from_millis(50);
/// Failed probes after which a connection is replaced: it may be dead without anyone having said so.
const PROBES_PER_CONNECTION: u32 = 5;
/// Failed probes of a client that is connecting, after which it starts again: it may be asking a Sentinel that knows nothing.
const PROBES_PER_ATTEMPT: u32 = 20;
/// Failed probes after which a Cluster is asked whether the node has been replaced.
const PROBES_PER_LOOK: u32 = 3;
/// Answered probes for which the breaker stays open until all threads have their connections back: one that
/// hasn't would open it again.
const PROBES_FOR_OTHERS: u32 = 3;

/// Closes the breaker when it is dropped, also because the probes' runtime ends: the next call that fails then starts probes on its
/// own.
pub(super) struct Probing(pub(super) Arc<SharedNode>);

impl Drop for Probing {
    fn drop(&mut self) {
        self.0.breaker.close();
    }
}

/// Asks the server for a sign of life, on all connections, until it gives one; then closes the breaker.
pub(super) async fn probe(probing: Probing) {
    let shared = probing.0.clone();
    let since = Instant::now();
    let (mut answered, mut failed) = (0, 0);
    loop {
        let (well, silent): (Vec<_>, Vec<_>) =
            probe_all(&shared).await.into_iter().partition(|probed| probed.answers);
        if !well.is_empty() {
            answered += 1;
            if silent.is_empty() || answered > PROBES_FOR_OTHERS {
                shared.trouble.forget();
                shared.meet();
                drop(probing);
                let (server, after_ms) = (&shared.name, since.elapsed().as_millis() as u64);
                tracing::info!(server, after_ms, "the store answers again");
                // It may be the first time.
                Box::pin(shared.test(&well[0].batcher.connection())).await;
                shared.warn_of_settings(&well[0].batcher.connection()).await;
                return;
            }
            // The server is well: it is the connection that isn't.
            silent.iter().filter(|probed| probed.is_connected).for_each(Probed::replace);
        } else if silent.is_empty() {
            // A node that is no more is of no interest.
            return;
        } else {
            failed += 1;
            silent.iter().filter(|probed| probed.has_had_its_time(failed)).for_each(Probed::replace);
            if failed.is_multiple_of(PROBES_PER_LOOK) {
                shared.ask_cluster();
            }
        }
        drop((well, silent));
        sleep(PROBE_EVERY).await;
    }
}

/// A thread's connection after a probe.
struct Probed {
    batcher: Arc<Batcher>,
    answers: bool,
    /// True if the connection is up, as far as the client knows.
    is_connected: bool,
}

/// A probe is a call without operations: a server may answer PING and no script, as while writes are paused.
async fn probe_all(shared: &SharedNode) -> Vec<Probed> {
    let probes = shared.batchers().into_iter().map(|batcher| async {
        let (connection, wait) = (batcher.connection(), shared.timeout.max(PROBE_WAIT));
        let answers =
            call::run(&connection, &Call::default(), SendMode::Together, Instant::now(), wait).await.is_ok();
        Probed { batcher, answers, is_connected: connection.is_connected() }
    });
    join_all(probes).await
}

impl Probed {
    /// Returns true if the connection is replaced after so many failed probes.
    fn has_had_its_time(&self, failed: u32) -> bool {
        let most = if self.is_connected { PROBES_PER_CONNECTION } else { PROBES_PER_ATTEMPT };
        failed.is_multiple_of(most) || self.batcher.connection().task.is_finished()
    }

    /// One that seems well may be so, and its server stand still: it is kept until another one is made.
    fn replace(&self) {
        if self.is_connected { self.batcher.go_over() } else { self.batcher.reconnect() }
    }
}
