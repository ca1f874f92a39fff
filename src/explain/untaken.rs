//! The reason why a request doesn't take a route.

use super::UntakenRoute;
use crate::{
    gateway::plan::Route,
    rules::key::jwt::{Claims, TokenFault},
};
use tollgate_routing::{Matcher, Unmet, View};

impl UntakenRoute {
    /// Describes a route that a request with this view and these claims doesn't take.
    pub(super) fn new(
        matcher: &Matcher,
        route: &Route,
        (view, claims): (&View<'_>, &Claims<'_>),
        taken: Option<&Route>,
    ) -> Self {
        let reason = match (matcher.unmet(view), taken) {
            (Some(Unmet::Host), _) => "host doesn't match".to_owned(),
            (Some(Unmet::Path), _) => "path doesn't match".to_owned(),
            (Some(Unmet::Method), _) => "method doesn't match".to_owned(),
            (Some(Unmet::Header(name)), _) => format!("header `{name}` doesn't match"),
            (Some(Unmet::Query(name)), _) => {
                format!("query parameter `{name}` doesn't match")
            }
            (Some(Unmet::Claim(name)), _) => unmet_claim(&name, claims),
            (None, Some(taken)) => {
                format!("`{}` is more specific, or equally specific and earlier in the file", taken.name)
            }
            (None, None) => unreachable!("a request takes one of the routes that match"),
        };
        Self { name: route.name.clone(), matches: matcher.to_string(), reason }
    }
}

/// Returns the reason why a claim doesn't match.
fn unmet_claim(name: &str, claims: &Claims<'_>) -> String {
    match claims.require() {
        Ok(()) => format!("claim `{name}` doesn't match"),
        Err(TokenFault::Missing) => format!("claim `{name}` doesn't match: the request has no token"),
        Err(TokenFault::Invalid(reason)) => {
            format!("claim `{name}` doesn't match: the token isn't valid: {reason}")
        }
        Err(TokenFault::Unverified) => {
            format!("claim `{name}` isn't known: the keys that verify the token haven't been fetched")
        }
    }
}
