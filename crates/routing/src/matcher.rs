//! The conditions of a route, and the parts of a request that they are compared with.

use std::fmt;

use http::{
    HeaderMap, Method,
    header::{HeaderName, HeaderValue},
};

use crate::{HostPattern, Parameters, Pattern, Table};

/// The conditions that a request must meet to take a route.
#[derive(Clone, Debug, PartialEq)]
pub struct Matcher {
    /// The host. `None` matches any.
    pub host: Option<HostPattern>,
    /// The pattern of the path.
    pub path: Pattern,
    /// The methods, of which the request must have one. An empty list matches any. `GET` doesn't include `HEAD`.
    pub methods: Vec<Method>,
    /// Header fields that the request must have: for each pair, a field line of that name has exactly that value.
    pub headers: Vec<(HeaderName, HeaderValue)>,
    /// Query parameters that the request must have: for each pair, a parameter that servers read by that name, form-decoded, has that
    /// value.
    pub query: Vec<(String, String)>,
    /// Claims that the request's verified token must have: for each pair, a claim of that name has that value.
    pub claims: Vec<(String, String)>,
}

/// Prints one line: `GET,POST api.example.com/v1/orders/{id}?preview x-version jwt:plan=pro`. Values of headers and query
/// parameters are left out, since they may be secrets.
impl fmt::Display for Matcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, method) in self.methods.iter().enumerate() {
            write!(f, "{}{method}", if at == 0 { "" } else { "," })?;
        }
        f.write_str(if self.methods.is_empty() { "" } else { " " })?;
        self.host.iter().try_for_each(|host| host.fmt(f))?;
        self.path.fmt(f)?;
        for (at, (name, _)) in self.query.iter().enumerate() {
            write!(f, "{}{name}", if at == 0 { "?" } else { "&" })?;
        }
        self.headers.iter().try_for_each(|(name, _)| write!(f, " {name}"))?;
        self.claims.iter().try_for_each(|(name, value)| write!(f, " jwt:{name}={value}"))
    }
}

impl Matcher {
    /// Returns the first condition that a request doesn't meet, or `None` if it meets all.
    pub fn unmet(&self, view: &View<'_>) -> Option<Unmet> {
        let any = Self::any;
        let mut parts = vec![
            (Unmet::Host, Self { host: self.host.clone(), ..any() }),
            (Unmet::Path, Self { path: self.path.clone(), ..any() }),
            (Unmet::Method, Self { methods: self.methods.clone(), ..any() }),
        ];
        for header in self.headers.iter().cloned() {
            parts.push((Unmet::Header(header.0.clone()), Self { headers: vec![header], ..any() }));
        }
        for parameter in self.query.iter().cloned() {
            parts.push((Unmet::Query(parameter.0.clone()), Self { query: vec![parameter], ..any() }));
        }
        for claim in self.claims.iter().cloned() {
            parts.push((Unmet::Claim(claim.0.clone()), Self { claims: vec![claim], ..any() }));
        }
        // A table with that single condition decides, so that the answer can't differ from what routing does.
        let is_unmet = |part| Table::new([(part, ())]).find(view).is_none();
        parts.into_iter().find_map(|(unmet, part)| is_unmet(part).then_some(unmet))
    }

    /// Returns a matcher of all requests.
    fn any() -> Self {
        Self {
            host: None,
            path: Pattern::any(),
            methods: Vec::new(),
            headers: Vec::new(),
            query: Vec::new(),
            claims: Vec::new(),
        }
    }

    /// Ranks the conditions besides host and path. Of two routes, the one with the higher rank is tried first.
    pub(crate) fn conditions(&self) -> impl Ord + use<> {
        (!self.methods.is_empty(), self.headers.len(), self.query.len(), self.claims.len())
    }

    /// Returns true if the conditions besides host and path hold. Claims are asked for last, so that the token is verified only
    /// if the rest holds.
    pub(crate) fn holds(&self, view: &View<'_>) -> bool {
        let has_header = |(name, value): &(HeaderName, HeaderValue)| {
            view.occurrence.holds(view.headers.get_all(name).iter(), |found| found == value)
        };
        let has_parameter = |(name, value): &(String, String)| {
            view.occurrence.holds(view.parameters.values(name, view.exact_names), |found| found == value)
        };
        (self.methods.is_empty() || self.methods.contains(view.method))
            && self.headers.iter().all(has_header)
            && self.query.iter().all(has_parameter)
            && self.claims.iter().all(|(name, value)| view.claims.has(name, value))
    }

    /// Returns true if the conditions besides host and path hold for every request for which those of `other` hold.
    pub(crate) fn covers(&self, other: &Self) -> bool {
        let takes_methods = self.methods.is_empty()
            || !other.methods.is_empty() && other.methods.iter().all(|method| self.methods.contains(method));
        takes_methods
            && self.headers.iter().all(|header| other.headers.contains(header))
            && self.query.iter().all(|parameter| other.query.contains(parameter))
            && self.claims.iter().all(|claim| other.claims.contains(claim))
    }
}

/// A condition of a route that a request doesn't meet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unmet {
    /// The host differs.
    Host,
    /// The path differs.
    Path,
    /// The method is none of the route's.
    Method,
    /// No field line of this header has the value.
    Header(HeaderName),
    /// No query parameter of this name has the value.
    Query(String),
    /// The request's token has no claim of this name with the value, or the request has no valid token.
    Claim(String),
}

/// The claims of a request's token.
pub trait VerifiedClaims: fmt::Debug {
    /// Returns true if a verified claim of this name has this value, or is a list that contains it.
    fn has(&self, name: &str, value: &str) -> bool;
}

/// No claims, as in a request without a token.
impl VerifiedClaims for () {
    fn has(&self, _name: &str, _value: &str) -> bool {
        false
    }
}

/// The parts of a request that routing looks at.
#[derive(Clone, Copy, Debug)]
pub struct View<'r> {
    /// The request method.
    pub method: &'r Method,
    /// The host in lower case, without port and trailing dot, an IPv6 address in brackets. Empty if the client sent none. It may be as the
    /// client sent it, for servers that compare it so.
    pub host: &'r str,
    /// The path in the form of [`crate::path::matched`], or one of [`crate::path::readings`].
    pub path: &'r str,
    /// The parameters on which routes have conditions.
    pub parameters: &'r Parameters,
    /// The headers.
    pub headers: &'r HeaderMap,
    /// The claims of the token, which are asked for if a route's other conditions hold. `&()` if there are none.
    pub claims: &'r dyn VerifiedClaims,
    /// The occurrence that counts of a repeated header field or query parameter.
    pub occurrence: Occurrence,
    /// Only parameters with the name of a condition meet it, and none with a name that only some servers take for that.
    pub exact_names: bool,
    /// Literals of routes are compared with the path without regard to the case of letters, as many servers do it.
    pub ignores_case: bool,
    /// The segments that are no literal, as some servers compare them ([`Table::doubtful_literals`]).
    pub no_literals: Segments,
    /// Parameters aren't empty, as in most servers.
    pub params_have_text: bool,
}

impl<'r> View<'r> {
    /// Returns what servers look at that read a request as its routes are written.
    pub fn new(
        method: &'r Method,
        host: &'r str,
        path: &'r str,
        parameters: &'r Parameters,
        headers: &'r HeaderMap,
        claims: &'r dyn VerifiedClaims,
    ) -> Self {
        let (occurrence, no_literals) = (Occurrence::Any, 0);
        let (exact_names, ignores_case, params_have_text) = Default::default();
        Self {
            method,
            host,
            path,
            parameters,
            headers,
            claims,
            occurrence,
            exact_names,
            ignores_case,
            no_literals,
            params_have_text,
        }
    }
}

/// Segments of a path: a bit for each, the lowest for the first. Literals are among the first 64 ([`Pattern::MAX_SEGMENTS`]).
pub type Segments = u64;

/// The occurrence of a repeated header field or query parameter with which a route's condition is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Occurrence {
    /// Any of them.
    Any,
    /// The first, as some servers read them.
    First,
    /// The last, as others do.
    Last,
    /// The only one, and none if there are several: others join them to one value.
    Only,
}

impl Occurrence {
    /// Returns true if a condition holds for the one that counts of all.
    fn holds<T>(self, mut all: impl Iterator<Item = T>, is_right: impl Fn(&T) -> bool) -> bool {
        match self {
            Self::Any => all.any(|one| is_right(&one)),
            Self::First => all.next().is_some_and(|first| is_right(&first)),
            Self::Last => all.last().is_some_and(|last| is_right(&last)),
            Self::Only => all.next().is_some_and(|only| is_right(&only)) && all.next().is_none(),
        }
    }
}
