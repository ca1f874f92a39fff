//! Plans of requests, in a table that needs no runtime: from a client, a path and a header to the route, the limits with
//! their keys, and the next step or the rejection.

use hyper::{
    Request,
    header::{AUTHORIZATION, HOST},
};
use jsonwebtoken::{EncodingKey, Header, encode};
use serde_json::{Value, json};

use super::*;
use crate::{config::JwtSettings, rules::key::jwt::Verifier};
use tollgate_limiter::{Ask, Refusal};

const SECRET: &str = "0123456789abcdef0123456789abcdef";

const FILE: &str = r#"
[jwt]
hmac_secret = "0123456789abcdef0123456789abcdef"
[upstreams.orders]
servers = ["http://127.0.0.1:3000"]
[upstreams.users]
servers = ["http://127.0.0.1:3001"]
[upstreams.zrpc]
servers = ["http://127.0.0.1:3002"]
http2   = true

[limits.client]
key  = "ip"
rate = "5/s"
[limits.order]
key  = "path:id"
rate = "5/s"
[limits.gold]
key       = "header:x-plan"
rate      = "5/s"
plain     = true
missing   = "skip"
exempt    = ["platinum"]
[limits.paid]
key     = "header:x-plan"
rate    = "9/s"
plain   = true
missing = "deny"
cost    = "header:x-cost"
[limits.named]
key  = ["route", "host"]
rate = "5/s"
[limits.login]
key  = "ip"
rate = "5/s"
[limits.api]
key     = "query:api_key"
rate    = "5/s"
plain   = true
missing = "skip"

[[routes]]
name     = "order"
path     = "/orders/{id}"
upstream = "orders"
limits   = ["client", "order"]
[[routes]]
name     = "posted"
path     = "/orders/{id}"
methods  = ["POST"]
upstream = "orders"
limits   = ["order"]
rewrite  = "/v2/{id}"
[[routes]]
name     = "files"
path     = "/files/{*rest}"
upstream = "users"
[[routes]]
name     = "plan"
path     = "/plan"
upstream = "users"
limits   = ["gold", "named"]
[[routes]]
name    = "paid"
path    = "/paid"
respond = { status = 204 }
limits  = ["paid"]
[[routes]]
name     = "moved"
path     = "/old/{*rest}"
redirect = { to = "/orders/{*rest}", status = 301 }
[[routes]]
name     = "admin"
path     = "/files/admin"
host     = "*.example.com"
upstream = "users"
limits   = ["named"]
[[routes]]
name     = "rest"
host     = "b.test"
path     = "/{*rest}"
upstream = "users"
[[routes]]
name     = "login"
host     = "b.test"
path     = "/login"
upstream = "users"
limits   = ["login"]
[[routes]]
name     = "dear"
host     = "b.test"
path     = "/login/dear"
upstream = "users"
limits   = [{ name = "login", cost = 5 }]
[[routes]]
name     = "full"
host     = "b.test"
path     = "/export"
query    = { full = "1" }
upstream = "users"
limits   = [{ name = "login", cost = 5 }]
[[routes]]
name     = "cheap"
host     = "b.test"
path     = "/export"
query    = { full = "1", cheap = "1" }
upstream = "users"
[[routes]]
name     = "first"
host     = "b.test"
path     = "/version"
headers  = { x-version = "1" }
upstream = "users"
[[routes]]
name     = "second"
host     = "b.test"
path     = "/version"
headers  = { x-version = "2" }
upstream = "users"
limits   = ["login"]
[[routes]]
name     = "any"
host     = "b.test"
path     = "/version"
upstream = "users"
limits   = ["login"]
[[routes]]
name     = "app"
path     = "/app/{*rest}"
upstream = "users"
rewrite  = "/index.php/{*rest}"
[[routes]]
name     = "tenant"
host     = "b.test"
path     = "/of/{tenant}/login"
upstream = "users"
limits   = ["login"]
[[routes]]
name     = "private"
host     = "b.test"
path     = "/private"
upstream = "users"
require  = "jwt"
[[routes]]
name     = "data"
host     = "b.test"
path     = "/data"
upstream = "users"
limits   = ["api"]
[[routes]]
name     = "shop"
path     = "/shop/{id}"
upstream = "orders"
rewrite  = "/items/{id}"
[[routes]]
name     = "parts"
path     = "/items/{id}/parts"
upstream = "orders"
limits   = ["client"]
[[routes]]
name     = "goods"
path     = "/goods/{id}"
upstream = "users"
rewrite  = "/items/{id}"
[[routes]]
name     = "call"
path     = "/call"
upstream = "zrpc"
limits   = ["client"]
[[routes]]
name    = "tier"
path    = "/tier"
respond = {}
[[routes]]
name    = "pro"
path    = "/tier"
claims  = { plan = "pro" }
respond = {}
limits  = ["client"]
[[routes]]
name    = "pro-admin"
path    = "/tier"
claims  = { plan = "pro", roles = "admin" }
respond = {}
[[routes]]
name    = "posted-tier"
path    = "/tier"
methods = ["POST"]
claims  = { level = "3", beta = "true" }
respond = {}
[[routes]]
name     = "open"
host     = "open.test"
path     = "/{*rest}"
upstream = "users"
[[routes]]
name     = "open-files"
host     = "c.test"
path     = "/open/{*rest}"
respond  = {}
[[routes]]
name     = "café"
host     = "c.test"
path     = "/café/{*rest}"
respond  = {}
[[routes]]
name     = "tenant-admin"
host     = "c.test"
path     = "/{tenant}/admin"
respond  = {}
require  = "jwt"
[[routes]]
name     = "doc"
host     = "c.test"
path     = "/docs/{id}"
respond  = {}
[[routes]]
name     = "version"
host     = "c.test"
path     = "/docs/{id}/{version}"
respond  = {}
[[routes]]
name     = "docs"
host     = "c.test"
path     = "/docs/{*rest}"
respond  = {}
require  = "jwt"
[[routes]]
name     = "all"
host     = "c.test"
path     = "/{*rest}"
respond  = {}
limits   = ["client"]
[[routes]]
name     = "try"
host     = "b.test"
path     = "/try"
query    = { dry_run = "1" }
upstream = "users"
[[routes]]
name     = "real"
host     = "b.test"
path     = "/try"
upstream = "users"
limits   = ["login"]
[[routes]]
name    = "only-pro"
path    = "/only/{id}"
claims  = { plan = "pro" }
respond = {}
"#;

/// Plans the requests of a table.
struct Desk {
    planner: Planner,
    verifier: Verifier,
}

impl Desk {
    /// Verifies tokens as the file says, or with keys that haven't been fetched yet.
    fn new(are_fetched: bool) -> Self {
        Self::of(FILE, are_fetched)
    }

    fn of(file: &str, are_fetched: bool) -> Self {
        let (config, _) = Config::parse("gateway.toml", file, &|_| None).expect("a valid file");
        let rules = config.limits.iter();
        let rules = rules.map(|(name, limit)| (name.clone(), Arc::new(Rule::new(limit, None))));
        let planner = Planner::new(&config, rules.collect());
        let url = "[jwt]\njwks_url = \"http://127.0.0.1:1/\"\n[[routes]]\npath = \"/\"\nrespond = {}\n";
        let (fetching, _) = Config::parse("gateway.toml", url, &|_| None).expect("a valid file");
        let settings = config.jwt.filter(|_| are_fetched).or(fetching.jwt);
        let settings: Arc<JwtSettings> = settings.expect("a table [jwt]");
        Self { planner, verifier: Verifier::new(&settings, None) }
    }

    fn different<'r>(&self, rows: &[(&'r str, &'r str)]) -> Vec<String> {
        let rows = rows.iter().map(|(request, plan)| (request, plan, planned(self, request)));
        let different = rows.filter(|(_, plan, actual)| actual != *plan);
        different.map(|(request, plan, actual)| format!("{request}: {actual}, expected {plan}")).collect()
    }
}

/// Returns a valid token with these claims.
fn token(secret: &str, claims: &str) -> String {
    let mut claims: Value = serde_json::from_str(claims).expect(claims);
    let claims = claims.as_object_mut().expect("claims");
    claims.entry("exp").or_insert(json!(4_102_444_800_u64));
    encode(&Header::default(), claims, &EncodingKey::from_secret(secret.as_bytes())).expect("a token")
}

/// Plans a request, written as `METHOD HOST TARGET [name:value]…`, and describes the plan in a line. `as:{…}` stands for a token
/// with these claims, `forged:{…}` for one that somebody else signed.
fn planned(desk: &Desk, text: &str) -> String {
    let mut words = text.split_whitespace();
    let mut next = || words.next().expect(text);
    let mut request = Request::builder().method(next()).header(HOST, next()).uri(next());
    for (name, value) in words.map(|word| word.split_once(':').expect(text)) {
        request = match name {
            "as" => request.header(AUTHORIZATION, format!("Bearer {}", token(SECRET, value))),
            "forged" => request.header(AUTHORIZATION, format!("Bearer {}", token(&SECRET.repeat(2), value))),
            _ => request.header(name, value),
        };
    }
    let (parts, ()) = request.body(()).expect(text).into_parts();
    let address = "192.0.2.7".parse().expect("an address");
    let client = Client { peer: address, peer_is_trusted: false, address, scheme: "http" };
    match desk.planner.plan(&client, &parts, &Claims::new(Some(&desk.verifier), &parts.headers)) {
        Ok(plan) => {
            let limits = plan.rules.iter().zip(&plan.terms);
            let limits: Vec<_> = limits.map(|(rule, terms)| described(rule.limit().name(), terms)).collect();
            format!("{} [{}] {}", plan.route.name, limits.join(", "), next_step(&plan.aim))
        }
        Err(Unplanned { rejection, route }) => {
            let (_, code, _) = rejection.summary();
            format!("{} {code}", route.map_or("-", |route| &route.name))
        }
    }
}

fn described(limit: &str, terms: &Terms) -> String {
    match terms {
        Terms::Counts(asks) => {
            let key = |ask: &Ask| match ask.permits() {
                1 => ask.key().as_str().to_owned(),
                cost => format!("{} at {cost}", ask.key().as_str()),
            };
            format!("{limit} {}", asks.iter().map(key).collect::<Vec<_>>().join(" and "))
        }
        Terms::Exempts { .. } => format!("{limit} exempt"),
        Terms::Skips => format!("{limit} skipped"),
        Terms::Refuses(Refusal::KeyMissing { .. }) => format!("{limit} key missing"),
        Terms::Refuses(Refusal::CostInvalid { .. }) => format!("{limit} cost invalid"),
        Terms::Refuses(refusal) => format!("{limit} {refusal}"),
    }
}

fn next_step(aim: &Aim<'_>) -> String {
    match aim {
        Aim::Upstream(split, None) => format!("upstream {}", split.draw()),
        Aim::Upstream(split, Some(uri)) => format!("upstream {} {uri}", split.draw()),
        Aim::Fixed(response) => response.status().as_str().to_owned(),
        Aim::Redirect(to, status) => format!("{} {}", status.as_str(), to.to_str().expect("text")),
    }
}

#[test]
fn a_request_has_one_plan() {
    let desk = Desk::new(true);
    let rows = [
        // Routes and their limits.
        ("GET a /orders/7", "order [client ip=192.0.2.7, order path:id=7] upstream 0"),
        ("GET a /orders/7/", "order [client ip=192.0.2.7, order path:id=7] upstream 0"),
        ("GET a //orders//7?x=1", "order [client ip=192.0.2.7, order path:id=7] upstream 0"),
        ("GET a /%6Frders/7", "order [client ip=192.0.2.7, order path:id=7] upstream 0"),
        ("GET a /x/../orders/7?y", "order [client ip=192.0.2.7, order path:id=7] upstream 0 /orders/7?y"),
        ("GET a /x/%2e%2E/orders/7", "order [client ip=192.0.2.7, order path:id=7] upstream 0 /orders/7"),
        ("GET a /orders/a%20b", "order [client ip=192.0.2.7, order path:id=a%20b] upstream 0"),
        ("GET a http://b/orders/7", "order [client ip=192.0.2.7, order path:id=7] upstream 0 /orders/7"),
        ("POST a /orders/7", "posted [order path:id=7] upstream 0 /v2/7"),
        ("GET a /orders", "- no-route"),
        ("GET a /Orders/7", "- no-route"),
        // Other next steps.
        ("GET a /files/a/b", "files [] upstream 1"),
        ("GET a /old/7", "moved [] 301 /orders/7"),
        ("GET a /old/7?a=b", "moved [] 301 /orders/7?a=b"),
        // Keys by header, host and route.
        (
            "GET A:80 /plan x-plan:gold",
            "plan [gold header:x-plan=gold, named 10:route=plan,6:host=a and 10:route=plan,6:host=A] upstream 1",
        ),
        ("GET a /plan x-plan:platinum", "plan [gold exempt, named 10:route=plan,6:host=a] upstream 1"),
        ("GET a /plan", "plan [gold skipped, named 10:route=plan,6:host=a] upstream 1"),
        ("GET a /paid x-plan:gold", "paid [paid header:x-plan=gold] 204"),
        ("GET a /paid x-plan:gold x-cost:3", "paid [paid header:x-plan=gold at 3] 204"),
        ("GET a /paid x-plan:gold x-cost:many", "paid [paid cost invalid] 204"),
        ("GET a /paid", "paid [paid key missing] 204"),
        // Hosts.
        ("GET w.example.com /files/admin", "admin [named 11:route=admin,18:host=w.example.com] upstream 1"),
        ("GET example.com /files/admin", "files [] upstream 1"),
        // Some servers compare hosts byte for byte.
        ("GET a /version x-version:1", "- no-route"),
        ("GET b.test. /plan", "rest [gold skipped, named 10:route=plan,12:host=b.test.] upstream 1"),
        (
            "GET W.example.com /files/admin",
            "admin [named 11:route=admin,18:host=w.example.com and 11:route=admin,18:host=W.example.com] upstream 1",
        ),
        ("GET open.test /plan", "open [] upstream 1"),
        ("GET open.test:8080 /plan", "open [] upstream 1"),
        ("GET OPEN.test /paid x-plan:gold", "open [paid header:x-plan=gold] upstream 1"),
        ("GET open.test. /paid x-plan:gold", "open [paid header:x-plan=gold] upstream 1"),
        ("GET open.test: /paid x-plan:gold", "open [paid header:x-plan=gold] upstream 1"),
        ("GET C.test: /%6Fpen/x", "open-files [client ip=192.0.2.7] 200"),
        ("GET a http://OPEN.test/paid x-plan:gold", "open [paid header:x-plan=gold] upstream 1 /paid"),
        // Some compare literals with a path that they haven't decoded, or fold the letters of ASCII only.
        ("GET c.test /open/x", "open-files [] 200"),
        ("GET c.test /%6Fpen/x", "open-files [client ip=192.0.2.7] 200"),
        ("GET c.test //%6Fpen//x", "open-files [client ip=192.0.2.7] 200"),
        ("GET c.test /open/x%40y", "open-files [] 200"),
        ("GET c.test /%6Fpen/admin", "open-files token-missing"),
        ("GET c.test /%6FPEN/ADMIN", "all token-missing"),
        ("GET c.test /caf%C3%A9/admin", "café [] 200"),
        ("GET c.test /CAF%C3%89/admin", "tenant-admin token-missing"),
        // A parameter may not be empty, so that another pattern takes an empty segment.
        ("GET c.test /docs/7", "doc [] 200"),
        ("GET c.test /docs//7", "doc token-missing"),
        ("GET c.test /o%70en/%61dmin", "open-files [client ip=192.0.2.7] 200"),
        // Readings of a path that upstreams may follow.
        ("GET a /orders%2F7", "- no-route"),
        ("GET a /files/x;/orders", "files [] upstream 1"),
        ("GET w.example.com /files%2Fadmin", "- no-route"),
        ("GET w.example.com /files/admin;x", "files [named 11:route=admin,18:host=w.example.com] upstream 1"),
        ("GET a /files/..%2Forders/7", "files path-ambiguous"),
        ("GET a /orders/7;x", "order [client ip=192.0.2.7, order path:id=7%3Bx and path:id=7] upstream 0"),
        ("POST a /orders/\\x", "posted [order path:id=%5Cx and path:id=x] upstream 0 /v2/\\x"),
        ("GET a /orders/7%0a", "order [client ip=192.0.2.7, order path:id=7%0A and path:id=7] upstream 0"),
        (
            "GET a /orders/7%ff",
            "order [client ip=192.0.2.7, order path:id=7%FF and path:id=7 and path:id=7%C3%BF] upstream 0",
        ),
        ("GET a /orders/a%0a%ff;b", "order path-ambiguous"),
        ("POST a /orders/..%2Fx", "posted target-invalid"),
        ("GET a /files/a;b%2Fc.png", "files [] upstream 1"),
        // What may be a host before the path, and backslashes of browsers.
        ("GET a //files/orders/7", "files [client ip=192.0.2.7, order path:id=7] upstream 1"),
        (
            "GET a //files/orders/7%0a",
            "files [client ip=192.0.2.7, order path:id=7%0A and path:id=7] upstream 1",
        ),
        ("GET a //orders/7/", "order [client ip=192.0.2.7, order path:id=7] upstream 0"),
        ("GET b.test //x/login", "rest [login ip=192.0.2.7] upstream 1"),
        ("GET b.test /\\x/login", "rest [login ip=192.0.2.7] upstream 1"),
        ("GET b.test //x\\y/login", "rest [login ip=192.0.2.7] upstream 1"),
        ("GET b.test /login\\", "rest [login ip=192.0.2.7] upstream 1"),
        ("GET b.test //login/dear", "dear [login ip=192.0.2.7 at 5] upstream 1"),
        ("GET b.test //x/login/dear", "rest [login ip=192.0.2.7 at 5] upstream 1"),
        ("GET b.test //login/login/dear", "rest [login ip=192.0.2.7 at 5] upstream 1"),
        ("GET b.test /a%5Cb/..\\login", "rest path-ambiguous"),
        ("GET a //b.test/login", "- no-route"),
        (
            "GET b.test //w.example.com/files/admin",
            "rest [named 11:route=admin,18:host=w.example.com] upstream 1",
        ),
        (
            "GET b.test /\\u@W.Example.Com.:80/files/admin",
            "rest [named 11:route=admin,18:host=w.example.com] upstream 1",
        ),
        // Some servers use the first of a repeated field or parameter, and some the last.
        ("GET b.test /export?full=0&full=1", "full [login ip=192.0.2.7 at 5] upstream 1"),
        ("GET b.test /export?full=1&cheap=1", "cheap [] upstream 1"),
        ("GET b.test /export?full=1&cheap=1&cheap=0", "cheap [login ip=192.0.2.7 at 5] upstream 1"),
        ("GET b.test /export?cheap=0&full=1&cheap=1", "cheap [login ip=192.0.2.7 at 5] upstream 1"),
        ("GET b.test /export;full=1&cheap=1&cheap=0", "rest [login ip=192.0.2.7 at 5] upstream 1"),
        ("GET b.test /export%3Ffull=1&cheap=1&cheap=0", "rest [login ip=192.0.2.7 at 5] upstream 1"),
        // Some find a parameter in another name, and some don't.
        ("GET b.test /export?cheap=1&full=1", "cheap [] upstream 1"),
        ("GET b.test /try?dry_run=1", "try [] upstream 1"),
        ("GET b.test /try?dry.run=1", "try [login ip=192.0.2.7] upstream 1"),
        ("GET b.test /try?+dry_run=1", "try [login ip=192.0.2.7] upstream 1"),
        ("GET b.test /try?dry%5Frun=1", "try [] upstream 1"),
        ("GET b.test /try?+dry_run=1&dry_run=0&dry_run=1", "try [login ip=192.0.2.7] upstream 1"),
        ("GET b.test /try?dry_run=1&dry_run=0&+dry_run=1", "try [login ip=192.0.2.7] upstream 1"),
        ("GET b.test /version x-version:1", "first [] upstream 1"),
        // Others join them, and find none of the values.
        ("GET b.test /version x-version:1 x-version:1", "first [login ip=192.0.2.7] upstream 1"),
        ("GET b.test /version x-version:1 x-version:2", "first [login ip=192.0.2.7] upstream 1"),
        ("GET b.test /version x-version:2 x-version:1", "first [login ip=192.0.2.7] upstream 1"),
        // PHP frameworks handle what comes behind their script.
        ("GET b.test /index.php/login", "rest [login ip=192.0.2.7] upstream 1"),
        ("GET b.test /INDEX%2Ephplogin", "rest [login ip=192.0.2.7] upstream 1"),
        ("GET b.test /login/index.php", "rest [login ip=192.0.2.7] upstream 1"),
        // Many servers ignore the case of letters.
        ("GET b.test /LOGIN", "rest [login ip=192.0.2.7] upstream 1"),
        ("GET b.test //x/Log%49n;A", "rest [login ip=192.0.2.7] upstream 1"),
        ("GET b.test /Private", "rest token-missing"),
        ("GET b.test /DATA?api_key=K1", "rest [api query:api_key=K1] upstream 1"),
        // A token that one reading requires is required.
        ("GET b.test //x/private", "rest token-missing"),
        ("GET b.test /private;/x", "rest token-missing"),
        (r#"GET b.test //x/private as:{}"#, "rest [] upstream 1"),
        // A path may end at a semicolon, and the query begin there.
        ("GET b.test /login;/a", "rest [login ip=192.0.2.7] upstream 1"),
        ("GET b.test /login%3B/a", "rest [] upstream 1"),
        ("GET b.test /data;api_key=k1", "rest [api query:api_key=k1] upstream 1"),
        ("GET b.test /data;x?api_key=k1", "rest [api query:api_key=k1] upstream 1"),
        (
            "GET b.test /data;api_key=k1?api_key=k2",
            "rest [api query:api_key=k2 and query:api_key=k1%3Fapi_key%3Dk2] upstream 1",
        ),
        ("GET b.test /data;x", "rest [api skipped] upstream 1"),
        ("GET b.test /map;zoom=3/tile", "rest [] upstream 1"),
        ("GET b.test /export;full=1", "rest [login ip=192.0.2.7 at 5] upstream 1"),
        ("GET b.test //x/export?full=1", "rest [login ip=192.0.2.7 at 5] upstream 1"),
        ("GET b.test /export?full=1", "full [login ip=192.0.2.7 at 5] upstream 1"),
        // A path may end at an escaped question mark.
        ("GET b.test /login%3Fa", "rest [login ip=192.0.2.7] upstream 1"),
        ("GET b.test /data%3Fapi_key=k1", "rest [api query:api_key=k1] upstream 1"),
        ("GET b.test /data%3Fapi%5Fkey%3Dk1%26a?b", "rest [api query:api_key=k1] upstream 1"),
        (
            "GET b.test /data%3Fapi_key=k1%23a",
            "rest [api query:api_key=k1%23a and query:api_key=k1] upstream 1",
        ),
        (
            "GET b.test /data%3Fapi_key=k1%0Aa",
            "rest [api query:api_key=k1%0Aa and query:api_key=k1] upstream 1",
        ),
        ("GET b.test /export%3Ffull=1%23//", "rest [login ip=192.0.2.7 at 5] upstream 1"),
        ("GET b.test /login%23a%3Fb", "rest [] upstream 1"),
        ("GET b.test /of/a%23b/login%3F/c", "rest [login ip=192.0.2.7] upstream 1"),
        ("GET b.test /export%3Ffull=1%23&cheap=1", "rest [login ip=192.0.2.7 at 5] upstream 1"),
        // Servers may find the route before they resolve the path.
        ("GET b.test /of/..%3F/x", "rest path-ambiguous"),
        ("GET b.test /of/.;/x", "rest path-ambiguous"),
        ("GET b.test /login%2F..%2Fa", "rest path-ambiguous"),
        ("GET b.test /a\\..\\b", "rest path-ambiguous"),
        ("GET b.test /a/..;/b", "rest path-ambiguous"),
        // An empty segment may be a parameter.
        ("GET a /items//parts", "- no-route"),
        ("GET b.test /a//b", "rest [] upstream 1"),
        ("GET b.test /of//login", "rest [login ip=192.0.2.7] upstream 1"),
        ("GET b.test //of//login", "rest [login ip=192.0.2.7] upstream 1"),
        ("GET b.test /%2Fof//login", "rest [login ip=192.0.2.7] upstream 1"),
        ("GET b.test ///of//login", "rest [login ip=192.0.2.7] upstream 1"),
        // Parameters may end at slashes only, whatever is escaped.
        ("GET b.test /%2F;a%2Fb/login", "rest [login ip=192.0.2.7] upstream 1"),
        // A rewritten path has only readings that plain paths have, or that are counted alike.
        ("GET a /shop/7", "shop [] upstream 0 /items/7"),
        ("GET a /shop/7;x", "shop [] upstream 0 /items/7;x"),
        ("GET a /shop/7%2Fparts", "shop path-ambiguous"),
        ("GET a /shop/7%2FPARTS", "shop path-ambiguous"),
        ("GET a /shop/7\\parts", "shop path-ambiguous"),
        ("GET a /shop/7%2Fx", "shop [] upstream 0 /items/7%2Fx"),
        ("GET a /app/login", "app [] upstream 1 /index.php/login"),
        ("GET a /goods/7%2Fparts", "goods [] upstream 1 /items/7%2Fparts"),
        // What ends connections to HTTP/2 servers, which the other upstreams aren't.
        ("POST a /call x-bin:YQ==", "call [client ip=192.0.2.7] upstream 2"),
        ("POST a /call x-bin:!!", "call field-invalid"),
        ("GET a /app/login x-bin:!!", "app [] upstream 1 /index.php/login"),
        // Targets that are rejected.
        ("GET a /a%00b", "- target-invalid"),
        ("GET a b", "- target-invalid"),
        ("GET a@b /orders/7", "- host-invalid"),
        ("CONNECT a a:443", "- connect"),
    ];
    assert_eq!(desk.different(&rows), [""; 0]);
}

#[test]
fn where_nothing_is_protected_no_path_is_ambiguous() {
    let file = |mode: &str| {
        format!(
            "[limits.l]\nkey = [\"path:rest\"]\nrate = \"5/s\"\nmode = \"{mode}\"\n\
             [[routes]]\npath = \"/{{*rest}}\"\nrespond = {{}}\nlimits = [\"l\"]\n"
        )
    };
    let long = format!("GET a /a%2F{}", "b".repeat(3_000));
    let rows = ["GET a /a%2F..%2Fb", "GET a /a%0a%ff;b%2Fc", &long];
    for (mode, expected) in [("shadow", false), ("enforce", true)] {
        let desk = Desk::of(&file(mode), true);
        for request in rows {
            assert_eq!(planned(&desk, request).ends_with(" path-ambiguous"), expected, "{mode}: {request}");
        }
    }
}

#[test]
fn a_query_is_compared_with_conditions_by_few_parameters() {
    let desk = Desk::new(true);
    for (parameter, count, expected) in [
        ("a", 20_000, ["login [login ip=192.0.2.7] upstream 1", "rest [login ip=192.0.2.7] upstream 1"]),
        ("dry.run", 64, ["login [login ip=192.0.2.7] upstream 1", "rest [login ip=192.0.2.7] upstream 1"]),
        ("dry.run", 65, ["- path-ambiguous"; 2]),
    ] {
        let query = format!("{parameter}&").repeat(count);
        let requests = ["/login", "//x/login"].map(|path| format!("GET b.test {path}?{query}"));
        assert_eq!(requests.each_ref().map(|request| planned(&desk, request)), expected, "{parameter}");
    }
}

#[test]
fn a_long_head_is_not_read_for_many_readings() {
    let ask = |path: &str, length: usize| format!("GET a {path} authorization:{}", "k".repeat(length));
    let usual = ["/orders/7", "/orders//x;a%2fb%5cc"];
    for (key, mode, expected) in [
        ("[\"route\", \"header:authorization\"]", "enforce", [false, false, true]),
        ("[\"route\", \"header:authorization\"]", "shadow", [false, false, false]),
        // It doesn't depend on the path.
        ("\"header:authorization\"", "enforce", [false, false, false]),
    ] {
        let desk = Desk::of(
            &format!(
                "[limits.l]\nkey = {key}\nrate = \"5/s\"\nmode = \"{mode}\"\n\
                 [[routes]]\npath = \"/{{*rest}}\"\nrespond = {{}}\nlimits = [\"l\"]\n"
            ),
            true,
        );
        let requests = [ask(usual[0], 20_000), ask(usual[1], 500), ask(usual[1], 20_000)];
        let is_rejected = requests.map(|request| planned(&desk, &request).ends_with(" path-ambiguous"));
        assert_eq!(is_rejected, expected, "{key} {mode}");
    }
    // What only shadows takes no room of what doesn't.
    let desk = Desk::of(
        "[limits.l]\nkey = [\"route\", \"header:authorization\"]\nrate = \"5/s\"\nmode = \"shadow\"\n\
         [limits.m]\nkey = [\"route\", \"ip\"]\nrate = \"5/s\"\n\
         [[routes]]\npath = \"/{*rest}\"\nrespond = {}\nlimits = [\"l\", \"m\"]\n",
        true,
    );
    assert!(!planned(&desk, &ask(usual[1], 20_000)).ends_with(" path-ambiguous"));
}

#[test]
fn the_claims_of_a_verified_token_choose_the_route() {
    let rows = [
        ("GET a /tier", "tier [] 200"),
        (r#"GET a /tier as:{"plan":"pro"}"#, "pro [client ip=192.0.2.7] 200"),
        (r#"GET a /tier as:{"plan":"Pro"}"#, "tier [] 200"),
        (r#"GET a /tier forged:{"plan":"pro"}"#, "tier [] 200"),
        (r#"GET a /tier as:{"plan":"pro","exp":1}"#, "tier [] 200"),
        (r#"GET a /tier as:{"plan":"pro"} as:{"plan":"free"}"#, "tier key-ambiguous"),
        (r#"GET a /only/7 as:{"plan":"pro"} as:{"plan":"free"}"#, "- key-ambiguous"),
        // A list matches if it contains the value. An object never does.
        (r#"GET a /tier as:{"plan":["free","pro"]}"#, "pro [client ip=192.0.2.7] 200"),
        (r#"GET a /tier as:{"plan":["free"]}"#, "tier [] 200"),
        (r#"GET a /tier as:{"plan":{"pro":"pro"}}"#, "tier [] 200"),
        (r#"GET a /tier as:{"plan":null}"#, "tier [] 200"),
        // More claims are more specific.
        (r#"GET a /tier as:{"plan":"pro","roles":["dev","admin"]}"#, "pro-admin [] 200"),
        (r#"GET a /tier as:{"roles":"admin"}"#, "tier [] 200"),
        // Numbers and booleans are compared as text.
        (r#"POST a /tier as:{"level":3,"beta":true}"#, "posted-tier [] 200"),
        (r#"POST a /tier as:{"level":"3","beta":"true"}"#, "posted-tier [] 200"),
        (r#"POST a /tier as:{"level":[1,3],"beta":[true]}"#, "posted-tier [] 200"),
        (r#"POST a /tier as:{"level":3.5,"beta":true}"#, "tier [] 200"),
        (r#"POST a /tier as:{"level":3,"beta":false}"#, "tier [] 200"),
        ("GET a /only/7", "- no-route"),
        (r#"GET a /only/7 as:{"plan":"pro"}"#, "only-pro [] 200"),
    ];
    assert_eq!(Desk::new(true).different(&rows), [""; 0]);
}

#[test]
fn a_token_that_cannot_be_verified_now_is_only_needed_where_claims_decide() {
    let rows = [
        (r#"GET a /orders/7 as:{"plan":"pro"}"#, "order [client ip=192.0.2.7, order path:id=7] upstream 0"),
        (r#"GET a /tier as:{"plan":"pro"}"#, "tier token-unverified"),
        (r#"GET a /only/7 as:{"plan":"pro"}"#, "- token-unverified"),
        (r#"GET a /nowhere as:{"plan":"pro"}"#, "- no-route"),
        ("GET a /tier", "tier [] 200"),
        ("GET a /only/7", "- no-route"),
    ];
    assert_eq!(Desk::new(false).different(&rows), [""; 0]);
}
