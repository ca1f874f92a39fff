//! The header fields that tell clients about their limits: RateLimit, the legacy ones, and Retry-After.
//!
//! The first are those of draft-ietf-httpapi-ratelimit-headers-11, lists of strings with parameters
//! (RFC 9651): `RateLimit-Policy: "per-client";q=100;w=10` and `RateLimit: "per-client";r=42;t=7`.

use bytes::Bytes;
use http::{
    HeaderMap,
    header::{HeaderName, HeaderValue, RETRY_AFTER},
};

use crate::{
    admission::Limited,
    algorithm::Algorithm,
    limit::policy_of,
    settings::RatelimitHeaders,
    standing::{Standing, tightest_of_each},
    text,
};

const POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");
const RATELIMIT: HeaderName = HeaderName::from_static("ratelimit");
const LEGACY_LIMIT: HeaderName = HeaderName::from_static("x-ratelimit-limit");
const LEGACY_REMAINING: HeaderName = HeaderName::from_static("x-ratelimit-remaining");
const LEGACY_RESET: HeaderName = HeaderName::from_static("x-ratelimit-reset");
const RETRY_AFTER_MS: HeaderName = HeaderName::from_static("retry-after-ms");

/// A place to write fields: a map, or the lines of an HTTP/1.1 head, which cost less, but can't be changed later.
///
/// # Examples
///
/// ```
/// use http::{HeaderMap, header::VARY};
/// use tollgate_limiter::fields::{Fields, Value};
///
/// let (mut map, mut lines) = (HeaderMap::new(), Vec::new());
/// Fields::append(&mut map, VARY, Value::Text("origin".to_owned()));
/// Fields::append(&mut lines, VARY, Value::Text("origin".to_owned()));
/// assert_eq!((map[VARY].as_bytes(), &lines[..]), (&b"origin"[..], &b"vary: origin\r\n"[..]));
/// ```
pub trait Fields {
    /// Puts a field behind those of its name.
    fn append(&mut self, name: HeaderName, value: Value<'_>);
    /// Puts a field in place of those of its name. In lines there are none yet.
    fn insert(&mut self, name: HeaderName, value: Value<'_>);
}

/// The value of a field.
///
/// # Examples
///
/// ```
/// use http::{HeaderMap, header::AGE};
/// use tollgate_limiter::fields::{Fields, Value};
///
/// let mut headers = HeaderMap::new();
/// Fields::insert(&mut headers, AGE, Value::Number(7));
/// assert_eq!(headers[AGE], "7");
/// ```
#[derive(Debug)]
pub enum Value<'v> {
    /// A value that exists.
    Ready(&'v HeaderValue),
    /// Visible ASCII.
    Text(String),
    /// A number.
    Number(u64),
}

impl Fields for HeaderMap {
    fn append(&mut self, name: HeaderName, value: Value<'_>) {
        self.append(name, value.into());
    }

    fn insert(&mut self, name: HeaderName, value: Value<'_>) {
        self.insert(name, value.into());
    }
}

impl Fields for Vec<u8> {
    // Inlined, because most names are constants.
    #[inline(always)]
    fn append(&mut self, name: HeaderName, value: Value<'_>) {
        self.extend_from_slice(name.as_str().as_bytes());
        self.extend_from_slice(b": ");
        match value {
            Value::Ready(value) => self.extend_from_slice(value.as_bytes()),
            Value::Text(text) => {
                debug_assert!(text.bytes().all(|byte| byte == b' ' || byte.is_ascii_graphic()), "{text:?}");
                self.extend_from_slice(text.as_bytes());
            }
            Value::Number(number) => self.extend_from_slice(itoa::Buffer::new().format(number).as_bytes()),
        }
        self.extend_from_slice(b"\r\n");
    }

    #[inline(always)]
    fn insert(&mut self, name: HeaderName, value: Value<'_>) {
        Fields::append(self, name, value);
    }
}

impl From<Value<'_>> for HeaderValue {
    fn from(value: Value<'_>) -> Self {
        let mut value = match value {
            Value::Ready(value) => return value.clone(),
            Value::Text(text) => Self::from_maybe_shared(Bytes::from(text)).expect("it is visible ASCII"),
            // In one allocation, where `From` takes two.
            Value::Number(number) => {
                Self::from_str(itoa::Buffer::new().format(number)).expect("digits are visible ASCII")
            }
        };
        // The next response has another one. HPACK would put it into its table, in the place of fields that come again (RFC 7541,
        // section 7.1.3).
        value.set_sensitive(true);
        value
    }
}

/// Writes the fields of the limits that were asked. What upstream said of its own limits in the
/// fields of the draft stays; its legacy ones are replaced.
///
/// # Examples
///
/// ```
/// # use std::sync::Arc;
/// # use http::HeaderMap;
/// # use tollgate_limiter::{Ask, Limit, Limiter, Rate, RatelimitHeaders, fields};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let limiter = Limiter::connect("memory:")?;
/// # let logins = Arc::new(Limit::new("logins", "5/min".parse::<Rate>()?));
/// let admission = limiter.try_acquire(Ask::new(&logins, "alice")).await?;
/// let mut headers = HeaderMap::new();
/// fields::write(&mut headers, admission.standings(), RatelimitHeaders::Draft11);
/// assert_eq!(headers["ratelimit-policy"], "\"logins\";q=5;w=60");
/// # Ok(())
/// # }
/// ```
pub fn write(fields: &mut impl Fields, standings: &[Standing], form: RatelimitHeaders) {
    // What can never be admitted wasn't asked for.
    let is_shown = |standing: &&Standing| {
        let is_known = standing.remaining().is_some() && standing.outcome.delay_us.is_some();
        is_known && !standing.limit.shadows()
    };
    let shown = || tightest_of_each(standings).filter(is_shown);
    let mut first_two = shown();
    let (Some(first), second) = (first_two.next(), first_two.next()) else { return };
    if matches!(form, RatelimitHeaders::Draft11 | RatelimitHeaders::Both) {
        let is_usual = second.is_none() && first.quota == first.limit.quota;
        let policy = match is_usual {
            true => Value::Ready(&first.limit.policy),
            false => {
                Value::Text(list(shown().map(|standing| policy_of(&standing.limit.name, standing.quota))))
            }
        };
        fields.append(POLICY, policy);
        fields.append(RATELIMIT, Value::Text(list(shown().map(state))));
    }
    if matches!(form, RatelimitHeaders::XRatelimit | RatelimitHeaders::Both) {
        // The legacy form has place for one.
        let tightest = shown().max_by(|left, right| left.tightness().total_cmp(&right.tightness()));
        let tightest = tightest.expect("there is one to show");
        let reset_us = match tightest.outcome.delay_us {
            Some(0) | None => tightest.outcome.grow_us,
            Some(delay_us) => delay_us,
        };
        fields.insert(LEGACY_LIMIT, Value::Number(tightest.quota.permits.into()));
        fields.insert(LEGACY_REMAINING, Value::Number(tightest.outcome.remaining));
        fields.insert(LEGACY_RESET, Value::Number(reset_us.div_ceil(1_000_000)));
    }
}

/// Writes when to come back: whole seconds, never rounded down, and exact milliseconds, if the delay is.
///
/// # Examples
///
/// ```
/// # use std::sync::Arc;
/// # use http::HeaderMap;
/// # use tollgate_limiter::{Ask, Limit, Limiter, Rate, Refusal, fields};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let limiter = Limiter::connect("memory:")?;
/// # let logins = Arc::new(Limit::new("logins", "5/min".parse::<Rate>()?));
/// let alice = Ask::new(&logins, "alice").cost(5);
/// limiter.try_acquire(&alice).await?;
/// let Err(Refusal::Limited(limited)) = limiter.try_acquire(&alice).await else { panic!("five a minute") };
/// let mut headers = HeaderMap::new();
/// fields::write_retry_after(&mut headers, &limited);
/// assert!(headers.contains_key("retry-after"));
/// # Ok(())
/// # }
/// ```
pub fn write_retry_after(fields: &mut impl Fields, limited: &Limited) {
    let Some(delay_us) = limited.delay_us() else { return };
    fields.insert(RETRY_AFTER, Value::Number(delay_us.div_ceil(1_000_000).max(1)));
    if limited.is_exact() {
        fields.insert(RETRY_AFTER_MS, Value::Number(delay_us.div_ceil(1_000)));
    }
}

fn state(Standing { limit, quota, outcome, .. }: &Standing) -> String {
    let [mut remaining, mut reset] = [itoa::Buffer::new(); 2];
    let remaining = remaining.format(outcome.remaining);
    if quota.algorithm == Algorithm::Concurrency || !quota.window_us.is_multiple_of(1_000_000) {
        return text::concat(["\"", &limit.name, "\";r=", remaining]);
    }
    let reset = reset.format(outcome.grow_us.div_ceil(1_000_000));
    text::concat(["\"", &limit.name, "\";r=", remaining, ";t=", reset])
}

/// A list with these members.
fn list(mut members: impl Iterator<Item = String>) -> String {
    let mut list = members.next().unwrap_or_default();
    members.for_each(|member| list.extend([", ", &member]));
    list
}
