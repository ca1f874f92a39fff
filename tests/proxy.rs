//! The gateway as a reverse proxy: what goes on to the upstream, and what comes back.

mod backlog;
mod clients;
mod events;
mod floods;
mod grpc;
mod http2;
mod listeners;
mod messages;
mod paths;
mod reloading;
mod routing;
mod streams;
mod tls;
mod websocket;
mod upstreams {
    mod balancing;
    mod connecting;
    mod ejecting;
    mod http2;
    mod probing;
    mod resolving;
    mod retrying;
    mod timing_out;
    mod tls;
}

use hyper::server::conn;
use hyper_util::rt::TokioExecutor;

use crate::harness::upstream::Speech;

/// A configuration that sends all requests to an upstream `api` with these servers, as the file takes them, and
/// these further keys. It ends with the route's table, so that what follows belongs to that.
fn forward_to(servers: &[String], keys: &str) -> String {
    format!(
        "[upstreams.api]\nservers = [{}]\n{keys}\n\
         [[routes]]\npath = \"/{{*rest}}\"\nupstream = \"api\"\n",
        servers.join(", ")
    )
}

/// A server that speaks HTTP/2 in cleartext.
fn cleartext_http2() -> Speech {
    Speech::Http2(conn::http2::Builder::new(TokioExecutor::new()))
}

/// What curl prints of an answer, `{address}` in its arguments being the gateway's.
fn curl(gateway: &crate::harness::gateway::Gateway, arguments: &[&str]) -> String {
    let address = gateway.address().to_string();
    let arguments = arguments.iter().map(|argument| argument.replace("{address}", &address));
    let mut curl = std::process::Command::new("curl");
    let output =
        curl.args(["--silent", "--show-error", "--max-time", "30"]).args(arguments).output().unwrap();
    let told = [&output.stdout[..], &output.stderr].concat();
    format!("{}{}", String::from_utf8(told).unwrap(), if output.status.success() { "" } else { "FAILED" })
}

/// A server as the file takes it.
fn quoted(url: impl std::fmt::Display) -> String {
    format!("\"{url}\"")
}
