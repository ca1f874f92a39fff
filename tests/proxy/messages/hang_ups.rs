//! A client that hangs up while its request is processed is noticed, even if it has sent bytes after the request.

use std::{
    io::Write,
    net::Shutdown,
    sync::{
        Mutex,
        mpsc::{self, Receiver},
    },
    thread,
    time::{Duration, Instant},
};

use super::{FINE, Recording};
use crate::{
    harness::{PATIENCE, client::Client, gateway::Gateway, wire::WireUpstream},
    proxy::{forward_to, quoted},
};

const GET: &str = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";

/// A gateway whose upstream never answers, and what that upstream sees: `asked`, and `gone` when the gateway closes the
/// connection.
fn unanswered() -> (Gateway, Receiver<&'static str>) {
    let (step, steps) = mpsc::channel();
    let upstream = WireUpstream::start(move |mut wire| {
        while wire.request().is_some() {
            step.send("asked").unwrap();
        }
        step.send("gone").unwrap();
    });
    let keys = "timeouts = { response = \"10m\" }";
    (Gateway::start(&forward_to(&[quoted(upstream.url())], keys)), steps)
}

/// Asserts that a client's hang-up is passed on to the upstream, and returns how long that took.
fn assert_noticed(leave: impl Fn(Client), follows: &str) -> Duration {
    let (gateway, steps) = unanswered();
    // Together with the request, and in a piece of its own when the request is under way.
    for is_torn in [false, true] {
        let mut client = gateway.client();
        let sent = if is_torn { GET.to_owned() } else { [GET, follows].concat() };
        client.send(sent.as_bytes());
        assert_eq!(steps.recv_timeout(PATIENCE), Ok("asked"));
        if is_torn {
            client.send(follows.as_bytes());
        }
        let since = Instant::now();
        leave(client);
        let noticed = steps.recv_timeout(PATIENCE);
        assert_eq!(noticed, Ok("gone"), "{} bytes follow, torn: {is_torn}", follows.len());
        if is_torn {
            return since.elapsed();
        }
    }
    unreachable!("the second round returns")
}

fn followers() -> [String; 6] {
    [
        String::new(),
        "\r\n".to_owned(),
        "\r\n\r\n\n".to_owned(),
        "GET /next HT".to_owned(),
        GET.to_owned(),
        GET.repeat(1_000),
    ]
}

#[test]
fn a_client_that_closes_is_noticed_whatever_follows_its_request() {
    for follows in followers() {
        assert_noticed(drop, &follows);
    }
}

/// A half-closed connection counts as closed, as in nginx: a client that doesn't send any more usually doesn't read either.
#[test]
fn a_client_that_closes_for_writing_is_noticed_whatever_follows_its_request() {
    for follows in followers() {
        assert_noticed(
            |mut client| {
                client.writer().shutdown(Shutdown::Write).unwrap();
                assert!(client.is_closed(), "{} bytes follow", client.rest().len());
            },
            &follows,
        );
    }
}

#[test]
fn requests_that_come_while_another_is_answered_are_answered_in_order() {
    const COUNT: usize = 4_000;
    let (tell, told) = mpsc::channel::<()>();
    let (seen, asked) = mpsc::channel();
    let told = Mutex::new(told);
    let upstream = WireUpstream::start(move |mut wire| {
        while let Some(request) = wire.request() {
            if request.starts_with("GET /first") {
                seen.send(()).unwrap();
                let _ = told.lock().unwrap().recv();
            }
            let path = request.split(' ').nth(1).unwrap().to_owned();
            wire.send(format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{path}", path.len()).as_bytes());
        }
    });
    let gateway = Gateway::start(&forward_to(&[quoted(upstream.url())], ""));
    let mut client = gateway.client();
    client.send(b"GET /first HTTP/1.1\r\nHost: a\r\n\r\n");
    asked.recv_timeout(PATIENCE).unwrap();
    // More than is read ahead, so that some of it waits in the system.
    let mut writer = client.writer();
    let sent = thread::spawn(move || {
        for number in 0..COUNT {
            writer.write_all(format!("GET /{number} HTTP/1.1\r\nHost: a\r\n\r\n").as_bytes()).unwrap();
        }
    });
    thread::sleep(Duration::from_millis(100));
    tell.send(()).unwrap();
    assert_eq!(client.answer().text(), "/first");
    for number in 0..COUNT {
        assert_eq!(client.answer().text(), format!("/{number}"));
    }
    sent.join().unwrap();
}

/// Whoever closes a connection on which more comes resets it, and the answer may be lost.
#[test]
fn a_client_that_sends_behind_the_last_request_can_read_its_answer() {
    let (upstream, tell) = WireUpstream::answering_when_told(FINE.as_bytes());
    let gateway = Gateway::start(&forward_to(&[quoted(upstream.url())], ""));
    let mut client = gateway.client();
    let last = GET.replace("Host: a", "Host: a\r\nConnection: close");
    client.send([&last, GET].concat().as_bytes());
    thread::sleep(Duration::from_millis(100));
    tell.send(()).unwrap();
    assert_eq!(client.answer().status, 200);
    for _ in 0..10 {
        thread::sleep(Duration::from_millis(20));
        client.writer().write_all(GET.as_bytes()).expect("the connection is shut for writing only");
    }
    assert_eq!(client.try_rest().unwrap(), b"", "the connection is closed, and not reset");
}

/// What follows a request is still read as the next one, in however many pieces it comes.
#[test]
fn what_is_read_ahead_is_the_next_request() {
    let recording = Recording::answering(FINE, "");
    let mut client = recording.gateway.client();
    client.send(GET.as_bytes());
    for byte in format!("\r\n{}", GET.replace("/ ", "/next ")).bytes() {
        client.send(&[byte]);
    }
    assert_eq!([client.answer().status, client.answer().status], [200, 200]);
    assert!(recording.message().starts_with("GET / ") && recording.message().starts_with("GET /next "));
    recording.assert_nothing_else();
}
