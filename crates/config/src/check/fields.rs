//! Finds conditions of routes that no request meets, and syntax of other programs that is taken literally.

use std::ops::Range;

use hyper::header::{ACCESS_CONTROL_EXPOSE_HEADERS, HeaderName, HeaderValue};
use tollgate_limiter::RatelimitHeaders;

use super::{Check, duplicate};
use crate::{
    error::{Diagnostic, nearest},
    file::{RouteTable, Spanned, SpannedTable},
    value::{FieldName, ParsedText},
};
use tollgate_http1::head::is_ambiguous;
use tollgate_routing::Pattern;

/// The methods that others are compared with, to find misspelt ones.
const METHODS: [&str; 9] = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "CONNECT"];

/// Parts of paths that are syntax in other programs, and that clients hardly send.
const SYNTAX_OF_OTHERS: [&str; 8] = [" ", "^", "`", "|", "\\", ".*", ".+", "["];

/// Returns true if a value was probably meant as a regular expression.
fn is_expression(text: &str) -> bool {
    const PARTS: [&str; 5] = [".+", "[0-9", "[a-z", "[A-Z", "\\d"];
    text.starts_with(['^', '.']) && text.ends_with(['*', '$', '+'])
        || PARTS.iter().any(|part| text.contains(part))
}

impl Check<'_, '_> {
    /// Warns of a value that looks like a pattern, but is compared as it is.
    pub(super) fn warn_of_pattern(&mut self, text: &str, place: &Range<usize>, help: &str) {
        if text.ends_with('*') && !text.ends_with("/*") || is_expression(text) {
            // The value may be a credential, so the message doesn't show it.
            let fault = Diagnostic::warning("this value is compared as plain text, not as a pattern");
            self.fault(fault.at(place, "").help(help));
        }
    }

    /// Warns of a regular expression where `*` stands for any text.
    pub(super) fn warn_of_expression(&mut self, text: &str, place: &Range<usize>) {
        if is_expression(text) {
            let fault = Diagnostic::warning("this value is plain text, not a regular expression");
            self.fault(fault.at(place, "").help("write `*` for any text: \"*\", \"gold-*\""));
        }
    }

    /// Checks what a route asks of a request's method, path and header fields, and how it edits fields.
    pub(super) fn check_fields(&mut self, route: &RouteTable) {
        for (name, _) in &route.headers.0 {
            if is_ambiguous(name.get_ref().as_str()) {
                let fault = format!(
                    "`{name}` can never match: header fields are dropped if their name has other characters than letters, digits and hyphens, or ends in a hyphen"
                );
                let help = "use a hyphen, here and in the clients";
                self.fault(Diagnostic::error(fault).at(&name.span(), "").help(help));
            }
        }
        self.warn_of_patterns(route);
        self.refuse_equal_fields(route.headers.0.iter().map(|(name, _)| (name.get_ref(), name.span())));
        let path = route.path.as_ref().map(|path| &path.get_ref().0);
        for SpannedTable { value: edits, .. } in
            [&route.request_headers, &route.response_headers].into_iter().flatten()
        {
            let names = edits.set.0.iter().map(|(name, _)| (&name.get_ref().0, name.span()));
            self.refuse_equal_fields(names);
            for (name, value) in edits.set.0.iter().chain(&edits.add.0) {
                self.warn_of_placeholder(name, value, path);
                self.warn_of_unsent_fields(name, value);
            }
        }
        for (name, value) in route.respond.iter().flat_map(|respond| &respond.value.headers.0) {
            self.warn_of_placeholder(name, value, path);
        }
        self.warn_of_methods(route);
        if let Some(path) = &route.path {
            self.warn_of_last_slash(path);
            self.warn_of_foreign_syntax(path);
        }
    }

    /// Warns if `Access-Control-Expose-Headers` names RateLimit fields that responses don't have.
    fn warn_of_unsent_fields(&mut self, name: &Spanned<FieldName>, value: &HeaderValue) {
        const DRAFT: &str = "RateLimit, RateLimit-Policy";
        const X: &str = "X-RateLimit-Limit, X-RateLimit-Remaining, X-RateLimit-Reset";
        let (unsent, sent) = match self.ratelimit_headers {
            RatelimitHeaders::Draft11 => ("x-ratelimit-", format!("write {DRAFT}")),
            RatelimitHeaders::XRatelimit => ("ratelimit", format!("write {X}")),
            RatelimitHeaders::Off => {
                ("", "turn them on, server.ratelimit_headers = \"draft-11\", or leave them out".to_owned())
            }
            RatelimitHeaders::Both => return,
        };
        let exposed = value.to_str().unwrap_or_default().to_ascii_lowercase();
        let is_unsent = |field: &str| field.starts_with(unsent) && field.contains("ratelimit");
        if name.get_ref().0 == ACCESS_CONTROL_EXPOSE_HEADERS
            && let Some(field) = exposed.split(',').map(str::trim).find(|field| is_unsent(field))
        {
            let fault =
                Diagnostic::warning(format!("no response has `{field}`, as server.ratelimit_headers is set"));
            self.fault(fault.at(&name.span(), "").help(sent));
        }
    }

    /// Warns of values that look like patterns.
    fn warn_of_patterns(&mut self, route: &RouteTable) {
        let fields =
            route.headers.0.iter().map(|(name, value)| (name.span(), value.to_str().unwrap_or_default()));
        let query = route.query.0.iter().map(|(name, value)| (name.span(), value.as_str()));
        for (place, value) in fields.chain(query) {
            self.warn_of_pattern(
                value,
                &place,
                "write a route for each value: there are no patterns of values",
            );
        }
    }

    /// Warns of methods that are probably misspelt.
    fn warn_of_methods(&mut self, route: &RouteTable) {
        for method in route.methods.iter().flat_map(|list| &list.0) {
            let text = method.get_ref().as_str();
            let meant = nearest(text, METHODS).filter(|meant| *meant != text);
            if let Some(meant) = meant {
                let fault = Diagnostic::warning(format!("`{text}` is not a registered method"));
                let help = "a route matches methods exactly as they are written";
                self.fault(fault.at(&method.span(), format!("did you mean `{meant}`?")).help(help));
            }
        }
    }

    /// Warns of a path with the pattern syntax of other programs.
    fn warn_of_foreign_syntax(&mut self, path: &Spanned<ParsedText<Pattern>>) {
        let text = path.get_ref().0.to_string();
        let part = SYNTAX_OF_OTHERS.into_iter().find(|part| text.contains(part));
        if let Some(part) = part.or(text.ends_with('$').then_some("$")) {
            let fault = Diagnostic::warning(format!("`{part}` in a path has no meaning of its own"));
            let help =
                "write `{id}` for any one segment and `{*rest}` for any rest; other text is matched as it is";
            self.fault(fault.at(&path.span(), "").help(help));
        }
    }

    /// Warns of a path that ends with a slash, which means all paths below it in other programs.
    fn warn_of_last_slash(&mut self, path: &Spanned<ParsedText<Pattern>>) {
        let (text, written) = (path.get_ref().0.to_string(), self.document.written(&path.span()));
        let has_rest = text.rsplit('/').next().is_some_and(|last| last.starts_with("{*"));
        if written.ends_with('/') && text != "/" && !has_rest {
            let fault =
                Diagnostic::warning(format!("`{text}/` matches only `{text}`, with and without the slash"));
            let help = format!(
                "for all paths below it, write path = \"{text}/{{*rest}}\"; for this one, leave the slash out"
            );
            self.fault(fault.at(&path.span(), "").help(help));
        }
    }

    /// Reports header fields that are named twice, as `X-A` and `x-a`.
    fn refuse_equal_fields<'n>(&mut self, names: impl Iterator<Item = (&'n HeaderName, Range<usize>)>) {
        let mut seen: Vec<(&HeaderName, Range<usize>)> = Vec::new();
        for (name, span) in names {
            if let Some((_, first)) = seen.iter().find(|(other, _)| *other == name) {
                let fault = duplicate("header field", name.as_str(), &span, first);
                self.fault(fault);
            }
            seen.push((name, span));
        }
    }
}
