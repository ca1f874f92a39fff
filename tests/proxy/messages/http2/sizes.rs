//! What is too large: heads, targets, bodies. The connection goes on, unless the head is beyond all measure.

use super::{
    super::{LIMITED, body},
    Recording, replaced, request, send,
};
use crate::harness::frames::{
    CONTINUATION, DATA, END_HEADERS, END_STREAM, End, HEADERS, NO_ERROR, PROTOCOL_ERROR, RST_STREAM, fields,
};

#[test]
fn heads_and_targets_have_one_bound() {
    let recording = Recording::with("[server]\nmax_header_bytes = \"8KiB\"");
    let get = request("GET", &[]);
    let (long, path) = ("x".repeat(8 << 10), format!("/{}", "x".repeat(8 << 10)));
    let most = "x".repeat(7_900);
    let many = [&get[..], &vec![("x", ""); 260]].concat();
    let mut client = recording.frames();
    for (stream, request, status) in [
        (1, request("GET", &[("x", &most)]), 200),
        // With their 32 bytes each, and as many as fit.
        (3, [&get[..], &vec![("x", "y"); 200]].concat(), 200),
        (5, request("GET", &[("x", &long)]), 431),
        (7, many, 431),
        (9, replaced(&get, ":path", Some(&path)), 431),
        (11, get, 200),
    ] {
        client.ask(stream, &request);
        let told = client.told(stream);
        // The second time it has a place in the connection's table.
        assert_eq!(told.status, if status == 431 && stream > 5 { 0 } else { status }, "{stream}: {told:?}");
        assert_eq!(told.end, End::Whole, "{stream}");
    }
    for _ in 0..3 {
        let message = recording.message();
        assert!(message.starts_with("GET /first HTTP/1.1\r\n"), "{message:?}");
    }
    recording.assert_nothing_else();
}

/// A head may come in several frames. Of a target beyond 65,534 bytes nothing can be made, whatever the bound.
#[test]
fn a_head_in_several_frames_is_one() {
    let recording = Recording::with("[server]\nmax_header_bytes = \"128KiB\"");
    let asked = |length: usize| {
        let path = format!("/{}", "x".repeat(length));
        let block = fields(&replaced(&request("GET", &[]), ":path", Some(&path)));
        let mut client = recording.frames();
        let mut frames = block.chunks(16 << 10).peekable();
        client.send(HEADERS, END_STREAM, 1, frames.next().unwrap());
        while let Some(more) = frames.next() {
            client.send(CONTINUATION, if frames.peek().is_none() { END_HEADERS } else { 0 }, 1, more);
        }
        client.told(1)
    };
    assert_eq!(asked(60_000).status, 200);
    assert!(recording.message().starts_with(&format!("GET /{} HTTP/1.1\r\n", "x".repeat(60_000))));
    assert_eq!(asked(70_000).end, End::Reset(PROTOCOL_ERROR));
    assert_eq!(asked(140_000).status, 431);
    recording.assert_nothing_else();
}

/// 413 comes before the upload, with a word that the rest isn't wanted (RFC 9113, section 8.1).
#[test]
fn a_body_that_says_its_size_is_refused_before_it_comes_and_before_the_charge() {
    let recording = Recording::with(&format!("[server]\nmax_body = \"4B\"\n{LIMITED}"));
    let mut client = recording.frames();
    for (stream, path) in [(1, "/first"), (3, "/limited")] {
        let put = replaced(&request("PUT", &[("content-length", "5")]), ":path", Some(path));
        client.send(HEADERS, END_HEADERS, stream, &fields(&put));
        let told = client.told(stream);
        assert_eq!((told.end, told.code().as_str()), (End::Whole, "body-too-large"));
        let reset = client.next_of(RST_STREAM);
        assert_eq!((reset.stream, reset.code()), (stream, NO_ERROR));
        // Who sends all the same is no worse off.
        client.send(DATA, 0, stream, b"hello");
    }
    send(&mut client, 5, &request("PUT", &[("content-length", "4")]), &["four"]);
    assert_eq!(client.told(5).end, End::Whole);
    assert_eq!(body(&recording.message()), "four");
    assert_eq!(recording.gateway.get("/limited").status, 204);
    assert_eq!(recording.gateway.get("/limited").status, 429);
    recording.assert_nothing_else();
}

#[test]
fn a_body_that_grows_too_large_is_refused_then() {
    let recording = Recording::with("[server]\nmax_body = \"4B\"");
    assert_eq!(recording.asked(&request("PUT", &[]), &["fo", "ur", ""]).status, 200);
    assert!(body(&recording.message()).ends_with("\r\n0\r\n\r\n"));
    for pieces in [&["fiveb"][..], &["four", "b"], &["four", "b", ""]] {
        let told = recording.asked(&request("PUT", &[]), pieces);
        assert_eq!((told.status, told.code().as_str()), (413, "body-too-large"), "{pieces:?}");
    }
    // What had gone on was no whole message.
    recording.assert_nothing_else();
}
