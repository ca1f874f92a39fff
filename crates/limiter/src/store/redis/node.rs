//! A node is one server, or the primary that Sentinels name: for each thread a [`Batcher`] with a
//! connection of its own, and a breaker that the threads share.
//!
//! All that the threads of a node share stands in this file.

mod probe;

use std::{
    sync::{
        Arc, OnceLock, Weak,
        atomic::{
            AtomicBool, AtomicU64,
            Ordering::{Relaxed, SeqCst},
        },
    },
    time::Duration,
};

use arc_swap::ArcSwap;
use bytes::Bytes;
use fred::{
    error::Error,
    types::{ClusterHash, CustomCommand, Value, config::Config},
};
use parking_lot::Mutex;
use thread_local::ThreadLocal;
use tokio::{runtime::Handle, sync::OnceCell, time::Instant};

use crate::{metrics::Histogram, store::script::Call};

use self::probe::{Probing, probe};
use super::{
    Operation, Reply, StoreError,
    apart::Apart,
    batcher::{Batcher, Lane, SendMode},
    breaker::Breaker,
    call,
    cluster::Cluster,
    connection::{CONNECT_TIMEOUT, Connection, SHORTEST_WAIT, failure},
    replicas::Replicas,
    round_trip::RoundTrip,
    self_test, sentinel,
    trouble::{Late, Trouble},
};

/// The setting of Redis by which a thread of its own frees keys that expire.
const LAZY_EXPIRE: &str = "lazyfree-lazy-expire";

/// A server, and this process's connections to it.
pub(super) struct Node {
    pub(super) shared: Arc<SharedNode>,
    batchers: ThreadLocal<ArcSwap<Batcher>>,
    /// The time at which the node was discovered.
    pub(super) since: Instant,
}

/// The part of a node that all threads share.
pub(super) struct SharedNode {
    pub(super) name: String,
    config: ArcSwap<Config>,
    key_prefix: Arc<str>,
    pub(super) timeout: Duration,
    pub(super) breaker: Breaker,
    pub(super) trouble: Trouble,
    /// The round trip of all nodes of the store.
    pub(super) round_trip: Arc<RoundTrip>,
    pub(super) late: Late,
    /// Permits of requests that were admitted, which may not have been recorded.
    pub(super) lost: AtomicU64,
    /// True while a task is about to log them.
    pub(super) tells_lost: AtomicBool,
    pub(super) apart: Apart,
    /// It has answered once.
    is_met: AtomicBool,
    /// The durations of calls, and the charges in each.
    pub(super) calls: Histogram,
    pub(super) charges: Histogram,
    batchers: Mutex<Vec<Weak<Batcher>>>,
    /// The cluster of the node. Empty if it stands alone.
    cluster: Weak<Cluster>,
    tested: OnceCell<()>,
    settings_seen: OnceCell<()>,
    /// The replicas that decisions wait for, if they do.
    pub(super) replicas: OnceLock<Arc<Replicas>>,
}

impl Node {
    /// Creates a node without a connection.
    pub(super) fn new(
        name: String,
        config: Config,
        key_prefix: Arc<str>,
        round_trip: Arc<RoundTrip>,
        cluster: Weak<Cluster>,
    ) -> Self {
        let timeout = round_trip.timeout();
        let trouble = Trouble::with(name.clone());
        let (breaker, late, lost, tells_lost) = Default::default();
        let (apart, is_met, batchers, replicas) = Default::default();
        let (tested, settings_seen) = Default::default();
        let (calls, charges) = (Histogram::of_times(), Histogram::of_sizes());
        let shared = SharedNode {
            name,
            config: ArcSwap::from_pointee(config),
            key_prefix,
            timeout,
            breaker,
            trouble,
            round_trip,
            late,
            lost,
            tells_lost,
            apart,
            is_met,
            calls,
            charges,
            batchers,
            cluster,
            tested,
            settings_seen,
            replicas,
        };
        Self { shared: Arc::new(shared), batchers: ThreadLocal::new(), since: Instant::now() }
    }

    /// Connects this thread, which must run a tokio runtime, and loads the script. Gives up when the breaker opens, as it
    /// does if the server refuses the connection.
    pub(super) async fn warm_up(&self) -> Result<(), StoreError> {
        let (shared, connection) = (&self.shared, self.batcher().connection());
        let connect = async {
            connection.connected(Instant::now() + CONNECT_TIMEOUT).await?;
            // Boxed, because it is large and runs once.
            Box::pin(shared.test(&connection)).await;
            let sent = Instant::now();
            call::run(&connection, &Call::default(), SendMode::Together, sent, CONNECT_TIMEOUT).await?;
            shared.meet();
            Ok::<_, StoreError>(sent.elapsed())
        };
        shared.round_trip.observe(tokio::select! {
            biased;
            connected = connect => connected?,
            () = shared.breaker.opened() => return Err(StoreError::Open),
        });
        shared.warn_of_settings(&connection).await;
        Ok(())
    }

    /// Waits until a connection is usable, or the breaker is open.
    pub(super) async fn connected(&self, deadline: Instant) -> Result<(), StoreError> {
        let connection = self.usable_batcher().connection();
        tokio::select! {
            biased;
            connected = connection.connected(deadline) => connected,
            () = self.shared.breaker.opened() => Err(StoreError::Open),
        }
    }

    /// Has an operation done in the next call of a usable batcher on the lane, whose reply is to be awaited.
    pub(super) fn operate(
        &self,
        lane: Lane,
        operation: Operation,
        deadline: Instant,
    ) -> Result<impl Future<Output = Result<Reply, StoreError>> + use<>, StoreError> {
        if self.shared.breaker.is_open() {
            return Err(StoreError::Open);
        }
        let own = self.batcher();
        let deadlines = own.deadlines();
        self.usable_instead_of(own).operate(deadlines, lane, operation, deadline)
    }

    /// Does an operation in the next call of a usable batcher, if the server can be reached now.
    pub(super) fn send(&self, lane: Lane, operation: Operation) {
        if let Some(batcher) = self.any_batcher() {
            batcher.send(lane, operation);
        }
    }

    /// Returns true if no operation waits or is in flight on any thread.
    pub(super) fn is_idle(&self) -> bool {
        self.shared.batchers().iter().all(|batcher| batcher.is_idle())
    }

    /// Runs one command, once.
    pub(super) async fn command(
        &self,
        words: &[Bytes],
        mode: SendMode,
        deadline: Instant,
    ) -> Result<Value, StoreError> {
        let shared = &self.shared;
        if shared.breaker.is_open() {
            return Err(StoreError::Open);
        }
        let Some((name, arguments)) = words.split_first() else { return Err(StoreError::Malformed) };
        let name = String::from_utf8_lossy(name).into_owned();
        let command = CustomCommand::new(name, ClusterHash::FirstKey, false);
        let arguments = arguments.iter().cloned().map(Value::Bytes).collect();
        let batcher = self.usable_batcher();
        let connection = batcher.connection();
        // A thread that was idle so far may have none yet, which says nothing of the server.
        connection.connected(deadline).await?;
        let wait = deadline.saturating_duration_since(Instant::now());
        if wait < SHORTEST_WAIT {
            return Err(StoreError::Timeout);
        }
        let sent = Instant::now();
        let answer = match mode {
            SendMode::Asking => connection.send_asking(command, arguments, wait).await,
            SendMode::Together | SendMode::OfKind(_) | SendMode::Alone => {
                connection.send(command, arguments, wait).await
            }
        };
        let answer = answer.map_err(failure);
        shared.note(&batcher, &answer, sent);
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

    /// Returns this thread's batcher, or another thread's while only that one is connected: a server may accept no more
    /// connections, which says nothing of those that it has.
    fn usable_batcher(&self) -> Arc<Batcher> {
        self.usable_instead_of(self.batcher())
    }

    /// Returns a batcher, or another thread's as [`Self::usable_batcher`] does. While the first connection is being made, it isn't known
    /// whether the server accepts it.
    fn usable_instead_of(&self, own: Arc<Batcher>) -> Arc<Batcher> {
        if own.is_connected() || !own.has_begun() {
            return own;
        }
        self.shared.batchers().into_iter().find(|other| other.is_connected()).unwrap_or(own)
    }

    /// Returns a usable batcher, or if this thread runs no runtime, another thread's.
    pub(super) fn any_batcher(&self) -> Option<Arc<Batcher>> {
        match Handle::try_current() {
            Ok(_) => Some(self.usable_batcher()),
            Err(_) => self.shared.batchers().into_iter().max_by_key(|batcher| batcher.is_connected()),
        }
    }

    fn start_batcher(&self) -> Arc<Batcher> {
        // Within the lock, so that one with an older login is among them when that is replaced.
        let mut batchers = self.shared.batchers.lock();
        let batcher = Batcher::start(self.shared.clone());
        batchers.retain(|other| other.upgrade().is_some_and(|other| !other.has_ended()));
        if batchers.is_empty() && self.shared.config().server.is_sentinel() {
            tokio::spawn(sentinel::watch(Arc::downgrade(&self.shared)));
        }
        batchers.push(Arc::downgrade(&batcher));
        batcher
    }
}

impl SharedNode {
    /// Returns the settings of new connections.
    pub(super) fn config(&self) -> Arc<Config> {
        self.config.load_full()
    }

    /// Replaces the settings of new connections.
    pub(super) fn set_config(&self, config: Config) {
        self.config.store(Arc::new(config));
    }

    /// Notes how a call ended that was sent then. Probes the server if that opens the breaker. If only this thread's
    /// connection is silent, has it replaced.
    pub(super) fn note<T>(
        self: &Arc<Self>,
        batcher: &Arc<Batcher>,
        call: &Result<T, StoreError>,
        sent: Instant,
    ) {
        match call {
            Ok(_) | Err(StoreError::Answer(_)) => self.meet(),
            Err(StoreError::Timeout) if !batcher.silence.is_news(sent) => return,
            Err(_) => {}
        }
        if self.breaker.opened_by(call) {
            self.fall_back();
        } else if batcher.timeouts.are_too_many_with(call) {
            batcher.go_over();
        }
    }

    /// Notes that the server has answered.
    fn meet(&self) {
        // Each call comes by here: what doesn't change isn't written.
        if !self.is_met.load(Relaxed) {
            self.is_met.store(true, Relaxed);
        }
    }

    /// Notes that a connection can't be made. One that is lost is noticed by calls, which may never miss it; but as long
    /// as there was none, calls would wait for it.
    pub(super) fn note_unreachable(self: &Arc<Self>, error: Error) {
        self.trouble.say_error(&error);
        if !self.is_met.load(Relaxed) && self.breaker.opened_by::<()>(&Err(StoreError::Connection(error))) {
            self.fall_back();
        }
    }

    /// Does what is to be done when the breaker has opened.
    fn fall_back(self: &Arc<Self>) {
        // First, since only the probes close the breaker again, and a program's log may panic.
        tokio::spawn(probe(Probing(self.clone())));
        let server = &self.name;
        tracing::warn!(server, "the store fails: each limit's on_failure applies until it answers");
        self.ask_cluster();
    }

    /// Logs that requests weren't answered in time, and how long a round trip takes now, if there is an answer at all.
    pub(super) fn say_late(&self, requests: u64, now: Option<Duration>) {
        let (server, timeout) = (&self.name, self.timeout);
        let takes = now.map_or_else(|| format!("more than {CONNECT_TIMEOUT:?}"), |now| format!("{now:.1?}"));
        let lately = self.round_trip.observed().unwrap_or_default();
        tracing::warn!(
            server,
            "the store answers late: {requests} requests were decided without it, as `store.timeout` is {timeout:?}; \
             a round trip takes {takes}, and took {lately:.1?} at most in calls that were answered"
        );
    }

    /// Logs how many permits of requests that were admitted may not have been recorded beyond those `before`.
    pub(super) fn say_lost(&self, before: u64) {
        self.tells_lost.store(false, SeqCst);
        let permits = self.lost.load(SeqCst) - before;
        let server = &self.name;
        tracing::warn!(
            server,
            "the store failed while it recorded costs of responses: up to {permits} permits aren't counted"
        );
    }

    /// Returns true if the node answers, as far as is known.
    pub(super) fn answers(&self) -> bool {
        let batchers = self.batchers();
        let is_connected = batchers.iter().any(|batcher| batcher.is_connected());
        !self.breaker.is_open() && (is_connected || batchers.is_empty())
    }

    /// Returns the cluster of the node.
    pub(super) fn cluster(&self) -> Option<Arc<Cluster>> {
        self.cluster.upgrade()
    }

    /// Returns the batchers of all threads whose runtimes run.
    pub(super) fn batchers(&self) -> Vec<Arc<Batcher>> {
        let batchers = self.batchers.lock();
        batchers.iter().filter_map(Weak::upgrade).filter(|batcher| !batcher.has_ended()).collect()
    }

    /// Logs, once, which rights the server's user lacks.
    async fn test(&self, connection: &Connection) {
        let others: &[_] =
            match (self.cluster().is_some(), self.replicas.get(), self.config().server.is_sentinel()) {
                (true, ..) => &["CLUSTER SLOTS", "ASKING"],
                (_, Some(_), _) => &["ROLE", "WAIT 0 0"],
                (.., true) => &["ROLE"],
                _ => &[],
            };
        let look = async || {
            let missing = self_test::missing_rights(connection, &self.key_prefix, others).await?;
            if !missing.is_empty() {
                self.trouble
                    .say(&format!("its user lacks rights (add {missing} as docs/configuration.md says)"));
            }
            Ok::<_, Error>(())
        };
        drop(self.tested.get_or_try_init(look).await);
    }

    /// Warns, once, of settings of the server that harm counts. A server that doesn't tell them is left alone: CONFIG
    /// isn't among the rights that a user needs.
    async fn warn_of_settings(&self, connection: &Connection) {
        let look = async || {
            let ask = async |command, arguments: &[&'static str]| {
                let arguments = arguments.iter().map(|word| Value::from_static_str(word)).collect();
                connection.command(command, arguments, CONNECT_TIMEOUT).await
            };
            if let Ok(Value::Array(setting)) = ask("CONFIG", &["GET", LAZY_EXPIRE]).await
                && setting.last().and_then(Value::as_string).is_some_and(|setting| setting == "no")
            {
                let remedy = format!("set {LAZY_EXPIRE} to yes");
                self.trouble.say(&format!("it may hold up decisions when a large count expires ({remedy})"));
            }
            let info = ask("INFO", &["memory"]).await?;
            if let Some(policy) = evicts(&info.as_string().unwrap_or_default()) {
                let remedy = "set its maxmemory-policy to noeviction";
                self.trouble.say(&format!(
                    "it may evict counts, which then start again at 0, by `{policy}` ({remedy})"
                ));
            }
            Ok::<_, Error>(())
        };
        drop(self.settings_seen.get_or_try_init(look).await);
    }

    /// Another node may have taken this one's place.
    fn ask_cluster(&self) {
        if let Some(cluster) = self.cluster() {
            cluster.refresh_soon();
        }
    }
}

/// Returns the policy by which a full server with this `INFO memory` evicts keys, if it does.
fn evicts(info: &str) -> Option<&str> {
    let field = |name| info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    let has_bound = field("maxmemory").is_some_and(|bytes| bytes != "0");
    field("maxmemory_policy").filter(|policy| has_bound && *policy != "noeviction")
}
