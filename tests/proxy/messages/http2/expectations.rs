//! Expect (RFC 9110, section 10.1.1): a rejection saves the upload. hyper's server can't send 100 in HTTP/2. Clients must not
//! wait for one indefinitely, and those that do get 408.

use std::{
    sync::mpsc,
    time::{Duration, Instant},
};

use super::{
    super::{FINE, LIMITED, body, lines},
    Recording, replaced, request,
};
use crate::{
    harness::{
        PATIENCE,
        frames::{DATA, END_HEADERS, END_STREAM, End, Frames, HEADERS, NO_ERROR, RST_STREAM, fields},
        gateway::Gateway,
        wire::WireUpstream,
    },
    proxy::{curl, forward_to, quoted},
};

const EXPECTING: [(&str, &str); 2] = [("expect", "100-Continue"), ("content-length", "5")];

#[test]
fn a_refusal_costs_no_upload() {
    let recording = Recording::with(&format!("[server]\nmax_body = \"5B\"\n{LIMITED}"));
    recording.gateway.get("/limited");
    let put = request("PUT", &EXPECTING);
    for (request, status, code) in [
        (replaced(&put, "content-length", Some("6")), 413, "body-too-large"),
        (replaced(&put, ":authority", None), 400, "host-missing"),
        (replaced(&put, ":path", Some("/limited")), 429, "quota-exceeded"),
        (replaced(&put, "expect", Some("200-ok")), 417, "expectation-unknown"),
        (replaced(&put, "expect", Some("")), 417, "expectation-unknown"),
        (replaced(&put, "expect", Some("100-continue, x")), 417, "expectation-unknown"),
    ] {
        let mut client = recording.frames();
        client.send(HEADERS, END_HEADERS, 1, &fields(&request));
        let told = client.told(1);
        assert_eq!((told.status, told.end, told.code().as_str()), (status, End::Whole, code), "{request:?}");
        assert_eq!(client.next_of(RST_STREAM).code(), NO_ERROR);
    }
    recording.assert_nothing_else();
}

#[test]
fn an_admitted_request_goes_on_and_its_body_when_it_comes() {
    let (seen, messages) = mpsc::channel();
    let upstream = WireUpstream::start(move |mut wire| {
        while let Some(head) = wire.request() {
            seen.send(head).unwrap();
            seen.send(String::from_utf8(wire.read(5)).unwrap()).unwrap();
            wire.send(FINE.as_bytes());
        }
    });
    let gateway = Gateway::start(&forward_to(&[quoted(upstream.url())], ""));
    let mut client = Frames::connect(gateway.address());
    client.send(HEADERS, END_HEADERS, 1, &fields(&request("PUT", &EXPECTING)));
    let head = messages.recv_timeout(PATIENCE).expect("the upstream is asked before the body comes");
    assert_eq!((lines(&head, "expect"), lines(&head, "content-length")), (vec![], vec!["5"]));
    client.send(DATA, END_STREAM, 1, b"hello");
    assert_eq!(messages.recv_timeout(PATIENCE).unwrap(), "hello");
    let told = client.told(1);
    assert_eq!((told.status, told.end), (200, End::Whole), "the first head is the answer's");
}

#[test]
fn who_waits_for_ever_is_told_so() {
    let recording = Recording::with("[server]\ntimeouts = { idle = \"300ms\" }");
    let mut client = recording.frames();
    let since = Instant::now();
    client.send(HEADERS, END_HEADERS, 1, &fields(&request("PUT", &EXPECTING)));
    let told = client.told(1);
    assert_eq!((told.status, told.end, told.code().as_str()), (408, End::Whole, "request-timeout"));
    assert!((Duration::from_millis(300)..PATIENCE).contains(&since.elapsed()));
    recording.assert_nothing_else();
}

#[test]
fn curl_waits_for_a_second_and_goes_on() {
    let recording = Recording::start();
    let told = curl(
        &recording.gateway,
        &[
            "--http2-prior-knowledge",
            "--header",
            "Expect: 100-continue",
            "--data",
            "hello",
            "--write-out",
            "%{http_code}",
            "http://{address}/",
        ],
    );
    assert_eq!(told, "200");
    let message = recording.message();
    assert_eq!((lines(&message, "expect"), body(&message)), (vec![], "hello"));
}

#[test]
fn without_a_body_there_is_nothing_to_continue() {
    let recording = Recording::start();
    assert_eq!(recording.asked(&request("GET", &EXPECTING[..1]), &[]).status, 200);
    assert_eq!(lines(&recording.message(), "expect"), [""; 0]);
}
