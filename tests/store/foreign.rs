//! Keys written by other programs: they fail their own operations, and nothing else in the call.

use std::{slice::from_ref, sync::Arc, time::Duration};

use tokio::{
    runtime::Builder,
    task::JoinSet,
    time::{Instant, sleep},
};
use tollgate_limiter::{
    Algorithm, Calendar, CalendarUnit, StoreError,
    store::{Act, Charge, Decision, LeaseId, Operation, Refund, Reply, script::Call},
};

use crate::{
    harness::{open_store, redis::Redis, resp::Value},
    store::stepped::{SECOND, Script, charge, on, under},
};

const ALGORITHMS: [Algorithm; 7] = [
    Algorithm::SlidingWindow,
    Algorithm::SlidingCells { cells: 4 },
    Algorithm::Refundable { cells: None },
    Algorithm::FixedWindow,
    Algorithm::Calendar(Calendar { unit: CalendarUnit::Month, offset_minutes: 0 }),
    Algorithm::Gcra { burst: None },
    Algorithm::Concurrency,
];

/// Commands that leave something in the key that no algorithm of this kind has written.
fn foreign_content(algorithm: Algorithm) -> Vec<Vec<&'static str>> {
    let of_another_type = vec!["SET", "foreign", "text"];
    match algorithm {
        Algorithm::SlidingWindow | Algorithm::SlidingCells { .. } => vec![
            of_another_type,
            vec!["ZADD", "foreign", "1", "short"],
            vec!["ZADD", "foreign", "1", "an entry of thirty-one bytes...."],
        ],
        Algorithm::Refundable { .. }
        | Algorithm::FixedWindow
        | Algorithm::Calendar(_)
        | Algorithm::Gcra { .. } => vec![
            of_another_type,
            vec!["LPUSH", "foreign", "text"],
            vec!["SET", "foreign", "text that is too long for any"],
            vec!["SET", "foreign", "\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0"],
        ],
        Algorithm::Concurrency => vec![of_another_type, vec!["LPUSH", "foreign", "text"]],
        // Of several keys: see tests/redisson.
        Algorithm::Redisson(_) => Vec::new(),
    }
}

fn take(charges: &[Charge]) -> Operation {
    Operation::Take(charges.into())
}

fn admits(reply: &Result<Reply, String>) -> bool {
    matches!(reply, Ok(Reply::Decision(Decision { admitted: true, .. })))
}

#[test]
fn a_foreign_key_fails_its_own_operations_and_charges_nothing_with_them() {
    let mut script = Script::with_server_clock();
    for algorithm in ALGORITHMS {
        for content in foreign_content(algorithm) {
            script.command(&["FLUSHALL"]);
            script.command(&content);
            let of = |bucket: &str| under(algorithm, charge(bucket, "9/min", 1));
            let foreign = of("foreign");
            let shadow = Charge { shadow: true, ..foreign.clone() };
            let mut failing = vec![
                take(from_ref(&foreign)),
                take(&[of("beside"), foreign.clone()]),
                take(&[foreign.clone(), of("behind")]),
                take(&[of("before a shadow"), shadow]),
                on(&foreign, Act::Peek(1)),
            ];
            if algorithm == Algorithm::Concurrency {
                let lease = LeaseId { call: 1, turn: 1 };
                failing.extend([on(&foreign, Act::Renew(lease)), on(&foreign, Act::Release(lease))]);
            } else {
                failing.push(on(&foreign, Act::Record(1)));
            }
            let alone = script.try_operate(&failing[..1]).1;
            assert!(alone[0].is_err(), "{content:?}: {alone:?}");
            // Each is done between others: by itself, with a bucket that several name, and equal ones.
            let mut operations = Vec::new();
            for (turn, failing) in failing.iter().enumerate() {
                let own = of(&format!("own {turn}"));
                operations.extend([take(from_ref(&own)), failing.clone()]);
                operations.push(take(&[of("shared"), of(&format!("other {turn}"))]));
            }
            let replies = script.try_operate(&operations).1;
            for (at, reply) in replies.iter().enumerate() {
                let fails = at % 3 == 1;
                assert_eq!(reply.is_err(), fails, "{content:?}: {:?}: {reply:?}", operations[at]);
                assert!(fails || admits(reply), "{content:?}: {:?}: {reply:?}", operations[at]);
            }
            for uncharged in ["beside", "behind", "before a shadow"] {
                assert_eq!(script.command(&["EXISTS", uncharged]), Value::Integer(0), "{content:?}");
            }
            // What was told is what was counted.
            let Reply::Usage(usage) = script.operate(&[on(&of("shared"), Act::Peek(1))]).1.remove(0) else {
                unreachable!()
            };
            assert_eq!(usage.used, failing.len() as u64, "{content:?}");
            assert!(admits(&script.try_operate(&[take(&[of("own 0")])]).1[0]));
            // In the order of a call, too, it is well as soon as it is reset.
            let healed = [take(from_ref(&foreign)), on(&foreign, Act::Reset), take(from_ref(&foreign))];
            let replies = script.try_operate(&healed[1..]).1;
            assert!(replies[0] == Ok(Reply::Done) && admits(&replies[1]), "{content:?}: {replies:?}");
        }
    }
}

/// Entries that aren't read before the newest one expires, or before a request doesn't fit.
#[test]
fn a_log_with_a_foreign_entry_before_the_newest_fails_nobody_else() {
    let mut script = Script::with_server_clock();
    let now = script.time_us();
    for (bucket, first_us) in [("full", now), ("expiring", now - 61 * SECOND)] {
        script.plant_all(bucket, &[(first_us, 0, 3), (now + 2, 3, 3)]);
        script.command(&["ZADD", bucket, &(now + 1).to_string(), "short"]);
        script.command(&["PEXPIRE", bucket, "1000"]);
        let torn = charge(bucket, "6/min", 2);
        let own = charge(&format!("beside {bucket}"), "9/min", 1);
        for operations in [
            [take(from_ref(&torn)), take(from_ref(&own))],
            [take(&[torn.clone(), charge("another", "9/min", 1)]), take(from_ref(&own))],
        ] {
            let replies = script.try_operate(&operations).1;
            assert!(!admits(&replies[0]) && admits(&replies[1]), "{bucket}: {replies:?}");
        }
    }
    assert_eq!(script.command(&["EXISTS", "another"]), Value::Integer(0));
}

/// As many at once as a busy worker has, and among them six that meet a foreign key.
#[test]
fn requests_that_share_a_call_with_a_foreign_key_are_decided_by_the_store() {
    const FOREIGN: usize = 6;
    const REQUESTS: usize = 570;
    let redis = Redis::start();
    redis.command(&["SET", "t:l:sw:{foreign}", "text", "EX", "60"]);
    let store = Arc::new(open_store(&redis.url()));
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    let mut failed = 0;
    runtime.block_on(async {
        store.warm_up().await.unwrap();
        let mut tasks = JoinSet::new();
        for turn in 0..REQUESTS {
            let store = store.clone();
            tasks.spawn(async move {
                let is_foreign = turn % (REQUESTS / FOREIGN) == 1;
                let own = charge(&format!("t:l:sw:{{{turn}}}"), "9/min", 1);
                let charges = match is_foreign {
                    true => vec![own, charge("t:l:sw:{foreign}", "9/min", 1)],
                    false => vec![own],
                };
                sleep(Duration::from_millis(turn as u64 / 100)).await;
                (is_foreign, store.take(&charges, Instant::now() + Duration::from_secs(5)).await)
            });
        }
        for (is_foreign, taken) in tasks.join_all().await {
            match taken {
                Err(StoreError::Answer(_)) if is_foreign => failed += 1,
                taken => assert!(!is_foreign && taken.is_ok_and(|decision| decision.admitted)),
            }
        }
    });
    assert_eq!(failed, FOREIGN);
    // None that failed is charged.
    assert_eq!(redis.keys("t:*").len(), REQUESTS - FOREIGN + 1);
}

/// A command without rights ends a call. What was written before isn't written again, as permits that nobody would give back.
#[test]
fn a_call_that_fails_to_write_a_bucket_has_charged_its_request_once_at_most() {
    let mut script = Script::with_server_clock();
    for algorithm in ALGORITHMS {
        let one = under(algorithm, charge("b", "9/min", 1));
        // Before each of these, the request's charge is written.
        let acts = (1..9).map(|turn| match algorithm {
            Algorithm::Concurrency => Act::Release(LeaseId { call: 2, turn }),
            Algorithm::SlidingWindow | Algorithm::SlidingCells { .. } => Act::Reset,
            // Of a grant that is long past, so that nothing is given back.
            _ => Act::Refund(Refund { permits: 1, granted_us: Some(1) }),
        });
        let mut call = Call::default();
        call.push(&take(from_ref(&one)));
        acts.for_each(|act| call.push(&on(&one, act)));
        let (keys, list) = call.encode();
        let mut failures = 0;
        for command in ["zadd", "set", "pttl", "pexpire"] {
            script.command(&["FLUSHALL"]);
            script.command(&["ACL", "SETUSER", "default", &format!("-{command}")]);
            let answer = script.raw_answer_to(&keys, list.clone());
            script.command(&["ACL", "SETUSER", "default", "+@all"]);
            failures += usize::from(matches!(answer, Value::Error(_)));
            let Reply::Usage(usage) = script.operate(&[on(&one, Act::Peek(1))]).1.remove(0) else {
                unreachable!()
            };
            assert!(usage.used <= 1, "{algorithm:?} without {command}: {answer:?}, then {usage:?}");
        }
        assert!(failures > 0, "{algorithm:?} needs none of the commands");
    }
}
