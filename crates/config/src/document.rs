//! The file as a tree of TOML values, from which as many errors as possible are reported.
//!
//! serde stops at the first error. So the value with the error is removed from the tree, and the tree is read
//! again, until it can be read. Removed values are remembered, so that they aren't reported as missing.

mod environment;
mod foreign;
mod hints;
mod syntax;

use std::{mem, ops::Range};

use serde::Deserialize;
use toml::{
    Spanned,
    de::{DeArray, DeTable, DeValue, Deserializer},
};

use self::{
    environment::Expansion,
    hints::{FileEntry, is_called, tables_with},
};

pub(super) use self::environment::ReferenceSources;
use super::{
    error::{Diagnostic, Diagnostics, nearest},
    file::ConfigFile,
    value::NO_LIMIT,
};

/// The most errors to report, more than anybody reads at once. Each costs a walk through the tree, and through the text when it is
/// drawn.
pub(super) const MAX_FAULTS: usize = 100;

/// The least length of a secret that is blanked. A shorter one is also part of ordinary words.
const HIDDEN_BYTES: usize = 4;

/// A parsed file, the values that were removed from it, and why.
pub(super) struct Document<'i> {
    text: &'i str,
    tree: DeTable<'i>,
    removed: Vec<Removed<'i>>,
    /// The secrets that came from elsewhere.
    secrets: Vec<String>,
    /// True after a syntax error that leaves the structure unclear. Then nothing else is reported.
    is_torn: bool,
    pub(super) faults: Vec<Diagnostic>,
    /// The errors in other files that the file names.
    pub(super) included: Vec<Diagnostics>,
}

/// An entry of a table or an element of a list that was removed because of an error.
struct Removed<'i> {
    /// The start of the table or list.
    parent: usize,
    /// The key. Empty in a list.
    key: String,
    span: Range<usize>,
    value: DeValue<'i>,
}

impl<'i> Document<'i> {
    /// Parses as much of the text as possible.
    pub(super) fn parse(text: &'i str) -> Self {
        let (tree, errors) = DeTable::parse_recoverable(text);
        let mut document = Self {
            text,
            tree: tree.into_inner(),
            removed: Vec::new(),
            secrets: Vec::new(),
            is_torn: false,
            faults: Vec::new(),
            included: Vec::new(),
        };
        let syntax = syntax::judge(text, &document.tree, &errors);
        document.is_torn = syntax.is_torn;
        document.faults = syntax.faults;
        for span in syntax.misread {
            document.remove(&span);
        }
        document
    }

    /// Returns a string as it is written, without its quotes.
    pub(super) fn written(&self, span: &Range<usize>) -> &'i str {
        self.text.get(span.clone()).unwrap_or_default().trim_matches(['"', '\''])
    }

    /// Removes a value that a flag overrides.
    pub(super) fn forget(&mut self, table: &str, key: &str) {
        if let Some(DeValue::Table(table)) = self.tree.get_mut(table).map(Spanned::get_mut) {
            table.remove(key);
        }
    }

    /// Returns the position of a value. `None` if the file doesn't have it, or a flag overrides it.
    pub(super) fn place_of(&self, table: &str, key: &str) -> Option<Range<usize>> {
        Some(self.tree.get(table)?.get_ref().get(key)?.span())
    }

    /// Expands `${NAME}`, `${file:PATH}` and `${NAME:-default}` in all strings.
    pub(super) fn expand(&mut self, sources: &mut ReferenceSources<'_>) {
        let mut expansion = Expansion::default();
        expansion.expand(&mut self.tree, sources);
        for (span, fault) in expansion.faults {
            self.faults.push(fault);
            self.remove(&span);
        }
        self.faults.extend(expansion.warnings);
        self.secrets = expansion.secrets;
    }

    /// Returns the name of the key whose value has this position.
    pub(super) fn key_at(&self, place: &Range<usize>) -> Option<String> {
        let path = FileEntry::at(&self.tree, place)?.path;
        path.rsplit('.').next().map(str::to_owned)
    }

    /// Blanks the secrets that came from elsewhere in all messages, line by line.
    pub(super) fn hide_secrets(&mut self) {
        let lines = self.secrets.iter().flat_map(|secret| secret.lines());
        let lines: Vec<&str> = lines.filter(|line| line.len() >= HIDDEN_BYTES).collect();
        self.faults.iter_mut().for_each(|fault| fault.hide(&lines));
    }

    /// Reads the file, without the values that can't be read. `None` if the structure is unclear.
    pub(super) fn read(&mut self) -> Option<ConfigFile> {
        while !self.is_torn && self.faults.len() < MAX_FAULTS {
            let tree = Deserializer::from(Spanned::new(0..0, self.tree.clone()));
            let error = match ConfigFile::deserialize(tree) {
                Ok(file) => return Some(file),
                Err(error) => error,
            };
            let span = error.span().unwrap_or_default();
            let entry = FileEntry::at(&self.tree, &span);
            // What was removed isn't missing.
            if !(error.message().starts_with("missing key") && self.had_within(&span)) {
                self.faults.push(describe(error.message(), &span, entry.as_ref()));
            }
            if !self.remove(&span) {
                break;
            }
        }
        None
    }

    /// Returns true if nothing was removed.
    pub(super) fn is_whole(&self) -> bool {
        self.removed.is_empty()
    }

    /// Returns true if this key, or a misspelling of it, was removed from the table that starts here.
    pub(super) fn had(&self, table: &Range<usize>, key: &str) -> bool {
        let means = |removed: &Removed<'_>| {
            let written = &*removed.key;
            written == key || nearest(written, [key]).is_some() || is_called(key, written)
        };
        self.removed.iter().any(|removed| removed.parent == table.start && means(removed))
    }

    /// Returns true if something was removed in this range.
    pub(super) fn had_within(&self, span: &Range<usize>) -> bool {
        self.removed.iter().any(|removed| span.contains(&removed.span.start))
    }

    /// Returns true if an entry with this key was removed, or a table with this key in it, such as `[limit]`
    /// for `[limits]`.
    pub(super) fn had_defined(&self, key: &str) -> bool {
        self.removed.iter().any(|removed| removed.key == key || removed.value.get(key).is_some())
    }

    fn remove(&mut self, span: &Range<usize>) -> bool {
        let removed = take_from_table(&mut self.tree, usize::MAX, span);
        let found = removed.is_some();
        self.removed.extend(removed);
        found
    }
}

/// Removes the innermost entry whose key or value has exactly this position.
fn take_from_table<'i>(table: &mut DeTable<'i>, parent: usize, span: &Range<usize>) -> Option<Removed<'i>> {
    for (key, value) in table.iter_mut() {
        let inner = take_from_value(value, span);
        // An emptied list would be reported as empty, so it is removed as well.
        let is_emptied = inner.is_some() && value.get_ref().as_array().is_some_and(|list| list.is_empty());
        if inner.is_some() && !is_emptied {
            return inner;
        }
        if is_emptied || key.span() == *span || value.span() == *span {
            let key = key.get_ref().clone();
            let value = table.remove(&*key)?.into_inner();
            return Some(Removed { parent, key: key.into_owned(), span: span.clone(), value });
        }
    }
    None
}

fn take_from_value<'i>(value: &mut Spanned<DeValue<'i>>, span: &Range<usize>) -> Option<Removed<'i>> {
    let parent = value.span().start;
    match value.get_mut() {
        DeValue::Table(table) => take_from_table(table, parent, span),
        DeValue::Array(list) => take_from_list(list, parent, span),
        _ => None,
    }
}

fn take_from_list<'i>(list: &mut DeArray<'i>, parent: usize, span: &Range<usize>) -> Option<Removed<'i>> {
    if let Some(inner) = list.iter_mut().find_map(|element| take_from_value(element, span)) {
        return Some(inner);
    }
    let index = list.iter().position(|element| element.span() == *span)?;
    let mut elements = mem::replace(list, DeArray::new()).into_iter().collect::<Vec<_>>();
    let value = elements.remove(index).into_inner();
    *list = elements.into_iter().collect();
    Some(Removed { parent, key: String::new(), span: span.clone(), value })
}

/// Turns an error of serde into a diagnostic. Unknown keys and wrong types are recognized by serde's message;
/// all other messages are our own ([`super::value`]).
fn describe(message: &str, span: &Range<usize>, entry: Option<&FileEntry>) -> Diagnostic {
    if message.starts_with("unknown field `$__toml_private_datetime`") {
        return Diagnostic::error("a date has the wrong type").at(span, "").help("no key takes a date");
    }
    if let Some((key, known)) = split(message, "unknown field `", "`, expected ") {
        return unknown_key(key, known, span, entry);
    }
    let wrong_type = split(message, "invalid type: ", ", expected ").map(|rest| ("has the wrong type", rest));
    let wrong_value = split(message, "invalid value: ", ", expected ").map(|rest| ("is out of range", rest));
    if let Some((what, (found, expected))) = wrong_type.or(wrong_value) {
        let is_hidden =
            found.starts_with("string") && (found.contains("\\n") || found.contains("-----BEGIN"));
        let found = match entry {
            _ if is_hidden => "a string",
            Some(entry) if entry.is_time => "a date or time",
            _ => plainly(found),
        };
        // A number of more than 64 bits is of another type.
        let is_huge = found.starts_with("integer") && expected.starts_with("a whole number");
        let what = match entry {
            _ if is_huge => "is out of range",
            Some(entry) if entry.is_rate() && found.starts_with("integer") => "is not a valid rate",
            _ => what,
        };
        let fault = Diagnostic::error(format!("{found} {what}")).at(span, "");
        let form = entry.and_then(FileEntry::form);
        let is_negative_rate = entry.is_some_and(FileEntry::is_rate) && found.contains("`-");
        return fault.help(match (form, found.strip_prefix("string "), expected) {
            _ if is_negative_rate => NO_LIMIT.to_owned(),
            (Some(form), ..) => form.to_owned(),
            (_, Some(text), "a sequence") => format!("write a list: [{text}]"),
            (_, Some("\"true\"" | "\"True\"" | "\"yes\"" | "\"on\""), "a boolean") => {
                "write `true` without quotes".to_owned()
            }
            (_, Some("\"false\"" | "\"False\"" | "\"no\"" | "\"off\""), "a boolean") => {
                "write `false` without quotes".to_owned()
            }
            _ => format!("write {}", plainly(expected)),
        });
    }
    Diagnostic::with_remedy(message).at(span, "")
}

/// Returns the fault of a key that its table doesn't have. `known` is serde's list of those that it has.
fn unknown_key(key: &str, known: &str, span: &Range<usize>, entry: Option<&FileEntry>) -> Diagnostic {
    let known: Vec<&str> = known.split('`').skip(1).step_by(2).collect();
    if let Some(remedy) = entry.and_then(FileEntry::remedy) {
        return Diagnostic::error(format!("unknown key `{key}`")).at(span, "").help(remedy);
    }
    if entry.is_some_and(FileEntry::is_part_of_name) && nearest(key, known.iter().copied()).is_none() {
        let fault = Diagnostic::error(format!("unknown key `{key}`")).at(span, "");
        return fault.help("a dot is not part of a name, but begins a table within: write a hyphen");
    }
    let meant = nearest(key, known.iter().copied()).map(|meant| format!("did you mean `{meant}`?"));
    let tables = if meant.is_none() { tables_with(key) } else { Vec::new() };
    let fault = Diagnostic::error(format!("unknown key `{key}`")).at(span, meant.unwrap_or_default());
    let fault = match &tables[..] {
        [] => fault,
        tables => fault.help(format!("`{key}` is a key of {}: move it there", tables.join(" or "))),
    };
    fault.help(format!("the keys here are `{}`", known.join("`, `")))
}

/// Returns the TOML term for serde's name of a type.
fn plainly(what: &str) -> &str {
    match what {
        "map" => "a table",
        "sequence" => "a list",
        "a map" => "a table: { KEY = VALUE }, or KEY = VALUE below a header [NAME]",
        "a sequence" => "a list: [VALUE, VALUE], or tables below headers [[NAME]]",
        "a boolean" => "`true` or `false`",
        other => other.trim_end_matches(" as i128").trim_end_matches(" as u128"),
    }
}

/// Splits the text after the prefix at the last separator.
fn split<'m>(message: &'m str, prefix: &str, separator: &str) -> Option<(&'m str, &'m str)> {
    message.strip_prefix(prefix)?.rsplit_once(separator)
}
