//! Common clients and servers, with the gateway between them. scripts/test.sh installs them.

use std::{
    fs,
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
};

use tempfile::TempDir;

use crate::{
    harness::{gateway::Gateway, redis::tls::Certificates, upstream::Upstream, wait_until},
    proxy::{forward_to, quoted},
};

const INSTALLED: &str = "is installed by scripts/test.sh";

/// Runs a program to its end.
fn run(program: &str, arguments: &[&str]) -> Output {
    let output = Command::new(program).args(arguments).output();
    output.unwrap_or_else(|error| panic!("{program}: {error}: it {INSTALLED}"))
}

/// What a program that succeeds prints.
fn printed(program: &str, arguments: &[&str]) -> String {
    let output = run(program, arguments);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {arguments:?}: {}\n{stderr}", output.status);
    String::from_utf8(output.stdout).unwrap()
}

/// The Python that has what tests/proxy/clients/requirements.txt names.
fn python() -> PathBuf {
    let python = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/venv/bin/python3");
    assert!(python.exists(), "no {}: it {INSTALLED}", python.display());
    python
}

fn script(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/proxy/clients").join(name)
}

/// Runs a client of tests/proxy/clients, which asserts what it sees.
fn talk(client: &str, arguments: &[&str]) {
    let script = script(client);
    printed(python().to_str().unwrap(), &[&[script.to_str().unwrap()], arguments].concat());
}

/// A server that runs until this is dropped.
struct Server(Child);

impl Server {
    /// Starts one of tests/proxy/clients, and tells its port.
    fn start(name: &str, arguments: &[&str]) -> (Self, String) {
        let started = Command::new(python()).arg(script(name)).args(arguments).stdout(Stdio::piped()).spawn();
        let mut server = Self(started.unwrap());
        let mut port = String::new();
        BufReader::new(server.0.stdout.take().unwrap()).read_line(&mut port).unwrap();
        (server, port.trim().to_owned())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn websockets() {
    let (_server, port) = Server::start("websocket_server.py", &[]);
    let servers = [quoted(format!("http://127.0.0.1:{port}"))];
    let gateway = Gateway::start(&(forward_to(&servers, "") + &over_limit("/limited")));
    assert_eq!(gateway.get("/limited").status, 204);
    talk("websocket_client.py", &[&format!("ws://{}", gateway.address())]);
}

#[test]
fn websockets_with_tls_on_both_sides() {
    let certificates = Certificates::for_server(&["127.0.0.1"]);
    let path = |name| certificates.path(name).to_str().unwrap().to_owned();
    let (ca, cert, key) = (path("ca.pem"), path("server.pem"), path("server.key"));
    let (_server, port) = Server::start("websocket_server.py", &[&cert, &key]);
    let servers = [quoted(format!("https://127.0.0.1:{port}"))];
    let gateway = Gateway::start(&format!(
        "[server]\n{}{}{}",
        with_tls(&certificates),
        forward_to(&servers, &format!("http2 = true\ntls = {{ ca = {ca:?} }}")),
        over_limit("/limited")
    ));
    let url = format!("https://{}/limited", gateway.address());
    printed("curl", &["--silent", "--show-error", "--noproxy", "*", "--cacert", &ca, &url]);
    talk("websocket_client.py", &[&format!("wss://{}", gateway.address()), &ca]);
}

#[test]
fn grpc() {
    let (_server, port) = Server::start("grpc_server.py", &[]);
    // Bound and not listened on.
    let nobody = tokio::net::TcpSocket::new_v4().unwrap();
    nobody.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let route = |service, upstream, more| {
        format!("[[routes]]\npath = \"/{service}/{{method}}\"\nupstream = \"{upstream}\"\n{more}\n")
    };
    let upstream = |name, port: &str, more| {
        format!("[upstreams.{name}]\nservers = [\"http://127.0.0.1:{port}\"]\nhttp2 = true\n{more}\n")
    };
    let gateway = Gateway::start(
        &[
            "[limits.calls]\nkey = \"ip\"\nrate = \"1/h\"\n".to_owned(),
            upstream("bytes", &port, ""),
            upstream("late", &port, "timeouts = { response = \"300ms\" }"),
            upstream("nobody", &nobody.local_addr().unwrap().port().to_string(), ""),
            route("test.Bytes", "bytes", ""),
            route("limited.Bytes", "bytes", "limits = [\"calls\"]"),
            route("late.Bytes", "late", ""),
            route("nobody.Bytes", "nobody", ""),
        ]
        .concat(),
    );
    talk("grpc_client.py", &[&gateway.address().to_string()]);
}

/// A gateway with these keys of `[server]` before a server that sends back what it gets.
fn before_mirror(keys: &str) -> Gateway {
    let servers = [quoted(Upstream::mirror().url())];
    Gateway::start(&format!("[server]\n{keys}\n{}{}", forward_to(&servers, ""), over_limit("/limited")))
}

/// `tls` of `[server]` with this certificate.
fn with_tls(certificates: &Certificates) -> String {
    let (cert, key) = (certificates.path("server.pem"), certificates.path("server.key"));
    format!("tls = {{ certs = [{{ cert = {cert:?}, key = {key:?} }}] }}\n")
}

/// A path that is over its limit after the first request.
fn over_limit(path: &str) -> String {
    format!(
        "[limits.one]\nkey = \"ip\"\nrate = \"1/h\"\n\
         [[routes]]\npath = \"{path}\"\nrespond = {{ status = 204 }}\nlimits = [\"one\"]\n"
    )
}

/// Asks a gateway by curl, which is to agree with it on this version of HTTP.
fn curl(gateway: &Gateway, scheme: &str, version: &str, more: &[&str]) {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (file, back) = (path("file"), path("back"));
    fs::write(&file, (0..1 << 20).map(|byte: u32| byte as u8).collect::<Vec<_>>()).unwrap();
    let url = |path| format!("{scheme}://localhost:{}{path}", gateway.address().port());
    let curl = |arguments: &[&str]| {
        let base = ["--silent", "--show-error", "--noproxy", "*", "--max-time", "60"];
        printed("curl", &[&base, more, arguments].concat())
    };
    let told = ["--output", &back, "--write-out", "%{http_version} %{response_code} %{num_connects}\n"];
    // The second request goes on the connection of the first; but curl 7.88 can't keep one that was told to speak HTTP/2,
    // to whatever server.
    let is_kept = !more.contains(&"--http2-prior-knowledge");
    let other = url("/b");
    let second = if is_kept { &["--output", &back, &other][..] } else { &[] };
    let answers = curl(&[&told[..], &[&url("/a")], second].concat());
    assert_eq!(answers, format!("{version} 200 1\n") + &format!("{version} 200 0\n").repeat(is_kept.into()));
    let answer = curl(&[&told[..], &["--head", &url("/")]].concat());
    assert_eq!(answer, format!("{version} 200 1\n"));
    curl(&["--upload-file", &file, "--output", &back, &url("/")]);
    assert!(fs::read(&file).unwrap() == fs::read(&back).unwrap());
    let limited = || curl(&["--write-out", "\n%{response_code}", &url("/limited")]);
    assert_eq!(limited(), "\n204");
    let refused = limited();
    assert!(refused.contains("quota-exceeded") && refused.ends_with("\n429"), "{refused}");
}

#[test]
fn curl_by_http_1_1() {
    curl(&before_mirror(""), "http", "1.1", &["--http1.1"]);
}

#[test]
fn curl_by_http_2_without_tls() {
    curl(&before_mirror(""), "http", "2", &["--http2-prior-knowledge"]);
}

#[test]
fn curl_by_what_tls_agrees_on() {
    let certificates = Certificates::for_server(&["localhost"]);
    let ca = certificates.path("ca.pem").to_str().unwrap().to_owned();
    for (asked, version) in [("--http1.1", "1.1"), ("--http2", "2")] {
        curl(&before_mirror(&with_tls(&certificates)), "https", version, &[asked, "--cacert", &ca]);
    }
}

#[test]
fn h2load_with_bodies() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    fs::write(&file, [b'x'; 5_000]).unwrap();
    let gateway = before_mirror("");
    let url = format!("http://{}/", gateway.address());
    for version in [&["--max-concurrent-streams", "10"][..], &["--h1"]] {
        let load = ["--requests", "5000", "--clients", "10", "--data", file.to_str().unwrap(), &url];
        let report = printed("h2load", &[version, &load].concat());
        for line in [
            "requests: 5000 total, 5000 started, 5000 done, 5000 succeeded, 0 failed, 0 errored, 0 timeout",
            "status codes: 5000 2xx, 0 3xx, 0 4xx, 0 5xx",
        ] {
            assert!(report.contains(line), "{report}");
        }
    }
}

#[test]
fn wrk() {
    let gateway = before_mirror("");
    let url = format!("http://{}/", gateway.address());
    let report = printed("wrk", &["--threads", "2", "--connections", "32", "--duration", "1s", &url]);
    // What fails has a line of its own.
    assert!(!report.contains("Socket errors") && !report.contains("Non-2xx"), "{report}");
    let (requests, _) = report.split_once(" requests in ").expect(&report);
    let requests: usize = requests.rsplit(char::is_whitespace).next().unwrap().parse().unwrap();
    assert!(requests > 100, "{report}");
}

/// nginx, which serves files on a unix socket.
struct Nginx {
    folder: TempDir,
    _process: Server,
}

impl Nginx {
    fn start(files: &[(&str, &[u8])]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().to_str().unwrap();
        for (name, content) in files {
            fs::write(folder.path().join(name), content).unwrap();
        }
        let configuration = format!(
            "daemon off;\nmaster_process off;\npid {path}/pid;\nerror_log {path}/error.log;\nevents {{}}\n\
             http {{\n  access_log off;\n  types {{ text/plain txt; }}\n  gzip on;\n  gzip_min_length 1;\n  gzip_types *;\n  gzip_proxied any;\n\
             client_body_temp_path {path}/body; proxy_temp_path {path}/proxy; fastcgi_temp_path {path}/fastcgi;\n\
             uwsgi_temp_path {path}/uwsgi; scgi_temp_path {path}/scgi;\n\
             server {{\n    listen unix:{path}/socket;\n    root {path};\n    add_header X-Request $connection:$connection_requests always;\n  }}\n}}\n"
        );
        let file = folder.path().join("nginx.conf");
        fs::write(&file, configuration).unwrap();
        let started =
            Command::new("nginx").args(["-e", &format!("{path}/error.log"), "-c"]).arg(&file).spawn();
        let nginx = Self {
            _process: Server(started.unwrap_or_else(|error| panic!("nginx: {error}: it {INSTALLED}"))),
            folder,
        };
        wait_until("nginx listens", || {
            std::os::unix::net::UnixStream::connect(nginx.folder.path().join("socket")).is_ok()
        });
        nginx
    }
}

#[test]
fn nginx_as_an_upstream() {
    let large: Vec<u8> = (0..3_000_000_u32).flat_map(u32::to_le_bytes).collect();
    let text = "all work and no play ".repeat(10_000);
    let nginx = Nginx::start(&[("large", &large), ("text.txt", text.as_bytes())]);
    let server = format!("unix:{}", nginx.folder.path().join("socket").display());
    let gateway = Gateway::start(&format!("[server]\nworkers = 1\n{}", forward_to(&[quoted(server)], "")));
    let mut client = gateway.client();
    let answer = client.get("/large");
    assert!(answer.status == 200 && answer.body == large);
    let (connection, _) = answer.header("x-request").unwrap().split_once(':').unwrap();

    // The connection is kept, whatever went over it.
    let ranged = client.get_with("/large", "Range: bytes=1000000-1000009\r\n");
    assert_eq!((ranged.status, ranged.body.as_slice()), (206, &large[1_000_000..1_000_010]));
    assert_eq!(ranged.header("content-range"), Some("bytes 1000000-1000009/12000000"));
    assert_eq!(client.get_with("/large", "Range: bytes=99999999-\r\n").status, 416);
    let tag = answer.header("etag").unwrap();
    let known = client.ask(&format!("GET /large\nIf-None-Match: {tag}"));
    assert_eq!((known.status, known.header("etag")), (304, Some(tag)));
    assert_eq!(client.ask("DELETE /large").status, 405);
    assert_eq!(client.get("/none").status, 404);
    let last = client.get_with("/text.txt", "Accept-Encoding: gzip\r\n");
    assert_eq!(
        (last.header("content-encoding"), last.header("transfer-encoding")),
        (Some("gzip"), Some("chunked"))
    );
    assert!(last.body.starts_with(&[0x1f, 0x8b]) && last.body.len() < text.len() / 10);
    assert_eq!(last.header("x-request"), Some(format!("{connection}:7").as_str()));
    // After HEAD it rests for a while. On a busy machine that may be longer, and then another connection is used.
    wait_until("a connection is used again, after a rest", || {
        let head = client.ask("HEAD /large");
        assert_eq!((head.status, head.header("content-length")), (200, Some("12000000")));
        std::thread::sleep(std::time::Duration::from_millis(200));
        let next = client.get("/none");
        let [before, after] =
            [&head, &next].map(|answer| answer.header("x-request").unwrap().split_once(':'));
        before.unwrap().0 == after.unwrap().0
    });

    let url = format!("http://{}/text.txt", gateway.address());
    assert_eq!(printed("curl", &["--silent", "--show-error", "--noproxy", "*", "--compressed", &url]), text);
}
