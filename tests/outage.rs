//! Requests while the store is down, and the return to it.

mod connections;
mod cuts;
mod errors;
mod far;
mod instances;
mod leases;

use std::{
    cell::RefCell,
    time::{Duration, Instant},
};

use crate::harness::{PATIENCE, gateway::Gateway, redis::Redis, wait_until};

/// The store's timeout, plus the delay of a busy machine for most requests. timing.rs has strict bounds.
const SOON: Duration = Duration::from_millis(1_000);

/// A limit for each policy, and routes with their names. This gateway is one of two, so its share of the local limit is 10 an
/// hour. Another limit shows whether the store decides.
fn policies(url: &str) -> String {
    policies_after(url, "50ms")
}

/// Returns the configuration of [`policies`] with this timeout of the store. A busy machine may take 50 ms for a request that
/// the store is to decide.
fn policies_after(url: &str, timeout: &str) -> String {
    let mut toml =
        format!("[store]\nurl = \"{url}\"\ntimeout = \"{timeout}\"\ninstances = 2\n[server]\nworkers = 2\n");
    for policy in ["local", "allow", "deny"] {
        toml += &format!("[limits.{policy}]\nkey = \"global\"\nrate = \"20/h\"\non_failure = \"{policy}\"\n");
    }
    toml += "[limits.shadow]\nkey = \"global\"\nrate = \"20/h\"\non_failure = \"deny\"\nmode = \"shadow\"\n";
    toml += "[limits.told]\nkey = \"global\"\nrate = \"1000/h\"\n";
    for (path, limits) in [
        ("told", "\"told\""),
        ("local", "\"local\""),
        ("allow", "\"allow\""),
        ("deny", "\"deny\""),
        ("one-denies", "\"local\", \"allow\", \"deny\""),
        ("one-counts", "\"allow\", \"local\", \"shadow\""),
    ] {
        toml +=
            &format!("[[routes]]\npath = \"/{path}\"\nrespond = {{ status = 200 }}\nlimits = [{limits}]\n");
    }
    toml
}

/// Starts a gateway with this `[store]` table, whose path `/` has one limit with these keys.
fn one_limit(store: &str, limit: &str) -> Gateway {
    Gateway::start(&format!(
        "[server]\nworkers = 2\n{store}\n[limits.l]\n{limit}\n\
         [[routes]]\npath = \"/\"\nrespond = {{ status = 200 }}\nlimits = [\"l\"]\n"
    ))
}

/// Asserts the response of each policy while the store is down. It can be called only once, since it uses the share up.
fn assert_policies_hold(gateway: &Gateway) {
    let took = RefCell::new(Vec::new());
    let ask = |path: &str| {
        let since = Instant::now();
        let answer = gateway.get(path);
        assert!(since.elapsed() < PATIENCE, "{path} took {:?}", since.elapsed());
        took.borrow_mut().push(since.elapsed());
        answer
    };
    for path in ["/deny", "/one-denies"] {
        let answer = ask(path);
        assert_eq!((answer.status, answer.header("retry-after")), (503, Some("1")), "{path}");
        let problem = answer.json();
        assert_eq!(
            (problem["code"].as_str(), problem["title"].as_str()),
            (Some("store-unavailable"), Some("Service Unavailable"))
        );
    }
    for _ in 0..30 {
        let answer = ask("/allow");
        assert_eq!((answer.status, answer.header("ratelimit")), (200, None));
    }
    for left in (0..10).rev() {
        // Counted once, whichever route names it.
        let answer = ask(if left % 2 == 0 { "/local" } else { "/one-counts" });
        assert_eq!((answer.status, answer.header("ratelimit-policy")), (200, Some("\"local\";q=10;w=3600")));
        let state = answer.header("ratelimit").unwrap();
        assert!(state.starts_with(&format!("\"local\";r={left};t=")), "{state}");
    }
    let refused = ask("/local");
    assert!(refused.status == 429 && refused.retry_after_ms() > 3_590_000, "{refused:?}");
    assert_eq!(ask("/one-counts").status, 429);
    let mut took = took.into_inner();
    took.sort_unstable();
    assert!(took[took.len() / 2] < SOON, "{took:?}");
}

/// Returns true if the store decides this request.
fn asks_store(gateway: &Gateway) -> bool {
    gateway.get("/told").header("ratelimit-policy") == Some("\"told\";q=1000;w=3600")
}

/// Waits until the gateway counts in Redis again. Returns the number of requests that it took, each of which may count there: one whose
/// answer is late is decided without the store, and counts nevertheless.
fn await_store(gateway: &Gateway) -> u64 {
    let mut asked = 0;
    wait_until("the store is used", || {
        asked += 1;
        asks_store(gateway)
    });
    asked
}

#[test]
fn each_policy_holds_while_the_store_is_killed_or_stopped() {
    type Step = fn(&mut Redis);
    let cases: [(Step, Step); 2] =
        [(Redis::kill, Redis::restart), (|redis| redis.pause(), |redis| redis.resume())];
    for (leave, come_back) in cases {
        let mut redis = Redis::start();
        let gateway = Gateway::start(&policies(&redis.url()));
        await_store(&gateway);
        leave(&mut redis);
        assert_policies_hold(&gateway);
        wait_until("it is logged", || gateway.log().contains("the store fails"));
        come_back(&mut redis);
        await_store(&gateway);
        assert_ne!(redis.keys("tollgate:*"), [""; 0]);
        wait_until("the return is logged", || gateway.log().contains("the store answers again"));
    }
}

#[test]
fn a_gateway_starts_without_its_store_and_finds_it_later() {
    let mut redis = Redis::away();
    let gateway = Gateway::start(&policies(&redis.url()));
    wait_until("it says so", || gateway.log().contains("starting without the store"));
    assert_policies_hold(&gateway);
    redis.restart();
    await_store(&gateway);
}

#[test]
fn a_wrong_password_is_an_outage_until_it_is_right_and_is_not_told() {
    let redis = Redis::start();
    redis.command(&["CONFIG", "SET", "requirepass", "right-s3cret"]);
    let host = redis.url().replace("redis://", "");
    for (url, cause) in
        [(format!("redis://{host}"), "NOAUTH"), (format!("redis://:wrong-s3cret@{host}"), "WRONGPASS")]
    {
        let gateway = Gateway::start(&policies(&url));
        assert_policies_hold(&gateway);
        let told = || gateway.log().matches(cause).count();
        wait_until("the cause is logged", || told() > 0);
        if cause == "WRONGPASS" {
            redis.command(&["-a", "right-s3cret", "CONFIG", "SET", "requirepass", "wrong-s3cret"]);
            await_store(&gateway);
            assert_eq!(told(), 1, "{}", gateway.log());
        }
        gateway.assert_not_logged("s3cret");
    }
}
