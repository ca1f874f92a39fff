//! Costs that routes state, and rates of keys and of patterns.

use std::process::Command;

use hyper::Response;
use serde_json::{Value, json};

use super::tokens::{Issuer, of, with};
use crate::harness::{
    gateway::Gateway,
    redis::Redis,
    upstream::{Upstream, whole},
};

fn statuses(gateway: &Gateway, requests: &[&str]) -> Vec<u16> {
    requests.iter().map(|request| gateway.ask(request).status).collect()
}

#[test]
fn routes_state_their_own_costs_to_one_limit() {
    let redis = Redis::start();
    for store in [String::new(), redis.store()] {
        let gateway = Gateway::start(&format!(
            "{store}[limits.budget]\nkey = \"ip\"\nrate = \"12/h\"\n\
             [[routes]]\npath = \"/search\"\nrespond = {{}}\nlimits = [{{ name = \"budget\", cost = 10 }}]\n\
             [[routes]]\npath = \"/item\"\nrespond = {{}}\nlimits = [\"budget\"]\n"
        ));
        assert_eq!(gateway.get("/search").header("ratelimit"), Some("\"budget\";r=2;t=3600"));
        // While the expensive one is refused, the cheap one fits.
        let paths = ["GET /search", "GET /item", "GET /search", "GET /item", "GET /item"];
        assert_eq!(statuses(&gateway, &paths), [429, 200, 429, 200, 429]);
    }
}

#[test]
fn a_path_that_servers_read_in_two_ways_costs_what_the_dearer_route_states() {
    let gateway = Gateway::start(
        "[limits.budget]\nkey = \"ip\"\nrate = \"12/h\"\n\
         [[routes]]\npath = \"/{*rest}\"\nrespond = {}\nlimits = [\"budget\"]\n\
         [[routes]]\npath = \"/a/b\"\nrespond = {}\nlimits = [{ name = \"budget\", cost = 10 }]\n",
    );
    assert_eq!(statuses(&gateway, &["GET /a%2Fb", "GET /a%2Fb", "GET /x"]), [200, 429, 200]);
}

#[test]
fn patterns_of_a_key_give_rates_by_their_fixed_parts() {
    let redis = Redis::start();
    let limit = "[limits.tier]\nkey = [\"header:x-plan\", \"header:x-user\"]\nplain = true\nrate = \"1/h\"\noverrides = [\n\
         { key = [\"*\", \"bob\"], rate = \"2/h\" },\n\
         { key = [\"pro\", \"*\"], rate = \"3/h\" },\n\
         { key = [\"pro\", \"alice\"], rate = \"4/h\" },\n\
         { key = '[\"free\",\"*\"]', rate = \"5/h\" },\n\
         { key = [\"pro\", \"mallory\"], rate = 0 },\n]\n";
    for store in [String::new(), redis.store()] {
        let gateway = Gateway::start(&format!(
            "{store}{limit}[[routes]]\npath = \"/\"\nrespond = {{}}\nlimits = [\"tier\"]\n"
        ));
        let admitted = |plan: &str, user: &str| {
            let request = format!("GET /\nX-Plan: {plan}\nX-User: {user}");
            (0..7).filter(|_| gateway.ask(&request).status == 200).count()
        };
        let rates = [
            ("basic", "eve", 1),
            ("basic", "bob", 2),
            ("pro", "eve", 3),
            ("pro", "bob", 3),
            ("pro", "alice", 4),
            ("free", "carol", 5),
            ("pro", "mallory", 0),
        ];
        for (plan, user, rate) in rates {
            assert_eq!(admitted(plan, user), rate, "{plan} {user}");
        }
        let blocked = gateway.ask("GET /\nX-Plan: pro\nX-User: mallory");
        assert_eq!((blocked.status, blocked.header("retry-after")), (429, None));
    }
}

/// Returns the first complete file of the guide, with the addresses of real servers.
fn file_of_guide(issuer: &Upstream, shop: &Upstream) -> String {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/");
    let guide = std::fs::read_to_string(format!("{root}docs/tiers.md")).unwrap();
    let (_, file) = guide.split_once("```toml\n").unwrap();
    let (file, rest) = file.split_once("```").unwrap();
    assert!(rest.contains("9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"));
    let places = [
        ("http://127.0.0.1:3000", shop.url()),
        ("https://id.example.com/.well-known/jwks.json", issuer.url()),
        ("keys.txt", format!("{root}tests/known-keys.txt")),
    ];
    places.into_iter().fold(file.to_owned(), |file, (from, to)| {
        assert!(file.contains(from), "{from}");
        file.replace(from, &to)
    })
}

#[test]
fn the_file_of_the_guide_has_three_tiers_contracts_and_partners() {
    let issuer = Issuer::ed25519().named("a");
    let keys = json!({ "keys": [issuer.jwk()] }).to_string();
    let issuing = Upstream::start(move |_| {
        let keys = keys.clone();
        async { Response::new(whole(keys)) }
    });
    let shop = Upstream::hello();
    let gateway = Gateway::start(&file_of_guide(&issuing, &shop));
    let policy = |path: &str, subject: &str, claims: Value| {
        let standard = json!({ "iss": "https://id.example.com", "aud": "shop" });
        let token = issuer.token(&with(with(of(subject), standard), claims));
        let answer = gateway.ask(&format!("GET {path}\nAuthorization: Bearer {token}"));
        (answer.status, answer.header("ratelimit-policy").unwrap_or_default().to_owned())
    };
    for (subject, plan, status, permits) in [
        ("ann", "free", 200, 60),
        ("ann", "pro", 200, 600),
        ("ann", "enterprise", 200, 6_000),
        ("acme", "enterprise", 200, 20_000),
    ] {
        let expected = (status, format!("\"per-customer\";q={permits};w=60"));
        assert_eq!(policy("/v1/orders", subject, json!({ "plan": plan })), expected, "{subject} {plan}");
    }
    assert_eq!(policy("/v1/orders", "mallory", json!({ "plan": "pro" })).0, 429);
    for (quota, permits) in [(json!(5_000), 5_000), (json!(50_000), 10_000), (json!("x"), 100)] {
        let expected = (200, format!("\"by-contract\";q={permits};w=3600"));
        assert_eq!(policy("/reports/a", "ann", json!({ "quota": quota })), expected, "{quota}");
    }
    assert_eq!((gateway.get("/v1/orders").status, gateway.get("/reports/a").status), (401, 401));
    let partner = |key: &str| gateway.ask(&format!("GET /partners/a\nX-Api-Key: {key}")).status;
    assert_eq!((partner("test"), partner("invented"), gateway.get("/partners/a").status), (200, 401, 429));
    assert_eq!(shop.count(), 4 + 3 + 1);
}

#[test]
fn the_commands_of_the_guide_work() {
    let guide = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/tiers.md")).unwrap();
    let mut commands = guide.split("```sh\n").skip(1).map(|block| block.split("```").next().unwrap());
    let folder = tempfile::tempdir().unwrap();
    let made =
        Command::new("sh").args(["-ec", commands.next().unwrap()]).current_dir(&folder).status().unwrap();
    assert!(made.success());
    let keys = std::fs::read_to_string(folder.path().join("keys.txt")).unwrap();
    let of_test = guide.lines().find(|line| line.ends_with("shop-app")).unwrap();
    assert_eq!(keys.split_whitespace().collect::<Vec<_>>(), of_test.split_whitespace().collect::<Vec<_>>());
    let commands = commands.next().unwrap();
    let shop = Upstream::hello();
    let file = file_of_guide(&shop, &shop);
    let secret = "hmac_secret = \"0123456789abcdef0123456789abcdef\"";
    assert!(guide.contains(secret));
    let gateway = Gateway::start(&file.replace(&format!("jwks_url = \"{}\"", shop.url()), secret));
    let port = format!("127.0.0.1:{}", gateway.address().port());
    let commands = commands.replace("127.0.0.1:8080", &port);
    let output = Command::new("sh").args(["-ec", &commands]).output().unwrap();
    let answer = String::from_utf8(output.stdout).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    assert!(answer.contains("ratelimit-policy: \"per-customer\";q=600;w=60"), "{answer}");
}
