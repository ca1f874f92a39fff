//! What a client is told of its limits: the RateLimit fields, the legacy ones, and Retry-After.
//!
//! The first are those of draft-ietf-httpapi-ratelimit-headers-11, lists of strings with parameters
//! (RFC 9651): `RateLimit-Policy: "per-client";q=100;w=10` and `RateLimit: "per-client";r=42;t=7`.

use hyper::{
    HeaderMap,
    header::{HeaderName, HeaderValue, RETRY_AFTER},
};

use crate::{algorithm::Algorithm, config::RatelimitHeaders};

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
    let mut shown = standings.iter().filter(is_shown).peekable();
    if shown.peek().is_none() {
        return;
    }
    if matches!(form, RatelimitHeaders::Draft11 | RatelimitHeaders::Both) {
        let (mut policy, mut state) = (String::with_capacity(48), String::with_capacity(48));
        for standing in shown.clone() {
            write_draft(&mut policy, &mut state, standing);
        }
        headers.append(POLICY, value(policy));
        headers.append(RATELIMIT, value(state));
    }
    if matches!(form, RatelimitHeaders::XRatelimit | RatelimitHeaders::Both) {
        let tightest = shown.max_by(|left, right| left.tightness().total_cmp(&right.tightness()));
        let tightest = tightest.expect("there is one to show");
        let reset_us = match tightest.outcome.delay_us {
            Some(0) | None => tightest.outcome.grow_us,
            Some(delay_us) => delay_us,
        };
        headers.insert(LEGACY_LIMIT, tightest.quota.permits.into());
        headers.insert(LEGACY_REMAINING, tightest.outcome.remaining.into());
        headers.insert(LEGACY_RESET, reset_us.div_ceil(1_000_000).into());
    }
}

/// Writes when to come back: whole seconds, never rounded down, and exact milliseconds, if the delay is.
pub fn write_retry_after(headers: &mut HeaderMap, limited: &Limited) {
    let Some(delay_us) = limited.delay_us() else { return };
    headers.insert(RETRY_AFTER, delay_us.div_ceil(1_000_000).max(1).into());
    if limited.is_exact() {
        headers.insert(RETRY_AFTER_MS, delay_us.div_ceil(1_000).into());
    }
}

fn write_draft(policy: &mut String, state: &mut String, standing: &Standing) {
    let Standing { limit, quota, outcome, .. } = standing;
    for (field, parameter, value) in
        [(&mut *policy, "q", u64::from(quota.permits)), (&mut *state, "r", outcome.remaining)]
    {
        let separator = if field.is_empty() { "" } else { ", " };
        field.extend([separator, "\"", limit.name(), "\""]);
        write_parameter(field, parameter, value);
    }
    if quota.algorithm == Algorithm::Concurrency {
        policy.push_str(";qu=\"concurrent-requests\"");
    } else if let Some(window) = quota.window_seconds() {
        write_parameter(policy, "w", window);
        write_parameter(state, "t", outcome.grow_us.div_ceil(1_000_000));
    }
}

fn write_parameter(field: &mut String, name: &str, value: u64) {
    field.extend([";", name, "=", itoa::Buffer::new().format(value)]);
}

fn value(text: String) -> HeaderValue {
    HeaderValue::from_maybe_shared(bytes::Bytes::from(text)).expect("names and numbers are visible ASCII")
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
