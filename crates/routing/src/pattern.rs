//! The pattern of a route's path.
//!
//! A parsed pattern needs no further check. Literals are held in the form in which requests are matched
//! ([`path::matched`]), so that matching is plain comparison. The routing [`Table`](crate::Table) compares all
//! patterns at once.

use std::{collections::HashSet, fmt, str::FromStr};

use super::path;

/// The path of a route: `/v1/orders/{id}`, `/static/{*rest}`.
///
/// A segment is a literal, `{param}` for any one segment, or at the end `{*rest}` for any rest, including the
/// empty one: `/a/{*rest}` matches `/a`. A trailing slash is insignificant. A literal may be written with
/// percent-escapes; `{`, `}`, `*`, `?` and `#` must be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pattern {
    segments: Vec<Segment>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Segment {
    /// A literal, in the form of [`path::matched`].
    Literal(String),
    Param(String),
    Rest(String),
}

/// A segment of a pattern without the parameter's name, which doesn't matter to matching.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum SegmentShape<'p> {
    Literal(&'p str),
    Param,
    Rest,
}

impl Pattern {
    /// The most segments of a pattern; it bounds how deep the search of a route goes.
    pub const MAX_SEGMENTS: usize = 64;

    /// Returns the pattern `/{*rest}`, which matches any path.
    pub fn any() -> Self {
        Self { segments: vec![Segment::Rest("rest".to_owned())] }
    }

    /// Returns the names of the parameters from the left, `{*rest}` included.
    pub fn params(&self) -> impl Iterator<Item = &str> {
        self.segments.iter().filter_map(Segment::param)
    }

    /// Returns the part of a [`path::forwarded`] path that a parameter stands for, byte for byte. The path must match
    /// the pattern. `{*rest}` begins at its first segment that isn't empty.
    pub fn as_forwarded<'f>(&self, name: &str, forwarded: &'f str) -> Option<&'f str> {
        let at = self.segments.iter().position(|segment| segment.param() == Some(name))?;
        let after = |path: &'f str| path.split_once('/').map_or("", |(_, rest)| rest).trim_start_matches('/');
        let rest = (0..at).fold(forwarded.trim_start_matches('/'), |path, _| after(path));
        match self.segments[at] {
            Segment::Rest(_) => Some(rest),
            _ => rest.split('/').next(),
        }
    }

    /// Returns true if both patterns match the same paths: they differ in the names of parameters at most.
    pub fn same_shape(&self, other: &Self) -> bool {
        self.steps().eq(other.steps())
    }

    /// Returns true if a path in the form of [`path::matched`] has this pattern. An empty segment is a parameter.
    pub(crate) fn matches(&self, path: &str) -> bool {
        self.matches_by(path, |literal, segment| literal == segment)
    }

    /// Returns true if a path in the form of [`path::matched`] has this pattern in any case of letters.
    pub fn matches_in_any_case(&self, path: &str) -> bool {
        self.matches_by(path, path::are_alike)
    }

    fn matches_by(&self, path: &str, is_alike: impl Fn(&str, &str) -> bool) -> bool {
        let rest = path.strip_prefix('/').filter(|rest| !rest.is_empty());
        let mut segments = rest.into_iter().flat_map(|rest| rest.split('/'));
        for step in self.steps() {
            match step {
                SegmentShape::Literal(text) if segments.next().is_some_and(|next| is_alike(text, next)) => {}
                SegmentShape::Param if segments.next().is_some() => {}
                SegmentShape::Rest => return true,
                _ => return false,
            }
        }
        segments.next().is_none()
    }

    pub(crate) fn steps(&self) -> impl Iterator<Item = SegmentShape<'_>> {
        self.segments.iter().map(|segment| match segment {
            Segment::Literal(text) => SegmentShape::Literal(text),
            Segment::Param(_) => SegmentShape::Param,
            Segment::Rest(_) => SegmentShape::Rest,
        })
    }
}

impl FromStr for Pattern {
    type Err = String;

    /// Parses a pattern. The error is a message and, on a line of its own, the remedy.
    fn from_str(text: &str) -> Result<Self, String> {
        if !text.starts_with('/') {
            let remedy = match text.split_once("://").map(|(_, url)| url.split_once('/').unwrap_or((url, ""))) {
                Some((host, path)) => format!("write host = \"{host}\" and path = \"/{path}\""),
                None if text.contains(['^', '~', '=', '(', '`', ' ']) => {
                    "write a path, which begins with a slash: `/api`, or `/api/{*rest}` for all paths below it".to_owned()
                }
                None => format!("write `/{text}`"),
            };
            return Err(format!("`{text}` does not begin with a slash\n{remedy}"));
        }
        if text.contains("?}") {
            return Err(format!(
                "`{text}` has an optional parameter\nwrite two routes, one with the parameter `{{id}}` and one without it"
            ));
        }
        if text.contains(['?', '#']) {
            return Err(format!(
                "`{text}` has a query or a fragment\n\
                 match parameters with `query = {{ name = \"value\" }}`; as part of a path write %3F and %23"
            ));
        }
        if text.contains("//") {
            return Err(format!(
                "`{text}` has an empty segment\nwrite a single slash: those of a request are merged before matching"
            ));
        }
        let segments = text.split('/').filter(|segment| !segment.is_empty());
        let pattern = Self { segments: segments.map(str::parse).collect::<Result<_, _>>()? };
        pattern.check(text)?;
        Ok(pattern)
    }
}

impl Pattern {
    /// Checks for errors that involve several segments.
    fn check(&self, text: &str) -> Result<(), String> {
        if self.segments.len() > Self::MAX_SEGMENTS {
            return Err(format!(
                "`{text}` has too many segments\nuse at most {}, and `{{*rest}}` for the others",
                Self::MAX_SEGMENTS
            ));
        }
        let mut names = HashSet::new();
        if let Some(name) = self.params().find(|name| !names.insert(*name)) {
            return Err(format!(
                "`{text}` has the parameter `{name}` twice\ngive each parameter a name of its own"
            ));
        }
        let is_rest = |segment: &&Segment| matches!(segment, Segment::Rest(_));
        if let Some(rest) = self.segments.iter().rev().skip(1).find(is_rest) {
            return Err(format!(
                "`{rest}` is not the end of `{text}`\nput it at the end, or write `{{name}}` for one segment"
            ));
        }
        Ok(())
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.segments.is_empty() {
            return f.write_str("/");
        }
        self.segments.iter().try_for_each(|segment| write!(f, "/{segment}"))
    }
}

impl Segment {
    fn param(&self) -> Option<&str> {
        match self {
            Self::Literal(_) => None,
            Self::Param(name) | Self::Rest(name) => Some(name),
        }
    }
}

impl FromStr for Segment {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let braced = text.strip_prefix('{').and_then(|text| text.strip_suffix('}'));
        let (fault, remedy) = if let Some(name) = braced.filter(|name| !name.contains(['{', '}'])) {
            match name.strip_prefix('*') {
                Some(name) if is_parameter_name(name) => return Ok(Self::Rest(name.to_owned())),
                None if is_parameter_name(name) => return Ok(Self::Param(name.to_owned())),
                _ => (
                    "has no valid name",
                    "use letters, digits, `_` and `-`, and no pattern: `{id}` for one segment, `{*rest}` for the rest",
                ),
            }
        } else if text.contains(['{', '}']) {
            (
                "is neither a literal nor a parameter",
                "a parameter is a whole segment: `{id}`; write literal braces as %7B and %7D",
            )
        } else if text.contains('*') {
            (
                "is not a wildcard",
                "write `{name}` for any one segment, `{*rest}` at the end for any rest, %2A for the character",
            )
        } else if path::is_dot_segment(text) {
            ("is a dot segment", "leave it out: those of a request are removed before matching")
        } else {
            return Ok(Self::Literal(path::canonical_segment(text)));
        };
        Err(format!("`{text}` {fault}\n{remedy}"))
    }
}

fn is_parameter_name(text: &str) -> bool {
    !text.is_empty() && text.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '-'))
}

impl fmt::Display for Segment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Literal(text) => text.chars().try_for_each(|c| match c {
                '{' | '}' | '*' | '?' | '#' | '\0'..' ' => write!(f, "%{:02X}", u32::from(c)),
                _ => write!(f, "{c}"),
            }),
            Self::Param(name) => write!(f, "{{{name}}}"),
            Self::Rest(name) => write!(f, "{{*{name}}}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pattern(text: &str) -> Pattern {
        text.parse().expect(text)
    }

    #[test]
    fn a_pattern_prints_as_it_is_written() {
        for text in [
            "/",
            "/v1/orders/{id}",
            "/{*rest}",
            "/a/{x_1}/{y-2}/b/{*rest}",
            "/a%2Fb/%25",
            "/café",
            "/%7Bid%7D/%2A/%3F%23",
            "/%0A",
            "/%FF",
            "/v1/jobs:cancel",
        ] {
            let printed = pattern(text).to_string();
            assert_eq!(printed, text);
            assert_eq!(pattern(&printed), pattern(text));
        }
    }

    #[test]
    fn spellings_of_a_pattern_are_equal() {
        for (text, same) in [
            ("/a/", "/a"),
            ("/caf%c3%a9", "/café"),
            ("/%61%2f", "/a%2F"),
            ("/100%", "/100%25"),
            ("/{*rest}/", "/{*rest}"),
        ] {
            assert_eq!(pattern(text), pattern(same));
        }
    }

    #[test]
    fn parameters_are_named_from_the_left() {
        let pattern = pattern("/{b}/x/{a}/{*rest}");
        assert_eq!(pattern.params().collect::<Vec<_>>(), ["b", "a", "rest"]);
    }

    #[test]
    fn the_names_of_parameters_are_no_part_of_the_shape() {
        for (one, other, same) in [
            ("/a/{x}", "/a/{y}", true),
            ("/a/{*x}", "/a/{*y}", true),
            ("/a/{x}", "/a/{*x}", false),
            ("/a/{x}", "/b/{x}", false),
            ("/a/{x}", "/a/{x}/{y}", false),
            ("/a/%7Bx%7D", "/a/{x}", false),
        ] {
            assert_eq!(pattern(one).same_shape(&pattern(other)), same, "{one} {other}");
        }
    }

    #[test]
    fn a_path_has_the_pattern_or_not() {
        for (text, path, expected) in [
            ("/", "/", true),
            ("/", "/a", false),
            ("/a/{id}", "/a/7", true),
            ("/a/{id}", "/a", false),
            ("/a/{id}/b", "/a//b", true),
            ("/a/b", "/a//b", false),
            ("/a/{id}", "/b/7", false),
            ("/a/{id}", "/a/7/b", false),
            ("/a/{*rest}", "/a", true),
            ("/a/{*rest}", "/a/7/b", true),
            ("/a/{*rest}", "/b", false),
        ] {
            assert_eq!(pattern(text).matches(path), expected, "{text} of {path}");
        }
    }

    #[test]
    fn a_pattern_that_means_nothing_is_refused() {
        for (text, message) in [
            ("", "`` does not begin with a slash"),
            ("v1", "`v1` does not begin with a slash"),
            ("/a?b=1", "`/a?b=1` has a query or a fragment"),
            ("/a#b", "`/a#b` has a query or a fragment"),
            ("//", "`//` has an empty segment"),
            ("/a//b", "`/a//b` has an empty segment"),
            ("/a/%2e./b", "`%2e.` is a dot segment"),
            ("/a/.", "`.` is a dot segment"),
            ("/{}", "`{}` has no valid name"),
            ("/{*}", "`{*}` has no valid name"),
            ("/{a.b}", "`{a.b}` has no valid name"),
            ("/{ä}", "`{ä}` has no valid name"),
            ("/x{id}", "`x{id}` is neither a literal nor a parameter"),
            ("/{a}{b}", "`{a}{b}` is neither a literal nor a parameter"),
            ("/{a", "`{a` is neither a literal nor a parameter"),
            ("/}", "`}` is neither a literal nor a parameter"),
            ("/a/*", "`*` is not a wildcard"),
            ("/*.png", "`*.png` is not a wildcard"),
            ("/{id}/{id}", "`/{id}/{id}` has the parameter `id` twice"),
            ("/{id}/{*id}", "`/{id}/{*id}` has the parameter `id` twice"),
            ("/{*rest}/a", "`{*rest}` is not the end of `/{*rest}/a`"),
        ] {
            assert_fault(text.parse::<Pattern>(), message);
        }
        let deep = "/a".repeat(Pattern::MAX_SEGMENTS + 1);
        assert_fault(deep.parse::<Pattern>(), &format!("`{deep}` has too many segments"));
    }

    fn assert_fault<T: fmt::Debug>(parsed: Result<T, String>, message: &str) {
        let fault = parsed.expect_err(message);
        let (found, remedy) = fault.split_once('\n').expect("a message and a remedy");
        assert_eq!(found, message);
        assert!(!remedy.is_empty() && !remedy.contains('\n'), "{remedy}");
    }
}
