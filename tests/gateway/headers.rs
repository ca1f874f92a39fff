//! Header fields: those forwarded byte for byte, and those set by the gateway.

use std::sync::mpsc;

use crate::{
    forward_all,
    harness::{
        PATIENCE,
        gateway::Gateway,
        wire::{Wire, WireUpstream},
    },
};

/// A gateway in front of an upstream that shows what it was asked, and with this `[server]`.
fn recording(server: &str) -> (Gateway, mpsc::Receiver<String>) {
    let (seen, requests) = mpsc::channel();
    let upstream = WireUpstream::start(move |mut wire: Wire| {
        while let Some(request) = wire.request() {
            seen.send(request).unwrap();
            wire.send(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
        }
    });
    let gateway = Gateway::start(&format!("[server]\n{server}\n{}", forward_all(&upstream.url(), "")));
    (gateway, requests)
}

/// The values of a field in a request as it came.
fn lines<'r>(request: &'r str, name: &str) -> Vec<&'r str> {
    let fields = request.lines().skip(1).filter_map(|line| line.split_once(": "));
    fields.filter(|(other, _)| other.eq_ignore_ascii_case(name)).map(|(_, value)| value).collect()
}

#[test]
fn method_and_target_go_on_byte_for_byte_without_dot_segments() {
    let (gateway, requests) = recording("");
    for (sent, forwarded) in [
        ("GET /", "GET /"),
        ("BREW /pot", "BREW /pot"),
        ("OPTIONS /a", "OPTIONS /a"),
        ("GET //a//b/", "GET //a//b/"),
        ("GET /%7Ea%2fb%2Fc%41?x=%2f&&y=a+b&z", "GET /%7Ea%2fb%2Fc%41?x=%2f&&y=a+b&z"),
        ("GET /a/../b/./c?d=/../", "GET /b/c?d=/../"),
        ("GET /a/%2E%2e/b", "GET /b"),
        ("GET /a?", "GET /a?"),
        ("GET /;p=1/a:b@c,d!$&'()*", "GET /;p=1/a:b@c,d!$&'()*"),
        ("GET http://tollgate.test/a/./b?c", "GET /a/b?c"),
        ("GET http://tollgate.test", "GET /"),
    ] {
        assert_eq!(gateway.ask(sent).status, 200, "{sent}");
        let request = requests.recv_timeout(PATIENCE).unwrap();
        assert_eq!(request.lines().next(), Some(&*format!("{forwarded} HTTP/1.1")), "{sent}");
    }
}

#[test]
fn fields_go_on_with_their_duplicates_and_in_their_order() {
    let (gateway, requests) = recording("");
    gateway.ask("GET /\nX-One: a\nX-Two: b, c\nX-One: \u{e9}\nX-Empty:\nAuthorization: Basic eA==\nCookie: a=b\nRange: bytes=0-");
    let request = requests.recv_timeout(PATIENCE).unwrap();
    // The wire has bytes, read here as Latin-1: é is two of them.
    assert_eq!(lines(&request, "x-one"), ["a", "\u{c3}\u{a9}"]);
    assert_eq!(lines(&request, "x-two"), ["b, c"]);
    assert!(request.to_ascii_lowercase().contains("x-empty:"), "{request}");
    for (name, value) in [("authorization", "Basic eA=="), ("cookie", "a=b"), ("range", "bytes=0-")] {
        assert_eq!(lines(&request, name), [value]);
    }
    assert_eq!(lines(&request, "host"), ["tollgate.test"]);
}

/// Servers would join them with a comma, which a value may contain.
#[test]
fn lines_of_cookie_are_joined() {
    let (gateway, requests) = recording("");
    gateway.ask("GET /\nCookie: a=b\nCookie: c\nCookie:\nX: y\nCookie: d=e");
    let request = requests.recv_timeout(PATIENCE).unwrap();
    assert_eq!(lines(&request, "cookie"), ["a=b; c; d=e"]);
}

#[test]
fn hop_by_hop_fields_stay_behind_in_both_directions() {
    const HOP_BY_HOP: &str = "Connection: x-named, keep-alive\nX-Named: 1\nConnection: X-Other\nX-Other: 2\n\
        Keep-Alive: timeout=9\nProxy-Connection: keep-alive\nUpgrade: h2c\nX-Kept: 3";
    const NAMES: [&str; 6] = ["x-named", "x-other", "keep-alive", "proxy-connection", "upgrade", "te"];
    let (gateway, requests) = recording("");
    gateway.ask(&format!("GET /\n{HOP_BY_HOP}\nTE: gzip\nProxy-Authorization: Basic eA=="));
    let request = requests.recv_timeout(PATIENCE).unwrap();
    for name in NAMES.into_iter().chain(["connection", "proxy-authorization"]) {
        assert_eq!(lines(&request, name), [""; 0], "{request}");
    }
    assert_eq!(lines(&request, "x-kept"), ["3"]);

    let fields = HOP_BY_HOP.replace('\n', "\r\n");
    let upstream =
        WireUpstream::answering(format!("HTTP/1.1 200 OK\r\n{fields}\r\nContent-Length: 0\r\n\r\n"));
    let gateway = Gateway::start(&forward_all(&upstream.url(), ""));
    let answer = gateway.get("/");
    for name in NAMES {
        assert_eq!(answer.lines(name), [""; 0], "{answer:?}");
    }
    assert_eq!(answer.header("x-kept"), Some("3"));
}

#[test]
fn upstream_learns_who_asks_and_not_what_a_stranger_claims() {
    const CLAIMS: &str = "GET /\nHost: Shop.test:81\nX-Forwarded-For: 192.0.2.7\nX-Forwarded-For: 192.0.2.8\n\
        X-Forwarded-Proto: https\nX-Forwarded-Host: claimed.test\nX-Request-Id: claimed\nVia: 1.0 first";
    let (stranger, requests) = recording("");
    stranger.ask(CLAIMS);
    let request = requests.recv_timeout(PATIENCE).unwrap();
    for (name, value) in [
        ("host", "Shop.test:81"),
        ("x-forwarded-for", "127.0.0.1"),
        ("x-forwarded-proto", "http"),
        ("x-forwarded-host", "Shop.test:81"),
        ("via", "1.0 first, 1.1 tollgate"),
    ] {
        assert_eq!(lines(&request, name), [value], "{request}");
    }
    let id = lines(&request, "x-request-id")[0].to_owned();
    assert!(id.len() == 32 && id.bytes().all(|byte| byte.is_ascii_hexdigit()), "{id}");
    stranger.get("/");
    let request = requests.recv_timeout(PATIENCE).unwrap();
    assert_ne!(lines(&request, "x-request-id"), [id]);
    assert_eq!(lines(&request, "via"), ["1.1 tollgate"]);

    let (proxied, requests) = recording("trusted_proxies = [\"127.0.0.1/32\"]");
    proxied.ask(CLAIMS);
    let request = requests.recv_timeout(PATIENCE).unwrap();
    for (name, value) in [
        ("host", "Shop.test:81"),
        ("x-forwarded-for", "192.0.2.7, 192.0.2.8, 127.0.0.1"),
        ("x-forwarded-proto", "https"),
        ("x-forwarded-host", "claimed.test"),
        ("x-request-id", "claimed"),
    ] {
        assert_eq!(lines(&request, name), [value], "{request}");
    }
    proxied.get("/");
    let request = requests.recv_timeout(PATIENCE).unwrap();
    assert_eq!(
        (lines(&request, "x-forwarded-for"), lines(&request, "x-forwarded-proto")),
        (vec!["127.0.0.1"], vec!["http"])
    );
}

#[test]
fn a_whole_url_as_the_target_overrides_host() {
    let (gateway, requests) = recording("");
    gateway.ask("GET http://named.test:81/a\nHost: other.test");
    let request = requests.recv_timeout(PATIENCE).unwrap();
    assert_eq!(lines(&request, "host"), ["named.test:81"]);
    assert_eq!(lines(&request, "x-forwarded-host"), ["named.test:81"]);
}

#[test]
fn the_answer_goes_on_as_it_came() {
    let upstream = WireUpstream::answering(
        "HTTP/1.1 299 Fine\r\nSet-Cookie: a=1\r\nSet-Cookie: b=2\r\nX-Bytes: \u{e9}\r\nServer: up\r\n\
         Date: Thu, 01 Jan 1970 00:00:00 GMT\r\nWWW-Authenticate: Basic\r\nContent-Length: 3\r\n\r\nabc",
    );
    let gateway = Gateway::start(&forward_all(&upstream.url(), ""));
    let answer = gateway.get("/");
    assert_eq!((answer.status, answer.text()), (299, "abc".to_owned()));
    assert_eq!(answer.lines("set-cookie"), ["a=1", "b=2"]);
    for (name, value) in [
        ("x-bytes", "\u{e9}"),
        ("server", "up"),
        ("date", "Thu, 01 Jan 1970 00:00:00 GMT"),
        ("www-authenticate", "Basic"),
        ("content-length", "3"),
    ] {
        assert_eq!(answer.lines(name), [value]);
    }
    for name in ["ratelimit", "via"] {
        assert_eq!(answer.header(name), None);
    }
    assert_eq!(answer.header("x-request-id").map(str::len), Some(32));
}
