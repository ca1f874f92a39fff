//! Changing listeners and connection settings by a reload.

use std::{
    net::{SocketAddr, TcpListener, TcpStream},
    os::unix::net::UnixStream,
};

use crate::harness::{
    client::Client,
    frames::PREFACE,
    gateway::Gateway,
    redis::{free_port, tls::Certificates},
    wait_until,
    wire::WireUpstream,
};

const GET: &[u8] = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n";

fn configuration(server: &str, status: u16) -> String {
    format!("[server]\nworkers = 1\n{server}\n[[routes]]\npath = \"/\"\nrespond = {{ status = {status} }}\n")
}

/// A gateway that listens where the file says.
fn start(server: &str, status: u16) -> Gateway {
    Gateway::start_with(&configuration(server, status), &["run"], &[])
}

fn loopback() -> SocketAddr {
    ([127, 0, 0, 1], free_port()).into()
}

#[test]
fn addresses_come_and_go_and_nobody_is_cut_off() {
    let (upstream, release) =
        WireUpstream::answering_when_told(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nlast");
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("socket");
    let (stays, goes, comes) = (loopback(), loopback(), loopback());
    let listening = |addresses: &[String]| {
        let listen = addresses.iter().map(|address| format!("\"{address}\"")).collect::<Vec<_>>().join(", ");
        format!(
            "[server]\nlisten = [{listen}]\n[upstreams.api]\nservers = \"{}\"\n\
             [[routes]]\npath = \"/\"\nupstream = \"api\"\n[[routes]]\npath = \"/none\"\nrespond = {{ status = 204 }}\n",
            upstream.url()
        )
    };
    let unix = format!("unix:{}", socket.display());
    let toml = listening(&[stays.to_string(), goes.to_string()]);
    let gateway = Gateway::start_with(&toml, &["run"], &[]);
    let (mut busy, mut idle) = (Client::connect(goes), Client::connect(goes));
    busy.send(GET);
    assert_eq!(idle.get("/none").status, 204);
    wait_until("it is in flight", || upstream.connections() == 1);
    gateway.reload(&listening(&[stays.to_string(), comes.to_string(), unix.clone()]));
    wait_until("the old one is closed", || TcpStream::connect(goes).is_err());
    assert_eq!(Client::connect(comes).get("/none").status, 204);
    assert_eq!(Client::connect(stays).get("/none").status, 204);
    assert!(UnixStream::connect(&socket).is_ok());
    assert_eq!(idle.get("/none").status, 204);
    release.send(()).unwrap();
    assert_eq!(busy.answer().text(), "last");
    for line in [
        format!("stopped listening on {goes}"),
        format!("listening on {comes}"),
        "`server.listen` changed".to_owned(),
    ] {
        gateway.wait_for_log(&line);
    }
    // And back: what was closed can be listened on again.
    gateway.reload(&listening(&[goes.to_string()]));
    assert_eq!(Client::connect(goes).get("/none").status, 204);
    wait_until("the socket is gone", || !socket.exists());
    wait_until("the others are closed", || {
        [stays, comes].iter().all(|place| TcpStream::connect(place).is_err())
    });
}

#[test]
fn an_address_that_cannot_be_listened_on_refuses_the_reload() {
    let (place, other) = (loopback(), loopback());
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = taken.local_addr().unwrap();
    let _held = TcpListener::bind(taken);
    let held = TcpListener::bind("127.0.0.1:0").unwrap();
    let held = (held.local_addr().unwrap(), held);
    let gateway = start(&format!("listen = \"{place}\""), 204);
    gateway.reload(&configuration(&format!("listen = [\"{other}\", \"{}\"]", held.0), 200));
    let log = gateway.log();
    assert!(log.contains(&format!("can't listen on `{}`: Address already in use", held.0)), "{log}");
    assert_eq!(Client::connect(place).get("/").status, 204, "the old route, at the old address");
    assert!(TcpStream::connect(other).is_err(), "nothing was opened");
    // The next one is compared with what runs.
    gateway.reload(&configuration(&format!("listen = \"{other}\""), 200));
    assert_eq!(Client::connect(other).get("/").status, 200);
}

#[test]
fn a_port_that_the_system_chose_stays() {
    let gateway = Gateway::start(&configuration("", 204));
    gateway.reload(&configuration("", 200));
    assert_eq!(gateway.get("/").status, 200);
    gateway.assert_not_logged("stopped listening");
}

#[test]
fn a_socket_that_a_supervisor_holds_stays_as_long_as_it_is_named() {
    let socket = TcpListener::bind("127.0.0.1:0").unwrap();
    let (held, other) = (socket.local_addr().unwrap(), loopback());
    let toml = |listen: &str| configuration(&format!("listen = [{listen}]"), 204);
    let gateway =
        Gateway::start_with_sockets(&toml(&format!("\"{held}\"")), vec![socket.try_clone().unwrap().into()]);
    gateway.reload(&toml(&format!("\"{held}\", \"{other}\"")));
    assert_eq!([held, other].map(|place| Client::connect(place).get("/").status), [204, 204]);
}

#[test]
fn what_holds_for_connections_changes_for_new_ones() {
    let gateway = Gateway::start(&configuration("", 204));
    let long = format!("GET /\nX-Long: {}", "x".repeat(10_000));
    let mut old = gateway.client();
    assert_eq!(old.ask(&long).status, 204);
    let certificates = Certificates::for_server(&["127.0.0.1"]);
    gateway.reload(&configuration("http2 = false\nmax_header_bytes = \"8KiB\"", 204));
    assert_eq!(gateway.ask(&long).status, 431);
    assert_eq!(old.ask(&long).status, 204, "on the connection that was there before");
    let mut preface = gateway.client();
    preface.send(PREFACE);
    assert_eq!(preface.head().status, 400);
    let (cert, key) = (certificates.path("server.pem"), certificates.path("server.key"));
    gateway
        .reload(&configuration(&format!("tls = {{ certs = [{{ cert = {cert:?}, key = {key:?} }}] }}"), 204));
    let ca = certificates.path("ca.pem");
    let told = crate::proxy::curl(
        &gateway,
        &[
            "--cacert",
            ca.to_str().unwrap(),
            "--write-out",
            "%{http_code} %{http_version}",
            "https://{address}/",
        ],
    );
    assert_eq!(told, "204 2");
    assert_eq!(old.get("/").status, 204);
}

#[test]
fn timeouts_change_for_connections_that_are_there() {
    let gateway = Gateway::start(&configuration("", 204));
    let mut client = gateway.client();
    assert_eq!(client.get("/").status, 204);
    gateway.reload(&configuration("timeouts = { idle = \"100ms\" }", 204));
    assert!(client.is_closed());
}

#[test]
fn the_bound_of_connections_goes_up_and_down() {
    let gateway = Gateway::start(&configuration("max_connections = 2", 204));
    let mut clients = [(); 2].map(|()| gateway.client());
    clients.iter_mut().for_each(|client| assert_eq!(client.get("/").status, 204));
    gateway.reload(&configuration("max_connections = 4", 204));
    let mut more = [(); 2].map(|()| gateway.client());
    more.iter_mut().for_each(|client| assert_eq!(client.get("/").status, 204));
    clients.iter_mut().for_each(|client| assert_eq!(client.get("/").status, 204));
    gateway.reload(&configuration("max_connections = 1", 204));
    // Three of the four, without anybody having come.
    let mut all: Vec<Client> = clients.into_iter().chain(more).collect();
    wait_until("those beyond the bound are closed", || {
        let silent = std::time::Duration::from_millis(5);
        all.iter_mut().map(|client| client.hears_within(silent)).filter(|heard| !heard).count() == 1
    });
}
