//! Interim responses (RFC 9110, section 15.2): their recipients, their form, and their bound.

use std::{io::Write, sync::mpsc, thread};

use super::{Recording, lines};
use crate::{
    harness::{
        PATIENCE,
        frames::{Frames, get},
        gateway::Gateway,
        wire::WireUpstream,
    },
    proxy::{forward_to, quoted},
};

const HINT: &str = "HTTP/1.1 103 Early Hints\r\nLink: </a>; rel=preload\r\nConnection: x-own\r\nX-Own: 1\r\n\
    Content-Length: 7\r\nX-Secret: 2\r\nlink: </b>\r\n\r\n";
const FORWARDED: &str =
    "HTTP/1.1 103 Early Hints\r\nLink: </a>; rel=preload\r\nlink: </b>\r\nX-Secret: 2\r\n\r\n";
const FINE: &str = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nup";
const GET: &str = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";

/// The head of a hint, with its fields in the order of their names.
fn sorted(head: &str) -> Vec<&str> {
    let mut lines: Vec<_> = head.split("\r\n").collect();
    lines[1..].sort_unstable();
    lines
}

#[test]
fn early_hints_reach_a_client_of_http_1_1_before_the_answer() {
    let (tell, told) = mpsc::channel();
    let told = std::sync::Mutex::new(told);
    let upstream = WireUpstream::start(move |mut wire| {
        while wire.message().is_some() {
            wire.send(b"HTTP/1.1 100 Continue\r\n\r\n");
            wire.send(&HINT.as_bytes()[..20]);
            wire.send(&HINT.as_bytes()[20..]);
            wire.send(b"HTTP/1.1 102 Processing\r\n\r\n");
            told.lock().unwrap().recv().unwrap();
            wire.send(FINE.as_bytes());
        }
    });
    let gateway = Gateway::start(&forward_to(&[quoted(upstream.url())], ""));
    let mut client = gateway.client();
    for request in
        [GET, "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n\r\n"]
    {
        client.send(request.as_bytes());
        let hint = client.raw_head();
        assert_eq!(sorted(&hint), sorted(FORWARDED), "{hint:?}");
        assert_eq!(client.raw_head(), "HTTP/1.1 102 Processing\r\n\r\n");
        tell.send(()).unwrap();
        let head = client.raw_head();
        assert!(head.starts_with("HTTP/1.1 200 OK\r\n") && lines(&head, "link").is_empty(), "{head}");
        assert_eq!(client.bytes(2), b"up");
    }
}

#[test]
fn hints_that_come_with_the_answer_stand_before_it() {
    let recording = Recording::answering([HINT, FINE].concat(), "");
    let mut client = recording.told(GET.repeat(3));
    for _ in 0..3 {
        assert_eq!(sorted(&client.raw_head()), sorted(FORWARDED));
        assert_eq!(client.answer().text(), "up");
    }
}

#[test]
fn hints_stay_behind_for_clients_that_do_not_know_them() {
    let recording = Recording::answering([HINT, FINE].concat(), "");
    let mut client = recording.told("GET / HTTP/1.0\r\nHost: a\r\n\r\n");
    assert!(client.raw_head().starts_with("HTTP/1.0 200 OK\r\n"));
    assert_eq!(client.rest(), b"up");
    // hyper's server can't send any in HTTP/2.
    let mut client = Frames::connect(recording.gateway.address());
    client.ask(1, &get("/", &[]));
    let told = client.told(1);
    assert_eq!((told.status, told.text().as_str()), (200, "up"));
}

#[test]
fn a_route_edits_hints_as_it_edits_answers() {
    let upstream = WireUpstream::answering([HINT, FINE].concat());
    let edits = "response_headers = { remove = \"x-secret\", set = { x-set = \"1\" } }";
    let gateway = Gateway::start(&format!("{}{edits}\n", forward_to(&[quoted(upstream.url())], "")));
    let mut client = gateway.client();
    client.send(GET.as_bytes());
    let hint = client.raw_head();
    assert!(lines(&hint, "x-secret").is_empty() && lines(&hint, "x-set") == ["1"], "{hint:?}");
    assert_eq!(client.answer().text(), "up");
}

#[test]
fn a_client_that_asks_for_100_gets_hints_as_well() {
    let upstream = WireUpstream::start(|mut wire| {
        wire.request();
        wire.send(HINT.as_bytes());
        assert_eq!(wire.read(2), b"hi");
        wire.send([HINT, FINE].concat().as_bytes());
    });
    let gateway = Gateway::start(&forward_to(&[quoted(upstream.url())], ""));
    let mut client = gateway.client();
    client.send(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\n");
    assert_eq!(client.raw_head(), "HTTP/1.1 100 Continue\r\n\r\n");
    assert_eq!(sorted(&client.raw_head()), sorted(FORWARDED));
    client.send(b"hi");
    assert_eq!(sorted(&client.raw_head()), sorted(FORWARDED));
    assert_eq!(client.answer().text(), "up");
}

/// A client that takes nothing loses hints, and the gateway no memory.
#[test]
fn hints_that_a_client_does_not_take_are_dropped() {
    let large = format!("HTTP/1.1 103 Early Hints\r\nLink: {}\r\n\r\n", "x".repeat(100 << 10));
    let (seen, sent) = mpsc::channel();
    let upstream = WireUpstream::start(move |mut wire| {
        wire.request();
        for _ in 0..100 {
            wire.send(large.as_bytes());
        }
        wire.send(FINE.as_bytes());
        seen.send(()).unwrap();
        wire.wait_for_end();
    });
    let gateway = Gateway::start(&forward_to(&[quoted(upstream.url())], ""));
    let before = gateway.memory_kib("VmHWM");
    let mut client = gateway.client();
    client.send(GET.as_bytes());
    sent.recv_timeout(PATIENCE).unwrap();
    let mut heads = 0;
    while client.head().status == 103 {
        heads += 1;
    }
    assert!((1..=100).contains(&heads), "{heads}");
    assert_eq!(client.bytes(2), b"up");
    assert!(gateway.grew_kib(before) < 8 << 10, "grew by {} KiB", gateway.grew_kib(before));
}

#[test]
fn hints_without_end_end_the_exchange() {
    let hints = |count| format!("{}{FINE}", "HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n".repeat(count));
    let recording = Recording::answering(hints(100), "");
    let mut client = recording.told(GET);
    assert_eq!((0..100).map(|_| client.head().status).collect::<Vec<_>>(), [103; 100]);
    assert_eq!(client.answer().text(), "up");

    let (seen, ends) = mpsc::channel();
    let upstream = WireUpstream::start(move |mut wire| {
        wire.request();
        while wire.stream().write_all(HINT.as_bytes()).is_ok() {}
        seen.send(()).unwrap();
    });
    let gateway = Gateway::start(&forward_to(&[quoted(upstream.url())], "timeouts = { response = \"10m\" }"));
    let before = gateway.memory_kib("VmHWM");
    let mut client = gateway.client();
    client.send(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n");
    let reader = thread::spawn(move || {
        let mut hints = 0;
        loop {
            match client.head().status {
                103 => hints += 1,
                status => return (hints, status),
            }
        }
    });
    ends.recv_timeout(PATIENCE).expect("the connection upstream ends");
    assert_eq!(reader.join().unwrap(), (100, 502));
    assert!(gateway.grew_kib(before) < 8 << 10, "grew by {} KiB", gateway.grew_kib(before));
}
