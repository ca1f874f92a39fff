//! The tokens that lenient servers find in credentials, and read in a token.

use std::{borrow::Cow, collections::BTreeSet};

use tollgate_limiter::key::credentials::{BEARER, bytes, is_of_word};

use crate::rules::key::{
    credentials::encoded,
    readings::{TooManyReadings, has_encoded_word},
};

/// The most texts in credentials that are taken for a token.
const MOST_TOKENS: usize = 4;
/// The schemes of tokens. Sanic looks for both anywhere.
const SCHEMES: [&[u8]; 2] = [BEARER, b"Token"];
/// The base64 of `{"`, as most tokens begin.
const JSON: &[u8] = b"eyJ";

/// Returns the texts in credentials that some server may take for a token, whatever stands around them, beside the one that a usual
/// header has. Only what is signed counts, so it does no harm that most of them are no token.
///
/// # Errors
/// There are too many, or an encoded word may hide one.
pub(super) fn tokens<'s>(
    sent: &'s [u8],
    usual: Option<&'s [u8]>,
) -> Result<Vec<Cow<'s, [u8]>>, TooManyReadings> {
    let is_plain = |byte: &u8| is_digit(byte) || *byte == b'.';
    if usual.is_some_and(|token| token.iter().all(is_plain) && schemes(token).next().is_none()) {
        return Ok(Vec::new());
    }
    if has_encoded_word(sent) {
        return Err(TooManyReadings);
    }
    let mut tokens = Vec::new();
    let ends = |byte: &u8| byte.is_ascii_whitespace() || matches!(byte, b',' | b';' | b'"');
    let words = sent.split(u8::is_ascii_whitespace).chain(sent.split(|byte| *byte == b' '));
    let words = words.chain(sent.split(ends)).chain(sent.split(|byte| ends(byte) || !byte.is_ascii()));
    for word in words.filter(|word| has_parts(word)) {
        // A token may have a `Bearer` in it, as it may have anything.
        let schemes: Vec<(usize, usize)> = schemes(word).collect();
        let behind_scheme = [schemes.first(), schemes.last()].map(|scheme| scheme.map(|(_, end)| *end));
        let behind_name = word.iter().position(|byte| *byte == b'=').map(|at| at + 1);
        let begin = word.windows(JSON.len()).position(|part| part == JSON);
        for start in [Some(0), begin, behind_name].into_iter().chain(behind_scheme).flatten() {
            let next_scheme = schemes.iter().find(|(at, _)| *at >= start);
            let end = next_scheme.map_or(word.len(), |(at, _)| *at);
            add(&mut tokens, within_digits(&word[start..]), usual)?;
            add(&mut tokens, within_digits(&word[start..end]), usual)?;
        }
    }
    if has_parts(sent) {
        add(&mut tokens, without_bearer(sent), usual)?;
    }
    Ok(tokens)
}

/// Adds a text that may be a token, unless it is there already.
fn add<'s>(
    tokens: &mut Vec<Cow<'s, [u8]>>,
    text: impl Into<Cow<'s, [u8]>>,
    usual: Option<&[u8]>,
) -> Result<(), TooManyReadings> {
    let text = text.into();
    if !may_be_token(&text) || usual == Some(&*text) || tokens.contains(&text) {
        return Ok(());
    }
    if tokens.len() == MOST_TOKENS {
        return Err(TooManyReadings);
    }
    tokens.push(text);
    Ok(())
}

/// Returns true if a text has at least two dots, and the base64 of a `{` for its first digit. Other characters may precede it.
fn may_be_token(text: &[u8]) -> bool {
    has_parts(text) && text.iter().find(|byte| is_digit(byte)).is_some_and(|first| *first == b'e')
}

/// Returns true for a digit of base64, in either alphabet.
fn is_digit(byte: &u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'/' | b'-' | b'_')
}

/// Returns true if a text has at least two dots.
fn has_parts(text: &[u8]) -> bool {
    text.iter().filter(|byte| **byte == b'.').nth(1).is_some()
}

/// Returns a text without what stands before its first digit of base64, and behind its last digit, dot or padding. All decoders that accept
/// it pass over that.
fn within_digits(text: &[u8]) -> &[u8] {
    let is_end = |byte: &u8| is_digit(byte) || matches!(byte, b'.' | b'=');
    let start = text.iter().position(is_digit).unwrap_or(text.len());
    let end = text.iter().rposition(is_end).map_or(start, |last| last + 1);
    &text[start..end.max(start)]
}

/// Returns where schemes of tokens begin and end in a text.
fn schemes(text: &[u8]) -> impl Iterator<Item = (usize, usize)> {
    // Their first letters tell most places apart.
    let may_begin = |at: &usize| matches!(text[*at], b'B' | b'b' | b'T' | b't');
    (0..text.len()).filter(may_begin).filter_map(|at| {
        let is_here = |scheme: &&&[u8]| {
            text[at..].get(..scheme.len()).is_some_and(|word| word.eq_ignore_ascii_case(scheme))
        };
        SCHEMES.iter().find(is_here).map(|scheme| (at, at + scheme.len()))
    })
}

/// Returns a text without each `Bearer` and each space in it, as hapi-auth-jwt2 reads it.
fn without_bearer(text: &[u8]) -> Vec<u8> {
    let mut left = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((first, behind)) = rest.split_first() {
        let is_bearer = rest.get(..BEARER.len()).is_some_and(|word| word.eq_ignore_ascii_case(BEARER));
        rest = if is_bearer { &rest[BEARER.len()..] } else { behind };
        left.extend(Some(first).filter(|first| !is_bearer && **first != b' '));
    }
    left
}

/// Returns the properly written tokens that lenient decoders read in this one. PyJWT, for example, accepts padding in the
/// signature, and jwcrypto in all parts. tymon/jwt-auth drops what isn't a letter, a digit or `_` behind it.
pub(super) fn rewritten(token: &[u8]) -> BTreeSet<String> {
    let word_end = token.iter().rposition(|byte| is_of_word(*byte)).map_or(0, |last| last + 1);
    let trimmed = Some(&token[..word_end]).filter(|trimmed| *trimmed != token);
    let [whole, trimmed] = [Some(token), trimmed].map(|text| parts(text?));
    let mut written = BTreeSet::new();
    let Some([header, claims, _]) = whole.or(trimmed) else { return written };
    let [header, claims] = [header, claims].map(readings);
    for [.., signature] in [whole, trimmed].into_iter().flatten() {
        let signature = readings(signature);
        // A decoder reads all parts in one way.
        written
            .extend((0..header.len()).map(|way| [&*header[way], &*claims[way], &*signature[way]].join(".")));
    }
    written.retain(|written| written.as_bytes() != token);
    written
}

/// Returns the three parts of a token. A text of many dots is not read at all.
fn parts(text: &[u8]) -> Option<[&[u8]; 3]> {
    let parts: Vec<_> = text.split(|byte| *byte == b'.').take(4).collect();
    parts.try_into().ok()
}

/// Returns true if decoders that pass over characters may read a shorter token in this one.
pub(super) fn may_be_shorter(token: &[u8]) -> bool {
    let is_usual = |byte: &u8| is_of_word(*byte) || matches!(byte, b'-' | b'.');
    has_parts(token) && !token.iter().all(is_usual)
}

/// Returns what lenient decoders read in a part of a token, each in its way, as base64url. One takes `+` and `/` for digits, and
/// another skips them (jjwt).
fn readings(part: &[u8]) -> [String; 5] {
    let own: Vec<u8> = part.iter().copied().filter(|byte| !matches!(byte, b'+' | b'/')).collect();
    let [all, before_padding, before_complete_padding, digits] = paddings(part).map(recoded);
    [all, before_padding, before_complete_padding, digits, recoded(&own)]
}

/// The base64url of the digits in a text (RFC 7515, appendix C).
fn recoded(text: &[u8]) -> String {
    let url_safe = |digit: u8| match digit {
        b'+' => '-',
        b'/' => '_',
        digit => digit as char,
    };
    let digits = encoded(&bytes(text).collect::<Vec<_>>()).into_iter();
    digits.filter(|digit| *digit != b'=').map(url_safe).collect()
}

/// Returns the parts of a base64 text that decoders read: all of it, up to the first `=`, up to a complete padding, or up to the
/// first byte that is no digit (Apache, lighttpd).
fn paddings(text: &[u8]) -> [&[u8]; 4] {
    let digits = text.split(|byte| !is_standard_digit(byte)).next().unwrap_or_default();
    [text, before_padding(text), before_complete_padding(text), digits]
}

/// Base64 up to its first padding, where Node.js and Ruby stop to decode.
fn before_padding(text: &[u8]) -> &[u8] {
    text.split(|byte| *byte == b'=').next().unwrap_or_default()
}

/// Base64 up to a padding that completes four digits, where Python stops to decode.
fn before_complete_padding(text: &[u8]) -> &[u8] {
    let (mut digits, mut pads) = (0, 0);
    let completes = |byte: &u8| {
        if *byte != b'=' {
            (digits, pads) = if is_digit(byte) { ((digits + 1) % 4, 0) } else { (digits, pads) };
        } else if digits >= 2 {
            pads += 1;
        }
        digits >= 2 && digits + pads >= 4
    };
    text.iter().position(completes).map_or(text, |end| &text[..end])
}

fn is_standard_digit(byte: &u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'/')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_text_that_may_be_a_token_is_found() {
        let found = |sent: &'static str| {
            let usual = sent.strip_prefix("Bearer ").map(str::as_bytes);
            let tokens = tokens(sent.as_bytes(), usual).ok()?;
            Some(tokens.iter().map(|token| String::from_utf8_lossy(token).into_owned()).collect::<Vec<_>>())
        };
        for (sent, expected) in [
            // Of the usual spelling there is one only.
            ("Bearer eyJh.eyJx.s-_", &[][..]),
            ("Bearer v2.local.x", &[]),
            ("Basic YTpi", &[]),
            ("Mine eyJh.eyJx.s", &["eyJh.eyJx.s"]),
            ("eyJh.eyJx.s Bearer", &["eyJh.eyJx.s"]),
            ("x\ty eyJh.eyJx.s z", &["eyJh.eyJx.s"]),
            ("eyJh.eyJx. s", &["eyJh.eyJx.", "eyJh.eyJx.s"]),
            ("Mine token=\"eyJh.eyJx.s\", a=\"b\"", &["eyJh.eyJx.s"]),
            ("Token token=ew==.eyJx.s", &["ew==.eyJx.s"]),
            ("TokeneyJh.eyJx.s", &["eyJh.eyJx.s"]),
            ("BearerxeyJh.eyJx.s", &["eyJh.eyJx.s"]),
            ("Bearer TokeneyJh.eyJx.s", &["eyJh.eyJx.s"]),
            ("Bearer eyJTokeneyJh.eyJx.s", &["eyJh.eyJx.s"]),
            // Behind the first `Bearer` and the last, and without any
            ("xbearereyJh.eyJ4beaRErx.s", &["eyJh.eyJ4beaRErx.s"]),
            ("xbearer,bearerew.eyJx.s", &["ew.eyJx.s"]),
            ("Bearer eyJh.eyJxBearer.s", &["eyJh.eyJx.s"]),
            ("Bearer eyJh.eyJx.sBearer x", &["eyJh.eyJx.sBearer", "eyJh.eyJx.s", "eyJh.eyJx.sx"]),
            ("Bearereyf.eyJx.sBearerx", &["eyf.eyJx.sBearerx", "eyf.eyJx.s", "eyf.eyJx.sx"]),
            // Within a token, decoders skip what ends words elsewhere.
            ("x eyJh.eyJx.\ts", &["eyJh.eyJx.", "eyJh.eyJx.\ts"]),
            ("x Bearer eyJh.eyJx.\"s", &["eyJh.eyJx.\"s", "eyJh.eyJx."]),
            (
                "e.a. e.b. e.c. OAuth realm=\"http://a.b.c/\"",
                &["e.a.", "e.b.", "e.c.", "e.a.e.b.e.c.OAuthrealm=\"http://a.b.c/\""],
            ),
        ] {
            assert_eq!(
                found(sent).as_deref(),
                Some(expected.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>()).as_deref(),
                "{sent}"
            );
        }
        assert_eq!(found("e.a. e.b. e.c. e.d. e.e."), None);
        assert_eq!(found("Bearer =?utf-8?q?eyJh=2EeyJx=2Es?="), None);
    }

    /// Quadratic time would be minutes.
    #[test]
    fn long_credentials_are_looked_through_in_linear_time() {
        for unit in [&b"bearer"[..], b"Token", b"eyJ", b"=", b".", b"..:", b"e.. ", b"\xC3\xA9"] {
            let sent = unit.repeat(1 << 18);
            let _ = (tokens(&sent, None), rewritten(&sent));
        }
    }
}
