//! The claims of a request's token, once it is verified.
//!
//! A client could write any claim into an unverified token, and use up another client's limit. A token is verified only by keys
//! that are configured for its algorithm. So it can't choose `none`, or have a public key used as an HMAC secret. It must say when
//! it expires.

mod claims;
mod fetched;
mod lenient;

use std::{
    str,
    sync::Arc,
    time::{SystemTime, UNIX_EPOCH},
};

use jsonwebtoken::{Algorithm, DecodingKey, Validation, decode, decode_header, errors::ErrorKind};
use serde_json::{Map, Value};

use crate::config::{self, JwtKey};

pub use self::claims::Claims;
pub(crate) use self::fetched::FetchedKeys;

use self::lenient::{may_be_shorter, rewritten};

/// The longest token in bytes that is verified.
const LONGEST_TOKEN: usize = 8 << 10;
/// The most keys that are tried for a token. Several may fit one that doesn't name its key.
const MOST_TRIED: usize = 4;
/// The difference between clocks that is tolerated.
const LEEWAY_SECONDS: u64 = 30;
/// The difference that some servers tolerate: Spring Security a minute, ASP.NET Core five. The claims count within it.
const LENIENT_LEEWAY_SECONDS: u64 = 300;

/// The effort that may still be made to find the token of a request.
struct Effort {
    /// The signatures that are checked; those of P-384 count as three.
    checks: usize,
    /// The bytes of texts that aren't valid, in each of which lenient decoders read up to ten tokens.
    bytes: usize,
}

impl Effort {
    /// That for a request.
    const MOST: Self = Self { checks: 12, bytes: 24 << 10 };
}

/// Verifies tokens as the configuration says.
#[derive(Debug)]
pub struct Verifier(KeySource);

/// The source of the keys.
#[derive(Debug)]
enum KeySource {
    Fixed(Arc<Vec<VerificationKey>>),
    Fetched(Arc<FetchedKeys>),
}

#[derive(Debug)]
struct VerificationKey {
    id: Option<String>,
    decoding: DecodingKey,
    validation: Validation,
}

impl VerificationKey {
    fn new(settings: &config::JwtSettings, key: &JwtKey) -> Self {
        Self {
            id: key.id().map(str::to_owned),
            decoding: key.decoding().clone(),
            validation: validation(settings, key),
        }
    }
}

impl Verifier {
    /// Creates the verifier of a configuration. Keys that the one `before` has fetched from the same URL are kept until they are
    /// fetched again.
    pub fn new(settings: &Arc<config::JwtSettings>, before: Option<&Self>) -> Self {
        Self(match &settings.published {
            None => {
                let keys = settings.keys.iter().map(|key| VerificationKey::new(settings, key));
                KeySource::Fixed(Arc::new(keys.collect()))
            }
            Some(url) => {
                let before = before.and_then(Self::fetched).filter(|before| before.url().is_same_place(url));
                KeySource::Fetched(FetchedKeys::new(settings, url, before))
            }
        })
    }

    /// Returns the keys that are fetched. `None` if the configuration has all keys.
    pub(crate) fn fetched(&self) -> Option<&Arc<FetchedKeys>> {
        match &self.0 {
            KeySource::Fixed(_) => None,
            KeySource::Fetched(keys) => Some(keys),
        }
    }

    /// Verifies a token, or else what lenient decoders read in it, as far as what is `left` allows it.
    fn verify_leniently(&self, token: &[u8], left: &mut Effort) -> Verified {
        let verify = |token: &str, left: &mut Effort| self.verify(token, &mut left.checks);
        let mut verified = str::from_utf8(token).map_or(NO_TOKEN, |token| verify(token, left));
        if matches!(verified, Verified::Valid { .. } | Verified::WithoutKeys | Verified::Several) {
            return verified;
        }
        if token.len() > LONGEST_TOKEN && !may_be_shorter(token) {
            return verified;
        }
        let Some(fewer) = left.bytes.checked_sub(token.len()) else { return Verified::Several };
        left.bytes = fewer;
        for token in rewritten(token) {
            match verify(&token, left) {
                Verified::Valid { claims, .. } => return Verified::Valid { claims, flaw: Some(NOT_BEARER) },
                Verified::Several => return Verified::Several,
                // Other keys may be fetched, by which it is valid.
                unknown @ (Verified::KeyUnknown | Verified::WithoutKeys) => verified = unknown,
                _ => {}
            }
        }
        verified
    }

    /// Verifies a token, and counts its checks down from those that are `left`.
    fn verify(&self, token: &str, left: &mut usize) -> Verified {
        if token.len() > LONGEST_TOKEN {
            return Verified::Invalid("it is too long");
        }
        // What it says of itself only chooses among the keys.
        let Ok(header) = decode_header(token) else {
            return NO_TOKEN;
        };
        if header.crit.is_some() {
            // A critical header that isn't understood must be refused (RFC 7515, section 4.1.11).
            return Verified::Invalid("its header has extensions that aren't supported (`crit`)");
        }
        let keys = match &self.0 {
            KeySource::Fixed(keys) => keys.clone(),
            KeySource::Fetched(fetched) => match fetched.keys() {
                Some(keys) => keys,
                None => return Verified::WithoutKeys,
            },
        };
        let is_named =
            |key: &VerificationKey| key.id.is_none() || header.kid.is_none() || key.id == header.kid;
        let fits = |key: &&VerificationKey| key.validation.algorithms.contains(&header.alg) && is_named(key);
        // By a key of P-384, a check takes three times as long as by one of P-256, and longer than by any other.
        let cost = if header.alg == Algorithm::ES384 { 3 } else { 1 };
        let mut fault = None;
        for key in keys.iter().filter(fits).take(MOST_TRIED) {
            let Some(fewer) = left.checked_sub(cost) else { return Verified::Several };
            *left = fewer;
            match decode(token, &key.decoding, &key.validation) {
                Ok(token) => return Verified::Valid { flaw: untimely(&token.claims), claims: token.claims },
                // Only the key that signed a token tells what else is wrong with it.
                Err(error) if fault.is_some() && *error.kind() == ErrorKind::InvalidSignature => {}
                Err(error) => fault = Some(reason(error.kind())),
            }
        }
        if header.kid.is_some() && keys.iter().all(|key| key.id != header.kid) {
            return Verified::KeyUnknown;
        }
        Verified::Invalid(fault.unwrap_or("no key of [jwt] is for its algorithm and key ID"))
    }
}

/// Returns the reason why a token isn't valid.
fn reason(error: &ErrorKind) -> &'static str {
    match error {
        ErrorKind::InvalidSignature => "another key signed it",
        ErrorKind::ExpiredSignature => EXPIRED,
        ErrorKind::ImmatureSignature => NOT_YET_VALID,
        ErrorKind::InvalidIssuer => "its issuer (`iss`) isn't one of jwt.issuer",
        ErrorKind::InvalidAudience => "its audience (`aud`) isn't one of jwt.audience",
        ErrorKind::MissingRequiredClaim(claim) => match claim.as_str() {
            "iss" => "it states no issuer (`iss`)",
            "aud" => "it states no audience (`aud`)",
            _ => "it doesn't say when it expires (`exp`)",
        },
        _ => "its claims can't be read",
    }
}

/// Returns the checks of a token that this key signed.
fn validation(config: &config::JwtSettings, key: &JwtKey) -> Validation {
    let mut validation = Validation {
        algorithms: key.algorithms().to_vec(),
        leeway: LENIENT_LEEWAY_SECONDS,
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

/// The outcome of looking for a valid token in a request.
#[derive(Debug)]
enum Verified {
    /// It bears one with these claims.
    Valid {
        /// The claims of the token.
        claims: Map<String, Value>,
        /// The reason why not all servers believe it. `None` if they do.
        flaw: Option<&'static str>,
    },
    /// It bears none.
    Missing,
    /// It bears one that isn't valid here and now, for this reason.
    Invalid(&'static str),
    /// It bears one that names a key that isn't known.
    KeyUnknown,
    /// It bears one, and the keys haven't been fetched yet.
    WithoutKeys,
    /// It bears two different ones, and servers may go by either, or too many texts that may be one.
    Several,
}

/// The verdict on a text that is no token.
const NO_TOKEN: Verified =
    Verified::Invalid("it is not a JWT, or has an algorithm that isn't supported (`alg`)");

/// The verdict on a token that isn't written as RFC 6750 and RFC 7515 say.
const NOT_BEARER: &str = "it isn't a bearer token in the usual spelling: Authorization: Bearer TOKEN";
const EXPIRED: &str = "it has expired (`exp`)";
const NOT_YET_VALID: &str = "it isn't valid yet (`nbf`)";

/// Returns why only lenient servers find that a token with these claims is valid now. `None` if all do.
fn untimely(claims: &Map<String, Value>) -> Option<&'static str> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
    let leeway = LEEWAY_SECONDS as f64;
    let time = |name| claims.get(name).and_then(Value::as_f64);
    let has_expired = time("exp").is_some_and(|end| end + leeway < now);
    let has_begun = time("nbf").is_none_or(|begin| begin - leeway <= now);
    match (has_expired, has_begun) {
        (true, _) => Some(EXPIRED),
        (false, false) => Some(NOT_YET_VALID),
        (false, true) => None,
    }
}

impl Verified {
    /// Returns the reason why the request doesn't bear what `require = "jwt"` demands. `None` if it does.
    fn fault(&self) -> Option<TokenFault> {
        match self {
            Self::Valid { flaw, .. } => flaw.map(TokenFault::Invalid),
            Self::Missing => Some(TokenFault::Missing),
            Self::Invalid(reason) => Some(TokenFault::Invalid(reason)),
            Self::KeyUnknown => Some(TokenFault::Invalid("it names a key that isn't known (`kid`)")),
            Self::WithoutKeys => Some(TokenFault::Unverified),
            Self::Several => Some(TokenFault::Invalid("it isn't the only one of the request")),
        }
    }
}

/// The reason why a request doesn't bear a token that all servers believe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TokenFault {
    /// It bears no token.
    Missing,
    /// It bears one that isn't valid here and now, for this reason, or two different ones.
    Invalid(&'static str),
    /// It bears one that can't be verified now.
    Unverified,
}
