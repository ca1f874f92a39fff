//! Costs that a response states in its body: at a pointer of its JSON, or of the last event of a stream that has it.
//!
//! The body isn't kept or held up: it is read as it passes by.

mod json;

use std::mem;

use hyper::{
    HeaderMap,
    header::{CONTENT_ENCODING, CONTENT_TYPE},
};

use crate::config::JsonPointer;

use self::json::NumberAt;

/// The search for a cost in a body.
#[derive(Debug)]
pub(super) struct BodyCost {
    number: NumberAt,
    /// So many bytes of a byte order mark have been looked for at the beginning.
    marked: usize,
    /// For a stream of events (WHATWG HTML, section 9.2.6), the place in it.
    place: Option<Place>,
}

/// The place in a stream of events.
#[derive(Debug)]
struct Place {
    line: Line,
    /// True after a carriage return, which ends a line together with a line feed behind it.
    after_return: bool,
}

/// The place in a line.
#[derive(Debug)]
enum Line {
    /// So many bytes of it have been those of [`DATA`].
    Start(usize),
    /// In the value of a field `data`.
    Data,
    /// In another field, or a comment.
    Other,
}

const DATA: &[u8] = b"data:";
/// Some servers write it before JSON, where a reader may skip it (RFC 8259, section 8.1). Before events every reader does.
const BYTE_ORDER_MARK: &[u8] = "\u{feff}".as_bytes();

impl BodyCost {
    /// Begins to read a body with this header. `None` if it is compressed, or neither JSON nor a stream of events.
    pub(super) fn of(headers: &HeaderMap, pointer: &JsonPointer) -> Option<Self> {
        let encodings = headers.get_all(CONTENT_ENCODING);
        let is_plain = |encoding: &[u8]| encoding.eq_ignore_ascii_case(b"identity");
        if !encodings.into_iter().all(|encoding| is_plain(encoding.as_bytes())) {
            return None;
        }
        let kind = headers.get(CONTENT_TYPE)?.to_str().ok()?.split(';').next()?.trim().to_ascii_lowercase();
        let is_stream = kind == "text/event-stream";
        let place = is_stream.then_some(Place { line: Line::Start(0), after_return: false });
        let is_readable = is_stream || kind.ends_with("json");
        is_readable.then(|| Self { number: NumberAt::new(pointer.clone()), marked: 0, place })
    }

    /// Reads a piece of the body.
    pub(super) fn read(&mut self, mut piece: &[u8]) {
        while let Some(expected) = BYTE_ORDER_MARK.get(self.marked)
            && let Some((byte, rest)) = piece.split_first()
        {
            if byte == expected {
                (self.marked, piece) = (self.marked + 1, rest);
            } else {
                self.marked = BYTE_ORDER_MARK.len();
            }
        }
        match &mut self.place {
            None => self.number.read(piece),
            Some(place) => piece.iter().for_each(|byte| place.read(*byte, &mut self.number)),
        }
    }

    /// Returns the cost, when the body has ended or broken off. `None` if it doesn't state one.
    pub(super) fn end(self) -> Option<u32> {
        self.number.found()
    }
}

impl Place {
    /// Reads a byte of a stream. The lines of an event's data are one text.
    fn read(&mut self, byte: u8, number: &mut NumberAt) {
        let after_return = mem::replace(&mut self.after_return, byte == b'\r');
        if byte == b'\n' && after_return {
            return;
        }
        if matches!(byte, b'\n' | b'\r') {
            match self.line {
                // An empty line ends the event.
                Line::Start(0) => number.restart(),
                Line::Data => number.read(b"\n"),
                Line::Start(_) | Line::Other => {}
            }
            self.line = Line::Start(0);
            return;
        }
        match self.line {
            Line::Data => number.read(&[byte]),
            Line::Start(matched) if DATA[matched] == byte && matched + 1 == DATA.len() => {
                self.line = Line::Data;
            }
            Line::Start(matched) if DATA[matched] == byte => self.line = Line::Start(matched + 1),
            Line::Start(_) => self.line = Line::Other,
            Line::Other => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cost(kind: &str, encoding: Option<&str>, body: &str, piece: usize) -> Option<u32> {
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_TYPE, kind.parse().unwrap());
        if let Some(encoding) = encoding {
            headers.insert(CONTENT_ENCODING, encoding.parse().unwrap());
        }
        let pointer = JsonPointer::parse("/usage/total_tokens").unwrap();
        let mut cost = BodyCost::of(&headers, &pointer)?;
        body.as_bytes().chunks(piece).for_each(|piece| cost.read(piece));
        cost.end()
    }

    const JSON: &str = r#"{"usage":{"total_tokens":21}}"#;

    #[test]
    fn json_that_is_not_compressed_is_read() {
        for kind in ["application/json", "Application/JSON; charset=utf-8", "application/problem+json"] {
            assert_eq!(cost(kind, None, JSON, 5), Some(21), "{kind}");
        }
        assert_eq!(cost("application/json", Some("identity"), JSON, 5), Some(21));
        assert_eq!(cost("application/json", None, &format!("\u{feff}{JSON}"), 1), Some(21));
        assert_eq!(cost("application/json", Some("gzip"), JSON, 5), None);
        assert_eq!(cost("text/plain", None, JSON, 5), None);
        assert_eq!(cost("application/x-ndjson", None, &format!("{{}}\n{JSON}\n"), 5), Some(21));
    }

    #[test]
    fn the_last_event_with_the_pointer_states_the_cost() {
        for (stream, expected) in [
            (
                "data: {\"usage\":{\"total_tokens\":5}}\n\ndata: {\"usage\":{\"total_tokens\":7}}\n\ndata: [DONE]\n\n",
                Some(7),
            ),
            ("data: {\"usage\":null}\n\ndata: {\"usage\":{\"total_tokens\":8}}\n\ndata: [DONE]\n\n", Some(8)),
            (": hello\r\nevent: x\r\ndata:{\"usage\":\r\ndata:{\"total_tokens\":9}}\r\n\r\n", Some(9)),
            ("data: {\"usage\":{\r\rdata: {\"usage\":{\"total_tokens\":4}}\r\r", Some(4)),
            ("data: {\"usage\":{\"total_tokens\":3}}", Some(3)),
            ("\u{feff}data: {\"usage\":{\"total_tokens\":6}}\n\n", Some(6)),
            ("\u{feff}\u{feff}data: {\"usage\":{\"total_tokens\":6}}\n\n", None),
            ("data: {\"usage\":{\"total_tokens\":12", None),
            ("data: {\"usage\":{\"total_tokens\":12\n\n", Some(12)),
            (
                "id: {\"usage\":{\"total_tokens\":1}}\n\ndat\n\ndatax: {\"usage\":{\"total_tokens\":2}}\n\n",
                None,
            ),
            ("", None),
        ] {
            for piece in [1, 3, 4096] {
                assert_eq!(cost("text/event-stream", None, stream, piece), expected, "{stream:?}");
            }
        }
    }
}
