//! Health probes.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    time::{Duration, Instant},
};

use hyper::Response;

use crate::{
    harness::{
        gateway::Gateway,
        upstream::{Speech, Upstream, whole},
        wait_until,
        wire::WireUpstream,
    },
    proxy::{cleartext_http2, forward_to, quoted},
};

/// A server that answers probes of `/healthz` by whether it is well, and all else with 200.
fn patient() -> (Upstream, Arc<AtomicBool>) {
    patient_speaking(Speech::Http1)
}

fn patient_speaking(speech: Speech) -> (Upstream, Arc<AtomicBool>) {
    let is_well = Arc::new(AtomicBool::new(true));
    let asked = is_well.clone();
    let upstream = Upstream::speaking(speech, move |request| {
        let is_bad = request.uri().path() == "/healthz" && !asked.load(SeqCst);
        let status = if is_bad { 500 } else { 200 };
        async move { Response::builder().status(status).body(whole("")).unwrap() }
    });
    (upstream, is_well)
}

fn requests(upstream: &Upstream, path: &str) -> usize {
    upstream.seen(|parts| parts.uri.path() == path)
}

fn configuration(servers: &[&Upstream], health: &str) -> String {
    let list = servers.iter().map(|server| quoted(server.url())).collect::<Vec<_>>();
    forward_to(&list, &format!("balance = \"round-robin\"\nhealth = {{ {health} }}"))
}

fn ask(gateway: &Gateway, times: usize) {
    let mut client = gateway.client();
    (0..times).for_each(|_| assert_eq!(client.get("/").status, 200));
}

#[test]
fn a_server_that_fails_its_probes_gets_no_requests_until_it_passes_them() {
    let ((sick, is_well), (other, _)) = (patient(), patient());
    let probes = "path = \"/healthz\", interval = \"20ms\", rise = 2, fall = 2";
    let gateway = Gateway::start(&configuration(&[&sick, &other], probes));
    ask(&gateway, 4);
    assert_eq!(requests(&sick, "/"), 2);
    is_well.store(false, SeqCst);
    wait_until("it is found down", || gateway.log().contains("down: the probe was answered with status 500"));
    ask(&gateway, 10);
    assert_eq!((requests(&sick, "/"), requests(&other, "/")), (2, 12));
    is_well.store(true, SeqCst);
    wait_until("it is found up", || gateway.log().contains("up: probes succeed"));
    ask(&gateway, 10);
    assert_eq!((requests(&sick, "/"), requests(&other, "/")), (7, 17));
}

#[test]
fn probes_need_none_of_the_connections_that_requests_may_have() {
    let (server, is_well) = patient_speaking(cleartext_http2());
    let health = "health = { path = \"/healthz\", interval = \"20ms\" }";
    let keys = format!("http2 = true\nmax_connections = 1\ntimeouts = {{ idle = \"1h\" }}\n{health}");
    let toml = forward_to(&[quoted(server.url())], &keys);
    let gateway = Gateway::start(&format!("[server]\nworkers = 1\n{toml}"));
    ask(&gateway, 1);
    is_well.store(false, SeqCst);
    wait_until("it is found down", || gateway.log().contains("down: the probe was answered with status 500"));
}

#[test]
fn a_server_that_says_nothing_to_a_probe_is_down() {
    let silent = WireUpstream::start(|mut wire| wire.wait_for_end());
    let probes = "health = { path = \"/\", interval = \"1h\", timeout = \"100ms\" }";
    let gateway = Gateway::start(&forward_to(&[quoted(silent.url())], probes));
    wait_until("it is found down", || gateway.log().contains("down: the probe timed out"));
    assert_eq!(gateway.get("/").json()["code"], "upstream-unhealthy");
}

#[test]
fn without_a_healthy_server_requests_are_refused() {
    let (sick, is_well) = patient();
    is_well.store(false, SeqCst);
    let gateway = Gateway::start(&configuration(&[&sick], "path = \"/healthz\", interval = \"1500ms\""));
    wait_until("it is found down", || gateway.log().contains("down: the probe was answered with status 500"));
    let answer = gateway.get("/");
    assert_eq!((answer.status, answer.header("retry-after")), (503, Some("2")));
    assert_eq!(answer.json()["code"], "upstream-unhealthy");
    assert_eq!(requests(&sick, "/"), 0);
}

#[test]
fn a_server_is_probed_by_one_however_many_workers_there_are() {
    let (server, _) = patient();
    let probes = configuration(&[&server], "path = \"/healthz\", interval = \"200ms\"");
    let since = Instant::now();
    let _gateway = Gateway::start(&format!("[server]\nworkers = 4\n{probes}"));
    wait_until("it is probed three times", || requests(&server, "/healthz") >= 3);
    assert!(since.elapsed() > Duration::from_millis(300), "{:?}", since.elapsed());
    let probe = server.last();
    assert_eq!(probe.headers["host"], server.url().trim_start_matches("http://"));
}

#[test]
fn probes_end_with_the_reload_that_removes_them() {
    let ((removed, _), (kept, _)) = (patient(), patient());
    let upstream = |name: &str, server: &Upstream, keys: &str| {
        format!("[upstreams.{name}]\nservers = \"{}\"\n{keys}\n", server.url())
    };
    let probes = "health = { path = \"/healthz\", interval = \"20ms\" }";
    let route = "[[routes]]\npath = \"/\"\nrespond = {}\n";
    let (kept_one, kept_all) = (upstream("a", &kept, probes), upstream("b", &removed, probes));
    let gateway = Gateway::start(&format!("{kept_one}{kept_all}{route}"));
    wait_until("it is probed", || requests(&removed, "/healthz") > 1);
    for without in [upstream("b", &removed, ""), String::new()] {
        gateway.reload(&format!("{kept_one}{without}{route}"));
        // One may be on its way.
        let (most, now) = (requests(&removed, "/healthz") + 1, requests(&kept, "/healthz"));
        wait_until("the other is probed", || requests(&kept, "/healthz") > now + 5);
        assert!(requests(&removed, "/healthz") <= most);
        gateway.reload(&format!("{kept_one}{kept_all}{route}"));
        wait_until("it is probed again", || requests(&removed, "/healthz") > most);
    }
}

#[test]
fn what_is_known_of_a_server_survives_a_reload() {
    let ((sick, is_well), (other, _)) = (patient(), patient());
    is_well.store(false, SeqCst);
    let probes = |path, rise| format!("path = \"{path}\", interval = \"1h\", rise = {rise}");
    let gateway = Gateway::start(&configuration(&[&sick, &other], &probes("/healthz", 2)));
    wait_until("it is found down", || gateway.log().contains("down: the probe was answered with status 500"));
    // It passes these, but not often enough.
    gateway.reload(&configuration(&[&sick, &other], &probes("/else", 2)));
    wait_until("it is probed", || requests(&sick, "/else") == 1);
    ask(&gateway, 10);
    assert_eq!(requests(&sick, "/"), 0);
    // Without probes it is as good as any other.
    gateway.reload(&forward_to(&[&sick, &other].map(|server| quoted(server.url())), ""));
    wait_until("it gets requests", || {
        ask(&gateway, 1);
        requests(&sick, "/") > 0
    });
}
