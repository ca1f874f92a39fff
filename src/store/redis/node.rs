//! A node is one server, or the primary that Sentinels name: for each thread a [`Batcher`] with a
//! connection of its own, and a breaker that the threads share.

use std::{
    sync::{
        Arc, Weak,
        atomic::{AtomicU32, Ordering::Relaxed},
    },
    time::Duration,
};

use arc_swap::ArcSwap;
use bytes::Bytes;
use fred::types::{ClusterHash, CustomCommand, Value, config::Config};
use parking_lot::Mutex;
use thread_local::ThreadLocal;
use tokio::{
    runtime::Handle,
    time::{Instant, sleep},
};

use super::{
    Operation, Reply, StoreError,
    batcher::{Batcher, Lane, Manner},
    breaker::{Breaker, Trouble},
    cluster::Cluster,
    connection::{CONNECT_TIMEOUT, SHORTEST_WAIT, failure},
    sentinel,
};

const PROBE_EVERY: Duration = Duration::from_millis(100);
/// A probe waits as long as a call may take, but not less than this.
const PROBE_WAIT: Duration = Duration::from_millis(50);
/// Failed probes after which the connection is replaced: it may be dead without anyone having said so.
const PROBES_PER_CONNECTION: u32 = 20;
/// Failed probes after which a Cluster is asked whether the node has been replaced.
const PROBES_PER_LOOK: u32 = 3;
/// Answered probes for which the breaker stays open until all threads have their connections back: one that
/// hasn't would open it again.
const PROBES_FOR_OTHERS: u32 = 3;

/// A server, and this process's connections to it.
pub(super) struct Node {
    pub(super) link: Arc<Link>,
    batchers: ThreadLocal<ArcSwap<Batcher>>,
    /// When it was first heard of.
    pub(super) since: Instant,
}

/// A server as all threads see it.
pub(super) struct Link {
    pub(super) name: String,
    pub(super) config: Config,
    pub(super) timeout: Duration,
    pub(super) breaker: Breaker,
    pub(super) trouble: Trouble,
    batchers: Mutex<Vec<Weak<Batcher>>>,
    /// What it is a node of; nothing if it stands alone.
    cluster: Weak<Cluster>,
    looks: AtomicU32,
}

impl Node {
    /// Nothing is connected yet.
    pub(super) fn new(name: String, config: Config, timeout: Duration, cluster: Weak<Cluster>) -> Self {
        let trouble = Trouble::with(name.clone());
        let (breaker, batchers, looks) = Default::default();
        let link = Link { name, config, timeout, breaker, trouble, batchers, cluster, looks };
        Self { link: Arc::new(link), batchers: ThreadLocal::new(), since: Instant::now() }
    }

    /// Connects this thread, which must run a tokio runtime.
    pub(super) async fn warm_up(&self) -> Result<(), StoreError> {
        let connection = self.batcher().connection();
        connection.connected(Instant::now() + CONNECT_TIMEOUT).await?;
        connection.ping(CONNECT_TIMEOUT).await.map_err(failure)
    }

    /// Waits until this thread is connected.
    pub(super) async fn connected(&self, deadline: Instant) -> Result<(), StoreError> {
        self.batcher().connection().connected(deadline).await
    }

    /// Does an operation in the next call of this thread's batcher on the lane.
    pub(super) async fn operate(
        &self,
        lane: Lane,
        operation: Operation,
        deadline: Instant,
    ) -> Result<Reply, StoreError> {
        if self.link.breaker.is_open() {
            return Err(StoreError::Open);
        }
        self.batcher().operate(lane, operation, deadline).await
    }

    /// Does an operation in the next call of this thread's batcher, if the server can be reached now.
    pub(super) fn send(&self, lane: Lane, operation: Operation) {
        if let Some(batcher) = self.any_batcher().filter(|_| !self.link.breaker.is_open()) {
            batcher.send(lane, operation);
        }
    }

    /// Whether no operation waits or is under way, on any thread.
    pub(super) fn is_idle(&self) -> bool {
        self.link.batchers().iter().all(|batcher| batcher.is_idle())
    }

    /// Runs one command, once.
    pub(super) async fn command(
        &self,
        words: &[Bytes],
        manner: Manner,
        deadline: Instant,
    ) -> Result<Value, StoreError> {
        let link = &self.link;
        if link.breaker.is_open() {
            return Err(StoreError::Open);
        }
        let Some((name, arguments)) = words.split_first() else { return Err(StoreError::Malformed) };
        let name = String::from_utf8_lossy(name).into_owned();
        let command = CustomCommand::new(name, ClusterHash::FirstKey, false);
        let arguments = arguments.iter().cloned().map(Value::Bytes).collect();
        let batcher = self.batcher();
        let connection = batcher.connection();
        // A thread that was idle so far may have none yet, which says nothing of the server.
        connection.connected(deadline).await?;
        let wait = deadline.saturating_duration_since(Instant::now());
        if wait < SHORTEST_WAIT {
            return Err(StoreError::Timeout);
        }
        let answer = match manner {
            Manner::Asking => connection.send_asking(command, arguments, wait).await,
            Manner::Together | Manner::Alone => connection.send(command, arguments, wait).await,
        };
        let answer = answer.map_err(failure);
        link.note(&batcher, &answer);
        answer
    }

    /// This thread's, which must run a tokio runtime. One whose runtime has ended is replaced.
    pub(super) fn batcher(&self) -> Arc<Batcher> {
        let place = self.batchers.get_or(|| ArcSwap::new(self.start_batcher()));
        let batcher = place.load_full();
        if !batcher.has_ended() {
            return batcher;
        }
        let next = self.start_batcher();
        place.store(next.clone());
        next
    }

    /// This thread's, or if it runs no runtime, another one's.
    pub(super) fn any_batcher(&self) -> Option<Arc<Batcher>> {
        match Handle::try_current() {
            Ok(_) => Some(self.batcher()),
            Err(_) => self.link.batchers().into_iter().next(),
        }
    }

    fn start_batcher(&self) -> Arc<Batcher> {
        let batcher = Arc::new(Batcher::start(self.link.clone()));
        let mut batchers = self.link.batchers.lock();
        batchers.retain(|other| other.upgrade().is_some_and(|other| !other.has_ended()));
        if batchers.is_empty() && self.link.config.server.is_sentinel() {
            tokio::spawn(sentinel::watch(Arc::downgrade(&self.link)));
        }
        batchers.push(Arc::downgrade(&batcher));
        batcher
    }
}

impl Link {
    /// Notes how a call ended, and probes the server if that opens the breaker.
    pub(super) fn note<T>(&self, batcher: &Arc<Batcher>, call: &Result<T, StoreError>) {
        if self.breaker.opened_by(call) {
            let server = &self.name;
            tracing::warn!(server, "the store fails: each limit's on_failure decides until it answers");
            self.ask_cluster();
            tokio::spawn(probe(Arc::downgrade(batcher), Probing(batcher.link.clone())));
        }
    }

    pub(super) fn is_in_cluster(&self) -> bool {
        self.cluster.strong_count() > 0
    }

    /// Those of all threads whose runtimes run.
    pub(super) fn batchers(&self) -> Vec<Arc<Batcher>> {
        let batchers = self.batchers.lock();
        batchers.iter().filter_map(Weak::upgrade).filter(|batcher| !batcher.has_ended()).collect()
    }

    fn all_are_connected(&self) -> bool {
        self.batchers().iter().all(|batcher| batcher.connection().is_connected())
    }

    /// Another node may have taken this one's place.
    fn ask_cluster(&self) {
        if let Some(cluster) = self.cluster.upgrade() {
            cluster.refresh_soon();
        }
    }
}

/// The breaker is closed with it: also where the probes end with their runtime, for the next call that fails
/// has others begin.
struct Probing(Arc<Link>);

impl Drop for Probing {
    fn drop(&mut self) {
        self.0.breaker.close();
    }
}

/// Asks the server for a sign of life until it gives one, then closes the breaker.
async fn probe(batcher: Weak<Batcher>, probing: Probing) {
    let since = Instant::now();
    let (mut answered, mut failed) = (0, 0);
    loop {
        // A node that is no more is of no interest.
        let Some(batcher) = batcher.upgrade() else { return };
        let link = &batcher.link;
        if batcher.connection().ping(link.timeout.max(PROBE_WAIT)).await.is_ok() {
            answered += 1;
            if answered > PROBES_FOR_OTHERS || link.all_are_connected() {
                link.trouble.forget();
                drop(probing);
                let (server, after_ms) = (&link.name, since.elapsed().as_millis() as u64);
                tracing::info!(server, after_ms, "the store answers again");
                return;
            }
        } else {
            failed += 1;
            if batcher.connection().task.is_finished() || failed % PROBES_PER_CONNECTION == 0 {
                batcher.reconnect();
            }
            if link.looks.fetch_add(1, Relaxed) % PROBES_PER_LOOK == 0 {
                link.ask_cluster();
            }
        }
        drop(batcher);
        sleep(PROBE_EVERY).await;
    }
}
