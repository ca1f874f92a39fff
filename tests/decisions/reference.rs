//! `tollgate ratelimit` in place of the reference's binary: its environment variables, its ports, its folder of rules.

use std::{
    fs,
    net::{SocketAddr, TcpStream},
    os::unix::fs::symlink,
    path::Path,
    process::{Child, Command, ExitStatus, Stdio},
};

use tempfile::TempDir;

use super::{
    envoy::{BY_API_KEY, Envoy, GOLD},
    rls::{Descriptor, OK, OVER_LIMIT, Request, Response, ask},
};
use crate::harness::{
    client::{Answer, Client},
    metrics::Metrics,
    redis::{Redis, free_port, tls::Certificates},
    signal, wait_until,
};

/// Three requests an hour of each API key, and of the descriptor `k=a` in the domain `d`.
const SHOP: &str =
    "domain: shop\ndescriptors: [{ key: api_key, rate_limit: { unit: hour, requests_per_unit: 3 } }]\n";
const D: &str =
    "domain: d\ndescriptors: [{ key: k, value: a, rate_limit: { unit: hour, requests_per_unit: 3 } }]\n";

/// A service that was started as the reference's binary is. Dropping it kills the process.
pub(super) struct Service {
    process: Child,
    folder: TempDir,
    pub(super) grpc: SocketAddr,
    http: SocketAddr,
    debug: SocketAddr,
}

impl Service {
    /// Starts a service with these rules and variables, and waits until it listens.
    fn start(redis: &Redis, rules: &[(&str, &str)], variables: &[(&str, &str)]) -> Self {
        let mut service = Self::spawn(redis, rules, variables);
        service.wait();
        service
    }

    /// Starts a service, without waiting for it.
    pub(super) fn spawn(redis: &Redis, rules: &[(&str, &str)], variables: &[(&str, &str)]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let config = folder.path().join("ratelimit/config");
        if !rules.is_empty() {
            fs::create_dir_all(&config).unwrap();
        }
        for (name, text) in rules {
            fs::write(config.join(name), text).unwrap();
        }
        // It is invoked by the reference's name.
        let binary = folder.path().join("ratelimit-binary");
        fs::create_dir(&binary).unwrap();
        let binary = binary.join("ratelimit");
        symlink(env!("CARGO_BIN_EXE_tollgate"), &binary).unwrap();
        let [grpc, http, debug] = [(); 3].map(|()| SocketAddr::from(([127, 0, 0, 1], free_port())));
        let mut command = Command::new(binary);
        command.env_clear().env("PATH", std::env::var_os("PATH").unwrap());
        command.env("RUNTIME_ROOT", folder.path()).env("RUNTIME_SUBDIRECTORY", "ratelimit");
        command.env("REDIS_SOCKET_TYPE", "tcp").env("REDIS_URL", format!("127.0.0.1:{}", redis.port()));
        // After the default of 50 ms, which a busy machine may take, it counts for itself.
        command.env("REDIS_TIMEOUT", "5s");
        command.env("HOST", "127.0.0.1").env("GRPC_HOST", "127.0.0.1");
        for (name, address) in [("GRPC_PORT", grpc), ("PORT", http), ("DEBUG_PORT", debug)] {
            command.env(name, address.port().to_string());
        }
        command.env("LOG_LEVEL", "info").envs(variables.iter().copied());
        command.stdout(Stdio::null()).stderr(fs::File::create(folder.path().join("log")).unwrap());
        let process = command.spawn().unwrap();
        Self { process, folder, grpc, http, debug }
    }

    /// Waits until it listens.
    pub(super) fn wait(&mut self) {
        wait_until("the service listens", || {
            assert!(self.process.try_wait().unwrap().is_none(), "{}", self.log());
            TcpStream::connect(self.http).is_ok()
        });
    }

    /// Returns true if it listens now.
    pub(super) fn listens(&self) -> bool {
        TcpStream::connect(self.http).is_ok()
    }

    /// Returns its peak memory in KiB.
    pub(super) fn memory_kib(&self) -> usize {
        let status = fs::read_to_string(format!("/proc/{}/status", self.process.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
        line.trim().trim_end_matches(" kB").parse().unwrap()
    }

    pub(super) fn log(&self) -> String {
        fs::read_to_string(self.folder.path().join("log")).unwrap()
    }

    /// Returns a metric without labels.
    pub(super) fn metric(&self, name: &str) -> f64 {
        Metrics::scrape(&self.debug.to_string()).of(name)
    }

    fn rules(&self) -> std::path::PathBuf {
        self.folder.path().join("ratelimit/config")
    }

    fn get(&self, path: &str) -> Answer {
        Client::connect(self.http).get(path)
    }

    fn end(&mut self) -> ExitStatus {
        signal("TERM", self.process.id());
        self.process.wait().unwrap()
    }

    /// Returns the answer about this descriptor.
    pub(super) fn ask(&self, domain: &str, key: &str) -> Response {
        ask(self.grpc, &Request::new(domain, [Descriptor::of(&[(key, b"a")])])).unwrap()
    }

    /// Returns decision and remaining permits of this descriptor.
    pub(super) fn left(&self, domain: &str, key: &str) -> (i32, u32) {
        self.ask(domain, key).left()[0]
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Runs a service that can't start, and returns its exit status and its messages.
fn fails(variables: &[(&str, &str)]) -> (i32, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
    let output = command.arg("ratelimit").env_clear().envs(variables.iter().copied()).output().unwrap();
    (output.status.code().unwrap(), String::from_utf8(output.stderr).unwrap())
}

#[test]
fn it_stands_in_for_the_reference_behind_envoy() {
    let redis = Redis::start();
    let mut service = Service::start(&redis, &[("shop.yaml", SHOP)], &[("USE_STATSD", "false")]);
    let envoy = Envoy::start(service.grpc, BY_API_KEY, "");
    let statuses = [(); 5].map(|()| envoy.get(GOLD).status);
    assert_eq!(statuses, [200, 200, 200, 429, 429]);
    assert!(!redis.keys("tollgate:*").is_empty());
    assert_eq!((service.get("/healthcheck").status, service.get("/other").status), (200, 404));
    let body = r#"{"domain":"shop","descriptors":[{"entries":[{"key":"api_key","value":"gold"}]}]}"#;
    let call = format!("POST /json\nContent-Length: {}\n\n{body}", body.len());
    assert_eq!(Client::connect(service.http).ask(&call).status, 429);
    assert_eq!(Client::connect(service.grpc).get("/healthcheck").status, 200);

    let log = service.log();
    assert!(log.contains("warning: anyone who reaches this service's ports can use up limits"), "{log}");
    assert!(log.contains("no effect: USE_STATSD") && log.matches("USE_STATSD").count() == 1, "{log}");
    assert!(service.end().success());
}

#[test]
fn grpcio_agrees_on_the_service() {
    let redis = Redis::start();
    let mut service = Service::start(&redis, &[("d", D)], &[]);
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let python = root.join("target/venv/bin/python3");
    assert!(python.exists(), "no {}: it is installed by scripts/test.sh", python.display());
    let mut command = Command::new(python);
    command.arg(root.join("tests/decisions/clients/rls_client.py")).arg(service.grpc.to_string());
    let mut client = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    let mut stdout = std::io::BufReader::new(client.stdout.take().unwrap());
    std::io::BufRead::read_line(&mut stdout, &mut line).unwrap();
    assert_eq!(line, "watching\n");
    assert!(service.end().success());
    assert!(client.wait().unwrap().success());
}

#[test]
fn rules_are_watched_as_kubernetes_replaces_them() {
    let redis = Redis::start();
    let service = Service::start(&redis, &[("d", D)], &[("RUNTIME_IGNOREDOTFILES", "true")]);
    let root = service.folder.path().join("ratelimit");
    // A volume of Kubernetes: files are links into a folder that a link names.
    for (version, permits) in [("..1", 5), ("..2", 50)] {
        fs::create_dir_all(root.join("volume").join(version)).unwrap();
        let text = D.replace("requests_per_unit: 3", &format!("requests_per_unit: {permits}"));
        fs::write(root.join("volume").join(version).join("d.yaml"), text).unwrap();
    }
    let switch = |version: &str| {
        let _ = fs::remove_file(root.join("volume/new"));
        symlink(version, root.join("volume/new")).unwrap();
        fs::rename(root.join("volume/new"), root.join("volume/..data")).unwrap();
    };
    switch("..1");
    symlink("..data/d.yaml", root.join("volume/d.yaml")).unwrap();
    let limit =
        || service.ask("d", "k").statuses[0].current_limit.as_ref().map(|limit| limit.requests_per_unit);
    assert_eq!(limit(), Some(3));
    fs::remove_dir_all(service.rules()).unwrap();
    symlink("volume", service.rules()).unwrap();
    wait_until("the volume is read", || limit() == Some(5));
    switch("..2");
    wait_until("the next version is read", || limit() == Some(50));
    fs::write(root.join("volume/..2/d.yaml"), "domain: d\ndescriptors: nonsense\n").unwrap();
    wait_until("the fault is told", || service.log().contains("`descriptors` must be a list"));
    assert_eq!(limit(), Some(50));
}

/// limitador#438: a budget that is asked with 0, and reported later.
#[test]
fn reported_costs_are_named_by_a_variable() {
    let redis = Redis::start();
    for (variables, overall) in [(&[][..], OK), (&[("TOLLGATE_REPORTED", "other:x d:k")], OVER_LIMIT)] {
        let service = Service::start(
            &redis,
            &[("d", D), ("o", &D.replace("domain: d", "domain: other").replace("key: k", "key: x"))],
            variables,
        );
        let hits = |hits| {
            let request = Request::new("d", [Descriptor::of(&[("k", b"a")]).hits(hits)]);
            ask(service.grpc, &request).unwrap().overall_code
        };
        assert_eq!(hits(0), OK);
        hits(500);
        assert_eq!(hits(0), overall, "{variables:?}");
        let is_told = || service.log().contains("TOLLGATE_REPORTED=d:k");
        match variables {
            [] => wait_until("what is missing is told", is_told),
            _ => assert!(!is_told(), "{}", service.log()),
        }
    }
}

#[test]
fn responses_have_what_the_variables_ask_for() {
    let redis = Redis::start();
    let metrics = format!("127.0.0.1:{}", free_port());
    let service = Service::start(
        &redis,
        &[("a", D), ("b", &D.replace("key: k", "key: more"))],
        &[
            ("MERGE_DOMAIN_CONFIG", "true"),
            ("LIMIT_RESPONSE_HEADERS_ENABLED", "true"),
            ("LIMIT_RESET_HEADER", "X-Reset"),
            ("SHADOW_MODE", "true"),
            ("USE_PROMETHEUS", "true"),
            ("PROMETHEUS_ADDR", &metrics),
        ],
    );
    for (code, left) in [(OK, 2), (OK, 1), (OK, 0), (OVER_LIMIT, 0)] {
        let answer = service.ask("d", "k");
        assert_eq!((answer.overall_code, answer.left()), (OK, vec![(code, left)]));
        assert_eq!(answer.header("ratelimit-limit"), Some("3"));
        assert_eq!(answer.header("ratelimit-remaining"), Some(left.to_string().as_str()));
        assert!(answer.header("x-reset").unwrap().parse::<u32>().unwrap() > 3000);
    }
    assert_eq!(service.left("d", "more"), (OK, 2));
    assert_eq!(service.ask("d", "none").header("x-reset"), None);

    // Nobody was rejected.
    let counted = || Metrics::scrape(&metrics).of("tollgate_requests_total{route=\"\",status=\"2xx\"}");
    wait_until("the calls are counted", || counted() == 6.0);
    let page = Metrics::scrape(&metrics);
    assert_eq!(page.of("tollgate_requests_refused_total{route=\"\"}"), 0.0);
    assert!(page.text.contains("tollgate_decisions_total"), "{}", page.text);
    // Only the port for this machine can do more.
    let get = |address: SocketAddr, path: &str| Client::connect(address).get(path);
    assert!(get(metrics.parse().unwrap(), "/api/limits").text().contains("tollgate_decisions_total"));
    let page = Metrics::scrape(&service.debug.to_string());
    assert!(page.text.contains("d-k-a-"), "{}", page.text);
}

#[test]
fn callers_are_verified_and_probes_are_not() {
    let redis = Redis::start();
    let certificates = Certificates::for_server(&["127.0.0.1"]);
    let path = |name: &str| certificates.path(name).display().to_string();
    let (cert, key, ca) = (path("server.pem"), path("server.key"), path("ca.pem"));
    let service = Service::start(
        &redis,
        &[("d", D)],
        &[
            ("GRPC_SERVER_USE_TLS", "true"),
            ("GRPC_SERVER_TLS_CERT", &cert),
            ("GRPC_SERVER_TLS_KEY", &key),
            ("GRPC_CLIENT_TLS_CACERT", &ca),
        ],
    );
    let url = format!("https://{}/healthcheck", service.grpc);
    let curl = |more: &[&str]| {
        let mut curl = Command::new("curl");
        curl.args(["--silent", "--max-time", "30", "--http2", "--cacert", &ca, &url]).args(more);
        String::from_utf8(curl.output().unwrap().stdout).unwrap()
    };
    assert_eq!(curl(&[]), "");
    assert_eq!(curl(&["--cert", &path("client.pem"), "--key", &path("client.key")]), "OK");
    assert_eq!(service.get("/healthcheck").status, 200);
}

#[test]
fn a_service_without_rules_starts_only_if_it_may() {
    let redis = Redis::start();
    let mut service = Service::spawn(&redis, &[], &[]);
    assert_eq!(service.process.wait().unwrap().code(), Some(2));
    let log = service.log();
    assert!(log.contains("can't read the folder") && log.contains("ratelimit/config"), "{log}");

    let service = Service::start(&redis, &[], &[("FORCE_START_WITHOUT_INITIAL_CONFIG", "true")]);
    assert_eq!(service.left("d", "k"), (OK, 0));
    fs::create_dir_all(service.rules()).unwrap();
    fs::write(service.rules().join("d"), D).unwrap();
    wait_until("the rules are in use", || service.left("d", "k").1 > 0);
}

#[test]
fn wrong_variables_are_told() {
    let redis = [("REDIS_URL", "redis:6379"), ("REDIS_SOCKET_TYPE", "tcp")];
    let (code, text) = fails(&[&redis[..], &[("BACKEND_TYPE", "memcache"), ("PORT", "x")]].concat());
    assert_eq!(code, 2);
    assert!(text.contains("error: BACKEND_TYPE: there is no backend `memcache`"), "{text}");
    assert!(
        text.contains("use Redis: BACKEND_TYPE=redis") && text.ends_with("the environment: 2 errors\n"),
        "{text}"
    );
    let auth = [("REDIS_URL", "a b"), ("REDIS_SOCKET_TYPE", "tcp"), ("REDIS_AUTH", "hunter2")];
    let (code, text) = fails(&auth);
    assert!(code == 2 && text.contains("# REDIS_URL") && !text.contains("hunter2"), "{text}");
}
