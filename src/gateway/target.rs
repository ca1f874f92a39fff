//! The host and the path that a request is for, read once and by one rule.

use std::{borrow::Cow, iter, net::Ipv6Addr};

use hyper::{
    HeaderMap, Method, Uri, Version,
    header::{COOKIE, EXPECT, HOST, HeaderName, HeaderValue},
    http::{
        request::Parts,
        uri::{Authority, InvalidUri, PathAndQuery},
    },
};
use percent_encoding::percent_decode_str;
use smallvec::SmallVec;

use crate::{
    config::{EscapedSlashes, KeyPart},
    forward::headers::has_ff,
    reject::Rejection,
};
use tollgate_routing::{
    Occurrence, Parameters, Segments, Table, VerifiedClaims, View,
    path::{self, TooManyReadings},
};

/// The most views of a request in which its route is looked up. It bounds what a request costs.
const MOST_VIEWS: usize = 128;
/// The most bytes of a host, with the dot of the root (RFC 1035, section 2.3.4). It is forwarded twice, so the forwarded head would be much
/// longer than the received one.
const HOST_MOST: usize = 254;

/// The occurrences that servers may take of a field or a parameter that is sent once, and of a repeated one.
const ALIKE: &[Occurrence] = &[Occurrence::Any];
const REPEATED: &[Occurrence] = &[Occurrence::Any, Occurrence::First, Occurrence::Last, Occurrence::Only];

/// The host and the path of a request.
#[derive(Debug)]
pub(crate) struct Target<'r> {
    /// The host in lower case, without port and trailing dot. Empty if an HTTP/1.0 client sent none.
    pub(crate) host: Cow<'r, str>,
    /// The host as the client sent it, without the port, if that isn't `host`, and the same without a dot or a colon at its end. To some servers,
    /// they are other hosts.
    hosts_as_sent: [Option<&'r str>; 2],
    /// The host that some servers see at the beginning of the path.
    host_in_path: Option<String>,
    /// The path as it is forwarded, without the query.
    pub(crate) forwarded: Cow<'r, str>,
    /// The path as routes are matched with it.
    pub(crate) matched: Cow<'r, str>,
    /// Other paths that an upstream may see in it, in the form of [`path::readings`].
    pub(crate) readings: Result<Vec<String>, TooManyReadings>,
    /// The query, without the `?`.
    pub(crate) query: &'r str,
    /// The queries of servers that look for them in the path.
    pub(crate) queries_in_path: Vec<String>,
    /// The parameters of the query on which routes have conditions, then those of each in the path.
    parameters: SmallVec<[Parameters; 1]>,
}

impl<'r> Target<'r> {
    /// Reads the target of a request (RFC 9112, section 3.2).
    ///
    /// # Errors
    /// The method has other characters than capital letters, `-` and `_`; the Host field is missing, repeated or invalid; the target has no path, or a path that is
    /// rejected; a field has the byte FF; the request has an expectation other than `100-continue`; or the query has too many parameters on which
    /// routes have conditions.
    pub(crate) fn read<T>(
        parts: &'r Parts,
        escaped_slashes: EscapedSlashes,
        routes: &Table<T>,
    ) -> Result<Self, Rejection> {
        check_method(&parts.method)?;
        let (host, [sent, bare]) = hosts(parts)?;
        let hosts_as_sent = [
            Some(sent).filter(|sent| **sent != *host),
            Some(bare).filter(|bare| **bare != *host && *bare != sent),
        ];
        let as_sent = parts.uri.path();
        let is_foreign =
            parts.uri.scheme().is_some_and(|scheme| !["http", "https"].contains(&scheme.as_str()));
        if !as_sent.starts_with('/') || is_foreign {
            return Err(Rejection::TargetInvalid);
        }
        let plain = path::plain(as_sent);
        if plain.is_none() && path::has_invalid_escape(as_sent) {
            return Err(Rejection::EscapeInvalid);
        }
        check_fields(parts)?;
        let (forwarded, matched, readings) = match plain {
            Some(plain) => (as_sent.into(), plain.into(), Ok(Vec::new())),
            None if escaped_slashes == EscapedSlashes::Reject && path::has_escaped_slash(as_sent) => {
                return Err(Rejection::EscapedSlash);
            }
            None => read_path(as_sent),
        };
        let query = parts.uri.query().unwrap_or_default();
        let host_in_path = path::host_in(&forwarded).and_then(decoded_host);
        let queries_in_path = match &readings {
            Ok(readings) if readings.is_empty() && !forwarded.contains('&') => Vec::new(),
            _ => queries_in_path(&forwarded, query),
        };
        let queries = iter::once(query).chain(queries_in_path.iter().map(String::as_str));
        let parameters = queries.map(|query| routes.parameters(query)).collect::<Result<_, _>>();
        let parameters = parameters.map_err(|TooManyReadings| Rejection::QueryAmbiguous)?;
        Ok(Self {
            host,
            hosts_as_sent,
            host_in_path,
            forwarded,
            matched,
            readings,
            query,
            queries_in_path,
            parameters,
        })
    }

    /// Returns what routing looks at.
    pub(crate) fn view<'a>(&'a self, parts: &'a Parts, claims: &'a dyn VerifiedClaims) -> View<'a> {
        let Self { host, matched: path, parameters, .. } = self;
        let Parts { method, headers, .. } = parts;
        View::new(method, host, path, &parameters[0], headers, claims)
    }

    /// Returns what else servers may look at: all combinations of how they read the path, the case of its letters, the host, the query, and
    /// repeated fields and parameters, of which they take the same occurrence. Empty if all servers read the request alike.
    ///
    /// # Errors
    /// There are too many.
    pub(crate) fn other_views<'a, T>(
        &'a self,
        parts: &'a Parts,
        claims: &'a dyn VerifiedClaims,
        routes: &Table<T>,
    ) -> Result<Vec<View<'a>>, TooManyReadings> {
        let Ok(readings) = self.readings.as_deref() else { return Err(TooManyReadings) };
        let conditions = |parameters: &Parameters| {
            let occurrences = if routes.has_repeated(&parts.headers, parameters) { REPEATED } else { ALIKE };
            (occurrences, parameters.has_respelt())
        };
        let mut views = Vec::new();
        let doubtful = routes.doubtful_literals(&self.forwarded);
        if readings.is_empty()
            && conditions(&self.parameters[0]) == (ALIKE, false)
            && self.hosts_as_sent == [None; 2]
            && doubtful == 0
            && !routes.may_differ_in_case(&self.matched)
        {
            return Ok(views);
        }
        let queries: Vec<_> =
            self.parameters.iter().map(|parameters| (parameters, conditions(parameters))).collect();
        for view in self.views_by_path(self.view(parts, claims), readings, doubtful, routes) {
            for (parameters, (occurrences, is_respelt)) in &queries {
                let view = View { parameters, ..view };
                let by_name = [Some(view), is_respelt.then_some(View { exact_names: true, ..view })];
                views.extend(by_name.into_iter().flatten().flat_map(|view| {
                    occurrences.iter().map(move |occurrence| View { occurrence: *occurrence, ..view })
                }));
            }
        }
        if views.len() > MOST_VIEWS {
            return Err(TooManyReadings);
        }
        // The first is the request's own.
        views.remove(0);
        Ok(views)
    }

    /// Returns the views of a request in which servers read its path, the case of its letters, and the host; `own` goes first. The segments
    /// `doubtful` are no literals to some.
    fn views_by_path<'a, T>(
        &'a self,
        own: View<'a>,
        readings: &'a [String],
        doubtful: Segments,
        routes: &Table<T>,
    ) -> impl Iterator<Item = View<'a>> {
        let respelt = (doubtful != 0).then_some(View { no_literals: doubtful, ..own });
        let read = readings.iter().map(move |path| View { path, ..own });
        let with_empty = read.clone().filter(|view| view.path.contains("//"));
        let params_with_text = with_empty.map(|view| View { params_have_text: true, ..view });
        let as_sent = self.hosts_as_sent.into_iter().flatten();
        let hosts = iter::once(&*self.host).chain(as_sent).chain(self.host_in_path.as_deref());
        let by_path = iter::once(own).chain(respelt).chain(read).chain(params_with_text);
        let in_both_cases = by_path.flat_map(|view| in_both_cases(view, routes));
        in_both_cases.flat_map(move |view| hosts.clone().map(move |host| View { host, ..view }))
    }

    /// Returns how many bytes of the request these parts of a key are read from, apart from the path and the host.
    pub(super) fn length_read(&self, key: &[KeyPart], headers: &HeaderMap) -> usize {
        let lines = |name: &HeaderName| headers.get_all(name).iter().map(HeaderValue::len).sum();
        let queries = iter::once(self.query).chain(self.queries_in_path.iter().map(String::as_str));
        let length = |part: &KeyPart| match part {
            KeyPart::Header(name) => lines(name),
            KeyPart::Cookie(_) => lines(&COOKIE),
            KeyPart::Query(_) => queries.clone().map(str::len).sum(),
            _ => 0,
        };
        key.iter().map(length).sum()
    }

    /// Returns the target for the upstream: path and query without dot segments. `None` if it is as the client sent it.
    pub(crate) fn forwarded_uri(&self, as_sent: &Uri) -> Option<Uri> {
        if as_sent.authority().is_none() && matches!(self.forwarded, Cow::Borrowed(_)) {
            return None;
        }
        Some(self.with_query(&self.forwarded, as_sent).expect("a part of a valid target is valid").into())
    }

    /// Returns the target for the upstream with a rewritten path.
    ///
    /// # Errors
    /// The path is too long, or an upstream might leave the directory where the route puts it, or take its beginning for a host.
    pub(crate) fn rewritten_uri(&self, path: &str, as_sent: &Uri) -> Result<Uri, Rejection> {
        if path::has_hidden_dots(path) || path::begins_with_host(path) {
            return Err(Rejection::RewriteInvalid);
        }
        self.with_query(path, as_sent).map(Uri::from).map_err(|_| Rejection::RewriteInvalid)
    }

    fn with_query(&self, path: &str, as_sent: &Uri) -> Result<PathAndQuery, InvalidUri> {
        let separator = if as_sent.query().is_some() { "?" } else { "" };
        PathAndQuery::from_maybe_shared([path, separator, self.query].concat())
    }
}

/// Returns a path as it is forwarded and as it is matched, and its other readings.
fn read_path(as_sent: &str) -> (Cow<'_, str>, Cow<'_, str>, Result<Vec<String>, TooManyReadings>) {
    let forwarded = path::forwarded(as_sent);
    let matched = match &forwarded {
        Cow::Borrowed(forwarded) => path::matched(forwarded),
        Cow::Owned(forwarded) => path::matched(forwarded).into_owned().into(),
    };
    let readings = path::readings(&forwarded, &matched);
    (forwarded, matched, readings)
}

/// Returns the host of a percent-encoded authority, if it is valid.
fn decoded_host(authority: &str) -> Option<String> {
    let decoded = percent_decode_str(authority).decode_utf8().ok()?;
    Some(host_of(decoded.rsplit('@').next()?).ok()?.0.into_owned())
}

/// Checks that a method isn't CONNECT, and has only capital letters, `-` and `_`.
fn check_method(method: &Method) -> Result<(), Rejection> {
    match method {
        &Method::CONNECT => Err(Rejection::Connect),
        method if !is_valid(method) => Err(Rejection::MethodInvalid),
        _ => Ok(()),
    }
}

/// Checks that no field has the byte FF, and that the request has no expectation other than `100-continue`.
fn check_fields(parts: &Parts) -> Result<(), Rejection> {
    // One look at each field is cheaper than looking up one that is rarely there.
    for (name, value) in &parts.headers {
        if has_ff(value) {
            return Err(Rejection::FieldInvalid);
        }
        if name == EXPECT && parts.version > Version::HTTP_10 && has_unknown_expectation(value) {
            return Err(Rejection::ExpectationUnknown);
        }
    }
    Ok(())
}

/// Returns true for a method of capital letters, `-` and `_`. Some servers take `post` for POST, whose limits it would escape (RFC 9110,
/// section 9.1: methods are case-sensitive), and nginx may end an HTTP/2 connection for other characters.
fn is_valid(method: &Method) -> bool {
    method.as_str().bytes().all(|byte| byte.is_ascii_uppercase() || matches!(byte, b'-' | b'_'))
}

/// Returns a view, and the same in any case of letters if that may lead to another route.
fn in_both_cases<'v, T>(view: View<'v>, routes: &Table<T>) -> impl Iterator<Item = View<'v>> {
    let in_any = routes.may_differ_in_case(view.path).then_some(View { ignores_case: true, ..view });
    iter::once(view).chain(in_any)
}

/// Returns true for a health check, if this is the path of health checks.
pub(crate) fn is_health_check(health: Option<&PathAndQuery>, method: &Method, uri: &Uri) -> bool {
    matches!(*method, Method::GET | Method::HEAD) && health.is_some_and(|health| health.path() == uri.path())
}

/// Returns true for `OPTIONS *`, which is about the server and not about a resource (RFC 9110, section 9.3.7).
pub(crate) fn is_about_server(parts: &Parts) -> bool {
    parts.method == Method::OPTIONS && parts.uri.path() == "*"
}

/// Returns the host that the client asks for: the target's, if it is a full URL, else that of the Host field (RFC 9112,
/// section 3.2).
///
/// # Errors
/// The Host field is missing, repeated or invalid, for any target.
pub(crate) fn host(parts: &Parts) -> Result<Cow<'_, str>, Rejection> {
    Ok(hosts(parts)?.0)
}

/// Returns the [host] that the client asks for, and how the client [wrote](host_of) it.
fn hosts(parts: &Parts) -> Result<(Cow<'_, str>, [&str; 2]), Rejection> {
    let mut lines = parts.headers.get_all(HOST).into_iter();
    let authority = parts.uri.authority().map(Authority::as_str);
    let named = match (lines.next(), lines.next()) {
        (Some(only), None) => Some(only.to_str().map_err(|_| Rejection::HostInvalid)?),
        (Some(_), Some(_)) => return Err(Rejection::HostRepeated),
        (None, _) if parts.version == Version::HTTP_10 => None,
        (None, _) if parts.version == Version::HTTP_2 && authority.is_some() => None,
        (None, _) => return Err(Rejection::HostMissing),
    };
    let host = named.map(asked_host).transpose()?;
    match (authority, named) {
        // Two different hosts in HTTP/2 can only be an attack (RFC 9113, section 8.3.1).
        (Some(authority), Some(named))
            if parts.version == Version::HTTP_2 && !authority.eq_ignore_ascii_case(named) =>
        {
            Err(Rejection::HostRepeated)
        }
        (Some(authority), _) => asked_host(authority),
        (None, _) => Ok(host.unwrap_or_default()),
    }
}

/// Returns the [host](host_of) of an authority. Servers that read a tenant in its labels skip those that are empty, so it may have none.
fn asked_host(authority: &str) -> Result<(Cow<'_, str>, [&str; 2]), Rejection> {
    let (host, sent) = host_of(authority)?;
    let has_empty_label = host.as_bytes().split(|byte| *byte == b'.').any(<[u8]>::is_empty);
    if has_empty_label { Err(Rejection::HostInvalid) } else { Ok((host, sent)) }
}

/// Returns what servers take for the query that end the path at its first `;`, or at an escaped `?`, or look for parameters behind a `&`
/// in it (Hono before 4.10.5). To the second, a fragment or a line may end in it, too (h3).
fn queries_in_path(path: &str, query: &str) -> Vec<String> {
    let separator = if query.is_empty() { "" } else { "?" };
    let behind = |text: &str, end: char| Some([text.split_once(end)?.1, separator, query].concat());
    let decoded = percent_decode_str(path).decode_utf8_lossy();
    let whole = behind(&decoded, '?');
    let ends = ['#', '\n', '\r', '\u{2028}', '\u{2029}'];
    let cut = whole.as_ref().and_then(|whole| Some(whole.split_once(ends)?.0.to_owned()));
    [behind(path, ';'), behind(path, '&'), whole, cut].into_iter().flatten().collect()
}

/// Returns true for an `Expect` with another expectation than `100-continue`.
fn has_unknown_expectation(value: &HeaderValue) -> bool {
    let mut members = value.as_bytes().split(|byte| *byte == b',');
    members.any(|member| !member.trim_ascii().eq_ignore_ascii_case(b"100-continue"))
}

/// Properties of a host that one byte shows: it is invalid, or it isn't in lower case.
const NO_HOST: u8 = 1;
const UPPER_CASE: u8 = 2;

/// Returns the properties that a byte shows. Valid bytes are those of a registered name (RFC 3986, section 3.2.2), except `%` and `,`. An
/// `Authority` has no escapes, so an HTTP/2 upstream would get another host; and servers take X-Forwarded-Host for a list, of which
/// some use the first and some the last member.
const fn of_host(byte: u8) -> u8 {
    match byte {
        b'a'..=b'z' | b'0'..=b'9' | b'!' | b'$' | b'&'..=b'+' | b'-' | b'.' | b';' | b'=' | b'_' | b'~' => 0,
        b'A'..=b'Z' => UPPER_CASE,
        _ => NO_HOST,
    }
}

/// The properties of each byte, in a table since the host of every request is checked.
const OF_HOST: [u8; 256] = {
    let (mut all, mut byte) = ([0; 256], 0);
    while byte < 256 {
        all[byte] = of_host(byte as u8);
        byte += 1;
    }
    all
};

/// Returns the host of an authority; and as it is there without the port, with a dot or a colon at its end and without these.
fn host_of(authority: &str) -> Result<(Cow<'_, str>, [&str; 2]), Rejection> {
    let (host, port) = match authority.bytes().rposition(|byte| byte == b':') {
        Some(colon) if !authority.ends_with(']') => (&authority[..colon], &authority[colon + 1..]),
        _ => (authority, ""),
    };
    if host.len() > HOST_MOST || port.len() > "65535".len() || !port.bytes().all(|byte| byte.is_ascii_digit())
    {
        return Err(Rejection::HostInvalid);
    }
    // A colon without a port belongs to the host for some servers.
    let sent = if port.is_empty() { authority } else { host };
    if let Some(literal) = host.strip_prefix('[') {
        let address: Option<Ipv6Addr> = literal.strip_suffix(']').and_then(|literal| literal.parse().ok());
        let host = address.map(|address| format!("[{address}]")).ok_or(Rejection::HostInvalid)?;
        return Ok((host.into(), [sent, sent]));
    }
    let host = host.strip_suffix('.').unwrap_or(host);
    let seen = host.bytes().fold(0, |seen, byte| seen | OF_HOST[usize::from(byte)]);
    if host.is_empty() || host.ends_with('.') || seen & NO_HOST != 0 {
        return Err(Rejection::HostInvalid);
    }
    let lower = match seen & UPPER_CASE != 0 {
        true => Cow::Owned(host.to_ascii_lowercase()),
        false => Cow::Borrowed(host),
    };
    Ok((lower, [sent, host]))
}

#[cfg(test)]
mod tests {
    use hyper::Request;

    use super::*;

    fn read(parts: &Parts) -> Result<Target<'_>, Rejection> {
        Target::read(parts, EscapedSlashes::Reject, &Table::<()>::new([]))
    }

    fn host_and_uri(version: Version, target: &str, hosts: &[&str]) -> Result<(String, String), Rejection> {
        let mut request = Request::builder().version(version).uri(target);
        for host in hosts {
            request = request.header(HOST, *host);
        }
        let (parts, ()) = request.body(()).unwrap().into_parts();
        let target = read(&parts)?;
        let uri = target.forwarded_uri(&parts.uri).unwrap_or_else(|| parts.uri.clone());
        Ok((target.host.into_owned(), uri.to_string()))
    }

    #[test]
    fn a_method_is_in_upper_case() {
        for (method, is_valid) in [("POST", true), ("M-SEARCH", true), ("post", false), ("PoST", false)] {
            let request = Request::builder().method(method).uri("/").header(HOST, "a");
            let (parts, ()) = request.body(()).unwrap().into_parts();
            let read = read(&parts);
            assert_eq!(!matches!(read, Err(Rejection::MethodInvalid)), is_valid, "{method}");
        }
    }

    #[test]
    fn a_query_may_begin_in_the_path() {
        for (target, expected) in [
            ("/a?k=1", &[][..]),
            ("/a;k=1?k=2", &["k=1?k=2"]),
            ("/a&k=1&?k=2", &["k=1&?k=2"]),
            ("/a%3Fk=1", &["k=1"]),
        ] {
            let (parts, ()) = Request::get(target).header(HOST, "a").body(()).unwrap().into_parts();
            assert_eq!(read(&parts).unwrap().queries_in_path, expected, "{target}");
        }
    }

    #[test]
    fn a_rewritten_path_stays_on_the_upstream() {
        let (parts, ()) = Request::get("/").header(HOST, "a").body(()).unwrap().into_parts();
        let target = read(&parts).unwrap();
        for (path, is_valid) in
            [("/a/b", true), ("/a/\\b", true), ("/\\x/a", false), ("//x/a", false), ("/a/../b", false)]
        {
            assert_eq!(target.rewritten_uri(path, &parts.uri).is_ok(), is_valid, "{path}");
        }
    }

    #[test]
    fn the_host_is_read_by_one_rule() {
        for (target, host, expected) in [
            ("/", "API.Example.com:8080", "api.example.com"),
            ("/", "api.example.com.", "api.example.com"),
            ("/", "[2001:DB8:0::1]:80", "[2001:db8::1]"),
            ("/", "192.0.2.7:1", "192.0.2.7"),
            ("http://other.example/a", "api.example.com", "other.example"),
        ] {
            assert_eq!(host_and_uri(Version::HTTP_11, target, &[host]).unwrap().0, expected, "{host}");
        }
        for host in [
            "", "a b", "a:x", "[::1", "[::g]", "a@b", "a/b", ":80", ".", "a..", "a..:80", ".a", "a..b",
            "a%41", "a,b",
        ] {
            let read = host_and_uri(Version::HTTP_11, "/", &[host]);
            assert!(matches!(read, Err(Rejection::HostInvalid)), "{host}: {read:?}");
            let read = self::host_and_uri(Version::HTTP_11, "http://a/", &[host]);
            assert!(matches!(read, Err(Rejection::HostInvalid)), "{host}: {read:?}");
        }
    }

    #[test]
    fn a_request_has_exactly_one_host() {
        assert!(matches!(host_and_uri(Version::HTTP_11, "/", &[]), Err(Rejection::HostMissing)));
        assert!(matches!(host_and_uri(Version::HTTP_11, "http://a/", &[]), Err(Rejection::HostMissing)));
        assert!(matches!(host_and_uri(Version::HTTP_10, "/", &["a", "a"]), Err(Rejection::HostRepeated)));
        assert_eq!(host_and_uri(Version::HTTP_10, "/", &[]).unwrap().0, "");
    }

    #[test]
    fn only_dot_segments_are_removed_from_the_target() {
        for (target, expected) in [
            ("/a//b%41/?x=%2F&y", "/a//b%41/?x=%2F&y"),
            ("/a/../b?", "/b?"),
            ("/a/%2e%2E/b?q=/../", "/b?q=/../"),
            ("http://a/c/./d?e", "/c/d?e"),
        ] {
            assert_eq!(host_and_uri(Version::HTTP_11, target, &["a"]).unwrap().1, expected);
        }
    }

    #[test]
    fn targets_without_a_path_are_invalid() {
        for target in ["*", "a", "a:80", "ftp://a/b"] {
            assert!(
                matches!(host_and_uri(Version::HTTP_11, target, &["a"]), Err(Rejection::TargetInvalid)),
                "{target}"
            );
        }
        for target in ["/a%00b", "http://a/%00", "/log%6@n", "/login%"] {
            assert!(
                matches!(host_and_uri(Version::HTTP_11, target, &["a"]), Err(Rejection::EscapeInvalid)),
                "{target}"
            );
        }
        assert!(host_and_uri(Version::HTTP_11, "/a?q=100%", &["a"]).is_ok());
        assert!(matches!(host_and_uri(Version::HTTP_11, "/a%2fb", &["a"]), Err(Rejection::EscapedSlash)));
        assert!(matches!(host_and_uri(Version::HTTP_11, "/a%5Cb", &["a"]), Err(Rejection::EscapedSlash)));
    }
}
