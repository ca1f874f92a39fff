//! Traces: which requests are traced, what upstreams are told of it, and which spans a collector gets.

mod context;
mod export;
mod spans;

use std::net::TcpListener;

use crate::harness::gateway::Gateway;

/// A trace that somebody has begun, whose sampling is still to be said.
const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const PARENT: &str = "b7ad6b7169203331";

/// A traceparent with these flags.
fn traceparent(flags: &str) -> String {
    format!("00-{TRACE}-{PARENT}-{flags}")
}

/// A route that sends all requests to an upstream with these servers, and further keys of the route.
fn forward_to(servers: &[&str], keys: &str) -> String {
    format!(
        "[upstreams.api]\nservers = {servers:?}\n[[routes]]\nname = \"all\"\npath = \"/{{*rest}}\"\n\
         upstream = \"api\"\n{keys}"
    )
}

/// The url of a server that nobody reaches.
fn unreachable() -> String {
    let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    format!("http://{address}")
}

/// Where a gateway's operators turn to.
fn admin(gateway: &Gateway) -> String {
    let (_, admin) = gateway.greeting().split_once("dashboard: http://").unwrap();
    admin.lines().next().unwrap().to_owned()
}
