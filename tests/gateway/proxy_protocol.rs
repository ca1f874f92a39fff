//! The PROXY protocol: addresses from trusted proxies, and invalid or unexpected headers.

use std::{
    fs,
    io::{Read, Write},
    net::TcpListener,
    os::{fd::OwnedFd, unix::net::UnixStream},
    process::{Child, Command, Stdio},
    time::Instant,
};

use crate::{
    forward_all,
    harness::{
        PATIENCE, client::Client, gateway::Gateway, redis::tls::Certificates, upstream::Upstream, wait_until,
    },
    limit_all,
};

const GET: &[u8] = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n";
const SIGNATURE: &[u8] = b"\r\n\r\n\0\r\nQUIT\n";

/// Starts a gateway with these trusted proxies, and an upstream that sees the client's address.
fn behind_proxies(proxies: &str, keys: &str) -> (Gateway, Upstream) {
    let upstream = Upstream::hello();
    let server = format!("[server]\nproxy_protocol = true\ntrusted_proxies = [{proxies}]\n{keys}\n");
    (Gateway::start(&(server + &forward_all(&upstream.url(), ""))), upstream)
}

/// Whom the upstream's newest request came from.
fn seen(upstream: &Upstream) -> String {
    upstream.last().headers["x-forwarded-for"].to_str().unwrap().to_owned()
}

/// A header of version 2.
fn binary(version_and_command: u8, family: u8, block: &[u8]) -> Vec<u8> {
    let length = u16::try_from(block.len()).unwrap().to_be_bytes();
    [SIGNATURE, &[version_and_command, family], &length, block].concat()
}

/// Source and destination of a connection over IPv4, and their ports.
const IPV4: &[u8] = &[203, 0, 113, 5, 192, 0, 2, 1, 0x12, 0x67, 0, 80];
const IPV6: &[u8] = &[
    0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 7, 0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
    0, 1, 0x12, 0x67, 0, 80,
];

#[test]
fn whom_a_trusted_proxy_names_is_the_client() {
    let (gateway, upstream) = behind_proxies("\"127.0.0.1\"", "");
    // PP2_TYPE_AUTHORITY and PP2_TYPE_NOOP.
    let tlvs = b"\x02\x00\x0bexample.com\x04\x00\x02\0\0";
    let long = [IPV4, &[0x04, 0x0f, 0], &[0; 0xf00]].concat();
    for (header, client) in [
        (b"PROXY TCP4 203.0.113.5 192.0.2.1 4711 80\r\n".to_vec(), "203.0.113.5"),
        (b"PROXY TCP6 2001:db8::7 2001:db8::1 65535 0\r\n".to_vec(), "2001:db8::7"),
        (b"PROXY TCP6 ::ffff:203.0.113.5 ::1 1 2\r\n".to_vec(), "203.0.113.5"),
        (binary(0x21, 0x11, IPV4), "203.0.113.5"),
        (binary(0x21, 0x11, &[IPV4, tlvs].concat()), "203.0.113.5"),
        (binary(0x21, 0x11, &long), "203.0.113.5"),
        (binary(0x21, 0x21, IPV6), "2001:db8::7"),
        (binary(0x21, 0x21, &[IPV6, tlvs].concat()), "2001:db8::7"),
    ] {
        // With the request behind it, and before it.
        let mut client_at_once = gateway.client();
        client_at_once.send(&[&header, GET].concat());
        let mut client_later = gateway.client();
        client_later.send(&header);
        client_later.send(GET);
        for connection in [&mut client_at_once, &mut client_later] {
            // The header holds for every request of a connection. Each request is answered before the next connection
            // is looked at, since the upstream tells its newest request only.
            assert_eq!(connection.answer().text(), "hello");
            assert_eq!(seen(&upstream), client, "{}", header.escape_ascii());
            connection.send(GET);
            assert_eq!(connection.answer().text(), "hello");
            assert_eq!(seen(&upstream), client, "{}", header.escape_ascii());
        }
    }
}

#[test]
fn a_header_that_names_nobody_leaves_the_proxy_for_the_client() {
    let (gateway, upstream) = behind_proxies("\"127.0.0.1\"", "");
    for header in [
        b"PROXY UNKNOWN\r\n".to_vec(),
        b"PROXY UNKNOWN ffff:f 203.0.113.5 65535 65535 and \r more\r\n".to_vec(),
        // LOCAL, whatever else it says
        binary(0x20, 0x00, b""),
        binary(0x20, 0x11, IPV4),
        binary(0x20, 0xff, b"\0"),
        // Unspecified, UDP, unix sockets
        binary(0x21, 0x00, IPV4),
        binary(0x21, 0x12, IPV4),
        binary(0x21, 0x22, IPV6),
        binary(0x21, 0x31, &[b'/'; 216]),
        binary(0x21, 0x32, &[b'/'; 216]),
    ] {
        let mut client = gateway.client();
        client.send(&[&header, GET].concat());
        assert_eq!(client.answer().text(), "hello", "{}", header.escape_ascii());
        assert_eq!(seen(&upstream), "127.0.0.1", "{}", header.escape_ascii());
    }
}

#[test]
fn a_header_may_come_byte_by_byte() {
    let (gateway, upstream) = behind_proxies("\"127.0.0.1\"", "");
    for header in [
        b"PROXY TCP4 203.0.113.5 192.0.2.1 4711 80\r\n".to_vec(),
        binary(0x21, 0x11, &[IPV4, b"abc"].concat()),
    ] {
        let mut client = gateway.client();
        for byte in [&header, GET].concat() {
            client.send(&[byte]);
        }
        assert_eq!(client.answer().text(), "hello");
        assert_eq!(seen(&upstream), "203.0.113.5");
    }
}

#[test]
fn a_malformed_header_of_a_trusted_proxy_ends_the_connection_unanswered() {
    let (gateway, upstream) = behind_proxies("\"127.0.0.1\"", "");
    let line = |rest: &str| format!("PROXY {rest}\r\n").into_bytes();
    for header in [
        b"".to_vec(),
        b"GET /x HTTP/1.1\r\nHost: a\r\n\r\n".to_vec(),
        b"proxy TCP4 203.0.113.5 192.0.2.1 1 2\r\n".to_vec(),
        b"PROXY TCP4 203.0.113.5 192.0.2.1 1 2\n".to_vec(),
        line("TCP4 203.0.113.5 192.0.2.1 1"),
        line("TCP4 203.0.113.5 192.0.2.1 1 2 3"),
        line("TCP4  203.0.113.5 192.0.2.1 1 2"),
        line("TCP4 203.0.113.5 192.0.2.1 1 2 "),
        line("TCP4 203.0.113.256 192.0.2.1 1 2"),
        line("TCP4 203.0.113.05 192.0.2.1 1 2"),
        line("TCP4 2001:db8::7 2001:db8::1 1 2"),
        line("TCP6 203.0.113.5 192.0.2.1 1 2"),
        line("TCP4 203.0.113.5 nobody 1 2"),
        line("TCP4 203.0.113.5 192.0.2.1 65536 2"),
        line("TCP4 203.0.113.5 192.0.2.1 1 02"),
        line("TCP4 203.0.113.5 192.0.2.1 +1 2"),
        line("TCP5 203.0.113.5 192.0.2.1 1 2"),
        // A line of 108 bytes
        line(&format!("UNKNOWN {}", "x".repeat(92))),
        binary(0x11, 0x11, IPV4),
        binary(0x22, 0x11, IPV4),
        binary(0x21, 0x13, IPV4),
        binary(0x21, 0x41, IPV4),
        binary(0x21, 0x11, &IPV4[..11]),
        binary(0x21, 0x21, &IPV6[..35]),
        binary(0x21, 0x11, &[0; 4081]),
        [&SIGNATURE[..11], b"x\x21\x11\0\x0c", IPV4].concat(),
    ] {
        let mut client = gateway.client();
        client.send(&[&header, GET].concat());
        assert_eq!(client.rest(), b"", "{}", header.escape_ascii());
    }
    assert_eq!(upstream.count(), 0);
    gateway.wait_for_log("doesn't begin with a PROXY header");
    // The longest that may be.
    let mut client = gateway.client();
    client.send(&[&line(&format!("UNKNOWN {}", "x".repeat(91))), GET].concat());
    assert_eq!(client.answer().text(), "hello");
}

#[test]
fn a_header_that_breaks_off_ends_the_connection() {
    let (gateway, upstream) = behind_proxies("\"127.0.0.1\"", "");
    let whole = binary(0x21, 0x11, IPV4);
    for length in [0, 1, 13, 15, 16, whole.len() - 1] {
        let mut client = gateway.client();
        client.send(&whole[..length]);
        client.writer().shutdown(std::net::Shutdown::Write).unwrap();
        assert_eq!(client.rest(), b"", "{length}");
    }
    assert_eq!(upstream.count(), 0);
}

#[test]
fn a_header_has_the_time_of_a_head() {
    let (gateway, _upstream) = behind_proxies("\"127.0.0.1\"", "timeouts = { header = \"100ms\" }");
    for part in [&b""[..], b"PROXY TCP4 203.0.113.5 "] {
        let mut client = gateway.client();
        client.send(part);
        assert_eq!(client.rest(), b"");
    }
}

/// Balancers probe a port by connecting and closing repeatedly.
#[test]
fn who_says_nothing_holds_up_nobody() {
    let (gateway, _upstream) = behind_proxies("\"127.0.0.1\"", "workers = 1");
    let silent = [(); 100].map(|()| gateway.client());
    for client in silent {
        client.writer().shutdown(std::net::Shutdown::Both).unwrap();
    }
    let since = Instant::now();
    let mut client = gateway.client();
    client.send(&[b"PROXY TCP4 203.0.113.5 192.0.2.1 4711 80\r\n", GET].concat());
    assert_eq!(client.answer().text(), "hello");
    assert!(since.elapsed() < PATIENCE / 2, "{:?}", since.elapsed());
}

#[test]
fn of_others_no_header_is_looked_for() {
    let (gateway, upstream) = behind_proxies("\"192.0.2.1\"", "");
    for header in [b"PROXY TCP4 203.0.113.5 192.0.2.1 4711 80\r\n".to_vec(), binary(0x21, 0x11, IPV4)] {
        let mut client = gateway.client();
        client.send(&[&header, GET].concat());
        assert_eq!(client.answer().status, 400);
    }
    assert_eq!(upstream.count(), 0);
    assert_eq!(gateway.get("/").text(), "hello");
    assert_eq!(seen(&upstream), "127.0.0.1");
}

#[test]
fn x_forwarded_for_is_believed_if_whom_the_header_names_is_trusted_too() {
    let (gateway, upstream) = behind_proxies("\"127.0.0.1\", \"10.0.0.0/8\"", "");
    for (source, forwarded) in [("10.0.0.1", "198.51.100.9, 10.0.0.1"), ("203.0.113.5", "203.0.113.5")] {
        let mut client = gateway.client();
        client.send(format!("PROXY TCP4 {source} 192.0.2.1 4711 80\r\n").as_bytes());
        assert_eq!(client.get_with("/", "X-Forwarded-For: 198.51.100.9\r\n").status, 200);
        assert_eq!(seen(&upstream), forwarded);
    }
}

/// A client may choose among all addresses of its network.
#[test]
fn an_ipv6_client_is_counted_by_its_network() {
    let server =
        "[server]\nproxy_protocol = true\ntrusted_proxies = [\"127.0.0.1\", \"2001:db8:ffff::/48\"]\n";
    let gateway = Gateway::start(&(server.to_owned() + &limit_all("key = \"ip\"\nrate = \"1/h\"")));
    let mut other_host = IPV6.to_vec();
    other_host[8..16].fill(0xff);
    let mut other_network = IPV6.to_vec();
    other_network[7] = 1;
    let line = |source: &str| format!("PROXY TCP6 {source} 2001:db8::1 4711 80\r\n").into_bytes();
    for (header, fields, status) in [
        (binary(0x21, 0x21, IPV6), "", 200),
        (binary(0x21, 0x21, &other_host), "", 429),
        (line("2001:db8::abcd:1"), "", 429),
        // By way of one more proxy.
        (line("2001:db8:ffff::1"), "X-Forwarded-For: 2001:db8:0:0:7::\r\n", 429),
        (binary(0x21, 0x21, &other_network), "", 200),
        (line("2001:db8:0:1::9"), "", 429),
        (line("2001:db8:0:2::9"), "", 200),
    ] {
        let mut client = gateway.client();
        client.send(&header);
        assert_eq!(client.get_with("/", fields).status, status, "{} {fields}", header.escape_ascii());
    }
}

#[test]
fn whether_headers_are_expected_changes_with_a_reload() {
    let upstream = Upstream::hello();
    let toml = |on: bool| {
        let server = format!("[server]\nproxy_protocol = {on}\ntrusted_proxies = [\"127.0.0.1\"]\n");
        server + &forward_all(&upstream.url(), "")
    };
    let gateway = Gateway::start(&toml(false));
    assert_eq!(gateway.get("/").status, 200);
    gateway.reload(&toml(true));
    let mut client = gateway.client();
    client.send(&[b"PROXY TCP4 203.0.113.5 192.0.2.1 4711 80\r\n", GET].concat());
    assert_eq!(client.answer().status, 200);
    assert_eq!(seen(&upstream), "203.0.113.5");
}

#[test]
fn a_drain_waits_for_no_header() {
    let (mut gateway, _upstream) =
        behind_proxies("\"127.0.0.1\"", "timeouts = { header = \"1m\", drain = \"1m\" }");
    let mut client = gateway.client();
    client.send(b"PROXY ");
    // The connection has been accepted, as one after it is.
    let mut other = gateway.client();
    other.send(&[b"PROXY UNKNOWN\r\n", GET].concat());
    assert_eq!(other.answer().status, 200);
    gateway.signal("TERM");
    wait_until("the gateway has ended", || gateway.ended().is_some());
    assert_eq!(client.rest(), b"");
}

#[test]
fn a_proxy_may_come_by_a_unix_socket() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tollgate.sock");
    let upstream = Upstream::hello();
    let server = format!(
        "[server]\nlisten = [\"127.0.0.1:0\", \"unix:{}\"]\nproxy_protocol = true\n\
         trusted_proxies = [\"127.0.0.1\"]\n",
        path.display()
    );
    let _gateway = Gateway::start_with(&(server + &forward_all(&upstream.url(), "")), &["run"], &[]);
    for header in [b"PROXY TCP4 203.0.113.5 192.0.2.1 4711 80\r\n".to_vec(), binary(0x21, 0x11, IPV4)] {
        let mut stream = UnixStream::connect(&path).unwrap();
        stream
            .write_all(&[&header, &b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"[..]].concat())
            .unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert!(answer.ends_with("hello"), "{answer}");
        assert_eq!(seen(&upstream), "203.0.113.5");
    }
}

#[test]
fn curl_says_whose_its_connection_is() {
    let (gateway, upstream) = behind_proxies("\"127.0.0.3\"", "");
    let url = format!("http://{}/", gateway.address());
    let curl = |options: &[&str]| {
        let common = ["--silent", "--show-error", "--interface", "127.0.0.3", &url];
        let output = Command::new("curl").args([options, &common].concat()).output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    assert_eq!(curl(&["--haproxy-protocol"]), "hello");
    assert_eq!(seen(&upstream), "127.0.0.3");
    assert_eq!(curl(&[]), "");
}

/// A real HAProxy in front of a gateway. It is killed with this value.
struct HaProxy {
    process: Child,
    listener: TcpListener,
    _folder: tempfile::TempDir,
}

impl HaProxy {
    fn start(gateway: &Gateway, says: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("haproxy.cfg");
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        // It gets the listener as its standard input: so the port is known, and nobody else's.
        let config = format!(
            "defaults\n mode tcp\n timeout connect 10s\n timeout client 1m\n timeout server 1m\n\
             listen gateway\n bind fd@0\n server gateway {} {says}\n",
            gateway.address()
        );
        fs::write(&file, config).unwrap();
        let process = Command::new("haproxy")
            .args(["-db", "-f"])
            .arg(&file)
            .stdin(Stdio::from(OwnedFd::from(listener.try_clone().unwrap())))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("haproxy is installed, as scripts/test.sh does");
        Self { process, listener, _folder: folder }
    }
}

impl Drop for HaProxy {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// What is within TLS is the client's word, and no proxy's.
#[test]
fn whose_a_connection_is_comes_before_tls() {
    let certificates = Certificates::for_server(&["127.0.0.1"]);
    let (cert, key) = (certificates.path("server.pem"), certificates.path("server.key"));
    let tls = format!("tls = {{ certs = [{{ cert = {cert:?}, key = {key:?} }}] }}");
    let (gateway, upstream) = behind_proxies("\"127.0.0.1\", \"127.0.0.3\"", &tls);
    let ca = certificates.path("ca.pem");
    for says in ["send-proxy", "send-proxy-v2"] {
        let haproxy = HaProxy::start(&gateway, says);
        let url = format!("https://{}/", haproxy.listener.local_addr().unwrap());
        for (client, protocol, forwarded_for, forwarded_proto) in [
            ("127.0.0.2", "--http1.1", "127.0.0.2", "https"),
            ("127.0.0.2", "--http2", "127.0.0.2", "https"),
            // Another proxy, which is believed.
            ("127.0.0.3", "--http2", "203.0.113.5, 127.0.0.3", "http"),
        ] {
            let output = Command::new("curl")
                .args(["--silent", "--show-error", "--max-time", "30", "--interface", client])
                .args([protocol, "--cacert", ca.to_str().unwrap()])
                .args(["-H", "X-Forwarded-For: 203.0.113.5", "-H", "X-Forwarded-Proto: http", &url])
                .output()
                .unwrap();
            assert_eq!(String::from_utf8_lossy(&output.stdout), "hello", "{says} {client}: {output:?}");
            let headers = upstream.last().headers;
            assert_eq!(headers["x-forwarded-for"], forwarded_for, "{says} {protocol}");
            assert_eq!(headers["x-forwarded-proto"], forwarded_proto, "{says} {protocol}");
        }
    }
}

#[test]
fn haproxy_says_whose_connections_it_passes_on() {
    let (gateway, upstream) = behind_proxies("\"127.0.0.1\"", "");
    for says in ["send-proxy", "send-proxy-v2", "send-proxy-v2 proxy-v2-options crc32c,unique-id"] {
        let haproxy = HaProxy::start(&gateway, says);
        let url = format!("http://{}/", haproxy.listener.local_addr().unwrap());
        let options = ["--silent", "--show-error", "--max-time", "30", "--interface", "127.0.0.2"];
        let output = Command::new("curl").args(options).args([&url, &url]).output().unwrap();
        assert_eq!(String::from_utf8_lossy(&output.stdout), "hellohello", "{says}: {output:?}");
        assert_eq!(seen(&upstream), "127.0.0.2", "{says}");
    }
    // And it finds the gateway well, whose connection the checks' own is.
    let haproxy = HaProxy::start(&gateway, "send-proxy-v2 check check-send-proxy inter 100ms");
    let mut client = Client::connect(haproxy.listener.local_addr().unwrap());
    assert_eq!(client.get("/").text(), "hello");
    gateway.assert_not_logged("is closed");
}
