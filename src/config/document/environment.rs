//! `${NAME}` and `${NAME:-default}` in the strings of a file, replaced from the environment.
//!
//! As in a shell, the default also stands for an empty variable. `$$` is a dollar sign, and so is a `$`
//! before anything but a brace. What is put in is not looked at again.

use std::ops::Range;

use toml::{
    Spanned,
    de::{DeTable, DeValue},
};

use crate::config::error::Diagnostic;

/// Replaces the references in all strings of the table. Those that can't be are returned with their place.
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

/// The error is a message and, on a line of its own, the remedy.
fn expand_text(text: &str, environment: &dyn Fn(&str) -> Option<String>) -> Result<String, String> {
    let mut expanded = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(dollar) = rest.find('$') {
        let (before, reference) = rest.split_at(dollar);
        expanded += before;
        if let Some(body) = reference.strip_prefix("${") {
            let (body, after) = body
                .split_once('}')
                .ok_or("`${` is not closed\nwrite \"${NAME}\", or \"$${\" for the characters themselves")?;
            expanded += &resolve(body, environment)?;
            rest = after;
        } else {
            expanded.push('$');
            rest = reference.strip_prefix("$$").unwrap_or(&reference[1..]);
        }
    }
    Ok(expanded + rest)
}

/// The value of what stands between the braces.
fn resolve(body: &str, environment: &dyn Fn(&str) -> Option<String>) -> Result<String, String> {
    let (name, default) = body.split_once(":-").map_or((body, None), |(name, default)| (name, Some(default)));
    let is_name = name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
    if name.is_empty() || !is_name {
        return Err(format!(
            "`{name}` is no name of an environment variable\nuse letters, digits and underscores, or write \"$${{\" for the characters themselves"
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
