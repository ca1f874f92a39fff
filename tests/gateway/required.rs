//! Routes that require a valid token.

use serde_json::json;

use super::tokens::{Issuer, SECRET, of, seconds_from_now, with};
use crate::{
    decisions::Decider,
    harness::{gateway::Gateway, upstream::Upstream},
};

/// A limit of two requests an hour, a route that requires a token, and one that doesn't.
fn routes(rest: &str) -> String {
    format!(
        "{rest}[jwt]\nhmac_secret = \"{SECRET}\"\n[limits.l]\nkey = \"ip\"\nrate = \"2/h\"\n\
         [[routes]]\npath = \"/api/{{*rest}}\"\nrespond = {{ body = \"in\" }}\nlimits = [\"l\"]\nrequire = \"jwt\"\n\
         [[routes]]\npath = \"/public\"\nrespond = {{ body = \"in\" }}\n"
    )
}

#[test]
fn a_request_without_a_valid_token_is_401_before_anything_is_charged() {
    let gateway = Gateway::start(&routes(""));
    let issuer = Issuer::hmac(SECRET.as_bytes());
    let (missing, invalid) =
        ("Bearer realm=\"tollgate\"", "Bearer realm=\"tollgate\", error=\"invalid_token\"");
    let good = issuer.token(&of("ann"));
    let expired = issuer.token(&with(of("ann"), json!({ "exp": seconds_from_now(-60) })));
    let forged = Issuer::hmac(&[b'0'; 32]).token(&of("ann"));
    for (fields, code, challenge) in [
        (String::new(), "token-missing", missing),
        ("Authorization: Basic YTpi".to_owned(), "token-missing", missing),
        ("X-Authorization: Bearer a".to_owned(), "token-missing", missing),
        ("Authorization: Bearer".to_owned(), "token-missing", missing),
        (format!("Authorization: JWT {good}"), "token-invalid", invalid),
        (format!("Authorization: Bearer {good}="), "token-invalid", invalid),
        (format!("Authorization: Bearer x {good}"), "token-invalid", invalid),
        ("Authorization: Bearer a.b.c".to_owned(), "token-invalid", invalid),
        (format!("Authorization: bearer {expired}"), "token-invalid", invalid),
        (format!("Authorization: Bearer {forged}"), "token-invalid", invalid),
        (format!("Authorization: Bearer {good}\nAuthorization: Bearer a"), "token-invalid", invalid),
    ] {
        let answer = gateway.ask(&format!("GET /api/a\n{fields}"));
        assert_eq!((answer.status, answer.json()["code"].as_str()), (401, Some(code)), "{fields}");
        assert_eq!(answer.header("www-authenticate"), Some(challenge), "{fields}");
        assert_eq!(answer.header("ratelimit"), None, "{fields}");
    }
    let request = format!("GET /api/a\nAuthorization: Bearer {good}");
    assert_eq!(gateway.ask(&request).header("ratelimit"), Some("\"l\";r=1;t=3600"));
    assert_eq!(gateway.get("/public").status, 200);
    for _ in 0..2 {
        gateway.ask(&request);
    }
    assert_eq!(gateway.ask(&request).status, 429);
    // The token is checked first: a request without one learns nothing of the limit.
    assert_eq!(gateway.get("/api/a").status, 401);
}

#[test]
fn another_reading_of_a_path_requires_the_token_too() {
    let upstream = Upstream::hello();
    let gateway = Gateway::start(&format!(
        "[upstreams.api]\nservers = [\"{}\"]\n[jwt]\nhmac_secret = \"{SECRET}\"\n\
         [[routes]]\npath = \"/{{*rest}}\"\nupstream = \"api\"\n\
         [[routes]]\npath = \"/a/b\"\nupstream = \"api\"\nrequire = \"jwt\"\n",
        upstream.url()
    ));
    assert_eq!(["/a", "/a/b", "/a%2Fb", "/a%5Cb"].map(|path| gateway.get(path).status), [200, 401, 401, 401]);
    assert_eq!(upstream.count(), 1);
}

#[test]
fn a_grpc_call_without_a_token_is_unauthenticated() {
    let gateway = Gateway::start(&routes(""));
    let answer = gateway.ask("POST /api/a\nContent-Type: application/grpc\nContent-Length: 0");
    assert_eq!((answer.status, answer.header("grpc-status")), (200, Some("16")));
}

#[test]
fn other_proxies_are_told_to_challenge() {
    let decider = Decider::start("", &routes(""));
    let call = |token: &str| {
        decider.ask(&format!("GET /check\nX-Forwarded-Uri: /api/a\nAuthorization: Bearer {token}"))
    };
    let refused = call("a.b.c");
    assert_eq!(refused.status, 401);
    assert!(refused.header("www-authenticate").unwrap().contains("invalid_token"));
    assert_eq!(call(&Issuer::hmac(SECRET.as_bytes()).token(&of("ann"))).status, 200);
}
