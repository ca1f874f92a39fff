//! The gateway as a reverse proxy: forwarded requests and responses.

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
    mod failing;
    mod http2;
    mod probing;
    mod resolving;
    mod retrying;
    mod settings;
    mod timing_out;
    mod tls;
    mod uploads;
}

use hyper::server::conn;
use hyper_util::rt::TokioExecutor;

use crate::harness::upstream::Speech;

/// Returns a configuration that forwards all requests to an upstream `api` with these servers, in TOML, and these keys. It ends
/// with the table of the route, so appended keys belong to that.
fn forward_to(servers: &[String], keys: &str) -> String {
    format!(
        "[upstreams.api]\nservers = [{}]\n{keys}\n\
         [[routes]]\npath = \"/{{*rest}}\"\nupstream = \"api\"\n",
        servers.join(", ")
    )
}

/// Returns a cleartext HTTP/2 server.
fn cleartext_http2() -> Speech {
    Speech::Http2(conn::http2::Builder::new(TokioExecutor::new()))
}

/// Returns curl's output. `{address}` in its arguments is the gateway's address.
fn curl(gateway: &crate::harness::gateway::Gateway, arguments: &[&str]) -> String {
    let address = gateway.address().to_string();
    let arguments = arguments.iter().map(|argument| argument.replace("{address}", &address));
    let mut curl = std::process::Command::new("curl");
    let output =
        curl.args(["--silent", "--show-error", "--max-time", "30"]).args(arguments).output().unwrap();
    let told = [&output.stdout[..], &output.stderr].concat();
    format!("{}{}", String::from_utf8(told).unwrap(), if output.status.success() { "" } else { "FAILED" })
}

/// Returns a server in TOML.
fn quoted(url: impl std::fmt::Display) -> String {
    format!("\"{url}\"")
}
