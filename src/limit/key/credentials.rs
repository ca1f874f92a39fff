//! The credentials that servers may read in `Authorization`.
//!
//! RFC 9110, section 11.4: a scheme in any case, white space, and one token or a list of parameters. Servers read more
//! than that: any white space, further words, or no scheme at all.

use std::borrow::Cow;

use super::readings::{Readings, TooManyReadings, is_visible_without};

const BEARER: &[u8] = b"Bearer";
const BASIC: &[u8] = b"Basic";
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

/// Reads credentials, without an allocation if they are written as usual.
///
/// The ordinary value has the scheme as it is usually written, one space, and the rest as it came. A scheme that isn't
/// known, or none, may also be one that the server doesn't look at: then the rest is read as a bearer's token, too. Of
/// several words, the first and the last may be the token. Basic is also read as lenient decoders of base64 do.
pub(super) fn credentials(sent: &[u8]) -> Result<Readings<'_>, TooManyReadings> {
    if is_usual(sent) {
        return Ok(Readings::one(sent));
    }
    let mut readings = Readings::default();
    add_credentials(&mut readings, sent)?;
    if !sent.is_ascii() {
        for respaced in respaced(sent).into_iter().flatten() {
            let mut others = Readings::default();
            add_credentials(&mut others, &respaced)?;
            for value in others.into_values().into_iter().flatten() {
                readings.add(value.into_owned())?;
            }
        }
    }
    Ok(readings)
}

/// The ordinary value of credentials.
pub(super) fn usual(sent: &[u8]) -> Cow<'_, [u8]> {
    match scheme(sent) {
        Some((scheme, rest)) if !is_usual(sent) => joined(known(scheme).unwrap_or(scheme), rest).into(),
        _ => sent.into(),
    }
}

/// The scheme of credentials, and what follows the white space behind it.
pub(super) fn scheme(sent: &[u8]) -> Option<(&[u8], &[u8])> {
    let sent = sent.trim_ascii();
    let end = sent.iter().position(u8::is_ascii_whitespace)?;
    Some((&sent[..end], sent[end..].trim_ascii_start()))
}

/// Whether all servers read credentials alike, for all that is known.
fn is_usual(sent: &[u8]) -> bool {
    if let Some(token) = sent.strip_prefix(b"Bearer ") {
        return is_visible_without(token, *b",;\"") && !token.is_empty() && !token.starts_with(b"token=");
    }
    sent.strip_prefix(b"Basic ").is_some_and(is_usual_basic)
}

fn known(scheme: &[u8]) -> Option<&'static [u8]> {
    SCHEMES.into_iter().find(|known| known.eq_ignore_ascii_case(scheme))
}

fn add_credentials<'r>(readings: &mut Readings<'r>, sent: &[u8]) -> Result<(), TooManyReadings> {
    let sent = sent.trim_ascii();
    let Some((scheme, rest)) = scheme(sent) else {
        readings.add(sent.to_vec())?;
        return readings.add(joined(BEARER, sent));
    };
    let known = known(scheme);
    readings.add(joined(known.unwrap_or(scheme), rest))?;
    let has_parameters = has_parameters(rest);
    if known == Some(BASIC) {
        if is_usual_basic(rest) {
            return Ok(());
        }
        for skipped in [b"".as_slice(), b"-_"] {
            readings.add(joined(BASIC, &recoded(rest, skipped)))?;
        }
    }
    if !(known.is_some() && has_parameters) {
        readings.add(joined(BEARER, rest))?;
    }
    let words = rest.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty());
    let mut words = words.peekable();
    while let Some(word) = words.next() {
        if word.len() >= BEARER.len()
            && word[word.len() - BEARER.len()..].eq_ignore_ascii_case(BEARER)
            && let Some(next) = words.peek()
        {
            readings.add(joined(BEARER, token(next)))?;
        }
    }
    if !has_parameters {
        let mut words = rest.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty());
        let first = words.next().unwrap_or_default();
        readings.add(joined(BEARER, token(first)))?;
        readings.add(joined(BEARER, token(words.next_back().unwrap_or(first))))?;
    }
    Ok(())
}

/// Whether the first word is `name=value`, and no token, which may end with `=`, nor a token that is called so.
fn has_parameters(rest: &[u8]) -> bool {
    let ends_word = |byte: &u8| byte.is_ascii_whitespace() || matches!(byte, b',' | b';');
    let word = rest.split(ends_word).next().unwrap_or_default();
    let equals = word.iter().position(|byte| *byte == b'=');
    equals.is_some_and(|at| !word.starts_with(b"token=") && word[at..].iter().any(|byte| *byte != b'='))
}

/// The token in a word: without `token=` and quotes, and without what follows a comma or a semicolon.
fn token(word: &[u8]) -> &[u8] {
    let word = word.strip_prefix(b"token=").unwrap_or(word);
    let end = word.iter().position(|byte| matches!(byte, b',' | b';')).unwrap_or(word.len());
    let word = &word[..end];
    word.strip_prefix(b"\"").map_or(word, |word| word.strip_suffix(b"\"").unwrap_or(word))
}

fn joined(scheme: &[u8], rest: &[u8]) -> Vec<u8> {
    [scheme, b" ", rest].concat()
}

/// Credentials with an ASCII space for each white space outside ASCII, read as Latin-1 and as UTF-8.
fn respaced(sent: &[u8]) -> [Option<Vec<u8>>; 2] {
    let latin = sent.iter().map(|byte| if matches!(byte, 0x85 | 0xA0) { b' ' } else { *byte }).collect();
    let spaced = |c: char| if c.is_whitespace() || c == '\u{FEFF}' { ' ' } else { c };
    let wide =
        str::from_utf8(sent).ok().map(|text| text.chars().map(spaced).collect::<String>().into_bytes());
    [wide.filter(|wide| wide != sent), Some(latin).filter(|latin: &Vec<u8>| latin != sent)]
}

/// Whether it is base64, as encoders write it, of a name and a password.
fn is_usual_basic(text: &[u8]) -> bool {
    let digits = text.strip_suffix(b"==").or_else(|| text.strip_suffix(b"=")).unwrap_or(text);
    let unused_bits = match digits.len() % 4 {
        2 => 0b1111,
        3 => 0b11,
        _ => 0,
    };
    let is_digit = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'/');
    text.len().is_multiple_of(4)
        && digits.iter().all(is_digit)
        && digits.last().and_then(|last| sextet(*last)).is_some_and(|last| last & unused_bits == 0)
        && bytes(digits).any(|byte| byte == b':')
}

/// Base64 as an encoder writes what a lenient decoder reads in it, that skips these digits, too.
fn recoded(text: &[u8], skipped: &[u8]) -> Vec<u8> {
    let text: Vec<u8> = text.iter().copied().filter(|byte| !skipped.contains(byte)).collect();
    let mut decoded: Vec<u8> = bytes(&text).collect();
    if !decoded.contains(&b':') {
        // A name alone has an empty password.
        decoded.push(b':');
    }
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut encoded = Vec::with_capacity(text.len());
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

/// The bytes that lenient decoders read: of the digits of both alphabets, and of nothing else.
fn bytes(text: &[u8]) -> impl Iterator<Item = u8> {
    let digits = text.iter().filter_map(|byte| sextet(*byte));
    let byte = |(bits, count): &mut (u32, u32), digit: u8| {
        (*bits, *count) = (*bits << 6 | u32::from(digit), *count + 6);
        let is_whole = *count >= 8;
        *count -= if is_whole { 8 } else { 0 };
        Some(is_whole.then_some((*bits >> *count) as u8))
    };
    digits.scan((0, 0), byte).flatten()
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

#[cfg(test)]
mod tests {
    use super::*;

    fn read(sent: &str) -> Vec<String> {
        let values = credentials(sent.as_bytes()).unwrap().into_values();
        values.into_iter().map(|value| String::from_utf8_lossy(&value.unwrap()).into_owned()).collect()
    }

    #[test]
    fn usual_credentials_are_borrowed() {
        for sent in
            ["Bearer k1", "Bearer a+b/c==", "Bearer 100%", "Bearer eyJ.eyJ.x-_", "Basic YWxpY2U6c2VjcmV0"]
        {
            let values = credentials(sent.as_bytes()).unwrap().into_values();
            assert!(matches!(&values[..], [Some(Cow::Borrowed(_))]), "{sent}");
        }
    }

    #[test]
    fn each_spelling_has_the_values_that_servers_read() {
        let cases: &[(&str, &[&str])] = &[
            // The scheme is in any case, and white space is white space.
            ("bearer k1", &["Bearer k1"]),
            ("BEARER K1", &["Bearer K1"]),
            ("Bearer  k1", &["Bearer k1"]),
            ("Bearer\tk1", &["Bearer k1"]),
            ("bEARER \t k1", &["Bearer k1"]),
            // A scheme that servers may not look at.
            ("k1", &["k1", "Bearer k1"]),
            ("Token k1", &["Token k1", "Bearer k1"]),
            ("token k1", &["token k1", "Bearer k1"]),
            ("Basic k1", &["Basic k1", "Basic kzo=", "Bearer k1"]),
            // Several words
            ("Bearer k1 x", &["Bearer k1 x", "Bearer k1", "Bearer x"]),
            ("Bearer x Bearer k1", &["Bearer x Bearer k1", "Bearer k1", "Bearer x"]),
            ("Digest a=\"b\", Bearer k1,x", &["Digest a=\"b\", Bearer k1,x", "Bearer k1"]),
            // Rails and Laravel
            ("Bearer k1,x", &["Bearer k1,x", "Bearer k1"]),
            ("Bearer k1;x", &["Bearer k1;x", "Bearer k1"]),
            ("Token token=\"k1\"", &["Token token=\"k1\"", "Bearer token=\"k1\"", "Bearer k1"]),
            // Parameters are no token, so that nobody is charged who has one of them in common.
            ("digest username=\"a\", nonce=\"b\"", &["Digest username=\"a\", nonce=\"b\""]),
            ("Mine user=a, key=b", &["Mine user=a, key=b", "Bearer user=a, key=b"]),
            // Base64 as lenient decoders read it
            ("basic YWxpY2U6c2VjcmV0", &["Basic YWxpY2U6c2VjcmV0"]),
            ("Basic YTpi=", &["Basic YTpi=", "Basic YTpi", "Bearer YTpi="]),
            ("Basic YTpiYx==", &["Basic YTpiYx==", "Basic YTpiYw==", "Bearer YTpiYx=="]),
            ("Basic eA==", &["Basic eA==", "Basic eDo=", "Bearer eA=="]),
            ("Basic YTpi-", &["Basic YTpi-", "Basic YTpi", "Bearer YTpi-"]),
            ("Basic YT*pi", &["Basic YT*pi", "Basic YTpi", "Bearer YT*pi"]),
        ];
        for (sent, expected) in cases {
            assert_eq!(read(sent), *expected, "{sent}");
            assert_eq!(usual(sent.as_bytes()), expected[0].as_bytes(), "{sent}");
        }
        assert!(read("Bearer\u{a0}k1").contains(&"Bearer k1".to_owned()));
        assert!(read("Bearer k1\u{3000}").contains(&"Bearer k1".to_owned()));
    }
}
