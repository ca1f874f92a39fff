//! Costs that are reported after they have arisen.

use std::{
    fs,
    time::{Duration, Instant},
};

use crate::{
    decisions::Decider,
    decisions::rls::{Descriptor, OK, OVER_LIMIT, Request, Response, ask, ask_with},
    harness::{client::Answer, redis::Redis},
};

/// A budget of a thousand tokens an hour and key, beside a limit of calls.
const TOKENS: &str = "[[descriptors]]\ndomain = \"d\"\nmatch = { k = \"*\" }\nlimits = [\"tokens\"]\n\
    [[descriptors]]\ndomain = \"d\"\nmatch = { call = \"*\" }\nlimits = [\"calls\"]\n\
    [limits.tokens]\nkey = \"descriptor:k\"\nrate = \"1000/h\"\nusage = \"reported\"\n\
    [limits.calls]\nkey = \"descriptor:call\"\nrate = \"1/h\"\n";

fn key(hits: u64) -> Descriptor {
    Descriptor::of(&[("k", b"a")]).hits(hits)
}

fn send(decider: &Decider, descriptors: impl IntoIterator<Item = Descriptor>) -> Response {
    ask(decider.address, &Request::new("d", descriptors)).unwrap()
}

fn look(decider: &Decider) -> (i32, u32) {
    send(decider, [key(0)]).left()[0]
}

fn post(decider: &Decider, path: &str, body: &str) -> Answer {
    let length = body.len();
    decider.ask(&format!("POST {path}\nContent-Type: application/json\nContent-Length: {length}\n\n{body}"))
}

/// The fault of limitador#438: with 100 tokens left, each answer of 500 would be free, for ever.
#[test]
fn a_budget_that_is_checked_with_0_and_reported_later_never_leaks() {
    let redis = Redis::start();
    for store in [String::new(), redis.store()] {
        let decider = Decider::start("", &format!("{store}{TOKENS}"));
        assert_eq!(look(&decider), (OK, 1000));
        assert_eq!(send(&decider, [key(900)]).left(), [(OK, 100)]);
        let mut answered = 0;
        for _ in 0..10 {
            if look(&decider).0 == OK {
                answered += 1;
                let report = send(&decider, [key(500)]);
                assert_eq!((report.overall_code, report.left()), (OVER_LIMIT, vec![(OVER_LIMIT, 0)]));
            }
        }
        assert_eq!(answered, 1, "{store}");
        // The debt counts, too: it doesn't end before the grants do.
        let reset = send(&decider, [key(0)]).statuses[0].duration_until_reset.unwrap();
        assert!((3590..=3600).contains(&reset.seconds), "{}", reset.seconds);
    }
}

#[test]
fn a_report_is_recorded_whatever_the_other_descriptors_answer() {
    let decider = Decider::start("", TOKENS);
    let call = || Descriptor::of(&[("call", b"a")]);
    assert_eq!(send(&decider, [key(10), call()]).left(), [(OK, 990), (OK, 0)]);
    let refused = send(&decider, [key(10), call()]);
    assert_eq!((refused.overall_code, refused.left()), (OVER_LIMIT, vec![(OK, 980), (OVER_LIMIT, 0)]));
    assert_eq!(look(&decider), (OK, 980));
    // A report that doesn't fit refuses the call, which charges nothing else then.
    let other = || Descriptor::of(&[("call", b"b")]);
    assert_eq!(send(&decider, [other(), key(981)]).overall_code, OVER_LIMIT);
    assert_eq!(send(&decider, [other()]).left(), [(OK, 0)]);
}

#[test]
fn a_report_is_recorded_if_another_descriptor_is_never_counted_or_all_quotas_are_used_up() {
    let strict = "[[descriptors]]\ndomain = \"d\"\nmatch = { strict = \"*\" }\nlimits = [\"strict\"]\n\
        [limits.strict]\nkey = \"descriptor:strict\"\nrate = \"9/h\"\nunknown = \"deny\"\nkeys_file = \"KEYS\"\n";
    let (folder, beside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let keys = beside.path().join("keys");
    fs::write(&keys, format!("{}\n", "0".repeat(64))).unwrap();
    let strict = strict.replace("KEYS", keys.to_str().unwrap());
    let quota = |key: &str| {
        format!("- {{ key: {key}, quota_mode: true, rate_limit: {{ unit: hour, requests_per_unit: 1 }} }}\n")
    };
    let yaml = format!(
        "domain: d\ndescriptors:\n- {{ key: tok, rate_limit: {{ unit: hour, requests_per_unit: 1000 }} }}\n{}{}",
        quota("q"),
        quota("r")
    );
    fs::write(folder.path().join("d.yaml"), yaml).unwrap();
    let service = format!("ratelimit_service = {{ config = {:?} }}\nreported = [\"d:tok\"]", folder.path());
    let decider = Decider::start(&service, &format!("{TOKENS}{strict}"));
    let of = |key: &str| Descriptor::of(&[(key, b"a")]);
    for descriptors in [[key(10), of("strict")], [of("strict"), key(10)]] {
        assert_eq!(send(&decider, descriptors).overall_code, OVER_LIMIT);
    }
    assert_eq!(look(&decider), (OK, 980));
    for code in [OK, OVER_LIMIT] {
        assert_eq!(send(&decider, [of("q"), of("r"), of("tok").hits(10)]).overall_code, code);
    }
    assert_eq!(send(&decider, [of("tok").hits(0)]).left(), [(OK, 980)]);
}

#[test]
fn the_greatest_report_is_counted() {
    let decider = Decider::start("", TOKENS);
    assert_eq!(send(&decider, [key(u64::from(u32::MAX >> 1))]).left(), [(OVER_LIMIT, 0)]);
    assert_eq!(look(&decider).0, OVER_LIMIT);
}

#[test]
fn services_report_by_json() {
    let decider = Decider::start("", TOKENS);
    let ask = |cost: u32| {
        let body = format!(r#"{{"limits":[{{"name":"tokens","key":"b","cost":{cost}}}]}}"#);
        post(&decider, "/check", &body).status
    };
    assert_eq!([ask(0), ask(900), ask(0), ask(500), ask(0)], [200, 200, 200, 429, 429]);
    let report = |hits: u32| {
        let body = format!(
            r#"{{"domain":"d","descriptors":[{{"entries":[{{"key":"k","value":"c"}}],"hitsAddend":{hits}}}]}}"#
        );
        post(&decider, "/json", &body).status
    };
    assert_eq!([report(0), report(900), report(0), report(500), report(0)], [200, 200, 200, 429, 429]);
}

/// A request that another proxy forwards only asks whether there is room.
#[test]
fn requests_only_ask_whether_a_reported_budget_has_room() {
    let decider = Decider::start(
        "",
        "[limits.tokens]\nkey = \"header:x-api-key\"\nrate = \"1000/h\"\nusage = \"reported\"\nplain = true\n\
         [[routes]]\npath = \"/{*rest}\"\nrespond = { status = 204 }\nlimits = [\"tokens\"]\n",
    );
    let forwarded = || decider.ask("GET /check\nX-Forwarded-Uri: /chat\nx-api-key: a").status;
    let proxied = || decider.gateway.ask("GET /chat\nx-api-key: a").status;
    for _ in 0..3 {
        assert_eq!((forwarded(), proxied()), (200, 204));
    }
    let body = r#"{"limits":[{"name":"tokens","key":"a","cost":1001}]}"#;
    assert_eq!(post(&decider, "/check", body).status, 429);
    assert_eq!((forwarded(), proxied()), (429, 429));
}

#[test]
fn descriptors_of_yaml_are_reported_if_the_file_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let yaml = "domain: d\ndescriptors:\n- key: k\n  rate_limit: { unit: hour, requests_per_unit: 1000 }\n\
                - key: call\n  rate_limit: { unit: hour, requests_per_unit: 1000 }\n";
    fs::write(folder.path().join("d.yaml"), yaml).unwrap();
    let service = format!("ratelimit_service = {{ config = {:?} }}", folder.path());
    let decider = Decider::start(&format!("{service}\nreported = [\"d:k\"]"), "");
    assert_eq!(send(&decider, [key(2000)]).overall_code, OVER_LIMIT);
    assert_eq!(look(&decider).0, OVER_LIMIT);

    // Others aren't, and that is told once, with the remedy.
    let call = |hits| Descriptor::of(&[("call", b"a")]).hits(hits);
    assert!(!decider.gateway.log().contains("0 hits"));
    for _ in 0..3 {
        assert_eq!(send(&decider, [call(0)]).left(), [(OK, 1000)]);
        assert_eq!(send(&decider, [call(2000)]).overall_code, OVER_LIMIT);
    }
    decider.gateway.wait_for_log("d:call");
    let log = decider.gateway.log();
    assert_eq!(
        log.matches("reported = [\\\"d:call\\\"]").count() + log.matches("reported = [\"d:call\"]").count(),
        1,
        "{log}"
    );
}

/// The grant of a refund isn't known here, so the oldest permits in use come back.
#[test]
fn a_call_gives_permits_back_where_the_limit_does() {
    let limits = TOKENS.replace("usage = \"reported\"", "refunds = true");
    let redis = Redis::start();
    for store in [String::new(), redis.store()] {
        let decider = Decider::start("", &format!("{store}{limits}"));
        assert_eq!(send(&decider, [key(1000)]).left(), [(OK, 0)]);
        assert_eq!(send(&decider, [key(1)]).overall_code, OVER_LIMIT);
        let refund = Descriptor { is_negative_hits: true, ..key(400) };
        assert_eq!(send(&decider, [refund]).overall_code, OK);
        // What was rejected before isn't rejected from memory.
        assert_eq!(send(&decider, [key(100)]).left(), [(OK, 300)]);
        let body = r#"{"domain":"d","descriptors":[{"entries":[{"key":"k","value":"a"}],"hitsAddend":100,"isNegativeHits":true}]}"#;
        assert_eq!(post(&decider, "/json", body).status, 200);
        assert_eq!(look(&decider), (OK, 400));
    }
}

#[test]
fn a_refund_ends_before_the_caller_gives_up() {
    let limits = TOKENS.replace("usage = \"reported\"", "refunds = true");
    let redis = Redis::start();
    let decider =
        Decider::start("", &format!("[store]\nurl = \"{}\"\ntimeout = \"5s\"\n{limits}", redis.url()));
    assert_eq!(send(&decider, [key(10)]).left(), [(OK, 990)]);
    redis.pause();
    let refund = || Descriptor { is_negative_hits: true, ..key(4) };
    let asked = Instant::now();
    for descriptors in [vec![refund()], vec![refund(), key(1)]] {
        let request = Request::new("d", descriptors);
        let answer = ask_with(decider.address, &request, &[("grpc-timeout", "300m")]).unwrap();
        assert_eq!(answer.overall_code, OK);
    }
    assert!(asked.elapsed() < Duration::from_secs(5), "{:?}", asked.elapsed());
    redis.resume();
}
