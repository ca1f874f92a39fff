//! The names and passwords that servers may read behind `Basic` (RFC 7617).

use std::{borrow::Cow, str};

use tollgate_limiter::key::credentials::{BASIC, bytes, joined};

use super::is_parameter;
use crate::rules::key::readings::{
    Readings, TooManyReadings, form_decoded, from_latin, percent_decoded, without_blanks,
};

/// Adds what decoders of base64 read: a name and a password, or a name alone.
///
/// # Errors
/// It isn't base64, but begins with a name and a colon. Decoders stop at different characters, or skip them, so there are spellings
/// without number of each name and password.
pub(super) fn add_basic(readings: &mut Readings<'_>, text: &[u8]) -> Result<(), TooManyReadings> {
    let mut all = [b"".as_slice(), b"-_"].map(|skipped| decoded(text, skipped)).into_iter();
    if !is_base64(text) {
        if !is_jwt(text) && all.clone().any(|decoded| begins_with_name(&decoded)) {
            return Err(TooManyReadings);
        }
        add_name_before_padding(readings, text)?;
        return all.try_for_each(|decoded| match decoded.contains(&b':') {
            // The header of a JWT.
            true if begins_with_name(&decoded) => Ok(()),
            // The name isn't UTF-8 or has control characters. No cut of it is sure to be one client's.
            true => readings.add(joined(BASIC, &encoded_text(&decoded))),
            false if decoded.is_empty() || is_parameter(text) => Ok(()),
            false => add_name_and_password(readings, &decoded),
        });
    }
    all.try_for_each(|decoded| add_name_and_password(readings, &decoded))?;
    if !text.iter().any(|byte| matches!(byte, b'-' | b'_')) {
        add_trimmed(readings, &decoded(text, b""))?;
    }
    // Apache and lighttpd stop at a digit of the other alphabet. A name alone or the beginning of JSON may be the same for many
    // clients.
    let cut = decoded(text.split(|byte| matches!(byte, b'-' | b'_')).next().unwrap_or_default(), b"");
    if begins_with_name(&cut) && !cut.ends_with(b":") && !is_json(&cut) {
        add_name_and_password(readings, &cut)?;
    }
    Ok(())
}

/// Adds a name alone before padding, whatever follows: Node.js stops at the first `=`, Python where a group of four is complete.
fn add_name_before_padding(readings: &mut Readings<'_>, text: &[u8]) -> Result<(), TooManyReadings> {
    let first = text.split(|byte| *byte == b'=').next().unwrap_or_default();
    for name in [decoded(first, b""), decoded(before_padding(text), b"-_")] {
        let is_name = |name: &str| !name.is_empty() && !name.contains(|c: char| c == ':' || c.is_control());
        if str::from_utf8(&name).is_ok_and(is_name) {
            add_name_and_password(readings, &name)?;
        }
    }
    Ok(())
}

/// Returns the part of a text that Python's decoder of base64 reads.
fn before_padding(text: &[u8]) -> &[u8] {
    let (mut digits, mut padding) = (0, 0);
    for (at, byte) in text.iter().enumerate() {
        if is_digit(byte) && !matches!(byte, b'-' | b'_') {
            (digits, padding) = (digits + 1, 0);
        } else if *byte == b'=' && digits % 4 >= 2 {
            padding += 1;
            if digits % 4 + padding >= 4 {
                return &text[..at];
            }
        }
    }
    text
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

/// Adds a name and a password without the control characters and spaces around both, as Tomcat reads them.
fn add_trimmed(readings: &mut Readings<'_>, decoded: &[u8]) -> Result<(), TooManyReadings> {
    if !decoded.contains(&b':') {
        return Ok(());
    }
    let parts = decoded.splitn(2, |byte| *byte == b':').map(without_blanks);
    readings.add(joined(BASIC, &encoded_text(&parts.collect::<Vec<_>>().join(&b':'))))
}

/// Adds a name and a password: whole, and with a password that ends at a NUL, as it does in C, at a further colon, as it
/// does if all parts between colons are split, or at a line feed (Kong). Each is also read with its escapes decoded (RFC 6749, section
/// 2.3.1), all of it without a byte order mark (Hono) or leading colons (Kong), and what ends at a further colon without white space
/// (APISIX).
fn add_name_and_password(readings: &mut Readings<'_>, decoded: &[u8]) -> Result<(), TooManyReadings> {
    let name = decoded.iter().position(|byte| *byte == b':').map_or(decoded.len(), |colon| colon + 1);
    let cut = |end: u8| decoded[name..].iter().position(|byte| *byte == end).map(|at| &decoded[..name + at]);
    // A colon alone and the beginning of JSON may be the same for many clients.
    let cuts = [cut(0), cut(b':'), cut(b'\n')].map(|cut| cut.filter(|cut| *cut != b":" && !is_json(cut)));
    let unmarked = decoded.strip_prefix(b"\xEF\xBB\xBF");
    for text in [Some(decoded), unmarked].into_iter().chain(cuts).flatten() {
        for text in [text.into(), percent_decoded(text), form_decoded(text)] {
            readings.add(joined(BASIC, &encoded_text(&with_colon(&text))))?;
        }
    }
    let start = decoded.iter().position(|byte| *byte != b':').unwrap_or(0);
    let named = Some(&decoded[start..]).filter(|named| start > 0 && named.contains(&b':'));
    let unspaced = without_spaces(cuts[1].unwrap_or(decoded));
    for text in named.map(Cow::Borrowed).into_iter().chain([unspaced]) {
        readings.add(joined(BASIC, &encoded_text(&with_colon(&text))))?;
    }
    Ok(())
}

/// Returns a text without its white space, of which expressions have one more than Rust.
fn without_spaces(text: &[u8]) -> Cow<'_, [u8]> {
    let is_kept = |byte: &u8| !byte.is_ascii_whitespace() && *byte != b'\x0B';
    text.iter().copied().filter(is_kept).collect::<Vec<_>>().into()
}

/// Returns true if a text begins with a name that Basic can have (RFC 7617, section 2: without control characters) and a colon.
fn begins_with_name(decoded: &[u8]) -> bool {
    let mut parts = decoded.splitn(2, |byte| *byte == b':');
    let (Some(name), Some(_)) = (parts.next(), parts.next()) else { return false };
    str::from_utf8(name).is_ok_and(|name| !name.chars().any(char::is_control))
}

/// Returns true if a text has the form of a JWT, whose header is JSON and so has a colon.
fn is_jwt(text: &[u8]) -> bool {
    let mut parts = text.split(|byte| *byte == b'.');
    let header = decoded(parts.next().unwrap_or_default(), b"");
    let are_base64 = text.iter().all(|byte| *byte == b'.' || is_digit(byte));
    is_json(&header) && header.ends_with(b"}") && parts.count() >= 2 && are_base64
}

/// Returns true if a text begins as an object of JSON with a member.
fn is_json(text: &[u8]) -> bool {
    text.strip_prefix(b"{").is_some_and(|members| members.trim_ascii_start().starts_with(b"\""))
}

/// Returns true for the base64 of a name and a password, in either alphabet. It is no bearer's token.
pub(super) fn is_name_and_password(text: &[u8]) -> bool {
    is_base64(text) && bytes(text).any(|byte| byte == b':')
}

/// Returns true for digits of base64, in either alphabet, with no more padding behind them than they need: for more of it, Pekko drops
/// bytes.
fn is_base64(text: &[u8]) -> bool {
    let digits = text.iter().position(|byte| *byte == b'=').unwrap_or(text.len());
    let most_padding = [0, 0, 2, 1][digits % 4];
    text[..digits].iter().all(is_digit)
        && text[digits..].iter().all(|byte| *byte == b'=')
        && text.len() - digits <= most_padding
}

/// Returns true for a digit of base64, in either alphabet.
pub(in crate::rules::key) fn is_digit(byte: &u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'/' | b'-' | b'_')
}

/// The bytes that a lenient decoder of base64 reads, that skips these digits, too.
fn decoded(text: &[u8], skipped: &[u8]) -> Vec<u8> {
    let text: Vec<u8> = text.iter().copied().filter(|byte| !skipped.contains(byte)).collect();
    bytes(&text).collect()
}

/// A name and a password. A name alone has an empty one.
fn with_colon(decoded: &[u8]) -> Cow<'_, [u8]> {
    match decoded.contains(&b':') {
        true => decoded.into(),
        false => [decoded, b":"].concat().into(),
    }
}

/// Base64 of text. What isn't UTF-8 is read as Latin-1 (Django REST framework, Flask-HTTPAuth, Pyramid).
fn encoded_text(decoded: &[u8]) -> Vec<u8> {
    match str::from_utf8(decoded) {
        Ok(_) => encoded(decoded),
        Err(_) => encoded(&from_latin(decoded)),
    }
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
