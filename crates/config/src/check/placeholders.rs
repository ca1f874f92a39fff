//! Finds placeholders of other proxies, which are sent as they are.

use hyper::header::HeaderValue;
use tollgate_routing::Pattern;

use super::Check;
use crate::{error::Diagnostic, file::Spanned, value::FieldName};

/// Variables of nginx that are recognized within a longer text.
const OF_NGINX: [&str; 17] = [
    "args",
    "binary_remote_addr",
    "host",
    "hostname",
    "msec",
    "proxy_add_x_forwarded_for",
    "query_string",
    "remote_addr",
    "remote_port",
    "remote_user",
    "request_id",
    "request_method",
    "request_uri",
    "scheme",
    "server_name",
    "time_iso8601",
    "uri",
];

impl Check<'_, '_> {
    /// Warns of a field's value that other proxies would fill in. The value isn't shown, since it may be a credential.
    pub(super) fn warn_of_placeholder(
        &mut self,
        name: &Spanned<FieldName>,
        value: &HeaderValue,
        path: Option<&Pattern>,
    ) {
        let text = value.to_str().unwrap_or_default();
        let mut params = path.into_iter().flat_map(Pattern::params);
        let has_param = params
            .any(|param| text.contains(&format!("{{{param}}}")) || text.contains(&format!("{{*{param}}}")));
        let help = match placeholder(text) {
            _ if has_param => {
                "write a fixed value: parameters of the path are filled into `rewrite` and `redirect` only"
            }
            Some(_) => {
                "write a fixed value: nothing is filled in here. The upstream gets X-Forwarded-For, -Host and -Proto and X-Request-Id without it"
            }
            None => return,
        };
        let field = &name.get_ref().0;
        let fault = format!("`{field}` is sent with its placeholder as it is written");
        self.fault(Diagnostic::warning(fault).at(&name.span(), "").help(help));
    }
}

/// Returns the first part of a text that other proxies would replace: `%REQ(x-id)%`, `$remote_addr`, `{{ .ClientIP }}`.
pub(super) fn placeholder(text: &str) -> Option<&str> {
    let mut starts = text.char_indices().filter(|(_, c)| matches!(c, '%' | '$' | '{'));
    starts.find_map(|(at, _)| {
        let rest = &text[at..];
        let length = of_envoy(rest).or_else(|| of_nginx(rest, text)).or_else(|| in_braces(rest, text));
        length.map(|length| &rest[..length])
    })
}

/// Returns the length of a placeholder in the form of Envoy (`%REQ(x-id)%`), Apache (`%{REMOTE_ADDR}e`) or HAProxy (`%[src]`).
fn of_envoy(text: &str) -> Option<usize> {
    let after = text.strip_prefix('%')?;
    let is_named = |rest: &str| rest.starts_with(|c: char| c.is_ascii_alphabetic());
    if let Some(rest) = after.strip_prefix('{').filter(|rest| is_named(rest)) {
        return rest.find('}').map(|end| end + 3);
    }
    if let Some(rest) = after.strip_prefix('[').filter(|rest| is_named(rest)) {
        return rest.find(']').map(|end| end + 3);
    }
    let is_of_name = |c: char| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_';
    let (name, rest) = after.split_at(after.find(|c| !is_of_name(c))?);
    let arguments = if rest.starts_with('(') { rest.find(')')? + 1 } else { 0 };
    // Escapes in URLs are short, and have no underscore: `%E2%82%AC`.
    let is_name = arguments > 0 || name.contains('_') || matches!(name, "PROTOCOL" | "HOSTNAME" | "DURATION");
    let width = rest[arguments..].find('%')?;
    let is_width = rest[arguments..][..width].bytes().all(|b| b == b':' || b.is_ascii_digit());
    (is_named(name) && is_name && is_width).then_some(name.len() + arguments + width + 2)
}

/// Returns the length of a variable in the form of nginx (`$remote_addr`) or Kong (`$(headers.x-id)`).
fn of_nginx(text: &str, whole: &str) -> Option<usize> {
    let after = text.strip_prefix('$')?;
    if ["(headers.", "(query_params.", "(uri_captures."].iter().any(|start| after.starts_with(start)) {
        return after.find(')').map(|end| end + 2);
    }
    let is_of_name = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
    let name = &after[..after.find(|c| !is_of_name(c)).unwrap_or(after.len())];
    let is_known = OF_NGINX.contains(&name)
        || ["http_", "arg_", "cookie_", "upstream_", "ssl_"].iter().any(|start| name.starts_with(start));
    let is_all = name.len() + 1 == whole.len() && name.starts_with(|c: char| c.is_ascii_lowercase());
    (is_known || is_all).then_some(name.len() + 1)
}

/// Returns the length of a placeholder of a template (`{{ .ClientIP }}`) or of Caddy (`{http.request.host}`).
fn in_braces(text: &str, whole: &str) -> Option<usize> {
    if let Some(after) = text.strip_prefix("{{") {
        let (inner, _) = after.split_once("}}")?;
        let is_expression =
            inner.trim_start_matches([' ', '-']).starts_with(|c: char| c.is_ascii_alphabetic() || c == '.');
        return (is_expression && !inner.contains(['{', '"', ':'])).then_some(inner.len() + 4);
    }
    let (inner, after) = text.strip_prefix('{')?.split_once('}')?;
    let is_name = inner.starts_with(|c: char| c.is_ascii_alphabetic())
        && inner.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b));
    let is_all = after.is_empty() && text.len() == whole.len();
    let is_of_caddy = ["http.", "env.", "time."].iter().any(|start| inner.starts_with(start));
    (is_name && (is_all || is_of_caddy)).then_some(inner.len() + 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn placeholders_of_other_proxies_are_found() {
        for (text, found) in [
            ("%REQ(x-request-id)%", "%REQ(x-request-id)%"),
            ("a, %REQ(X-ID?:PATH):10% b", "%REQ(X-ID?:PATH):10%"),
            ("%DOWNSTREAM_REMOTE_ADDRESS%", "%DOWNSTREAM_REMOTE_ADDRESS%"),
            ("HTTP %PROTOCOL%", "%PROTOCOL%"),
            ("%{REMOTE_ADDR}e", "%{REMOTE_ADDR}"),
            ("%[src]", "%[src]"),
            ("$remote_addr", "$remote_addr"),
            ("$anything", "$anything"),
            ("for=$remote_addr;by=me", "$remote_addr"),
            ("$scheme://$host", "$scheme"),
            ("$(headers.x-id)", "$(headers.x-id)"),
            ("{{ .ClientIP }}", "{{ .ClientIP }}"),
            ("a {{request.id}}", "{{request.id}}"),
            ("id {http.request.uuid}", "{http.request.uuid}"),
            ("{client_ip}", "{client_ip}"),
        ] {
            assert_eq!(placeholder(text), Some(found), "{text}");
        }
    }

    #[test]
    fn ordinary_values_are_not_placeholders() {
        for text in [
            "",
            "100%",
            "50% to 60%",
            "%E2%82%AC",
            "%20A%20",
            "$5",
            "US$ 5",
            "p$word$",
            "$2y$10$abcdefghijk",
            "{\"a\":{\"b\":1}}",
            "{\"group\":\"default\",\"max_age\":86400}",
            "{}",
            "max-age=60; includeSubDomains",
            "default-src 'self'; report-uri /{x}/b",
            "*/*;q=0.5",
            "W/\"abc\"",
        ] {
            assert_eq!(placeholder(text), None, "{text}");
        }
    }
}
