//! Envoy's external authorization over gRPC, without Envoy: messages that it never sends, and those that its clients choose.

use std::{
    collections::HashMap,
    time::{Duration, Instant},
};

use bytes::Bytes;
use prost::{Message, Oneof};

use crate::{
    decisions::{Decider, THREE},
    harness::http2::{self, whole},
};

const CHECK: &str = "/envoy.service.auth.v3.Authorization/Check";

/// `CheckRequest`, with `AttributeContext`, `Request` and `Peer` inside it.
#[derive(Clone, PartialEq, Message)]
struct CheckRequest {
    #[prost(message, optional, tag = "1")]
    attributes: Option<Attributes>,
}

#[derive(Clone, PartialEq, Message)]
struct Attributes {
    #[prost(message, optional, tag = "1")]
    source: Option<Source>,
    #[prost(message, optional, tag = "4")]
    request: Option<Outer>,
}

#[derive(Clone, PartialEq, Message)]
struct Source {
    #[prost(message, optional, tag = "1")]
    address: Option<Address>,
}

#[derive(Clone, PartialEq, Message)]
struct Address {
    #[prost(message, optional, tag = "1")]
    socket: Option<Socket>,
}

#[derive(Clone, PartialEq, Message)]
struct Socket {
    #[prost(string, tag = "2")]
    address: String,
    #[prost(uint32, tag = "3")]
    port: u32,
}

#[derive(Clone, PartialEq, Message)]
struct Outer {
    #[prost(message, optional, tag = "2")]
    http: Option<Http>,
}

#[derive(Clone, PartialEq, Message)]
struct Http {
    #[prost(string, tag = "2")]
    method: String,
    #[prost(map = "string, bytes", tag = "3")]
    headers: HashMap<String, Vec<u8>>,
    #[prost(bytes = "vec", tag = "4")]
    path: Vec<u8>,
    #[prost(string, tag = "5")]
    host: String,
    #[prost(string, tag = "6")]
    scheme: String,
    #[prost(message, optional, tag = "13")]
    header_map: Option<Lines>,
}

#[derive(Clone, PartialEq, Message)]
struct Lines {
    #[prost(message, repeated, tag = "1")]
    lines: Vec<Line>,
}

#[derive(Clone, PartialEq, Message)]
struct Line {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(bytes = "vec", tag = "3")]
    raw_value: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
struct CheckResponse {
    #[prost(message, optional, tag = "1")]
    status: Option<Code>,
    #[prost(oneof = "Decision", tags = "2, 3")]
    decision: Option<Decision>,
}

#[derive(Clone, PartialEq, Message)]
struct Code {
    #[prost(int32, tag = "1")]
    code: i32,
}

#[derive(Clone, PartialEq, Oneof)]
enum Decision {
    #[prost(message, tag = "2")]
    Denied(Denied),
    #[prost(message, tag = "3")]
    Ok(Admitted),
}

#[derive(Clone, PartialEq, Message)]
struct Denied {
    #[prost(message, optional, tag = "1")]
    status: Option<Code>,
    #[prost(string, tag = "3")]
    body: String,
}

#[derive(Clone, PartialEq, Message)]
struct Admitted {}

/// Returns the answer to a call, or its status of gRPC.
fn call(decider: &Decider, fields: &[(&str, &str)], body: Vec<u8>) -> Result<CheckResponse, u32> {
    let mut answer = Err(u32::MAX);
    http2::run(async {
        let mut client = http2::connect(decider.address).await;
        let fields = [&[("content-type", "application/grpc"), ("te", "trailers")], fields].concat();
        let (response, mut sent) = client.begin("POST", CHECK, &fields, true);
        // The answer may be there before all of a call is sent.
        let _ = sent.send_data(Bytes::from(body), true);
        let (head, body) = response.await.unwrap().into_parts();
        assert_eq!(head.status, 200);
        let (body, trailers) = whole(body).await.unwrap();
        let status = trailers.unwrap_or(head.headers)["grpc-status"].to_str().unwrap().parse().unwrap();
        answer = if status == 0 { Ok(CheckResponse::decode(&body[5..]).unwrap()) } else { Err(status) };
    });
    answer
}

fn framed(message: &impl Message) -> Vec<u8> {
    let message = message.encode_to_vec();
    [&[0][..], &u32::try_from(message.len()).unwrap().to_be_bytes(), &message].concat()
}

/// A request for this path, of a client with this address and these header fields.
fn check(address: &str, path: &[u8], headers: &[(&str, &[u8])]) -> Vec<u8> {
    let headers = headers.iter().map(|(name, value)| ((*name).to_owned(), value.to_vec())).collect();
    check_http(address, path, Http { headers, ..Http::default() })
}

/// The same, with the header as `encode_raw_headers` has it.
fn check_raw(address: &str, path: &[u8], headers: &[(&str, &[u8])]) -> Vec<u8> {
    let line = |(name, value): &(&str, &[u8])| Line { name: (*name).into(), raw_value: value.to_vec() };
    let header_map = Some(Lines { lines: headers.iter().map(line).collect() });
    check_http(address, path, Http { header_map, ..Http::default() })
}

fn check_http(address: &str, path: &[u8], header: Http) -> Vec<u8> {
    let (method, host, scheme) = ("GET".to_owned(), "shop.test".to_owned(), "https".to_owned());
    let http = Http { method, path: path.to_vec(), host, scheme, ..header };
    let socket = Socket { address: address.to_owned(), port: 4711 };
    let attributes = Attributes {
        source: Some(Source { address: Some(Address { socket: Some(socket) }) }),
        request: Some(Outer { http: Some(http) }),
    };
    framed(&CheckRequest { attributes: Some(attributes) })
}

/// Returns the status that the proxy's client gets. 0 means that its request is forwarded.
fn status(answer: Result<CheckResponse, u32>) -> i32 {
    let answer = answer.unwrap();
    let code = answer.status.unwrap().code;
    match answer.decision.unwrap() {
        Decision::Ok(Admitted {}) => code,
        Decision::Denied(denied) => {
            assert_ne!(code, 0);
            assert!(denied.body.starts_with('{'), "{}", denied.body);
            denied.status.unwrap().code
        }
    }
}

#[test]
fn clients_are_told_apart_by_their_address() {
    let decider = Decider::start("", THREE);
    // A client's own word on its address isn't believed.
    let ask = |address: &str, claim: &[u8]| {
        status(call(&decider, &[], check(address, b"/api/a", &[("x-forwarded-for", claim)])))
    };
    let asked = [1, 2, 3, 4].map(|claim| ask("203.0.113.5", format!("198.51.100.{claim}").as_bytes()));
    assert_eq!(asked, [0, 0, 0, 429]);
    assert_eq!(ask("203.0.113.6", b"203.0.113.5"), 0);
}

#[test]
fn whatever_a_client_sends_is_decided() {
    let limited = THREE.replace("\"ip\"", "\"header:x-api-key\"");
    let decider = Decider::start("", &limited);
    let long = vec![b'a'; 60 << 10];
    for value in [&b"\xfe\xfd"[..], b"", &long, "grün".as_bytes()] {
        let ask = || status(call(&decider, &[], check("203.0.113.5", b"/api/a", &[("x-api-key", value)])));
        assert_eq!([ask(), ask(), ask(), ask()], [0, 0, 0, 429], "{} bytes", value.len());
    }
    for (path, expected) in [(&b"/api/%00"[..], 400), (b"no path", 400), (b"", 400), (b"/other", 0)] {
        assert_eq!(status(call(&decider, &[], check("203.0.113.5", path, &[]))), expected, "{path:?}");
    }
    let with_ff = [("x-api-key", &b"\xfe\xff"[..])];
    assert_eq!(status(call(&decider, &[], check("203.0.113.5", b"/api/a", &with_ff))), 400);
    // Both forms of a header name the same key.
    for value in [&b"\xfe\xfd"[..], b"", &long, "grün".as_bytes()] {
        let headers = [(":path", &b"/"[..]), ("x-api-key", value)];
        assert_eq!(status(call(&decider, &[], check_raw("203.0.113.5", b"/api/a", &headers))), 429);
    }
    let many: Vec<_> = (0..2_000).map(|at| format!("x-{at}")).collect();
    let many: Vec<_> = many.iter().map(|name| (name.as_str(), &b"a"[..])).collect();
    for check in [check, check_raw] {
        assert_eq!(status(call(&decider, &[], check("203.0.113.5", b"/api/a", &many))), 431);
    }
    // A client that says it speaks gRPC is refused in the same way.
    let mut of_grpc = many.clone();
    of_grpc.insert(0, ("content-type", b"application/grpc"));
    for (path, headers, expected) in [
        (&b"/api/a"[..], of_grpc, 431),
        (b"/api/../a", vec![("content-type", &b"application/grpc+proto"[..])], 400),
    ] {
        for check in [check, check_raw] {
            assert_eq!(status(call(&decider, &[], check("203.0.113.5", path, &headers))), expected);
        }
    }
    // Those that are dropped count, too: behind them may be the field that names the key.
    let dropped = vec![("x_dropped", &b"a"[..]); 101];
    for many in [dropped, vec![("", &b""[..]); 500_000]] {
        assert_eq!(status(call(&decider, &[], check_raw("203.0.113.5", b"/api/a", &many))), 431);
    }
}

#[test]
fn space_around_a_described_value_makes_no_other_key() {
    let limited = THREE.replace("\"ip\"", "\"header:x-api-key\"");
    let decider = Decider::start("", &limited);
    for check in [check, check_raw] {
        let ask = |value: &[u8]| {
            status(call(&decider, &[], check("203.0.113.5", b"/api/a", &[("x-api-key", value)])))
        };
        let asked = [&b"k1"[..], b" k1", b"k1\t ", b"\tk1"].map(ask);
        assert_eq!(asked[3], 429, "{asked:?}");
    }
}

/// Servers get the cookie as one line, and some end a value at a comma behind `$Version`.
#[test]
fn a_described_cookie_that_was_split_is_read_as_one() {
    let limited = THREE.replace("\"ip\"", "\"cookie:sid\"");
    let decider = Decider::start("", &limited);
    let ask =
        |headers: &[(&str, &[u8])]| status(call(&decider, &[], check_raw("203.0.113.5", b"/api/a", headers)));
    let split = [("cookie", &b"$Version=1"[..]), ("cookie", b"sid=k1,x")];
    assert_eq!([ask(&[("cookie", b"sid=k1")]), ask(&[("cookie", b"sid=k1")]), ask(&split)], [0, 0, 0]);
    assert_eq!([ask(&split), ask(&[("cookie", b"sid=k1")])], [429, 429]);
}

#[test]
fn bad_messages_have_a_status() {
    let decider = Decider::start("", THREE);
    let invalid = 3;
    assert_eq!(call(&decider, &[], Vec::new()), Err(invalid));
    assert_eq!(call(&decider, &[], b"\0\0\0\0\x02\x0a\x05".to_vec()), Err(invalid));
    assert_eq!(call(&decider, &[], framed(&CheckRequest::default())), Err(invalid));
    let large = check("203.0.113.5", b"/api/a", &[("x-large", &vec![b'a'; 1 << 20])]);
    let exhausted = 8;
    assert_eq!(call(&decider, &[], large), Err(exhausted));
    // A method that isn't there.
    http2::run(async {
        let mut client = http2::connect(decider.address).await;
        let (head, _) = client.call("/envoy.service.auth.v3.Authorization/Ask", &[]).await;
        assert_eq!(head.headers["grpc-status"], "12");
    });
}

#[test]
fn a_wait_ends_before_the_caller_gives_up() {
    let waiting = THREE.replace("\"3/h\"", "\"1/3s\"\nwait = \"30s\"");
    let decider = Decider::start("", &waiting);
    let message = || check("203.0.113.5", b"/api/a", &[]);
    assert_eq!(status(call(&decider, &[], message())), 0);
    let asked = Instant::now();
    for deadline in [("grpc-timeout", "500m"), ("x-envoy-expected-rq-timeout-ms", "500")] {
        assert_eq!(status(call(&decider, &[deadline], message())), 429, "{deadline:?}");
    }
    let http = "GET /check\nX-Forwarded-Uri: /api/a\nX-Forwarded-For: 203.0.113.5";
    assert_eq!(decider.ask(&format!("{http}\nX-Envoy-Expected-Rq-Timeout-Ms: 500")).status, 429);
    assert!(
        asked.elapsed() < Duration::from_millis(1_500),
        "it would have to wait 3 s: {:?}",
        asked.elapsed()
    );
    assert_eq!(decider.ask(http).status, 200, "a caller without a deadline waits");
}
