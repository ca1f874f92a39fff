//! The host and path of a request: `:authority`, or else a single Host (RFC 9113, section 8.3.1).

use super::{super::lines, Recording, replaced, request, send};
use crate::harness::frames::End;

const GET: &str = "GET";

#[test]
fn a_request_names_one_host() {
    let recording = Recording::start();
    let get = request(GET, &[]);
    let nameless = replaced(&get, ":authority", None);
    let with = |hosts: &[&'static str]| {
        [&nameless[..], &hosts.iter().map(|host| ("host", *host)).collect::<Vec<_>>()].concat()
    };
    let too_long: &str = "a".repeat(255).leak();
    for (request, code) in [
        (with(&[too_long]), "host-invalid"),
        (replaced(&get, ":authority", Some("a:123456")), "host-invalid"),
        (nameless.clone(), "host-missing"),
        (with(&["a", "a"]), "host-repeated"),
        (with(&["a", "b"]), "host-repeated"),
        (with(&[""]), "host-invalid"),
        (with(&["a b"]), "host-invalid"),
        (with(&["a%41"]), "host-invalid"),
        (with(&["a, b"]), "host-invalid"),
        (with(&["me@a"]), "host-invalid"),
        (with(&["http://a"]), "host-invalid"),
        (request(GET, &[("host", "b")]), "host-repeated"),
        (request(GET, &[("host", "a:80")]), "host-repeated"),
        (request(GET, &[("host", "a"), ("host", "a")]), "host-repeated"),
        (request(GET, &[("host", "")]), "host-invalid"),
        (replaced(&get, ":authority", Some("me@a")), "host-invalid"),
        (replaced(&get, ":authority", Some("a:b")), "host-invalid"),
        (replaced(&get, ":authority", Some("[::g]")), "host-invalid"),
    ] {
        recording.assert_problem(&request, &[], 400, code);
    }
    for authority in ["", "a b", "a/b", "http://a", "a\r\nx: y"] {
        recording.assert_malformed(&replaced(&get, ":authority", Some(authority)), &[]);
    }
    recording.assert_nothing_else();
}

#[test]
fn the_host_goes_on_as_it_is_named() {
    let recording = Recording::start();
    for host in ["a", "A.Example.:8080", "192.0.2.7", "[2001:db8::1]:80"] {
        let alone = replaced(&request(GET, &[]), ":authority", Some(host));
        let nameless = replaced(&alone, ":authority", None);
        for request in [
            alone.clone(),
            [&alone[..], &[("host", host)]].concat(),
            [&nameless[..], &[("host", host)]].concat(),
        ] {
            assert_eq!(recording.asked(&request, &[]).status, 200, "{request:?}");
            let message = recording.message();
            assert!(message.starts_with("GET /first HTTP/1.1\r\n"), "{message:?}");
            assert_eq!(
                (lines(&message, "host"), lines(&message, "x-forwarded-host")),
                (vec![host], vec![host])
            );
        }
    }
}

#[test]
fn a_target_is_a_path() {
    let recording = Recording::start();
    let to = |path| replaced(&request(GET, &[]), ":path", path);
    for path in ["*", "/a%00b"] {
        recording.assert_problem(&to(Some(path)), &[], 400, "target-invalid");
    }
    recording.assert_problem(&replaced(&to(Some("/")), ":scheme", Some("ftp")), &[], 400, "target-invalid");
    for path in [
        "a",
        "a/b",
        "a.test:80",
        "http://a/b",
        "",
        "/a b",
        "/a\r\nx: y",
        "/a HTTP/1.1\r\nHost: b\r\n\r\n",
        "/\0",
    ] {
        recording.assert_malformed(&to(Some(path)), &[]);
    }
    recording.assert_malformed(&to(None), &[]);
    recording.assert_nothing_else();
}

/// The scheme is the connection's, whatever the client says.
#[test]
fn a_scheme_is_no_proof_of_tls() {
    let recording = Recording::start();
    recording.asked(&replaced(&request(GET, &[]), ":scheme", Some("https")), &[]);
    assert_eq!(lines(&recording.message(), "x-forwarded-proto"), ["http"]);
}

#[test]
fn each_pseudo_field_comes_once_and_before_the_others() {
    let recording = Recording::start();
    let get = request(GET, &[]);
    for (name, value) in &get {
        let more = if *name == ":authority" { "b" } else { value };
        recording.assert_malformed(&[&get[..], &[(*name, more)]].concat(), &[]);
        recording.assert_malformed(&[&[(*name, more)], &get[..]].concat(), &[]);
        let behind = [&replaced(&get, name, None)[..], &[("x", "y"), (name, value)]].concat();
        recording.assert_malformed(&behind, &[]);
    }
    for other in [(":status", "200"), (":protocol", "websocket"), (":host", "a"), (":", "a")] {
        recording.assert_malformed(&[&[other], &get[..]].concat(), &[]);
    }
    recording.assert_nothing_else();
}

#[test]
fn connect_opens_no_tunnel() {
    let recording = Recording::start();
    let connect = [(":method", "CONNECT"), (":authority", "a.test:443")];
    recording.assert_problem(&connect, &[], 501, "connect");
    recording.assert_malformed(&request("CONNECT", &[]), &[]);
    // Nor WebSocket (RFC 8441), which isn't offered.
    recording.assert_malformed(&[&[(":protocol", "websocket")], &request("CONNECT", &[])[..]].concat(), &[]);
    recording.assert_nothing_else();
}

/// hyper ends the connection, and docs/http.md says so.
#[test]
fn connect_with_a_length_ends_all_requests_of_its_connection() {
    let recording = Recording::answering("", "");
    let mut client = recording.frames();
    send(&mut client, 1, &request("GET", &[]), &[]);
    recording.message();
    let connect = [(":method", "CONNECT"), (":authority", "a.test:443"), ("content-length", "1")];
    send(&mut client, 3, &connect, &["x"]);
    let told = client.told(1);
    assert_eq!((told.status, told.end), (0, End::Gone(None)), "{told:?}");
}

#[test]
fn options_of_the_server_are_the_gateways_own() {
    let recording = Recording::start();
    let options = replaced(&request("OPTIONS", &[]), ":path", Some("*"));
    let told = recording.asked(&options, &[]);
    assert_eq!((told.status, told.text().as_str()), (204, ""));
    recording.assert_problem(&replaced(&options, ":authority", None), &[], 400, "host-missing");
    recording.assert_nothing_else();
    recording.asked(&request("OPTIONS", &[]), &[]);
    assert!(recording.message().starts_with("OPTIONS /first HTTP/1.1\r\n"));
}
