//! The RateLimit fields, and refusals.

use std::time::Instant;

use crate::{
    forward_all,
    harness::{gateway::Gateway, redis::Redis, upstream::Upstream, wire::WireUpstream},
    limit_all,
};

const QUOTA_EXCEEDED: &str = "https://iana.org/assignments/http-problem-types#quota-exceeded";

#[test]
fn a_refused_request_never_reaches_the_upstream() {
    let upstream = Upstream::hello();
    let limits = "limits = [\"l\"]\n[limits.l]\nkey = \"ip\"\nrate = \"5/min\"";
    let gateway = Gateway::start(&(forward_all(&upstream.url(), "") + limits));
    let statuses: Vec<u16> = (0..8).map(|_| gateway.get("/").status).collect();
    assert_eq!(statuses, [200, 200, 200, 200, 200, 429, 429, 429]);
    assert_eq!(upstream.count(), 5);
}

#[test]
fn the_fields_of_the_draft_tell_every_limit_of_the_route() {
    let redis = Redis::start();
    for store in ["", &redis.store()] {
        let gateway = Gateway::start(
            &(limit_all("key = \"ip\"\nrate = \"3/min\"").replace("[\"l\"]", "[\"l\", \"fine\"]")
                + "[limits.fine]\nkey = \"global\"\nrate = \"2/1500ms\"\n"
                + store),
        );
        let answer = gateway.get("/");
        // 1500 ms are no whole seconds: such a limit has no w and no t.
        assert_eq!(answer.lines("ratelimit-policy"), ["\"l\";q=3;w=60, \"fine\";q=2"], "{store}");
        assert_eq!(answer.lines("ratelimit"), ["\"l\";r=2;t=60, \"fine\";r=1"], "{store}");
        assert_eq!((answer.header("x-ratelimit-limit"), answer.header("retry-after")), (None, None));
    }
}

#[test]
fn the_fields_take_the_form_that_the_file_says() {
    // Per form: the draft's lines, and the legacy ones.
    for (form, draft, legacy) in
        [("draft-11", true, false), ("x-ratelimit", false, true), ("both", true, true), ("off", false, false)]
    {
        let upstream = WireUpstream::answering(
            "HTTP/1.1 200 OK\r\nContent-Length: 0\r\nRateLimit-Policy: \"up\";q=9;w=1\r\nRateLimit: \"up\";r=8;t=1\r\n\
             X-RateLimit-Limit: 9\r\nX-RateLimit-Remaining: 8\r\nX-RateLimit-Reset: 1\r\n\r\n",
        );
        let gateway = Gateway::start(&format!(
            "{}limits = [\"wide\", \"tight\"]\n[limits.wide]\nkey = \"ip\"\nrate = \"100/min\"\n\
             [limits.tight]\nkey = \"global\"\nrate = \"2/h\"\n[server]\nratelimit_headers = \"{form}\"\n",
            forward_all(&upstream.url(), "")
        ));
        let admitted = gateway.get("/");
        // What upstream says of its own limits stays.
        let own = draft.then_some("\"wide\";q=100;w=60, \"tight\";q=2;w=3600");
        let policies: Vec<_> = ["\"up\";q=9;w=1"].into_iter().chain(own).collect();
        assert_eq!(admitted.lines("ratelimit-policy"), policies, "{form}");
        let own = draft.then_some("\"wide\";r=99;t=60, \"tight\";r=1;t=3600");
        let states: Vec<_> = ["\"up\";r=8;t=1"].into_iter().chain(own).collect();
        assert_eq!(admitted.lines("ratelimit"), states, "{form}");
        // The legacy form has place for one limit, the tightest, and takes upstream's.
        let fields = ["x-ratelimit-limit", "x-ratelimit-remaining", "x-ratelimit-reset"];
        let expected = if legacy { [["2"], ["1"], ["3600"]] } else { [["9"], ["8"], ["1"]] };
        assert_eq!(fields.map(|field| admitted.lines(field)), expected, "{form}");

        gateway.get("/");
        let refused = gateway.get("/");
        assert_eq!(refused.status, 429, "{form}");
        let policy = draft.then_some("\"wide\";q=100;w=60, \"tight\";q=2;w=3600");
        assert_eq!(refused.header("ratelimit-policy"), policy, "{form}");
        let told = fields.map(|field| refused.header(field));
        let delay = refused.header("retry-after");
        assert!(delay.is_some(), "{refused:?}");
        assert_eq!(told, if legacy { [Some("2"), Some("0"), delay] } else { [None; 3] }, "{form}");
    }
}

#[test]
fn a_refusal_tells_which_limits_and_when_to_come_back() {
    let redis = Redis::start();
    for store in ["", &redis.store()] {
        let gateway = Gateway::start(&format!(
            "{}[limits.second]\nkey = \"global\"\nrate = \"1/90s\"\n[limits.free]\nkey = \"global\"\nrate = \"9/h\"\n{store}",
            limit_all("key = \"ip\"\nrate = \"1/30s\"").replace("[\"l\"]", "[\"l\", \"free\", \"second\"]")
        ));
        let since = Instant::now();
        gateway.get("/");
        let refused = gateway.get("/");
        let took_ms = since.elapsed().as_millis() as u64;
        assert_eq!((refused.status, refused.header("content-type")), (429, Some("application/problem+json")));
        // The longest of the waits.
        let delay_ms = refused.retry_after_ms();
        assert!((90_000 - took_ms - 1..=90_000).contains(&delay_ms), "{delay_ms}");
        let seconds: u64 = refused.header("retry-after").unwrap().parse().unwrap();
        assert_eq!(seconds, delay_ms.div_ceil(1000));
        let mut problem = refused.json();
        let detail = problem["detail"].take();
        let detail = detail.as_str().unwrap();
        assert!(detail.starts_with("limits `l`, `second` exceeded: retry in "), "{detail}");
        assert_eq!(
            problem,
            serde_json::json!({
                "type": QUOTA_EXCEEDED,
                "title": "Too Many Requests",
                "status": 429,
                "code": "quota-exceeded",
                "detail": null,
                "violated-policies": ["l", "second"],
                "retry_after_ms": delay_ms,
            })
        );
        let states = refused.header("ratelimit").unwrap();
        assert!(
            states.starts_with("\"l\";r=0;t=30, \"free\";r=8;t=") && states.contains("\"second\";r=0;"),
            "{states}"
        );
    }
}

#[test]
fn a_client_of_grpc_is_refused_in_its_own_form() {
    let gateway = Gateway::start(&limit_all("key = \"ip\"\nrate = \"1/h\""));
    gateway.get("/");
    for content_type in ["application/grpc", "application/grpc+proto", "application/grpc; x=y"] {
        let answer = gateway.ask(&format!("POST /a.B/C\nContent-Type: {content_type}"));
        assert_eq!((answer.status, answer.body.len()), (200, 0), "{content_type}");
        assert_eq!(answer.header("grpc-status"), Some("8"), "{content_type}");
        assert_eq!(answer.header("content-type"), Some("application/grpc"));
        assert!(answer.header("grpc-message").unwrap().contains("limit `l` exceeded"));
        assert!(answer.retry_after_ms() > 0 && answer.header("ratelimit").is_some());
    }
    for content_type in ["application/grpc-web", "application/json"] {
        let answer = gateway.ask(&format!("POST /a.B/C\nContent-Type: {content_type}"));
        assert_eq!((answer.status, answer.header("grpc-status")), (429, None), "{content_type}");
    }
}

#[test]
fn a_shadow_limit_counts_refuses_nobody_and_is_not_shown() {
    let redis = Redis::start();
    let limits = limit_all("key = \"ip\"\nrate = \"9/h\"").replace("[\"l\"]", "[\"l\", \"shadow\"]");
    let gateway = Gateway::start(&format!(
        "{limits}[limits.shadow]\nkey = \"global\"\nrate = \"2/h\"\nmode = \"shadow\"\n{}",
        redis.store()
    ));
    for left in (5..9).rev() {
        let answer = gateway.get("/");
        assert_eq!((answer.status, answer.header("ratelimit-policy")), (200, Some("\"l\";q=9;w=3600")));
        let state = answer.header("ratelimit").unwrap();
        assert!(state.starts_with(&format!("\"l\";r={left};t=")) && !state.contains("shadow"), "{state}");
    }
    assert_eq!(redis.command(&["ZCARD", "tollgate:shadow:sw:{global=}"]), "2");
    assert_eq!(redis.command(&["ZCARD", "tollgate:l:sw:{ip=127.0.0.1}"]), "4");
}

#[test]
fn a_refusal_by_one_limit_charges_none() {
    let redis = Redis::start();
    let limits = limit_all("key = \"ip\"\nrate = \"9/h\"").replace("[\"l\"]", "[\"l\", \"tight\"]");
    let gateway = Gateway::start(&format!(
        "{limits}[limits.tight]\nkey = \"global\"\nrate = \"1/h\"\n{}",
        redis.store()
    ));
    let statuses: Vec<u16> = (0..3).map(|_| gateway.get("/").status).collect();
    assert_eq!(statuses, [200, 429, 429]);
    assert_eq!(redis.command(&["ZCARD", "tollgate:l:sw:{ip=127.0.0.1}"]), "1");
}

#[test]
fn a_failed_upstream_leaves_the_charge_and_its_answer_tells_the_limits() {
    let limits = "limits = [\"l\"]\n[limits.l]\nkey = \"ip\"\nrate = \"2/h\"";
    let gateway = Gateway::start(&(forward_all(&WireUpstream::start(drop).url(), "") + limits));
    let answers = [(); 3].map(|()| gateway.get("/"));
    assert_eq!(answers.each_ref().map(|answer| answer.status), [502, 502, 429]);
    assert_eq!(answers[1].header("ratelimit-policy"), Some("\"l\";q=2;w=3600"));
}
