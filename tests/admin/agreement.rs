//! Metrics, the access log, traces and the dashboard agree about the same load.

use std::{collections::BTreeMap, fs};

use serde_json::Value;

use crate::{
    admin::{admin, events::Events},
    harness::{
        client::Client, collector::Collector, gateway::Gateway, metrics::Metrics, redis::Redis,
        upstream::Upstream, wait_until,
    },
};

/// How often each was told.
type Told = BTreeMap<String, u64>;

fn counted<K: ToString>(all: impl IntoIterator<Item = K>) -> Told {
    let mut told = Told::new();
    all.into_iter().for_each(|key| *told.entry(key.to_string()).or_default() += 1);
    told
}

fn of(pairs: impl IntoIterator<Item = (String, u64)>) -> Told {
    pairs.into_iter().filter(|(_, count)| *count > 0).collect()
}

#[test]
fn all_who_watch_see_the_same() {
    let (redis, folder) = (Redis::start(), tempfile::tempdir().unwrap());
    let log = folder.path().join("access.log");
    let (collector, upstream) = (Collector::start(), Upstream::hello());
    let gateway = Gateway::start(&format!(
        "{}\n[server]\nworkers = 2\n[admin]\nlisten = \"127.0.0.1:0\"\n[access_log]\npath = \"{}\"\n\
         {}[upstreams.up]\nservers = [\"{}\"]\n[limits.by-key]\nkey = \"header:x-api-key\"\nrate = \"20/h\"\n\
         [limits.trial]\nkey = \"path:id\"\nrate = \"5/h\"\nmode = \"shadow\"\n\
         [[routes]]\nname = \"orders\"\npath = \"/orders/{{id}}\"\nupstream = \"up\"\nlimits = [\"by-key\", \"trial\"]\n\
         [[routes]]\nname = \"moved\"\npath = \"/moved\"\nrespond = {{ status = 302 }}\n",
        redis.store(),
        log.display(),
        collector.table("1"),
        upstream.url(),
    ));
    let admin = admin(&gateway);
    let mut events = Events::of(&gateway);
    // Three clients of their own connections, so of all workers: 30 of one key, 10 of another, and some else.
    let mut clients = [gateway.client(), gateway.client(), gateway.client()];
    for at in 0..30 {
        let ask =
            |client: &mut Client, key: &str, id| client.ask(&format!("GET /orders/{id}\nx-api-key: {key}"));
        let status = ask(&mut clients[at % 3], "heavy", at % 3).status;
        assert_eq!(status, if at < 20 { 200 } else { 429 });
        if at % 3 == 0 {
            assert_eq!(ask(&mut clients[(at + 1) % 3], "light", 7).status, 200);
        }
        if at % 10 == 0 {
            assert_eq!(clients[0].get("/moved").status, 302);
            assert_eq!(clients[1].get("/nowhere").status, 404);
        }
    }
    drop(clients);

    let mut lines = Vec::<Value>::new();
    wait_until("all is logged", || {
        lines = fs::read_to_string(&log)
            .unwrap()
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect();
        lines.len() == 46
    });
    // 46 requests, the 40 decisions of those with limits, and the 30 that went to the upstream.
    let spans = collector.await_spans(46 + 40 + 30);
    let metrics = Metrics::scrape(&admin);
    let mut sums = [0; 6];
    let mut state = Value::Null;
    while sums[..5].iter().sum::<u64>() < 46 {
        let (name, told) = events.next();
        let samples = if name == "history" {
            told["samples"].as_array().unwrap().clone()
        } else {
            vec![told["sample"].clone()]
        };
        for sample in samples.iter().filter(|sample| sample.is_array()) {
            (0..6).for_each(|column| sums[column] += sample[column + 2].as_u64().unwrap());
        }
        state = told;
    }

    // Requests by route and class of status.
    let by_log = counted(lines.iter().map(|line| {
        format!("{} {}xx", line["route"].as_str().unwrap_or_default(), line["status"].as_u64().unwrap() / 100)
    }));
    let routes = ["", "moved", "orders"];
    let classes = ["1xx", "2xx", "3xx", "4xx", "5xx"];
    let all = || routes.iter().flat_map(|route| classes.iter().map(move |class| (*route, *class)));
    let by_metrics = of(all().map(|(route, class)| {
        let series = format!("tollgate_requests_total{{route=\"{route}\",status=\"{class}\"}}");
        (format!("{route} {class}"), metrics.of(&series) as u64)
    }));
    let by_dashboard = of(all().map(|(route, class)| {
        let at = routes.iter().position(|other| *other == route).unwrap();
        assert_eq!(state["routes"][at]["route"], route);
        (format!("{route} {class}"), state["routes"][at]["requests"][class].as_u64().unwrap())
    }));
    assert_eq!(
        by_log,
        counted(
            [(); 3]
                .iter()
                .flat_map(|()| [" 4xx", "moved 3xx"])
                .chain([(); 30].map(|()| "orders 2xx"))
                .chain([(); 10].map(|()| "orders 4xx"))
        )
    );
    assert_eq!((&by_log, &by_log), (&by_metrics, &by_dashboard));
    assert_eq!(sums, [0, 30, 3, 13, 0, 10]);
    let of_requests = || spans.iter().filter(|span| span.parent.is_empty());
    let by_traces = counted(of_requests().map(|span| {
        format!(
            "{} {}xx",
            span.of_attribute("tollgate.route"),
            &span.of_attribute("http.response.status_code")[..1]
        )
    }));
    assert_eq!(by_traces, by_log);
    assert_eq!(metrics.of("tollgate_spans_total{outcome=\"dropped\"}"), 0.0);

    // Each line is of a trace, which tells the same of the request.
    for line in &lines {
        let request = of_requests().find(|span| line["trace_id"] == span.trace).unwrap();
        assert_eq!(line["status"].to_string(), request.of_attribute("http.response.status_code"));
        let took_ms = (request.end - request.start) / 1_000_000;
        assert!(took_ms.abs_diff(line["duration_ms"].as_f64().unwrap() as u64) <= 1, "{line} {request:?}");
        let mut parts = spans.iter().filter(|span| span.parent == request.id);
        let visit = parts.find(|span| span.name == "GET");
        let server = visit
            .map(|visit| ["server.address", "server.port"].map(|name| visit.of_attribute(name)).join(":"));
        assert_eq!(line["upstream"]["server"].as_str(), server.as_deref(), "{line}");
    }
    assert_eq!(metrics.of("tollgate_requests_refused_total{route=\"orders\"}"), 10.0);

    // Decisions by limit and what it did, and by key.
    let decided = || lines.iter().flat_map(|line| line["limits"].as_array().into_iter().flatten());
    let text = |of: &Value, name: &str| of[name].as_str().unwrap_or_default().to_owned();
    let by_log = counted(decided().map(|of| format!("{} {}", text(of, "limit"), text(of, "decision"))));
    let by_metrics = of(by_log.keys().map(|pair| {
        let (limit, outcome) = pair.split_once(' ').unwrap();
        let start = format!("tollgate_decisions_total{{limit=\"{limit}\",outcome=\"{outcome}\",");
        let series = metrics.text.lines().filter(|line| line.starts_with(&start));
        (pair.clone(), series.map(|line| line.rsplit_once(' ').unwrap().1.parse::<u64>().unwrap()).sum())
    }));
    let by_dashboard = of(by_log.keys().map(|pair| {
        let (limit, outcome) = pair.split_once(' ').unwrap();
        let limits = state["limits"].as_array().unwrap();
        let of = limits.iter().find(|of| of["limit"] == limit).unwrap();
        (pair.clone(), of["decisions"][outcome].as_u64().unwrap())
    }));
    let by_traces = counted(spans.iter().flat_map(|span| {
        let list = |name: &str| span.of_attribute(name).split(',').map(str::to_owned).collect::<Vec<_>>();
        let pairs = list("tollgate.limits").into_iter().zip(list("tollgate.decisions"));
        pairs.map(|(limit, decision)| format!("{limit} {decision}")).filter(|pair| pair != " ")
    }));
    assert_eq!(by_traces, by_log);
    let in_metrics =
        |series: &str| metrics.of(&format!("tollgate_upstream_response_seconds_count{{{series}}}"));
    let server = upstream.url().replace("http://", "");
    assert_eq!(in_metrics(&format!("upstream=\"up\",server=\"{server}\"")), 30.0);
    assert_eq!((by_log["by-key admitted"], by_log["by-key refused"]), (30, 10));
    assert!(by_log["trial refused"] >= 5, "{by_log:?}");
    assert_eq!((&by_log, &by_log), (&by_metrics, &by_dashboard));
    for (by, decisions) in
        [("requests", &["admitted", "refused", "uncharged"][..]), ("refused", &["refused"])]
    {
        let is_of = |of: &&Value| decisions.contains(&text(of, "decision").as_str());
        let by_log =
            counted(decided().filter(is_of).map(|of| format!("{} {}", text(of, "limit"), text(of, "key"))));
        let top = Client::connect(admin.parse().unwrap())
            .ask(&format!("GET /api/top?by={by}\nHost: localhost"))
            .json();
        for told in [&top, &state["top"][by]] {
            let by_dashboard = of(told.as_array().unwrap().iter().map(|hit| {
                assert_eq!(hit["at_least"], hit["at_most"]);
                (format!("{} {}", text(hit, "limit"), text(hit, "key")), hit["at_least"].as_u64().unwrap())
            }));
            assert_eq!(by_log, by_dashboard, "{by}");
        }
    }
}
