//! A fault is something wrong with a configuration file, and what to do about it.
//!
//! Faults are drawn under the line they are about, as rustc does, and without the passwords in it.

use std::{error::Error, fmt, ops::Range};

use annotate_snippets::{Annotation, AnnotationKind, Group, Level, Renderer, Snippet};
use serde_json::{Value, json};

use super::password::{blank, blank_message};

/// How bad a fault is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Severity {
    /// The file can't be used.
    Error,
    /// The file can be used, but it hardly means what it says.
    Warning,
}

/// One thing wrong with a file.
#[derive(Debug, PartialEq, Eq)]
pub struct Diagnostic {
    /// How bad it is.
    pub severity: Severity,
    /// What is wrong, on one line.
    pub message: String,
    /// Where, the place to mend first; none for what isn't in the file, such as a flag.
    pub places: Vec<LabeledSpan>,
    /// What to do about it, a line each.
    pub help: Vec<String>,
}

/// A part of the file, in bytes, and what to say about it, if anything.
#[derive(Debug, PartialEq, Eq)]
pub struct LabeledSpan {
    /// In bytes of the file.
    pub span: Range<usize>,
    /// Drawn beside the underlined part; possibly empty.
    pub label: String,
}

impl Diagnostic {
    /// An error without a place.
    pub(super) fn error(message: impl Into<String>) -> Self {
        Self { severity: Severity::Error, message: message.into(), places: Vec::new(), help: Vec::new() }
    }

    /// A warning without a place.
    pub(super) fn warning(message: impl Into<String>) -> Self {
        Self { severity: Severity::Warning, ..Self::error(message) }
    }

    /// An error whose text is a message and, on lines of their own, the remedy.
    pub(super) fn with_remedy(text: &str) -> Self {
        let mut lines = text.lines().map(str::to_owned);
        let message = lines.next().unwrap_or_default();
        Self { help: lines.collect(), ..Self::error(message) }
    }

    /// Adds a place. The first is the one to mend.
    pub(super) fn at(mut self, span: &Range<usize>, label: impl Into<String>) -> Self {
        self.places.push(LabeledSpan { span: span.clone(), label: label.into() });
        self
    }

    /// Adds a line of help.
    pub(super) fn help(mut self, line: impl Into<String>) -> Self {
        self.help.push(line.into());
        self
    }

    /// Where the fault starts; those without a place come first.
    pub(super) fn start(&self) -> usize {
        self.places.first().map_or(0, |place| place.span.start)
    }

    fn level(&self) -> Level<'static> {
        match self.severity {
            Severity::Error => Level::ERROR,
            Severity::Warning => Level::WARNING,
        }
    }
}

/// All faults of a file, in its order, with what is needed to draw them.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Diagnostics {
    name: String,
    text: String,
    faults: Vec<Diagnostic>,
}

impl Diagnostics {
    /// The faults of the file `name` with this text. Passwords are blanked here, once and for all.
    pub(super) fn new(name: &str, text: &str, mut faults: Vec<Diagnostic>) -> Self {
        faults.sort_by_key(Diagnostic::start);
        for fault in &mut faults {
            fault.message = blank_message(&fault.message, text);
            fault.help.iter_mut().for_each(|line| *line = blank_message(line, text));
        }
        Self { name: name.to_owned(), text: blank(text), faults }
    }

    /// One fault of the file `name` that isn't in its text: a message and, on lines of their own, the remedy.
    pub fn of(name: &str, text: &str) -> Self {
        Self::new(name, "", vec![Diagnostic::with_remedy(text)])
    }

    /// Whether there is nothing to say.
    pub fn is_empty(&self) -> bool {
        self.faults.is_empty()
    }

    /// The faults in the order of the file.
    pub fn iter(&self) -> std::slice::Iter<'_, Diagnostic> {
        self.faults.iter()
    }

    /// The faults drawn for a terminal with colours; `Display` draws them without.
    pub fn coloured(&self) -> String {
        self.draw(&Renderer::styled())
    }

    /// The faults for programs: where each is, in lines and columns from 1, what is wrong, and what to do about it.
    pub fn to_json(&self) -> Value {
        let faults = self.faults.iter().map(|fault| {
            let place = fault.places.first().map(|place| {
                let before = &self.text[..self.within_text(&place.span).start];
                let line = before.matches('\n').count() + 1;
                let column = before.rsplit('\n').next().unwrap_or_default().chars().count() + 1;
                (line, column)
            });
            json!({
                "severity": match fault.severity { Severity::Error => "error", Severity::Warning => "warning" },
                "message": fault.message,
                "line": place.map(|(line, _)| line),
                "column": place.map(|(_, column)| column),
                "help": fault.help,
            })
        });
        faults.collect()
    }

    fn draw(&self, renderer: &Renderer) -> String {
        if self.is_empty() {
            return String::new();
        }
        let mut drawn = String::new();
        for fault in &self.faults {
            drawn += &renderer.render(&[self.group(fault)]);
            drawn += "\n\n";
        }
        drawn + &self.summary()
    }

    fn group<'a>(&'a self, fault: &'a Diagnostic) -> Group<'a> {
        let kinds =
            std::iter::once(AnnotationKind::Primary).chain(std::iter::repeat(AnnotationKind::Context));
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

    /// A span moved to whole characters of the text: what draws it would panic at others.
    fn within_text(&self, span: &Range<usize>) -> Range<usize> {
        let start = self.text.floor_char_boundary(span.start);
        start..self.text.ceil_char_boundary(span.end).max(start)
    }

    /// The last line: "gateway.toml: 3 errors, 1 warning".
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

/// The known name that was probably meant.
pub(super) fn nearest<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let allowed = (name.chars().count() / 3).max(1);
    known
        .into_iter()
        .map(|candidate| (strsim::damerau_levenshtein(name, candidate), candidate))
        .filter(|(distance, _)| *distance <= allowed)
        .min()
        .map(|(_, candidate)| candidate)
}
