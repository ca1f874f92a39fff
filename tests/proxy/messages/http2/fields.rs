//! Header fields: some are removed, the others are forwarded unchanged.

use super::{
    super::{body, fields::PATHS, lines},
    Field, Recording, replaced, request,
};
use crate::harness::frames::{DATA, END_HEADERS, END_STREAM, End, HEADERS, PROTOCOL_ERROR, fields};

#[test]
fn what_is_for_the_gateway_alone_or_could_be_read_as_another_name_stays_behind() {
    let recording = Recording::start();
    let asked = recording.asked(
        &request(
            "GET",
            &[
                ("proxy-authorization", "Basic eA=="),
                ("proxy-authenticate", "Basic"),
                ("x_forwarded_for", "10.0.0.1"),
                ("content_length", "3"),
                ("transfer_encoding", "chunked"),
                ("expect", "100-continue"),
                ("x-kept", "3"),
            ],
        ),
        &[],
    );
    assert_eq!(asked.status, 200);
    let message = recording.message();
    for word in ["proxy-", "_", "expect", "basic", "chunked"] {
        assert!(!message.to_ascii_lowercase().contains(word), "{word}: {message:?}");
    }
    assert_eq!(lines(&message, "x-kept"), ["3"]);
    assert_eq!(lines(&message, "connection"), [""; 0]);
}

#[test]
fn te_goes_on_if_it_asks_for_trailers() {
    let recording = Recording::start();
    for (sent, te, connection) in
        [(&[("te", "trailers")][..], &["trailers"][..], &["TE"][..]), (&[], &[], &[])]
    {
        recording.asked(&request("GET", sent), &[]);
        let message = recording.message();
        assert_eq!(
            (lines(&message, "te"), lines(&message, "connection")),
            (te.to_vec(), connection.to_vec())
        );
    }
}

#[test]
fn lines_keep_their_order_and_crumbs_are_one_cookie() {
    let recording = Recording::start();
    let odd = "a\tb  c;\"d\\\", caf\u{e9} \u{1f980}";
    let sent = [
        ("x-twice", "1"),
        ("cookie", "a=1"),
        ("x-odd", odd),
        ("x-twice", "2, 3"),
        ("cookie", "b=2; c=3"),
        ("x-empty", ""),
        ("x-twice", "1"),
        ("cookie", "d=\"4\""),
    ];
    recording.asked(&request("GET", &sent), &[]);
    let message = recording.message();
    assert_eq!(lines(&message, "x-twice"), ["1", "2, 3", "1"], "{message:?}");
    assert_eq!(lines(&message, "cookie"), ["a=1; b=2; c=3; d=\"4\""], "{message:?}");
    assert_eq!(lines(&message, "x-empty"), [""]);
    let odd: String = odd.bytes().map(char::from).collect();
    assert!(message.contains(&format!("\r\nx-odd: {odd}\r\n")), "{message:?}");
    // One crumb is left as it is.
    recording.asked(&request("GET", &[("cookie", "a=1;b=2")]), &[]);
    assert_eq!(lines(&recording.message(), "cookie"), ["a=1;b=2"]);
}

#[test]
fn a_path_goes_on_as_it_came() {
    let recording = Recording::start();
    let more = [
        ("/a?", "/a?"),
        ("/a?b?c=/../d", "/a?b?c=/../d"),
        ("/a/%2E%2e/b", "/b"),
        ("?a", "/?a"),
        ("//b/c", "//b/c"),
        ("/http://b/", "/http://b/"),
    ];
    for (sent, forwarded) in PATHS.into_iter().chain(more) {
        let told = recording.asked(&replaced(&request("GET", &[]), ":path", Some(sent)), &[]);
        assert_eq!(told.status, 200, "{sent}");
        let message: Vec<u8> = recording.message().chars().map(|byte| byte as u8).collect();
        let line = format!("GET {forwarded} HTTP/1.1\r\n");
        assert!(message.starts_with(line.as_bytes()), "{sent}: {:?}", String::from_utf8_lossy(&message));
    }
}

const CLAIMS: [Field<'_>; 10] = [
    ("x-forwarded-for", "10.0.0.1"),
    ("x-forwarded-for", "10.0.0.2"),
    ("x-forwarded-proto", "https"),
    ("x-forwarded-host", "evil"),
    ("x-forwarded-prefix", "/admin"),
    ("x-real-ip", "10.0.0.1"),
    ("forwarded", "for=10.0.0.1"),
    ("x-request-id", "mine"),
    ("via", "1.0 b"),
    ("via", "2 c"),
];

#[test]
fn a_stranger_says_nothing_on_behalf_of_others() {
    let trusted = "[server]\ntrusted_proxies = [\"127.0.0.1\"]";
    for (toml, expected) in [
        ("", [&["127.0.0.1"][..], &["http"], &["a"], &[], &[], &[], &["1.0 b, 2 c, 2.0 tollgate"]]),
        (
            trusted,
            [
                &["10.0.0.1, 10.0.0.2, 127.0.0.1"],
                &["https"],
                &["evil"],
                &["/admin"],
                &["10.0.0.1"],
                &["for=10.0.0.1"],
                &["1.0 b, 2 c, 2.0 tollgate"],
            ],
        ),
    ] {
        let recording = Recording::with(toml);
        recording.asked(&request("GET", &CLAIMS), &[]);
        let message = recording.message();
        let names = [
            "x-forwarded-for",
            "x-forwarded-proto",
            "x-forwarded-host",
            "x-forwarded-prefix",
            "x-real-ip",
            "forwarded",
            "via",
        ];
        for (name, expected) in names.into_iter().zip(expected) {
            assert_eq!(lines(&message, name), expected, "{name}: {message:?}");
        }
        let [id] = lines(&message, "x-request-id")[..] else { panic!("{message:?}") };
        assert_eq!(id == "mine", toml == trusted, "{id}");
        assert!(id == "mine" || id.len() == 32, "{id}");
    }
}

const TRAILERS: [Field<'_>; 9] = [
    ("x-sum", "7"),
    ("content-length", "9"),
    ("host", "evil"),
    ("cookie", "a=b"),
    ("authorization", "Basic eA=="),
    ("x-forwarded-for", "10.0.0.1"),
    ("x_sum", "8"),
    ("trailer", "x"),
    ("x-unnamed", "1"),
];

/// Sends a request with trailers.
fn with_trailers(recording: &Recording, head: &[Field<'_>], trailers: &[Field<'_>]) -> End {
    let mut client = recording.frames();
    client.send(HEADERS, END_HEADERS, 1, &fields(&request("POST", head)));
    client.send(DATA, 0, 1, b"hi");
    client.send(HEADERS, END_HEADERS | END_STREAM, 1, &fields(trailers));
    let told = client.told(1);
    assert!(told.status == 200 || told.end != End::Whole, "{told:?}");
    told.end
}

#[test]
fn trailers_that_are_announced_go_on_without_what_would_change_the_head() {
    let recording = Recording::start();
    let named = "x-sum, content-length, host, cookie, authorization, x-forwarded-for, x_sum, trailer";
    for (head, forwarded) in [
        (&[("trailer", named)][..], "2\r\nhi\r\n0\r\nx-sum: 7\r\n\r\n"),
        (&[("trailer", "host"), ("trailer", "x-sum")], "2\r\nhi\r\n0\r\nx-sum: 7\r\n\r\n"),
        (&[], "2\r\nhi\r\n0\r\n\r\n"),
        // A length leaves no place for them.
        (&[("trailer", named), ("content-length", "2")], "hi"),
    ] {
        assert_eq!(with_trailers(&recording, head, &TRAILERS), End::Whole);
        let message = recording.message();
        assert_eq!((body(&message), lines(&message, "host")), (forwarded, vec!["a"]), "{head:?}");
    }
    recording.assert_nothing_else();
}

#[test]
fn trailers_that_are_malformed_end_nothing() {
    let recording = Recording::start();
    for trailer in [
        ("connection", "x"),
        ("transfer-encoding", "chunked"),
        ("upgrade", "h2c"),
        ("te", "gzip"),
        ("x", "a\r\n\r\nGET /smuggled HTTP/1.1\r\nhost: a"),
        ("X-Sum", "7"),
    ] {
        let end = with_trailers(&recording, &[("trailer", "x, x-sum")], &[trailer]);
        assert!(matches!(end, End::Reset(PROTOCOL_ERROR) | End::Gone(Some(PROTOCOL_ERROR))), "{end:?}");
    }
    // What isn't the end, or not all of a length, isn't either.
    let mut client = recording.frames();
    client.send(HEADERS, END_HEADERS, 1, &fields(&request("POST", &[("trailer", "x-sum")])));
    client.send(HEADERS, END_HEADERS, 1, &fields(&[("x-sum", "7")]));
    assert_eq!(client.told(1).end, End::Reset(PROTOCOL_ERROR));
    let end = with_trailers(&recording, &[("content-length", "3")], &[("x-sum", "7")]);
    assert_eq!(end, End::Reset(PROTOCOL_ERROR));
    recording.assert_nothing_else();
}
