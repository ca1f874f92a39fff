//! The store on Redis: the script of lua/, by EVALSHA, in group commit.
//!
//! Where the buckets are is [`Topology`]: one server, or the primary that Sentinels name, is a [`Node`]; a
//! [`Cluster`] is one node for each primary, with a slot map of its own. A node has a connection for
//! each thread, which gathers operations into calls ([`batcher`]), and a breaker that the threads share:
//! while it is open nothing is asked of the node, and the thread that opened it probes until it answers.
//!
//! Charges of a request that lie on different slots are decided by [`across`].

mod across;
mod apart;
mod batcher;
mod breaker;
pub(crate) mod call;
mod channel;
mod cluster;
mod connection;
mod deadlines;
mod instances;
mod login;
mod node;
pub(crate) mod overrides;
pub mod password;
mod redisson;
mod releases;
mod replicas;
mod round_trip;
mod self_test;
mod sentinel;
pub(crate) mod slots;
pub mod tls;
mod trouble;
pub mod url;

use std::{
    fmt,
    sync::{
        Arc, Weak,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use bytes::Bytes;
use tokio::{
    sync::mpsc,
    time::{Instant, sleep},
};

use fred::types::Value;

use crate::metrics::Page;

use self::{
    batcher::{Lane, SendMode},
    cluster::Cluster,
    connection::Access,
    node::{Node, SharedNode},
    round_trip::RoundTrip,
    slots::slot_of,
    tls::ClientTls,
    url::{RedisServers, RedisUrl},
};
use super::{Act, Charges, Decision, Lease, NodeState, Operation, Reply, StoreError};

/// The only lane of a server that stands alone.
const LANE: Lane = Lane { slot: 0, mode: SendMode::Together };

/// The time between the checks of a flush.
const FLUSH_STEP: Duration = Duration::from_millis(1);

/// Buckets on Redis.
///
/// # Examples
///
/// ```
/// # use std::time::Duration;
/// # use tokio::time::Instant;
/// # use tollgate_limiter::{StoreSettings, store::Store};
/// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/src/limiter/redis_of_examples.rs"));
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let Redis(_, url) = &Redis::start();
/// let Store::Redis(store) = Store::open(&StoreSettings::at(url)?)? else { panic!("it is a URL of Redis") };
/// store.warm_up().await?;
/// store.publish("news", "hello".into(), Instant::now() + Duration::from_secs(5)).await?;
/// let _messages = store.subscribe("news".to_owned());
/// store.command("alice", vec!["GET".into(), "alice".into()], Instant::now() + Duration::from_secs(5)).await?;
/// # Ok(())
/// # }
/// ```
pub struct RedisStore {
    /// The URL that it was opened with.
    url: RedisUrl,
    topology: Topology,
    round_trip: Arc<RoundTrip>,
    /// The name of a single node in metrics: its address in the URL.
    label: String,
    left_behind: AtomicU64,
    /// The name of this process among those that share the server.
    process: String,
}

/// The nodes that hold the buckets.
#[expect(clippy::large_enum_variant, reason = "a store has one")]
enum Topology {
    /// One server, or the primary that Sentinels name.
    One(Node),
    /// The primaries of a Cluster.
    Cluster(Arc<Cluster>),
}

impl RedisStore {
    /// Creates a store that answers within `timeout` a call, and whose keys begin with a prefix. Nothing is connected yet.
    ///
    /// # Errors
    /// The files of `tls` can't be used together.
    pub(crate) fn new(
        url: &RedisUrl,
        tls: Option<&ClientTls>,
        timeout: Duration,
        key_prefix: &str,
    ) -> Result<Self, StoreError> {
        let access = Access::new(url, tls, key_prefix)?;
        let round_trip = Arc::new(RoundTrip::unknown(timeout));
        let trips = round_trip.clone();
        let topology = match &url.servers {
            RedisServers::Cluster(seeds) => Topology::Cluster(Cluster::new(access, seeds.clone(), trips)),
            servers => {
                let name = url.to_string();
                let config = access.to_servers(servers);
                Topology::One(Node::new(name, config, access.key_prefix, trips, Weak::new()))
            }
        };
        let label = match &url.servers {
            RedisServers::One(endpoint) => endpoint.to_string(),
            RedisServers::Socket(path) => path.display().to_string(),
            RedisServers::Sentinel { service, .. } => service.clone(),
            RedisServers::Cluster(_) => String::new(),
        };
        let process = format!("{:016x}", fastrand::u64(..));
        let left_behind = AtomicU64::new(0);
        Ok(Self { url: url.clone(), topology, round_trip, label, left_behind, process })
    }

    /// Has decisions count once all replicas of the server have them, from the first connection on. In a Cluster it
    /// does nothing.
    pub(crate) fn wait_for_replicas(&self) {
        if let Topology::One(node) = &self.topology {
            node.shared.replicas.get_or_init(Arc::default);
        }
    }

    /// Connects this thread, which must run a tokio runtime.
    ///
    /// # Errors
    /// A server doesn't answer now. It is tried again for as long as it takes.
    pub async fn warm_up(&self) -> Result<(), StoreError> {
        match &self.topology {
            Topology::One(node) => node.warm_up().await,
            Topology::Cluster(cluster) => cluster.warm_up().await,
        }
    }

    /// Decides a request. If it has charges on several servers, also returns the time of each by its own server's clock.
    ///
    /// # Errors
    /// No decision, at the latest at `deadline`.
    pub(crate) async fn take(
        &self,
        charges: Charges,
        deadline: Instant,
    ) -> Result<(Decision, Vec<u64>), StoreError> {
        if matches!(self.topology, Topology::Cluster(_)) && across::is_across(&charges) {
            return Box::pin(across::take(self, charges, deadline)).await;
        }
        match self.operate(Operation::Take(charges), deadline).await? {
            Reply::Decision(decision) => Ok((decision, Vec::new())),
            Reply::Usage(_) | Reply::Refunded(_) | Reply::Done => Err(StoreError::Malformed),
        }
    }

    /// Does an operation, whose buckets are on one slot, in the next call of this thread.
    ///
    /// # Errors
    /// No reply, at the latest at `deadline`. An operation that still waits then isn't sent any more.
    pub(crate) async fn operate(&self, operation: Operation, deadline: Instant) -> Result<Reply, StoreError> {
        match &self.topology {
            Topology::One(node) => node.operate(LANE, operation, deadline)?.await,
            // Boxed, so that the future for a single server stays small.
            Topology::Cluster(cluster) => Box::pin(cluster.operate(&operation, deadline)).await,
        }
    }

    /// Returns when an operation must be asked for at the latest, to be answered by its deadline.
    pub(crate) fn ask_by(&self, deadline: Instant) -> Instant {
        self.round_trip.send_by(deadline)
    }

    /// Does an operation in the next call of this thread, if the server can be reached now. A release is done once it can.
    pub(crate) fn send(&self, operation: Operation) {
        match &self.topology {
            Topology::One(node) => node.send(LANE, operation),
            Topology::Cluster(cluster) => cluster.send(operation),
        }
    }

    /// Notes that an operation has failed, for which its caller won't ask again. What certainly wasn't done is done later.
    pub(crate) fn note_undone(&self, operation: Operation, error: &StoreError) {
        let batcher = match &self.topology {
            Topology::One(node) => node.any_batcher(),
            Topology::Cluster(cluster) => cluster.any_batcher(),
        };
        if let Some(batcher) = batcher {
            batcher.note_undone(operation, error);
        }
    }

    /// Waits until no operation waits or is under way, on any thread.
    pub(crate) async fn flush(&self) {
        let is_idle = || match &self.topology {
            Topology::One(node) => node.is_idle(),
            Topology::Cluster(cluster) => cluster.is_idle(),
        };
        while !is_idle() {
            sleep(FLUSH_STEP).await;
        }
    }

    /// Returns the number of charges that were made although their request was refused or had no decision, since another slot
    /// of a Cluster refused or failed at the last moment. They make limits stricter, never wider.
    pub(crate) fn charges_left_behind(&self) -> u64 {
        self.left_behind.load(Relaxed)
    }

    /// Returns true if all buckets can be reached, as far as is known.
    pub(crate) fn answers(&self) -> bool {
        match &self.topology {
            Topology::One(node) => node.shared.answers(),
            Topology::Cluster(cluster) => cluster.answers(),
        }
    }

    /// Returns the state of each node.
    pub(crate) fn nodes(&self) -> Vec<NodeState> {
        let states = self.shared_nodes().into_iter().map(|(name, shared)| NodeState {
            name,
            is_open: shared.breaker.is_open(),
            openings: shared.breaker.openings(),
            calls: shared.calls.read(),
            charges: shared.charges.read(),
        });
        states.collect()
    }

    /// Returns the nodes with their names in metrics.
    fn shared_nodes(&self) -> Vec<(String, Arc<SharedNode>)> {
        match &self.topology {
            Topology::One(node) => vec![(self.label.clone(), node.shared.clone())],
            Topology::Cluster(cluster) => {
                cluster.shared_nodes().into_iter().map(|shared| (shared.name.clone(), shared)).collect()
            }
        }
    }

    /// Writes the metrics of the nodes.
    pub(crate) fn write_metrics(&self, page: &mut Page<'_>) {
        let shared_nodes = self.shared_nodes();
        let nodes = || shared_nodes.iter().map(|(label, shared)| ([("node", label.as_str())], shared));
        page.histograms(
            "tollgate_store_call_seconds",
            "Duration of calls to the store, including failed ones",
            nodes().map(|(label, shared)| (label, &shared.calls)),
        );
        page.histograms(
            "tollgate_store_call_charges",
            "Charges in a call to the store",
            nodes().map(|(label, shared)| (label, &shared.charges)),
        );
        page.gauges(
            "tollgate_breaker_open",
            "1 if the circuit breaker of a node is open: the node has failed and isn't asked",
            nodes().map(|(label, shared)| (label, u32::from(shared.breaker.is_open()))),
        );
        page.counters(
            "tollgate_breaker_openings",
            "Times that the circuit breaker of a node has opened",
            nodes().map(|(label, shared)| (label, shared.breaker.openings())),
        );
        page.counters(
            "tollgate_store_costs_lost",
            "Permits that responses have cost or that were reported, and that a node may not have recorded because it failed at that moment",
            nodes().map(|(label, shared)| (label, shared.lost.load(Relaxed))),
        );
        page.counter(
            "tollgate_charges_left_behind",
            "Charges that stayed although their request was rejected or not decided; only with keys on several nodes",
            self.charges_left_behind(),
        );
    }

    /// Runs one command on the server that has the key.
    ///
    /// # Errors
    /// No answer, at the latest at `deadline`: the command may or may not have run. It is never run twice.
    pub async fn command(
        &self,
        key: &str,
        words: Vec<Bytes>,
        deadline: Instant,
    ) -> Result<Value, StoreError> {
        match &self.topology {
            // On the heap, as such calls are rare and their callers many.
            Topology::One(node) => Box::pin(node.command(&words, SendMode::Together, deadline)).await,
            Topology::Cluster(cluster) => {
                Box::pin(cluster.command(slot_of(key.as_bytes()), words, deadline)).await
            }
        }
    }

    /// Sends a message to all that [subscribe](Self::subscribe) to a channel now, on any gateway.
    ///
    /// # Errors
    /// No answer, at the latest at `deadline`.
    pub async fn publish(&self, channel: &str, message: Bytes, deadline: Instant) -> Result<(), StoreError> {
        let words = vec![Bytes::from_static(b"PUBLISH"), Bytes::from(channel.to_owned()), message];
        self.command(channel, words, deadline).await.map(drop)
    }

    /// The messages of a channel from now on, on a connection of their own, until the receiver is dropped. What
    /// is said while there is no connection is lost; it is restored for as long as it takes. Must be called
    /// within a tokio runtime.
    pub fn subscribe(&self, channel: String) -> mpsc::Receiver<Bytes> {
        match &self.topology {
            Topology::One(node) => {
                let shared = node.shared.clone();
                channel::subscribe(channel, move || shared.config().as_ref().clone())
            }
            Topology::Cluster(cluster) => {
                let cluster = cluster.clone();
                channel::subscribe(channel, move || cluster.any())
            }
        }
    }

    /// Ends leases that nobody will use.
    fn release(&self, leases: impl IntoIterator<Item = Lease>) {
        leases.into_iter().for_each(|lease| self.send(lease.release()));
    }
}

impl fmt::Debug for RedisStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match &self.topology {
            Topology::One(node) => node.shared.name.clone(),
            Topology::Cluster(cluster) => cluster.to_string(),
        };
        f.debug_struct("RedisStore").field("server", &name).finish_non_exhaustive()
    }
}
