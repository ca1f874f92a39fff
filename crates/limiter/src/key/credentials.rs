//! The usual spelling of credentials.

use std::borrow::Cow;

/// The scheme of tokens.
///
/// # Examples
///
/// ```
/// use tollgate_limiter::key::credentials::{BEARER, known};
///
/// assert_eq!(known(b"bearer"), Some(BEARER));
/// ```
pub const BEARER: &[u8] = b"Bearer";
/// The scheme of names with passwords.
///
/// # Examples
///
/// ```
/// use tollgate_limiter::key::credentials::{BASIC, known};
///
/// assert_eq!(known(b"BASIC"), Some(BASIC));
/// ```
pub const BASIC: &[u8] = b"Basic";
/// Schemes as they are usually written: those of IANA's registry with parameters, and a few others.
const SCHEMES: [&[u8]; 12] = [
    BEARER,
    BASIC,
    b"Digest",
    b"AWS4-HMAC-SHA256",
    b"OAuth",
    b"Hawk",
    b"Signature",
    b"HOBA",
    b"Mutual",
    b"SCRAM-SHA-1",
    b"SCRAM-SHA-256",
    b"vapid",
];

/// Basic with neither a name nor a password.
pub const NAMELESS: &[u8] = b"Og==";

/// Returns the usual spelling of credentials.
///
/// # Examples
///
/// ```
/// use tollgate_limiter::key::credentials::usual;
///
/// assert_eq!(*usual(b"bearer   abc"), *b"Bearer abc");
/// ```
pub fn usual(sent: &[u8]) -> Cow<'_, [u8]> {
    match scheme(sent) {
        Some((scheme, rest)) if !is_usual(sent) => joined(known(scheme).unwrap_or(scheme), rest).into(),
        _ => sent.into(),
    }
}

/// Returns the scheme of credentials, and what follows the white space after it.
///
/// # Examples
///
/// ```
/// use tollgate_limiter::key::credentials::scheme;
///
/// assert_eq!(scheme(b"Basic  YTpi"), Some((&b"Basic"[..], &b"YTpi"[..])));
/// ```
pub fn scheme(sent: &[u8]) -> Option<(&[u8], &[u8])> {
    let sent = sent.trim_ascii();
    let end = sent.iter().position(u8::is_ascii_whitespace)?;
    Some((&sent[..end], sent[end..].trim_ascii_start()))
}

/// Returns true if all known servers read credentials alike.
///
/// # Examples
///
/// ```
/// use tollgate_limiter::key::credentials::is_usual;
///
/// assert!(is_usual(b"Bearer abc") && !is_usual(b"bearer abc"));
/// ```
pub fn is_usual(sent: &[u8]) -> bool {
    if let Some(token) = sent.strip_prefix(b"Bearer ") {
        let is_token = is_visible_without(token, *b",;\"") && !token.starts_with(b"token=");
        let ends_in_word = token.last().is_some_and(|last| is_of_word(*last) || !token.contains(&b'.'));
        return is_token && ends_in_word && !may_name_scheme(token);
    }
    sent.strip_prefix(b"Basic ").is_some_and(|text| is_usual_basic(text) && !may_name_scheme(text))
}

/// Returns true for a byte of a word, as regular expressions have it: a letter of ASCII, a digit or `_`.
///
/// # Examples
///
/// ```
/// use tollgate_limiter::key::credentials::is_of_word;
///
/// assert!(is_of_word(b'_') && !is_of_word(b'-'));
/// ```
pub fn is_of_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_'
}

/// Returns true if a token has the first letters of `Basic` or `Bearer`, in any case. Some servers look for these within words. It
/// looks at all bytes, which is vectorized.
fn may_name_scheme(token: &[u8]) -> bool {
    let behind = |bytes: usize| token.get(bytes..).unwrap_or_default().iter();
    token.iter().zip(behind(1)).zip(behind(2)).fold(false, |has, ((first, second), third)| {
        let (first, second, third) = (first | 0x20, second | 0x20, third | 0x20);
        let is_basic = (second == b'a') & (third == b's');
        let is_bearer = (second == b'e') & (third == b'a');
        has | ((first == b'b') & (is_basic | is_bearer))
    })
}

/// Returns the usual spelling of a scheme, if it is known.
///
/// # Examples
///
/// ```
/// use tollgate_limiter::key::credentials::known;
///
/// assert_eq!((known(b"DIGEST"), known(b"other")), (Some(&b"Digest"[..]), None));
/// ```
pub fn known(scheme: &[u8]) -> Option<&'static [u8]> {
    SCHEMES.into_iter().find(|known| known.eq_ignore_ascii_case(scheme))
}

/// Joins a scheme and what follows it.
///
/// # Examples
///
/// ```
/// use tollgate_limiter::key::credentials::{BEARER, joined};
///
/// assert_eq!(joined(BEARER, b"abc"), b"Bearer abc");
/// ```
pub fn joined(scheme: &[u8], rest: &[u8]) -> Vec<u8> {
    [scheme, b" ", rest].concat()
}

/// Returns true for the base64 of a name and a password that all known servers read alike, as encoders write it: in ASCII, with
/// one colon, and without control characters, a space, a `%` and a `+`.
///
/// # Examples
///
/// ```
/// use tollgate_limiter::key::credentials::is_usual_basic;
///
/// assert!(is_usual_basic(b"YTpi") && !is_usual_basic(b"YTpi\t") && !is_usual_basic(b"YTpiOmM="));
/// ```
pub fn is_usual_basic(text: &[u8]) -> bool {
    let digits = text.strip_suffix(b"==").or_else(|| text.strip_suffix(b"=")).unwrap_or(text);
    let unused_bits = match digits.len() % 4 {
        2 => 0b1111,
        3 => 0b11,
        _ => 0,
    };
    let is_digit = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'/');
    text != NAMELESS
        && text.len().is_multiple_of(4)
        && digits.iter().all(is_digit)
        && digits.last().and_then(|last| sextet(*last)).is_some_and(|last| last & unused_bits == 0)
        && bytes(digits).filter(|byte| matches!(byte, 0..=b' ' | b':' | b'%' | b'+' | 0x80..)).eq(*b":")
}

fn sextet(byte: u8) -> Option<u8> {
    Some(match byte {
        b'A'..=b'Z' => byte - b'A',
        b'a'..=b'z' => byte - b'a' + 26,
        b'0'..=b'9' => byte - b'0' + 52,
        b'+' | b'-' => 62,
        b'/' | b'_' => 63,
        _ => return None,
    })
}

/// The bytes that lenient decoders read: of the digits of both alphabets, and of nothing else.
///
/// # Examples
///
/// ```
/// use tollgate_limiter::key::credentials::bytes;
///
/// assert!(bytes(b"YT pi").eq(*b"a:b"));
/// ```
pub fn bytes(text: &[u8]) -> impl Iterator<Item = u8> {
    let digits = text.iter().filter_map(|byte| sextet(*byte));
    let byte = |(bits, count): &mut (u32, u32), digit: u8| {
        (*bits, *count) = (*bits << 6 | u32::from(digit), *count + 6);
        let is_whole = *count >= 8;
        *count -= if is_whole { 8 } else { 0 };
        Some(is_whole.then_some((*bits >> *count) as u8))
    };
    digits.scan((0, 0), byte).flatten()
}

/// Returns true for a text of visible ASCII without these bytes. It looks at all of them, which is vectorized.
///
/// # Examples
///
/// ```
/// use tollgate_limiter::key::credentials::is_visible_without;
///
/// assert!(is_visible_without(b"a-b", *b",;") && !is_visible_without(b"a;b", *b",;"));
/// ```
pub fn is_visible_without<const BYTES: usize>(text: &[u8], without: [u8; BYTES]) -> bool {
    let is_fine =
        |byte: &u8| without.iter().fold(byte.is_ascii_graphic(), |fine, other| fine & (byte != other));
    text.iter().fold(true, |fine, byte| fine & is_fine(byte))
}
