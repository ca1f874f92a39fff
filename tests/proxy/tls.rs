//! Clients with TLS.

use std::{
    fs,
    io::{Read, Write},
    path::Path,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use crate::{
    harness::{
        PATIENCE, client::Client, gateway::Gateway, metrics::Metrics, redis::tls::Certificates,
        upstream::Upstream, wait_until, wire::WireUpstream,
    },
    proxy::{curl, forward_to, quoted},
};

/// `tls` of `[server]` with these certificates.
fn tls(certificates: &[&Certificates], more: &str) -> String {
    let certs = certificates.iter().map(|certificates| {
        let (cert, key) = (certificates.path("server.pem"), certificates.path("server.key"));
        format!("{{ cert = {cert:?}, key = {key:?} }}")
    });
    format!("tls = {{ certs = [{}]{more} }}\n", certs.collect::<Vec<_>>().join(", "))
}

fn configuration(server: &str, upstream: &Upstream) -> String {
    format!("[server]\nworkers = 1\n{server}\n{}", forward_to(&[quoted(upstream.url())], ""))
}

fn trusting(certificates: &Certificates) -> String {
    certificates.path("ca.pem").to_str().unwrap().to_owned()
}

/// What openssl says of a connection.
fn s_client(gateway: &Gateway, arguments: &[&str]) -> String {
    let mut openssl = Command::new("openssl");
    openssl.args(["s_client", "-connect", &gateway.address().to_string()]).args(arguments);
    let output = openssl.stdin(Stdio::null()).output().expect("openssl is needed");
    String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned()
}

/// The certificate that a client is shown, in PEM form.
fn shown(gateway: &Gateway, arguments: &[&str]) -> String {
    let told = s_client(gateway, arguments);
    let (_, shown) = told.split_once("-----BEGIN CERTIFICATE-----").unwrap_or_else(|| panic!("{told}"));
    shown.split("-----END").next().unwrap().trim().replace('\n', "")
}

fn certificate(path: &Path) -> String {
    let text = fs::read_to_string(path).unwrap();
    let (_, rest) = text.split_once("-----BEGIN CERTIFICATE-----").unwrap();
    rest.split("-----END").next().unwrap().trim().replace(['\r', '\n'], "")
}

#[test]
fn both_protocols_are_spoken_as_agreed_on() {
    let (certificates, upstream) = (Certificates::for_server(&["127.0.0.1"]), Upstream::hello());
    let gateway = Gateway::start(&configuration(&tls(&[&certificates], ""), &upstream));
    let address = gateway.address();
    let greeting = gateway.greeting();
    assert!(greeting.contains(&format!("tollgate listens on https://{address}\n")), "{greeting}");
    assert!(greeting.contains(&format!("try: curl -i https://{address}/\n")), "{greeting}");
    let ca = trusting(&certificates);
    for (protocol, version) in [("--http2", "2"), ("--http1.1", "1.1")] {
        let told = curl(
            &gateway,
            &[protocol, "--cacert", &ca, "--write-out", " %{http_version}", "https://{address}/"],
        );
        assert_eq!(told, format!("hello {version}"));
        assert_eq!(upstream.last().headers["x-forwarded-proto"], "https");
    }
    // Who doesn't speak TLS gets nothing, and nobody else is disturbed.
    let mut plain = gateway.client();
    plain.send(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    assert!(!String::from_utf8_lossy(&plain.rest()).contains("HTTP/1.1 "));
    assert_eq!(upstream.count(), 2);
}

#[test]
fn without_http_2_it_is_not_agreed_on() {
    let (certificates, upstream) = (Certificates::for_server(&["127.0.0.1"]), Upstream::hello());
    let gateway =
        Gateway::start(&configuration(&format!("http2 = false\n{}", tls(&[&certificates], "")), &upstream));
    let ca = trusting(&certificates);
    let told = curl(
        &gateway,
        &["--http2", "--cacert", &ca, "--write-out", " %{http_version}", "https://{address}/"],
    );
    assert_eq!(told, "hello 1.1");
    assert!(s_client(&gateway, &["-alpn", "h2"]).contains("no application protocol"));
}

#[test]
fn the_name_that_is_asked_for_chooses_the_certificate() {
    let first = Certificates::for_server(&["first.example.com"]);
    let wild = Certificates::for_server(&["*.example.com"]);
    let exact = Certificates::for_server(&["Exact.example.com", "other.example.org"]);
    let gateway = Gateway::start(&configuration(&tls(&[&first, &wild, &exact], ""), &Upstream::hello()));
    for (name, expected) in [
        (Some("first.example.com"), &first),
        (Some("any.example.com"), &wild),
        (Some("ANY.example.com"), &wild),
        (Some("exact.example.com"), &exact),
        (Some("other.example.org"), &exact),
        (Some("deep.any.example.com"), &first),
        (Some("example.com"), &first),
        (None, &first),
    ] {
        let arguments = name.map_or(vec!["-noservername"], |name| vec!["-servername", name]);
        assert_eq!(shown(&gateway, &arguments), certificate(&expected.path("server.pem")), "{name:?}");
    }
}

#[test]
fn clients_must_show_a_certificate_of_the_authority() {
    let (certificates, others) =
        (Certificates::for_server(&["127.0.0.1"]), Certificates::for_server(&["127.0.0.1"]));
    let upstream = Upstream::hello();
    let client_ca = format!(", client_ca = {:?}", certificates.path("ca.pem"));
    let admin = "[admin]\nlisten = \"127.0.0.1:0\"";
    let gateway =
        Gateway::start(&configuration(&format!("{}{admin}", tls(&[&certificates], &client_ca)), &upstream));
    let ca = trusting(&certificates);
    let with = |shown: &Certificates| {
        let (cert, key) = (shown.path("client.pem"), shown.path("client.key"));
        let (cert, key) = (cert.to_str().unwrap(), key.to_str().unwrap());
        curl(&gateway, &["--cacert", &ca, "--cert", cert, "--key", key, "https://{address}/"])
    };
    assert_eq!(with(&certificates), "hello");
    assert!(with(&others).ends_with("FAILED"));
    // The client has sent its request by then, and is told the reason all the same.
    for _ in 0..5 {
        let told = curl(&gateway, &["--cacert", &ca, "https://{address}/"]);
        assert!(told.contains("certificate required") && told.ends_with("FAILED"), "{told}");
    }
    assert_eq!(upstream.count(), 1);
    let (_, admin) = gateway.greeting().split_once("dashboard: http://").unwrap();
    let admin = admin.lines().next().unwrap();
    assert_eq!(Metrics::scrape(admin).of("tollgate_tls_handshake_failures_total"), 6.0);
}

#[test]
fn a_session_is_resumed() {
    let (certificates, folder) = (Certificates::for_server(&["127.0.0.1"]), tempfile::tempdir().unwrap());
    let configuration = configuration(&tls(&[&certificates], ""), &Upstream::hello());
    let gateway = Gateway::start(&configuration);
    let session = folder.path().join("session");
    let session = session.to_str().unwrap();
    s_client(&gateway, &["-tls1_2", "-sess_out", session]);
    // Also after a reload that changes nothing of it.
    gateway.reload(&configuration);
    assert!(s_client(&gateway, &["-tls1_2", "-sess_in", session]).contains("Reused, TLSv1.2"));
}

#[test]
fn other_certificates_are_read_by_a_reload_and_wrong_ones_change_nothing() {
    let (old, new) = (Certificates::for_server(&["127.0.0.1"]), Certificates::for_server(&["127.0.0.1"]));
    let folder = tempfile::tempdir().unwrap();
    let install = |certificates: &Certificates, key: &Certificates| {
        fs::copy(certificates.path("server.pem"), folder.path().join("server.pem")).unwrap();
        fs::copy(key.path("server.key"), folder.path().join("server.key")).unwrap();
    };
    install(&old, &old);
    let (cert, key) = (folder.path().join("server.pem"), folder.path().join("server.key"));
    let server = format!("tls = {{ certs = [{{ cert = {cert:?}, key = {key:?} }}] }}");
    let toml = configuration(&server, &Upstream::hello());
    let gateway = Gateway::start(&toml);
    assert_eq!(shown(&gateway, &[]), certificate(&old.path("server.pem")));
    let mut open = Command::new("openssl")
        .args(["s_client", "-quiet", "-no_ign_eof", "-connect", &gateway.address().to_string()])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut ask = || {
        open.stdin.as_mut().unwrap().write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
        let mut head = [0; 12];
        let stdout = open.stdout.as_mut().unwrap();
        stdout.read_exact(&mut head).unwrap();
        let mut rest = Vec::new();
        while !rest.ends_with(b"hello") {
            rest.push(0);
            let end = rest.len() - 1;
            stdout.read_exact(&mut rest[end..]).unwrap();
        }
        String::from_utf8(head.to_vec()).unwrap()
    };
    assert_eq!(ask(), "HTTP/1.1 200");
    // The file is the same, what it names isn't.
    install(&new, &new);
    gateway.reload(&toml);
    wait_until("it is logged", || gateway.log().contains("`server.tls` changed"));
    assert_eq!(shown(&gateway, &[]), certificate(&new.path("server.pem")));
    assert_eq!(ask(), "HTTP/1.1 200", "on the connection that was there before");
    install(&old, &new);
    gateway.reload(&toml);
    wait_until("it is logged", || gateway.log().contains("can't be used: keys may not be consistent"));
    assert_eq!(shown(&gateway, &[]), certificate(&new.path("server.pem")));
    let _ = open.kill();
    let _ = open.wait();
}

#[test]
fn a_handshake_that_takes_too_long_is_cut_off() {
    let (certificates, upstream) = (Certificates::for_server(&["127.0.0.1"]), Upstream::hello());
    let server = format!("timeouts = {{ header = \"300ms\" }}\n{}", tls(&[&certificates], ""));
    let gateway = Gateway::start(&configuration(&server, &upstream));
    // Nothing, and the beginning of a handshake.
    for beginning in [&b""[..], b"\x16\x03\x01\x02\x00\x01"] {
        let since = Instant::now();
        let mut client = gateway.client();
        client.send(beginning);
        assert_eq!(client.rest(), b"");
        let took = since.elapsed();
        assert!((Duration::from_millis(300)..PATIENCE / 2).contains(&took), "{took:?}");
    }
}

#[test]
fn a_proxy_says_first_whose_connection_it_is() {
    let (certificates, upstream) = (Certificates::for_server(&["127.0.0.1"]), Upstream::hello());
    let server =
        format!("proxy_protocol = true\ntrusted_proxies = [\"127.0.0.1\"]\n{}", tls(&[&certificates], ""));
    let gateway = Gateway::start(&configuration(&server, &upstream));
    let ca = trusting(&certificates);
    assert_eq!(curl(&gateway, &["--haproxy-protocol", "--cacert", &ca, "https://{address}/"]), "hello");
    assert_eq!(upstream.last().headers["x-forwarded-for"], "127.0.0.1");
    assert!(curl(&gateway, &["--cacert", &ca, "https://{address}/"]).ends_with("FAILED"));
}

#[test]
fn a_unix_socket_stays_clear() {
    let (certificates, upstream) = (Certificates::for_server(&["127.0.0.1"]), Upstream::hello());
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("socket");
    let server =
        format!("listen = [\"127.0.0.1:0\", \"unix:{}\"]\n{}", path.display(), tls(&[&certificates], ""));
    let gateway = Gateway::start_with(&configuration(&server, &upstream), &["run"], &[]);
    let socket = path.to_str().unwrap();
    for protocol in ["--http1.1", "--http2-prior-knowledge"] {
        assert_eq!(curl(&gateway, &[protocol, "--unix-socket", socket, "http://a/"]), "hello");
        assert_eq!(upstream.last().headers["x-forwarded-proto"], "http");
    }
}

#[test]
fn h2load_has_no_failure() {
    let (certificates, upstream) = (Certificates::for_server(&["127.0.0.1"]), Upstream::hello());
    let gateway = Gateway::start(&configuration(&tls(&[&certificates], ""), &upstream));
    let url = format!("https://{}/", gateway.address());
    for protocol in ["h2", "http/1.1"] {
        let arguments = ["-n", "3000", "-c", "10", "-m", "20", "--npn-list", protocol, &url];
        let output = Command::new("h2load").args(arguments).output();
        let told =
            String::from_utf8(output.expect("h2load is needed: a part of nghttp2-client").stdout).unwrap();
        assert!(told.contains(&format!("Application protocol: {protocol}")), "{told}");
        assert!(told.contains("status codes: 3000 2xx"), "{told}");
    }
}

/// TLS holds back what a client doesn't take.
#[test]
fn who_takes_nothing_of_an_answer_is_cut_off() {
    let certificates = Certificates::for_server(&["127.0.0.1"]);
    let (upstream, end) = WireUpstream::without_end();
    let server = format!("timeouts = {{ idle = \"500ms\" }}\n{}", tls(&[&certificates], ""));
    let gateway = Gateway::start(&format!(
        "[server]\nworkers = 1\n{server}\n{}",
        forward_to(&[quoted(upstream.url())], "")
    ));
    let mut openssl = Command::new("openssl");
    openssl.args(["s_client", "-quiet", "-connect", &gateway.address().to_string()]);
    // What it gets it can't hand on.
    openssl.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut client = openssl.spawn().expect("openssl is needed");
    client.stdin.as_mut().unwrap().write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    end.recv_timeout(PATIENCE).expect("the connection upstream ends");
    client.kill().unwrap();
    let _ = client.wait();
}

/// A connection on which the client goes away without a word, as many do.
#[test]
fn who_leaves_in_the_middle_leaves_nothing_behind() {
    let (certificates, upstream) = (Certificates::for_server(&["127.0.0.1"]), Upstream::hello());
    let admin = "[admin]\nlisten = \"127.0.0.1:0\"";
    let gateway = Gateway::start(&configuration(&format!("{}{admin}", tls(&[&certificates], "")), &upstream));
    for _ in 0..20 {
        Client::connect(gateway.address()).send(b"\x16\x03\x01");
    }
    let (_, admin) = gateway.greeting().split_once("dashboard: http://").unwrap();
    let admin = admin.lines().next().unwrap();
    wait_until("all are gone", || {
        let metrics = Metrics::scrape(admin);
        (metrics.of("tollgate_connections_accepted_total"), metrics.of("tollgate_connections")) == (20.0, 0.0)
    });
}
