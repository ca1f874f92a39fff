//! A message truncated on one side is truncated on the other, never ended. A client that is rejected while sending can read
//! the response.

use std::{io::Write, sync::mpsc, thread, time::Duration};

use super::{LIMITED, Recording};
use crate::{
    harness::{PATIENCE, gateway::Gateway, wire::WireUpstream},
    proxy::{forward_to, quoted},
};

fn gateway_to(upstream: &WireUpstream) -> Gateway {
    Gateway::start(&forward_to(&[quoted(upstream.url())], ""))
}

#[test]
fn an_answer_that_is_cut_short_is_never_ended() {
    for (framing, part) in [
        ("Content-Length: 100", "half of it"),
        ("Transfer-Encoding: chunked", "64\r\nhalf of it"),
        ("Transfer-Encoding: chunked", "a\r\nhalf of it\r\n"),
        ("Transfer-Encoding: chunked", "a\r\nhalf of it\r\n0"),
        ("Transfer-Encoding: chunked", "a\r\nhalf of it\r\n0\r\nX: y\r\n"),
        // No cut, and no end either.
        ("Transfer-Encoding: chunked", "a\r\nhalf of it\r\nno chunk\r\n\r\n"),
        ("Transfer-Encoding: chunked", "a\r\nhalf of it\r\n0x0\r\n\r\n"),
        ("Transfer-Encoding: chunked", "a\r\nhalf of it\n0\r\n\r\n"),
        ("Transfer-Encoding: chunked", "a\r\nhalf of it\r\nffffffffffffffffff\r\n\r\n"),
    ] {
        let upstream = WireUpstream::start(move |mut wire| {
            wire.request();
            wire.send(format!("HTTP/1.1 200 OK\r\n{framing}\r\n\r\n{part}").as_bytes());
        });
        let gateway = gateway_to(&upstream);
        let mut client = gateway.client();
        client.send(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n");
        assert_eq!(client.raw_head().split("\r\n").next(), Some("HTTP/1.1 200 OK"));
        let rest = String::from_utf8(client.rest()).unwrap();
        assert!(rest.contains("half of it") && !rest.ends_with("0\r\n\r\n"), "{part:?}: {rest:?}");
        assert!(rest.len() < 100, "{rest:?}");
    }
}

#[test]
fn an_upload_that_is_cut_short_is_never_ended() {
    for (framing, part) in [
        ("Content-Length: 100", "half of it"),
        ("Transfer-Encoding: chunked", "64\r\nhalf of it"),
        ("Transfer-Encoding: chunked", "a\r\nhalf of it\r\n"),
        ("Transfer-Encoding: chunked", "a\r\nhalf of it\r\n0\r\n"),
        ("Transfer-Encoding: chunked", "a\r\nhalf of it\r\nno chunk\r\n0\r\n\r\n"),
    ] {
        let (seen, requests) = mpsc::channel();
        let upstream = WireUpstream::start(move |mut wire| seen.send(wire.rest()).unwrap());
        let gateway = gateway_to(&upstream);
        let mut client = gateway.client();
        client.send(
            format!("PUT / HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\n{framing}\r\n\r\n").as_bytes(),
        );
        // Its request is on its way then. One that leaves before is nowhere sent.
        assert_eq!(client.head().status, 100);
        client.send(part.as_bytes());
        client.writer().shutdown(std::net::Shutdown::Write).unwrap();
        let message = requests.recv_timeout(PATIENCE).expect("the gateway hangs up");
        assert!(message.contains("half of it") && !message.ends_with("0\r\n\r\n"), "{part:?}: {message:?}");
        assert!(!String::from_utf8(client.rest()).unwrap().contains(" 200 "));
    }
}

/// The failure is the client's: the server is neither counted as failing nor left out.
#[test]
fn a_broken_upload_is_not_held_against_the_server() {
    let upstream = WireUpstream::start(|mut wire| {
        while let Some(message) = wire.message() {
            assert!(message.starts_with("GET "));
            wire.send(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
        }
    });
    let gateway = Gateway::start(&forward_to(
        &[quoted(upstream.url())],
        "eject = { failures = 1, for = \"1h\", max = \"100%\" }",
    ));
    for _ in 0..3 {
        let mut client = gateway.client();
        client.send(b"PUT / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nno chunk\r\n");
        assert_eq!(client.answer().status, 400);
    }
    assert_eq!(gateway.get("/").status, 200);
    let log = gateway.log();
    assert!(!log.contains("left out") && !log.contains("request's body"), "{log}");
}

#[test]
fn who_is_refused_while_sending_can_send_on_and_read_the_answer() {
    const SIZE: usize = 8 << 20;
    let recording = Recording::with(&format!("[server]\nmax_body = \"16MiB\"\n{LIMITED}"));
    recording.gateway.get("/limited");
    let length = format!("Content-Length: {SIZE}");
    for (target, framing, status) in [
        ("/limited", length.as_str(), 429),
        ("/limited", "Transfer-Encoding: chunked", 429),
        ("/", "Content-Length: 99999999", 413),
        ("/", "Content-Length: 99999999\r\nExpect: x", 417),
        ("/", "Content-Length: 99999999\r\nHost: b", 400),
        ("/", "Content-Length: 5\r\nContent-Length: 6", 400),
    ] {
        let mut client = recording.told(format!("PUT {target} HTTP/1.1\r\nHost: a\r\n{framing}\r\n\r\n"));
        // All of it is taken, though nobody wants it: whoever closes now resets the connection.
        let chunk = format!("{SIZE:x}\r\n");
        let mut writer = client.writer();
        writer.write_all(chunk.as_bytes()).unwrap();
        for _ in 0..8 {
            writer
                .write_all(&vec![b'x'; SIZE / 8])
                .unwrap_or_else(|error| panic!("{status} {framing}: {error}"));
            thread::sleep(Duration::from_millis(10));
        }
        assert_eq!(client.answer().status, status, "{framing}");
        assert_eq!(client.try_rest().unwrap(), b"", "{framing}: the connection is closed, and not reset");
    }
    recording.assert_nothing_else();
}

/// The timeouts of clients whose requests are awaited don't apply.
#[test]
fn who_is_refused_can_send_on_for_longer_than_a_head_may_take() {
    let timeouts = "timeouts = { header = \"1s\", idle = \"1s\" }";
    let recording = Recording::with(&format!("[server]\nmax_body = \"16MiB\"\n{timeouts}\n{LIMITED}"));
    recording.gateway.get("/limited");
    let mut clients = [
        ("/limited", "Content-Length: 99999", 429),
        ("/", "Content-Length: 99999999", 413),
        ("/", "Content-Length: 5\r\nContent-Length: 6", 400),
    ]
    .map(|(target, field, status)| {
        let head = format!("PUT {target} HTTP/1.1\r\nHost: a\r\n{field}\r\n\r\n");
        (recording.told(head), status)
    });
    for _ in 0..12 {
        thread::sleep(Duration::from_millis(200));
        for (client, status) in &mut clients {
            client.writer().write_all(&[b'x'; 1_000]).unwrap_or_else(|error| panic!("{status}: {error}"));
        }
    }
    for (mut client, status) in clients {
        assert_eq!(client.answer().status, status);
        assert_eq!(client.try_rest().unwrap(), b"", "{status}: the connection is closed, and not reset");
    }
    recording.assert_nothing_else();
}

#[test]
fn who_never_ends_is_not_listened_to_for_long() {
    let recording = Recording::with("[server]\nmax_body = \"1B\"");
    // Silent after the refusal: the connection goes in the end.
    let mut client = recording.told("PUT / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nx");
    assert_eq!(client.answer().status, 413);
    assert!(client.is_closed(), "it is shut for writing at once");
    crate::harness::wait_until("the gateway closes the connection", || {
        let mut writer = client.writer();
        // After the reset that answers the first byte too many.
        writer.write_all(b"x").is_err() || {
            thread::sleep(Duration::from_millis(2_500));
            false
        }
    });
}
