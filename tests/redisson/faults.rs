//! Faults of `RRateLimiter` that users have reported, by number, which the layout must not have here.
//!
//! One list, so it stands in one file.

use std::{sync::Arc, time::Duration};

use futures_util::future::join_all;
use tokio::runtime::Builder;
use tollgate_limiter::{
    Ask, Key, Limit, Limiter, Rate, RedissonType, StoreSettings,
    store::{Charge, Operation},
};

use crate::{
    harness::{redis::Redis, resp::Value, wait_until},
    redisson::{at, change, charge, fault, java, peek, plant, release, take, take_many},
    store::stepped::{self, Script, decision},
};

fn script() -> Script {
    let mut script = Script::with_stepped_clock();
    at(&mut script, 1_000_000);
    script
}

fn value(script: &mut Script, name: &str) -> i64 {
    script.command(&["GET", &format!("{{{name}}}:value")]).integer()
}

fn members(script: &mut Script, name: &str) -> i64 {
    script.command(&["ZCARD", &format!("{{{name}}}:permits")]).integer()
}

fn set(script: &mut Script, name: &str, permits: &str, interval_ms: &str) {
    change(script, name, &["set", permits, interval_ms, "0", "0"]);
}

/// Simulates requests that come each so many milliseconds, and fails if a window has more than its permits.
fn flood(script: &mut Script, permits: usize, window_ms: u64, every_ms: u64, cost: u32) -> usize {
    let charge = charge("flood", &format!("{permits}/{window_ms}ms"), cost);
    let mut granted: Vec<u64> = Vec::new();
    for step in 0..200 {
        let now = 2_000_000 + step * every_ms;
        at(script, now);
        granted.extend(vec![now; take_many(script, &charge, 3) * cost as usize]);
    }
    for (first, start) in granted.iter().enumerate() {
        let within = granted[first..].iter().take_while(|at| **at < start + window_ms).count();
        assert!(within <= permits, "{within} from {start}");
    }
    granted.len()
}

#[test]
fn issue_2072_the_first_call_takes_no_more_than_the_rate() {
    let mut script = script();
    let charge = charge("a", "5/s", 1);
    assert_eq!(take_many(&mut script, &charge, 9), 5);
    assert_eq!(value(&mut script, "a"), 0);
}

#[test]
fn issue_2931_no_window_has_more_across_the_end_of_another() {
    let mut script = script();
    for (every_ms, cost) in [(7, 1), (90, 1), (13, 3)] {
        script.command(&["FLUSHALL"]);
        let granted = flood(&mut script, 10, 1_000, every_ms, cost);
        // Nor fewer, but for what a cost leaves over.
        let windows = 200 * every_ms as usize / 1_000;
        assert!(granted >= windows * 9, "{granted} in {windows} windows");
    }
}

/// Scores are in milliseconds, and windows don't begin with one.
#[test]
fn no_window_is_shorter_by_part_of_a_millisecond() {
    let mut script = script();
    let charge = charge("a", "20/1s", 20);
    for granted_us in [1_000_000_001, 1_001_000_700, 1_002_000_999, 1_003_001_000] {
        script.command(&["FLUSHALL"]);
        let mut passes_at = |us| {
            script.set_clock(us);
            take(&mut script, &charge)
        };
        assert!(passes_at(granted_us).0);
        assert_eq!(passes_at(granted_us + 999_999), (false, Some(1)), "{granted_us}");
        assert!(passes_at(granted_us.next_multiple_of(1_000) + 1_000_000).0, "{granted_us}");
    }
}

#[test]
fn issue_3639_callers_at_one_instant_share_the_permits() {
    let mut script = script();
    let charge = charge("a", "50/s", 1);
    let granted: usize = (0..100).map(|_| take_many(&mut script, &charge, 1)).sum();
    assert_eq!((granted, members(&mut script, "a")), (50, 50));
}

#[test]
fn issue_7329_a_release_never_leaves_more_than_the_rate() {
    let mut script = script();
    let charge = charge("a", "10/s", 1);
    assert_eq!(take_many(&mut script, &charge, 4), 4);
    release(&mut script, "a", 4);
    assert_eq!(value(&mut script, "a"), 10);
    at(&mut script, 1_001_000);
    assert_eq!(peek(&mut script, &charge).used, 0);
    assert_eq!(take_many(&mut script, &charge, 20), 10);
    assert_eq!(value(&mut script, "a"), 0);
}

#[test]
fn issue_7342_what_was_released_stays_usable_when_grants_end() {
    let mut script = script();
    let charge = charge("a", "10/s", 1);
    for turn in 0..30 {
        at(&mut script, 1_000_000 + turn * 100);
        assert!(take(&mut script, &charge).0);
        release(&mut script, "a", 1);
        assert_eq!(value(&mut script, "a"), 10, "turn {turn}");
    }
}

#[test]
fn issue_3804_and_4176_everything_is_available_again_after_an_idle_interval() {
    let mut script = script();
    let five = charge("a", "5/s", 5);
    assert!(take(&mut script, &five).0);
    // Permits that no member accounts for, as an older client or an eviction left them.
    script.command(&["DECRBY", "{a}:value", "3"]);
    at(&mut script, 1_001_000);
    assert_eq!(peek(&mut script, &five).used, 0);
    assert!(take(&mut script, &five).0);
}

#[test]
fn issue_5687_a_value_that_is_gone_is_made_of_the_grants_that_count() {
    let mut script = script();
    let charge = charge("a", "5/s", 1);
    assert_eq!(take_many(&mut script, &charge, 4), 4);
    script.command(&["DEL", "{a}:value"]);
    assert_eq!(take_many(&mut script, &charge, 4), 1);
}

#[test]
fn issue_5750_a_low_rate_gives_each_permit_back() {
    let mut script = script();
    let charge = charge("a", "1/s", 1);
    for turn in 0..50 {
        at(&mut script, 1_000_000 + turn * 1_000);
        assert_eq!(take(&mut script, &charge), (true, Some(0)), "turn {turn}");
        assert_eq!(take(&mut script, &charge), (false, Some(1_000)), "turn {turn}");
    }
}

#[test]
fn issue_5751_and_5906_the_value_never_drifts_from_the_grants() {
    let mut script = script();
    let mut random = fastrand::Rng::with_seed(7);
    let mut now = 1_000_000;
    for _ in 0..500 {
        now += random.u64(1..300);
        at(&mut script, now);
        let charge = charge("a", "20/s", random.u32(1..8));
        take(&mut script, &charge);
        let members = script.command(&["ZRANGE", "{a}:permits", "0", "-1"]);
        let used: u32 =
            members.list().iter().map(|m| u32::from_le_bytes(m.bytes()[17..].try_into().unwrap())).sum();
        assert_eq!(value(&mut script, "a") + i64::from(used), 20);
    }
}

#[test]
fn issue_3526_many_members_end_at_once() {
    let mut script = script();
    set(&mut script, "a", "30000", "1000");
    script.command(&["SET", "{a}:value", "30000"]);
    for _ in 0..20_000 {
        plant(&mut script, "a", 1_000_000, 1);
    }
    plant(&mut script, "a", 1_000_500, 1);
    at(&mut script, 1_001_000);
    let charge = charge("a", "1/s", 9_000);
    // Some thousands a call: all are free after a few calls, and none is lost.
    let granted: usize = (0..5).map(|_| take_many(&mut script, &charge, 3)).sum();
    assert_eq!(granted, 3);
    assert_eq!(value(&mut script, "a"), 2_999);
}

/// Returns how often grants were read since the statistics were reset.
fn reads(script: &mut Script) -> u32 {
    let stats = String::from_utf8(script.command(&["INFO", "commandstats"]).bytes().to_vec()).unwrap();
    let calls = stats.split("cmdstat_zrange:calls=").nth(1).unwrap().split(',').next().unwrap();
    calls.parse().unwrap()
}

/// After a release, value and grants exceed the rate together.
#[test]
fn issue_3526_no_decision_reads_a_crowd_of_members_that_count() {
    for (written, admits) in [(Some("20000"), true), (Some("9000"), true), (None, false)] {
        let mut script = script();
        set(&mut script, "a", "20000", "1000");
        plant(&mut script, "a", 1_000_000, 12_000);
        for _ in 0..20_000 {
            plant(&mut script, "a", 1_000_500, 1);
        }
        script.command(&["DEL", "{a}:value"]);
        written.inspect(|value| {
            script.command(&["SET", "{a}:value", value]);
        });
        at(&mut script, 1_001_000);
        script.command(&["CONFIG", "RESETSTAT"]);
        let charge = charge("a", "1/s", 3);
        assert_eq!(take(&mut script, &charge).0, admits, "{written:?}");
        let reads = reads(&mut script);
        assert!(reads <= 14, "{written:?}: {reads} reads");
    }
}

/// Clients may state costs, for each of which many grants would have to end.
#[test]
fn issue_3526_no_refusal_reads_a_crowd_of_members_that_count() {
    let mut script = script();
    set(&mut script, "a", "20000", "1000");
    for at in 0..20_000 {
        plant(&mut script, "a", 1_000_000 + at / 40, 1);
    }
    script.command(&["SET", "{a}:value", "0"]);
    at(&mut script, 1_000_600);
    for (cost, delay_ms) in [(1, 400), (900, 422), (9_000, 899)] {
        script.command(&["CONFIG", "RESETSTAT"]);
        assert_eq!(take(&mut script, &charge("a", "1/s", cost)), (false, Some(delay_ms)));
        let reads = reads(&mut script);
        assert!(reads <= 8, "{cost}: {reads} reads");
    }
}

#[test]
fn issue_3025_and_3444_scores_of_any_size_are_read() {
    let mut script = script();
    set(&mut script, "a", "5", "1000");
    script.command(&["SET", "{a}:value", "5"]);
    plant(&mut script, "a", 0, 2);
    plant(&mut script, "a", 1_763_683_200_123, 1);
    at(&mut script, 1_763_683_200_500);
    let three = charge("a", "1/s", 3);
    assert_eq!(peek(&mut script, &three).used, 1);
    assert!(take(&mut script, &three).0);
    assert_eq!(take(&mut script, &three), (false, Some(1_000)));
}

#[test]
fn issue_3910_and_5516_members_of_another_length_change_nothing() {
    let mut script = script();
    set(&mut script, "a", "5", "1000");
    let charge = charge("a", "1/s", 1);
    for member in [&b"\x08_random_\x01\0\0\0"[..], b"\x10\0\0\0\0\0\0\0_random__random_\x01\0\0\0", b"fI"] {
        script.command(&["DEL", "{a}:permits"]);
        script.command(&[b"ZADD".as_slice(), b"{a}:permits", b"1000000", member]);
        assert!(fault(&mut script, &charge).contains("another layout"), "{member:?}");
        assert_eq!(script.command(&["EXISTS", "{a}:value"]).integer(), 0);
        assert_eq!(members(&mut script, "a"), 1);
    }
    for value in ["x", "1.5.2"] {
        script.command(&["DEL", "{a}:permits"]);
        script.command(&["SET", "{a}:value", value]);
        assert!(fault(&mut script, &charge).contains("not a whole number"));
    }
    script.command(&["HSET", "a", "rate", "many"]);
    assert!(fault(&mut script, &charge).contains("not the configuration"));
}

#[test]
fn issue_1493_and_1524_a_refused_caller_is_told_when_and_gets_in_then() {
    let mut script = script();
    let one = charge("a", "5/s", 1);
    for ms in [0, 100, 200, 300, 400] {
        at(&mut script, 1_000_000 + ms);
        assert!(take(&mut script, &one).0);
    }
    at(&mut script, 1_000_500);
    for (cost, delay_ms) in [(1, 500), (2, 600), (5, 900)] {
        let several = charge("a", "5/s", cost);
        assert_eq!(take(&mut script, &several), (false, Some(delay_ms)));
    }
    at(&mut script, 1_001_399);
    assert!(!take(&mut script, &charge("a", "5/s", 5)).0);
    at(&mut script, 1_001_400);
    assert!(take(&mut script, &charge("a", "5/s", 5)).0);
}

#[test]
fn issue_1659_and_2149_more_than_the_rate_is_refused_for_good() {
    let mut script = script();
    set(&mut script, "a", "5", "1000");
    assert_eq!(take(&mut script, &charge("a", "50/s", 6)), (false, None));
    assert_eq!(take(&mut script, &charge("a", "2/s", 5)), (true, Some(0)));
}

#[test]
fn issue_4037_and_6959_delays_hold_after_releases() {
    let mut script = script();
    let of = |cost| charge("a", "5/s", cost);
    assert!(take(&mut script, &of(5)).0);
    at(&mut script, 1_000_300);
    release(&mut script, "a", 4);
    assert!(take(&mut script, &of(4)).0);
    at(&mut script, 1_000_600);
    let (_, delay) = take(&mut script, &of(5));
    at(&mut script, 1_000_600 + delay.unwrap());
    assert!(take(&mut script, &of(5)).0);
}

#[test]
fn issue_3260_and_4301_keys_that_a_gateway_makes_end_by_themselves() {
    let mut script = script();
    for (name, rate, most_ms) in [("a", "5/s", 60_000), ("b", "5/min", 120_000)] {
        assert!(take(&mut script, &charge(name, rate, 1)).0);
        for key in [name.to_owned(), format!("{{{name}}}:value"), format!("{{{name}}}:permits")] {
            let ttl = script.command(&["PTTL", &key]).integer();
            assert!((most_ms - 5_000..=most_ms).contains(&ttl), "{key}: {ttl}");
        }
    }
}

#[test]
fn issue_3756_and_4663_an_expiry_that_java_set_is_that_of_all_keys() {
    let mut script = script();
    set(&mut script, "a", "5", "1000");
    script.command(&["PEXPIRE", "a", "30000"]);
    assert!(take(&mut script, &charge("a", "1/s", 1)).0);
    for key in ["{a}:value", "{a}:permits"] {
        let ttl = script.command(&["PTTL", key]).integer();
        assert!((25_000..=30_000).contains(&ttl), "{key}: {ttl}");
    }
}

#[test]
fn issue_4007_4813_and_6216_each_call_renews_a_keep_alive_time() {
    let mut script = script();
    change(&mut script, "a", &["set", "1", "1000", "0", "40000"]);
    for _ in 0..2 {
        for key in ["a", "{a}:value", "{a}:permits"] {
            script.command(&["PEXPIRE", key, "500"]);
        }
        take(&mut script, &charge("a", "1/s", 1));
        for key in ["a", "{a}:value", "{a}:permits"] {
            assert!(script.command(&["PTTL", key]).integer() > 35_000, "{key}");
        }
    }
}

#[test]
fn issue_2218_and_2322_a_rate_in_redis_wins_over_the_limits_own() {
    let mut script = script();
    set(&mut script, "a", "3", "5000");
    assert_eq!(take_many(&mut script, &charge("a", "50/s", 1), 9), 3);
    assert_eq!(take(&mut script, &charge("a", "50/s", 1)), (false, Some(5_000)));
    let held = script.command(&["HGET", "a", "rate"]);
    assert_eq!(held.integer(), 3);
}

#[test]
fn issue_2618_5487_and_5900_a_changed_rate_keeps_what_was_counted() {
    let mut script = script();
    set(&mut script, "a", "5", "1000");
    let one = charge("a", "1/s", 1);
    assert_eq!(take_many(&mut script, &one, 4), 4);
    change(&mut script, "a", &["update", "6", "1000", "-", "-", "1"]);
    assert_eq!(take_many(&mut script, &one, 9), 2);
    change(&mut script, "a", &["update", "2", "1000", "-", "-", "1"]);
    assert_eq!(take_many(&mut script, &one, 9), 0);
    // As grants end, there is no more room than the new rate has.
    at(&mut script, 1_001_000);
    assert_eq!(take_many(&mut script, &one, 9), 2);
}

#[test]
fn issue_6499_a_changed_type_starts_anew() {
    let mut script = script();
    set(&mut script, "a", "5", "1000");
    let one = charge("a", "1/s", 1);
    assert_eq!(take_many(&mut script, &one, 9), 5);
    change(&mut script, "a", &["update", "5", "1000", "1", "-", "1"]);
    assert_eq!(take_many(&mut script, &one, 9), 5);
    assert_eq!(script.command(&["EXISTS", "{a}:value", "{a}:permits"]).integer(), 0);
}

/// A lowered rate holds while grants of the higher one end one by one.
#[test]
fn issue_6499_a_lowered_rate_is_not_exceeded_as_grants_end() {
    let mut script = script();
    set(&mut script, "a", "10", "1000");
    let one = charge("a", "1/s", 1);
    for turn in 0..10 {
        at(&mut script, 1_000_000 + 10 * turn);
        assert!(take(&mut script, &one).0);
    }
    change(&mut script, "a", &["update", "5", "1000", "-", "-", "1"]);
    for turn in 0..5 {
        at(&mut script, 1_001_000 + 10 * turn);
        assert!(!take(&mut script, &one).0, "{turn} of 10 have ended");
    }
    at(&mut script, 1_001_050);
    assert_eq!(take_many(&mut script, &one, 9), 1);
}

#[test]
fn issue_6749_and_6780_refunds_can_be_taken_at_once() {
    let mut script = script();
    let five = charge("a", "5/s", 5);
    assert!(take(&mut script, &five).0);
    release(&mut script, "a", 2);
    assert!(!take(&mut script, &charge("a", "5/s", 3)).0);
    assert!(take(&mut script, &charge("a", "5/s", 2)).0);
}

#[test]
fn issue_3910_and_5516_members_of_another_layout_are_logged_once_a_minute_without_the_key() {
    let redis = Redis::start();
    let gateway = java::gateway(&redis, "5/s");
    assert!(java::passes(&gateway, "alice", 1));
    redis.command(&["ZADD", "{it:alice}:permits", "1", "older"]);
    let value = redis.command(&["GET", "{it:alice}:value"]);
    for _ in 0..20 {
        let answer = gateway.client().get_with("/", "x-user: alice\r\nx-cost: 1\r\n");
        assert_eq!(answer.status, 503, "on_failure decides");
    }
    assert_eq!(redis.command(&["GET", "{it:alice}:value"]), value);
    assert_eq!(redis.command(&["ZCARD", "{it:alice}:permits"]), "2");
    wait_until("it is logged", || gateway.log().contains("another layout"));
    let log = gateway.log();
    assert_eq!(log.matches("another layout").count(), 1, "{log}");
    assert!(log.contains("update the services with an older Redisson") && !log.contains("alice"), "{log}");
}

/// Java's waiters ask Redis again at each time that they guess. Here those of a process wait in one queue, of which the first
/// is asked for when its permit is there.
#[test]
fn issue_4421_and_4812_waiters_do_not_load_redis() {
    let redis = Redis::start();
    Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
        let settings =
            StoreSettings { timeout: Duration::from_secs(5), ..StoreSettings::at(&redis.url()).unwrap() };
        let limiter = Limiter::open(&settings).unwrap();
        let limit = Limit::new("l", "10/500ms".parse::<Rate>().unwrap())
            .shared_with_redisson("a:{key}".parse().unwrap(), RedissonType::Overall);
        let ask = Ask::new(&Arc::new(limit), Key::verbatim("x"));
        limiter.acquire(ask.clone().cost(10), None).await.unwrap();
        let before = redis.scripts();
        let waiters = (0..200).map(|_| limiter.acquire(&ask, None));
        let waiting = join_all(waiters);
        tokio::select! {
            _ = waiting => panic!("200 permits take ten seconds"),
            () = tokio::time::sleep(Duration::from_millis(2_200)) => {}
        }
        // Some 40 were granted. Had each of the others asked once more in a window, there were 600 calls.
        let calls = redis.scripts() - before;
        assert!(calls < 250, "{calls} calls");
        // Those that were dropped take nothing.
        let used = limiter.peek(&ask).await.unwrap().used();
        tokio::time::sleep(Duration::from_millis(600)).await;
        assert!(used <= 10 && limiter.peek(&ask).await.unwrap().used() == 0, "{used}");
    });
}

#[test]
fn several_limiters_and_limits_are_charged_in_one_step_or_none() {
    let mut script = script();
    let (wide, narrow) = (charge("wide", "9/s", 1), charge("narrow", "1/s", 1));
    let own = crate::store::stepped::charge("tollgate:own:sw:{x}", "5/s", 1);
    let all = [wide.clone(), narrow, own.clone()];
    assert!(script.take(&all).1.admitted);
    assert!(!script.take(&all).1.admitted);
    assert_eq!(peek(&mut script, &wide).used, 1);
    assert_eq!(
        script.operate(&[crate::store::stepped::on(&own, tollgate_limiter::store::Act::Peek(1))]).1.len(),
        1
    );
}

/// Redisson 3.16 to 3.20 beside newer ones.
#[test]
fn a_member_of_another_layout_that_only_the_delay_meets_fails_no_other_request() {
    let mut script = script();
    set(&mut script, "a", "5", "60000");
    let [two, four] = [charge("a", "1/s", 2), charge("a", "1/s", 4)];
    plant(&mut script, "a", 990_000, 1);
    script.command(&[b"ZADD".as_slice(), b"{a}:permits", b"991000", b"\x08_random_\x01\0\0\0"]);
    plant(&mut script, "a", 992_000, 1);
    script.command(&["SET", "{a}:value", "2"]);
    let own = stepped::charge("own", "9/h", 1);
    let take =
        |charges: &[&Charge]| Operation::Take(charges.iter().map(|charge| (*charge).clone()).collect());
    let mut outcomes = |operations: &[Operation]| {
        let replies = script.try_operate(operations).1.into_iter().map(|reply| decision(reply.unwrap()));
        replies.map(|decision| (decision.admitted, decision.outcomes)).collect::<Vec<_>>()
    };
    let seen = outcomes(&[take(&[&own]), take(&[&four])]);
    assert_eq!((seen[0].0, seen[0].1[0].remaining, seen[1].0), (true, 8, false));
    // At the latest when all grants have ended there is room.
    assert_eq!(seen[1].1[0].delay_us, Some(52_000_000));
    let both = || take(&[&own, &two]);
    let admitted: Vec<_> =
        outcomes(&[both(), both(), both()]).iter().map(|(admitted, _)| *admitted).collect();
    assert_eq!(admitted, [true, false, false]);
    assert_eq!(script.log("own").iter().map(|(.., cost)| cost).sum::<u64>(), 2);
}

/// Numbers that somebody other than Redisson may have written. Lua reads nearly all of them.
#[test]
fn an_odd_number_in_one_limiter_fails_no_other_request_and_stays_as_it_is() {
    let mut script = script();
    let odd =
        ["1.5", "1e1", "0x5", " 5", "5 ", "05", "+5", "-0", "nan", "inf", "1e30", "99999999999999999999", ""];
    let fields = ["value", "rate", "interval", "keepAliveTime"];
    let mut cases: Vec<_> = fields.iter().flat_map(|field| odd.map(|text| (*field, text))).collect();
    cases.extend([("value", "-9223372036854775808"), ("rate", "-1"), ("interval", "0")]);
    let [shared, own] = [charge("a", "5/s", 1), stepped::charge("own", "1000/h", 1)];
    let take =
        |charges: &[&Charge]| Operation::Take(charges.iter().map(|charge| (*charge).clone()).collect());
    let keys = |script: &mut Script| {
        ["a", "{a}:value", "{a}:permits"].map(|key| {
            let ttl_ms = script.command(&["PTTL", key]).integer();
            (script.command(&["DUMP", key]).bytes().to_vec(), ttl_ms)
        })
    };
    for (turn, (field, text)) in cases.into_iter().enumerate() {
        script.command(&["DEL", "a", "{a}:value", "{a}:permits"]);
        set(&mut script, "a", "5", "1000");
        script.command(&["SET", "{a}:value", "5"]);
        plant(&mut script, "a", 998_500, 1);
        plant(&mut script, "a", 999_500, 1);
        match field {
            "value" => script.command(&["SET", "{a}:value", text]),
            field => script.command(&["HSET", "a", field, text]),
        };
        let before = keys(&mut script);
        let mut replies = script.try_operate(&[take(&[&own]), take(&[&shared, &own]), take(&[&shared])]).1;
        replies.extend(script.try_operate(&[take(&[&shared]), take(&[&own])]).1);
        let told = if field == "value" { "not a whole number" } else { "not the configuration" };
        for (at, reply) in replies.into_iter().enumerate() {
            match reply {
                Ok(reply) => {
                    assert!(decision(reply).admitted && matches!(at, 0 | 4), "{field} {text:?}: {at}");
                }
                Err(fault) => {
                    assert!(fault.contains(told) && !matches!(at, 0 | 4), "{field} {text:?}: {fault}");
                }
            }
        }
        assert_eq!(keys(&mut script), before, "{field} {text:?}");
        let charged: u64 = script.log("own").iter().map(|(.., cost)| cost).sum();
        assert_eq!(charged, 2 * (turn as u64 + 1), "{field} {text:?}");
    }
}

/// Java's `Long.MAX_VALUE`, which no double is.
#[test]
fn a_limiter_of_java_without_a_bound_is_counted() {
    const MOST: i64 = i64::MAX;
    const GREATEST: i64 = (1 << 53) - 1;
    let mut script = script();
    let (one, most) = (charge("a", "1/s", 1), MOST.to_string());
    for left in [None, Some(MOST), Some(MOST - 3)] {
        script.command(&["DEL", "a", "{a}:value", "{a}:permits"]);
        at(&mut script, 1_000_000);
        set(&mut script, "a", &most, "1000");
        if let Some(left) = left {
            script.command(&["SET", "{a}:value", &left.to_string()]);
        }
        assert_eq!(take_many(&mut script, &one, 3), 3);
        assert_eq!(value(&mut script, "a"), GREATEST - 3);
        assert_eq!((take(&mut script, &one), peek(&mut script, &one).used), ((true, Some(0)), 4));
        at(&mut script, 1_001_000);
        assert_eq!((take(&mut script, &one), value(&mut script, "a")), ((true, Some(0)), GREATEST - 1));
        release(&mut script, "a", 1);
        let rate = change(&mut script, "a", &["get"]);
        assert_eq!(rate.list().iter().map(Value::integer).collect::<Vec<_>>(), [GREATEST, 1_000]);
        assert_eq!(script.command(&["HGET", "a", "rate"]).text(), most);
    }
    script.command(&["DEL", "a", "{a}:value", "{a}:permits"]);
    script.command(&["HSET", "a", "rate", "2", "interval", &most, "type", "0", "keepAliveTime", &most]);
    assert_eq!(take_many(&mut script, &one, 3), 2);
    assert!(take(&mut script, &one).1.is_some_and(|delay_ms| delay_ms > Rate::MAX_WINDOW_US));
    assert!(script.command(&["PTTL", "a"]).integer() > 0);
}

#[test]
fn a_rate_that_is_set_mends_an_odd_time_to_live() {
    let mut script = script();
    for odd in ["1e30", "inf", "1.5", "05", "9223372036854775807"] {
        set(&mut script, "a", "5", "1000");
        script.command(&["HSET", "a", "keepAliveTime", odd]);
        change(&mut script, "a", &["set", "7", "1000", "-0", "-", "1"]);
        assert_eq!(script.command(&["HGET", "a", "keepAliveTime"]).text(), "60000", "{odd}");
        assert_eq!(take_many(&mut script, &charge("a", "1/s", 1), 9), 7, "{odd}");
    }
}

#[test]
fn a_call_removes_as_many_members_of_several_buckets_as_of_one() {
    let mut script = Script::with_stepped_clock();
    at(&mut script, 1_000_000);
    let both = ["a", "b"].map(|name| charge(name, "100000/s", 1));
    assert!(script.take(&both).1.admitted);
    for name in ["a", "b"] {
        for _ in 0..4_000 {
            plant(&mut script, name, 1_000_000, 1);
        }
        plant(&mut script, name, 1_000_900, 1);
    }
    at(&mut script, 1_001_100);
    let count = |script: &mut Script| members(script, "a") + members(script, "b");
    let mut before = count(&mut script);
    for _ in 0..4 {
        assert!(script.take(&both).1.admitted);
        let after = count(&mut script);
        assert!(before + 2 - after <= 5_000 + 2 * 20, "{} members were removed", before + 2 - after);
        before = after;
    }
    // One that counts, and the grants since.
    assert_eq!(before, 2 * (1 + 4));
}

#[test]
fn a_call_sums_as_many_members_of_several_buckets_as_of_one() {
    const NAMES: [&str; 4] = ["a", "b", "c", "d"];
    let mut script = script();
    for name in NAMES {
        set(&mut script, name, "2500", "1000000");
        for _ in 0..2_000 {
            plant(&mut script, name, 1_000_000, 1);
        }
        script.command(&["DEL", &format!("{{{name}}}:value")]);
    }
    let all = NAMES.map(|name| charge(name, "1/s", 1));
    // The missing values of two are found in a call, and kept, also if the others refuse.
    let refused = script.take(&all).1;
    assert!(!refused.admitted);
    assert_eq!(refused.outcomes.iter().filter_map(|outcome| outcome.delay_us).max(), Some(1));
    let keys = NAMES.map(|name| format!("{{{name}}}:value"));
    let exist = keys.each_ref().map(|key| script.command(&["EXISTS", key]).integer());
    assert_eq!(exist, [1, 1, 0, 0]);
    assert!(script.take(&all).1.admitted);
    assert_eq!(NAMES.map(|name| value(&mut script, name)), [499; 4]);
}

#[test]
fn what_has_ended_after_a_release_is_summed_for_a_few_buckets_in_a_call() {
    const NAMES: [&str; 4] = ["a", "b", "c", "d"];
    let mut script = script();
    for name in NAMES {
        set(&mut script, name, "10000", "1000");
        for _ in 0..20 {
            plant(&mut script, name, 1_000_000, 110);
        }
        for _ in 0..2_000 {
            plant(&mut script, name, 1_000_500, 1);
        }
        script.command(&["SET", &format!("{{{name}}}:value"), "7900"]);
    }
    at(&mut script, 1_001_100);
    let all = NAMES.map(|name| charge(name, "1/s", 1));
    for expected in [[2_001, 2_001, 2_021, 2_021], [2_002; 4]] {
        assert!(script.take(&all).1.admitted);
        assert_eq!(NAMES.map(|name| members(&mut script, name)), expected);
    }
    assert_eq!(NAMES.map(|name| value(&mut script, name)), [7_998; 4]);
}

/// The delay is that of the newest grant if more have to end than a call looks through.
#[test]
fn a_delay_that_needs_too_many_members_lasts_until_all_have_ended() {
    for (count, value) in [(900, Some("-897")), (1_100, Some("-1097")), (2_900, None), (5_001, None)] {
        let mut script = script();
        set(&mut script, "a", "3", "60000");
        for _ in 0..count {
            plant(&mut script, "a", 1_000_000, 1);
        }
        script.command(&["DEL", "{a}:value"]);
        value.inspect(|value| {
            script.command(&["SET", "{a}:value", value]);
        });
        let one = charge("a", "1/s", 1);
        for passed_ms in [50_000, 59_999] {
            at(&mut script, 1_000_000 + passed_ms);
            assert_eq!(take(&mut script, &one), (false, Some(60_000 - passed_ms)), "{count}");
        }
        at(&mut script, 1_060_000);
        assert!(take(&mut script, &one).0, "{count}");
    }
}

#[test]
fn a_refusal_writes_no_value_of_a_limiter_without_a_configuration() {
    let mut script = script();
    plant(&mut script, "a", 1_000_000, 1);
    script.command(&["DEL", "{a}:value"]);
    assert!(!take(&mut script, &charge("a", "1/h", 1)).0);
    // It would have no time to live, and outlast the members.
    assert_eq!(script.command(&["EXISTS", "a", "{a}:value"]).integer(), 0);
}

#[test]
fn delays_of_many_limiters_in_a_call_last_until_all_have_ended() {
    let mut script = script();
    let names: Vec<_> = (0..256).map(|number| format!("a{number}")).collect();
    for name in &names {
        set(&mut script, name, "5", "60000");
        for _ in 0..5 {
            plant(&mut script, name, 1_000_000, 1);
        }
        script.command(&["SET", &format!("{{{name}}}:value"), "0"]);
    }
    at(&mut script, 1_050_000);
    let all: Vec<_> = names.iter().map(|name| charge(name, "1/s", 5)).collect();
    let refused = script.take(&all).1;
    assert!(!refused.admitted);
    assert!(refused.outcomes.iter().all(|outcome| outcome.delay_us == Some(10_000_000)), "{refused:?}");
}
