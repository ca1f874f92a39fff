//! Servers that fail: what operators find in the log, the access log and the metrics.

use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpListener},
    thread,
};

use serde_json::Value;

use crate::{
    harness::{gateway::Gateway, load::Load, metrics::Metrics, redis::free_address, wait_until},
    proxy::{forward_to, quoted},
};

/// Answers each connection there once, until the test's process ends.
fn revive(address: SocketAddr) {
    let listener = TcpListener::bind(address).unwrap();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let _ = stream.read(&mut [0; 4_096]);
            let _ = stream.write_all(b"HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n");
        }
    });
}

/// Returns the metrics of a gateway's admin port.
pub(super) fn metrics(gateway: &Gateway) -> Metrics {
    let (_, admin) = gateway.greeting().split_once("dashboard: http://").unwrap();
    Metrics::scrape(admin.lines().next().unwrap())
}

#[test]
fn a_dead_server_under_load_writes_one_line_and_its_recovery_another() {
    let server = free_address();
    let gateway = Gateway::start(&format!(
        "[admin]\nlisten = \"127.0.0.1:0\"\n[access_log]\npath = \"access.log\"\n{}",
        forward_to(&[quoted(format!("http://{server}"))], "retries = { attempts = 0 }")
    ));
    let healthy = format!("tollgate_upstream_healthy{{upstream=\"api\",server=\"{server}\"}}");
    assert_eq!(metrics(&gateway).of(&healthy), 1.0);
    let load = Load::start(&gateway, 4, || "/".to_owned());
    load.wait_for(2_000);
    let failed = load.end();
    assert!(failed.iter().all(|answer| answer.status == 502));

    let log = gateway.log();
    let lines: Vec<&str> = log.lines().filter(|line| line.contains("fail")).collect();
    let [line] = lines[..] else { panic!("{log}") };
    assert!(line.contains("a server fails: the upstream could not be reached: Connection refused"), "{line}");
    let server_url = format!("server=http://{server}");
    for part in ["upstream=\"api\"", &server_url, &format!("address={server}"), "code=\"unreachable\""] {
        assert!(line.contains(part), "{part}: {line}");
    }
    let page = metrics(&gateway);
    assert_eq!(page.of(&healthy), 0.0);
    let failures = format!(
        "tollgate_upstream_failures_total{{upstream=\"api\",server=\"{server}\",kind=\"unreachable\"}}"
    );
    assert_eq!(page.of(&failures), failed.len() as f64);

    revive(server);
    wait_until("it is logged that the server answers", || {
        assert_eq!(gateway.get("/").status, 204);
        gateway.log().contains("a server answers again after")
    });
    let log = gateway.log();
    let lines: Vec<&str> = log.lines().filter(|line| line.contains(&server_url)).collect();
    let [_, line] = lines[..] else { panic!("{log}") };
    let failures = format!("failures={}", failed.len());
    for part in ["upstream=\"api\"", &format!("address={server}"), "code=\"unreachable\"", &failures] {
        assert!(line.contains(part), "{part}: {line}");
    }
    assert_eq!(metrics(&gateway).of(&healthy), 1.0);
}

#[test]
fn the_cause_of_a_failure_is_in_the_access_log_with_the_id_of_the_response() {
    let server = free_address();
    let unhealthy = free_address();
    let gateway = Gateway::start(&format!(
        "[access_log]\npath = \"access.log\"\n[admin]\nlisten = \"127.0.0.1:0\"\n\
         [upstreams.probed]\nservers = \"http://{unhealthy}\"\nhealth = {{ path = \"/\", interval = \"10ms\" }}\n\
         [[routes]]\npath = \"/probed\"\nupstream = \"probed\"\n{}",
        forward_to(&[quoted(format!("http://{server}"))], "retries = { attempts = 0 }")
    ));
    wait_until("the probes fail", || gateway.get("/probed").status == 503);
    let answers = [gateway.get("/"), gateway.get("/probed")];
    let ids = answers.each_ref().map(|answer| answer.header("x-request-id").unwrap().to_owned());
    let mut found = Vec::new();
    wait_until("both are logged", || {
        let log = std::fs::read_to_string(gateway.folder().join("access.log")).unwrap();
        let lines = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        found = lines.filter(|line| ids.iter().any(|id| line["request_id"] == id.as_str())).collect();
        found.len() == 2
    });
    assert_eq!(found[0]["error"], "upstream-unreachable");
    assert_eq!(found[0]["upstream"]["error"], "unreachable");
    assert_eq!(found[0]["upstream"]["server"], server.to_string());
    assert_eq!((&found[1]["error"], &found[1]["upstream"]), (&"upstream-unhealthy".into(), &Value::Null));
    let kind = "tollgate_upstream_failures_total{upstream=\"probed\",server=\"\",kind=\"unhealthy\"}";
    assert!(metrics(&gateway).of(kind) >= 2.0);
}
