//! The end of a request is END_STREAM, which must agree with a length. Nothing within frames becomes another request to an
//! HTTP/1.1 upstream (RFC 9113, sections 8.1.1 and 10.3).

use super::{
    super::{body, lines},
    Recording, request, send,
};
use crate::harness::frames::{DATA, END_HEADERS, END_STREAM, End, HEADERS, PADDED, PROTOCOL_ERROR, fields};

const SMUGGLED: &str = "0\r\n\r\nGET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n";

#[test]
fn a_length_is_a_number_that_the_data_agree_with() {
    let recording = Recording::start();
    let post = |length: &[&'static str]| {
        request("POST", &length.iter().map(|length| ("content-length", *length)).collect::<Vec<_>>())
    };
    for length in ["+3", "-3", "3,3", "3, 3", "0x3", "3 ", " 3", "3;", "18446744073709551616", "x"] {
        recording.assert_malformed(&post(&[length]), &["abc"]);
    }
    for pair in [["3", "4"], ["4", "3"], ["3", "x"], ["0", "3"]] {
        recording.assert_malformed(&post(&pair), &["abc"]);
    }
    for (length, pieces) in [("3", &[][..]), ("3", &[""]), ("3", &["ab"]), ("3", &["a", "b"]), ("", &["abc"])]
    {
        recording.assert_malformed(&post(&[length]), pieces);
    }
    for (length, pieces) in [("3", &["abcd"][..]), ("3", &["ab", "cd"]), ("3", &[SMUGGLED])] {
        recording.assert_malformed(&post(&[length]), pieces);
    }
    recording.assert_nothing_else();
}

/// A server whose lengths are signed would take it for a negative one.
#[test]
fn a_length_from_2_to_the_63_on_is_too_large() {
    let recording = Recording::start();
    for length in ["9223372036854775808", "9999999999999999999"] {
        let mut client = recording.frames();
        client.send(HEADERS, END_HEADERS, 1, &fields(&request("POST", &[("content-length", length)])));
        let told = client.told(1);
        assert_eq!((told.status, told.code().as_str()), (413, "body-too-large"), "{length}");
    }
    recording.assert_nothing_else();
}

#[test]
fn no_data_go_on_where_the_length_says_that_there_are_none() {
    let recording = Recording::start();
    recording.assert_malformed(&request("POST", &[("content-length", "0")]), &["a"]);
    assert_eq!(recording.gateway.get("/the-only-one").status, 200);
    let mut message = recording.message();
    // It may have gone on before the data came: all of it, as far as was known.
    if message.starts_with("POST ") {
        assert_eq!((lines(&message, "content-length"), body(&message)), (vec!["0"], ""));
        message = recording.message();
    }
    assert!(message.starts_with("GET /the-only-one HTTP/1.1\r\n"), "{message:?}");
}

#[test]
fn what_goes_on_has_one_length_or_chunks() {
    let recording = Recording::start();
    for (method, lengths, pieces, forwarded) in [
        ("POST", &["3"][..], &["abc"][..], Some("3")),
        ("POST", &["3"], &["a", "", "bc", ""], Some("3")),
        ("GET", &["3"], &["abc"], Some("3")),
        // The same on two lines is one, and what is none is found by the frames.
        ("POST", &["3", "3"], &["abc"], Some("3")),
        ("POST", &["3", "03"], &["abc"], Some("3")),
        ("POST", &["0", "0"], &[], Some("0")),
        ("POST", &[""], &[], None),
        ("GET", &[""], &[], None),
        ("POST", &[], &[], None),
        ("GET", &[], &[], None),
    ] {
        let told = recording.asked(&with_lengths(method, lengths), pieces);
        assert_eq!((told.status, told.end), (200, End::Whole), "{lengths:?} {pieces:?}");
        let message = recording.message();
        let forwarded: Vec<_> = forwarded.into_iter().collect();
        assert_eq!(lines(&message, "content-length"), forwarded, "{method} {lengths:?}: {message:?}");
        assert_eq!(lines(&message, "transfer-encoding"), [""; 0], "{message:?}");
        assert_eq!(body(&message), pieces.concat(), "{message:?}");
    }
    for method in ["POST", "GET", "DELETE"] {
        let told = recording.asked(&request(method, &[]), &["ab", "", "c", ""]);
        assert_eq!((told.status, told.end), (200, End::Whole), "{method}");
        let message = recording.message();
        assert_eq!(lines(&message, "transfer-encoding"), ["chunked"], "{message:?}");
        assert_eq!(lines(&message, "content-length"), [""; 0], "{message:?}");
        assert_eq!(body(&message).replace("2\r\nab\r\n1\r\nc\r\n", "3\r\nabc\r\n"), "3\r\nabc\r\n0\r\n\r\n");
    }
}

fn with_lengths(method: &'static str, lengths: &[&'static str]) -> Vec<(&'static str, &'static str)> {
    request(method, &lengths.iter().map(|length| ("content-length", *length)).collect::<Vec<_>>())
}

#[test]
fn what_is_in_data_is_no_other_request() {
    let recording = Recording::with("[server]\nworkers = 1");
    for method in ["POST", "GET", "OPTIONS"] {
        assert_eq!(recording.asked(&request(method, &[]), &[SMUGGLED]).status, 200);
        let message = recording.message();
        let chunk = format!("{:x}\r\n{SMUGGLED}\r\n0\r\n\r\n", SMUGGLED.len());
        assert_eq!(body(&message), chunk, "{method}");
        let length = SMUGGLED.len().to_string();
        assert_eq!(
            recording.asked(&request(method, &[("content-length", &length)]), &[SMUGGLED]).status,
            200
        );
        assert_eq!(body(&recording.message()), SMUGGLED, "{method}");
    }
    recording.assert_nothing_else();
}

#[test]
fn what_pads_a_frame_stays_behind() {
    let recording = Recording::start();
    let padding = SMUGGLED.as_bytes();
    let padded = |payload: &[u8]| [&[padding.len() as u8], payload, padding].concat();
    let mut client = recording.frames();
    client.send(HEADERS, END_HEADERS | PADDED, 1, &padded(&fields(&request("POST", &[]))));
    client.send(DATA, PADDED, 1, &padded(b"abc"));
    client.send(DATA, PADDED, 1, &padded(b""));
    client.send(DATA, PADDED | END_STREAM, 1, &padded(b""));
    assert_eq!(client.told(1).status, 200);
    assert_eq!(body(&recording.message()), "3\r\nabc\r\n0\r\n\r\n");
    recording.assert_nothing_else();
}

/// Other streams aren't affected by a request that is malformed, or continues after its end.
#[test]
fn a_stream_ends_once() {
    let recording = Recording::start();
    let mut client = recording.frames();
    send(&mut client, 1, &request("POST", &[("content-length", "1")]), &["abc"]);
    assert_eq!(client.told(1).end, End::Reset(PROTOCOL_ERROR));
    send(&mut client, 3, &request("POST", &[]), &["abc"]);
    assert_eq!(client.told(3).status, 200);
    assert_eq!(body(&recording.message()), "3\r\nabc\r\n0\r\n\r\n");
    client.send(DATA, END_STREAM, 3, SMUGGLED.as_bytes());
    // STREAM_CLOSED, of the stream or the connection; or the gateway has forgotten that there was one.
    send(&mut client, 5, &request("GET", &[]), &[]);
    client.told(5);
    while let Ok(message) = recording.messages.try_recv() {
        assert!(message.starts_with("GET /first HTTP/1.1\r\n"), "{message:?}");
    }
    recording.assert_nothing_else();
}

/// They should be malformed (RFC 9113, section 8.1), but h2 omits them without an error. They aren't forwarded.
#[test]
fn pseudo_header_fields_in_trailers_are_dropped() {
    let recording = Recording::start();
    let trailers = fields(&[(":path", "/smuggled"), (":status", "500"), ("x-t", "1")]);
    let mut client = recording.frames();
    client.send(HEADERS, END_HEADERS, 1, &fields(&request("POST", &[("trailer", "x-t")])));
    client.send(DATA, 0, 1, b"abc");
    client.send(HEADERS, END_HEADERS | END_STREAM, 1, &trailers);
    assert_eq!(client.told(1).status, 200);
    let message = recording.message();
    assert!(message.starts_with("POST /first HTTP/1.1\r\n"), "{message:?}");
    assert_eq!(body(&message), "3\r\nabc\r\n0\r\nx-t: 1\r\n\r\n");
    recording.assert_nothing_else();
}

#[test]
fn fields_that_would_frame_or_split_a_message_are_malformed() {
    let recording = Recording::start();
    for field in [
        ("transfer-encoding", "chunked"),
        ("transfer-encoding", ""),
        ("connection", "close"),
        ("connection", "x"),
        ("keep-alive", "timeout=5"),
        ("proxy-connection", "close"),
        ("upgrade", "h2c"),
        ("te", "gzip"),
        ("te", "trailers, gzip"),
        ("te", ""),
        ("x", "a\r\ntransfer-encoding: chunked"),
        ("x", "a\r\n\r\nGET /smuggled HTTP/1.1\r\nhost: a"),
        ("x", "a\rb"),
        ("x", "a\nb"),
        ("x", "a\0b"),
        ("x", "\u{7f}"),
        ("x\r\ny", "a"),
        ("x: y\r\nz", "a"),
        ("x:", "a"),
        ("x y", "a"),
        ("x ", "a"),
        ("x\t", "a"),
        ("x\0", "a"),
        ("x\u{e9}", "a"),
        ("X", "a"),
        ("Transfer-Encoding", "chunked"),
        ("Content-Length", "3"),
        ("", "a"),
    ] {
        recording.assert_malformed(&request("POST", &[field]), &["abc"]);
    }
    recording.assert_nothing_else();
}
