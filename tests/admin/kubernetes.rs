//! The manifests of contrib/kubernetes: gateways with their configuration answer on their ports, to their probes and scrapers.

use std::{collections::HashMap, net::SocketAddr};

use super::probes::{raw, status};
use crate::harness::{
    client::Client,
    gateway::Gateway,
    redis::{Redis, free_port},
    upstream::Upstream,
};

/// The keys of the Secret, with values. The README creates it.
const SECRET: [(&str, &str); 2] =
    [("TOLLGATE_ADMIN_TOKEN", "0123456789abcdef"), ("TOLLGATE_METRICS_TOKEN", "fedcba9876543210")];

fn file(name: &str) -> String {
    let path = format!("{}/contrib/kubernetes/{name}", env!("CARGO_MANIFEST_DIR"));
    std::fs::read_to_string(path).unwrap()
}

/// Returns the text between two others.
fn between<'t>(text: &'t str, begin: &str, end: &str) -> &'t str {
    let (_, rest) = text.split_once(begin).unwrap_or_else(|| panic!("no `{begin}`"));
    rest.split_once(end).unwrap_or_else(|| panic!("no `{end}` after `{begin}`")).0
}

/// A gateway with the configuration of a manifest, and where it listens by the names of the container's ports.
struct Pod {
    manifest: String,
    ports: HashMap<String, SocketAddr>,
    _gateway: Gateway,
}

impl Pod {
    fn start(name: &str, redis: &Redis, backend: &Upstream) -> Self {
        let manifest = file(name);
        let indented = between(&manifest, "  gateway.toml: |\n", "\n---\n");
        let mut toml: String =
            indented.lines().map(|line| format!("{}\n", line.strip_prefix("    ").unwrap_or(line))).collect();
        let mut ports = HashMap::new();
        for line in manifest.lines().filter(|line| line.contains("containerPort: ")) {
            let own = SocketAddr::from(([127, 0, 0, 1], free_port()));
            let listen = format!("\"0.0.0.0:{}\"", between(line, "containerPort: ", " }"));
            assert!(toml.contains(&listen), "nothing listens on {listen}");
            toml = toml.replace(&listen, &format!("\"{own}\""));
            ports.insert(between(line, "name: ", ",").to_owned(), own);
        }
        // After the default of 50 ms, which a busy machine may take, it counts for itself.
        toml = toml.replace("[store]\n", "[store]\ntimeout = \"5s\"\n");
        if !toml.contains("[server]") {
            toml += "[server]\nlisten = \"127.0.0.1:0\"\n";
        }
        let (store, backend) = (redis.url(), backend.url());
        let places = [("TOLLGATE_STORE", &*store), ("TOLLGATE_BACKEND", &*backend)];
        let gateway = Gateway::start_with(&toml, &["run"], &[SECRET, places].concat());
        Self { manifest, ports, _gateway: gateway }
    }

    /// Returns the status of a request as the kubelet and Prometheus send it: to the address of the pod.
    fn ask(&self, port: &str, path: &str, token: &str) -> u16 {
        let address = self.ports[port];
        let token = if token.is_empty() { "" } else { &format!("\r\nAuthorization: Bearer {token}") };
        let head = format!("GET {path} HTTP/1.1\r\nHost: 10.0.0.7:9901\r\nConnection: close{token}");
        status(&raw(address, &head))
    }
}

#[test]
fn the_manifests_probes_and_scrapers_are_answered() {
    let (redis, backend) = (Redis::start(), Upstream::hello());
    let readme = file("README.md");
    for name in ["gateway.yaml", "decisions.yaml"] {
        let pod = Pod::start(name, &redis, &backend);
        for probe in ["readinessProbe:", "livenessProbe:"] {
            let action = between(&pod.manifest, probe, "}");
            let (path, port) = (between(action, "path: ", ","), action.rsplit("port: ").next().unwrap());
            assert_eq!(pod.ask(port.trim(), path, ""), 200, "{name} {probe}");
        }
        for (key, token) in SECRET {
            assert!(readme.contains(&format!("--from-literal={key}=")), "{key}");
            let is_for_all = key == "TOLLGATE_ADMIN_TOKEN";
            assert_eq!(pod.ask("admin", "/api/limits", token) == 200, is_for_all, "{name} {key}");
        }
        for (scraper, path, port, key) in scrapers() {
            let (_, token) = SECRET.iter().find(|(name, _)| *name == key).expect(&key);
            assert_eq!(pod.ask(&port, &path, token), 200, "{name} {scraper}");
            assert_eq!(pod.ask(&port, &path, ""), 401, "{name} {scraper}");
        }
        let decided = match name {
            "gateway.yaml" => Client::connect(pod.ports["http"]).get("/any").status,
            _ => pod.ask("decisions", "/healthcheck", ""),
        };
        assert_eq!((decided, backend.count()), (200, 1), "{name}");
    }
    assert_eq!(redis.keys("tollgate:per-client:*").len(), 1, "the count is in Redis");
}

/// Returns the path, the port and the key of the Secret by which each scraper asks.
fn scrapers() -> [(&'static str, String, String, String); 2] {
    let (prometheus, monitor) = (file("prometheus.yml"), file("servicemonitor.yaml"));
    let credentials = between(&prometheus, "credentials_file: ", " }");
    let key = credentials.rsplit('/').next().unwrap();
    let port = between(&prometheus, "pod_container_port_name], regex: ", ",");
    assert!(!prometheus.contains("metrics_path"), "the path is the default");
    let endpoint = monitor.split_once("endpoints:").unwrap().1;
    let of_monitor = [("path: ", "\n"), ("port: ", "\n"), ("key: ", " }")];
    let [path, target, monitors] = of_monitor.map(|(begin, end)| between(endpoint, begin, end).to_owned());
    // The Service's port, whose target is the container's.
    let service = file("gateway.yaml");
    let target = between(&service, &format!("{{ name: {target}, port: 9901, targetPort: "), " }").to_owned();
    [
        ("prometheus.yml", "/metrics".to_owned(), port.to_owned(), key.to_owned()),
        ("servicemonitor.yaml", path, target, monitors),
    ]
}
