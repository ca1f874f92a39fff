//! The credentials that servers may read in `Authorization`.
//!
//! RFC 9110, section 11.4: a scheme in any case, white space, and one token or a list of parameters. Servers read more
//! than that: any white space, further words, or no scheme at all.

use std::borrow::Cow;

use tollgate_limiter::key::credentials::{
    BASIC, BEARER, bytes, is_usual, is_usual_basic, joined, known, scheme,
};

use super::readings::{Readings, TooManyReadings, has_encoded_word};

/// The name of the parameter that Rails takes the token from, with its `=`.
const TOKEN: &[u8] = b"token=";

/// Reads credentials, without an allocation if they are written as usual.
///
/// The ordinary value has the scheme as it is usually written, one space, and the rest as it came. A scheme that isn't
/// known, or none, may also be one that the server doesn't look at: then the rest is read as a bearer's token, too. Of
/// several words, which RFC 9110 doesn't allow, the first and the last may be the token. A parameter isn't: it may be the
/// same for many clients. Basic is also read as lenient decoders of base64 do.
pub(super) fn credentials(sent: &[u8]) -> Result<Readings<'_>, TooManyReadings> {
    if is_usual(sent) {
        return Ok(Readings::one(sent));
    }
    if has_encoded_word(sent) {
        return Err(TooManyReadings);
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

fn add_credentials<'r>(readings: &mut Readings<'r>, sent: &[u8]) -> Result<(), TooManyReadings> {
    let sent = sent.trim_ascii();
    let Some((scheme, rest)) = scheme(sent) else {
        readings.add(sent.to_vec())?;
        readings.add(joined(BEARER, sent))?;
        return add_behind_scheme(readings, sent);
    };
    let known = known(scheme);
    readings.add(joined(known.unwrap_or(scheme), rest))?;
    let is_rails = known == Some(BEARER) || scheme.eq_ignore_ascii_case(b"Token");
    let ends_token = |byte: &u8| *byte == b',' || is_rails && matches!(byte, b';' | b'\t');
    let [first, last] = outer_words(rest, ends_token);
    if known == Some(BASIC) {
        if is_usual_basic(rest) {
            return Ok(());
        }
        add_basic(readings, rest)?;
        if is_name_and_password(rest) {
            return Ok(());
        }
    }
    if known.is_none() || known == Some(BEARER) || !is_parameter(first) {
        readings.add(joined(BEARER, rest))?;
    }
    let words = rest.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty());
    let mut words = words.peekable();
    while let Some(word) = words.next() {
        if word.len() >= BEARER.len()
            && word[word.len() - BEARER.len()..].eq_ignore_ascii_case(BEARER)
            && let Some(next) = words.peek()
        {
            readings.add(joined(BEARER, token(next, |byte| matches!(byte, b',' | b';'))))?;
        }
    }
    for word in [first, last] {
        let token = token(word, ends_token);
        if !token.is_empty() && (word.starts_with(TOKEN) || !is_parameter(word)) {
            readings.add(joined(BEARER, token))?;
        }
    }
    Ok(())
}

/// Adds what lenient decoders of base64 read: a name and a password, or a name alone.
fn add_basic(readings: &mut Readings<'_>, text: &[u8]) -> Result<(), TooManyReadings> {
    for part in paddings(text) {
        for skipped in [b"".as_slice(), b"-_"] {
            let decoded = decoded(part, skipped);
            let colon = decoded.iter().position(|byte| *byte == b':');
            let is_told_apart = match colon {
                // Part of a name, a name alone or the header of a JWT may be the same for many clients.
                Some(colon) if part.len() < text.len() => colon + 1 < decoded.len() && decoded[0] != b'{',
                Some(_) => true,
                None => part.len() == text.len() && !is_parameter(text),
            };
            if !is_told_apart {
                continue;
            }
            // In C, a password ends at a NUL.
            let behind = colon.unwrap_or(decoded.len());
            let nul = decoded[behind..].iter().position(|byte| *byte == 0);
            readings.add(joined(BASIC, &encoded(&with_colon(&decoded))))?;
            if let Some(nul) = nul {
                readings.add(joined(BASIC, &encoded(&decoded[..behind + nul])))?;
            }
        }
    }
    Ok(())
}

/// Returns true for the base64 of a name and a password, in either alphabet. It is no bearer's token.
fn is_name_and_password(text: &[u8]) -> bool {
    text.iter().all(is_digit) && bytes(text).any(|byte| byte == b':')
}

/// Returns true for the digits of both alphabets, and for padding.
fn is_digit(byte: &u8) -> bool {
    is_base64(byte) || matches!(byte, b'-' | b'_')
}

fn is_base64(byte: &u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'/' | b'=')
}

/// The first and the last word. Separators in front are none, and white space in quotes ends none.
fn outer_words(rest: &[u8], ends_token: impl Fn(&u8) -> bool) -> [&[u8]; 2] {
    let start = rest.iter().position(|byte| !ends_token(byte) && !byte.is_ascii_whitespace());
    let text = &rest[start.unwrap_or(rest.len())..];
    let (mut is_quoted, mut is_escaped) = (false, false);
    let mut toggle = move |byte: &u8| {
        is_quoted ^= *byte == b'"' && !is_escaped;
        is_escaped = *byte == b'\\' && !is_escaped;
        is_quoted
    };
    let mut count = toggle;
    let is_closed = !text.iter().fold(false, |_, byte| count(byte));
    let ends_word = move |byte: &u8| !(toggle(byte) && is_closed) && byte.is_ascii_whitespace();
    let mut words = text.split(ends_word).filter(|word| !word.is_empty());
    let first = words.next().unwrap_or_default();
    // From the front, where quotes begin.
    [first, words.fold(first, |_, word| word)]
}

/// Adds the credentials of a server that looks at the first letters only and skips the byte behind the scheme, whatever it
/// is. Spring Security does so for Basic, and decodes the rest strictly.
fn add_behind_scheme(readings: &mut Readings<'_>, sent: &[u8]) -> Result<(), TooManyReadings> {
    let behind = |scheme: &[u8]| {
        let (word, rest) = sent.split_at_checked(scheme.len())?;
        rest.split_first().filter(|(_, rest)| word.eq_ignore_ascii_case(scheme) && !rest.is_empty())
    };
    if let Some((_, rest)) = behind(BASIC)
        && rest.iter().all(is_base64)
    {
        readings.add(joined(BASIC, &encoded(&with_colon(&decoded(before_padding(rest), b"")))))?;
    }
    // In UTF-8, the byte is part of a longer character.
    if let Some((skipped, rest)) = behind(BEARER)
        && (skipped.is_ascii() || rest[0].is_ascii())
    {
        readings.add(joined(BEARER, rest))?;
        if skipped.is_ascii_alphanumeric() {
            // Others take the scheme off, and then white space, if there is any.
            readings.add(joined(BEARER, &sent[BEARER.len()..]))?;
        }
    }
    Ok(())
}

/// Returns the parts of a base64 text that decoders read: all of it, up to the first `=`, up to a complete padding, or up to the
/// first byte that is no digit (Apache, lighttpd).
pub(super) fn paddings(text: &[u8]) -> [&[u8]; 4] {
    let digits = text.split(|byte| !is_base64(byte) || *byte == b'=').next().unwrap_or_default();
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
            let is_digit = byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'/');
            (digits, pads) = if is_digit { ((digits + 1) % 4, 0) } else { (digits, pads) };
        } else if digits >= 2 {
            pads += 1;
        }
        digits >= 2 && digits + pads >= 4
    };
    text.iter().position(completes).map_or(text, |end| &text[..end])
}

/// Returns true if a word is `name=value`, and no token, which may end with `=` or be in quotes.
fn is_parameter(word: &[u8]) -> bool {
    let ends = |byte: &u8| matches!(byte, b',' | b';');
    let word = word.split(ends).find(|part| !part.is_empty()).unwrap_or_default();
    let equals = word.iter().position(|byte| *byte == b'=').filter(|_| !word.starts_with(b"\""));
    equals.is_some_and(|at| word[at..].iter().any(|byte| *byte != b'='))
}

/// The token in a word: its first part between separators, without `token=` and quotes.
fn token(word: &[u8], ends_token: impl Fn(&u8) -> bool) -> &[u8] {
    let word = word.split(ends_token).find(|part| !part.is_empty()).unwrap_or_default();
    let word = word.strip_prefix(TOKEN).unwrap_or(word);
    let word = word.strip_prefix(b"\"").unwrap_or(word);
    word.strip_suffix(b"\"").unwrap_or(word)
}

/// Credentials with an ASCII space for each white space outside ASCII, read as Latin-1 and as UTF-8.
fn respaced(sent: &[u8]) -> [Option<Vec<u8>>; 2] {
    let latin = sent.iter().map(|byte| if matches!(byte, 0x85 | 0xA0) { b' ' } else { *byte }).collect();
    let spaced = |c: char| if c.is_whitespace() || c == '\u{FEFF}' { ' ' } else { c };
    let wide =
        str::from_utf8(sent).ok().map(|text| text.chars().map(spaced).collect::<String>().into_bytes());
    [wide.filter(|wide| wide != sent), Some(latin).filter(|latin: &Vec<u8>| latin != sent)]
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

/// Base64 as an encoder writes it.
pub(super) fn encoded(decoded: &[u8]) -> Vec<u8> {
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

#[cfg(test)]
mod tests {
    use std::borrow::Cow;

    use tollgate_limiter::key::credentials::usual;

    use super::*;

    fn read(sent: &str) -> Vec<String> {
        let values = credentials(sent.as_bytes()).unwrap_or_else(|_| panic!("{sent}")).into_values();
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
            ("Bearer ,k1", &["Bearer ,k1", "Bearer k1"]),
            ("Bearer ; ,k1, x", &["Bearer ; ,k1, x", "Bearer k1", "Bearer x"]),
            ("Bearer \"YWJj+/8=\"", &["Bearer \"YWJj+/8=\"", "Bearer YWJj+/8="]),
            ("Token token=\"k1\"", &["Token token=\"k1\"", "Bearer token=\"k1\"", "Bearer k1"]),
            // Parameters are no token, so that nobody is charged who has one of them in common.
            ("digest username=\"a\", nonce=\"b\"", &["Digest username=\"a\", nonce=\"b\""]),
            ("Digest a=\"b c\", d=\"e \\\" f\"", &["Digest a=\"b c\", d=\"e \\\" f\""]),
            ("Mine a=\"b c\", d=\"e f\"", &["Mine a=\"b c\", d=\"e f\"", "Bearer a=\"b c\", d=\"e f\""]),
            ("Mine 1;a", &["Mine 1;a", "Bearer 1;a"]),
            (
                "Token token=\"k1\", app=\"ios\"",
                &["Token token=\"k1\", app=\"ios\"", "Bearer token=\"k1\", app=\"ios\"", "Bearer k1"],
            ),
            // What isn't in quotes, and no parameter, may be the token.
            ("Mine a=b k1", &["Mine a=b k1", "Bearer a=b k1", "Bearer k1"]),
            ("Mine a=\"b k1", &["Mine a=\"b k1", "Bearer a=\"b k1", "Bearer k1"]),
            ("Mine user=a, key=b", &["Mine user=a, key=b", "Bearer user=a, key=b"]),
            // Base64 as lenient decoders read it
            ("basic YWxpY2U6c2VjcmV0", &["Basic YWxpY2U6c2VjcmV0"]),
            ("Basic YTpi=", &["Basic YTpi=", "Basic YTpi"]),
            ("Basic YTpiYx==", &["Basic YTpiYx==", "Basic YTpiYw=="]),
            ("Basic eA==", &["Basic eA==", "Basic eDo=", "Bearer eA=="]),
            ("Basic YTpi-", &["Basic YTpi-", "Basic YTpi"]),
            ("Basic YT*pi", &["Basic YT*pi", "Basic YTpi", "Bearer YT*pi"]),
            // Decoders that stop at the padding, and those that go on
            ("Basic YTpiYw==x", &["Basic YTpiYw==x", "Basic YTpiYww=", "Basic YTpiYw=="]),
            ("Basic Y=TpiYw==x", &["Basic Y=TpiYw==x", "Basic YTpiYww=", "Basic YTpiYw=="]),
            // Decoders that stop at what is no digit (Apache), and passwords that end at a NUL (nginx)
            ("Basic YTpi!xxxx", &["Basic YTpi!xxxx", "Basic YTpixxxx", "Basic YTpi", "Bearer YTpi!xxxx"]),
            ("Basic YTpiAHg=", &["Basic YTpiAHg=", "Basic YTpi"]),
            // In the other alphabet, and what isn't base64 at all: no part of it is shared
            (
                "Basic YWxpY2U6Pj4-Pz8_",
                &[
                    "Basic YWxpY2U6Pj4-Pz8_",
                    "Basic YWxpY2U6Pj4+Pz8/",
                    "Basic YWxpY2U6Pj4Pzw==",
                    "Basic YWxpY2U6Pj4=",
                ],
            ),
            ("Basic alice:key", &["Basic alice:key", "Basic alicekeyOg==", "Bearer alice:key"]),
            ("Basic a2V5!MTI=", &["Basic a2V5!MTI=", "Basic a2V5MTI6", "Bearer a2V5!MTI="]),
            // The header of a JWT, and a name before what the other alphabet has
            (
                "Basic eyJhIjoiYiJ9.x",
                &["Basic eyJhIjoiYiJ9.x", "Basic eyJhIjoiYiJ9", "Bearer eyJhIjoiYiJ9.x"],
            ),
            ("Basic YTo-Pj4-", &["Basic YTo-Pj4-", "Basic YTo+Pj4+", "Basic YToPjw=="]),
            ("Basic user=\"a\", key=\"b\"", &["Basic user=\"a\", key=\"b\""]),
            // Any byte behind the scheme
            ("BasicXYTpi", &["BasicXYTpi", "Bearer BasicXYTpi", "Basic YTpi"]),
            ("basic:YTpiYw==", &["basic:YTpiYw==", "Bearer basic:YTpiYw==", "Basic YTpiYw=="]),
            ("Bearer_k1", &["Bearer_k1", "Bearer Bearer_k1", "Bearer k1"]),
            ("Bearer k1\"", &["Bearer k1\"", "Bearer k1"]),
            ("Bearerk1", &["Bearerk1", "Bearer Bearerk1", "Bearer 1", "Bearer k1"]),
            ("bearerk1", &["bearerk1", "Bearer bearerk1", "Bearer 1", "Bearer k1"]),
            // What a scheme's name stands in is a key like others.
            ("ApiKey aToken1", &["ApiKey aToken1", "Bearer aToken1"]),
            // A tab in quotes ends a token in Rails.
            ("Bearer \"k1\tx\"", &["Bearer \"k1\tx\"", "Bearer k1"]),
        ];
        for (sent, expected) in cases {
            assert_eq!(read(sent), *expected, "{sent}");
            assert_eq!(usual(sent.as_bytes()), expected[0].as_bytes(), "{sent}");
        }
        let latin = credentials(b"bearer\xFFk1").unwrap().into_values();
        assert!(latin.iter().flatten().any(|value| **value == *b"Bearer k1"), "{latin:?}");
        assert!(read("Bearer\u{a0}k1").contains(&"Bearer k1".to_owned()));
        assert!(read("Bearer k1\u{3000}").contains(&"Bearer k1".to_owned()));
    }
}
