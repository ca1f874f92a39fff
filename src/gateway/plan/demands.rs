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

use super::{Route, RulesWithTerms};

/// Returns the rules of the route that a request takes, if it takes one, and of those that servers may see in it.
///
/// # Errors
/// As those of [`Demands::add`].
pub(super) fn of<'g>(
    found: Option<&Found<'g, '_, Route>>,
    others: &[Found<'g, '_, Route>],
    client: &Client,
    parts: &Parts,
    target: &Target<'_>,
    claims: &Claims<'_>,
) -> Result<RulesWithTerms<'g>, Rejection> {
    let terms_under =
        |found: &Found<'_, '_, Route>, rule: &Rule| terms(found, rule, client, parts, target, claims);
    let mut demands = match found {
        Some(found) => Demands::of(found.route, |rule| terms_under(found, rule)),
        None => Demands::default(),
    };
    for other in others {
        let length_of = |rule: &Rule| target.length_read(&rule.config().key, &parts.headers);
        demands.add(other.route, length_of, |rule| terms_under(other, rule))?;
    }
    Ok(demands.into_parts())
}

/// Returns the terms of a rule for a request that takes this route.
fn terms(
    found: &Found<'_, '_, Route>,
    rule: &Rule,
    client: &Client,
    parts: &Parts,
    target: &Target<'_>,
    claims: &Claims<'_>,
) -> Terms {
    let subject = Subject {
        client: client.address,
        method: &parts.method,
        host: found.host(),
        query: target.query,
        queries_in_path: &target.queries_in_path,
        headers: &parts.headers,
        peer_is_trusted: client.peer_is_trusted,
        claims,
        route: &found.route.name,
        parameter: &|name| found.param(name),
    };
    rule.terms(&subject)
}

/// The most bytes of a head that are read again for the routes of other readings. It bounds what a request costs.
const READ_AGAIN_MOST: usize = 32 << 10;

/// The rules that count a request, and their terms in the same order.
#[derive(Default)]
struct Demands<'g> {
    rules: Cow<'g, [Arc<Rule>]>,
    terms: SmallVec<[Terms; 1]>,
    /// The bytes that have been read again.
    read_again: usize,
}

impl<'g> Demands<'g> {
    /// Creates the demands of a route. `terms_of` returns the terms of a rule for the request under this route and its parameters.
    fn of(route: &'g Route, terms_of: impl Fn(&Rule) -> Terms) -> Self {
        let terms = route.rules.iter().map(|rule| terms_of(rule)).collect();
        Self { rules: Cow::Borrowed(&route.rules), terms, read_again: 0 }
    }

    /// Returns the rules and their terms.
    fn into_parts(self) -> RulesWithTerms<'g> {
        (self.rules, self.terms)
    }

    /// Adds those of another route that servers may see in the request, so that no spelling escapes a limit. `length_of` returns how
    /// many bytes of the head a rule reads.
    ///
    /// # Errors
    /// A limit that doesn't only shadow would count the request for too many keys, or there is too much to read again.
    fn add(
        &mut self,
        other: &'g Route,
        length_of: impl Fn(&Rule) -> usize,
        terms_of: impl Fn(&Rule) -> Terms,
    ) -> Result<(), Rejection> {
        for rule in &other.rules {
            // A path may have many readings, and a head much to read.
            if count(&self.rules, rule) && !rule.config().key.contains(&KeyPart::Host) {
                continue;
            }
            self.read_again += length_of(rule);
            match (self.read_again > READ_AGAIN_MOST, rule.limit().shadows()) {
                (false, _) => self.add_rule(rule, terms_of(rule)),
                (true, true) => {}
                (true, false) => return Err(Rejection::PathAmbiguous),
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
