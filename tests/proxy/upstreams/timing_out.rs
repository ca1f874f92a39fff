//! Timeouts of an exchange.

use crate::{
    harness::{
        gateway::Gateway,
        wire::{Wire, WireUpstream},
    },
    proxy::{forward_to, quoted},
};

fn gateway(upstream: &WireUpstream, route: &str) -> Gateway {
    Gateway::start(&(forward_to(&[quoted(upstream.url())], "") + route))
}

#[test]
fn an_answer_that_begins_too_late_for_its_route_is_a_504() {
    let upstream = WireUpstream::start(|mut wire: Wire| wire.wait_for_end());
    let answer = gateway(&upstream, "timeout = \"50ms\"").get("/");
    assert_eq!((answer.status, &answer.json()["code"]), (504, &"exchange-timeout".into()));
}

#[test]
fn an_answer_that_ends_too_late_for_its_route_breaks_off() {
    let upstream = WireUpstream::start(|mut wire: Wire| {
        wire.request();
        wire.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n");
        // It goes on for ever, but for the gateway.
        wire.wait_for_end();
    });
    let gateway = gateway(&upstream, "timeout = \"1s\"");
    let mut client = gateway.client();
    client.send(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    assert_eq!(client.head().status, 200);
    assert_eq!(client.rest(), b"3\r\nabc\r\n");
}

#[test]
fn a_route_without_a_timeout_waits_for_the_end() {
    let (go_on, goes_on) = std::sync::mpsc::channel::<()>();
    let goes_on = std::sync::Mutex::new(goes_on);
    let upstream = WireUpstream::start(move |mut wire: Wire| {
        wire.request();
        wire.send(b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nabc");
        goes_on.lock().unwrap().recv().unwrap();
        wire.send(b"def");
    });
    for route in ["", "timeout = \"1h\""] {
        let gateway = gateway(&upstream, route);
        let mut client = gateway.client();
        client.send(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n");
        client.head();
        assert_eq!(client.bytes(3), b"abc");
        go_on.send(()).unwrap();
        assert_eq!(client.bytes(3), b"def");
    }
}
