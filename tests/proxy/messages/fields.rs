//! Header fields: some are removed, the others are forwarded unchanged.

use std::{fs, sync::mpsc};

use super::{FINE, Recording, body, lines};
use crate::{
    harness::{PATIENCE, gateway::Gateway, wait_until, wire::WireUpstream},
    proxy::{forward_to, quoted},
};

/// Fields that belong to a connection, or that its Connection names.
const HOP_BY_HOP: &str = "Connection: x-named, Keep-Alive\r\nX-Named: 1\r\ncOnnection: ,X-Other,, bad name\r\n\
    X-Other: 2\r\nX-Other: 3\r\nKeep-Alive: timeout=9\r\nProxy-Connection: keep-alive\r\nUpgrade: h2c\r\n\
    Proxy-Authenticate: Basic\r\nX-Kept: 3\r\n";
const STAY_BEHIND: [&str; 6] =
    ["x-named", "x-other", "keep-alive", "proxy-connection", "upgrade", "proxy-authenticate"];

#[test]
fn what_belongs_to_a_connection_stays_behind_both_ways() {
    let answer = format!("HTTP/1.1 200 OK\r\n{HOP_BY_HOP}Content-Length: 0\r\n\r\n");
    let recording = Recording::answering(answer, "");
    let mut client = recording.told(format!(
        "GET / HTTP/1.1\r\nHost: a\r\n{HOP_BY_HOP}Proxy-Authorization: Basic eA==\r\nHTTP2-Settings: AAA\r\n\r\n"
    ));
    let (message, answer) = (recording.message(), client.raw_head());
    for name in STAY_BEHIND {
        assert_eq!(lines(&message, name), [""; 0], "{message:?}");
        assert_eq!(lines(&answer, name), [""; 0], "{answer:?}");
    }
    for name in ["proxy-authorization", "connection"] {
        assert_eq!(lines(&message, name), [""; 0], "{message:?}");
    }
    assert_eq!((lines(&message, "x-kept"), lines(&answer, "x-kept")), (vec!["3"], vec!["3"]));
    assert_eq!(lines(&answer, "connection"), [""; 0]);
}

#[test]
fn connection_can_not_take_away_what_frames_or_names() {
    // Host is gone once it is named, so that is no request of HTTP/1.1 any more; a length comes from the framing.
    let recording = Recording::start();
    let answer = recording.told("GET / HTTP/1.1\r\nHost: a\r\nConnection: host\r\n\r\n").answer();
    assert_eq!(answer.status, 400);
    let named = "Content-Length: 2\r\nConnection: content-length, x-forwarded-for, via, close";
    let mut client = recording.told(format!("POST / HTTP/1.1\r\nHost: a\r\n{named}\r\n\r\nhi"));
    let message = recording.message();
    assert_eq!(client.answer().status, 200);
    assert_eq!((lines(&message, "content-length"), body(&message)), (vec!["2"], "hi"));
    assert_eq!(
        (lines(&message, "via"), lines(&message, "x-forwarded-for")),
        (vec!["1.1 tollgate"], vec!["127.0.0.1"])
    );
    assert!(client.is_closed());
    let chunked = "Transfer-Encoding: chunked\r\nConnection: transfer-encoding";
    let request = format!("POST / HTTP/1.1\r\nHost: a\r\n{chunked}\r\n\r\n2\r\nhi\r\n0\r\n\r\n");
    assert_eq!(recording.told(request).answer().status, 200);
    assert_eq!(body(&recording.message()), "2\r\nhi\r\n0\r\n\r\n");
}

#[test]
fn te_goes_on_if_it_asks_for_trailers() {
    let recording = Recording::start();
    for (sent, forwarded) in [
        ("TE: trailers\r\nConnection: close", Some("trailers")),
        ("TE: gzip;q=0.5, Trailers", Some("trailers")),
        ("TE: gzip\r\nTE: trailers", Some("trailers")),
        ("TE: gzip, deflate;q=0.5", None),
        ("TE:", None),
        // The form that RFC 9110 requires (section 10.1.4).
        ("TE: trailers\r\nConnection: TE", Some("trailers")),
        ("Connection: close, te\r\nTE: trailers, deflate", Some("trailers")),
        ("TE: gzip\r\nConnection: TE", None),
        ("Connection: TE", None),
    ] {
        recording.told(format!("GET / HTTP/1.1\r\nHost: a\r\n{sent}\r\n\r\n")).head();
        let message = recording.message();
        assert_eq!(lines(&message, "te").first().copied(), forwarded, "{sent:?}: {message:?}");
        assert_eq!(lines(&message, "connection"), forwarded.map_or(vec![], |_| vec!["TE"]), "{message:?}");
    }
}

/// RFC 9110, section 7.6.2.
#[test]
fn max_forwards_is_counted_down_and_ends_at_the_gateway() {
    let recording = Recording::start();
    let request = |method: &str, fields: &str| {
        format!(
            "{method} /a HTTP/1.1\r\nHost: a\r\nX-Mine: 1\r\nCookie: a=b\r\nAuthorization: x\r\n{fields}\r\n\r\n"
        )
    };
    for (method, sent, forwarded) in [
        ("OPTIONS", "Max-Forwards: 1", "0"),
        ("TRACE", "max-forwards: 010", "9"),
        ("OPTIONS", "Max-Forwards: 99999999999999999999999", "4294967294"),
        // What is no number, and other methods, go on as they are.
        ("OPTIONS", "Max-Forwards: -1", "-1"),
        ("OPTIONS", "Max-Forwards:", ""),
        ("GET", "Max-Forwards: 0", "0"),
        ("POST", "Max-Forwards: 5", "5"),
    ] {
        assert_eq!(recording.told(request(method, sent)).answer().status, 200, "{method} {sent}");
        let message = recording.message();
        assert_eq!(lines(&message, "max-forwards"), [forwarded], "{method} {sent}: {message:?}");
    }
    for zero in ["Max-Forwards: 0", "Max-Forwards: 000"] {
        let answer = recording.told(request("OPTIONS", zero)).head();
        assert_eq!((answer.status, answer.header("via")), (204, None));
        let answer = recording.told(request("TRACE", zero)).answer();
        assert_eq!((answer.status, answer.header("content-type")), (200, Some("message/http")));
        let came = format!("TRACE /a HTTP/1.1\r\nhost: a\r\n{}\r\n\r\n", zero.to_ascii_lowercase());
        assert_eq!(answer.text(), came, "no credentials are in it");
    }
    recording.assert_nothing_else();
}

const TRAILERS: &str = "X-Sum: 7\r\nContent-Length: 9\r\nTransfer-Encoding: chunked\r\nHost: evil\r\nConnection: X-Gone\r\n\
    X-Gone: 1\r\nX-Forwarded-For: 10.0.0.1\r\nAuthorization: Basic eA==\r\nX_Sum: 8\r\nX-Unnamed: 1\r\nTrailer: x\r\n";
const NAMED: &str = "Trailer: x-sum, content-length, transfer-encoding\r\nTrailer: Host, connection, x-gone, \
    x-forwarded-for, authorization, x_sum, trailer\r\n";

#[test]
fn trailers_go_on_without_what_would_change_the_head() {
    let recording = Recording::start();
    let head = format!("POST / HTTP/1.1\r\nHost: a\r\n{NAMED}Transfer-Encoding: chunked\r\n\r\n");
    let mut client = recording.told(format!("{head}2\r\nhi\r\n0\r\n{TRAILERS}\r\n"));
    let message = recording.message();
    assert_eq!(body(&message).to_ascii_lowercase(), "2\r\nhi\r\n0\r\nx-sum: 7\r\n\r\n", "{message:?}");
    assert_eq!(lines(&message, "host"), ["a"]);
    assert_eq!(client.answer().status, 200);
}

/// A server may add them to the header, where a key or a tenant would be another than the one that was counted or set.
#[test]
fn trailers_of_fields_that_routes_and_limits_know_are_dropped() {
    let recording = Recording::with(
        "[limits.keyed]\nkey = \"header:x-key\"\nrate = \"9/s\"\ncost = \"header:x-cost\"\n\
         [[routes]]\npath = \"/elsewhere\"\nupstream = \"api\"\nlimits = [\"keyed\"]\n\
         headers = { x-plan = \"free\" }\n\
         request_headers = { set = { x-tenant = \"a\" }, remove = [\"x-admin\"] }\n",
    );
    let names = ["x-key", "x-cost", "x-plan", "x-tenant", "x-admin", "x-sum"];
    let trailers: String = names.map(|name| format!("{name}: 7\r\n")).concat();
    let announced = names.join(", ");
    let mut client = recording.told(format!(
        "POST / HTTP/1.1\r\nHost: a\r\nTrailer: {announced}\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n{trailers}\r\n"
    ));
    assert_eq!(body(&recording.message()).to_ascii_lowercase(), "2\r\nhi\r\n0\r\nx-sum: 7\r\n\r\n");
    assert_eq!(client.answer().status, 200);
}

#[test]
fn trailers_that_are_not_announced_or_not_framed_are_dropped() {
    let recording = Recording::start();
    let chunked = "Transfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\nX-Sum: 7\r\n\r\n";
    recording.told(format!("POST / HTTP/1.1\r\nHost: a\r\n{chunked}")).head();
    assert_eq!(body(&recording.message()), "2\r\nhi\r\n0\r\n\r\n");
}

#[test]
fn trailers_of_an_answer_go_to_clients_who_take_them() {
    let answer = format!(
        "HTTP/1.1 200 OK\r\n{}Transfer-Encoding: chunked\r\n\r\n2\r\nup\r\n0\r\n{}Set-Cookie: a=b\r\n\r\n",
        NAMED.replace("x_sum", "set-cookie"),
        TRAILERS.replace("X-Forwarded-For: 10.0.0.1\r\nAuthorization: Basic eA==\r\n", "")
    );
    let recording = Recording::answering(answer, "");
    for (asks, trailers) in [("TE: trailers\r\n", "x-sum: 7\r\n"), ("", ""), ("TE: gzip\r\n", "")] {
        let request = format!("GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n{asks}\r\n");
        let mut client = recording.told(request);
        assert_eq!(lines(&client.raw_head(), "transfer-encoding"), ["chunked"]);
        let rest = String::from_utf8(client.rest()).unwrap().to_ascii_lowercase();
        assert_eq!(rest, format!("2\r\nup\r\n0\r\n{trailers}\r\n"), "{asks:?}");
    }
}

#[test]
fn names_keep_their_case_and_lines_their_order_both_ways() {
    let answer = "HTTP/1.1 299 So So\r\nX-CamelCase: 1\r\nx-lower: 2\r\nX-UPPER: 3\r\nX-camelcase: 4\r\n\
        ETag: \"a\"\r\nWWW-Authenticate: Basic\r\ncontent-LENGTH: 0\r\n\r\n";
    let recording = Recording::answering(answer, "");
    let mut client = recording.told(
        "GET / HTTP/1.1\r\nhOST: a\r\nX-CamelCase: 1\r\nx-lower: 2\r\nX-UPPER: 3\r\nX-camelcase: 4\r\n\
         SOAPAction: \"x\"\r\nVIA: 1.0 b\r\n\r\n",
    );
    let (message, answer) = (recording.message(), client.raw_head());
    for line in ["hOST: a", "x-lower: 2", "X-UPPER: 3", "SOAPAction: \"x\"", "VIA: 1.0 b, 1.1 tollgate"] {
        assert!(message.contains(&format!("\r\n{line}\r\n")), "{line}: {message:?}");
    }
    assert!(answer.starts_with("HTTP/1.1 299 So So\r\n"), "{answer:?}");
    for line in ["x-lower: 2", "X-UPPER: 3", "ETag: \"a\"", "WWW-Authenticate: Basic", "content-LENGTH: 0"] {
        assert!(answer.contains(&format!("\r\n{line}\r\n")), "{line}: {answer:?}");
    }
    for message in [message, answer] {
        assert_eq!(lines(&message, "x-camelcase"), ["1", "4"], "{message:?}");
        let [first, second] =
            ["X-CamelCase: 1", "X-camelcase: 4"].map(|line| message.find(line).expect(line));
        assert!(first < second, "{message:?}");
    }
}

/// A kept connection that closes under a request, which is sent again from a copy.
#[test]
fn a_request_that_is_sent_again_is_the_same() {
    let (seen, messages) = mpsc::channel();
    let upstream = WireUpstream::start(move |mut wire| {
        let mut answered = 0;
        while let Some(message) = wire.message() {
            seen.send(message).unwrap();
            if wire.number == 0 && answered == 1 {
                return;
            }
            wire.send(FINE.as_bytes());
            answered += 1;
        }
    });
    let gateway =
        Gateway::start(&format!("[server]\nworkers = 1\n{}", forward_to(&[quoted(upstream.url())], "")));
    let mut client = gateway.client();
    for _ in 0..2 {
        client.send(b"GET /a%2F?b HTTP/1.1\r\nhOST: a\r\nX-CamelCase: 1\r\nX-camelcase: 2\r\n\r\n");
        assert_eq!(client.answer().status, 200);
    }
    let [_, lost, again] = [(); 3].map(|()| messages.recv_timeout(PATIENCE).unwrap());
    assert!(lost.contains("\r\nX-CamelCase: 1\r\nX-camelcase: 2\r\n"), "{lost:?}");
    assert_eq!(again, lost);
}

#[test]
fn values_go_on_byte_for_byte() {
    // Requests with FF are refused.
    let odd = b"X-Odd: a\tb  c;\"d\\\", \xe9\xfe\x80 \xf0\x9f\xa6\x80";
    let answer = [b"HTTP/1.1 200 OK\r\n", &odd[..], b"\r\nContent-Length: 0\r\n\r\n"].concat();
    let (seen, messages) = mpsc::channel();
    let upstream = WireUpstream::start(move |mut wire| {
        while let Some(message) = wire.message() {
            seen.send(message).unwrap();
            wire.send(&answer);
        }
    });
    let gateway = Gateway::start(&forward_to(&[quoted(upstream.url())], ""));
    let mut client = gateway.client();
    client.send(&[b"GET / HTTP/1.1\r\nHost: a\r\n", &odd[..], b" \t\r\nX-Empty:\r\n\r\n"].concat());
    let odd: String = odd.iter().copied().map(char::from).collect();
    let message = messages.recv_timeout(PATIENCE).unwrap();
    assert!(message.contains(&format!("\r\n{odd}\r\n")), "{message:?}");
    assert_eq!(lines(&message, "x-empty"), [""]);
    assert!(client.raw_head().contains(&format!("\r\n{odd}\r\n")));
}

/// Targets, and the targets that are forwarded.
pub(super) const PATHS: [(&str, &str); 7] = [
    ("/%7Ea%2fb%2Fc%41?x=%2f&&y=a+b&z", "/%7Ea%2fb%2Fc%41?x=%2f&&y=a+b&z"),
    ("/caf\u{e9}/\u{1f980}?q=\u{e9}", "/caf\u{e9}/\u{1f980}?q=\u{e9}"),
    ("/a;b=c/:@!$&'()*,d|^{}\"", "/a;b=c/:@!$&'()*,d|^{}\""),
    ("/a?b#c", "/a?b"),
    ("/a#b?c", "/a"),
    ("/a%23b", "/a%23b"),
    ("/a/./b/../c//", "/a/c//"),
];

#[test]
fn a_path_goes_on_as_it_came_and_a_fragment_stays_behind() {
    let recording = Recording::start();
    for (sent, forwarded) in PATHS {
        let status = recording.told(format!("GET {sent} HTTP/1.1\r\nHost: a\r\n\r\n")).head().status;
        assert_eq!(status, 200, "{sent}");
        let message: Vec<u8> = recording.message().chars().map(|byte| byte as u8).collect();
        let line = format!("GET {forwarded} HTTP/1.1\r\n");
        assert!(message.starts_with(line.as_bytes()), "{sent}: {:?}", String::from_utf8_lossy(&message));
    }
    // Bytes that are no UTF-8 make no target.
    assert_eq!(recording.told(b"GET /\xe9 HTTP/1.1\r\nHost: a\r\n\r\n").head().status, 400);
    recording.assert_nothing_else();
}

#[test]
fn a_stranger_says_nothing_on_behalf_of_others() {
    const CLAIMS: &str = "GET / HTTP/1.1\r\nHost: a\r\nX-Forwarded-For: 10.0.0.1\r\nX-Forwarded-For: 10.0.0.2\r\n\
        X-Forwarded-Proto: https\r\nX-Forwarded-Host: evil\r\nX-Forwarded-Prefix: /admin\r\nX-Real-IP: 10.0.0.1\r\n\
        Forwarded: for=10.0.0.1\r\nX_Forwarded_For: 10.0.0.1\r\nX-Forwarded_For: 10.0.0.1\r\nX-Request-Id: mine\r\n\
        X-Original-URL: /admin\r\nX-Original-URI: /admin\r\nX-Original-Host: b\r\nX-Rewrite-URL: /admin\r\n\
        X-Envoy-Original-Path: /admin\r\nX-Script-Name: /admin\r\nX-Vhm-Root: /admin\r\nX-Vhm-Host: http://b\r\n\
        Cgi-Authorization: Bearer k1\r\nXAuthorization: Bearer k1\r\nProxy: http://10.0.0.1\r\nX-Key-: k1\r\n\
        Via: 1.0 b\r\nVia: 2 c\r\n\r\n";
    let stranger = Recording::start();
    stranger.told(CLAIMS).head();
    let message = stranger.message();
    for (name, expected) in [
        ("x-forwarded-for", &["127.0.0.1"][..]),
        ("x-forwarded-proto", &["http"]),
        ("x-forwarded-host", &["a"]),
        ("x-forwarded-prefix", &[]),
        ("x-real-ip", &[]),
        ("forwarded", &[]),
        ("x_forwarded_for", &[]),
        ("x-forwarded_for", &[]),
        ("x-original-url", &[]),
        ("x-original-uri", &[]),
        ("x-original-host", &[]),
        ("x-rewrite-url", &[]),
        ("x-envoy-original-path", &[]),
        ("x-script-name", &[]),
        ("x-vhm-root", &[]),
        ("x-vhm-host", &[]),
        ("cgi-authorization", &[]),
        ("xauthorization", &[]),
        ("proxy", &[]),
        ("x-key-", &[]),
        ("via", &["1.0 b, 2 c, 1.1 tollgate"]),
    ] {
        assert_eq!(lines(&message, name), expected, "{message:?}");
    }
    assert!(!message.contains("mine"), "{message:?}");

    let proxied = Recording::with("[server]\ntrusted_proxies = [\"127.0.0.1\"]");
    proxied.told(CLAIMS).head();
    let message = proxied.message();
    for (name, expected) in [
        ("x-forwarded-for", &["10.0.0.1, 10.0.0.2, 127.0.0.1"][..]),
        ("x-forwarded-proto", &["https"]),
        ("x-forwarded-host", &["evil"]),
        ("forwarded", &["for=10.0.0.1"]),
        ("x_forwarded_for", &[]),
        ("x-original-url", &["/admin"]),
        ("proxy", &[]),
        ("x-key-", &[]),
        ("x-request-id", &["mine"]),
    ] {
        assert_eq!(lines(&message, name), expected, "{message:?}");
    }
}

#[test]
fn a_name_of_an_exchange_is_taken_over_if_it_is_safe_in_a_log() {
    let proxied = Recording::with("[server]\ntrusted_proxies = [\"127.0.0.1\"]");
    let id = |fields: &str| {
        proxied.told(format!("GET / HTTP/1.1\r\nHost: a\r\n{fields}\r\n")).head();
        let message = proxied.message();
        let [id] = lines(&message, "x-request-id")[..] else { panic!("{message:?}") };
        id.to_owned()
    };
    assert_eq!(id("X-Request-Id: Root=1-6789:ab/c+d\r\n"), "Root=1-6789:ab/c+d");
    let long = format!("X-Request-Id: {}\r\n", "x".repeat(129));
    for unsafe_id in [
        "",
        "X-Request-Id:\r\n",
        "X-Request-Id: a b\r\n",
        "X-Request-Id: a\" evil=\"b\r\n",
        "X-Request-Id: a\\nb\r\n",
        "X-Request-Id: \u{9b}31m\u{e9}\r\n",
        "X-Request-Id: a\r\nX-Request-Id: b\r\n",
        &long,
    ] {
        let made = id(unsafe_id);
        assert!(
            made.len() == 32 && made.bytes().all(|byte| byte.is_ascii_hexdigit()),
            "{unsafe_id:?}: {made}"
        );
    }
}

/// In the lines that are written of requests, and in what upstreams are told (RFC 9110, section 5.5).
#[test]
fn nobody_writes_lines_of_their_own_into_the_log() {
    let log = tempfile::NamedTempFile::new().unwrap();
    for format in ["combined", "json"] {
        fs::write(log.path(), "").unwrap();
        let recording = Recording::answering(
            FINE,
            &format!("[access_log]\npath = {:?}\nformat = \"{format}\"\n", log.path()),
        );
        let request = "GET /a%0d%0a127.0.0.1%20forged\u{85}?\u{2028}=1 HTTP/1.1\r\nHost: a\r\n\
            User-Agent: \" forged \\\" \u{9b}2J\u{2028}\r\nReferer: \"\t\\\"\r\n\r\n";
        assert_eq!(recording.told(request).head().status, 200);
        let text = || fs::read_to_string(log.path()).unwrap();
        wait_until("the line is written", || text().ends_with('\n'));
        let text = text();
        assert_eq!(text.lines().count(), 1, "{text:?}");
        assert!(!text.trim_end().chars().any(char::is_control), "{text:?}");
        if format == "json" {
            let line: serde_json::Value = serde_json::from_str(&text).unwrap();
            assert!(line["user_agent"].as_str().unwrap().starts_with("\" forged \\\" "), "{text}");
        } else {
            assert!(!text.contains(" forged \\\" ") && text.contains("\\x22 forged \\x5C\\x22"), "{text}");
        }
    }
}
