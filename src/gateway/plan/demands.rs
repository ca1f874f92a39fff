//! The limits and the token that the routes of all readings of a request demand together.

use std::{borrow::Cow, mem, sync::Arc};

use hyper::http::request::Parts;
use smallvec::SmallVec;
use tollgate_limiter::Refusal;
use tollgate_routing::Found;

use crate::{
    config::{KeyPart, Requirement},
    forward::headers::Client,
    gateway::target::Target,
    reject::Rejection,
    rules::{
        Rule, Terms,
        key::{
            MOST_READINGS, Subject,
            jwt::{Claims, TokenFault},
        },
    },
};

use super::Route;

/// A request as rules look at it.
pub(super) struct RequestView<'r> {
    pub(super) client: &'r Client,
    pub(super) parts: &'r Parts,
    pub(super) target: &'r Target<'r>,
    pub(super) claims: &'r Claims<'r>,
}

impl RequestView<'_> {
    /// Returns the terms of a rule for the request under this route and its parameters.
    fn terms(&self, rule: &Rule, found: &Found<'_, '_, Route>) -> Terms {
        let subject = Subject {
            client: self.client.address,
            method: &self.parts.method,
            host: found.host(),
            query: self.target.query,
            queries_in_path: &self.target.queries_in_path,
            headers: &self.parts.headers,
            peer_is_trusted: self.client.peer_is_trusted,
            claims: self.claims,
            route: &found.route.name,
            parameter: &|name| found.param(name),
        };
        rule.terms(&subject)
    }
}

/// The most bytes of a head that are read for the routes of other readings. It bounds what a request costs.
const READ_MOST: usize = 32 << 10;

/// The rules that count a request, and their terms in the same order.
#[derive(Default)]
pub(super) struct Demands<'g> {
    pub(super) rules: Cow<'g, [Arc<Rule>]>,
    pub(super) terms: SmallVec<[Terms; 1]>,
    /// The bytes that have been read for the routes of other readings, by limits that may refuse and by those that only shadow.
    read: [usize; 2],
}

impl<'g> Demands<'g> {
    /// Creates the demands of the route that a request takes.
    pub(super) fn of(found: &Found<'g, '_, Route>, request: &RequestView<'_>) -> Self {
        let rules = &*found.route.rules;
        let terms = rules.iter().map(|rule| request.terms(rule, found)).collect();
        Self { rules: Cow::Borrowed(rules), terms, read: [0; 2] }
    }

    /// Adds those of another route that servers may see in the request, so that no spelling escapes a limit.
    ///
    /// # Errors
    /// A limit that doesn't only shadow would count the request for too many keys, or there is too much to read for it.
    pub(super) fn add(
        &mut self,
        other: &Found<'g, '_, Route>,
        request: &RequestView<'_>,
    ) -> Result<(), Rejection> {
        for rule in &other.route.rules {
            let key = &rule.config().key;
            // A path may have many readings, and a head much to read.
            if count(&self.rules, rule) && !key.contains(&KeyPart::Host) {
                continue;
            }
            let shadows = rule.limit().shadows();
            let read = &mut self.read[usize::from(shadows)];
            *read += request.target.length_read(key, &request.parts.headers);
            match (*read <= READ_MOST, shadows) {
                (true, _) => self.add_rule(rule, request.terms(rule, other)),
                (false, true) => {}
                (false, false) => return Err(Rejection::PathAmbiguous),
            }
        }
        let has_too_many = |(rule, terms): (&Arc<Rule>, &Terms)| {
            !rule.limit().shadows() && matches!(terms, Terms::Counts(asks) if asks.len() > MOST_READINGS)
        };
        match self.rules.iter().zip(&self.terms).any(has_too_many) {
            true => Err(Rejection::PathAmbiguous),
            false => Ok(()),
        }
    }

    fn add_rule(&mut self, rule: &Arc<Rule>, terms: Terms) {
        let Self { rules, terms: all, .. } = self;
        match rules.iter().position(|known| known.limit().name() == rule.limit().name()) {
            None => {
                rules.to_mut().push(rule.clone());
                all.push(terms);
            }
            Some(at) => {
                all[at] = mem::replace(&mut all[at], Terms::Skips).and(terms);
                // The routes may state different costs.
                if rule.fixed_cost() > rules[at].fixed_cost() {
                    rules.to_mut()[at] = rule.clone();
                }
            }
        }
    }
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
