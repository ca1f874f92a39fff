//! The real client, gateways and the library take permits of one limiter at the same time, while either side changes the rate
//! and Redis restarts. Two records are checked: the grants that Redis holds, and the permits that the callers were granted.

#![allow(clippy::print_stderr, reason = "it prints the figures")]

use std::{
    collections::BTreeMap,
    env, fs,
    io::{BufRead, BufReader},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread,
    time::{Duration, Instant, SystemTime},
};

use serde_json::Value as Json;
use tollgate_limiter::{
    Ask, BlockingLimiter, Counted, Key, Limit, OnFailure, Rate, RedissonType, Refusal, StoreSettings,
};

use super::java::{Java, gateway, passes};
use crate::harness::{
    EndOnDrop,
    client::Client,
    redis::Redis,
    resp::{Connection, Value},
};

/// The rates that take turns, in permits a second.
const RATES: [u64; 2] = [60, 40];
const NAME: &str = "it:alice";
/// The most milliseconds by which Java's clock may be behind that of Redis when its call arrives, unless the call is held up.
const SLACK_MS: u64 = 300;

/// Returns the seconds for which both sides acquire at once: 60 in scripts/test.sh interop.
fn seconds() -> u64 {
    env::var("TOLLGATE_INTEROP_SECONDS").map_or(10, |text| text.parse().unwrap())
}

fn now_ms() -> u64 {
    SystemTime::UNIX_EPOCH.elapsed().unwrap().as_millis() as u64
}

/// A grant, made at some time in this span of milliseconds.
#[derive(Clone, Copy)]
struct Grant {
    from: u64,
    to: u64,
    permits: u64,
}

/// The grants in Redis, by the member that records each.
type Members = BTreeMap<Vec<u8>, Grant>;

/// The most permits that were certainly granted within a window, of those that are a second or more away from calls that were
/// held up.
fn most_within(grants: &[Grant], window_ms: u64, held_up: &[Grant]) -> u64 {
    let is_judged =
        |start: u64| !held_up.iter().any(|call| (call.from - 2_000..call.to + 1_000).contains(&start));
    let starts = grants.iter().map(|grant| grant.from).filter(|start| is_judged(*start));
    let within = |start: u64| {
        let certain = grants.iter().filter(|grant| grant.from >= start && grant.to < start + window_ms);
        permits(certain)
    };
    starts.map(within).max().unwrap_or(0)
}

fn permits<'g>(grants: impl IntoIterator<Item = &'g Grant>) -> u64 {
    grants.into_iter().map(|grant| grant.permits).sum()
}

/// The state that all callers share.
#[derive(Default)]
struct Run {
    has_ended: AtomicBool,
    /// The permits of gateways and of the library.
    granted: Mutex<Vec<Grant>>,
    /// The times at which a caller got no decision.
    failed: Mutex<Vec<Instant>>,
}

impl Run {
    fn note(&self, from: u64, permits: u64) {
        self.granted.lock().unwrap().push(Grant { from, to: now_ms(), permits });
    }

    fn fail(&self) {
        self.failed.lock().unwrap().push(Instant::now());
    }

    fn ask_gateway(&self, mut client: Client, cost: u64) {
        while !self.has_ended.load(Relaxed) {
            let from = now_ms();
            let answer = client.get_with("/", &format!("x-user: alice\r\nx-cost: {cost}\r\n"));
            match answer.status {
                204 => self.note(from, cost),
                429 => {}
                503 => self.fail(),
                _ => panic!("{answer:?}"),
            }
            thread::sleep(Duration::from_millis(3));
        }
    }

    fn ask_library(&self, limiter: &BlockingLimiter, ask: &Ask) {
        while !self.has_ended.load(Relaxed) {
            let from = now_ms();
            match limiter.try_acquire(ask) {
                Ok(_) => self.note(from, 1),
                Err(Refusal::Limited(_)) => {}
                Err(_) => self.fail(),
            }
            thread::sleep(Duration::from_millis(3));
        }
    }
}

/// Returns the grants that Redis has recorded, by the file to which it appends all that it writes.
fn recorded(redis: &Redis) -> Members {
    let key = format!("{{{NAME}}}:permits");
    let mut grants = Members::new();
    for file in fs::read_dir(redis.folder().join("appendonlydir")).unwrap() {
        let path = file.unwrap().path();
        if !path.to_str().unwrap().ends_with(".incr.aof") {
            continue;
        }
        let mut file = BufReader::new(fs::File::open(path).unwrap());
        while !file.fill_buf().unwrap().is_empty() {
            let command = Value::read(&mut file);
            if let [name, written, score, member] = command.list()
                && name.text().eq_ignore_ascii_case("zadd")
                && written.text() == key
            {
                let member = member.bytes().to_vec();
                let permits = u32::from_le_bytes(member[17..].try_into().unwrap());
                let at = score.text().parse().unwrap();
                grants.insert(member, Grant { from: at, to: at, permits: permits.into() });
            }
        }
    }
    grants
}

/// Returns the times to live of the limiter's keys.
fn ttls(port: u16) -> [i64; 3] {
    [NAME.to_owned(), format!("{{{NAME}}}:value"), format!("{{{NAME}}}:permits")]
        .map(|key| Connection::connect(port).command(&["PTTL", &key]).integer())
}

/// Changes the rate every second, in turn by Java and by the library, and restarts Redis in the middle. Returns when it was
/// away.
fn change_rates(
    redis: &mut Redis,
    java: &mut Java,
    limiter: &BlockingLimiter,
    ask: &Ask,
) -> (Instant, Instant) {
    let begun = Instant::now();
    let mut away = (begun, begun);
    for second in 1..seconds() {
        thread::sleep((begun + Duration::from_secs(second)).saturating_duration_since(Instant::now()));
        if second == seconds() / 2 {
            away.0 = Instant::now();
            redis.kill();
            redis.restart();
            away.1 = Instant::now();
            continue;
        }
        if away.0 > begun && away.1.elapsed() < Duration::from_millis(1_500) {
            continue;
        }
        let rate = RATES[second as usize % 2];
        if second % 4 < 2 {
            assert_eq!(java.run(&format!("update {NAME} overall {rate} 1000 60000 keep")), true);
        } else {
            let rate: Rate = format!("{rate}/s").parse().unwrap();
            assert!(limiter.update_rate(ask, rate, Counted::Kept).unwrap());
        }
        let ttls = ttls(redis.port());
        assert!(ttls.iter().all(|ttl| *ttl > 0 || *ttl == -2), "{ttls:?}");
    }
    away
}

#[test]
fn java_and_gateways_and_the_library_share_one_limiter() {
    // What was answered is on the disk.
    let mut redis = Redis::start_with(&["--appendonly", "yes", "--appendfsync", "always"]);
    let Some(mut java) = Java::start(&redis) else { return };
    assert_eq!(java.run(&format!("try_set {NAME} overall {} 1000 60000", RATES[0])), true);
    let gateways = [gateway(&redis, "7/h"), gateway(&redis, "8/h")];
    let settings =
        StoreSettings { timeout: Duration::from_secs(5), ..StoreSettings::at(&redis.url()).unwrap() };
    let limiter = BlockingLimiter::open(&settings).unwrap();
    let limit = Limit::new("library", "9/h".parse::<Rate>().unwrap())
        .shared_with_redisson("it:{key}".parse().unwrap(), RedissonType::Overall)
        .on_failure(OnFailure::Deny);
    let ask = Ask::new(&Arc::new(limit), Key::verbatim("alice"));
    for permits in [1, 3] {
        java.send(&format!("flood {NAME} {} {permits} 2", seconds() * 1_000));
    }
    let (run, port) = (Run::default(), redis.port());
    let away = thread::scope(|scope| {
        for (gateway, cost) in gateways.iter().zip([1, 2]) {
            let (run, client) = (&run, gateway.client());
            scope.spawn(move || run.ask_gateway(client, cost));
        }
        scope.spawn(|| run.ask_library(&limiter, &ask));
        let _end = EndOnDrop(&run.has_ended);
        let away = change_rates(&mut redis, &mut java, &limiter, &ask);
        thread::sleep(Duration::from_millis(1_200));
        away
    });
    let by_java = [java.answer(), java.answer()];
    check_failures(&run, away, &by_java);
    check_records(&run, &recorded(&redis), &by_java);
    // After an idle interval, all is available again, to both.
    let rate = 50;
    assert!(limiter.update_rate(&ask, format!("{rate}/s").parse().unwrap(), Counted::Kept).unwrap());
    let [configuration, left, _] = ttls(port);
    assert!(configuration > 0 && left > 0);
    thread::sleep(Duration::from_millis(1_100));
    // Java shows more than the rate if more was in use when the rate was lowered; nobody gets more.
    let shown = java.run(&format!("available {NAME}")).as_u64().unwrap();
    assert!((rate..=RATES[0]).contains(&shown), "{shown}");
    assert!(passes(&gateways[0], "alice", rate));
    assert_eq!(java.granted(&format!("acquire {NAME} 3 1")), 0);
}

/// Fails if a call had no decision for another reason than that Redis was away.
fn check_failures(run: &Run, (gone, back): (Instant, Instant), by_java: &[Json; 2]) {
    let failed = run.failed.lock().unwrap();
    let after = back + Duration::from_secs(5);
    assert!(failed.iter().all(|at| *at >= gone && *at < after), "{} without a decision", failed.len());
    let mut errors: BTreeMap<&str, usize> = BTreeMap::new();
    for error in by_java.iter().flat_map(|answer| answer["errors"].as_array().unwrap()) {
        *errors.entry(error.as_str().unwrap()).or_default() += 1;
    }
    let is_connection = |error: &&str| {
        ["Connection", "Timeout", "Closed", "Loading", "TryAgain"].iter().any(|word| error.contains(word))
    };
    assert!(errors.keys().all(is_connection), "{errors:?}");
    eprintln!(
        "Redis was away for {:?}; Java's errors: {errors:?}; Tollgate's: {}",
        back - gone,
        failed.len()
    );
}

/// Fails if a window has more permits than the highest rate by the record of Redis or by that of the callers, or if permits
/// were lost.
fn check_records(run: &Run, recorded: &Members, by_java: &[Json; 2]) {
    let by_java: Vec<Grant> = by_java.iter().flat_map(granted_by).collect();
    let mut granted = run.granted.lock().unwrap().clone();
    let by_us = permits(&granted);
    granted.extend(&by_java);
    let recorded: Vec<Grant> = recorded.values().copied().collect();
    let (all, in_redis, highest) = (permits(&granted), permits(&recorded), RATES[0]);
    // Java's calls go by the time at which they began: one that is held up frees the permits of others too early.
    let held_up: Vec<Grant> = by_java.into_iter().filter(|call| call.to > call.from + SLACK_MS).collect();
    let [most, most_granted] =
        [&recorded, &granted].map(|grants| most_within(grants, 1_000 - SLACK_MS, &held_up));
    eprintln!(
        "{} s: Java took {} permits, Tollgate {by_us}; Redis recorded {in_redis}; at most {most} in a window by its record, \
         {most_granted} by that of the callers; {} calls of Java were held up",
        seconds(),
        all - by_us,
        held_up.len()
    );
    assert!(all > by_us && by_us > 0);
    assert!(all <= in_redis, "each permit is recorded");
    // Those that were under way when Redis went away.
    assert!(in_redis - all <= 20, "each permit is recorded once");
    assert!(most <= highest && most_granted <= highest);
    assert!(!held_up.is_empty() || in_redis <= highest * (seconds() + 1), "{in_redis}");
    assert!(in_redis >= RATES[1] * (seconds() - 4), "none is lost: {in_redis}");
}

/// Returns the grants of a flood.
fn granted_by(flood: &Json) -> impl Iterator<Item = Grant> {
    let calls = flood["calls"].as_array().unwrap();
    let permits = flood["result"].as_u64().unwrap().checked_div(calls.len() as u64).unwrap_or(1);
    let time = |time: &Json| time.as_u64().unwrap();
    calls.iter().map(move |call| Grant { from: time(&call[0]), to: time(&call[1]), permits })
}
