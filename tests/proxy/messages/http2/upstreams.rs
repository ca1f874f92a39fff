//! Requests to HTTP/2 servers, and their responses.

use std::{
    io::Write,
    sync::{Mutex, mpsc},
    time::Duration,
};

use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::{HeaderMap, Response};

use super::{Field, replaced, request, send};
use crate::{
    harness::{
        PATIENCE,
        frames::{
            CANCEL, DATA, END_HEADERS, END_STREAM, ENHANCE_YOUR_CALM, End, Frames, GOAWAY, HEADERS,
            INTERNAL_ERROR, MAX_CONCURRENT_STREAMS, NO_ERROR, REFUSED_STREAM, RST_STREAM, SETTINGS, fields,
            frame, get,
        },
        gateway::Gateway,
        http2,
        upstream::{Upstream, whole},
        wait_until,
        wire::WireUpstream,
    },
    proxy::{cleartext_http2, forward_to, quoted},
};

fn gateway_to(url: &str) -> Gateway {
    Gateway::start(&format!("[server]\nworkers = 1\n{}", forward_to(&[quoted(url)], "http2 = true")))
}

/// A gateway before a server that answers each request, when its END_STREAM has come, with these frames: their kind,
/// their flags, and what is in them.
fn answering(answer: &[(u8, u8, Vec<u8>)]) -> Gateway {
    let answer = answer.to_vec();
    let upstream = WireUpstream::start(move |wire| {
        let mut server = Frames::accept(wire);
        for stream in (1..).step_by(2) {
            if server.told(stream).end != End::Whole {
                return;
            }
            answer.iter().for_each(|(kind, flags, payload)| server.send(*kind, *flags, stream, payload));
        }
    });
    gateway_to(&upstream.url())
}

/// The same, whose answer is a head.
fn answering_head(head: &[Field<'_>]) -> Gateway {
    answering(&[(HEADERS, END_HEADERS | END_STREAM, fields(head))])
}

#[test]
fn empty_pieces_of_responses_end_no_connection() {
    let upstream = WireUpstream::start(|wire| {
        let mut server = Frames::accept(wire);
        for stream in (1..).step_by(2) {
            if server.told(stream).end != End::Whole {
                return;
            }
            let head = fields(&[(":status", "200"), ("stream", &stream.to_string())]);
            let head = frame(HEADERS, END_HEADERS, stream, &head);
            let pieces = [frame(DATA, 0, stream, b""), frame(DATA, END_STREAM, stream, b"x")];
            server.write(&[head, pieces.concat()].concat());
        }
    });
    let gateway = gateway_to(&upstream.url());
    for stream in (1..500).step_by(2) {
        let answer = gateway.get("/");
        assert_eq!((answer.status, &*answer.text()), (200, "x"));
        // Each connection begins with 1.
        assert_eq!(answer.header("stream"), Some(&*stream.to_string()));
    }
}

/// A server that takes no more of the request closes as soon as it has sent the response.
#[test]
fn a_response_is_complete_though_its_connection_ends_right_behind_it() {
    const PATH: [&str; 2] = ["/", "/trailers"];
    let upstream = WireUpstream::start(|wire| {
        let mut server = Frames::accept(wire);
        let asked = server.next_of(HEADERS);
        let stream = asked.stream;
        let head = frame(HEADERS, END_HEADERS, stream, &fields(&[(":status", "413")]));
        let has_trailers = asked.payload.windows(9).any(|bytes| bytes == b"/trailers");
        let end = match has_trailers {
            true => frame(HEADERS, END_HEADERS | END_STREAM, stream, &fields(&[("x-sum", "1")])),
            false => frame(DATA, END_STREAM, stream, b""),
        };
        let leaves = frame(GOAWAY, 0, 0, &[stream.to_be_bytes(), NO_ERROR.to_be_bytes()].concat());
        server.write(&[head, leaves, frame(DATA, 0, stream, &[b'x'; 3_000]), end].concat());
    });
    let gateway = gateway_to(&upstream.url());
    for at in 0..60 {
        let mut client = Frames::connect(gateway.address());
        client.send(HEADERS, END_HEADERS, 1, &fields(&get(PATH[at % 2], &[])));
        let told = client.told(1);
        assert_eq!((told.end, told.body.len()), (End::Whole, 3_000), "{at}");
    }
}

/// The body takes all the room that the server gives to the connection.
#[test]
fn a_body_that_the_server_does_not_read_holds_up_no_other_request() {
    const ROOM: usize = 65_535;
    let (filled, is_filled) = mpsc::channel();
    let upstream = WireUpstream::start(move |wire| {
        let mut server = Frames::accept(wire);
        let mut received = 0;
        while let Some(frame) = server.next() {
            received += if frame.kind == DATA { frame.payload.len() } else { 0 };
            if frame.ends_stream() {
                server.send(HEADERS, END_HEADERS | END_STREAM, frame.stream, &fields(&[(":status", "204")]));
            } else if received == ROOM {
                filled.send(()).unwrap();
            }
        }
    });
    let gateway = gateway_to(&upstream.url());
    let post = |length: usize| {
        let head = format!("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: {length}\r\n\r\n");
        [head.as_bytes(), &vec![b'x'; length]].concat()
    };
    let mut large = gateway.client();
    large.send(&post(2 * ROOM));
    is_filled.recv_timeout(PATIENCE).unwrap();
    let mut small = gateway.client();
    small.send(&post(1_000));
    assert_eq!(small.head().status, 204);
}

/// The server's window has no room for the end of the body, which is received at once with the rest.
#[test]
fn the_end_of_a_body_that_the_server_does_not_read_is_given_up_behind_its_response() {
    const LENGTH: usize = 66_000;
    let (reset, is_reset) = mpsc::channel();
    let upstream = WireUpstream::start(move |wire| {
        let mut server = Frames::accept(wire);
        while let Some(frame) = server.next() {
            match frame.kind {
                HEADERS => {
                    let head = fields(&[(":status", "204")]);
                    server.send(HEADERS, END_HEADERS | END_STREAM, frame.stream, &head);
                }
                RST_STREAM => reset.send(frame.code()).unwrap(),
                _ => {}
            }
        }
    });
    let gateway = gateway_to(&upstream.url());
    let mut client = gateway.client();
    let head = format!("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n{LENGTH:x}\r\n");
    client.send(&[head.as_bytes(), &vec![b'x'; LENGTH], b"\r\n0\r\n\r\n"].concat());
    assert_eq!(client.head().status, 204);
    assert_eq!(is_reset.recv_timeout(PATIENCE), Ok(CANCEL));
    assert_eq!(client.get("/").status, 204);
}

#[test]
fn a_request_has_nothing_of_a_connection_and_one_of_each_that_frames() {
    let upstream = Upstream::speaking(cleartext_http2(), |_| async { Response::new(whole("hello")) });
    let gateway = gateway_to(&upstream.url());
    let mut client = gateway.client();
    client.send(
        b"POST /a%2Fb?c HTTP/1.1\r\nhOsT: A.test:81\r\nConnection: x-named, keep-alive\r\nX-Named: 1\r\nKeep-Alive: timeout=9\r\n\
          Proxy-Connection: keep-alive\r\nUpgrade: h2c\r\nTE: gzip, trailers\r\nContent-Length: 2\r\nContent-Length: 2\r\n\
          Cookie: a=1\r\nX_Under: 1\r\nX-CamelCase: 1\r\nx-camelcase: 2\r\n\r\nhi",
    );
    assert_eq!(client.answer().text(), "hello");
    let mut frames = Frames::connect(gateway.address());
    let head = [
        ("content-length", "2"),
        ("content-length", "2"),
        ("te", "trailers"),
        ("cookie", "a=1"),
        ("x_under", "1"),
        ("x-camelcase", "1"),
        ("cookie", "b=2"),
        ("x-camelcase", "2"),
    ];
    let sent = replaced(
        &replaced(&request("POST", &head), ":path", Some("/a%2Fb?c")),
        ":authority",
        Some("A.test:81"),
    );
    send(&mut frames, 1, &sent, &["hi"]);
    assert_eq!(frames.told(1).text(), "hello");
    assert_eq!(upstream.count(), 2);
    upstream.seen(|request| {
        let lines = |name: &str| {
            request.headers.get_all(name).iter().map(|value| value.to_str().unwrap()).collect::<Vec<_>>()
        };
        // A server of HTTP/2 takes no request for one that has any of a connection's fields.
        assert_eq!(request.uri.to_string(), "http://A.test:81/a%2Fb?c");
        assert_eq!((lines("content-length"), lines("te")), (vec!["2"], vec!["trailers"]));
        assert_eq!((lines("x-camelcase"), lines("x-forwarded-host")), (vec!["1", "2"], vec!["A.test:81"]));
        for name in ["host", "x-named", "x_under", "upgrade", "proxy-connection"] {
            assert_eq!(lines(name), [""; 0], "{name}");
        }
        let (via, cookie) = (lines("via"), lines("cookie"));
        assert!(matches!(
            (&via[..], &cookie[..]),
            (["1.1 tollgate"], ["a=1"]) | (["2.0 tollgate"], ["a=1; b=2"])
        ));
        true
    });
}

#[test]
fn a_body_goes_on_in_frames_and_ends_by_the_last_one() {
    let (seen, bodies) = mpsc::channel();
    let upstream = WireUpstream::start(move |wire| {
        let mut server = Frames::accept(wire);
        for stream in (1..).step_by(2) {
            let told = server.told(stream);
            if told.end != End::Whole {
                return;
            }
            seen.send(told.text()).unwrap();
            server.send(HEADERS, END_HEADERS | END_STREAM, stream, &fields(&[(":status", "204")]));
        }
    });
    let gateway = gateway_to(&upstream.url());
    let mut client = Frames::connect(gateway.address());
    for (stream, head, pieces) in [
        (1, &[][..], &["0\r\n\r\n", "", "GET / HTTP/1.1\r\n\r\n", ""][..]),
        (3, &[("content-length", "4")], &["ab", "cd"]),
        (5, &[("content-length", "0")], &[""]),
        (7, &[], &[]),
    ] {
        send(&mut client, stream, &request("POST", head), pieces);
        assert_eq!(client.told(stream).end, End::Whole);
        assert_eq!(bodies.recv_timeout(PATIENCE).unwrap(), pieces.concat());
    }
}

#[test]
fn trailers_go_on_without_what_would_change_the_head() {
    let upstream = Upstream::speaking(cleartext_http2(), |request| async {
        let trailers = request.into_body().collect().await.unwrap().trailers().cloned().expect("trailers");
        let told: Vec<_> =
            trailers.iter().map(|(name, value)| format!("{name}: {}", value.to_str().unwrap())).collect();
        Response::new(whole(told.join("\n")))
    });
    let gateway = gateway_to(&upstream.url());
    http2::run(async {
        let mut client = http2::connect(gateway.address()).await;
        let (response, mut body) = client.begin("POST", "/", &[], true);
        body.send_data(Bytes::from_static(b"hi"), false).unwrap();
        let mut trailers = HeaderMap::new();
        for name in ["x-sum", "host", "content-length", "authorization", "cookie", "x-forwarded-for", "x_sum"]
        {
            trailers.append(name.parse::<hyper::header::HeaderName>().unwrap(), "7".parse().unwrap());
        }
        body.send_trailers(trailers).unwrap();
        let (told, _) = http2::whole(response.await.unwrap().into_body()).await.unwrap();
        assert_eq!(String::from_utf8(told).unwrap(), "x-sum: 7");
    });
}

/// HAProxy ends a connection, and with it the requests of others, for trailers without a field.
#[test]
fn a_body_whose_trailers_all_stay_behind_ends_without_any() {
    let (seen, ends) = mpsc::channel();
    let upstream = WireUpstream::start(move |wire| {
        let mut server = Frames::accept(wire);
        server.next_of(HEADERS);
        while let Some(frame) = server.next() {
            if matches!(frame.kind, HEADERS | DATA) && frame.ends_stream() {
                seen.send(frame.kind).unwrap();
                server.send(HEADERS, END_HEADERS, 1, &fields(&[(":status", "200")]));
                server.send(HEADERS, END_HEADERS | END_STREAM, 1, &fields(&[("content-length", "9")]));
            }
        }
    });
    let gateway = gateway_to(&upstream.url());
    let mut client = Frames::connect(gateway.address());
    client.send(HEADERS, END_HEADERS, 1, &fields(&request("POST", &[])));
    client.send(DATA, 0, 1, b"hi");
    client.send(HEADERS, END_HEADERS | END_STREAM, 1, &fields(&[("content-length", "2")]));
    assert_eq!(ends.recv_timeout(PATIENCE).unwrap(), DATA);
    client.next_of(HEADERS);
    let end = client.next_of(DATA);
    assert!(end.ends_stream() && end.payload.is_empty());
}

#[test]
fn trailers_of_an_answer_go_on_without_what_belongs_to_the_head() {
    let trailers = [("x-sum", "7"), ("content-length", "9"), ("set-cookie", "a=b"), ("content-type", "x")];
    let gateway = answering(&[
        (
            HEADERS,
            END_HEADERS,
            fields(&[(":status", "200"), ("trailer", "x-sum, content-length, set-cookie")]),
        ),
        (DATA, 0, b"up".to_vec()),
        (HEADERS, END_HEADERS | END_STREAM, fields(&trailers)),
    ]);
    http2::run(async {
        let mut client = http2::connect(gateway.address()).await;
        let (body, trailers) = http2::whole(client.get("/").await.1).await.unwrap();
        let trailers = trailers.expect("trailers");
        assert_eq!(
            (body.as_slice(), trailers["x-sum"].as_bytes(), trailers.len()),
            (&b"up"[..], &b"7"[..], 1)
        );
    });
    let mut client = gateway.client();
    client.send(b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\nTE: trailers\r\n\r\n");
    assert_eq!(client.head().status, 200);
    assert_eq!(String::from_utf8(client.rest()).unwrap(), "2\r\nup\r\n0\r\nx-sum: 7\r\n\r\n");
}

/// HTTP/1.1 clients get all interim responses but 100 and 101.
#[test]
fn hints_go_to_clients_of_http_1() {
    let early =
        |status| (HEADERS, END_HEADERS, fields(&[(":status", status), ("link", "</a>"), ("x-own", "1")]));
    let gateway = answering(&[
        early("100"),
        early("103"),
        early("101"),
        early("199"),
        (HEADERS, END_HEADERS, fields(&[(":status", "200")])),
        (DATA, END_STREAM, b"up".to_vec()),
    ]);
    let mut client = Frames::connect(gateway.address());
    client.ask(1, &request("GET", &[]));
    let told = client.told(1);
    assert_eq!((told.status, told.end, told.text().as_str()), (200, End::Whole, "up"));
    for method in ["GET / HTTP/1.1\r\n", "POST / HTTP/1.1\r\nContent-Length: 2\r\n"] {
        let mut client = gateway.client();
        client.send(format!("{method}Host: a\r\nConnection: close\r\n\r\nhi").as_bytes());
        let rest = String::from_utf8(client.rest()).unwrap();
        let (hints, answer) = rest.split_at(rest.find("HTTP/1.1 200").expect("a response"));
        let told = "link: </a>\r\nx-own: 1\r\n\r\n";
        assert_eq!(hints, format!("HTTP/1.1 103 Early Hints\r\n{told}HTTP/1.1 199 \r\n{told}"));
        assert!(!answer.contains("link") && answer.contains("\r\n\r\n2\r\nup\r\n"), "{answer}");
    }
}

/// Answers in flight on the connection break off with it, and others come by a new one.
#[test]
fn hints_without_end_end_the_connection() {
    let (seen, ends) = mpsc::channel();
    let upstream = WireUpstream::start(move |wire| {
        let is_first = wire.number == 0;
        let mut server = Frames::accept(wire);
        let stream = server.next_of(HEADERS).stream;
        if !is_first {
            return server.send(HEADERS, END_HEADERS | END_STREAM, stream, &fields(&[(":status", "204")]));
        }
        let hint = frame(HEADERS, END_HEADERS, stream, &fields(&[(":status", "103"), ("link", "</a>")]));
        let hints = hint.repeat(1_000);
        let mut writer = server.writer();
        while writer.write_all(&hints).is_ok() {}
        seen.send(()).unwrap();
    });
    let keys = "http2 = true\ntimeouts = { response = \"3s\" }";
    let gateway =
        Gateway::start(&format!("[server]\nworkers = 1\n{}", forward_to(&[quoted(upstream.url())], keys)));
    let before = gateway.memory_kib("VmHWM");
    let mut client = Frames::connect(gateway.address());
    client.ask(1, &request("POST", &[]));
    assert_eq!(client.told(1).status, 502);
    ends.recv_timeout(PATIENCE).expect("the connection upstream ends");
    let grew = gateway.grew_kib(before);
    assert!(grew < 8 << 10, "grew by {grew} KiB");
    client.ask(3, &request("POST", &[]));
    assert_eq!(client.told(3).status, 204);
}

/// A connection may carry any number of them, if each request has few.
#[test]
fn hints_of_many_requests_are_no_flood() {
    let hint = (HEADERS, END_HEADERS, fields(&[(":status", "103"), ("link", "</a>")]));
    let mut answer = vec![hint; 20];
    answer.push((HEADERS, END_HEADERS, fields(&[(":status", "200")])));
    answer.push((DATA, END_STREAM, b"up".to_vec()));
    let gateway = answering(&answer);
    let mut client = gateway.client();
    for _ in 0..300 {
        client.send(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n");
        (0..20).for_each(|_| assert_eq!(client.head().status, 103));
        assert_eq!(client.answer().text(), "up");
    }
}

#[test]
fn an_answer_without_a_body_keeps_the_length_of_what_it_stands_for() {
    for (method, status, length) in [
        ("HEAD", "200", Some("1234")),
        ("GET", "304", Some("1234")),
        ("GET", "204", None),
        ("GET", "200", Some("0")),
    ] {
        let given = if status == "204" { "0" } else { length.unwrap_or_default() };
        let gateway = answering_head(&[(":status", status), ("content-length", given)]);
        let mut client = Frames::connect(gateway.address());
        client.ask(1, &request(method, &[]));
        let head = client.next().unwrap();
        assert!(head.kind == HEADERS && head.ends_stream(), "{method} {status}: {head:?}");
        let answer = gateway.ask(&format!("{method} /"));
        assert_eq!((answer.status.to_string().as_str(), answer.header("content-length")), (status, length));
    }
}

#[test]
fn what_is_no_answer_is_a_bad_gateway() {
    for head in [
        &[(":status", "200"), ("connection", "close")][..],
        &[(":status", "200"), ("transfer-encoding", "chunked")],
        &[(":status", "200"), ("upgrade", "x")],
        &[(":status", "200"), ("X-Upper", "a")],
        &[(":status", "200"), ("x", "a\r\nset-cookie: a=b")],
        &[(":status", "200"), ("content-length", "1")],
        &[(":status", "200"), ("content-length", "1"), ("content-length", "2")],
        &[(":status", "200"), ("content-length", "x")],
        &[(":status", "200"), (":status", "200")],
        &[("x", "y"), (":status", "200")],
        &[(":status", "20")],
        &[(":status", "2000")],
        &[("x", "y")],
    ] {
        let gateway = answering_head(head);
        let mut client = Frames::connect(gateway.address());
        client.ask(1, &request("GET", &[]));
        let told = client.told(1);
        assert_eq!((told.status, told.end), (502, End::Whole), "{head:?}: {told:?}");
        assert_eq!(gateway.get("/").status, 502, "{head:?}");
    }
}

/// A server that refuses the given stream and later ones on its first connection, and answers on others.
fn refusing_from(first: u32) -> (WireUpstream, mpsc::Receiver<(usize, u32)>) {
    let (seen, requests) = mpsc::channel();
    let upstream = WireUpstream::start(move |wire| {
        let number = wire.number;
        let mut server = Frames::accept(wire);
        while let Some(frame) = server.next() {
            if frame.kind != HEADERS {
                continue;
            }
            seen.send((number, frame.stream)).unwrap();
            if number == 0 && frame.stream >= first {
                server.reset_with(frame.stream, REFUSED_STREAM);
            } else {
                let answer = fields(&[(":status", "204")]);
                server.send(HEADERS, END_HEADERS | END_STREAM, frame.stream, &answer);
            }
        }
    });
    (upstream, requests)
}

#[test]
fn what_a_connection_refuses_is_sent_on_a_new_one() {
    for (first, asked) in [(1, &[(0, 1), (1, 1), (1, 3)][..]), (3, &[(0, 1), (0, 3), (1, 1)])] {
        let (upstream, requests) = refusing_from(first);
        let gateway = gateway_to(&upstream.url());
        let mut client = Frames::connect(gateway.address());
        for stream in [1, 3] {
            client.ask(stream, &request("POST", &[]));
            assert_eq!(client.told(stream).status, 204, "from {first} on: {stream}");
        }
        assert_eq!(requests.try_iter().collect::<Vec<_>>(), asked);
    }
}

/// Retries are no way to keep a server busy that refuses all.
#[test]
fn what_every_connection_refuses_is_sent_twice_at_most() {
    let (seen, requests) = mpsc::channel();
    let upstream = WireUpstream::start(move |wire| {
        let mut server = Frames::accept(wire);
        while let Some(frame) = server.next() {
            if frame.kind == HEADERS {
                seen.send(()).unwrap();
                server.reset_with(frame.stream, REFUSED_STREAM);
            }
        }
    });
    for (budget, times) in [("20%", 2), ("0%", 1)] {
        let keys = format!("http2 = true\nretries = {{ budget = \"{budget}\" }}");
        let gateway = Gateway::start(&format!(
            "[server]\nworkers = 1\n{}",
            forward_to(&[quoted(upstream.url())], &keys)
        ));
        let mut client = Frames::connect(gateway.address());
        client.ask(1, &request("GET", &[]));
        assert_eq!(client.told(1).status, 502);
        assert_eq!(requests.try_iter().count(), times, "{budget}");
    }
}

/// What a server says that it hasn't begun is sent again, but not if some of a body has gone.
#[test]
fn what_a_server_refuses_is_sent_again_if_nothing_is_lost_by_it() {
    for leaves in [None, Some(NO_ERROR), Some(INTERNAL_ERROR), Some(ENHANCE_YOUR_CALM)] {
        let (seen, requests) = mpsc::channel();
        let upstream = WireUpstream::start(move |wire| {
            let mut server = Frames::accept(wire);
            while let Some(frame) = server.next() {
                if frame.kind != HEADERS {
                    continue;
                }
                seen.send(()).unwrap();
                if frame.stream != 3 {
                    let answer = fields(&[(":status", "204")]);
                    server.send(HEADERS, END_HEADERS | END_STREAM, frame.stream, &answer);
                } else if let Some(code) = leaves {
                    return server.send(GOAWAY, 0, 0, &[1, code].map(u32::to_be_bytes).concat());
                } else {
                    server.reset_with(3, REFUSED_STREAM);
                }
            }
        });
        for (pieces, status, times) in [(&[][..], 204, 3), (&["a", "b"], 502, 2)] {
            let gateway = gateway_to(&upstream.url());
            let mut client = Frames::connect(gateway.address());
            client.ask(1, &request("GET", &[]));
            assert_eq!(client.told(1).status, 204);
            send(&mut client, 3, &request("POST", &[]), pieces);
            let told = client.told(3);
            assert_eq!((told.status, told.end), (status, End::Whole), "{leaves:?} {pieces:?}");
            assert_eq!(requests.try_iter().count(), times, "{leaves:?} {pieces:?}");
        }
    }
}

/// A server may go away because of one request while it answers others.
#[test]
fn what_a_server_that_goes_away_leaves_is_sent_on_a_new_connection() {
    const LEFT: u32 = 20;
    for code in [NO_ERROR, INTERNAL_ERROR, ENHANCE_YOUR_CALM] {
        let (seen, requests) = mpsc::channel();
        let upstream = WireUpstream::start(move |wire| {
            let number = wire.number;
            let mut server = Frames::accept(wire);
            let answer = fields(&[(":status", "204")]);
            while let Some(frame) = server.next() {
                if frame.kind != HEADERS {
                    continue;
                }
                seen.send(()).unwrap();
                if number > 0 {
                    server.send(HEADERS, END_HEADERS | END_STREAM, frame.stream, &answer);
                } else if frame.stream == 3 {
                    server.send(GOAWAY, 0, 0, &[1, code].map(u32::to_be_bytes).concat());
                }
            }
        });
        let gateway = gateway_to(&upstream.url());
        let mut first = gateway.client();
        first.send(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n");
        requests.recv_timeout(PATIENCE).unwrap();
        let mut others: Vec<_> = (0..LEFT).map(|_| Frames::connect(gateway.address())).collect();
        others.iter_mut().for_each(|client| client.ask(1, &request("POST", &[])));
        for client in &mut others {
            assert_eq!(client.told(1).status, 204, "{code}");
        }
    }
}

/// A server may have stopped to serve a connection that it leaves open. The requests on it learn of that by the response timeout.
#[test]
fn a_silent_connection_gets_no_new_requests() {
    let (seen, requests) = mpsc::channel();
    let upstream = WireUpstream::start(move |wire| {
        let number = wire.number;
        let mut server = Frames::accept(wire);
        while let Some(frame) = server.next() {
            if frame.kind == HEADERS {
                seen.send(number).unwrap();
            }
        }
    });
    let keys = "http2 = true\ntimeouts = { response = \"1h\" }";
    let gateway =
        Gateway::start(&format!("[server]\nworkers = 1\n{}", forward_to(&[quoted(upstream.url())], keys)));
    // Fewer than a connection may have at a time.
    let mut clients = Vec::new();
    while clients.len() < 90 {
        let mut client = gateway.client();
        client.send(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n");
        clients.push(client);
        if requests.recv_timeout(PATIENCE).unwrap() > 0 {
            return;
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    panic!("all requests went to the silent connection");
}

/// nginx sends GOAWAY with the 1,000th request of a connection, and a request with a body can't be sent again.
#[test]
fn a_connection_is_left_before_servers_end_it_for_the_number_of_requests() {
    const ACCEPTED: u32 = 1_000;
    let upstream = WireUpstream::start(|wire| {
        let mut server = Frames::accept(wire);
        let answer = fields(&[(":status", "204")]);
        while let Some(frame) = server.next() {
            let number = frame.stream.div_ceil(2);
            if matches!(frame.kind, HEADERS | DATA) && frame.ends_stream() && number <= ACCEPTED {
                server.send(HEADERS, END_HEADERS | END_STREAM, frame.stream, &answer);
            }
            if frame.kind == HEADERS && number == ACCEPTED {
                server.send(GOAWAY, 0, 0, &[frame.stream, NO_ERROR].map(u32::to_be_bytes).concat());
            }
        }
    });
    let gateway = gateway_to(&upstream.url());
    let mut clients = [(); 48].map(|()| gateway.client());
    for round in 0..30 {
        clients.iter_mut().for_each(|client| {
            client.send(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\nbody");
        });
        clients.iter_mut().for_each(|client| assert_eq!(client.answer().status, 204, "{round}"));
    }
}

/// Has clients cancel requests, as many at a time, each of which the upstream has seen.
fn cancel(gateway: &Gateway, requests: &mpsc::Receiver<()>, clients: u32, at_a_time: u32) {
    for _ in 0..clients {
        let mut client = Frames::connect(gateway.address());
        client.ask_at_once(at_a_time, &request("GET", &[]));
        (0..at_a_time).for_each(|_| requests.recv_timeout(PATIENCE).unwrap());
        (0..at_a_time).for_each(|at| client.reset(2 * at + 1));
    }
}

/// A response may be on its way when its request is cancelled, for longer than h2 remembers that.
#[test]
fn late_responses_to_cancelled_requests_leave_the_connection_to_others() {
    const FORGOTTEN: Duration = Duration::from_millis(1_100);
    let (seen, requests) = mpsc::channel();
    let upstream = WireUpstream::start(move |wire| {
        let mut server = Frames::accept(wire);
        let (head, mut cancelled) = (fields(&[(":status", "200")]), Vec::new());
        while let Some(frame) = server.next() {
            if frame.kind == HEADERS {
                seen.send(()).unwrap();
            } else if frame.kind == RST_STREAM && frame.code() == CANCEL {
                cancelled.push(frame.stream);
            }
            if cancelled.len() == 90 {
                std::thread::sleep(FORGOTTEN);
                for late in cancelled.drain(..) {
                    server.send(HEADERS, END_HEADERS, late, &head);
                    (0..20).for_each(|_| server.send(DATA, 0, late, b"late"));
                }
                server.send(HEADERS, END_HEADERS | END_STREAM, 1, &head);
            }
        }
    });
    let gateway = gateway_to(&upstream.url());
    let mut waiting = gateway.client();
    waiting.send(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    requests.recv_timeout(PATIENCE).unwrap();
    cancel(&gateway, &requests, 1, 90);
    assert_eq!(waiting.head().status, 200);
}

/// Others wait for the connection that a request opens.
#[test]
fn a_request_that_is_cancelled_leaves_the_connection_that_it_opens_to_others() {
    const CANCELLED: u32 = 50;
    let (answer, answers) = mpsc::channel::<()>();
    let answers = Mutex::new(answers);
    let upstream = WireUpstream::start(move |wire| {
        answers.lock().unwrap().recv().unwrap();
        let mut server = Frames::accept(wire);
        while let Some(frame) = server.next() {
            if frame.kind == HEADERS {
                let answer = fields(&[(":status", "204")]);
                server.send(HEADERS, END_HEADERS | END_STREAM, frame.stream, &answer);
            }
        }
    });
    let gateway = gateway_to(&upstream.url());
    let mut client = Frames::connect(gateway.address());
    client.ask_at_once(CANCELLED, &request("GET", &[]));
    wait_until("a connection is opened", || upstream.connections() == 1);
    (0..CANCELLED).for_each(|at| client.reset(2 * at + 1));
    // The gateway has read all resets once it rejects what comes behind them.
    client.ask(2 * CANCELLED + 1, &get("/%00", &[]));
    assert_eq!(client.told(2 * CANCELLED + 1).status, 400);
    answer.send(()).unwrap();
    client.ask(2 * CANCELLED + 3, &request("GET", &[]));
    assert_eq!(client.told(2 * CANCELLED + 3).status, 204);
    assert_eq!(upstream.connections(), 1);
}

/// A server that answers a request once its body has ended, allows so many requests at a time, and ends a connection with so many
/// cancelled ones. It tells of each request.
fn ending_after_resets(most: u32, accepted: u32) -> (WireUpstream, mpsc::Receiver<()>) {
    let (seen, requests) = mpsc::channel();
    let upstream = WireUpstream::start(move |wire| {
        let mut server = Frames::accept(wire);
        let most = [&MAX_CONCURRENT_STREAMS.to_be_bytes()[..], &most.to_be_bytes()].concat();
        server.send(SETTINGS, 0, 0, &most);
        let (answer, mut cancelled) = (fields(&[(":status", "204")]), 0);
        while let Some(frame) = server.next() {
            if frame.kind == HEADERS {
                seen.send(()).unwrap();
            }
            cancelled += u32::from(frame.kind == RST_STREAM);
            if cancelled == accepted {
                return;
            }
            if frame.kind == DATA && frame.flags & END_STREAM != 0 {
                server.send(HEADERS, END_HEADERS | END_STREAM, frame.stream, &answer);
            }
        }
    });
    (upstream, requests)
}

#[test]
fn a_connection_has_no_more_cancelled_requests_than_servers_accept() {
    // As Envoy and Tollgate, and as Go with fewer requests at a time
    for (most, accepted) in [(200, 250), (10, 41)] {
        let (upstream, requests) = ending_after_resets(most, accepted);
        let gateway = gateway_to(&upstream.url());
        let mut waiting = gateway.client();
        waiting.send(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n1");
        requests.recv_timeout(PATIENCE).unwrap();
        // Some at a time, and then as many as one client may have in flight at once.
        cancel(&gateway, &requests, 20, most.min(33) - 1);
        cancel(&gateway, &requests, 20, most.min(100));
        waiting.send(b"2");
        assert_eq!(waiting.head().status, 204, "{most}");
    }
}

/// A client that holds a slow request on each of them leaves connections to others.
#[test]
fn connections_with_many_cancelled_requests_do_not_count() {
    const HELD: usize = 3;
    let (upstream, requests) = ending_after_resets(200, 250);
    let forward = forward_to(&[quoted(upstream.url())], "http2 = true\nmax_connections = 1");
    let gateway = Gateway::start(&format!("[server]\nworkers = 1\n{forward}"));
    let mut held: Vec<_> = (0..HELD).map(|_| gateway.client()).collect();
    for client in &mut held {
        client.send(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n1");
        requests.recv_timeout(PATIENCE).unwrap();
        cancel(&gateway, &requests, 2, 50);
    }
    assert_eq!(gateway.ask("POST /\nContent-Length: 1\n\n1").status, 204);
    assert!(upstream.connections() > HELD);
    for client in &mut held {
        client.send(b"2");
        assert_eq!(client.head().status, 204);
    }
}
