//! Errors and warnings about a configuration file, with advice on how to fix it.
//!
//! They are drawn under the lines that they concern, as rustc does, with passwords blanked.

use std::{collections::BTreeSet, error::Error, fmt, iter, mem, ops::Range};

use annotate_snippets::{Annotation, AnnotationKind, Group, Level, Renderer, Snippet};
use serde_json::{Value, json};

use super::password::{blank, blank_message, secrets_of};

/// The severity of a diagnostic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Severity {
    /// The file can't be used.
    Error,
    /// The file can be used, but probably doesn't mean what its author intended.
    Warning,
}

/// An error or warning about a file.
#[derive(Debug, PartialEq, Eq)]
pub struct Diagnostic {
    /// The severity.
    pub severity: Severity,
    /// The message, on one line.
    pub message: String,
    /// The parts of the file that are concerned, the one to fix first. Empty if the file isn't concerned, for
    /// example by a flag.
    pub places: Vec<LabeledSpan>,
    /// The advice on how to fix it, a line each.
    pub help: Vec<String>,
}

/// A part of the file with a label.
#[derive(Debug, PartialEq, Eq)]
pub struct LabeledSpan {
    /// The position in the file, in bytes.
    pub span: Range<usize>,
    /// The text beside the underlined part, possibly empty.
    pub label: String,
}

/// A diagnostic on its own, for a record in the log.
#[derive(Debug)]
pub struct DiagnosticRecord<'d> {
    /// The severity.
    pub severity: Severity,
    /// The name of the file.
    pub file: &'d str,
    /// The line and column of the first position, from 1. `None` without a position.
    pub line: Option<u64>,
    /// See `line`.
    pub column: Option<u64>,
    /// The message, with the label of the first position.
    pub message: String,
    /// The advice on how to fix it.
    pub help: &'d [String],
}

impl Diagnostic {
    /// Creates an error without a position.
    pub(super) fn error(message: impl Into<String>) -> Self {
        Self { severity: Severity::Error, message: message.into(), places: Vec::new(), help: Vec::new() }
    }

    /// Creates a warning without a position.
    pub(super) fn warning(message: impl Into<String>) -> Self {
        Self { severity: Severity::Warning, ..Self::error(message) }
    }

    /// Creates an error from a message and, on lines of their own, advice on how to fix it.
    pub(super) fn with_remedy(text: &str) -> Self {
        let mut lines = text.lines().map(str::to_owned);
        let message = lines.next().unwrap_or_default();
        Self { help: lines.collect(), ..Self::error(message) }
    }

    /// Adds a position. The first is the one to fix.
    pub(super) fn at(mut self, span: &Range<usize>, label: impl Into<String>) -> Self {
        self.places.push(LabeledSpan { span: span.clone(), label: label.into() });
        self
    }

    /// Adds a line of advice.
    pub(super) fn help(mut self, line: impl Into<String>) -> Self {
        self.help.push(line.into());
        self
    }

    /// Returns the start of the first position, or 0 if there is none.
    pub(super) fn start(&self) -> usize {
        self.places.first().map_or(0, |place| place.span.start)
    }

    /// Blanks these texts.
    pub(super) fn hide(&mut self, secrets: &[&str]) {
        let labels = self.places.iter_mut().map(|place| &mut place.label);
        for told in iter::once(&mut self.message).chain(&mut self.help).chain(labels) {
            *told = secrets.iter().fold(mem::take(told), |told, secret| told.replace(secret, "******"));
        }
    }

    fn level(&self) -> Level<'static> {
        match self.severity {
            Severity::Error => Level::ERROR,
            Severity::Warning => Level::WARNING,
        }
    }
}

/// The diagnostics of a file in the order of its text, with everything that is needed to draw them.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Diagnostics {
    name: String,
    text: String,
    faults: Vec<Diagnostic>,
    /// The diagnostics of other files that this one names.
    included: Vec<Diagnostics>,
}

impl Diagnostics {
    /// Collects the diagnostics of the file `name` with this text. Passwords are blanked here, once and for
    /// all.
    pub(super) fn new(name: &str, text: &str, mut faults: Vec<Diagnostic>) -> Self {
        faults.sort_by_key(Diagnostic::start);
        // They are looked for once, since a file can be large and have many faults.
        let secrets = if faults.is_empty() { BTreeSet::new() } else { secrets_of(text) };
        for fault in &mut faults {
            let labels = fault.places.iter_mut().map(|place| &mut place.label);
            for told in iter::once(&mut fault.message).chain(&mut fault.help).chain(labels) {
                *told = blank_message(told, &secrets);
            }
        }
        Self { name: name.to_owned(), text: blank(text), faults, included: Vec::new() }
    }

    /// Adds the diagnostics of files that this one names.
    pub(super) fn with(self, included: Vec<Self>) -> Self {
        Self { included, ..self }
    }

    /// Creates a single error about the file `name` as a whole: a message and, on lines of their own, advice
    /// on how to fix it.
    pub fn of(name: &str, text: &str) -> Self {
        Self::new(name, "", vec![Diagnostic::with_remedy(text)])
    }

    /// Returns true if there are no diagnostics.
    pub fn is_empty(&self) -> bool {
        self.faults.is_empty() && self.included.iter().all(Self::is_empty)
    }

    /// Returns true if the file can't be used.
    pub(super) fn has_errors(&self) -> bool {
        self.faults.iter().any(|fault| fault.severity == Severity::Error)
    }

    /// Returns the diagnostics in the order of the file.
    pub fn iter(&self) -> std::slice::Iter<'_, Diagnostic> {
        self.faults.iter()
    }

    /// Draws the diagnostics in colour, for a terminal. `Display` draws them without colour.
    pub fn coloured(&self) -> String {
        self.draw(&Renderer::styled())
    }

    /// Returns the diagnostics of this file and of those that it names, for records in the log.
    pub fn records(&self) -> Vec<DiagnosticRecord<'_>> {
        let lines = self.lines();
        let own = self.faults.iter().map(|fault| {
            let place = self.place(fault, &lines);
            let label =
                fault.places.first().map(|place| place.label.as_str()).filter(|label| !label.is_empty());
            DiagnosticRecord {
                severity: fault.severity,
                file: &self.name,
                line: place.map(|(line, _)| line as u64),
                column: place.map(|(_, column)| column as u64),
                message: [fault.message.as_str()].into_iter().chain(label).collect::<Vec<_>>().join(": "),
                help: &fault.help,
            }
        });
        own.chain(self.included.iter().flat_map(Self::records)).collect()
    }

    /// Returns the places at which the lines begin.
    fn lines(&self) -> Vec<usize> {
        iter::once(0).chain(self.text.match_indices('\n').map(|(end, _)| end + 1)).collect()
    }

    /// Returns the line and the column, from 1, of a diagnostic's first position.
    fn place(&self, fault: &Diagnostic, lines: &[usize]) -> Option<(usize, usize)> {
        fault.places.first().map(|place| self.line_and_column(place, lines))
    }

    fn line_and_column(&self, place: &LabeledSpan, lines: &[usize]) -> (usize, usize) {
        let at = self.within_text(&place.span).start;
        let line = lines.partition_point(|start| *start <= at);
        (line, self.text[lines[line - 1]..at].chars().count() + 1)
    }

    /// Returns the diagnostics as JSON, each with the line and column (from 1) of its first position.
    pub fn to_json(&self) -> Value {
        let lines = self.lines();
        let faults = self.faults.iter().map(|fault| {
            let place = self.place(fault, &lines);
            json!({
                "severity": match fault.severity { Severity::Error => "error", Severity::Warning => "warning" },
                "message": fault.message,
                "line": place.map(|(line, _)| line),
                "column": place.map(|(_, column)| column),
                "help": fault.help,
                "notes": fault.places.iter().filter(|place| !place.label.is_empty()).map(|place| {
                    let (line, column) = self.line_and_column(place, &lines);
                    json!({ "line": line, "column": column, "text": place.label })
                }).collect::<Vec<_>>(),
            })
        });
        let included = self.included.iter().flat_map(|included| {
            let faults = included.to_json();
            let faults = faults.as_array().cloned().unwrap_or_default().into_iter();
            faults.map(|mut fault| {
                fault["file"] = included.name.clone().into();
                fault
            })
        });
        faults.chain(included).collect()
    }

    fn draw(&self, renderer: &Renderer) -> String {
        if self.is_empty() {
            return String::new();
        }
        let mut drawn: String =
            self.included.iter().map(|included| included.draw(renderer) + "\n\n").collect();
        if self.faults.is_empty() {
            return drawn.trim_end().to_owned();
        }
        for fault in &self.faults {
            drawn += &renderer.render(&[self.group(fault)]);
            drawn += "\n\n";
        }
        drawn + &self.summary()
    }

    fn group<'a>(&'a self, fault: &'a Diagnostic) -> Group<'a> {
        let kinds = iter::once(AnnotationKind::Primary).chain(iter::repeat(AnnotationKind::Context));
        let annotations = fault.places.iter().zip(kinds).map(|(place, kind)| -> Annotation<'a> {
            let label = (!place.label.is_empty()).then_some(place.label.as_str());
            kind.span(self.within_text(&place.span)).label(label)
        });
        let mut group = Group::with_title(fault.level().primary_title(&fault.message));
        if !fault.places.is_empty() {
            group = group.element(Snippet::source(&self.text).path(&self.name).annotations(annotations));
        }
        group.elements(fault.help.iter().map(|line| Level::HELP.message(line)))
    }

    /// Widens a span to whole characters of the text. The renderer would panic within a character.
    fn within_text(&self, span: &Range<usize>) -> Range<usize> {
        let start = self.text.floor_char_boundary(span.start);
        start..self.text.ceil_char_boundary(span.end).max(start)
    }

    /// Returns the last line: "gateway.toml: 3 errors, 1 warning".
    fn summary(&self) -> String {
        let count = |severity, noun| match self.faults.iter().filter(|f| f.severity == severity).count() {
            0 => None,
            1 => Some(format!("1 {noun}")),
            many => Some(format!("{many} {noun}s")),
        };
        let counts = [count(Severity::Error, "error"), count(Severity::Warning, "warning")];
        format!("{}: {}", self.name, counts.into_iter().flatten().collect::<Vec<_>>().join(", "))
    }
}

impl fmt::Display for Diagnostics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.draw(&Renderer::plain()))
    }
}

impl Error for Diagnostics {}

/// Returns the known name that was probably meant.
pub(super) fn nearest<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let allowed = (name.chars().count() / 3).max(1);
    known
        .into_iter()
        .map(|candidate| (strsim::damerau_levenshtein(name, candidate), candidate))
        .filter(|(distance, _)| *distance <= allowed)
        .min()
        .map(|(_, candidate)| candidate)
}
