//! A message truncated on one side is truncated on the other, never ended: an HTTP/2 stream is reset, and an HTTP/1.1
//! connection closed. RST_STREAM with NO_ERROR isn't an end either, unless END_STREAM preceded it (RFC 9113, section 8.1).

use std::{
    net::Shutdown,
    sync::{Mutex, mpsc},
};

use super::{Field, replaced, request};
use crate::{
    harness::{
        PATIENCE,
        client::Client,
        frames::{
            CANCEL, DATA, END_HEADERS, END_STREAM, End, Frames, GOAWAY, HEADERS, HTTP_1_1_REQUIRED,
            INTERNAL_ERROR, NO_ERROR, REFUSED_STREAM, RST_STREAM, fields, frame,
        },
        gateway::Gateway,
        wire::{Wire, WireUpstream},
    },
    proxy::{forward_to, quoted},
};

const PART: &str = "half of it";

/// How a message is cut short in the middle.
#[derive(Clone, Copy, Debug)]
enum Cut {
    Reset(u32),
    Close,
    /// GOAWAY without a fault, by which this stream is the last one that counts; and the connection is closed.
    Leave(u32),
}

const CUTS: [Cut; 8] = [
    Cut::Reset(NO_ERROR),
    Cut::Reset(REFUSED_STREAM),
    Cut::Reset(HTTP_1_1_REQUIRED),
    Cut::Reset(CANCEL),
    Cut::Reset(INTERNAL_ERROR),
    Cut::Close,
    Cut::Leave(1),
    Cut::Leave(0),
];

impl Cut {
    fn apply(self, connection: &mut Frames, stream: u32) {
        match self {
            Self::Reset(code) => return connection.reset_with(stream, code),
            Self::Close => {}
            Self::Leave(last) => {
                connection.send(GOAWAY, 0, 0, &[last.to_be_bytes(), NO_ERROR.to_be_bytes()].concat());
            }
        }
        connection.close();
    }
}

/// A gateway that answers `/own` itself.
fn gateway_to(upstream: &WireUpstream, keys: &str) -> Gateway {
    let own = "[[routes]]\npath = \"/own\"\nrespond = { body = \"own\" }\n";
    Gateway::start(&format!("[server]\nworkers = 1\n{own}{}", forward_to(&[quoted(upstream.url())], keys)))
}

/// Asserts that a request by HTTP/2 gets the part, and then a reset in place of an end.
fn assert_reset(gateway: &Gateway, cut: &mpsc::Sender<()>, case: &str) {
    let mut client = Frames::connect(gateway.address());
    client.ask(1, &request("GET", &[]));
    let (head, part) = (client.next_of(HEADERS), client.next_of(DATA));
    assert_eq!((head.status(), part.payload.as_slice()), (200, PART.as_bytes()), "{case}");
    assert!(!part.ends_stream(), "{case}");
    cut.send(()).unwrap();
    let told = client.told(1);
    assert!(told.body.is_empty(), "{case}: {told:?}");
    // Clients would take another code for an end, or send the request again.
    let is_failure = matches!(told.end, End::Reset(CANCEL | INTERNAL_ERROR));
    assert!(is_failure, "{case}: {told:?}");
    // The client's connection is unhurt.
    client.ask(3, &replaced(&request("GET", &[]), ":path", Some("/own")));
    assert_eq!(client.told(3).text(), "own", "{case}");
}

#[test]
fn an_answer_that_is_cut_short_is_a_reset() {
    for (framing, part, rest) in [
        ("Content-Length: 100", PART, ""),
        ("Transfer-Encoding: chunked", "64\r\nhalf of it", ""),
        ("Transfer-Encoding: chunked", "a\r\nhalf of it\r\n", ""),
        ("Transfer-Encoding: chunked", "a\r\nhalf of it\r\n", "0\r\nX: y\r\n"),
        ("Transfer-Encoding: chunked", "a\r\nhalf of it\r\n", "no chunk\r\n\r\n"),
    ] {
        let (cut, is_cut) = mpsc::channel();
        let is_cut = Mutex::new(is_cut);
        let upstream = WireUpstream::start(move |mut wire| {
            wire.request();
            wire.send(format!("HTTP/1.1 200 OK\r\n{framing}\r\n\r\n{part}").as_bytes());
            is_cut.lock().unwrap().recv().unwrap();
            wire.send(rest.as_bytes());
        });
        assert_reset(&gateway_to(&upstream, ""), &cut, &format!("{part:?} {rest:?}"));
    }
}

const OK: &[Field<'_>] = &[(":status", "200")];

/// An HTTP/2 server that sends half of each response, and on a signal does this on the stream with this number.
fn breaking(
    head: &'static [Field<'_>],
    then: impl Fn(&mut Frames, u32) + Send + Sync + 'static,
) -> (WireUpstream, mpsc::Sender<()>) {
    let (cut, is_cut) = mpsc::channel();
    let is_cut = Mutex::new(is_cut);
    let upstream = WireUpstream::start(move |wire| {
        let mut server = Frames::accept(wire);
        while let Some(frame) = server.next() {
            if frame.kind == HEADERS {
                server.send(HEADERS, END_HEADERS, frame.stream, &fields(head));
                server.send(DATA, 0, frame.stream, PART.as_bytes());
                is_cut.lock().unwrap().recv().unwrap();
                then(&mut server, frame.stream);
            }
        }
    });
    (upstream, cut)
}

/// Asserts that clients of either version get the part, and no end of it.
fn assert_cut(
    head: &'static [Field<'_>],
    then: impl Fn(&mut Frames, u32) + Send + Sync + 'static,
    case: &str,
) {
    let (upstream, cut) = breaking(head, then);
    let gateway = gateway_to(&upstream, "http2 = true");
    assert_reset(&gateway, &cut, case);
    let mut client = gateway.client();
    client.send(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    let head = client.head();
    assert_eq!(head.status, 200, "{case}");
    let part =
        if head.header("content-length").is_some() { client.bytes(PART.len()) } else { client.chunk() };
    assert_eq!(part, PART.as_bytes(), "{case}");
    cut.send(()).unwrap();
    assert_eq!(String::from_utf8(client.rest()).unwrap(), "", "{case}");
}

#[test]
fn an_answer_that_a_server_of_http_2_cuts_short_is_never_ended() {
    const HUNDRED: &[Field<'_>] = &[(":status", "200"), ("content-length", "100")];
    for cut in CUTS {
        let then = move |server: &mut Frames, stream| cut.apply(server, stream);
        assert_cut(OK, then, &format!("{cut:?}"));
        assert_cut(HUNDRED, then, &format!("{cut:?} with a length"));
    }
    let ending = |server: &mut Frames, stream| server.send(DATA, END_STREAM, stream, b" and more");
    assert_cut(HUNDRED, ending, "too short");
    let trailers =
        |server: &mut Frames, stream| server.send(HEADERS, END_HEADERS, stream, &fields(&[("x", "y")]));
    assert_cut(OK, trailers, "trailers that aren't the end");
}

/// A server that has answered all needn't hear the rest, and says so (RFC 9113, section 8.1).
#[test]
fn an_answer_that_ended_before_the_reset_is_whole() {
    let (upstream, goes_on) = breaking(OK, |server, stream| {
        let end = frame(DATA, END_STREAM, stream, b", and the rest");
        let reset = frame(RST_STREAM, 0, stream, &NO_ERROR.to_be_bytes());
        server.write(&[end, reset].concat());
    });
    let gateway = gateway_to(&upstream, "http2 = true");
    for _ in 0..10 {
        goes_on.send(()).unwrap();
        goes_on.send(()).unwrap();
        let mut client = Frames::connect(gateway.address());
        client.send(HEADERS, END_HEADERS, 1, &fields(&request("POST", &[])));
        client.send(DATA, 0, 1, b"so far");
        let told = client.told(1);
        assert_eq!((told.end, told.text().as_str()), (End::Whole, "half of it, and the rest"));
        let mut client = gateway.client();
        client.send(b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n6\r\nso far\r\n");
        let answer = client.answer();
        assert_eq!((answer.status, answer.text().as_str()), (200, "half of it, and the rest"));
    }
}

/// When a server begins to answer.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Answers {
    /// While the request's body comes.
    Early,
    /// When it is there.
    Late,
}

/// Begins an upload, and cuts it short when its part has arrived and what is answered early has come back.
fn upload(
    gateway: &Gateway,
    arrived: &mpsc::Receiver<()>,
    answers: Answers,
    cut: Cut,
    more: &[(&str, &str)],
) {
    let mut client = Frames::connect(gateway.address());
    client.send(HEADERS, END_HEADERS, 1, &fields(&request("PUT", more)));
    client.send(DATA, 0, 1, PART.as_bytes());
    arrived.recv_timeout(PATIENCE).expect("the part arrives");
    if answers == Answers::Early {
        assert_eq!(client.next_of(HEADERS).status(), 200);
    }
    cut.apply(&mut client, 1);
    // Held until the gateway closes it, which it need not.
    std::mem::forget(client);
}

#[test]
fn an_upload_that_is_cut_short_is_never_ended() {
    for answers in [Answers::Early, Answers::Late] {
        for (more, framed) in [(&[][..], "A\r\nhalf of it\r\n"), (&[("content-length", "100")], PART)] {
            for cut in CUTS {
                let (arrives, arrived) = mpsc::channel();
                let (seen, rests) = mpsc::channel();
                let upstream = WireUpstream::start(move |mut wire: Wire| {
                    wire.request();
                    if answers == Answers::Early {
                        wire.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n");
                    }
                    assert_eq!(wire.read(framed.len()), framed.as_bytes());
                    arrives.send(()).unwrap();
                    seen.send(wire.rest()).unwrap();
                });
                let gateway = gateway_to(&upstream, "");
                upload(&gateway, &arrived, answers, cut, more);
                let rest = rests.recv_timeout(PATIENCE).expect("the gateway hangs up");
                assert_eq!(rest, "", "{answers:?} {cut:?} {more:?}");
            }
        }
    }
}

#[test]
fn an_upload_that_is_cut_short_is_a_reset_to_a_server_of_http_2() {
    for answers in [Answers::Early, Answers::Late] {
        for cut in CUTS {
            let (arrives, arrived) = mpsc::channel();
            let (seen, ends) = mpsc::channel();
            let upstream = WireUpstream::start(move |wire| {
                let mut server = Frames::accept(wire);
                server.next_of(HEADERS);
                if answers == Answers::Early {
                    server.send(HEADERS, END_HEADERS, 1, &fields(OK));
                }
                let part = server.next_of(DATA);
                assert_eq!((part.payload.as_slice(), part.ends_stream()), (PART.as_bytes(), false));
                arrives.send(()).unwrap();
                seen.send(server.told(1).end).unwrap();
            });
            let gateway = gateway_to(&upstream, "http2 = true");
            upload(&gateway, &arrived, answers, cut, &[]);
            let end = ends.recv_timeout(PATIENCE).expect("the stream ends");
            assert_eq!(end, End::Reset(CANCEL), "{answers:?} {cut:?}");
        }
    }
}

/// From a client of HTTP/1.1, too.
#[test]
fn an_upload_by_http_1_that_is_cut_short_is_a_reset_to_a_server_of_http_2() {
    let (seen, ends) = mpsc::channel();
    let upstream = WireUpstream::start(move |wire| {
        let mut server = Frames::accept(wire);
        seen.send(server.told(1)).unwrap();
    });
    let gateway = gateway_to(&upstream, "http2 = true");
    let mut client = Client::connect(gateway.address());
    client.send(b"PUT / HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nTransfer-Encoding: chunked\r\n\r\n");
    // Its request is on its way then. One that leaves before is nowhere sent.
    assert_eq!(client.head().status, 100);
    client.send(b"a\r\nhalf of it\r\n");
    client.writer().shutdown(Shutdown::Write).unwrap();
    let told = ends.recv_timeout(PATIENCE).expect("the stream ends");
    assert_eq!(told.end, End::Reset(CANCEL));
}

/// A client that is answered before the end of its upload gets the complete response, and a signal that the rest isn't needed.
#[test]
fn an_early_answer_comes_whole() {
    let (seen, rests) = mpsc::channel();
    let upstream = WireUpstream::start(move |mut wire| {
        wire.request();
        assert_eq!(wire.read(9), b"4\r\nsome\r\n");
        wire.send(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nup");
        wire.stream().shutdown(Shutdown::Write).unwrap();
        seen.send(wire.rest()).unwrap();
    });
    let gateway = gateway_to(&upstream, "");
    for (path, text) in [("/own", "own"), ("/", "up")] {
        let mut client = Frames::connect(gateway.address());
        let put = replaced(&request("PUT", &[]), ":path", Some(path));
        client.send(HEADERS, END_HEADERS, 1, &fields(&put));
        client.send(DATA, 0, 1, b"some");
        let told = client.told(1);
        assert_eq!((told.end, told.text().as_str()), (End::Whole, text));
        let reset = client.next_of(RST_STREAM);
        assert_eq!((reset.stream, reset.code()), (1, NO_ERROR), "{path}");
    }
    assert_eq!(rests.recv_timeout(PATIENCE).unwrap(), "", "no end of the body");
}
