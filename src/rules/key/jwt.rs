//! The claims of the token that a request bears, once it is verified: any client could write
//! an unverified claim, and count for somebody else.
//!
//! A token is verified by keys that are for its algorithm, so that it can't choose how: `none` is the
//! algorithm of no key, and a public key is no HMAC's secret. It must say when it expires.

use std::{str, sync::OnceLock};

use hyper::{
    HeaderMap,
    header::{AUTHORIZATION, HeaderValue},
};
use jsonwebtoken::{DecodingKey, Validation, decode, decode_header};
use serde_json::{Map, Value};
use tollgate_limiter::key::credentials::scheme;

use super::{Several, credentials::credentials, single};
use crate::config;

/// Longer tokens aren't looked at.
const LONGEST_TOKEN: usize = 8 << 10;
/// Signatures that are tried for a token that doesn't name its key.
const MOST_TRIED: usize = 4;
/// The difference between clocks that is tolerated.
const LEEWAY_SECONDS: u64 = 30;

/// Verifies tokens as the configuration says.
#[derive(Debug)]
pub struct Verifier {
    keys: Vec<Key>,
}

#[derive(Debug)]
struct Key {
    id: Option<String>,
    decoding: DecodingKey,
    validation: Validation,
}

impl Verifier {
    /// Believes the tokens that the configuration says to believe.
    pub fn new(config: &config::JwtSettings) -> Self {
        let key = |key: &config::JwtKey| Key {
            id: key.id().map(str::to_owned),
            decoding: key.decoding().clone(),
            validation: validation(config, key),
        };
        Self { keys: config.keys.iter().map(key).collect() }
    }

    /// The claims of a token that is verified.
    fn claims(&self, token: &str) -> Option<Map<String, Value>> {
        // What it says of itself only chooses among the keys.
        let header = decode_header(token).ok()?;
        if header.crit.is_some() {
            // A critical header that isn't understood must be refused (RFC 7515, section 4.1.11).
            return None;
        }
        let is_named = |key: &Key| key.id.is_none() || header.kid.is_none() || key.id == header.kid;
        let fits = |key: &&Key| key.validation.algorithms.contains(&header.alg) && is_named(key);
        let mut keys = self.keys.iter().filter(fits).take(MOST_TRIED);
        keys.find_map(|key| decode(token, &key.decoding, &key.validation).ok()).map(|token| token.claims)
    }
}

/// Returns the checks of a token that this key signed.
fn validation(config: &config::JwtSettings, key: &config::JwtKey) -> Validation {
    let mut validation = Validation {
        algorithms: key.algorithms().to_vec(),
        leeway: LEEWAY_SECONDS,
        validate_nbf: true,
        validate_aud: !config.audiences.is_empty(),
        ..Validation::default()
    };
    let mut required = vec!["exp"];
    if !config.issuers.is_empty() {
        validation.set_issuer(&config.issuers);
        required.push("iss");
    }
    if !config.audiences.is_empty() {
        validation.set_audience(&config.audiences);
        required.push("aud");
    }
    validation.set_required_spec_claims(&required);
    validation
}

/// The reason why a request that needs a token has no claims.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TokenFault {
    /// It bears no token.
    Missing,
    /// It bears one that isn't valid here and now, or two different ones.
    Invalid,
}

/// The claims of a request's token. It is verified when the first of them is asked for, and once.
pub struct Claims<'r> {
    verifier: Option<&'r Verifier>,
    headers: &'r HeaderMap,
    verified: OnceLock<Result<Option<Map<String, Value>>, Several>>,
}

impl<'r> Claims<'r> {
    /// The claims of a request with this header. Without a verifier there are none.
    pub fn new(verifier: Option<&'r Verifier>, headers: &'r HeaderMap) -> Self {
        Self { verifier, headers, verified: OnceLock::new() }
    }

    /// A claim as text, if it is a string, a number or a boolean.
    pub(super) fn text(&self, name: &str) -> Result<Option<String>, Several> {
        let claims = self.verified.get_or_init(|| self.verify()).as_ref().map_err(|several| *several)?;
        Ok(claims.as_ref().and_then(|claims| match claims.get(name)? {
            Value::String(text) => Some(text.clone()),
            Value::Number(number) => Some(number.to_string()),
            Value::Bool(truth) => Some(truth.to_string()),
            _ => None,
        }))
    }

    /// Checks that the request bears a valid token. Without a verifier, as in a replay of a log, any request passes.
    ///
    /// # Errors
    /// It bears none, or an invalid one.
    pub(crate) fn require(&self) -> Result<(), TokenFault> {
        match self.verified.get_or_init(|| self.verify()) {
            Ok(Some(_)) => Ok(()),
            _ if self.verifier.is_none() => Ok(()),
            _ if self.lines().any(is_bearer) => Err(TokenFault::Invalid),
            _ => Err(TokenFault::Missing),
        }
    }

    fn lines(&self) -> impl Iterator<Item = &'r [u8]> {
        self.headers.get_all(AUTHORIZATION).into_iter().map(HeaderValue::as_bytes)
    }

    fn verify(&self) -> Result<Option<Map<String, Value>>, Several> {
        let sent = single(self.lines())?;
        let Some((sent, verifier)) = sent.filter(|sent| is_bearer(sent)).zip(self.verifier) else {
            return Ok(None);
        };
        let mut verified = None;
        for credentials in credentials(sent)?.into_values().iter().flatten() {
            let claims = bearer(credentials).and_then(|token| verifier.claims(token));
            match (&verified, claims) {
                (_, None) => {}
                (None, claims) => verified = claims,
                // Servers may go by either.
                (Some(one), Some(other)) if *one != other => return Err(Several),
                _ => {}
            }
        }
        Ok(verified)
    }
}

/// Returns true if credentials have the scheme of a bearer (RFC 6750, section 2.1).
fn is_bearer(sent: &[u8]) -> bool {
    scheme(sent).is_some_and(|(scheme, _)| scheme.eq_ignore_ascii_case(b"bearer"))
}

/// The token of a bearer's credentials in their usual form.
fn bearer(usual: &[u8]) -> Option<&str> {
    let token = str::from_utf8(usual).ok()?.strip_prefix("Bearer ")?;
    (token.len() <= LONGEST_TOKEN).then_some(token)
}
