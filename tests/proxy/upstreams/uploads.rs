//! Uploads that upstreams answer before they end.

use std::{
    sync::{Arc, Mutex, mpsc},
    thread,
    time::Duration,
};

use futures_util::stream::pending;
use http_body_util::{BodyExt, StreamBody};
use hyper::{Response, body::Incoming, server::conn::http2};
use hyper_util::rt::TokioExecutor;

use crate::{
    harness::{
        PATIENCE,
        frames::{DATA, END_HEADERS, END_STREAM, Frames, HEADERS, fields, get},
        gateway::Gateway,
        upstream::{Speech, Upstream, whole},
        wait_until,
        wire::WireUpstream,
    },
    proxy::{forward_to, quoted},
};

/// HTTP/2 with windows that a body of 300 KB fills.
fn narrow_http2() -> Speech {
    let mut builder = http2::Builder::new(TokioExecutor::new());
    builder.initial_stream_window_size(65_535);
    Speech::Http2(builder)
}

#[test]
fn an_upload_counts_as_a_stream_until_it_ends() {
    const STREAMS: usize = 2;
    let mut builder = http2::Builder::new(TokioExecutor::new());
    builder.max_concurrent_streams(STREAMS as u32);
    // It answers at once, and reads what comes.
    let upstream = Upstream::speaking(Speech::Http2(builder), |request| async {
        tokio::spawn(request.into_body().collect());
        Response::new(whole("hello"))
    });
    let keys = "http2 = true\nmax_connections = 1\ntimeouts = { response = \"2s\" }";
    let toml = forward_to(&[quoted(upstream.url())], keys);
    let gateway = Gateway::start(&format!("[server]\nworkers = 1\n{toml}"));
    let mut uploads = [(); STREAMS].map(|()| gateway.client());
    for upload in &mut uploads {
        upload.send(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\nab");
        assert_eq!(upload.answer().text(), "hello");
    }
    // On the only connection, it would wait for one of them to end.
    assert_eq!(gateway.get("/").json()["code"], "upstream-busy");
    uploads.iter_mut().for_each(|upload| upload.send(b"cd"));
    wait_until("a stream is free", || gateway.get("/").status == 200);
    assert!(uploads.iter_mut().all(|upload| upload.get("/").text() == "hello"));
    assert_eq!(upstream.connections().len(), 1);
}

/// Node.js neither reads the rest of such an upload nor resets its stream, and the body fills the buffers, so the gateway reads nothing of the client
/// that would tell it of a hang-up. Others reset the stream.
#[test]
fn an_upload_that_a_server_does_not_read_ends_behind_its_response() {
    let bodies = Arc::new(Mutex::new(Vec::new()));
    check_unread_upload(move |body| bodies.lock().unwrap().push(body));
    check_unread_upload(drop);
}

fn check_unread_upload(keep: impl Fn(Incoming) + Clone + Send + Sync + 'static) {
    const MOST: usize = 2;
    let upstream = Upstream::speaking(narrow_http2(), move |request| {
        keep(request.into_body());
        async { Response::builder().status(204).body(whole("")).unwrap() }
    });
    let keys = format!("http2 = true\nmax_connections = {MOST}");
    let toml = forward_to(&[quoted(upstream.url())], &keys);
    let gateway = Gateway::start(&format!("[server]\nworkers = 1\n{toml}"));
    for _ in 0..MOST {
        let mut upload = gateway.client();
        upload.send(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 300000\r\n\r\n");
        upload.send(&[b'a'; 300_000]);
        assert_eq!(upload.answer().status, 204);
        // A proxy in front may use the connection for another client.
        assert_eq!(upload.get("/").status, 204);
        drop(upload);
        wait_until("a connection is free", || gateway.ask("POST /").status == 204);
    }
}

/// Go's server closes the connection for a request that it hasn't read. Others don't even say so.
#[test]
fn an_upload_to_a_server_that_closes_leaves_its_client_the_connection() {
    const BEGIN: usize = 1_000;
    for says in ["Connection: close\r\n", ""] {
        let upstream = WireUpstream::start(move |mut wire| {
            if wire.request().unwrap().starts_with("POST") {
                wire.read(BEGIN);
                wire.send(
                    format!("HTTP/1.1 401 Unauthorized\r\nContent-Length: 2\r\n{says}\r\nno").as_bytes(),
                );
            } else {
                wire.send(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nup");
            }
        });
        let gateway = Gateway::start(&forward_to(&[quoted(upstream.url())], ""));
        let mut client = gateway.client();
        client.send(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 300000\r\n\r\n");
        client.send(&[b'a'; BEGIN]);
        let answer = client.answer();
        assert_eq!((answer.status, answer.header("connection")), (401, None), "{says:?}");
        client.send(&vec![b'a'; 300_000 - BEGIN]);
        assert_eq!(client.get("/").text(), "up", "{says:?}");
    }
}

#[test]
fn an_upload_to_a_server_that_stops_reading_leaves_its_client_the_connection() {
    // More than the buffers on the way take.
    const LENGTH: usize = 20_000_000;
    let upload = |says: &'static str| {
        let unread = Mutex::new(Vec::new());
        let upstream = WireUpstream::start(move |mut wire| {
            let is_post = wire.request().unwrap().starts_with("POST");
            wire.send(format!("HTTP/1.1 202 Accepted\r\nContent-Length: 2\r\n{says}\r\nok").as_bytes());
            if is_post {
                unread.lock().unwrap().push(wire);
            }
        });
        let gateway = Gateway::start(&forward_to(&[quoted(upstream.url())], ""));
        let mut client = gateway.client();
        client.send(format!("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: {LENGTH}\r\n\r\n").as_bytes());
        assert_eq!(client.answer().status, 202);
        client.send(&vec![b'a'; LENGTH]);
        assert_eq!(client.get("/").status, 202, "{says:?}");
    };
    thread::scope(|scope| {
        for says in ["", "Connection: close\r\n"] {
            scope.spawn(move || upload(says));
        }
    });
}

#[test]
fn an_upload_goes_on_to_a_server_that_says_that_it_will_close() {
    const LENGTH: usize = 300_000;
    let (ended, lengths) = mpsc::channel();
    let upstream = WireUpstream::start(move |mut wire| {
        let is_post = wire.request().unwrap().starts_with("POST");
        wire.send(b"HTTP/1.1 202 Accepted\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok");
        if is_post {
            ended.send(wire.read(LENGTH).len()).unwrap();
        }
    });
    let gateway = Gateway::start(&forward_to(&[quoted(upstream.url())], ""));
    let mut client = gateway.client();
    client.send(format!("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: {LENGTH}\r\n\r\n").as_bytes());
    assert_eq!(client.answer().status, 202);
    client.send(&[b'a'; LENGTH]);
    assert_eq!(lengths.recv_timeout(PATIENCE), Ok(LENGTH));
    assert_eq!(client.get("/").status, 202);
}

#[test]
fn an_upload_goes_on_behind_its_response() {
    // Longer than the timeouts, and than a connection waits for an upload in which nothing moves.
    const PIECES: usize = 14;
    const PAUSE: Duration = Duration::from_millis(500);
    const PIECE: [u8; 1_000] = [b'a'; 1_000];
    const LENGTH: usize = PIECES * PIECE.len();
    let of_server = |speech: Speech, keys: &str| {
        let (ended, lengths) = mpsc::channel();
        let upstream = Upstream::speaking(speech, move |request| {
            let ended = ended.clone();
            tokio::spawn(async move {
                let body = request.into_body().collect().await;
                ended.send(body.map_or(0, |body| body.to_bytes().len())).unwrap();
            });
            async { Response::new(whole("hello")) }
        });
        let toml = forward_to(&[quoted(upstream.url())], keys);
        let keys =
            "[server]\nworkers = 1\nmax_connections = 2\ntimeouts = { header = \"1s\", idle = \"1s\" }";
        (Gateway::start(&format!("{keys}\n{toml}")), upstream, lengths)
    };
    let servers = [
        of_server(Speech::Http1, ""),
        of_server(Speech::Http2(http2::Builder::new(TokioExecutor::new())), "http2 = true"),
    ];
    let mut clients = servers.each_ref().map(|(gateway, ..)| {
        let mut one = gateway.client();
        // hyper, the server, misses the end of one with a length.
        one.send(b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n");
        assert_eq!(one.answer().text(), "hello");
        let mut other = Frames::connect(gateway.address());
        let post = [(":method", "POST"), (":scheme", "http"), (":authority", "a"), (":path", "/")];
        other.send(HEADERS, END_HEADERS, 1, &fields(&post));
        (one, other)
    });
    for piece in 1..=PIECES {
        thread::sleep(PAUSE);
        for (one, other) in &mut clients {
            let end: &[u8] = if piece == PIECES { b"0\r\n\r\n" } else { b"" };
            one.send(&[b"3e8\r\n", &PIECE[..], b"\r\n", end].concat());
            other.send(DATA, if piece == PIECES { END_STREAM } else { 0 }, 1, &PIECE);
        }
    }
    for ((_, _, lengths), (one, other)) in servers.iter().zip(&mut clients) {
        assert_eq!([(); 2].map(|()| lengths.recv_timeout(PATIENCE)), [Ok(LENGTH); 2]);
        assert_eq!(one.get("/").text(), "hello");
        assert_eq!(other.told(1).body, b"hello");
    }
}

#[test]
fn an_upload_that_a_server_does_not_read_ends_if_its_response_is_given_up() {
    let bodies = Arc::new(Mutex::new(Vec::new()));
    let upstream = Upstream::speaking(narrow_http2(), move |request| {
        let is_stream = request.uri().path() == "/stream";
        bodies.lock().unwrap().push(request.into_body());
        async move {
            Response::new(if is_stream { BodyExt::boxed(StreamBody::new(pending())) } else { whole("hello") })
        }
    });
    let toml = forward_to(&[quoted(upstream.url())], "http2 = true\nmax_connections = 1");
    let gateway = Gateway::start(&format!("[server]\nworkers = 1\n{toml}"));
    let mut client = Frames::connect(gateway.address());
    let post = [(":method", "POST"), (":scheme", "http"), (":authority", "a"), (":path", "/stream")];
    // The windows are wide only once its settings are known.
    client.ask(1, &get("/", &[]));
    assert_eq!(client.told(1).status, 200);
    client.send(HEADERS, END_HEADERS, 3, &fields(&post));
    // More than the server's window and h2's buffer.
    (0..16).for_each(|_| client.send(DATA, 0, 3, &[b'a'; 16 << 10]));
    wait_until("the response has begun", || upstream.count() == 2);
    assert_eq!(gateway.get("/").json()["code"], "upstream-busy");
    client.reset(3);
    wait_until("the connection is free", || gateway.get("/").status == 200);
    drop(client);
}

#[test]
fn an_upload_behind_its_response_is_in_flight() {
    let upstream = Upstream::start(|request| async {
        tokio::spawn(request.into_body().collect());
        Response::new(whole("hello"))
    });
    let limits = "[limits.one]\nkey = \"global\"\nrate = \"1\"\nalgorithm = \"concurrency\"\n";
    let toml = forward_to(&[quoted(upstream.url())], "");
    let gateway =
        Gateway::start(&format!("{limits}{}", toml.replace("[[routes]]", "[[routes]]\nlimits = [\"one\"]")));
    let mut client = gateway.client();
    client.send(b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n");
    assert_eq!(client.answer().text(), "hello");
    assert_eq!(gateway.get("/").status, 429);
    client.send(b"0\r\n\r\n");
    wait_until("the request has ended", || gateway.get("/").status == 200);
}
