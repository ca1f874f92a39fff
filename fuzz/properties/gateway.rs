//! Properties of the gateway that hold for any bytes. A module of the crate `tollgate`, so that it can use private items.
//! It is built for the two users of the properties only: cargo-fuzz searches for exceptions to them, and `cargo test` tries
//! them on the corpora and on thousands of mutations.
//!
//! A property is a function of bytes that panics where it doesn't hold. Invalid input is no exception: bytes
//! that aren't text are converted as far as possible, and input that can't become a request is ignored.

mod admin;
#[cfg(test)]
mod corpus;
mod explain;
mod file;
mod keys;
mod logs;
mod messages;
mod parts;
mod proxy_protocol;
mod requests;
mod rules;
mod texts;

use hyper::{
    HeaderMap,
    header::{HeaderName, HeaderValue},
};

use self::parts::parts;
pub use self::{
    admin::admin,
    explain::explain,
    file::toml,
    keys::{jwt, key},
    logs::{access_log, question},
    messages::{answer, requests},
    proxy_protocol::proxy_protocol,
    requests::{cost, fields, forwarded, path, target},
    rules::rules,
    texts::{rate, route, url},
};
use crate::config::Config;
pub use crate::decisions::{authorization, descriptors};

/// Parses a configuration that must be valid.
fn config(text: &str) -> Config {
    let read = Config::parse("gateway.toml", text, &|_| None);
    read.unwrap_or_else(|faults| panic!("{faults}")).0
}

/// Parses header fields, one per line. Invalid lines are ignored.
fn fields_of(lines: &[u8]) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for line in lines.split(|byte| *byte == b'\n') {
        let Some(colon) = line.iter().position(|byte| *byte == b':') else { continue };
        let (name, value) = (&line[..colon], line[colon + 1..].trim_ascii());
        if let (Ok(name), Ok(value)) = (HeaderName::from_bytes(name), HeaderValue::from_bytes(value)) {
            headers.append(name, value);
        }
    }
    headers
}

// The numbers of mutations that an unoptimized build tries in a few seconds.
#[cfg(test)]
corpus::tests! {
    access_log: 1_000
    admin: 2_000
    answer: 10_000
    authorization: 10_000
    cost: 20_000
    descriptors: 2_000
    explain: 2_000
    fields: 20_000
    forwarded: 20_000
    jwt: 20_000
    key: 20_000
    path: 20_000
    proxy_protocol: 5_000
    question: 2_000
    rate: 1_000
    requests: 10_000
    route: 20_000
    rules: 500
    target: 20_000
    toml: 2_000
    url: 10_000
}
