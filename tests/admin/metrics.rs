//! Metrics and readiness.

use std::io::Write;

use http_body_util::BodyExt;
use hyper::Response;

use crate::{
    admin::{admin, gateway, limits},
    harness::{
        client::Client,
        gateway::Gateway,
        metrics::Metrics,
        redis::Redis,
        upstream::{Upstream, whole},
        wait_until,
        wire::WireUpstream,
    },
};

/// What a gateway says of its readiness.
fn readiness(gateway: &Gateway) -> (u16, String) {
    let mut client = Client::connect(admin(gateway).parse().unwrap());
    let answer = client.ask("GET /readyz\nHost: localhost");
    (answer.status, answer.text())
}

fn scrape(gateway: &Gateway) -> Metrics {
    Metrics::scrape(&admin(gateway))
}

/// Routes of these lines, and an admin port.
fn with_admin(toml: &str) -> Gateway {
    Gateway::start(&format!("[admin]\nlisten = \"127.0.0.1:0\"\n{toml}"))
}

#[test]
fn a_gateway_is_ready_also_while_the_store_is_away() {
    let mut redis = Redis::start();
    let gateway = gateway("5/h", &redis.store());
    assert_eq!(readiness(&gateway), (200, "ready\n".to_owned()));
    redis.kill();
    wait_until("it is noticed", || readiness(&gateway) == (200, "degraded\n".to_owned()));
    assert_eq!(gateway.get("/").status, 200);
    redis.restart();
    wait_until("it is noticed", || readiness(&gateway) == (200, "ready\n".to_owned()));
}

#[test]
fn a_gateway_that_began_without_the_store_says_so() {
    let redis = Redis::away();
    assert_eq!(readiness(&gateway("5/h", &redis.store())), (200, "degraded\n".to_owned()));
}

#[test]
fn a_gateway_that_drains_wants_no_clients() {
    let (reached, is_reached) = std::sync::mpsc::channel();
    let (end, ends) = tokio::sync::watch::channel(false);
    let upstream = Upstream::start(move |_| {
        let (reached, mut ends) = (reached.clone(), ends.clone());
        async move {
            reached.send(()).unwrap();
            ends.wait_for(|ends| *ends).await.unwrap();
            Response::new(whole("late"))
        }
    });
    let route = "[[routes]]\npath = \"/\"\nupstream = \"u\"\n";
    let gateway = with_admin(&format!("[upstreams.u]\nservers = [\"{}\"]\n{route}", upstream.url()));
    let mut client = gateway.client();
    client.send(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    is_reached.recv().unwrap();
    gateway.signal("TERM");
    wait_until("it drains", || readiness(&gateway) == (503, "draining\n".to_owned()));
    end.send(true).unwrap();
    assert_eq!(client.answer().text(), "late");
}

#[test]
fn each_request_is_counted_once_when_its_answer_has_ended() {
    let upstream = Upstream::mirror();
    let mut gateway = with_admin(&format!(
        "[upstreams.up]\nservers = [\"{0}\", \"{0}\"]\n[upstreams.gone]\nservers = [\"http://127.0.0.1:1\"]\n\
         [[routes]]\nname = \"in\"\npath = \"/in\"\nupstream = \"up\"\n\
         [[routes]]\nname = \"gone\"\npath = \"/gone\"\nupstream = \"gone\"\n\
         [[routes]]\nname = \"a \\\"b\\\"\\\\\"\npath = \"/named\"\nrespond = {{ status = 302 }}\n",
        upstream.url(),
    ));
    let before = scrape(&gateway);
    let mut client = gateway.client();
    (0..3).for_each(|_| assert_eq!(client.get("/in").status, 200));
    (0..2).for_each(|_| assert_eq!(client.get("/gone").status, 502));
    assert_eq!(client.get("/named").status, 302);
    assert_eq!(client.get("/nowhere").status, 404);
    let mut after = scrape(&gateway);
    wait_until("the last answer has ended", || {
        after = scrape(&gateway);
        after.of("tollgate_requests_total{route=\"\",status=\"4xx\"}") == 1.0
    });
    let server = format!("upstream=\"up\",server=\"{}\"", &upstream.url()["http://".len()..]);
    let grown = after.since(&before);
    for (series, growth) in [
        ("tollgate_requests_total{route=\"in\",status=\"2xx\"}", 3.0),
        ("tollgate_requests_total{route=\"gone\",status=\"5xx\"}", 2.0),
        ("tollgate_requests_total{route=\"a \\\"b\\\"\\\\\",status=\"3xx\"}", 1.0),
        ("tollgate_request_duration_seconds_count{route=\"in\"}", 3.0),
        ("tollgate_request_duration_seconds_bucket{le=\"60.0\",route=\"gone\"}", 2.0),
        (&format!("tollgate_upstream_response_seconds_count{{{server}}}"), 3.0),
        (
            "tollgate_upstream_failures_total{upstream=\"gone\",server=\"127.0.0.1:1\",kind=\"unreachable\"}",
            2.0,
        ),
        ("tollgate_connections_accepted_total", 1.0),
    ] {
        assert_eq!(grown.get(series), Some(&growth), "{series}: {grown:#?}");
    }
    let requests = grown.iter().filter(|(series, _)| series.starts_with("tollgate_requests_total"));
    assert_eq!(requests.map(|(_, growth)| growth).sum::<f64>(), 7.0);
    assert_eq!(after.of("tollgate_connections"), 1.0);
    assert!(after.of("process_resident_memory_bytes") > 1e6 && after.of("process_open_fds") > 5.0);
    assert!(after.of("process_start_time_seconds") > 1.7e9 && after.of("process_cpu_seconds_total") < 60.0);
    assert!(gateway.ended().is_none());
}

#[test]
fn connections_that_are_closed_are_counted_by_why() {
    let upstream = WireUpstream::start(|mut wire| {
        wire.request();
        wire.send(b"HTTP/1.1 200 OK\r\nContent-Length: 999999999\r\n\r\n");
        while wire.stream().write_all(&[b'x'; 64 << 10]).is_ok() {}
    });
    let gateway = with_admin(&format!(
        "[server]\nworkers = 1\nmax_connections = 1\ntimeouts = {{ header = \"1s\", idle = \"2s\" }}\n\
         [upstreams.large]\nservers = [\"{}\"]\n[[routes]]\npath = \"/large\"\nupstream = \"large\"\n\
         [[routes]]\npath = \"/\"\nrespond = {{ status = 200 }}\n",
        upstream.url()
    ));
    let closed = |reason: &str| {
        let series = format!("tollgate_connections_closed_total{{reason=\"{reason}\"}}");
        scrape(&gateway).of(&series)
    };
    assert!(gateway.client().is_closed());
    assert_eq!(closed("head"), 1.0);
    let mut idle = gateway.client();
    assert_eq!(idle.get("/").status, 200);
    let mut busy = gateway.client();
    busy.send(b"GET /large HTTP/1.1\r\nHost: a\r\n\r\n");
    assert_eq!(busy.head().status, 200);
    assert!(idle.is_closed());
    assert_eq!(closed("room"), 1.0);
    assert_eq!(gateway.get("/").status, 503);
    assert_eq!(closed("surplus"), 1.0);
    wait_until("the answer is taken for abandoned", || closed("answer") == 1.0);
    // It is counted when that is decided, and makes room when it has been done.
    wait_until("there is room", || scrape(&gateway).of("tollgate_connections") == 0.0);
    let mut last = gateway.client();
    assert_eq!(last.get("/").status, 200);
    assert!(last.is_closed());
    assert_eq!(closed("request"), 1.0);
}

#[test]
fn what_a_reload_leaves_goes_on_with_its_metrics() {
    let route = |name: &str| {
        format!("[[routes]]\nname = \"{name}\"\npath = \"/{name}\"\nrespond = {{ status = 200 }}\n")
    };
    let admin = "[admin]\nlisten = \"127.0.0.1:0\"\n";
    let gateway = with_admin(&(route("a") + &route("b")));
    assert_eq!((gateway.get("/a").status, gateway.get("/b").status), (200, 200));
    let count = |route: &str| format!("tollgate_requests_total{{route=\"{route}\",status=\"2xx\"}}");
    wait_until("both are counted", || scrape(&gateway).of(&count("b")) == 1.0);
    gateway.reload("[[routes]]\n");
    gateway.reload(&format!("{admin}{}{}", route("a"), route("c")));
    let metrics = scrape(&gateway);
    assert_eq!(metrics.of(&count("a")), 1.0);
    assert!(!metrics.text.contains("route=\"b\"") && !metrics.text.contains("route=\"c\""));
    wait_until("the reloads are counted", || {
        let reloads = |result| scrape(&gateway).of(&format!("tollgate_reloads_total{{result=\"{result}\"}}"));
        // The change may be noticed beside the signal, and then it is read twice.
        reloads("good") >= 1.0 && reloads("bad") >= 1.0
    });
}

#[test]
fn a_client_that_leaves_before_its_answer_is_counted() {
    let upstream = Upstream::start(|request| async {
        drop(request.into_body().collect().await);
        std::future::pending().await
    });
    let route = "[[routes]]\nname = \"r\"\npath = \"/\"\nupstream = \"u\"\n";
    let gateway = with_admin(&format!("[upstreams.u]\nservers = [\"{}\"]\n{route}", upstream.url()));
    let none = scrape(&gateway);
    let mut client = gateway.client();
    client.send(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    wait_until("the upstream has it", || upstream.count() == 1);
    drop(client);
    wait_until("it is counted", || {
        scrape(&gateway).since(&none).get("tollgate_requests_total{route=\"r\",status=\"4xx\"}") == Some(&1.0)
    });
}

/// The decisions of limits that have been made since `before`.
fn decisions<'m>(after: &'m Metrics, before: &Metrics) -> Vec<(&'m str, f64)> {
    let grown = after.since(before).into_iter();
    grown
        .filter_map(|(name, growth)| Some((name.strip_prefix("tollgate_decisions_total")?, growth)))
        .collect()
}

fn decision(limit: &str, outcome: &str, origin: &str) -> String {
    format!("{{limit=\"{limit}\",outcome=\"{outcome}\",origin=\"{origin}\"}}")
}

/// Asks for a path, and then says what the limits decided, and where that came from.
fn decided(gateway: &Gateway, request: &str, status: u16) -> Vec<(String, f64)> {
    let before = scrape(gateway);
    assert_eq!(gateway.ask(request).status, status, "{request}");
    let after = scrape(gateway);
    decisions(&after, &before).into_iter().map(|(name, growth)| (name.to_owned(), growth)).collect()
}

#[test]
fn what_is_refused_again_is_counted_as_what_is_new() {
    let redis = Redis::start();
    let gateway = gateway("1/h", &redis.store());
    let mut client = gateway.client();
    // The last of these is refused as the one before it was, by the same connection.
    let statuses: Vec<u16> = (0..3).map(|_| client.get("/").status).collect();
    assert_eq!(statuses, [200, 429, 429]);
    let before = scrape(&gateway);
    for _ in 0..10 {
        assert_eq!(client.get("/").status, 429);
    }
    let after = scrape(&gateway);
    assert_eq!(decisions(&after, &before), [(&*decision("l", "refused", "local_refusal"), 10.0)]);
    let since = after.since(&before);
    for series in [
        "tollgate_requests_total{route=\"/\",status=\"4xx\"}",
        "tollgate_requests_refused_total{route=\"/\"}",
        "tollgate_request_duration_seconds_count{route=\"/\"}",
    ] {
        assert_eq!(since.get(series), Some(&10.0), "{series}: {since:?}");
    }
    assert!(since["tollgate_request_duration_seconds_sum{route=\"/\"}"] > 0.0, "{since:?}");
    // What operators do counts at once.
    assert_eq!(limits(&gateway, &["reset", "l", "127.0.0.1"]).0, 0);
    assert_eq!([client.get("/").status, client.get("/").status], [200, 429]);
    assert_eq!(limits(&gateway, &["set", "l", "3/h"]).0, 0);
    assert_eq!([client.get("/").status, client.get("/").status], [200, 200]);
}

#[test]
fn each_decision_is_counted_with_its_origin() {
    let mut redis = Redis::start();
    let limit = |name: &str, more: &str| {
        format!("[limits.{name}]\nkey = \"header:x-api-key\"\nrate = \"2/h\"\n{more}\n")
    };
    let route = |name: &str, limits: &str| {
        format!("[[routes]]\npath = \"/{name}\"\nrespond = {{ status = 200 }}\nlimits = [{limits}]\n")
    };
    let toml = [
        redis.store(),
        limit("local", "exempt = [\"gold\"]"),
        limit("deny", "on_failure = \"deny\"\nmissing = \"deny\""),
        limit("allow", "on_failure = \"allow\"\nmissing = \"skip\""),
        limit("shadow", "mode = \"shadow\""),
        limit("wide", "").replace("2/h", "100/h"),
        route("local", "\"local\", \"wide\""),
        route("deny", "\"deny\""),
        route("allow", "\"allow\", \"local\""),
        route("shadow", "\"shadow\""),
    ];
    let gateway = with_admin(&toml.concat());
    let of =
        |path: &str, key: &str, status| decided(&gateway, &format!("GET /{path}\nx-api-key: {key}"), status);
    let is = |limit: &str, outcome: &str, origin: &str| (decision(limit, outcome, origin), 1.0);

    for _ in 0..2 {
        assert_eq!(
            of("local", "a", 200),
            [is("local", "admitted", "store"), is("wide", "admitted", "store")]
        );
        assert_eq!(of("shadow", "a", 200), [is("shadow", "admitted", "shadow")]);
    }
    assert_eq!(of("local", "a", 429), [is("local", "refused", "store"), is("wide", "uncharged", "store")]);
    assert_eq!(of("local", "a", 429), [is("local", "refused", "local_refusal")]);
    assert_eq!(of("shadow", "a", 200), [is("shadow", "refused", "shadow")]);
    assert_eq!(of("local", "gold", 200), [is("local", "exempt", "terms"), is("wide", "admitted", "store")]);
    assert_eq!(decided(&gateway, "GET /deny", 429), [is("deny", "refused", "terms")]);
    assert_eq!(decided(&gateway, "GET /allow", 200)[0], is("allow", "skipped", "terms"));

    redis.kill();
    wait_until("it is noticed", || readiness(&gateway).1 == "degraded\n");
    let (local, wide) = (|outcome: &str| is("local", outcome, "fallback_local"), "fallback_local");
    for _ in 0..2 {
        assert_eq!(of("local", "b", 200), [local("admitted"), is("wide", "admitted", wide)]);
    }
    assert_eq!(of("local", "b", 429), [local("refused"), is("wide", "uncharged", wide)]);
    assert_eq!(of("deny", "b", 503), [is("deny", "refused", "fallback_deny")]);
    assert_eq!(of("allow", "c", 200), [is("allow", "admitted", "fallback_allow"), local("admitted")]);
    assert_eq!(of("shadow", "c", 200), [is("shadow", "admitted", "shadow")]);

    let metrics = scrape(&gateway);
    assert!(metrics.of("tollgate_store_failures_total{kind=\"open\"}") >= 5.0);
    assert_eq!(metrics.of("tollgate_store_up"), 0.0);
    let node = format!("{{node=\"127.0.0.1:{}\"}}", redis.port());
    assert_eq!(metrics.of(&format!("tollgate_breaker_open{node}")), 1.0);
    assert!(metrics.of(&format!("tollgate_breaker_openings_total{node}")) >= 1.0);
    assert_eq!(metrics.of("tollgate_refusals_remembered"), 1.0);
}

#[test]
fn requests_that_wait_are_seen() {
    let gateway = gateway_that_waits();
    let before = scrape(&gateway);
    assert_eq!(gateway.get("/").status, 200);
    let mut waiting = gateway.client();
    waiting.send(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    wait_until("it waits", || scrape(&gateway).of("tollgate_waiting") == 1.0);
    let mut leaving = gateway.client();
    leaving.send(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    wait_until("both wait", || scrape(&gateway).of("tollgate_waiting") == 2.0);
    drop(leaving);
    assert_eq!(waiting.answer().status, 200);
    let mut after = scrape(&gateway);
    let ended = |metrics: &Metrics, how: &str| {
        metrics.of(&format!("tollgate_wait_seconds_count{{outcome=\"{how}\"}}"))
    };
    wait_until("it has left", || {
        after = scrape(&gateway);
        after.of("tollgate_waiting") == 0.0
    });
    assert_eq!((ended(&after, "admitted"), ended(&after, "left"), ended(&after, "refused")), (1.0, 1.0, 0.0));
    assert!(after.since(&before)["tollgate_wait_seconds_sum{outcome=\"admitted\"}"] > 0.5);
}

/// One in three seconds. Earlier requests wait.
fn gateway_that_waits() -> Gateway {
    with_admin(
        "[limits.l]\nkey = \"global\"\nrate = \"1/3s\"\nwait = \"30s\"\n\
         [[routes]]\npath = \"/\"\nrespond = { status = 200 }\nlimits = [\"l\"]\n",
    )
}

#[test]
fn calls_of_the_store_and_their_charges_are_counted() {
    let redis = Redis::start();
    let gateway = gateway("1000/h", &redis.store());
    let before = scrape(&gateway);
    let mut client = gateway.client();
    (0..5).for_each(|_| assert_eq!(client.get("/").status, 200));
    let after = scrape(&gateway);
    let node = format!("{{node=\"127.0.0.1:{}\"}}", redis.port());
    let grown = after.since(&before);
    for series in ["store_call_seconds_count", "store_call_charges_count", "store_call_charges_sum"] {
        assert_eq!(grown.get(&*format!("tollgate_{series}{node}")), Some(&5.0), "{series}: {grown:#?}");
    }
    assert_eq!(after.of("tollgate_charges_left_behind_total"), 0.0);
}

#[test]
fn a_clock_that_was_set_back_is_noticed() {
    let redis = Redis::start();
    let gateway = gateway("5/min", &redis.store());
    assert_eq!(gateway.get("/").status, 200);
    let behind = |gateway: &Gateway| scrape(gateway).of("tollgate_store_clock_set_back_total");
    assert_eq!(behind(&gateway), 0.0);
    // The grant, as if the clock had shown three minutes more.
    let bucket = &redis.keys("tollgate:l:*")[0];
    redis.command(&["EVAL", LATER, "1", bucket, "180000000"]);
    assert_eq!(gateway.get("/").status, 200);
    assert_eq!(behind(&gateway), 1.0);
}

/// Moves the entries of a bucket by so many microseconds.
const LATER: &str = "for _, entry in ipairs(redis.call('ZRANGE', KEYS[1], 0, -1)) do \
     local high, low = struct.unpack('>I3I4', entry) \
     local time = high * 4294967296 + low + tonumber(ARGV[1]) \
     redis.call('ZREM', KEYS[1], entry) \
     redis.call('ZADD', KEYS[1], string.format('%d', time), \
         struct.pack('>I3I4', math.floor(time / 4294967296), time % 4294967296) .. entry:sub(8)) end";

#[test]
fn the_counts_in_this_process_are_measured_and_bounded() {
    let gateway = with_admin(
        "[store]\nmax_memory = \"1MiB\"\n[limits.l]\nkey = \"header:x-api-key\"\nrate = \"5/h\"\n\
         [[routes]]\npath = \"/\"\nrespond = { status = 200 }\nlimits = [\"l\"]\n",
    );
    let mut client = gateway.client();
    assert_eq!(readiness(&gateway), (200, "ready\n".to_owned()));
    let admitted =
        (0..20_000).take_while(|key| client.ask(&format!("GET /\nx-api-key: {key}")).status == 200).count();
    let metrics = scrape(&gateway);
    // The last five were counted by their network.
    assert_eq!(metrics.of("tollgate_memory_buckets"), (admitted - 5 + 1) as f64);
    assert_eq!(metrics.of("tollgate_memory_networks"), 1.0);
    assert_eq!(metrics.of("tollgate_memory_overflows_total"), 6.0);
    assert!(
        metrics.of("tollgate_memory_bytes") > 750e3 && metrics.of("tollgate_memory_max_bytes") == 1048576.0
    );
    assert_eq!(metrics.of("tollgate_memory_full_total"), 0.0);
    assert_eq!(readiness(&gateway), (200, "degraded\n".to_owned()));
}

#[test]
fn no_key_of_a_client_is_told() {
    let gateway = with_admin(
        "[limits.l]\nkey = [\"header:x-api-key\", \"query:user\"]\nrate = \"1/h\"\nplain = true\n\
         [[routes]]\npath = \"/{*rest}\"\nrespond = { status = 200 }\nlimits = [\"l\"]\n",
    );
    for status in [200, 429] {
        let request = "GET /hunter1?user=hunter2\nx-api-key: hunter3\nuser-agent: hunter4\nhost: hunter5";
        assert_eq!(gateway.ask(request).status, status);
    }
    let refused = format!("tollgate_decisions_total{}", decision("l", "refused", "store"));
    let metrics = scrape(&gateway);
    assert_eq!(metrics.of(&refused), 1.0);
    assert!(!metrics.text.contains("hunter") && !metrics.text.contains("127.0.0.1"), "{}", metrics.text);
}

/// Who doesn't ask for OpenMetrics gets the form that was before it, with the same series.
#[test]
fn the_older_form_tells_the_same() {
    let gateway = gateway("5/h", "");
    let answer = Client::connect(admin(&gateway).parse().unwrap()).ask("GET /metrics\nHost: localhost");
    assert_eq!(answer.header("content-type"), Some("text/plain; version=0.0.4; charset=utf-8"));
    let older = answer.text();
    let is_of = |line: &str, family: &str, kind: &str| {
        let name = line.split(['{', ' ']).next().unwrap();
        let endings: &[&str] = if kind == "histogram" { &["_bucket", "_sum", "_count"] } else { &[""] };
        endings.iter().any(|ending| name.strip_suffix(*ending) == Some(family))
    };
    let mut family = None;
    for line in older.lines() {
        if let Some(described) = line.strip_prefix("# TYPE ") {
            family = described.split_once(' ');
        } else if !line.starts_with("# HELP ") {
            let (family, kind) = family.unwrap();
            assert!(is_of(line, family, kind), "`{line}` in {family}");
        }
    }
    let series = |page: &str| {
        let samples = page.lines().filter(|line| !line.starts_with('#'));
        samples.map(|line| line.rsplit_once(' ').unwrap().0.to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(series(&older), series(&scrape(&gateway).text));
}

#[test]
fn routes_and_limits_are_exported_once_they_have_counted() {
    let routes = (0..5_000).map(|route| {
        let limit = route % 1_000;
        format!(
            "[[routes]]\nname = \"route-{route}\"\npath = \"/{route}\"\nrespond = {{ status = 200 }}\n\
             limits = [\"limit-{limit}\"]\n"
        )
    });
    let limits = (0..1_000).map(|limit| format!("[limits.limit-{limit}]\nkey = \"ip\"\nrate = \"1/h\"\n"));
    let gateway = with_admin(&limits.chain(routes).collect::<String>());
    let idle = scrape(&gateway).text.len();
    assert!(idle < 100_000, "{idle} bytes while nothing has been counted");
    assert_eq!([gateway.get("/7").status, gateway.get("/7").status], [200, 429]);
    let decided = format!("tollgate_decisions_total{}", decision("limit-7", "refused", "fallback_local"));
    let count = |class: &str| format!("tollgate_requests_total{{route=\"route-7\",status=\"{class}\"}}");
    let mut metrics = scrape(&gateway);
    wait_until("both are counted", || {
        metrics = scrape(&gateway);
        metrics.text.contains(&count("2xx")) && metrics.of(&count("4xx")) == 1.0
    });
    // With what else may come, so that a first failure is an increase.
    assert_eq!([metrics.of(&count("5xx")), metrics.of(&decided)], [0.0, 0.0]);
    assert_eq!(metrics.of("tollgate_requests_refused_total{route=\"route-7\"}"), 1.0);
    assert_eq!(metrics.of("tollgate_request_duration_seconds_count{route=\"route-7\"}"), 2.0);
    assert!(metrics.text.len() < idle + 10_000, "{} bytes", metrics.text.len());
}

/// Rules from a management server where nobody listens.
pub(super) const NOBODYS_RULES: &str = "[decisions]\nlisten = \"127.0.0.1:0\"\n\
    ratelimit_service = { xds = { server = \"http://127.0.0.1:1\" } }\n";

/// Keys of tokens where nobody listens.
const NOBODYS_KEYS: &str = "[jwt]\njwks_url = \"http://127.0.0.1:1/keys\"\n";

#[test]
fn each_metric_is_documented() {
    let (redis, folder) = (Redis::start(), tempfile::tempdir().unwrap());
    let optional = format!(
        "[access_log]\npath = \"{}/log\"\n[tracing]\n{NOBODYS_RULES}{NOBODYS_KEYS}",
        folder.path().display()
    );
    let metrics = scrape(&gateway("5/h", &(redis.store() + &optional)));
    let document = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/metrics.md")).unwrap();
    let documented = document.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next());
    let (mut told, mut documented) = (metrics.names(), documented.collect::<Vec<_>>());
    told.sort_unstable();
    documented.sort_unstable();
    assert_eq!(told, documented);
}
