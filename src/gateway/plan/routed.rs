//! The routes of all readings of a path, and the limits and the token that they demand together.

use std::{borrow::Cow, iter, mem, sync::Arc};

use smallvec::SmallVec;
use tollgate_limiter::Refusal;
use tollgate_routing::Found;

use crate::{
    config::Requirement,
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

/// The routes that servers may see in the path of a request.
pub(super) struct Routed<'g, 't> {
    /// The route that the request takes.
    pub(super) found: Found<'g, 't, Route>,
    /// The other routes that have limits or require a token.
    pub(super) others: Vec<Found<'g, 't, Route>>,
}

/// The limits of all routes that servers may see in a path, and their terms for the request, in the same order.
pub(super) type LimitsWithTerms<'g> = (Cow<'g, [Arc<Rule>]>, SmallVec<[Terms; 1]>);

impl<'g> Routed<'g, '_> {
    /// Returns the limits of all routes, so that no spelling of a path escapes a limit, where `terms_of` returns the terms of a route's.
    ///
    /// # Errors
    /// A limit would count the request for too many keys.
    pub(super) fn limits(
        &self,
        terms_of: impl Fn(&Found<'_, '_, Route>) -> SmallVec<[Terms; 1]>,
    ) -> Result<LimitsWithTerms<'g>, Rejection> {
        let mut limits = Cow::Borrowed(&*self.found.route.limits);
        let mut terms = terms_of(&self.found);
        for other in &self.others {
            for (limit, more) in other.route.limits.iter().zip(terms_of(other)) {
                match limits.iter().position(|known| known.limit().name() == limit.limit().name()) {
                    None => {
                        limits.to_mut().push(limit.clone());
                        terms.push(more);
                    }
                    Some(at) => {
                        terms[at] = mem::replace(&mut terms[at], Terms::Skips).and(more);
                        // The routes may state different costs.
                        if limit.fixed_cost() > limits[at].fixed_cost() {
                            limits.to_mut()[at] = limit.clone();
                        }
                    }
                }
            }
        }
        let has_too_many = |terms: &Terms| matches!(terms, Terms::Counts(asks) if asks.len() > MOST_READINGS);
        if !self.others.is_empty() && terms.iter().any(has_too_many) {
            return Err(Rejection::PathAmbiguous);
        }
        Ok((limits, terms))
    }

    /// Checks that the request bears a valid token, if one of the routes requires it. If routes have asked for claims that
    /// aren't known, other routes might be the right ones.
    pub(super) fn check_token(&self, claims: &Claims<'_>) -> Result<(), Rejection> {
        if let Some(doubt) = claims.doubt() {
            return Err(Rejection::ClaimsUnknown(doubt));
        }
        let mut routes = iter::once(&self.found).chain(&self.others);
        if !routes.any(|found| found.route.requires == Some(Requirement::Jwt)) {
            return Ok(());
        }
        claims.require().map_err(|fault| match fault {
            TokenFault::Missing => Rejection::TokenMissing,
            TokenFault::Invalid(reason) => Rejection::TokenInvalid(reason),
            TokenFault::Unverified => Rejection::ClaimsUnknown(Refusal::TokenUnverified),
        })
    }
}
