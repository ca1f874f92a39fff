//! The settings of the store.

use std::time::Duration;

use super::{
    ClientTls, RedisUrl, check,
    document::Document,
    file,
    value::{FromText, ParsedText},
};

/// The settings of the store that holds the counts.
#[derive(Debug, PartialEq)]
pub struct StoreSettings {
    /// The store's URL.
    pub url: StoreUrl,
    /// The TLS settings for Redis. `None` if the URL doesn't ask for TLS.
    pub tls: Option<ClientTls>,
    /// The deadline of a decision, from the request's arrival to the answer.
    pub timeout: Duration,
    /// The failure policy for limits that don't set their own.
    pub on_failure: OnFailure,
    /// The number of gateways that share the limits, at least 1.
    pub instances: u32,
    /// True if a decision counts only once all replicas of the server have it.
    pub replicated: bool,
    /// The prefix of all keys in the store. Never empty.
    pub key_prefix: String,
    /// The memory limit for counts kept in this process, in bytes.
    pub max_memory: usize,
}

impl StoreSettings {
    /// Returns the settings for a store URL, with defaults for everything else.
    ///
    /// # Errors
    /// The URL is invalid. The text is a message, without the URL's password, and a line that says how to fix
    /// it.
    pub fn at(url: &str) -> Result<Self, String> {
        let mut document = Document::parse("");
        let store = file::StoreTable { url: ParsedText(StoreUrl::read(url)?), ..file::StoreTable::default() };
        let store = check::store(store, &mut document);
        match document.faults.pop() {
            Some(fault) => Err([fault.message, fault.help.join("\n")].join("\n")),
            None => Ok(store),
        }
    }
}

/// The kind and place of a store.
#[derive(Debug, PartialEq, Eq)]
pub enum StoreUrl {
    /// The memory of this process.
    Memory,
    /// A Redis server, Cluster or Sentinel setup.
    Redis(Box<RedisUrl>),
}

/// The failure policy: what to do with a request while the store is unavailable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnFailure {
    /// Count in this process, against this gateway's share of the limit.
    Local,
    /// Allow the request.
    Allow,
    /// Reject the request with 503.
    Deny,
}
