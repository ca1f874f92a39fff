//! The same limits on every kind of Redis: by a socket, with TLS, as a user with few rights, through Sentinels,
//! and on a Cluster; also while servers fail, move slots, or take over.

pub(crate) mod across;
mod channel;
mod cluster;
mod login;
mod replicas;
mod rights;
mod sentinel;
mod server;

use crate::harness::{gateway::Gateway, wait_until};

/// Returns a configuration: five an hour for each `x-key`, and 503 if the store can't answer.
fn by_key(store: &str) -> String {
    format!(
        r#"
        [store]
        {store}
        timeout = "1s"
        on_failure = "deny"
        [server]
        workers = 2
        [limits.per-key]
        key = "header:x-key"
        plain = true
        rate = "5/h"
        [[routes]]
        path = "/"
        respond = {{ status = 200 }}
        limits = ["per-key"]
        "#
    )
}

/// Starts a gateway with this configuration of [`by_key`], and waits until its store decides. A gateway starts without its store if
/// connecting takes too long, as a TLS handshake does on a busy machine.
fn start_with_store(toml: &str) -> Gateway {
    let gateway = Gateway::start(toml);
    await_store(&gateway, "before");
    gateway
}

/// Waits until the store decides for this key.
fn await_store(gateway: &Gateway, key: &str) {
    wait_until("the store decides", || ask(gateway, key) != 503);
}

fn ask(gateway: &Gateway, key: &str) -> u16 {
    gateway.ask(&format!("GET /\nx-key: {key}")).status
}

/// Asserts that five of eight requests are admitted, whichever gateway gets them.
fn assert_five_pass(gateways: &[&Gateway], key: &str) {
    let statuses: Vec<u16> = (0..8).map(|turn| ask(gateways[turn % gateways.len()], key)).collect();
    assert_eq!(statuses, [200, 200, 200, 200, 200, 429, 429, 429], "{}", gateways[0].log());
}
