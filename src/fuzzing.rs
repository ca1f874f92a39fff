//! Properties that hold for whatever bytes come: what cargo-fuzz looks for exceptions to (fuzz/), and `cargo test` tries
//! on its corpora and some thousand mutations of them. Built for these two alone.
//!
//! A property is a function of bytes that panics where it doesn't hold. None holds only because of the input: bytes
//! that aren't text are read as text as far as they are, and what can't be a request is none.

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
    messages::answer,
    proxy_protocol::proxy_protocol,
    requests::{cost, fields, forwarded, path, target},
    texts::{rate, route, url},
};
use crate::config::Config;

/// A property of bytes.
pub type Property = fn(&[u8]);

/// All of them, by the names of their corpora.
pub const PROPERTIES: [(&str, Property); 18] = [
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
    ("route", route),
    ("target", target),
    ("toml", toml),
    ("url", url),
];

/// Its lines, the first so many by themselves and the rest as they are.
fn parts<const N: usize>(bytes: &[u8]) -> [&[u8]; N] {
    let mut parts = bytes.splitn(N, |byte| *byte == b'\n');
    std::array::from_fn(|_| parts.next().unwrap_or_default())
}

/// A configuration whose text is good.
fn config(text: &str) -> Config {
    let read = Config::parse("gateway.toml", text, &|_| None);
    read.unwrap_or_else(|faults| panic!("{faults}")).0
}

/// The fields that these lines are, as far as they are any.
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
