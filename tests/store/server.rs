//! Behaviour that only a real Redis with its own clock shows: expiry, trimming, writes, and prepared logs.

use std::slice::from_ref;

use smallvec::smallvec;
use tollgate_limiter::{
    Algorithm, Quota, Rate,
    store::{Act, Charge, Operation, script::Call},
};

use crate::{
    harness::resp::Value,
    store::stepped::{SECOND, START, Script, charge, on, under},
};

/// What running totals in a log start over at.
const MODULUS: u64 = 1 << 32;

impl Script {
    /// The microsecond before which the bucket is surely there: Redis drops it after this millisecond.
    fn kept_until_us(&mut self, bucket: &str) -> u64 {
        let expires_ms = self.expires_ms(bucket);
        assert!(expires_ms > 0, "{bucket} has no expiry");
        (expires_ms as u64 + 1) * 1_000
    }

    /// How often anything was written.
    fn writes(&mut self) -> u64 {
        let info = self.command(&["INFO", "persistence"]);
        let line = info.text().lines().find_map(|line| line.strip_prefix("rdb_changes_since_last_save:"));
        line.unwrap().parse().unwrap()
    }
}

#[test]
fn fault_03_time_is_the_servers() {
    let mut script = Script::with_server_clock();
    let encoded = || {
        let mut call = Call::default();
        call.push(&Operation::Take(smallvec![charge("b", "5/s", 1)]));
        call.encode()
    };
    let before_us = script.time_us();
    let first = encoded();
    let (time_us, _) = script.take(&[charge("b", "5/s", 1)]);
    let after_us = script.time_us();
    assert!((before_us..=after_us).contains(&time_us));
    assert_eq!(script.log("b"), [(time_us, 0, 1)]);
    // Nothing of the caller's clock is in a call: later, it is the same.
    assert_eq!(encoded(), first);
}

#[test]
fn fault_03_a_log_one_window_ahead_is_not_emptied() {
    let mut script = Script::with_server_clock();
    let now = script.time_us();
    for ahead in 0..4 {
        script.plant("b", now + (10 + ahead) * SECOND, ahead, 1);
    }
    let (time_us, refused) = script.take(&[charge("b", "4/10s", 2)]);
    assert!(!refused.admitted);
    assert_eq!(refused.outcomes[0].delay_us, Some(now + 21 * SECOND - time_us));
    assert!(script.take(&[charge("b", "6/10s", 2)]).1.admitted);
    // What is granted now counts from the newest entry on, and with it, so that the log keeps its order.
    assert_eq!(script.log("b").last(), Some(&(now + 13 * SECOND, 3, 3)));
}

#[test]
fn fault_05_no_path_leaves_a_bucket_without_expiry() {
    let mut script = Script::with_server_clock();
    script.command(&["SET", "broken", "not a log"]);
    script.command(&["PEXPIRE", "broken", "60000"]);
    let shadow = |bucket| Charge { shadow: true, ..charge(bucket, "2/3s", 1) };
    for turn in 0..60 {
        let own = format!("own-{turn}");
        script.take(&[charge("shared", "40/min", 1), charge(&own, "5/2s", 1 + turn % 6)]);
        script.take(&[shadow("shadow"), charge("tight", "7/1ms", 1)]);
        script.call(&vec![smallvec![charge("batch", "200/s", 3), shadow("shadow")]; 5]);
        let charges = smallvec![charge(&format!("before-{turn}"), "5/s", 1), charge("broken", "5/s", 1)];
        assert!(script.try_operate(&[Operation::Take(charges)]).1[0].is_err());
    }
    let keys = script.command(&["KEYS", "*"]);
    for key in keys.list() {
        assert_ne!(script.command(&["PTTL", key.text()]), Value::Integer(-1), "{key:?}");
        assert!(!key.text().starts_with("before"), "a request that failed has written {key:?}");
    }
    assert!(keys.list().len() > 40);
}

/// A charge under each algorithm, on a bucket of its own.
fn of_all_algorithms(rate: &str, cost: u32) -> Vec<Charge> {
    let algorithms = [
        Algorithm::SlidingWindow,
        Algorithm::SlidingCells { cells: 4 },
        Algorithm::FixedWindow,
        Algorithm::Gcra { burst: None },
        Algorithm::Concurrency,
    ];
    let cost_of = |algorithm| if algorithm == Algorithm::Concurrency { 1 } else { cost };
    algorithms.map(|algorithm| under(algorithm, charge(&algorithm.tag(), rate, cost_of(algorithm)))).into()
}

#[test]
fn fault_05_no_operation_leaves_a_bucket_without_expiry() {
    let mut script = Script::with_server_clock();
    for charge in of_all_algorithms("4/2s", 2) {
        let is_concurrency = charge.quota.algorithm == Algorithm::Concurrency;
        let take = || Operation::Take(smallvec![charge.clone()]);
        let mut has_expiry = |operations: &[Operation]| {
            let (time_us, _) = script.operate(operations);
            assert!(script.kept_until_us(str::from_utf8(&charge.bucket).unwrap()) > time_us);
        };
        has_expiry(&[take()]);
        has_expiry(&[take(), on(&charge, Act::Peek(1)), take()]);
        has_expiry(&[on(&charge, Act::Reset), take()]);
        if !is_concurrency {
            has_expiry(&[on(&charge, Act::Reset), on(&charge, Act::Record(9))]);
            has_expiry(&[on(&charge, Act::Record(9)), take()]);
        }
    }
    let [.., lease] = &of_all_algorithms("4/2s", 1)[..] else { unreachable!() };
    script.command(&["FLUSHALL"]);
    let (_, taken) = script.take(from_ref(lease));
    script.command(&["PERSIST", "cc"]);
    let (time_us, _) = script.operate(&[on(lease, Act::Renew(taken.leases[0].id))]);
    assert!(script.kept_until_us("cc") >= time_us + 2 * SECOND);
}

#[test]
fn fault_05_a_bucket_is_kept_while_anything_of_it_counts() {
    let mut script = Script::with_server_clock();
    for charge in of_all_algorithms("3/3s", 3) {
        let bucket = str::from_utf8(&charge.bucket).unwrap().to_owned();
        let (time_us, _) = script.take(from_ref(&charge));
        assert!(script.kept_until_us(&bucket) >= time_us + 3_000_000, "{bucket}");
        // A refusal by a longer window, and one by a bucket that has lost its expiry.
        let longer = Charge {
            quota: Quota { window_us: 9_000_000, permits: 1, ..charge.quota },
            cost: 1,
            ..charge.clone()
        };
        assert!(!script.take(from_ref(&longer)).1.admitted);
        let needed_us = time_us + if bucket == "gc" { 3_000_000 } else { 9_000_000 };
        assert!(script.kept_until_us(&bucket) >= needed_us, "{bucket}");
        script.command(&["PERSIST", &bucket]);
        assert!(!script.take(&[longer]).1.admitted);
        assert!(script.kept_until_us(&bucket) >= needed_us, "{bucket}");
    }
}

#[test]
fn fault_05_a_bucket_is_kept_where_the_clock_is_set_back_a_little() {
    let mut script = Script::with_set_clock();
    for charge in of_all_algorithms("1/10ms", 1) {
        script.set_clock(START);
        assert!(script.take(from_ref(&charge)).1.admitted, "{charge:?}");
        // The window ends, and longer ago than it lasted.
        let ended = script.time_us() + 100_000;
        while script.time_us() < ended {}
        script.set_clock(START + 5_000);
        assert!(!script.take(from_ref(&charge)).1.admitted, "{charge:?}");
    }
}

/// The expiry isn't asked for with each grant: what an entry leaves word of must hold for other windows.
#[test]
fn fault_05_a_bucket_is_kept_whatever_windows_take_turns() {
    let mut script = Script::with_server_clock();
    let windows_ms = [3_000, 21, 24, 25, 400, 1_000, 401, 22, 1_100, 20];
    for turn in 0..3_000_usize {
        let window_ms = windows_ms[(turn / 3 * 7 + turn * turn) % windows_ms.len()];
        let mut asked = vec![charge("sw", "1/s", 1), charge("sc", "1/s", 1)];
        asked[1] = under(Algorithm::SlidingCells { cells: 3 }, asked[1].clone());
        for charge in &mut asked {
            charge.quota.permits = Rate::MAX_PERMITS;
            charge.quota.window_us = window_ms * 1_000;
        }
        assert!(script.take(&asked).1.admitted);
        for bucket in ["sw", "sc"] {
            let (newest_us, ..) = *script.log(bucket).last().unwrap();
            let kept_until_us = script.kept_until_us(bucket);
            assert!(kept_until_us >= newest_us + window_ms * 1_000, "{bucket}, {window_ms} ms, turn {turn}");
        }
    }
}

#[test]
fn fault_05_a_refusal_gives_an_expiry_to_a_bucket_without_one() {
    let mut script = Script::with_server_clock();
    let now = script.time_us();
    script.plant("full", now, 0, 5);
    script.plant("roomy", now, 0, 1);
    script.plant("ended", now - 60 * SECOND, 0, 1);
    let asked = [charge("full", "5/10s", 1), charge("roomy", "5/20s", 1), charge("ended", "5/min", 1)];
    assert!(!script.take(&asked).1.admitted);
    assert!(script.kept_until_us("full") > now + 10 * SECOND);
    assert!(script.kept_until_us("roomy") > now + 20 * SECOND);
    // Nothing of it counts: it may be gone already.
    assert_ne!(script.command(&["PTTL", "ended"]), Value::Integer(-1));
}

#[test]
fn fault_05_a_bucket_is_kept_until_its_newest_entry_ends() {
    let mut script = Script::with_server_clock();
    let ahead_us = script.time_us() + 5 * SECOND;
    script.plant("ahead", ahead_us, 0, 1);
    for bucket in ["now", "ahead"] {
        // Long enough for the expiry to be renewed, which is due after half a window.
        let until = script.time_us() + SECOND;
        while script.time_us() < until {
            script.take(&[charge(bucket, "1000000/600ms", 1)]);
            let (newest_us, ..) = script.log(bucket).pop().unwrap();
            assert!(script.kept_until_us(bucket) > newest_us + 600_000);
        }
    }
}

#[test]
fn fault_06_a_bucket_goes_soon_after_its_window() {
    let mut script = Script::with_server_clock();
    for (rate, window_ms) in [("5/500ms", 500), ("5/2s", 2_000), ("5/h", 3_600_000)] {
        let (time_us, _) = script.take(&[charge(rate, rate, 1)]);
        let expires_ms = script.expires_ms(rate);
        let kept_ms = expires_ms - time_us as i64 / 1_000;
        assert!((window_ms..=5 * window_ms / 2 + 1_001).contains(&kept_ms), "{rate}: kept for {kept_ms} ms");
    }
}

#[test]
fn fault_09_a_bucket_is_one_key() {
    let mut script = Script::with_server_clock();
    for _ in 0..3 {
        script.take(&[charge("a", "2/min", 1), charge("b", "5/min", 2)]);
    }
    let mut keys = script.redis.keys("*");
    keys.sort();
    assert_eq!(keys, ["a", "b"]);
    // Lost, it starts anew; what came last of it lost, the rest counts as before.
    script.command(&["DEL", "a"]);
    script.command(&["ZPOPMAX", "b"]);
    let outcomes = script.take(&[charge("a", "2/min", 1), charge("b", "5/min", 2)]).1.outcomes;
    assert_eq!([outcomes[0].remaining, outcomes[1].remaining], [1, 1]);
}

/// Whoever does it.
#[test]
fn fault_09_a_log_that_lacks_its_oldest_entries_frees_nothing_early() {
    let mut script = Script::with_stepped_clock();
    for later in 0..8 {
        script.set_clock(START + later * SECOND);
        assert!(script.take(&[charge("b", "5/4s", 1)]).1.admitted);
    }
    script.command(&["ZREMRANGEBYRANK", "b", "0", "-3"]);
    // Four count until they would have ended.
    assert!(!script.take(&[charge("b", "5/4s", 3)]).1.admitted);
    // Of the two that are there, the first one has ended.
    script.set_clock(START + 10 * SECOND);
    assert_eq!(script.take(&[charge("b", "5/4s", 1)]).1.outcomes[0].remaining, 3);
}

/// Plants so many entries that have just ended, and behind them `alive` that haven't.
fn plant_a_dead_crowd(script: &mut Script, bucket: &str, dead: u64, alive: u64) {
    let now = script.time_us();
    let alive = (dead..dead + alive).map(|before| (now, before, 1));
    let dead = (0..dead).map(|before| (now - 60 * SECOND, before, 1));
    script.plant_all(bucket, &dead.chain(alive).collect::<Vec<_>>());
    // Otherwise the first refusal makes a bucket without alive entries expire.
    script.command(&["PEXPIRE", bucket, "60000"]);
}

/// Returns how many entries these buckets have together.
fn entries(script: &mut Script, buckets: &[&str]) -> i64 {
    buckets.iter().map(|bucket| script.command(&["ZCARD", bucket]).integer()).sum()
}

#[test]
fn fault_10_a_dead_crowd_is_dropped_at_once() {
    let mut script = Script::with_server_clock();
    plant_a_dead_crowd(&mut script, "b", 50_000, 0);
    script.command(&["CONFIG", "RESETSTAT"]);
    assert!(!script.take(&[charge("b", "9/min", 9), charge("c", "1/min", 2)]).1.admitted);
    assert_eq!(script.take(&[charge("b", "9/min", 9)]).1.outcomes[0].remaining, 0);
    assert_eq!(script.log("b").len(), 1);
    // Redis frees what is unlinked on another thread.
    let info = script.command(&["INFO", "commandstats"]);
    assert!(
        info.text().contains("cmdstat_unlink:calls=1,") && !info.text().contains("zremrange"),
        "{info:?}"
    );
}

#[test]
fn fault_10_a_dead_crowd_before_live_entries_is_trimmed_by_parts() {
    let mut script = Script::with_server_clock();
    plant_a_dead_crowd(&mut script, "b", 50_000, 7);
    let (mut before, mut calls) = (50_007, 0);
    while before > 10_000 {
        let (granted_us, taken) = script.take(&[charge("b", "2000000/min", 1)]);
        assert!(taken.admitted);
        let after = script.command(&["ZCARD", "b"]).integer();
        assert!(before + 1 - after <= 1_000, "{} entries were trimmed in one call", before + 1 - after);
        // What is still to be trimmed isn't mistaken for what counts.
        let (time_us, refused) = script.take(&[charge("b", "9/min", 9)]);
        assert_eq!(refused.outcomes[0].delay_us, Some(granted_us + 60 * SECOND - time_us));
        (before, calls) = (after, calls + 1);
        assert!(calls < 2_000, "{after} entries after {calls} calls");
    }
    let (_, refused) = script.take(&[charge("b", "9/min", 9)]);
    assert!(!refused.admitted);
    assert_eq!(script.take(&[charge("b", "2000000/min", 1)]).1.outcomes[0].remaining, 2_000_000 - 8 - calls);
}

#[test]
fn a_call_trims_as_much_of_many_buckets_as_of_one() {
    const BUCKETS: [&str; 8] = ["b0", "b1", "b2", "b3", "b4", "b5", "b6", "b7"];
    let mut script = Script::with_server_clock();
    for bucket in BUCKETS {
        plant_a_dead_crowd(&mut script, bucket, 2_000, 7);
    }
    let asked = BUCKETS.map(|bucket| charge(bucket, "2000000/min", 1));
    let mut left = entries(&mut script, &BUCKETS);
    for calls in 1..40 {
        let (_, taken) = script.take(&asked);
        assert!(taken.outcomes.iter().all(|outcome| outcome.remaining == 2_000_000 - 7 - calls));
        let after = entries(&mut script, &BUCKETS);
        assert!(left + 8 - after <= 1_000, "{} entries were trimmed in one call", left + 8 - after);
        left = after;
    }
    // Nothing but what is alive, and a few too few to be trimmed.
    assert!(left < 8 * (7 + 40 + 8), "{left} entries are left");
}

#[test]
fn fault_11_a_refusal_writes_nothing() {
    let mut script = Script::with_server_clock();
    let asked = [charge("tight", "40/min", 2), charge("wide", "100/min", 1)];
    while script.take(&asked).1.admitted {}
    let before = (script.writes(), script.log("tight"), script.log("wide"));
    for _ in 0..100 {
        assert!(!script.take(&asked).1.admitted);
        assert!(!script.take(&[charge("tight", "40/min", 1), charge("new", "1/s", 1)]).1.admitted);
        assert!(!script.take(&[charge("never", "1/s", 2)]).1.admitted);
    }
    assert_eq!((script.writes(), script.log("tight"), script.log("wide")), before);
}

#[test]
fn fault_11_no_refusal_and_no_look_writes_anything() {
    let mut script = Script::with_server_clock();
    for charge in of_all_algorithms("3/min", 2) {
        while script.take(from_ref(&charge)).1.admitted {}
        let before = script.writes();
        for _ in 0..10 {
            assert!(!script.take(from_ref(&charge)).1.admitted);
            script.operate(&[on(&charge, Act::Peek(1)), on(&charge, Act::Peek(3))]);
            let elsewhere = Charge { bucket: "elsewhere".into(), cost: 1, ..charge.clone() };
            script.operate(&[on(&elsewhere, Act::Peek(1))]);
            if charge.quota.algorithm != Algorithm::Concurrency {
                let nothing = Charge { cost: 0, ..elsewhere };
                assert!(script.take(&[nothing]).1.admitted);
            }
        }
        assert_eq!(script.writes(), before, "{charge:?}");
    }
}

/// Plants so many thousand leases that have ended.
fn plant_ended_leases(script: &mut Script, bucket: &str, thousands: u64) {
    let ended_us = script.time_us() - SECOND;
    for thousand in 0..thousands {
        let mut words = vec!["ZADD".to_owned(), bucket.to_owned()];
        for lease in 0..1_000 {
            words.extend([ended_us.to_string(), format!("1.{thousand}.{lease}")]);
        }
        assert_eq!(script.command(&words), Value::Integer(1_000));
    }
}

#[test]
fn a_call_drops_as_many_ended_leases_of_many_buckets_as_of_one() {
    let mut script = Script::with_server_clock();
    let [.., lease] = &of_all_algorithms("5/min", 1)[..] else { unreachable!() };
    let buckets = ["c0", "c1", "c2", "c3"];
    let asked = buckets.map(|bucket| {
        plant_ended_leases(&mut script, bucket, 1);
        Charge { bucket: bucket.into(), ..lease.clone() }
    });
    for taken in 1..=4 {
        assert!(script.take(&asked).1.admitted);
        assert_eq!(entries(&mut script, &buckets), 4_000 - 996 * taken);
    }
}

#[test]
fn fault_10_a_crowd_of_ended_leases_is_dropped_by_parts() {
    let mut script = Script::with_server_clock();
    plant_ended_leases(&mut script, "cc", 50);
    let [.., lease] = &of_all_algorithms("5/min", 1)[..] else { unreachable!() };
    for taken in 1..9 {
        assert_eq!(script.take(from_ref(lease)).1.admitted, taken <= 5);
        assert_eq!(script.command(&["ZCARD", "cc"]).integer(), 50_000 - 999 * taken.min(5));
    }
}

#[test]
fn a_log_in_cells_has_at_most_one_entry_a_cell_and_one_more() {
    let mut script = Script::with_stepped_clock();
    let cells = under(Algorithm::SlidingCells { cells: 8 }, charge("sc", "1000000/8s", 1));
    for turn in 0..2_000 {
        let now = START + turn * 37_003;
        script.set_clock(now);
        assert!(script.take(from_ref(&cells)).1.admitted);
        let log = script.log("sc");
        let alive = log.iter().filter(|(at_us, ..)| *at_us > now - 8 * SECOND).count();
        assert!(alive <= 9, "{alive} entries");
        assert!(log.len() <= alive + 17);
    }
}

#[test]
fn a_fixed_window_ends_by_its_numbers_and_not_by_its_expiry() {
    let mut script = Script::with_server_clock();
    let one = under(Algorithm::FixedWindow, charge("fw", "1/40ms", 1));
    let (begun_us, first) = script.take(from_ref(&one));
    assert!(first.admitted);
    script.command(&["PEXPIRE", "fw", "60000"]);
    loop {
        let (time_us, decision) = script.take(from_ref(&one));
        assert_eq!(decision.admitted, time_us >= begun_us + 40_000);
        if decision.admitted {
            break;
        }
        assert_eq!(decision.outcomes[0].delay_us, Some(begun_us + 40_000 - time_us));
    }
}

#[test]
fn fault_16_a_refusal_by_a_grown_window_keeps_the_bucket_longer() {
    let mut script = Script::with_server_clock();
    let (granted_us, _) = script.take(&[charge("b", "1/s", 1)]);
    assert!(script.kept_until_us("b") < granted_us + 4 * SECOND);
    let (time_us, refused) = script.take(&[charge("b", "1/10s", 1)]);
    assert_eq!(refused.outcomes[0].delay_us, Some(granted_us + 10 * SECOND - time_us));
    assert!(script.kept_until_us("b") > granted_us + 10 * SECOND);
}

#[test]
fn a_delay_is_exact_by_the_servers_clock() {
    let mut script = Script::with_server_clock();
    let now = script.time_us();
    // A dead one, then five whose costs are 1, 2, 3, 1, 2.
    let log = [(70, 1), (50, 1), (40, 2), (30, 3), (20, 1), (10, 2)];
    let mut before = 17;
    for (ago, cost) in log {
        script.plant("b", now - ago * SECOND, before, cost);
        before += u64::from(cost);
    }
    // Permits to leave, and how long ago the one was granted that makes the room.
    for (excess, ago) in [(1, 50), (2, 40), (3, 40), (4, 30), (6, 30), (7, 20), (8, 10), (9, 10)] {
        let (time_us, refused) = script.take(&[charge("b", "9/min", excess)]);
        assert!(!refused.admitted);
        assert_eq!(refused.outcomes[0].delay_us, Some(now + (60 - ago) * SECOND - time_us), "{excess}");
        assert_eq!(refused.outcomes[0].grow_us, now + 10 * SECOND - time_us);
    }
}

#[test]
fn the_running_total_starts_over() {
    let mut script = Script::with_server_clock();
    for before in MODULUS - 8..MODULUS {
        for cost in 1..4 {
            script.command(&["DEL", "b"]);
            let now = script.time_us();
            script.plant("b", now - SECOND, before, 1);
            for turn in 1..=4 {
                let (_, decision) = script.take(&[charge("b", "20/min", cost)]);
                assert_eq!(decision.outcomes[0].remaining, u64::from(19 - turn * cost), "{before}");
            }
            let (time_us, refused) = script.take(&[charge("b", "20/min", 20 - 4 * cost)]);
            assert_eq!(refused.outcomes[0].delay_us, Some(now + 59 * SECOND - time_us));
        }
    }
}

#[test]
fn the_running_total_starts_over_among_entries_of_one_instant() {
    let mut script = Script::with_stepped_clock();
    script.set_clock(START);
    for before in MODULUS - 4..MODULUS {
        // The clock stepped back: all that is granted now counts at this instant.
        script.command(&["DEL", "b"]);
        script.plant("b", START + SECOND, before, 1);
        for left in (0..9).rev() {
            assert_eq!(script.take(&[charge("b", "10/min", 1)]).1.outcomes[0].remaining, left, "{before}");
        }
        assert!(!script.take(&[charge("b", "10/min", 1)]).1.admitted);
    }
}

#[test]
fn a_full_bucket_takes_the_bytes_that_the_documents_tell() {
    let document = include_str!("../../docs/algorithms.md");
    let table = document.split_once("(`MEMORY USAGE`)").unwrap().1.trim_start_matches(|c| c != '|');
    let rows = table.lines().take_while(|line| line.starts_with('|'));
    let mut cells = rows.map(|row| row.trim_matches('|').split('|').map(str::trim).collect::<Vec<_>>());
    let number = |text: &str| text.trim_start_matches("L = ").replace(',', "").parse::<u64>().unwrap();
    let limits: Vec<u64> = cells.next().unwrap()[1..].iter().map(|limit| number(limit)).collect();
    let mut script = Script::with_stepped_clock();
    let bucket = format!("tollgate:per-client:sw:{{header:x-key=sha256/{:032x}}}", 0);
    let algorithms = [
        Algorithm::SlidingWindow,
        Algorithm::SlidingCells { cells: 60 },
        Algorithm::FixedWindow,
        Algorithm::Gcra { burst: None },
        Algorithm::Concurrency,
    ];
    for (algorithm, row) in algorithms.into_iter().zip(cells.skip(1)) {
        assert!(row[0].starts_with(algorithm.name()), "{row:?}");
        for (&permits, told) in limits.iter().zip(&row[1..]) {
            script.command(&["FLUSHALL"]);
            let full = Charge {
                quota: Quota { algorithm, permits: permits as u32, window_us: 60 * SECOND },
                ..charge(&bucket, "1/s", 1)
            };
            for turn in 0..permits {
                script.set_clock(START + turn * 58 * SECOND / permits);
                assert!(script.take(std::slice::from_ref(&full)).1.admitted);
            }
            let bytes = script.command(&["MEMORY", "USAGE", &bucket, "SAMPLES", "0"]).integer() as u64;
            let told = number(told);
            // The id of a lease may be a byte longer or shorter, and the next size that the allocator has an eighth more.
            assert!(bytes.abs_diff(told) <= told / 6, "{algorithm:?}, L = {permits}: {bytes}, not {told}");
        }
    }
}
