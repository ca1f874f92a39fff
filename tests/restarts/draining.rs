//! SIGTERM and SIGINT: requests and connections during a drain.

use std::{
    net::TcpStream,
    process::{Command, Stdio},
    sync::mpsc,
};

use crate::{
    harness::{
        self,
        client::Client,
        gateway::Gateway,
        redis::{Redis, free_port},
        wait_until,
    },
    restarts::{on_demand, wait_for_end},
};

const GET: &[u8] = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n";

/// Starts a gateway with a request in flight, whose upstream answers on a signal. `/none` is 404.
fn in_flight(tables: &str) -> (Gateway, Client, mpsc::Sender<()>) {
    let (upstream, is_asked, release) = on_demand("HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nlast");
    let gateway = Gateway::start(&format!(
        "{tables}\n[upstreams.api]\nservers = [\"{}\"]\n[[routes]]\npath = \"/\"\nupstream = \"api\"\n",
        upstream.url()
    ));
    let mut client = gateway.client();
    client.send(GET);
    is_asked.recv_timeout(harness::PATIENCE).unwrap();
    (gateway, client, release)
}

fn assert_last(client: &mut Client) {
    let answer = client.answer();
    assert_eq!((answer.status, answer.text()), (200, "last".to_owned()));
    assert_eq!(answer.header("connection"), Some("close"));
    assert!(client.is_closed());
}

#[test]
fn requests_in_flight_are_answered_and_nobody_else_comes() {
    for signal in ["TERM", "INT"] {
        let (mut gateway, mut client, release) = in_flight("");
        gateway.signal(signal);
        let address = gateway.address();
        wait_until("new connections are refused", || TcpStream::connect(address).is_err());
        assert_eq!(gateway.ended(), None);
        release.send(()).unwrap();
        assert_last(&mut client);
        wait_for_end(&mut gateway);
    }
}

#[test]
fn readiness_is_off_before_the_listener_closes_and_can_be_seen_to_the_end() {
    // A tenth of it is for balancers to notice.
    let (mut gateway, mut client, release) =
        in_flight("[server]\ntimeouts = { drain = \"30s\" }\n[admin]\nlisten = \"127.0.0.1:0\"");
    let (_, admin) = gateway.greeting().split_once("dashboard: http://").unwrap();
    let admin = admin.lines().next().unwrap().parse().unwrap();
    let ready = || {
        let answer = Client::connect(admin).ask("GET /readyz\nHost: localhost");
        (answer.status, answer.text())
    };
    assert_eq!(ready(), (200, "ready\n".to_owned()));
    gateway.signal("TERM");
    wait_until("it isn't ready", || ready().0 == 503);
    let late = gateway.get("/none");
    assert_eq!((late.status, late.header("connection")), (404, Some("close")));
    let address = gateway.address();
    wait_until("new connections are refused", || TcpStream::connect(address).is_err());
    assert_eq!(ready(), (503, "draining\n".to_owned()));
    release.send(()).unwrap();
    assert_last(&mut client);
    wait_for_end(&mut gateway);
    assert!(TcpStream::connect(admin).is_err());
}

#[test]
fn an_idle_client_has_a_while_for_one_more_request() {
    let (mut gateway, mut client, release) = in_flight("");
    let (mut silent, mut idle, mut new) = (gateway.client(), gateway.client(), gateway.client());
    assert_eq!((silent.get("/none").status, idle.get("/none").status), (404, 404));
    gateway.signal("TERM");
    let address = gateway.address();
    wait_until("new connections are refused", || TcpStream::connect(address).is_err());
    for client in [&mut idle, &mut new] {
        let answer = client.get("/none");
        assert_eq!((answer.status, answer.header("connection")), (404, Some("close")));
        assert!(client.is_closed());
    }
    assert!(silent.is_closed());
    assert_eq!(gateway.ended(), None);
    release.send(()).unwrap();
    assert_last(&mut client);
    wait_for_end(&mut gateway);
}

#[test]
fn those_who_have_connected_are_served_though_nobody_has_looked_at_them() {
    for _ in 0..5 {
        let mut gateway = Gateway::start("[[routes]]\npath = \"/\"\nrespond = { status = 204 }\n");
        gateway.pause();
        let mut clients = [(); 50].map(|()| gateway.client());
        clients.iter_mut().for_each(|client| client.send(GET));
        gateway.signal("TERM");
        gateway.resume();
        for client in &mut clients {
            assert_eq!(client.head().status, 204);
        }
        wait_for_end(&mut gateway);
    }
}

#[test]
fn a_second_signal_ends_at_once() {
    let (mut gateway, mut client, _release) = in_flight("");
    gateway.signal("TERM");
    wait_until("it drains", || gateway.log().contains("draining"));
    gateway.signal("INT");
    wait_for_end(&mut gateway);
    assert!(client.is_closed());
    assert!(gateway.log().contains("exiting at once"), "{}", gateway.log());
}

#[test]
fn what_is_in_flight_at_the_end_of_the_drain_is_cut_off_and_counted() {
    let (mut gateway, mut client, _release) = in_flight("[server]\ntimeouts = { drain = \"100ms\" }");
    gateway.signal("TERM");
    wait_for_end(&mut gateway);
    assert!(client.is_closed());
    assert!(gateway.log().contains("cut off at the end of the drain: 1"), "{}", gateway.log());
}

#[test]
fn a_reload_while_it_drains_is_of_no_effect() {
    let (mut gateway, mut client, release) = in_flight("");
    gateway.signal("TERM");
    let address = gateway.address();
    wait_until("new connections are refused", || TcpStream::connect(address).is_err());
    gateway.signal("HUP");
    release.send(()).unwrap();
    assert_last(&mut client);
    wait_for_end(&mut gateway);
    assert!(!gateway.log().contains("reloaded"), "{}", gateway.log());
}

#[test]
fn a_termination_right_after_a_reload_ends_it() {
    for _ in 0..5 {
        let mut gateway = Gateway::start("[[routes]]\npath = \"/\"\nrespond = { status = 204 }\n");
        gateway.signal("HUP");
        gateway.signal("TERM");
        wait_for_end(&mut gateway);
    }
}

/// The store takes connections and says nothing, so that the start takes its time.
#[test]
fn a_termination_while_it_starts_ends_it() {
    let redis = Redis::start();
    redis.pause();
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(
        folder.path().join("gateway.toml"),
        "[[routes]]\npath = \"/\"\nrespond = { status = 204 }\n",
    )
    .unwrap();
    let listen = format!("127.0.0.1:{}", free_port());
    let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
    command.args(["--listen", &listen, "--store", &redis.url()]).current_dir(&folder);
    let mut process = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    wait_until("it listens", || TcpStream::connect(&listen).is_ok());
    harness::signal("TERM", process.id());
    wait_until("it ends", || process.try_wait().unwrap().is_some());
    assert_eq!(process.wait().unwrap().code(), Some(0));
    redis.resume();
}
