//! The values that servers may read in one part of a key.
//!
//! Servers differ in how they read a spelling: one unquotes, another decodes, a third takes a `.` in a name for a
//! `_`. [`Readings`] holds each value that one of them may see, so that all of them are charged. The ordinary value,
//! which names the bucket of an ordinary spelling, is the first.

mod names;

use std::borrow::Cow;

use smallvec::{SmallVec, smallvec};
use tollgate_routing::path::is_escape;

pub(super) use self::names::{compare, is_shorter, letters_match, names_match};

/// The most readings of one request that a limit charges.
pub(crate) const MOST_READINGS: usize = 4;
/// The most bytes of unusual names and values that are read to find them, so that a client can't make this long: servers begin a name at
/// many places, and its value may reach to the end of the text.
const MOST_BYTES: usize = 64 << 10;
/// The bytes that comparing a name that begins alike counts as, beside [those that are read](names::compare).
const BYTES_OF_NAME: usize = 8;
/// The bytes that reading a value counts as, beside its length.
const BYTES_OF_VALUE: usize = 128;

/// More readings than a limit charges, or more text than is read to find them.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct TooManyReadings;

/// The different values of a part, the ordinary one first. `None` stands for servers that find no value.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Readings<'r> {
    values: SmallVec<[Option<Cow<'r, [u8]>>; 1]>,
    /// The bytes that were read to find them.
    bytes: usize,
}

impl<'r> Readings<'r> {
    /// The readings of a part that all servers read alike.
    pub(super) fn one(value: impl Into<Cow<'r, [u8]>>) -> Self {
        Self { values: smallvec![Some(value.into()).filter(|value| !value.is_empty())], bytes: 0 }
    }

    /// Adds a value, unless it is there already. An empty one is none: it is nobody's.
    pub(super) fn add(&mut self, value: impl Into<Cow<'r, [u8]>>) -> Result<(), TooManyReadings> {
        let value = Some(value.into()).filter(|value| !value.is_empty());
        if self.values.contains(&value) {
            return Ok(());
        }
        if self.values.len() == MOST_READINGS {
            return Err(TooManyReadings);
        }
        self.values.push(value);
        Ok(())
    }

    /// Adds a copy of a value, unless it is there already.
    pub(super) fn add_copy(&mut self, value: &[u8]) -> Result<(), TooManyReadings> {
        match self.values.iter().flatten().any(|other| **other == *value) {
            true => Ok(()),
            false => self.add(value.to_vec()),
        }
    }

    /// Counts bytes that are read.
    pub(super) fn read(&mut self, bytes: usize) -> Result<(), TooManyReadings> {
        self.bytes += bytes;
        if self.bytes > MOST_BYTES { Err(TooManyReadings) } else { Ok(()) }
    }

    /// Counts a value that is read.
    pub(super) fn read_value(&mut self, value: &[u8]) -> Result<(), TooManyReadings> {
        self.read(BYTES_OF_VALUE + value.len())
    }

    /// Counts the bytes that a [comparison](names::compare) has read, and returns whether the name matches.
    pub(super) fn compared(&mut self, (matches, read): (bool, usize)) -> Result<bool, TooManyReadings> {
        if read > 0 {
            self.read(BYTES_OF_NAME + read)?;
        }
        Ok(matches)
    }

    /// Adds the values that aren't UTF-8 as servers read them that take these for Latin-1 (Mojolicious, Werkzeug).
    pub(super) fn add_latin(&mut self) -> Result<(), TooManyReadings> {
        for place in 0..self.values.len() {
            if let Some(value) = &self.values[place]
                && str::from_utf8(value).is_err()
            {
                self.add(from_latin(value))?;
            }
        }
        Ok(())
    }

    /// Adds that some servers find no value, if none has been found yet.
    pub(super) fn add_missing(&mut self) {
        if self.values.is_empty() {
            self.values.push(None);
        }
    }

    /// Returns true if no value has a byte outside ASCII.
    pub(super) fn are_ascii(&self) -> bool {
        self.values.iter().flatten().all(|value| value.is_ascii())
    }

    /// The values, of which there is at least one.
    pub(super) fn into_values(mut self) -> SmallVec<[Option<Cow<'r, [u8]>>; 1]> {
        self.add_missing();
        self.values
    }
}

/// The bytes of a percent-encoded text. A `%` that begins no escape stands for itself.
#[derive(Clone)]
pub(super) struct Decoded<'t> {
    rest: &'t [u8],
    plus: u8,
}

impl<'t> Decoded<'t> {
    /// The bytes of a form field, in which `+` is a space.
    pub(super) fn form(text: &'t [u8]) -> Self {
        Self { rest: text, plus: b' ' }
    }

    /// The bytes of a text in which `+` stands for itself.
    pub(super) fn percent(text: &'t [u8]) -> Self {
        Self { rest: text, plus: b'+' }
    }
}

impl Iterator for Decoded<'_> {
    type Item = u8;

    fn next(&mut self) -> Option<u8> {
        let (&byte, rest) = self.rest.split_first()?;
        self.rest = rest;
        Some(match (byte, rest) {
            (b'+', _) => self.plus,
            (b'%', &[high, low, ..]) => match hex(high).zip(hex(low)) {
                Some((high, low)) => {
                    self.rest = &rest[2..];
                    high << 4 | low
                }
                None => byte,
            },
            _ => byte,
        })
    }
}

fn hex(digit: u8) -> Option<u8> {
    (digit as char).to_digit(16).map(|digit| digit as u8)
}

/// A form-decoded text, borrowed if it has no escapes.
pub(super) fn form_decoded(text: &[u8]) -> Cow<'_, [u8]> {
    match text.iter().any(|byte| matches!(byte, b'%' | b'+')) {
        true => Decoded::form(text).collect::<Vec<_>>().into(),
        false => text.into(),
    }
}

/// A percent-decoded text, borrowed if it has no escapes.
pub(super) fn percent_decoded(text: &[u8]) -> Cow<'_, [u8]> {
    match text.contains(&b'%') {
        true => Decoded::percent(text).collect::<Vec<_>>().into(),
        false => text.into(),
    }
}

/// Returns true if a text has a `%` that two hexadecimal digits don't follow.
pub(super) fn has_invalid_escape(text: &[u8]) -> bool {
    !text.split(|byte| *byte == b'%').skip(1).all(is_escape)
}

/// A value without a pair of quotes around it.
pub(super) fn unquoted(value: &[u8]) -> &[u8] {
    value.strip_prefix(b"\"").and_then(|value| value.strip_suffix(b"\"")).unwrap_or(value)
}

/// A text in Latin-1, in UTF-8.
pub(super) fn from_latin(text: &[u8]) -> Vec<u8> {
    text.iter().copied().map(char::from).collect::<String>().into_bytes()
}

/// A text without the control characters and spaces around it, as Java trims it.
pub(super) fn without_blanks(text: &[u8]) -> &[u8] {
    let start = text.iter().position(|byte| *byte > b' ').unwrap_or(text.len());
    let end = text.iter().rposition(|byte| *byte > b' ').map_or(start, |last| last + 1);
    &text[start..end]
}

/// A text without its control characters, as CodeIgniter reads it. Tabs and line ends stay.
pub(super) fn without_controls(text: &[u8]) -> Cow<'_, [u8]> {
    let is_kept = |byte: &u8| !byte.is_ascii_control() || matches!(byte, b'\t' | b'\n' | b'\r');
    match text.iter().all(is_kept) {
        true => text.into(),
        false => text.iter().copied().filter(is_kept).collect::<Vec<_>>().into(),
    }
}

/// The texts that are left when white space outside ASCII is taken off, as Python and JavaScript do it: of UTF-8, and
/// of Latin-1, as which both may see a header.
pub(super) fn without_wide_spaces(text: &[u8]) -> [Option<&[u8]>; 2] {
    let is_wide = |byte: Option<&u8>| byte.is_some_and(|byte| *byte >= 0x80);
    if !is_wide(text.first()) && !is_wide(text.last()) {
        return [None, None];
    }
    let is_space = |c: char| c.is_whitespace() || c == '\u{FEFF}';
    let is_latin_space = |byte: &u8| matches!(byte, 0x85 | 0xA0) || byte.is_ascii_whitespace();
    let start = text.iter().position(|byte| !is_latin_space(byte)).unwrap_or(text.len());
    let end = text.iter().rposition(|byte| !is_latin_space(byte)).map_or(start, |last| last + 1);
    [str::from_utf8(text).ok().map(|text| text.trim_matches(is_space).as_bytes()), Some(&text[start..end])]
}

/// The readings of a header field's value. Some servers take white space outside ASCII from it, and BlackSheep decodes its escapes.
///
/// # Errors
/// The value has an encoded word (RFC 2047), which can be spelled in unlimited ways, or too many readings.
pub(super) fn field_value(text: &[u8]) -> Result<Readings<'_>, TooManyReadings> {
    if has_encoded_word(text) {
        return Err(TooManyReadings);
    }
    let mut readings = Readings::one(text);
    for trimmed in without_wide_spaces(text).into_iter().flatten() {
        readings.add(trimmed)?;
    }
    if let Cow::Owned(decoded) = percent_decoded(text) {
        readings.add(decoded)?;
    }
    Ok(readings)
}

/// Returns true if a text has the form of an encoded word, such as `=?utf-8?q?=6B1?=` (RFC 2047), which CherryPy decodes.
pub(super) fn has_encoded_word(text: &[u8]) -> bool {
    // Few values have a question mark.
    let start = || text.windows(2).position(|pair| pair == b"=?");
    text.contains(&b'?')
        && start().is_some_and(|start| text[start + 2..].iter().filter(|byte| **byte == b'?').count() >= 3)
}

/// Returns all ways to choose so many times from some things.
#[cfg(test)]
pub(super) fn combinations<const TIMES: usize>(things: usize) -> impl Iterator<Item = [usize; TIMES]> {
    (0..things.pow(TIMES as u32))
        .map(move |number| std::array::from_fn(|place| number / things.pow(place as u32) % things))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_servers_read_alike_match() {
        for sent in [
            "api_key",
            "api%5fkey",
            "API_Key",
            "api.key",
            "api+key",
            "api%20key",
            "api[key",
            "%20+api_key",
            "?api_key",
            ",api_key",
            "api_key%00x",
            "api_key[]",
            "api_key%5B0%5D",
            "[api_key]",
            "ap[]i_key",
            "a[][]pi%5B%5D_k]ey",
            "\u{a0}api_key",
        ] {
            assert!(names_match(sent.as_bytes(), b"api_key"), "{sent}");
        }
        for sent in ["api-key", "api_keys", "api_ke", "xapi_key", "api%255fkey", "ap]i_key", "ap[x]i_key", ""]
        {
            assert!(!names_match(sent.as_bytes(), b"api_key"), "{sent}");
        }
        for sent in [
            "user%5Bname%5Dx",
            "[user][name]",
            "user][name]",
            "user[name",
            "user]name]",
            "user[[name]]",
            "user.name",
            "us[]er[na[]me]",
            "us[]er.name",
            "USER.na[]me",
            "user[name]x",
            "[user]x[name]",
            "[user]x=[name]",
            "[user].x[name]",
            "?[user]x[name]",
            "user['name']",
            "[user][x[name]",
            "[user][0.name]",
            ".user][%25.name]",
            "u%C5%BFer[name]",
            "u\u{17f}er.name",
            "user%5B%22name%22%5D",
            "user('name')",
        ] {
            assert!(names_match(sent.as_bytes(), b"user[name]"), "{sent}");
        }
        for sent in ["user[id]x[name]", "filter[a]x[user]"] {
            assert!(!names_match(sent.as_bytes(), b"user[name]"), "{sent}");
        }
        assert!(names_match(b"filter[user]-[id]", b"filter[user][id]"));
        for sent in [
            "user[i]d",
            "us[]er[id]",
            "user.id.",
            "[user].id",
            "[user][id]",
            "[user]id",
            "[user]x.id",
            "user_id",
            "user['id']",
            "user.'id'",
            "user.id.x",
            "[user]id.x",
            "[user]id[x]",
            "[user][id][0]",
            "[user].id[x]",
        ] {
            assert!(names_match(sent.as_bytes(), b"user.id"), "{sent}");
        }
        for sent in ["user.id_type", "user_id_type", "user.ident", "xuser.id"] {
            assert!(!names_match(sent.as_bytes(), b"user.id"), "{sent}");
        }
        for sent in ["user", "user[names]", "username", "name[user]"] {
            assert!(!names_match(sent.as_bytes(), b"user[name]"), "{sent}");
        }
    }

    #[test]
    fn names_have_the_same_letters() {
        for sent in [
            "apikey",
            "api-key",
            "apiKey",
            "_apiKey",
            "api--key",
            "api%20key",
            "api_\u{212a}ey",
            "api-key[]",
            "api*key",
            "a%00pi%26key",
        ] {
            assert!(letters_match(sent.as_bytes(), b"api_key"), "{sent}");
        }
        for sent in ["apikeys", "api_key_x", "x_api_key", "api%255fkey", "", "api+kex"] {
            assert!(!letters_match(sent.as_bytes(), b"api_key"), "{sent}");
        }
        assert!(letters_match(b"us_er[id]", b"user[id]") && letters_match(b"user[I-d]", b"user[id]"));
        assert!(!letters_match(b"userid", b"user[id]") && !letters_match(b"user.idx", b"user.id"));
        assert!(!letters_match(b"_", b"_"));
    }

    #[test]
    fn a_field_s_white_space_outside_ascii_and_escapes_may_be_read() {
        for (text, readings) in [
            (&b"k1"[..], &[&b"k1"[..]][..]),
            (b"k\xA01", &[b"k\xA01"]),
            (b"\x85k1\xA0\xA0", &[b"\x85k1\xA0\xA0", b"k1"]),
            (b"k1\xC2\xA0", &[b"k1\xC2\xA0", b"k1", b"k1\xC2"]),
            (b"%6b%31", &[b"%6b%31", b"k1"]),
            (b"100%+", &[b"100%+"]),
        ] {
            let values = field_value(text).unwrap().into_values();
            assert!(values.iter().flatten().eq(readings), "{values:?}");
        }
        assert_eq!(field_value(b"a =?utf-8?q?k?= b"), Err(TooManyReadings));
        assert!(
            ["=?", "a=?b?c", "https://a/?b=?&c="].iter().all(|text| field_value(text.as_bytes()).is_ok())
        );
    }

    #[test]
    fn invalid_escapes_are_found() {
        for text in ["%", "a%4", "%zz", "%41%", "%4g"] {
            assert!(has_invalid_escape(text.as_bytes()), "{text}");
        }
        for text in ["", "a+b", "%41", "%c3%a9%25", "%ff"] {
            assert!(!has_invalid_escape(text.as_bytes()), "{text}");
        }
    }
}
