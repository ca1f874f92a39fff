//! Finds routes that the health checks of the main listener hide.

use std::ops::Range;

use hyper::Method;

use super::Check;
use crate::{RouteSettings, error::Diagnostic};

impl Check<'_, '_> {
    /// Warns of a route for the path of `server.health`, which is answered before routing.
    pub(super) fn warn_of_hidden_by_health(&mut self, routes: &[RouteSettings], places: &[Range<usize>]) {
        let Some(health) = self.health.clone() else { return };
        let is_answered = |method: &Method| matches!(*method, Method::GET | Method::HEAD);
        for (route, place) in routes.iter().zip(places) {
            let matcher = &route.matcher;
            let is_hidden = matcher.methods.is_empty() || matcher.methods.iter().any(is_answered);
            if matcher.path.to_string() != health || !is_hidden {
                continue;
            }
            let fault =
                format!("this route gets no GET and no HEAD: server.health answers `{health}` before it");
            let fault = Diagnostic::warning(fault).at(place, "");
            let fault = match self.document.place_of("server", "health") {
                Some(place) => fault.at(&place, "here"),
                None => fault,
            };
            self.fault(fault.help("choose another path for one of the two: [server] health = \"/-/ready\""));
        }
    }
}
