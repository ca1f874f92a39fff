//! Routes that match claims of verified tokens.

use std::fs;

use serde_json::{Value, json};

use super::{
    published_keys::{jwks, publish, set},
    tokens::{Issuer, SECRET, of, seconds_from_now, with},
};
use crate::{
    decisions::Decider,
    harness::{
        gateway::Gateway,
        metrics::Metrics,
        redis::free_port,
        upstream::{Speech, Upstream},
        wait_until,
    },
};

/// A configuration with a route for everybody, one for a plan, and one for a plan and a role.
fn tiers(jwt: &str) -> String {
    format!(
        "[jwt]\n{jwt}\n\
         [[routes]]\npath = \"/api\"\nrespond = {{ body = \"free\" }}\n\
         limits = [{{ name = \"free\", key = \"ip\", rate = \"2/h\" }}]\n\
         [[routes]]\npath = \"/api\"\nclaims = {{ plan = \"pro\" }}\nrespond = {{ body = \"pro\" }}\n\
         [[routes]]\npath = \"/api\"\nclaims = {{ plan = \"pro\", roles = \"admin\" }}\nrespond = {{ body = \"admin\" }}\n\
         [[routes]]\npath = \"/posts\"\nmethods = [\"POST\"]\nclaims = {{ plan = \"pro\" }}\nrespond = {{ body = \"posted\" }}\n\
         [[routes]]\npath = \"/posts\"\nrespond = {{ body = \"read\" }}\n"
    )
}

fn claims(others: Value) -> Value {
    with(of("ann"), others)
}

fn ask(gateway: &Gateway, request: &str, token: &str) -> (u16, String) {
    let answer = gateway.ask(&format!("{request}\nAuthorization: Bearer {token}"));
    (answer.status, answer.text())
}

#[test]
fn a_route_can_be_for_the_tokens_with_a_claim() {
    let gateway = Gateway::start(&tiers(&format!("hmac_secret = \"{SECRET}\"")));
    let issuer = Issuer::hmac(SECRET.as_bytes());
    let pro = issuer.token(&claims(json!({ "plan": "pro" })));
    let admin = issuer.token(&claims(json!({ "plan": "pro", "roles": ["dev", "admin"] })));
    let expired = issuer.token(&claims(json!({ "plan": "pro", "exp": seconds_from_now(-60) })));
    // The limit of the route for everybody isn't that of the others.
    for _ in 0..5 {
        assert_eq!(ask(&gateway, "GET /api", &pro), (200, "pro".to_owned()));
        assert_eq!(ask(&gateway, "GET /api", &admin), (200, "admin".to_owned()));
    }
    assert_eq!(ask(&gateway, "GET /api", &expired), (200, "free".to_owned()));
    assert_eq!(ask(&gateway, "GET /api", "a.b.c"), (200, "free".to_owned()));
    assert_eq!((gateway.get("/api").status, ask(&gateway, "GET /api", &pro).0), (429, 200));
}

/// Keycloak nests roles, and other issuers name claims by URLs.
#[test]
fn nested_claims_are_found_by_pointers() {
    let gateway = Gateway::start(&format!(
        "[jwt]\nhmac_secret = \"{SECRET}\"\n\
         [[routes]]\npath = \"/\"\nrespond = {{ body = \"user\" }}\n\
         limits = [{{ name = \"l\", key = [\"jwt:/org/id\", \"jwt:https://id.example/tier\"], rate = \"1/h\", missing = \"deny\", \
         rate_from = \"jwt:/org/quotas/0\", max = 5 }}]\n\
         [[routes]]\npath = \"/\"\nclaims = {{ \"/realm_access/roles\" = \"admin\" }}\nrespond = {{ body = \"admin\" }}\n\
         [[routes]]\npath = \"/\"\nclaims = {{ \"/a~1b/c~0d\" = \"true\" }}\nrespond = {{ body = \"escaped\" }}\n"
    ));
    let issuer = Issuer::hmac(SECRET.as_bytes());
    let ask = |others: &Value| ask(&gateway, "GET /", &issuer.token(&claims(others.clone())));
    let is = |body: &str| (200, body.to_owned());
    assert_eq!(ask(&json!({ "realm_access": { "roles": ["dev", "admin"] } })), is("admin"));
    assert_eq!(ask(&json!({ "a/b": { "c~d": true } })), is("escaped"));
    let shop = json!({ "org": { "id": 7, "quotas": [2] }, "https://id.example/tier": "gold" });
    assert_eq!([ask(&shop), ask(&shop)], [is("user"), is("user")]);
    assert_eq!(ask(&shop).0, 429);
    let other = json!({ "org": { "id": 8 }, "https://id.example/tier": "gold" });
    assert_eq!((ask(&other), ask(&other).0), (is("user"), 429));
    // A claim with that name as it is written, a pointer to nothing, and one to an object aren't the claim.
    for others in [
        json!({ "/realm_access/roles": "admin", "realm_access.roles": "admin" }),
        json!({ "realm_access": "admin", "org": { "name": "shop" } }),
        json!({ "org": { "id": { "a": 1 } } }),
    ] {
        let (status, body) = ask(&with(others, json!({ "https://id.example/tier": "gold" })));
        assert!(status == 429 && body.contains("key-missing"), "{status} {body}");
    }
}

#[test]
fn a_route_by_claims_waits_for_the_keys_and_others_do_not() {
    let [old, new] = ["old", "new"].map(|name| Issuer::ed25519().named(name));
    let [old_pro, new_pro] = [&old, &new].map(|issuer| issuer.token(&claims(json!({ "plan": "pro" }))));
    let (published, server) = publish(Speech::Http1, jwks(&[&old]));
    let gateway = Gateway::start(&tiers(&format!("jwks_url = \"{}/keys\"", server.url())));
    // The first request waits for the first fetch, and one with an unknown key for the next.
    assert_eq!(ask(&gateway, "GET /api", &old_pro), (200, "pro".to_owned()));
    set(&published, 200, jwks(&[&new]));
    // The method of the route differs, so nobody asks for the claims.
    assert_eq!(ask(&gateway, "GET /posts", &new_pro), (200, "read".to_owned()));
    assert_eq!(server.count(), 1);
    assert_eq!(ask(&gateway, "POST /posts\nContent-Length: 0", &new_pro), (200, "posted".to_owned()));
    assert_eq!(server.count(), 2);

    let url = format!("jwks_url = \"http://127.0.0.1:{}/\"", free_port());
    let unreachable = Gateway::start(&tiers(&url));
    assert_eq!(ask(&unreachable, "GET /posts", &old_pro), (200, "read".to_owned()));
    assert_eq!(ask(&unreachable, "GET /api", &old_pro).0, 503);
    // Without a token, nothing has to be verified.
    assert_eq!(unreachable.get("/api").text(), "free");
}

/// No limit was asked, so the access log has the reason as `error`, and no limit's rejection is counted.
#[test]
fn unknown_claims_are_an_error_and_no_rejection_by_a_limit() {
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("access.log");
    let url = format!("jwks_url = \"http://127.0.0.1:{}/\"", free_port());
    let gateway = Gateway::start(&format!(
        "[admin]\nlisten = \"127.0.0.1:0\"\n[access_log]\npath = \"{}\"\n{}",
        log.display(),
        tiers(&url)
    ));
    let pro = Issuer::ed25519().named("a").token(&claims(json!({ "plan": "pro" })));
    assert_eq!(ask(&gateway, "GET /api", &pro).0, 503);
    assert_eq!(ask(&gateway, "GET /api\nAuthorization: Bearer other", &pro).0, 400);
    let read = || fs::read_to_string(&log).unwrap_or_default();
    wait_until("the lines are written", || read().matches('\n').count() == 2);
    let errors = read();
    let errors = errors.lines().map(|line| serde_json::from_str::<Value>(line).expect(line)["error"].take());
    assert_eq!(errors.collect::<Vec<_>>(), ["token-unverified", "key-ambiguous"]);
    let (_, admin) = gateway.greeting().split_once("dashboard: http://").unwrap();
    let metrics = Metrics::scrape(admin.lines().next().unwrap());
    assert_eq!(metrics.of("tollgate_requests_refused_total{route=\"/api\"}"), 0.0);
}

#[test]
fn another_reading_of_a_path_counts_by_the_route_of_the_claim() {
    let upstream = Upstream::hello();
    let gateway = Gateway::start(&format!(
        "[upstreams.api]\nservers = [\"{}\"]\n[jwt]\nhmac_secret = \"{SECRET}\"\n\
         [[routes]]\npath = \"/{{*rest}}\"\nupstream = \"api\"\n\
         [[routes]]\npath = \"/a/b\"\nclaims = {{ plan = \"trial\" }}\nupstream = \"api\"\n\
         limits = [{{ name = \"trial\", key = \"jwt:sub\", rate = \"2/h\" }}]\n",
        upstream.url()
    ));
    let trial = Issuer::hmac(SECRET.as_bytes()).token(&claims(json!({ "plan": "trial" })));
    let statuses = ["/a/b", "/a%2Fb", "/a%5Cb", "/a/b", "/c"];
    let statuses = statuses.map(|path| ask(&gateway, &format!("GET {path}"), &trial).0);
    assert_eq!(statuses, [200, 200, 429, 429, 200]);
}

#[test]
fn other_proxies_get_the_decision_of_the_route_by_claims() {
    let decider = Decider::start("", &tiers(&format!("hmac_secret = \"{SECRET}\"")));
    let pro = Issuer::hmac(SECRET.as_bytes()).token(&claims(json!({ "plan": "pro" })));
    let call = |token: &str| {
        decider.ask(&format!("GET /check\nX-Forwarded-Uri: /api\nAuthorization: Bearer {token}")).status
    };
    assert_eq!([(); 3].map(|()| call(&pro)), [200; 3]);
    assert_eq!([(); 3].map(|()| call("a.b.c")), [200, 200, 429]);
}
