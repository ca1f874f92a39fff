//! The trusted token issuers: the keys that verify a JWT's signature, and the accepted issuers and audiences.
//!
//! The key decides which signature algorithms are accepted, never the token.

use std::{fmt, sync::Arc, time::Duration};

use hyper::http::uri::PathAndQuery;
use jsonwebtoken::{
    Algorithm, DecodingKey,
    jwk::{AlgorithmParameters, EllipticCurve, Jwk, PublicKeyUse},
};
use serde::Deserialize;
use tollgate_limiter::ClientTls;

use super::ServerUrl;

/// The settings for verifying tokens.
#[derive(Debug, PartialEq)]
pub struct JwtSettings {
    /// The keys, one of which must have signed a token. At least one, unless an issuer publishes them.
    pub keys: Vec<JwtKey>,
    /// The URL at which an issuer publishes the keys instead.
    pub published: Option<Arc<JwksUrl>>,
    /// The accepted issuers. Empty means any.
    pub issuers: Vec<String>,
    /// The accepted audiences, one of which a token must have. Empty means any.
    pub audiences: Vec<String>,
}

/// The URL of a JWKS. Displays as a URL.
#[derive(Debug, PartialEq, Eq)]
pub struct JwksUrl {
    /// The issuer's server.
    pub server: ServerUrl,
    /// The path and the query.
    pub target: PathAndQuery,
    /// The TLS settings. `None` without TLS, on this machine only.
    pub tls: Option<ClientTls>,
    /// The time after which the keys are fetched again.
    pub refresh: Duration,
}

impl JwksUrl {
    /// Returns true if two URLs have the same keys, however often they are fetched.
    pub fn is_same_place(&self, other: &Self) -> bool {
        (&self.server, &self.target, &self.tls) == (&other.server, &other.target, &other.tls)
    }
}

impl fmt::Display for JwksUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.server, self.target)
    }
}

/// A key that verifies signatures. Its `Debug` output hides the value, which may be a secret.
#[derive(Clone)]
pub struct JwtKey {
    jwk: Jwk,
    algorithms: Vec<Algorithm>,
    decoding: DecodingKey,
}

impl JwtKey {
    /// Creates a key from a shared secret. It accepts all HMAC algorithms.
    pub(super) fn secret(secret: &str) -> Option<Self> {
        Self::new(Jwk::from_decoding_key(&DecodingKey::from_secret(secret.as_bytes()), None).ok()?)
    }

    /// Creates a key. `None` if the key isn't for signatures of a supported kind.
    fn new(jwk: Jwk) -> Option<Self> {
        if !matches!(jwk.common.public_key_use, None | Some(PublicKeyUse::Signature)) {
            return None;
        }
        let decoding = DecodingKey::from_jwk(&jwk).ok()?;
        let mut algorithms = match &jwk.algorithm {
            AlgorithmParameters::EllipticCurve(curve) if curve.curve == EllipticCurve::P256 => {
                vec![Algorithm::ES256]
            }
            AlgorithmParameters::EllipticCurve(curve) if curve.curve == EllipticCurve::P384 => {
                vec![Algorithm::ES384]
            }
            AlgorithmParameters::EllipticCurve(_) => vec![],
            _ => decoding.family().algorithms().to_vec(),
        };
        if let Some(stated) = jwk.common.key_algorithm {
            let stated = Algorithm::try_from(stated).ok();
            algorithms.retain(|algorithm| Some(*algorithm) == stated);
        }
        (!algorithms.is_empty()).then_some(Self { jwk, algorithms, decoding })
    }

    /// Returns true if everybody may know the key, since only the issuer has the key that signs.
    pub fn is_public(&self) -> bool {
        !matches!(self.jwk.algorithm, AlgorithmParameters::OctetKey(_))
    }

    /// Returns the length of a shared secret. `None` for a public key.
    pub(super) fn secret_bytes(&self) -> Option<usize> {
        let AlgorithmParameters::OctetKey(secret) = &self.jwk.algorithm else { return None };
        Some(secret.value.trim_end_matches('=').len() * 3 / 4)
    }

    /// Returns the key's id (`kid`), if it has one.
    pub fn id(&self) -> Option<&str> {
        self.jwk.common.key_id.as_deref()
    }

    /// Returns the accepted algorithms, at least one.
    pub fn algorithms(&self) -> &[Algorithm] {
        &self.algorithms
    }

    /// Returns the key itself.
    pub fn decoding(&self) -> &DecodingKey {
        &self.decoding
    }
}

impl PartialEq for JwtKey {
    fn eq(&self, other: &Self) -> bool {
        self.jwk == other.jwk
    }
}

impl fmt::Debug for JwtKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JwtKey").field("id", &self.id()).field("algorithms", &self.algorithms).finish()
    }
}

/// Parses the keys of a JWKS that verify signatures. Other keys and keys of unknown kinds are ignored (RFC
/// 7517, section 5).
///
/// # Errors
/// The text isn't a JWKS.
pub fn read_jwks(text: &[u8]) -> Result<Vec<JwtKey>, serde_json::Error> {
    #[derive(Deserialize)]
    struct Jwks {
        keys: Vec<serde_json::Value>,
    }
    let jwks: Jwks = serde_json::from_slice(text)?;
    let jwks = jwks.keys.into_iter().filter_map(|key| serde_json::from_value::<Jwk>(key).ok());
    Ok(jwks.filter_map(JwtKey::new).collect())
}
