//! Responses, as HTTP/2 clients get them.

use hyper::{HeaderMap, http::response::Parts};

use super::{
    super::{lines, upstreams::BODILESS},
    Recording, request,
};
use crate::{
    harness::{
        frames::{DATA, End, HEADERS},
        http2::{self, whole},
    },
    proxy::curl,
};

/// The answer to a request, all of it.
fn answer_to(recording: &Recording, method: &str) -> (Parts, Vec<u8>, Option<HeaderMap>) {
    let mut answer = None;
    http2::run(async {
        let mut client = http2::connect(recording.gateway.address()).await;
        let (response, _) = client.begin(method, "/", &[], false);
        let (head, body) = response.await.unwrap().into_parts();
        let (body, trailers) = whole(body).await.unwrap();
        answer = Some((head, body, trailers));
    });
    answer.unwrap()
}

fn texts<'h>(headers: &'h HeaderMap, name: &str) -> Vec<&'h str> {
    headers.get_all(name).iter().map(|value| value.to_str().unwrap()).collect()
}

/// A client of HTTP/2 takes an answer with such fields for malformed (RFC 9113, section 8.2.2).
#[test]
fn what_belongs_to_a_connection_stays_behind() {
    let recording = Recording::answering(
        "HTTP/1.1 299 So So\r\nConnection: x-named, Keep-Alive\r\nX-Named: 1\r\ncOnnection: X-Other\r\nX-Other: 2\r\n\
         Keep-Alive: timeout=9\r\nProxy-Connection: keep-alive\r\nUpgrade: h2c\r\nProxy-Authenticate: Basic\r\n\
         Transfer-Encoding: chunked\r\nX-CamelCase: 1\r\nSet-Cookie: a=1\r\nX-Between: 2\r\nset-cookie: b=2\r\n\
         SET-COOKIE: a=1\r\n\r\n2\r\nup\r\n0\r\n\r\n",
        "",
    );
    let (head, body, _) = answer_to(&recording, "GET");
    assert_eq!((head.status.as_u16(), body.as_slice()), (299, &b"up"[..]));
    for name in [
        "x-named",
        "x-other",
        "connection",
        "keep-alive",
        "proxy-connection",
        "upgrade",
        "proxy-authenticate",
        "transfer-encoding",
        "content-length",
    ] {
        assert_eq!(texts(&head.headers, name), [""; 0], "{name}");
    }
    assert_eq!(texts(&head.headers, "set-cookie"), ["a=1", "b=2", "a=1"]);
    assert_eq!(texts(&head.headers, "x-camelcase"), ["1"]);
    assert_eq!(lines(&recording.message(), "host"), ["tollgate.test"]);
}

#[test]
fn a_length_goes_on_and_is_kept() {
    for (answer, length) in [
        ("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nup", Some("2")),
        ("HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 2\r\n\r\nup", Some("2")),
        (
            "HTTP/1.1 200 OK\r\nContent-Length: 9\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nup\r\n0\r\n\r\n",
            None,
        ),
    ] {
        let (head, body, _) = answer_to(&Recording::answering(answer, ""), "GET");
        assert_eq!(
            texts(&head.headers, "content-length"),
            length.into_iter().collect::<Vec<_>>(),
            "{answer:?}"
        );
        assert_eq!(body, b"up");
    }
}

#[test]
fn an_answer_without_a_body_ends_with_its_head_and_keeps_the_length_of_what_it_stands_for() {
    let empty = ("GET", "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", Some("0"));
    for (method, answer, length) in BODILESS.into_iter().chain([empty]) {
        let recording = Recording::answering(answer, "");
        let mut client = recording.frames();
        for stream in [1, 3] {
            client.ask(stream, &request(method, &[]));
            let head = client.next().unwrap();
            assert!(head.kind == HEADERS && head.ends_stream(), "{method} {answer:?}: {head:?}");
        }
        let (head, _, _) = answer_to(&recording, method);
        let length: Vec<_> = length.into_iter().collect();
        assert_eq!(texts(&head.headers, "content-length"), length, "{method} {answer:?}");
    }
}

/// And the head that comes is the answer's.
#[test]
fn what_comes_before_an_answer_stays_behind() {
    let early = "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n";
    let recording =
        Recording::answering(format!("{early}{early}HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nup"), "");
    let told = recording.asked(&request("GET", &[]), &[]);
    assert_eq!((told.status, told.end, told.text().as_str()), (200, End::Whole, "up"));
    let switched = "HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n";
    Recording::answering(switched, "").assert_problem(&request("GET", &[]), &[], 502, "upstream-switched");
}

#[test]
fn trailers_of_an_answer_go_on_without_what_belongs_to_the_head() {
    let trailers = "X-Sum: 7\r\nContent-Length: 9\r\nTransfer-Encoding: chunked\r\nConnection: X-Gone\r\nX-Gone: 1\r\n\
        Trailer: x\r\nSet-Cookie: a=b\r\nContent-Type: x\r\nX-Sum: 8\r\n";
    // Whether they are announced or not, and whatever the client says that it takes: they can do no harm there.
    for announced in ["", "Trailer: x-sum, connection, x-gone\r\n"] {
        let recording = Recording::answering(
            format!(
                "HTTP/1.1 200 OK\r\n{announced}Transfer-Encoding: chunked\r\n\r\n2\r\nup\r\n0\r\n{trailers}\r\n"
            ),
            "",
        );
        let (_, body, trailers) = answer_to(&recording, "GET");
        let trailers = trailers.expect("trailers");
        assert_eq!((body.as_slice(), texts(&trailers, "x-sum")), (&b"up"[..], vec!["7", "8"]));
        assert_eq!(trailers.keys().count(), 1, "{trailers:?}");
        let mut client = recording.frames();
        client.ask(1, &request("GET", &[]));
        assert_eq!(
            [client.next_of(HEADERS), client.next_of(DATA)].map(|frame| frame.ends_stream()),
            [false; 2]
        );
        assert!(client.next_of(HEADERS).ends_stream());
    }
}

#[test]
fn an_answer_of_which_no_trailer_may_go_on_ends_all_the_same() {
    let answer =
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nup\r\n0\r\nContent-Length: 9\r\n\r\n";
    let recording = Recording::answering(answer, "");
    let told = recording.asked(&request("GET", &[]), &[]);
    assert_eq!((told.end, told.text().as_str()), (End::Whole, "up"));
    let told = curl(&recording.gateway, &["--http2-prior-knowledge", "http://{address}/"]);
    assert_eq!(told, "up");
}
