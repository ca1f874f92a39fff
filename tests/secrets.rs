//! Secrets in files of their own, tokens that a reload replaces, and two gateways on one address.

use std::fs;

use crate::{
    check::{run, text},
    harness::{
        gateway::Gateway,
        redis::{Redis, free_port},
        wait_until,
    },
};

const ROUTE: &str = "[[routes]]\npath = \"/\"\nrespond = { status = 200 }\n";

#[test]
fn a_secret_comes_from_a_file_and_is_not_shown() {
    let redis = Redis::start();
    redis.command(&["ACL", "SETUSER", "shop", "on", ">hunter2-of-redis", "~*", "&*", "+@all"]);
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("password"), "hunter2-of-redis\n").unwrap();
    let url = redis.url().replace("redis://", "redis://shop:${file:password}@");
    let port = free_port();
    let toml = format!(
        "[server]\nlisten = \"127.0.0.1:{port}\"\n[store]\nurl = \"{url}\"\ntimeout = \"5s\"\n{ROUTE}"
    );
    fs::write(folder.path().join("gateway.toml"), &toml).unwrap();
    let checked = run(folder.path(), &["check", "--connect", "gateway.toml"]);
    assert_eq!(checked.status.code(), Some(0), "{}", text(&checked.stderr));
    assert!(!text(&checked.stdout).contains("hunter2"), "{}", text(&checked.stdout));
    fs::remove_file(folder.path().join("password")).unwrap();
    let missing = run(folder.path(), &["check", "gateway.toml"]);
    assert_eq!(missing.status.code(), Some(2));
    assert!(text(&missing.stderr).contains("can't use the file `password`"), "{}", text(&missing.stderr));
}

#[test]
fn a_changed_token_file_replaces_the_token_without_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let [token, of_metrics] = ["token", "metrics"].map(|name| folder.path().join(name));
    fs::write(&token, "first-horse-battery\n").unwrap();
    fs::write(&of_metrics, "first-metrics-horse\n").unwrap();
    let port = free_port();
    let gateway = Gateway::start(&format!(
        "[admin]\nlisten = \"127.0.0.1:{port}\"\ntoken = \"${{file:{}}}\"\nmetrics_token = \"${{file:{}}}\"\n{ROUTE}",
        token.display(),
        of_metrics.display()
    ));
    let ask = |path: &str, token: &str| {
        let mut client = crate::harness::client::Client::connect(([127, 0, 0, 1], port).into());
        client.ask(&format!("GET {path}\nauthorization: Bearer {token}")).status
    };
    let status = |token: &str| ask("/api/routes", token);
    assert_eq!(ask("/metrics", "first-metrics-horse"), 200);
    fs::write(&of_metrics, "other-metrics-horse\n").unwrap();
    wait_until("the gateway has read the other token", || ask("/metrics", "other-metrics-horse") == 200);
    assert_eq!(ask("/metrics", "first-metrics-horse"), 401);
    assert_eq!((status("first-horse-battery"), status("other-horse-battery")), (200, 401));
    fs::write(&token, "other-horse-battery\n").unwrap();
    wait_until("the gateway has read the token", || status("other-horse-battery") == 200);
    assert_eq!(status("first-horse-battery"), 401);
    // With another address, which needs a restart, the token stays, since the file may need none there.
    gateway.reload(&format!("[admin]\nlisten = \"127.0.0.1:{}\"\n{ROUTE}", free_port()));
    assert_eq!((status("other-horse-battery"), status("")), (200, 401));
    let log = gateway.log();
    assert!(log.contains("`admin.token` changed") && !log.contains("horse"), "{log}");
}

#[test]
fn two_gateways_listen_on_one_address_with_reuse_port() {
    let port = free_port();
    let toml = |status: u16, more: &str| {
        format!(
            "[server]\nlisten = \"127.0.0.1:{port}\"\n{more}\n[[routes]]\npath = \"/\"\nrespond = {{ status = {status} }}\n"
        )
    };
    let one = Gateway::start_with(&toml(201, "reuse_port = true"), &["run"], &[]);
    let other = Gateway::start_with(&toml(202, "reuse_port = true"), &["run"], &[]);
    let mut seen = [false; 2];
    wait_until("both get connections", || {
        seen[usize::from(one.get("/").status - 201)] = true;
        seen == [true; 2]
    });
    drop(one);
    for _ in 0..50 {
        assert_eq!(other.get("/").status, 202);
    }
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("gateway.toml"), toml(203, "")).unwrap();
    let refused = run(folder.path(), &["run"]);
    assert_eq!(refused.status.code(), Some(1));
    assert!(text(&refused.stderr).contains("Address already in use"), "{}", text(&refused.stderr));
}
