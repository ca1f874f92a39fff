//! The model: gateways, workers and requests in virtual time, in nanoseconds. Whatever is sent takes the same time and is
//! served in order, so replies, timeouts and deadlines come in the order of their queues; all else is in a heap.

use std::{
    cmp::Reverse,
    collections::{BinaryHeap, HashMap, VecDeque},
};

use super::{
    Fallback, Parameters,
    counts::{Counts, Decided},
    known::{Block, Recall},
    sampling::{Hash, Zipf, next_arrival_ns},
    server::{Breaker, CALLS_MOST, RoundTrip, Server},
    tally::Tally,
};

/// The bounds of crates/limiter/src/store/redis/batcher.rs.
const CALL_CHARGES: usize = 256;
const WAITING_MOST: usize = 8_192;
/// The time between probes: crates/limiter/src/store/redis/node/probe.rs.
const PROBE_EVERY_NS: u64 = 100_000_000;

/// A request that has asked the store or waits to.
struct Request {
    arrival: u64,
    key: u32,
    worker: u32,
    is_decided: bool,
    /// It asks about a full bucket for others.
    has_turn: bool,
}

#[derive(Clone, Default)]
struct Worker {
    waiting: VecDeque<u64>,
    calls: u32,
    sent_at: u64,
    /// The time at which it checks whether waiting requests must be sent behind the calls in flight. `None` if it won't.
    hastens_at: Option<u64>,
    /// The time of the last timeout that told something new.
    silent_at: Option<u64>,
}

/// A call, with the requests in it and their decisions, if it is answered in time.
struct Call {
    at: u64,
    sent: u64,
    worker: u32,
    decided: Vec<(u64, Decided)>,
}

#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum Timer {
    Hasten(u32),
    Ask(u64),
    Probe(u32),
    Close(u32),
}

pub(super) struct Model<'p> {
    parameters: &'p Parameters,
    random: fastrand::Rng,
    zipf: Zipf,
    now: u64,
    arrives_at: u64,
    server: Server,
    workers: Vec<Worker>,
    breakers: Vec<Breaker>,
    round_trips: Vec<RoundTrip>,
    known: HashMap<u64, Block, Hash>,
    counts: Counts,
    /// The requests within their deadline, in the order of their arrival; the first one's number.
    requests: VecDeque<Request>,
    first: u64,
    answers: VecDeque<Call>,
    timeouts: VecDeque<Call>,
    timers: BinaryHeap<Reverse<(u64, Timer)>>,
    swept_at: u64,
    pub(super) tally: Tally,
}

impl<'p> Model<'p> {
    pub(super) fn new(parameters: &'p Parameters, gateways: u32, silent: (u64, u64)) -> Self {
        let timeout = parameters.timeout_ms * 1_000_000;
        let first_trip = (parameters.round_trip_us * 1e3) as u64 + (parameters.call_us * 1e3) as u64;
        Self {
            parameters,
            random: fastrand::Rng::with_seed(parameters.seed),
            zipf: Zipf::new(parameters.keys, parameters.skew),
            now: 0,
            arrives_at: 0,
            server: Server::new(parameters, silent),
            workers: vec![Worker::default(); (gateways * parameters.workers) as usize],
            breakers: vec![Breaker::default(); gateways as usize],
            round_trips: vec![RoundTrip::new(timeout, first_trip); gateways as usize],
            known: HashMap::default(),
            counts: Counts::new(parameters, gateways),
            requests: VecDeque::new(),
            first: 0,
            answers: VecDeque::new(),
            timeouts: VecDeque::new(),
            timers: BinaryHeap::new(),
            swept_at: 0,
            tally: Tally::new(parameters, silent),
        }
    }

    /// Runs until the end, and returns what was seen.
    pub(super) fn run(mut self) -> Tally {
        let end = self.parameters.end_ns();
        while self.now < end {
            self.step();
        }
        self.tally.most_over = self.counts.most_over();
        self.tally
    }

    /// Does what comes next.
    fn step(&mut self) {
        let at = |call: Option<&Call>| call.map_or(u64::MAX, |call| call.at);
        let deadline = self.requests.front().map_or(u64::MAX, |request| request.arrival + self.timeout());
        let timer = self.timers.peek().map_or(u64::MAX, |Reverse((at, _))| *at);
        let (answer, timeout) = (at(self.answers.front()), at(self.timeouts.front()));
        self.now = deadline.min(timer).min(answer).min(timeout).min(self.arrives_at);
        if self.now == answer {
            self.answered();
        } else if self.now == deadline {
            self.expire();
        } else if self.now == timeout {
            self.timed_out();
        } else if self.now == timer {
            self.timer();
        } else {
            self.arrive();
        }
        let window_ns = self.parameters.rate.window_us * 1_000;
        if self.now - self.swept_at > window_ns {
            self.swept_at = self.now;
            let long_ago = self.now - window_ns;
            self.known.retain(|_, block| !block.is_over(long_ago));
            self.counts.sweep(self.now / 1_000);
        }
    }

    fn timeout(&self) -> u64 {
        self.parameters.timeout_ms * 1_000_000
    }

    fn gateway(&self, worker: u32) -> usize {
        (worker / self.parameters.workers) as usize
    }

    fn arrive(&mut self) {
        let worker = self.random.u32(..self.workers.len() as u32);
        let key = self.zipf.sample(&mut self.random);
        let mut request = Request { arrival: self.now, key, worker, is_decided: false, has_turn: false };
        self.arrives_at = self.now + next_arrival_ns(&mut self.random, self.parameters.requests).max(1);
        self.tally.arrived(self.now, self.counts.would_admit(key, self.now / 1_000));
        match self.recall(&mut request, self.now) {
            Recall::Refused => self.tally.refused_locally(self.now, 0),
            recall => {
                let number = self.first + self.requests.len() as u64;
                self.requests.push_back(request);
                self.follow(number, recall);
            }
        }
    }

    fn recall(&mut self, request: &mut Request, now: u64) -> Recall {
        let bucket = self.bucket(request);
        let Some(block) = self.known.get_mut(&bucket) else { return Recall::Asks(now) };
        let recall = block.recall(now);
        request.has_turn = matches!(recall, Recall::Asks(_));
        recall
    }

    fn bucket(&self, request: &Request) -> u64 {
        (self.gateway(request.worker) as u64) << 32 | u64::from(request.key)
    }

    /// Does with a request what the gateway knows to be right.
    fn follow(&mut self, number: u64, recall: Recall) {
        match recall {
            Recall::Refused => {
                let arrival = self.decide(number);
                self.tally.refused_locally(self.now, self.now - arrival);
            }
            Recall::Asks(at) if at > self.now => self.timers.push(Reverse((at, Timer::Ask(number)))),
            Recall::Asks(_) => self.ask(number),
            Recall::Waits => {
                let bucket = self.bucket(&self.requests[(number - self.first) as usize]);
                if let Some(block) = self.known.get_mut(&bucket) {
                    block.waiting.push(number);
                }
            }
        }
    }

    /// Returns a request that isn't decided yet.
    fn request(&mut self, number: u64) -> Option<&mut Request> {
        let at = number.checked_sub(self.first)?;
        self.requests.get_mut(at as usize).filter(|request| !request.is_decided)
    }

    /// Marks a request as decided, and returns its arrival.
    fn decide(&mut self, number: u64) -> u64 {
        let request = &mut self.requests[(number - self.first) as usize];
        request.is_decided = true;
        request.arrival
    }

    /// Has a request wait for the next call of its worker.
    fn ask(&mut self, number: u64) {
        let Some(&mut Request { worker, arrival, .. }) = self.request(number) else { return };
        let gateway = self.gateway(worker);
        let lane = &mut self.workers[worker as usize];
        if self.breakers[gateway].is_open || lane.waiting.len() >= WAITING_MOST {
            return self.go_without_store(number);
        }
        lane.waiting.push_back(number);
        let is_full = lane.waiting.len() >= CALL_CHARGES;
        if lane.calls == 0 || (lane.calls == 1 && is_full) {
            return self.send(worker);
        }
        let trip = &self.round_trips[gateway];
        if trip.is_far() && lane.hastens_at.is_none() {
            let at = trip.send_by(arrival).max(lane.sent_at + trip.pace()).max(self.now);
            lane.hastens_at = Some(at);
            self.timers.push(Reverse((at, Timer::Hasten(worker))));
        }
    }

    /// Sends what waits at a worker, in one call; requests that have been given up stay behind.
    fn send(&mut self, worker: u32) {
        let mut numbers = Vec::new();
        while numbers.len() < CALL_CHARGES
            && let Some(number) = self.workers[worker as usize].waiting.pop_front()
        {
            numbers.extend(self.request(number).is_some().then_some(number));
        }
        if numbers.is_empty() {
            return;
        }
        let lane = &mut self.workers[worker as usize];
        (lane.calls, lane.sent_at) = (lane.calls + 1, self.now);
        let keys: Vec<u32> =
            numbers.iter().map(|number| self.requests[(number - self.first) as usize].key).collect();
        let mut distinct = keys.clone();
        distinct.sort_unstable();
        distinct.dedup();
        let served = self.server.serve(self.now, distinct.len(), keys.len() - distinct.len());
        self.tally.called(self.now, served.as_ref().map_or(0, |served| served.busy_ns));
        let (sent, late_at) = (self.now, self.now + self.timeout());
        let Some(served) = served else {
            let decided = Vec::new();
            return self.timeouts.push_back(Call { at: late_at, sent, worker, decided });
        };
        let at_us = served.decided_at / 1_000;
        let decided = keys.iter().map(|key| self.counts.take(*key, at_us));
        let decided: Vec<_> = numbers.into_iter().zip(decided).collect();
        if served.answered_at >= late_at {
            self.timeouts.push_back(Call { at: late_at, sent, worker, decided });
        } else {
            self.answers.push_back(Call { at: served.answered_at, sent, worker, decided });
        }
    }

    /// Ends a call: another one takes what waits, unless others in flight are to.
    fn end_call(&mut self, worker: u32) {
        let lane = &mut self.workers[worker as usize];
        lane.calls -= 1;
        if lane.calls == 0 || lane.waiting.len() >= CALL_CHARGES {
            self.send(worker);
        }
    }

    fn answered(&mut self) {
        let Some(Call { sent, worker, decided, .. }) = self.answers.pop_front() else { return };
        let (gateway, now) = (self.gateway(worker), self.now);
        self.round_trips[gateway].observe(now - sent, now);
        self.breakers[gateway].answered();
        for (number, decided) in decided {
            let Some(&mut Request { arrival, key, has_turn, .. }) = self.request(number) else { continue };
            self.decide(number);
            self.tally.decided(now, decided.is_admitted, now - arrival);
            let bucket = (gateway as u64) << 32 | u64::from(key);
            if !decided.is_admitted || decided.room == 0 {
                self.known.entry(bucket).or_default().fill(decided.delay_us, sent, now);
            } else if let Some(block) = self.known.get_mut(&bucket) {
                block.empty(decided.room);
            }
            self.end_turn(bucket, has_turn);
        }
        self.end_call(worker);
    }

    /// Has the requests that waited for an answer look again.
    fn end_turn(&mut self, bucket: u64, has_turn: bool) {
        let now = self.now;
        let Some(block) = self.known.get_mut(&bucket).filter(|_| has_turn) else { return };
        let again = block.end_turn(now);
        if again.is_empty() && block.is_over(now) {
            self.known.remove(&bucket);
        }
        for number in again {
            let Some(request) = self.request(number) else { continue };
            let mut looks = Request { ..*request };
            let recall = self.recall(&mut looks, now);
            if let Some(request) = self.request(number) {
                request.has_turn = looks.has_turn;
            }
            self.follow(number, recall);
        }
    }

    fn timed_out(&mut self) {
        let Some(Call { sent, worker, .. }) = self.timeouts.pop_front() else { return };
        let gateway = self.gateway(worker);
        let lane = &mut self.workers[worker as usize];
        // Calls that are in flight together meet the same silence.
        if lane.silent_at.is_none_or(|at| sent >= at) {
            lane.silent_at = Some(self.now);
            if self.breakers[gateway].timed_out() {
                self.tally.opened();
                self.timers.push(Reverse((self.now, Timer::Probe(gateway as u32))));
            }
        }
        self.end_call(worker);
    }

    /// Decides the first request without the store if its deadline has come, and lets it go.
    fn expire(&mut self) {
        if self.request(self.first).is_some() {
            self.go_without_store(self.first);
        }
        self.requests.pop_front();
        self.first += 1;
    }

    fn go_without_store(&mut self, number: u64) {
        let arrival = self.decide(number);
        let Request { key, has_turn, .. } = self.requests[(number - self.first) as usize];
        let bucket = self.bucket(&self.requests[(number - self.first) as usize]);
        let is_admitted = match self.parameters.on_failure {
            Fallback::Deny => false,
            Fallback::Allow => self.counts.allow(key, self.now / 1_000),
            Fallback::Local => self.counts.take_locally(bucket, self.now / 1_000),
        };
        self.tally.decided_without_store(self.now, is_admitted, self.now - arrival);
        self.end_turn(bucket, has_turn);
    }

    fn timer(&mut self) {
        let Some(Reverse((_, timer))) = self.timers.pop() else { return };
        match timer {
            Timer::Ask(number) => self.ask(number),
            Timer::Hasten(worker) => self.hasten(worker),
            Timer::Probe(gateway) => self.probe(gateway),
            Timer::Close(gateway) => {
                self.breakers[gateway as usize].close();
                self.tally.closed(self.now);
            }
        }
    }

    /// Sends what must leave behind the calls in flight, to be answered by a server that is far away.
    fn hasten(&mut self, worker: u32) {
        self.workers[worker as usize].hastens_at = None;
        let Some(first) = self.workers[worker as usize].waiting.front().copied() else { return };
        let trip = self.round_trips[self.gateway(worker)].clone();
        let now = self.now;
        let arrival = self.request(first).map_or(now, |request| request.arrival);
        let lane = &self.workers[worker as usize];
        let due_at = trip.send_by(arrival).max(lane.sent_at + trip.pace());
        if due_at <= self.now && lane.calls < CALLS_MOST {
            self.send(worker);
        }
        let lane = &mut self.workers[worker as usize];
        if trip.is_far() && !lane.waiting.is_empty() {
            let at = due_at.max(self.now + trip.pace().max(1_000_000));
            lane.hastens_at = Some(at);
            self.timers.push(Reverse((at, Timer::Hasten(worker))));
        }
    }

    /// Asks on all connections of a gateway whether the server answers again.
    fn probe(&mut self, gateway: u32) {
        let late_at = self.now + self.timeout().max(50_000_000);
        let probes = (0..self.parameters.workers).map(|_| self.server.serve(self.now, 0, 0));
        let served: Option<Vec<_>> = probes.collect();
        let last = served.and_then(|served| served.last().map(|last| last.answered_at));
        let next = match last.filter(|at| *at < late_at) {
            Some(at) => (at, Timer::Close(gateway)),
            None => (late_at + PROBE_EVERY_NS, Timer::Probe(gateway)),
        };
        self.timers.push(Reverse(next));
    }
}
