//! Properties that hold for any bytes. cargo-fuzz searches for exceptions to them (fuzz/), and `cargo test`
//! tries them on the corpora and on thousands of mutations. The module is built for these two only.
//!
//! A property is a function of bytes that panics where it doesn't hold. Invalid input is no exception: bytes
//! that aren't text are converted as far as possible, and input that can't become a request is ignored.

mod admin;
mod answers;
mod file;
mod keys;
mod logs;
mod messages;
mod proxy_protocol;
mod requests;
#[cfg(test)]
mod tests;
mod texts;

use hyper::{
    HeaderMap,
    header::{HeaderName, HeaderValue},
};

pub use self::{
    admin::admin,
    answers::{call, reply},
    file::toml,
    keys::{jwt, key},
    logs::{access_log, question},
    messages::{answer, requests},
    proxy_protocol::proxy_protocol,
    requests::{cost, fields, forwarded, path, target},
    texts::{rate, route, url},
};
use crate::config::Config;

/// A property of bytes.
pub type Property = fn(&[u8]);

/// The properties, by the names of their corpora.
pub const PROPERTIES: [(&str, Property); 19] = [
    ("access_log", access_log),
    ("admin", admin),
    ("answer", answer),
    ("call", call),
    ("cost", cost),
    ("fields", fields),
    ("forwarded", forwarded),
    ("jwt", jwt),
    ("key", key),
    ("path", path),
    ("proxy_protocol", proxy_protocol),
    ("question", question),
    ("rate", rate),
    ("reply", reply),
    ("requests", requests),
    ("route", route),
    ("target", target),
    ("toml", toml),
    ("url", url),
];

/// Splits bytes into N parts: N - 1 lines, and the rest.
fn parts<const N: usize>(bytes: &[u8]) -> [&[u8]; N] {
    let mut parts = bytes.splitn(N, |byte| *byte == b'\n');
    std::array::from_fn(|_| parts.next().unwrap_or_default())
}

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
