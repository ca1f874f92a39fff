//! Uploads that HTTP/2 upstreams answer before they end.

use std::sync::{Arc, Mutex};

use http_body_util::BodyExt;
use hyper::{Response, server::conn::http2};
use hyper_util::rt::TokioExecutor;

use crate::{
    harness::{
        gateway::Gateway,
        upstream::{Speech, Upstream, whole},
        wait_until,
    },
    proxy::{forward_to, quoted},
};

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
/// that would tell it of a hang-up.
#[test]
fn an_upload_that_a_server_does_not_read_ends_behind_its_response() {
    const MOST: usize = 2;
    // The body is kept, and not read.
    let bodies = Arc::new(Mutex::new(Vec::new()));
    let mut builder = http2::Builder::new(TokioExecutor::new());
    builder.initial_stream_window_size(65_535);
    let upstream = Upstream::speaking(Speech::Http2(builder), move |request| {
        bodies.lock().unwrap().push(request.into_body());
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
