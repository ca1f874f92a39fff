//! The claims of a request's token, which is verified when they are first asked for.

use std::{borrow::Cow, fmt, sync::OnceLock};

use hyper::{HeaderMap, header::AUTHORIZATION};
use serde_json::{Map, Value};
use tollgate_limiter::{
    Refusal,
    key::credentials::{BEARER, scheme},
};
use tollgate_routing::VerifiedClaims;

use super::{Effort, NOT_BEARER, TokenFault, Verified, Verifier, lenient::tokens};
use crate::rules::key::{PartFault, single};

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
    pub(in crate::rules::key) fn text(&self, name: &str) -> Result<Option<String>, PartFault> {
        let claims = match self.verified.get_or_init(|| self.verify()) {
            Verified::Valid { claims, .. } => claims,
            Verified::Several => return Err(PartFault::Several),
            Verified::WithoutKeys => return Err(PartFault::Unverified),
            Verified::Missing | Verified::Invalid(_) | Verified::KeyUnknown => return Ok(None),
        };
        Ok(claim(claims, name).and_then(text).map(Cow::into_owned))
    }

    /// Returns false if the request bears a valid token that not all servers believe.
    pub(in crate::rules::key) fn are_usual(&self) -> bool {
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
        let mut left = Effort::MOST;
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
