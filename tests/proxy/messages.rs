//! Forwarding of messages, byte for byte, in both directions.
//!
//! Both ends are raw sockets. The upstream records every request that it reads, so a smuggled request would be one of them.

mod cuts;
mod expectations;
mod fields;
mod framing;
mod hang_ups;
mod hints;
mod hosts;
mod http2;
mod sizes;
mod upstreams;

use std::sync::mpsc;

use crate::{
    harness::{
        PATIENCE,
        client::Client,
        gateway::Gateway,
        wire::{Wire, WireUpstream},
    },
    proxy::{forward_to, quoted},
};

const FINE: &str = "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n";
/// A path that is over its limit after the first request.
const LIMITED: &str = "[limits.l]\nkey = \"ip\"\nrate = \"1/h\"\n\
    [[routes]]\npath = \"/limited\"\nrespond = { status = 204 }\nlimits = [\"l\"]\n";

/// A gateway in front of an upstream that records what it gets and gives one answer to all.
struct Recording {
    gateway: Gateway,
    messages: mpsc::Receiver<String>,
}

impl Recording {
    fn start() -> Self {
        Self::answering(FINE, "")
    }

    /// With this `[server]`, or other tables.
    fn with(toml: &str) -> Self {
        Self::answering(FINE, toml)
    }

    fn answering(answer: impl Into<String>, toml: &str) -> Self {
        let answer = answer.into();
        let (seen, messages) = mpsc::channel();
        let upstream = WireUpstream::start(move |mut wire: Wire| {
            while let Some(message) = wire.message() {
                seen.send(message).unwrap();
                wire.send(answer.as_bytes());
            }
        });
        let gateway = Gateway::start(&format!("{toml}\n{}", forward_to(&[quoted(upstream.url())], "")));
        Self { gateway, messages }
    }

    /// What a client gets that sends these bytes, and no more.
    fn told(&self, request: impl AsRef<[u8]>) -> Client {
        let mut client = self.gateway.client();
        client.send(request.as_ref());
        client
    }

    /// What the upstream gets.
    fn message(&self) -> String {
        self.messages.recv_timeout(PATIENCE).expect("a request reaches the upstream")
    }

    /// Asserts that nothing has reached the upstream but a request that is sent now.
    fn assert_nothing_else(&self) {
        assert_eq!(self.gateway.get("/the-only-one").status, 200);
        let message = self.message();
        assert!(message.starts_with("GET /the-only-one HTTP/1.1\r\n"), "{message:?}");
    }
}

/// The lines of a field, in a message or its trailers, in whatever case.
fn lines<'m>(message: &'m str, name: &str) -> Vec<&'m str> {
    let fields = message.split("\r\n").skip(1).filter_map(|line| line.split_once(':'));
    fields.filter(|(other, _)| other.eq_ignore_ascii_case(name)).map(|(_, value)| value.trim()).collect()
}

/// The body of a message, as it is framed.
fn body(message: &str) -> &str {
    message.split_once("\r\n\r\n").expect("a message has a head").1
}
