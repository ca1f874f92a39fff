//! What a client is told of its limits: the RateLimit fields, the legacy ones, and Retry-After.
//!
//! The first are those of draft-ietf-httpapi-ratelimit-headers-11, lists of strings with parameters
//! (RFC 9651): `RateLimit-Policy: "per-client";q=100;w=10` and `RateLimit: "per-client";r=42;t=7`.

use bytes::Bytes;
use hyper::{
    HeaderMap,
    header::{HeaderName, HeaderValue, RETRY_AFTER},
};

use crate::{
    algorithm::{Algorithm, Quota},
    config::RatelimitHeaders,
    text,
};

use super::{Limited, Standing};

const POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");
const RATELIMIT: HeaderName = HeaderName::from_static("ratelimit");
const LEGACY_LIMIT: HeaderName = HeaderName::from_static("x-ratelimit-limit");
const LEGACY_REMAINING: HeaderName = HeaderName::from_static("x-ratelimit-remaining");
const LEGACY_RESET: HeaderName = HeaderName::from_static("x-ratelimit-reset");
const RETRY_AFTER_MS: HeaderName = HeaderName::from_static("retry-after-ms");

/// Writes the fields of the limits that were asked. What upstream said of its own limits in the
/// fields of the draft stays; its legacy ones are replaced.
pub fn write(headers: &mut HeaderMap, standings: &[Standing], form: RatelimitHeaders) {
    // What can never be admitted wasn't asked for.
    let is_shown = |standing: &&Standing| {
        let is_known = standing.remaining().is_some() && standing.outcome.delay_us.is_some();
        is_known && !standing.limit.shadows()
    };
    let shown = || standings.iter().filter(is_shown);
    let mut first_two = shown();
    let (Some(first), second) = (first_two.next(), first_two.next()) else { return };
    if matches!(form, RatelimitHeaders::Draft11 | RatelimitHeaders::Both) {
        let is_usual = second.is_none() && first.quota == first.limit.quota;
        let policy = match is_usual {
            true => first.limit.policy.clone(),
            false => list(shown().map(|standing| policy_of(&standing.limit.name, standing.quota))),
        };
        headers.append(POLICY, policy);
        headers.append(RATELIMIT, list(shown().map(state)));
    }
    if matches!(form, RatelimitHeaders::XRatelimit | RatelimitHeaders::Both) {
        let tightest = shown().max_by(|left, right| left.tightness().total_cmp(&right.tightness()));
        let tightest = tightest.expect("there is one to show");
        let reset_us = match tightest.outcome.delay_us {
            Some(0) | None => tightest.outcome.grow_us,
            Some(delay_us) => delay_us,
        };
        headers.insert(LEGACY_LIMIT, number(tightest.quota.permits.into()));
        headers.insert(LEGACY_REMAINING, number(tightest.outcome.remaining));
        headers.insert(LEGACY_RESET, number(reset_us.div_ceil(1_000_000)));
    }
}

/// Writes when to come back: whole seconds, never rounded down, and exact milliseconds, if the delay is.
pub fn write_retry_after(headers: &mut HeaderMap, limited: &Limited) {
    let Some(delay_us) = limited.delay_us() else { return };
    headers.insert(RETRY_AFTER, number(delay_us.div_ceil(1_000_000).max(1)));
    if limited.is_exact() {
        headers.insert(RETRY_AFTER_MS, number(delay_us.div_ceil(1_000)));
    }
}

/// What the draft's field says of a limit alone, as long as its quota is this one.
pub(super) fn policy(name: &str, quota: Quota) -> HeaderValue {
    list([policy_of(name, quota)].into_iter())
}

fn policy_of(name: &str, quota: Quota) -> String {
    let [mut permits, mut window] = [itoa::Buffer::new(); 2];
    let permits = permits.format(quota.permits);
    match (quota.algorithm, quota.window_seconds()) {
        (Algorithm::Concurrency, _) => {
            text::concat(["\"", name, "\";q=", permits, ";qu=\"concurrent-requests\""])
        }
        (_, Some(seconds)) => text::concat(["\"", name, "\";q=", permits, ";w=", window.format(seconds)]),
        (_, None) => text::concat(["\"", name, "\";q=", permits]),
    }
}

fn state(Standing { limit, quota, outcome, .. }: &Standing) -> String {
    let [mut remaining, mut reset] = [itoa::Buffer::new(); 2];
    let remaining = remaining.format(outcome.remaining);
    if quota.algorithm == Algorithm::Concurrency || quota.window_seconds().is_none() {
        return text::concat(["\"", &limit.name, "\";r=", remaining]);
    }
    let reset = reset.format(outcome.grow_us.div_ceil(1_000_000));
    text::concat(["\"", &limit.name, "\";r=", remaining, ";t=", reset])
}

/// A list with these members.
fn list(mut members: impl Iterator<Item = String>) -> HeaderValue {
    let mut list = members.next().unwrap_or_default();
    members.for_each(|member| list.extend([", ", &member]));
    HeaderValue::from_maybe_shared(Bytes::from(list)).expect("names and numbers are visible ASCII")
}

/// In one allocation, where `From` takes two.
fn number(value: u64) -> HeaderValue {
    HeaderValue::from_str(itoa::Buffer::new().format(value)).expect("digits are visible ASCII")
}

impl Standing {
    /// Orders limits for the legacy form, which has place for one: of those that refused the one with
    /// the greatest delay, else the one with the smallest share left.
    fn tightness(&self) -> f64 {
        match self.outcome.delay_us {
            Some(0) => -(self.outcome.remaining as f64 / f64::from(self.quota.permits)),
            Some(delay_us) => delay_us as f64,
            None => f64::INFINITY,
        }
    }
}
