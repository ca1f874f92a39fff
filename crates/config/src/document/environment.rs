//! Expansion of `${NAME}`, `${file:PATH}` and `${NAME:-default}` in the strings of a file.
//!
//! A path is relative to the folder of the configuration. A byte order mark at the beginning of its file and the line break at the end are
//! dropped. A reload reads it again.
//! As in a shell, the default also replaces an empty variable. `$$` is a dollar sign, and so is a `$` that
//! isn't followed by a brace. Expanded values aren't expanded again.

use std::{ops::Range, path::Path};

use toml::{
    Spanned,
    de::{DeTable, DeValue},
};

use crate::{Sources, error::Diagnostic, password::is_of_secret};

/// The most bytes of a file that a string refers to.
const FILE_BYTES_MOST: u64 = 64 << 10;

/// The sources of the values of references.
pub(crate) struct ReferenceSources<'s> {
    pub(crate) environment: &'s dyn Fn(&str) -> Option<String>,
    /// The folder of the configuration.
    pub(crate) folder: &'s Path,
    /// The files of the configuration, which get those that are read.
    pub(crate) files: &'s mut Sources,
}

/// The results of expanding the references of a file.
#[derive(Default)]
pub(super) struct Expansion {
    /// The values that aren't for messages.
    pub secrets: Vec<String>,
    /// The strings that can't be expanded.
    pub faults: Vec<(Range<usize>, Diagnostic)>,
    /// The warnings of parts that look like references.
    pub warnings: Vec<Diagnostic>,
}

impl Expansion {
    /// Expands the references in all strings of the table.
    pub(super) fn expand(&mut self, table: &mut DeTable<'_>, sources: &mut ReferenceSources<'_>) {
        for (key, value) in table.iter_mut() {
            self.expand_value(key.get_ref(), value, sources);
        }
    }

    fn expand_value(
        &mut self,
        key: &str,
        value: &mut Spanned<DeValue<'_>>,
        sources: &mut ReferenceSources<'_>,
    ) {
        let span = value.span();
        match value.get_mut() {
            DeValue::Table(table) => self.expand(table, sources),
            DeValue::Array(list) => list.iter_mut().for_each(|value| self.expand_value(key, value, sources)),
            DeValue::String(text) if text.contains(['$', '{']) => match expand_text(key, text, sources) {
                Ok(value) => {
                    if has_shell_variable(text) {
                        let fault = Diagnostic::warning("`$` before a name is text here, not a variable");
                        let remedy =
                            "write \"${NAME}\" for an environment variable, or \"$$\" for a dollar sign";
                        self.warnings.push(fault.at(&span, "").help(remedy));
                    }
                    let has_secret = text.contains("${") && (is_of_secret(text) || is_of_secret(key));
                    if has_secret || text.contains("${file:") {
                        self.secrets.push(value.clone());
                    }
                    *text = value.into();
                }
                Err(remedy) => {
                    self.faults.push((span.clone(), Diagnostic::with_remedy(&remedy).at(&span, "")));
                }
            },
            _ => {}
        }
    }
}

/// Expands a string of this key. An error is a message and a line that says how to fix it.
fn expand_text(key: &str, text: &str, sources: &mut ReferenceSources<'_>) -> Result<String, String> {
    if let Some(name) = reference_of_others(text) {
        return Err(format!(
            "`{text}` is text here, not a variable\nwrite \"${{{name}}}\" for the environment variable, or \"$${name}\" for the text `${name}`"
        ));
    }
    let mut expanded = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(dollar) = rest.find('$') {
        let (before, reference) = rest.split_at(dollar);
        expanded += before;
        if let Some(body) = reference.strip_prefix("${") {
            let (body, after) = body
                .split_once('}')
                .ok_or("`${` is not closed\nwrite \"${NAME}\", or \"$${\" for a literal `${`")?;
            expanded += &resolve(key, body, sources)?;
            rest = after;
        } else {
            expanded.push('$');
            rest = reference.strip_prefix("$$").unwrap_or(&reference[1..]);
        }
    }
    Ok(expanded + rest)
}

/// Returns the name of the variable that a string would stand for in a shell, a Caddyfile or a template.
fn reference_of_others(text: &str) -> Option<String> {
    const FORMS: [(&str, &str); 5] =
        [("$", ""), ("{$", "}"), ("{env.", "}"), ("{{env.", "}}"), ("{{.Env.", "}}")];
    let text = text.replace(' ', "");
    let name = FORMS.iter().find_map(|(start, end)| text.strip_prefix(start)?.strip_suffix(end))?;
    is_shouted(name).then(|| name.to_owned())
}

/// Returns true if a shell would replace a part of a string, such as `$NAME`.
fn has_shell_variable(text: &str) -> bool {
    let mut rest = text;
    while let Some((_, after)) = rest.split_once('$') {
        let name = after.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').next().unwrap_or_default();
        if name.len() > 1 && is_shouted(name) {
            return true;
        }
        rest = after.strip_prefix('$').unwrap_or(after);
    }
    false
}

/// Returns true for names such as `ADMIN_TOKEN`.
fn is_shouted(name: &str) -> bool {
    name.starts_with(|c: char| c.is_ascii_uppercase())
        && name.bytes().all(|b| b.is_ascii_uppercase() || b.is_ascii_digit() || b == b'_')
}

/// Returns the value of the text between the braces, in a string of this key.
fn resolve(key: &str, body: &str, sources: &mut ReferenceSources<'_>) -> Result<String, String> {
    let (name, default) = body.split_once(":-").map_or((body, None), |(name, default)| (name, Some(default)));
    if let Some(path) = name.strip_prefix("file:") {
        return read_file(path, sources).or_else(|fault| default.map(str::to_owned).ok_or(fault));
    }
    let is_name = name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
    if name.is_empty() || !is_name {
        return Err(format!(
            "`{name}` is not a valid name of an environment variable\nwrite \"${{NAME}}\", or with a default \"${{NAME:-8080}}\"; and \"$${{\" for a literal `${{`"
        ));
    }
    match ((sources.environment)(name).filter(|value| default.is_none() || !value.is_empty()), default) {
        (Some(value), _) => Ok(value),
        (None, Some(default)) => Ok(default.to_owned()),
        (None, None) if key == "body" && matches!(name, "retry_after" | "limit") => Err(format!(
            "`${{{name}}}` is a variable of the environment\nfor the response to a rejected request write `{{{name}}}`"
        )),
        (None, None) => {
            let default = match is_of_secret(key) || is_of_secret(name) {
                true => String::new(),
                false => format!("; a default can follow: \"${{{name}:-8080}}\""),
            };
            let file = name.to_ascii_lowercase();
            Err(format!(
                "the environment variable `{name}` is not set\nset it before the start{default}; a secret can come from a file: \"${{file:/run/secrets/{file}}}\""
            ))
        }
    }
}

/// Returns the text of a file without a byte order mark and without the line break at its end.
fn read_file(path: &str, sources: &mut ReferenceSources<'_>) -> Result<String, String> {
    let place = sources.folder.join(path);
    let fault = |why: &str| {
        format!(
            "can't use the file `{path}`: {why}\nname a readable text file of at most 64 KiB, relative to the folder of the configuration"
        )
    };
    // A file that isn't there yet is watched, too.
    if place.metadata().is_ok_and(|data| !data.is_file() || data.len() > FILE_BYTES_MOST) {
        return Err(fault("it is too large, or not a regular file"));
    }
    let bytes = sources.files.read(place).map_err(|error| fault(&error.to_string()))?;
    let text = String::from_utf8(bytes).map_err(|_| fault("it is not UTF-8"))?;
    let text = text.strip_prefix('\u{feff}').unwrap_or(&text);
    Ok(text.trim_end_matches(['\n', '\r']).to_owned())
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
            assert_eq!(expand_in(Path::new(""), text, &environment), Ok(expanded.to_owned()));
        }
        for text in
            ["$HOST", "{{ env.HOST }}", "{$HOST}", "${NONE}", "${HOST", "${}", "${:-a}", "${A B}", "${A-b}"]
        {
            assert!(expand_in(Path::new(""), text, &environment).is_err(), "{text}");
        }
    }

    #[test]
    fn variables_of_shells_are_told_from_dollar_signs() {
        for text in ["redis://u:$REDIS_PASS@h", "Bearer $TOKEN", "$A1/x", "$5 $HOST", "$$5$HOST"] {
            assert!(has_shell_variable(text), "{text}");
        }
        for text in ["$$TOKEN", "${TOKEN}", "$5", "$A", "p$ABcd", "/v2/$1", "a$", "$host", "US$ 5"] {
            assert!(!has_shell_variable(text), "{text}");
        }
    }

    fn expand_in(
        folder: &Path,
        text: &str,
        environment: &dyn Fn(&str) -> Option<String>,
    ) -> Result<String, String> {
        expand_text("", text, &mut ReferenceSources { environment, folder, files: &mut Sources::default() })
    }

    #[test]
    fn files_are_read_without_byte_order_mark_and_last_line_break() {
        let folder = tempfile::tempdir().expect("a folder");
        let (marked, large) = ("\u{feff}s3cret\u{feff}\r\n", "x".repeat(70_000));
        for (name, content) in
            [("secret", "s3cret\r\n"), ("marked", marked), ("two", "a\nb"), ("large", &large)]
        {
            std::fs::write(folder.path().join(name), content).expect("it is written");
        }
        let expand = |text: &str| expand_in(folder.path(), text, &|_| None);
        for (text, expanded) in [
            ("redis://:${file:secret}@h", "redis://:s3cret@h"),
            ("a${file:marked}", "as3cret\u{feff}"),
            ("${file:two}", "a\nb"),
            ("${file:none:-default}", "default"),
        ] {
            assert_eq!(expand(text), Ok(expanded.to_owned()));
        }
        let absolute = format!("${{file:{}}}", folder.path().join("secret").display());
        assert_eq!(expand(&absolute), Ok("s3cret".to_owned()));
        for text in ["${file:none}", "${file:large}", "${file:/dev/zero}", "${file:}"] {
            assert!(expand(text).is_err_and(|fault| fault.contains("can't use the file")), "{text}");
        }
    }
}
