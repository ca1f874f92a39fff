//! The OpenAPI document describes the whole admin port.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
};

use serde_json::Value;

use crate::{
    admin::{admin, gateway, gateway_with_token},
    harness::{client::Client, gateway::Gateway, redis::Redis, wait_until},
};

/// The methods of each path, and the statuses of each that are documented by themselves.
type Documented = BTreeMap<(String, String), BTreeSet<u16>>;

/// A request: its method, its path in the document and in truth, and its body; and the status of the answer.
type Probe<'p> = (&'p str, &'p str, &'p str, &'p str, u16);

fn document(gateway: &Gateway) -> Value {
    Client::connect(admin(gateway).parse().unwrap()).ask("GET /api/openapi.json\nHost: localhost").json()
}

fn documented(document: &Value) -> Documented {
    let mut found = Documented::new();
    for (path, methods) in document["paths"].as_object().unwrap() {
        for (method, operation) in
            methods.as_object().unwrap().iter().filter(|(name, _)| *name != "parameters")
        {
            let statuses = operation["responses"].as_object().unwrap().keys();
            let statuses = statuses.filter_map(|status| status.parse().ok()).collect();
            found.insert((path.clone(), method.to_uppercase()), statuses);
        }
    }
    found
}

/// What is wrong with a body by the document.
fn faults(document: &Value, path: &str, method: &str, status: u16, kind: &str, body: &Value) -> Vec<String> {
    let responses = &document["paths"][path][method.to_lowercase()]["responses"];
    let mut response = responses.get(status.to_string()).unwrap_or(&responses["default"]);
    if let Some(place) = response["$ref"].as_str() {
        response = document.pointer(&place[1..]).unwrap();
    }
    let schema = &response["content"][kind]["schema"];
    assert!(schema.is_object(), "{method} {path} {status}: `{kind}` isn't documented");
    let schema = serde_json::json!({ "components": document["components"], "allOf": [schema] });
    let validator = jsonschema::draft202012::new(&schema).unwrap();
    validator.iter_errors(body).map(|fault| format!("{}: {fault}", fault.instance_path())).collect()
}

/// Probes a gateway, and notes what was seen.
fn probe(gateway: &Gateway, document: &Value, probes: &[Probe<'_>], seen: &mut Documented) {
    for (method, path, target, body, status) in probes {
        let fields =
            format!("Host: localhost\nContent-Type: application/json\nContent-Length: {}", body.len());
        let mut client = Client::connect(admin(gateway).parse().unwrap());
        client.send(
            format!("{method} {target} HTTP/1.1\r\n{}\r\n\r\n{body}", fields.replace('\n', "\r\n"))
                .as_bytes(),
        );
        let answer = if (*path, *status) == ("/events", 200) { client.head() } else { client.answer() };
        assert_eq!(answer.status, *status, "{method} {target} {body}");
        let kind = answer.header("content-type").unwrap_or_default();
        if kind.ends_with("json") {
            let faults = faults(document, path, method, *status, kind, &answer.json());
            assert!(faults.is_empty(), "{method} {target}: {faults:?}");
        }
        assert_eq!(
            kind == "application/problem+json",
            *status >= 400 && !path.ends_with('z'),
            "{method} {target}"
        );
        seen.entry(((*path).to_owned(), (*method).to_owned())).or_default().insert(*status);
    }
}

const OVERRIDE: &str = "/api/limits/{limit}/override";
const KEY: &str = "/api/limits/{limit}/keys/{key}";
const OF_KEY: &str = "/api/limits/{limit}/keys/{key}/override";
const SESSION: &str = "/api/session";
const RATE: &str = r#"{"rate": "7/h"}"#;

#[test]
fn each_answer_is_documented_and_is_given() {
    let mut seen = Documented::new();
    let well = gateway("5/h", "");
    let document = document(&well);
    let get = |path: &'static str| -> Probe<'static> { ("GET", path, path, "", 200) };
    let plain = [
        "/",
        "/dashboard.css",
        "/dashboard.js",
        "/livez",
        "/readyz",
        "/metrics",
        "/events",
        "/api/openapi.json",
        "/api/config",
        "/api/routes",
        "/api/upstreams",
        "/api/limits",
        SESSION,
    ];
    probe(&well, &document, &plain.map(get), &mut seen);
    probe(
        &well,
        &document,
        &[
            ("GET", "/api/top", "/api/top?by=requests", "", 200),
            ("GET", "/api/top", "/api/top?by=luck", "", 400),
            ("GET", "/api/explain", "/api/explain?url=/", "", 200),
            ("GET", "/api/explain", "/api/explain?url=/a%252F..;b", "", 200),
            ("GET", "/api/explain", "/api/explain?url=/&method=CONNECT", "", 200),
            ("GET", "/api/explain", "/api/explain?url=/&ip=me", "", 400),
            ("POST", SESSION, SESSION, r#"{"token": "a"}"#, 409),
            ("DELETE", SESSION, SESSION, "", 204),
            ("PUT", OVERRIDE, "/api/limits/l/override", RATE, 200),
            ("PUT", OVERRIDE, "/api/limits/l/override", r#"{"rate": "often"}"#, 400),
            ("PUT", OVERRIDE, "/api/limits/m/override", RATE, 404),
            ("DELETE", OVERRIDE, "/api/limits/l/override", "", 200),
            ("DELETE", OVERRIDE, "/api/limits/m/override", "", 404),
            ("GET", KEY, "/api/limits/l/keys/192.0.2.7", "", 200),
            ("GET", KEY, "/api/limits/l/keys/me", "", 400),
            ("GET", KEY, "/api/limits/m/keys/192.0.2.7", "", 404),
            ("DELETE", KEY, "/api/limits/l/keys/192.0.2.7", "", 200),
            ("DELETE", KEY, "/api/limits/l/keys/me", "", 400),
            ("DELETE", KEY, "/api/limits/m/keys/192.0.2.7", "", 404),
            ("PUT", OF_KEY, "/api/limits/l/keys/192.0.2.7/override", RATE, 200),
            ("PUT", OF_KEY, "/api/limits/l/keys/me/override", RATE, 400),
            ("PUT", OF_KEY, "/api/limits/m/keys/192.0.2.7/override", RATE, 404),
            ("DELETE", OF_KEY, "/api/limits/l/keys/192.0.2.7/override", "", 200),
            ("DELETE", OF_KEY, "/api/limits/l/keys/me/override", "", 400),
            ("DELETE", OF_KEY, "/api/limits/m/keys/192.0.2.7/override", "", 404),
        ],
        &mut seen,
    );

    let listening: Vec<Client> = (0..16)
        .map(|_| {
            let mut client = Client::connect(admin(&well).parse().unwrap());
            client.send(b"GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n");
            assert_eq!(client.head().status, 200);
            client
        })
        .collect();
    probe(&well, &document, &[("GET", "/events", "/events", "", 503)], &mut seen);
    drop(listening);

    let token = gateway_with_token();
    let login = |guess: &str| format!("{{\"token\": \"{guess}\"}}");
    probe(
        &token,
        &document,
        &[
            ("POST", SESSION, SESSION, &login("correct-horse-battery"), 204),
            ("POST", SESSION, SESSION, &login("wrong-horse-battery"), 401),
        ],
        &mut seen,
    );

    let away = Redis::away();
    probe(
        &gateway("5/h", &away.store()),
        &document,
        &[
            ("GET", "/api/limits", "/api/limits", "", 200),
            ("PUT", OVERRIDE, "/api/limits/l/override", RATE, 503),
            ("DELETE", OVERRIDE, "/api/limits/l/override", "", 503),
            ("GET", KEY, "/api/limits/l/keys/192.0.2.7", "", 503),
            ("DELETE", KEY, "/api/limits/l/keys/192.0.2.7", "", 503),
            ("PUT", OF_KEY, "/api/limits/l/keys/192.0.2.7/override", RATE, 503),
            ("DELETE", OF_KEY, "/api/limits/l/keys/192.0.2.7/override", "", 503),
        ],
        &mut seen,
    );

    let redis = Redis::start();
    let full = gateway("5/h", &redis.store());
    let fill = "for i = 1, 10001 do redis.call('HSET', KEYS[1], 'l ip=' .. i, '7 1000 - 0') end";
    redis.command(&["EVAL", fill, "1", "tollgate:overrides"]);
    probe(
        &full,
        &document,
        &[
            ("PUT", OVERRIDE, "/api/limits/l/override", RATE, 409),
            ("PUT", OF_KEY, "/api/limits/l/keys/192.0.2.7/override", RATE, 409),
        ],
        &mut seen,
    );

    probe(&well, &document, &[("POST", "/api/reload", "/api/reload", "", 200)], &mut seen);
    fs::write(well.folder().join("gateway.toml"), "[[routes]]\n").unwrap();
    probe(&well, &document, &[("POST", "/api/reload", "/api/reload", "", 422)], &mut seen);
    well.signal("TERM");
    wait_until("it drains", || {
        let mut client = Client::connect(admin(&well).parse().unwrap());
        client.ask("GET /readyz\nHost: localhost").status == 503
    });
    probe(&well, &document, &[("GET", "/readyz", "/readyz", "", 503)], &mut seen);

    assert_eq!(seen, documented(&document));
}

#[test]
fn each_path_of_the_port_is_documented() {
    let gateway = gateway("5/h", "");
    let documented = documented(&document(&gateway));
    let mut paths = BTreeSet::new();
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let files = fs::read_dir(folder.join("admin")).unwrap().map(|entry| entry.unwrap().path());
    for file in files
        .chain([folder.join("admin.rs")])
        .filter(|file| file.extension().is_some_and(|kind| kind == "rs"))
    {
        let code = fs::read_to_string(file).unwrap();
        paths.extend(code.split(".route(\"").skip(1).map(|rest| rest.split('"').next().unwrap().to_owned()));
    }
    assert_eq!(paths, documented.keys().map(|(path, _)| path.clone()).collect());
    for path in &paths {
        let methods = documented.keys().filter(|(other, _)| other == path).map(|(_, method)| method.as_str());
        let mut methods: BTreeSet<&str> = methods.collect();
        if methods.contains("GET") {
            methods.insert("HEAD");
        }
        let target = path.replace("{limit}", "l").replace("{key}", "192.0.2.7");
        let mut client = Client::connect(admin(&gateway).parse().unwrap());
        let ask =
            format!("PATCH {target}\nHost: localhost\nContent-Type: application/json\nContent-Length: 0");
        let answer = client.ask(&ask);
        let allowed = answer.header("allow").unwrap_or_default().split(',').collect();
        assert_eq!((answer.status, methods), (405, allowed), "{path}");
    }
}
