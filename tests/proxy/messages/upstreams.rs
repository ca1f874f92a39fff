//! Responses in any form reach the client as one complete response, or as 502.

use std::{
    sync::{Mutex, mpsc},
    time::Duration,
};

use super::{FINE, Recording, body, lines};
use crate::{
    harness::{PATIENCE, gateway::Gateway, wait_until, wire::WireUpstream},
    proxy::{forward_to, quoted},
};

const GET: &str = "GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";

fn gateway_to(upstream: &WireUpstream, keys: &str) -> Gateway {
    let keys = format!("retries = {{ attempts = 1, budget = \"0%\" }}\n{keys}");
    Gateway::start(&format!("[server]\nworkers = 1\n{}", forward_to(&[quoted(upstream.url())], &keys)))
}

/// All that a client gets of an answer of an upstream that closes behind it.
fn relayed(answer: impl Into<String>) -> (String, String) {
    let answer = answer.into();
    let upstream = WireUpstream::start(move |mut wire| {
        wire.request();
        wire.send(answer.as_bytes());
    });
    let gateway = gateway_to(&upstream, "");
    let mut client = gateway.client();
    client.send(GET.as_bytes());
    (client.raw_head(), client.rest().into_iter().map(char::from).collect())
}

#[test]
fn an_answer_goes_on_in_one_framing() {
    const CHUNKED: &str = "2\r\nup\r\n0\r\n\r\n";
    for (fields, sent, length, got) in [
        ("Content-Length: 2", "up", Some("2"), "up"),
        ("Content-Length: 2\r\nContent-Length: 2", "up", Some("2"), "up"),
        ("Content-Length: 2, 2", "up", Some("2"), "up"),
        ("Content-Length: 002", "up", Some("2"), "up"),
        ("Content-Length: 2\r\nContent-Length: 02", "up", Some("2"), "up"),
        ("Transfer-Encoding: chunked", CHUNKED, None, CHUNKED),
        ("Transfer-Encoding: chunked\r\nContent-Length: 9", CHUNKED, None, CHUNKED),
        ("Content-Length: 9\r\nContent-Length: 8\r\nTransfer-Encoding: chunked", CHUNKED, None, CHUNKED),
        ("transfer-encoding:\tCHUNKED ", CHUNKED, None, CHUNKED),
        ("Transfer-Encoding: chunked", "02;a=b\r\nup\r\n00\r\n\r\n", None, CHUNKED),
        ("X: y", "up", None, CHUNKED),
    ] {
        let (head, rest) = relayed(format!("HTTP/1.1 200 OK\r\n{fields}\r\n\r\n{sent}"));
        assert_eq!(
            lines(&head, "content-length"),
            length.into_iter().collect::<Vec<_>>(),
            "{fields}: {head}"
        );
        let chunked = if length.is_none() { vec!["chunked"] } else { vec![] };
        assert_eq!(lines(&head, "transfer-encoding"), chunked, "{fields}: {head}");
        assert_eq!(rest, got, "{fields}");
    }
}

#[test]
fn what_is_no_answer_is_a_bad_gateway() {
    let long = format!("HTTP/1.1 200 OK\r\nX: {}\r\nContent-Length: 0\r\n\r\n", "x".repeat(129 << 10));
    let many = format!("HTTP/1.1 200 OK\r\n{}Content-Length: 0\r\n\r\n", "X: y\r\n".repeat(100));
    for answer in [
        "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab",
        "HTTP/1.1 200 OK\r\nContent-Length: 1, 2\r\n\r\nab",
        "HTTP/1.1 200 OK\r\nContent-Length: +1\r\n\r\na",
        "HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: 99999999999999999999\r\n\r\n",
        "HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        // A coding that nobody undoes, or chunks within chunks.
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\nup",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: identity\r\nContent-Length: 2\r\n\r\nup",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked, chunked\r\n\r\n0\r\n\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: identity\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked, gzip\r\n\r\n0\r\n\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding:\r\nContent-Length: 0\r\n\r\n",
        "HTTP/1.1 200 OK\r\nX : y\r\nContent-Length: 0\r\n\r\n",
        "HTTP/1.1 200 OK\r\nX: y\r\n folded\r\nContent-Length: 0\r\n\r\n",
        "HTTP/1.1 200 OK\r\nX: y\rz\r\nContent-Length: 0\r\n\r\n",
        "HTTP/1.1 200 OK\r\nX: \u{0}\r\nContent-Length: 0\r\n\r\n",
        "HTTP/1.1 99 Early\r\nContent-Length: 0\r\n\r\n",
        "HTTP/1.1 20 OK\r\nContent-Length: 0\r\n\r\n",
        "HTTP/1.1 2000 OK\r\nContent-Length: 0\r\n\r\n",
        "HTTP/2 200 OK\r\nContent-Length: 0\r\n\r\n",
        "HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n",
        "<html>of HTTP/0.9</html>\r\n\r\n",
        "SSH-2.0-OpenSSH_9.6\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-",
        "",
        &long,
        &many,
    ] {
        let (head, _) = relayed(answer);
        assert!(head.starts_with("HTTP/1.1 502 Bad Gateway\r\n"), "{answer:.80?}: {head}");
    }
    let most = format!("HTTP/1.1 200 OK\r\n{}Content-Length: 0\r\n\r\n", "X: y\r\n".repeat(99));
    assert_eq!(lines(&relayed(most).0, "x").len(), 99);
}

/// Methods, responses without a body to them, and the length that is forwarded.
pub(super) const BODILESS: [(&str, &str, Option<&str>); 13] = [
    ("HEAD", "HTTP/1.1 200 OK\r\nContent-Length: 1234\r\n\r\n", Some("1234")),
    ("HEAD", "HTTP/1.1 200 OK\r\nContent-Length: 01234\r\n\r\n", Some("1234")),
    ("GET", "HTTP/1.1 304 Not Modified\r\nContent-Length: 1234, 001234\r\n\r\n", Some("1234")),
    ("HEAD", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", None),
    ("HEAD", "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", None),
    ("HEAD", "HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n", None),
    ("HEAD", "HTTP/1.1 304 Not Modified\r\nContent-Length: 1234\r\n\r\n", Some("1234")),
    ("GET", "HTTP/1.1 304 Not Modified\r\nContent-Length: 1234\r\n\r\n", Some("1234")),
    ("GET", "HTTP/1.1 304 Not Modified\r\nETag: \"a\"\r\n\r\n", None),
    ("GET", "HTTP/1.1 304 Not Modified\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", None),
    ("GET", "HTTP/1.1 204 No Content\r\nContent-Length: 0\r\n\r\n", None),
    ("GET", "HTTP/1.1 204 No Content\r\nContent-Length: 9\r\n\r\n", None),
    ("GET", "HTTP/1.1 204 No Content\r\nTransfer-Encoding: chunked\r\n\r\n", None),
];

#[test]
fn an_answer_without_a_body_keeps_the_length_of_what_it_stands_for() {
    for (method, answer, length) in BODILESS {
        let recording = Recording::answering(answer, "[server]\nworkers = 1");
        // Both on one connection: none has a body.
        let mut client = recording.told(format!("{method} / HTTP/1.1\r\nHost: a\r\n\r\n").repeat(2));
        for _ in 0..2 {
            let head = client.raw_head();
            assert_eq!(
                lines(&head, "content-length"),
                length.into_iter().collect::<Vec<_>>(),
                "{method} {answer:?}: {head}"
            );
            assert_eq!(lines(&head, "transfer-encoding"), [""; 0], "{method} {answer:?}");
        }
    }
}

/// A body where there is none, and whatever else comes behind an answer, is not the answer to another request.
#[test]
fn what_comes_behind_an_answer_answers_nothing() {
    const EVIL: &str = "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nEVIL";
    for (method, answer) in [
        ("GET", format!("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nup{EVIL}")),
        ("GET", format!("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n{EVIL}")),
        ("GET", format!("HTTP/1.1 204 No Content\r\nContent-Length: 4\r\n\r\n{EVIL}")),
        ("GET", format!("HTTP/1.1 304 Not Modified\r\n\r\n{EVIL}")),
        ("HEAD", format!("HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\n{EVIL}")),
        ("GET", "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n\r\n".to_owned()),
    ] {
        let upstream = WireUpstream::start(move |mut wire| {
            let answer = if wire.number == 0 { answer.as_str() } else { FINE };
            while wire.message().is_some() {
                wire.send(answer.as_bytes());
            }
        });
        let gateway = gateway_to(&upstream, "");
        let mut client = gateway.client();
        client.send(format!("{method} / HTTP/1.1\r\nHost: a\r\n\r\n").as_bytes());
        let head = client.head();
        if head.status == 200 && method == "GET" {
            client.body_of(&head);
        }
        // On the connection of the first, and others.
        for _ in 0..3 {
            let answer = client.get("/");
            assert_eq!((answer.status, answer.body.len()), (200, 0), "{answer:?}");
        }
        assert_eq!(upstream.connections(), 2);
    }
}

/// The body of a response to HEAD, and one that its header states where there is none, may come later than the head.
#[test]
fn what_comes_soon_behind_an_answer_without_a_body_answers_nothing() {
    const LATER: Duration = Duration::from_millis(40);
    const EVIL: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nEVIL";
    for (method, head) in [
        ("HEAD", "HTTP/1.1 200 OK\r\nContent-Length: 42\r\n\r\n"),
        ("HEAD", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"),
        ("HEAD", "HTTP/1.1 404 Not Found\r\n\r\n"),
        ("GET", "HTTP/1.1 304 Not Modified\r\nContent-Length: 42\r\n\r\n"),
        ("GET", "HTTP/1.1 204 No Content\r\nTransfer-Encoding: chunked\r\n\r\n"),
    ] {
        let upstream = WireUpstream::start(move |mut wire| {
            if wire.number == 0 {
                wire.message();
                wire.send(head.as_bytes());
                std::thread::sleep(LATER);
                wire.send(EVIL);
            }
            while wire.message().is_some() {
                wire.send(FINE.as_bytes());
            }
        });
        let gateway = gateway_to(&upstream, "");
        let mut client = gateway.client();
        client.send(format!("{method} / HTTP/1.1\r\nHost: a\r\n\r\n").as_bytes());
        client.head();
        for _ in 0..3 {
            let answer = client.get("/");
            assert_eq!((answer.status, answer.body.len()), (200, 0), "{head}: {answer:?}");
        }
        assert_eq!(upstream.connections(), 2);
    }
}

/// What comes while nothing is asked: the connection is used no more.
#[test]
fn what_comes_before_a_request_answers_nothing() {
    let (send, sends) = mpsc::channel::<()>();
    let (closed, is_closed) = mpsc::channel();
    let sends = Mutex::new(sends);
    let upstream = WireUpstream::start(move |mut wire| {
        if wire.number == 0 {
            wire.message();
            wire.send(FINE.as_bytes());
            sends.lock().unwrap().recv().unwrap();
            wire.send(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nEVIL");
        }
        while wire.message().is_some() {
            wire.send(FINE.as_bytes());
        }
        let _ = closed.send(());
    });
    let gateway = gateway_to(&upstream, "");
    assert_eq!(gateway.get("/").status, 200);
    send.send(()).unwrap();
    wait_until("the gateway has it, and closes the connection", || is_closed.try_recv().is_ok());
    let answer = gateway.get("/");
    assert_eq!((answer.status, answer.body.len()), (200, 0));
    assert_eq!(upstream.connections(), 2);
}

/// hyper would go on in HTTP/1.0 on such a connection, and leave out bodies without a length.
#[test]
fn a_server_of_http_1_0_gets_all_of_a_body() {
    let old = "HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nContent-Length: 2\r\n\r\nup";
    let recording = Recording::answering(old, "[server]\nworkers = 1");
    for _ in 0..3 {
        let chunked = "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n\r\n";
        let answer = recording.told(chunked).answer();
        assert_eq!(answer.text(), "up");
        let message = recording.message();
        assert!(
            message.starts_with("POST / HTTP/1.1\r\n") && body(&message) == "2\r\nhi\r\n0\r\n\r\n",
            "{message:?}"
        );
    }
}

/// Who speaks HTTP/1.0 gets no chunks: the body ends with the connection, or has a length.
#[test]
fn a_client_of_http_1_0_gets_no_chunks() {
    for (answer, length) in [
        ("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nup\r\n0\r\n\r\n", None),
        ("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nup", Some("2")),
    ] {
        let recording = Recording::answering(answer, "");
        let mut client = recording.told("GET / HTTP/1.0\r\nHost: a\r\n\r\n");
        let head = client.raw_head();
        assert!(
            head.starts_with("HTTP/1.0 200 OK\r\n") && lines(&head, "transfer-encoding").is_empty(),
            "{head}"
        );
        assert_eq!(lines(&head, "content-length"), length.into_iter().collect::<Vec<_>>());
        assert_eq!(client.rest(), b"up");
    }
}

/// However much the connection's task has done before: then it has to pause, and isn't woken by data that has arrived.
#[test]
fn what_nobody_asked_for_is_nobodys_answer() {
    for before in 124..=130 {
        let ((tell, told), (sent, is_sent)) = (mpsc::channel(), mpsc::channel());
        let told = Mutex::new(told);
        let upstream = WireUpstream::start(move |mut wire| {
            while wire.request().is_some() {
                wire.send(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nreal");
                if wire.number == 0 {
                    told.lock().unwrap().recv().unwrap();
                    wire.send(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nstray");
                    sent.send(()).unwrap();
                }
            }
        });
        let gateway = gateway_to(&upstream, "");
        assert_eq!(gateway.get("/").text(), "real");
        let mut client = gateway.client();
        client.send(b"OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n");
        assert_eq!(client.answer().status, 204);
        tell.send(()).unwrap();
        is_sent.recv_timeout(PATIENCE).unwrap();
        let own = "OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n".repeat(before);
        client.send(format!("{own}GET / HTTP/1.1\r\nHost: a\r\n\r\n").as_bytes());
        (0..before).for_each(|_| assert_eq!(client.answer().status, 204));
        assert_eq!(client.answer().text(), "real", "after {before} others");
    }
}
