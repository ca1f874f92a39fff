//! The gateway as its clients see it: the real binary, real sockets, real upstreams, a real Redis.

#![allow(clippy::unwrap_used, reason = "a test fails by it")]

#[allow(dead_code)] // Each test target uses a part of it.
mod harness;

use harness::{gateway::Gateway, upstream::Upstream};

#[test]
fn a_refused_request_never_reaches_the_upstream() {
    let upstream = Upstream::hello();
    let gateway = Gateway::start(&format!(
        r#"
        [upstreams.api]
        servers = ["{}"]
        [limits.per-client]
        key = "ip"
        rate = "5/min"
        [[routes]]
        path = "/{{*rest}}"
        upstream = "api"
        limits = ["per-client"]
        "#,
        upstream.url()
    ));
    let statuses: Vec<u16> = (0..8).map(|_| gateway.get("/").status).collect();
    assert_eq!(statuses, [200, 200, 200, 200, 200, 429, 429, 429]);
    assert_eq!(upstream.count(), 5);
}
