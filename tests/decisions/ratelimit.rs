//! The rate limit service as its callers see it.

use std::{
    io::{BufRead, BufReader},
    path::Path,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use crate::{
    decisions::Decider,
    decisions::rls::{
        Descriptor, OK, OVER_LIMIT, Request, Response, SHOULD_RATE_LIMIT, Status, ask, ask_with, call, framed,
    },
    harness::{metrics::Metrics, redis::Redis, wait_until},
};

const INVALID_ARGUMENT: u32 = 3;
const DEADLINE_EXCEEDED: u32 = 4;
const RESOURCE_EXHAUSTED: u32 = 8;
const UNIMPLEMENTED: u32 = 12;
const UNAVAILABLE: u32 = 14;

/// The unit of a descriptor's limit.
const HOUR: i32 = 3;

/// A rule for descriptors of a path and an API key, with a limit of three an hour.
const PER_KEY: &str = "[[descriptors]]\ndomain = \"shop\"\nmatch = { path = \"/v1/*\", api_key = \"*\" }\n\
    limits = [\"per-key\"]\n[limits.per-key]\nkey = \"descriptor:api_key\"\nrate = \"3/h\"\n";

fn decider(toml: &str) -> Decider {
    Decider::start("", toml)
}

/// A rule that counts the descriptors of the key `k` by its values, at this rate.
fn by_value(rate: &str, keys: &str) -> String {
    format!(
        "[[descriptors]]\ndomain = \"d\"\nmatch = {{ k = \"*\" }}\nlimits = [\"l\"]\n\
         [limits.l]\nkey = \"descriptor:k\"\nrate = \"{rate}\"\n{keys}\n"
    )
}

/// The address of the admin port.
fn admin(decider: &Decider) -> String {
    let (_, address) = decider.gateway.greeting().split_once("dashboard: http://").unwrap();
    address.lines().next().unwrap().trim_end_matches('/').to_owned()
}

fn k(value: &[u8]) -> Descriptor {
    Descriptor::of(&[("k", value)])
}

fn one(decider: &Decider, descriptor: Descriptor) -> Response {
    ask(decider.address, &Request::new("d", [descriptor])).unwrap()
}

#[test]
fn descriptors_are_limited_by_their_rule() {
    let decider = decider(PER_KEY);
    let of = |path: &[u8], key: &[u8]| Descriptor::of(&[("path", path), ("api_key", key)]);
    let ask = |descriptor| ask(decider.address, &Request::new("shop", [descriptor])).unwrap();
    for left in [2, 1] {
        let answer = ask(of(b"/v1/orders", b"gold"));
        assert_eq!((answer.overall_code, answer.left()), (OK, vec![(OK, left)]));
        let Status { current_limit, duration_until_reset, .. } = &answer.statuses[0];
        let limit = current_limit.as_ref().unwrap();
        assert_eq!((limit.requests_per_unit, limit.unit, limit.name.as_str()), (3, 3, "per-key"));
        assert!((3598..=3600).contains(&duration_until_reset.unwrap().seconds));
        assert_eq!(answer.header("ratelimit-policy"), Some("\"per-key\";q=3;w=3600"));
        assert!(answer.header("ratelimit").unwrap().starts_with(&format!("\"per-key\";r={left};t=")));
    }
    // The order of the entries doesn't matter.
    let turned = Descriptor::of(&[("api_key", b"gold"), ("path", b"/v1/")]);
    assert_eq!(ask(turned).left(), [(OK, 0)]);

    let refused = ask(of(b"/v1/orders", b"gold"));
    assert_eq!((refused.overall_code, refused.left()), (OVER_LIMIT, vec![(OVER_LIMIT, 0)]));
    let reset = refused.statuses[0].duration_until_reset.unwrap();
    let after: i64 = refused.header("retry-after").unwrap().parse().unwrap();
    let after_ms: i64 = refused.header("retry-after-ms").unwrap().parse().unwrap();
    assert_eq!((reset.seconds, reset.nanos), (after, 0));
    assert!((after_ms..after_ms + 1000).contains(&(after * 1000)), "{after} {after_ms}");
    assert_eq!(refused.header("content-type"), Some("application/problem+json"));
    let problem: serde_json::Value = serde_json::from_slice(&refused.raw_body).unwrap();
    assert_eq!((&problem["status"], &problem["violated-policies"][0]), (&429.into(), &"per-key".into()));

    // Others aren't limited: another value, other keys, another domain.
    for descriptor in [
        of(b"/v2/orders", b"gold"),
        Descriptor::of(&[("api_key", b"gold")]),
        Descriptor::of(&[("path", b"/v1/"), ("api_key", b"gold"), ("more", b"")]),
    ] {
        let answer = ask(descriptor);
        assert_eq!((answer.overall_code, answer.left()), (OK, vec![(OK, 0)]));
        assert_eq!((&answer.statuses[0].current_limit, answer.header("ratelimit")), (&None, None));
    }
    assert_eq!(ask(of(b"/v1/orders", b"silver")).left(), [(OK, 2)]);
    let elsewhere = Request::new("elsewhere", [of(b"/v1/orders", b"gold")]);
    assert_eq!(super::rls::ask(decider.address, &elsewhere).unwrap().overall_code, OK);
}

#[test]
fn a_refund_charges_nothing() {
    let decider = decider(&by_value("3/h", ""));
    assert_eq!(one(&decider, k(b"a")).left(), [(OK, 2)]);
    let refund = Descriptor { is_negative_hits: true, ..k(b"a").hits(1) };
    assert_eq!(one(&decider, refund).overall_code, OK);
    assert_eq!(one(&decider, k(b"a")).left(), [(OK, 1)]);
}

#[test]
fn any_value_is_decided() {
    let decider = decider(&by_value("1/h", ""));
    let long = vec![b'a'; 60 << 10];
    for value in [&b""[..], b"\xff", &long, b"\0\n{}*", "gr\u{fc}n".as_bytes()] {
        assert_eq!(one(&decider, k(value)).overall_code, OK, "{value:?}");
        assert_eq!(one(&decider, k(value)).overall_code, OVER_LIMIT, "{value:?}");
    }
    assert_eq!(one(&decider, k(&[b'a'; (60 << 10) - 1])).overall_code, OK);
}

#[test]
fn space_around_a_value_makes_no_other_key() {
    let decider = decider(&by_value("3/h", ""));
    let asked = [&b"k1"[..], b" k1", b"k1\t ", b"\tk1"].map(|value| one(&decider, k(value)).overall_code);
    assert_eq!(asked, [OK, OK, OK, OVER_LIMIT]);
}

#[test]
fn what_callers_do_wrong_is_told() {
    let decider = decider(&by_value("1/h", ""));
    let fails = |request: &Request| ask(decider.address, request).unwrap_err().0;
    assert_eq!(fails(&Request::new("", [k(b"a")])), INVALID_ARGUMENT);
    assert_eq!(fails(&Request::new("d", [])), INVALID_ARGUMENT);
    assert_eq!(fails(&Request::new("d", vec![k(b"a"); 257])), INVALID_ARGUMENT);
    assert_eq!(fails(&Request::new("d", [Descriptor::default()])), INVALID_ARGUMENT);
    assert_eq!(fails(&Request::new("d", [Descriptor::of(&[("k", &b"a"[..]); 17])])), INVALID_ARGUMENT);
    // A descriptor of the most entries matches no rule.
    assert_eq!(one(&decider, Descriptor::of(&[("k", &b"a"[..]); 16])).overall_code, OK);

    let call = |body: Vec<u8>| call(decider.address, SHOULD_RATE_LIMIT, &[], body).unwrap_err().0;
    assert_eq!(call(framed(b"\x0a\xff")), INVALID_ARGUMENT);
    assert_eq!(call(framed(&[0xff; 4096])), INVALID_ARGUMENT);
    assert_eq!(call(b"\0\0\0".to_vec()), INVALID_ARGUMENT);
    assert_eq!(call(Vec::new()), INVALID_ARGUMENT);
    assert_eq!(call(b"\x01\0\0\0\0".to_vec()), UNIMPLEMENTED);
    assert_eq!(call(framed(&vec![0; (1 << 20) + 1])), RESOURCE_EXHAUSTED);
    let unknown =
        super::rls::call(decider.address, "/envoy.service.ratelimit.v2.Other/Call", &[], framed(b""));
    assert_eq!(unknown.unwrap_err().0, UNIMPLEMENTED);
    // Nothing was charged, and the service goes on.
    assert_eq!(one(&decider, k(b"a")).overall_code, OK);
}

#[test]
fn all_descriptors_of_a_call_are_charged_or_none() {
    let redis = Redis::start();
    for store in ["memory:".to_owned(), redis.url()] {
        let decider =
            decider(&format!("[store]\nurl = \"{store}\"\ntimeout = \"5s\"\n{}", by_value("10/h", "")));
        let ask = |descriptors: &[Descriptor], hits| {
            let answer = ask(decider.address, &Request::new("d", descriptors.to_vec()).hits(hits)).unwrap();
            (answer.overall_code, answer.left())
        };
        assert_eq!(ask(&[k(b"a"), k(b"b")], 6), (OK, vec![(OK, 4), (OK, 4)]));
        // The cost of the call is over the limit of neither alone, and over that of both.
        assert_eq!(ask(&[k(b"a").hits(5), k(b"b").hits(1)], 0), (OVER_LIMIT, vec![(OVER_LIMIT, 4), (OK, 4)]));
        assert_eq!(ask(&[k(b"b")], 4), (OK, vec![(OK, 0)]));
        // A cost of its own, and a look.
        assert_eq!(ask(&[k(b"a").hits(0), k(b"c").hits(3)], 9), (OK, vec![(OK, 4), (OK, 7)]));
        assert_eq!(ask(&[k(b"b").hits(0)], 0).0, OVER_LIMIT);
        // A full bucket is known here, and then the other one isn't looked at.
        let (overall, statuses) = ask(&[k(b"b").hits(0), k(b"c")], 0);
        assert_eq!((overall, statuses[0], statuses[1].0), (OVER_LIMIT, (OVER_LIMIT, 0), OK));
        // Equal descriptors add up.
        assert_eq!(ask(&[k(b"c"), k(b"c")], 3), (OK, vec![(OK, 1), (OK, 1)]));
        assert_eq!(ask(&[k(b"c"), k(b"c")], 0).0, OVER_LIMIT);
        assert_eq!(ask(&[k(b"d").hits(u64::MAX)], 0).0, OVER_LIMIT);
    }
}

#[test]
fn hundreds_of_descriptors_are_one_call_of_the_script() {
    let redis = Redis::start();
    let decider =
        decider(&format!("[store]\nurl = \"{}\"\ntimeout = \"5s\"\n{}", redis.url(), by_value("2/h", "")));
    let descriptors: Vec<_> = (0..256).map(|number: u32| k(number.to_string().as_bytes())).collect();
    one(&decider, k(b"first"));
    for (left, calls) in [(1, 1), (0, 1)] {
        let before = redis.scripts();
        let answer = ask(decider.address, &Request::new("d", descriptors.clone())).unwrap();
        assert_eq!((answer.overall_code, answer.left()), (OK, vec![(OK, left); 256]));
        assert_eq!(redis.scripts() - before, calls);
    }
    let answer = ask(decider.address, &Request::new("d", descriptors)).unwrap();
    assert_eq!((answer.overall_code, answer.left()), (OVER_LIMIT, vec![(OVER_LIMIT, 0); 256]));
}

#[test]
fn proxied_requests_and_descriptors_count_together() {
    let decider = decider(
        "[limits.per-key]\nkey = \"header:x-api-key\"\nrate = \"3/h\"\n\
         [[routes]]\npath = \"/\"\nrespond = { status = 204 }\nlimits = [\"per-key\"]\n\
         [[descriptors]]\ndomain = \"d\"\nmatch = { api_key = \"*\" }\nas = { api_key = \"header:x-api-key\" }\n\
         limits = [\"per-key\"]\n",
    );
    let gold = || Descriptor::of(&[("api_key", b"gold")]);
    assert_eq!(one(&decider, gold()).left(), [(OK, 2)]);
    assert_eq!(decider.gateway.ask("GET /\nX-Api-Key: gold").status, 204);
    assert_eq!(one(&decider, gold()).left(), [(OK, 0)]);
    assert_eq!(decider.gateway.ask("GET /\nX-Api-Key: gold").status, 429);
    assert_eq!(one(&decider, gold()).overall_code, OVER_LIMIT);
}

#[test]
fn a_descriptor_may_state_its_rate() {
    const SECOND: i32 = 1;
    const DAY: i32 = 4;
    let decider = decider(&by_value("2/h", ""));
    assert_eq!(one(&decider, k(b"a")).left(), [(OK, 1)]);
    // It is for this call, and the counts stay.
    let raised = one(&decider, k(b"a").limited_to(5, HOUR));
    assert_eq!(raised.left(), [(OK, 3)]);
    assert_eq!(raised.header("ratelimit-policy"), Some("\"l\";q=5;w=3600"));
    assert_eq!(one(&decider, k(b"a")).overall_code, OVER_LIMIT);
    assert_eq!(one(&decider, k(b"a").limited_to(5, HOUR)).left(), [(OK, 2)]);
    assert_eq!(one(&decider, k(b"new").limited_to(0, SECOND)).overall_code, OVER_LIMIT);
    // Equal ones of a call are told the same, whatever stands between them.
    let several = [200, 300, 200, 2].map(|permits| k(b"c").limited_to(permits, HOUR));
    let told = ask(decider.address, &Request::new("d", several)).unwrap();
    assert_eq!(told.left(), [(OK, 200), (OK, 300), (OK, 200), (OVER_LIMIT, 2)]);
    let several = [200, 300, 200, 100].map(|permits| k(b"c").limited_to(permits, HOUR));
    let told = ask(decider.address, &Request::new("d", several)).unwrap();
    assert_eq!(told.left(), [(OK, 196), (OK, 296), (OK, 196), (OK, 96)]);
    // One that can never be admitted says nothing of the others.
    let several = [k(b"d").limited_to(60, HOUR), k(b"d").limited_to(10, HOUR).hits(12)];
    let told = ask(decider.address, &Request::new("d", several)).unwrap();
    assert_eq!(told.left(), [(OK, 0), (OVER_LIMIT, 0)]);
    assert!(told.statuses[0].current_limit.is_none() && told.statuses[1].current_limit.is_some());
    // A unit that isn't stated is none.
    assert_eq!(one(&decider, k(b"b").limited_to(9, 0)).left(), [(OK, 1)]);
    // It needs no rule.
    for permits in [4, 1_000_000] {
        let free = |value: &[u8]| Descriptor::of(&[("free", value)]).limited_to(permits, DAY);
        for left in [1, 2] {
            let answer = one(&decider, free(b"a"));
            assert_eq!(answer.left(), [(OK, permits - left)]);
            assert_eq!(answer.statuses[0].current_limit.as_ref().unwrap().unit, DAY);
        }
        assert_eq!(one(&decider, free(b"b")).left(), [(OK, permits - 1)]);
    }
}

#[test]
fn a_store_that_is_away_is_the_limits_affair() {
    let mut redis = Redis::start();
    let store = format!("[store]\nurl = \"{}\"\n", redis.url());
    redis.kill();
    let decide = |policy: &str| {
        let keys = format!("on_failure = \"{policy}\"");
        let decider = decider(&format!("{store}{}", by_value("1/h", &keys)));
        [(); 2].map(|()| ask(decider.address, &Request::new("d", [k(b"a")])))
    };
    for answer in decide("deny") {
        assert_eq!(answer.unwrap_err().0, UNAVAILABLE);
    }
    for answer in decide("allow").map(Result::unwrap) {
        assert_eq!((answer.overall_code, &answer.statuses[0].current_limit), (OK, &None));
    }
    let codes = decide("local").map(|answer| answer.unwrap().overall_code);
    assert_eq!(codes, [OK, OVER_LIMIT]);
}

#[test]
fn a_caller_has_its_answer_before_it_gives_up() {
    let redis = Redis::start();
    let toml = format!("[store]\nurl = \"{}\"\ntimeout = \"5s\"\n{}", redis.url(), by_value("9/h", ""));
    let decider = decider(&format!("{toml}[admin]\nlisten = \"127.0.0.1:0\"\n"));
    assert_eq!(one(&decider, k(b"a")).left(), [(OK, 8)]);
    redis.pause();
    for _ in 0..5 {
        let (begun, request) = (Instant::now(), Request::new("d", [k(b"a")]));
        let answer =
            ask_with(decider.address, &request, &[("x-envoy-expected-rq-timeout-ms", "200")]).unwrap();
        assert_eq!(answer.overall_code, OK);
        assert!(begun.elapsed() < Duration::from_secs(3), "{:?}", begun.elapsed());
    }
    // Its short patience says nothing of the store.
    let metrics = Metrics::scrape(&admin(&decider));
    assert_eq!(metrics.of("tollgate_store_up"), 1.0);
    redis.resume();
    wait_until("the store answers", || one(&decider, k(b"b")).left() != [(OK, 8)]);
    let ask =
        |timeout| ask_with(decider.address, &Request::new("d", [k(b"c")]), &[("grpc-timeout", timeout)]);
    assert_eq!(ask("0m").unwrap_err().0, DEADLINE_EXCEEDED);
    assert_eq!(ask("168H").unwrap().left(), [(OK, 8)]);
}

#[test]
fn a_limit_that_shadows_only_counts() {
    let decider = decider(&by_value("1/h", "mode = \"shadow\""));
    for _ in 0..3 {
        let answer = one(&decider, k(b"a"));
        assert_eq!((answer.overall_code, answer.left()), (OK, vec![(OK, 0)]));
    }
}

#[test]
fn calls_are_counted_and_logged() {
    let decider = decider(&format!(
        "[admin]\nlisten = \"127.0.0.1:0\"\n[access_log]\npath = \"log.json\"\n{}",
        by_value("1/h", "")
    ));
    let request = Request::new("d", [k(b"a"), k(b"b")]);
    assert_eq!(ask(decider.address, &request).unwrap().overall_code, OK);
    assert_eq!(ask(decider.address, &request).unwrap().overall_code, OVER_LIMIT);
    let log = decider.gateway.folder().join("log.json");
    let lines = || std::fs::read_to_string(&log).unwrap_or_default();
    wait_until("both calls are logged", || lines().lines().count() == 2);
    let lines: Vec<serde_json::Value> =
        lines().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!((&lines[0]["target"], &lines[0]["status"]), (&SHOULD_RATE_LIMIT.into(), &200.into()));
    let decisions = |line: &serde_json::Value| {
        let limits = line["limits"].as_array().unwrap().iter();
        limits.map(|limit| limit["decision"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(
        (decisions(&lines[0]), decisions(&lines[1])),
        (vec!["admitted".to_owned(); 2], vec!["refused".to_owned(); 2])
    );
    let metrics = Metrics::scrape(&admin(&decider));
    let count = |outcome| {
        metrics.of(&format!("tollgate_decisions_total{{limit=\"l\",outcome=\"{outcome}\",origin=\"store\"}}"))
    };
    assert_eq!((count("admitted"), count("refused")), (2.0, 2.0));
}

/// Limits by a rule, by the service's YAML, and as descriptors state them. The time is that at which five permits leave, not one.
#[test]
fn calls_of_other_costs_make_no_delay_too_short() {
    let redis = Redis::start();
    let folder = tempfile::tempdir().unwrap();
    let yaml = "domain: yaml\ndescriptors: [{ key: k, rate_limit: { unit: hour, requests_per_unit: 10 } }]";
    std::fs::write(folder.path().join("yaml.yaml"), yaml).unwrap();
    let service = format!("ratelimit_service = {{ config = {:?} }}", folder.path());
    let store = format!("[store]\nurl = \"{}\"\ntimeout = \"5s\"\n", redis.url());
    let [here, there] =
        [(); 2].map(|()| Decider::start(&service, &format!("{store}{}", by_value("10/h", ""))));
    let domains = ["d", "yaml", "stated"];
    let call = |decider: &Decider, domain: &str, hits: u64| {
        let descriptor = k(b"a").hits(hits);
        let descriptor = if domain == "stated" { descriptor.limited_to(10, 3) } else { descriptor };
        ask(decider.address, &Request::new(domain, [descriptor])).unwrap()
    };
    let calls = |decider: &Decider, hits, code| {
        let answers = domains.map(|domain| call(decider, domain, hits));
        assert_eq!(answers.each_ref().map(|answer| answer.overall_code), [code; 3]);
        answers.map(|answer| Some(answer.header("retry-after")?.parse::<u64>().unwrap()))
    };
    calls(&here, 3, OK);
    std::thread::sleep(Duration::from_millis(2_200));
    let second = Instant::now();
    calls(&here, 3, OK);
    calls(&here, 5, OVER_LIMIT);
    calls(&there, 4, OK);
    let told = calls(&here, 5, OVER_LIMIT);
    let now = Instant::now();
    let is_early = |(_, told): &(&str, Option<u64>)| {
        now + Duration::from_secs(told.unwrap()) < second + Duration::from_hours(1)
    };
    let early: Vec<_> = domains.into_iter().zip(told).filter(is_early).collect();
    assert!(early.is_empty(), "{early:?}");
}

/// A gateway with this folder of YAML, and the folder.
fn with_folder(service: &str, files: &[(&str, &str)]) -> (Decider, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    for (name, text) in files {
        std::fs::write(folder.path().join(name), text).unwrap();
    }
    let keys = format!("ratelimit_service = {{ config = {:?}{service} }}", folder.path());
    (Decider::start(&keys, ""), folder)
}

/// Codes and remaining permits of a call about these descriptors.
fn left(decider: &Decider, descriptors: &[&[(&str, &[u8])]]) -> (i32, Vec<(i32, u32)>) {
    let descriptors = descriptors.iter().map(|entries| Descriptor::of(entries));
    let answer = ask(decider.address, &Request::new("d", descriptors)).unwrap();
    (answer.overall_code, answer.left())
}

#[test]
fn a_folder_of_yaml_is_matched_level_by_level() {
    let yaml = "domain: d
descriptors:
- key: a
  rate_limit: { unit: hour, requests_per_unit: 9 }
- key: a
  value: one
  rate_limit: { unit: hour, requests_per_unit: 1 }
  descriptors:
  - key: b
    rate_limit: { unit: minute, requests_per_unit: 2, name: named }
- key: a
  value: x*z
  share_threshold: true
  rate_limit: { unit: hour, requests_per_unit: 3 }
- key: none
  rate_limit: { unit: second, requests_per_unit: 0 }
- key: free
  rate_limit: { unlimited: true }
- key: shadow
  shadow_mode: true
  rate_limit: { unit: hour, requests_per_unit: 1 }
";
    let (decider, folder) = with_folder("", &[("d.yaml", yaml)]);
    let one = |entries: &[(&str, &[u8])]| left(&decider, &[entries]).1[0];
    assert_eq!((one(&[("a", b"one")]), one(&[("a", b"one")]).0), ((OK, 0), OVER_LIMIT));
    assert_eq!([one(&[("a", b"xyz")]), one(&[("a", b"x-z")])], [(OK, 2), (OK, 1)]);
    assert_eq!([one(&[("a", b"two")]), one(&[("a", b"six")])], [(OK, 8), (OK, 8)]);
    // Only a limit as deep as the descriptor counts, and the order of its entries matters.
    assert_eq!([one(&[("a", b"one"), ("b", b"")]), one(&[("a", b"two"), ("b", b"")])], [(OK, 1), (OK, 0)]);
    assert_eq!([one(&[("b", b""), ("a", b"one")]), one(&[("c", b"")])], [(OK, 0); 2]);
    assert_eq!([one(&[("none", b"")]).0, one(&[("free", b"")]).0], [OVER_LIMIT, OK]);
    assert_eq!(one(&[("free", b"")]).1, u32::MAX);
    assert_eq!([(); 3].map(|()| one(&[("shadow", b"")]).0), [OK; 3]);
    let named =
        ask(decider.address, &Request::new("d", [Descriptor::of(&[("a", b"one"), ("b", b"")])])).unwrap();
    assert_eq!(named.statuses[0].current_limit.as_ref().unwrap().name, "named");
    // A descriptor's own limit comes before that of the file, also where the file has none.
    let own = || {
        let descriptor = Descriptor::of(&[("free", b"own")]).limited_to(1, HOUR);
        ask(decider.address, &Request::new("d", [descriptor])).unwrap().left()[0]
    };
    assert_eq!([own(), own()], [(OK, 0), (OVER_LIMIT, 0)]);
    assert_eq!(one(&[("free", b"own")]), (OK, u32::MAX));
    // It is watched, also for new files. Counts stay.
    std::fs::write(
        folder.path().join("d.yaml"),
        yaml.replace("requests_per_unit: 9", "requests_per_unit: 99"),
    )
    .unwrap();
    wait_until("the change is in use", || one(&[("a", b"two")]).1 > 50);
    std::fs::write(
        folder.path().join("e.yaml"),
        "domain: e\ndescriptors: [{ key: k, rate_limit: { unit: day, requests_per_unit: 5 } }]",
    )
    .unwrap();
    let of_e = || ask(decider.address, &Request::new("e", [k(b"")])).unwrap().left()[0].1;
    wait_until("the new file is in use", || of_e() > 0);
    std::fs::write(folder.path().join("e.yaml"), "domain: e\ndescriptor: []").unwrap();
    wait_until("the fault is logged", || decider.gateway.log().contains("unknown key `descriptor`"));
    assert!(of_e() > 0);
}

#[test]
fn limits_of_yaml_replace_others_and_are_quotas() {
    let yaml = "domain: d
descriptors:
- key: all
  rate_limit: { unit: hour, requests_per_unit: 1, name: all }
- key: gold
  rate_limit: { unit: hour, requests_per_unit: 3, name: gold, replaces: [{ name: all }] }
- key: q
  quota_mode: true
  rate_limit: { unit: hour, requests_per_unit: 2 }
- key: r
  quota_mode: true
  rate_limit: { unit: day, requests_per_unit: 1 }
";
    let (decider, _folder) = with_folder("", &[("d", yaml)]);
    let both: &[&[(&str, &[u8])]] = &[&[("all", b"")], &[("gold", b"")]];
    for left_of_gold in [2, 1, 0] {
        assert_eq!(left(&decider, both), (OK, vec![(OK, 0), (OK, left_of_gold)]));
    }
    assert_eq!(left(&decider, both).0, OVER_LIMIT);
    assert_eq!(left(&decider, &[&[("all", b"")]]), (OK, vec![(OK, 0)]));
    // A call is rejected once all of its quotas are used up.
    let quotas: &[&[(&str, &[u8])]] = &[&[("q", b"")], &[("r", b"")]];
    assert_eq!(left(&decider, quotas), (OK, vec![(OK, 1), (OK, 0)]));
    assert_eq!(left(&decider, quotas), (OK, vec![(OK, 0), (OVER_LIMIT, 0)]));
    assert_eq!(left(&decider, quotas), (OVER_LIMIT, vec![(OVER_LIMIT, 0); 2]));
    // It fits once one of them has room again.
    let request = Request::new("d", quotas.iter().map(|entries| Descriptor::of(entries)));
    let after = ask(decider.address, &request).unwrap().header("retry-after").unwrap().to_owned();
    assert!((3_500..=3_600).contains(&after.parse().unwrap()), "{after}");
    assert_eq!(left(&decider, &[&[("q", b"")]]).0, OVER_LIMIT);
}

#[test]
fn a_service_in_shadow_mode_rejects_nothing() {
    let yaml = "domain: d\ndescriptors: [{ key: k, rate_limit: { unit: hour, requests_per_unit: 1 } }]";
    let (decider, _folder) = with_folder(", shadow = true", &[("d", yaml)]);
    assert_eq!(left(&decider, &[&[("k", b"")]]), (OK, vec![(OK, 0)]));
    assert_eq!(left(&decider, &[&[("k", b"")]]), (OK, vec![(OVER_LIMIT, 0)]));
}

/// The key is shared with proxied requests, which a ban would reject.
#[test]
fn a_service_in_shadow_mode_bans_nobody() {
    let banning = "[admin]\nlisten = \"127.0.0.1:0\"\n\
        [[descriptors]]\ndomain = \"d\"\nmatch = { k = \"*\" }\nlimits = [\"l\"]\n\
        [limits.l]\nkey = \"descriptor:k\"\nrate = \"1/h\"\nban = { after = \"3/h\", for = \"1h\" }\n";
    for (shadow, bans) in [(false, 1.0), (true, 0.0)] {
        let keys = format!("ratelimit_service = {{ shadow = {shadow} }}");
        let decider = Decider::start(&keys, banning);
        for _ in 0..5 {
            left(&decider, &[&[("k", b"eve")]]);
        }
        let metrics = Metrics::scrape(&admin(&decider));
        assert_eq!(metrics.of("tollgate_bans_total{limit=\"l\"}"), bans, "shadow = {shadow}");
    }
}

#[test]
fn the_tables_of_the_reference_hold() {
    // 25 calls at 20 a minute, and 20 a minute together with 10 an hour.
    let yaml = "domain: d
descriptors:
- key: minute
  rate_limit: { unit: minute, requests_per_unit: 20 }
- key: hour
  rate_limit: { unit: hour, requests_per_unit: 10 }
";
    let (decider, _folder) = with_folder("", &[("d", yaml)]);
    let minute: &[(&str, &[u8])] = &[("minute", b"a")];
    let answers: Vec<_> = (0..25).map(|_| left(&decider, &[minute]).1[0]).collect();
    assert!(answers[..20].iter().copied().eq((0..20).rev().map(|left| (OK, left))), "{answers:?}");
    assert!(answers[20..].iter().all(|answer| *answer == (OVER_LIMIT, 0)), "{answers:?}");
    let both: &[&[(&str, &[u8])]] = &[&[("minute", b"b")], &[("hour", b"b")]];
    for call in 1..=10 {
        assert_eq!(left(&decider, both), (OK, vec![(OK, 20 - call), (OK, 10 - call)]));
    }
    for _ in 0..3 {
        assert_eq!(left(&decider, both), (OVER_LIMIT, vec![(OK, 10), (OVER_LIMIT, 0)]));
    }
}

#[test]
fn grpcio_agrees() {
    let mut decider = decider(&by_value("3/h", ""));
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let python = root.join("target/venv/bin/python3");
    assert!(python.exists(), "no {}: it is installed by scripts/test.sh", python.display());
    let mut command = Command::new(python);
    command.arg(root.join("tests/decisions/clients/rls_client.py")).arg(decider.address.to_string());
    let mut client = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(client.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "watching\n");
    decider.gateway.signal("TERM");
    assert!(client.wait().unwrap().success());
    // What is watched doesn't hold up the end.
    let since = Instant::now();
    wait_until("the gateway has ended", || decider.gateway.ended().is_some());
    assert!(since.elapsed() < Duration::from_secs(20), "{:?}", since.elapsed());
}

#[test]
fn json_is_answered_alike() {
    let decider = decider(&by_value("1/min", ""));
    let post = |body: &str| {
        let length = body.len();
        let answer = decider.ask(&format!("POST /json\nContent-Length: {length}\n\n{body}"));
        (answer.status, answer.text())
    };
    let body = r#"{"domain":"d","descriptors":[{"entries":[{"key":"k","value":"a"}]}]}"#;
    let (status, text) = post(body);
    let json: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(
        (status, &json["overallCode"], &json["statuses"][0]["limitRemaining"]),
        (200, &"OK".into(), &0.into())
    );
    let limit = serde_json::json!({ "name": "l", "requestsPerUnit": 1, "unit": "MINUTE" });
    assert_eq!(json["statuses"][0]["currentLimit"], limit);
    let (status, text) = post(body);
    let json: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!((status, &json["statuses"][0]["code"]), (429, &"OVER_LIMIT".into()));
    let headers = json["responseHeadersToAdd"].as_array().unwrap();
    assert!(headers.iter().any(|header| header["key"] == "retry-after"), "{json}");
    let reset = json["statuses"][0]["durationUntilReset"].as_str().unwrap();
    assert!(reset.strip_suffix('s').unwrap().parse::<u32>().unwrap() <= 60, "{reset}");
    let look = r#"{"domain":"d","descriptors":[{"entries":[{"key":"k","value":"a"}],"hits_addend":"0","limit":{"requests_per_unit":"2","unit":3}}]}"#;
    assert_eq!(post(look).0, 200);
    for bad in
        ["", "{}", "[]", "{\"domain\":1}", &body.replace("value", "valu"), &body.replace("\"d\"", "\"\"")]
    {
        assert_eq!(post(bad).0, 400, "{bad}");
    }
}

#[test]
fn a_descriptor_is_explained() {
    let decider = decider(&format!("{PER_KEY}plain = true\n[admin]\nlisten = \"127.0.0.1:0\"\n"));
    let explain = |arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
        command
            .args(["explain", "--config", "gateway.toml"])
            .args(arguments)
            .current_dir(decider.gateway.folder());
        let output = command.output().unwrap();
        (output.status.code().unwrap(), String::from_utf8([output.stdout, output.stderr].concat()).unwrap())
    };
    let (code, text) = explain(&["--descriptor", "shop:path=/v1/orders,api_key=gold"]);
    assert_eq!(code, 0, "{text}");
    assert!(text.contains("path=/v1/orders, api_key=gold in the domain shop"), "{text}");
    assert!(text.contains("per-key  3/h") && text.contains("descriptor:api_key=gold"), "{text}");
    let (_, text) = explain(&["--descriptor", "shop:path=/v2,api_key=gold"]);
    assert!(text.contains("no rule with a limit matches"), "{text}");
    let of_gold = Descriptor::of(&[("path", b"/v1/"), ("api_key", b"gold")]);
    for _ in 0..3 {
        ask(decider.address, &Request::new("shop", [of_gold.clone()])).unwrap();
    }
    let live = ["--descriptor", "shop:path=/v1/,api_key=gold", "--live", "--json", "--admin"];
    let (code, text) = explain(&[&live[..], &[&format!("http://{}", admin(&decider))]].concat());
    let json: serde_json::Value = serde_json::from_str(&text).unwrap_or_else(|_| panic!("{code} {text}"));
    assert_eq!(
        (&json["next"]["admitted"], &json["next"]["refused_by"][0]),
        (&false.into(), &"per-key".into())
    );
    assert_eq!(explain(&["--descriptor", "shop"]).0, 2);
    assert_eq!(explain(&["GET"]).0, 2);
}
