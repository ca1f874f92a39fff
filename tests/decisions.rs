//! The listener for other proxies, which keep their traffic and ask whether limits admit it.

mod authorization;
mod envoy;
mod forward_auth;
mod go;
mod listener;
mod observed;
mod proxies;
mod ratelimit;
mod rates;
mod reference;
mod reports;
mod rls;
mod scenarios;
mod xds;

use std::net::SocketAddr;

use crate::harness::{
    client::{Answer, Client},
    gateway::Gateway,
    upstream::Upstream,
};

/// A gateway that answers other proxies.
pub(crate) struct Decider {
    gateway: Gateway,
    address: SocketAddr,
}

impl Decider {
    /// Starts a gateway with these keys of `[decisions]` and the rest of a configuration.
    pub(crate) fn start(keys: &str, rest: &str) -> Self {
        let toml = format!("[decisions]\nlisten = \"127.0.0.1:0\"\n{keys}\n{rest}");
        let gateway = Gateway::start(&toml);
        let address = address(&gateway);
        Self { gateway, address }
    }

    /// Returns the answer to a call as [`Client::ask`] takes it, on a connection of its own.
    pub(crate) fn ask(&self, call: &str) -> Answer {
        Client::connect(self.address).ask(call)
    }
}

/// Returns the address on which a gateway answers other proxies.
fn address(gateway: &Gateway) -> SocketAddr {
    let (_, address) = gateway.greeting().split_once("decisions for other proxies: ").unwrap();
    address.lines().next().unwrap().parse().unwrap()
}

/// Returns the port of an upstream.
fn port_of(upstream: &Upstream) -> u16 {
    upstream.url().rsplit(':').next().unwrap().trim_end_matches('/').parse().unwrap()
}

/// Returns a configuration of the documents with these ports of the gateway that decides, the upstream and the proxy.
fn with_ports(text: &str, decider: u16, upstream: u16, proxy: u16) -> String {
    let ports = [("8081", decider), ("3000", upstream), ("8000", proxy)];
    // A new one may contain an old one.
    let marked = ports.iter().fold(text.to_owned(), |text, (old, _)| text.replace(old, &format!("<{old}>")));
    ports.iter().fold(marked, |text, (old, new)| text.replace(&format!("<{old}>"), &new.to_string()))
}

/// A limit of three requests an hour and client, and a route that has it.
const THREE: &str = "[limits.per-client]\nkey = \"ip\"\nrate = \"3/h\"\n\
    [[routes]]\npath = \"/api/{*rest}\"\nrespond = { status = 204 }\nlimits = [\"per-client\"]\n";
