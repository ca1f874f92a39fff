//! The parts of an explanation, as JSON shows them.

use std::{net::IpAddr, ops::Not};

use serde::Serialize;

/// The route of a request and its limits, with reasons.
#[derive(Debug, Serialize)]
pub struct Explanation {
    /// The method.
    pub method: String,
    /// The host as routes see it. Empty if the request has none.
    pub host: String,
    /// The client's address, which limits count by.
    pub client: IpAddr,
    /// The address of the connection's other end. Behind a trusted proxy, it isn't the client's.
    pub peer: IpAddr,
    /// The path as it was sent.
    pub path: String,
    /// The path as it is forwarded: without dot segments.
    pub forwarded: String,
    /// The path on which routes are matched.
    pub matched: String,
    /// The other paths and routes that some servers read in it.
    pub readings: Vec<Reading>,
    /// The gateway's own response, if the request is rejected, or is a health check, before its limits decide.
    pub rejected: Option<Rejected>,
    /// The route, if one matches. Rejected requests may have one, too.
    pub route: Option<DescribedRoute>,
    /// The other routes in the order of the file, each with the reason why it isn't taken.
    pub others: Vec<UntakenRoute>,
    /// The limits of the route, and of the routes that other readings of the request take.
    pub limits: Vec<DescribedLimit>,
    /// The decision that the next identical request would get. `None` if the store wasn't asked.
    pub next: Option<NextDecision>,
}

/// A path that some servers read in the one that was sent, or the same with the route that they find for it. Its limits apply, too.
#[derive(Debug, Serialize)]
pub struct Reading {
    /// The path.
    pub path: String,
    /// The name of the route that takes it, if one does.
    pub route: Option<String>,
}

/// A response of the gateway's own.
#[derive(Debug, Serialize)]
pub struct Rejected {
    /// The status.
    pub status: u16,
    /// The code, as in the problem details.
    pub code: &'static str,
    /// The reason.
    pub detail: String,
}

/// The route of a request.
#[derive(Debug, Serialize)]
pub struct DescribedRoute {
    /// The name.
    pub name: String,
    /// The host, path and other conditions that it matches.
    pub matches: String,
    /// The upstream's name, if it has one.
    pub upstream: Option<String>,
    /// The target as the upstream gets it, or the location of a redirect.
    pub target: Option<String>,
    /// The status, if the route answers itself.
    pub responds: Option<u16>,
    /// The time limit of the whole exchange in milliseconds.
    pub timeout_ms: Option<u64>,
    /// The proof that requests must bear: `jwt`, if the route requires a valid token.
    pub requires: Option<&'static str>,
}

/// A route that isn't taken.
#[derive(Debug, Serialize)]
pub struct UntakenRoute {
    /// The name.
    pub name: String,
    /// The host, path and other conditions that it matches.
    pub matches: String,
    /// The reason why it isn't taken.
    pub reason: String,
}

/// A limit of the route.
#[derive(Debug, Serialize)]
pub struct DescribedLimit {
    /// The name.
    pub limit: String,
    /// The limit's treatment of the request: `counted`, `exempt`, `skipped` or `refused`.
    pub outcome: &'static str,
    /// The parts of the key, as in the file.
    pub counts_by: Vec<String>,
    /// The key as in the bucket's name: hashed if it may be a credential.
    pub key: Option<String>,
    /// The name that the limit's `keys_file` gives to the key.
    pub known_as: Option<String>,
    /// The entry of `exempt` that exempts the request, if one does: a network, or a key as in the bucket's name.
    pub exempted_by: Option<String>,
    /// The other keys that servers may read in the request. They are counted, too.
    pub other_keys: Vec<String>,
    /// The reason for the refusal, if `outcome` is `refused`.
    pub reason: Option<String>,
    /// The rate that applies to the key.
    pub rate: String,
    /// The rate's origin: the `limit`, the file's `overrides`, the `request` that states it, or `set` at run time.
    pub rate_from: &'static str,
    /// The algorithm.
    pub algorithm: &'static str,
    /// The clock by which it counts, if its windows are those of the calendar: `UTC`, or an offset from it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub calendar: Option<String>,
    /// The cost of the request, in words.
    pub cost: String,
    /// `shared` or `instance`.
    pub scope: &'static str,
    /// `enforce` or `shadow`.
    pub mode: &'static str,
    /// The treatment of requests that lack the key: `ip`, `skip` or `deny`.
    pub missing: &'static str,
    /// The bans of keys that are refused too often, in words.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ban: Option<String>,
    /// The treatment of requests whose key isn't in the limit's `keys_file`, if it has one: `ip` or `deny`.
    pub unknown: Option<&'static str>,
    /// The longest time that a request waits for room, if the limit has `wait`.
    pub wait_ms: Option<u64>,
    /// The decision while the store can't be asked: `local`, `allow` or `deny`.
    pub on_failure: &'static str,
    /// The current count of the key, if the store was asked.
    pub live: Option<Live>,
}

/// The current count of a key.
#[derive(Debug, Serialize)]
pub struct Live {
    /// Permits in use.
    pub used: u64,
    /// Permits left.
    pub remaining: u64,
    /// True if the request would be admitted now.
    pub admits: bool,
    /// The time until it would be. `None` if its cost never fits, or if the limit counts requests in flight.
    pub retry_after_ms: Option<u64>,
    /// The time until the ban of the key ends, if it is banned.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub banned_for_ms: Option<u64>,
    /// True if the client's network is counted instead of the key, because the limit has no memory for more keys.
    #[serde(skip_serializing_if = "Not::not")]
    pub by_network: bool,
}

/// The decision that the next identical request would get.
#[derive(Debug, Serialize)]
pub struct NextDecision {
    /// True if all limits admit it.
    pub admitted: bool,
    /// The limits that would refuse it.
    pub refused_by: Vec<String>,
    /// The reason why the decision isn't known, if the store can't answer.
    pub unknown: Option<String>,
}
