//! What lenient decoders of base64 read in a token.

use std::collections::BTreeSet;

use tollgate_limiter::key::credentials::bytes;

use crate::rules::key::credentials::encoded;

/// Returns the properly written tokens that lenient decoders read in this one. PyJWT, for example, accepts padding in the
/// signature, and jwcrypto in all parts. tymon/jwt-auth drops what isn't a letter or digit behind it.
pub(super) fn rewritten(token: &[u8]) -> BTreeSet<String> {
    let is_of_word = |byte: &u8| byte.is_ascii_alphanumeric() || *byte == b'_';
    let word_end = token.iter().rposition(is_of_word).map_or(0, |last| last + 1);
    let mut written = BTreeSet::new();
    for text in [token, &token[..word_end]] {
        // A text of many dots is not read at all.
        let parts: Vec<_> = text.split(|byte| *byte == b'.').take(4).collect();
        let Ok(parts) = <[_; 3]>::try_from(parts) else { continue };
        let [header, claims, signature] = parts.map(readings);
        // A decoder reads all parts in one way.
        written
            .extend((0..header.len()).map(|way| [&*header[way], &*claims[way], &*signature[way]].join(".")));
    }
    written.retain(|written| written.as_bytes() != token);
    written
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
    let digits = text.split(|byte| !is_digit(byte)).next().unwrap_or_default();
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

fn is_digit(byte: &u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'/')
}
