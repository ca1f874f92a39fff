//! Rates that requests state, by a claim or by a header field of a trusted proxy.

use std::time::Duration;

use serde_json::{Value, json};

use super::tokens::{Issuer, SECRET, of, seconds_from_now, with};
use crate::{
    harness::{
        client::{Answer, Client},
        gateway::Gateway,
        redis::Redis,
    },
    limit_all,
};

/// A limit of one request an hour for each subject, whose tokens may state up to five.
const BY_CLAIM: &str = "key = \"jwt:sub\"\nrate = \"1/h\"\nrate_from = \"jwt:quota\"\nmax = 5\n";

fn by_claim(store: &str, keys: &str) -> Gateway {
    let limit = limit_all(&format!("{BY_CLAIM}{keys}"));
    Gateway::start(&format!("{store}[jwt]\nhmac_secret = \"{SECRET}\"\n{limit}"))
}

/// Returns a request with a token of this subject, which states this quota.
fn request(subject: &str, quota: &Value) -> String {
    let claims = with(of(subject), json!({ "quota": quota }));
    format!("GET /\nAuthorization: Bearer {}", Issuer::hmac(SECRET.as_bytes()).token(&claims))
}

fn ask(gateway: &Gateway, subject: &str, quota: u32) -> Answer {
    gateway.ask(&request(subject, &quota.into()))
}

#[test]
fn a_claim_states_the_rate_up_to_a_bound() {
    let redis = Redis::start();
    for store in [String::new(), redis.store()] {
        let gateway = by_claim(&store, "");
        for (subject, quota, admitted) in [
            ("three", json!(3), 3),
            ("as-text", json!("2"), 2),
            ("bound", json!(1_000_000), 5),
            ("beyond-any-integer", json!("99999999999999999999"), 5),
            ("blocked", json!(0), 0),
            ("absent", json!(null), 1),
            ("negative", json!(-3), 1),
            ("fraction", json!(2.5), 1),
            ("words", json!("many"), 1),
            ("signed", json!("+3"), 1),
            ("truth", json!(true), 1),
            ("list", json!([3]), 1),
        ] {
            let request = request(subject, &quota);
            let count = (0..7).filter(|_| gateway.ask(&request).status == 200).count();
            assert_eq!(count, admitted, "{subject}");
        }
        let policy = ask(&gateway, "ann", 4);
        assert_eq!(policy.header("ratelimit-policy"), Some("\"l\";q=4;w=3600"));
        assert_eq!(policy.header("ratelimit"), Some("\"l\";r=3;t=3600"));
        let blocked = ask(&gateway, "blocked", 0);
        assert_eq!((blocked.status, blocked.header("retry-after")), (429, None));
    }
}

#[test]
fn a_token_that_not_all_servers_believe_states_no_higher_rate() {
    let issuer = Issuer::hmac(SECRET.as_bytes());
    for (quota, admitted) in [(3, 1), (0, 0)] {
        let gateway = by_claim("", "missing = \"skip\"\n");
        let claims = with(of("late"), json!({ "quota": quota, "exp": seconds_from_now(-60) }));
        let request = format!("GET /\nAuthorization: Bearer {}", issuer.token(&claims));
        let statuses: Vec<_> = (0..3).map(|_| gateway.ask(&request).status).collect();
        let expected: Vec<_> = (0..3).map(|at| if at < admitted { 200 } else { 429 }).collect();
        assert_eq!(statuses, expected, "{quota}");
    }
}

#[test]
fn a_full_key_is_refused_only_at_the_same_rate() {
    let redis = Redis::start();
    for store in [String::new(), redis.store()] {
        let gateway = by_claim(&store, "");
        let statuses = [1, 1, 1, 3, 1, 3, 3, 2, 5].map(|quota| ask(&gateway, "ann", quota).status);
        assert_eq!(statuses, [200, 429, 429, 200, 429, 200, 429, 429, 200]);
    }
}

#[test]
fn it_comes_before_the_files_override_and_after_one_that_is_set() {
    let gateway =
        by_claim("[admin]\nlisten = \"127.0.0.1:0\"\n", "overrides = [{ key = \"ann\", rate = \"2/h\" }]\n");
    let policy = |quota: &Value| {
        let answer = gateway.ask(&request("ann", quota));
        answer.header("ratelimit-policy").unwrap().to_owned()
    };
    assert_eq!(policy(&json!(4)), "\"l\";q=4;w=3600");
    assert_eq!(policy(&json!(null)), "\"l\";q=2;w=3600");
    let (_, admin) = gateway.greeting().split_once("dashboard: http://").unwrap();
    let body = "{\"rate\":\"9/h\"}";
    let set = Client::connect(admin.lines().next().unwrap().parse().unwrap()).ask(&format!(
        "PUT /api/limits/l/keys/ann/override\nHost: 127.0.0.1\nContent-Type: application/json\nContent-Length: {}\n\n{body}",
        body.len()
    ));
    assert_eq!(set.status / 100, 2, "{}", String::from_utf8_lossy(&set.body));
    assert_eq!(policy(&json!(4)), "\"l\";q=9;w=3600");
}

#[test]
fn a_header_field_states_the_rate_only_if_a_trusted_proxy_sent_it() {
    let limit =
        limit_all("key = \"header:x-user\"\nrate = \"1/h\"\nrate_from = \"header:x-quota\"\nmax = 5\n");
    let trusting = Gateway::start(&format!("[server]\ntrusted_proxies = [\"127.0.0.1\"]\n{limit}"));
    let distrustful = Gateway::start(&format!("[server]\ntrusted_proxies = [\"192.0.2.1\"]\n{limit}"));
    let admitted = |gateway: &Gateway, fields: &str| {
        (0..7).filter(|_| gateway.ask(&format!("GET /\n{fields}")).status == 200).count()
    };
    for (fields, trusted) in [
        ("X-User: a\nX-Quota: 3", 3),
        ("X-User: b\nX-Quota: 3\nX-Quota: 3", 3),
        ("X-User: c\nX-Quota: 3\nX-Quota: 4", 1),
        ("X-User: d\nX-Quota: 3, 3", 1),
        ("X-User: e\nX-Quota:", 1),
        ("X-User: f", 1),
    ] {
        assert_eq!((admitted(&trusting, fields), admitted(&distrustful, fields)), (trusted, 1), "{fields}");
    }
}

#[test]
fn a_request_that_waits_keeps_the_rate_that_it_stated() {
    // The wait is longer than the window, so that time lost on a busy machine refuses nobody.
    let toml = |rate: &str| {
        let limit = limit_all(&format!("{}wait = \"1h\"\n", BY_CLAIM.replace("1/h", rate)));
        format!("[jwt]\nhmac_secret = \"{SECRET}\"\n{limit}")
    };
    let gateway = Gateway::start(&toml("1/30min"));
    assert_eq!(ask(&gateway, "ann", 1).status, 200);
    let mut waiting = gateway.client();
    let held = request("ann", &json!(1)).replacen('\n', " HTTP/1.1\r\nHost: a\r\n", 1);
    waiting.send(format!("{held}\r\n\r\n").as_bytes());
    assert!(!waiting.hears_within(Duration::from_millis(200)));
    gateway.reload(&toml("1000/30min"));
    // Another subject is held to the new rate, so the reload holds.
    let statuses = [(); 3].map(|()| gateway.ask(&request("bob", &json!(null))).status);
    assert_eq!(statuses, [200, 200, 200]);
    assert!(!waiting.hears_within(Duration::from_secs(1)));
}
