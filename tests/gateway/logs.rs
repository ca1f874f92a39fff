//! The gateway's own log: a record per line, as text or JSON.

use serde_json::Value;

use crate::harness::{gateway::Gateway, redis::free_address, wait_until};

const ROUTE: &str = "[[routes]]\nname = \"in\"\npath = \"/in\"\nrespond = { status = 200, body = \"one\" }\n";

#[test]
fn the_log_is_a_json_object_per_line_also_for_faults_of_a_file() {
    let dead = free_address();
    let toml = format!(
        "[server]\nmax_connections = 900000\n[log]\nformat = \"json\"\n[store]\nurl = \"redis://{dead}\"\n\
         [limits.unused]\nkey = \"ip\"\nrate = \"1/s\"\n{ROUTE}"
    );
    let gateway = Gateway::start(&toml);
    gateway.reload(&toml.replace("[log]", "worker = 1\n[log]").replace("200", "2000"));
    let records: Vec<Value> = {
        let log = gateway.log();
        log.lines()
            .map(|line| serde_json::from_str(line).unwrap_or_else(|_| panic!("{line:?}: {log}")))
            .collect()
    };
    let find = |text: &str| {
        let found = records.iter().find(|record| record["message"].as_str().unwrap().contains(text));
        found.unwrap_or_else(|| panic!("{text}: {records:#?}"))
    };
    let unknown = find("unknown key `worker`: did you mean `workers`?");
    assert_eq!(
        (&unknown["level"], &unknown["line"], &unknown["column"]),
        (&"error".into(), &3.into(), &1.into())
    );
    assert!(unknown["help"].as_str().unwrap().starts_with("the keys here are `listen`"), "{unknown}");
    assert_eq!(find("`2000` is out of range")["file"], "gateway.toml");
    assert_eq!(find("limit `unused` is not used by any route")["level"], "warn");
    assert!(find("the running one stays")["time"].as_str().unwrap().ends_with('Z'));
    assert_eq!(find("connections instead of 900000")["level"], "warn");
    for record in &records {
        let text = record.to_string();
        assert!(!text.contains("Os {") && !text.contains("Custom {") && !text.contains("kind:"), "{text}");
    }
}

#[test]
fn text_has_a_record_per_line_too_and_the_file_sets_the_level() {
    let toml = format!("[server]\nmax_connections = 900000\n{ROUTE}");
    let gateway = Gateway::start(&toml);
    gateway.reload(&toml.replace("path", "paths"));
    let log = gateway.log();
    assert!(log.lines().all(|line| line.starts_with("20") && line.contains("Z ")), "{log}");
    assert!(log.contains("unknown key `paths`: did you mean `path`?"), "{log}");

    let quiet = Gateway::start(&format!("[log]\nlevel = \"error\"\n{toml}"));
    assert_eq!(quiet.log(), "");
    let variable = [("TOLLGATE_LOG", "info")];
    let overridden = Gateway::start_with(
        &format!("[log]\nlevel = \"error\"\n{toml}"),
        &["run", "--listen", "127.0.0.1:0"],
        &variable,
    );
    wait_until("the warning is logged", || overridden.log().contains("WARN"));
}

#[test]
fn a_reload_shows_old_and_new_values() {
    let toml = format!(
        "[server]\nmax_body = \"1MiB\"\n[limits.l]\nkey = \"ip\"\nrate = \"5/s\"\nexempt = [\"10.0.0.0/8\"]\n\
         [upstreams.up]\nservers = \"http://127.0.0.1:1\"\n{ROUTE}limits = [\"l\"]\n\
         [[routes]]\nname = \"up\"\npath = \"/up\"\nupstream = \"up\"\nrequest_headers = {{ set = {{ x-key = \"hunter2\" }} }}\n"
    );
    let gateway = Gateway::start(&toml);
    gateway.reload(
        &toml
            .replace("1MiB", "2MiB")
            .replace("5/s\"", "9/s\"\nmode = \"shadow\"")
            .replace("10.0.0.0/8", "10.0.0.0/9")
            .replace("\"one\"", "\"two\"")
            .replace(":1\"", ":2\"\nmax_connections = 7")
            .replace("hunter2", "hunter3"),
    );
    for line in [
        "`server.max_body` changed \"1MiB\" → \"2MiB\"",
        "limit `l` 5/s → 9/s: counts kept",
        "limit `l`: `mode` changed default → \"shadow\"",
        "limit `l`: `exempt` changed [\"10.0.0.0/8\"] → [\"10.0.0.0/9\"]",
        "upstream `up`: `servers` changed \"http://127.0.0.1:1\" → \"http://127.0.0.1:2\"",
        "upstream `up`: `max_connections` changed default → 7",
        "route `in`: `respond` changed {\"body\":\"one\",\"status\":200} → {\"body\":\"two\",\"status\":200}",
        "route `up`: `request_headers` changed",
    ] {
        wait_until(line, || gateway.log().contains(line));
    }
    gateway.assert_not_logged("hunter");
}

#[test]
fn the_own_body_of_a_route_can_state_limit_and_delay() {
    let gateway = Gateway::start(
        "[limits.per-hour]\nkey = \"ip\"\nrate = \"1/h\"\n\
         [[routes]]\npath = \"/\"\nrespond = {}\nlimits = [\"per-hour\"]\n\
         on_limit = { body = '{\"limit\":\"{limit}\",\"in\":{retry_after}}', content_type = \"application/json\" }\n",
    );
    assert_eq!(gateway.get("/").status, 200);
    let mut client = gateway.client();
    for _ in 0..3 {
        let refused = client.get("/");
        let delay: u64 = refused.header("retry-after").unwrap().parse().unwrap();
        assert_eq!(refused.json(), serde_json::json!({ "limit": "per-hour", "in": delay }));
    }
}
