//! A number at a JSON pointer, found while the text passes by in pieces of any size. Nothing of it is kept but the number.
//!
//! Texts that aren't valid JSON have no number, or any: they are never an error. A number counts once a byte behind it has been read,
//! since a text may break off within it.

use crate::config::JsonPointer;

/// Digits of a number that can be a cost, and one more.
const DIGITS_MOST: usize = 11;

/// The search for the number at a pointer. Several values after one another count as one text; the last number is the one.
#[derive(Debug)]
pub(super) struct NumberAt {
    pointer: JsonPointer,
    state: ParserState,
    /// The containers around the current place that the pointer leads through, from the outside: for an array the index of the
    /// current element.
    path: Vec<Container>,
    found: Option<u32>,
}

#[derive(Debug)]
enum Container {
    Object,
    Array { index: usize },
}

#[derive(Debug)]
enum ParserState {
    /// A value comes, at the pointer if that is true, or else of a container on its way.
    Value { is_at_pointer: bool },
    /// A key comes, or the end of the object.
    KeyOrEnd,
    /// A key, without its quotes and with its escapes.
    Key { text: Vec<u8>, is_escaped: bool },
    /// The colon after a key, which the pointer names or doesn't.
    Colon { is_on_path: bool },
    /// The number at the pointer.
    Number { digits: Vec<u8> },
    /// A value that the pointer doesn't lead into, in so many containers.
    Skip { depth: usize },
    /// A string in such a value.
    SkipString { depth: usize, is_escaped: bool },
    /// A number or word in such a value, which is no container.
    SkipScalar,
    /// A comma, or the end of the container.
    AfterValue,
}

impl NumberAt {
    pub(super) fn new(pointer: JsonPointer) -> Self {
        let state = ParserState::Value { is_at_pointer: pointer.0.is_empty() };
        Self { pointer, state, path: Vec::new(), found: None }
    }

    /// Begins another text, whatever the one before it lacks. What was found stays.
    pub(super) fn restart(&mut self) {
        self.path.clear();
        self.state = self.value();
    }

    /// Returns the last number at the pointer so far.
    pub(super) fn found(&self) -> Option<u32> {
        self.found
    }

    /// Reads a piece of the text.
    pub(super) fn read(&mut self, text: &[u8]) {
        for byte in text {
            // A number ends with the byte behind it, which has a meaning of its own.
            if !self.step(*byte) {
                self.step(*byte);
            }
        }
    }

    /// Reads a byte. Returns false if the byte ended a number or word, and is to be read again.
    fn step(&mut self, byte: u8) -> bool {
        match &mut self.state {
            ParserState::Value { .. }
            | ParserState::KeyOrEnd
            | ParserState::Colon { .. }
            | ParserState::AfterValue
                if byte.is_ascii_whitespace() => {}
            &mut ParserState::Value { is_at_pointer } => self.begin_value(byte, is_at_pointer),
            ParserState::KeyOrEnd if byte == b'"' => {
                self.state = ParserState::Key { text: Vec::new(), is_escaped: false };
            }
            ParserState::KeyOrEnd => self.end_container(),
            ParserState::Key { .. } => self.go_on_in_key(byte),
            ParserState::Colon { is_on_path } => {
                self.state = if *is_on_path { self.value() } else { ParserState::Skip { depth: 0 } };
            }
            ParserState::Number { digits } if is_of_number(byte) => {
                if digits.len() < DIGITS_MOST {
                    digits.push(byte);
                }
            }
            ParserState::Number { .. } => {
                self.end_number();
                return false;
            }
            &mut ParserState::Skip { depth } => self.skip(byte, depth),
            &mut ParserState::SkipString { depth, is_escaped: false } if byte == b'"' => {
                self.state = after_skipped(depth);
            }
            ParserState::SkipString { is_escaped, .. } => *is_escaped = byte == b'\\' && !*is_escaped,
            ParserState::SkipScalar if matches!(byte, b',' | b'}' | b']') || byte.is_ascii_whitespace() => {
                self.state = ParserState::AfterValue;
                return false;
            }
            ParserState::SkipScalar => {}
            ParserState::AfterValue => return self.go_on(byte),
        }
        true
    }

    /// Reads a byte of a key, or the quote that ends it.
    fn go_on_in_key(&mut self, byte: u8) {
        let ParserState::Key { text, is_escaped } = &mut self.state else { return };
        if byte == b'"' && !*is_escaped {
            let key = std::mem::take(text);
            self.state = ParserState::Colon { is_on_path: self.is_named(&key) };
            return;
        }
        *is_escaped = byte == b'\\' && !*is_escaped;
        // One byte more than an escaped key of the pointer can have says that it is another one.
        if text.len() <= 6 * JsonPointer::KEY_BYTES {
            text.push(byte);
        }
    }

    /// Reads the byte after a value. Returns false if it begins another text, and is to be read again.
    fn go_on(&mut self, byte: u8) -> bool {
        match (byte, self.path.last_mut()) {
            (b',', Some(Container::Object)) => self.state = ParserState::KeyOrEnd,
            (b',', Some(Container::Array { index })) => {
                *index += 1;
                self.state = self.element();
            }
            (b'}' | b']', Some(_)) => self.end_container(),
            (_, None) => {
                self.state = self.value();
                return false;
            }
            _ => {}
        }
        true
    }

    fn begin_value(&mut self, byte: u8, is_at_pointer: bool) {
        self.state = match byte {
            b'0'..=b'9' if is_at_pointer => ParserState::Number { digits: vec![byte] },
            b'{' if !is_at_pointer => {
                self.path.push(Container::Object);
                ParserState::KeyOrEnd
            }
            b'[' if !is_at_pointer => {
                self.path.push(Container::Array { index: 0 });
                self.element()
            }
            // The end of an empty array.
            b']' => return self.end_container(),
            _ => return self.skip(byte, 0),
        };
    }

    /// Skips a byte of a value in so many containers.
    fn skip(&mut self, byte: u8, depth: usize) {
        self.state = match byte {
            b'"' => ParserState::SkipString { depth, is_escaped: false },
            b'{' | b'[' => ParserState::Skip { depth: depth + 1 },
            b'}' | b']' if depth > 0 => after_skipped(depth - 1),
            // An empty array's end, in which a value was expected.
            b']' | b'}' => return self.end_container(),
            _ if depth == 0 && !byte.is_ascii_whitespace() => ParserState::SkipScalar,
            _ => ParserState::Skip { depth },
        };
    }

    fn end_number(&mut self) {
        if let ParserState::Number { digits } = &self.state {
            let number = str::from_utf8(digits).ok().and_then(|digits| digits.parse().ok());
            self.found = number.filter(|number| *number <= i32::MAX as u32).or(self.found);
        }
        self.state = ParserState::AfterValue;
    }

    fn end_container(&mut self) {
        self.path.pop();
        self.state = ParserState::AfterValue;
    }

    /// Returns the state before a value on the way of the pointer.
    fn value(&self) -> ParserState {
        ParserState::Value { is_at_pointer: self.path.len() == self.pointer.0.len() }
    }

    /// Returns the state before the current element of an array.
    fn element(&self) -> ParserState {
        let named = self.path.len().checked_sub(1).and_then(|at| self.pointer.0.get(at));
        match (named, self.path.last()) {
            (Some(named), Some(Container::Array { index })) if *named == index.to_string() => self.value(),
            _ => ParserState::Skip { depth: 0 },
        }
    }

    /// Returns true if the pointer names this key of the current object.
    fn is_named(&self, key: &[u8]) -> bool {
        let Some(named) = self.path.len().checked_sub(1).and_then(|at| self.pointer.0.get(at)) else {
            return false;
        };
        if !key.contains(&b'\\') {
            return key == named.as_bytes();
        }
        let quoted = [b"\"", key, b"\""].concat();
        serde_json::from_slice::<String>(&quoted).is_ok_and(|key| key == *named)
    }
}

/// Returns the state after a part of a skipped value, in so many containers of it.
fn after_skipped(depth: usize) -> ParserState {
    if depth == 0 { ParserState::AfterValue } else { ParserState::Skip { depth } }
}

/// Returns true for the bytes of a number.
fn is_of_number(byte: u8) -> bool {
    matches!(byte, b'0'..=b'9' | b'.' | b'e' | b'E' | b'+' | b'-')
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;
    use crate::config::JsonPointer;

    fn found(pointer: &str, text: &str, piece: usize) -> Option<u32> {
        let mut number = NumberAt::new(JsonPointer::parse(pointer).unwrap());
        text.as_bytes().chunks(piece).for_each(|piece| number.read(piece));
        number.found()
    }

    #[test]
    fn a_number_is_found_at_its_pointer_only() {
        for (pointer, text, number) in [
            ("/usage/total_tokens", r#"{"id":"x","usage":{"prompt_tokens":9,"total_tokens":21}}"#, Some(21)),
            ("/usage/total_tokens", r#"{"usage":null,"x":{"usage":{"total_tokens":1}}}"#, None),
            ("/usage/total_tokens", r#"{"total_tokens":1,"usage":[{"total_tokens":2}]}"#, None),
            ("/usage/total_tokens", "{\"usage\" :\n {\t\"total_tokens\" : 7 } }", Some(7)),
            ("/usage/total_tokens", r#"{"usage":{"total_tokens":1},"usage":{"total_tokens":2}}"#, Some(2)),
            ("/usage/total_tokens", r#"{"t":"{\"usage\":{\"total_tokens\":3}}"}"#, None),
            ("/usage/total_tokens", r#"{"u\u0073age":{"total\u005ftokens":4}}"#, Some(4)),
            ("/choices/1/n", r#"{"choices":[{"n":1},{"n":2},{"n":3}]}"#, Some(2)),
            ("/choices/0/n", r#"{"choices":[ ]}"#, None),
            ("/a~1b/m~0n", r#"{"a/b":{"m~n":5}}"#, Some(5)),
            ("/n", "{\"n\":1}\n{\"n\":2}\n", Some(2)),
            ("/n", r#"{"n":0}"#, Some(0)),
            ("/n", r#"{"n":2147483647}"#, Some(i32::MAX as u32)),
            ("/n", r#"{"n":2147483648}"#, None),
            ("/n", r#"{"n":99999999999999999999}"#, None),
            ("/n", r#"{"n":1.5}"#, None),
            ("/n", r#"{"n":-1}"#, None),
            ("/n", r#"{"n":"1"}"#, None),
            ("/n", "[DONE]", None),
            ("/n", "]]}}{\"n\":1}", Some(1)),
            ("/n", r#"{"n":98"#, None),
            ("/n", r#"{"n":98,"#, Some(98)),
            ("/n", "", None),
        ] {
            for piece in [1, 2, 7, 4096] {
                assert_eq!(found(pointer, text, piece), number, "{pointer} {text} {piece}");
            }
        }
    }

    fn values() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            (0..50_u32).prop_map(Value::from),
            (-3.0..3.0_f64).prop_map(Value::from),
            prop::sample::select(vec!["", "a", "\"", "\\", "]}", "{\"a\":1}", "é\u{1}"])
                .prop_map(Value::from),
        ];
        let key = prop::sample::select(vec!["a", "b", "", "0", "/", "\"", "\\u", "é"]);
        leaf.prop_recursive(5, 60, 6, move |inner| {
            let object = prop::collection::vec((key.clone(), inner.clone()), 0..5);
            prop_oneof![
                prop::collection::vec(inner, 0..5).prop_map(Value::from),
                object.prop_map(|fields| fields
                    .into_iter()
                    .map(|(key, value)| (key.to_owned(), value))
                    .collect()),
            ]
        })
    }

    /// Returns the pointers to all values in a value.
    fn pointers(value: &Value, prefix: &str, found: &mut Vec<String>) {
        found.push(prefix.to_owned());
        let children: Vec<(String, &Value)> = match value {
            Value::Object(fields) => fields.iter().map(|(key, value)| (key.clone(), value)).collect(),
            Value::Array(elements) => {
                elements.iter().enumerate().map(|(at, value)| (at.to_string(), value)).collect()
            }
            _ => Vec::new(),
        };
        for (key, value) in children {
            let key = key.replace('~', "~0").replace('/', "~1");
            pointers(value, &format!("{prefix}/{key}"), found);
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(512))]

        /// The number is the one that serde_json finds, however the text is cut.
        #[test]
        fn any_number_is_found_in_any_text(value in values(), piece in 1..20_usize, is_pretty in any::<bool>()) {
            let text = if is_pretty { format!("{value:#}") } else { value.to_string() };
            let mut all = Vec::new();
            pointers(&value, "", &mut all);
            for pointer in all.iter().filter(|pointer| !pointer.is_empty()) {
                let expected = value.pointer(pointer).and_then(Value::as_u64).map(|number| number as u32);
                prop_assert_eq!(found(pointer, &text, piece), expected, "{} {}", pointer, text);
            }
        }

        #[test]
        fn no_text_is_an_error(text in r#"[\[\]{}:,"\\a01. ]{0,60}"#) {
            let _ = found("/a/0/a", &text, 3);
        }
    }

    /// Returns the bytes that a search keeps outside of itself.
    fn kept(number: &NumberAt) -> usize {
        let text = match &number.state {
            ParserState::Key { text, .. } => text.capacity(),
            ParserState::Number { digits } => digits.capacity(),
            _ => 0,
        };
        text + number.path.capacity() * size_of::<Container>()
    }

    #[test]
    fn endless_texts_are_not_kept() {
        for (start, repeated) in [
            ("", "["),
            ("", "{\"usage\":"),
            ("", "{\"usage\":[{\"total_tokens\":"),
            ("{\"", "k"),
            ("{\"", "\\\""),
            ("{\"usage\":{\"", "\\u0074"),
            ("{\"usage\":{\"total_tokens\":", "9"),
            ("{\"usage\":{\"total_tokens\":\"", "9"),
            ("{\"choices\":", "[{\"a\":\""),
            ("{", "\"k\":0,"),
            ("", "{}"),
            ("", "]"),
        ] {
            let mut number = NumberAt::new(JsonPointer::parse("/usage/total_tokens").unwrap());
            number.read(start.as_bytes());
            let mut most = 0;
            for _ in 0..200 {
                number.read(repeated.repeat(100).as_bytes());
                most = most.max(kept(&number));
            }
            assert!(most <= 4096, "{start}{repeated}…: {most}");
        }
    }

    #[test]
    fn a_long_key_is_another_key() {
        let long = "k".repeat(100_000);
        let text = json!({ long.clone(): 1, "n": 2 }).to_string();
        assert_eq!(found("/n", &text, 1000), Some(2));
    }
}
