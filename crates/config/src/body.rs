//! The body of a route's own response to a rejected request, which may name the limit and the delay.

use bytes::Bytes;

/// A body with placeholders.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BodyTemplate {
    /// The text before each placeholder, and the placeholder.
    parts: Vec<(String, Placeholder)>,
    rest: Bytes,
}

/// A part of a body that depends on the refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Placeholder {
    /// `{retry_after}`: the whole seconds of Retry-After.
    RetryAfter,
    /// `{limit}`: the name of the limit.
    Limit,
}

impl BodyTemplate {
    /// Parses a body. Braces around anything but lower-case letters and `_` are ordinary characters, so JSON is, too.
    ///
    /// # Errors
    /// The unknown placeholder.
    pub fn parse(text: &str) -> Result<Self, String> {
        let (mut parts, mut before, mut rest) = (Vec::new(), String::new(), text);
        while let Some((ahead, after)) = rest.split_once('{') {
            before.push_str(ahead);
            let name = after.split_once('}').map(|(name, _)| name);
            let is_name =
                |name: &&str| !name.is_empty() && name.bytes().all(|b| b.is_ascii_lowercase() || b == b'_');
            let Some(name) = name.filter(is_name) else {
                before.push('{');
                rest = after;
                continue;
            };
            let placeholder = match name {
                "retry_after" => Placeholder::RetryAfter,
                "limit" => Placeholder::Limit,
                unknown => return Err(unknown.to_owned()),
            };
            parts.push((std::mem::take(&mut before), placeholder));
            rest = &after[name.len() + 1..];
        }
        before.push_str(rest);
        Ok(Self { parts, rest: before.into() })
    }

    /// Returns a word of a body that was probably meant as a placeholder, but isn't one: `{retry-after}`, `{{ .Limit }}`.
    pub(super) fn misspelt(text: &str) -> Option<&str> {
        let is_of_word = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
        text.split(|c| !is_of_word(c)).find(|word| {
            let start = word.as_ptr() as usize - text.as_ptr() as usize;
            let (before, after) = (&text[..start], &text[start + word.len()..]);
            let meant = word.to_ascii_lowercase().replace(['-', '_'], "");
            let is_in_braces = before.ends_with('{') && !before.ends_with("{{") && !before.ends_with("${");
            let is_placeholder = is_in_braces && matches!(*word, "retry_after" | "limit");
            let is_marked =
                before.ends_with(['{', '$', '%']) || before.ends_with("$(") || before.ends_with("%(");
            let is_spaced = before.trim_end_matches([' ', '.', '-']).ends_with('{')
                && after.trim_start_matches([' ', '-']).starts_with('}');
            // An element of XML has an end.
            let is_angled =
                before.ends_with('<') && after.starts_with('>') && !text.contains(&format!("</{word}>"));
            matches!(&*meant, "retryafter" | "limit")
                && (is_marked || is_spaced || is_angled)
                && !is_placeholder
        })
    }

    /// Returns the body for a refusal by this limit. A delay that isn't known is `null`.
    pub fn render(&self, limit: &str, retry_after: Option<u64>) -> Bytes {
        if self.parts.is_empty() {
            return self.rest.clone();
        }
        let mut body = Vec::with_capacity(2 * self.rest.len());
        for (before, placeholder) in &self.parts {
            body.extend_from_slice(before.as_bytes());
            match (placeholder, retry_after) {
                (Placeholder::Limit, _) => body.extend_from_slice(limit.as_bytes()),
                (Placeholder::RetryAfter, Some(seconds)) => {
                    body.extend_from_slice(seconds.to_string().as_bytes());
                }
                (Placeholder::RetryAfter, None) => body.extend_from_slice(b"null"),
            }
        }
        body.extend_from_slice(&self.rest);
        body.into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn placeholders_are_replaced_and_other_braces_kept() {
        let text = r#"{"limit":"{limit}","in":{retry_after},"a":{},"B":{"{X}"}} {"#;
        let body = BodyTemplate::parse(text).unwrap();
        assert_eq!(body.render("l", Some(7)), r#"{"limit":"l","in":7,"a":{},"B":{"{X}"}} {"#);
        assert_eq!(BodyTemplate::parse("{retry_after}").unwrap().render("l", None), "null");
        assert_eq!(BodyTemplate::parse("try in {retry}"), Err("retry".to_owned()));
        assert_eq!(BodyTemplate::parse("").unwrap().render("l", None), "");
    }
}
