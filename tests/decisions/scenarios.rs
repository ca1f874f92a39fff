//! Scenarios that others test their rate limit services with: Limitador's, and those of the reference.

use serde_json::json;
use tempfile::TempDir;

use super::{
    Decider,
    rls::{Descriptor, OK, OVER_LIMIT, Request, Response, ask, metadata_of},
};

const INVALID_ARGUMENT: u32 = 3;

/// A service with these rules in YAML, and their folder.
fn service(keys: &str, files: &[&str]) -> (Decider, TempDir) {
    let folder = tempfile::tempdir().unwrap();
    for (place, text) in files.iter().enumerate() {
        std::fs::write(folder.path().join(format!("{place}.yaml")), text).unwrap();
    }
    let keys = format!("ratelimit_service = {{ config = {:?}{keys} }}", folder.path());
    (Decider::start(&keys, ""), folder)
}

fn call(decider: &Decider, domain: &str, descriptors: &[&[(&str, &str)]], hits: u32) -> Response {
    let descriptors = descriptors.iter().map(|entries| {
        let entries: Vec<_> = entries.iter().map(|(key, value)| (*key, value.as_bytes())).collect();
        Descriptor::of(&entries)
    });
    ask(decider.address, &Request::new(domain, descriptors).hits(hits)).unwrap()
}

/// A limit of a request a minute for each `app.id`, of GET only.
const BY_APP: &str = "[[descriptors]]\ndomain = \"ns\"\nmatch = { \"req.method\" = \"GET\", \"app.id\" = \"*\" }\n\
    limits = [\"l\"]\n[limits.l]\nkey = \"descriptor:app.id\"\nrate = \"1/min\"\n";

#[test]
fn limitador_admits_and_then_rejects() {
    let decider = Decider::start("", BY_APP);
    let get: &[(&str, &str)] = &[("req.method", "GET"), ("app.id", "1")];
    let first = call(&decider, "ns", &[get], 1);
    assert_eq!((first.overall_code, first.left()), (OK, vec![(OK, 0)]));
    assert_eq!(first.header("ratelimit-policy"), Some("\"l\";q=1;w=60"));
    assert_eq!(call(&decider, "ns", &[get], 1).overall_code, OVER_LIMIT);
    assert_eq!(call(&decider, "ns", &[&[("req.method", "PUT"), ("app.id", "1")]], 1).overall_code, OK);
}

#[test]
fn limitador_admits_what_no_limit_applies_to() {
    let decider = Decider::start("", BY_APP);
    let answer = call(&decider, "ns", &[&[("req.method", "GET")]], 1);
    assert_eq!((answer.overall_code, answer.response_headers_to_add.len()), (OK, 0));
    assert_eq!(call(&decider, "elsewhere", &[&[("req.method", "GET"), ("app.id", "1")]], 1).overall_code, OK);
}

/// Limitador answers UNKNOWN, which Envoy lets pass. Here it is an error of the proxy's operator.
#[test]
fn limitador_knows_no_empty_domain() {
    let decider = Decider::start("", BY_APP);
    let request = Request::new("", [Descriptor::of(&[("req.method", b"GET")])]);
    assert_eq!(ask(decider.address, &request).unwrap_err().0, INVALID_ARGUMENT);
}

#[test]
fn limitador_takes_all_descriptors_into_account() {
    let rules = "domain: ns\ndescriptors:\n- key: x\n  descriptors:\n  - key: z\n    rate_limit: { unit: minute, requests_per_unit: 10 }\n\
        - key: y\n  value: \"2\"\n  rate_limit: { unit: minute, requests_per_unit: 0 }\n";
    let (decider, _folder) = service("", &[rules]);
    let first: &[(&str, &str)] = &[("x", "1"), ("z", "1")];
    assert_eq!(call(&decider, "ns", &[first, &[("y", "2")]], 1).overall_code, OVER_LIMIT);
    // The other one wasn't charged.
    assert_eq!(call(&decider, "ns", &[first], 1).left(), [(OK, 9)]);
}

#[test]
fn limitador_takes_the_cost_into_account() {
    let decider = Decider::start("", &BY_APP.replace("1/min", "10/min"));
    let get: &[(&str, &str)] = &[("req.method", "GET"), ("app.id", "1")];
    let first = call(&decider, "ns", &[get], 6);
    assert_eq!((first.overall_code, first.left()), (OK, vec![(OK, 4)]));
    // What is left stays, where Limitador says 0.
    let second = call(&decider, "ns", &[get], 6);
    assert_eq!((second.overall_code, second.left()), (OVER_LIMIT, vec![(OVER_LIMIT, 4)]));
}

#[test]
fn limitador_takes_a_cost_of_zero_as_one() {
    let decider = Decider::start("", BY_APP);
    let get: &[(&str, &str)] = &[("req.method", "GET"), ("app.id", "1")];
    assert_eq!([(); 2].map(|()| call(&decider, "ns", &[get], 0).overall_code), [OK, OVER_LIMIT]);
}

#[test]
fn several_services_have_their_own_metadata() {
    let rules = |domain: &str, plan: &str| {
        format!(
            "domain: {domain}\ndescriptors:\n- key: user\n  metadata: {{ plan: {plan}, of-{domain}: true }}\n  \
             rate_limit: {{ unit: hour, requests_per_unit: 2 }}\n- key: tokens\n  metadata: {{ budget: {{ left: [1, ~] }} }}\n  \
             rate_limit: {{ unit: hour, requests_per_unit: 100 }}\n"
        )
    };
    let (decider, _folder) =
        service(", metadata = true", &[&rules("shop", "gold"), &rules("bank", "silver")]);
    for (domain, plan) in [("shop", "gold"), ("bank", "silver")] {
        let descriptors: &[&[(&str, &str)]] = &[&[("user", "alice")], &[("tokens", "alice")]];
        for code in [OK, OK, OVER_LIMIT] {
            let answer = call(&decider, domain, descriptors, 1);
            assert_eq!(answer.overall_code, code);
            let metadata = metadata_of(&answer);
            let expected = json!({
                "domain": domain,
                "descriptors": [{ "entries": ["user=alice"] }, { "entries": ["tokens=alice"] }],
                "hitsAddend": 1.0,
                "plan": plan,
                format!("of-{domain}"): true,
                "budget": { "left": [1.0, null] },
            });
            assert_eq!(metadata, expected);
        }
    }
}

#[test]
fn quotas_let_a_call_pass_until_all_of_them_are_used_up() {
    let rules = "domain: d
descriptors:
- key: q
  quota_mode: true
  rate_limit: { unit: hour, requests_per_unit: 1 }
- key: r
  quota_mode: true
  rate_limit: { unit: hour, requests_per_unit: 2 }
- key: plain
  rate_limit: { unit: hour, requests_per_unit: 3 }
";
    let (decider, _folder) = service("", &[rules]);
    let all: &[&[(&str, &str)]] = &[&[("q", "")], &[("r", "")], &[("plain", "")]];
    let codes = |descriptors| {
        let answer = call(&decider, "d", descriptors, 1);
        (answer.overall_code, answer.left().iter().map(|(code, _)| *code).collect::<Vec<_>>())
    };
    assert_eq!(codes(all), (OK, vec![OK; 3]));
    // One quota is used up: the call passes by the other.
    assert_eq!(codes(all), (OK, vec![OVER_LIMIT, OK, OK]));
    // Both are: it is rejected, and the plain limit isn't charged.
    assert_eq!(codes(all).0, OVER_LIMIT);
    assert_eq!(call(&decider, "d", &[&[("plain", "")]], 1).left(), [(OK, 0)]);
    // A plain limit rejects whatever quotas say, and a quota alone is a limit.
    assert_eq!(codes(&[&[("q", "new")], &[("plain", "")]]).0, OVER_LIMIT);
    assert_eq!(codes(&[&[("q", "")]]).0, OVER_LIMIT);
    assert_eq!(codes(&[&[("q", "alone")]]).0, OK);
}
