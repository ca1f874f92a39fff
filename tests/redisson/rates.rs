//! The rate that Redis has wins over the limit's own: clients and operators see the one that applied, and are told of the other.
//! And what Redis holds is never taken for less than it is.

use std::{
    fs,
    io::BufRead,
    process::{Command, Output},
    time::{Duration, Instant},
};

use crate::{
    harness::{client::Client, gateway::Gateway, metrics::Metrics, redis::Redis, wait_until},
    redisson::{at, change, charge, peek, plant, release, take, take_many},
    store::stepped::Script,
};

fn toml(redis: &Redis, rate: &str) -> String {
    format!(
        "{}[server]\nlisten = \"127.0.0.1:0\"\n[admin]\nlisten = \"127.0.0.1:0\"\n\
         [limits.logins]\nkey = \"header:x-user\"\nrate = \"{rate}\"\nlayout = \"redisson\"\nredisson_name = \"it[1]:{{key}}\"\n\
         [[routes]]\npath = \"/\"\nrespond = {{ status = 204 }}\nlimits = [\"logins\"]\n",
        redis.store()
    )
}

/// Sets a rate as Java does.
fn set_rate(redis: &Redis, user: &str, permits: &str, interval_ms: &str) {
    let name = format!("it[1]:{user}");
    redis.command(&[
        "HSET",
        &name,
        "rate",
        permits,
        "interval",
        interval_ms,
        "type",
        "0",
        "keepAliveTime",
        "0",
    ]);
}

fn tollgate(words: &[&str]) -> String {
    let Output { stdout, stderr, .. } =
        Command::new(env!("CARGO_BIN_EXE_tollgate")).args(words).output().unwrap();
    String::from_utf8([stdout, stderr].concat()).unwrap()
}

pub(super) fn admin(gateway: &Gateway) -> String {
    let (_, admin) = gateway.greeting().split_once("dashboard: ").unwrap();
    admin.lines().next().unwrap().to_owned()
}

/// Redisson has written a `keepAliveTime` since 3.37.
#[test]
fn a_limiter_of_an_older_redisson_stays_when_its_rate_is_changed() {
    let redis = Redis::start();
    let name = "it[1]:alice";
    redis.command(&["HSET", name, "rate", "3", "interval", "30000", "type", "0"]);
    let gateway = Gateway::start(&toml(&redis, "5/min"));
    let said = tollgate(&["limits", "set", "logins", "alice", "7/min", "--admin", &admin(&gateway)]);
    let held = redis.command(&["HMGET", name, "rate", "interval", "keepAliveTime"]);
    assert_eq!(held.trim(), "7\n60000\n0", "{said}");
    assert_eq!(redis.command(&["PTTL", name]).trim(), "-1");
}

#[test]
fn clients_and_operators_see_the_rate_of_redis() {
    let redis = Redis::start();
    set_rate(&redis, "alice", "3", "30000");
    let gateway = Gateway::start(&toml(&redis, "5/min"));
    let ask = |user: &str| {
        let answer = gateway.client().get_with("/", &format!("x-user: {user}\r\n"));
        let field = |name: &str| answer.header(name).unwrap_or_default().to_owned();
        (answer.status, field("ratelimit-policy"), field("ratelimit"))
    };
    for (status, left) in [(204, 2), (204, 1), (204, 0), (429, 0)] {
        let (answered, policy, standing) = ask("alice");
        assert_eq!((answered, &*policy), (status, "\"logins\";q=3;w=30"));
        assert!(standing.starts_with(&format!("\"logins\";r={left};t=")), "{standing}");
    }
    // Who has no rate in Redis gets the file's.
    assert_eq!(ask("bob").1, "\"logins\";q=5;w=60");
    let admin = admin(&gateway);
    let shown = tollgate(&["limits", "show", "logins", "alice", "--admin", &admin]);
    assert!(shown.contains("rate  3/30s (set)\nused  3\nleft  0\n"), "{shown}");
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("gateway.toml");
    fs::write(&file, toml(&redis, "5/min")).unwrap();
    let file = file.to_str().unwrap();
    let explained = tollgate(&[
        "explain",
        "GET",
        "/",
        "-H",
        "x-user: alice",
        "--config",
        file,
        "--live",
        "--admin",
        &admin,
    ]);
    assert!(explained.contains("3/30s"), "{explained}");
    let shown = dashboard(&admin);
    assert!(shown.contains("\"rate\":\"3/30s\"") && shown.contains("\"file_rate\":\"5/min\""), "{shown}");
    // The log says it once, without the caller's name.
    wait_until("it is logged", || gateway.log().contains("wins over"));
    let log = gateway.log();
    assert_eq!(log.matches("wins over").count(), 1, "{log}");
    assert!(
        log.contains("limit `logins`: Redis has the rate 3/30s for a limiter of Redisson, which wins over 5/min: change"),
        "{log}"
    );
    assert!(log.contains("`tollgate limits set logins KEY 5/min`") && !log.contains("alice"), "{log}");
    // The remedy mends it.
    tollgate(&["limits", "set", "logins", "alice", "5/min", "--admin", &admin]);
    assert_eq!(ask("alice").1, "\"logins\";q=5;w=60");
}

#[test]
fn a_reset_keeps_the_rate_and_frees_the_permits() {
    let redis = Redis::start();
    set_rate(&redis, "alice", "3", "3600000");
    let gateway = Gateway::start(&toml(&redis, "5/min"));
    let ask = || gateway.client().get_with("/", "x-user: alice\r\n").status;
    assert_eq!([ask(), ask(), ask(), ask()], [204, 204, 204, 429]);
    let admin = admin(&gateway);
    let said = tollgate(&["limits", "reset", "logins", "alice", "--admin", &admin]);
    assert!(said.starts_with("reset: "), "{said}");
    assert_eq!(redis.command(&["HMGET", "it[1]:alice", "rate", "interval"]).trim(), "3\n3600000");
    assert_eq!([ask(), ask(), ask(), ask()], [204, 204, 204, 429]);
    let metrics = Metrics::scrape(admin.trim_start_matches("http://").trim_end_matches('/'));
    let admitted = "tollgate_decisions_total{limit=\"logins\",outcome=\"admitted\",origin=\"store\"}";
    assert_eq!(metrics.of(admitted), 6.0, "{}", metrics.text);
}

#[test]
fn without_redis_each_limit_does_what_it_chose() {
    for (policy, statuses) in
        [("allow", [204, 204, 204]), ("deny", [503, 503, 503]), ("local", [204, 204, 429])]
    {
        let redis = Redis::away();
        let toml = toml(&redis, "2/min")
            .replace("[limits.logins]\n", &format!("[limits.logins]\non_failure = \"{policy}\"\n"));
        let gateway = Gateway::start(&toml);
        let ask = || gateway.client().get_with("/", "x-user: alice\r\n").status;
        assert_eq!([ask(), ask(), ask()], statuses, "{policy}");
    }
}

/// Braces, for example, would put the keys of a limiter on several slots.
#[test]
fn values_that_no_name_can_have_are_missing() {
    let long = "x".repeat(257);
    let bad = ["", "a%7Bb", "%7D", "a%0Ab", "%7F", &long];
    for (missing, statuses, names) in [
        ("deny", [429; 6], ""),
        ("skip", [204; 6], ""),
        ("ip", [204, 429, 429, 429, 429, 429], "ip\t127.0.0.1"),
    ] {
        let redis = Redis::start();
        let key = format!("key = \"query:user\"\nmissing = \"{missing}\"");
        let gateway = Gateway::start(&toml(&redis, "1/h").replace("key = \"header:x-user\"", &key));
        let ask = |user: &str| gateway.get(&format!("/?user={user}"));
        assert_eq!(bad.map(|user| ask(user).status), statuses, "{missing}");
        assert_eq!(ask("a%7Bb").status, *statuses.last().unwrap());
        let counted =
            redis.keys("it?1?:*").iter().map(|name| name["it[1]:".len()..].to_owned()).collect::<Vec<_>>();
        assert_eq!(counted.concat(), names, "{missing}");
        // A user of that name is somebody else.
        assert_eq!(ask("127.0.0.1").status, 204, "{missing}");
        if missing == "deny" {
            assert_eq!(ask("a%7Bb").json()["code"], "key-missing");
        }
        assert_eq!([ask(&long[1..]).status, ask(&long[1..]).status], [204, 429]);
    }
}

#[test]
fn a_request_waits_as_the_rate_of_redis_says() {
    let redis = Redis::start();
    set_rate(&redis, "alice", "2", "1000");
    let gateway = Gateway::start(&toml(&redis, "9/h").replace("rate =", "wait = \"20s\"\nrate ="));
    let since = Instant::now();
    let ask = || gateway.client().get_with("/", "x-user: alice\r\n").status;
    assert_eq!([ask(), ask(), ask()], [204; 3]);
    assert!(since.elapsed() >= Duration::from_millis(995));
}

/// Returns the first state of the limits that the dashboard gets.
fn dashboard(admin: &str) -> String {
    let mut client =
        Client::connect(admin.trim_start_matches("http://").trim_end_matches('/').parse().unwrap());
    client.send(b"GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n");
    assert_eq!(client.head().status, 200);
    let mut lines = client.into_reader().lines().map(Result::unwrap);
    lines.find(|line| line.contains("file_rate")).expect("the stream goes on")
}

#[test]
fn check_tells_which_rates_of_redis_win() {
    let redis = Redis::start();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("gateway.toml");
    let check = || {
        fs::write(&file, toml(&redis, "5/min")).unwrap();
        tollgate(&["check", "--connect", file.to_str().unwrap()])
    };
    assert!(check().contains("limit `logins`, shared with Redisson: ok\n"));
    set_rate(&redis, "alice", "5", "60000");
    // The name isn't a pattern.
    redis.command(&["HSET", "it1:carol", "rate", "9", "interval", "60000", "type", "0"]);
    assert!(check().contains("limit `logins`, shared with Redisson: ok\n"));
    set_rate(&redis, "bob", "3", "30000");
    let told = check();
    assert!(
        told.contains(
            "limit `logins`, shared with Redisson: Redis has the rate 3/30s for `it[1]:bob`, and others for 0 more keys. It wins \
             over 5/min in the file: write rate = \"3/30s\", or change Redis with `tollgate limits set logins KEY 5/min`"
        ),
        "{told}"
    );
}

#[test]
fn a_partner_whose_clock_is_ahead_is_told_of_once_a_minute() {
    let redis = Redis::start();
    let gateway = Gateway::start(&toml(&redis, "5/min"));
    let ask = || gateway.client().get_with("/", "x-user: alice\r\n").status;
    assert_eq!(ask(), 204);
    let now: u64 = redis.command(&["TIME"]).lines().next().unwrap().parse().unwrap();
    // A little ahead is no fault: clocks differ.
    redis.command(&["ZADD", "{it[1]:alice}:permits", &format!("{}", now * 1_000 + 20_000), &member('a')]);
    assert_eq!(ask(), 204);
    gateway.assert_not_logged("ahead");
    redis.command(&["ZADD", "{it[1]:alice}:permits", &format!("{}", now * 1_000 + 7_200_000), &member('b')]);
    for _ in 0..5 {
        ask();
    }
    wait_until("it is logged", || gateway.log().contains("ms ahead of its clock"));
    let log = gateway.log();
    assert_eq!(log.matches("ms ahead of its clock").count(), 1, "{log}");
    let (before, _) = log.split_once(" ms ahead").unwrap();
    let ahead_ms: u64 = before.rsplit(' ').next().unwrap().parse().unwrap();
    assert!((7_100_000..=7_200_000).contains(&ahead_ms), "{ahead_ms}");
    assert!(log.contains("set the clock of the Java services by NTP") && !log.contains("alice"), "{log}");
}

/// Returns a member with one permit, as text.
fn member(fill: char) -> String {
    // The number is little-endian, and its zeros can't stand in an argument: 0x01010101 permits.
    format!("\u{10}{}\u{1}\u{1}\u{1}\u{1}", String::from(fill).repeat(16))
}

fn script() -> Script {
    let mut script = Script::with_stepped_clock();
    at(&mut script, 1_000_000);
    script
}

fn value(script: &mut Script) -> i64 {
    script.command(&["GET", "{a}:value"]).integer()
}

#[test]
fn grants_ahead_of_the_clock_count_until_their_interval_ends() {
    let mut script = script();
    let one = charge("a", "2/s", 1);
    assert!(take(&mut script, &one).0);
    plant(&mut script, "a", 1_005_000, 1);
    assert_eq!(take(&mut script, &one), (false, Some(1_000)));
    at(&mut script, 1_001_000);
    assert!(take(&mut script, &one).0);
    at(&mut script, 1_005_999);
    assert_eq!(take_many(&mut script, &one, 9), 1);
    at(&mut script, 1_006_999);
    assert_eq!(take_many(&mut script, &one, 9), 2);
}

/// Released permits can be taken although their grants still count. No call takes that back.
#[test]
fn a_value_that_was_released_to_is_never_lowered() {
    let mut script = script();
    let one = charge("a", "9/s", 1);
    assert_eq!(take_many(&mut script, &one, 6), 6);
    release(&mut script, "a", 5);
    // 8 are left, and 6 grants count.
    assert_eq!(value(&mut script), 8);
    assert_eq!(peek(&mut script, &one).used, 1);
    at(&mut script, 1_000_500);
    assert!(take(&mut script, &one).0);
    assert_eq!(value(&mut script), 7);
    // Six grants end. The one that still counts keeps its permit, and none of the others is lost.
    at(&mut script, 1_001_000);
    assert!(take(&mut script, &one).0);
    assert_eq!(value(&mut script), 7);
    at(&mut script, 1_002_000);
    assert_eq!(peek(&mut script, &one).used, 0);
}

/// Neither a grant nor a release leaves more than the rate. So more is the remainder of a higher rate, and isn't granted.
#[test]
fn a_value_above_the_rate_is_worth_the_rate() {
    let mut script = script();
    let one = charge("a", "9/s", 1);
    assert!(take(&mut script, &one).0);
    assert_eq!(value(&mut script), 8);
    // As Java's trySetRate does where the configuration alone has expired.
    script.command(&["DEL", "a"]);
    change(&mut script, "a", &["set-if-absent", "5", "1000", "0", "0"]);
    assert_eq!(peek(&mut script, &one).used, 0);
    assert_eq!(value(&mut script), 8, "a look changes nothing");
    assert_eq!(take_many(&mut script, &one, 9), 5);
    assert_eq!(value(&mut script), 0);
}
