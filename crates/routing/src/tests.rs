//! Tests of the table of routes, among others against a linear search.

use std::{cell::Cell, cmp::Reverse, hint::black_box};

use http::{
    HeaderMap, Method,
    header::{HeaderName, HeaderValue},
};

use proptest::{collection::vec, prelude::*, sample::select};

use crate::{
    HostPattern, Matcher, Parameters, Table, Unmet, VerifiedClaims, View, hidden,
    parameters::ConditionalNames, path,
};

/// The routes that bench/micro.rs measures.
#[path = "../../../bench/routes.rs"]
mod thousand;

/// Parses a matcher, written as `GET,POST host/path?name=value header:value jwt:claim=value`, all but the path optional.
fn matcher(text: &str) -> Matcher {
    let (mut host, mut path, mut query) = ("", "", "");
    let (mut methods, mut headers, mut claims) = (Vec::new(), Vec::new(), Vec::new());
    for word in text.split_whitespace() {
        if word.contains('/') {
            (host, path, query) = split_target(word);
        } else if let Some(text) = word.strip_prefix("jwt:") {
            claims.push(claim(text));
        } else if word.contains(':') {
            headers.push(header(word));
        } else {
            methods = word.split(',').map(|method| method.parse().expect(method)).collect();
        }
    }
    Matcher {
        host: (!host.is_empty()).then(|| host.parse().expect(host)),
        path: path.parse().expect(path),
        methods,
        headers,
        query: form_urlencoded::parse(query.as_bytes()).into_owned().collect(),
        claims,
    }
}

fn claim(text: &str) -> (String, String) {
    let (name, value) = text.split_once('=').expect(text);
    (name.to_owned(), value.to_owned())
}

fn split_target(target: &str) -> (&str, &str, &str) {
    let (target, query) = target.split_once('?').unwrap_or((target, ""));
    let (host, path) = target.split_at(target.find('/').expect(target));
    (host, path, query)
}

fn header(text: &str) -> (HeaderName, HeaderValue) {
    let (name, value) = text.split_once(':').expect(text);
    (name.parse().expect(name), value.parse().expect(value))
}

struct Request<'r> {
    method: Method,
    target: &'r str,
    /// All parameters of its query.
    parameters: Parameters,
    headers: HeaderMap,
    claims: TokenClaims,
}

/// The claims of a test's token, and the number of times that routing has asked for one.
#[derive(Debug, Default)]
struct TokenClaims {
    pairs: Vec<(String, String)>,
    asked: Cell<usize>,
}

impl VerifiedClaims for TokenClaims {
    fn has(&self, name: &str, value: &str) -> bool {
        self.asked.set(self.asked.get() + 1);
        self.pairs.iter().any(|pair| pair.0 == name && pair.1 == value)
    }
}

impl<'r> Request<'r> {
    /// Parses a request, written as `GET host/path?query header:value jwt:claim=value`.
    fn new(text: &'r str) -> Self {
        let mut words = text.split_whitespace();
        let method = words.next().expect(text).parse().expect(text);
        let target = words.next().expect(text);
        let mut headers = HeaderMap::new();
        let mut claims = TokenClaims::default();
        for word in words {
            if let Some(text) = word.strip_prefix("jwt:") {
                claims.pairs.push(claim(text));
            } else {
                let (name, value) = header(word);
                headers.append(name, value);
            }
        }
        let query = split_target(target).2;
        let names = form_urlencoded::parse(query.as_bytes()).map(|(name, _)| name.into_owned());
        let parameters = Parameters::read(query, &ConditionalNames::new(names)).unwrap();
        Self { method, target, parameters, headers, claims }
    }

    fn view(&self) -> View<'_> {
        let (host, path, _) = split_target(self.target);
        View::new(&self.method, host, path, &self.parameters, &self.headers, &self.claims)
    }
}

#[test]
fn the_case_of_literals_may_be_ignored() {
    let routes =
        ["/login", "/API/{*rest}", "/Api/{id}", "/Api/x", "/café", "/kaßes", "/Twin", "/twin", "/{*rest}"];
    let table = Table::new(routes.map(|text| (matcher(text), text)));
    for (target, exact, ignoring) in [
        ("/login", "/login", "/login"),
        ("/LoGin", "/{*rest}", "/login"),
        ("/api/aB", "/{*rest}", "/Api/{id}"),
        ("/api/X", "/{*rest}", "/Api/x"),
        ("/Api/7", "/Api/{id}", "/Api/{id}"),
        ("/LOGİN", "/{*rest}", "/login"),
        ("/logın", "/{*rest}", "/login"),
        ("/logi\u{307}n", "/{*rest}", "/login"),
        ("/\u{212a}aße\u{17f}", "/{*rest}", "/kaßes"),
        ("/KASSES", "/{*rest}", "/kaßes"),
        ("/CAFÉ", "/{*rest}", "/café"),
        ("/API/X", "/API/{*rest}", "/Api/x"),
        ("/Twin", "/Twin", "/Twin"),
        ("/twin", "/twin", "/twin"),
        ("/tWIN", "/{*rest}", "/Twin"),
    ] {
        let text = format!("GET {target}");
        let request = Request::new(&text);
        let found = [false, true].map(|ignores_case| {
            let found = table.find(&View { ignores_case, ..request.view() }).unwrap();
            (*found.route, found.param("id").map(str::to_owned))
        });
        assert_eq!(found.each_ref().map(|(route, _)| *route), [exact, ignoring], "{target}");
        if target == "/api/aB" {
            assert_eq!(found[1].1.as_deref(), Some("aB"));
        }
    }
    let lower = Table::new([(matcher("/login"), ())]);
    assert!(
        table.may_differ_in_case("/api/x")
            && !table.may_differ_in_case("/x")
            && lower.may_differ_in_case("/Login")
            && !lower.may_differ_in_case("/login")
            && !lower.may_differ_in_case("/X/%2F")
            && !table.may_differ_in_case("/x/Y")
            && table.may_differ_in_case("/x/api")
    );
}

/// Asserts which of the routes each request takes, in either order of the routes.
fn assert_routes(routes: &[&str], cases: &[(&str, Option<&str>)]) {
    let forth = Table::new(routes.iter().map(|text| (matcher(text), *text)));
    let back = Table::new(routes.iter().rev().map(|text| (matcher(text), *text)));
    for (text, expected) in cases {
        let request = Request::new(text);
        for table in [&forth, &back] {
            assert_eq!(table.find(&request.view()).map(|found| *found.route), *expected, "{text}");
        }
    }
}

#[test]
fn the_most_specific_path_wins_from_the_left() {
    assert_routes(
        &["/", "/a", "/a/{x}", "/a/b", "/a/{*r}", "/{x}/b/c", "/{x}/{*r}", "/{*r}", "/d/{x}/e", "/d/{*r}"],
        &[
            ("GET /", Some("/")),
            ("GET /a", Some("/a")),
            ("GET /a/b", Some("/a/b")),
            ("GET /a/c", Some("/a/{x}")),
            ("GET /a/b/c", Some("/a/{*r}")),
            ("GET /c/b/c", Some("/{x}/b/c")),
            ("GET /c/b/d", Some("/{x}/{*r}")),
            ("GET /c", Some("/{x}/{*r}")),
            ("GET /d", Some("/d/{*r}")),
            ("GET /d/x/e", Some("/d/{x}/e")),
            ("GET /d/x/f", Some("/d/{*r}")),
        ],
    );
    assert_routes(&["/a/b/{x}"], &[("GET /a/b", None), ("GET /a/b/c/d", None), ("GET /A/b/c", None)]);
}

#[test]
fn hosts_are_tried_from_exact_to_longest_wildcard_to_any() {
    assert_routes(
        &["v1.api.a/{*r}", "*.api.a/{*r}", "*.a/{*r}", "/x/{*r}", "[::1]/{*r}"],
        &[
            ("GET v1.api.a/x", Some("v1.api.a/{*r}")),
            ("GET v2.api.a/x", Some("*.api.a/{*r}")),
            ("GET w.v2.api.a/x", Some("*.api.a/{*r}")),
            ("GET api.a/x", Some("*.a/{*r}")),
            ("GET [::1]/x", Some("[::1]/{*r}")),
            ("GET a/x", Some("/x/{*r}")),
            ("GET .a/x", Some("/x/{*r}")),
            ("GET ba/x", Some("/x/{*r}")),
            ("GET /x", Some("/x/{*r}")),
            ("GET /y", None),
        ],
    );
}

#[test]
fn more_conditions_win_on_the_same_path() {
    assert_routes(
        &[
            "/",
            "/?p=1",
            "/ x:1",
            "/ x:1 y:1",
            "/?p=1&q=1",
            "/?p=1 x:1",
            "GET /",
            "/ jwt:a=1",
            "/?p=1 jwt:a=1",
        ],
        &[
            ("GET /?p=1 x:1 y:1", Some("GET /")),
            ("PUT /?p=1&q=1 x:1 y:1", Some("/ x:1 y:1")),
            ("PUT /?p=1 x:1", Some("/?p=1 x:1")),
            ("PUT / x:1", Some("/ x:1")),
            ("PUT /?p=1&q=1", Some("/?p=1&q=1")),
            ("PUT /?p=1", Some("/?p=1")),
            ("PUT /?p=1 jwt:a=1", Some("/?p=1 jwt:a=1")),
            ("PUT / jwt:a=1", Some("/ jwt:a=1")),
            ("PUT / jwt:a=2", Some("/")),
            ("PUT /", Some("/")),
        ],
    );
}

#[test]
fn of_equals_the_first_wins() {
    let routes = ["GET /{x}", "GET,POST /{y}", "/{x} x:1", "/{x} y:1"].map(matcher);
    let table = Table::new(routes.into_iter().zip(0..));
    for (text, route) in [("GET /a", 0), ("POST /a", 1), ("PUT /a x:1 y:1", 2), ("PUT /a y:1", 3)] {
        assert_eq!(table.find(&Request::new(text).view()).map(|found| *found.route), Some(route), "{text}");
    }
}

#[test]
fn conditions_are_met_by_any_line_or_parameter_of_the_name() {
    assert_routes(
        &["/a x-v:2", "/b?k=%C3%A9+1&on="],
        &[
            ("GET /a X-V:1 x-v:2", Some("/a x-v:2")),
            ("GET /a x-v:1,2", None),
            ("GET /a", None),
            ("GET /b?on&k=0&k=%c3%a9%201", Some("/b?k=%C3%A9+1&on=")),
            ("GET /b?on=1&k=%C3%A9+1", None),
            ("GET /b?k=%C3%A9+1", None),
        ],
    );
}

#[test]
fn claims_are_asked_for_only_if_the_other_conditions_hold() {
    let routes = ["GET a.b/x jwt:a=1 jwt:b=2 x:1", "/x/{p}?q=1 jwt:a=1"].map(matcher);
    assert_eq!(routes[0].to_string(), "GET a.b/x x jwt:a=1 jwt:b=2");
    assert_eq!(routes[1].to_string(), "/x/{p}?q jwt:a=1");
    let table = Table::new(routes.into_iter().zip(0..));
    for (text, route, asked) in [
        ("GET a.b/x x:1 jwt:a=1 jwt:b=2", Some(0), 2),
        ("GET a.b/x x:1 jwt:a=2 jwt:b=2", None, 1),
        ("GET a.b/x jwt:a=1 jwt:b=2", None, 0),
        ("PUT a.b/x x:1 jwt:a=1 jwt:b=2", None, 0),
        ("GET c.b/x x:1 jwt:a=1 jwt:b=2", None, 0),
        ("GET /x/y jwt:a=1", None, 0),
        ("GET /x/y?q=1 jwt:a=1", Some(1), 1),
    ] {
        let request = Request::new(text);
        let found = table.find(&request.view()).map(|found| *found.route);
        assert_eq!((found, request.claims.asked.get()), (route, asked), "{text}");
    }
    let unmet = matcher("/x jwt:a=1 jwt:b=2").unmet(&Request::new("GET /x jwt:a=1").view());
    assert_eq!(unmet, Some(Unmet::Claim("b".to_owned())));
}

#[test]
fn a_route_whose_conditions_fail_gives_way_to_the_next_best() {
    assert_routes(
        &["GET a.b/x/y", "a.b/x/{p} v:1", "POST a.b/{p}/y", "*.b/x/{*r} w:1", "PUT /x/y", "/{*r} w:2"],
        &[
            ("GET a.b/x/y v:1", Some("GET a.b/x/y")),
            ("POST a.b/x/y v:1", Some("a.b/x/{p} v:1")),
            ("POST a.b/x/y w:1", Some("POST a.b/{p}/y")),
            ("PUT a.b/x/y w:1", Some("*.b/x/{*r} w:1")),
            ("PUT a.b/x/y", Some("PUT /x/y")),
            ("DELETE a.b/x/y w:2", Some("/{*r} w:2")),
            ("DELETE a.b/x/y", None),
        ],
    );
}

#[test]
fn parameters_are_those_of_the_route_found() {
    let routes = ["/{a}/{b}/z", "GET /{c}/{d}", "/{e}/{f}", "/{g}/{*rest}"];
    let table = Table::new(routes.map(|text| (matcher(text), ())));
    for (text, params) in [
        ("PUT /1/2/z", [("a", "1"), ("b", "2")]),
        ("GET /1/2", [("c", "1"), ("d", "2")]),
        ("PUT /1/2", [("e", "1"), ("f", "2")]),
        ("PUT /1/2/3/4", [("g", "1"), ("rest", "2/3/4")]),
        ("PUT /1", [("g", "1"), ("rest", "")]),
    ] {
        let request = Request::new(text);
        let found = table.find(&request.view()).expect(text);
        for (name, value) in params {
            assert_eq!(found.param(name), Some(value), "{text}");
        }
        assert_eq!(found.param("x"), None);
    }
}

/// Finding a route allocates nothing.
#[test]
fn each_kind_of_request_finds_its_route_among_a_thousand() {
    let routes = thousand::routes();
    let texts: Vec<String> =
        routes.iter().map(|(method, host, path)| format!("{method} {host}{path}")).collect();
    let table = Table::new(texts.iter().map(|text| (matcher(text), text)));
    assert_eq!(texts.len(), 1_000);
    for kind in thousand::KINDS {
        for (host, target, expected) in thousand::requests(kind) {
            let text = format!("GET {host}{target}");
            let request = Request::new(&text);
            let mut found = None;
            let allocations = allocation_counter::measure(|| {
                let forwarded = path::forwarded(&target);
                let matched = path::matched(&forwarded);
                let view = View { path: &matched, ..request.view() };
                found = table.find(&view).map(|found| found.route.as_str());
            });
            assert_eq!(allocations.count_total, 0, "{kind}: {text}");
            let found = found.and_then(|route| route.split_once(' ')).map(|(_, route)| route);
            assert_eq!(found, expected.as_deref(), "{kind}: {text}");
        }
    }
    assert_eq!(allocation_counter::measure(|| drop(vec![black_box(7)])).count_total, 1);
}

#[test]
fn a_long_path_goes_no_deeper_than_the_patterns() {
    let steps = ["a", "{}"];
    let patterns = (0..1_usize << 10).map(|bits| {
        let step = |depth: usize| steps[bits >> depth & 1].replace("{}", &format!("{{p{depth}}}"));
        format!("/{}/end", (0..10).map(step).collect::<Vec<_>>().join("/"))
    });
    let table = Table::new(patterns.map(|text| (matcher(&text), ())));
    let request = format!("GET {}", "/a".repeat(16 * 1024));
    assert!(table.find(&Request::new(&request).view()).is_none());
    let request = format!("GET {}/{}", "/a".repeat(10), "a".repeat(32 * 1024));
    assert!(table.find(&Request::new(&request).view()).is_none());
}

#[test]
fn a_route_is_hidden_by_one_that_takes_all_it_could() {
    let hides = |routes: &[&str], expected: &[(usize, usize, bool)]| {
        let found = hidden(&routes.iter().map(|text| matcher(text)).collect::<Vec<_>>());
        let found = found.iter().map(|hidden| (hidden.route, hidden.by, hidden.equal));
        assert_eq!(found.collect::<Vec<_>>(), expected, "{routes:?}");
    };
    hides(&["/{a}", "/{b}"], &[(1, 0, true)]);
    hides(&["GET,PUT /", "GET /"], &[(1, 0, false)]);
    hides(&["GET,PUT /", "PUT,GET /", "PUT /"], &[(1, 0, true), (2, 0, false)]);
    hides(&["GET,PUT /", "GET,POST /", "GET /"], &[(2, 0, false)]);
    hides(&["/ x:1 y:1", "/ y:1 x:1"], &[(1, 0, true)]);
    hides(&["GET /?p=1&q=1 x:1", "GET /?q=1&p=1 x:1"], &[(1, 0, true)]);
    hides(&["*.a/x", "*.A/%78/"], &[(1, 0, true)]);
    // More conditions are tried first, though later in the file.
    hides(&["/", "GET /", "/ x:1"], &[]);
    hides(&["GET /", "GET,PUT /"], &[]);
    hides(&["/ x:1", "/ x:2", "/ y:1"], &[]);
    hides(&["/{*r}", "/{a}", "/a", "a.b/a", "*.b/a"], &[]);
}

fn matcher_text() -> impl Strategy<Value = String> {
    let host = select(vec!["", "a.b", "*.b", "*.a.b"]);
    let path = vec(select(vec!["/a", "/b", "/{}"]), 0..4);
    let rest = select(vec!["", "/{*rest}"]);
    let conditions = select(vec!["", "", "?q=1", "?q=1&p=1", " x:1", " x:1 y:1", "?q=1 x:1", " jwt:a=1"]);
    let methods = select(vec!["", "GET ", "GET,PUT "]);
    (host, path, rest, conditions, methods).prop_map(|(host, path, rest, conditions, methods)| {
        let name = |(index, step): (usize, &str)| step.replace("{}", &format!("{{p{index}}}"));
        let path: String = path.into_iter().enumerate().map(name).collect();
        let slash = if path.is_empty() && rest.is_empty() { "/" } else { "" };
        format!("{methods}{host}{path}{rest}{slash}{conditions}")
    })
}

fn request_text() -> impl Strategy<Value = String> {
    let method = select(vec!["GET", "PUT", "POST"]);
    let host = select(vec!["", "a.b", "c.b", "d.a.b"]);
    let path = vec(select(vec!["a", "b", "c"]), 0..5);
    let rest = select(vec!["", "?q=1", "?p=1&q=1", "?q=1&p=1 x:1", " x:1", "?q=1 y:1 x:1", " x:1 jwt:a=1"]);
    (method, host, path, rest)
        .prop_map(|(method, host, path, rest)| format!("{method} {host}/{}{rest}", path.join("/")))
}

/// Returns the index and the parameters of the route that the table should find, by trying every route.
fn linear(routes: &[String], request: &Request<'_>) -> Option<(usize, Vec<(String, String)>)> {
    let taken = routes.iter().enumerate().filter_map(|(index, text)| {
        let (route, view) = (matcher(text), request.view());
        let pattern = route.path.to_string();
        let host = host_rank(route.host.as_ref(), view.host)?;
        let params = capture(&pattern, view.path)?;
        let steps: Vec<_> = pattern.split('/').map(|s| (s.starts_with('{'), s.starts_with("{*"))).collect();
        let conditions =
            (!route.methods.is_empty(), route.headers.len(), route.query.len(), route.claims.len());
        conditions_hold(&route, request).then_some((host, steps, Reverse(conditions), index, params))
    });
    taken.min().map(|(.., index, params)| (index, params))
}

/// Ranks a host pattern: the smaller, the more specific.
fn host_rank(pattern: Option<&HostPattern>, host: &str) -> Option<usize> {
    match pattern {
        Some(HostPattern::Exact(name)) => (host == name).then_some(0),
        Some(HostPattern::Suffix(name)) => host.ends_with(&format!(".{name}")).then_some(1000 - name.len()),
        None => Some(1000),
    }
}

fn conditions_hold(route: &Matcher, request: &Request<'_>) -> bool {
    let query: Vec<_> = split_target(request.target).2.split('&').collect();
    let has_line = |(name, value): &_| request.headers.iter().any(|line| line == (name, value));
    let has_pair = |(name, value): &_| query.contains(&format!("{name}={value}").as_str());
    (route.methods.is_empty() || route.methods.contains(&request.method))
        && route.headers.iter().all(has_line)
        && route.query.iter().all(has_pair)
        && route.claims.iter().all(|(name, value)| request.claims.has(name, value))
}

fn capture(pattern: &str, path: &str) -> Option<Vec<(String, String)>> {
    let mut params = Vec::new();
    let mut segments = path.split('/').filter(|segment| !segment.is_empty());
    for step in pattern.split('/').filter(|step| !step.is_empty()) {
        if let Some(name) = step.strip_prefix("{*") {
            let rest = segments.by_ref().collect::<Vec<_>>().join("/");
            params.push((name.trim_end_matches('}').to_owned(), rest));
        } else if let Some(name) = step.strip_prefix('{') {
            params.push((name.trim_end_matches('}').to_owned(), segments.next()?.to_owned()));
        } else if segments.next()? != step {
            return None;
        }
    }
    segments.next().is_none().then_some(params)
}

proptest! {
    #[test]
    fn the_table_finds_what_a_look_at_every_route_finds(
        routes in vec(matcher_text(), 0..40),
        requests in vec(request_text(), 1..20),
    ) {
        let table = Table::new(routes.iter().map(|text| matcher(text)).zip(0..));
        for text in &requests {
            let request = Request::new(text);
            let found = table.find(&request.view());
            let expected = linear(&routes, &request);
            prop_assert_eq!(
                found.as_ref().map(|found| *found.route),
                expected.as_ref().map(|(index, _)| *index),
                "{}", text
            );
            for (name, value) in expected.iter().flat_map(|(_, params)| params) {
                prop_assert_eq!(found.as_ref().and_then(|found| found.param(name)), Some(value.as_str()));
            }
        }
    }

    #[test]
    fn a_hidden_route_is_never_found(
        routes in vec(matcher_text(), 0..40),
        requests in vec(request_text(), 1..20),
    ) {
        let hidden = hidden(&routes.iter().map(|text| matcher(text)).collect::<Vec<_>>());
        for text in &requests {
            let found = linear(&routes, &Request::new(text));
            let found = found.map(|(index, _)| index);
            prop_assert!(!hidden.iter().any(|hidden| Some(hidden.route) == found), "{}", text);
        }
    }
}
