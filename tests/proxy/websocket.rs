//! WebSocket tunnels (RFC 6455) over HTTP/1.1. The gateway doesn't interpret their bytes, so these tests send arbitrary ones;
//! tests/proxy/clients.rs uses real WebSocket implementations.

use std::{
    fs,
    io::{Read, Write},
    net::{Shutdown, TcpStream},
    sync::{Mutex, mpsc},
    thread,
    time::Duration,
};

use hyper::Response;
use serde_json::Value;

use crate::{
    harness::{
        PATIENCE,
        client::{Answer, Client},
        gateway::Gateway,
        metrics::Metrics,
        redis::Redis,
        upstream::{Upstream, whole},
        wait_until,
        wire::{Wire, WireUpstream},
    },
    proxy::{cleartext_http2, forward_to, quoted},
};

const HANDSHAKE: &[u8] = b"GET /chat?room=1 HTTP/1.1\r\nHost: a\r\nConnection: keep-alive, Upgrade\r\nUpgrade: WebSocket\r\n\
    Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Protocol: chat\r\n\r\n";
const ACCEPTED: &[u8] = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
    Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n";
const OK: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nup";
/// What the gateway's memory may grow by, whatever goes through a tunnel.
const GROWTH_KIB: usize = 4 << 10;

/// A gateway with one worker before this server, with these further tables.
fn gateway(url: &str, tables: &str) -> Gateway {
    Gateway::start(&format!("{}{tables}", forward_to(&[quoted(url)], "")))
}

/// Opens a tunnel.
fn open(gateway: &Gateway) -> Client {
    let mut client = gateway.client();
    let answer = shake(&mut client);
    assert_eq!(answer.status, 101, "{answer:?}");
    client
}

fn shake(client: &mut Client) -> Answer {
    client.send(HANDSHAKE);
    client.head()
}

/// Takes the handshake.
fn accept(wire: &mut Wire) {
    wire.request();
    wire.send(ACCEPTED);
}

/// Sends back what comes, to its end.
fn mirror() -> WireUpstream {
    WireUpstream::start(|mut wire| {
        accept(&mut wire);
        let mut stream = wire.stream().try_clone().unwrap();
        let _ = std::io::copy(wire.reader(), &mut stream);
        let _ = stream.shutdown(Shutdown::Write);
        wire.wait_for_end();
    })
}

fn assert_mirrored(client: &mut Client, bytes: &[u8]) {
    client.send(bytes);
    assert_eq!(client.bytes(bytes.len()), bytes);
}

#[test]
fn both_sides_shake_hands_and_bytes_go_both_ways() {
    let (heads, came) = mpsc::channel();
    let upstream = WireUpstream::start(move |mut wire| {
        heads.send(wire.request().unwrap()).unwrap();
        // The first bytes come right behind the head.
        wire.send(&[ACCEPTED, b"\x81\x05hello"].concat());
        while let Ok(byte) = wire.try_read() {
            wire.send(&[byte, byte]);
        }
    });
    let gateway = gateway(&upstream.url(), "");
    let mut client = gateway.client();
    // So do the client's, though it shouldn't.
    client.send(&[HANDSHAKE, b"\0\xff"].concat());
    let answer = client.head();
    assert_eq!(answer.status, 101);
    for (name, value) in [
        ("upgrade", "websocket"),
        ("connection", "Upgrade"),
        ("sec-websocket-accept", "s3pPLMBiTxaQ9kYGzzhZRbK+xOo="),
    ] {
        assert_eq!(answer.lines(name), [value]);
    }
    assert!(answer.header("content-length").is_none() && answer.header("transfer-encoding").is_none());
    assert_eq!(client.bytes(7), b"\x81\x05hello");
    assert_eq!(client.bytes(4), b"\0\0\xff\xff");
    client.send(b"x");
    assert_eq!(client.bytes(2), b"xx");

    let head = came.recv().unwrap().to_ascii_lowercase();
    assert!(head.starts_with("get /chat?room=1 http/1.1\r\n"), "{head}");
    for line in [
        "upgrade: websocket",
        "connection: upgrade",
        "sec-websocket-version: 13",
        "sec-websocket-key: dghlihnhbxbszsbub25jzq==",
        "sec-websocket-protocol: chat",
        "x-forwarded-for: 127.0.0.1",
    ] {
        assert!(head.lines().any(|other| other == line), "{line}: {head}");
    }
}

#[test]
fn a_limit_decides_before_the_handshake() {
    let upstream = mirror();
    let limit = "limits = [\"l\"]\n[limits.l]\nkey = \"ip\"\nrate = \"1/h\"";
    let gateway = gateway(&upstream.url(), limit);
    let mut first = gateway.client();
    let answer = shake(&mut first);
    assert_eq!((answer.status, answer.header("ratelimit-policy")), (101, Some("\"l\";q=1;w=3600")));
    let mut second = gateway.client();
    second.send(HANDSHAKE);
    let refused = second.answer();
    assert_eq!((refused.status, refused.header("upgrade")), (429, None));
    assert!(refused.retry_after_ms() > 0);
    assert_eq!(upstream.connections(), 1);
    assert_mirrored(&mut first, b"unhurt");
}

#[test]
fn a_route_changes_a_handshake_like_any_exchange() {
    let (heads, came) = mpsc::channel();
    let upstream = WireUpstream::start(move |mut wire| {
        heads.send(wire.request().unwrap()).unwrap();
        let answer = String::from_utf8_lossy(ACCEPTED).replacen("\r\n", "\r\nServer: up\r\n", 1);
        wire.send(&[answer.as_bytes(), b"hello"].concat());
        wire.wait_for_end();
    });
    let route = "rewrite = \"/rooms/{*rest}\"\npreserve_host = false\n\
                 request_headers = { remove = [\"sec-websocket-protocol\"], set = { x-set = \"1\" } }\n\
                 response_headers = { remove = [\"server\"], set = { x-own = \"2\" } }\n";
    let gateway = gateway(&upstream.url(), route);
    let mut client = gateway.client();
    let answer = shake(&mut client);
    assert_eq!((answer.status, answer.header("x-own"), answer.header("server")), (101, Some("2"), None));
    for (name, value) in [
        ("upgrade", "websocket"),
        ("connection", "Upgrade"),
        ("sec-websocket-accept", "s3pPLMBiTxaQ9kYGzzhZRbK+xOo="),
    ] {
        assert_eq!(answer.lines(name), [value]);
    }
    assert_eq!(client.bytes(5), b"hello");
    let head = came.recv().unwrap().to_ascii_lowercase();
    assert!(head.starts_with("get /rooms/chat?room=1 http/1.1\r\n"), "{head}");
    let own = upstream.url().replace("http://", "host: ");
    for line in [&own, "x-forwarded-host: a", "x-set: 1", "upgrade: websocket"] {
        assert!(head.lines().any(|other| other == line), "{line}: {head}");
    }
    assert!(!head.contains("sec-websocket-protocol"), "{head}");
}

#[test]
fn an_upstream_may_decline() {
    let upstream = WireUpstream::start(|mut wire| {
        while let Some(head) = wire.request() {
            let declines = head
                .contains("/chat")
                .then_some(&b"HTTP/1.1 403 Forbidden\r\nContent-Length: 2\r\n\r\nno"[..]);
            wire.send(declines.unwrap_or(OK));
        }
    });
    let gateway =
        Gateway::start(&format!("[server]\nworkers = 1\n{}", forward_to(&[quoted(upstream.url())], "")));
    let mut client = gateway.client();
    client.send(HANDSHAKE);
    let answer = client.answer();
    assert_eq!((answer.status, answer.text().as_str()), (403, "no"));
    // Neither connection has gone over to anything.
    assert_eq!(client.get("/").text(), "up");
    assert_eq!(upstream.connections(), 1);
}

#[test]
fn requests_that_ask_for_anything_else_are_ordinary_ones() {
    let (heads, came) = mpsc::channel();
    let upstream = WireUpstream::start(move |mut wire| {
        while let Some(head) = wire.request() {
            let body = head.contains("content-length: 2").then(|| wire.read(2));
            heads.send((head.to_ascii_lowercase(), body)).unwrap();
            wire.send(OK);
        }
    });
    let gateway = gateway(&upstream.url(), "");
    for (request, goes) in [
        (
            "GET / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n\r\n",
            "h2c",
        ),
        ("GET / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: tcp\r\n\r\n", "any other protocol"),
        ("GET / HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\n\r\n", "without Connection"),
        ("POST / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n", "POST"),
        (
            "GET / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nContent-Length: 2\r\n\r\nhi",
            "with a body",
        ),
        (
            "GET / HTTP/1.0\r\nHost: a\r\nConnection: Upgrade, keep-alive\r\nUpgrade: websocket\r\n\r\n",
            "HTTP/1.0",
        ),
    ] {
        let mut client = gateway.client();
        client.send(request.as_bytes());
        let answer = client.answer();
        assert_eq!((answer.status, answer.text().as_str()), (200, "up"), "{goes}");
        let (head, _) = came.recv().unwrap();
        for field in ["upgrade", "connection", "http2-settings"] {
            assert!(!head.contains(&format!("\r\n{field}:")), "{goes}: {head}");
        }
    }
}

#[test]
fn an_upstream_goes_over_only_to_what_was_asked_for() {
    const TCP: &[u8] = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: tcp\r\nConnection: Upgrade\r\n\r\n";
    const NOTHING: &[u8] = b"HTTP/1.1 101 Switching Protocols\r\n\r\n";
    for (request, answer) in
        [(&b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"[..], ACCEPTED), (HANDSHAKE, TCP), (HANDSHAKE, NOTHING)]
    {
        let upstream = WireUpstream::start(move |mut wire| {
            wire.request();
            wire.send(answer);
            wire.wait_for_end();
        });
        let gateway = gateway(&upstream.url(), "");
        let mut client = gateway.client();
        client.send(request);
        let refused = client.answer();
        assert_eq!((refused.status, &refused.json()["code"]), (502, &"upstream-switched".into()));
    }
}

#[test]
fn who_has_said_all_may_still_listen() {
    let upstream = WireUpstream::start(|mut wire| {
        accept(&mut wire);
        let mut said = Vec::new();
        wire.reader().read_to_end(&mut said).unwrap();
        wire.send(&said.repeat(2));
    });
    let gateway = gateway(&upstream.url(), "");
    let mut client = open(&gateway);
    client.send(b"ab");
    client.writer().shutdown(Shutdown::Write).unwrap();
    assert_eq!(client.rest(), b"abab");
}

#[test]
fn what_is_on_its_way_when_the_other_has_said_all_still_arrives() {
    let (go, is_to_go) = mpsc::channel();
    let (arrived, has_arrived) = mpsc::channel();
    let is_to_go = Mutex::new(is_to_go);
    let upstream = WireUpstream::start(move |mut wire| {
        accept(&mut wire);
        is_to_go.lock().unwrap().recv().unwrap();
        wire.stream().shutdown(Shutdown::Write).unwrap();
        is_to_go.lock().unwrap().recv().unwrap();
        arrived.send(std::io::copy(wire.reader(), &mut std::io::sink()).unwrap_or_default()).unwrap();
    });
    let gateway = gateway(&upstream.url(), "");
    let mut client = open(&gateway);
    let mut writer = client.writer();
    writer.set_write_timeout(Some(Duration::from_millis(500))).unwrap();
    let mut written = 0;
    // Until nobody takes any more.
    while let Ok(length) = writer.write(&[b'x'; 64 << 10]) {
        written += length as u64;
    }
    go.send(()).unwrap();
    assert!(client.is_closed());
    go.send(()).unwrap();
    writer.shutdown(Shutdown::Write).unwrap();
    assert_eq!(has_arrived.recv_timeout(PATIENCE).unwrap(), written);
}

#[test]
fn either_end_takes_the_other_with_it() {
    let (gone, is_gone) = mpsc::channel();
    let upstream = WireUpstream::start(move |mut wire| {
        accept(&mut wire);
        wire.wait_for_end();
        gone.send(()).unwrap();
    });
    let one = gateway(&upstream.url(), "");
    let client = open(&one);
    drop(client);
    is_gone.recv_timeout(PATIENCE).expect("the upstream learns that the client has left");

    let upstream = WireUpstream::start(|mut wire| accept(&mut wire));
    let other = gateway(&upstream.url(), "");
    assert!(open(&other).is_closed());
}

/// Not even with these: they are about messages.
#[test]
fn a_quiet_tunnel_stays_open() {
    let upstream = mirror();
    let gateway = Gateway::start(&format!(
        "[server]\ntimeouts = {{ header = \"500ms\", idle = \"500ms\" }}\n{}timeout = \"700ms\"\n",
        forward_to(&[quoted(upstream.url())], "timeouts = { response = \"500ms\", idle = \"500ms\" }")
    ));
    let mut client = open(&gateway);
    for _ in 0..2 {
        assert!(!client.hears_within(Duration::from_millis(1_200)));
        assert_mirrored(&mut client, b"still here");
    }
}

#[test]
fn a_tunnel_is_a_request_in_flight_until_its_end() {
    let redis = Redis::start();
    for store in ["", &redis.store()] {
        let upstream = mirror();
        let gateway = gateway(
            &upstream.url(),
            &format!(
                "limits = [\"l\"]\n{store}[admin]\nlisten = \"127.0.0.1:0\"\n\
                 [limits.l]\nkey = \"global\"\nalgorithm = \"concurrency\"\nrate = \"1\"\nlease = \"2s\"\n"
            ),
        );
        let (_, admin) = gateway.greeting().split_once("dashboard: http://").unwrap();
        let admin = admin.lines().next().unwrap().to_owned();
        let server = upstream.url().replace("http://", "");
        let in_flight =
            format!("tollgate_upstream_requests_in_flight{{upstream=\"api\",server=\"{server}\"}}");
        let mut client = open(&gateway);
        // For longer than a lease that isn't renewed.
        for _ in 0..25 {
            thread::sleep(Duration::from_millis(100));
            let mut other = gateway.client();
            other.send(HANDSHAKE);
            assert_eq!(other.answer().status, 429);
        }
        assert_eq!(Metrics::scrape(&admin).of(&in_flight), 1.0);
        assert_mirrored(&mut client, b"x");
        drop(client);
        wait_until("there is room again", || {
            let mut next = gateway.client();
            shake(&mut next).status == 101
        });
        wait_until("none is in flight", || Metrics::scrape(&admin).of(&in_flight) == 0.0);
    }
}

#[test]
fn a_tunnel_is_a_connection_of_its_upstream_and_of_the_server() {
    let upstream = mirror();
    let limited = Gateway::start(&forward_to(&[quoted(upstream.url())], "max_connections = 1"));
    let client = open(&limited);
    assert_eq!(limited.get("/").json()["code"], "upstream-busy");
    drop(client);
    wait_until("there is room again", || shake(&mut limited.client()).status == 101);

    let upstream = mirror();
    let limited = gateway(&upstream.url(), "[server]\nworkers = 1\nmax_connections = 1\n");
    let mut client = open(&limited);
    assert_eq!(limited.get("/").json()["code"], "overloaded");
    assert_mirrored(&mut client, b"unhurt");
    drop(client);
    wait_until("there is room again", || shake(&mut limited.client()).status == 101);
}

#[test]
fn a_drain_waits_for_tunnels_and_then_cuts_them_off() {
    let upstream = mirror();
    let mut gateway = gateway(&upstream.url(), "[server]\ntimeouts = { drain = \"3s\" }\n");
    let (mut ending, mut staying) = (open(&gateway), open(&gateway));
    gateway.signal("TERM");
    let address = gateway.address();
    wait_until("new connections are refused", || TcpStream::connect(address).is_err());
    assert_mirrored(&mut ending, b"the last words");
    ending.writer().shutdown(Shutdown::Write).unwrap();
    assert!(ending.is_closed());
    assert_mirrored(&mut staying, b"some more");
    wait_until("it ends", || gateway.ended().is_some());
    assert!(staying.is_closed());
    assert!(gateway.log().contains("cut off at the end of the drain: 1"), "{}", gateway.log());
}

#[test]
fn a_tunnel_is_told_and_counted_when_it_has_ended() {
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("access.log");
    let upstream = mirror();
    let gateway = gateway(
        &upstream.url(),
        &format!(
            "name = \"chat\"\n[access_log]\npath = \"{}\"\n[admin]\nlisten = \"127.0.0.1:0\"\n",
            log.display()
        ),
    );
    let (_, admin) = gateway.greeting().split_once("dashboard: http://").unwrap();
    let admin = admin.lines().next().unwrap().to_owned();
    let before = Metrics::scrape(&admin);
    let mut client = open(&gateway);
    assert_mirrored(&mut client, &[7; 1000]);
    thread::sleep(Duration::from_millis(200));
    assert_eq!(fs::read_to_string(&log).unwrap(), "");
    client.writer().shutdown(Shutdown::Write).unwrap();
    assert!(client.is_closed());
    let line = |number: usize| {
        wait_until("the line is written", || {
            fs::read_to_string(&log).unwrap().matches('\n').count() > number
        });
        let text = fs::read_to_string(&log).unwrap();
        serde_json::from_str::<Value>(text.lines().nth(number).unwrap()).unwrap()
    };
    let told = line(0);
    assert_eq!(
        (&told["status"], &told["bytes"], &told["broken_off"]),
        (&101.into(), &1000.into(), &Value::Null)
    );
    assert!(told["duration_ms"].as_f64().unwrap() >= 200.0, "{told}");
    assert_eq!(told["target"], "/chat?room=*");
    let after = Metrics::scrape(&admin);
    let since = after.since(&before);
    assert_eq!(since.get("tollgate_requests_total{route=\"chat\",status=\"1xx\"}"), Some(&1.0), "{since:?}");

    // One that breaks is told so, with what came through.
    let upstream_breaks = open(&gateway);
    let stream = upstream_breaks.writer();
    socket2::SockRef::from(&stream).set_linger(Some(Duration::ZERO)).unwrap();
    drop((stream, upstream_breaks));
    assert_eq!(line(1)["broken_off"], true);
}

#[test]
fn who_takes_slowly_holds_the_other_up_in_bounded_memory() {
    const ENDLESS: usize = 400 << 20;
    let (stalled, stall) = mpsc::channel();
    let upstream = WireUpstream::start(move |mut wire| {
        accept(&mut wire);
        stalled.send(wire.write_until_held_up(ENDLESS)).unwrap();
        wire.wait_for_end();
    });
    let gateway = gateway(&upstream.url(), "");
    drop(open(&gateway));
    let before = gateway.memory_kib("VmHWM");
    let mut client = open(&gateway);
    let written = stall.recv_timeout(PATIENCE).expect("the upstream's writing stalls");
    let growth = gateway.grew_kib(before);
    assert!(growth < GROWTH_KIB, "grew by {growth} KiB while {written} bytes were written");
    // All of it comes in the end, and the other direction was never held up.
    client.send(b"x");
    client.bytes(written);
}

#[test]
fn a_server_by_http_2_gets_an_ordinary_request() {
    let upstream = Upstream::speaking(cleartext_http2(), |_| async { Response::new(whole("hello")) });
    let gateway = Gateway::start(&forward_to(&[quoted(upstream.url())], "http2 = true"));
    let mut client = gateway.client();
    client.send(HANDSHAKE);
    assert_eq!(client.answer().text(), "hello");
    assert!(!upstream.last().headers.contains_key("upgrade"));
}
