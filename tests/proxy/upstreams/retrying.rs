//! Requests that are retried, and those that never are.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering::SeqCst},
};

use crate::{
    harness::{
        frames::{END_HEADERS, END_STREAM, Frames, HEADERS, INTERNAL_ERROR, fields},
        gateway::Gateway,
        redis::free_address,
        upstream::Upstream,
        wire::{Wire, WireUpstream},
    },
    proxy::{forward_to, quoted},
};

const OK: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nup";

/// An unreachable server.
fn unreachable() -> String {
    quoted(format!("http://{}", free_address()))
}

/// An upstream that answers the first request of each connection, and to the second sends this and hangs up.
fn answering_once(then: &'static [u8]) -> WireUpstream {
    WireUpstream::start(move |mut wire: Wire| {
        wire.request();
        wire.send(OK);
        wire.request();
        wire.send(then);
    })
}

/// The statuses of two requests on one connection upstream, and how many connections that took.
fn asked_twice(upstream: &WireUpstream, second: &str) -> (u16, usize) {
    let gateway =
        Gateway::start(&format!("[server]\nworkers = 1\n{}", forward_to(&[quoted(upstream.url())], "")));
    assert_eq!(gateway.get("/").status, 200);
    let status = gateway.ask(second).status;
    (status, upstream.connections())
}

#[test]
fn what_asks_for_no_change_is_sent_again_when_a_kept_connection_closes_under_it() {
    for request in ["GET /", "HEAD /", "OPTIONS /", "DELETE /1", "PUT /1\nContent-Length: 0"] {
        assert_eq!(asked_twice(&answering_once(b""), request), (200, 2), "{request}");
    }
}

#[test]
fn what_may_have_changed_something_is_sent_once() {
    for request in
        ["POST /", "PATCH /", "POST /\nContent-Length: 3\n\nabc", "PUT /\nContent-Length: 3\n\nabc"]
    {
        assert_eq!(asked_twice(&answering_once(b""), request), (502, 1), "{request}");
    }
}

#[test]
fn what_has_been_answered_by_a_byte_is_sent_once() {
    assert_eq!(asked_twice(&answering_once(b"H"), "GET /"), (502, 1));
}

/// A request that makes servers hang up doesn't go from one to the next.
#[test]
fn a_new_connection_that_breaks_is_no_reason_to_send_again() {
    let servers = [(); 2].map(|()| WireUpstream::start(|mut wire| drop(wire.request())));
    let list = servers.each_ref().map(|server| quoted(server.url()));
    let gateway = Gateway::start(&forward_to(&list, ""));
    assert_eq!(gateway.get("/").json()["code"], "upstream-broken");
    assert_eq!(servers.each_ref().map(WireUpstream::connections).iter().sum::<usize>(), 1);
}

#[test]
fn another_server_is_asked_when_one_cannot_be_reached() {
    let live = Upstream::hello();
    let list = [unreachable(), quoted(live.url()), unreachable()];
    let turns = "balance = \"round-robin\"\nretries = { attempts = 2, budget = \"100%\" }\n[limits.all]\nkey = \"global\"\nrate = \"100/h\"";
    let gateway = Gateway::start(&(forward_to(&list, turns) + "limits = [\"all\"]"));
    let mut client = gateway.client();
    for request in 1..=10 {
        let answer = client.ask("POST /\nContent-Length: 3\n\nabc");
        assert_eq!(answer.status, 200);
        // However many servers were asked, the request is charged once.
        let left = format!("r={};", 100 - request);
        assert!(answer.header("ratelimit").unwrap().contains(&left), "{answer:?}");
    }
    assert_eq!(live.count(), 10);
}

#[test]
fn retries_are_bounded_by_their_attempts() {
    let live = Upstream::hello();
    let list = [unreachable(), unreachable(), quoted(live.url())];
    for (attempts, status) in [(0, 502), (1, 502), (2, 200)] {
        let keys = format!("balance = \"round-robin\"\nretries = {{ attempts = {attempts} }}");
        let gateway = Gateway::start(&forward_to(&list, &keys));
        assert_eq!(gateway.get("/").status, status, "{attempts}");
    }
}

#[test]
fn retries_are_bounded_by_a_share_of_the_requests() {
    let live = Upstream::hello();
    let list = [unreachable(), quoted(live.url())];
    let gateway = Gateway::start(&forward_to(&list, "balance = \"round-robin\""));
    let mut client = gateway.client();
    let statuses = [(); 200].map(|()| client.get("/").status);
    let failed = statuses.iter().filter(|status| **status == 502).count();
    // Every other request meets the dead server; 10 and a fifth of all may go on to the other one.
    // (What the first request brings in is lost: the budget is full.)
    assert_eq!(failed, 100 - 10 - 199 / 5, "{statuses:?}");
    assert_eq!(live.count(), 200 - failed);
}

/// It may have processed it.
#[test]
fn a_request_that_an_http_2_server_resets_is_not_sent_again() {
    let asked = Arc::new(AtomicUsize::new(0));
    let count = asked.clone();
    let upstream = WireUpstream::start(move |wire| {
        let mut server = Frames::accept(wire);
        while let Some(frame) = server.next() {
            if frame.kind != HEADERS {
                continue;
            }
            count.fetch_add(1, SeqCst);
            match frame.stream {
                1 => server.send(HEADERS, END_HEADERS | END_STREAM, 1, &fields(&[(":status", "204")])),
                stream => server.reset_with(stream, INTERNAL_ERROR),
            }
        }
    });
    let toml = forward_to(&[quoted(upstream.url())], "http2 = true\nretries = { budget = \"0%\" }");
    let gateway = Gateway::start(&format!("[server]\nworkers = 1\n{toml}"));
    assert_eq!(gateway.get("/").status, 204);
    for _ in 0..10 {
        assert_eq!(gateway.get("/").json()["code"], "upstream-broken");
    }
    assert_eq!((asked.load(SeqCst), upstream.connections()), (11, 1));
}
