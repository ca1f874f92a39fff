//! Routing of HTTP requests: from a host, a path and a header to the most specific route.
//!
//! - [`path`] reads a request's path: as it is forwarded, as it is matched, and as other servers might read it.
//! - [`Pattern`] and [`HostPattern`] are the path and the host of a route.
//! - [`Matcher`] holds everything a request must have to take a route.
//! - [`Table`] finds the most specific route of a request.
//! - [`template`] builds a new path or URL from the parameters that a route captured.
//!
//! All of it is pure: no clock, no I/O, no state that changes. What a route does is up to the caller.
//!
//! ```
//! use http::{HeaderMap, Method};
//! use tollgate_routing::{Matcher, Parameters, Table, View};
//!
//! let route = |path: &str| Matcher { host: None, path: path.parse().unwrap(), methods: vec![], headers: vec![], query: vec![], claims: vec![] };
//! let table = Table::new([(route("/orders/{id}"), "one order"), (route("/{*rest}"), "anything else")]);
//!
//! let (method, headers, parameters) = (Method::GET, HeaderMap::new(), Parameters::default());
//! let view = View::new(&method, "", "/orders/7", &parameters, &headers, &());
//! let found = table.find(&view).unwrap();
//! assert_eq!((*found.route, found.param("id")), ("one order", Some("7")));
//! ```

mod hidden;
mod host;
mod matcher;
mod parameters;
pub mod path;
pub mod pattern;
mod table;
pub mod template;

#[cfg(test)]
mod tests;

pub use self::{
    hidden::{Hidden, hidden},
    host::HostPattern,
    matcher::{Matcher, Occurrence, Segments, Unmet, VerifiedClaims, View},
    parameters::Parameters,
    pattern::Pattern,
    table::{Found, Table},
};
