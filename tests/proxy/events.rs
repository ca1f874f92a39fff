//! Server-sent events and other streams: each piece is forwarded at once, and silence is allowed.

use std::{
    sync::{Arc, Mutex, mpsc},
    thread,
    time::Duration,
};

use crate::{
    harness::{PATIENCE, client::Client, gateway::Gateway, http2, wire::WireUpstream},
    proxy::{forward_to, quoted},
};

const HEAD: &[u8] =
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n";

/// A server that sends an event for each text on the channel, and tells when the client has left.
fn events() -> (WireUpstream, mpsc::Sender<String>, mpsc::Receiver<()>) {
    let (event, events) = mpsc::channel::<String>();
    let (left, has_left) = mpsc::channel();
    let events = Arc::new(Mutex::new(events));
    let upstream = WireUpstream::start(move |mut wire| {
        wire.request();
        wire.send(HEAD);
        let mut reader = wire.stream().try_clone().unwrap();
        let left = left.clone();
        thread::spawn(move || {
            let _ = std::io::copy(&mut reader, &mut std::io::sink());
            left.send(()).unwrap();
        });
        for event in events.lock().unwrap().iter() {
            wire.send(format!("{:x}\r\n{event}\r\n", event.len()).as_bytes());
        }
    });
    (upstream, event, has_left)
}

/// With all times so short that a silence of [`SILENCE`] is too long, if it counts.
fn impatient(upstream: &WireUpstream) -> Gateway {
    Gateway::start(&format!(
        "[server]\ntimeouts = {{ header = \"500ms\", idle = \"500ms\" }}\n{}",
        forward_to(&[quoted(upstream.url())], "timeouts = { response = \"500ms\", idle = \"500ms\" }")
    ))
}

const SILENCE: Duration = Duration::from_millis(1_200);

fn begin(gateway: &Gateway) -> Client {
    let mut client = gateway.client();
    client.send(b"GET /events HTTP/1.1\r\nHost: a\r\nAccept: text/event-stream\r\n\r\n");
    let head = client.head();
    assert_eq!((head.status, head.header("content-type")), (200, Some("text/event-stream")));
    client
}

#[test]
fn each_event_goes_on_as_it_comes() {
    let (upstream, event, _) = events();
    let gateway = impatient(&upstream);
    let mut client = begin(&gateway);
    for number in 0..20 {
        if number % 10 == 5 {
            assert!(!client.hears_within(SILENCE));
        }
        // The next one is sent only when this has come.
        let text = format!("data: {number}\n\n");
        event.send(text.clone()).unwrap();
        assert_eq!(client.chunk(), text.into_bytes());
    }
}

#[test]
fn each_event_goes_on_as_it_comes_by_http_2() {
    let (upstream, event, _) = events();
    let gateway = impatient(&upstream);
    http2::run(async {
        let mut client = http2::connect(gateway.address()).await;
        let (head, mut body) = client.get("/events").await;
        assert_eq!(
            (head.status.as_u16(), head.headers["content-type"].as_bytes()),
            (200, &b"text/event-stream"[..])
        );
        for number in 0..20 {
            if number % 10 == 5 {
                tokio::time::timeout(SILENCE, body.data()).await.unwrap_err();
            }
            let text = format!("data: {number}\n\n");
            event.send(text.clone()).unwrap();
            assert_eq!(body.data().await.unwrap().unwrap(), text);
        }
    });
}

#[test]
fn a_client_that_leaves_ends_its_request_upstream() {
    let (upstream, event, has_left) = events();
    let gateway = impatient(&upstream);
    let mut client = begin(&gateway);
    event.send("data: 1\n\n".to_owned()).unwrap();
    client.chunk();
    drop(client);
    has_left.recv_timeout(PATIENCE).expect("the upstream learns that the client has left");
}

#[test]
fn a_client_that_leaves_ends_its_request_upstream_by_http_2() {
    let (upstream, event, has_left) = events();
    let gateway = impatient(&upstream);
    http2::run(async {
        let mut client = http2::connect(gateway.address()).await;
        let (_, mut body) = client.get("/events").await;
        event.send("data: 1\n\n".to_owned()).unwrap();
        body.data().await.unwrap().unwrap();
        // Only this stream: the connection stays.
        drop(body);
        tokio::task::spawn_blocking(move || has_left.recv_timeout(PATIENCE)).await.unwrap().unwrap();
    });
}
