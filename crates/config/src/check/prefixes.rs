//! Finds paths that were meant as prefixes, as nginx takes them: `/api` with limits that `/api/orders` escapes.

use std::ops::Range;

use super::Check;
use crate::{RouteSettings, error::Diagnostic};

impl Check<'_, '_> {
    /// Warns of a path that is hardly a resource, such as `/api`, whose limits don't hold for what is below it.
    pub(super) fn warn_of_prefixes(&mut self, routes: &[RouteSettings], places: &[Range<usize>]) {
        for (route, place) in routes.iter().zip(places) {
            let path = route.matcher.path.to_string();
            let below = format!("{path}/");
            let is_known = || routes.iter().any(|other| other.matcher.path.to_string().starts_with(&below));
            // A slash at the end has its own warning.
            let has_slash = self.document.written(place).ends_with('/');
            if !is_prefix(&path) || has_slash || is_known() {
                continue;
            }
            let Some(wider) = wider(route, routes) else { continue };
            let Some(limit) = route.limits.iter().find(|limit| !wider.limits.contains(limit)) else {
                continue;
            };
            let fault =
                format!("only `{path}` itself has limit `{limit}`: `{path}/…` takes route `{}`", wider.name);
            let help = format!("for all paths below it, write path = \"{path}/{{*rest}}\"");
            self.fault(Diagnostic::warning(fault).at(place, "").help(help));
        }
    }
}

/// Returns true if the last segment is a name that APIs have in front of their resources: `api` or a version.
fn is_prefix(path: &str) -> bool {
    let last = path.rsplit('/').next().unwrap_or_default();
    let version = last.strip_prefix('v').unwrap_or_default();
    last == "api" || !version.is_empty() && version.bytes().all(|b| b.is_ascii_digit())
}

/// Returns the route with the longest prefix that takes the paths below a route's own.
fn wider<'r>(route: &RouteSettings, routes: &'r [RouteSettings]) -> Option<&'r RouteSettings> {
    let path = route.matcher.path.to_string();
    let length_of_prefix = |other: &RouteSettings| {
        let pattern = other.matcher.path.to_string();
        let (prefix, _) = pattern.split_once("{*")?;
        (path.starts_with(prefix) && other.matcher.host == route.matcher.host).then_some(prefix.len())
    };
    let wider = routes.iter().filter_map(|other| Some((length_of_prefix(other)?, other)));
    wider.max_by_key(|(length, _)| *length).map(|(_, other)| other)
}
