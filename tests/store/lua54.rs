//! The script gives the same answers in Lua 5.4, whose numbers may be integers, as in Redis, whose Lua is 5.1. Each of
//! its commands goes to a Redis of its own.

use std::{
    cell::RefCell,
    net::TcpStream,
    os::fd::OwnedFd,
    path::PathBuf,
    process::{Command, Stdio},
};

use bytes::Bytes;
use tempfile::NamedTempFile;
use tollgate_limiter::{
    Algorithm, Quota, RedissonType,
    store::{
        Act, Charge, Operation, Refund,
        script::{self, Call, ScriptReply},
    },
};

use crate::store::{
    oracle::check,
    parity::{KINDS, calls, operations, without_leases},
    stepped::{SECOND, START, Script, charge, on, stepped, under},
};

/// The same script twice: in Redis, and in Lua 5.4 with the commands of a second Redis.
struct Pair {
    redis: Script,
    lua: Script,
    source: NamedTempFile,
}

impl Pair {
    fn start() -> Self {
        let source = NamedTempFile::new().unwrap();
        std::fs::write(source.path(), stepped(script::SOURCE)).unwrap();
        Self { redis: Script::with_stepped_clock(), lua: Script::with_stepped_clock(), source }
    }

    fn set_clock(&mut self, time_us: u64) {
        self.redis.set_clock(time_us);
        self.lua.set_clock(time_us);
    }

    fn clear(&mut self) {
        self.redis.command(&["FLUSHALL"]);
        self.lua.command(&["FLUSHALL"]);
    }

    /// Does operations in both, and returns what both answer.
    fn answer(&mut self, operations: &[Operation]) -> (Call, ScriptReply) {
        let mut call = Call::default();
        operations.iter().for_each(|operation| call.push(operation));
        let (keys, list) = call.encode();
        let answer = self.redis.answer_to(&keys, list.clone());
        let failures = answer.failures.iter().flat_map(|(place, text)| [place.to_string(), text.clone()]);
        let lines: Vec<_> = answer.numbers.iter().map(i64::to_string).chain(failures).collect();
        assert_eq!(run(self.source.path().to_owned(), self.lua.redis.port(), &keys, &list), lines);
        (call, answer)
    }

    /// Compares all that both have written.
    fn compare(&mut self) {
        let [mut left, mut right] = [&mut self.redis, &mut self.lua].map(|script| {
            let keys = script.command(&["KEYS", "*"]).list().to_vec();
            let dumps = keys.into_iter().map(|key| {
                let dump = script.command(&[&b"DUMP"[..], key.bytes()]);
                (key.bytes().to_vec(), dump.bytes().to_vec())
            });
            dumps.collect::<Vec<_>>()
        });
        left.sort();
        right.sort();
        assert!(left == right, "the buckets differ: {left:?}, {right:?}");
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Runs a script in Lua 5.4. Returns the values of its reply.
fn run(source: PathBuf, port: u16, keys: &[Bytes], list: &[u8]) -> Vec<String> {
    let connection = TcpStream::connect(("127.0.0.1", port)).unwrap();
    let program = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/store/lua54.lua");
    let output = Command::new("lua5.4")
        .arg(program)
        .arg(source)
        .arg(hex(list))
        .args(keys.iter().map(|key| hex(key)))
        .stdin(Stdio::from(OwnedFd::from(connection.try_clone().unwrap())))
        .stdout(Stdio::from(OwnedFd::from(connection)))
        .stderr(Stdio::piped())
        .spawn()
        .expect("lua5.4 is needed: scripts/test.sh installs it")
        .wait_with_output()
        .unwrap();
    let reply = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{reply}");
    reply.lines().map(str::to_owned).collect()
}

#[test]
fn any_calls_are_answered_alike() {
    let pair = RefCell::new(Pair::start());
    check(12, &calls(), |calls| {
        let pair = &mut *pair.borrow_mut();
        pair.clear();
        let (mut time_us, mut terms, mut leases) = (START, [(9, 5); KINDS.len()], Vec::new());
        for call in calls {
            time_us = time_us.strict_add_signed(call.move_us);
            terms[call.edited] = call.terms;
            pair.set_clock(time_us);
            let (call, answer) = pair.answer(&operations(&call, &terms, &leases));
            for reply in call.decode(&answer).unwrap().1 {
                without_leases(reply.unwrap(), &mut leases);
            }
        }
        pair.compare();
        Ok(())
    });
}

/// Debts of thousands of millions of permits, and windows of a year, exceed what is exact in integers of 64 bits.
#[test]
fn the_greatest_numbers_are_answered_alike() {
    let mut pair = Pair::start();
    let year = 366 * 24 * 3_600 * SECOND;
    for algorithm in KINDS.into_iter().filter(|algorithm| *algorithm != Algorithm::Concurrency) {
        for (permits, window_us) in [(1, year), (1_000_000, 86_400 * SECOND), (i32::MAX as u32, SECOND)] {
            pair.clear();
            let quota = Quota { algorithm, permits, window_us };
            let most = Charge { quota, cost: i32::MAX as u32, ..charge("b", "1/s", 1) };
            for move_us in [0, 1, window_us / 2, window_us] {
                pair.set_clock(START + move_us);
                pair.answer(&[on(&most, Act::Record(most.cost)), on(&most, Act::Peek(1))]);
                pair.answer(&[Operation::Take([Charge { cost: 1, ..most.clone() }][..].into())]);
            }
            pair.compare();
        }
    }
}

#[test]
fn limits_with_refunds_and_limiters_of_java_are_answered_alike() {
    let mut pair = Pair::start();
    let refundable = |cells| under(Algorithm::Refundable { cells }, charge(&format!("{cells:?}"), "9/5s", 2));
    let java = under(Algorithm::Redisson(RedissonType::Overall), charge("java", "9/5s", 2));
    for step in 0..40 {
        let time_us = START + step * 700_001;
        pair.set_clock(time_us);
        for charge in [refundable(None), refundable(Some(3)), java.clone()] {
            pair.answer(&[Operation::Take([charge.clone()][..].into()), on(&charge, Act::Peek(9))]);
            let granted_us = Some(time_us).filter(|_| step % 2 == 0);
            if charge.bucket != "java" && step % 3 == 0 {
                pair.answer(&[on(&charge, Act::Refund(Refund { permits: 1, granted_us }))]);
            }
            if step % 11 == 0 {
                pair.answer(&[on(&charge, Act::Record(5)), on(&charge, Act::Report(1))]);
            }
        }
    }
    pair.compare();
}

#[test]
fn the_script_runs_as_it_is_shipped() {
    let mut script = Script::with_server_clock();
    let source = NamedTempFile::new().unwrap();
    std::fs::write(source.path(), script::SOURCE).unwrap();
    for (granted, left) in [("1", "2"), ("1", "1"), ("1", "0"), ("0", "0")] {
        let mut call = Call::default();
        call.push(&Operation::Take([charge("b", "3/min", 1)][..].into()));
        let (keys, list) = call.encode();
        let reply = run(source.path().to_owned(), script.redis.port(), &keys, &list);
        assert_eq!((&*reply[1], &*reply[3]), (granted, left), "{reply:?}");
    }
    // Redis honours what Lua 5.4 has counted.
    assert!(!script.take(&[charge("b", "3/min", 1)]).1.admitted);
}
