//! The limits and the token that the routes of all readings of a request demand together.

use std::{borrow::Cow, mem, sync::Arc};

use smallvec::SmallVec;
use tollgate_limiter::Refusal;

use crate::{
    config::{KeyPart, Requirement},
    reject::Rejection,
    rules::{
        Rule, Terms,
        key::{
            MOST_READINGS,
            jwt::{Claims, TokenFault},
        },
    },
};

use super::Route;

/// Adds the rules of another route that servers may see in a request to those of the routes before it, so that no spelling escapes a
/// limit. `terms_of` returns their terms for the request under its own route and parameters.
///
/// # Errors
/// A limit that doesn't only shadow would count the request for too many keys.
pub(super) fn add_rules<'g>(
    rules: &mut Cow<'g, [Arc<Rule>]>,
    terms: &mut SmallVec<[Terms; 1]>,
    other: &'g Route,
    terms_of: impl Fn(&Rule) -> Terms,
) -> Result<(), Rejection> {
    for rule in &other.rules {
        // A path may have many readings, and a head much to read.
        if count(rules, rule) && !rule.config().key.contains(&KeyPart::Host) {
            continue;
        }
        let more = terms_of(rule);
        match rules.iter().position(|known| known.limit().name() == rule.limit().name()) {
            None => {
                rules.to_mut().push(rule.clone());
                terms.push(more);
            }
            Some(at) => {
                terms[at] = mem::replace(&mut terms[at], Terms::Skips).and(more);
                // The routes may state different costs.
                if rule.fixed_cost() > rules[at].fixed_cost() {
                    rules.to_mut()[at] = rule.clone();
                }
            }
        }
    }
    let has_too_many = |(rule, terms): (&Arc<Rule>, &Terms)| {
        !rule.limit().shadows() && matches!(terms, Terms::Counts(asks) if asks.len() > MOST_READINGS)
    };
    if rules.iter().zip(terms.iter()).any(has_too_many) { Err(Rejection::PathAmbiguous) } else { Ok(()) }
}

/// Returns true if these rules count a request to this host at least as `own` does, whatever its path is.
pub(super) fn count(rules: &[Arc<Rule>], own: &Rule) -> bool {
    let depends_on_path = |part: &KeyPart| matches!(part, KeyPart::Path(_) | KeyPart::Route);
    let covers =
        |rule: &Arc<Rule>| rule.limit().name() == own.limit().name() && rule.fixed_cost() >= own.fixed_cost();
    !own.config().key.iter().any(depends_on_path) && rules.iter().any(covers)
}

/// Checks that the request bears a valid token, if one of its routes requires it. If routes have asked for claims that
/// aren't known, other routes might be the right ones.
pub(super) fn check_token<'r>(
    mut routes: impl Iterator<Item = &'r Route>,
    claims: &Claims<'_>,
) -> Result<(), Rejection> {
    if let Some(doubt) = claims.doubt() {
        return Err(Rejection::ClaimsUnknown(doubt));
    }
    if !routes.any(|route| route.requires == Some(Requirement::Jwt)) {
        return Ok(());
    }
    claims.require().map_err(|fault| match fault {
        TokenFault::Missing => Rejection::TokenMissing,
        TokenFault::Invalid(reason) => Rejection::TokenInvalid(reason),
        TokenFault::Unverified => Rejection::ClaimsUnknown(Refusal::TokenUnverified),
    })
}
