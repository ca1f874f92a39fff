//! Connections: kept, reused, closed, lost.

use std::{
    fs,
    sync::{Mutex, mpsc},
};

use crate::{
    forward_all,
    harness::{
        PATIENCE,
        gateway::Gateway,
        upstream::Upstream,
        wait_until,
        wire::{Wire, WireUpstream},
    },
};

const OK: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nup";
const GET: &[u8] = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n";

#[test]
fn a_client_keeps_its_connection_and_may_send_ahead() {
    let upstream = Upstream::mirror();
    let gateway = Gateway::start(&forward_all(&upstream.url(), ""));
    let mut client = gateway.client();
    assert_eq!(client.get("/").status, 200);
    let post = |body: &str| format!("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\n{body}");
    client.send(["one", "two", "six"].map(post).concat().as_bytes());
    assert_eq!([(); 3].map(|()| client.answer().text()), ["one", "two", "six"]);
    client.send(b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
    assert_eq!(client.answer().header("connection"), Some("close"));
    assert!(client.is_closed());
}

#[test]
fn a_client_of_http_1_0_gets_an_answer_that_it_can_read() {
    let upstream =
        WireUpstream::answering("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nup\r\n0\r\n\r\n");
    let gateway = Gateway::start(&forward_all(&upstream.url(), ""));
    let mut client = gateway.client();
    client.send(b"GET / HTTP/1.0\r\n\r\n");
    let answer = client.head();
    assert_eq!((answer.status, answer.header("transfer-encoding")), (200, None));
    assert_eq!(client.rest(), b"up");
}

#[test]
fn connections_to_an_upstream_are_used_again() {
    let upstream = WireUpstream::answering(OK);
    let gateway = Gateway::start(&format!("[server]\nworkers = 1\n{}", forward_all(&upstream.url(), "")));
    for _ in 0..5 {
        assert_eq!(gateway.get("/").text(), "up");
    }
    assert_eq!(gateway.ask("POST /\nContent-Length: 3\n\nabc").status, 200);
    assert_eq!(upstream.connections(), 1);
}

#[test]
fn a_connection_that_upstream_gives_up_is_not_used_again() {
    for answer in
        ["HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nup", "HTTP/1.0 200 OK\r\n\r\nup"]
    {
        let upstream = WireUpstream::start(move |mut wire| {
            wire.request();
            wire.send(answer.as_bytes());
        });
        let gateway = Gateway::start(&format!("[server]\nworkers = 1\n{}", forward_all(&upstream.url(), "")));
        for _ in 0..3 {
            assert_eq!(gateway.get("/").text(), "up", "{answer}");
        }
        assert_eq!(upstream.connections(), 3, "{answer}");
    }
}

/// A peer that vanishes without a word is noticed by keepalive, whose timer the system shows.
#[test]
fn silent_peers_are_probed() {
    let upstream = Upstream::hello();
    let gateway = Gateway::start(&forward_all(&upstream.url(), ""));
    let mut client = gateway.client();
    assert_eq!(client.get("/").status, 200);
    let (own, other) =
        (gateway.address().port(), upstream.url().rsplit_once(':').unwrap().1.parse().unwrap());
    // ESTABLISHED, and the timer that isn't of a retransmission.
    let is_probed = |fields: &[&str]| fields[3] == "01" && fields[5].starts_with("02:");
    wait_until("both sides are probed", || {
        let sockets = fs::read_to_string("/proc/net/tcp").unwrap();
        let sockets: Vec<Vec<&str>> = sockets.lines().map(|line| line.split_whitespace().collect()).collect();
        let of = |at: usize, port: u16| {
            let end = format!(":{port:04X}");
            sockets.iter().any(|fields| fields[at].ends_with(&end) && is_probed(fields))
        };
        of(1, own) && of(2, other)
    });
}

#[test]
fn connections_that_idle_too_long_are_closed() {
    let (ended, end) = mpsc::channel();
    let upstream = WireUpstream::start(move |mut wire| {
        wire.request();
        wire.send(OK);
        wire.wait_for_end();
        ended.send(()).unwrap();
    });
    let gateway = Gateway::start(&forward_all(&upstream.url(), "timeouts = { idle = \"50ms\" }"));
    assert_eq!(gateway.get("/").status, 200);
    end.recv_timeout(PATIENCE).unwrap();
}

/// The gateway stands still while the next request arrives and the upstream closes the connection, so
/// it learns of both at once, and first of the request.
#[test]
fn a_request_that_meets_a_stale_connection_goes_to_a_new_one() {
    let (close, closing) = mpsc::channel::<()>();
    let (closing, (closed, is_closed)) = (Mutex::new(closing), mpsc::channel());
    let upstream = WireUpstream::start(move |mut wire| {
        wire.request();
        wire.send(OK);
        closing.lock().unwrap().recv().unwrap();
        drop(wire);
        closed.send(()).unwrap();
    });
    let gateway = Gateway::start(&format!("[server]\nworkers = 1\n{}", forward_all(&upstream.url(), "")));
    let mut client = gateway.client();
    assert_eq!(client.get("/").text(), "up");
    for round in 2..10 {
        gateway.pause();
        client.send(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc");
        close.send(()).unwrap();
        is_closed.recv_timeout(PATIENCE).unwrap();
        gateway.resume();
        assert_eq!(client.answer().status, 200);
        assert_eq!(upstream.connections(), round);
    }
}

#[test]
fn requests_are_spread_over_the_servers() {
    let upstreams = [(); 3].map(|()| Upstream::hello());
    let urls = upstreams.each_ref().map(|upstream| format!("\"{}\"", upstream.url())).join(", ");
    let toml = forward_all("", "").replace("\"\"", &urls);
    let gateway = Gateway::start(&toml);
    let mut client = gateway.client();
    for _ in 0..60 {
        assert_eq!(client.get("/").status, 200);
    }
    let counts = upstreams.each_ref().map(Upstream::count);
    assert!(counts.iter().sum::<usize>() == 60 && counts.iter().all(|count| *count > 5), "{counts:?}");
}

#[test]
fn a_client_that_leaves_before_the_answer_frees_the_connection_upstream() {
    let (step, steps) = mpsc::channel();
    let upstream = WireUpstream::start(move |mut wire: Wire| {
        step.send("asked").unwrap();
        wire.wait_for_end();
        step.send("gone").unwrap();
    });
    let gateway = Gateway::start(&forward_all(&upstream.url(), ""));
    let mut client = gateway.client();
    client.send(GET);
    assert_eq!(steps.recv_timeout(PATIENCE), Ok("asked"));
    drop(client);
    assert_eq!(steps.recv_timeout(PATIENCE), Ok("gone"));
}

#[test]
fn a_client_that_leaves_in_mid_answer_frees_the_connection_upstream() {
    let (ended, end) = mpsc::channel();
    let upstream = WireUpstream::start(move |mut wire: Wire| {
        wire.request();
        wire.send(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nabc");
        wire.wait_for_end();
        ended.send(()).unwrap();
    });
    let gateway = Gateway::start(&forward_all(&upstream.url(), ""));
    let mut client = gateway.client();
    client.send(GET);
    client.head();
    assert_eq!(client.bytes(3), b"abc");
    drop(client);
    end.recv_timeout(PATIENCE).unwrap();
}

#[test]
fn a_client_that_leaves_in_mid_upload_is_not_mistaken_for_one_that_has_ended() {
    let (told, tell) = mpsc::channel();
    let upstream = WireUpstream::start(move |mut wire: Wire| {
        let head = wire.request().unwrap();
        let mut body = Vec::new();
        let _ = std::io::Read::read_to_end(wire.stream(), &mut body);
        told.send((head, body)).unwrap();
    });
    let gateway = Gateway::start(&forward_all(&upstream.url(), ""));
    for framing in ["Content-Length: 100", "Transfer-Encoding: chunked"] {
        let mut client = gateway.client();
        client.send(
            format!("POST / HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\n{framing}\r\n\r\n").as_bytes(),
        );
        // Its request is on its way then. One that leaves before is nowhere sent.
        assert_eq!(client.head().status, 100);
        client.send(b"3\r\nabc\r\n");
        drop(client);
        let (head, body) = tell.recv_timeout(PATIENCE).unwrap();
        assert!(head.to_ascii_lowercase().contains(&framing.to_ascii_lowercase()), "{head}");
        assert!(!body.ends_with(b"0\r\n\r\n"), "{:?}", String::from_utf8_lossy(&body));
    }
}
