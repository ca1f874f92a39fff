//! The names and passwords that servers may read behind `Basic` (RFC 7617).

use std::{borrow::Cow, str};

use tollgate_limiter::key::credentials::{BASIC, bytes, joined};

use crate::rules::key::readings::{Readings, TooManyReadings, form_decoded, percent_decoded};

/// Adds what decoders of base64 read: a name and a password, or a name alone.
///
/// # Errors
/// It isn't base64 as encoders write it, but decoders that stop at other characters, or skip them, may read a name in it; or the
/// name or the password is one of those that servers change.
pub(super) fn add_basic(readings: &mut Readings<'_>, text: &[u8]) -> Result<(), TooManyReadings> {
    if is_base64(text) {
        let decoded = decoded(text, b"");
        if is_text(&decoded) {
            return add_name_and_password(readings, &decoded);
        }
        let ends = [Some(decoded.len()), end_of_password(&decoded), further_colon(&decoded)];
        return ends.into_iter().flatten().try_for_each(|end| readings.add(basic(&decoded[..end])));
    }
    let all = [b"".as_slice(), b"-_"].map(|skipped| decoded(text, skipped));
    if text.contains(&b'=') || all.iter().any(|decoded| begins_with_name(decoded)) {
        return Err(TooManyReadings);
    }
    all.iter().filter(|decoded| !decoded.is_empty()).try_for_each(|decoded| readings.add(basic(decoded)))
}

/// Returns true for what may be a name, or a name and a password, and not a key that is base64 by chance. At least two of these hold: it
/// has a colon; it is UTF-8, as far as servers read the password; it has no control character.
fn is_text(decoded: &[u8]) -> bool {
    let read = &decoded[..end_of_password(decoded).unwrap_or(decoded.len())];
    let has_controls = decoded.iter().any(u8::is_ascii_control);
    let signs = [decoded.contains(&b':'), str::from_utf8(read).is_ok(), !has_controls];
    signs.into_iter().filter(|holds| *holds).count() >= 2
}

/// Returns where servers end a password: at the first NUL or line feed behind the colon.
fn end_of_password(decoded: &[u8]) -> Option<usize> {
    let colon = decoded.iter().position(|byte| *byte == b':')?;
    Some(colon + decoded[colon..].iter().position(|byte| matches!(byte, 0 | b'\n'))?)
}

/// Returns where a password ends if all parts between colons are split (passport-http): at a further colon. The beginning of JSON is
/// none, as it may be the same for many clients.
fn further_colon(decoded: &[u8]) -> Option<usize> {
    let mut colons = decoded.iter().enumerate().filter(|(_, byte)| **byte == b':').map(|(at, _)| at);
    colons.nth(1).filter(|at| !is_json(&decoded[..*at]))
}

/// Adds what decoders of base64 read, if it has a name and a password: a key behind another scheme is no name.
///
/// # Errors
/// As in [`add_basic`].
pub(super) fn add_only_with_password(
    readings: &mut Readings<'_>,
    text: &[u8],
) -> Result<(), TooManyReadings> {
    let has_password =
        [b"".as_slice(), b"-_"].iter().any(|skipped| begins_with_name(&decoded(text, skipped)));
    if has_password { add_basic(readings, text) } else { Ok(()) }
}

/// Adds a name and a password: whole; with a password that ends at a [further colon](further_colon); with escapes decoded (RFC 6749,
/// section 2.3.1); and without white space (APISIX).
///
/// # Errors
/// There are control characters, which RFC 7617 forbids, white space around the name or the password, which some servers take off, a
/// byte order mark in front, or an empty name before a password with a colon, which Kong reads as the name.
fn add_name_and_password(readings: &mut Readings<'_>, decoded: &[u8]) -> Result<(), TooManyReadings> {
    let text = in_utf8(decoded);
    let parts = || text.splitn(2, ':');
    let is_changed = |part: &str| part.trim() != part || part.starts_with('\u{FEFF}');
    let has_colon_for_name = text.starts_with(':') && text[1..].contains(':');
    if text.contains(|c: char| c.is_ascii_control()) || parts().any(is_changed) || has_colon_for_name {
        return Err(TooManyReadings);
    }
    let text = text.as_bytes();
    for end in [Some(text.len()), further_colon(text)].into_iter().flatten() {
        let text = &text[..end];
        for text in [text.into(), percent_decoded(text), form_decoded(text), without_spaces(text)] {
            readings.add(basic(&text))?;
        }
    }
    Ok(())
}

fn without_spaces(text: &[u8]) -> Cow<'_, [u8]> {
    text.iter().copied().filter(|byte| *byte != b' ').collect::<Vec<_>>().into()
}

/// Returns true if a text begins with a name that Basic can have (RFC 7617, section 2: without control characters) and a colon.
fn begins_with_name(decoded: &[u8]) -> bool {
    let mut parts = decoded.splitn(2, |byte| *byte == b':');
    let (Some(name), Some(_)) = (parts.next(), parts.next()) else { return false };
    str::from_utf8(name).is_ok_and(|name| !name.chars().any(char::is_control))
}

/// Returns true if a text begins as an object of JSON with a member.
fn is_json(text: &[u8]) -> bool {
    text.strip_prefix(b"{").is_some_and(|members| members.trim_ascii_start().starts_with(b"\""))
}

/// Returns true for the base64 of a name and a password. It is no bearer's token.
pub(super) fn is_name_and_password(text: &[u8]) -> bool {
    is_base64(text) && bytes(text).any(|byte| byte == b':')
}

/// Returns true for base64 as encoders write it (RFC 4648, section 4): with padding, and without bits that are not used.
fn is_base64(text: &[u8]) -> bool {
    encoded(&decoded(text, b"")) == text
}

/// The bytes that a lenient decoder of base64 reads, that skips these digits, too.
fn decoded(text: &[u8], skipped: &[u8]) -> Vec<u8> {
    let text: Vec<u8> = text.iter().copied().filter(|byte| !skipped.contains(byte)).collect();
    bytes(&text).collect()
}

/// Text, as which what isn't UTF-8 is read as Latin-1 (Django REST framework, Flask-HTTPAuth, Pyramid).
fn in_utf8(decoded: &[u8]) -> Cow<'_, str> {
    match str::from_utf8(decoded) {
        Ok(text) => text.into(),
        Err(_) => decoded.iter().copied().map(char::from).collect(),
    }
}

/// The credentials of a name and a password. A name alone has an empty password.
fn basic(decoded: &[u8]) -> Vec<u8> {
    let text = in_utf8(decoded);
    let colon = if text.contains(':') { "" } else { ":" };
    joined(BASIC, &encoded([&*text, colon].concat().as_bytes()))
}

/// Base64 as an encoder writes it.
pub(in crate::rules::key) fn encoded(decoded: &[u8]) -> Vec<u8> {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut encoded = Vec::with_capacity(decoded.len() / 3 * 4 + 4);
    for chunk in decoded.chunks(3) {
        let [first, second, third] = [0, 1, 2].map(|at| u32::from(chunk.get(at).copied().unwrap_or(0)));
        let bits = first << 16 | second << 8 | third;
        for at in 0..4 {
            let is_padding = at > chunk.len();
            let digit = ALPHABET[(bits >> (18 - 6 * at)) as usize & 63];
            encoded.push(if is_padding { b'=' } else { digit });
        }
    }
    encoded
}
