//! The store on a Redis server: the script of lua/, by EVALSHA, in group commit.
//!
//! Each thread has a [`Batcher`] with a connection of its own. Requests that arrive while a call is in
//! flight wait for its reply and go together in the next one; there is no timer, so an idle thread
//! sends at once. A call that gets no reply is never sent again: it may have run.
//!
//! The [`Breaker`] is the server's, shared by the threads. While it is open no call is made, and the
//! thread that opened it probes the server until it answers.

use std::{
    collections::VecDeque,
    fmt,
    future::ready,
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, AtomicU32, Ordering::Relaxed},
    },
    time::Duration,
};

use arc_swap::ArcSwap;
use bytes::Bytes;
use fred::{
    clients::Client,
    error::{Error, ErrorKind},
    interfaces::{ClientLike, EventInterface},
    types::{
        Builder, ClusterHash, CustomCommand, Value,
        config::{Config, Options, ReconnectError, ReconnectPolicy},
    },
};
use parking_lot::Mutex;
use thread_local::ThreadLocal;
use tokio::{
    runtime::Handle,
    sync::oneshot,
    task::{JoinHandle, yield_now},
    time::{Instant, sleep, timeout, timeout_at},
};

use super::{
    Act, Lease, Operation, Reply, StoreError,
    script::{self, Call},
};

/// Charges that go in one call of the script.
const CALL_CHARGES: usize = 256;
/// Decisions that may wait on a thread; past that they are for the failure policy.
const WAITING_MOST: usize = 8_192;
/// Failed calls in a row that open the breaker. A broken connection opens it at once.
const FAILURES_TO_OPEN: u32 = 3;
const PROBE_EVERY: Duration = Duration::from_millis(100);
/// A probe waits as long as a call may take, but not less than this.
const PROBE_WAIT: Duration = Duration::from_millis(50);
/// Failed probes after which the connection is replaced: it may be dead without anyone having said so.
const PROBES_PER_CONNECTION: u32 = 20;
/// Answered probes for which the breaker stays open until all threads have their connections back: one that
/// hasn't would open it again.
const PROBES_FOR_OTHERS: u32 = 3;
/// The client takes a timeout of zero for none.
const SHORTEST_WAIT: Duration = Duration::from_millis(1);
const RECONNECT_EVERY_MS: u32 = 50;
const CONNECT_TIMEOUT: Duration = Duration::from_millis(500);

/// Buckets on a Redis server.
pub struct RedisStore {
    link: Arc<Link>,
    batchers: ThreadLocal<Arc<Batcher>>,
}

impl RedisStore {
    /// A store that answers within `timeout` a call. Nothing is connected yet.
    ///
    /// # Errors
    /// A url that the client can't read.
    pub fn new(url: &str, timeout: Duration) -> Result<Self, StoreError> {
        let mut config = Config::from_url(url).map_err(StoreError::Connection)?;
        // The client's task would end for good if the server were away at the start.
        config.fail_fast = false;
        let (breaker, trouble, batchers) = Default::default();
        let link = Link { config, timeout, breaker, trouble, batchers };
        Ok(Self { link: Arc::new(link), batchers: ThreadLocal::new() })
    }

    /// Connects this thread, which must run a tokio runtime.
    ///
    /// # Errors
    /// The server doesn't answer now. It is tried again for as long as it takes.
    pub async fn warm_up(&self) -> Result<(), StoreError> {
        let connection = self.batcher().connection.load_full();
        let connected = timeout(CONNECT_TIMEOUT, connection.client.wait_for_connect());
        match connected.await {
            Ok(connected) => connected.map_err(StoreError::Connection)?,
            Err(_) => return Err(StoreError::Timeout),
        }
        connection.ping(CONNECT_TIMEOUT).await.map_err(failure)
    }

    /// Does an operation in the next call of this thread's batcher.
    ///
    /// # Errors
    /// No reply, at the latest at `deadline`. An operation that still waits then isn't sent any more.
    pub async fn operate(&self, operation: Operation, deadline: Instant) -> Result<Reply, StoreError> {
        if self.link.breaker.is_open() {
            return Err(StoreError::Open);
        }
        let (answer, receiver) = oneshot::channel();
        self.batcher().enqueue(Waiting { operation, answer: Some(answer) })?;
        match timeout_at(deadline, receiver).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(_)) => Err(StoreError::Open),
            Err(_) => Err(StoreError::Timeout),
        }
    }

    /// Does an operation in the next call of this thread's batcher, if the server can be reached now.
    pub fn send(&self, operation: Operation) {
        if !self.link.breaker.is_open() {
            // What doesn't fit any more is forgotten, as if the server were away.
            let _ = self.batcher().enqueue(Waiting { operation, answer: None });
        }
    }

    fn batcher(&self) -> &Arc<Batcher> {
        self.batchers.get_or(|| {
            let batcher = Arc::new(Batcher::start(self.link.clone()));
            self.link.batchers.lock().push(Arc::downgrade(&batcher));
            batcher
        })
    }
}

impl fmt::Debug for RedisStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisStore").field("server", &self.link.config.server).finish_non_exhaustive()
    }
}

/// The server as all threads see it.
struct Link {
    config: Config,
    timeout: Duration,
    breaker: Breaker,
    trouble: Trouble,
    batchers: Mutex<Vec<Weak<Batcher>>>,
}

impl Link {
    fn all_are_connected(&self) -> bool {
        let is_connected = |batcher: Arc<Batcher>| batcher.connection.load().client.is_connected();
        self.batchers.lock().iter().filter_map(Weak::upgrade).all(is_connected)
    }
}

/// What is wrong with the server, so that the log says it once and not at each attempt.
#[derive(Default)]
struct Trouble {
    said: Mutex<Option<String>>,
}

impl Trouble {
    fn say(&self, trouble: String) {
        let mut said = self.said.lock();
        if said.as_ref() != Some(&trouble) {
            tracing::warn!("the store: {trouble}");
            *said = Some(trouble);
        }
    }

    fn forget(&self) {
        *self.said.lock() = None;
    }
}

/// Closed while the server answers.
#[derive(Default)]
struct Breaker {
    open: AtomicBool,
    failures: AtomicU32,
}

impl Breaker {
    fn is_open(&self) -> bool {
        self.open.load(Relaxed)
    }

    /// Notes how a call ended. True if this opens the breaker: the caller then probes.
    fn opened_by(&self, call: &Result<Vec<i64>, StoreError>) -> bool {
        match call {
            Err(StoreError::Timeout) if self.failures.fetch_add(1, Relaxed) + 1 < FAILURES_TO_OPEN => false,
            Err(StoreError::Timeout | StoreError::Connection(_)) => !self.open.swap(true, Relaxed),
            _ => {
                self.failures.store(0, Relaxed);
                false
            }
        }
    }

    fn close(&self) {
        self.failures.store(0, Relaxed);
        self.open.store(false, Relaxed);
    }
}

/// A connection, and the task that drives it.
struct Connection {
    client: Client,
    task: JoinHandle<Result<(), Error>>,
}

impl Connection {
    fn start(link: &Arc<Link>) -> Self {
        let mut builder = Builder::from_config(link.config.clone());
        builder.with_connection_config(|connection| {
            connection.connection_timeout = CONNECT_TIMEOUT;
            connection.internal_command_timeout = CONNECT_TIMEOUT;
            // A bounded buffer breaks the client for good; what is bounded is what waits before it.
            connection.max_command_buffer_len = 0;
            connection.tcp.nodelay = Some(true);
            connection.reconnect_errors = vec![ReconnectError::Loading, ReconnectError::ReadOnly];
        });
        let mut policy = ReconnectPolicy::new_constant(0, RECONNECT_EVERY_MS);
        policy.set_jitter(RECONNECT_EVERY_MS);
        builder.set_policy(policy);
        let client = builder.build().expect("a configuration read from a url builds");
        // Why it can't connect is told here alone: commands only say that there is no connection.
        let noted = Arc::downgrade(link);
        client.on_error(move |(error, _)| {
            let noted = noted.upgrade().map(|link| link.trouble.say(error.to_string()));
            ready(noted.ok_or_else(Error::new_canceled))
        });
        let task = client.connect();
        Self { client, task }
    }

    async fn command(
        &self,
        name: &'static str,
        arguments: Vec<Value>,
        wait: Duration,
    ) -> Result<Value, Error> {
        // Sent once, or not at all while the connection is down.
        let options =
            Options { fail_fast: true, max_attempts: Some(1), timeout: Some(wait), ..Options::default() };
        let command = CustomCommand::new_static(name, ClusterHash::FirstKey, false);
        self.client.with_options(&options).custom(command, arguments).await
    }

    async fn ping(&self, wait: Duration) -> Result<(), Error> {
        self.command("PING", Vec::new(), wait).await.map(drop)
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// One thread's connection, and the requests that wait for its next call.
struct Batcher {
    link: Arc<Link>,
    /// The thread's, where the calls are made, wherever an operation comes from.
    runtime: Handle,
    connection: ArcSwap<Connection>,
    queue: Mutex<Queue>,
}

/// A plain lock: held to push or to cut a batch, never across an await.
#[derive(Default)]
struct Queue {
    waiting: VecDeque<Waiting>,
    charges: usize,
    /// Calls in flight: one, or two while a full call waits behind the first.
    calls: usize,
}

struct Waiting {
    operation: Operation,
    /// Nobody may wait for it.
    answer: Option<oneshot::Sender<Result<Reply, StoreError>>>,
}

impl Waiting {
    fn is_abandoned(&self) -> bool {
        self.answer.as_ref().is_some_and(oneshot::Sender::is_closed)
    }
}

/// The right to make calls. It is given back however it ends, else nobody would call again.
struct Turn<'a> {
    batcher: &'a Batcher,
    has_ended: bool,
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        if !self.has_ended {
            self.batcher.queue.lock().calls -= 1;
        }
    }
}

impl Batcher {
    fn start(link: Arc<Link>) -> Self {
        let connection = ArcSwap::from_pointee(Connection::start(&link));
        Self { link, runtime: Handle::current(), connection, queue: Mutex::default() }
    }

    fn enqueue(self: &Arc<Self>, waiting: Waiting) -> Result<(), StoreError> {
        let mut queue = self.queue.lock();
        if queue.waiting.len() >= WAITING_MOST {
            return Err(StoreError::Overloaded);
        }
        queue.charges += waiting.operation.size();
        queue.waiting.push_back(waiting);
        if queue.calls == 0 || (queue.calls == 1 && queue.charges >= CALL_CHARGES) {
            queue.calls += 1;
            self.runtime.spawn(self.clone().call_until_idle());
        }
        Ok(())
    }

    /// Makes calls for as long as requests wait.
    async fn call_until_idle(self: Arc<Self>) {
        let mut turn = Turn { batcher: &self, has_ended: false };
        loop {
            // Requests that have arrived already, but haven't been looked at, go along.
            yield_now().await;
            let Some(batch) = self.next_batch(&mut turn) else { return };
            let mut call = Call::default();
            for waiting in &batch {
                call.push(&waiting.operation);
            }
            let answer = self.call(&call).await;
            match &answer {
                Ok(_) => self.link.trouble.forget(),
                Err(error @ (StoreError::Answer(_) | StoreError::Malformed)) => {
                    self.link.trouble.say(describe(error));
                }
                // A broken connection says why by itself, and a timeout has no cause to tell.
                Err(_) => {}
            }
            if self.link.breaker.opened_by(&answer) {
                tracing::warn!("the store fails: each limit's on_failure decides until it answers");
                tokio::spawn(Self::probe(Arc::downgrade(&self)));
            }
            self.distribute(batch, &call, answer);
        }
    }

    /// The next requests to go together, without those whose callers have given up.
    /// `None` ends this caller's turn, which it may also do when the other call can take the rest.
    fn next_batch(&self, turn: &mut Turn<'_>) -> Option<Vec<Waiting>> {
        let mut queue = self.queue.lock();
        let mut batch = Vec::new();
        let mut charges = 0;
        while let Some(next) = queue.waiting.front() {
            if queue.calls > 1 && batch.is_empty() && queue.charges < CALL_CHARGES {
                break;
            }
            let size = next.operation.size();
            if !batch.is_empty() && charges + size > CALL_CHARGES {
                break;
            }
            let Some(next) = queue.waiting.pop_front() else { break };
            queue.charges -= size;
            if !next.is_abandoned() {
                charges += size;
                batch.push(next);
            }
        }
        if batch.is_empty() {
            queue.calls -= 1;
            turn.has_ended = true;
            return None;
        }
        Some(batch)
    }

    async fn call(&self, call: &Call) -> Result<Vec<i64>, StoreError> {
        let (keys, list) = call.encode();
        let sha = Bytes::from_static(script::SHA.as_bytes());
        let source = Bytes::from_static(script::SOURCE.as_bytes());
        let connection = self.connection.load_full();
        let sent = Instant::now();
        let by_sha = connection.command("EVALSHA", values(sha, &keys, list.clone()), self.link.timeout).await;
        let answer = match by_sha {
            // Nothing ran. EVAL loads the script, too.
            Err(error) if error.details().starts_with("NOSCRIPT") => {
                let left = self.link.timeout.saturating_sub(sent.elapsed());
                if left < SHORTEST_WAIT {
                    return Err(StoreError::Timeout);
                }
                connection.command("EVAL", values(source, &keys, list), left).await
            }
            answer => answer,
        };
        integers(answer.map_err(failure)?).ok_or(StoreError::Malformed)
    }

    fn distribute(self: &Arc<Self>, batch: Vec<Waiting>, call: &Call, answer: Result<Vec<i64>, StoreError>) {
        let decoded = answer.and_then(|answer| call.decode(&answer).ok_or(StoreError::Malformed));
        let replies = match decoded {
            Ok((_, replies)) => replies,
            Err(error) => {
                tracing::debug!(
                    cause = describe(&error),
                    requests = batch.len(),
                    "a call of the store failed"
                );
                for answer in batch.into_iter().filter_map(|waiting| waiting.answer) {
                    let _ = answer.send(Err(error.clone()));
                }
                return;
            }
        };
        for (waiting, reply) in batch.into_iter().zip(replies) {
            let Some(answer) = waiting.answer else { continue };
            // A caller that has left in the meantime keeps its charge, but not its leases.
            if let Err(Ok(Reply::Decision(decision))) = answer.send(Ok(reply)) {
                for Lease { bucket, quota, id } in decision.leases {
                    let operation = Operation::On { bucket, quota, act: Act::Release(id) };
                    let _ = self.enqueue(Waiting { operation, answer: None });
                }
            }
        }
    }

    /// Asks the server for a sign of life until it gives one, then closes the breaker.
    async fn probe(batcher: Weak<Self>) {
        let since = Instant::now();
        let (mut answered, mut failed) = (0, 0);
        loop {
            let Some(batcher) = batcher.upgrade() else { return };
            let link = &batcher.link;
            if batcher.connection.load_full().ping(link.timeout.max(PROBE_WAIT)).await.is_ok() {
                answered += 1;
                if answered > PROBES_FOR_OTHERS || link.all_are_connected() {
                    link.trouble.forget();
                    link.breaker.close();
                    break;
                }
            } else {
                failed += 1;
                let is_over = batcher.connection.load().task.is_finished();
                if is_over || failed % PROBES_PER_CONNECTION == 0 {
                    batcher.connection.store(Arc::new(Connection::start(link)));
                }
            }
            drop(batcher);
            sleep(PROBE_EVERY).await;
        }
        tracing::info!(after_ms = since.elapsed().as_millis() as u64, "the store answers again");
    }
}

fn values(script: Bytes, keys: &[Bytes], list: Bytes) -> Vec<Value> {
    let mut values = Vec::with_capacity(3 + keys.len());
    values.push(Value::Bytes(script));
    values.push(Value::Integer(keys.len() as i64));
    values.extend(keys.iter().cloned().map(Value::Bytes));
    values.push(Value::Bytes(list));
    values
}

fn integers(answer: Value) -> Option<Vec<i64>> {
    let Value::Array(values) = answer else { return None };
    values
        .into_iter()
        .map(|value| if let Value::Integer(number) = value { Some(number) } else { None })
        .collect()
}

/// An error of the server leaves it standing; all else is the connection's.
fn failure(error: Error) -> StoreError {
    match error.kind() {
        ErrorKind::Timeout => StoreError::Timeout,
        ErrorKind::IO | ErrorKind::Canceled | ErrorKind::Routing => StoreError::Connection(error),
        // So says a client whose task has ended. (Of the same kind is what a server calls ERR.)
        ErrorKind::Unknown if error.details().contains("send command to router") => {
            StoreError::Connection(error)
        }
        _ => StoreError::Answer(error),
    }
}

fn describe(error: &StoreError) -> String {
    match std::error::Error::source(error) {
        Some(cause) => format!("{error}: {cause}"),
        None => error.to_string(),
    }
}
