//! Stores at chosen instants: the in-process one, and the script on a real Redis.

use std::collections::HashMap;

use bytes::Bytes;
use tollgate_limiter::{
    Algorithm, Quota, Rate, StoreError,
    store::{
        Act, Charge, Charges, Decision, Operation, Reply, Usage,
        memory::MemoryStore,
        script::{self, Call, ScriptReply},
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

/// The same charge under another algorithm.
pub(crate) fn under(algorithm: Algorithm, charge: Charge) -> Charge {
    Charge { quota: Quota::new(algorithm, charge.quota.rate()), ..charge }
}

/// What is done to a charge's bucket.
pub(crate) fn on(charge: &Charge, act: Act) -> Operation {
    Operation::On { bucket: charge.bucket.clone(), quota: charge.quota, act }
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
        let operations: Vec<_> = requests.iter().cloned().map(Operation::Take).collect();
        self.operate(time_us, &operations).into_iter().map(decision).collect()
    }

    /// Does operations that come together.
    pub(crate) fn operate(&mut self, time_us: u64, operations: &[Operation]) -> Vec<Reply> {
        match self {
            Self::Memory(store) => {
                serially(operations, |operation| store.operate_at(time_us, operation).unwrap())
            }
            Self::Redis(script) => {
                script.set_clock(time_us);
                script.operate(operations).1
            }
        }
    }

    /// Does something to a bucket.
    pub(crate) fn act(&mut self, time_us: u64, charge: &Charge, act: Act) -> Reply {
        self.operate(time_us, &[on(charge, act)]).remove(0)
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

pub(crate) fn decision(reply: Reply) -> Decision {
    match reply {
        Reply::Decision(decision) => decision,
        reply => panic!("{reply:?}"),
    }
}

/// Returns true if a request names a bucket with different quotas, or charges it and shadows there.
fn is_mixed(charges: &Charges) -> bool {
    let differs = |one: &Charge, other: &Charge| {
        one.bucket == other.bucket && (one.quota, one.shadow) != (other.quota, other.shadow)
    };
    charges.iter().any(|one| charges.iter().any(|other| differs(one, other)))
}

/// The charges of a request with the costs of equal buckets added up, as the script sees them.
fn added_up(charges: &Charges) -> Charges {
    let mut added_up = Charges::new();
    for charge in charges {
        let is_same = |other: &&mut Charge| (&other.bucket, other.shadow) == (&charge.bucket, charge.shadow);
        match added_up.iter_mut().find(is_same) {
            Some(same) => same.cost += charge.cost,
            None => added_up.push(charge.clone()),
        }
    }
    added_up
}

/// Does operations one by one, in the order of the script's steps: equal requests next to each other.
pub(crate) fn serially<ScriptReply>(
    operations: &[Operation],
    mut operate: impl FnMut(&Operation) -> ScriptReply,
) -> Vec<ScriptReply> {
    let mut first = HashMap::new();
    let mut order: Vec<usize> = (0..operations.len()).collect();
    order.sort_by_cached_key(|at| match &operations[*at] {
        Operation::Take(charges) if !is_mixed(charges) => *first.entry(added_up(charges)).or_insert(*at),
        Operation::Take(_) | Operation::On { .. } => *at,
    });
    let mut done: Vec<_> = order.into_iter().map(|at| (at, operate(&operations[at]))).collect();
    done.sort_by_key(|(at, _)| *at);
    done.into_iter().map(|(_, answer)| answer).collect()
}

/// Returns the script with the changes of [`Script::with_stepped_clock`].
pub(crate) fn stepped(source: &str) -> String {
    changed(&with_set_clock(source), "ceil(needed_us / 1000) + 1000", "ceil(needed_us / 1000) + 60000")
}

fn with_set_clock(source: &str) -> String {
    changed(source, "redis.call('TIME')", "{ 0, redis.call('GET', 'clock') }")
}

fn changed(source: &str, from: &str, to: &str) -> String {
    assert_eq!(source.matches(from).count(), 1, "{from}");
    source.replace(from, to)
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

    /// The script with two changes: the time is what [`Self::set_clock`] says, and buckets are kept for a minute
    /// more, since the server's own clock goes on meanwhile.
    pub(crate) fn with_stepped_clock() -> Self {
        Self::load(&stepped(script::SOURCE))
    }

    /// The script, but the time is what [`Self::set_clock`] says: buckets expire by the server's clock, which goes on.
    pub(crate) fn with_set_clock() -> Self {
        Self::load(&with_set_clock(script::SOURCE))
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
    pub(crate) fn command<Word: AsRef<[u8]>>(&mut self, words: &[Word]) -> Value {
        match self.connection.command(words) {
            Value::Error(error) => panic!("{}: {error}", words[0].as_ref().escape_ascii()),
            answer => answer,
        }
    }

    /// The server's time in microseconds.
    pub(crate) fn time_us(&mut self) -> u64 {
        let time = self.command(&["TIME"]);
        let [seconds, microseconds] = time.list() else { panic!("{time:?}") };
        seconds.integer() as u64 * SECOND + microseconds.integer() as u64
    }

    /// The millisecond in which a bucket expires, or a negative number.
    pub(crate) fn expires_ms(&mut self, bucket: &str) -> i64 {
        if let Value::Integer(expires_ms) = self.connection.command(&["PEXPIRETIME", bucket]) {
            return expires_ms;
        }
        // Before Redis 7, the time to live is all that can be asked for.
        loop {
            let before_ms = self.time_us() / 1_000;
            let ttl_ms = self.command(&["PTTL", bucket]).integer();
            if ttl_ms < 0 || before_ms == self.time_us() / 1_000 {
                return if ttl_ms < 0 { ttl_ms } else { before_ms as i64 + ttl_ms };
            }
        }
    }

    /// Decides requests that come together, and says when it did.
    pub(crate) fn call(&mut self, requests: &[Charges]) -> (u64, Vec<Decision>) {
        let requests: Vec<_> = requests.iter().cloned().map(Operation::Take).collect();
        let (time_us, replies) = self.operate(&requests);
        (time_us, replies.into_iter().map(decision).collect())
    }

    /// Does operations that come together, and says when it did.
    pub(crate) fn operate(&mut self, operations: &[Operation]) -> (u64, Vec<Reply>) {
        let (time_us, replies) = self.try_operate(operations);
        (time_us, replies.into_iter().map(Result::unwrap).collect())
    }

    /// Does operations that come together, of which some may fail, and says when it did.
    pub(crate) fn try_operate(&mut self, operations: &[Operation]) -> (u64, Vec<Result<Reply, String>>) {
        let mut call = Call::default();
        for operation in operations {
            call.push(operation);
        }
        let answer = self.answer(&call);
        call.decode(&answer).unwrap_or_else(|| panic!("not of the script's shape: {answer:?}"))
    }

    /// Decides one request, and says when it did.
    pub(crate) fn take(&mut self, charges: &[Charge]) -> (u64, Decision) {
        let (time_us, mut decisions) = self.call(&[charges.into()]);
        (time_us, decisions.remove(0))
    }

    fn answer(&mut self, call: &Call) -> ScriptReply {
        let (keys, list) = call.encode();
        self.answer_to(&keys, list)
    }

    /// The script's answer to a call that is encoded already.
    pub(crate) fn answer_to(&mut self, keys: &[Bytes], list: Bytes) -> ScriptReply {
        let answer = self.raw_answer_to(keys, list);
        ScriptReply::read(answer.bytes()).unwrap_or_else(|| panic!("{answer:?}"))
    }

    /// Redis's answer to a call that is encoded already.
    pub(crate) fn raw_answer_to(&mut self, keys: &[Bytes], list: Bytes) -> Value {
        let mut words: Vec<Bytes> = vec!["EVALSHA".into(), self.sha.clone().into()];
        words.push(keys.len().to_string().into());
        words.extend_from_slice(keys);
        words.push(list);
        self.connection.command(&words)
    }

    /// Adds an entry to a log by hand.
    pub(crate) fn plant(&mut self, bucket: &str, at_us: u64, before: u64, cost: u32) {
        self.plant_all(bucket, &[(at_us, before, cost)]);
    }

    /// Adds entries to a log by hand, which know of no expiry and of nothing dead: lua/sliding_window.lua says how
    /// they look.
    pub(crate) fn plant_all(&mut self, bucket: &str, entries: &[(u64, u64, u32)]) {
        let first = self.log(bucket).first().map_or((entries[0].0, entries[0].1), |first| (first.0, first.1));
        let time_and_total =
            |(at_us, total): (u64, u64)| [&at_us.to_be_bytes()[1..], &total.to_be_bytes()[4..]].concat();
        let mut words = vec![b"ZADD".to_vec(), bucket.into()];
        for &(at_us, before, cost) in entries {
            let own = [time_and_total((at_us, before)), cost.to_be_bytes().into()].concat();
            words.extend([at_us.to_string().into(), [own, time_and_total(first), vec![0, 0]].concat()]);
        }
        assert_eq!(self.command(&words).integer() as usize, entries.len());
    }

    /// A bucket's log: times, totals before and costs.
    pub(crate) fn log(&mut self, bucket: &str) -> Vec<(u64, u64, u64)> {
        let answer = self.command(&["ZRANGE", bucket, "0", "-1", "WITHSCORES"]);
        let pairs = answer.list().chunks_exact(2).map(|pair| (pair[0].bytes(), pair[1].integer() as u64));
        pairs
            .map(|(member, score)| {
                let number = |part: &[u8]| part.iter().fold(0, |sum, byte| sum << 8 | u64::from(*byte));
                assert_eq!(number(&member[..7]), score, "the score is the time");
                (score, number(&member[7..11]), number(&member[11..15]))
            })
            .collect()
    }
}
