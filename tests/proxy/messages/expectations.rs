//! Expect (RFC 9110, section 10.1.1): a rejection saves the upload.

use std::time::Duration;

use super::{LIMITED, Recording, body, lines};
use crate::harness::client::Client;

const EXPECTING: &str = "Host: a\r\nContent-Length: 5\r\nExpect: 100-Continue";

fn assert_refused(mut client: Client, status: u16) {
    assert_eq!(client.answer().status, status, "before a byte of the body is asked for");
    assert!(client.is_closed(), "what would follow could be the body or another request");
}

#[test]
fn a_refusal_costs_no_upload() {
    let recording = Recording::with(&format!("[server]\nmax_body = \"4B\"\n{LIMITED}"));
    assert_refused(recording.told(format!("PUT / HTTP/1.1\r\n{EXPECTING}\r\n\r\n")), 413);
    assert_refused(
        recording.told("PUT / HTTP/1.1\r\nContent-Length: 1\r\nExpect: 100-continue\r\n\r\n"),
        400,
    );
    recording.gateway.get("/limited");
    let small = EXPECTING.replace('5', "4");
    assert_refused(recording.told(format!("PUT /limited HTTP/1.1\r\n{small}\r\n\r\n")), 429);
    recording.assert_nothing_else();
}

#[test]
fn an_admitted_request_is_told_to_continue_when_its_body_is_wanted() {
    let recording = Recording::start();
    let mut client = recording.told(format!("PUT / HTTP/1.1\r\n{EXPECTING}\r\n\r\n"));
    assert_eq!(client.raw_head(), "HTTP/1.1 100 Continue\r\n\r\n");
    client.send(b"hello");
    let message = recording.message();
    assert_eq!((lines(&message, "expect"), body(&message)), (vec![], "hello"));
    assert_eq!(client.answer().status, 200);
    // However it says so.
    let repeated = EXPECTING.replace("100-Continue", "100-continue, 100-continue");
    client.send(format!("PUT / HTTP/1.1\r\n{repeated}\r\n\r\n").as_bytes());
    assert_eq!(client.raw_head(), "HTTP/1.1 100 Continue\r\n\r\n");
    client.send(b"hello");
    assert_eq!(body(&recording.message()), "hello");
    assert_eq!(client.answer().status, 200);
    // A client needn't wait for it.
    client.send(format!("PUT / HTTP/1.1\r\n{EXPECTING}\r\n\r\nhello").as_bytes());
    assert_eq!(body(&recording.message()), "hello");
    let mut answer = client.head();
    if answer.status == 100 {
        answer = client.head();
    }
    assert_eq!(answer.status, 200);
}

#[test]
fn without_a_body_there_is_nothing_to_continue() {
    let recording = Recording::start();
    for fields in ["Expect: 100-continue", "Content-Length: 0\r\nExpect: 100-continue"] {
        let mut client = recording.told(format!("GET / HTTP/1.1\r\nHost: a\r\n{fields}\r\n\r\n"));
        assert_eq!(client.answer().status, 200, "{fields}");
        assert_eq!(lines(&recording.message(), "expect"), [""; 0]);
    }
}

#[test]
fn http_1_0_expects_nothing() {
    let recording = Recording::start();
    for expected in ["100-continue", "other"] {
        let mut client = recording
            .told(format!("PUT / HTTP/1.0\r\nHost: a\r\nContent-Length: 5\r\nExpect: {expected}\r\n\r\n"));
        assert!(!client.hears_within(Duration::from_millis(200)), "1xx is not for HTTP/1.0");
        client.send(b"hello");
        assert_eq!(client.answer().status, 200);
        let message = recording.message();
        assert_eq!((lines(&message, "expect"), body(&message)), (vec![], "hello"));
    }
}

#[test]
fn other_expectations_fail() {
    let recording = Recording::start();
    for fields in
        ["Expect: 200-ok", "Expect:", "Expect: 100-continue, x", "Expect: x\r\nExpect: 100-continue"]
    {
        let mut client = recording
            .told(format!("PUT / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n{fields}\r\n\r\nhello"));
        let answer = client.answer();
        assert_eq!(
            (answer.status, answer.json()["code"].as_str()),
            (417, Some("expectation-unknown")),
            "{fields}"
        );
    }
    recording.assert_nothing_else();
}
