//! What clients who do nothing, or little, cost the gateway.

use std::{
    io::Read,
    net::{SocketAddr, TcpStream},
    process::Command,
    thread,
    time::{Duration, Instant},
};

use socket2::{Domain, Socket, Type};

use crate::{
    harness::{client::Client, gateway::Gateway, upstream::Upstream, wait_until, wire::WireUpstream},
    median,
};

/// In which the gateway has nothing to do.
const REST: Duration = Duration::from_secs(2);

fn forward_all(server: &str, url: &str) -> Gateway {
    Gateway::start(&format!(
        "[server]\nworkers = 1\n{server}\n[upstreams.api]\nservers = [\"{url}\"]\ntimeouts = {{ idle = \"1m\" }}\n\
         [[routes]]\npath = \"/{{*rest}}\"\nupstream = \"api\"\n"
    ))
}

/// Lets a process open so many files, those that are open included; none is closed.
fn limit_files(process: u32, limit: &str) {
    let status = Command::new("prlimit")
        .args([&format!("--pid={process}"), &format!("--nofile={limit}:")])
        .status()
        .expect("prlimit is needed: a part of util-linux");
    assert!(status.success());
}

#[test]
fn a_lack_of_files_costs_nothing_but_new_connections_until_it_has_passed() {
    let upstream = Upstream::hello();
    let gateway = forward_all("", &upstream.url());
    let mut kept = gateway.client();
    assert_eq!(kept.get("/").status, 200);
    limit_files(gateway.process(), "3");
    let mut waiting: Vec<Client> = (0..20).map(|_| gateway.client()).collect();
    waiting.iter_mut().for_each(|client| client.send(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"));
    wait_until("it has no files", || gateway.log().contains("can't accept connections now"));
    let before = gateway.cpu();
    let since = Instant::now();
    while since.elapsed() < REST {
        // It has its connection here, and one to the upstream.
        assert_eq!(kept.get("/").status, 200);
        thread::sleep(Duration::from_millis(100));
    }
    let spent = gateway.cpu() - before;
    assert!(spent < REST / 10, "{spent:?} of {REST:?}");
    assert_eq!(gateway.log().matches("can't accept").count(), 1, "{}", gateway.log());
    limit_files(gateway.process(), "1000");
    let since = Instant::now();
    assert!(waiting.iter_mut().all(|client| client.answer().status == 200));
    assert!(since.elapsed() < Duration::from_secs(1), "answered after {:?}", since.elapsed());
}

/// The files of this process and of the gateway's are bounded: each has its end of the connections.
#[test]
fn connections_that_idle_cost_little_and_hold_up_nobody() {
    const CONNECTIONS: usize = 10_000;
    const BYTES_MOST: usize = 5 << 10;
    rlimit::increase_nofile_limit(u64::MAX).unwrap();
    let gateway = forward_all("timeouts = { idle = \"1h\" }", &Upstream::hello().url());
    let ask = |client: &mut Client| assert_eq!(client.get("/").status, 200);
    let mut busy = gateway.client();
    // Of the best of some rounds: what else the machine does meanwhile is nobody's fault here.
    let mut latency = || {
        let mut taken = || {
            let since = Instant::now();
            ask(&mut busy);
            since.elapsed()
        };
        (0..5).map(|_| median((0..500).map(|_| taken()).collect())).min().unwrap()
    };
    latency();
    let undisturbed = latency();
    let before = gateway.memory_kib("VmRSS");
    let mut idle: Vec<Client> = Vec::with_capacity(CONNECTIONS);
    for _ in 0..CONNECTIONS {
        let mut client = gateway.client();
        ask(&mut client);
        idle.push(client);
    }
    let bytes = ((gateway.memory_kib("VmRSS") - before) << 10) / CONNECTIONS;
    assert!(bytes <= BYTES_MOST, "{bytes} bytes a connection");
    let before = gateway.cpu();
    thread::sleep(REST);
    let spent = gateway.cpu() - before;
    assert!(spent < REST / 20, "{spent:?} of {REST:?}");
    let among_idle = latency();
    assert!(among_idle < undisturbed * 3 / 2, "{among_idle:?}, {undisturbed:?} without them");
    ask(&mut idle[CONNECTIONS / 2]);
}

/// A connection whose other end can send only so far ahead.
fn connect_with_little_room(address: SocketAddr) -> TcpStream {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    socket.set_recv_buffer_size(128 << 10).unwrap();
    socket.connect(&address.into()).unwrap();
    socket.into()
}

/// At 500 KB/s the system would ask for more of an answer every two seconds, if it buffered as much as it can.
#[test]
fn who_takes_an_answer_slowly_but_steadily_gets_all_of_it() {
    const LENGTH: usize = 5 << 20;
    let upstream = WireUpstream::start(|mut wire| {
        wire.request();
        wire.send(format!("HTTP/1.1 200 OK\r\nContent-Length: {LENGTH}\r\n\r\n").as_bytes());
        wire.send(&vec![b'x'; LENGTH]);
        wire.wait_for_end();
    });
    let gateway = forward_all("timeouts = { idle = \"1s\" }", &upstream.url());
    let mut client = connect_with_little_room(gateway.address());
    std::io::Write::write_all(&mut client, b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    let mut taken = 0;
    let mut piece = vec![0; 50 << 10];
    while taken < LENGTH {
        thread::sleep(Duration::from_millis(100));
        let length = client.read(&mut piece).unwrap();
        assert_ne!(length, 0, "cut off after {taken} bytes");
        taken += length;
    }
}
