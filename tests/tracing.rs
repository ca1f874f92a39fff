//! Traces: sampling, propagation to upstreams, and the spans that a collector gets.

mod context;
mod export;
mod spans;

use crate::harness::{gateway::Gateway, redis::free_address};

/// The trace of a client, without the flags.
const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const PARENT: &str = "b7ad6b7169203331";

/// Returns a traceparent with these flags.
fn traceparent(flags: &str) -> String {
    format!("00-{TRACE}-{PARENT}-{flags}")
}

/// Returns a route that forwards all requests to an upstream with these servers, and additional keys of the route.
fn forward_to(servers: &[&str], keys: &str) -> String {
    format!(
        "[upstreams.api]\nservers = {servers:?}\n[[routes]]\nname = \"all\"\npath = \"/{{*rest}}\"\n\
         upstream = \"api\"\n{keys}"
    )
}

/// The URL of an unreachable server.
fn unreachable() -> String {
    format!("http://{}", free_address())
}

/// Returns the address of the admin port.
fn admin(gateway: &Gateway) -> String {
    let (_, admin) = gateway.greeting().split_once("dashboard: http://").unwrap();
    admin.lines().next().unwrap().to_owned()
}
