//! Real proxies that ask, with the configurations of docs/behind-nginx-traefik-caddy.md as they stand there.

use std::{
    fs,
    net::{SocketAddr, TcpStream},
    path::Path,
    process::{Child, Command},
    thread::sleep,
    time::Duration,
};

use tempfile::TempDir;

use crate::{
    decisions::{Decider, port_of, with_ports},
    harness::{
        client::{Answer, Client},
        redis::{free_port, tls::Certificates},
        upstream::Upstream,
        wait_until,
    },
};

const PAGE: &str = include_str!("../../docs/behind-nginx-traefik-caddy.md");

/// Returns the block of the page with this number below a heading, as it stands there.
fn block(heading: &str, number: usize) -> &'static str {
    let (_, section) = PAGE.split_once(&format!("\n## {heading}\n")).unwrap();
    let section = section.split("\n## ").next().unwrap();
    section.split("\n```").nth(2 * number + 1).unwrap().split_once('\n').unwrap().1
}

/// Returns Tollgate's configuration of the page, with a shorter window.
fn toml() -> String {
    let (_, toml) = PAGE.split_once("```toml\n").unwrap();
    let toml = toml.split("```").next().unwrap();
    let (_, rest) = toml.split_once("listen = \"127.0.0.1:8081\"\n").unwrap();
    assert!(rest.contains("\"5/10s\""), "{rest}");
    rest.replace("\"5/10s\"", "\"5/6s\"")
}

/// A gateway, an upstream, and a proxy between them. The proxy is killed with this value.
struct Chain {
    decider: Decider,
    upstream: Upstream,
    proxy: Child,
    address: SocketAddr,
    folder: TempDir,
}

impl Chain {
    /// Starts a proxy with these files, in which the ports of the page are replaced, and timeouts that a busy machine might miss. `command`
    /// starts it in their folder.
    fn start(files: &[(&str, &str)], command: impl FnOnce(&Path) -> Command) -> Self {
        Self::start_with(Decider::start("", &toml()), tempfile::tempdir().unwrap(), files, command)
    }

    fn start_with(
        decider: Decider,
        folder: TempDir,
        files: &[(&str, &str)],
        command: impl FnOnce(&Path) -> Command,
    ) -> Self {
        let (upstream, port) = (Upstream::hello(), free_port());
        for (name, text) in files {
            let text = text.replace("timeout: 0.2s", "timeout: 10s");
            let text = with_ports(&text, decider.address.port(), port_of(&upstream), port);
            fs::write(folder.path().join(name), text).unwrap();
        }
        let log = fs::File::create(folder.path().join("log")).unwrap();
        let mut command = command(folder.path());
        command.current_dir(folder.path()).stdout(log.try_clone().unwrap()).stderr(log);
        let program = command.get_program().to_owned();
        let started = command.spawn();
        let proxy =
            started.unwrap_or_else(|error| panic!("{program:?}: {error}: scripts/test.sh installs it"));
        let address = SocketAddr::from(([127, 0, 0, 1], port));
        let mut chain = Self { decider, upstream, proxy, address, folder };
        wait_until("the proxy listens", || {
            let ended = chain.proxy.try_wait().unwrap();
            assert!(ended.is_none(), "{program:?}: {ended:?}: {}", chain.log());
            TcpStream::connect(address).is_ok()
        });
        chain
    }

    fn log(&self) -> String {
        fs::read_to_string(self.folder.path().join("log")).unwrap()
    }

    /// Returns the answer of the proxy to a request.
    fn get(&self) -> Answer {
        Client::connect(self.address).get("/orders/7?a=b")
    }

    /// Uses the limit up, and returns the last admitted answer and the first rejected one.
    fn use_up(&self) -> (Answer, Answer) {
        let mut admitted = None;
        for _ in 0..5 {
            let answer = self.get();
            assert_eq!((answer.status, &*answer.body), (200, &b"hello"[..]), "{}", self.log());
            admitted = Some(answer);
        }
        let rejected = self.get();
        assert_eq!(rejected.status, 429, "{rejected:?}");
        assert_eq!(self.upstream.count(), 5, "a rejected request doesn't reach the upstream");
        (admitted.unwrap(), rejected)
    }

    /// Waits as long as a rejected answer says, and asserts that the next request is admitted then.
    fn wait_for(&self, rejected: &Answer) {
        let number = |name: &str| rejected.header(name).unwrap().parse::<u64>().unwrap();
        let (seconds, milliseconds) = (number("retry-after"), number("retry-after-ms"));
        assert!((milliseconds..milliseconds + 1_000).contains(&(seconds * 1_000)), "{rejected:?}");
        assert!((1..=6_000).contains(&milliseconds), "{rejected:?}");
        sleep(Duration::from_millis(milliseconds));
        // It has a body, of which no proxy needs to show us anything.
        let post = "POST /orders\nContent-Type: application/json\nContent-Length: 2\n\n{}";
        let answer = Client::connect(self.address).ask(post);
        assert_eq!(
            (answer.status, &*answer.body),
            (200, &b"hello"[..]),
            "it was early, or the body is in the way"
        );
        assert_eq!(self.upstream.last().method, "POST");
    }

    /// Kills the gateway, and returns the proxy's answer from then on.
    fn get_without_gateway(&self) -> Answer {
        self.decider.gateway.signal("KILL");
        let address = self.decider.address;
        wait_until("the gateway is gone", || TcpStream::connect(address).is_err());
        self.get()
    }
}

impl Drop for Chain {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.proxy.kill();
        let _ = self.proxy.wait();
    }
}

/// Asserts that an answer is the gateway's complete rejection.
fn assert_complete(rejected: &Answer) {
    assert_eq!(rejected.header("content-type"), Some("application/problem+json"));
    let body: serde_json::Value = serde_json::from_slice(&rejected.body).unwrap();
    assert_eq!((&body["status"], &body["violated-policies"][0]), (&429.into(), &"per-client".into()));
    assert_fields(rejected, 0);
}

/// Asserts that an answer has the RateLimit fields.
fn assert_fields(answer: &Answer, remaining: u32) {
    let state = answer.header("ratelimit").unwrap_or_else(|| panic!("{answer:?}"));
    assert!(state.starts_with(&format!("\"per-client\";r={remaining};t=")), "{state}");
    assert_eq!(answer.header("ratelimit-policy"), Some("\"per-client\";q=5;w=6"));
}

/// A program that scripts/test.sh has installed from PyPI.
fn installed(name: &str) -> Command {
    Command::new(Path::new(env!("CARGO_MANIFEST_DIR")).join("target/venv/bin").join(name))
}

fn nginx(folder: &Path) -> Command {
    let path = std::env::var("PATH").unwrap();
    let mut command = Command::new("nginx");
    let here = folder.display();
    let paths = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"];
    let paths = paths.map(|name| format!("{name}_temp_path {here}/{name};"));
    // Files that nginx writes lie in its folder; the page needn't say so.
    let text = fs::read_to_string(folder.join("nginx.conf")).unwrap();
    let text = text.replace("http {", &format!("http {{ access_log off; {}", paths.concat()));
    fs::write(folder.join("nginx.conf"), text).unwrap();
    let globals = format!("daemon off; master_process off; pid {here}/pid; error_log stderr;");
    command.env("PATH", format!("{path}:/usr/sbin"));
    command.args(["-p", "."]).arg("-c").arg(folder.join("nginx.conf")).args(["-g", &globals, "-e", "stderr"]);
    command
}

fn envoy(_: &Path) -> Command {
    let mut command = installed("envoy");
    command.args(["-c", "envoy.yaml", "--disable-hot-restart", "--concurrency", "1", "-l", "warning"]);
    command
}

#[test]
fn nginx_rejects_with_the_fields_of_its_subrequest() {
    let chain = Chain::start(&[("nginx.conf", block("nginx", 0))], nginx);
    let (admitted, rejected) = chain.use_up();
    assert_fields(&admitted, 0);
    assert_fields(&rejected, 0);
    assert_eq!(rejected.header("content-type"), Some("application/problem+json"));
    let body: serde_json::Value = serde_json::from_slice(&rejected.body).unwrap();
    assert_eq!(body["status"], 429);
    chain.wait_for(&rejected);
    assert_eq!(chain.get_without_gateway().status, 500);
}

#[test]
fn nginx_admits_without_a_decision_if_it_is_told_so() {
    let (whole, told) = (block("nginx", 0), block("nginx", 1));
    let (before, behind) = whole.split_once("        location @limited {\n").unwrap();
    let (_, behind) = behind.split_once("return 500;\n            }\n").unwrap();
    let chain = Chain::start(&[("nginx.conf", &[before, told, behind].concat())], nginx);
    let (_, rejected) = chain.use_up();
    assert_eq!(rejected.status, 429);
    let ambiguous = Client::connect(chain.address).get("/a%2f..%2fb").status;
    assert_eq!(ambiguous, 500, "a fault that isn't Tollgate's absence");
    assert_eq!(chain.get_without_gateway().status, 200);
}

#[test]
fn traefik_passes_on_the_complete_rejection() {
    let files = [("traefik.yml", block("Traefik", 0)), ("dynamic.yml", block("Traefik", 1))];
    let chain = Chain::start(&files, |_| {
        let mut command = installed("traefik");
        command.arg("--configFile=traefik.yml");
        command
    });
    // It reads the routes a little after it listens.
    wait_until("traefik has its routes", || Client::connect(chain.address).get("/").status != 404);
    chain.wait_for(&{
        wait_until("the limit is used up", || chain.get().status == 429);
        chain.get()
    });
    sleep(Duration::from_secs(6));
    let before = chain.upstream.count();
    for remaining in (0..5).rev() {
        assert_eq!(chain.get().status, 200);
        let state = &chain.upstream.last().headers["ratelimit"];
        let state = state.to_str().unwrap();
        assert!(state.starts_with(&format!("\"per-client\";r={remaining};")), "{state}");
    }
    let rejected = chain.get();
    assert_eq!((rejected.status, chain.upstream.count() - before), (429, 5));
    assert_complete(&rejected);
    assert_eq!(chain.get_without_gateway().status, 500);
}

#[test]
fn caddy_passes_on_the_complete_rejection() {
    let chain = Chain::start(&[("Caddyfile", block("Caddy", 0))], |folder| {
        let mut command = installed("caddy");
        command.args(["run", "--config", "Caddyfile"]).env("HOME", folder).env("XDG_DATA_HOME", folder);
        command.env("XDG_CONFIG_HOME", folder);
        command
    });
    let (_, rejected) = chain.use_up();
    assert_complete(&rejected);
    let state = chain.upstream.last().headers["ratelimit"].to_str().unwrap().to_owned();
    assert!(state.starts_with("\"per-client\";r=0;"), "{state}");
    chain.wait_for(&rejected);
    assert_eq!(chain.get_without_gateway().status, 502);
}

#[test]
fn envoy_passes_on_the_complete_rejection_by_grpc() {
    let chain = Chain::start(&[("envoy.yaml", block("Envoy, by gRPC", 0))], envoy);
    let (admitted, rejected) = chain.use_up();
    assert_fields(&admitted, 0);
    assert_complete(&rejected);
    chain.wait_for(&rejected);
    assert_eq!(chain.get_without_gateway().status, 503, "status_on_error");
}

#[test]
fn envoy_admits_without_a_decision_if_it_is_told_so() {
    let yaml = block("Envoy, by gRPC", 0).replace("failure_mode_allow: false", "failure_mode_allow: true");
    let chain = Chain::start(&[("envoy.yaml", &yaml)], envoy);
    assert_fields(&chain.get(), 4);
    let admitted = chain.get_without_gateway();
    assert_eq!((admitted.status, admitted.header("ratelimit")), (200, None));
}

/// `encode_raw_headers` has the header in another field of the message, and doesn't join repeated lines.
#[test]
fn envoy_sends_the_header_raw() {
    let yaml = block("Envoy, by gRPC", 0);
    let decider = Decider::start("", &toml().replace("\"ip\"", "\"header:x-api-key\""));
    let files = [("envoy.yaml", yaml)];
    let chain = Chain::start_with(decider, tempfile::tempdir().unwrap(), &files, envoy);
    let status = |lines: &str| Client::connect(chain.address).get_with("/orders/7", lines).status;
    assert_eq!([(); 6].map(|()| status("X-Api-Key: gold\r\n")), [200, 200, 200, 200, 200, 429]);
    assert_eq!(status("X-Api-Key: silver\r\n"), 200);
    // As the gateway itself answers it.
    let lines = "X-Api-Key: gold\r\nX-Api-Key: silver\r\n";
    assert_eq!(status(lines), chain.decider.gateway.client().get_with("/orders/7", lines).status);
    assert_eq!(status(lines), 400);
}

#[test]
fn envoy_and_the_gateway_verify_each_other() {
    let certificates = Certificates::for_server(&["127.0.0.1"]);
    let path = |name: &str| certificates.path(name);
    let tls = format!(
        "tls = {{ cert = {:?}, key = {:?}, client_ca = {:?} }}",
        path("server.pem"),
        path("server.key"),
        path("ca.pem")
    );
    let folder = tempfile::tempdir().unwrap();
    for (name, from) in [("envoy.pem", "client.pem"), ("envoy.key", "client.key"), ("ca.pem", "ca.pem")] {
        fs::copy(path(from), folder.path().join(name)).unwrap();
    }
    let yaml = [block("Envoy, by gRPC", 0), block("Envoy, by gRPC", 1)].join("\n");
    let chain = Chain::start_with(Decider::start(&tls, &toml()), folder, &[("envoy.yaml", &yaml)], envoy);
    let (admitted, rejected) = chain.use_up();
    assert_fields(&admitted, 0);
    assert_complete(&rejected);
}

#[test]
fn envoy_passes_on_the_listed_fields_by_http() {
    let chain = Chain::start(&[("envoy.yaml", block("Envoy, by HTTP", 0))], envoy);
    let (admitted, rejected) = chain.use_up();
    assert_fields(&admitted, 0);
    assert_complete(&rejected);
    chain.wait_for(&rejected);
    assert_eq!(chain.get_without_gateway().status, 503, "status_on_error");
}

#[test]
fn a_service_asks_as_the_page_says() {
    let decider = Decider::start("", &toml());
    let (head, body) = block("Services in any language", 0).split_once("\n\n").unwrap();
    let call = [&head.replace('\n', "\r\n"), "\r\n\r\n", body].concat();
    let mut client = Client::connect(decider.address);
    let asked = [3, 1].map(|remaining| {
        client.send(call.as_bytes());
        let answer = client.answer();
        assert_fields(&answer, remaining);
        answer.status
    });
    client.send(call.as_bytes());
    let rejected = client.answer();
    assert_eq!((asked, rejected.status), ([200, 200], 429));
    assert_fields(&rejected, 1);
}
