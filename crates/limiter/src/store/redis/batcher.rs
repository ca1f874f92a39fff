//! Group commit: operations that arrive while a call is in flight go together in the next one.
//!
//! An idle thread sends at once. If the server is so far away that the next call would come too late for an
//! operation, its requester has a call leave behind those in flight ([`Batcher::hasten`]), which the server answers
//! in order.
//!
//! A call is about one slot, since in a Cluster no other could be atomic: each slot has a lane of its own, and several
//! lanes' calls are in flight at once. A server that stands alone has one lane, mostly. A call that gets no reply is never
//! sent again: it may have run. One that is refused for a single key is sent again in parts ([`apart`](super::apart)). An
//! operation whose requester has given up before it was sent is dropped.
//!
//! All of it changes one queue under one lock, so it stands in one file.

use std::{
    collections::{BTreeMap, VecDeque},
    pin::Pin,
    sync::{
        Arc, Weak,
        atomic::{
            AtomicBool,
            Ordering::{Relaxed, SeqCst},
        },
    },
    time::Duration,
};

use arc_swap::ArcSwap;
use fred::{
    error::{Error, ErrorKind},
    types::config::{Config, Server},
};
use parking_lot::Mutex;
use tokio::{
    runtime::Handle,
    sync::{Notify, OnceCell, Semaphore, oneshot},
    task::{AbortHandle, yield_now},
    time::{Instant, sleep},
};

use crate::store::script::{Call, ScriptReply};

use super::{
    Act, LANE, Lease, Operation, Reply, StoreError,
    apart::{by_algorithms, by_limits, is_of_a_command, is_of_a_key},
    breaker::{Silence, Timeouts},
    call::{self, FailedCall},
    connection::{CONNECT_TIMEOUT, Connection, describe},
    deadlines::Deadlines,
    node::SharedNode,
    releases::{Releases, may_be_repeated},
    round_trip::CALLS_MOST,
    slots::is_redirection,
};

/// The [size](Call::size) at which a call takes no more operations.
const CALL_CHARGES: usize = 256;
/// The most operations that go in one call.
const CALL_OPERATIONS: usize = 256;
/// The parts in which a refused call is sent again, and the most parts in flight, since other calls need places, too.
const PARTS: usize = CALLS_MOST / 2;
/// Operations that may wait on a thread; past that they are for the failure policy.
const WAITING_MOST: usize = 8_192;
/// A server that has become a replica isn't asked for before that whether its name leads elsewhere by now.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Operations that are due look no more often than that whether they can be sent.
const HASTEN_EVERY: Duration = Duration::from_millis(1);
/// The time in which costs that were lost are added up for the log.
const TELL_LOST_AFTER: Duration = Duration::from_secs(10);
/// Lanes that are kept while nobody waits in them.
const LANES_KEPT: usize = 64;

/// Operations that may go in one call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Lane {
    pub(super) slot: u16,
    pub(super) mode: SendMode,
}

/// The way in which operations on a slot are sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum SendMode {
    /// Waiting operations go in one call.
    Together,
    /// Waiting operations of one kind go in one call, since the user lacks a right for some of them ([`Apart`](super::apart::Apart)).
    OfKind(u64),
    /// Each operation is a call: the slot is moving, and the server may have only some of the buckets.
    Alone,
    /// Each by itself, to the server that the slot is moving to, which demands an announcement.
    Asking,
}

/// One thread's connection, and the operations that wait for its next calls.
pub(super) struct Batcher {
    pub(super) shared: Arc<SharedNode>,
    /// The thread's, where the calls are made, wherever an operation comes from.
    pub(super) runtime: Handle,
    connection: ArcSwap<Connection>,
    pub(super) timeouts: Timeouts,
    pub(super) silence: Silence,
    queue: Mutex<BatchQueue>,
    calls: Semaphore,
    /// The places for parts of a refused call, each of which also takes one of the `calls`.
    parts: Semaphore,
    pub(super) releases: Releases,
    /// It has looked for the primary lately.
    looks: AtomicBool,
    /// The first connection was made, or tried.
    begun: OnceCell<()>,
    /// Has `call_task` make calls.
    wake: Arc<Notify>,
    /// The task that makes the calls of a server that stands alone. It ends with the runtime.
    call_task: AbortHandle,
    /// The deadlines of operations that wait for answers, and the task that keeps them.
    deadlines: Arc<Deadlines>,
    keeper: AbortHandle,
}

impl Drop for Batcher {
    fn drop(&mut self) {
        self.call_task.abort();
        self.keeper.abort();
    }
}

/// A plain lock: held to push or to cut a batch, never across an await.
#[derive(Default)]
struct BatchQueue {
    lanes: BTreeMap<Lane, Waitlist>,
    /// In all lanes.
    waiting: usize,
}

#[derive(Default)]
struct Waitlist {
    waiting: VecDeque<Waiting>,
    /// The sum of [`Waiting::charges`], by which a second call is begun. The [size](Call::size) of a call bounds what goes in it.
    charges: usize,
    /// The number of operations that have left the queue, from which each has its own.
    left: u64,
    /// Tasks that make its calls: one, a second while a full call waits behind the first, and more for a server that
    /// is far away.
    calls: usize,
    /// A task is about to take what waits here, even while calls are in flight.
    is_called: bool,
    /// The time of the last call.
    sent_at: Option<Instant>,
    /// The last call took several operations along.
    gathers: bool,
}

impl Waitlist {
    /// Returns true if enough waits here to fill a call.
    fn fills_call(&self) -> bool {
        self.charges >= CALL_CHARGES || self.waiting.len() >= CALL_OPERATIONS
    }
}

struct Waiting {
    operation: Operation,
    /// The charges that the operation adds to those that wait before it: none if it is equal to the last of them.
    charges: usize,
    /// Nobody may wait for it.
    answer: Option<Answer>,
}

type Answer = oneshot::Sender<Result<Reply, StoreError>>;

impl Waiting {
    fn is_abandoned(&self) -> bool {
        self.answer.as_ref().is_some_and(oneshot::Sender::is_closed)
    }
}

/// A reply that is awaited. If it comes and nobody takes it, its leases are given back.
struct AwaitedReply {
    batcher: Arc<Batcher>,
    /// The deadlines of the thread that waits: another thread may stand still.
    deadlines: Arc<Deadlines>,
    lane: Lane,
    receiver: oneshot::Receiver<Result<Reply, StoreError>>,
}

impl Drop for AwaitedReply {
    fn drop(&mut self) {
        self.receiver.close();
        if let Ok(Ok(reply)) = self.receiver.try_recv() {
            self.batcher.release_leases(self.lane, reply);
        }
    }
}

/// The right to make calls. It is given back however it ends, else nobody would call again.
struct SendTurn<'a> {
    batcher: &'a Batcher,
    lane: Lane,
    has_ended: bool,
}

impl Drop for SendTurn<'_> {
    fn drop(&mut self) {
        if !self.has_ended
            && let Some(list) = self.batcher.queue.lock().lanes.get_mut(&self.lane)
        {
            list.calls -= 1;
        }
    }
}

/// Makes the calls of the usual lane of a server that stands alone: a task for each would be 8 KB to write.
async fn make_calls(batcher: Weak<Batcher>, wake: Arc<Notify>) {
    loop {
        wake.notified().await;
        let Some(batcher) = batcher.upgrade() else { return };
        batcher.call_until_idle(LANE).await;
    }
}

/// Returns true if the error says that the server is a replica. Redis 6.2 quotes that within another one.
fn is_of_replica(error: &Error) -> bool {
    error.details().contains("READONLY ")
}

impl Batcher {
    pub(super) fn start(shared: Arc<SharedNode>) -> Arc<Self> {
        let connection = ArcSwap::from_pointee(Connection::start(&shared.config(), Arc::downgrade(&shared)));
        let runtime = Handle::current();
        let [calls, parts] = [CALLS_MOST, PARTS].map(Semaphore::new);
        let (timeouts, silence, queue, releases, looks, begun, wake) = Default::default();
        let deadlines = Arc::<Deadlines>::default();
        let kept = deadlines.clone();
        let keeper = runtime.spawn(async move { kept.keep().await }).abort_handle();
        Arc::new_cyclic(|batcher| {
            let call_task = runtime.spawn(make_calls(batcher.clone(), Arc::clone(&wake))).abort_handle();
            Self {
                shared,
                runtime,
                connection,
                timeouts,
                silence,
                queue,
                calls,
                parts,
                releases,
                looks,
                begun,
                wake,
                call_task,
                deadlines,
                keeper,
            }
        })
    }

    /// Returns true if the runtime has ended, and with it all calls.
    pub(super) fn has_ended(&self) -> bool {
        self.call_task.is_finished()
    }

    /// Returns true if no operation waits and no call is in flight.
    pub(super) fn is_idle(&self) -> bool {
        let queue = self.queue.lock();
        let makes_calls =
            queue.lanes.values().any(|list| list.calls > 0) || self.parts.available_permits() < PARTS;
        queue.waiting == 0 && !makes_calls && self.releases.are_done()
    }

    pub(super) fn connection(&self) -> Arc<Connection> {
        self.connection.load_full()
    }

    /// Returns the deadlines that this thread keeps.
    pub(super) fn deadlines(&self) -> Arc<Deadlines> {
        self.deadlines.clone()
    }

    /// Returns true if the first connection was made, or tried for as long as a call may take.
    pub(super) fn has_begun(&self) -> bool {
        self.begun.initialized()
    }

    /// Returns true if the connection is up, as far as the client knows.
    pub(super) fn is_connected(&self) -> bool {
        self.connection.load().is_connected()
    }

    /// Starts again with another connection.
    pub(super) fn reconnect(&self) {
        let _in_runtime = self.runtime.enter();
        self.connection
            .store(Arc::new(Connection::start(&self.shared.config(), Arc::downgrade(&self.shared))));
    }

    /// Goes over to another connection, soon, if it can be made: the old one is used until then.
    pub(super) fn go_over(self: &Arc<Self>) {
        let batcher = self.clone();
        self.runtime.spawn(async move { batcher.go_over_to(&batcher.shared.config()).await });
    }

    /// Returns the server that it is connected to.
    pub(super) fn server(&self) -> Option<Server> {
        self.connection.load().server()
    }

    /// Goes over to what may be another server. Returns whether it could be reached, with the login that holds now.
    pub(super) async fn go_over_to(&self, config: &Config) -> bool {
        let connection = Connection::start(config, Arc::downgrade(&self.shared));
        let is_connected = connection.connected(Instant::now() + CONNECT_TIMEOUT).await.is_ok();
        let current = self.shared.config();
        let has_login = (&config.username, &config.password) == (&current.username, &current.password);
        if is_connected && has_login {
            self.connection.store(Arc::new(connection));
        }
        is_connected && has_login
    }

    /// The server is a replica now. Its name may lead to another one, or Sentinels may.
    fn look_for_primary(self: &Arc<Self>) {
        if self.looks.swap(true, Relaxed) {
            return;
        }
        let batcher = self.clone();
        self.runtime.spawn(async move {
            batcher.go_over_to(&batcher.shared.config()).await;
            sleep(LOOK_EVERY).await;
            batcher.looks.store(false, Relaxed);
        });
    }

    /// Has an operation done in the lane's next call, whose reply is to be awaited. One that still waits at `deadline`
    /// isn't sent any more.
    pub(super) fn operate(
        self: Arc<Self>,
        deadlines: Arc<Deadlines>,
        lane: Lane,
        operation: Operation,
        deadline: Instant,
    ) -> Result<impl Future<Output = Result<Reply, StoreError>>, StoreError> {
        let (answer, receiver) = oneshot::channel();
        let lane = self.lane_of(lane, &operation);
        let number = self.enqueue(lane, operation, Some(answer)).map_err(|_| StoreError::Overloaded)?;
        let mut awaited = AwaitedReply { batcher: self, deadlines, lane, receiver };
        Ok(async move {
            let AwaitedReply { batcher, deadlines, receiver, .. } = &mut awaited;
            let mut until = batcher.patience(lane, number, deadline);
            let answer = loop {
                match deadlines.within(until, &mut *receiver).await {
                    Some(Ok(answer)) => break answer,
                    Some(Err(_)) => break Err(StoreError::Open),
                    None if until >= deadline => break Err(StoreError::Timeout),
                    None => until = batcher.hasten(lane, number, deadline),
                }
            };
            if let Err(StoreError::Timeout) = answer {
                batcher.note_late();
            }
            answer
        })
    }

    /// Returns until when an operation can just be waited for.
    fn patience(self: &Arc<Self>, lane: Lane, number: u64, deadline: Instant) -> Instant {
        let round_trip = &self.shared.round_trip;
        if !round_trip.is_far() {
            return deadline;
        }
        let send_by = round_trip.send_by(deadline);
        if send_by <= Instant::now() { self.hasten(lane, number, deadline) } else { send_by }
    }

    /// Has what waits in the lane sent behind the calls in flight, if the operation of this number is still there, and
    /// there is room. Returns when to look again.
    fn hasten(self: &Arc<Self>, lane: Lane, number: u64, deadline: Instant) -> Instant {
        let (pace, now) = (self.shared.round_trip.pace(), Instant::now());
        let mut queue = self.queue.lock();
        let Some(list) = queue.lanes.get_mut(&lane).filter(|list| number >= list.left) else {
            return deadline;
        };
        // Calls that leave at once would take all places: what comes next would wait for a whole round trip.
        let next = list.sent_at.map_or(now, |sent_at| sent_at + pace);
        if next > now {
            return next.min(deadline);
        }
        if !list.is_called {
            list.is_called = true;
            if list.calls < CALLS_MOST {
                list.calls += 1;
                self.runtime.spawn(Box::pin(self.clone().call_until_idle(lane)));
            }
        }
        (now + pace.max(HASTEN_EVERY)).min(deadline)
    }

    /// Counts a request that wasn't answered in time. Logs it now and then, with the time that a round trip takes.
    fn note_late(self: &Arc<Self>) {
        let Some(late) = self.shared.late.note() else { return };
        let batcher = self.clone();
        self.runtime.spawn(async move {
            let (shared, sent) = (&batcher.shared, Instant::now());
            let is_there = batcher.connection().ping(CONNECT_TIMEOUT).await.is_ok();
            shared.say_late(late, is_there.then(|| sent.elapsed()));
        });
    }

    /// Does an operation in the lane's next call, unless the server is away or too many wait.
    pub(super) fn send(self: &Arc<Self>, lane: Lane, operation: Operation) {
        if self.shared.breaker.is_open() || !self.is_connected() {
            self.note_undone(operation, &StoreError::Open);
        } else if let Err(operation) = self.enqueue(self.lane_of(lane, &operation), operation, None) {
            self.note_undone(*operation, &StoreError::Overloaded);
        }
    }

    /// Notes that an operation, for whose reply nobody waits, has failed. A release is repeated, and a cost that wasn't recorded.
    /// All others are lost.
    pub(super) fn note_undone(self: &Arc<Self>, operation: Operation, error: &StoreError) {
        match may_be_repeated(&operation, error) {
            true => self.releases.add([operation], self),
            false => self.note_lost(&operation),
        }
    }

    /// Counts the cost of a request that was admitted, if the operation would have recorded one. It is logged soon, with others.
    pub(super) fn note_lost(self: &Arc<Self>, operation: &Operation) {
        let Operation::On { act: Act::Record(cost), .. } = operation else { return };
        let before = self.shared.lost.fetch_add(u64::from(*cost), SeqCst);
        if !self.shared.tells_lost.swap(true, SeqCst) {
            let shared = self.shared.clone();
            self.runtime.spawn(async move {
                sleep(TELL_LOST_AFTER).await;
                shared.say_lost(before);
            });
        }
    }

    /// Returns the lane for an operation that would go in this one: another one if its kind is apart.
    fn lane_of(&self, lane: Lane, operation: &Operation) -> Lane {
        if lane.mode != SendMode::Together {
            return lane;
        }
        match self.shared.apart.kind_of(operation) {
            Some(kind) => Lane { mode: SendMode::OfKind(kind), ..lane },
            None => lane,
        }
    }

    /// Has an operation wait in the lane, and returns its number.
    ///
    /// # Errors
    /// Too many wait.
    fn enqueue(
        self: &Arc<Self>,
        lane: Lane,
        operation: Operation,
        answer: Option<Answer>,
    ) -> Result<u64, Box<Operation>> {
        let mut queue = self.queue.lock();
        if queue.waiting >= WAITING_MOST {
            return Err(Box::new(operation));
        }
        queue.waiting += 1;
        let list = queue.lanes.entry(lane).or_default();
        let number = list.left + list.waiting.len() as u64;
        let is_equal = list.waiting.back().is_some_and(|last| last.operation == operation);
        let charges = if is_equal { 0 } else { operation.size() };
        list.charges += charges;
        list.waiting.push_back(Waiting { operation, charges, answer });
        if list.calls == 0 || (list.calls == 1 && list.fills_call()) {
            list.calls += 1;
            list.is_called = true;
            if lane == LANE && list.calls == 1 {
                self.wake.notify_one();
            } else {
                // In a box, or the runtime would copy all of it some times more.
                self.runtime.spawn(Box::pin(self.clone().call_until_idle(lane)));
            }
        }
        Ok(number)
    }

    /// Makes calls for as long as operations wait in the lane.
    async fn call_until_idle(self: Arc<Self>, lane: Lane) {
        let mut turn = SendTurn { batcher: &self, lane, has_ended: false };
        self.begun.get_or_init(async || self.begin().await).await;
        let mut gathers = self.gathers(lane);
        loop {
            // Requests that have arrived already, but haven't been looked at, go along. Where the last one went
            // by itself there is hardly another, and what there is goes with the next call.
            if gathers {
                yield_now().await;
            }
            let _permit = self.calls.acquire().await;
            let sent = Instant::now();
            let Some((batch, call)) = self.next_batch(&mut turn, sent) else { return };
            gathers = batch.len() > 1;
            self.make_call(lane, batch, call, sent).await;
        }
    }

    /// Makes a call, and gives the answers to its operations.
    async fn make_call(self: &Arc<Self>, lane: Lane, batch: Vec<Waiting>, call: Call, sent: Instant) {
        let answer = call::run(&self.connection(), &call, lane.mode, sent, self.shared.timeout).await;
        let answer = answer.map_err(|failed| self.forgo(lane, &call, failed));
        let took = sent.elapsed();
        self.shared.calls.observe_time(took);
        if answer.is_ok() {
            self.shared.round_trip.observe(took);
        }
        self.shared.charges.observe(batch.iter().map(|waiting| waiting.operation.size() as u64).sum());
        if let Err(error) = &answer {
            self.note_trouble(error);
        }
        self.shared.note(self, &answer, sent);
        match answer {
            Err(error) if is_of_a_key(&error) => self.separate(lane, batch, &call, error),
            answer => {
                if answer.as_ref().is_err_and(is_of_a_command) {
                    self.shared.apart.add(batch.iter().map(|waiting| by_algorithms(&waiting.operation)));
                }
                self.distribute(lane, batch, &call, answer);
            }
        }
    }

    /// Logs what the server says of a call, and looks for another primary if the server isn't one.
    fn note_trouble(self: &Arc<Self>, error: &StoreError) {
        let in_cluster = self.shared.cluster().is_some();
        match error {
            StoreError::Answer(error) if !is_redirection(error) => {
                self.shared.trouble.say_error(error);
                if is_of_replica(error) && !in_cluster {
                    self.look_for_primary();
                }
            }
            // In a Cluster, a slot that has gone to another node isn't trouble.
            StoreError::Answer(_) if !in_cluster => {
                let remedy = "write `store.url` with redis-cluster://";
                self.shared.trouble.say(&format!("it has only some slots of a Cluster: {remedy}"));
            }
            StoreError::Malformed => self.shared.trouble.say(&error.to_string()),
            // A broken connection says why by itself, and a timeout has no cause to tell.
            _ => {}
        }
    }

    /// Waits for the thread's first connection, or for why there is none. That it isn't there yet says nothing of the
    /// server as long as a call may take.
    async fn begin(&self) {
        let connection = self.connection();
        tokio::select! {
            _ = connection.connected(Instant::now() + self.shared.timeout) => {}
            () = self.shared.breaker.opened() => {}
        }
    }

    fn gathers(&self, lane: Lane) -> bool {
        self.queue.lock().lanes.get(&lane).is_some_and(|list| list.gathers)
    }

    /// The lane's next operations to go together, without those whose callers have given up.
    /// `None` ends this caller's turn, which it may also do when the other call can take the rest.
    fn next_batch(&self, turn: &mut SendTurn<'_>, now: Instant) -> Option<(Vec<Waiting>, Call)> {
        let mut queue = self.queue.lock();
        let BatchQueue { lanes, waiting } = &mut *queue;
        let list = lanes.entry(turn.lane).or_default();
        let most = match turn.lane.mode {
            SendMode::Together | SendMode::OfKind(_) => CALL_OPERATIONS,
            SendMode::Alone | SendMode::Asking => 1,
        };
        let (mut batch, mut call) = (Vec::new(), Call::default());
        while batch.len() < most && call.size() < CALL_CHARGES {
            if list.calls > 1 && batch.is_empty() && !list.is_called && !list.fills_call() {
                break;
            }
            let Some(next) = list.waiting.pop_front() else { break };
            *waiting -= 1;
            list.left += 1;
            list.charges -= next.charges;
            if !next.is_abandoned() {
                call.push(&next.operation);
                batch.push(next);
            }
        }
        list.is_called = false;
        if batch.is_empty() {
            list.calls -= 1;
            turn.has_ended = true;
            if list.calls == 0 && list.waiting.is_empty() && lanes.len() > LANES_KEPT {
                lanes.remove(&turn.lane);
            }
            return None;
        }
        list.gathers = batch.len() > 1;
        list.sent_at = Some(now);
        Some((batch, call))
    }

    /// Has operations of a call that was refused for a key done again in parts, until those are left that need it. Their limits
    /// are apart from then on.
    fn separate(self: &Arc<Self>, lane: Lane, mut batch: Vec<Waiting>, call: &Call, error: StoreError) {
        let limits = |waiting: &Waiting| by_limits(&waiting.operation);
        batch.sort_by_cached_key(limits);
        let [first, ..] = &batch[..] else { return };
        if batch.last().map(limits) == Some(limits(first)) {
            self.shared.apart.add([limits(first)].into_iter());
        }
        if batch.iter().all(|other| other.operation == first.operation) {
            return self.distribute(lane, batch, call, Err(error));
        }
        let size = batch.len().div_ceil(PARTS);
        while !batch.is_empty() {
            let part = batch.split_off(batch.len().saturating_sub(size));
            self.runtime.spawn(self.clone().call_part(lane, part));
        }
    }

    /// Makes a call of operations, without those whose callers have given up.
    fn call_part(
        self: Arc<Self>,
        lane: Lane,
        mut part: Vec<Waiting>,
    ) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        Box::pin(async move {
            let _permits = (self.parts.acquire().await, self.calls.acquire().await);
            part.retain(|waiting| !waiting.is_abandoned());
            if part.is_empty() {
                return;
            }
            let mut call = Call::default();
            part.iter().for_each(|waiting| call.push(&waiting.operation));
            self.make_call(lane, part, call, Instant::now()).await;
        })
    }

    fn distribute(
        self: &Arc<Self>,
        lane: Lane,
        batch: Vec<Waiting>,
        call: &Call,
        answer: Result<ScriptReply, StoreError>,
    ) {
        if let Some(ahead_ms) = answer.as_ref().ok().and_then(|answer| call.ahead_ms(answer)) {
            self.shared.trouble.say_ahead(ahead_ms);
        }
        let decoded = answer.and_then(|answer| call.decode(&answer).ok_or(StoreError::Malformed));
        let replies = match decoded {
            Ok((_, replies)) => replies,
            Err(error) => {
                let (cause, requests) = (describe(&error), batch.len());
                tracing::debug!(cause, requests, "a call to the store failed");
                for Waiting { operation, answer, .. } in batch {
                    match answer {
                        Some(answer) => drop(answer.send(Err(error.clone()))),
                        None => self.note_undone(operation, &error),
                    }
                }
                return;
            }
        };
        for (waiting, reply) in batch.into_iter().zip(replies) {
            let reply = reply.map_err(|text| self.failed(&waiting.operation, text));
            let Some(answer) = waiting.answer else {
                if let Err(error) = reply {
                    self.note_undone(waiting.operation, &error);
                }
                continue;
            };
            // A caller that has left in the meantime keeps its charge, but not its leases.
            if let Err(Ok(reply)) = answer.send(reply) {
                self.release_leases(lane, reply);
            }
        }
    }

    /// Returns the error of a call. The leases that it has granted, or may have, are ended, since nobody will use them.
    fn forgo(
        self: &Arc<Self>,
        lane: Lane,
        call: &Call,
        FailedCall { error, reply }: FailedCall,
    ) -> StoreError {
        let is_refused = matches!(error, StoreError::Answer(_)) && !is_of_a_command(&error);
        let has_run = reply.is_some();
        let nothing_ran = reply.is_none() && is_refused;
        match reply.and_then(|reply| call.decode(&reply)) {
            Some((_, replies)) => {
                replies.into_iter().flatten().for_each(|reply| self.release_leases(lane, reply));
            }
            None if nothing_ran => {}
            None => self.releases.add(call.leases_at_most().map(Lease::release), self),
        }
        match error {
            // The command behind the script was refused, which doesn't mean that the script was.
            StoreError::Answer(_) if has_run => StoreError::Timeout,
            error => error,
        }
    }

    /// Ends the leases that a reply has granted.
    fn release_leases(self: &Arc<Self>, lane: Lane, reply: Reply) {
        let Reply::Decision(decision) = reply else { return };
        decision.leases.into_iter().for_each(|lease| self.send(lane, lease.release()));
    }

    /// Logs why a single operation of a call failed.
    fn failed(&self, operation: &Operation, text: String) -> StoreError {
        let error = Error::new(ErrorKind::Unknown, text);
        self.shared.trouble.say_error_of(operation, &error);
        StoreError::Answer(error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_replica_says_so_in_the_words_of_its_version() {
        let is_of_replica = |text: &str| is_of_replica(&Error::new(ErrorKind::Unknown, text.to_owned()));
        for text in [
            "READONLY You can't write against a read only replica. script: f, on @user_script:1.",
            "ERR Error running script (call to f_0): @user_script:1: @user_script: 1: -READONLY You can't write against a read only replica.",
        ] {
            assert!(is_of_replica(text), "{text}");
        }
        assert!(!is_of_replica("OOM command not allowed when used memory > 'maxmemory'."));
    }
}
