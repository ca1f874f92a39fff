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
