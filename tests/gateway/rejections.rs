//! The gateway's own responses, in place of an upstream's.

use std::{
    io::ErrorKind,
    net::{SocketAddr, TcpStream},
    time::{Duration, Instant},
};

use crate::{
    forward_all,
    harness::{
        PATIENCE, client::Answer, gateway::Gateway, upstream::Upstream, wait_until, wire::WireUpstream,
    },
};

/// Asserts that an answer is the gateway's own, with all its fields and nothing more.
fn assert_problem(answer: &Answer, status: u16, code: &str, detail: &str) {
    let titles = [
        (400, "Bad Request"),
        (404, "Not Found"),
        (501, "Not Implemented"),
        (502, "Bad Gateway"),
        (503, "Service Unavailable"),
        (504, "Gateway Timeout"),
    ];
    let (_, title) = titles.iter().find(|(of, _)| *of == status).unwrap();
    assert_eq!((answer.status, answer.header("content-type")), (status, Some("application/problem+json")));
    let problem = serde_json::json!({
        "type": "about:blank", "title": title, "status": status, "code": code, "detail": detail,
    });
    assert_eq!(answer.json(), problem);
}

#[test]
fn requests_that_name_no_place_are_rejected_before_the_charge() {
    let upstream = Upstream::hello();
    let gateway = Gateway::start(&format!(
        "[upstreams.api]\nservers = [\"{}\"]\n[limits.l]\nkey = \"ip\"\nrate = \"1/h\"\n\
         [[routes]]\npath = \"/a\"\nupstream = \"api\"\nlimits = [\"l\"]\n",
        upstream.url()
    ));
    for (request, status, code, detail) in [
        ("GET /a HTTP/1.1\r\n\r\n", 400, "host-missing", "the request has no Host field"),
        (
            "GET /a HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n",
            400,
            "host-repeated",
            "the request has more than one Host field",
        ),
        ("GET /a HTTP/1.1\r\nHost: a b\r\n\r\n", 400, "host-invalid", "the Host field is not a valid host"),
        ("GET /a HTTP/1.1\r\nHost: a@b\r\n\r\n", 400, "host-invalid", "the Host field is not a valid host"),
        (
            "GET * HTTP/1.1\r\nHost: a\r\n\r\n",
            400,
            "target-invalid",
            "the request's target is neither a path nor an http URL",
        ),
        (
            "GET /%6;1 HTTP/1.1\r\nHost: a\r\n\r\n",
            400,
            "target-invalid",
            "the path has `%00`, or a `%` without two hexadecimal digits behind it",
        ),
        ("CONNECT a:443 HTTP/1.1\r\nHost: a:443\r\n\r\n", 501, "connect", "CONNECT is not supported"),
        ("GET /b HTTP/1.1\r\nHost: a\r\n\r\n", 404, "no-route", "no route matches the request"),
    ] {
        let mut client = gateway.client();
        client.send(request.as_bytes());
        let answer = client.answer();
        assert_problem(&answer, status, code, detail);
        assert_eq!(answer.header("ratelimit"), None, "{request}");
    }
    // POCO takes FF for the end of the head, and what follows for another request.
    let mut client = gateway.client();
    client.send(b"GET /a HTTP/1.1\r\nHost: a\r\nX-A: \xFF\xFFGET /b HTTP/1.1\r\n\r\n");
    let detail = "a header field has the byte FF, or its name ends in -bin and its value isn't base64";
    assert_problem(&client.answer(), 400, "field-invalid", detail);
    assert_eq!(upstream.count(), 0);
    assert_eq!(gateway.get("/a").status, 200, "none of them was charged");
}

/// A server with a full backlog, so clients that connect wait. Dropping it ends the server.
struct FullBacklog {
    address: SocketAddr,
    _listener: tokio::net::TcpListener,
    _runtime: tokio::runtime::Runtime,
    _queued: Vec<TcpStream>,
}

impl FullBacklog {
    fn start() -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let listener = runtime.block_on(async {
            let socket = tokio::net::TcpSocket::new_v4().unwrap();
            socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
            socket.listen(1).unwrap()
        });
        let address = listener.local_addr().unwrap();
        let mut queued = Vec::new();
        loop {
            match TcpStream::connect_timeout(&address, Duration::from_millis(100)) {
                Ok(stream) => queued.push(stream),
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::TimedOut);
                    return Self { address, _listener: listener, _runtime: runtime, _queued: queued };
                }
            }
        }
    }
}

/// A port that is taken and not listened on.
fn refusing() -> (tokio::net::TcpSocket, SocketAddr) {
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let address = socket.local_addr().unwrap();
    (socket, address)
}

#[test]
fn an_upstream_that_gives_no_answer_is_told_without_its_address() {
    let (_taken, refusing) = refusing();
    let full = FullBacklog::start();
    let garbage = WireUpstream::answering("SSH-2.0-OpenSSH_9.6\r\n\r\n");
    let closing = WireUpstream::start(|mut wire| drop(wire.request()));
    let partial = WireUpstream::answering("HTTP/1.1 200 OK\r\nContent-");
    let both = WireUpstream::answering("HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab");
    let silent = WireUpstream::start(|mut wire| wire.wait_for_end());
    for (url, status, code, detail) in [
        (format!("http://{refusing}"), 502, "upstream-unreachable", "the upstream could not be reached"),
        (garbage.url(), 502, "upstream-broken", "no valid response from the upstream"),
        (closing.url(), 502, "upstream-broken", "no valid response from the upstream"),
        (both.url(), 502, "upstream-broken", "no valid response from the upstream"),
        (partial.url(), 504, "upstream-response-timeout", "the upstream took too long to answer"),
        (silent.url(), 504, "upstream-response-timeout", "the upstream took too long to answer"),
        (
            format!("http://{}", full.address),
            504,
            "upstream-connect-timeout",
            "connecting to the upstream took too long",
        ),
    ] {
        let timeouts =
            if status == 504 { "timeouts = { connect = \"300ms\", response = \"300ms\" }" } else { "" };
        let gateway = Gateway::start(&forward_all(&url, timeouts));
        let since = Instant::now();
        let answer = gateway.get("/");
        assert!(since.elapsed() < PATIENCE, "{code} took {:?}", since.elapsed());
        assert_problem(&answer, status, code, detail);
        assert!(!format!("{answer:?}").contains("127.0.0.1"), "{answer:?}");
        wait_until("the failure is logged", || gateway.log().contains(detail));
    }
}

#[test]
fn an_upstream_with_all_its_connections_busy_is_503() {
    let (upstream, release) =
        WireUpstream::answering_when_told(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
    let gateway = Gateway::start(&forward_all(&upstream.url(), "max_connections = 1"));
    let mut first = gateway.client();
    first.send(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    wait_until("the upstream is busy", || upstream.connections() == 1);
    let answer = gateway.get("/");
    assert_problem(&answer, 503, "upstream-busy", "all connections to the upstream are busy");
    assert_eq!(answer.header("retry-after"), Some("1"));
    release.send(()).unwrap();
    assert_eq!(first.answer().status, 200);
    assert_eq!(upstream.connections(), 1);
}

/// Whichever worker has the one connection. A request may still come before it is given back.
#[test]
fn a_connection_that_idles_is_not_busy() {
    let upstream = Upstream::hello();
    let gateway = Gateway::start(&format!(
        "[server]\nworkers = 4\n{}",
        forward_all(&upstream.url(), "max_connections = 1")
    ));
    let answered = (0..50).filter(|_| gateway.get("/").status == 200).count();
    assert!(answered > 40, "{answered}");
}

#[test]
fn a_client_that_sends_no_header_in_time_is_closed() {
    let gateway = Gateway::start(&format!(
        "[server]\ntimeouts = {{ header = \"200ms\" }}\n{}",
        forward_all(&Upstream::hello().url(), "")
    ));
    let mut client = gateway.client();
    let since = Instant::now();
    client.send(b"GET / HTTP/1.1\r\nHost: a\r\n");
    assert_eq!(client.rest(), b"");
    assert!(since.elapsed() < PATIENCE / 2, "{:?}", since.elapsed());
}
