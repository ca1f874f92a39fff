//! Stores at the instants that a test chooses: the in-process one, and the script on a real Redis.

use std::collections::HashMap;

use bytes::Bytes;
use tollgate::{
    algorithm::{Quota, Rate},
    store::{
        Act, Charge, Charges, Decision, Operation, Reply, StoreError, Usage,
        memory::MemoryStore,
        script::{self, Argument, Call},
    },
};

use crate::harness::{
    redis::Redis,
    resp::{Connection, Value},
};

pub(crate) const SECOND: u64 = 1_000_000;
/// A time of a store, in microseconds, to count from.
pub(crate) const START: u64 = 1_763_683_200_000_000;

/// A charge on a bucket at a rate, as in the file: `5/10s`.
pub(crate) fn charge(bucket: &str, rate: &str, cost: u32) -> Charge {
    let quota = rate.parse::<Rate>().unwrap().into();
    Charge { bucket: Bytes::copy_from_slice(bucket.as_bytes()), quota, cost, shadow: false }
}

pub(crate) fn quota(permits: u32, window_us: u64) -> Quota {
    Rate { permits, window_us }.into()
}

/// A store whose clock the test sets.
pub(crate) enum Stepped {
    Memory(MemoryStore),
    Redis(Script),
}

impl Stepped {
    pub(crate) fn memory() -> Self {
        Self::Memory(MemoryStore::new(1 << 30))
    }

    pub(crate) fn redis() -> Self {
        Self::Redis(Script::with_stepped_clock())
    }

    /// Decides one request.
    pub(crate) fn take(&mut self, time_us: u64, charges: &[Charge]) -> Decision {
        self.take_all(time_us, &[charges.into()]).remove(0)
    }

    /// Decides requests that come together.
    pub(crate) fn take_all(&mut self, time_us: u64, requests: &[Charges]) -> Vec<Decision> {
        match self {
            Self::Memory(store) => serially(requests, |charges| take_at(store, time_us, charges).unwrap()),
            Self::Redis(script) => {
                script.set_clock(time_us);
                script.call(requests).1
            }
        }
    }

    /// Does something to a bucket.
    pub(crate) fn act(&mut self, time_us: u64, on: &Charge, act: Act) -> Reply {
        let operation = Operation::On { bucket: on.bucket.clone(), quota: on.quota, act };
        match self {
            Self::Memory(store) => store.operate_at(time_us, &operation).unwrap(),
            Self::Redis(script) => {
                script.set_clock(time_us);
                script.operate(&[operation]).1.remove(0)
            }
        }
    }

    /// Looks how much of a bucket is in use.
    pub(crate) fn peek(&mut self, time_us: u64, on: &Charge) -> Usage {
        match self.act(time_us, on, Act::Peek(on.cost)) {
            Reply::Usage(usage) => usage,
            reply => panic!("{reply:?}"),
        }
    }

    /// Forgets everything.
    pub(crate) fn clear(&mut self) {
        match self {
            Self::Memory(store) => *store = MemoryStore::new(1 << 30),
            Self::Redis(script) => drop(script.command(&["FLUSHALL"])),
        }
    }
}

/// Decides one request.
pub(crate) fn take_at(store: &MemoryStore, time_us: u64, charges: &[Charge]) -> Result<Decision, StoreError> {
    store.operate_at(time_us, &Operation::Take(charges.into())).map(decision)
}

fn decision(reply: Reply) -> Decision {
    match reply {
        Reply::Decision(decision) => decision,
        reply => panic!("{reply:?}"),
    }
}

/// Decides requests one by one, in the order of the script's groups: equal ones next to each other.
pub(crate) fn serially(requests: &[Charges], mut decide: impl FnMut(&Charges) -> Decision) -> Vec<Decision> {
    let mut first = HashMap::new();
    let mut order: Vec<usize> = (0..requests.len()).collect();
    order.sort_by_cached_key(|at| *first.entry(&requests[*at]).or_insert(*at));
    let mut decided: Vec<_> = order.into_iter().map(|at| (at, decide(&requests[at]))).collect();
    decided.sort_by_key(|(at, _)| *at);
    decided.into_iter().map(|(_, decision)| decision).collect()
}

/// The script on a Redis of its own, called over a plain connection.
pub(crate) struct Script {
    pub(crate) redis: Redis,
    connection: Connection,
    sha: String,
}

impl Script {
    /// The script as it is shipped.
    pub(crate) fn with_server_clock() -> Self {
        Self::load(script::SOURCE)
    }

    /// The script with one change: the time is what [`Self::set_clock`] says.
    pub(crate) fn with_stepped_clock() -> Self {
        assert_eq!(script::SOURCE.matches("call('TIME')").count(), 1, "the script reads its clock once");
        Self::load(&script::SOURCE.replace("call('TIME')", "{ 0, call('GET', 'clock') }"))
    }

    fn load(source: &str) -> Self {
        let redis = Redis::start();
        let mut connection = redis.connect();
        let sha = connection.command(&["SCRIPT", "LOAD", source]).text().to_owned();
        Self { redis, connection, sha }
    }

    pub(crate) fn set_clock(&mut self, time_us: u64) {
        self.command(&["SET", "clock", &time_us.to_string()]);
    }

    /// The answer to a command.
    pub(crate) fn command(&mut self, words: &[&str]) -> Value {
        match self.connection.command(words) {
            Value::Error(error) => panic!("{words:?}: {error}"),
            answer => answer,
        }
    }

    /// The server's time in microseconds.
    pub(crate) fn time_us(&mut self) -> u64 {
        let time = self.command(&["TIME"]);
        let [seconds, microseconds] = time.list() else { panic!("{time:?}") };
        seconds.integer() as u64 * SECOND + microseconds.integer() as u64
    }

    /// Decides requests that come together, and says when it did.
    pub(crate) fn call(&mut self, requests: &[Charges]) -> (u64, Vec<Decision>) {
        let requests: Vec<_> = requests.iter().cloned().map(Operation::Take).collect();
        let (time_us, replies) = self.operate(&requests);
        (time_us, replies.into_iter().map(decision).collect())
    }

    /// Does operations that come together, and says when it did.
    pub(crate) fn operate(&mut self, operations: &[Operation]) -> (u64, Vec<Reply>) {
        let mut call = Call::default();
        for operation in operations {
            call.push(operation);
        }
        let answer = self.answer(&call);
        let Value::List(answer) = answer else { panic!("{answer:?}") };
        let answer: Vec<i64> = answer.iter().map(Value::integer).collect();
        call.decode(&answer).unwrap_or_else(|| panic!("not of the script's shape: {answer:?}"))
    }

    /// Decides one request, and says when it did.
    pub(crate) fn take(&mut self, charges: &[Charge]) -> (u64, Decision) {
        let (time_us, mut decisions) = self.call(&[charges.into()]);
        (time_us, decisions.remove(0))
    }

    /// The script's answer as it comes.
    pub(crate) fn answer(&mut self, call: &Call) -> Value {
        let (keys, arguments) = call.encode();
        let mut words: Vec<Bytes> = vec!["EVALSHA".into(), self.sha.clone().into()];
        words.push(keys.len().to_string().into());
        words.extend(keys);
        words.extend(arguments.into_iter().map(|argument| match argument {
            Argument::Word(word) => word.into(),
            Argument::Number(number) => number.to_string().into(),
            Argument::Text(text) => text.into(),
        }));
        self.connection.command(&words)
    }

    /// Writes an entry of a log by hand: lua/sliding_window.lua says how it looks.
    pub(crate) fn plant(&mut self, bucket: &str, at_us: u64, before: u64, cost: u32) {
        let cost = if cost == 1 { String::new() } else { format!(":{cost}") };
        self.command(&["ZADD", bucket, &at_us.to_string(), &format!("{before:012}{cost}")]);
    }

    /// A bucket's log: members with their times.
    pub(crate) fn log(&mut self, bucket: &str) -> Vec<(String, u64)> {
        let answer = self.command(&["ZRANGE", bucket, "0", "-1", "WITHSCORES"]);
        let pairs = answer.list().chunks_exact(2);
        pairs.map(|pair| (pair[0].text().to_owned(), pair[1].integer() as u64)).collect()
    }
}
