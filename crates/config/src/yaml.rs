//! YAML as a tree whose values know their position in the text.
//!
//! Aliases repeat what they stand for, so the number of values is bounded, and so is the depth.

use std::{collections::HashMap, ops::Range};

use saphyr_parser::{Event, Parser, ScalarStyle, ScanError, Span};

use super::error::Diagnostic;

/// The most values of a file, with those that aliases repeat.
pub const VALUES_MOST: usize = 200_000;
/// The most levels of lists and maps.
const DEPTH_MOST: usize = 64;
/// The number of characters from one whose place is known to the next.
const PLACE_EVERY: usize = 64;

/// A value.
#[derive(Clone, Debug)]
pub(super) struct YamlNode {
    pub(super) span: Range<usize>,
    pub(super) value: YamlValue,
}

/// The kinds of values.
#[derive(Clone, Debug)]
pub(super) enum YamlValue {
    /// A text, a number, a boolean, or nothing at all.
    Scalar {
        /// The text.
        text: String,
        /// True if the text has no quotes, so that it may be something else than text.
        is_plain: bool,
    },
    /// A list.
    List(Vec<YamlNode>),
    /// A map in the order of the file.
    Map(Vec<(YamlNode, YamlNode)>),
}

impl YamlNode {
    /// Returns true if the value is absent: `key:` or `key: null`.
    pub(super) fn is_null(&self) -> bool {
        let nothing = ["", "~", "null", "Null", "NULL"];
        matches!(&self.value, YamlValue::Scalar { text, is_plain: true } if nothing.contains(&text.as_str()))
    }

    /// Returns the text of a scalar.
    pub(super) fn text(&self) -> Option<&str> {
        match &self.value {
            YamlValue::Scalar { text, .. } if !self.is_null() => Some(text),
            _ => None,
        }
    }

    /// Returns the number of values, with those inside.
    fn count(&self) -> usize {
        1 + match &self.value {
            YamlValue::Scalar { .. } => 0,
            YamlValue::List(items) => items.iter().map(Self::count).sum(),
            YamlValue::Map(pairs) => pairs.iter().map(|(key, value)| key.count() + value.count()).sum(),
        }
    }
}

/// Reads the only document of a text. `None` if it is empty.
///
/// # Errors
/// The text isn't valid YAML, or too large.
pub(super) fn parse(text: &str) -> Result<Option<YamlNode>, Diagnostic> {
    let mut loader = Loader {
        text,
        parser: Parser::new_from_str(text),
        places: text.char_indices().step_by(PLACE_EVERY).map(|(at, _)| at).collect(),
        anchors: HashMap::new(),
        values: 0,
    };
    let mut root = None;
    loop {
        let (event, span) = loader.next()?;
        match event {
            Event::StreamEnd => return Ok(root),
            Event::DocumentStart(_) if root.is_some() => {
                let fault = Diagnostic::error("there is more than one document in this file");
                return Err(fault
                    .at(&loader.bytes(span), "")
                    .help("write each document into a file of its own"));
            }
            Event::StreamStart | Event::DocumentStart(_) | Event::DocumentEnd | Event::Nothing => {}
            event => root = Some(loader.node(event, span, 0)?),
        }
    }
}

struct Loader<'t> {
    text: &'t str,
    parser: Parser<'t, saphyr_parser::StrInput<'t>>,
    /// The byte offsets of some characters.
    places: Vec<usize>,
    /// The nodes that aliases stand for.
    anchors: HashMap<usize, YamlNode>,
    values: usize,
}

impl<'t> Loader<'t> {
    fn next(&mut self) -> Result<(Event<'t>, Span), Diagnostic> {
        match self.parser.next_event() {
            Some(Ok(event)) => Ok(event),
            Some(Err(error)) => Err(self.syntax(&error)),
            None => Ok((Event::StreamEnd, Span::empty(saphyr_parser::Marker::new(0, 1, 0)))),
        }
    }

    fn syntax(&self, error: &ScanError) -> Diagnostic {
        let at = self.place(error.marker().index());
        let end = self.text[at..].chars().next().map_or(at, |character| at + character.len_utf8());
        Diagnostic::error(format!("this is not valid YAML: {}", error.info())).at(&(at..end), "")
    }

    /// Returns the byte offset of a character.
    fn place(&self, index: usize) -> usize {
        let Some(near) = self.places.get(index / PLACE_EVERY) else { return self.text.len() };
        let mut from_there = self.text[*near..].char_indices();
        from_there.nth(index % PLACE_EVERY).map_or(self.text.len(), |(at, _)| near + at)
    }

    fn bytes(&self, span: Span) -> Range<usize> {
        let start = self.place(span.start.index());
        start..self.place(span.end.index()).max(start)
    }

    /// Reads the value that begins with an event.
    fn node(&mut self, event: Event<'t>, span: Span, depth: usize) -> Result<YamlNode, Diagnostic> {
        let start = self.bytes(span);
        if depth > DEPTH_MOST {
            return Err(Diagnostic::error(format!("more than {DEPTH_MOST} levels")).at(&start, ""));
        }
        self.note(1, &start)?;
        let (anchor, value, end) = match event {
            Event::Alias(anchor) => {
                // A value isn't known within itself.
                let Some(node) = self.anchors.get(&anchor).cloned() else {
                    return Err(
                        Diagnostic::error("an alias within the value that it stands for").at(&start, "")
                    );
                };
                self.note(node.count(), &start)?;
                return Ok(YamlNode { span: start, value: node.value });
            }
            Event::Scalar(text, style, anchor, tag) => {
                let is_plain = style == ScalarStyle::Plain && tag.is_none();
                (anchor, YamlValue::Scalar { text: text.into_owned(), is_plain }, start.end)
            }
            Event::SequenceStart(anchor, _) => {
                let (items, end) = self.items(depth)?;
                (anchor, YamlValue::List(items), end)
            }
            Event::MappingStart(anchor, _) => {
                let (pairs, end) = self.pairs(depth)?;
                (anchor, YamlValue::Map(pairs), end)
            }
            _ => return Err(Diagnostic::error("this is not valid YAML").at(&start, "")),
        };
        let node = YamlNode { span: start.start..end, value };
        if anchor > 0 {
            self.anchors.insert(anchor, node.clone());
        }
        Ok(node)
    }

    fn note(&mut self, values: usize, place: &Range<usize>) -> Result<(), Diagnostic> {
        self.values += values;
        if self.values > VALUES_MOST {
            let fault = Diagnostic::error(format!("there are more than {VALUES_MOST} values")).at(place, "");
            return Err(fault.help("aliases count as what they repeat"));
        }
        Ok(())
    }

    /// Reads the items of a list, and returns where it ends.
    fn items(&mut self, depth: usize) -> Result<(Vec<YamlNode>, usize), Diagnostic> {
        let mut items = Vec::new();
        loop {
            match self.next()? {
                (Event::SequenceEnd, span) => return Ok((items, self.bytes(span).start)),
                (event, span) => items.push(self.node(event, span, depth + 1)?),
            }
        }
    }

    /// Reads the pairs of a map, and returns where it ends.
    fn pairs(&mut self, depth: usize) -> Result<(Vec<(YamlNode, YamlNode)>, usize), Diagnostic> {
        let mut pairs = Vec::new();
        loop {
            let key = match self.next()? {
                (Event::MappingEnd, span) => return Ok((pairs, self.bytes(span).start)),
                (event, span) => self.node(event, span, depth + 1)?,
            };
            let (event, span) = self.next()?;
            pairs.push((key, self.node(event, span, depth + 1)?));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fault(text: &str) -> String {
        parse(text).expect_err("the text is bad").message
    }

    #[test]
    fn values_know_their_place() {
        let text = "\u{e4}: [b, \"10\"]\nc: ~\n";
        let Some(YamlNode { value: YamlValue::Map(pairs), .. }) = parse(text).unwrap() else { panic!() };
        let (key, list) = &pairs[0];
        assert_eq!((key.text(), &text[key.span.clone()]), (Some("\u{e4}"), "\u{e4}"));
        let YamlValue::List(items) = &list.value else { panic!() };
        assert_eq!(&text[items[1].span.clone()], "\"10\"");
        assert!(pairs[1].1.is_null() && items[1].text() == Some("10"));
        assert!(parse("").unwrap().is_none() && parse("# nothing\n").unwrap().is_none());
    }

    #[test]
    fn aliases_are_bounded() {
        let Some(YamlNode { value: YamlValue::Map(pairs), .. }) = parse("a: &x [1]\nb: *x").unwrap() else {
            panic!()
        };
        assert!(matches!(&pairs[1].1.value, YamlValue::List(items) if items[0].text() == Some("1")));
        let mut laughs = "a0: &a0 [lol]\n".to_owned();
        for level in 1..40 {
            let before = format!("*a{}", level - 1);
            laughs += &format!("a{level}: &a{level} [{}]\n", [before.as_str(); 10].join(","));
        }
        assert!(fault(&laughs).starts_with("there are more than"), "{}", fault(&laughs));
        assert!(parse("a: &a [*a]").is_err());
        assert!(fault(&"[".repeat(70)).contains("levels"), "{}", fault(&"[".repeat(70)));
        assert!(parse(&"[".repeat(100_000)).is_err());
    }

    #[test]
    fn bad_yaml_is_told() {
        for text in ["a: [", "a: b: c", "\t- a", "a: *nothing", "%YAML 9", "a: \"", "- a\nb: c", "\u{0}"] {
            let _ = parse(text);
        }
        assert!(fault("a: [").starts_with("this is not valid YAML: "));
        assert!(fault("a\n---\nb").contains("more than one document"));
    }
}
