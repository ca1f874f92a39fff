//! A server that moves: its name gets another address while requests are in flight.

use std::{
    fs::OpenOptions,
    io::Write,
    net::TcpListener,
    path::Path,
    sync::{Mutex, mpsc},
    time::Duration,
};

use crate::{
    harness::{gateway::Gateway, wire::WireUpstream},
    proxy::{forward_to, quoted},
};

/// In which a name is surely resolved again: it is each ten seconds.
const RESOLVED_WITHIN: Duration = Duration::from_secs(30);

/// Replaces the address in the file atomically: a reader sees the old one or the new one.
fn place(hosts: &Path, address: &str) {
    let mut file = OpenOptions::new().create(true).truncate(false).write(true).open(hosts).unwrap();
    file.write_all(format!("{address} orders.test\n").as_bytes()).unwrap();
}

#[test]
fn requests_follow_a_name_to_another_address() {
    let folder = tempfile::tempdir().unwrap();
    let hosts = folder.path().join("hosts");
    let listener = TcpListener::bind("127.0.0.2:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let (go_on, goes_on) = mpsc::channel::<()>();
    let goes_on = Mutex::new(goes_on);
    let (closed, is_closed) = mpsc::channel();
    let old = WireUpstream::start_on(listener, move |mut wire| {
        while let Some(request) = wire.request() {
            wire.send(b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nold");
            if request.starts_with("GET /long ") {
                goes_on.lock().unwrap().recv().unwrap();
            }
            wire.send(b"old");
        }
        closed.send(wire.number).unwrap();
    });
    let new = TcpListener::bind(("127.0.0.3", port)).unwrap();
    let new = WireUpstream::start_on(new, |mut wire| {
        while wire.request().is_some() {
            wire.send(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nnew");
        }
    });
    place(&hosts, "127.0.0.2");
    // Connections may idle as long as they like.
    let servers = [quoted(format!("http://orders.test:{port}"))];
    let toml = forward_to(&servers, "timeouts = { idle = \"1h\" }");
    let gateway = Gateway::start_with_hosts(&format!("[server]\nworkers = 1\n{toml}"), &hosts);
    let mut long = gateway.client();
    long.send(b"GET /long HTTP/1.1\r\nHost: a\r\n\r\n");
    long.head();
    assert_eq!(long.bytes(3), b"old");
    for _ in 0..3 {
        assert_eq!(gateway.get("/").text(), "oldold");
    }
    assert_eq!((old.connections(), new.connections()), (2, 0));

    place(&hosts, "127.0.0.3");
    // The one that idles is closed, and the one that is in use when it is no more.
    assert_eq!(is_closed.recv_timeout(RESOLVED_WITHIN), Ok(1));
    for _ in 0..3 {
        assert_eq!(gateway.get("/").text(), "new");
    }
    go_on.send(()).unwrap();
    assert_eq!(long.bytes(3), b"old");
    assert_eq!(is_closed.recv_timeout(RESOLVED_WITHIN), Ok(0));
    assert_eq!(long.get("/").text(), "new");
    assert_eq!((old.connections(), new.connections()), (2, 1));
}
