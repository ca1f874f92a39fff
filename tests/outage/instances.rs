//! Gateways that count each other, and what each admits while the store is down.

use crate::harness::{
    gateway::Gateway,
    metrics::Metrics,
    redis::{Redis, cluster::Cluster},
    wait_until,
};

const PERMITS: usize = 12;

fn start(url: &str) -> Gateway {
    Gateway::start(&toml(url))
}

fn toml(url: &str) -> String {
    format!(
        "[store]\nurl = \"{url}\"\ninstances = \"auto\"\n[server]\nworkers = 2\n[admin]\nlisten = \"127.0.0.1:0\"\n\
         [limits.l]\nkey = \"global\"\nrate = \"{PERMITS}/h\"\n\
         [limits.allowed]\nkey = \"global\"\nrate = \"1/h\"\non_failure = \"allow\"\n\
         [[routes]]\npath = \"/\"\nrespond = {{ status = 200 }}\nlimits = [\"l\"]\n\
         [[routes]]\npath = \"/allowed\"\nrespond = {{ status = 200 }}\nlimits = [\"allowed\"]\n"
    )
}

/// Returns the number of gateways that this one knows, itself included.
fn known(gateway: &Gateway) -> f64 {
    let (_, admin) = gateway.greeting().split_once("dashboard: http://").unwrap();
    Metrics::scrape(admin.lines().next().unwrap()).of("tollgate_instances")
}

/// Asserts how many requests the gateway admits by itself while the store is down.
fn assert_admits(gateway: &Gateway, share: usize) {
    let statuses: Vec<u16> = (0..PERMITS).map(|_| gateway.get("/").status).collect();
    let expected: Vec<u16> = (0..PERMITS).map(|at| if at < share { 200 } else { 429 }).collect();
    assert_eq!(statuses, expected, "{}", gateway.log());
}

#[test]
fn gateways_count_each_other_and_share_the_limits_while_redis_is_down() {
    let mut redis = Redis::start();
    let [one, other, third] = [(); 3].map(|()| start(&redis.url()));
    wait_until("all are counted", || [&one, &other, &third].iter().all(|gateway| known(gateway) == 3.0));
    drop(third);
    wait_until("the one that has ended isn't counted", || known(&one) == 2.0 && known(&other) == 2.0);
    redis.kill();
    assert_admits(&one, PERMITS / 2);
    assert_admits(&other, PERMITS / 2);
    assert_eq!((known(&one), known(&other)), (2.0, 2.0));
}

#[test]
fn a_gateway_that_has_not_reached_the_store_yet_rejects_what_it_would_count() {
    let mut redis = Redis::away();
    let gateway = start(&redis.url());
    let answer = gateway.get("/");
    assert_eq!((answer.status, answer.header("retry-after")), (503, Some("1")), "{}", gateway.log());
    assert_eq!((gateway.get("/allowed").status, known(&gateway)), (200, 0.0));
    gateway.wait_for_log("haven't been counted (store.instances = \"auto\")");
    redis.restart();
    wait_until("it has counted itself", || known(&gateway) == 1.0);
    redis.kill();
    assert_admits(&gateway, PERMITS);
}

#[test]
fn gateways_on_a_cluster_count_each_other() {
    let mut cluster = Cluster::start();
    let [one, other, third] = [(); 3].map(|()| start(&cluster.url()));
    wait_until("all are counted", || [&one, &other, &third].iter().all(|gateway| known(gateway) == 3.0));
    drop(third);
    wait_until("the one that has ended isn't counted", || known(&one) == 2.0 && known(&other) == 2.0);
    cluster.nodes.iter_mut().for_each(Redis::kill);
    assert_admits(&one, PERMITS / 2);
    assert_admits(&other, PERMITS / 2);
}

#[test]
fn a_server_that_refuses_to_count_gateways_is_quoted_in_the_log_once() {
    let redis = Redis::start();
    // All keys but `tollgate:instances`.
    redis.command(&["ACL", "SETUSER", "default", "resetkeys", "~tollgate:[^i]*"]);
    let toml = toml(&redis.url());
    let arguments = ["run", "--listen", "127.0.0.1:0"];
    let gateway = Gateway::start_with(&toml, &arguments, &[("TOLLGATE_LOG", "debug")]);
    let attempts = || gateway.log().matches("can't be counted: the store answered with an error").count();
    wait_until("it is tried several times", || attempts() >= 3);
    let log = gateway.log();
    let lines: Vec<_> =
        log.lines().filter(|line| line.contains("can't be counted: it says `NOPERM")).collect();
    assert!(matches!(lines[..], [line] if line.contains("WARN") && line.contains("rights")), "{log}");
    assert_eq!(gateway.get("/").status, 200, "{log}");
}
