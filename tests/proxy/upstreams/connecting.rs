//! Addresses of servers, and the number of connections to them.

use std::{
    io::{BufRead, BufReader, Write},
    os::unix::net::UnixListener,
    path::Path,
    sync::Arc,
    thread,
};

use hyper::Response;
use tokio::sync::Semaphore;

use crate::{
    harness::{
        gateway::Gateway,
        upstream::{Upstream, whole},
        wait_until,
        wire::WireUpstream,
    },
    proxy::{forward_to, quoted},
};

/// A server on a unix socket, which answers with the host that it was asked for.
fn serve_unix(path: &Path) {
    let listener = UnixListener::bind(path).unwrap();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = BufReader::new(stream.unwrap());
            thread::spawn(move || {
                let mut line = String::new();
                while stream.read_line(&mut line).unwrap_or(0) > 0 {
                    if line.ends_with("\r\n\r\n") {
                        let fields = line.to_ascii_lowercase();
                        let host = fields.lines().find_map(|line| line.strip_prefix("host: ")).unwrap();
                        let answer =
                            format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{host}", host.len());
                        stream.get_mut().write_all(answer.as_bytes()).unwrap();
                        line.clear();
                    }
                }
            });
        }
    });
}

#[test]
fn a_server_may_listen_on_a_unix_socket() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("app.sock");
    let gateway = Gateway::start(&forward_to(&[quoted(format!("unix:{}", path.display()))], ""));
    let answer = gateway.get("/");
    assert_eq!((answer.status, &answer.json()["code"]), (502, &"upstream-unreachable".into()));
    assert!(!answer.text().contains("app.sock"));
    serve_unix(&path);
    for _ in 0..3 {
        assert_eq!(gateway.get("/").text(), "tollgate.test");
    }
    let mut client = gateway.client();
    client.send(b"GET / HTTP/1.0\r\n\r\n");
    assert!(String::from_utf8(client.rest()).unwrap().ends_with("localhost"));
}

#[test]
fn a_server_may_have_a_name() {
    let upstream = Upstream::hello();
    let url = upstream.url().replace("127.0.0.1", "localhost");
    let gateway = Gateway::start(&forward_to(&[quoted(&url)], ""));
    for _ in 0..10 {
        assert_eq!(gateway.get("/").text(), "hello");
    }
    // So it is after a reload that keeps the server.
    gateway.reload(&forward_to(&[quoted(&url)], "balance = \"random\""));
    assert_eq!(gateway.get("/").text(), "hello");
}

#[test]
fn a_name_without_an_address_is_told_and_asked_for_again() {
    let gateway = Gateway::start(&forward_to(&[quoted("http://no-such-name.invalid:1")], ""));
    let answer = gateway.get("/");
    assert_eq!((answer.status, &answer.json()["code"]), (502, &"upstream-unresolved".into()));
    assert!(!answer.text().contains("invalid"), "{}", answer.text());
    wait_until("it is logged", || gateway.log().contains("can't resolve the server's name"));
}

#[test]
fn connections_that_idle_are_no_more_than_there_may_be() {
    let answers = Arc::new(Semaphore::new(0));
    let permits = answers.clone();
    let upstream = Upstream::start(move |_| {
        let permits = permits.clone();
        async move {
            permits.acquire().await.unwrap().forget();
            Response::new(whole("up"))
        }
    });
    let configuration = |most| {
        let keys = format!("max_connections = {most}\ntimeouts = {{ idle = \"1h\" }}");
        format!("[server]\nworkers = 1\n{}", forward_to(&[quoted(upstream.url())], &keys))
    };
    let gateway = Gateway::start(&configuration(4));
    let mut clients = [(); 4].map(|()| gateway.client());
    for (at, client) in clients.iter_mut().enumerate() {
        client.send(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n");
        wait_until("the request arrives", || upstream.count() > at);
    }
    assert_eq!(gateway.get("/").json()["code"], "upstream-busy");
    gateway.reload(&configuration(2));
    answers.add_permits(5);
    for client in &mut clients {
        assert_eq!(client.answer().text(), "up");
    }
    wait_until("those beyond the bound are closed", || upstream.open() <= 2);
    assert_eq!(gateway.get("/").text(), "up");
}

/// Also while a response of the configuration before lasts, which keeps that configuration.
#[test]
fn connections_to_servers_that_a_reload_removes_are_closed() {
    let (endless, _ended) = WireUpstream::without_end();
    let (tell, pieces) = Upstream::in_two_pieces();
    let (idle, changed, kept) = (Upstream::hello(), Upstream::hello(), Upstream::hello());
    let upstream = |name: &str, url: &str, keys: &str| {
        let keys = format!("timeouts = {{ idle = \"1h\" }}\n{keys}");
        let route = format!("[[routes]]\npath = \"/{name}\"\nupstream = \"{name}\"\n");
        format!("[upstreams.{name}]\nservers = \"{url}\"\n{keys}\n{route}")
    };
    let stays = upstream("endless", &endless.url(), "") + &upstream("kept", &kept.url(), "");
    let before = stays.clone()
        + &upstream("pieces", &pieces.url(), "")
        + &upstream("idle", &idle.url(), "")
        + &upstream("changed", &changed.url(), "");
    let gateway = Gateway::start(&before);
    let mut client = gateway.client();
    client.send(b"GET /endless HTTP/1.1\r\nHost: a\r\n\r\n");
    assert_eq!(client.head().status, 200);
    for path in ["/idle", "/changed", "/kept"] {
        assert_eq!(gateway.get(path).text(), "hello");
    }
    let mut busy = gateway.client();
    busy.send(b"GET /pieces HTTP/1.1\r\nHost: a\r\n\r\n");
    let answer = busy.head();
    assert_eq!(answer.status, 200);
    assert_eq!([&idle, &changed, &kept, &pieces].map(Upstream::open), [1; 4]);

    gateway.reload(&(stays + &upstream("changed", &changed.url(), "http2 = true")));
    wait_until("those that idle are closed", || idle.open() == 0 && changed.open() == 0);
    tell.send(3).unwrap();
    assert_eq!(busy.body_of(&answer), b"piecepiece");
    wait_until("the one in use is closed after its response", || pieces.open() == 0);
    assert_eq!((kept.open(), kept.connections().len()), (1, 1));
    client.bytes(16 << 20);
}
