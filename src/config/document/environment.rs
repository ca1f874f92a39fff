//! Expansion of `${NAME}` and `${NAME:-default}` in the strings of a file.
//!
//! As in a shell, the default also replaces an empty variable. `$$` is a dollar sign, and so is a `$` that
//! isn't followed by a brace. Expanded values aren't expanded again.

use std::ops::Range;

use toml::{
    Spanned,
    de::{DeTable, DeValue},
};

use crate::config::error::Diagnostic;

/// Expands the references in all strings of the table. Returns an error, with its position, for each string
/// that can't be expanded.
pub(super) fn expand(
    table: &mut DeTable<'_>,
    environment: &dyn Fn(&str) -> Option<String>,
) -> Vec<(Range<usize>, Diagnostic)> {
    table.iter_mut().flat_map(|(_, value)| expand_value(value, environment)).collect()
}

fn expand_value(
    value: &mut Spanned<DeValue<'_>>,
    environment: &dyn Fn(&str) -> Option<String>,
) -> Vec<(Range<usize>, Diagnostic)> {
    let span = value.span();
    match value.get_mut() {
        DeValue::Table(table) => expand(table, environment),
        DeValue::Array(list) => list.iter_mut().flat_map(|value| expand_value(value, environment)).collect(),
        DeValue::String(text) if text.contains('$') => match expand_text(text, environment) {
            Ok(expanded) => {
                *text = expanded.into();
                Vec::new()
            }
            Err(remedy) => vec![(span.clone(), Diagnostic::with_remedy(&remedy).at(&span, ""))],
        },
        _ => Vec::new(),
    }
}

/// Expands a string. An error is a message and a line that says how to fix it.
fn expand_text(text: &str, environment: &dyn Fn(&str) -> Option<String>) -> Result<String, String> {
    let mut expanded = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(dollar) = rest.find('$') {
        let (before, reference) = rest.split_at(dollar);
        expanded += before;
        if let Some(body) = reference.strip_prefix("${") {
            let (body, after) = body
                .split_once('}')
                .ok_or("`${` is not closed\nwrite \"${NAME}\", or \"$${\" for a literal `${`")?;
            expanded += &resolve(body, environment)?;
            rest = after;
        } else {
            expanded.push('$');
            rest = reference.strip_prefix("$$").unwrap_or(&reference[1..]);
        }
    }
    Ok(expanded + rest)
}

/// Returns the value of the text between the braces.
fn resolve(body: &str, environment: &dyn Fn(&str) -> Option<String>) -> Result<String, String> {
    let (name, default) = body.split_once(":-").map_or((body, None), |(name, default)| (name, Some(default)));
    let is_name = name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
    if name.is_empty() || !is_name {
        return Err(format!(
            "`{name}` is not a valid name of an environment variable\nuse letters, digits and underscores, or write \"$${{\" for a literal `${{`"
        ));
    }
    match (environment(name).filter(|value| default.is_none() || !value.is_empty()), default) {
        (Some(value), _) => Ok(value),
        (None, Some(default)) => Ok(default.to_owned()),
        (None, None) => Err(format!(
            "the environment variable `{name}` is not set\nset it, or give a default: \"${{{name}:-DEFAULT}}\""
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn references_are_replaced_from_the_environment() {
        let environment = |name: &str| match name {
            "HOST" => Some("cache".to_owned()),
            "EMPTY" => Some(String::new()),
            "LOOP" => Some("${HOST}".to_owned()),
            _ => None,
        };
        for (text, expanded) in [
            ("redis://${HOST}:1/${EMPTY}", "redis://cache:1/"),
            ("${NONE:-a}${EMPTY:-b}${HOST:-c}${NONE:-}", "abcache"),
            ("$${HOST} $$ $5 $", "${HOST} $ $5 $"),
            ("${LOOP}", "${HOST}"),
            ("${NONE:-redis://a:-1}", "redis://a:-1"),
        ] {
            assert_eq!(expand_text(text, &environment), Ok(expanded.to_owned()));
        }
        for text in ["${NONE}", "${HOST", "${}", "${:-a}", "${A B}", "${A-b}"] {
            assert!(expand_text(text, &environment).is_err(), "{text}");
        }
    }
}
