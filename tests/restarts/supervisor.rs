//! Notifications to a supervisor such as systemd, and sockets passed by it.

use std::{
    fs,
    net::TcpListener,
    os::unix::net::{UnixDatagram, UnixListener},
    path::Path,
    sync::mpsc,
    thread,
};

use crate::{
    harness::{
        self,
        client::Client,
        gateway::{Gateway, handing_on},
        wait_until,
    },
    restarts::wait_for_end,
};

const ROUTE: &str = "[[routes]]\npath = \"/\"\nrespond = { status = 204 }\n";

#[test]
fn the_supervisor_is_told_of_the_start_of_reloads_of_the_end_and_that_all_is_well() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("notify");
    let notices = UnixDatagram::bind(&path).unwrap();
    let (told, tell) = mpsc::channel();
    thread::spawn(move || {
        let mut notice = [0; 1000];
        while let Ok(length) = notices.recv(&mut notice) {
            // The test may have ended.
            let _ = told.send(String::from_utf8(notice[..length].to_vec()).unwrap());
        }
    });
    let receive = || tell.recv_timeout(harness::PATIENCE).unwrap();
    let next = || loop {
        let notice = receive();
        if notice != "WATCHDOG=1\n" {
            return notice;
        }
    };
    let variables = [("NOTIFY_SOCKET", path.to_str().unwrap()), ("WATCHDOG_USEC", "100000")];
    let mut gateway = Gateway::start_with(ROUTE, &["--listen", "127.0.0.1:0"], &variables);
    assert_eq!(next(), "READY=1\n");
    for toml in [ROUTE, "nonsense"] {
        gateway.reload(toml);
        let reloading = next();
        let since =
            reloading.strip_prefix("RELOADING=1\nMONOTONIC_USEC=").unwrap_or_else(|| panic!("{reloading}"));
        assert!(since.trim_end().parse::<u64>().unwrap() > 0);
        assert_eq!(next(), "READY=1\n");
    }
    wait_until("it says that all is well", || receive() == "WATCHDOG=1\n");
    gateway.signal("TERM");
    assert_eq!(next(), "STOPPING=1\n");
    wait_for_end(&mut gateway);
}

#[test]
fn sockets_are_told_by_their_addresses() {
    let [server, admin] = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
    let [of_server, of_admin] = [&server, &admin].map(|socket| socket.local_addr().unwrap());
    let toml = format!("[server]\nlisten = \"{of_server}\"\n[admin]\nlisten = \"{of_admin}\"\n{ROUTE}");
    for sockets in [[&server, &admin], [&admin, &server]] {
        let sockets = sockets.map(|socket| socket.try_clone().unwrap().into());
        let gateway = Gateway::start_with_sockets(&toml, sockets.into());
        assert_eq!(gateway.address(), of_server);
        assert_eq!(gateway.get("/").status, 204);
        assert_eq!(Client::connect(of_admin).ask("GET /livez\nHost: localhost").text(), "ok\n");
    }
}

#[test]
fn a_unix_socket_is_handed_on_and_its_file_is_the_supervisors() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("socket");
    let socket = UnixListener::bind(&path).unwrap();
    let toml = format!("[server]\nlisten = [\"127.0.0.1:0\", \"unix:{}\"]\n{ROUTE}", path.display());
    for _ in 0..2 {
        let mut gateway = Gateway::start_with_sockets(&toml, vec![socket.try_clone().unwrap().into()]);
        assert!(crate::restarts::unix::ask(&path, "/").starts_with("HTTP/1.1 204 "));
        gateway.signal("TERM");
        wait_for_end(&mut gateway);
        assert!(path.exists());
    }
}

/// What a gateway says that can't start with this file handed on.
fn complaint(socket: impl Into<std::os::fd::OwnedFd>) -> String {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("gateway.toml"), format!("[server]\nlisten = \"127.0.0.1:0\"\n{ROUTE}"))
        .unwrap();
    let mut command = handing_on(vec![socket.into()], Path::new("log"));
    let output = command.current_dir(&folder).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    fs::read_to_string(folder.path().join("log")).unwrap()
}

#[test]
fn a_socket_that_nothing_is_to_listen_on_is_an_error() {
    let socket = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = socket.local_addr().unwrap();
    let told = complaint(socket);
    assert!(told.contains(&format!("the configuration doesn't use: `{address}`")), "{told}");
    assert!(told.contains(&format!("add listen = \"{address}\" in [server] or [admin]")), "{told}");
    let told = complaint(fs::File::open("/dev/null").unwrap());
    assert!(told.contains("fd 3 is not a socket"), "{told}");
}
