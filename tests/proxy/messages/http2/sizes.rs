//! Oversized heads, targets and bodies. The connection stays open, unless the head is far too large.

use super::{
    super::{LIMITED, body},
    Recording, replaced, request, send,
};
use crate::harness::{
    frames::{
        CONTINUATION, DATA, END_HEADERS, END_STREAM, End, Frames, HEADERS, INITIAL_WINDOW, NO_ERROR,
        PROTOCOL_ERROR, RST_STREAM, fields,
    },
    gateway::Gateway,
    wire::WireUpstream,
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
        (3, [&get[..], &vec![("x", "y"); 100]].concat(), 200),
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

/// As in HTTP/1.1. A cookie in crumbs is one field.
#[test]
fn a_head_has_a_hundred_fields_at_most() {
    let recording = Recording::with("[server]\nmax_header_bytes = \"1MiB\"");
    let names: Vec<String> = (0..24_570).map(|at| format!("x-{at}")).collect();
    let distinct = |count| -> Vec<_> { names[..count].iter().map(|name| (name.as_str(), "")).collect() };
    recording.assert_problem(&request("GET", &distinct(101)), &[], 431, "head-too-large");
    recording.assert_problem(&request("GET", &vec![("x", ""); 101]), &[], 431, "head-too-large");
    assert_eq!(recording.asked(&request("GET", &distinct(100)), &[]).status, 200);
    recording.message();
    let crumbs = vec![("cookie", "a=1"); 300];
    assert_eq!(recording.asked(&request("GET", &[&distinct(99)[..], &crumbs].concat()), &[]).status, 200);
    assert!(recording.message().ends_with("\r\n\r\n"));

    // As many as a map can hold, and one more than what is added to them leaves room for.
    for count in [2_000, 24_569, 24_570] {
        let block = fields(&request("GET", &distinct(count)));
        let mut client = recording.frames();
        let mut frames = block.chunks(16 << 10).peekable();
        client.send(HEADERS, END_STREAM, 1, frames.next().unwrap());
        while let Some(more) = frames.next() {
            client.send(CONTINUATION, if frames.peek().is_none() { END_HEADERS } else { 0 }, 1, more);
        }
        let told = client.told(1);
        assert_eq!((told.status, told.end), (431, End::Whole), "{count}: {told:?}");
    }
    assert!(!recording.gateway.log().contains("panicked"), "{}", recording.gateway.log());
    recording.assert_nothing_else();
}

#[test]
fn trailers_have_a_hundred_fields_at_most() {
    let recording = Recording::start();
    let told = |count: usize| {
        let mut client = recording.frames();
        client.send(HEADERS, END_HEADERS, 1, &fields(&request("POST", &[])));
        client.send(DATA, 0, 1, b"abc");
        client.send(HEADERS, END_HEADERS | END_STREAM, 1, &fields(&vec![("x-t", "1"); count]));
        client.told(1)
    };
    assert_eq!(told(100).status, 200);
    recording.message();
    let refused = told(101);
    assert_eq!((refused.status, refused.code().as_str()), (400, "body-malformed"), "{refused:?}");
    recording.assert_nothing_else();
}

/// Requests of one connection whose heads take a byte a field: 3 MB that may be 300.
#[test]
fn heads_of_many_fields_take_no_memory() {
    let upstream = WireUpstream::start(|mut wire| while wire.request().is_some() {});
    let gateway = Gateway::start(&format!(
        "[server]\nworkers = 1\nmax_header_bytes = \"1MiB\"\n[upstreams.up]\nservers = [\"{}\"]\n\
         [[routes]]\npath = \"/{{*rest}}\"\nupstream = \"up\"\n",
        upstream.url()
    ));
    let before = gateway.memory_kib("VmHWM");
    // No room for any answer's body.
    let mut client = Frames::connect_with(gateway.address(), &[(INITIAL_WINDOW, 0)]);
    for stream in (1..200).step_by(2) {
        let mut block = fields(&request("GET", &[]));
        // A field with an index (RFC 7541, section 6.2.1), and then that index.
        block.extend(b"\x40\x01a\x00");
        block.extend([0x80 | 62; 30_000]);
        let (first, second) = block.split_at(16 << 10);
        client.send(HEADERS, END_STREAM, stream, first);
        client.send(CONTINUATION, END_HEADERS, stream, second);
    }
    let mut answered = 0;
    while answered < 100 {
        let frame = client.next().expect("each is answered");
        answered += usize::from(frame.kind == HEADERS);
    }
    let grown = gateway.grew_kib(before);
    // How many heads are read before the first is refused depends on how busy the machine is.
    assert!(grown < 150 << 10, "grown by {grown} KiB");
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
