//! What operators see of decisions for other proxies: the same as of proxied requests.

use std::fs;

use serde_json::Value;

use crate::{
    decisions::{
        Decider, THREE,
        rls::{self, Request},
    },
    harness::{metrics::Metrics, redis::Redis, wait_until},
};

fn described(client: &str) -> String {
    format!(
        "GET /check\nX-Forwarded-Method: PUT\nX-Forwarded-Uri: /api/a?b=c\nX-Forwarded-Host: shop.test\n\
         X-Forwarded-Proto: https\nX-Forwarded-For: {client}\nUser-Agent: a browser"
    )
}

#[test]
fn a_decision_is_counted_and_logged_as_its_request() {
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("access.log");
    let more = format!("[admin]\nlisten = \"127.0.0.1:0\"\n[access_log]\npath = {log:?}\n{THREE}");
    let decider = Decider::start("", &more.replace("path = \"/api", "name = \"api\"\npath = \"/api"));
    for expected in [200, 200, 200, 429] {
        assert_eq!(decider.ask(&described("203.0.113.5")).status, expected);
    }
    assert_eq!(decider.ask("GET /healthcheck").status, 200);
    let read = || fs::read_to_string(&log).unwrap_or_default();
    wait_until("four lines are written", || read().matches('\n').count() >= 4);
    let lines: Vec<Value> = read().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines.len(), 4, "probes aren't logged");
    for (line, status) in lines.iter().zip([200, 200, 200, 429]) {
        assert_eq!(
            (&line["status"], &line["method"], &line["route"]),
            (&status.into(), &"PUT".into(), &"api".into())
        );
        assert_eq!((&line["client"], &line["target"]), (&"203.0.113.5".into(), &"/api/a?b=*".into()));
        assert_eq!(line["user_agent"], "a browser");
        let decided = if status == 200 { "admitted" } else { "refused" };
        assert_eq!(
            (&line["limits"][0]["limit"], &line["limits"][0]["decision"]),
            (&"per-client".into(), &decided.into())
        );
    }
    let (_, admin) = decider.gateway.greeting().split_once("dashboard: http://").unwrap();
    let metrics = Metrics::scrape(admin.lines().next().unwrap());
    assert_eq!(metrics.of("tollgate_requests_total{route=\"api\",status=\"2xx\"}"), 3.0, "{}", metrics.text);
    assert_eq!(metrics.of("tollgate_requests_total{route=\"api\",status=\"4xx\"}"), 1.0);
}

/// gRPC tells its errors in trailers alone, or in the head.
#[test]
fn a_call_that_fails_is_not_logged_as_broken_off() {
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("access.log");
    let decider = Decider::start("", &format!("[access_log]\npath = {log:?}\n{THREE}"));
    let (code, _) = rls::ask(decider.address, &Request::new("", [])).unwrap_err();
    assert_eq!(code, 3);
    let read = || fs::read_to_string(&log).unwrap_or_default();
    wait_until("a line is written", || read().contains('\n'));
    assert!(!read().contains("broken_off"), "{}", read());
}

#[test]
fn proxied_requests_and_decisions_count_together() {
    let redis = Redis::start();
    let limits = THREE.replace("\"ip\"", "\"header:x-api-key\"");
    let [one, other] = [0, 1].map(|_| Decider::start("", &format!("{}{limits}", redis.store())));
    let proxied = |decider: &Decider| decider.gateway.ask("GET /api/a\nX-Api-Key: gold").status;
    let decided =
        |decider: &Decider| decider.ask("GET /check\nX-Forwarded-Uri: /api/b\nX-Api-Key: gold").status;
    assert_eq!([proxied(&one), decided(&one), decided(&other)], [204, 200, 200]);
    assert_eq!([proxied(&one), proxied(&other), decided(&one), decided(&other)], [429; 4]);
}

#[test]
fn a_shadow_admits_and_a_store_that_fails_is_met_by_the_policy() {
    let shadow = Decider::start("", &THREE.replace("\"3/h\"", "\"1/h\"\nmode = \"shadow\""));
    assert_eq!([0; 3].map(|_| shadow.ask(&described("203.0.113.5")).status), [200; 3]);
    for (policy, expected) in [("deny", [503; 4]), ("allow", [200; 4]), ("local", [200, 200, 200, 429])] {
        let store = "[store]\nurl = \"redis://127.0.0.1:1\"\n";
        let limits = THREE.replace("\"3/h\"", &format!("\"3/h\"\non_failure = \"{policy}\""));
        let decider = Decider::start("", &format!("{store}{limits}"));
        assert_eq!([0; 4].map(|_| decider.ask(&described("203.0.113.5")).status), expected, "{policy}");
    }
}
