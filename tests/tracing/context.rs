//! W3C Trace Context: propagation and sampling decisions.

use std::time::Instant;

use hyper::{HeaderMap, header::HeaderName};

use crate::{
    harness::{collector::Collector, gateway::Gateway, upstream::Upstream, wait_until},
    tracing::{PARENT, TRACE, forward_to, traceparent},
};

/// The lines of a field.
fn lines<'h>(header: &'h HeaderMap, name: &'static str) -> Vec<&'h str> {
    header.get_all(HeaderName::from_static(name)).into_iter().map(|line| line.to_str().unwrap()).collect()
}

/// Returns the trace context that the upstream gets: the parts of traceparent, and the lines of tracestate.
fn told(upstream: &Upstream) -> ([String; 3], Vec<String>) {
    let header = upstream.last().headers;
    let lines = |name| lines(&header, name).into_iter().map(str::to_owned).collect::<Vec<_>>();
    let (parents, states) = (lines("traceparent"), lines("tracestate"));
    assert_eq!(parents.len(), 1, "{parents:?}");
    let parts: Vec<_> = parents[0].split('-').map(str::to_owned).collect();
    let [version, trace, span, flags] = parts.try_into().unwrap();
    assert_eq!((version.as_str(), trace.len(), span.len()), ("00", 32, 16));
    ([trace, span, flags], states)
}

/// A gateway before an upstream, which traces this share.
fn tracing(collector: &Collector, sample: &str, upstream: &Upstream) -> Gateway {
    Gateway::start(&(collector.table(sample) + &forward_to(&[&upstream.url()], "")))
}

#[test]
fn without_tracing_everything_goes_on_as_it_came() {
    let upstream = Upstream::hello();
    let gateway = Gateway::start(&forward_to(&[&upstream.url()], ""));
    gateway.ask("GET /\ntraceparent: 00-x\ntraceparent: 00-y\ntracestate: a=1\ntracestate: b=2");
    let header = upstream.last().headers;
    assert_eq!(lines(&header, "traceparent"), ["00-x", "00-y"]);
    assert_eq!(lines(&header, "tracestate"), ["a=1", "b=2"]);
    gateway.get("/");
    assert!(!upstream.last().headers.contains_key("traceparent"));
}

#[test]
fn a_trace_that_is_sampled_goes_on_through_the_gateways_spans() {
    let (upstream, collector) = (Upstream::hello(), Collector::start());
    let gateway = tracing(&collector, "0", &upstream);
    gateway.ask(&format!("GET /\ntraceparent: {}\ntracestate: a=1\ntracestate: b=2", traceparent("01")));
    let ([trace, span, flags], states) = told(&upstream);
    assert_eq!((trace.as_str(), flags.as_str()), (TRACE, "01"));
    assert_eq!(states, ["a=1", "b=2"]);
    let [request, visit] = collector.await_spans(2).try_into().unwrap();
    assert_eq!((request.trace.as_str(), request.parent.as_str()), (TRACE, PARENT));
    assert_eq!((visit.trace.as_str(), &visit.parent, &visit.id), (TRACE, &request.id, &span));
    assert!(request.id != visit.id && request.id != PARENT, "{request:?} {visit:?}");
}

#[test]
fn a_trace_that_is_not_sampled_goes_on_untouched() {
    let (upstream, collector) = (Upstream::hello(), Collector::start());
    let gateway = tracing(&collector, "1", &upstream);
    for flags in ["00", "02"] {
        gateway.ask(&format!("GET /\ntraceparent: {}\ntracestate: a=1", traceparent(flags)));
        let (parts, states) = told(&upstream);
        assert_eq!((parts, states), ([TRACE, PARENT, flags].map(str::to_owned), vec!["a=1".to_owned()]));
    }
    // It is the only one of these that is traced.
    gateway.get("/");
    collector.await_spans(2);
}

#[test]
fn who_is_not_drawn_tells_the_upstream_that_the_trace_is_not_sampled() {
    let (upstream, collector) = (Upstream::hello(), Collector::start());
    let gateway = tracing(&collector, "0", &upstream);
    let traces = [(); 20].map(|()| {
        gateway.ask("GET /\ntracestate: a=1");
        let ([trace, _, flags], states) = told(&upstream);
        assert_eq!((flags.as_str(), states.len()), ("00", 0));
        trace
    });
    assert!(traces.iter().all(|trace| traces.iter().filter(|other| *other == trace).count() == 1));
    gateway.ask(&format!("GET /\ntraceparent: {}", traceparent("01")));
    collector.await_spans(2);
}

#[test]
fn what_is_no_traceparent_begins_a_trace() {
    let (upstream, collector) = (Upstream::hello(), Collector::start());
    let gateway = tracing(&collector, "1", &upstream);
    let good = traceparent("01");
    let bad = [
        good.replace("00-", "ff-"),
        good.replace("00-", "0-"),
        good.replace("af", "AF"),
        good.replace(TRACE, &"0".repeat(32)),
        good.replace(PARENT, &"0".repeat(16)),
        format!("{good}-more"),
        format!("{good}\ntraceparent: {good}"),
        String::new(),
    ];
    for (at, bad) in bad.iter().enumerate() {
        gateway.ask(&format!("GET /\ntraceparent: {bad}\ntracestate: a=1"));
        let ([trace, span, flags], states) = told(&upstream);
        assert_eq!((flags.as_str(), states.len()), ("01", 0), "{bad}");
        let spans = collector.await_spans(2 * (at + 1));
        let visit = spans.iter().find(|other| other.id == span).unwrap();
        let request = spans.iter().find(|other| other.id == visit.parent).unwrap();
        assert_eq!((&request.trace, request.parent.as_str()), (&trace, ""), "{bad}");
        assert_ne!(trace, TRACE, "{bad}");
    }
    gateway.ask(&format!("GET /\ntraceparent: {}-more", good.replace("00-", "cc-")));
    assert_eq!(told(&upstream).0[0], TRACE, "a later version may say more");
}

#[test]
fn a_share_of_the_requests_is_traced() {
    let (upstream, collector) = (Upstream::hello(), Collector::start());
    let gateway = tracing(&collector, "0.25", &upstream);
    let mut client = gateway.client();
    let sampled = (0..800).filter(|_| {
        client.get("/");
        told(&upstream).0[2] == "01"
    });
    let sampled = sampled.count();
    // 200, and less than one in a million away by more than 61.
    assert!((139..=261).contains(&sampled), "{sampled}");
    collector.await_spans(2 * sampled);
}

#[test]
fn who_is_not_trusted_has_some_requests_traced_and_no_more() {
    let upstream = Upstream::hello();
    let untouched = || upstream.seen(|parts| parts.headers["traceparent"] == traceparent("01"));
    let file = forward_to(&[&upstream.url()], "");
    let request = format!("GET / HTTP/1.1\r\nHost: a\r\ntraceparent: {}\r\n\r\n", traceparent("01"));
    // How many of 2,000 are traced, and how many are told that they are.
    let traced = |server: &str| {
        let (collector, before) = (Collector::start(), untouched());
        let mut gateway = Gateway::start(&format!("{server}{}{file}", collector.table("0")));
        let mut client = gateway.client();
        for _ in 0..20 {
            client.send(request.repeat(100).as_bytes());
            (0..100).for_each(|_| assert_eq!(client.answer().status, 200));
        }
        drop(client);
        gateway.signal("TERM");
        wait_until("all is sent", || gateway.ended().is_some());
        (collector.spans().len() / 2, 2_000 - (untouched() - before))
    };
    let since = Instant::now();
    let (some, told) = traced("");
    assert!(some >= 100 && some <= 100 * (since.elapsed().as_secs() as usize + 2), "{some} in {since:?}");
    assert_eq!(told, some);
    assert_eq!(traced("[server]\ntrusted_proxies = [\"127.0.0.1\"]\n"), (2_000, 2_000));
}

#[test]
fn a_route_may_keep_the_trace_to_itself() {
    let (upstream, collector) = (Upstream::hello(), Collector::start());
    let edits = "request_headers = { remove = [\"traceparent\", \"tracestate\"] }\n";
    let gateway = Gateway::start(&(collector.table("1") + &forward_to(&[&upstream.url()], edits)));
    gateway.ask(&format!("GET /\ntraceparent: {}\ntracestate: a=1", traceparent("01")));
    let header = upstream.last().headers;
    assert!(!header.contains_key("traceparent") && !header.contains_key("tracestate"), "{header:?}");
    collector.await_spans(2);
}
