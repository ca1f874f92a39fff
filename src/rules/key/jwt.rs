//! The claims of a request's token, once it is verified.
//!
//! A client could write any claim into an unverified token, and use up another client's limit. A token is verified only by keys
//! that are configured for its algorithm. So it can't choose `none`, or have a public key used as an HMAC secret. It must say when
//! it expires.

mod fetched;
mod lenient;

use std::{
    borrow::Cow,
    fmt, str,
    sync::{Arc, OnceLock},
    time::{SystemTime, UNIX_EPOCH},
};

use hyper::{HeaderMap, header::AUTHORIZATION};
use jsonwebtoken::{DecodingKey, Validation, decode, decode_header, errors::ErrorKind};
use serde_json::{Map, Value};
use tollgate_limiter::{
    Refusal,
    key::credentials::{BEARER, scheme},
};
use tollgate_routing::VerifiedClaims;

use super::{PartFault, single};
use crate::config::{self, JwtKey};

pub(crate) use self::fetched::FetchedKeys;

use self::lenient::{rewritten, tokens};

/// The longest token in bytes that is verified.
const LONGEST_TOKEN: usize = 8 << 10;
/// The most texts of a request that are verified as rewritten tokens.
const MOST_REWRITTEN: usize = 12;
/// The most keys that are tried for a token. Several may fit one that doesn't name its key.
const MOST_TRIED: usize = 4;
/// The difference between clocks that is tolerated.
const LEEWAY_SECONDS: u64 = 30;
/// The difference that some servers tolerate: Spring Security a minute, ASP.NET Core five. The claims count within it.
const LENIENT_LEEWAY_SECONDS: u64 = 300;

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

    /// Verifies a token, or else what lenient decoders read in it, of which at most `left` texts are verified.
    fn verify_leniently(&self, token: &[u8], left: &mut usize) -> Verified {
        let mut verified = str::from_utf8(token).map_or(NO_TOKEN, |token| self.verify(token));
        if matches!(verified, Verified::Valid { .. } | Verified::WithoutKeys) {
            return verified;
        }
        for token in rewritten(token) {
            let Some(fewer) = left.checked_sub(1) else { return Verified::Several };
            *left = fewer;
            match self.verify(&token) {
                Verified::Valid { claims, .. } => return Verified::Valid { claims, flaw: Some(NOT_BEARER) },
                // Other keys may be fetched, by which it is valid.
                unknown @ (Verified::KeyUnknown | Verified::WithoutKeys) => verified = unknown,
                _ => {}
            }
        }
        verified
    }

    /// Verifies a token.
    fn verify(&self, token: &str) -> Verified {
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
        let mut fault = None;
        for key in keys.iter().filter(fits).take(MOST_TRIED) {
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

/// The claims of a request's token. It is verified when the first of them is asked for, and once.
pub struct Claims<'r> {
    verifier: Option<&'r Verifier>,
    headers: &'r HeaderMap,
    verified: OnceLock<Verified>,
}

impl<'r> Claims<'r> {
    /// The claims of a request with this header. Without a verifier there are none.
    pub fn new(verifier: Option<&'r Verifier>, headers: &'r HeaderMap) -> Self {
        Self { verifier, headers, verified: OnceLock::new() }
    }

    /// A claim as text, if it is a string, a number or a boolean.
    pub(super) fn text(&self, name: &str) -> Result<Option<String>, PartFault> {
        let claims = match self.verified.get_or_init(|| self.verify()) {
            Verified::Valid { claims, .. } => claims,
            Verified::Several => return Err(PartFault::Several),
            Verified::WithoutKeys => return Err(PartFault::Unverified),
            Verified::Missing | Verified::Invalid(_) | Verified::KeyUnknown => return Ok(None),
        };
        Ok(claim(claims, name).and_then(text).map(Cow::into_owned))
    }

    /// Returns false if the request bears a valid token that not all servers believe.
    pub(super) fn are_usual(&self) -> bool {
        !matches!(self.verified.get(), Some(Verified::Valid { flaw: Some(_), .. }))
    }

    /// Checks that the request bears a valid token. Without a verifier, as in a replay of a log, any request passes.
    ///
    /// # Errors
    /// It bears none, or an invalid one.
    pub(crate) fn require(&self) -> Result<(), TokenFault> {
        match self.verified.get_or_init(|| self.verify()).fault() {
            Some(fault) if self.verifier.is_some() => Err(fault),
            _ => Ok(()),
        }
    }

    /// Returns true if a claim has been looked up.
    pub(crate) fn were_asked(&self) -> bool {
        self.verified.get().is_some()
    }

    /// Returns why the claims that were looked up aren't known, although the request bears a token: it can't be verified now, or
    /// servers may go by another one. `None` if they are known, or no claim was looked up.
    pub(crate) fn doubt(&self) -> Option<Refusal> {
        match self.verified.get()? {
            Verified::WithoutKeys => Some(Refusal::TokenUnverified),
            Verified::Several => Some(Refusal::KeyAmbiguous { part: "header:authorization".to_owned() }),
            _ => None,
        }
    }

    /// Returns a future that is ready when the keys that the token needs have been fetched. `None` if no claim was looked up, or no
    /// fetch can help.
    pub(crate) fn fetch(&self) -> Option<impl Future<Output = ()> + Send + use<>> {
        let is_key_unknown = match self.verified.get()? {
            Verified::KeyUnknown => true,
            Verified::WithoutKeys => false,
            _ => return None,
        };
        self.verifier?.fetched()?.next_fetch(is_key_unknown)
    }

    fn verify(&self) -> Verified {
        let Ok(sent) = single(self.headers, &AUTHORIZATION) else { return Verified::Several };
        let Some((sent, verifier)) = sent.zip(self.verifier) else { return Verified::Missing };
        // RFC 6750, section 2.1. But a server may look for a token behind any scheme.
        let bearer = scheme(sent).filter(|(scheme, _)| scheme.eq_ignore_ascii_case(BEARER));
        let usual = bearer.map(|(_, token)| token);
        let Ok(others) = tokens(sent, usual) else { return Verified::Several };
        let others = others.iter().map(|token| (&**token, Some(NOT_BEARER)));
        let mut verified = usual.map_or(Verified::Missing, |_| Verified::Invalid(NOT_BEARER));
        let mut left = MOST_REWRITTEN;
        for (token, spelling) in usual.map(|token| (token, None)).into_iter().chain(others) {
            let mut other = verifier.verify_leniently(token, &mut left);
            match &mut other {
                Verified::Valid { flaw, .. } => *flaw = spelling.or(*flaw),
                Verified::Several => return Verified::Several,
                _ => {}
            }
            match (&verified, other) {
                (Verified::Valid { claims: one, .. }, Verified::Valid { claims: other, .. })
                    if *one != other =>
                {
                    return Verified::Several;
                }
                (Verified::Valid { .. }, _)
                | (Verified::Missing | Verified::KeyUnknown | Verified::WithoutKeys, Verified::Invalid(_)) => {
                }
                (_, other) => verified = other,
            }
        }
        if let Some(TokenFault::Invalid(reason)) = verified.fault() {
            tracing::debug!("a token isn't valid: {reason}");
        }
        verified
    }
}

/// Compares claims as text. A request without a valid token has none.
impl VerifiedClaims for Claims<'_> {
    fn has(&self, name: &str, value: &str) -> bool {
        let verified = self.verified.get_or_init(|| self.verify());
        let Verified::Valid { claims, flaw: None } = verified else { return false };
        match claim(claims, name) {
            Some(Value::Array(members)) => {
                members.iter().any(|member| text(member).as_deref() == Some(value))
            }
            Some(claim) => text(claim).as_deref() == Some(value),
            None => false,
        }
    }
}

/// Leaves out the token and what it says.
impl fmt::Debug for Claims<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Claims").finish_non_exhaustive()
    }
}

/// Returns a claim. A name that begins with a slash is a JSON pointer to a nested one (RFC 6901), such as `/realm_access/roles`.
fn claim<'c>(claims: &'c Map<String, Value>, name: &str) -> Option<&'c Value> {
    let Some(path) = name.strip_prefix('/') else { return claims.get(name) };
    let (first, rest) = path.split_at(path.find('/').unwrap_or(path.len()));
    claims.get(&first.replace("~1", "/").replace("~0", "~"))?.pointer(rest)
}

/// Returns a claim as text, if it is a string, a number or a boolean.
fn text(claim: &Value) -> Option<Cow<'_, str>> {
    match claim {
        Value::String(text) => Some(Cow::Borrowed(text)),
        Value::Number(number) => Some(Cow::Owned(number.to_string())),
        Value::Bool(truth) => Some(Cow::Owned(truth.to_string())),
        _ => None,
    }
}
