//! Servers that reply with errors: each limit's failure policy applies, until the store can decide again.

use std::{
    fs,
    process::Command,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use tollgate_limiter::{Ask, BlockingLimiter, Limit, OnFailure, Rate, Refusal};

use crate::{
    harness::{
        cut::Cut,
        gateway::Gateway,
        load::{Answered, Load, most_within},
        redis::{Redis, tls::Certificates},
        wait_until,
    },
    outage::{asks_store, assert_policies_hold, await_store, one_limit, policies, policies_after},
};

/// Asserts what a gateway does while its server refuses, from `begin` to `end`: the policies hold, what the server
/// says is told once, nothing has been charged, and the first request after it is decided by the store.
fn assert_refusals_are_met(
    redis: &mut Redis,
    told: &[&str],
    begin: impl FnOnce(&mut Redis),
    end: impl FnOnce(&mut Redis),
) {
    let gateway = Gateway::start(&policies_after(&redis.url(), "5s"));
    await_store(&gateway);
    redis.command(&["FLUSHALL"]);
    begin(redis);
    assert_policies_hold(&gateway);
    wait_until("it is told", || gateway.log().contains(told[0]));
    let log = gateway.log();
    let lines: Vec<_> = log.lines().filter(|line| line.contains(told[0])).collect();
    assert_eq!(lines.len(), 1, "{log}");
    assert!(told.iter().all(|words| lines[0].contains(words)), "{told:?}: {log}");
    assert!(!log.contains("the store fails"), "{log}");
    end(redis);
    assert_eq!(redis.keys("tollgate:*"), [""; 0], "{told:?}");
    assert!(asks_store(&gateway), "{told:?}: {}", gateway.log());
}

#[test]
fn refusals_of_a_server_are_met_by_policy_and_only_as_long_as_they_last() {
    let cases: [(&[&str], &[&str], &[&str]); 6] = [
        (
            &["CONFIG", "SET", "maxmemory", "1"],
            &["CONFIG", "SET", "maxmemory", "0"],
            &["OOM", "raise its maxmemory"],
        ),
        (
            &["REPLICAOF", "127.0.0.1", "1"],
            &["REPLICAOF", "NO", "ONE"],
            &["READONLY", "the primary's address"],
        ),
        (
            &["ACL", "SETUSER", "default", "-evalsha"],
            &["ACL", "SETUSER", "default", "+evalsha"],
            &["NOPERM", "the rights that docs/configuration.md"],
        ),
        (
            &["ACL", "SETUSER", "default", "-zadd"],
            &["ACL", "SETUSER", "default", "+zadd"],
            &["can't run this command", "the rights that docs/configuration.md"],
        ),
        (&["ACL", "SETUSER", "default", "resetkeys"], &["ACL", "SETUSER", "default", "~*"], &["NOPERM"]),
        (
            &["CONFIG", "SET", "min-replicas-to-write", "1"],
            &["CONFIG", "SET", "min-replicas-to-write", "0"],
            &["NOREPLICAS"],
        ),
    ];
    for (begin, end, told) in cases {
        let run = |words: &'static [&str]| move |redis: &mut Redis| drop(redis.command(words));
        assert_refusals_are_met(&mut Redis::start(), told, run(begin), run(end));
    }
}

#[test]
fn a_server_that_cannot_save_is_met_by_policy() {
    let mut redis = Redis::start_with(&["--enable-protected-configs", "yes"]);
    let folder = redis.folder().join("gone");
    let fail_to_save = |redis: &mut Redis| {
        fs::create_dir(&folder).unwrap();
        redis.command(&["CONFIG", "SET", "dir", folder.to_str().unwrap()]);
        redis.command(&["CONFIG", "SET", "save", "3600 1"]);
        fs::remove_dir(&folder).unwrap();
        redis.command(&["BGSAVE"]);
        wait_until("it has failed to save", || redis.info("rdb_last_bgsave_status") == "err");
    };
    let save = |redis: &mut Redis| {
        fs::create_dir(&folder).unwrap();
        redis.command(&["CONFIG", "SET", "dir", folder.to_str().unwrap()]);
        redis.command(&["SAVE"]);
    };
    assert_refusals_are_met(&mut redis, &["MISCONF"], fail_to_save, save);
}

#[test]
fn a_replica_without_its_primary_is_met_by_policy() {
    let mut redis = Redis::start_with(&["--replica-serve-stale-data", "no"]);
    let demote = |redis: &mut Redis| drop(redis.command(&["REPLICAOF", "127.0.0.1", "1"]));
    let promote = |redis: &mut Redis| drop(redis.command(&["REPLICAOF", "NO", "ONE"]));
    assert_refusals_are_met(&mut redis, &["MASTERDOWN"], demote, promote);
}

#[test]
fn a_server_that_is_busy_with_a_script_is_met_by_policy() {
    let mut redis = Redis::start_with(&["--busy-reply-threshold", "10"]);
    let port = redis.port().to_string();
    let occupy = |redis: &mut Redis| {
        thread::spawn(move || {
            Command::new("redis-cli").args(["-p", &port, "EVAL", "while true do end", "0"]).output()
        });
        wait_until("it is busy", || redis.try_command(&["PING"]).starts_with("BUSY"));
    };
    let release = |redis: &mut Redis| {
        redis.command(&["SCRIPT", "KILL"]);
        wait_until("it is free", || redis.try_command(&["PING"]) == "PONG");
    };
    assert_refusals_are_met(&mut redis, &["BUSY"], occupy, release);
}

/// A refusal doesn't open a new connection, and connections aren't broken under other calls.
#[test]
fn a_demoted_primary_is_not_stormed_under_load() {
    let redis = Redis::start();
    let gateway = one_limit(&redis.store(), "key = \"global\"\nrate = \"1000000/h\"\non_failure = \"allow\"");
    let load = Load::start(&gateway, 8, || "/".to_owned());
    load.wait_for(100);
    redis.command(&["REPLICAOF", "127.0.0.1", "1"]);
    let connections = || redis.info("total_connections_received").parse::<u64>().unwrap();
    let (since, before) = (Instant::now(), connections());
    load.wait_for(3_000);
    let made = connections() - before;
    // Each of the two workers looks for another primary once a second.
    let most = 20 + 2 * since.elapsed().as_secs();
    assert!(made < most, "{made} connections were made, of at most {most}");
    gateway.assert_not_logged("the store fails");
    load.end();
}

/// As behind a virtual address or a name, which open connections don't follow.
#[test]
fn a_demoted_primary_is_left_for_the_one_that_its_address_leads_to() {
    let (one, other) = (Redis::start(), Redis::start());
    other.command(&["REPLICAOF", "127.0.0.1", &one.port().to_string()]);
    wait_until("the replica follows", || other.info("master_link_status") == "up");
    let address = Cut::before(one.port());
    let gateway = Gateway::start(&policies(&address.url()));
    for _ in 0..5 {
        await_store(&gateway);
    }
    let counted =
        |redis: &Redis| redis.command(&["ZCARD", "tollgate:told:sw:{global=}"]).parse::<u64>().unwrap();
    wait_until("the count is copied", || counted(&other) == counted(&one));
    address.lead_to(other.port());
    other.command(&["REPLICAOF", "NO", "ONE"]);
    one.command(&["REPLICAOF", "127.0.0.1", &other.port().to_string()]);
    let before = counted(&other);
    assert!(before >= 5, "{before}");
    let asked = await_store(&gateway);
    let charged = counted(&other) - before;
    assert!((1..=asked).contains(&charged), "{charged} of {asked}");
}

#[test]
fn a_server_that_holds_its_answers_back_is_left_alone_and_used_again() {
    for what in ["ALL", "WRITE"] {
        let redis = Redis::start();
        let gateway = Gateway::start(&policies(&redis.url()));
        await_store(&gateway);
        redis.command(&["CLIENT", "PAUSE", "2000", what]);
        assert_policies_hold(&gateway);
        await_store(&gateway);
        wait_until("it is told", || gateway.log().contains("the store answers again"));
        let log = gateway.log();
        assert_eq!(log.matches("the store fails").count(), 1, "{what}: {log}");
    }
}

#[test]
fn a_server_that_is_loading_is_waited_for() {
    // It would load for 20 s, and does until the gateway has seen it loading.
    let per_key = ["--key-load-delay", "50000", "--loading-process-events-interval-bytes", "1024"];
    let mut redis = Redis::start_with(&per_key);
    let gateway = Gateway::start(&policies(&redis.url()));
    let asked_before = await_store(&gateway);
    redis.command(&["EVAL", "for i = 1, 400 do redis.call('SET', i, ('x'):rep(100)) end", "0"]);
    redis.command(&["SAVE"]);
    redis.kill();
    redis.restart_loading();
    assert_policies_hold(&gateway);
    wait_until("it is told", || gateway.log().contains("LOADING"));
    redis.command(&["CONFIG", "SET", "key-load-delay", "0"]);
    // What was saved counts on.
    let asked = asked_before + await_store(&gateway);
    let charged = redis.command(&["ZCARD", "tollgate:told:sw:{global=}"]).parse().unwrap();
    assert!((2..=asked).contains(&charged), "{charged} of {asked}");
}

#[test]
fn a_password_that_is_changed_is_an_outage_only_once_connections_break() {
    let redis = Redis::start();
    let gateway =
        Gateway::start(&policies_after(&redis.url().replace("redis://", "redis://:old-s3cret@"), "5s"));
    await_store(&gateway);
    redis.command(&["CONFIG", "SET", "requirepass", "new-s3cret"]);
    assert!(asks_store(&gateway), "{}", gateway.log());
    redis.command(&["-a", "new-s3cret", "CLIENT", "KILL", "TYPE", "normal"]);
    wait_until("it is told", || gateway.log().contains("WRONGPASS"));
    assert_policies_hold(&gateway);
    let log = gateway.log();
    assert!(log.contains("mend the user or the password in `store.url`"), "{log}");
    assert!(!log.contains("s3cret"), "{log}");
    redis.command(&["-a", "new-s3cret", "CONFIG", "SET", "requirepass", "old-s3cret"]);
    await_store(&gateway);
}

#[test]
fn a_certificate_that_expires_is_told_and_met_by_policy_until_it_is_renewed() {
    let files = Certificates::for_server(&["127.0.0.1"]);
    let (redis, port) = files.start("no", &[]);
    let ca = files.path("ca.pem");
    let toml = policies_after(&format!("rediss://127.0.0.1:{port}"), "200ms");
    let gateway = Gateway::start(&toml.replace("[store]\n", &format!("[store]\ntls = {{ ca = {ca:?} }}\n")));
    await_store(&gateway);
    let use_certificate = |name: &str| {
        let path = |end: &str| files.path(&format!("{name}.{end}")).to_str().unwrap().to_owned();
        redis.command(&["CONFIG", "SET", "tls-cert-file", &path("pem"), "tls-key-file", &path("key")]);
        redis.command(&["CLIENT", "KILL", "TYPE", "normal"]);
    };
    use_certificate("expired");
    wait_until("it is told", || gateway.log().contains("renew its certificate"));
    assert_policies_hold(&gateway);
    assert_eq!(gateway.log().matches("renew its certificate").count(), 1, "{}", gateway.log());
    use_certificate("server");
    await_store(&gateway);
}

/// The script is forgotten over and over: not one request is refused for it, none is charged twice.
#[test]
fn a_script_that_is_forgotten_under_load_is_sent_again_and_counts_once() {
    let redis = Redis::start();
    let gateway = one_limit(&redis.store(), "key = \"global\"\nrate = \"2000/h\"\non_failure = \"deny\"");
    let load = Load::start(&gateway, 8, || "/".to_owned());
    let mut connection = redis.connect();
    let mut flushes = 0;
    wait_until("all of the limit is used", || {
        connection.command(&["SCRIPT", "FLUSH"]);
        flushes += 1;
        load.answered() > 2_500
    });
    let answers = load.end();
    let count = |status| answers.iter().filter(|answer| answer.status == status).count();
    assert_eq!(count(200), 2_000, "{}", gateway.log());
    assert_eq!(count(200) + count(429), answers.len(), "{}", gateway.log());
    assert!(flushes > 20, "{flushes}");
}

/// The user of Redis loses the right to one command, over and over or for long, so that scripts end between two commands.
#[test]
fn no_window_exceeds_the_limit_where_rights_come_and_go() {
    const PERMITS: u32 = 40;
    const WINDOW: Duration = Duration::from_secs(1);
    thread::scope(|scope| {
        for (command, is_for_long) in [("zadd", false), ("zremrangebyrank", false), ("pexpire", true)] {
            scope.spawn(move || {
                let redis = Redis::start();
                let rate = Rate { permits: PERMITS, window_us: WINDOW.as_micros() as u64 };
                let limit = Arc::new(Limit::new("rights", rate).on_failure(OnFailure::Deny));
                let limiter = BlockingLimiter::connect(&redis.url()).unwrap();
                let (mut admitted, mut refused) = (Vec::new(), 0);
                for round in 0..120 {
                    let is_refused = if is_for_long { round > 0 } else { round % 4 == 3 };
                    let right = format!("{}{command}", if is_refused { '-' } else { '+' });
                    redis.command(&["ACL", "SETUSER", "default", &right]);
                    for _ in 0..5 {
                        let sent = Instant::now();
                        match limiter.try_acquire([Ask::new(&limit, "alice")]) {
                            Ok(_) => admitted.push(Answered { sent, received: Instant::now(), status: 200 }),
                            Err(Refusal::Limited(_)) => {}
                            Err(_) => refused += 1,
                        }
                        thread::sleep(Duration::from_millis(7));
                    }
                }
                // A bucket that began without PEXPIRE has no expiry.
                redis.command(&["FLUSHALL"]);
                assert!(refused > 0, "{command} isn't used");
                let most = most_within(&admitted, WINDOW);
                assert!(most <= PERMITS as usize, "{most} after {command} was refused");
            });
        }
    });
}
