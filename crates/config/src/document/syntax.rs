//! Turns TOML syntax errors into diagnostics that say how to fix them, and decides how much of the rest can
//! be trusted.

use std::ops::Range;

use toml::{
    Spanned,
    de::{DeTable, DeValue, Error},
};

use super::{foreign, hints};
use crate::error::Diagnostic;

/// The result of judging a file's syntax errors.
#[derive(Default)]
pub(super) struct Syntax {
    pub faults: Vec<Diagnostic>,
    /// Single values that can't be read, although the text around them can.
    pub misread: Vec<Range<usize>>,
    /// True if anything else can't be read, such as a header. Then the structure of the file is unclear.
    pub is_torn: bool,
}

/// Turns the errors of parsing this text to this tree into diagnostics.
pub(super) fn judge(text: &str, tree: &DeTable<'_>, errors: &[Error]) -> Syntax {
    if let Some(format) = Some(text).filter(|_| !errors.is_empty()).and_then(foreign::format) {
        return Syntax { faults: vec![not_toml(text, format)], misread: vec![], is_torn: true };
    }
    let mut syntax = Syntax::default();
    let mut torn: Option<Range<usize>> = None;
    let mut foreign_line = None;
    let mut twice: Option<Range<usize>> = None;
    let mut errors = errors.iter().map(|error| (error.span().unwrap_or_default(), error)).collect::<Vec<_>>();
    errors.sort_by_key(|(span, _)| span.start);
    for (span, error) in errors {
        let holder = key_value_at(tree, span.start);
        let place = holder.map(Spanned::span);
        let line = line_at(text, span.start);
        if foreign_line.as_ref() == Some(&line)
            || syntax.misread.iter().any(|misread| holds_byte(misread, span.start))
        {
            // The first error on such a line, or in a value, causes others.
        } else if let Some((message, help)) = foreign::line(&text[line.clone()]) {
            syntax.faults.push(Diagnostic::error(message).at(&span, "").help(help));
            syntax.is_torn = true;
            foreign_line = Some(line);
        } else if error.message() == "duplicate key" {
            // The keys of a table that is there twice are, too.
            if is_header(text, &span) {
                twice = Some(span.start..end_of_table(text, span.end));
            }
            if is_header(text, &span) || twice.as_ref().is_none_or(|twice| !holds_byte(twice, span.start)) {
                syntax.faults.push(duplicate(text, tree, &span));
            }
        } else if place.is_some() && torn == place {
            // The first error in a list or inline table causes others.
        } else if let Some(scalar) = holder.and_then(|value| scalar_at(value, span.start)) {
            syntax.faults.push(misread(text, error, &span, &scalar));
            syntax.misread.push(scalar);
        } else {
            syntax.faults.push(torn_at(text, error, &span, place.as_ref()));
            syntax.is_torn = true;
            torn = place;
        }
    }
    syntax
}

/// Describes that a file has another format.
fn not_toml(text: &str, format: &str) -> Diagnostic {
    let start = text.len() - text.trim_start().len();
    let end = text[start..].find('\n').map_or(text.len(), |end| start + end);
    Diagnostic::error(format!("this file is not TOML: it looks like {format}"))
        .at(&(start..end), "")
        .help("see the form of the file in an example: `tollgate init` writes one")
}

/// Describes an error outside single values, in the list or inline table at this place, if it is in one.
fn torn_at(text: &str, error: &Error, span: &Range<usize>, place: Option<&Range<usize>>) -> Diagnostic {
    let fault = describe(error, span);
    let fault = match error.message().starts_with("invalid unquoted key") {
        true if text[span.start..].starts_with(": ") => {
            fault.help("write `=` between a key and its value: a = 1")
        }
        true => {
            fault.help("put a name with other characters in quotes: \"https://shop.example/plan\" = \"pro\"")
        }
        false => fault,
    };
    match place {
        Some(place) if !error.message().starts_with("invalid") => fault
            .at(&(place.start..place.start + 1), "opened here")
            .help("write commas between its elements and close it: [1, 2] or { a = 1, b = 2 }"),
        _ => fault,
    }
}

/// Describes an error in a single value.
fn misread(text: &str, error: &Error, span: &Range<usize>, scalar: &Range<usize>) -> Diagnostic {
    let line = text[scalar.start..].lines().next().unwrap_or_default();
    let raw = line.split(['#', ',', ']', '}']).next().unwrap_or_default().trim_end();
    if raw.starts_with(['"', '\'']) {
        return describe(error, span);
    }
    if raw.is_empty() {
        return Diagnostic::error("missing value").at(span, "expected a value");
    }
    // A variable ends with a brace, which would end an inline table.
    let raw = if raw.starts_with("${") { line.split_inclusive('}').next().unwrap_or(raw) } else { raw };
    // Word processors produce these quotes.
    let bare = raw.trim_matches(['\u{201c}', '\u{201d}', '\u{201e}', '\u{2018}', '\u{2019}', '"', '\'', '`']);
    Diagnostic::error(format!("`{raw}` is neither a quoted string nor a number, `true` or `false`"))
        .at(&(scalar.start..scalar.start + raw.len()), "")
        .help(
            foreign::value(raw, line)
                .unwrap_or_else(|| format!("if it is text, put it in quotes: \"{bare}\"")),
        )
}

/// Describes an error by the parser's message, which includes what it expected.
fn describe(error: &Error, span: &Range<usize>) -> Diagnostic {
    match error.message().split_once(", expected ") {
        Some(("invalid basic string" | "invalid literal string", quote)) => {
            Diagnostic::error("this string is not closed").at(span, format!("expected {quote}"))
        }
        Some((message, expected)) => Diagnostic::error(message).at(span, format!("expected {expected}")),
        None => Diagnostic::error(error.message()).at(span, ""),
    }
}

/// Describes a key or table that is defined twice.
fn duplicate(text: &str, tree: &DeTable<'_>, span: &Range<usize>) -> Diagnostic {
    let line_start = text[..span.start].rfind('\n').map_or(0, |at| at + 1);
    let line = text[line_start..].lines().next().unwrap_or_default();
    let name = text[span.clone()].trim_matches(['"', '\'']);
    let (what, first) = match header(line) {
        Some(header) => ("table", same_header(&text[..line_start], header)),
        None => ("key", nearest_key(tree, name, span.start)),
    };
    let fault = Diagnostic::error(format!("duplicate name: the {what} `{name}` is already defined"))
        .at(span, "again here");
    let fault = first.into_iter().fold(fault, |fault, first| fault.at(&first, "first here"));
    // A table of named tables can't be a list, too.
    let form = line.trim_start().starts_with("[[").then(|| hints::form(name)).flatten();
    fault.help(form.unwrap_or("remove or rename one of the two"))
}

/// Returns true if a name is in a table's header.
fn is_header(text: &str, name: &Range<usize>) -> bool {
    header(&text[line_at(text, name.start)]).is_some()
}

/// Returns the end of the table whose header ends here: the next header, or the end of the file.
fn end_of_table(text: &str, header_end: usize) -> usize {
    let rest = &text[header_end..];
    let next = rest
        .match_indices('\n')
        .find(|(at, _)| header(rest[at + 1..].lines().next().unwrap_or_default()).is_some());
    next.map_or(text.len(), |(at, _)| header_end + at)
}

/// Returns the text between the brackets of a table's header.
fn header(line: &str) -> Option<&str> {
    let inside = line.trim_start().strip_prefix('[')?;
    inside.trim_start_matches('[').split(']').next().map(str::trim)
}

/// Returns the last line with this header. The tree doesn't keep its position.
fn same_header(text: &str, wanted: &str) -> Option<Range<usize>> {
    let line = text.lines().rfind(|line| header(line) == Some(wanted))?;
    let start = line.as_ptr() as usize - text.as_ptr() as usize;
    Some(start..start + line.trim_end().len())
}

/// Returns the last key of this name before `end`. Keys in inline tables that end before it don't count.
fn nearest_key(table: &DeTable<'_>, name: &str, end: usize) -> Option<Range<usize>> {
    let here = table.iter().filter(|(key, _)| key.get_ref() == name && key.span().end <= end);
    let here = here.map(|(key, _)| key.span());
    let below = table.iter().flat_map(|(key, value)| {
        let is_closed = is_key_value(key, value) && value.span().end <= end;
        children(value.get_ref()).filter(move |_| !is_closed)
    });
    here.chain(below.filter_map(|table| nearest_key(table, name, end))).max_by_key(|key| key.start)
}

/// Returns the tables directly below a value.
fn children<'v, 'i>(value: &'v DeValue<'i>) -> impl Iterator<Item = &'v DeTable<'i>> {
    let list = value.as_array().map(|list| list.iter()).into_iter().flatten();
    value.as_table().into_iter().chain(list.filter_map(|element| element.get_ref().as_table()))
}

/// Returns true if the value follows its key, false if the key is part of a table header.
fn is_key_value<T>(key: &Spanned<T>, value: &Spanned<DeValue<'_>>) -> bool {
    key.span().end <= value.span().start
}

/// Returns the value after a `=` that contains this byte, or ends with it.
fn key_value_at<'t, 'i>(table: &'t DeTable<'i>, at: usize) -> Option<&'t Spanned<DeValue<'i>>> {
    table.iter().find_map(|(key, value)| match value.get_ref() {
        _ if is_key_value(key, value) => holds(value, at).then_some(value),
        inner => children(inner).find_map(|table| key_value_at(table, at)),
    })
}

/// Returns the position of the string, number or other scalar in this value that contains this byte, or ends
/// with it.
fn scalar_at(value: &Spanned<DeValue<'_>>, at: usize) -> Option<Range<usize>> {
    match value.get_ref() {
        DeValue::Array(list) => list.iter().find_map(|element| scalar_at(element, at)),
        DeValue::Table(table) => table.iter().find_map(|(_, value)| scalar_at(value, at)),
        _ => holds(value, at).then(|| value.span()),
    }
}

/// Returns the line that contains this byte.
fn line_at(text: &str, at: usize) -> Range<usize> {
    let at = text.floor_char_boundary(at);
    let start = text[..at].rfind('\n').map_or(0, |before| before + 1);
    start..text[at..].find('\n').map_or(text.len(), |end| at + end)
}

fn holds_byte(span: &Range<usize>, at: usize) -> bool {
    span.start <= at && at <= span.end
}

fn holds(value: &Spanned<DeValue<'_>>, at: usize) -> bool {
    holds_byte(&value.span(), at)
}
