//! Whose tokens are believed: the keys that verify a JWT's signature, and who must have issued it for whom.
//!
//! The algorithms that a signature may have come from the key, never from the token.

use std::fmt;

use jsonwebtoken::{
    Algorithm, DecodingKey,
    jwk::{AlgorithmParameters, EllipticCurve, Jwk, PublicKeyUse},
};
use serde::Deserialize;

/// Whose tokens are believed.
#[derive(Debug, PartialEq)]
pub struct JwtSettings {
    /// One of them must have signed it; at least one.
    pub keys: Vec<JwtKey>,
    /// One of them must have issued it; anybody if there are none.
    pub issuers: Vec<String>,
    /// It must be meant for one of them; for anybody if there are none.
    pub audiences: Vec<String>,
}

/// A key that verifies signatures. It prints without its value, which may be a secret.
#[derive(Clone)]
pub struct JwtKey {
    jwk: Jwk,
    algorithms: Vec<Algorithm>,
    decoding: DecodingKey,
}

impl JwtKey {
    /// A key by which both sides sign. It is for any HMAC.
    pub(super) fn secret(secret: &str) -> Option<Self> {
        Self::new(Jwk::from_decoding_key(&DecodingKey::from_secret(secret.as_bytes()), None).ok()?)
    }

    /// None if it isn't for signatures that we understand.
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

    /// What tokens call it, if anything.
    pub fn id(&self) -> Option<&str> {
        self.jwk.common.key_id.as_deref()
    }

    /// The algorithms that it is for, at least one.
    pub fn algorithms(&self) -> &[Algorithm] {
        &self.algorithms
    }

    /// The key itself.
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

/// The keys of a JWKS that verify signatures; others and those of unknown kinds are passed over, as RFC 7517,
/// section 5 has it.
///
/// # Errors
/// Text that is no JWKS.
pub(super) fn read_jwks(text: &[u8]) -> Result<Vec<JwtKey>, serde_json::Error> {
    #[derive(Deserialize)]
    struct Jwks {
        keys: Vec<serde_json::Value>,
    }
    let jwks: Jwks = serde_json::from_slice(text)?;
    let jwks = jwks.keys.into_iter().filter_map(|key| serde_json::from_value::<Jwk>(key).ok());
    Ok(jwks.filter_map(JwtKey::new).collect())
}
