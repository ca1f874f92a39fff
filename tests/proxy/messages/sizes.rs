//! Oversized heads, targets and bodies.

use super::{LIMITED, Recording, body};

fn assert_refused(recording: &Recording, request: &[u8], status: u16, code: &str) {
    let mut client = recording.gateway.client();
    // It may be refused before all of it is sent.
    let _ = std::io::Write::write_all(&mut client.writer(), request);
    let answer = client.answer();
    assert_eq!((answer.status, answer.header("content-type")), (status, Some("application/problem+json")));
    assert_eq!(answer.json()["code"].as_str(), Some(code));
    assert_eq!(client.rest(), b"", "nothing else is answered");
}

#[test]
fn heads_and_targets_have_bounds() {
    let recording = Recording::with("[server]\nmax_header_bytes = \"8KiB\"");
    let request = |target: usize, fields: String| {
        format!("GET /{} HTTP/1.1\r\nHost: a\r\n{fields}\r\n", "x".repeat(target)).into_bytes()
    };
    let field = |bytes: usize| format!("X: {}\r\n", "x".repeat(bytes));
    for (target, fields) in [(1, field(8_000)), (7_900, String::new()), (1, "X: y\r\n".repeat(99))] {
        assert_eq!(recording.told(request(target, fields)).head().status, 200);
        recording.message();
    }
    for fields in [field(9 << 10), field(100 << 10), field(1_000).repeat(9), "X: y\r\n".repeat(100)] {
        assert_refused(&recording, &request(1, fields), 431, "head-too-large");
    }
    for target in [9 << 10, 70_000, 1 << 20] {
        assert_refused(&recording, &request(target, String::new()), 414, "target-too-long");
    }
    // On a connection that was used before, too.
    let mut client = recording.told(request(1, String::new()));
    assert_eq!(client.answer().status, 200);
    recording.message();
    client.send(&request(9 << 10, String::new()));
    assert_eq!(client.answer().status, 414);
    recording.assert_nothing_else();
}

#[test]
fn what_is_no_request_is_told_so_as_json() {
    let recording = Recording::start();
    assert_refused(&recording, b"NONSENSE\r\n\r\n", 400, "request-malformed");
    // Behind an answer, and behind another request.
    let mut client = recording.told("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    assert_eq!(client.answer().status, 200);
    client.send(b"G(T / HTTP/1.1\r\n\r\n");
    let answer = client.answer();
    assert_eq!((answer.status, answer.header("connection")), (400, Some("close")));
    assert!(answer.header("date").is_some() && answer.json()["status"] == 400, "{answer:?}");
    assert!(client.is_closed());
    let mut client = recording.told("GET / HTTP/1.1\r\nHost: a\r\n\r\nG(T / HTTP/1.1\r\n\r\n");
    assert_eq!([client.answer().status, client.answer().status], [200, 400]);
    assert!(client.is_closed());
}

#[test]
fn a_body_has_a_bound_in_either_framing() {
    let recording = Recording::with("[server]\nmax_body = \"1KiB\"");
    let length = |bytes: usize| {
        format!("POST / HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: {bytes}\r\n\r\n")
    };
    let chunks = |bytes: usize| {
        let chunk = format!("100\r\n{}\r\n", "x".repeat(256)).repeat(bytes / 256);
        format!(
            "POST / HTTP/1.1\r\nHost: a\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n{chunk}0\r\n\r\n"
        )
    };
    recording.told(length(1 << 10) + &"x".repeat(1 << 10)).answer();
    assert_eq!(body(&recording.message()).len(), 1 << 10);
    assert_eq!(recording.told(chunks(1 << 10)).answer().status, 200);
    assert_eq!(body(&recording.message()).matches('x').count(), 1 << 10);
    for request in [length((1 << 10) + 1), length(usize::MAX / 2), chunks(1280), chunks(1 << 20)] {
        assert_refused(&recording, request.as_bytes(), 413, "body-too-large");
    }
    // What had gone on of the chunks was no whole message.
    recording.assert_nothing_else();
}

#[test]
fn a_body_that_says_its_size_is_refused_before_the_charge() {
    let recording = Recording::with(&format!("[server]\nmax_body = \"1B\"\n{LIMITED}"));
    assert_refused(
        &recording,
        b"PUT /limited HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: 2\r\n\r\nhi",
        413,
        "body-too-large",
    );
    assert_eq!(recording.gateway.get("/limited").status, 204);
    assert_eq!(recording.gateway.get("/limited").status, 429);
}

#[test]
fn a_reload_changes_the_bound_of_bodies() {
    let recording = Recording::with("[server]\nmax_body = \"1B\"");
    let ask = || recording.told("PUT / HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nhi").answer().status;
    assert_eq!(ask(), 413);
    recording.gateway.reload("[[routes]]\npath = \"/\"\nrespond = { status = 204 }\n");
    assert_eq!(ask(), 204);
    recording.gateway.wait_for_log("`server.max_body` changed");
    let log = recording.gateway.log();
    assert!(!log.contains("max_body` changed: takes"), "{log}");
}
