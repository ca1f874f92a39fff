//! The table of all routes.
//!
//! A [`Table`] finds the most specific route of a request: an exact host before a wildcard (the longer
//! first) before none; then, segment by segment from the left, a literal before `{param}` before `{*rest}`;
//! then the route with more conditions: methods, headers, query parameters, claims; of equals the first. If a
//! route's conditions don't hold, the next best is tried.
//!
//! It keeps a trie of segments for each host and searches it depth first, best branch first, so the first
//! route that holds is the most specific:
//!
//! ```text
//! api.example.com ── v1 ── orders ─┬─ pending    /v1/orders/pending    tried first
//!                                  ├─ {}         /v1/orders/{id}       then
//!                                  └─ {*}        /v1/orders/{*rest}    last
//! ```
//!
//! A request visits each node at most once. So no path costs more than a walk through all patterns, and
//! the depth is bounded by [`Pattern::MAX_SEGMENTS`].

use std::{
    borrow::Cow,
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet, HashMap},
    iter,
};

use http::{HeaderMap, header::HeaderName};
use smallvec::SmallVec;

use crate::{
    HostPattern, Matcher, Parameters, Pattern, View,
    matcher::Segments,
    parameters::ConditionalNames,
    path::{TooManyReadings, canonical_segment, folded, has_needless_escape, is_folded},
    pattern::SegmentShape,
};

/// All routes, arranged for a fast search. `T` is what a route does.
#[derive(Debug)]
pub struct Table<T> {
    /// The routes in the order in which they were given.
    routes: Vec<(Matcher, T)>,
    tries: Tries,
    /// The tries of literals in lower case.
    folded_tries: Tries,
    /// The header fields and the query parameters on which routes have conditions.
    conditional_headers: Vec<HeaderName>,
    conditional_parameters: ConditionalNames,
    /// All literals as routes have them, by what they are in lower case.
    spellings: BTreeMap<String, BTreeSet<String>>,
    /// The literals that routes have with capitals, or outside ASCII, in lower case.
    capitals: BTreeSet<String>,
    /// The most bytes of a segment that is a literal in another case.
    literal_most: usize,
}

/// The tries of all hosts.
#[derive(Debug, Default)]
struct Tries {
    exact: HashMap<String, TrieNode>,
    /// Routes with a wildcard host, by the name after `*.`.
    suffix: HashMap<String, TrieNode>,
    any: TrieNode,
}

/// A node of a trie: the routes of a host that agree up to some segment. Routes are indices into [`Table::routes`].
#[derive(Debug, Default)]
struct TrieNode {
    /// Ordered, so that a long segment costs no more to look up than the literals are long.
    literals: BTreeMap<String, TrieNode>,
    param: Option<Box<TrieNode>>,
    /// Routes whose pattern ends here.
    ends: Vec<usize>,
    /// Routes whose pattern goes on with `{*rest}`.
    rests: Vec<usize>,
}

/// The route that a request takes, with the values of its parameters.
#[derive(Debug)]
pub struct Found<'t, 'r, T> {
    /// The route.
    pub route: &'t T,
    pattern: &'t Pattern,
    host: &'r str,
    params: Params<'r>,
}

/// The values of a path's parameters, in the order of the pattern.
type Params<'r> = SmallVec<[&'r str; 8]>;

impl<T> Table<T> {
    /// Builds a table. Of routes that are equally specific, the first given wins.
    pub fn new(routes: impl IntoIterator<Item = (Matcher, T)>) -> Self {
        let routes = Vec::from_iter(routes);
        // Routes of one host and path shape are tried in this order.
        let mut order = Vec::from_iter(0..routes.len());
        order.sort_by_key(|index| Reverse(routes[*index].0.conditions()));
        let (mut tries, mut folded_tries) = (Tries::default(), Tries::default());
        for index in order {
            let matcher = &routes[index].0;
            tries.insert(matcher, index, |literal| literal.into());
            folded_tries.insert(matcher, index, folded);
        }
        let headers = routes.iter().flat_map(|(matcher, _)| matcher.headers.iter().map(|(name, _)| name));
        let mut conditional_headers: Vec<_> = headers.cloned().collect();
        conditional_headers.sort_by(|one, other| one.as_str().cmp(other.as_str()));
        conditional_headers.dedup();
        let parameters = routes.iter().flat_map(|(matcher, _)| matcher.query.iter().map(|(name, _)| name));
        let conditional_parameters = ConditionalNames::new(parameters.cloned());
        let mut spellings: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        let mut capitals = BTreeSet::new();
        for step in routes.iter().flat_map(|(matcher, _)| matcher.path.steps()) {
            let SegmentShape::Literal(literal) = step else { continue };
            let folded = folded(literal).into_owned();
            if !is_folded(literal) {
                capitals.insert(folded.clone());
            }
            spellings.entry(folded).or_default().insert(literal.to_owned());
        }
        // U+212A takes three bytes, and a `k` one.
        let literal_most = 3 * spellings.keys().map(String::len).max().unwrap_or_default();
        Self {
            conditional_headers,
            conditional_parameters,
            routes,
            tries,
            folded_tries,
            spellings,
            capitals,
            literal_most,
        }
    }

    /// Returns the most specific route whose conditions the request meets.
    pub fn find<'t, 'r>(&'t self, view: &View<'r>) -> Option<Found<'t, 'r, T>> {
        let literal_most = self.literal_most;
        let mut search = Search { routes: &self.routes, literal_most, view, params: Params::new() };
        let path = view.path.strip_prefix('/').unwrap_or(view.path);
        let tries = if view.ignores_case { &self.folded_tries } else { &self.tries };
        let (matcher, route) = tries.roots(view.host).find_map(|root| search.descend(root, path, 0))?;
        Some(Found { route, pattern: &matcher.path, host: view.host, params: search.params })
    }

    /// Returns the route at this index, in the order in which they were given.
    pub fn get(&self, index: usize) -> Option<&T> {
        self.routes.get(index).map(|(_, route)| route)
    }

    /// Returns the parameters of a query, without the `?`, on which routes have conditions.
    ///
    /// # Errors
    /// There are more than 64.
    pub fn parameters(&self, query: &str) -> Result<Parameters, TooManyReadings> {
        Parameters::read(query, &self.conditional_parameters)
    }

    /// Returns true if a request repeats a header field or a query parameter on which a route has a condition.
    pub fn has_repeated(&self, headers: &HeaderMap, parameters: &Parameters) -> bool {
        self.conditional_headers.iter().any(|name| headers.get_all(name).iter().nth(1).is_some())
            || parameters.has_repeated()
    }

    /// Returns true if a path may take another route where the case of letters is [ignored](View::ignores_case).
    pub fn may_differ_in_case(&self, path: &str) -> bool {
        let has_other_spelling = |segment: &str| match is_folded(segment) {
            true => self.capitals.contains(segment),
            false if segment.len() > self.literal_most => false,
            false => {
                let spellings = self.spellings.get(&*folded(segment));
                spellings.is_some_and(|spellings| spellings.iter().any(|literal| literal != segment))
            }
        };
        (!self.capitals.is_empty() || !is_folded(path)) && segments(path).any(has_other_spelling)
    }

    /// Returns the segments of a [forwarded](crate::path::forwarded) path that only some servers take for a literal: those with escapes that no
    /// URI needs (`/%6Cogin`), which Express and chi don't decode, and those with letters outside ASCII in another case than the literal's.
    pub fn doubtful_literals(&self, forwarded: &str) -> Segments {
        if forwarded.bytes().all(|byte| byte.is_ascii() && byte != b'%') {
            return 0;
        }
        let is_doubtful = |segment: &str| {
            // An escape takes three bytes.
            if segment.len() > 3 * self.literal_most {
                return false;
            }
            let literal = canonical_segment(segment);
            let spellings = self.spellings.get(&*folded(&literal));
            spellings.is_some_and(|spellings| {
                has_needless_escape(segment) || !literal.is_ascii() && !spellings.contains(&literal)
            })
        };
        let segments = segments(forwarded).filter(|segment| !segment.is_empty()).take(Pattern::MAX_SEGMENTS);
        segments
            .enumerate()
            .fold(0, |doubtful, (at, segment)| doubtful | Segments::from(is_doubtful(segment)) << at)
    }

    /// Returns the names of the header fields on which routes have conditions.
    pub fn conditional_headers(&self) -> &[HeaderName] {
        &self.conditional_headers
    }

    /// Returns the routes with their conditions, in the order in which they were given.
    pub fn routes(&self) -> impl Iterator<Item = &(Matcher, T)> {
        self.routes.iter()
    }
}

/// Returns the segments of a path that begins with a slash.
fn segments(path: &str) -> impl Iterator<Item = &str> {
    let mut rest = path.get(1..);
    iter::from_fn(move || {
        let (segment, path) = first_segment(rest?);
        rest = path;
        Some(segment)
    })
}

/// Returns the text up to the first slash, and what follows that.
fn first_segment(path: &str) -> (&str, Option<&str>) {
    // `split_once` costs more: its search is made for long strings, and segments are short.
    let end = path.bytes().position(|byte| byte == b'/');
    end.map_or((path, None), |end| (&path[..end], Some(&path[end + 1..])))
}

impl Tries {
    fn insert(&mut self, matcher: &Matcher, route: usize, spelling: fn(&str) -> Cow<'_, str>) {
        let root = match &matcher.host {
            Some(HostPattern::Exact(name)) => self.exact.entry(name.clone()).or_default(),
            Some(HostPattern::Suffix(name)) => self.suffix.entry(name.clone()).or_default(),
            None => &mut self.any,
        };
        root.insert(&matcher.path, route, spelling);
    }

    /// Returns those to search for a host, the most specific first.
    fn roots(&self, host: &str) -> impl Iterator<Item = &TrieNode> {
        let dots = if self.suffix.is_empty() { 0..0 } else { 1..host.len() };
        let suffixes = dots
            .filter(|dot| host.as_bytes()[*dot] == b'.')
            .map(|dot| &host[dot + 1..])
            .filter(|name| name.len() <= HostPattern::MAX_LENGTH);
        let wildcards = suffixes.filter_map(|name| self.suffix.get(name));
        self.exact.get(host).into_iter().chain(wildcards).chain(iter::once(&self.any))
    }
}

impl TrieNode {
    fn insert(&mut self, pattern: &Pattern, route: usize, spelling: fn(&str) -> Cow<'_, str>) {
        let mut node = self;
        for step in pattern.steps() {
            node = match step {
                SegmentShape::Literal(text) => node.literals.entry(spelling(text).into_owned()).or_default(),
                SegmentShape::Param => node.param.get_or_insert_default(),
                SegmentShape::Rest => return node.rests.push(route),
            };
        }
        node.ends.push(route);
    }
}

impl<'t, 'r, T> Found<'t, 'r, T> {
    /// Returns true if both are the same route with the same host and values of its parameters.
    pub fn is_alike(&self, other: &Found<'_, '_, T>) -> bool {
        std::ptr::eq(self.route, other.route) && self.host == other.host && self.params == other.params
    }

    /// Returns the host for which the route was looked up.
    pub fn host(&self) -> &'r str {
        self.host
    }

    /// Returns the pattern of the route's path.
    pub fn pattern(&self) -> &'t Pattern {
        self.pattern
    }

    /// Returns the value of a `{param}` or `{*rest}`, in the form of the path that was looked up. It has
    /// a leading slash only behind an empty segment.
    pub fn param(&self, name: &str) -> Option<&'r str> {
        let position = self.pattern.params().position(|param| param == name)?;
        self.params.get(position).copied()
    }
}

/// A walk through the tries for one request.
struct Search<'t, 'v, 'r, T> {
    routes: &'t [(Matcher, T)],
    literal_most: usize,
    view: &'v View<'r>,
    params: Params<'r>,
}

impl<'t, 'r, T> Search<'t, '_, 'r, T> {
    /// Finds the best route at or below a node for the rest of the path, which begins with the segment at this place. If there is none,
    /// `params` is unchanged.
    fn descend(&mut self, node: &TrieNode, path: &'r str, at: usize) -> Option<&'t (Matcher, T)> {
        let exact = if path.is_empty() { self.first(&node.ends) } else { self.branch(node, path, at) };
        if exact.is_some() {
            return exact;
        }
        let route = self.first(&node.rests)?;
        self.params.push(path);
        Some(route)
    }

    fn branch(&mut self, node: &TrieNode, path: &'r str, at: usize) -> Option<&'t (Matcher, T)> {
        let (segment, path) = first_segment(path);
        let path = path.unwrap_or_default();
        let child = match self.view.ignores_case {
            _ if self.view.no_literals.checked_shr(at as u32).is_some_and(|rest| rest & 1 == 1) => None,
            false => node.literals.get(segment),
            true if segment.len() > self.literal_most => None,
            true => node.literals.get(&*folded(segment)),
        };
        if let Some(child) = child
            && let Some(route) = self.descend(child, path, at + 1)
        {
            return Some(route);
        }
        let child = node.param.as_deref().filter(|_| !(segment.is_empty() && self.view.params_have_text))?;
        self.params.push(segment);
        let route = self.descend(child, path, at + 1);
        if route.is_none() {
            self.params.pop();
        }
        route
    }

    /// Returns the first route whose conditions hold. Where the case of letters is ignored, one whose literals are spelt as in the path
    /// goes first.
    fn first(&self, routes: &[usize]) -> Option<&'t (Matcher, T)> {
        let routes = || routes.iter().map(|index| &self.routes[*index]);
        let holds = |(matcher, _): &&(Matcher, T)| matcher.holds(self.view);
        let is_as_sent = |(matcher, _): &&(Matcher, T)| matcher.path.matches(self.view.path);
        let as_sent = self.view.ignores_case.then(|| routes().filter(is_as_sent).find(holds)).flatten();
        as_sent.or_else(|| routes().find(holds))
    }
}
