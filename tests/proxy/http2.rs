//! HTTP/2 clients: what is supported, what is rejected, and what a client can't receive.

use std::{
    fs,
    process::Command,
    sync::{Mutex, mpsc},
    thread,
    time::{Duration, Instant},
};

use bytes::Bytes;
use http_body_util::{BodyExt, StreamBody, combinators::BoxBody};
use hyper::{HeaderMap, Request, Response, body::Frame, server::conn::http2};
use hyper_util::rt::TokioExecutor;
use tokio::net::TcpStream;

use crate::{
    harness::{
        PATIENCE,
        client::connect_with_buffer,
        frames::{
            CANCEL, COMPRESSION_ERROR, CONTINUATION, DATA, END_HEADERS, END_STREAM, ENHANCE_YOUR_CALM, End,
            Frames, GOAWAY, HEADERS, INITIAL_WINDOW, PING, PREFACE, PROTOCOL_ERROR, REFUSED_STREAM,
            RST_STREAM, SETTINGS, WINDOW_UPDATE, fields, frame, get,
        },
        gateway::Gateway,
        judge::{in_time, judge},
        metrics::Metrics,
        upstream::{Speech, Upstream, whole},
        wait_until,
        wire::WireUpstream,
    },
    proxy::{curl, forward_to, quoted},
};

/// In `timeouts` of the gateways here.
const IDLE: Duration = Duration::from_millis(500);
/// What the gateway's memory may grow by, whatever is sent to it.
const GROWTH_KIB: usize = 8 << 10;
const LAST: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nlast";
const GET: &[u8] = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n";

/// A gateway with one worker and these keys of `[server]`, before an upstream.
fn start(keys: &str, url: &str) -> Gateway {
    Gateway::start(&format!("[server]\nworkers = 1\n{keys}\n{}", forward_to(&[quoted(url)], "")))
}

fn impatient(url: &str) -> Gateway {
    start("timeouts = { header = \"500ms\", idle = \"500ms\" }", url)
}

fn admin(gateway: &Gateway) -> String {
    let (_, admin) = gateway.greeting().split_once("dashboard: http://").unwrap();
    admin.lines().next().unwrap().to_owned()
}

/// Waits for the end of a stream, and returns the status of its response.
fn status(client: &mut Frames, stream: u32) -> u16 {
    let told = client.told(stream);
    assert_eq!(told.end, End::Whole, "{told:?}");
    told.status
}

#[test]
fn a_request_goes_on_by_http_1_and_its_answer_comes_back() {
    let upstream = Upstream::mirror();
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("log");
    let gateway = Gateway::start(&format!(
        "[access_log]\npath = {log:?}\n{}",
        forward_to(&[quoted(upstream.url())], "")
    ));
    let print = "%{http_version} %{http_code} %header{x-nothing}|";
    let told = curl(
        &gateway,
        &[
            "--http2-prior-knowledge",
            "--data",
            "abc",
            "--write-out",
            print,
            "--header",
            "Connection: x-private",
            "--header",
            "x-private: kept?",
            "http://{address}/a//b?c=d",
        ],
    );
    assert_eq!(told, "abc2 200 |");
    let request = upstream.last();
    assert_eq!(request.uri.to_string(), "/a//b?c=d");
    assert_eq!(request.headers["host"], gateway.address().to_string());
    assert_eq!(
        (&request.headers["content-length"], &request.headers["via"]),
        (&"3".parse().unwrap(), &"2.0 tollgate".parse().unwrap())
    );
    assert_eq!(request.headers["x-forwarded-proto"], "http");
    wait_until("it is logged", || fs::read_to_string(&log).unwrap().contains("\"protocol\":\"HTTP/2.0\""));
}

#[test]
fn an_upload_without_a_length_and_a_large_answer_pass() {
    let (upstream, folder) = (Upstream::mirror(), tempfile::tempdir().unwrap());
    let gateway = start("", &upstream.url());
    let file = folder.path().join("file");
    let sent: Vec<u8> = (0..5 << 20).map(|at: u32| (at / 7) as u8).collect();
    fs::write(&file, &sent).unwrap();
    let (file, came) = (file.to_str().unwrap(), folder.path().join("came"));
    let told = curl(
        &gateway,
        &[
            "--http2-prior-knowledge",
            "--upload-file",
            file,
            "--header",
            "content-length:",
            "--output",
            came.to_str().unwrap(),
            "http://{address}/",
        ],
    );
    assert_eq!(told, "");
    assert!(fs::read(came).unwrap() == sent);
    assert_eq!(upstream.last().headers["transfer-encoding"], "chunked");
}

#[test]
fn crumbs_of_a_cookie_are_joined() {
    let upstream = Upstream::hello();
    let gateway = start("", &upstream.url());
    let mut client = Frames::connect(gateway.address());
    client.ask(
        1,
        &get(
            "/",
            &[
                ("cookie", "a=1"),
                ("x-other", "x"),
                ("cookie", ""),
                ("cookie", "b=2"),
                ("cookie", "c=3"),
                ("cookie", ""),
            ],
        ),
    );
    assert_eq!(status(&mut client, 1), 200);
    let lines: Vec<_> = upstream.last().headers.get_all("cookie").iter().cloned().collect();
    assert_eq!(lines, ["a=1; b=2; c=3"]);
}

#[test]
fn space_around_a_value_makes_no_other_key() {
    let upstream = Upstream::hello();
    let gateway = Gateway::start(&format!(
        "[upstreams.api]\nservers = [\"{}\"]\n[limits.l]\nkey = \"header:x-api-key\"\nrate = \"3/h\"\n\
         [[routes]]\npath = \"/\"\nupstream = \"api\"\nlimits = [\"l\"]\n",
        upstream.url()
    ));
    let mut client = Frames::connect(gateway.address());
    for (stream, value, expected) in [(1, "k1", 200), (3, " k1", 200), (5, "k1\t ", 200), (7, "\tk1", 429)] {
        client.ask(stream, &get("/", &[("x-api-key", value)]));
        assert_eq!(status(&mut client, stream), expected, "{value:?}");
    }
    assert_eq!(upstream.last().headers["x-api-key"], "k1");
}

#[test]
fn the_authority_is_the_host_and_another_one_is_refused() {
    let upstream = Upstream::hello();
    let gateway = start("", &upstream.url());
    let with = |pseudo: &[(&'static str, &'static str)]| {
        let get = [(":method", "GET"), (":scheme", "http"), (":path", "/")];
        [&get[..], pseudo].concat()
    };
    let mut client = Frames::connect(gateway.address());
    let cases: [(&[(&'static str, &'static str)], u16); 7] = [
        (&[(":authority", "a.example")], 200),
        (&[(":authority", "a.example"), ("host", "A.example")], 200),
        (&[("host", "a.example")], 200),
        (&[], 400),
        (&[(":authority", "a.example"), ("host", "b.example")], 400),
        (&[(":authority", "a.example"), ("host", "a.example"), ("host", "a.example")], 400),
        (&[(":authority", "me@a.example")], 400),
    ];
    for (stream, (pseudo, expected)) in (1..).step_by(2).zip(cases) {
        client.ask(stream, &with(pseudo));
        assert_eq!(status(&mut client, stream), expected, "{pseudo:?}");
        if expected == 200 {
            let hosts: Vec<_> = upstream.last().headers.get_all("host").iter().cloned().collect();
            assert_eq!(hosts, ["a.example"]);
        }
    }
    assert_eq!(upstream.count(), 3);
}

#[test]
fn what_no_request_may_have_is_refused_and_goes_nowhere() {
    let upstream = Upstream::hello();
    let gateway = start("", &upstream.url());
    let pseudo = [(":method", "GET"), (":scheme", "http"), (":authority", "a"), (":path", "/")];
    let without = |name: &str| pseudo.iter().copied().filter(|(other, _)| *other != name).collect::<Vec<_>>();
    let with = |more: (&'static str, &'static str)| [&pseudo[..], &[more]].concat();
    let cases = [
        with(("x-evil", "a\r\nx-smuggled: 1")),
        with(("x-evil", "a\nb")),
        with(("x-evil", "a\0b")),
        with(("x evil", "a")),
        with(("X-Upper", "a")),
        with(("connection", "keep-alive")),
        with(("transfer-encoding", "chunked")),
        with(("keep-alive", "timeout=5")),
        with(("proxy-connection", "close")),
        with(("upgrade", "websocket")),
        with(("te", "gzip")),
        with(("content-length", "3")),
        with(("content-length", "-1")),
        with((":method", "POST")),
        with((":path", "/other")),
        with((":status", "200")),
        with((":protocol", "websocket")),
        with((":unknown", "x")),
        [&[("x-first", "1")], &pseudo[..]].concat(),
        without(":method"),
        without(":scheme"),
        without(":path"),
        [&without(":path")[..], &[(":path", "")]].concat(),
        [&without(":path")[..], &[(":path", "/a\r\nb")]].concat(),
        [&without(":authority")[..], &[(":authority", "a b")]].concat(),
    ];
    for case in cases {
        let mut client = Frames::connect(gateway.address());
        client.ask(1, &case);
        let told = client.next().expect("an answer");
        let code = if matches!(told.kind, RST_STREAM | GOAWAY) { told.code() } else { 0 };
        assert_eq!(code, PROTOCOL_ERROR, "{case:?}: {told:?}");
    }
    assert_eq!(upstream.count(), 0);
    assert_eq!(status_of_one(&gateway), 200);
}

/// The status of the answer to a request on a connection of its own.
fn status_of_one(gateway: &Gateway) -> u16 {
    let mut client = Frames::connect(gateway.address());
    client.ask(1, &get("/", &[]));
    status(&mut client, 1)
}

#[test]
fn a_head_that_is_too_large_is_431() {
    let upstream = Upstream::hello();
    let gateway = start("max_header_bytes = \"8KiB\"", &upstream.url());
    let long = "x".repeat(8 << 10);
    let long = format!("x-long: {long}");
    let told = curl(
        &gateway,
        &["--http2-prior-knowledge", "--header", &long, "--write-out", "%{http_code}", "http://{address}/"],
    );
    assert!(told.starts_with("431"), "{told}");
    assert_eq!(upstream.count(), 0);
}

#[test]
fn the_preface_may_come_in_pieces_and_must_come_in_time() {
    let gateway = impatient(&Upstream::hello().url());
    let mut client = gateway.client();
    let mut writer = client.writer();
    for byte in PREFACE {
        std::io::Write::write_all(&mut writer, &[*byte]).unwrap();
        thread::sleep(Duration::from_millis(2));
    }
    client.send(&frame(SETTINGS, 0, 0, &[]));
    // The gateway's own settings: their length, and their kind.
    assert_eq!(client.bytes(9)[3], SETTINGS);
    for part in [1, 3, 23] {
        let since = Instant::now();
        let mut client = gateway.client();
        client.send(&PREFACE[..part]);
        assert!(client.is_closed());
        assert!((IDLE..PATIENCE).contains(&since.elapsed()), "{:?}", since.elapsed());
    }
    // What begins like it isn't it.
    assert_eq!(gateway.client().ask("PRIVATE /").status, 200);
}

#[test]
fn where_it_is_not_spoken_the_preface_is_a_bad_request() {
    let gateway = start("http2 = false", &Upstream::hello().url());
    let mut client = gateway.client();
    client.send(PREFACE);
    assert_eq!(client.head().status, 400);
    assert!(client.is_closed());
    assert_eq!(gateway.get("/").status, 200);
}

#[test]
fn an_answer_has_no_body_where_there_is_none() {
    let upstream = Upstream::start(|_| async {
        Response::builder()
            .status(204)
            .header("connection", "x-hop")
            .header("x-hop", "1")
            .body(whole(""))
            .unwrap()
    });
    let limit = "limits = [{ name = \"none\", key = \"global\", rate = \"1/h\" }]";
    let gateway = Gateway::start(&format!(
        "{}[[routes]]\npath = \"/limited\"\nrespond = {{}}\n{limit}\n[[routes]]\npath = \"/text\"\nrespond = {{ body = \"text\" }}\n",
        forward_to(&[quoted(upstream.url())], "")
    ));
    let mut client = Frames::connect(gateway.address());
    let head = |path| [&[(":method", "HEAD")], &get(path, &[])[1..]].concat();
    let grpc = [("content-type", "application/grpc")];
    let requests = [head("/text"), get("/", &[]), get("/limited", &grpc), get("/limited", &grpc)];
    for (stream, request) in (1..).step_by(2).zip(requests) {
        client.ask(stream, &request);
        let answer = client.next().unwrap();
        assert!(answer.kind == HEADERS && answer.ends_stream(), "{request:?}: {answer:?}");
    }
    let told = curl(&gateway, &["--http2-prior-knowledge", "--head", "http://{address}/text"]);
    assert!(told.starts_with("HTTP/2 200") && told.contains("content-length: 4\r\n"), "{told}");
}

/// Sends a request by HTTP/2, and gives the answer with its trailers.
async fn exchange(gateway: &Gateway, trailers: HeaderMap) -> (Response<()>, Bytes, Option<HeaderMap>) {
    let stream = TcpStream::connect(gateway.address()).await.unwrap();
    let (client, connection) = h2::client::handshake(stream).await.unwrap();
    tokio::spawn(async { connection.await.unwrap() });
    let request =
        Request::post("http://a/").header("te", "trailers").header("trailer", "x-sum").body(()).unwrap();
    let (answer, mut body) = client.ready().await.unwrap().send_request(request, false).unwrap();
    body.send_data(Bytes::from("abc"), false).unwrap();
    body.send_trailers(trailers).unwrap();
    let (parts, mut body) = answer.await.unwrap().into_parts();
    let mut bytes = Vec::new();
    while let Some(data) = body.data().await {
        bytes.extend_from_slice(&data.unwrap());
    }
    let trailers = body.trailers().await.unwrap();
    (Response::from_parts(parts, ()), bytes.into(), trailers)
}

#[tokio::test]
async fn trailers_go_both_ways_by_either_protocol_of_the_upstream() {
    for speech in [Speech::Http1, Speech::Http2(http2::Builder::new(TokioExecutor::new()))] {
        let keys = if matches!(speech, Speech::Http1) { "" } else { "http2 = true" };
        let upstream = Upstream::speaking(speech, |request| async {
            let collected = request.into_body().collect().await.unwrap();
            let sum = collected.trailers().and_then(|trailers| trailers.get("x-sum")).cloned();
            let mut trailers = HeaderMap::new();
            trailers.insert("x-sum", sum.expect("a trailer"));
            let frames = [Frame::data(collected.to_bytes()), Frame::trailers(trailers)].map(Ok);
            let body = BoxBody::new(StreamBody::new(futures_util::stream::iter(frames)));
            Response::builder().header("trailer", "x-sum").body(body).unwrap()
        });
        let gateway = Gateway::start(&forward_to(&[quoted(upstream.url())], keys));
        let mut trailers = HeaderMap::new();
        trailers.insert("x-sum", "42".parse().unwrap());
        let (answer, body, came) = exchange(&gateway, trailers.clone()).await;
        assert_eq!((answer.status().as_u16(), &body[..]), (200, &b"abc"[..]));
        assert_eq!(came, Some(trailers), "{keys}");
    }
}

#[test]
fn h2load_has_no_failure() {
    let gateway = Gateway::start(&forward_to(&[quoted(Upstream::hello().url())], ""));
    let url = format!("http://{}/", gateway.address());
    let output = Command::new("h2load").args(["-n", "5000", "-c", "10", "-m", "50", &url]).output();
    let output = output.expect("h2load is needed: a part of nghttp2-client");
    let told = String::from_utf8(output.stdout).unwrap();
    assert!(told.contains("5000 succeeded, 0 failed, 0 errored, 0 timeout"), "{told}");
    assert!(told.contains("status codes: 5000 2xx"), "{told}");
}

/// An upstream that says how much of an answer without end it could send, when it can send no more.
fn endless() -> (WireUpstream, mpsc::Receiver<usize>) {
    let (ended, end) = mpsc::channel();
    let upstream = WireUpstream::start(move |mut wire| {
        let request = wire.request().unwrap_or_default();
        if request.starts_with("GET /small") {
            return wire.send(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nup");
        }
        wire.send(b"HTTP/1.1 200 OK\r\nContent-Length: 999999999\r\n\r\n");
        let mut sent = 0;
        while std::io::Write::write_all(wire.stream(), &[b'x'; 64 << 10]).is_ok() {
            sent += 64 << 10;
        }
        let _ = ended.send(sent);
    });
    (upstream, end)
}

#[test]
fn a_stream_without_room_is_reset_and_the_others_go_on() {
    let (upstream, end) = endless();
    let gateway = impatient(&upstream.url());
    // No room at all, and some that is never renewed.
    for window in [0, 100_000] {
        let mut client = Frames::connect_with(gateway.address(), &[(INITIAL_WINDOW, window)]);
        let since = Instant::now();
        client.ask(1, &get("/", &[]));
        end.recv_timeout(PATIENCE).expect("the connection upstream ends");
        assert!(since.elapsed() >= IDLE, "{:?}", since.elapsed());
        let reset = client.next_of(RST_STREAM);
        assert_eq!((reset.stream, reset.code()), (1, CANCEL));
        // The connection is as good as before; 65,535 bytes are its own, and some of these are taken.
        client.send(SETTINGS, 0, 0, &[0, 4, 0, 0, 0xff, 0xff]);
        if window == 0 {
            client.ask(3, &get("/small", &[]));
            assert_eq!(status(&mut client, 3), 200);
        }
    }
}

#[test]
fn a_stream_that_is_taken_slowly_gets_all_of_it() {
    judge(IDLE / 2, || {
        let upstream = Upstream::start(|_| async { Response::new(whole(vec![b'x'; 300_000])) });
        let gateway = impatient(&upstream.url());
        let mut client = Frames::connect_with(gateway.address(), &[(INITIAL_WINDOW, 0)]);
        client.ask(1, &get("/", &[]));
        let mut came = 0;
        assert_eq!(client.next().unwrap().status(), 200);
        loop {
            // 100 ms for 30,000 bytes each: in time, and all of it too late.
            thread::sleep(IDLE / 5);
            for stream in [0, 1] {
                client.send(WINDOW_UPDATE, 0, stream, &30_000_u32.to_be_bytes());
            }
            let mut more = 0;
            while more < 30_000 {
                let frame = client.next().expect("the rest");
                in_time(frame.kind == DATA, || format!("{frame:?}"))?;
                more += frame.payload.len();
                if frame.ends_stream() {
                    assert_eq!(came + more, 300_000);
                    return Ok(());
                }
            }
            came += more;
        }
    });
}

#[test]
fn who_takes_nothing_from_the_connection_is_cut_off() {
    let (upstream, end) = endless();
    let gateway = impatient(&upstream.url());
    // All the room there can be, and nobody reads.
    let mut client = Frames::connect_with(gateway.address(), &[(INITIAL_WINDOW, 0x7fff_ffff)]);
    client.send(WINDOW_UPDATE, 0, 0, &0x7fff_0000_u32.to_be_bytes());
    client.ask(1, &get("/", &[]));
    end.recv_timeout(PATIENCE).expect("the connection upstream ends");
    client.end();
}

#[test]
fn a_stream_may_be_silent() {
    let upstream = WireUpstream::start(|mut wire| {
        wire.request();
        thread::sleep(3 * IDLE);
        wire.send(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: 6\r\n\r\none");
        thread::sleep(3 * IDLE);
        wire.send(b"two");
    });
    let gateway = impatient(&upstream.url());
    assert_eq!(status_of_one(&gateway), 200);
}

#[test]
fn a_body_that_stops_is_408_and_the_connection_goes_on() {
    let upstream = Upstream::mirror();
    let gateway = impatient(&upstream.url());
    let mut client = Frames::connect(gateway.address());
    let post = [&[(":method", "POST")], &get("/", &[])[1..]].concat();
    client.send(HEADERS, END_HEADERS, 1, &fields(&post));
    client.send(DATA, 0, 1, b"some");
    loop {
        let frame = client.next().expect("an answer");
        if frame.kind == RST_STREAM || frame.ends_stream() {
            break;
        }
    }
    client.ask(3, &get("/", &[]));
    assert_eq!(status(&mut client, 3), 200);
}

#[test]
fn an_idle_connection_is_told_its_end_whatever_it_pings() {
    let gateway = impatient(&Upstream::hello().url());
    let mut client = Frames::connect(gateway.address());
    client.ask(1, &get("/", &[]));
    assert_eq!(status(&mut client, 1), 200);
    let mut writer = client.writer();
    thread::spawn(move || {
        while std::io::Write::write_all(&mut writer, &frame(PING, 0, 0, b"whatever")).is_ok() {
            thread::sleep(IDLE / 10);
        }
    });
    let since = Instant::now();
    assert_eq!(client.end(), Some(0));
    assert!((IDLE / 2..PATIENCE / 2).contains(&since.elapsed()), "{:?}", since.elapsed());
    // Who connects and asks nothing, and who doesn't answer the ping that ends it.
    let since = Instant::now();
    Frames::connect(gateway.address()).end();
    let mut client = Frames::connect(gateway.address());
    client.answers_pings = false;
    client.ask(1, &get("/", &[]));
    client.end();
    assert!(since.elapsed() < PATIENCE / 2, "{:?}", since.elapsed());
}

/// An upstream whose response is a single piece, larger than the window of clients here.
fn more_than_room() -> Upstream {
    Upstream::start(|_| async { Response::new(whole(vec![b'x'; 4_000])) })
}

#[test]
fn an_answer_that_waits_to_be_sent_is_in_flight_though_all_of_it_is_there() {
    let upstream = more_than_room();
    // As many requests by HTTP/2 as connections, but a hundred at least.
    let gateway = start("max_connections = 2", &upstream.url());
    let [mut client, mut other] =
        [(); 2].map(|()| Frames::connect_with(gateway.address(), &[(INITIAL_WINDOW, 1)]));
    for at in 0..100 {
        client.ask(2 * at + 1, &get("/", &[]));
        assert_eq!(client.next_of(HEADERS).status(), 200);
    }
    // One of each connection is served whatever others have in flight.
    for (stream, status) in [(1, 200), (3, 503)] {
        other.ask(stream, &get("/", &[]));
        assert_eq!(other.next_of(HEADERS).status(), status);
    }
    assert_eq!(upstream.count(), 101);
    client.send(SETTINGS, 0, 0, &[0, 4, 0, 0, 0x20, 0]);
    let mut asked = 1;
    wait_until("what was sent is in flight no more", || {
        asked += 1;
        other.ask(2 * asked + 1, &get("/", &[]));
        other.next_of(HEADERS).status() == 200
    });
}

#[test]
fn who_gives_no_room_for_the_last_piece_is_cut_off_whatever_else_is_asked() {
    let upstream = more_than_room();
    let gateway = impatient(&upstream.url());
    let mut client = Frames::connect_with(gateway.address(), &[(INITIAL_WINDOW, 1)]);
    let since = Instant::now();
    client.ask(1, &get("/", &[]));
    assert_eq!(client.next_of(HEADERS).status(), 200);
    let mut writer = client.writer();
    thread::spawn(move || {
        for at in 1..100 {
            let head = frame(HEADERS, END_HEADERS | END_STREAM, 2 * at + 1, &fields(&get("/", &[])));
            // What it asks is taken back, lest it be too much.
            let back = frame(RST_STREAM, 0, 2 * at - 1, &CANCEL.to_be_bytes());
            let pair = if at > 1 { [head, back].concat() } else { head };
            if std::io::Write::write_all(&mut writer, &pair).is_err() {
                return;
            }
            thread::sleep(IDLE / 5);
        }
    });
    assert_eq!(client.next_of(GOAWAY).code(), 0);
    assert!(since.elapsed() >= IDLE, "{:?}", since.elapsed());
    client.end();
    assert!(since.elapsed() < PATIENCE / 2, "{:?}", since.elapsed());
}

#[test]
fn more_streams_than_may_be_are_refused() {
    let (upstream, release) =
        WireUpstream::answering_when_told(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nup");
    // As many requests by HTTP/2 as connections, but a hundred at least.
    let gateway = start("max_connections = 2", &upstream.url());
    let mut client = Frames::connect(gateway.address());
    (0..101).for_each(|at| client.ask(2 * at + 1, &get("/", &[])));
    let refused = client.next_of(RST_STREAM);
    assert_eq!((refused.stream, refused.code()), (201, REFUSED_STREAM));
    let mut other = Frames::connect(gateway.address());
    // One of each connection is served whatever others have in flight.
    other.ask_at_once(2, &get("/", &[]));
    let refused = other.next_of(HEADERS);
    assert_eq!((refused.stream, refused.status()), (3, 503));
    (0..101).for_each(|_| release.send(()).unwrap());
    (0..100).for_each(|_| assert_eq!(client.next_of(HEADERS).status(), 200));
    assert_eq!(other.next_of(HEADERS).status(), 200);
    release.send(()).unwrap();
    other.ask(5, &get("/", &[]));
    assert_eq!(status(&mut other, 5), 200);
}

#[test]
fn requests_that_are_taken_back_at_once_end_the_connection() {
    let upstream = Upstream::hello();
    let gateway = start("", &upstream.url());
    let mut client = Frames::connect(gateway.address());
    let pairs: Vec<u8> = (0..5_000_u32)
        .flat_map(|at| {
            let ask = frame(HEADERS, END_HEADERS | END_STREAM, 2 * at + 1, &fields(&get("/", &[])));
            [ask, frame(RST_STREAM, 0, 2 * at + 1, &CANCEL.to_be_bytes())].concat()
        })
        .collect();
    client.write(&pairs);
    assert_eq!(client.end(), Some(ENHANCE_YOUR_CALM));
    assert!(upstream.count() < 500, "{}", upstream.count());
    assert_eq!(status_of_one(&gateway), 200);
}

/// A request without a body that is cancelled at once is no failure of its server, whose share of the requests `eject` would
/// take away.
#[test]
fn who_cancels_requests_makes_no_server_fail() {
    const REQUESTS: u32 = 20;
    let upstream = WireUpstream::start(|mut wire| {
        while wire.message().is_some() {
            wire.send(LAST);
        }
    });
    let gateway = start("[admin]\nlisten = \"127.0.0.1:0\"", &upstream.url());
    let admin = admin(&gateway);
    let before = Metrics::scrape(&admin);
    for hangs_up in [false, true].repeat(20) {
        let mut client = Frames::connect(gateway.address());
        client.ask_at_once(REQUESTS, &get("/", &[]));
        if hangs_up {
            client.close();
        } else {
            (0..REQUESTS).for_each(|at| client.reset(2 * at + 1));
        }
        assert_eq!(status_of_one(&gateway), 200);
    }
    let grown = Metrics::scrape(&admin);
    let grown = grown.since(&before);
    let failed = grown.keys().filter(|series| series.starts_with("tollgate_upstream_failures"));
    assert_eq!(failed.count(), 0, "{grown:?}");
}

/// Each is begun, and no two are there at a time.
#[test]
fn requests_that_are_given_up_one_by_one_end_the_connection() {
    let (asked, is_asked) = mpsc::channel();
    let upstream = WireUpstream::start(move |mut wire| {
        if wire.request().is_some() {
            let _ = asked.send(());
            wire.wait_for_end();
        }
    });
    let gateway = start("[admin]\nlisten = \"127.0.0.1:0\"", &upstream.url());
    let admin = admin(&gateway);
    let closed = || Metrics::scrape(&admin).of("tollgate_connections_closed_total{reason=\"resets\"}");
    let mut client = Frames::connect(gateway.address());
    let mut given_up = 0;
    while closed() == 0.0 {
        assert!(given_up < 5_000, "{given_up} were given up");
        client.ask(2 * given_up + 1, &get("/", &[]));
        if is_asked.recv_timeout(Duration::from_secs(1)).is_ok() {
            client.reset(2 * given_up + 1);
            given_up += 1;
        }
    }
    assert!(given_up > 500, "{given_up}");
    client.end();
}

#[test]
fn a_head_without_end_ends_the_connection() {
    let upstream = Upstream::hello();
    let gateway = start("", &upstream.url());
    assert_eq!(status_of_one(&gateway), 200);
    let before = gateway.memory_kib("VmHWM");
    // Empty pieces, and such that grow.
    for piece in
        [vec![], fields(&[("x-more", &"x".repeat(1_000))]), fields(&[("x-more", &"x".repeat(16_000))])]
    {
        let mut client = Frames::connect(gateway.address());
        client.send(HEADERS, END_STREAM, 1, &fields(&get("/", &[])));
        let mut writer = client.writer();
        let flood = thread::spawn(move || {
            let piece = frame(CONTINUATION, 0, 1, &piece);
            (0..20_000).take_while(|_| std::io::Write::write_all(&mut writer, &piece).is_ok()).count()
        });
        // It may be reset before it has read why.
        let told = client.end();
        assert!(
            matches!(told, None | Some(ENHANCE_YOUR_CALM | COMPRESSION_ERROR | PROTOCOL_ERROR)),
            "{told:?}"
        );
        assert!(flood.join().unwrap() < 20_000);
    }
    let growth = gateway.grew_kib(before);
    assert!(growth < GROWTH_KIB, "grew by {growth} KiB");
    assert_eq!((upstream.count(), status_of_one(&gateway)), (1, 200));
}

#[test]
fn who_pings_and_sets_without_reading_is_held_up_and_cut_off() {
    let gateway = impatient(&Upstream::hello().url());
    assert_eq!(status_of_one(&gateway), 200);
    let before = gateway.memory_kib("VmHWM");
    for flood in [frame(PING, 0, 0, b"whatever"), frame(SETTINGS, 0, 0, &[0, 4, 0, 0, 0xff, 0xff])] {
        let client = Frames::connect(gateway.address());
        let mut writer = client.writer();
        let flood = flood.repeat(1_000);
        let since = Instant::now();
        while std::io::Write::write_all(&mut writer, &flood).is_ok() {
            assert!(since.elapsed() < 3 * PATIENCE, "it is never cut off");
        }
    }
    let growth = gateway.grew_kib(before);
    assert!(growth < GROWTH_KIB, "grew by {growth} KiB");
    assert_eq!(status_of_one(&gateway), 200);
}

#[test]
fn a_drain_tells_and_finishes_what_is_in_flight() {
    let (upstream, release) = WireUpstream::answering_when_told(LAST);
    let mut gateway = start("", &upstream.url());
    let (mut busy, mut idle) = (Frames::connect(gateway.address()), Frames::connect(gateway.address()));
    idle.ask(1, &get("/", &[]));
    release.send(()).unwrap();
    assert_eq!(status(&mut idle, 1), 200);
    busy.ask(1, &get("/", &[]));
    busy.ask(3, &get("/", &[]));
    wait_until("they are in flight", || upstream.connections() == 2);
    gateway.signal("TERM");
    assert_eq!(idle.end(), Some(0));
    assert_eq!(busy.next_of(GOAWAY).code(), 0);
    assert_eq!(gateway.ended(), None);
    release.send(()).unwrap();
    release.send(()).unwrap();
    let answers = [busy.next_of(HEADERS), busy.next_of(HEADERS)];
    assert!(answers.iter().all(|answer| answer.status() == 200), "{answers:?}");
    busy.end();
    wait_until("the gateway ends", || gateway.ended().is_some());
    assert_eq!(gateway.ended().unwrap().code(), Some(0), "{}", gateway.log());
}

/// The rest of the response would be lost if the connection were closed while the client still sends.
#[test]
fn a_slow_client_gets_all_of_a_response_from_a_gateway_that_drains() {
    const LENGTH: usize = 200_000;
    let (release, released) = mpsc::channel();
    let released = Mutex::new(released);
    let upstream = WireUpstream::start(move |mut wire| {
        wire.request();
        wire.send(format!("HTTP/1.1 200 OK\r\nContent-Length: {LENGTH}\r\n\r\n").as_bytes());
        released.lock().unwrap().recv().unwrap();
        wire.send(&[b'x'; LENGTH]);
        wire.wait_for_end();
    });
    let mut gateway = start("timeouts = { header = \"1s\" }", &upstream.url());
    let stream = connect_with_buffer(gateway.address(), 4 << 10);
    let mut client = Frames::on(stream, &[(INITIAL_WINDOW, 1 << 20)]);
    let more = (1_u32 << 20).to_be_bytes();
    client.send(WINDOW_UPDATE, 0, 0, &more);
    client.ask(1, &get("/", &[]));
    assert_eq!(client.next_of(HEADERS).status(), 200);
    gateway.signal("TERM");
    let told = [client.next_of(GOAWAY), client.next_of(GOAWAY)];
    assert!(told.iter().all(|goaway| goaway.code() == 0), "{told:?}");
    release.send(()).unwrap();
    let mut received = 0;
    while received < LENGTH {
        // The gateway has closed its side, and this takes longer than a head may, and than most clients may be silent.
        thread::sleep(Duration::from_millis(400));
        if received > LENGTH / 2 {
            client.send(WINDOW_UPDATE, 0, 0, &1_u32.to_be_bytes());
        }
        received += client.next_of(DATA).payload.len();
    }
    drop(client);
    wait_until("the gateway ends", || gateway.ended().is_some());
}

#[test]
fn the_requests_that_a_drain_cuts_off_are_counted_not_the_connections() {
    let (upstream, _release) = WireUpstream::answering_when_told(LAST);
    let mut gateway = start("timeouts = { drain = \"1s\" }", &upstream.url());
    let _silent = Frames::connect(gateway.address());
    let mut busy = Frames::connect(gateway.address());
    busy.ask_at_once(3, &get("/", &[]));
    wait_until("they are in flight", || upstream.connections() == 3);
    gateway.signal("TERM");
    wait_until("the gateway ends", || gateway.ended().is_some());
    assert!(gateway.log().contains("cut off at the end of the drain: 3"), "{}", gateway.log());
}

/// Balancers have three seconds to see that it drains, in which clients are told to ask elsewhere.
#[test]
fn from_the_beginning_of_a_drain_each_connection_that_asks_ends() {
    let keys = "timeouts = { drain = \"30s\" }\n[admin]\nlisten = \"127.0.0.1:0\"";
    let gateway = start(keys, &Upstream::hello().url());
    let (mut old, mut silent) = (Frames::connect(gateway.address()), Frames::connect(gateway.address()));
    for client in [&mut old, &mut silent] {
        client.ask(1, &get("/", &[]));
        assert_eq!(status(client, 1), 200);
    }
    gateway.signal("TERM");
    let since = Instant::now();
    wait_until("it drains", || gateway.log().contains("draining"));
    for mut client in [old, Frames::connect(gateway.address())] {
        client.ask(3, &get("/", &[]));
        assert_eq!(status(&mut client, 3), 200);
        assert_eq!(client.end(), Some(0));
    }
    assert!(since.elapsed() < Duration::from_secs(3), "{:?}", since.elapsed());
    assert_eq!(silent.end(), Some(0));
    assert!(since.elapsed() >= Duration::from_secs(3), "{:?}", since.elapsed());
}

#[test]
fn leases_of_streams_that_are_cut_off_are_released() {
    let upstream = WireUpstream::start(|mut wire| {
        wire.request();
        wire.wait_for_end();
    });
    let redis = crate::harness::redis::Redis::start();
    let toml = format!(
        "{}[server]\ntimeouts = {{ drain = \"200ms\" }}\n{}limits = [{{ name = \"few\", key = \"global\", rate = \"5\", algorithm = \"concurrency\" }}]\n",
        redis.store(),
        forward_to(&[quoted(upstream.url())], "")
    );
    let mut gateway = Gateway::start(&toml);
    let mut client = Frames::connect(gateway.address());
    (0..5).for_each(|at| client.ask(2 * at + 1, &get("/", &[])));
    wait_until("they are in flight", || upstream.connections() == 5);
    gateway.signal("TERM");
    wait_until("the gateway ends", || gateway.ended().is_some());
    let gateway = Gateway::start(&toml);
    let mut client = gateway.client();
    client.send(GET);
    assert!(!client.hears_within(Duration::from_millis(300)), "it is refused");
}

/// Sends requests on a connection until GOAWAY, and then on another one.
async fn keep_asking(place: impl Fn() -> std::net::SocketAddr, answers: &std::sync::atomic::AtomicUsize) {
    use std::sync::atomic::Ordering::SeqCst;
    loop {
        let Ok(stream) = TcpStream::connect(place()).await else {
            tokio::time::sleep(Duration::from_millis(1)).await;
            continue;
        };
        let Ok((client, connection)) = h2::client::handshake(stream).await else { continue };
        let connection = tokio::spawn(connection);
        while let Ok(mut ready) = client.clone().ready().await {
            let request = Request::get("http://a/").body(()).unwrap();
            let Ok((answer, _)) = ready.send_request(request, true) else { break };
            match answer.await {
                Ok(answer) => {
                    assert_eq!(answer.status(), 200);
                    answers.fetch_add(1, SeqCst);
                }
                // The server says that it hasn't looked at it.
                Err(error) if error.is_go_away() && error.reason() == Some(h2::Reason::NO_ERROR) => break,
                Err(error) => panic!("a request failed: {error}"),
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        connection.abort();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rolling_restart_fails_no_request() {
    use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
    let upstream = Upstream::hello();
    let toml = format!(
        "[server]\nworkers = 1\ntimeouts = {{ drain = \"3s\" }}\n[admin]\nlisten = \"127.0.0.1:0\"\n{}",
        forward_to(&[quoted(upstream.url())], "")
    );
    let mut gateways = [(); 2].map(|()| Gateway::start(&toml));
    let places = std::sync::Arc::new(std::sync::Mutex::new(gateways.each_ref().map(Gateway::address)));
    let answers: &'static AtomicUsize = Box::leak(Box::default());
    let clients: Vec<_> = (0..8)
        .map(|client| {
            let (places, turn) = (places.clone(), AtomicUsize::new(client));
            let place = move || places.lock().unwrap()[turn.fetch_add(1, SeqCst) % 2];
            tokio::spawn(keep_asking(place, answers))
        })
        .collect();
    let wait_for = |more: usize| {
        let goal = answers.load(SeqCst) + more;
        wait_until("requests are answered", || answers.load(SeqCst) >= goal);
    };
    for _ in 0..2 {
        for (gateway, at) in gateways.iter_mut().zip(0..) {
            wait_for(50);
            gateway.signal("TERM");
            wait_until("it ends", || gateway.ended().is_some());
            *gateway = Gateway::start(&toml);
            places.lock().unwrap()[at] = gateway.address();
        }
    }
    wait_for(50);
    assert!(clients.iter().all(|client| !client.is_finished()), "one has failed");
}
