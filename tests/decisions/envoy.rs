//! The rate limit service behind a real Envoy, which scripts/test.sh installs.

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
    decisions::{
        Decider, port_of,
        rls::{self, Descriptor, Request},
        with_ports,
    },
    harness::{
        client::{Answer, Client},
        frames::{Frames, HEADERS, get},
        gateway::Gateway,
        redis::{Redis, free_port},
        upstream::{Upstream, whole},
        wait_until,
    },
};

/// An Envoy before an upstream that answers all requests, if a rate limit service admits them.
pub(super) struct Envoy {
    process: Child,
    upstream: Upstream,
    folder: TempDir,
    address: SocketAddr,
}

impl Envoy {
    /// Starts an Envoy that asks this service. `actions` are the route's `rate_limits`, and `filter` further keys of the filter.
    pub(super) fn start(service: SocketAddr, actions: &str, filter: &str) -> Self {
        let port = free_port();
        let upstream = Upstream::hello();
        let text = config(port, port_of(&upstream), service, actions, filter);
        Self::run(port, upstream, &text)
    }

    /// Runs an Envoy with this configuration, which listens on this port.
    fn run(port: u16, upstream: Upstream, text: &str) -> Self {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/venv/bin/envoy");
        assert!(path.exists(), "no {}: it is installed by scripts/test.sh", path.display());
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("envoy.yaml"), text).unwrap();
        let log = fs::File::create(folder.path().join("log")).unwrap();
        let mut command = Command::new(path);
        command.args([
            "--disable-hot-restart",
            "--concurrency",
            "1",
            "--log-level",
            "warning",
            "-c",
            "envoy.yaml",
        ]);
        let process = command.current_dir(&folder).stderr(log).spawn().unwrap();
        let mut envoy = Self { process, upstream, folder, address: SocketAddr::from(([127, 0, 0, 1], port)) };
        wait_until("Envoy listens", || {
            let has_ended = envoy.process.try_wait().unwrap();
            assert!(
                has_ended.is_none(),
                "{}\n{text}",
                fs::read_to_string(envoy.folder.path().join("log")).unwrap()
            );
            TcpStream::connect(envoy.address).is_ok()
        });
        envoy
    }

    /// The answer to a request with these lines in its header.
    pub(super) fn get(&self, lines: &str) -> Answer {
        Client::connect(self.address).get_with("/", lines)
    }
}

impl Drop for Envoy {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn config(port: u16, api: u16, service: SocketAddr, actions: &str, filter: &str) -> String {
    let (host, service_port) = (service.ip(), service.port());
    format!(
        r#"
static_resources:
  listeners:
  - address: {{ socket_address: {{ address: 127.0.0.1, port_value: {port} }} }}
    filter_chains:
    - filters:
      - name: envoy.filters.network.http_connection_manager
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: in
          max_request_headers_kb: 96
          route_config:
            virtual_hosts:
            - name: all
              domains: ["*"]
              routes:
              - match: {{ prefix: / }}
                route: {{ cluster: api, rate_limits: {actions} }}
          http_filters:
          - name: envoy.filters.http.set_metadata
            typed_config:
              "@type": type.googleapis.com/envoy.extensions.filters.http.set_metadata.v3.Config
              metadata:
              - metadata_namespace: limits
                value: {{ five: {{ requests_per_unit: 5, unit: HOUR }} }}
          - name: envoy.filters.http.ratelimit
            typed_config:
              "@type": type.googleapis.com/envoy.extensions.filters.http.ratelimit.v3.RateLimit
              domain: shop
              timeout: 1s
{filter}
              rate_limit_service:
                transport_api_version: V3
                grpc_service: {{ envoy_grpc: {{ cluster_name: limits }} }}
          - name: envoy.filters.http.router
            typed_config: {{ "@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router }}
  clusters:
  - name: api
    load_assignment:
      cluster_name: api
      endpoints:
      - lb_endpoints:
        - endpoint: {{ address: {{ socket_address: {{ address: 127.0.0.1, port_value: {api} }} }} }}
  - name: limits
    connect_timeout: 1s
    typed_extension_protocol_options:
      envoy.extensions.upstreams.http.v3.HttpProtocolOptions:
        "@type": type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions
        explicit_http_config: {{ http2_protocol_options: {{}} }}
    load_assignment:
      cluster_name: limits
      endpoints:
      - lb_endpoints:
        - endpoint: {{ address: {{ socket_address: {{ address: {host}, port_value: {service_port} }} }} }}
"#
    )
}

/// Sends the value of X-Api-Key as the descriptor `api_key`.
pub(super) const BY_API_KEY: &str =
    "[{ actions: [{ request_headers: { header_name: x-api-key, descriptor_key: api_key } }] }]";

/// A rule that counts API keys at this rate.
fn per_key(rate: &str, keys: &str) -> String {
    format!(
        "[[descriptors]]\ndomain = \"shop\"\nmatch = {{ api_key = \"*\" }}\nlimits = [\"per-key\"]\n\
         [limits.per-key]\nkey = \"descriptor:api_key\"\nrate = \"{rate}\"\n{keys}\n"
    )
}

pub(super) const GOLD: &str = "X-Api-Key: gold\r\n";

#[test]
fn a_rejected_client_gets_the_complete_answer() {
    let decider = Decider::start("", &per_key("2/2s", ""));
    let envoy = Envoy::start(decider.address, BY_API_KEY, "");
    for left in [1, 0] {
        let answer = envoy.get(GOLD);
        assert_eq!((answer.status, answer.text().as_str()), (200, "hello"));
        assert_eq!(answer.header("ratelimit-policy"), Some("\"per-key\";q=2;w=2"));
        assert!(answer.header("ratelimit").unwrap().starts_with(&format!("\"per-key\";r={left};t=")));
    }
    let refused = envoy.get(GOLD);
    assert_eq!((refused.status, refused.header("content-type")), (429, Some("application/problem+json")));
    assert_eq!(refused.lines("content-type").len(), 1);
    assert_eq!(
        (refused.json()["status"].as_u64(), refused.header("ratelimit-policy").is_some()),
        (Some(429), true)
    );
    let (after, after_ms) =
        (refused.header("retry-after").unwrap().parse::<u64>().unwrap(), refused.retry_after_ms());
    assert!((after_ms..after_ms + 1000).contains(&(after * 1000)), "{after} {after_ms}");
    // Others aren't rejected, and this client neither when it comes back in time.
    assert_eq!(envoy.get("X-Api-Key: silver\r\n").status, 200);
    assert_eq!(envoy.get("").status, 200);
    sleep(Duration::from_millis(after_ms));
    assert_eq!(envoy.get(GOLD).status, 200);
}

#[test]
fn no_value_of_a_header_lets_a_client_pass() {
    let decider = Decider::start("", &per_key("1/h", ""));
    let envoy = Envoy::start(decider.address, BY_API_KEY, "");
    let long = vec![b'a'; 60 << 10];
    for value in [&b"\xff"[..], &long, b"{}*%00", b"a, b"] {
        let status = || {
            let mut client = Client::connect(envoy.address);
            client.send(&[b"GET / HTTP/1.1\r\nHost: shop.test\r\nX-Api-Key: ", value, b"\r\n\r\n"].concat());
            client.answer().status
        };
        assert_eq!([status(), status()], [200, 429], "{:?}", &value[..1]);
    }
}

#[test]
fn a_failed_store_is_what_the_limit_and_envoy_make_of_it() {
    let mut redis = Redis::start();
    let store = format!("[store]\nurl = \"{}\"\n", redis.url());
    redis.kill();
    for (policy, keys, statuses) in [
        ("deny", "", [200, 200]),
        ("deny", "              failure_mode_deny: true", [500, 500]),
        (
            "deny",
            "              failure_mode_deny: true\n              status_on_error: { code: 503 }",
            [503, 503],
        ),
        ("allow", "              failure_mode_deny: true", [200, 200]),
        ("local", "              failure_mode_deny: true", [200, 429]),
    ] {
        let rule = per_key("1/h", &format!("on_failure = \"{policy}\""));
        let decider = Decider::start("", &format!("{store}{rule}"));
        let envoy = Envoy::start(decider.address, BY_API_KEY, keys);
        assert_eq!([(); 2].map(|()| envoy.get(GOLD).status), statuses, "{policy} {keys}");
    }
}

#[test]
fn a_store_that_hangs_is_answered_for_within_envoys_timeout() {
    let redis = Redis::start();
    let rule = per_key("9/h", "on_failure = \"local\"");
    let decider =
        Decider::start("", &format!("[store]\nurl = \"{}\"\ntimeout = \"5s\"\n{rule}", redis.url()));
    // What Envoy gives up on is rejected.
    let envoy = Envoy::start(decider.address, BY_API_KEY, "              failure_mode_deny: true");
    assert_eq!(envoy.get(GOLD).status, 200);
    redis.pause();
    // On a busy machine 2 ms may be too short for the answer, but not each time.
    let statuses = (0..10).map(|_| envoy.get(GOLD).status).find(|status| *status == 200);
    assert_eq!(statuses, Some(200));
    redis.resume();
}

#[test]
fn shadow_limits_reject_nothing() {
    let decider = Decider::start("", &per_key("1/h", "mode = \"shadow\""));
    let envoy = Envoy::start(decider.address, BY_API_KEY, "");
    assert_eq!([(); 3].map(|()| envoy.get(GOLD).status), [200; 3]);
}

#[test]
fn a_route_may_override_a_rate() {
    let decider = Decider::start("", &per_key("1/h", ""));
    let actions = "[{ actions: [{ request_headers: { header_name: x-api-key, descriptor_key: api_key } }], \
                   limit: { dynamic_metadata: { metadata_key: { key: limits, path: [{ key: five }] } } } }]";
    let envoy = Envoy::start(decider.address, actions, "");
    let statuses: Vec<_> = (0..7).map(|_| envoy.get(GOLD)).collect();
    assert_eq!(statuses.iter().filter(|answer| answer.status == 200).count(), 5);
    assert_eq!(statuses[0].header("ratelimit-policy"), Some("\"per-key\";q=5;w=3600"));
}

#[test]
fn envoy_and_gateways_share_a_limit() {
    let redis = Redis::start();
    let toml = format!(
        "[store]\nurl = \"{}\"\ntimeout = \"5s\"\n[limits.per-key]\nkey = \"header:x-api-key\"\nrate = \"9/h\"\n\
         [[routes]]\npath = \"/\"\nrespond = {{ status = 200 }}\nlimits = [\"per-key\"]\n\
         [[descriptors]]\ndomain = \"shop\"\nmatch = {{ api_key = \"*\" }}\nas = {{ api_key = \"header:x-api-key\" }}\n\
         limits = [\"per-key\"]\n",
        redis.url()
    );
    let (decider, other) = (Decider::start("", &toml), Gateway::start(&toml));
    let envoy = Envoy::start(decider.address, BY_API_KEY, "");
    let ask = "GET /\nX-Api-Key: gold";
    let mut admitted = 0;
    for _ in 0..5 {
        let statuses = [envoy.get(GOLD).status, decider.gateway.ask(ask).status, other.ask(ask).status];
        admitted += statuses.iter().filter(|status| **status == 200).count();
    }
    assert_eq!(admitted, 9);
}

const PAGE: &str = include_str!("../../docs/behind-envoy.md");

/// Starts the gateway and the Envoy of the page. Envoy waits this long for a decision, and lets a request pass that isn't decided by then.
fn start_page(timeout: &str) -> (Decider, Envoy) {
    let block = |kind: &str| PAGE.split_once(&format!("```{kind}\n")).unwrap().1.split("```").next().unwrap();
    let (_, toml) = block("toml").split_once("listen = \"127.0.0.1:8081\"\n").unwrap();
    let (decider, upstream) = (Decider::start("", toml), Upstream::hello());
    let port = free_port();
    let yaml = block("yaml").replace("timeout: 0.1s", timeout);
    let yaml = with_ports(&yaml, decider.address.port(), port_of(&upstream), port);
    let envoy = Envoy::run(port, upstream, &yaml);
    (decider, envoy)
}

#[test]
fn the_page_works_as_it_stands() {
    let (decider, envoy) = start_page("timeout: 5s");
    for _ in 0..5 {
        assert_eq!(envoy.get(GOLD).status, 200);
    }
    let refused = envoy.get(GOLD);
    assert_eq!((refused.status, envoy.upstream.count()), (429, 5));
    assert!(refused.header("retry-after").is_some() && refused.header("ratelimit").is_some());
    decider.gateway.signal("KILL");
    wait_until("the gateway is gone", || TcpStream::connect(decider.address).is_err());
    assert_eq!(envoy.get(GOLD).status, 200);
}

/// A burst beyond the 1,024 calls that Envoy has in flight by default: it lets the other requests pass.
#[test]
fn a_burst_of_many_requests_is_asked_about() {
    let (decider, envoy) = start_page("timeout: 50s");
    decider.gateway.signal("STOP");
    let mut clients: Vec<_> = (0..16).map(|_| Frames::connect(envoy.address)).collect();
    for client in &mut clients {
        client.ask_at_once(90, &get("/", &[("x-api-key", "gold")]));
    }
    // Envoy has no decision meanwhile, so requests beyond its bound would pass now.
    sleep(Duration::from_millis(500));
    decider.gateway.signal("CONT");
    for client in &mut clients {
        (0..90).for_each(|_| drop(client.next_of(HEADERS)));
    }
    assert_eq!(envoy.upstream.count(), 5);
}

const TOKENS_PAGE: &str = include_str!("../../docs/llm-tokens.md");

/// Returns the first block of this kind behind a heading of the page about tokens.
fn tokens_block(heading: &str, kind: &str) -> &'static str {
    let (_, section) = TOKENS_PAGE.split_once(&format!("\n## {heading}\n")).unwrap();
    let (_, text) = section.split_once(&format!("```{kind}\n")).unwrap();
    text.split("```").next().unwrap()
}

/// An upstream that says what a request has cost: as many tokens as its header states.
fn model() -> Upstream {
    Upstream::start(|request| async move {
        let tokens = request.headers()["x-tokens"].clone();
        hyper::Response::builder().header("x-tokens-used", tokens).body(whole("words")).unwrap()
    })
}

#[test]
fn the_page_about_tokens_works_behind_envoy() {
    let (_, toml) = tokens_block("Envoy", "toml").split_once("listen = \"127.0.0.1:8081\"\n").unwrap();
    let (decider, upstream) = (Decider::start("", toml), model());
    let port = free_port();
    let yaml = with_ports(tokens_block("Envoy", "yaml"), decider.address.port(), port_of(&upstream), port);
    let envoy = Envoy::run(port, upstream, &yaml);
    let ask = |tokens: u32| envoy.get(&format!("X-Api-Key: gold\r\nX-Tokens: {tokens}\r\n"));
    let used = || {
        let entry = Descriptor::of(&[("api_key", b"gold")]).hits(0);
        let answer = rls::ask(decider.address, &Request::new("llm", [entry])).unwrap();
        100_000 - answer.left()[0].1
    };
    assert_eq!(ask(99_900).status, 200);
    wait_until("the tokens are reported", || used() == 99_900);
    // There is room for 100, and this one takes more.
    assert_eq!(ask(500).status, 200);
    wait_until("the debt is reported", || used() == 100_000);
    let refused = ask(500);
    assert_eq!((refused.status, envoy.upstream.count()), (429, 2));
    assert!(refused.retry_after_ms() > 50_000);
}

#[test]
fn the_page_about_tokens_works_for_any_service() {
    let (_, toml) = tokens_block("Envoy", "toml").split_once("listen = \"127.0.0.1:8081\"\n").unwrap();
    let decider = Decider::start("", toml);
    let report = tokens_block("Any service", "sh").replace("127.0.0.1:8081", &decider.address.to_string());
    let told = Command::new("sh").args(["-ec", &report]).output().unwrap();
    let answer = String::from_utf8(told.stdout).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200") && answer.contains("\"tokens\";r=99520;"), "{answer}");
}

#[test]
fn the_page_about_tokens_works_without_another_proxy() {
    let upstream = model();
    let toml = tokens_block("Tollgate as the proxy", "toml").replace("3000", &port_of(&upstream).to_string());
    let gateway = Gateway::start(&toml);
    let mut client = gateway.client();
    for _ in 0..150 {
        let answer = client.get_with("/v1/chat", "X-Api-Key: gold\r\nX-Tokens: 100\r\n");
        assert_eq!(answer.status, 200);
    }
    let answer = client.get_with("/v1/chat", "X-Api-Key: gold\r\nX-Tokens: 100\r\n");
    assert!(answer.header("ratelimit").unwrap().starts_with("\"tokens\";r=84000;"), "{answer:?}");
}
