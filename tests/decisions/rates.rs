//! The order in which the sources of a rate apply, for requests and for descriptors that are counted together.

use super::{
    Decider,
    rls::{Descriptor, Request, ask},
};
use crate::harness::{client::Client, redis::Redis, wait_until};

const HOUR: i32 = 3;

const FILE: &str = r#"
[server]
trusted_proxies = ["127.0.0.1"]
[admin]
listen = "127.0.0.1:0"
[[descriptors]]
domain = "d"
match  = { user = "*" }
as     = { user = "header:x-user" }
limits = ["l"]
[limits.l]
key       = "header:x-user"
plain     = true
rate      = "100/h"
rate_from = "header:x-quota"
max       = 1000
overrides = [{ key = "ann", rate = "200/h" }]
[[routes]]
path    = "/"
respond = {}
limits  = ["l"]
"#;

/// Returns the rate of a request of this user, which a proxy sends with this quota.
fn of_request(decider: &Decider, user: &str, quota: &str) -> String {
    let answer = decider.gateway.ask(&format!("GET /\nX-User: {user}\n{quota}"));
    answer.header("ratelimit-policy").unwrap().to_owned()
}

/// Returns the rate of a descriptor of this user, which may state its own.
fn of_descriptor(decider: &Decider, user: &str, limit: Option<u32>) -> String {
    let descriptor = Descriptor::of(&[("user", user.as_bytes())]);
    let descriptor = limit.into_iter().fold(descriptor, |plain, limit| plain.limited_to(limit, HOUR));
    let answer = ask(decider.address, &Request::new("d", [descriptor])).unwrap();
    answer.header("ratelimit-policy").unwrap().to_owned()
}

/// Sets the rate of the limit, or of a key of it.
fn set(decider: &Decider, place: &str, rate: &str) {
    let (_, admin) = decider.gateway.greeting().split_once("dashboard: http://").unwrap();
    let body = format!("{{\"rate\":\"{rate}\"}}");
    let answer = Client::connect(admin.lines().next().unwrap().parse().unwrap()).ask(&format!(
        "PUT /api/limits/l{place}/override\nHost: 127.0.0.1\nContent-Type: application/json\nContent-Length: {}\n\n{body}",
        body.len()
    ));
    assert_eq!(answer.status / 100, 2, "{}", answer.text());
}

#[test]
fn sources_of_a_rate_apply_in_their_order() {
    let decider = Decider::start("", FILE);
    // Each step adds a source that comes before those so far. The rates are those of ann and bob: of requests, and of descriptors.
    let check = |quota: &str, limit: Option<u32>, expected: [[u32; 2]; 2]| {
        let found = ["ann", "bob"]
            .map(|user| [of_request(&decider, user, quota), of_descriptor(&decider, user, limit)]);
        assert_eq!(found, expected.map(|rates| rates.map(|rate| format!("\"l\";q={rate};w=3600"))));
    };
    check("", None, [[200, 200], [100, 100]]);
    check("X-Quota: 300", Some(400), [[300, 400], [300, 400]]);
    set(&decider, "", "500/h");
    check("X-Quota: 300", Some(400), [[500, 500], [500, 500]]);
    set(&decider, "/keys/ann", "600/h");
    check("X-Quota: 300", Some(400), [[600, 600], [500, 500]]);
}

/// A month of the calendar isn't the time that a descriptor's limit is for.
#[test]
fn a_descriptors_limit_has_its_own_unit_where_the_calendar_counts() {
    let [second, minute, day, month, year] = [1, 2, 4, 5, 6];
    let redis = Redis::start();
    let limit = "[[descriptors]]\ndomain = \"d\"\nmatch = { user = \"*\" }\nlimits = [\"l\"]\n\
        [limits.l]\nkey = \"descriptor:user\"\nplain = true\nrate = \"100/month\"\n\
        algorithm = \"fixed-window\"\ncalendar = \"+08:00\"\n";
    for url in ["memory:", &redis.url()] {
        let decider = Decider::start("", &format!("[store]\nurl = \"{url}\"\ntimeout = \"5s\"\n{limit}"));
        let asked = |user: &str, limit: Option<(u32, i32)>| {
            let descriptor = Descriptor::of(&[("user", user.as_bytes())]);
            let descriptor = match limit {
                None => descriptor,
                Some((permits, unit)) => descriptor.limited_to(permits, unit),
            };
            let answer = ask(decider.address, &Request::new("d", [descriptor])).unwrap();
            let unit = answer.statuses[0].current_limit.as_ref().unwrap().unit;
            (answer.header("ratelimit-policy").unwrap().to_owned(), unit, answer.left()[0].1)
        };
        wait_until("the store decides", || {
            asked("nobody", None);
            url == "memory:" || !redis.keys("tollgate:l:*").is_empty()
        });
        for (unit, window) in
            [(second, ";w=1"), (minute, ";w=60"), (HOUR, ";w=3600"), (day, ";w=86400"), (year, "")]
        {
            let expected = (format!("\"l\";q=5{window}"), unit, 4);
            assert_eq!(asked(&format!("of-{unit}"), Some((5, unit))), expected);
        }
        // In the limit's own unit, it counts on.
        assert_eq!(asked("ann", None), ("\"l\";q=100".to_owned(), month, 99));
        assert_eq!(asked("ann", Some((5, month))), ("\"l\";q=5".to_owned(), month, 3));
        // Other units count apart from it.
        assert_eq!(asked("ann", Some((5, HOUR))).2, 4);
        assert_eq!(asked("ann", None).2, 97);
    }
    let buckets = redis.keys("tollgate:l:*");
    for bucket in
        ["fw:{descriptor:user=of-2}", "ch+0800:{descriptor:user=of-3}", "cy+0800:{descriptor:user=of-6}"]
    {
        assert!(buckets.contains(&format!("tollgate:l:{bucket}")), "{buckets:?}");
    }
}

#[test]
fn equal_descriptors_of_a_call_are_each_held_to_their_own_limit() {
    let redis = Redis::start();
    for url in ["memory:", &redis.url()] {
        let decider = Decider::start("", &format!("[store]\nurl = \"{url}\"\ntimeout = \"5s\"\n{FILE}"));
        let of = |limit| Descriptor::of(&[("user", b"bob")]).limited_to(limit, HOUR);
        let left =
            |descriptors: Vec<_>| ask(decider.address, &Request::new("d", descriptors)).unwrap().left();
        assert_eq!(left(vec![of(1_000).hits(10)]), [(1, 990)], "{url}");
        assert_eq!(left(vec![of(5), of(1_000)]), [(2, 0), (1, 990)], "{url}");
        assert_eq!(left(vec![of(1_000), of(5)]), [(1, 990), (2, 0)], "{url}");
        assert_eq!(left(vec![of(1_000), of(500)]), [(1, 988), (1, 488)], "{url}");
    }
}
