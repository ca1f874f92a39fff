//! Streams continue while the configuration changes: a reload affects the next request.

use std::net::{SocketAddr, TcpStream};

use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::Response;

use crate::{
    harness::{
        client::Client,
        gateway::Gateway,
        http2::{self, whole},
        redis::free_port,
        upstream::Upstream,
        wait_until,
        wire::WireUpstream,
    },
    proxy::cleartext_http2,
};

const HANDSHAKE: &[u8] = b"GET /chat HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
    Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";
const ACCEPTED: &[u8] = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
    Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n";
const EVENTS: &[u8] =
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n";

/// Opens a tunnel that sends back what comes, or else sends an event, over and over, for each byte on the channel.
fn chat_and_events() -> (WireUpstream, tokio::sync::broadcast::Sender<()>) {
    let (event, events) = tokio::sync::broadcast::channel(16);
    let upstream = WireUpstream::start(move |mut wire| {
        let mut events = events.resubscribe();
        let request = wire.request().unwrap_or_default();
        if request.starts_with("GET /chat ") {
            wire.send(ACCEPTED);
            while let Ok(byte) = wire.try_read() {
                wire.send(&[byte]);
            }
            return;
        }
        wire.send(EVENTS);
        while events.blocking_recv().is_ok() {
            wire.send(b"6\r\nevent\n\r\n");
        }
        wire.send(b"0\r\n\r\n");
        wire.wait_for_end();
    });
    (upstream, event)
}

#[test]
fn streams_go_on_when_a_reload_takes_away_where_they_came_by() {
    let (upstream, event) = chat_and_events();
    let calls = Upstream::speaking(cleartext_http2(), |request| async {
        Response::new(BodyExt::boxed(request.into_body().map_err(|error| panic!("{error}"))))
    });
    let [stays, goes] = [(); 2].map(|()| SocketAddr::from(([127, 0, 0, 1], free_port())));
    let before = format!(
        "[server]\nlisten = [\"{stays}\", \"{goes}\"]\n[upstreams.wire]\nservers = \"{}\"\n\
         [upstreams.calls]\nservers = \"{}\"\nhttp2 = true\n\
         [[routes]]\npath = \"/a.B/C\"\nupstream = \"calls\"\n\
         [[routes]]\npath = \"/{{*rest}}\"\nupstream = \"wire\"\nlimits = [\"few\"]\n\
         [limits.few]\nkey = \"ip\"\nrate = \"3\"\nalgorithm = \"concurrency\"\n",
        upstream.url(),
        calls.url()
    );
    let after = format!(
        "[server]\nlisten = \"{stays}\"\n[[routes]]\npath = \"/chat\"\nrespond = {{ status = 204 }}\n"
    );
    let gateway = Gateway::start_with(&before, &["run"], &[]);
    let mut tunnel = Client::connect(goes);
    tunnel.send(HANDSHAKE);
    assert_eq!(tunnel.head().status, 101);
    let mut events = Client::connect(goes);
    events.send(b"GET /events HTTP/1.1\r\nHost: a\r\n\r\n");
    assert_eq!(events.head().status, 200);
    http2::run(async {
        let mut client = http2::connect(goes).await;
        let (head, mut more_events) = client.get("/events").await;
        assert_eq!(head.status.as_u16(), 200);
        let fields = [("content-type", "application/grpc")];
        let (response, mut said) = client.begin("POST", "/a.B/C", &fields, true);
        let mut heard = response.await.unwrap().into_body();
        // Once before the reload, and then after each of two.
        for toml in [&after, &after, ""] {
            tunnel.send(b"hello");
            assert_eq!(tunnel.bytes(5), b"hello");
            event.send(()).unwrap();
            assert_eq!(events.chunk(), b"event\n");
            assert_eq!(more_events.data().await.unwrap().unwrap(), "event\n");
            said.send_data(Bytes::from_static(b"\0\0\0\0\x01x"), false).unwrap();
            assert_eq!(heard.data().await.unwrap().unwrap().len(), 6);
            if !toml.is_empty() {
                gateway.reload(toml);
                wait_until("the listener is gone", || TcpStream::connect(goes).is_err());
                assert_eq!(Client::connect(stays).get("/chat").status, 204);
            }
        }
        // Each ends as it would have.
        drop(event);
        assert_eq!(events.chunk(), b"");
        assert_eq!(whole(more_events).await.unwrap().0, b"");
        said.send_data(Bytes::new(), true).unwrap();
        assert_eq!(whole(heard).await.unwrap().0, b"");
    });
    tunnel.writer().shutdown(std::net::Shutdown::Write).unwrap();
    assert!(tunnel.is_closed());
    // And what came by HTTP/1.1 may ask again, by the routes that there are now.
    assert_eq!(events.get("/chat").status, 204);
    assert_eq!(events.get("/events").status, 404);
}
