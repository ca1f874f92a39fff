//! The primaries of a Redis Cluster, and which of them has which slot.
//!
//! The client's own cluster mode would be one domain of failure: while it looks for a lost primary it serves
//! no other. So each primary is a [`Node`] here, with its own connections and breaker, and the slot map is
//! ours: read by CLUSTER SLOTS from any node at the start, when a server says that a slot has moved, when a
//! connection breaks, and while a node fails. All threads share it.
//!
//! A server that doesn't have the slot answers so before anything has run, and the operation is sent where it
//! belongs, within the same deadline.
//!
//! Reading the map and following a redirection change the same nodes, so both stand in one file.

use std::{
    collections::HashMap,
    fmt,
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use arc_swap::ArcSwap;
use bytes::Bytes;
use fred::{error::Error, types::config::Config};
use futures_util::future::{join_all, select_ok};
use parking_lot::Mutex;
use thread_local::ThreadLocal;
use tokio::{
    runtime::Handle,
    sync::{self, OnceCell},
    time::{Instant, sleep, timeout, timeout_at},
};

use super::{
    Operation, Reply, StoreError, Value,
    batcher::{Batcher, Lane, SendMode},
    connection::{Access, CONNECT_TIMEOUT, Connection, describe, failure},
    node::{Node, SharedNode},
    round_trip::RoundTrip,
    slots::{Map, Range, SLOTS, read_ranges, slot_of},
    trouble::Trouble,
    url::Endpoint,
};

/// The most redirections of an operation: to the node that has the slot, there again in a call of its own, and to the node that the slot
/// moves to.
const SENT_ON_MOST: usize = 3;
/// The time that a node has to return the slots before another one is asked.
const SLOTS_WAIT: Duration = Duration::from_millis(250);
/// The slots aren't read again before this.
const REFRESH_EVERY: Duration = Duration::from_millis(100);
/// Nodes that are kept: as many as a Cluster is made for.
const NODES_MOST: usize = 1_000;
/// The time for which a node without slots is kept, since slots may be moving to it.
const IDLE_NODE_KEPT: Duration = Duration::from_secs(60);

pub(super) struct Cluster {
    me: Weak<Self>,
    access: ArcSwap<Access>,
    seeds: Vec<Endpoint>,
    /// The longest of all nodes.
    round_trip: Arc<RoundTrip>,
    nodes: Mutex<HashMap<Endpoint, Arc<Node>>>,
    map: ArcSwap<Map>,
    /// The slots were read for the first time, or that has taken longer than a call may take.
    begun: OnceCell<()>,
    /// Held while the slots are read; when that was tried last, and how it ended.
    refreshed: sync::Mutex<Option<(Instant, Result<(), StoreError>)>>,
    refreshes_soon: AtomicBool,
    pub(super) trouble: Trouble,
    /// The threads that use the store, to connect all of them to a node before it is used.
    threads: ThreadLocal<()>,
    runtimes: Mutex<Vec<Handle>>,
    /// Held by each operation that is sent without waiting for it.
    sent: Arc<()>,
}

impl Cluster {
    pub(super) fn new(access: Access, seeds: Vec<Endpoint>, round_trip: Arc<RoundTrip>) -> Arc<Self> {
        let name = seeds.iter().map(Endpoint::to_string).collect::<Vec<_>>().join(",");
        let (nodes, map, begun, refreshed, refreshes_soon, threads, runtimes, sent) = Default::default();
        let trouble = Trouble::with(name);
        Arc::new_cyclic(|me| {
            let me = me.clone();
            Self {
                me,
                access: ArcSwap::from_pointee(access),
                seeds,
                round_trip,
                nodes,
                map,
                begun,
                refreshed,
                refreshes_soon,
                trouble,
                threads,
                runtimes,
                sent,
            }
        })
    }

    /// Returns the settings of connections to nodes that are discovered.
    pub(super) fn access(&self) -> Arc<Access> {
        self.access.load_full()
    }

    /// Replaces the settings of connections to nodes that are discovered.
    pub(super) fn set_access(&self, access: Access) {
        self.access.store(Arc::new(access));
    }

    /// Connects this thread to all nodes.
    pub(super) async fn warm_up(&self) -> Result<(), StoreError> {
        self.join();
        if self.map.load().owners.is_empty() {
            let (_, read) = tokio::join!(self.begin(), self.refresh());
            read?;
        }
        let nodes: Vec<_> = self.nodes.lock().values().cloned().collect();
        join_all(nodes.iter().map(|node| node.warm_up())).await.into_iter().collect()
    }

    /// Returns true if each slot has a node that answers, as far as is known.
    pub(super) fn answers(&self) -> bool {
        let map = self.map.load();
        let same = |one: &Option<Arc<Node>>, other: &Option<Arc<Node>>| match (one, other) {
            (Some(one), Some(other)) => Arc::ptr_eq(one, other),
            _ => false,
        };
        let mut runs = map.owners.chunk_by(same).map(|run| run[0].as_ref());
        !map.owners.is_empty() && runs.all(|owner| owner.is_some_and(|node| node.shared.answers()))
    }

    /// All nodes that are known, by name.
    pub(super) fn shared_nodes(&self) -> Vec<Arc<SharedNode>> {
        let mut shared_nodes: Vec<_> = self.nodes.lock().values().map(|node| node.shared.clone()).collect();
        shared_nodes.sort_by(|one, other| one.name.cmp(&other.name));
        shared_nodes
    }

    /// Does an operation on buckets of one slot.
    pub(super) async fn operate(
        &self,
        operation: &Operation,
        deadline: Instant,
    ) -> Result<Reply, StoreError> {
        let slot = slot_of(operation.bucket());
        self.visit(slot, deadline, |node, mode| {
            let operation = operation.clone();
            async move { node.operate(Lane { slot, mode }, operation, deadline)?.await }
        })
        .await
    }

    /// Does an operation on buckets of one slot, if its node can be reached now.
    pub(super) fn send(&self, operation: Operation) {
        let owner = self.map.load().owner(slot_of(operation.bucket())).cloned();
        // A slot without an owner may have one again when a release is repeated.
        let Some(node) = owner.or_else(|| self.nodes.lock().values().next().cloned()) else { return };
        let (Some(cluster), Some(batcher)) = (self.me.upgrade(), node.any_batcher()) else { return };
        if node.shared.breaker.is_open() {
            batcher.note_undone(operation, &StoreError::Open);
            return;
        }
        let deadline = Instant::now() + self.round_trip.timeout();
        let sent = self.sent.clone();
        batcher.clone().runtime.spawn(async move {
            if let Err(error) = cluster.operate(&operation, deadline).await {
                batcher.note_undone(operation, &error);
            }
            drop(sent);
        });
    }

    /// Returns a batcher of any node.
    pub(super) fn any_batcher(&self) -> Option<Arc<Batcher>> {
        self.nodes.lock().values().find_map(|node| node.any_batcher())
    }

    /// Returns true if no operation waits or is in flight on any thread.
    pub(super) fn is_idle(&self) -> bool {
        Arc::strong_count(&self.sent) == 1 && self.nodes.lock().values().all(|node| node.is_idle())
    }

    /// Runs one command on the node that has the slot.
    pub(super) async fn command(
        &self,
        slot: u16,
        words: Vec<Bytes>,
        deadline: Instant,
    ) -> Result<Value, StoreError> {
        let words: Arc<[Bytes]> = words.into();
        self.visit(slot, deadline, |node, mode| {
            let words = words.clone();
            async move { node.command(&words, mode, deadline).await }
        })
        .await
    }

    /// Access to any of the servers that seems well.
    pub(super) fn any(&self) -> Config {
        let well: Vec<_> =
            self.nodes.lock().values().filter(|node| !node.shared.breaker.is_open()).cloned().collect();
        match fastrand::choice(&well) {
            Some(node) => node.shared.config().as_ref().clone(),
            None => self.access().to(&self.seeds[fastrand::usize(..self.seeds.len())]),
        }
    }

    /// Asks the node that has the slot, and those that it refers to.
    async fn visit<T, Asked: Future<Output = Result<T, StoreError>>>(
        &self,
        slot: u16,
        deadline: Instant,
        ask: impl Fn(Arc<Node>, SendMode) -> Asked,
    ) -> Result<T, StoreError> {
        self.join();
        let owner = || self.map.load().owner(slot).cloned();
        if owner().is_none() {
            // Its time is up, or that of the first reading.
            drop(timeout_at(deadline, self.begin()).await);
        }
        let Some(mut node) = owner() else {
            self.refresh_soon();
            return Err(StoreError::Open);
        };
        let mut mode = SendMode::Together;
        for _ in 0..SENT_ON_MOST {
            let error = match ask(node.clone(), mode).await {
                Err(StoreError::Answer(error)) => error,
                answer => return answer,
            };
            let sent_on = timeout_at(deadline, self.send_on(slot, &node, mode, &error)).await;
            let Some(next) = sent_on.unwrap_or(None) else { return Err(StoreError::Answer(error)) };
            (node, mode) = next;
            node.connected(deadline).await?;
        }
        ask(node, mode).await
    }

    /// Returns the node to send an operation to after this answer, if there is one. The answer proves that nothing has run.
    async fn send_on(
        &self,
        slot: u16,
        from: &Arc<Node>,
        mode: SendMode,
        error: &Error,
    ) -> Option<(Arc<Node>, SendMode)> {
        let mut words = error.details().split(' ');
        let word = words.next()?;
        match word {
            "MOVED" => {
                self.refresh_soon();
                let node = self.node_at(&self.referred(words.nth(1)?, from)?)?;
                Some((node, SendMode::Together))
            }
            // Of several keys only some have moved yet. Each operation by itself may have better luck. Redis 6.2 then
            // says ASK, too: obeyed by all of a call, it would give a key that hasn't moved a second count.
            "ASK" | "TRYAGAIN" if mode == SendMode::Together => Some((from.clone(), SendMode::Alone)),
            "ASK" => Some((self.node_at(&self.referred(words.nth(1)?, from)?)?, SendMode::Asking)),
            // It has lost its place. Another node may have taken it.
            "CLUSTERDOWN" | "READONLY" | "MASTERDOWN" => {
                // It goes on when this operation's time is up.
                self.refresh_soon();
                self.refresh().await.ok()?;
                let owner = self.map.load().owner(slot).cloned()?;
                (!Arc::ptr_eq(&owner, from)).then_some((owner, SendMode::Together))
            }
            _ => None,
        }
    }

    /// The endpoint of a redirection. One without a host means that of the node that answers.
    fn referred(&self, written: &str, from: &Node) -> Option<Endpoint> {
        let (host, port) = written.rsplit_once(':')?;
        let host = if host.is_empty() || host == "?" {
            from.shared.config().server.hosts().first()?.host.to_string()
        } else {
            host.to_owned()
        };
        Some(Endpoint { host, port: port.parse().ok()? })
    }

    /// The node there. `None` if servers name more and more of them, and this is one too many.
    fn node_at(&self, endpoint: &Endpoint) -> Option<Arc<Node>> {
        let mut nodes = self.nodes.lock();
        if let Some(node) = nodes.get(endpoint) {
            return Some(node.clone());
        }
        if nodes.len() >= NODES_MOST {
            return None;
        }
        let access = self.access();
        let (config, keys) = (access.to(endpoint), access.key_prefix.clone());
        let node =
            Arc::new(Node::new(endpoint.to_string(), config, keys, self.round_trip.clone(), self.me.clone()));
        nodes.insert(endpoint.clone(), node.clone());
        Some(node)
    }

    /// Waits for the first reading of the slots, but not longer than a call may take.
    async fn begin(&self) {
        let begin = async || {
            let Some(cluster) = self.me.upgrade() else { return };
            // It goes on if nobody waits for it any more.
            let read = tokio::spawn(async move { cluster.refresh().await });
            drop(timeout(self.round_trip.timeout(), read).await);
        };
        self.begun.get_or_init(begin).await;
    }

    /// Remembers this thread.
    fn join(&self) {
        self.threads.get_or(|| self.runtimes.lock().push(Handle::current()));
    }

    /// Reads the slots again, soon, unless that is about to be done.
    pub(super) fn refresh_soon(&self) {
        let (Some(cluster), Ok(runtime)) = (self.me.upgrade(), Handle::try_current()) else { return };
        if !self.refreshes_soon.swap(true, Relaxed) {
            let turn = RefreshTurn(cluster);
            runtime.spawn(async move {
                // It may have been read just before what was wrong with it.
                let last = turn.0.refreshed.lock().await.as_ref().map(|(at, _)| at.elapsed());
                if last.is_some_and(|last| last < REFRESH_EVERY) {
                    sleep(REFRESH_EVERY).await;
                }
                drop(turn.0.refresh().await);
            });
        }
    }

    /// Reads the slots again, unless that has just been tried.
    async fn refresh(&self) -> Result<(), StoreError> {
        let mut refreshed = self.refreshed.lock().await;
        if let Some((_, ended)) = refreshed.as_ref().filter(|(at, _)| at.elapsed() < REFRESH_EVERY) {
            return ended.clone();
        }
        let ended = match self.read_slots().await {
            Ok(ranges) => {
                self.adopt(&ranges).await;
                self.trouble.forget();
                Ok(())
            }
            Err(error) => {
                self.trouble.say(&format!("can't read the slots: {}", describe(&error)));
                Err(error)
            }
        };
        *refreshed = Some((Instant::now(), ended.clone()));
        ended
    }

    /// Asks nodes that seem well, in any order, and then all seeds at once.
    async fn read_slots(&self) -> Result<Vec<Range>, StoreError> {
        let mut known: Vec<_> =
            self.nodes.lock().iter().map(|(at, node)| (at.clone(), node.clone())).collect();
        known.retain(|(_, node)| !node.shared.breaker.is_open());
        fastrand::shuffle(&mut known);
        for (endpoint, node) in known {
            let words = [Bytes::from_static(b"CLUSTER"), Bytes::from_static(b"SLOTS")];
            let deadline = Instant::now() + SLOTS_WAIT;
            if node.connected(deadline).await.is_ok()
                && let Ok(answer) = node.command(&words, SendMode::Together, deadline).await
                && let Some(ranges) = read_ranges(answer, &endpoint.host)
            {
                return Ok(ranges);
            }
        }
        let asked = self.seeds.iter().map(|seed| Box::pin(self.ask_seed(seed)));
        select_ok(asked).await.map(|(ranges, _)| ranges)
    }

    async fn ask_seed(&self, seed: &Endpoint) -> Result<Vec<Range>, StoreError> {
        let mut connection = Connection::once(&self.access().to(seed));
        connection.made().await?;
        let answer = connection.command("CLUSTER", vec![Value::from_static_str("SLOTS")], CONNECT_TIMEOUT);
        let answer = answer.await.map_err(failure)?;
        read_ranges(answer, &seed.host).ok_or(StoreError::Malformed)
    }

    /// Goes by these slots from now on. All threads are connected to new nodes first, or have tried to, unless these are
    /// the first slots: nothing could be asked meanwhile.
    async fn adopt(&self, ranges: &[Range]) {
        let mut owners = vec![None; SLOTS];
        for Range { first, last, owner } in ranges {
            let node = self.node_at(owner);
            owners[usize::from(*first)..=usize::from(*last)].fill(node);
        }
        let in_use = |at: &Endpoint| ranges.iter().any(|range| range.owner == *at);
        let before = self.map.load_full();
        let map = Arc::new(Map { owners });
        if before.owners.is_empty() {
            self.map.store(map.clone());
        }
        let is_new = |node: &Arc<Node>| !before.owners.iter().flatten().any(|other| Arc::ptr_eq(node, other));
        let new: Vec<_> = {
            let mut nodes = self.nodes.lock();
            nodes.retain(|at, node| in_use(at) || node.since.elapsed() < IDLE_NODE_KEPT);
            nodes
                .iter()
                .filter(|(at, node)| in_use(at) && is_new(node))
                .map(|(_, node)| node.clone())
                .collect()
        };
        let runtimes = self.runtimes.lock().clone();
        let connecting = new.iter().flat_map(|node| {
            runtimes.iter().map(|runtime| {
                let node = node.clone();
                runtime.spawn(async move { node.warm_up().await })
            })
        });
        let connecting: Vec<_> = connecting.collect();
        drop(timeout(CONNECT_TIMEOUT, join_all(connecting)).await);
        self.map.store(map);
    }
}

impl fmt::Display for Cluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a cluster at {}", self.seeds[0])
    }
}

/// The right to read the slots soon. It is given back however that ends.
struct RefreshTurn(Arc<Cluster>);

impl Drop for RefreshTurn {
    fn drop(&mut self) {
        self.0.refreshes_soon.store(false, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{StoreSettings, StoreUrl};

    fn cluster() -> Arc<Cluster> {
        let StoreUrl::Redis(url) = StoreSettings::at("redis-cluster://127.0.0.1:1").unwrap().url else {
            unreachable!()
        };
        let round_trip = Arc::new(RoundTrip::unknown(Duration::from_secs(1)));
        Cluster::new(Access::new(&url, None, "tollgate").unwrap(), Vec::new(), round_trip)
    }

    /// Redis 7 says ASK only if it has none of a call's keys, and Redis 6.2 if it lacks one of them.
    #[tokio::test]
    async fn ask_is_obeyed_by_operations_that_were_asked_alone() {
        let cluster = cluster();
        let at = |port| cluster.node_at(&Endpoint { host: "127.0.0.1".to_owned(), port }).unwrap();
        let (from, to) = (at(1), at(2));
        let error = Error::new(fred::error::ErrorKind::Cluster, "ASK 7 127.0.0.1:2");
        for (mode, next, then) in [
            (SendMode::Together, &from, SendMode::Alone),
            (SendMode::Alone, &to, SendMode::Asking),
            (SendMode::Asking, &to, SendMode::Asking),
        ] {
            let (node, sent) = cluster.send_on(7, &from, mode, &error).await.unwrap();
            assert!(Arc::ptr_eq(&node, next) && sent == then, "{mode:?}: {sent:?} to {}", node.shared.name);
        }
    }

    #[test]
    fn servers_that_name_ever_new_ones_are_not_followed_for_ever() {
        let cluster = cluster();
        let at = |port| cluster.node_at(&Endpoint { host: "127.0.0.1".to_owned(), port });
        let known = (1..=2_000).filter(|port| at(*port).is_some()).count();
        assert_eq!((known, cluster.nodes.lock().len()), (NODES_MOST, NODES_MOST));
        assert!(at(1).is_some());
    }
}
