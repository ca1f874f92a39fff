//! Settings that an HTTP/2 server changes on a live connection.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering::SeqCst},
};

use crate::{
    harness::{
        frames::{END_HEADERS, END_STREAM, Frames, HEADERS, MAX_CONCURRENT_STREAMS, SETTINGS, fields},
        gateway::Gateway,
        wait_until,
        wire::WireUpstream,
    },
    proxy::{forward_to, quoted},
};

/// The server withholds the response to the first request on each connection. Before the response to the second one, it allows one
/// request at a time.
#[test]
fn a_server_may_take_fewer_requests_at_a_time_than_before() {
    let asked = Arc::new(AtomicUsize::new(0));
    let count = asked.clone();
    let upstream = WireUpstream::start(move |wire| {
        let mut server = Frames::accept(wire);
        let one = [&MAX_CONCURRENT_STREAMS.to_be_bytes()[..], &1_u32.to_be_bytes()].concat();
        while let Some(frame) = server.next() {
            if frame.kind != HEADERS {
                continue;
            }
            if frame.stream > 1 {
                server.send(SETTINGS, 0, 0, &one);
                server.send(HEADERS, END_HEADERS | END_STREAM, frame.stream, &fields(&[(":status", "204")]));
            }
            count.fetch_add(1, SeqCst);
        }
    });
    let toml = forward_to(&[quoted(upstream.url())], "http2 = true");
    let gateway = Gateway::start(&format!("[server]\nworkers = 1\n{toml}"));
    let mut waiting = Vec::new();
    for connections in 1..=3 {
        let mut client = gateway.client();
        client.send(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n");
        waiting.push(client);
        wait_until("the request arrives", || asked.load(SeqCst) == 2 * connections - 1);
        assert_eq!(gateway.get("/").status, 204);
        assert_eq!(upstream.connections(), connections);
    }
}
