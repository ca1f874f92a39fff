//! Upstreams with HTTP/2.

use std::{
    io::{self, Write},
    net::{Shutdown, TcpStream},
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering::SeqCst},
        mpsc,
    },
    thread,
    time::{Duration, Instant},
};

use bytes::Bytes;
use http_body_util::{BodyExt, StreamBody, combinators::BoxBody};
use hyper::{
    HeaderMap, Request, Response, Version,
    body::{Frame, Incoming},
    header::{HeaderName, HeaderValue},
    server::conn::http2,
};
use hyper_util::rt::TokioExecutor;
use socket2::SockRef;
use tokio::{net::TcpListener, sync::Semaphore};

use crate::{
    harness::{
        PATIENCE,
        client::{Client, connect_with_buffer},
        cut::{Cut, Fault},
        frames::{
            DATA, END_HEADERS, END_STREAM, ENHANCE_YOUR_CALM, Frames, HEADERS, INITIAL_WINDOW, SETTINGS,
            WINDOW_UPDATE, fields, frame, get,
        },
        gateway::Gateway,
        redis::tls::Certificates,
        upstream::{Body, Speech, Upstream, whole},
        wait_until,
        wire::WireUpstream,
    },
    proxy::{cleartext_http2, forward_to, quoted},
};

fn gateway(url: &str, keys: &str) -> Gateway {
    let keys = format!("http2 = true\n{keys}");
    Gateway::start(&format!("[server]\nworkers = 1\n{}", forward_to(&[quoted(url)], &keys)))
}

#[test]
fn a_request_is_written_as_http_2_has_it() {
    let upstream = Upstream::speaking(cleartext_http2(), |request| async {
        Response::new(BodyExt::boxed(request.into_body().map_err(|error| panic!("{error}"))))
    });
    let gateway = gateway(&upstream.url(), "");
    let answer = gateway.ask("POST /a?b=c\nHost: api.example.com\nTransfer-Encoding: chunked\nTE: trailers\n\n3\r\nabc\r\n0\r\n\r\n");
    assert_eq!((answer.status, answer.text().as_str()), (200, "abc"));
    let request = upstream.last();
    assert_eq!(request.version, Version::HTTP_2);
    assert_eq!(request.uri.to_string(), "http://api.example.com/a?b=c");
    assert!(
        ["host", "transfer-encoding", "connection"].iter().all(|name| !request.headers.contains_key(*name))
    );
    assert_eq!(request.headers["te"], "trailers");
    assert_eq!(gateway.ask("POST /\nContent-Length: 3\n\nabc").text(), "abc");
    assert_eq!(upstream.last().headers["content-length"], "3");
    for (sent, authority) in [("a:", "a"), ("a:0", "a"), ("[::1]:99999", "[::1]"), ("a:81", "a:81")] {
        assert_eq!(gateway.ask(&format!("GET /\nHost: {sent}")).status, 200, "{sent}");
        assert_eq!(upstream.last().uri.authority().unwrap(), authority);
    }
    // nginx refuses a second Authorization, and then ends the connection for an empty field.
    for (fields, has_empty) in [("Authorization: a\nAuthorization: b", false), ("Authorization: a", true)] {
        assert_eq!(gateway.ask(&format!("GET /\n{fields}\nX-A:\nX-A: b\nX-B:")).status, 200);
        let headers = upstream.last().headers;
        assert_eq!(headers.get_all("x-a").iter().count(), if has_empty { 2 } else { 1 });
        assert_eq!(headers.contains_key("x-b"), has_empty);
    }
    // Hypercorn ends the connection for an empty cookie behind another, h2o for fields of an upgrade.
    assert_eq!(gateway.ask("GET /\nCookie: a=1\nCookie:\nHTTP2-Settings: AAMAAABk\nX-A:").status, 200);
    let headers = upstream.last().headers;
    assert!(headers.get_all("cookie").iter().eq(["a=1"]));
    assert_eq!(["http2-settings", "x-a"].map(|name| headers.contains_key(name)), [false, true]);
    // Letters beyond ASCII, and `%` that begins no escape
    for (sent, target) in
        [("/é?ü", "/%C3%A9?%C3%BC"), ("/[%41]?a[]=%4é100%", "/%5B%41%5D?a%5B%5D=%254%C3%A9100%25")]
    {
        assert_eq!(gateway.get(sent).status, 200);
        assert_eq!(upstream.last().uri.path_and_query().unwrap(), target);
    }
    // A long one with few of them is fine.
    assert_eq!(gateway.get(&format!("/?{}=100%é", "a".repeat(7_500))).status, 200);
    // Encoded, they take six and three bytes each.
    for (sent, most) in [("é", 1_190), ("%", 2_380), ("[", 2_380)] {
        let statuses =
            [most, most + 10].map(|count| gateway.get(&format!("/?{}", sent.repeat(count))).status);
        assert_eq!(statuses, [200, 414]);
    }
    // gRPC for Java ends the connection for metadata that isn't base64, whatever the content is.
    for (kind, value, expected) in [
        ("text/plain", "YQ==", (200, None)),
        ("text/plain", "!!", (400, None)),
        ("application/grpc", "!!", (200, Some("13"))),
        ("application/grpc", "YQ,\t YQ==", (200, None)),
    ] {
        let answer =
            gateway.ask(&format!("POST /\nContent-Type: {kind}\nX-Bin: {value}\nContent-Length: 1\n\na"));
        assert_eq!((answer.status, answer.header("grpc-status")), expected, "{kind} {value}");
    }
    assert_eq!(upstream.last().headers["x-bin"], "YQ,YQ==");
}

/// A path may get longer by `rewrite`.
#[test]
fn a_rewritten_target_that_would_be_too_long_with_its_escapes_is_refused() {
    let upstream = Upstream::speaking(cleartext_http2(), |_| async { Response::new(whole("hello")) });
    let toml = forward_to(&[quoted(upstream.url())], "http2 = true");
    let gateway = Gateway::start(&toml.replace("[[routes]]", "[[routes]]\nrewrite = \"/prefix/{*rest}\""));
    assert_eq!(
        [1_190, 1_194].map(|count| gateway.get(&format!("/{}", "é".repeat(count))).status),
        [200, 414]
    );
}

#[test]
fn a_target_that_would_be_too_long_with_its_escapes_ends_no_connection() {
    let upstream = Upstream::speaking(cleartext_http2(), |_| async { Response::new(whole("hello")) });
    let toml = forward_to(&[quoted(upstream.url())], "http2 = true");
    let gateway = Gateway::start(&format!("[server]\nworkers = 1\nmax_header_bytes = \"128KiB\"\n{toml}"));
    let mut client = gateway.client();
    // No target is longer than 65,534 bytes.
    assert_eq!(client.get(&format!("/?{}{}", "a".repeat(65_300), "%".repeat(200))).status, 414);
    assert_eq!(client.get("/").status, 200);
}

#[test]
fn a_response_has_no_more_fields_than_one_of_http_1() {
    let upstream = Upstream::speaking(cleartext_http2(), |request| async move {
        // Beside `Date`.
        let fields = request.uri().path()[1..].parse::<usize>().unwrap() - 1;
        let mut response = Response::new(whole("ok"));
        let fields = (0..fields).map(|number| format!("x-{number}").parse().unwrap());
        response.headers_mut().extend(fields.map(|name: HeaderName| (name, HeaderValue::from_static("a"))));
        response
    });
    let gateway = gateway(&upstream.url(), "");
    assert_eq!(
        [99, 101, 99, 300].map(|fields| gateway.get(&format!("/{fields}")).status),
        [200, 502, 200, 502]
    );
    wait_until("the cause is told", || gateway.log().contains("the response has too many fields"));
    assert_eq!(upstream.connections().len(), 1);
}

/// Answers on a signal.
fn waiting(speech: Speech) -> (Upstream, Arc<Semaphore>) {
    let permits = Arc::new(Semaphore::new(0));
    let answers = permits.clone();
    let upstream = Upstream::speaking(speech, move |_| {
        let answers = answers.clone();
        async move {
            answers.acquire().await.unwrap().forget();
            Response::new(whole("hello"))
        }
    });
    (upstream, permits)
}

#[test]
fn one_connection_carries_as_many_requests_as_the_server_takes() {
    for (most, connections) in [(None, 1), (Some(4), 5)] {
        let mut builder = http2::Builder::new(TokioExecutor::new());
        builder.max_concurrent_streams(most.unwrap_or(200));
        let (upstream, answers) = waiting(Speech::Http2(builder));
        let gateway = gateway(&upstream.url(), "");
        let mut clients = [(); 20].map(|()| gateway.client());
        for client in &mut clients {
            client.send(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n");
        }
        wait_until("all requests arrive", || upstream.count() == 20);
        assert_eq!(upstream.connections().len(), connections);
        answers.add_permits(20);
        assert!(clients.iter_mut().all(|client| client.answer().text() == "hello"));
    }
}

#[test]
fn beyond_the_most_connections_a_request_is_refused() {
    let mut builder = http2::Builder::new(TokioExecutor::new());
    builder.max_concurrent_streams(1);
    let (upstream, answers) = waiting(Speech::Http2(builder));
    let gateway = gateway(&upstream.url(), "max_connections = 2");
    let mut clients = [(); 2].map(|()| gateway.client());
    for client in &mut clients {
        client.send(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    }
    wait_until("both requests arrive", || upstream.count() == 2);
    assert_eq!(gateway.get("/").json()["code"], "upstream-busy");
    answers.add_permits(3);
    assert!(clients.iter_mut().all(|client| client.answer().text() == "hello"));
    assert_eq!((gateway.get("/").text().as_str(), upstream.connections().len()), ("hello", 2));
}

#[test]
fn where_one_server_has_no_room_another_one_is_asked() {
    let mut builder = http2::Builder::new(TokioExecutor::new());
    builder.max_concurrent_streams(1);
    let (full, answers) = waiting(Speech::Http2(builder));
    let other = Upstream::speaking(cleartext_http2(), |_| async { Response::new(whole("other")) });
    let list = [&full, &other].map(|server| quoted(server.url()));
    let keys = "http2 = true\nmax_connections = 1\nbalance = \"round-robin\"\ntimeouts = { idle = \"1h\" }";
    let gateway = Gateway::start(&format!("[server]\nworkers = 1\n{}", forward_to(&list, keys)));
    let mut clients = [(); 2].map(|()| gateway.client());
    clients.iter_mut().for_each(|client| client.send(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"));
    wait_until("each server gets a request", || (full.count(), other.count()) == (1, 1));
    assert_eq!([(); 10].map(|()| gateway.get("/").text()), ["other"; 10]);
    answers.add_permits(1);
    let mut texts = clients.map(|mut client| client.answer().text());
    texts.sort();
    assert_eq!(texts, ["hello", "other"]);
}

#[test]
fn connections_with_free_streams_are_kept_beside_the_last_used_one() {
    let mut builder = http2::Builder::new(TokioExecutor::new());
    builder.max_concurrent_streams(2);
    let (upstream, answers) = waiting(Speech::Http2(builder));
    let gateway = gateway(&upstream.url(), "max_connections = 2");
    let mut clients = [(); 4].map(|()| gateway.client());
    let send = |client: &mut Client, count| {
        client.send(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n");
        wait_until("the request arrives", || upstream.count() == count);
    };
    clients.iter_mut().enumerate().for_each(|(before, client)| send(client, before + 1));
    // Only the first connection has a free stream then.
    answers.add_permits(1);
    assert_eq!(clients[0].answer().text(), "hello");
    send(&mut clients[0], 5);
    answers.add_permits(4);
    assert!(clients.iter_mut().all(|client| client.answer().text() == "hello"));
    assert_eq!(upstream.connections().len(), 2);
}

/// The bound is of all workers, and the idle connections of one are no use to another.
#[test]
fn each_worker_has_a_connection_to_each_server_however_few_there_may_be() {
    let certificates = Certificates::for_server(&["127.0.0.1"]);
    let hello = |speech| Upstream::speaking(speech, |_| async { Response::new(whole("hello")) });
    let tls = |protocols: &[&str]| Speech::Tls(certificates.server(protocols, false));
    let both = |speech: &Speech| [hello(speech.clone()), hello(speech.clone())];
    // The last ones decline HTTP/2.
    for servers in [both(&cleartext_http2()), both(&tls(&["h2"])), both(&tls(&["http/1.1"]))] {
        let roots = if servers[0].url().starts_with("https") {
            format!("tls = {{ ca = {:?} }}", certificates.path("ca.pem"))
        } else {
            String::new()
        };
        let keys = format!(
            "http2 = true\nmax_connections = 1\nbalance = \"round-robin\"\ntimeouts = {{ idle = \"1h\" }}\n{roots}"
        );
        let list = servers.each_ref().map(|server| quoted(server.url()));
        let gateway = Gateway::start(&format!("[server]\nworkers = 4\n{}", forward_to(&list, &keys)));
        for _ in 0..100 {
            assert_eq!(gateway.get("/").text(), "hello");
        }
        let connections = servers.each_ref().map(|server| server.connections().len());
        assert!(connections.iter().all(|count| (2..=4).contains(count)), "{connections:?}");
    }
}

/// Idle connections of one worker are no use to another, and don't count against its requests.
#[test]
fn a_server_that_declines_http_2_gets_as_many_requests_as_connections_are_allowed() {
    let certificates = Certificates::for_server(&["127.0.0.1"]);
    let (upstream, answers) = waiting(Speech::Tls(certificates.server(&["http/1.1"], false)));
    let keys =
        format!("http2 = true\nmax_connections = 4\ntls = {{ ca = {:?} }}", certificates.path("ca.pem"));
    let toml = forward_to(&[quoted(upstream.url())], &keys);
    let gateway = Gateway::start(&format!("[server]\nworkers = 2\n{toml}"));
    answers.add_permits(1);
    assert_eq!(gateway.get("/").text(), "hello");
    for round in 1..=20 {
        let mut clients = [(); 4].map(|()| gateway.client());
        clients.iter_mut().for_each(|client| client.send(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"));
        wait_until("four requests arrive", || upstream.count() == 4 * round + 1);
        assert_eq!(gateway.get("/").json()["code"], "upstream-busy");
        answers.add_permits(4);
        assert!(clients.iter_mut().all(|client| client.answer().text() == "hello"));
    }
}

/// A balancer that passes the first connection to one server, and all others to another one. Returns its port.
fn balancer(first: &Upstream, others: &Upstream) -> u16 {
    let [first, others] = [first, others].map(|server| server.url().replace("https://", ""));
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    thread::spawn(move || {
        for (number, client) in listener.incoming().enumerate() {
            let client = client.unwrap();
            let server = TcpStream::connect(if number == 0 { &first } else { &others }).unwrap();
            let back = (server.try_clone().unwrap(), client.try_clone().unwrap());
            for (mut from, mut to) in [(client, server), back] {
                thread::spawn(move || {
                    // Either side may leave.
                    let _ = io::copy(&mut from, &mut to);
                    let _ = to.shutdown(Shutdown::Write);
                });
            }
        }
    });
    port
}

#[test]
fn a_server_that_has_declined_http_2_once_may_choose_it_later() {
    let certificates = Certificates::for_server(&["127.0.0.1"]);
    let tls = |protocols: &[&str]| Speech::Tls(certificates.server(protocols, false));
    let old = Upstream::speaking(tls(&["http/1.1"]), |_| async {
        Response::builder().header("connection", "close").body(whole("hello")).unwrap()
    });
    let new = Upstream::speaking(tls(&["h2"]), |_| async { Response::new(whole("hello")) });
    let url = format!("https://127.0.0.1:{}", balancer(&old, &new));
    let gateway = gateway(&url, &format!("tls = {{ ca = {:?} }}", certificates.path("ca.pem")));
    for _ in 0..5 {
        assert_eq!(gateway.get("/").text(), "hello");
    }
    let counts = [&old, &new].map(|server| (server.count(), server.connections().len()));
    assert_eq!(counts, [(1, 1), (4, 1)]);
}

#[test]
fn trailers_go_both_ways() {
    let upstream = Upstream::speaking(cleartext_http2(), |request| async {
        let collected = request.into_body().collect().await.unwrap();
        let sum = collected.trailers().and_then(|trailers| trailers.get("x-sum")).cloned();
        let mut trailers = HeaderMap::new();
        trailers.insert("x-sum", sum.unwrap());
        let frames = [Frame::data(Bytes::from("hello")), Frame::trailers(trailers)].map(Ok);
        let body = BoxBody::new(StreamBody::new(futures_util::stream::iter(frames)));
        Response::builder().header("trailer", "x-sum").body(body).unwrap()
    });
    let gateway = gateway(&upstream.url(), "");
    let mut client = gateway.client();
    client.send(
        b"POST / HTTP/1.1\r\nHost: a\r\nConnection: close, TE\r\nTE: trailers\r\nTransfer-Encoding: chunked\r\nTrailer: x-sum\r\n\r\n\
          3\r\nabc\r\n0\r\nx-sum: 42\r\n\r\n",
    );
    let answer = String::from_utf8(client.rest()).unwrap();
    assert!(
        answer.starts_with("HTTP/1.1 200") && answer.ends_with("hello\r\n0\r\nx-sum: 42\r\n\r\n"),
        "{answer}"
    );
}

/// Says whether a request has trailers.
async fn tell_of_trailers(request: Request<Incoming>) -> Response<Body> {
    let has_trailers = request.into_body().collect().await.unwrap().trailers().is_some();
    Response::new(whole(if has_trailers { "trailers" } else { "none" }))
}

/// Sends a request with trailers, and returns whether the server has got them.
fn trailers_arrive(gateway: &Gateway) -> bool {
    let mut client = gateway.client();
    client.send(
        b"POST / HTTP/1.1\r\nHost: a\r\nConnection: close\r\nTransfer-Encoding: chunked\r\nTrailer: x-sum\r\n\r\n\
          3\r\nabc\r\n0\r\nx-sum: 42\r\n\r\n",
    );
    let told = String::from_utf8(client.rest()).unwrap();
    assert!(told.ends_with("trailers") || told.ends_with("none"), "{told}");
    told.ends_with("trailers")
}

/// nginx ends the connection for them, and Go if it has answered before they come.
#[test]
fn trailers_share_a_connection_with_no_other_request() {
    let permits = Arc::new(Semaphore::new(0));
    let waits = permits.clone();
    let upstream = Upstream::speaking(cleartext_http2(), move |request| {
        let waits = waits.clone();
        async move {
            if request.uri().path() == "/waits" {
                waits.acquire().await.unwrap().forget();
            }
            tell_of_trailers(request).await
        }
    });
    let gateway = gateway(&upstream.url(), "");
    let mut other = gateway.client();
    other.send(b"GET /waits HTTP/1.1\r\nHost: a\r\n\r\n");
    wait_until("the server has the other's request", || upstream.count() == 1);
    assert!(!trailers_arrive(&gateway));
    permits.add_permits(1);
    assert_eq!(other.answer().status, 200);
    assert_eq!(upstream.connections().len(), 1);
    wait_until("trailers are forwarded again", || trailers_arrive(&gateway));
    assert_eq!(gateway.get("/").status, 200);
    let connections = upstream.connections();
    assert_eq!(connections.len(), 2, "{connections:?}");
}

/// Node.js resets new requests on a connection so while responses on it take 10 MB that nobody reads.
#[test]
fn a_connection_on_which_the_server_wants_calm_gets_no_more_requests() {
    let upstream = WireUpstream::start(|wire| {
        let mut server = Frames::accept(wire);
        let mut is_full = false;
        while let Some(frame) = server.next() {
            if frame.kind != HEADERS {
                continue;
            }
            if is_full {
                server.reset_with(frame.stream, ENHANCE_YOUR_CALM);
            } else {
                server.send(HEADERS, END_HEADERS, frame.stream, &fields(&[(":status", "200")]));
                server.send(DATA, END_STREAM, frame.stream, b"hello");
            }
            is_full = true;
        }
    });
    let gateway = gateway(&upstream.url(), "");
    let statuses = [(); 7].map(|()| gateway.get("/").status);
    assert_eq!(statuses, [200, 502, 200, 502, 200, 502, 200]);
    // Few connections are given up so. Else every second request would be answered.
    assert!([(); 20].map(|()| gateway.get("/").status).windows(2).any(|two| two == [502, 502]));
    wait_until("another connection is used", || gateway.get("/").status == 200);
}

/// Others have to wait for a new one each time.
#[test]
fn few_connections_are_given_up_for_trailers() {
    let upstream = Upstream::speaking(cleartext_http2(), tell_of_trailers);
    let gateway = gateway(&upstream.url(), "");
    let since = Instant::now();
    let arrived = (0..40).filter(|_| trailers_arrive(&gateway)).count();
    let most = 5 + since.elapsed().as_secs() as usize;
    assert!((4..=most).contains(&arrived), "{arrived} of 40 arrived, of at most {most}");
    let connections = upstream.connections();
    assert!(connections.len() <= arrived + 1, "{connections:?}");
    wait_until("trailers are forwarded again", || trailers_arrive(&gateway));
}

/// The route's timeout ends each request before the one of responses would tell that the connection is dead.
#[test]
fn a_dead_connection_is_replaced_however_short_the_timeout_of_its_route() {
    let upstream = Upstream::speaking(cleartext_http2(), |_| async { Response::new(whole("hello")) });
    let cut = Cut::before(upstream.url().rsplit(':').next().unwrap().parse().unwrap());
    let list = [quoted(format!("http://127.0.0.1:{}", cut.port()))];
    let toml = forward_to(&list, "http2 = true\ntimeouts = { idle = \"1h\" }") + "timeout = \"100ms\"";
    let gateway = Gateway::start(&format!("[server]\nworkers = 1\n{toml}"));
    wait_until("the server answers", || gateway.get("/").status == 200);
    cut.set(Fault::Swallow);
    assert_eq!(gateway.get("/").json()["code"], "exchange-timeout");
    // That connection swallows for ever, and new ones don't.
    cut.set(Fault::None);
    wait_until("another connection is used", || gateway.get("/").status == 200);
}

/// All of them share a connection, and its window.
#[test]
fn who_takes_nothing_holds_up_nobody_else_and_is_read_no_further() {
    const CLIENTS: usize = 20;
    /// Of each of their answers, with what the system and HTTP/1.1 buffer.
    const GROWTH_KIB: usize = CLIENTS * 1024;
    let upstream = Upstream::speaking(cleartext_http2(), |request| async move {
        match request.uri().path() {
            "/large" => Response::new(whole(vec![b'x'; 16 << 20])),
            _ => Response::new(whole("hello")),
        }
    });
    let gateway = gateway(&upstream.url(), "");
    assert_eq!(gateway.get("/").text(), "hello");
    let before = gateway.memory_kib("VmHWM");
    let mut slow = [(); CLIENTS].map(|()| gateway.client());
    for client in &mut slow {
        client.send(b"GET /large HTTP/1.1\r\nHost: a\r\n\r\n");
        assert_eq!(client.head().status, 200);
    }
    let mut other = gateway.client();
    for _ in 0..100 {
        assert_eq!(other.get("/").text(), "hello");
    }
    assert_eq!(upstream.connections().len(), 1);
    let growth = gateway.memory_kib("VmHWM") - before;
    assert!(growth < GROWTH_KIB, "grew by {growth} KiB");
    // And what is taken in the end is all there.
    assert_eq!(slow[0].bytes(16 << 20).len(), 16 << 20);
}

/// None of them waits for room.
#[test]
fn small_bodies_share_a_connection() {
    let upstream = Upstream::speaking(cleartext_http2(), |_| async { Response::new(whole("hello")) });
    let gateway = gateway(&upstream.url(), "");
    assert_eq!(gateway.get("/").text(), "hello");
    let mut clients: Vec<_> = (0..50).map(|_| gateway.client()).collect();
    gateway.pause();
    for client in &mut clients {
        client.send(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc");
    }
    gateway.resume();
    clients.iter_mut().for_each(|client| assert_eq!(client.head().status, 200));
    assert_eq!(upstream.connections().len(), 1);
}

/// A server sends each answer in pieces of one byte.
#[test]
fn small_pieces_that_nobody_takes_need_little_memory() {
    const CLIENTS: usize = 4;
    /// The bytes of each answer: as many as the gateway's window admits.
    const SENT: usize = 128 << 10;
    const GROWTH_KIB: usize = 8 << 10;
    let piece = |stream, at: usize| frame(DATA, 0, stream, &[at as u8]);
    let (asked, waits) = mpsc::channel();
    let upstream = WireUpstream::start(move |wire| {
        let mut server = Frames::accept(wire);
        while let Some(asked_for) = server.next() {
            if asked_for.kind == HEADERS {
                let stream = asked_for.stream;
                server.send(HEADERS, END_HEADERS, stream, &fields(&[(":status", "200")]));
                server.write(&(0..SENT).flat_map(|at| piece(stream, at)).collect::<Vec<_>>());
                asked.send(()).unwrap();
            }
        }
    });
    let gateway = gateway(&upstream.url(), "");
    let before = gateway.memory_kib("VmHWM");
    // Windows of nothing.
    let mut clients = [(); CLIENTS].map(|()| Frames::connect_with(gateway.address(), &[(INITIAL_WINDOW, 0)]));
    for client in &mut clients {
        client.ask(1, &get("/", &[]));
        waits.recv_timeout(PATIENCE).unwrap();
        assert_eq!(client.next_of(HEADERS).status(), 200);
    }
    wait_until_idle(&gateway);
    let growth = gateway.grew_kib(before);
    assert!(growth < GROWTH_KIB, "grew by {growth} KiB");
    // All of it is there once it is taken.
    for client in &mut clients {
        let mut received = Vec::new();
        client.send(WINDOW_UPDATE, 0, 1, &(1_u32 << 20).to_be_bytes());
        client.send(WINDOW_UPDATE, 0, 0, &(1_u32 << 20).to_be_bytes());
        while received.len() < SENT {
            received.extend(client.next_of(DATA).payload);
        }
        assert!(received.iter().enumerate().all(|(at, byte)| *byte == at as u8));
    }
}

/// Chunks of one byte: more than h2 takes while a connection isn't read.
const SMALL_CHUNKS: usize = 4_000_000;
/// The memory that those take which h2 would hold is ten times that.
const SMALL_CHUNKS_KIB: usize = 10 << 10;
/// A window that never fills.
const WINDOW: u32 = 1 << 30;

/// Sends small chunks until all are taken, or none for a second.
fn send_small_chunks(stream: &mut TcpStream) {
    stream.set_write_timeout(Some(Duration::from_secs(1))).unwrap();
    let _ = stream.write_all(&b"1\r\nx\r\n".repeat(SMALL_CHUNKS));
}

fn wait_until_idle(gateway: &Gateway) {
    wait_until("the gateway has read what it takes", || {
        let before = gateway.cpu();
        thread::sleep(Duration::from_millis(100));
        gateway.cpu() == before
    });
}

#[test]
fn small_chunks_that_a_server_does_not_read_need_little_memory() {
    let (stop, stopped) = mpsc::channel::<()>();
    let stopped = Mutex::new(stopped);
    let upstream = WireUpstream::start(move |mut wire| {
        // What the kernel holds would take long to fill.
        SockRef::from(&*wire.stream()).set_recv_buffer_size(4 << 10).unwrap();
        let mut server = Frames::accept(wire);
        server.send(SETTINGS, 0, 0, &[&INITIAL_WINDOW.to_be_bytes()[..], &WINDOW.to_be_bytes()].concat());
        server.send(WINDOW_UPDATE, 0, 0, &WINDOW.to_be_bytes());
        let _ = stopped.lock().unwrap().recv();
    });
    let gateway = gateway(&upstream.url(), "");
    let before = gateway.memory_kib("VmHWM");
    let mut client = TcpStream::connect(gateway.address()).unwrap();
    client.write_all(b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n").unwrap();
    send_small_chunks(&mut client);
    wait_until_idle(&gateway);
    let growth = gateway.grew_kib(before);
    drop(stop);
    assert!(growth < SMALL_CHUNKS_KIB, "grew by {growth} KiB");
}

#[test]
fn small_chunks_that_a_client_does_not_read_need_little_memory() {
    const REQUESTS: u32 = 8;
    let (sent, all_sent) = mpsc::channel();
    let upstream = WireUpstream::start(move |mut wire| {
        wire.request();
        wire.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n");
        send_small_chunks(wire.stream());
        sent.send(()).unwrap();
    });
    let gateway =
        Gateway::start(&format!("[server]\nworkers = 1\n{}", forward_to(&[quoted(upstream.url())], "")));
    let before = gateway.memory_kib("VmHWM");
    let mut client = Frames::on(connect_with_buffer(gateway.address(), 4 << 10), &[(INITIAL_WINDOW, WINDOW)]);
    client.send(WINDOW_UPDATE, 0, 0, &WINDOW.to_be_bytes());
    client.ask_at_once(REQUESTS, &get("/", &[]));
    for _ in 0..REQUESTS {
        all_sent.recv_timeout(PATIENCE).unwrap();
    }
    wait_until_idle(&gateway);
    let growth = gateway.grew_kib(before);
    assert!(growth < SMALL_CHUNKS_KIB, "grew by {growth} KiB");
}

#[test]
fn a_connection_that_idles_too_long_is_closed() {
    let (upstream, answers) = waiting(cleartext_http2());
    answers.add_permits(2);
    let gateway = gateway(&upstream.url(), "timeouts = { idle = \"50ms\" }");
    assert_eq!(gateway.get("/").status, 200);
    wait_until("it is closed", || upstream.open() == 0);
    assert_eq!(gateway.get("/").status, 200);
    assert_eq!(upstream.connections().len(), 2);
}

#[test]
fn a_connection_on_which_an_answer_is_late_gets_no_more_requests() {
    let (upstream, answers) = waiting(cleartext_http2());
    // The connection that gets no more doesn't count.
    let gateway = gateway(&upstream.url(), "max_connections = 1\ntimeouts = { response = \"1s\" }");
    assert_eq!(gateway.get("/").status, 504);
    // The first one may take one, its end not having come. The 504 may come before the connection is given up.
    answers.add_permits(2);
    wait_until("another connection is made", || gateway.get("/").status == 200);
    assert_eq!(upstream.connections().len(), 2);
}

/// A server that handles each stream by its number, on which connection whatever, and then says that it goes away if
/// it is told to.
fn streams(handle: impl Fn(usize) -> Handling + Send + Sync + 'static) -> (String, Arc<AtomicUsize>) {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let (count, handle) = (Arc::<AtomicUsize>::default(), Arc::new(handle));
    let counted = count.clone();
    thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let listener = TcpListener::from_std(listener).unwrap();
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let (count, handle) = (counted.clone(), handle.clone());
                tokio::spawn(async move {
                    let mut connection = h2::server::handshake(stream).await.unwrap();
                    while let Some(Ok((_, mut response))) = connection.accept().await {
                        match handle(count.fetch_add(1, SeqCst)) {
                            Handling::Refuse => response.send_reset(h2::Reason::REFUSED_STREAM),
                            Handling::Break => response.send_reset(h2::Reason::INTERNAL_ERROR),
                            Handling::Answer => {
                                response.send_response(Response::new(()), true).unwrap();
                            }
                            Handling::AnswerAndLeave => {
                                response.send_response(Response::new(()), true).unwrap();
                                connection.graceful_shutdown();
                            }
                        }
                    }
                });
            }
        });
    });
    (url, count)
}

enum Handling {
    Refuse,
    Break,
    Answer,
    AnswerAndLeave,
}

#[test]
fn what_the_server_refuses_to_begin_is_sent_again() {
    let (url, count) = streams(|number| if number == 1 { Handling::Refuse } else { Handling::Answer });
    let gateway = gateway(&url, "");
    assert_eq!(gateway.get("/").status, 200);
    // Even this: the server says that it did nothing.
    assert_eq!(gateway.ask("POST /").status, 200);
    assert_eq!(count.load(SeqCst), 3);
}

#[test]
fn what_breaks_after_it_may_have_begun_is_sent_once() {
    let (url, count) = streams(|number| if number == 0 { Handling::Break } else { Handling::AnswerAndLeave });
    assert_eq!(gateway(&url, "").ask("POST /").status, 502);
    assert_eq!(count.load(SeqCst), 1);
}

#[test]
fn a_server_that_goes_away_costs_no_request() {
    let (url, count) = streams(|_| Handling::AnswerAndLeave);
    let gateway = gateway(&url, "");
    let mut client = gateway.client();
    for _ in 0..50 {
        assert_eq!(client.get("/").status, 200);
        assert_eq!(client.ask("POST /\nContent-Length: 3\n\nabc").status, 200);
    }
    assert_eq!(count.load(SeqCst), 100);
}
