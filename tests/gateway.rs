//! The gateway as its clients see it: the real binary, real sockets, real upstreams, a real Redis.

#![allow(clippy::unwrap_used, reason = "a test fails by it")]

#[allow(dead_code)] // Each test target uses a part of it.
mod harness;

mod decisions;
mod proxy;
mod tracing;

mod gateway {
    mod access_log;
    mod answers;
    mod bans;
    mod bodies;
    mod calendar;
    mod claims;
    mod concurrency;
    mod connections;
    mod cors;
    mod costs;
    mod headers;
    mod hostile;
    mod keys;
    mod known_keys;
    mod logs;
    mod overload;
    mod proxy_protocol;
    mod published_keys;
    mod refunds;
    mod rejections;
    mod repeats;
    mod request_ids;
    mod required;
    mod response_json;
    mod routes;
    mod stated_rates;
    mod tiers;
    mod tokens;
    mod waiting;
}

/// Returns a configuration that forwards all requests to an upstream with this URL and these keys. It ends with the table of
/// the route, so appended keys belong to that.
fn forward_all(url: &str, keys: &str) -> String {
    format!(
        "[upstreams.api]\nservers = [\"{url}\"]\n{keys}\n\
         [[routes]]\npath = \"/{{*rest}}\"\nupstream = \"api\"\n"
    )
}

/// Returns a configuration that responds to all requests itself, under a limit `l` with these keys.
fn limit_all(keys: &str) -> String {
    format!(
        "[limits.l]\n{keys}\n\
         [[routes]]\npath = \"/{{*rest}}\"\nrespond = {{ status = 200, body = \"in\" }}\nlimits = [\"l\"]\n"
    )
}
