//! Plans of requests, in a table that needs no runtime: from a client, a path and a header to the route, the limits with
//! their keys, and the next step or the rejection.

use hyper::Request;
use tollgate_limiter::Refusal;

use super::*;

const FILE: &str = r#"
[upstreams.orders]
servers = ["http://127.0.0.1:3000"]
[upstreams.users]
servers = ["http://127.0.0.1:3001"]

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
"#;

fn planner() -> Planner {
    let (config, _) = Config::parse("gateway.toml", FILE, &|_| None).expect("a valid file");
    let rules = config.limits.iter().map(|(name, limit)| (name.clone(), Arc::new(Rule::new(limit, None))));
    Planner::new(&config, rules.collect())
}

/// Plans a request, written as `METHOD HOST TARGET [name:value]…`, and describes the plan in a line.
fn planned(planner: &Planner, text: &str) -> String {
    let mut words = text.split_whitespace();
    let mut next = || words.next().expect(text);
    let mut request = Request::builder().method(next()).header(HOST, next()).uri(next());
    for (name, value) in words.map(|word| word.split_once(':').expect(text)) {
        request = request.header(name, value);
    }
    let (parts, ()) = request.body(()).expect(text).into_parts();
    let address = "192.0.2.7".parse().expect("an address");
    let client = Client { peer: address, peer_is_trusted: false, address, scheme: "http" };
    match planner.plan(&client, &parts, &Claims::new(None, &parts.headers)) {
        Ok(plan) => {
            let limits = plan.limits.iter().zip(&plan.terms);
            let limits: Vec<_> = limits.map(|(rule, terms)| described(rule.limit().name(), terms)).collect();
            format!("{} [{}] {}", plan.route.name, limits.join(", "), next_step(&plan.aim))
        }
        Err(Unplanned { rejection, route }) => {
            let (_, code, _) = rejection.terms();
            format!("{} {code}", route.map_or("-", |route| &route.name))
        }
    }
}

fn described(limit: &str, terms: &Terms) -> String {
    match terms {
        Terms::Counts(asks) => {
            let keys: Vec<_> = asks.iter().map(|ask| ask.key().as_str()).collect();
            format!("{limit} {}", keys.join(" and "))
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
    let planner = planner();
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
            "plan [gold header:x-plan=gold, named 10:route=plan,6:host=a] upstream 1",
        ),
        ("GET a /plan x-plan:platinum", "plan [gold exempt, named 10:route=plan,6:host=a] upstream 1"),
        ("GET a /plan", "plan [gold skipped, named 10:route=plan,6:host=a] upstream 1"),
        ("GET a /paid x-plan:gold", "paid [paid header:x-plan=gold] 204"),
        ("GET a /paid x-plan:gold x-cost:3", "paid [paid header:x-plan=gold] 204"),
        ("GET a /paid x-plan:gold x-cost:many", "paid [paid cost invalid] 204"),
        ("GET a /paid", "paid [paid key missing] 204"),
        // Hosts.
        ("GET w.example.com /files/admin", "admin [named 11:route=admin,18:host=w.example.com] upstream 1"),
        ("GET example.com /files/admin", "files [] upstream 1"),
        // Readings of a path that upstreams may follow.
        ("GET a /orders%2F7", "- no-route"),
        ("GET a /files/x;/orders", "files [] upstream 1"),
        ("GET w.example.com /files%2Fadmin", "- no-route"),
        ("GET w.example.com /files/admin;x", "files [named 11:route=admin,18:host=w.example.com] upstream 1"),
        ("GET a /files/..%2Forders/7", "files path-ambiguous"),
        ("POST a /orders/..%2Fx", "posted target-invalid"),
        // Targets that are rejected.
        ("GET a /a%00b", "- target-invalid"),
        ("GET a b", "- target-invalid"),
        ("GET a@b /orders/7", "- host-invalid"),
        ("CONNECT a a:443", "- connect"),
    ];
    let different = rows.iter().filter_map(|(request, plan)| {
        let actual = planned(&planner, request);
        (actual != *plan).then(|| format!("{request}: {actual}, expected {plan}"))
    });
    let different: Vec<_> = different.collect();
    assert!(different.is_empty(), "{different:#?}");
}
