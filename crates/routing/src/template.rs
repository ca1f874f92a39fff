//! Templates for paths and URLs, which a route fills with the parameters of its pattern: `/orders/{id}`.
//!
//! A parameter is replaced by the forwarded bytes it stands for ([`Pattern::as_forwarded`]), so escapes stay as
//! received. It is a whole segment, or the rest at the end. So it is never a dot segment, and can't form one with its
//! neighbours. Paths that an upstream might still read as one are for the caller to reject ([`path::has_hidden_dots`]).

use std::str::FromStr;

use http::uri::Authority;
use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};

use super::{path, pattern::Pattern};

/// Characters that a URL can't have (RFC 3986, appendix A), though the path of a request can. Browsers read `/\host`
/// as `//host`.
pub const NOT_IN_URLS: &AsciiSet = &CONTROLS
    .add(b' ')
    .add(b'"')
    .add(b'<')
    .add(b'>')
    .add(b'\\')
    .add(b'^')
    .add(b'`')
    .add(b'{')
    .add(b'|')
    .add(b'}');

/// A path with parameters to fill in. It has no query.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Template {
    /// The template as written in the file.
    text: String,
    /// The patterns of the paths that it yields: its own, then those of its other [readings](path::readings).
    shapes: Vec<Pattern>,
}

impl Template {
    /// Returns the parameters as written: `{id}`, `{*rest}`.
    pub fn params(&self) -> impl Iterator<Item = &str> {
        self.text.split('/').filter(|segment| segment.starts_with('{'))
    }

    /// Returns true if plain parameters could yield this path, or one with this reading. It is in the form of [`path::matched`].
    pub fn yields(&self, path: &str) -> bool {
        self.shapes.iter().any(|shape| shape.matches(path))
    }

    /// Returns true if plain parameters could yield this path, or one with this reading, in any case of letters.
    pub fn yields_in_any_case(&self, path: &str) -> bool {
        self.shapes.iter().any(|shape| shape.matches_in_any_case(path))
    }

    /// Fills in the parameters of a forwarded path that matches the pattern. A parameter that the pattern doesn't
    /// have is left out.
    pub fn fill(&self, pattern: &Pattern, forwarded: &str) -> String {
        let mut filled = String::with_capacity(self.text.len() + forwarded.len());
        for segment in self.text.split('/').skip(1) {
            filled.push('/');
            filled += match name(segment) {
                Some(name) => pattern.as_forwarded(name, forwarded).unwrap_or_default(),
                None => segment,
            };
        }
        filled
    }
}

/// Returns the name of the parameter, if a segment is one.
fn name(segment: &str) -> Option<&str> {
    let name = segment.strip_prefix('{')?.strip_suffix('}')?;
    Some(name.strip_prefix('*').unwrap_or(name))
}

impl FromStr for Template {
    type Err = String;

    /// Parses the text of the file. The error is a message and, on a line of its own, the remedy.
    fn from_str(text: &str) -> Result<Self, String> {
        if text.contains(['?', '#']) {
            return Err(format!(
                "`{text}` has a query or a fragment\nwrite only a path: the query of the request is kept"
            ));
        }
        if text.contains("{*") && text.ends_with('/') {
            return Err(format!("`{text}` has a slash after the rest\nremove the slash at the end"));
        }
        let is_group =
            |segment: &&str| segment.strip_prefix('$').is_some_and(|group| group.parse::<u8>().is_ok());
        if let Some(group) = text.split('/').find(is_group) {
            return Err(format!(
                "`{group}` in `{text}` is not a parameter\nwrite one as the route's `path` has it: `{{id}}`, `{{*rest}}`"
            ));
        }
        // A template has the same kinds of segments as a pattern.
        let mut shapes = vec![text.parse::<Pattern>()?];
        let literals = text.split('/').filter(|segment| name(segment).is_none());
        if let Some(bad) = literals.into_iter().find(|segment| !is_of_url(segment)) {
            return Err(format!(
                "`{bad}` has characters that a URL can't have\nwrite them as percent-escapes, for example %20 for a space"
            ));
        }
        let readings = path::readings(text, &path::matched(text)).unwrap_or_default();
        shapes.extend(readings.iter().filter_map(|reading| reading.parse().ok()));
        Ok(Self { text: text.to_owned(), shapes })
    }
}

/// Returns true if a text can be part of a URL's path or query as it is.
fn is_of_url(text: &str) -> bool {
    let is_known = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~!$&'()*+,;=:@/?%".contains(&byte);
    text.bytes().all(is_known) && text.split('%').skip(1).all(|behind| path::is_escape(behind.as_bytes()))
}

/// The target of a redirect: `https://other.example/v2/{*rest}`, `/v2/orders/{id}`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Location {
    /// Scheme and authority, `https://host:port`. Empty for a redirect to the same host.
    origin: String,
    path: Template,
    query: String,
}

impl Location {
    /// Returns the parameters as written.
    pub fn params(&self) -> impl Iterator<Item = &str> {
        self.path.params()
    }

    /// Fills in the parameters of a forwarded path that matches the pattern, and appends the query of the request to
    /// the target's own. The result has only characters that are valid in a URL, and its host is the one in the file.
    pub fn fill(&self, pattern: &Pattern, forwarded: &str, query: &str) -> String {
        let path = self.path.fill(pattern, forwarded);
        let mut url = self.origin.clone();
        url.extend(utf8_percent_encode(&path, NOT_IN_URLS));
        for (at, query) in [&*self.query, query].into_iter().filter(|query| !query.is_empty()).enumerate() {
            url.push(if at == 0 { '?' } else { '&' });
            url.extend(utf8_percent_encode(query, NOT_IN_URLS));
        }
        url
    }
}

impl FromStr for Location {
    type Err = String;

    /// Parses the text of the file. The error is a message and, on a line of its own, the remedy.
    fn from_str(text: &str) -> Result<Self, String> {
        let fault = |why: &str| {
            format!(
                "`{text}` {why}\nwrite a path or a URL: \"/v2/{{*rest}}\", \"https://shop.example/orders/{{id}}\""
            )
        };
        let scheme = ["http://", "https://"].into_iter().find(|scheme| text.starts_with(scheme));
        let start = scheme.map_or(0, |scheme| {
            let host = &text[scheme.len()..];
            scheme.len() + host.find(['/', '?', '#']).unwrap_or(host.len())
        });
        let (origin, rest) = text.split_at(start);
        if let Some(scheme) = scheme {
            let authority = origin[scheme.len()..].parse::<Authority>();
            let is_host = |authority: &Authority| {
                let (host, all) = (authority.host(), authority.as_str());
                let port = all.strip_prefix(host).map(|port| port.strip_prefix(':').unwrap_or("0"));
                !host.is_empty()
                    && !all.contains(['@', '{', '}'])
                    && port.is_some_and(|port| port.parse::<u16>().is_ok())
            };
            authority.ok().filter(is_host).ok_or_else(|| fault("has no valid host"))?;
        } else if !rest.starts_with('/') || rest.starts_with("//") {
            return Err(fault("is neither a path nor a URL"));
        }
        if rest.contains('#') {
            return Err(fault("has a fragment, and the query of the request would come after it"));
        }
        let (path, query) = rest.split_once('?').unwrap_or((rest, ""));
        if !is_of_url(query) {
            return Err(fault(
                "has a query with characters that a URL can't have; parameters are only allowed in the path",
            ));
        }
        let path = if path.is_empty() { "/" } else { path };
        Ok(Self { origin: origin.to_owned(), path: path.parse()?, query: query.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use proptest::{collection::vec, prelude::*, sample::select};

    use super::*;

    fn pattern(text: &str) -> Pattern {
        text.parse().expect(text)
    }

    fn filled(template: &str, by: &str, forwarded: &str) -> String {
        template.parse::<Template>().expect(template).fill(&pattern(by), forwarded)
    }

    #[test]
    fn parameters_are_filled_in_as_they_came() {
        for (template, by, forwarded, expected) in [
            ("/orders/{id}", "/v1/orders/{id}", "/v1/orders/7", "/orders/7"),
            ("/orders/{id}/", "/v1/orders/{id}", "//v1//orders//a%2Fb%41/", "/orders/a%2Fb%41/"),
            ("/{b}/{a}", "/{a}/x/{b}", "/1/x/2", "/2/1"),
            ("/{*rest}", "/v1/{*rest}", "/v1//a//b%7e/", "/a//b%7e/"),
            ("/new/{*rest}", "/v1/{*rest}", "/v1", "/new/"),
            ("/new/{*rest}", "/{*rest}", "/", "/new/"),
            ("/", "/v1/{*rest}", "/v1/a", "/"),
            ("/a%20b/{id}", "/{id}", "/%zz", "/a%20b/%zz"),
        ] {
            assert_eq!(filled(template, by, forwarded), expected, "{template} of {forwarded}");
        }
    }

    #[test]
    fn an_invalid_template_is_rejected() {
        for text in [
            "",
            "orders",
            "/a?b=1",
            "/a#b",
            "/a b",
            "/é",
            "/a\\b",
            "/a%zz",
            "/a%2",
            "/a//b",
            "/../a",
            "/x{id}",
            "/{*rest}/a",
            "/{*rest}/",
        ] {
            assert!(text.parse::<Template>().is_err(), "{text}");
        }
    }

    #[test]
    fn clients_are_sent_where_the_file_says() {
        for (to, by, forwarded, query, expected) in [
            ("/new/{id}", "/old/{id}", "/old/7", "", "/new/7"),
            ("/new/{id}", "/old/{id}", "/old/7", "a=%41&b", "/new/7?a=%41&b"),
            ("https://b.example:8443/{*rest}", "/{*rest}", "/x//y/", "q", "https://b.example:8443/x//y/?q"),
            ("https://b.example", "/{*rest}", "/x", "", "https://b.example/"),
            ("https://b.example?from=a", "/", "/", "q=1", "https://b.example/?from=a&q=1"),
            // No other host is named by what comes.
            ("/{*rest}", "/go/{*rest}", "/go//evil.example", "", "/evil.example"),
            ("/{*rest}", "/go/{*rest}", "/go/\\evil.example", "", "/%5Cevil.example"),
            ("/{id}", "/go/{id}", "/go/\\\\evil", "x=\\\"<é", "/%5C%5Cevil?x=%5C%22%3C%C3%A9"),
            ("/{id}", "/go/{id}", "/go/a%0d%0ab", "", "/a%0d%0ab"),
        ] {
            let location = to.parse::<Location>().expect(to);
            assert_eq!(location.fill(&pattern(by), forwarded, query), expected, "{to} of {forwarded}");
        }
    }

    #[test]
    fn an_invalid_redirect_is_rejected() {
        for text in [
            "",
            "orders",
            "//b.example/",
            "ftp://b.example/",
            "https://",
            "https:///a",
            "https://{host}/",
            "https://me@b.example/",
            "https://b.example:port/",
            "/a#b",
            "/a?{id}",
            "/a?b c",
            "/a\r\nx",
            "https://b.example{*rest}",
        ] {
            assert!(text.parse::<Location>().is_err(), "{text:?}");
        }
    }

    const BYTES: &[&str] = &[
        "/",
        "//",
        "a",
        ".",
        "..",
        "%2e",
        "%2F",
        "%5c",
        "\\",
        ";",
        "%",
        "%0D",
        "é",
        "?",
        "evil.example",
        "@",
        ":",
    ];

    proptest! {
        /// A parameter is filled in with the text that it matched, and never becomes a dot segment.
        #[test]
        fn parameters_are_those_that_were_matched(parts in vec(select(BYTES), 0..12)) {
            let sent = format!("/v1/{}", parts.concat().replace('?', ""));
            let forwarded = path::forwarded(&sent);
            let matched = path::matched(&forwarded);
            let Some(rest) = matched.strip_prefix("/v1/") else { return Ok(()) };
            let by = pattern("/v1/{id}/{*rest}");
            let (id, rest) = rest.split_once('/').unwrap_or((rest, ""));
            for (name, value) in [("id", id), ("rest", rest)] {
                let raw = format!("/{}", by.as_forwarded(name, &forwarded).expect("a parameter of the pattern"));
                prop_assert_eq!(path::matched(&raw), format!("/{value}"));
            }

            let rewritten = filled("/b/{id}/{*rest}", "/v1/{id}/{*rest}", &forwarded);
            prop_assert_eq!(&path::forwarded(&rewritten), &rewritten);
        }

        /// For any request, the answer leads to the host in the file, in one line of visible ASCII.
        #[test]
        fn no_request_chooses_the_host(parts in vec(select(BYTES), 0..12), query in vec(select(BYTES), 0..4)) {
            let sent = format!("/go/{}", parts.concat().replace('?', ""));
            let forwarded = path::forwarded(&sent);
            if !path::matched(&forwarded).starts_with("/go") {
                return Ok(());
            }
            let to = "/{*rest}".parse::<Location>().expect("a location");
            let url = to.fill(&pattern("/go/{*rest}"), &forwarded, &query.concat());
            prop_assert!(url.bytes().all(|byte| byte.is_ascii_graphic()), "{}", url);
            prop_assert!(url.starts_with('/') && !url.starts_with("//") && !url.contains('\\'), "{}", url);
        }
    }
}
