//! The host and path of a request: exactly one Host, and a target with a path (RFC 9112, section 3.2).

use super::{Recording, lines};

/// Asserts that a request is the client's fault, and that the upstream never hears of it.
fn assert_refused(recording: &Recording, request: &str, status: u16, code: &str) {
    let answer = recording.told(request).answer();
    assert_eq!((answer.status, answer.json()["code"].as_str()), (status, Some(code)), "{request:?}");
}

#[test]
fn a_request_names_one_host() {
    let recording = Recording::start();
    for (request, code) in [
        ("GET / HTTP/1.1\r\n\r\n", "host-missing"),
        ("GET http://a/ HTTP/1.1\r\n\r\n", "host-missing"),
        ("GET / HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n", "host-repeated"),
        ("GET / HTTP/1.1\r\nHost: a\r\nhost: b\r\n\r\n", "host-repeated"),
        ("GET http://a/ HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", "host-repeated"),
        ("GET / HTTP/1.0\r\nHost: a\r\nHost: a\r\n\r\n", "host-repeated"),
        ("GET / HTTP/1.1\r\nHost:\r\n\r\n", "host-invalid"),
        ("GET / HTTP/1.1\r\nHost: \t \r\n\r\n", "host-invalid"),
        ("GET / HTTP/1.1\r\nHost: a b\r\n\r\n", "host-invalid"),
        ("GET / HTTP/1.1\r\nHost: a, b\r\n\r\n", "host-invalid"),
        ("GET / HTTP/1.1\r\nHost: a/b\r\n\r\n", "host-invalid"),
        ("GET / HTTP/1.1\r\nHost: me@a\r\n\r\n", "host-invalid"),
        ("GET / HTTP/1.1\r\nHost: a%41\r\n\r\n", "host-invalid"),
        ("GET / HTTP/1.1\r\nHost: a:b\r\n\r\n", "host-invalid"),
        ("GET / HTTP/1.1\r\nHost: http://a\r\n\r\n", "host-invalid"),
        ("GET / HTTP/1.1\r\nHost: [::g]\r\n\r\n", "host-invalid"),
        // The target's counts, but Host must be one all the same.
        ("GET http://a/ HTTP/1.1\r\nHost: a b\r\n\r\n", "host-invalid"),
        ("GET http://me@a/ HTTP/1.1\r\nHost: a\r\n\r\n", "host-invalid"),
    ] {
        assert_refused(&recording, request, 400, code);
    }
    recording.assert_nothing_else();
    for host in ["a", "A.Example.:8080", "192.0.2.7", "[2001:db8::1]:80", "xn--bcher-kva.example"] {
        recording.told(format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n")).head();
        assert_eq!(lines(&recording.message(), "host"), [host]);
    }
}

#[test]
fn http_1_0_may_name_no_host_and_the_upstream_is_told_its_own() {
    let recording = Recording::start();
    assert_eq!(recording.told("GET /a HTTP/1.0\r\n\r\n").head().status, 200);
    let message = recording.message();
    assert!(message.starts_with("GET /a HTTP/1.1\r\n"), "{message:?}");
    let [host] = lines(&message, "host")[..] else { panic!("{message:?}") };
    assert!(host.starts_with("127.0.0.1:"), "{host}");
}

#[test]
fn a_whole_url_says_the_host_and_replaces_the_field() {
    let recording = Recording::start();
    for (target, forwarded, host) in [
        ("http://named.test:81/a?b", "/a?b", "named.test:81"),
        ("https://Named.test/a", "/a", "Named.test"),
        ("http://named.test", "/", "named.test"),
        ("http://named.test?b", "/?b", "named.test"),
    ] {
        recording.told(format!("GET {target} HTTP/1.1\r\nhOsT: other.test\r\n\r\n")).head();
        let message = recording.message();
        assert!(message.starts_with(&format!("GET {forwarded} HTTP/1.1\r\n")), "{message:?}");
        assert_eq!(lines(&message, "host"), [host]);
        assert_eq!(lines(&message, "x-forwarded-host"), [host]);
        assert!(!message.contains("other.test"), "{message:?}");
    }
}

#[test]
fn a_target_is_a_path_or_an_http_url() {
    let recording = Recording::start();
    for target in ["a.test", "a.test:80", "a.test:443/", "ftp://a.test/b", "*", "a/b", "/a%00b"] {
        let request = format!("GET {target} HTTP/1.1\r\nHost: a\r\n\r\n");
        let answer = recording.told(request).answer();
        let code = answer.json()["code"].as_str().unwrap().to_owned();
        // Where hyper reads no target at all, it is no request.
        assert!(["target-invalid", "request-malformed"].contains(&&*code), "{target}: {code}");
        assert_eq!(answer.status, 400, "{target}");
    }
    for target in ["", "http:///b", "http://", "?a", "#a", "/\u{0}", "/\u{1}", "/<", "/>", "/`"] {
        let answer = recording.told(format!("GET {target} HTTP/1.1\r\nHost: a\r\n\r\n")).head();
        assert_eq!(answer.status, 400, "{target}");
    }
    recording.assert_nothing_else();
}

#[test]
fn what_browsers_leave_unescaped_in_a_target_is_forwarded() {
    let recording = Recording::start();
    for end in ["\"", "\\", "^", "{", "|", "}", "?\\", "?^", "?`", "?{", "?|", "?}"] {
        recording.told(format!("GET /a{end} HTTP/1.1\r\nHost: a\r\n\r\n")).head();
        let message = recording.message();
        assert!(message.starts_with(&format!("GET /a{end} HTTP/1.1\r\n")), "{message:?}");
    }
    for end in ["<", ">", "`", "?<", "?>", "?\""] {
        let request = format!("GET /a{end} HTTP/1.1\r\nHost: a\r\n\r\n");
        assert_refused(&recording, &request, 400, "request-malformed");
    }
}

#[test]
fn connect_opens_no_tunnel() {
    let recording = Recording::start();
    assert_refused(&recording, "CONNECT a.test:443 HTTP/1.1\r\nHost: a.test:443\r\n\r\n", 501, "connect");
    assert_refused(&recording, "CONNECT / HTTP/1.1\r\nHost: a\r\n\r\n", 501, "connect");
    recording.assert_nothing_else();
}

/// RFC 9110, section 9.3.7: to its clients the gateway is the server that `*` is about.
#[test]
fn options_of_the_server_are_the_gateways_own() {
    let recording = Recording::start();
    let answer = recording.told("OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n").head();
    assert_eq!((answer.status, answer.header("content-type")), (204, None));
    assert_refused(&recording, "OPTIONS * HTTP/1.1\r\n\r\n", 400, "host-missing");
    recording.assert_nothing_else();
    for (target, forwarded) in [("/a", "/a"), ("http://a", "/"), ("http://a/", "/")] {
        recording.told(format!("OPTIONS {target} HTTP/1.1\r\nHost: a\r\n\r\n")).head();
        assert!(recording.message().starts_with(&format!("OPTIONS {forwarded} HTTP/1.1\r\n")), "{target}");
    }
}
