//! Bodies stream in both directions, and truncated bodies stay truncated.

use std::{io::Write, net::Shutdown, sync::mpsc, thread, time::Duration};

use http_body_util::BodyExt;
use hyper::Response;

use crate::{
    forward_all,
    harness::{
        PATIENCE,
        client::Client,
        gateway::Gateway,
        upstream::{Upstream, whole},
        wait_until,
        wire::WireUpstream,
    },
    limit_all,
};

const LARGE: usize = 50 << 20;
static BLOCK: [u8; 64 << 10] = [b'x'; 64 << 10];
/// What the gateway's memory may grow by, whatever the size of the bodies.
const GROWTH_KIB: usize = 16 << 10;

#[test]
fn bodies_go_through_unchanged_in_either_framing() {
    let upstream = Upstream::mirror();
    let gateway = Gateway::start(&forward_all(&upstream.url(), ""));
    for method in ["POST", "PUT", "GET", "DELETE", "OPTIONS"] {
        let answer = gateway.ask(&format!("{method} /\nContent-Length: 5\n\nhello"));
        assert_eq!(
            (answer.text().as_str(), answer.header("content-length")),
            ("hello", Some("5")),
            "{method}"
        );
        assert_eq!(upstream.last().headers["content-length"], "5");

        let chunked = "Transfer-Encoding: chunked\n\n2\r\nhe\r\n3;extension=1\r\nllo\r\n0\r\n\r\n";
        let answer = gateway.ask(&format!("{method} /\n{chunked}"));
        assert_eq!(answer.text(), "hello", "{method}");
        assert_eq!(answer.header("transfer-encoding"), Some("chunked"));
        assert_eq!(upstream.last().headers["transfer-encoding"], "chunked");
    }
    // Without a body there is no framing either.
    assert_eq!(gateway.get("/").text(), "");
    let headers = upstream.last().headers;
    assert!(
        !headers.contains_key("content-length") && !headers.contains_key("transfer-encoding"),
        "{headers:?}"
    );
    // The chunks count, not the length, and upstream is told one of them.
    gateway.ask("POST /\nContent-Length: 3\nTransfer-Encoding: chunked\n\n2\r\nhe\r\n0\r\n\r\n");
    assert!(!upstream.last().headers.contains_key("content-length"));
}

#[test]
fn an_answer_without_a_body_keeps_its_length() {
    for (request, answer, length) in [
        ("HEAD /", "HTTP/1.1 200 OK\r\nContent-Length: 1234\r\n\r\n", Some("1234")),
        ("GET /", "HTTP/1.1 304 Not Modified\r\nETag: \"a\"\r\n\r\n", None),
        ("GET /", "HTTP/1.1 204 No Content\r\nETag: \"a\"\r\n\r\n", None),
        ("GET /", "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", Some("0")),
    ] {
        let upstream = WireUpstream::answering(answer);
        let gateway = Gateway::start(&format!("[server]\nworkers = 1\n{}", forward_all(&upstream.url(), "")));
        let mut client = gateway.client();
        for _ in 0..2 {
            let answer = client.ask(request);
            assert_eq!(
                (answer.header("content-length"), answer.body.len()),
                (length, 0),
                "{request}: {answer:?}"
            );
        }
        // After HEAD, it rests for a moment.
        wait_until("a connection is used again", || {
            let before = upstream.connections();
            client.ask(request);
            upstream.connections() == before
        });
        assert!(request == "HEAD /" || upstream.connections() == 1, "{answer}");
    }
}

#[test]
fn of_two_framings_of_an_answer_the_chunks_count() {
    let upstream = WireUpstream::answering(
        "HTTP/1.1 200 OK\r\nContent-Length: 9\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nup\r\n0\r\n\r\n",
    );
    let gateway = Gateway::start(&forward_all(&upstream.url(), ""));
    let answer = gateway.get("/");
    assert_eq!((answer.text().as_str(), answer.header("content-length")), ("up", None));
}

#[test]
fn trailers_go_through() {
    let upstream = Upstream::start(|request| async {
        let trailers = request.into_body().collect().await.unwrap().trailers().cloned().unwrap_or_default();
        let body = whole("up").with_trailers(async { Some(Ok(trailers)) });
        let answer = Response::builder().header("trailer", "x-sum").header("transfer-encoding", "chunked");
        answer.body(BodyExt::boxed(body)).unwrap()
    });
    let gateway = Gateway::start(&forward_all(&upstream.url(), ""));
    let mut client = gateway.client();
    client.send(
        b"POST / HTTP/1.1\r\nHost: a\r\nTE: trailers\r\nTrailer: x-sum\r\nTransfer-Encoding: chunked\r\n\r\n\
          2\r\nhi\r\n0\r\nX-Sum: 7\r\n\r\n",
    );
    assert_eq!(client.head().header("trailer"), Some("x-sum"));
    let rest = "2\r\nup\r\n0\r\nx-sum: 7\r\n\r\n";
    assert_eq!(String::from_utf8(client.bytes(rest.len())).unwrap(), rest);
    assert_eq!(upstream.last().headers["te"], "trailers");
}

#[test]
fn a_refusal_costs_no_upload() {
    let upstream = Upstream::mirror();
    let limits = "limits = [\"l\"]\n[limits.l]\nkey = \"ip\"\nrate = \"1/h\"";
    let gateway = Gateway::start(&(forward_all(&upstream.url(), "") + limits));
    let ask = || {
        let mut client = gateway.client();
        client.send(b"PUT / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\n");
        let answer = client.head();
        (client, answer)
    };
    let (mut client, answer) = ask();
    assert_eq!(answer.status, 100);
    client.send(b"hello");
    assert_eq!(client.answer().text(), "hello");
    assert!(!upstream.last().headers.contains_key("expect"));
    let (mut client, answer) = ask();
    assert_eq!(answer.status, 429);
    // What would follow on the connection could be the body or the next request.
    client.bytes(answer.header("content-length").unwrap().parse().unwrap());
    assert!(client.is_closed());
    assert_eq!(upstream.count(), 1);
}

#[test]
fn a_refusal_leaves_the_client_its_connection_if_all_of_the_body_is_there() {
    let gateway = Gateway::start(&limit_all("key = \"ip\"\nrate = \"1/h\""));
    gateway.get("/");
    let mut client = gateway.client();
    let small_chunks = format!("{}0\r\n\r\n", "1\r\nx\r\n".repeat(1_000));
    for (framing, body) in [("Content-Length: 5", "hello"), ("Transfer-Encoding: chunked", &small_chunks)] {
        client.send(format!("PUT / HTTP/1.1\r\nHost: a\r\n{framing}\r\n\r\n{body}").as_bytes());
        let answer = client.answer();
        assert_eq!((answer.status, answer.header("connection")), (429, None), "{framing}");
    }
    // Much of it, and what is still to come, isn't waited for.
    let much = format!("10001\r\n{}\r\n0\r\n\r\n", "x".repeat((64 << 10) + 1));
    for body in [much, "2\r\nhe\r\n".to_owned()] {
        let mut client = gateway.client();
        client.send(b"PUT / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n");
        let _ = client.writer().write_all(body.as_bytes());
        assert_eq!(client.answer().header("connection"), Some("close"));
    }
}

#[test]
fn a_client_that_uploads_before_it_reads_still_learns_of_its_refusal() {
    let gateway = Gateway::start(&limit_all("key = \"ip\"\nrate = \"1/h\""));
    gateway.get("/");
    for _ in 0..5 {
        let mut client = gateway.client();
        client.send(b"PUT / HTTP/1.1\r\nHost: a\r\nContent-Length: 8000000\r\n\r\n");
        let mut writer = client.writer();
        // The gateway may close before it has all of it.
        let _ = writer.write_all(&vec![b'x'; 8_000_000]);
        assert_eq!(client.head().status, 429);
    }
}

#[test]
fn a_body_cut_short_upstream_is_cut_short_for_the_client() {
    for head in ["Content-Length: 100\r\n\r\n", "Transfer-Encoding: chunked\r\n\r\n64\r\n"] {
        let upstream = WireUpstream::start(move |mut wire| {
            wire.request();
            wire.send(format!("HTTP/1.1 200 OK\r\n{head}half of it").as_bytes());
        });
        let gateway = Gateway::start(&forward_all(&upstream.url(), ""));
        let mut client = gateway.client();
        client.send(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n");
        let answer = client.head();
        let rest = String::from_utf8(client.rest()).unwrap();
        assert!(answer.status == 200 && rest.contains("half of it"), "{answer:?} {rest:?}");
        assert!(!rest.ends_with("0\r\n\r\n"), "an end was made up: {rest:?}");
        if head.starts_with("Content") {
            assert_eq!(answer.header("content-length"), Some("100"));
        }
    }
}

#[test]
fn an_answer_that_comes_before_the_upload_ends_reaches_the_client() {
    let upstream = WireUpstream::start(|mut wire| {
        wire.request();
        wire.send(b"HTTP/1.1 413 Too Large\r\nConnection: close\r\nContent-Length: 2\r\n\r\nno");
        wire.wait_for_end();
    });
    let gateway = Gateway::start(&forward_all(&upstream.url(), ""));
    let mut client = gateway.client();
    client.send(b"PUT / HTTP/1.1\r\nHost: a\r\nContent-Length: 8000000\r\n\r\nsome of it");
    let answer = client.answer();
    assert_eq!((answer.status, answer.text()), (413, "no".to_owned()));
}

#[test]
fn who_takes_nothing_of_an_answer_can_send_all_of_the_request() {
    let (told, is_read) = mpsc::channel();
    let told = std::sync::Mutex::new(told);
    let upstream = WireUpstream::start(move |mut wire| {
        wire.request();
        wire.send(format!("HTTP/1.1 200 OK\r\nContent-Length: {LARGE}\r\n\r\n").as_bytes());
        let mut writer = wire.stream().try_clone().unwrap();
        let answer =
            thread::spawn(move || (0..LARGE / BLOCK.len()).try_for_each(|_| writer.write_all(&BLOCK)));
        wire.read(LARGE);
        told.lock().unwrap().send(()).unwrap();
        answer.join().unwrap().unwrap();
    });
    let gateway = Gateway::start(&forward_all(&upstream.url(), ""));
    let mut client = gateway.client();
    client.send(format!("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: {LARGE}\r\n\r\n").as_bytes());
    (0..LARGE / BLOCK.len()).for_each(|_| client.send(&BLOCK));
    is_read.recv_timeout(PATIENCE).expect("all of the request is there");
    let answer = client.answer();
    assert_eq!((answer.status, answer.body.len()), (200, LARGE));
}

#[test]
fn an_upload_goes_on_though_it_is_answered_and_its_connection_is_to_end() {
    for (version, connection) in [("1.1", "close"), ("1.1", "keep-alive"), ("1.0", "close")] {
        let (told, is_read) = mpsc::channel();
        let upstream = WireUpstream::start(move |mut wire| {
            wire.request();
            wire.send(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
            wire.read(10);
            told.send(()).unwrap();
        });
        let gateway = Gateway::start(&forward_all(&upstream.url(), ""));
        let mut client = gateway.client();
        let head = format!(
            "POST / HTTP/{version}\r\nHost: a\r\nConnection: {connection}\r\nContent-Length: 10\r\n\r\n"
        );
        client.send(head.as_bytes());
        assert_eq!(client.answer().text(), "ok");
        client.send(b"0123456789");
        is_read
            .recv_timeout(PATIENCE)
            .unwrap_or_else(|_| panic!("all of it is there: {version} {connection}"));
    }
}

#[test]
fn a_slow_upload_is_no_slow_answer() {
    let upstream = WireUpstream::start(|mut wire| {
        wire.request();
        wire.read(15);
        wire.send(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
    });
    let gateway = Gateway::start(&forward_all(&upstream.url(), "timeouts = { response = \"1s\" }"));
    let mut client = gateway.client();
    client.send(b"PUT / HTTP/1.1\r\nHost: a\r\nContent-Length: 15\r\n\r\n");
    for _ in 0..15 {
        thread::sleep(Duration::from_millis(100));
        client.send(b"x");
    }
    assert_eq!(client.answer().status, 200);
}

#[test]
fn an_upstream_that_takes_no_upload_is_given_up() {
    let upstream = WireUpstream::start(|mut wire| {
        wire.request();
        thread::sleep(PATIENCE);
    });
    let gateway = Gateway::start(&forward_all(&upstream.url(), "timeouts = { response = \"200ms\" }"));
    let mut client = gateway.client();
    client.send(b"PUT / HTTP/1.1\r\nHost: a\r\nContent-Length: 50000000\r\n\r\n");
    let mut writer = client.writer();
    let upload = thread::spawn(move || while writer.write_all(&BLOCK).is_ok() {});
    assert_eq!(client.head().status, 504);
    client.writer().shutdown(Shutdown::Both).unwrap();
    upload.join().unwrap();
}

/// Writes a body and reads the answer's at once.
fn exchange(mut client: Client, length: usize) {
    let mut writer = client.writer();
    let upload = thread::spawn(move || {
        write!(writer, "PUT / HTTP/1.1\r\nHost: a\r\nContent-Length: {length}\r\n\r\n").unwrap();
        (0..length / BLOCK.len()).for_each(|_| writer.write_all(&BLOCK).unwrap());
    });
    let answer = client.head();
    assert_eq!(answer.status, 200);
    let length: usize = answer.header("content-length").unwrap().parse().unwrap();
    (0..length / BLOCK.len()).for_each(|_| assert_eq!(client.bytes(BLOCK.len()), BLOCK));
    upload.join().unwrap();
}

#[test]
fn fifty_megabytes_go_up_down_and_both_ways_in_constant_memory() {
    /// Takes a body, and then gives so much for each byte of it.
    fn upstream(times: usize) -> WireUpstream {
        WireUpstream::start(move |mut wire| {
            while let Some(head) = wire.request() {
                let (_, length) =
                    head.split_once("Content-Length: ").or(head.split_once("content-length: ")).unwrap();
                let blocks = length.lines().next().unwrap().parse::<usize>().unwrap() / BLOCK.len();
                (0..blocks).for_each(|_| drop(wire.read(BLOCK.len())));
                let length = times * blocks * BLOCK.len();
                wire.send(format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n").as_bytes());
                (0..times * blocks).for_each(|_| wire.send(&BLOCK));
            }
        })
    }
    let mirror = Upstream::mirror();
    for (what, url, length) in [
        ("up", upstream(0).url(), LARGE),
        ("down", upstream(50).url(), LARGE / 50),
        ("both ways", mirror.url(), LARGE),
    ] {
        let gateway = Gateway::start(&format!("[server]\nworkers = 1\n{}", forward_all(&url, "")));
        exchange(gateway.client(), BLOCK.len());
        let before = gateway.memory_kib("VmHWM");
        exchange(gateway.client(), length);
        let growth = gateway.grew_kib(before);
        assert!(growth < GROWTH_KIB, "{what}: grew by {growth} KiB");
    }
}

#[test]
fn a_slow_reader_holds_the_upstream_up() {
    const ENDLESS: usize = 400 << 20;
    let (stalled, stall) = mpsc::channel();
    let upstream = WireUpstream::start(move |mut wire| {
        wire.request();
        wire.send(format!("HTTP/1.1 200 OK\r\nContent-Length: {ENDLESS}\r\n\r\n").as_bytes());
        stalled.send(wire.write_until_held_up(ENDLESS)).unwrap();
    });
    let gateway = Gateway::start(&forward_all(&upstream.url(), ""));
    let mut client = gateway.client();
    let before = gateway.memory_kib("VmHWM");
    client.send(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    let written = stall.recv_timeout(PATIENCE).expect("the upstream's writing stalls");
    let growth = gateway.grew_kib(before);
    assert!(growth < GROWTH_KIB, "grew by {growth} KiB while {written} bytes were written");
}
