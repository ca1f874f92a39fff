//! The gateway as a reverse proxy: what goes on to the upstream, and what comes back.

#![allow(clippy::unwrap_used, reason = "a test fails by it")]

#[allow(dead_code)] // Each test target uses a part of it.
mod harness;

mod proxy {
    mod reloading;
    mod routing;
    mod upstreams {
        mod balancing;
        mod connecting;
        mod ejecting;
        mod http2;
        mod probing;
        mod retrying;
        mod timing_out;
        mod tls;
    }
}

/// A configuration that sends all requests to an upstream `api` with these servers, as the file takes them, and
/// these further keys. It ends with the route's table, so that what follows belongs to that.
fn forward_to(servers: &[String], keys: &str) -> String {
    format!(
        "[upstreams.api]\nservers = [{}]\n{keys}\n\
         [[routes]]\npath = \"/{{*rest}}\"\nupstream = \"api\"\n",
        servers.join(", ")
    )
}

/// A server as the file takes it.
fn quoted(url: impl std::fmt::Display) -> String {
    format!("\"{url}\"")
}
