//! The listener: its protocols, its access control, its bounds, and its reloads.

use std::{io::Write, net::TcpStream, process::Command, time::Duration};

use crate::{
    decisions::{Decider, THREE, address},
    harness::{
        client::Client,
        frames::{
            CANCEL, END_HEADERS, END_STREAM, End, Frames, HEADERS, INITIAL_WINDOW, RST_STREAM, fields, frame,
            get,
        },
        gateway::Gateway,
        redis::tls::Certificates,
        wait_until,
    },
};

/// Returns what curl prints of an answer, and its error.
fn curl(arguments: &[&str]) -> String {
    let mut curl = Command::new("curl");
    let output =
        curl.args(["--silent", "--show-error", "--max-time", "30"]).args(arguments).output().unwrap();
    String::from_utf8([output.stdout, output.stderr].concat()).unwrap()
}

/// Returns the paths of a certificate's files as the configuration takes them.
fn tls(certificates: &Certificates, more: &str) -> String {
    let (cert, key) = (certificates.path("server.pem"), certificates.path("server.key"));
    format!("tls = {{ cert = {cert:?}, key = {key:?}{more} }}")
}

#[test]
fn both_protocols_are_spoken_on_one_port() {
    let decider = Decider::start("", THREE);
    let url = format!("http://{}/healthcheck", decider.address);
    for (protocol, version) in [("--http1.1", "1.1"), ("--http2-prior-knowledge", "2")] {
        assert_eq!(curl(&[protocol, "-w", " %{http_version}", &url]), format!("OK {version}"));
    }
    // Neither port answers for the other.
    assert_eq!(decider.gateway.get("/healthcheck").status, 404);
    assert_eq!(decider.ask("GET /api/a").status, 404);
    assert_eq!(decider.ask("POST /healthcheck\nContent-Length: 0").status, 404);
}

#[test]
fn tls_asks_for_certificates() {
    let certificates = Certificates::for_server(&["127.0.0.1"]);
    let ca = certificates.path("ca.pem").display().to_string();
    let client_ca = format!(", client_ca = {ca:?}");
    let decider = Decider::start(&tls(&certificates, &client_ca), THREE);
    let url = format!("https://{}/healthcheck", decider.address);
    let (cert, key) = (certificates.path("client.pem"), certificates.path("client.key"));
    let (cert, key) = (cert.to_str().unwrap(), key.to_str().unwrap());
    for (protocol, version) in [("--http1.1", "1.1"), ("--http2", "2")] {
        let arguments = [protocol, "--cacert", &ca, "-w", " %{http_version}", &url];
        let refused = curl(&arguments);
        assert!(!refused.contains("OK"), "{refused}");
        let told = curl(&[&arguments[..], &["--cert", cert, "--key", key]].concat());
        assert_eq!(told, format!("OK {version}"));
    }
    // The main listener is still without TLS.
    assert_eq!(decider.gateway.get("/api/a").status, 204);
}

/// Some address of this machine that isn't loopback.
fn own_address() -> String {
    let output = Command::new("hostname").arg("-I").output().expect("hostname is needed");
    let own = String::from_utf8(output.stdout).unwrap().split_whitespace().next().map(str::to_owned);
    own.expect("this machine needs an address besides loopback")
}

/// Starts a gateway that these proxies may ask, and that listens for all.
fn for_all_addresses(trusted: &str) -> Gateway {
    let toml = format!("[decisions]\nlisten = \"0.0.0.0:0\"\ntrusted_proxies = [{trusted:?}]\n{THREE}");
    Gateway::start(&toml)
}

#[test]
fn only_named_peers_may_ask() {
    let own = own_address();
    let start = for_all_addresses;
    let ask = |gateway: &Gateway, host: &str| {
        let address = format!("{host}:{}", address(gateway).port()).parse().unwrap();
        // The described client may say that it speaks gRPC, in which a refusal has the status 200.
        let fields = "X-Forwarded-Uri: /api/a\r\nContent-Type: application/grpc\r\n";
        Client::connect(address).get_with("/check", fields)
    };
    let gateway = start("198.51.100.0/24");
    let answer = ask(&gateway, &own);
    assert_eq!(answer.status, 403);
    let body = String::from_utf8(answer.body).unwrap();
    assert!(body.contains("caller-unknown"), "{body}");
    assert_eq!(ask(&gateway, "127.0.0.1").status, 200);
    assert_eq!(ask(&start(&own), &own).status, 200);
}

#[test]
fn a_reload_moves_the_listener_and_closes_it() {
    let folder = tempfile::tempdir().unwrap();
    let socket = |name: &str| folder.path().join(name).display().to_string();
    let toml = |name: &str| format!("[decisions]\nlisten = \"unix:{}\"\n{THREE}", socket(name));
    let ask = |name: &str| curl(&["--unix-socket", &socket(name), "http://tollgate/healthcheck"]);
    let gateway = Gateway::start(&toml("one"));
    assert_eq!(ask("one"), "OK");
    gateway.reload(&toml("two"));
    assert_eq!(ask("two"), "OK");
    wait_until("the first socket is gone", || !ask("one").contains("OK"));
    gateway.reload(THREE);
    wait_until("the second socket is gone", || !ask("two").contains("OK"));
    gateway.reload(&toml("one"));
    assert_eq!(ask("one"), "OK");
}

#[test]
fn a_drain_answers_what_has_arrived() {
    let limits = THREE.replace("rate = \"3/h\"", "rate = \"1/3s\"\nwait = \"5s\"");
    let mut decider = Decider::start("", &limits);
    let call = "GET /check\nX-Forwarded-Uri: /api/a";
    assert_eq!(decider.ask(call).status, 200);
    let mut waiting = Client::connect(decider.address);
    waiting.send(b"GET /check HTTP/1.1\r\nHost: a\r\nX-Forwarded-Uri: /api/a\r\n\r\n");
    // It has arrived when it waits.
    std::thread::sleep(Duration::from_millis(100));
    decider.gateway.signal("TERM");
    let answer = waiting.answer();
    assert_eq!((answer.status, answer.header("connection")), (200, Some("close")));
    wait_until("the gateway has ended", || decider.gateway.ended().is_some());
}

#[test]
fn bodies_have_a_bound() {
    let decider = Decider::start("", THREE);
    let call = "POST /check\nContent-Type: application/json\nContent-Length: 1048577";
    let mut client = Client::connect(decider.address);
    client.send(format!("{} HTTP/1.1\r\nHost: a\r\n", call.lines().next().unwrap()).as_bytes());
    client.send(b"Content-Type: application/json\r\nContent-Length: 1048577\r\n\r\n");
    assert_eq!(client.head().status, 413);
}

/// A proxy's connection carries the calls for all of its clients, and a few of them may cancel as many as they like.
#[test]
fn clients_that_cancel_do_not_end_the_calls_of_others() {
    let decider =
        Decider::start("", &format!("[server]\nworkers = 1\ntrusted_proxies = [\"127.0.0.1\"]\n{THREE}"));
    let call = fields(&get("/check", &[("x-forwarded-uri", "/other")]));
    let request = fields(&get("/other", &[]));
    for (address, block) in [(decider.address, call), (decider.gateway.address(), request)] {
        let mut proxy = Frames::connect(address);
        let mut stream = 1;
        for burst in 0..40 {
            let mut bytes = Vec::new();
            let begins = |stream| frame(HEADERS, END_HEADERS | END_STREAM, stream, &block);
            let called: Vec<u32> = (0..3).map(|at| stream + 2 * at).collect();
            called.iter().for_each(|stream| bytes.extend(begins(*stream)));
            for at in 3..60 {
                bytes.extend(begins(stream + 2 * at));
                bytes.extend(frame(RST_STREAM, 0, stream + 2 * at, &CANCEL.to_be_bytes()));
            }
            stream += 120;
            proxy.write(&bytes);
            let mut answered = Vec::new();
            while answered.len() < called.len() {
                let frame = proxy.next().unwrap_or_else(|| panic!("closed in burst {burst} of {address}"));
                answered.extend(
                    (frame.kind == HEADERS && called.contains(&frame.stream)).then_some(frame.stream),
                );
            }
            // Late clients are looked for now and then.
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

/// Another proxy may let requests pass that it can't ask about, so clients of the gateway must not be able to prevent its calls.
#[test]
fn clients_take_no_room_of_callers() {
    let server =
        "[server]\nworkers = 1\nmax_connections = 10\ntimeouts = { header = \"60s\", idle = \"60s\" }";
    let decider = Decider::start("", &format!("{server}\n{THREE}"));
    // Responses that are never read, more than may be in flight.
    let mut blocking =
        [(); 2].map(|()| Frames::connect_with(decider.gateway.address(), &[(INITIAL_WINDOW, 0)]));
    for client in &mut blocking {
        client.ask_at_once(90, &get("/other", &[]));
        (0..90).for_each(|_| drop(client.next_of(HEADERS)));
    }
    let mut asking = Frames::connect(decider.address);
    asking.ask(1, &get("/check", &[("x-forwarded-uri", "/other")]));
    assert_eq!(asking.told(1).status, 200);
    let mut other = Frames::connect(decider.gateway.address());
    other.ask(1, &get("/other", &[]));
    assert_eq!(other.told(1).status, 404);
    // More connections than there may be, and than are told so.
    let begun = (0..10 + 64).map(|_| {
        let mut client = Client::connect(decider.gateway.address());
        client.send(b"GET /other HTTP/1.1\r\n");
        client
    });
    let _begun: Vec<_> = begun.collect();
    assert_eq!(decider.ask("GET /check\nX-Forwarded-Uri: /other").status, 200);
    // A caller's connection that idles makes no room for a client.
    std::thread::sleep(Duration::from_millis(600));
    asking.ask(3, &get("/check", &[("x-forwarded-uri", "/other")]));
    assert_eq!(asking.told(3).status, 200);
}

#[test]
fn those_who_may_not_ask_take_no_room_of_callers() {
    let own = own_address();
    let gateway = Gateway::start(&format!(
        "[server]\nworkers = 1\nmax_connections = 10\ntimeouts = {{ header = \"60s\", idle = \"60s\" }}\n\
         [decisions]\nlisten = \"0.0.0.0:0\"\ntrusted_proxies = [\"198.51.100.0/24\"]\n{THREE}"
    ));
    let port = address(&gateway).port();
    let mut asking = Frames::connect(([127, 0, 0, 1], port).into());
    asking.ask(1, &get("/check", &[("x-forwarded-uri", "/other")]));
    assert_eq!(asking.told(1).status, 200);
    // Twice as many as there may be of them, with those who are told that there are too many.
    let begun = (0..2 * (10 + 64)).map(|_| {
        let mut stranger = TcpStream::connect(format!("{own}:{port}")).unwrap();
        // It may have been closed already.
        let _ = stranger.write_all(b"GET /check HTTP/1.1\r\n");
        stranger
    });
    let _begun: Vec<_> = begun.collect();
    std::thread::sleep(Duration::from_millis(600));
    asking.ask(3, &get("/check", &[("x-forwarded-uri", "/other")]));
    assert_eq!(asking.told(3).status, 200);
    let mut other = Frames::connect(([127, 0, 0, 1], port).into());
    other.ask(1, &get("/check", &[("x-forwarded-uri", "/other")]));
    assert_eq!(other.told(1).status, 200);
}

/// Envoy puts all calls that are pending on a new connection, before it can know how many are taken.
#[test]
fn a_burst_of_calls_on_a_new_connection_is_answered() {
    let decider = Decider::start("", &format!("[server]\ntrusted_proxies = [\"127.0.0.1\"]\n{THREE}"));
    let call = get("/check", &[("x-forwarded-uri", "/other")]);
    let request = get("/other", &[]);
    for (address, head) in [(decider.address, call), (decider.gateway.address(), request)] {
        let mut proxy = Frames::connect(address);
        proxy.ask_at_once(1_200, &head);
        for at in 0..1_200 {
            let frame = proxy.next_of(HEADERS);
            assert!([200, 404].contains(&frame.status()), "{address}: {at}: {frame:?}");
        }
    }
}

#[test]
fn who_may_not_ask_is_held_to_the_bounds_of_clients() {
    let own = own_address();
    for (trusted, is_closed) in [("198.51.100.0/24", true), (&*own, false)] {
        let gateway = for_all_addresses(trusted);
        let mut caller = Frames::connect(format!("{own}:{}", address(&gateway).port()).parse().unwrap());
        let block = fields(&get("/check", &[("x-forwarded-uri", "/other")]));
        let cancelled = |stream| {
            let begin = frame(HEADERS, END_HEADERS | END_STREAM, stream, &block);
            [begin, frame(RST_STREAM, 0, stream, &CANCEL.to_be_bytes())].concat()
        };
        let burst: Vec<u8> = (0..90).flat_map(|at| cancelled(2 * at + 1)).collect();
        caller.write(&[burst, frame(HEADERS, END_HEADERS | END_STREAM, 181, &block)].concat());
        assert_eq!(matches!(caller.told(181).end, End::Gone(_)), is_closed, "{trusted}");
    }
}
