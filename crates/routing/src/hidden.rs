//! Routes that can never match, for warnings about a configuration.

use std::{cmp::Reverse, collections::HashMap};

use crate::Matcher;

/// A route that no request can take, because another route is tried first and takes every such request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hidden {
    /// The index of the route.
    pub route: usize,
    /// The index of the route that hides it.
    pub by: usize,
    /// True if both have the same conditions, so that one was probably meant to be different.
    pub equal: bool,
}

/// Returns the routes that are hidden by another of the same host and path shape, in the order given.
///
/// A route that is hidden only by several others together is not found.
pub fn hidden(routes: &[Matcher]) -> Vec<Hidden> {
    let mut order = Vec::from_iter(0..routes.len());
    order.sort_by_key(|index| Reverse(routes[*index].conditions()));
    let mut tried: HashMap<_, Vec<usize>> = HashMap::new();
    let mut hidden = Vec::new();
    for route in order {
        let matcher = &routes[route];
        let rivals = tried.entry((&matcher.host, Vec::from_iter(matcher.path.steps()))).or_default();
        match rivals.iter().find(|rival| routes[**rival].covers(matcher)) {
            Some(&by) => hidden.push(Hidden { route, by, equal: matcher.covers(&routes[by]) }),
            None => rivals.push(route),
        }
    }
    hidden.sort_by_key(|hidden| hidden.route);
    hidden
}
