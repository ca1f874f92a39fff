//! Connections waiting to be accepted: as many as the system allows, because a client whose connection finds no room retries
//! only after a second.

use std::{
    net::{SocketAddr, TcpListener, TcpStream},
    os::{
        fd::OwnedFd,
        unix::net::{UnixListener, UnixStream},
    },
    thread,
    time::{Duration, Instant},
};

use socket2::SockRef;

use crate::harness::{
    PATIENCE,
    backlog::{backlog, greatest},
    gateway::Gateway,
    redis::free_port,
};

const ANSWER: &str = "[[routes]]\npath = \"/\"\nrespond = { status = 204 }\n";
/// Connections at a time, of which a backlog of 128 has no room for most.
const CONNECTIONS: u32 = 1_000;
/// A SYN that is dropped is sent again after a second.
const RETRIED: Duration = Duration::from_millis(900);
/// Measurements that may be spoilt by a machine that is too busy.
const MEASUREMENTS: usize = 5;

/// A gateway with an admin port, and that port's address.
fn start() -> (Gateway, SocketAddr) {
    let admin = SocketAddr::from(([127, 0, 0, 1], free_port()));
    (Gateway::start(&format!("[admin]\nlisten = \"{admin}\"\n{ANSWER}")), admin)
}

#[test]
fn a_backlog_is_as_long_as_the_system_allows() {
    let (gateway, admin) = start();
    assert_eq!([backlog(gateway.address().port()), backlog(admin.port())], [greatest(); 2]);
}

/// Supervisors that aren't systemd bind with 128.
#[test]
fn a_socket_that_is_handed_on_gets_the_same_backlog() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("socket");
    let (tcp, unix) = (TcpListener::bind("127.0.0.1:0").unwrap(), UnixListener::bind(&path).unwrap());
    SockRef::from(&unix).listen(128).unwrap();
    let address = tcp.local_addr().unwrap();
    assert_eq!(backlog(address.port()), 128);
    let toml = format!("[server]\nlisten = [\"{address}\", \"unix:{}\"]\n{ANSWER}", path.display());
    let gateway = Gateway::start_with_sockets(&toml, vec![OwnedFd::from(tcp), OwnedFd::from(unix)]);
    assert_eq!(backlog(address.port()), greatest());
    gateway.pause();
    for _ in 0..greatest().min(CONNECTIONS) {
        let stream = socket2::Socket::new(socket2::Domain::UNIX, socket2::Type::STREAM, None).unwrap();
        stream.set_nonblocking(true).unwrap();
        stream.connect(&socket2::SockAddr::unix(&path).unwrap()).expect("there is room");
    }
    gateway.resume();
    assert!(UnixStream::connect(&path).is_ok());
}

/// A gateway that stands still accepts nothing, so this doesn't depend on its speed.
#[test]
fn a_thousand_clients_connect_while_nobody_accepts() {
    let (gateway, admin) = start();
    gateway.pause();
    for address in [gateway.address(), admin] {
        for at in 0..greatest().min(CONNECTIONS) {
            let connected = TcpStream::connect_timeout(&address, PATIENCE);
            assert!(connected.is_ok(), "{address}, connection {at}: {connected:?}");
        }
    }
    gateway.resume();
    assert_eq!(gateway.get("/").status, 204);
}

/// How long a thousand connections take, one after the other, and how many of them had to be tried again.
fn connect(address: SocketAddr) -> (Duration, usize) {
    let since = Instant::now();
    let times = (0..CONNECTIONS).map(|_| {
        let since = Instant::now();
        drop(TcpStream::connect(address).unwrap());
        since.elapsed()
    });
    let retried = times.filter(|time| *time >= RETRIED).count();
    (since.elapsed(), retried)
}

#[test]
fn a_thousand_clients_connect_as_fast_as_anywhere() {
    let control = TcpListener::bind("127.0.0.1:0").unwrap();
    SockRef::from(&control).listen(i32::MAX).unwrap();
    let elsewhere = control.local_addr().unwrap();
    thread::spawn(move || control.incoming().for_each(drop));
    let (gateway, admin) = start();
    for address in [gateway.address(), admin] {
        let mut measured = Vec::new();
        let as_fast = (0..MEASUREMENTS).any(|_| {
            let (there, here) = (connect(elsewhere), connect(address));
            measured.push((there, here));
            here.1 == 0 && here.0 <= 5 * there.0 + Duration::from_millis(100)
        });
        assert!(as_fast, "{address}, beside the control: {measured:?}");
    }
}
