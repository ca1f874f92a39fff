//! HTTP/2 clients that keep a connection busy without requests, with cheap frames that have no effect.

use std::{
    io::{ErrorKind, Read, Write},
    thread,
    time::Duration,
};

use crate::{
    harness::{
        PATIENCE,
        frames::{
            ACK, DATA, END_HEADERS, END_STREAM, Frames, HEADERS, PADDED, PING, RST_STREAM, SETTINGS,
            WINDOW_UPDATE, fields, frame, get,
        },
        gateway::Gateway,
        metrics::Metrics,
        wire::WireUpstream,
    },
    proxy::{forward_to, quoted},
};

const PRIORITY: u8 = 2;
/// A frame of an unknown type (RFC 9113, section 5.5).
const UNKNOWN: u8 = 0x42;
/// Frames of a flood: far more than any client needs at once.
const FLOOD: usize = 400_000;
/// Frames that are sent at a time.
const BATCH: usize = 400;

/// A short event of an answer, and how many there are.
const EVENT: &str = "data: an event that is short\n\n";
const EVENTS: usize = 20_000;

/// A gateway with one worker and an admin port, before an upstream that never answers.
fn start() -> (Gateway, WireUpstream) {
    let upstream = WireUpstream::start(|mut wire| while wire.request().is_some() {});
    let toml = format!(
        "[server]\nworkers = 1\n[admin]\nlisten = \"127.0.0.1:0\"\n{}",
        forward_to(&[quoted(upstream.url())], "")
    );
    (Gateway::start(&toml), upstream)
}

fn closed(gateway: &Gateway) -> f64 {
    let (_, admin) = gateway.greeting().split_once("dashboard: http://").unwrap();
    let metrics = Metrics::scrape(admin.lines().next().unwrap());
    metrics.of("tollgate_connections_closed_total{reason=\"frames\"}")
}

/// Floods a gateway with this frame, on a connection with a request in flight that has no end. Returns whether it closed
/// the connection.
fn flood(gateway: &Gateway, frame: &[u8]) -> bool {
    let mut client = Frames::connect(gateway.address());
    client.send(HEADERS, END_HEADERS, 1, &fields(&get("/", &[])));
    let mut sender = client.writer();
    let batch = frame.repeat(BATCH);
    // What is answered is read, so that nothing holds the gateway up.
    let mut reader = client.writer();
    reader.set_read_timeout(Some(PATIENCE)).unwrap();
    let reading = thread::spawn(move || {
        let mut buffer = [0; 1 << 16];
        loop {
            match reader.read(&mut buffer) {
                Ok(1..) => {}
                Ok(0) => return true,
                Err(error) => return error.kind() != ErrorKind::WouldBlock,
            }
        }
    });
    let _ = (0..FLOOD / BATCH).all(|_| sender.write_all(&batch).is_ok());
    reading.join().unwrap()
}

#[test]
fn frames_without_effect_end_the_connection() {
    let (gateway, _upstream) = start();
    let floods = [
        ("WINDOW_UPDATE", frame(WINDOW_UPDATE, 0, 0, &1_u32.to_be_bytes())),
        ("WINDOW_UPDATE of a stream", frame(WINDOW_UPDATE, 0, 1, &1_u32.to_be_bytes())),
        ("unknown", frame(UNKNOWN, 0, 0, b"")),
        ("unknown, longer", frame(UNKNOWN, 0xff, 1, &[0; 100])),
        ("PRIORITY", frame(PRIORITY, 0, 3, &[0, 0, 0, 0, 16])),
        ("PING", frame(PING, 0, 0, &[0; 8])),
        ("PING that answers none", frame(PING, ACK, 0, &[0; 8])),
        ("SETTINGS", frame(SETTINGS, 0, 0, &[])),
        ("RST_STREAM of what has ended", frame(RST_STREAM, 0, 1, &8_u32.to_be_bytes())),
    ];
    for (at, (what, frame)) in floods.iter().enumerate() {
        assert!(flood(&gateway, frame), "{what}");
        assert_eq!(closed(&gateway), (at + 1) as f64, "{what}");
    }
    gateway.assert_not_logged("PING");
}

/// Each byte of these heads stands for a field, which takes a hundred times its memory. h2 reads as many heads as streams are allowed before
/// the first is refused for it.
#[test]
fn heads_of_many_fields_come_one_at_a_time() {
    const CLIENTS: usize = 30;
    const HEADS: u32 = 99;
    let (gateway, _upstream) = start();
    let mut clients: Vec<_> = (0..CLIENTS).map(|_| Frames::connect(gateway.address())).collect();
    // A field that goes into the table, and then 900 times its index.
    let first = [&fields(&get("/", &[]))[..], b"\x40\x01a\x01b"].concat();
    let head = [&fields(&get("/", &[]))[..], &[0xBE; 900]].concat();
    for client in &mut clients {
        client.send(HEADERS, END_HEADERS | END_STREAM, 1, &first);
    }
    let before = gateway.memory_kib("VmHWM");
    for client in &mut clients {
        let heads: Vec<_> = (1..=HEADS)
            .flat_map(|place| frame(HEADERS, END_HEADERS | END_STREAM, 1 + 2 * place, &head))
            .collect();
        client.writer().write_all(&heads).unwrap();
    }
    for client in &mut clients {
        let mut ended = 0;
        while ended < HEADS {
            ended += u32::from(client.next().expect("a frame").ends_stream());
        }
    }
    let growth = gateway.grew_kib(before);
    assert!(growth < 30 << 10, "grew by {growth} KiB");
}

/// h2 has a bound of its own for these.
#[test]
fn data_without_content_end_the_connection() {
    let (gateway, _upstream) = start();
    assert!(flood(&gateway, &frame(DATA, 0, 1, &[])));
    assert!(flood(&gateway, &frame(DATA, PADDED, 1, &[0])));
    assert!(flood(&gateway, &frame(DATA, PADDED, 1, &[&[255][..], &[0; 255]].concat())));
}

/// h2 has a bound for frames that take more memory than they have content, as long as nobody reads them.
#[test]
fn small_data_that_wait_leave_the_other_clients_of_a_proxy_alone() {
    let waits = r#"
        [[routes]]
        path = "/waits"
        respond = { status = 200 }
        limits = [{ name = "one", key = "global", rate = "1/min", wait = "1m" }]
        [[routes]]
        path = "/"
        respond = { status = 204 }
    "#;
    for (head, status) in [("trusted_proxies = [\"127.0.0.1\"]", 204), ("", 0)] {
        let gateway = Gateway::start(&format!("[server]\n{head}\n{waits}"));
        assert_eq!(gateway.get("/waits").status, 200);
        let mut client = Frames::connect(gateway.address());
        client.send(HEADERS, END_HEADERS, 1, &fields(&get("/waits", &[])));
        client.write(&frame(DATA, 0, 1, b"x").repeat(100_000));
        client.ask(3, &get("/", &[]));
        assert_eq!(client.told(3).status, status, "{head}");
    }
}

/// Heads that are refused or malformed have no effect either. That of which h2 has a bound of its own ends by that.
#[test]
fn heads_that_come_to_nothing_end_the_connection() {
    let (gateway, _upstream) = start();
    let malformed = fields(&get("/", &[("connection", "close")]));
    for (what, block) in [("refused", fields(&get("/", &[]))), ("malformed", malformed)] {
        let mut client = Frames::connect(gateway.address());
        let mut sender = client.writer();
        let sending = thread::spawn(move || {
            (0..100_000).all(|at| {
                let head = frame(HEADERS, END_HEADERS, 2 * at + 1, &block);
                sender.write_all(&head).is_ok()
            })
        });
        while client.next().is_some() {}
        assert!(!sending.join().unwrap(), "{what}");
    }
}

/// A client that gives room for each piece of an answer as it comes, on the stream and the connection, and one that uploads
/// in small pieces.
#[test]
fn a_client_that_is_busy_is_left_alone() {
    let events = WireUpstream::start(|mut wire| {
        while wire.request().is_some() {
            wire.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n");
            for _ in 0..EVENTS {
                wire.send(format!("{:x}\r\n{EVENT}\r\n", EVENT.len()).as_bytes());
            }
            wire.send(b"0\r\n\r\n");
        }
    });
    let gateway = Gateway::start(&format!(
        "[server]\nworkers = 1\n[admin]\nlisten = \"127.0.0.1:0\"\n{}",
        forward_to(&[quoted(events.url())], "")
    ));
    let mut client = Frames::connect(gateway.address());
    for stream in [1, 3, 5] {
        client.ask(stream, &get("/", &[]));
        client.send(PRIORITY, 0, stream, &[0, 0, 0, 0, 16]);
        let (mut came, mut pieces) = (0, 0);
        loop {
            let next = client.next().unwrap_or_else(|| panic!("{stream}: closed after {pieces} pieces"));
            if next.kind == DATA && !next.payload.is_empty() {
                (came, pieces) = (came + next.payload.len(), pieces + 1);
                let room = (next.payload.len() as u32).to_be_bytes();
                client.send(WINDOW_UPDATE, 0, stream, &room);
                client.send(WINDOW_UPDATE, 0, 0, &room);
            }
            if next.flags & END_STREAM != 0 && matches!(next.kind, DATA | HEADERS) {
                break;
            }
        }
        assert_eq!(came, EVENTS * EVENT.len());
    }
    assert_eq!(closed(&gateway), 0.0);
}

/// Three clients that send frames without effect as fast as they are taken, connecting again whenever they are cut off,
/// beside what one client's requests take.
#[test]
fn a_flood_of_frames_leaves_the_worker_to_others() {
    let (gateway, _upstream) = start();
    let address = gateway.address();
    let flooding: Vec<_> = (0..3)
        .map(|_| {
            thread::spawn(move || {
                let batch = frame(WINDOW_UPDATE, 0, 0, &1_u32.to_be_bytes()).repeat(BATCH);
                let until = std::time::Instant::now() + Duration::from_secs(2);
                let (mut frames, mut connections) = (0, 0);
                while std::time::Instant::now() < until {
                    let mut sender = Frames::connect(address).writer();
                    connections += 1;
                    while std::time::Instant::now() < until && sender.write_all(&batch).is_ok() {
                        frames += BATCH;
                    }
                }
                (frames, connections)
            })
        })
        .collect();
    let before = gateway.cpu();
    let sent: Vec<_> = flooding.into_iter().map(|client| client.join().unwrap()).collect();
    let used = gateway.cpu() - before;
    assert!(sent.iter().all(|(_, connections)| *connections > 1), "none was cut off: {sent:?}, {used:?}");
}
