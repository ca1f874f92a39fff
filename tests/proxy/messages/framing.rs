//! The end of a request: a message that two servers might read differently reaches the upstream in one framing, or not at all
//! (RFC 9112, section 6.3). Bytes after a rejected request are never read as another one.

use super::{Recording, body, lines};

const NEXT: &str = "GET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n";

/// How the gateway answers a request, with another one sent behind it: the status, and that it hangs up then.
fn refused(recording: &Recording, request: &str) -> u16 {
    let mut client = recording.told(format!("{request}{NEXT}"));
    let status = client.answer().status;
    assert_eq!(String::from_utf8_lossy(&client.rest()), "", "more is answered: {request:?}");
    status
}

fn post(fields: &str, body: &str) -> String {
    format!("POST /first HTTP/1.1\r\nHost: a\r\n{fields}\r\n\r\n{body}")
}

#[test]
fn no_length_but_a_plain_number_is_one() {
    let recording = Recording::start();
    for length in [
        "+1",
        "-1",
        "1,1",
        "1, 2",
        "0x1",
        "1 1",
        "1;",
        "1.0",
        "",
        "\u{661}",
        "9223372036854775808",
        "18446744073709551616",
        "1\u{b}",
    ] {
        assert_eq!(refused(&recording, &post(&format!("Content-Length: {length}"), "x")), 400, "{length:?}");
    }
    for pair in [["1", "2"], ["1", "x"], ["1", "+1"], ["0", "1"]] {
        let lines = pair.map(|length| format!("Content-Length: {length}")).join("\r\n");
        assert_eq!(refused(&recording, &post(&lines, "x")), 400, "{pair:?}");
    }
    // Chunks say where the body ends, but who knows what else they are up to who say this.
    for (length, chunked) in [("+1", "chunked"), ("1\r\nContent-Length: 2", "gzip, chunked")] {
        let (length, coding) = (format!("Content-Length: {length}"), format!("Transfer-Encoding: {chunked}"));
        for fields in
            [[&length, &coding], [&coding, &length]].map(|fields| fields.map(String::as_str).join("\r\n"))
        {
            assert_eq!(refused(&recording, &post(&fields, "0\r\n\r\n")), 400, "{fields:?}");
        }
    }
    recording.assert_nothing_else();
}

#[test]
fn a_length_that_is_told_twice_alike_goes_on_once() {
    let recording = Recording::start();
    for lines_sent in [
        "Content-Length: 1\r\nContent-Length: 1",
        "content-length:1\r\nContent-Length: \t1 ",
        "Content-Length: 1\r\nContent-Length: 01",
    ] {
        let mut client = recording.told(format!("{}{NEXT}", post(lines_sent, "x")));
        let first = recording.message();
        assert_eq!((lines(&first, "content-length"), body(&first)), (vec!["1"], "x"));
        assert!(recording.message().starts_with("GET /smuggled "), "it was the next request all along");
        assert_eq!([client.answer().status, client.answer().status], [200, 200]);
    }
}

/// Zeros in front are read as octal by some, and a number of any length isn't read by all.
#[test]
fn a_length_is_written_anew() {
    let recording = Recording::start();
    for (sent, length, content) in [
        ("1", "1", "x"),
        ("01", "1", "x"),
        ("0000000000000000000000000000000000010", "10", "0123456789"),
        ("00", "0", ""),
    ] {
        let request = post(&format!("Content-Length: {sent}"), content);
        let mut client = recording.told(format!("{request}{NEXT}"));
        let message = recording.message();
        assert_eq!((lines(&message, "content-length"), body(&message)), (vec![length], content), "{sent}");
        assert!(recording.message().starts_with("GET /smuggled "), "it was the next request all along");
        assert_eq!([client.answer().status, client.answer().status], [200, 200]);
    }
}

#[test]
fn no_coding_but_chunked_is_taken() {
    let recording = Recording::start();
    const EMPTY: &str = "0\r\n\r\n";
    for coding in [
        "gzip",
        "identity",
        "xchunked",
        "chunkedx",
        "\u{b}chunked",
        "\u{c}chunked",
        "chunked\u{b}",
        "\"chunked\"",
        "chunked;q=1",
        "chunked, gzip",
        "chunked,",
        "chunked, identity",
        "'chunked'",
        "chun ked",
        "",
        // A coding twice, or another one before it, which nobody undoes.
        "chunked, chunked",
        "chunked,chunked",
        "gzip, chunked",
        "identity, chunked",
        ", chunked",
        "chunked, , chunked",
    ] {
        let status = refused(&recording, &post(&format!("Transfer-Encoding: {coding}"), EMPTY));
        assert_eq!(status, 400, "{coding:?}");
    }
    for fields in [
        "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity",
        "Transfer-Encoding: identity\r\nTransfer-Encoding: chunked",
        "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked",
        "Transfer-Encoding: chunked\r\nX: y\r\ntransfer-encoding: chunked",
        "Transfer-Encoding:\r\nTransfer-Encoding: chunked",
        "Transfer-Encoding : chunked",
        " Transfer-Encoding: chunked",
        "X: y\r\n Transfer-Encoding: chunked",
        "Transfer-Encoding:\r\n chunked",
        "Transfer-Encoding: chunked\r\n x",
        "Transfer\u{0}-Encoding: chunked",
        "Transfer-Encoding: chunked\u{0}",
        "X: y\rTransfer-Encoding: chunked",
        "Transfer-Encoding",
        ": chunked",
    ] {
        assert_eq!(refused(&recording, &post(fields, EMPTY)), 400, "{fields:?}");
    }
    let old = "POST /first HTTP/1.0\r\nHost: a\r\nConnection: keep-alive\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n";
    assert_eq!(refused(&recording, old), 400);
    recording.assert_nothing_else();
}

/// Chunks are decoded and encoded again: the upstream gets one coding, and no length.
#[test]
fn what_is_chunked_is_framed_anew() {
    let recording = Recording::start();
    for fields in [
        "Transfer-Encoding: chunked",
        "transfer-encoding:cHuNkEd",
        "Transfer-Encoding: \t chunked \t",
        "Content-Length: 3\r\nTransfer-Encoding: chunked",
        "Transfer-Encoding: chunked\r\nContent-Length: 3",
        "Content-Length: 3\r\nContent-Length: 3\r\nTransfer-Encoding: chunked",
    ] {
        let mut client = recording.told(format!("{}{NEXT}", post(fields, "2\r\nhi\r\n0\r\n\r\n")));
        let message = recording.message();
        assert_eq!(lines(&message, "transfer-encoding"), ["chunked"], "{fields:?}: {message:?}");
        assert_eq!(lines(&message, "content-length"), [""; 0], "{fields:?}: {message:?}");
        assert_eq!(body(&message), "2\r\nhi\r\n0\r\n\r\n", "{fields:?}");
        assert_eq!(client.answer().status, 200);
        if fields.to_ascii_lowercase().contains("content-length") {
            // Whoever says both may be up to something: nothing that follows is read (RFC 9112, section 6.1).
            assert_eq!(String::from_utf8_lossy(&client.rest()), "", "{fields:?}");
        } else {
            assert_eq!(client.answer().status, 200, "{fields:?}");
            assert!(recording.message().starts_with("GET /smuggled "));
        }
    }
    recording.assert_nothing_else();
}

#[test]
fn chunks_that_are_none_are_no_body() {
    let recording = Recording::start();
    for chunks in [
        "x\r\n\r\n",
        "\r\n",
        "0x1\r\nx\r\n0\r\n\r\n",
        "+1\r\nx\r\n0\r\n\r\n",
        "-1\r\nx\r\n0\r\n\r\n",
        " 1\r\nx\r\n0\r\n\r\n",
        "1_0\r\nx\r\n0\r\n\r\n",
        "10000000000000000\r\nx\r\n0\r\n\r\n",
        "ffffffffffffffffffffffff1\r\nx\r\n0\r\n\r\n",
        "1\nx\r\n0\r\n\r\n",
        "1\rx\r\n0\r\n\r\n",
        "1\r\nx0\r\n\r\n",
        "1\r\nxy\r\n0\r\n\r\n",
        "1\r\nx\n0\r\n\r\n",
        "1\r\nx\r\r0\r\n\r\n",
        "1;a\nb\r\nx\r\n0\r\n\r\n",
        "1;a=\"\n\"\r\nx\r\n0\r\n\r\n",
        "1\u{b}\r\nx\r\n0\r\n\r\n",
        "1 1\r\nx\r\n0\r\n\r\n",
        "0\r\nX : y\r\n\r\n",
        "0\r\n folded\r\n\r\n",
        "0\r\nX: y\rZ: w\r\n\r\n",
        "0\r\nX: \u{0}\r\n\r\n",
        "0\r\nno field\r\n\r\n",
        "0\r\nX: y\r\n\rz",
    ] {
        // hyper reads no further than to what is wrong: that there is more must not be taken for a request.
        let mut client = recording.told(format!("{}{NEXT}", post("Transfer-Encoding: chunked", chunks)));
        let answer = client.answer();
        assert_eq!(
            (answer.status, answer.json()["code"].as_str()),
            (400, Some("body-malformed")),
            "{chunks:?}"
        );
        assert_eq!(String::from_utf8_lossy(&client.rest()), "", "more is answered: {chunks:?}");
    }
    // The upstream may have seen a head, but no whole message, and nothing behind it.
    recording.assert_nothing_else();
}

#[test]
fn chunks_are_framed_anew_without_their_extensions() {
    let recording = Recording::start();
    for chunks in [
        "2\r\nhi\r\n0\r\n\r\n",
        "02;a=b\r\nhi\r\n000;x\r\n\r\n",
        "2 \t;a=\"b\r\nhi\r\n0\r\n\r\n",
        "1\r\nh\r\n1\r\ni\r\n0\r\n\r\n",
    ] {
        let mut client = recording.told(post("Transfer-Encoding: chunked", chunks));
        assert_eq!(client.answer().status, 200);
        let message = recording.message();
        let joined = body(&message).replace("1\r\nh\r\n1\r\ni\r\n", "2\r\nhi\r\n");
        assert_eq!(joined, "2\r\nhi\r\n0\r\n\r\n", "{chunks:?}");
    }
}

/// Lines may end with LF alone (RFC 9112, section 2.2): read so once and for all, it can't be read in another way.
#[test]
fn bare_line_feeds_in_a_head_go_on_as_line_ends() {
    let recording = Recording::start();
    let request =
        "POST /first HTTP/1.1\nHost: a\nX: y\nTransfer-Encoding: chunked\r\nContent-Length: 5\n\n0\r\n\r\n";
    let mut client = recording.told(format!("{request}{NEXT}"));
    assert_eq!(client.answer().status, 200);
    assert_eq!(String::from_utf8_lossy(&client.rest()), "", "both framings end the connection");
    let message = recording.message();
    assert_eq!((lines(&message, "transfer-encoding"), body(&message)), (vec!["chunked"], "0\r\n\r\n"));
    assert_eq!(lines(&message, "x"), ["y"]);
    assert_eq!(message.matches('\n').count(), message.matches("\r\n").count(), "{message:?}");
    recording.assert_nothing_else();
}

#[test]
fn what_is_no_head_is_refused() {
    let recording = Recording::start();
    for request in [
        "GET  / HTTP/1.1\r\nHost: a\r\n\r\n",
        "GET / HTTP/1.1 \r\nHost: a\r\n\r\n",
        "GET / HTTP/1.2\r\nHost: a\r\n\r\n",
        "GET / HTTP/2.0\r\nHost: a\r\n\r\n",
        "GET / http/1.1\r\nHost: a\r\n\r\n",
        "GET /\r\n\r\n",
        "GET\t/ HTTP/1.1\r\nHost: a\r\n\r\n",
        " GET / HTTP/1.1\r\nHost: a\r\n\r\n",
        "G(T / HTTP/1.1\r\nHost: a\r\n\r\n",
        "GET /\u{0} HTTP/1.1\r\nHost: a\r\n\r\n",
        "GET / HTTP/1.1\r\nHost : a\r\n\r\n",
        "GET / HTTP/1.1\r\nHost\t: a\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a\r\nX: y\rz\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a\r\nX: \u{0}\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a\r\nX\u{e9}: y\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a\r\nX: y\r\n folded\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a\r\n\tfolded\r\n\r\n",
        "GET / HTTP/1.1\r\n Host: a\r\n\r\n",
        "GET / HTTP/1.1\rHost: a\r\n\r\n",
        "\u{16}\u{3}\u{1}\u{2}\r\n\r\n",
    ] {
        assert_eq!(refused(&recording, request), 400, "{request:?}");
    }
    recording.assert_nothing_else();
}

#[test]
fn requests_that_are_sent_ahead_are_answered_in_turn() {
    let recording = Recording::start();
    let post = post("Content-Length: 2", "hi");
    let mut client = recording.told(format!("{post}GET /second HTTP/1.1\r\nHost: a\r\n\r\n\r\n{post}"));
    for (line, sent) in [("POST /first", "hi"), ("GET /second", ""), ("POST /first", "hi")] {
        assert_eq!(client.answer().status, 200);
        let message = recording.message();
        assert!(message.starts_with(line) && body(&message) == sent, "{message:?}");
    }
}
