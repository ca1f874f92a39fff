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
    sync::{
        Arc,
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
        config::{Config, Options, ReconnectError, ReconnectPolicy, Server},
    },
};
use parking_lot::Mutex;
use thread_local::ThreadLocal;
use tokio::{
    sync::{
        broadcast::{Receiver, error::RecvError},
        oneshot,
    },
    task::JoinHandle,
    time::{Instant, sleep, timeout, timeout_at},
};

use super::{
    Charges, Decision, StoreError,
    script::{self, Argument, Call},
};

/// Charges that go in one call of the script.
const CALL_CHARGES: usize = 256;
/// Decisions that may wait on a thread; past that they are for the failure policy.
const WAITING_MOST: usize = 8_192;
/// Failed calls in a row that open the breaker. A broken connection opens it at once.
const FAILURES_TO_OPEN: u32 = 3;
const PROBE_EVERY: Duration = Duration::from_millis(100);
/// Failed probes after which the connection is replaced: it may be dead without anyone having said so.
const PROBES_PER_CONNECTION: u32 = 20;
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
        let link = Link { config, timeout, breaker: Breaker::default(), trouble: Mutex::default() };
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

    /// Decides a request in the next call of this thread's batcher.
    ///
    /// # Errors
    /// No decision, at the latest at `deadline`. A request that still waits then isn't sent any more.
    pub async fn take(&self, charges: Charges, deadline: Instant) -> Result<Decision, StoreError> {
        if self.link.breaker.is_open() {
            return Err(StoreError::Open);
        }
        let answer = self.batcher().enqueue(charges)?;
        match timeout_at(deadline, answer).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(_)) => Err(StoreError::Open),
            Err(_) => Err(StoreError::Timeout),
        }
    }

    fn batcher(&self) -> &Arc<Batcher> {
        self.batchers.get_or(|| Arc::new(Batcher::start(self.link.clone())))
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
    /// Why connecting failed last, since the server answered: told once, not at each attempt.
    trouble: Mutex<Option<Error>>,
}

impl Link {
    /// Tells why a connection fails: a call that finds none can't say it.
    async fn tell_trouble(self: Arc<Self>, mut errors: Receiver<(Error, Option<Server>)>) {
        loop {
            match errors.recv().await {
                Ok((error, _)) => {
                    let before = self.trouble.lock().replace(error.clone());
                    if before.as_ref() != Some(&error) {
                        tracing::warn!(cause = error.to_string(), "a connection to the store fails");
                    }
                }
                Err(RecvError::Lagged(_)) => {}
                Err(RecvError::Closed) => return,
            }
        }
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
    trouble: JoinHandle<()>,
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
        let trouble = tokio::spawn(link.clone().tell_trouble(client.error_rx()));
        let task = client.connect();
        Self { client, task, trouble }
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
        self.trouble.abort();
    }
}

/// One thread's connection, and the requests that wait for its next call.
struct Batcher {
    link: Arc<Link>,
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
    charges: Charges,
    answer: oneshot::Sender<Result<Decision, StoreError>>,
}

impl Batcher {
    fn start(link: Arc<Link>) -> Self {
        let connection = ArcSwap::from_pointee(Connection::start(&link));
        Self { link, connection, queue: Mutex::default() }
    }

    fn enqueue(
        self: &Arc<Self>,
        charges: Charges,
    ) -> Result<oneshot::Receiver<Result<Decision, StoreError>>, StoreError> {
        let (answer, receiver) = oneshot::channel();
        let mut queue = self.queue.lock();
        if queue.waiting.len() >= WAITING_MOST {
            return Err(StoreError::Overloaded);
        }
        queue.charges += charges.len();
        queue.waiting.push_back(Waiting { charges, answer });
        if queue.calls == 0 || (queue.calls == 1 && queue.charges >= CALL_CHARGES) {
            queue.calls += 1;
            tokio::spawn(self.clone().call_until_idle());
        }
        Ok(receiver)
    }

    /// Makes calls for as long as requests wait.
    async fn call_until_idle(self: Arc<Self>) {
        while let Some(batch) = self.next_batch() {
            let mut call = Call::default();
            for waiting in &batch {
                call.push(&waiting.charges);
            }
            let answer = self.call(&call).await;
            if self.link.breaker.opened_by(&answer) {
                tokio::spawn(self.clone().probe(answer.as_ref().err().map(describe)));
            }
            distribute(batch, &call, answer);
        }
    }

    /// The next requests to go together, without those whose callers have given up.
    /// `None` ends this caller's turn, which it may also do when the other call can take the rest.
    fn next_batch(&self) -> Option<Vec<Waiting>> {
        let mut queue = self.queue.lock();
        let mut batch = Vec::new();
        let mut charges = 0;
        while let Some(next) = queue.waiting.front() {
            if queue.calls > 1 && batch.is_empty() && queue.charges < CALL_CHARGES {
                break;
            }
            let size = next.charges.len();
            if !batch.is_empty() && charges + size > CALL_CHARGES {
                break;
            }
            let Some(next) = queue.waiting.pop_front() else { break };
            queue.charges -= size;
            if !next.answer.is_closed() {
                charges += size;
                batch.push(next);
            }
        }
        if batch.is_empty() {
            queue.calls -= 1;
            return None;
        }
        Some(batch)
    }

    async fn call(&self, call: &Call) -> Result<Vec<i64>, StoreError> {
        let (keys, arguments) = call.encode();
        let sha = Bytes::from_static(script::SHA.as_bytes());
        let source = Bytes::from_static(script::SOURCE.as_bytes());
        let connection = self.connection.load_full();
        let sent = Instant::now();
        let answer =
            match connection.command("EVALSHA", values(sha, &keys, &arguments), self.link.timeout).await {
                // Nothing ran. EVAL loads the script, too.
                Err(error) if error.details().starts_with("NOSCRIPT") => {
                    let left = self.link.timeout.saturating_sub(sent.elapsed());
                    connection.command("EVAL", values(source, &keys, &arguments), left).await
                }
                answer => answer,
            };
        integers(answer.map_err(failure)?).ok_or(StoreError::Malformed)
    }

    /// Asks the server for a sign of life until it gives one, then closes the breaker.
    async fn probe(self: Arc<Self>, cause: Option<String>) {
        let cause = cause.unwrap_or_default();
        tracing::warn!(cause, "the store fails: its limits' on_failure decides until it answers");
        let since = Instant::now();
        for probe in 1.. {
            if self.connection.load_full().ping(PROBE_EVERY / 2).await.is_ok() {
                break;
            }
            if probe % PROBES_PER_CONNECTION == 0 {
                self.connection.store(Arc::new(Connection::start(&self.link)));
            }
            sleep(PROBE_EVERY).await;
        }
        self.link.breaker.close();
        *self.link.trouble.lock() = None;
        tracing::info!(after_ms = since.elapsed().as_millis() as u64, "the store answers again");
    }
}

fn distribute(batch: Vec<Waiting>, call: &Call, answer: Result<Vec<i64>, StoreError>) {
    let decoded = answer.and_then(|answer| call.decode(&answer).ok_or(StoreError::Malformed));
    match decoded {
        Ok((_, decisions)) => {
            for (waiting, decision) in batch.into_iter().zip(decisions) {
                // A caller that has left in the meantime keeps its charge.
                let _ = waiting.answer.send(Ok(decision));
            }
        }
        Err(error) => {
            tracing::debug!(cause = describe(&error), requests = batch.len(), "a call of the store failed");
            for waiting in batch {
                let _ = waiting.answer.send(Err(error.clone()));
            }
        }
    }
}

fn values(script: Bytes, keys: &[Bytes], arguments: &[Argument]) -> Vec<Value> {
    let mut values = Vec::with_capacity(2 + keys.len() + arguments.len());
    values.push(Value::Bytes(script));
    values.push(Value::Integer(keys.len() as i64));
    values.extend(keys.iter().cloned().map(Value::Bytes));
    values.extend(arguments.iter().map(|argument| match argument {
        Argument::Tag(tag) => Value::Bytes(Bytes::from_static(tag.as_bytes())),
        Argument::Number(number) => Value::Integer(*number),
    }));
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
        ErrorKind::IO | ErrorKind::Canceled | ErrorKind::Backpressure | ErrorKind::Routing => {
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
