//! A single server: by a socket, with TLS, as a user with few rights, and without access.

use std::sync::Arc;

use tollgate_limiter::{Ask, Limit, Limiter, Rate, StoreSettings, store::script::SOURCE};

use crate::{
    harness::{
        PATIENCE,
        gateway::Gateway,
        redis::{Redis, tls::Certificates},
        wait_until,
    },
    topology::{ask, assert_five_pass, by_key, start_with_store},
};

/// What docs/configuration.md says that a user needs.
pub(crate) const RIGHTS: &str = "resetchannels &tollgate:* ~tollgate:* -@all +ping +evalsha +eval +publish +subscribe +time +get +set +zadd \
     +zcard +zcount +zrange +zrem +zremrangebyrank +pttl +pexpire +unlink +hget +hgetall +hset +hdel +hlen +hrandfield +info";

/// The rights that limits with `layout = "redisson"` need beside these, for a limiter with the name `logins:…`.
const REDISSON_RIGHTS: &str = "~logins:* ~{logins:*}:* +hmget +hsetnx +incrby +exists";

#[test]
fn a_limit_holds_over_a_unix_socket_in_the_database_of_the_url() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("redis.sock");
    let socket = socket.to_str().unwrap();
    let redis = Redis::start_with(&["--unixsocket", socket]);
    let gateway = Gateway::start(&by_key(&format!("url = \"redis+unix://{socket}?db=3\"")));
    assert_five_pass(&[&gateway], "a");
    assert_eq!(redis.command(&["-n", "3", "KEYS", "*"]), "tollgate:per-key:sw:{header:x-key=a}");
}

#[test]
fn a_limit_holds_over_tls_and_with_a_certificate_of_the_gateways_own() {
    let files = Certificates::for_server(&["127.0.0.1"]);
    let (_redis, port) = files.start("yes", &[]);
    let ([ca, cert], key) = (["ca.pem", "client.pem"].map(|name| files.path(name)), files.path("client.key"));
    let gateway = start_with_store(&by_key(&format!(
        "url = \"rediss://127.0.0.1:{port}\"\ntls = {{ ca = {ca:?}, cert = {cert:?}, key = {key:?} }}"
    )));
    assert_five_pass(&[&gateway], "a");
}

#[test]
fn the_name_in_the_certificate_may_be_another_one_than_the_host() {
    let files = Certificates::for_server(&["redis.internal"]);
    let (_redis, port) = files.start("no", &[]);
    let ca = files.path("ca.pem");
    let gateway = start_with_store(&by_key(&format!(
        "url = \"rediss://127.0.0.1:{port}\"\ntls = {{ ca = {ca:?}, server_name = \"redis.internal\" }}"
    )));
    assert_five_pass(&[&gateway], "a");
}

#[test]
fn a_limit_holds_for_a_user_with_only_the_documented_rights() {
    let compact = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    let has = |document: &str, rights| compact(document).contains(&compact(rights));
    assert!(
        has(include_str!("../../docs/configuration.md"), RIGHTS),
        "docs/configuration.md has other rights"
    );
    assert!(
        has(include_str!("../../docs/redisson.md"), REDISSON_RIGHTS),
        "docs/redisson.md has other rights"
    );
    let rights: Vec<&str> = RIGHTS.split_whitespace().chain(REDISSON_RIGHTS.split_whitespace()).collect();
    let others = [
        include_str!("../../lua/overrides.lua"),
        include_str!("../../lua/redisson_rate.lua"),
        include_str!("../../lua/instances.lua"),
    ];
    let scripts = [SOURCE, &others.concat()].concat();
    for call in scripts.split("call('").skip(1).map(|rest| rest.split('\'').next().unwrap()) {
        let right = format!("+{}", call.to_ascii_lowercase());
        // Only programs let a limiter stay, so a gateway needs no right to it.
        let is_of_programs =
            call == "PERSIST" && include_str!("../../docs/redisson.md").contains("needs `+persist`, too");
        assert!(is_of_programs || rights.contains(&right.as_str()), "the script calls {call}");
    }
    let shared = "layout = \"redisson\"\nredisson_name = \"logins:{key}\"\nrate";
    for (count, word) in [(RIGHTS.split_whitespace().count(), "rate"), (rights.len(), shared)] {
        let redis = Redis::start();
        redis.command(&[&["ACL", "SETUSER", "gateway", "on", ">hunter2"], &rights[..count]].concat());
        redis.command(&["ACL", "SETUSER", "default", "off"]);
        let store = format!("url = \"redis://gateway:hunter2@127.0.0.1:{}\"", redis.port());
        let gateway = Gateway::start(&by_key(&store).replacen("rate", word, 1));
        assert_five_pass(&[&gateway], "a");
        gateway.assert_not_logged("the store");
    }
}

#[test]
fn what_keeps_a_gateway_from_the_store_is_told_once_while_the_policy_serves() {
    let files = Certificates::for_server(&["127.0.0.1"]);
    let strangers = Certificates::for_server(&["127.0.0.1"]);
    let (redis, tls) = files.start("no", &[]);
    let plain = redis.port();
    redis.command(&["ACL", "SETUSER", "poor", "on", ">s3cret", "+ping"]);
    let (ca, wrong_ca) = (files.path("ca.pem"), strangers.path("ca.pem"));
    let cases = [
        (format!("url = \"redis://poor:wrong@127.0.0.1:{plain}\""), "WRONGPASS"),
        (format!("url = \"redis://poor:s3cret@127.0.0.1:{plain}\""), "NOPERM"),
        (format!("url = \"rediss://127.0.0.1:{tls}\"\ntls = {{ ca = {wrong_ca:?} }}"), "InvalidCertificate"),
        (
            format!("url = \"rediss://127.0.0.1:{tls}\"\ntls = {{ ca = {ca:?}, server_name = \"other\" }}"),
            "NotValidForName",
        ),
        (format!("url = \"rediss://127.0.0.1:{plain}\"\ntls = {{ ca = {ca:?} }}"), "Timeout Error"),
        (format!("url = \"redis://127.0.0.1:{tls}\""), "IO Error"),
    ];
    for (store, cause) in cases {
        let attempts = || redis.info("total_connections_received").parse::<u64>().unwrap();
        let gateway = Gateway::start(&by_key(&store));
        let before = attempts();
        wait_until(&format!("`{cause}` is told"), || {
            assert_eq!(ask(&gateway, "a"), 503);
            gateway.log().contains(cause)
        });
        if cause != "NOPERM" {
            wait_until("it was tried often", || attempts() > before + 8);
        }
        for _ in 0..20 {
            assert_eq!(ask(&gateway, "a"), 503);
        }
        let log = gateway.log();
        let lines: Vec<_> = log.lines().filter(|line| line.contains(cause)).collect();
        assert!(lines.iter().all(|line| !line.contains("s3cret")), "{log}");
        let told = lines.iter().map(|line| line.split_once("WARN").unwrap().1);
        let different = told.clone().collect::<std::collections::HashSet<_>>();
        assert_eq!(told.count(), different.len(), "{log}");
        assert!(different.len() <= 2, "{log}");
    }
}

#[test]
fn a_server_that_may_evict_counts_is_told_of_once_it_is_there() {
    let evicts = ["--maxmemory", "100mb", "--maxmemory-policy", "volatile-lru"];
    let told = "it may evict counts, which then start again at 0, by `volatile-lru` (set its maxmemory-policy to noeviction)";
    let start = |redis: &Redis| Gateway::start(&by_key(&format!("url = \"{}\"", redis.url())));

    let mut redis = Redis::start_with(&evicts);
    let gateway = start(&redis);
    assert_five_pass(&[&gateway], "a");
    wait_until("it is told", || gateway.log().contains(told));
    assert_eq!(gateway.log().matches(told).count(), 1, "{}", gateway.log());
    redis.kill();
    let gateway = start(&redis);
    assert_eq!(ask(&gateway, "b"), 503);
    redis.restart();
    wait_until("it is told", || gateway.log().matches(told).count() == 1);

    for (arguments, right) in [(&evicts[..2], "+info"), (&evicts[2..], "+info"), (&evicts[..], "-info")] {
        let redis = Redis::start_with(arguments);
        redis.command(&["ACL", "SETUSER", "default", right]);
        let gateway = start(&redis);
        assert_five_pass(&[&gateway], "a");
        gateway.assert_not_logged("evict");
    }
}

#[test]
fn a_server_that_stands_still_while_it_frees_large_counts_is_told_of() {
    let told = "may hold up decisions when a large count expires (set lazyfree-lazy-expire to yes)";
    for (lazy, right, lines) in [("no", "+config", 1), ("yes", "+config", 0), ("no", "-config", 0)] {
        let redis = Redis::start_with(&["--lazyfree-lazy-expire", lazy]);
        redis.command(&["ACL", "SETUSER", "default", right]);
        let gateway = Gateway::start(&by_key(&format!("url = \"{}\"", redis.url())));
        assert_five_pass(&[&gateway], "a");
        if lines > 0 {
            wait_until("it is told", || gateway.log().contains(told));
        }
        assert_eq!(gateway.log().matches(told).count(), lines, "{lazy}, {right}: {}", gateway.log());
    }
}

#[test]
fn a_key_is_reset_also_where_others_cannot_be_told() {
    let redis = Redis::start();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let store = StoreSettings::at(&redis.url()).unwrap();
    let store = StoreSettings { timeout: PATIENCE, ..store };
    runtime.block_on(async {
        let limiter = Limiter::open(&store).unwrap();
        limiter.warm_up().await.unwrap();
        let limit = Arc::new(Limit::new("l", "1/h".parse::<Rate>().unwrap()));
        let asks = [Ask::new(&limit, "alice")];
        limiter.try_acquire(&asks).await.unwrap();
        limiter.try_acquire(&asks).await.unwrap_err();
        redis.command(&["ACL", "SETUSER", "default", "-publish"]);
        limiter.reset(&asks[0]).await.unwrap();
        limiter.try_acquire(&asks).await.unwrap();
    });
}
