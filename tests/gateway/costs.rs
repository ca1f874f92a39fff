//! Costs: fixed, from request headers, and from responses.

use std::sync::{Mutex, mpsc};

use crate::{
    forward_all,
    harness::{
        client::Answer,
        frames::{DATA, END_HEADERS, END_STREAM, Frames, HEADERS, fields},
        gateway::Gateway,
        metrics::Metrics,
        redis::Redis,
        upstream::{Upstream, whole},
        wait_until,
        wire::WireUpstream,
    },
    limit_all,
};

/// What is left of the one limit.
fn left(answer: &Answer) -> u64 {
    let fields = answer.header("ratelimit").unwrap_or_else(|| panic!("{answer:?}"));
    let (_, rest) = fields.split_once(";r=").unwrap();
    rest.split(';').next().unwrap().parse().unwrap()
}

/// A configuration that sends all to an upstream, under a limit with these keys.
fn forward_limited(url: &str, keys: &str) -> String {
    format!("[limits.l]\nkey = \"global\"\n{keys}\n{}limits = [\"l\"]\n", forward_all(url, ""))
}

#[test]
fn a_request_may_say_what_it_costs() {
    let redis = Redis::start();
    let keys = "key = \"global\"\nrate = \"100/h\"\ncost = \"header:x-cost\"";
    for store in ["", &redis.store()] {
        let gateway = Gateway::start(&format!("{store}{}", limit_all(keys)));
        assert_eq!(left(&gateway.get("/")), 99);
        assert_eq!(left(&gateway.ask("GET /\nx-cost: 40")), 59);
        // None of these is charged.
        for cost in ["0", "-1", "1.5", "", "2147483648", "99999999999999999999", "+1", "1 2", "ten", "0x1"] {
            let refused = gateway.ask(&format!("GET /\nx-cost: {cost}"));
            assert_eq!((refused.status, &refused.json()["code"]), (400, &"cost-invalid".into()), "{cost:?}");
            assert_eq!(refused.header("ratelimit"), None);
        }
        assert_eq!(gateway.ask("GET /\nx-cost: 1\nx-cost: 2").status, 400);
        assert_eq!(left(&gateway.ask("GET /\nx-cost: 1")), 58);
        let refused = gateway.ask("GET /\nx-cost: 59");
        assert_eq!(refused.status, 429);
        assert!(refused.retry_after_ms() > 3_500_000);
        assert_eq!(left(&gateway.ask("GET /\nx-cost: 58")), 0);
    }
}

#[test]
fn a_cost_beyond_the_limit_is_refused_for_good_without_the_store() {
    let redis = Redis::start();
    let keys = "key = \"global\"\nrate = \"100/h\"\ncost = \"header:x-cost\"";
    let gateway = Gateway::start(&format!("{}{}", redis.store(), limit_all(keys)));
    // Only connecting runs scripts, of which the last may come late.
    wait_until("nothing is asked", || {
        let before = redis.scripts();
        for cost in [101, i32::MAX] {
            let refused = gateway.ask(&format!("GET /\nx-cost: {cost}"));
            assert_eq!(refused.status, 429);
            assert_eq!((refused.header("retry-after"), refused.header("retry-after-ms")), (None, None));
            assert_eq!(refused.json()["violated-policies"][0], "l");
        }
        redis.scripts() == before
    });
}

#[test]
fn a_fixed_cost_is_charged_for_each_request() {
    let gateway = Gateway::start(&limit_all("key = \"global\"\nrate = \"10/h\"\ncost = 4"));
    assert_eq!([gateway.get("/"), gateway.get("/")].each_ref().map(left), [6, 2]);
    assert_eq!(gateway.get("/").status, 429);
}

/// An upstream that tells the cost that the path names, as text.
fn telling() -> Upstream {
    Upstream::start(|request| async move {
        let mut response = hyper::Response::new(whole("up"));
        if let Some(cost) = request.uri().path().strip_prefix("/cost/") {
            response.headers_mut().insert("x-used", cost.parse().unwrap());
        }
        response
    })
}

#[test]
fn a_response_tells_what_its_request_cost() {
    let (redis, upstream) = (Redis::start(), telling());
    let keys = "rate = \"100/h\"\ncost = { response_header = \"x-used\", estimate = 10 }";
    for store in ["", &redis.store()] {
        let admin = "[admin]\nlisten = \"127.0.0.1:0\"\n";
        let gateway = Gateway::start(&format!("{store}{admin}{}", forward_limited(&upstream.url(), keys)));
        // On one connection, and so by one worker, a request comes after what the one before it has recorded.
        let mut client = gateway.client();
        // Each shows what was left when it was admitted.
        for (path, before) in [
            ("/cost/25", 90),
            // Of what the estimate was too much, nothing is given back.
            ("/cost/3", 65),
            // What is no cost, or isn't there, leaves the estimate.
            ("/cost/many", 55),
            ("/none", 45),
            // Past the limit: there was room for the estimate.
            ("/cost/200", 35),
        ] {
            assert_eq!(left(&client.get(path)), before, "{path}");
        }
        let (_, admin) = gateway.greeting().split_once("dashboard: http://").unwrap();
        let metrics = Metrics::scrape(admin.lines().next().unwrap());
        assert_eq!(metrics.of("tollgate_estimates_kept_total{limit=\"l\"}"), 2.0);
        let refused = client.get("/none");
        assert_eq!((refused.status, left(&refused)), (429, 0));
        assert!(refused.retry_after_ms() > 3_500_000);
    }
}

#[test]
fn costs_that_were_not_sent_are_recorded_when_the_store_is_back() {
    assert_cost_is_kept("", Redis::pause, "the store fails", Redis::resume);
}

#[test]
fn costs_that_the_store_refused_are_recorded_when_it_takes_them() {
    let takes_writes =
        |redis: &Redis, replicas| drop(redis.command(&["CONFIG", "SET", "min-replicas-to-write", replicas]));
    // A call that gives back what another request's estimate was too much has its error caught by the script first.
    for more in ["", "refunds = true\n"] {
        let refuse = |redis: &Redis| takes_writes(redis, "1");
        assert_cost_is_kept(more, refuse, "NOREPLICAS", |redis| takes_writes(redis, "0"));
    }
}

/// Asserts that the cost of a response in this fault, which the log tells so, is recorded after its end. The limit has `more` keys. Other
/// requests, of which some cost less than was estimated, end with it.
fn assert_cost_is_kept(more: &str, begin: impl Fn(&Redis), logged: &str, end_fault: impl Fn(&Redis)) {
    const COSTS: [&str; 8] = ["100", "4", "100", "4", "4", "100", "100", "4"];
    let redis = Redis::start();
    let (reached, is_reached) = mpsc::channel();
    let (end, ends) = tokio::sync::watch::channel(false);
    let upstream = Upstream::start(move |request| {
        let (reached, mut ends) = (reached.clone(), ends.clone());
        async move {
            let mut response = hyper::Response::new(whole("up"));
            if let Some(cost) = request.uri().path().strip_prefix("/late/") {
                reached.send(()).unwrap();
                ends.wait_for(|ends| *ends).await.unwrap();
                response.headers_mut().insert("x-used", cost.parse().unwrap());
            }
            response
        }
    });
    let keys =
        "rate = \"1000/h\"\non_failure = \"deny\"\ncost = { response_header = \"x-used\", estimate = 10 }";
    let limit = format!("[limits.l]\nkey = \"header:x-key\"\n{more}{keys}\n");
    let routes = format!("{}limits = [\"l\"]\n", forward_all(&upstream.url(), ""));
    // With one worker, the costs of both go in one call.
    let gateway = Gateway::start(&format!("[server]\nworkers = 1\n{}{limit}{routes}", redis.store()));
    let mut clients = COSTS.map(|cost| {
        let mut client = gateway.client();
        client.send(format!("GET /late/{cost} HTTP/1.1\r\nHost: a\r\nX-Key: a\r\n\r\n").as_bytes());
        is_reached.recv().unwrap();
        client
    });
    begin(&redis);
    // Calls of others, which may be done later, if they were sent.
    wait_until("it is noticed", || {
        gateway.ask("GET /\nx-key: b");
        gateway.log().contains(logged)
    });
    end.send(true).unwrap();
    clients.iter_mut().for_each(|client| assert_eq!(client.answer().status, 200));
    end_fault(&redis);
    let mut others = 0;
    wait_until("the cost is recorded", || {
        let answer = gateway.ask("GET /\nx-key: a");
        others += u64::from(answer.status == 200);
        // The great costs, and the estimates of the others.
        answer.status == 200 && left(&answer) + 10 * others == 1000 - 4 * 100 - 4 * 10
    });
}

#[test]
fn the_estimate_must_fit_and_no_more() {
    let upstream = telling();
    let keys = "rate = \"100/h\"\ncost = { response_header = \"x-used\", estimate = 10 }";
    let gateway = Gateway::start(&forward_limited(&upstream.url(), keys));
    assert_eq!(gateway.get("/cost/90").status, 200);
    assert_eq!(left(&gateway.get("/cost/1")), 0);
    assert_eq!(gateway.get("/cost/1").status, 429);
    let gateway = Gateway::start(&forward_limited(&upstream.url(), keys));
    assert_eq!(gateway.get("/cost/91").status, 200);
    assert_eq!(gateway.get("/cost/1").status, 429);
}

#[test]
fn trailers_tell_what_a_request_cost() {
    let upstream = WireUpstream::answering(
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: x-used\r\n\r\n2\r\nup\r\n0\r\nx-used: 30\r\n\r\n",
    );
    let keys = "rate = \"100/h\"\ncost = { response_header = \"x-used\", estimate = 10 }";
    let gateway = Gateway::start(&forward_limited(&upstream.url(), keys));
    for before in [90, 60] {
        let mut client = gateway.client();
        client.send(b"GET / HTTP/1.1\r\nHost: a\r\nTE: trailers\r\nConnection: close, TE\r\n\r\n");
        let answer = client.head();
        assert_eq!(left(&answer), before);
        let rest = String::from_utf8(client.rest()).unwrap();
        assert!(rest.contains("up") && rest.contains("x-used: 30"), "{rest}");
    }
}

/// The response is complete for the client before its end has arrived from the upstream.
#[test]
fn trailers_behind_a_stated_length_tell_what_a_request_cost() {
    let (tell, told) = mpsc::channel::<()>();
    let told = Mutex::new(told);
    let upstream = WireUpstream::start(move |wire| {
        let mut server = Frames::accept(wire);
        let length = fields(&[(":status", "200"), ("content-length", "2")]);
        while let Some(frame) = server.next() {
            if frame.kind != HEADERS {
                continue;
            }
            let stream = frame.stream;
            server.send(HEADERS, END_HEADERS, stream, &length);
            if stream > 1 {
                server.send(DATA, END_STREAM, stream, b"up");
                continue;
            }
            server.send(DATA, 0, stream, b"up");
            told.lock().unwrap().recv().unwrap();
            server.send(HEADERS, END_HEADERS | END_STREAM, stream, &fields(&[("x-used", "50")]));
        }
    });
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("log");
    let keys = "rate = \"100/h\"\ncost = { response_header = \"x-used\", estimate = 1 }";
    let toml =
        forward_limited(&upstream.url(), keys).replace("[upstreams.api]", "[upstreams.api]\nhttp2 = true");
    let toml = format!("[server]\nworkers = 1\n[access_log]\npath = {path:?}\n{toml}");
    let gateway = Gateway::start(&toml);
    let first = gateway.get("/");
    assert_eq!((left(&first), first.text().as_str()), (99, "up"));
    tell.send(()).unwrap();
    let mut requests = 1;
    wait_until("the real cost is charged", || {
        requests += 1;
        left(&gateway.get("/")) + 49 + requests == 100
    });
    let log = || std::fs::read_to_string(&path).unwrap();
    wait_until("all is logged", || log().lines().count() as u64 == requests);
    assert!(!log().contains("broken_off"), "{}", log());
}

#[test]
fn a_response_that_breaks_off_leaves_the_estimate() {
    let upstream = WireUpstream::start(|mut wire| {
        wire.request();
        wire.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: x-used\r\n\r\n2\r\nup\r\n");
    });
    let keys = "rate = \"100/h\"\ncost = { response_header = \"x-used\", estimate = 10 }";
    let gateway = Gateway::start(&forward_limited(&upstream.url(), keys));
    for before in [90, 80] {
        let mut client = gateway.client();
        client.send(b"GET / HTTP/1.1\r\nHost: a\r\nTE: trailers\r\nConnection: TE\r\n\r\n");
        assert_eq!(left(&client.head()), before);
        client.rest();
    }
}

/// Failed logins only.
#[test]
fn only_some_statuses_are_charged() {
    let redis = Redis::start();
    let upstream = Upstream::start(|request| async move {
        let mut response = hyper::Response::new(whole("up"));
        *response.status_mut() = request.uri().path()[1..].parse().unwrap();
        response
    });
    let keys = "rate = \"3/h\"\nwhen_status = [\"401\", \"5xx\"]";
    for store in ["", &redis.store()] {
        let gateway = Gateway::start(&format!("{store}{}", forward_limited(&upstream.url(), keys)));
        let mut client = gateway.client();
        let statuses = ["200", "200", "403", "401", "200", "500", "404"];
        let seen = statuses.map(|status| {
            let answer = client.get(&format!("/{status}"));
            assert_eq!(answer.status.to_string(), status);
            left(&answer)
        });
        assert_eq!(seen, [3, 3, 3, 3, 2, 2, 1]);
        assert_eq!(client.get("/401").status, 401);
        assert_eq!(client.get("/200").status, 429);
    }
}

#[test]
fn what_passes_beyond_the_limit_was_in_flight() {
    let (go, gone) = mpsc::channel::<()>();
    let gone = std::sync::Mutex::new(gone);
    let upstream = WireUpstream::start(move |mut wire| {
        while wire.request().is_some() {
            gone.lock().unwrap().recv().unwrap();
            wire.send(b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 2\r\n\r\nno");
        }
    });
    let gateway =
        Gateway::start(&forward_limited(&upstream.url(), "rate = \"2/h\"\nwhen_status = [\"401\"]"));
    let mut clients: Vec<_> = (0..5).map(|_| gateway.client()).collect();
    for client in &mut clients {
        client.send(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    }
    wait_until("all are in flight", || upstream.connections() == 5);
    for _ in 0..6 {
        go.send(()).unwrap();
    }
    for client in &mut clients {
        assert_eq!(client.answer().status, 401);
    }
    let refused = gateway.get("/");
    assert_eq!((refused.status, left(&refused)), (429, 0));
}
