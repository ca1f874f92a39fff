//! What a client is told of its limits: the RateLimit fields, the legacy ones, and Retry-After.
//!
//! The first are those of draft-ietf-httpapi-ratelimit-headers-11, lists of strings with parameters
//! (RFC 9651): `RateLimit-Policy: "per-client";q=100;w=10` and `RateLimit: "per-client";r=42;t=7`.

use bytes::Bytes;
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

/// What the two fields of the draft mostly take.
const DRAFT_BYTES: usize = 128;

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
        let mut both = String::with_capacity(DRAFT_BYTES);
        shown.clone().enumerate().for_each(|(at, standing)| write_policy(&mut both, at, standing));
        let policy = both.len();
        shown.clone().enumerate().for_each(|(at, standing)| write_state(&mut both, at, standing));
        let mut both = Bytes::from(both);
        headers.append(POLICY, value(both.split_to(policy)));
        headers.append(RATELIMIT, value(both));
    }
    if matches!(form, RatelimitHeaders::XRatelimit | RatelimitHeaders::Both) {
        let tightest = shown.max_by(|left, right| left.tightness().total_cmp(&right.tightness()));
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

fn write_policy(field: &mut String, at: usize, Standing { limit, quota, .. }: &Standing) {
    write_member(field, at, limit.name(), "\";q=", quota.permits.into());
    if quota.algorithm == Algorithm::Concurrency {
        field.push_str(";qu=\"concurrent-requests\"");
    } else if let Some(window) = quota.window_seconds() {
        field.extend([";w=", itoa::Buffer::new().format(window)]);
    }
}

fn write_state(field: &mut String, at: usize, Standing { limit, quota, outcome, .. }: &Standing) {
    write_member(field, at, limit.name(), "\";r=", outcome.remaining);
    if quota.algorithm != Algorithm::Concurrency && quota.window_seconds().is_some() {
        field.extend([";t=", itoa::Buffer::new().format(outcome.grow_us.div_ceil(1_000_000))]);
    }
}

/// The name of a limit in the list of them, and its first parameter.
fn write_member(field: &mut String, at: usize, name: &str, parameter: &str, value: u64) {
    let opening = if at == 0 { "\"" } else { ", \"" };
    field.extend([opening, name, parameter, itoa::Buffer::new().format(value)]);
}

fn value(text: Bytes) -> HeaderValue {
    HeaderValue::from_maybe_shared(text).expect("names and numbers are visible ASCII")
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
