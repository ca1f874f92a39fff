//! The spans of a request.

use std::{fs, net::Shutdown, thread::sleep, time::Duration};

use hyper::Response;
use serde_json::Value;

use crate::{
    harness::{
        client::Answer,
        collector::{Collector, Span},
        gateway::Gateway,
        http2,
        redis::Redis,
        upstream::{Upstream, whole},
        wait_until,
        wire::WireUpstream,
    },
    tracing::{PARENT, TRACE, forward_to, traceparent, unreachable},
};

const INTERNAL: i32 = 1;
const SERVER: i32 = 2;
const CLIENT: i32 = 3;

/// The attributes of a span, but for those of these names.
fn attributes<'s>(span: &'s Span, but: &[&str]) -> Vec<(&'s str, &'s str)> {
    let all = span.attributes.iter().map(|(name, value)| (name.as_str(), value.as_str()));
    all.filter(|(name, _)| !but.contains(name)).collect()
}

/// The host and the port of an url.
fn host_and_port(url: &str) -> (&str, &str) {
    url.split_once("://").unwrap().1.rsplit_once(':').unwrap()
}

#[test]
fn a_request_is_a_span_and_so_are_its_decision_and_its_server() {
    let upstream = Upstream::start(|_| async {
        sleep(Duration::from_millis(20));
        Response::new(whole("five!"))
    });
    let (redis, collector, folder) = (Redis::start(), Collector::start(), tempfile::tempdir().unwrap());
    let log = folder.path().join("log");
    let gateway = Gateway::start(&format!(
        "[server]\nworkers = 1\n{}{}[access_log]\npath = {log:?}\n[upstreams.up]\nservers = [\"{}\"]\n\
         [limits.per-key]\nkey = \"header:x-api-key\"\nrate = \"2/h\"\nplain = true\n\
         [limits.per-client]\nkey = \"ip\"\nrate = \"1/h\"\nmode = \"shadow\"\n\
         [[routes]]\nname = \"orders\"\npath = \"/v1/orders/{{id}}\"\nupstream = \"up\"\nlimits = [\"per-key\", \"per-client\"]\n",
        redis.store(),
        collector.table("1"),
        upstream.url(),
    ));
    let ask = || {
        let fields = "x-api-key: hunter1\ncookie: hunter2\nreferer: http://hunter3/\nuser-agent: hunter4";
        let fields = format!("{fields}\nauthorization: Bearer hunter5\nx-forwarded-for: 203.0.113.7");
        gateway.ask(&format!("GET /v1/orders/17?token=hunter6\nHost: shop.example:80\n{fields}")).status
    };
    assert_eq!([ask(), ask(), ask()], [200, 200, 429]);
    let spans = collector.await_spans(8);
    let [request, decision, visit, ..] = &spans[..] else { panic!("{spans:#?}") };

    assert_eq!((request.name.as_str(), request.kind), ("GET /v1/orders/{id}", SERVER));
    assert_eq!(
        attributes(request, &[]),
        [
            ("http.request.method", "GET"),
            ("http.response.status_code", "200"),
            ("http.route", "/v1/orders/{id}"),
            ("network.protocol.version", "1.1"),
            ("server.address", "shop.example"),
            ("tollgate.route", "orders"),
            ("url.path", "/v1/orders/17"),
            ("url.scheme", "http"),
        ]
    );
    assert_eq!((decision.name.as_str(), decision.kind), ("decision", INTERNAL));
    assert_eq!(
        attributes(decision, &[]),
        [
            ("tollgate.decisions", "admitted,admitted"),
            ("tollgate.limits", "per-key,per-client"),
            ("tollgate.origins", "store,shadow"),
        ]
    );
    let url = upstream.url();
    let (host, port) = host_and_port(&url);
    assert_eq!((visit.name.as_str(), visit.kind), ("GET", CLIENT));
    assert_eq!(
        attributes(visit, &[]),
        [
            ("http.request.method", "GET"),
            ("http.response.status_code", "200"),
            ("server.address", host),
            ("server.port", port),
        ]
    );
    for part in [decision, visit] {
        assert_eq!((&part.trace, &part.parent), (&request.trace, &request.id));
        assert!(request.start <= part.start && part.end <= request.end, "{part:?} in {request:?}");
    }
    assert!(decision.end <= visit.start && visit.end - visit.start >= 20_000_000, "{decision:?} {visit:?}");
    assert!(spans.iter().all(|span| !span.is_error), "{spans:#?}");

    let [refused, decision] = &spans[6..] else { panic!("{spans:#?}") };
    assert_eq!(refused.of_attribute("http.response.status_code"), "429");
    assert_eq!(decision.parent, refused.id);
    assert_eq!(decision.of_attribute("tollgate.decisions"), "refused,refused");
    let delay_ms: u64 = decision.of_attribute("tollgate.retry_after_ms").parse().unwrap();
    assert!((3_500_000..=3_600_000).contains(&delay_ms), "{delay_ms}");

    let told = format!("{spans:?}");
    assert!(!told.contains("hunter") && !told.contains("203.0.113.7"), "{told}");
    let resource = collector.resource();
    assert_eq!(
        (&*resource["service.name"], &*resource["service.version"]),
        ("tollgate", env!("CARGO_PKG_VERSION"))
    );
    wait_until("all is logged", || fs::read_to_string(&log).unwrap().lines().count() == 3);
    let line: Value =
        serde_json::from_str(fs::read_to_string(&log).unwrap().lines().next().unwrap()).unwrap();
    assert_eq!(line["trace_id"], request.trace);
}

#[test]
fn what_takes_no_route_has_a_span_that_names_none() {
    let collector = Collector::start();
    let file = collector.table("1") + "[[routes]]\npath = \"/in\"\nrespond = { status = 204 }\n";
    let gateway = Gateway::start(&file);
    for (request, name) in [
        ("GET /nowhere", "GET"),
        ("BREW /nowhere", "HTTP"),
        ("POST /in", "POST /in"),
        ("BREW /in", "HTTP /in"),
        ("GET /in%00", "GET"),
    ] {
        let before = collector.spans().len();
        let status = gateway.ask(&format!("{request}\nContent-Length: 0")).status;
        let [span] = &collector.await_spans(before + 1)[before..] else { panic!("one span") };
        let made_up = name.starts_with("HTTP");
        let method = request.split(' ').next().unwrap();
        assert_eq!(span.name, name, "{span:#?}");
        assert_eq!(span.of_attribute("http.response.status_code"), status.to_string());
        assert_eq!(span.of_attribute("http.request.method"), if made_up { "_OTHER" } else { method });
        assert_eq!(span.of_attribute("http.request.method_original"), if made_up { method } else { "" });
        assert_eq!(span.of_attribute("http.route"), if name.contains('/') { "/in" } else { "" });
        assert!(!span.is_error);
    }
}

#[test]
fn clients_of_all_versions_are_traced() {
    let (collector, upstream) = (Collector::start(), Upstream::hello());
    let gateway = Gateway::start(&(collector.table("0") + &forward_to(&[&upstream.url()], "")));
    let version = |count: usize| {
        let spans = collector.await_spans(count);
        let request = spans.iter().rfind(|span| span.kind == SERVER).unwrap();
        assert_eq!((request.trace.as_str(), request.parent.as_str()), (TRACE, PARENT));
        request.of_attribute("network.protocol.version").to_owned()
    };
    let sampled = traceparent("01");
    let mut client = gateway.client();
    client.send(format!("GET / HTTP/1.0\r\nHost: a\r\nTraceparent: {sampled}\r\n\r\n").as_bytes());
    assert!(client.rest().ends_with(b"hello"));
    assert_eq!(version(2), "1.0");
    http2::run(async {
        let mut client = http2::connect(gateway.address()).await;
        let (answer, _) = client.begin("GET", "/", &[("traceparent", &sampled)], false);
        http2::whole(answer.await.unwrap().into_body()).await.unwrap();
    });
    assert_eq!(version(4), "2");
}

#[test]
fn each_server_that_is_asked_has_a_span() {
    let (upstream, collector) = (Upstream::hello(), Collector::start());
    let (away, here) = (unreachable(), upstream.url());
    let balance = "[upstreams.api]\nbalance = \"round-robin\"\n";
    let file = forward_to(&[&away, &here], "").replace("[upstreams.api]\n", balance);
    let gateway = Gateway::start(&format!("[server]\nworkers = 1\n{}{file}", collector.table("1")));
    // Each in turn, so at least one of them begins with the one that isn't there.
    assert_eq!([gateway.get("/").status, gateway.get("/").status], [200, 200]);
    wait_until("both are told", || collector.spans().iter().filter(|span| span.kind == SERVER).count() == 2);
    let spans = collector.spans();
    let failed = spans.iter().find(|span| span.is_error).unwrap();
    assert_eq!((failed.kind, failed.of_attribute("error.type")), (CLIENT, "unreachable"));
    assert_eq!(failed.of_attribute("server.port"), host_and_port(&away).1);
    let again: Vec<_> =
        spans.iter().filter(|span| span.parent == failed.parent && span.id != failed.id).collect();
    let [again] = again[..] else { panic!("{spans:#?}") };
    assert_eq!(again.of_attribute("http.request.resend_count"), "1");
    assert_eq!(again.of_attribute("server.port"), host_and_port(&here).1);
    assert!(again.start >= failed.end, "{again:?} {failed:?}");
    let told = upstream.seen(|parts| {
        let told = parts.headers["traceparent"].to_str().unwrap();
        told == format!("00-{}-{}-01", again.trace, again.id)
    });
    assert_eq!(told, 1, "it is told its own span");
}

#[test]
fn what_fails_is_an_error() {
    let collector = Collector::start();
    let upstream = Upstream::start(|request| async move {
        let status: u16 = request.uri().path()[1..].parse().unwrap();
        Response::builder().status(status).body(whole("")).unwrap()
    });
    let file = collector.table("1") + &forward_to(&[&upstream.url()], "");
    let gateway = Gateway::start(&file);
    for (at, status, is_request_error) in [(0, 404, false), (1, 503, true)] {
        assert_eq!(gateway.get(&format!("/{status}")).status, status);
        let spans = collector.await_spans(2 * (at + 1));
        let [request, visit] = &spans[2 * at..] else { panic!("{spans:#?}") };
        assert_eq!((request.is_error, visit.is_error), (is_request_error, true));
        assert_eq!(visit.of_attribute("error.type"), status.to_string());
    }
    let gateway = Gateway::start(&(collector.table("1") + &forward_to(&[&unreachable()], "")));
    assert_eq!(gateway.get("/").status, 502);
    let spans = collector.await_spans(6);
    let [request, visit] = &spans[4..] else { panic!("{spans:#?}") };
    assert_eq!(
        (request.of_attribute("error.type"), visit.of_attribute("error.type")),
        ("502", "unreachable")
    );
    assert!(request.is_error && visit.is_error && visit.of_attribute("http.response.status_code").is_empty());
}

#[test]
fn a_client_that_leaves_ends_its_spans() {
    let collector = Collector::start();
    let upstream = Upstream::start(|_| std::future::pending());
    let gateway = Gateway::start(&(collector.table("1") + &forward_to(&[&upstream.url()], "")));
    let mut client = gateway.client();
    client.send(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    wait_until("the upstream has it", || upstream.count() == 1);
    drop(client);
    let [request, visit] = collector.await_spans(2).try_into().unwrap();
    assert_eq!(request.of_attribute("tollgate.broken_off"), "true");
    assert!(request.of_attribute("http.response.status_code").is_empty() && !request.is_error, "{request:?}");
    assert_eq!((visit.of_attribute("error.type"), visit.end), ("client_left", request.end));
}

#[test]
fn a_request_ends_with_its_answers_body() {
    let collector = Collector::start();
    let (piece, upstream) = Upstream::in_two_pieces();
    let file = collector.table("1") + &forward_to(&[&upstream.url()], "");
    let gateway = Gateway::start(&(file + "[[routes]]\npath = \"/else\"\nrespond = { status = 204 }\n"));
    let mut client = gateway.client();
    piece.send(1).unwrap();
    client.send(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    assert_eq!(client.head().status, 200);
    assert_eq!(client.chunk(), b"piece");
    // What comes later and has ended is told of first.
    gateway.get("/else");
    assert_eq!(collector.await_spans(1)[0].name, "GET /else");
    piece.send(3).unwrap();
    assert_eq!(client.chunk(), b"piece");
    assert!(client.chunk().is_empty());
    let [_, request, visit] = collector.await_spans(3).try_into().unwrap();
    assert!(
        !request.attributes.contains_key("tollgate.broken_off") && visit.end < request.end,
        "{request:?}"
    );

    let mut leaving = gateway.client();
    piece.send(1).unwrap();
    leaving.send(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    assert_eq!(leaving.head().status, 200);
    drop(leaving);
    let left = &collector.await_spans(5)[3];
    assert_eq!(left.of_attribute("tollgate.broken_off"), "true");
}

#[test]
fn a_tunnel_is_told_of_when_it_has_opened() {
    let collector = Collector::start();
    let upstream = WireUpstream::start(|mut wire| {
        wire.request();
        wire.send(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n");
        while wire.request().is_some() {}
    });
    let gateway = Gateway::start(&(collector.table("1") + &forward_to(&[&upstream.url()], "")));
    let mut client = gateway.client();
    client.send(b"GET / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n");
    let answer: Answer = client.head();
    assert_eq!(answer.status, 101);
    let [request, visit] = collector.await_spans(2).try_into().unwrap();
    for span in [&request, &visit] {
        assert_eq!(span.of_attribute("http.response.status_code"), "101");
    }
    assert!(!request.is_error && !request.attributes.contains_key("tollgate.broken_off"), "{request:?}");
    client.writer().shutdown(Shutdown::Both).unwrap();
    gateway.get("/nothing-more");
    let spans = collector.await_spans(4);
    assert!(spans[2..].iter().all(|span| span.trace != request.trace), "{spans:#?}");
}

#[test]
fn a_decision_shows_how_long_it_was_waited_for() {
    let collector = Collector::start();
    let gateway = Gateway::start(
        &(collector.table("1")
            + "[limits.l]\nkey = \"global\"\nrate = \"1/1s\"\nwait = \"2s\"\n\
               [[routes]]\npath = \"/\"\nrespond = { status = 204 }\nlimits = [\"l\"]\n"),
    );
    let mut client = gateway.client();
    assert_eq!([client.get("/").status, client.get("/").status], [204, 204]);
    let spans = collector.await_spans(4);
    let waited = |span: &Span| Duration::from_nanos(span.end - span.start);
    assert!(waited(&spans[1]) < Duration::from_millis(500), "{spans:#?}");
    assert!(waited(&spans[3]) > Duration::from_millis(500), "{spans:#?}");
    assert_eq!(spans[3].of_attribute("tollgate.decisions"), "admitted");
}
