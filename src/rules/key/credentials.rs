//! The credentials that servers may read in `Authorization`.
//!
//! Servers cut credentials at white space, commas and quotes, pass over what they don't expect, and look for a scheme within words. So
//! those that a limit counts are written as RFC 9110, section 11.4, has them: a scheme and one token, or a scheme and a list of
//! parameters; or they are a token alone, which many services take. All others are ambiguous.

mod basic;

use std::{borrow::Cow, iter};

use tollgate_limiter::key::credentials::{
    BASIC, BEARER, NAMELESS, is_of_word, is_usual, is_visible_without, joined, known, scheme, usual,
};

pub(super) use self::basic::encoded;
use self::basic::{add_basic, add_only_with_password, is_name_and_password};
use super::readings::{Readings, TooManyReadings, has_encoded_word, percent_decoded, unquoted};

/// The name of the parameter that Rails takes the token from, with its `=`.
const TOKEN: &[u8] = b"token=";
/// The fewest bytes of a token behind a `Bearer` within a word. Fewer may be the same for many clients.
const SHORTEST_WITHIN_WORD: usize = 16;
/// The fewest bytes of a token behind a `Bearer` at the beginning.
const SHORTEST_AT_SCHEME: usize = 2;
/// The most places of a `Basic` in credentials, since all that follows each is read.
const MOST_BASICS: usize = 2;
/// The most bytes of credentials with a `Basic` in them: a name and a password take long to read, for each limit.
const LONGEST_BASIC: usize = 8 << 10;

/// Reads credentials, without an allocation if they are written as usual.
///
/// The ordinary value has the scheme as it is usually written, one space, and the rest as it came. A scheme that isn't known, or none,
/// may also be one that the server doesn't look at: then the rest is read as a bearer's token, too. BlackSheep decodes escapes.
///
/// # Errors
/// They are written in another way, or have too many readings.
pub(super) fn credentials(sent: &[u8]) -> Result<Readings<'_>, TooManyReadings> {
    let mut readings = Readings::default();
    if is_usual(sent) {
        readings.add(sent)?;
    } else if is_nobodys(sent) {
        readings.add_missing();
    } else if has_encoded_word(sent) {
        return Err(TooManyReadings);
    } else {
        add_credentials(&mut readings, sent)?;
    }
    if let Cow::Owned(decoded) = percent_decoded(sent)
        && decoded != sent
    {
        let (was_word, behind) = (is_word(words(sent).1), words(&decoded).1);
        if was_word && is_word(behind) {
            add_credentials(&mut readings, &decoded)?;
        } else if was_word && behind.iter().any(u8::is_ascii_whitespace) {
            return Err(TooManyReadings);
        } else {
            readings.add(usual(&decoded).into_owned())?;
        }
    }
    Ok(readings)
}

/// Returns true for credentials without any: nothing, `Bearer` or `Basic` alone, or Basic with neither a name nor a password.
fn is_nobodys(sent: &[u8]) -> bool {
    match words(sent) {
        (None, word) => word.is_empty() || matches!(known(word), Some(BASIC | BEARER)),
        (Some(scheme), rest) => known(scheme) == Some(BASIC) && rest == NAMELESS,
    }
}

/// Returns the scheme, if there is one, and what follows it.
fn words(sent: &[u8]) -> (Option<&[u8]>, &[u8]) {
    match scheme(sent) {
        Some((scheme, rest)) => (Some(scheme), rest),
        None => (None, sent.trim_ascii()),
    }
}

fn add_credentials(readings: &mut Readings<'_>, sent: &[u8]) -> Result<(), TooManyReadings> {
    if sent.len() > LONGEST_BASIC && places(sent, BASIC).next().is_some() {
        return Err(TooManyReadings);
    }
    let (scheme, rest) = words(sent);
    let known = scheme.and_then(known);
    match scheme {
        Some(scheme) if is_word(scheme) => readings.add(joined(known.unwrap_or(scheme), rest))?,
        Some(_) => return Err(TooManyReadings),
        None => readings.add(rest.to_vec())?,
    }
    if is_word(rest) {
        if known == Some(BASIC) {
            add_basic(readings, rest)?;
        }
        let is_password = known == Some(BASIC) && is_name_and_password(rest);
        let tokens = iter::once(rest).chain(rest.strip_prefix(TOKEN).filter(|token| !token.is_empty()));
        for token in tokens.filter(|_| !is_password) {
            add_token(readings, token)?;
        }
        if scheme.is_some_and(|scheme| places(scheme, BASIC).next().is_some()) {
            add_only_with_password(readings, rest)?;
        }
    } else {
        let scheme = scheme.ok_or(TooManyReadings)?;
        add_parameters(readings, known.unwrap_or(scheme), rest)?;
    }
    add_behind_basic(readings, sent.trim_ascii())?;
    add_behind_bearer(readings, sent.trim_ascii())
}

/// Adds a bearer's token: whole, and a JWT up to its last letter, digit or `_`, at which tymon/jwt-auth ends it.
fn add_token(readings: &mut Readings<'_>, token: &[u8]) -> Result<(), TooManyReadings> {
    readings.add(joined(BEARER, token))?;
    let end = token.iter().rposition(|byte| is_of_word(*byte)).map_or(0, |last| last + 1);
    if is_jwt(&token[..end]) { readings.add(joined(BEARER, &token[..end])) } else { Ok(()) }
}

/// Returns true for what may be a JWT (RFC 7515, section 7.1).
fn is_jwt(token: &[u8]) -> bool {
    let is_digit = |byte: &u8| is_of_word(*byte) || *byte == b'-';
    let parts = token.split(|byte| *byte == b'.');
    parts.clone().count() == 3 && parts.flatten().all(is_digit)
}

/// Returns true for a text that servers don't cut.
fn is_word(text: &[u8]) -> bool {
    is_visible_without(text, *b",;\"") && !text.is_empty()
}

/// Adds a list of parameters. None of them is read alone, as it may be the same for many clients, but the value of `token=`, which Rails
/// takes.
///
/// # Errors
/// It is no such list, or a server may find credentials in it.
fn add_parameters(readings: &mut Readings<'_>, scheme: &[u8], list: &[u8]) -> Result<(), TooManyReadings> {
    let first = parameters(list).next().flatten();
    let token = first.and_then(|parameter| parameter.strip_prefix(TOKEN)).map(unquoted);
    // Rails takes the first parameter for the token, whatever its name.
    let is_rails = scheme == BEARER || scheme.eq_ignore_ascii_case(b"Token");
    let has_token = token.map_or(!is_rails, |token| is_word(token) && !token.contains(&b'\\'));
    let is_plain = scheme.iter().all(|byte| is_of_word(*byte) || matches!(byte, b'-' | b'.'));
    // Some servers find one of these in another scheme, and take what is behind it up to a character of the list.
    let names_other =
        scheme != BEARER && [BASIC, BEARER].iter().any(|name| places(scheme, name).next().is_some());
    if !is_plain || names_other || !has_token || !parameters(list).all(|parameter| parameter.is_some()) {
        return Err(TooManyReadings);
    }
    if known(scheme).is_none() {
        readings.add(joined(BEARER, list))?;
    }
    token.map_or(Ok(()), |token| add_token(readings, token))
}

/// Returns the parameters of a list (RFC 9110, section 11.2), and `None` in place of what is none.
fn parameters(list: &[u8]) -> impl Iterator<Item = Option<&[u8]>> {
    let (mut is_quoted, mut is_escaped) = (false, false);
    let ends = move |byte: &u8| {
        is_quoted ^= *byte == b'"' && !is_escaped;
        is_escaped = is_quoted && *byte == b'\\' && !is_escaped;
        *byte == b',' && !is_quoted
    };
    list.split(ends)
        .map(<[u8]>::trim_ascii)
        .map(|parameter| Some(parameter).filter(|text| is_parameter(text)))
}

/// Returns true for a name, a `=`, and a value in quotes or without white space. A token may end with padding, also before a signature
/// behind `--` (Rails' `MessageVerifier`), and so look like a name.
fn is_parameter(text: &[u8]) -> bool {
    let equals = text.iter().position(|byte| *byte == b'=').unwrap_or(text.len());
    let (name, value) = (&text[..equals], text.get(equals + 1..).unwrap_or_default());
    let is_value = match value.strip_prefix(b"\"") {
        Some(quoted) => quoted.strip_suffix(b"\"").is_some_and(is_quoted),
        None => is_visible_without(value, *b",\""),
    };
    let may_end_token = value.is_empty() || value.starts_with(b"=") || value.starts_with(b"--");
    is_word(name) && is_value && !may_end_token
}

/// Returns true for what can be in quotes: no quote without a backslash before it, and no backslash at the end.
fn is_quoted(text: &[u8]) -> bool {
    let mut bytes = text.iter();
    while let Some(byte) = bytes.next() {
        if *byte == b'"' || *byte == b'\\' && bytes.next().is_none() {
            return false;
        }
    }
    true
}

/// Returns where a scheme's name stands in a text, in any case.
fn places(text: &[u8], scheme: &[u8]) -> impl Iterator<Item = usize> {
    text.windows(scheme.len())
        .enumerate()
        .filter(|(_, word)| word.eq_ignore_ascii_case(scheme))
        .map(|(at, _)| at)
}

/// Adds a name and a password behind `Basic` wherever servers look for it: Sanic, Kong and slim-basic-auth within words, Spring and Yii
/// with any byte behind it.
fn add_behind_basic(readings: &mut Readings<'_>, text: &[u8]) -> Result<(), TooManyReadings> {
    let mut places = places(text, BASIC);
    for at in places.by_ref().take(MOST_BASICS) {
        let behind = &text[at + BASIC.len()..];
        let at_once = Some(behind).filter(|behind| behind.first().is_some_and(u8::is_ascii_alphanumeric));
        for text in [at_once, behind.get(1..)].into_iter().flatten() {
            add_only_with_password(readings, text.trim_ascii())?;
        }
    }
    places.next().map_or(Ok(()), |_| Err(TooManyReadings))
}

/// Adds the tokens that follow `Bearer` at once, as PHP's `sscanf`, Sanic and tymon/jwt-auth read them, the latter two also within a word;
/// and, at the beginning, without the byte behind it (Yii).
///
/// # Errors
/// A word ends with it, so that `replace("Bearer ", "")` joins what is around it; or a list has a token behind
/// it: servers disagree on where that ends.
fn add_behind_bearer(readings: &mut Readings<'_>, sent: &[u8]) -> Result<(), TooManyReadings> {
    for at in places(sent, BEARER) {
        let behind = &sent[at + BEARER.len()..];
        if at > 0 && behind.first().is_some_and(u8::is_ascii_whitespace) {
            return Err(TooManyReadings);
        }
        let ends_token = |byte: &u8| byte.is_ascii_whitespace() || matches!(byte, b',' | b'"');
        let end = behind.iter().position(ends_token).unwrap_or(behind.len());
        if end >= if at == 0 { SHORTEST_AT_SCHEME } else { SHORTEST_WITHIN_WORD } {
            if behind.get(end).is_some_and(|byte| !byte.is_ascii_whitespace()) {
                return Err(TooManyReadings);
            }
            add_token(readings, &behind[..end])?;
        }
        if at == 0 && behind.len() > 1 && !behind[0].is_ascii_whitespace() {
            add_token(readings, behind[1..].trim_ascii())?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use tollgate_limiter::key::credentials::{is_usual_basic, usual};

    use super::{super::readings::combinations, *};

    fn read(sent: &str) -> Vec<String> {
        let values = credentials(sent.as_bytes()).unwrap_or_else(|_| panic!("{sent}")).into_values();
        values.into_iter().map(|value| String::from_utf8_lossy(&value.unwrap()).into_owned()).collect()
    }

    /// A recursion would overflow the stack, and quadratic time would be minutes.
    #[test]
    fn long_credentials_are_read_step_by_step() {
        for unit in [
            &b"\xEF\xBB\xBF"[..],
            b":",
            b" ",
            b"\0",
            b"%41",
            b"\"",
            b"a:",
            b"Bearer-",
            b"BearerA",
            b"Basic-",
            b"a=b,",
            b"Bearera,",
        ] {
            let sent = [b"Basic ", &encoded(&[&unit.repeat(1 << 18)[..], b"u:p"].concat())[..]].concat();
            for scheme in [BEARER, b"Mine"] {
                let _ = (credentials(&sent), credentials(&[scheme, b" ", &unit.repeat(1 << 18)].concat()));
            }
            let _ = credentials(&unit.repeat(1 << 18));
        }
    }

    /// Credentials that are borrowed without a look at all readings have no other reading.
    #[test]
    fn usual_credentials_have_one_reading() {
        const PARTS: [&str; 24] = [
            "Basic",
            "basic",
            "Bearer",
            "bearer",
            "Token",
            "token=",
            "YTpi",
            "YTpiYw==",
            "0123456789abcdef",
            "k1",
            "a=",
            "b",
            "-",
            "_",
            ".",
            ":",
            "+",
            "/",
            "=",
            "%41",
            "~",
            "!",
            "'",
            "{\"a\":1}",
        ];
        let mut usual = [0; 2];
        for places in combinations::<3>(PARTS.len()) {
            let rest = places.map(|place| PARTS[place]).concat();
            let bearer = joined(BEARER, rest.as_bytes());
            if is_usual(&bearer) {
                let mut readings = Readings::default();
                assert_eq!(add_credentials(&mut readings, &bearer), Ok(()), "{rest}");
                assert_eq!(readings, Readings::one(bearer), "{rest}");
                usual[0] += 1;
            }
            let basic = encoded(rest.as_bytes());
            if is_usual_basic(&basic) {
                let mut readings = Readings::default();
                assert_eq!(add_basic(&mut readings, &basic), Ok(()), "{rest}");
                assert_eq!(readings, Readings::one(joined(BASIC, &basic)), "{rest}");
                usual[1] += 1;
            }
        }
        assert!(usual.iter().all(|usual| *usual > 200), "{usual:?}");
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
            // A scheme that servers may not look at
            ("k1", &["k1", "Bearer k1"]),
            ("Token k1", &["Token k1", "Bearer k1"]),
            ("token k1", &["token k1", "Bearer k1"]),
            ("Bearer: k1", &["Bearer: k1", "Bearer k1"]),
            ("AWS id:a+b/c=", &["AWS id:a+b/c=", "Bearer id:a+b/c="]),
            ("Digest a=b", &["Digest a=b", "Bearer a=b"]),
            // Escapes
            ("Bearer %6b1", &["Bearer %6b1", "Bearer k1"]),
            ("Bearer a%2Cb", &["Bearer a%2Cb", "Bearer a,b"]),
            ("JWT k%31", &["JWT k%31", "Bearer k%31", "JWT k1", "Bearer k1"]),
            ("Sas a=%2F&b=%3D", &["Sas a=%2F&b=%3D", "Bearer a=%2F&b=%3D", "Sas a=/&b==", "Bearer a=/&b=="]),
            // Parameters: none is a token, so that nobody is charged who has one of them in common, but for the one of Rails.
            ("digest username=\"a\", nonce=\"b\"", &["Digest username=\"a\", nonce=\"b\""]),
            (
                "Digest uri=\"/a%20b\", c=d%22",
                &["Digest uri=\"/a%20b\", c=d%22", "Digest uri=\"/a b\", c=d\""],
            ),
            ("Digest a=\"b c\", d=\"e \\\" f\"", &["Digest a=\"b c\", d=\"e \\\" f\""]),
            ("Mine a=\"b c\", d=\"e f\"", &["Mine a=\"b c\", d=\"e f\"", "Bearer a=\"b c\", d=\"e f\""]),
            ("Mine user=a,key=b", &["Mine user=a,key=b", "Bearer user=a,key=b"]),
            (
                "Digest uri=\"/basic/plan\", realm=\"Basic Auth\"",
                &["Digest uri=\"/basic/plan\", realm=\"Basic Auth\""],
            ),
            (
                "Digest a=\"bearer\",realm=\"x-bearer\",nonce=\"0123456789abcdef\"",
                &["Digest a=\"bearer\",realm=\"x-bearer\",nonce=\"0123456789abcdef\""],
            ),
            ("Hawk id=\"a\" , mac=\"b=\"", &["Hawk id=\"a\" , mac=\"b=\""]),
            ("Digest a=\"b = c\", d=e=", &["Digest a=\"b = c\", d=e="]),
            ("Digest a=\"\\\\\", b=\"\"", &["Digest a=\"\\\\\", b=\"\""]),
            (
                "HMAC-SHA256 SignedHeaders=host;date&Signature=a+b=",
                &[
                    "HMAC-SHA256 SignedHeaders=host;date&Signature=a+b=",
                    "Bearer SignedHeaders=host;date&Signature=a+b=",
                ],
            ),
            // A JWT that tymon/jwt-auth ends at its last letter or digit
            ("Bearer a.b.c~!", &["Bearer a.b.c~!", "Bearer a.b.c"]),
            ("bearer a.b.c-", &["Bearer a.b.c-", "Bearer a.b.c"]),
            ("Bearer a.b==", &["Bearer a.b=="]),
            ("Bearer a.b.", &["Bearer a.b."]),
            // Other tokens with dots, such as those of Azure
            ("Bearer x=a.b.c~", &["Bearer x=a.b.c~"]),
            (
                "SharedAccessSignature sr=a.b.net%2Fc&sig=d%3D&skn=",
                &[
                    "SharedAccessSignature sr=a.b.net%2Fc&sig=d%3D&skn=",
                    "Bearer sr=a.b.net%2Fc&sig=d%3D&skn=",
                    "SharedAccessSignature sr=a.b.net/c&sig=d=&skn=",
                    "Bearer sr=a.b.net/c&sig=d=&skn=",
                ],
            ),
            ("Bearer token=k1", &["Bearer token=k1", "Bearer k1"]),
            ("Bearer token=\"k1\"", &["Bearer token=\"k1\"", "Bearer k1"]),
            ("Token token=\"k1\"", &["Token token=\"k1\"", "Bearer token=\"k1\"", "Bearer k1"]),
            (
                "Token token=\"k1\", app=\"ios\"",
                &["Token token=\"k1\", app=\"ios\"", "Bearer token=\"k1\", app=\"ios\"", "Bearer k1"],
            ),
            // A name and a password
            ("basic YWxpY2U6c2VjcmV0", &["Basic YWxpY2U6c2VjcmV0"]),
            ("Basic eA==", &["Basic eA==", "Basic eDo=", "Bearer eA=="]),
            ("Basic ayUzMQ==", &["Basic ayUzMQ==", "Basic ayUzMTo=", "Basic azE6", "Bearer ayUzMQ=="]),
            // a:p\xE9\0x, which nginx ends at the NUL
            ("Basic YTpw6QB4", &["Basic YTpw6QB4", "Basic YTpww6kAeA==", "Basic YTpww6k="]),
            // Passwords that end at a further colon (passport-http): k1:b:x, k::x, but not {"a":"b","c":1}
            ("Basic azE6Yjp4", &["Basic azE6Yjp4", "Basic azE6Yg=="]),
            ("Basic azo6eA==", &["Basic azo6eA==", "Basic azo="]),
            ("Basic eyJhIjoiYiIsImMiOjF9", &["Basic eyJhIjoiYiIsImMiOjF9"]),
            // a:b:\x01\xff0, which may be a key that is base64 by chance
            ("Basic YTpiOgH/MA==", &["Basic YTpiOgH/MA==", "Basic YTpiOgHDvzA=", "Basic YTpi"]),
            // No name, as for a token: ":pat"
            ("Basic OnBhdA==", &["Basic OnBhdA=="]),
            // White space within (APISIX): k 1:p w
            ("Basic ayAxOnAgdw==", &["Basic ayAxOnAgdw==", "Basic azE6cHc="]),
            // What isn't UTF-8 is read as Latin-1: a:\xFF, a:\xFF:x and \xFF:b
            ("Basic YTr/", &["Basic YTr/", "Basic YTrDvw=="]),
            ("Basic YTrDvw==", &["Basic YTrDvw=="]),
            ("Basic YTr/Ong=", &["Basic YTr/Ong=", "Basic YTrDvzp4", "Basic YTrDvw=="]),
            ("Basic /zpi", &["Basic /zpi", "Basic w786Yg=="]),
            // Escapes, which OAuth's servers decode: alic%65:s, a:b+c, a:%2B+, 100%:b, and behind a colon, too: %61:b:c
            ("Basic YWxpYyU2NTpz", &["Basic YWxpYyU2NTpz", "Basic YWxpY2U6cw=="]),
            ("Basic YTpiK2M=", &["Basic YTpiK2M=", "Basic YTpiIGM="]),
            ("Basic YTolMkIr", &["Basic YTolMkIr", "Basic YTorKw==", "Basic YTorIA=="]),
            ("Basic MTAwJTpi", &["Basic MTAwJTpi"]),
            ("Basic JTYxOmI6Yw==", &["Basic JTYxOmI6Yw==", "Basic YTpiOmM=", "Basic JTYxOmI=", "Basic YTpi"]),
            // Keys that are base64 by chance, and have a colon, a NUL and others in it
            (
                "Basic 0123456789abcdef0123456789abcdef",
                &[
                    "Basic 0123456789abcdef0123456789abcdef",
                    "Basic w5NdwrfDo8KewrvDs8OWwptxw5fCn8OTXcK3w6PCnsK7w7PDlsKbccOXwp86",
                    "Bearer 0123456789abcdef0123456789abcdef",
                ],
            ),
            // What isn't base64
            ("Basic k1", &["Basic k1", "Basic wpM6", "Bearer k1"]),
            ("Basic ~", &["Basic ~", "Bearer ~"]),
            ("Basic alice:key", &["Basic alice:key", "Basic aljCnHpHwrI6", "Bearer alice:key"]),
            // Servers that pass over a byte behind the scheme, or look for a scheme within words
            ("Basic: YTpi", &["Basic: YTpi", "Bearer YTpi", "Basic YTpi"]),
            ("BasicXYTpi", &["BasicXYTpi", "Bearer BasicXYTpi", "Basic YTpi"]),
            ("basic:YTpiYw==", &["basic:YTpiYw==", "Bearer basic:YTpiYw==", "Basic YTpiYw=="]),
            ("BasicYTpi", &["BasicYTpi", "Bearer BasicYTpi", "Basic YTpi"]),
            ("xbasic\tYTpi", &["xbasic YTpi", "Bearer YTpi", "Basic YTpi"]),
            ("xBasicYTpi", &["xBasicYTpi", "Bearer xBasicYTpi", "Basic YTpi"]),
            ("Bearer x1Basic-YTpi", &["Bearer x1Basic-YTpi", "Basic YTpi"]),
            ("Bearer_k1", &["Bearer_k1", "Bearer Bearer_k1", "Bearer _k1", "Bearer k1"]),
            ("bearerk1", &["bearerk1", "Bearer bearerk1", "Bearer k1", "Bearer 1"]),
            // Sanic finds a token in base64, too: u1:a, and what the rest decodes to
            (
                "Basic dTE6YTExBearer0123456789abcdefgh",
                &[
                    "Basic dTE6YTExBearer0123456789abcdefgh",
                    "Basic dTE6YTExBcOmwqt6wr01w5t+OcOrwr89acK3HXnDuCE=",
                    "Bearer 0123456789abcdefgh",
                ],
            ),
            (
                "xBearer-0123456789abcdef",
                &["xBearer-0123456789abcdef", "Bearer xBearer-0123456789abcdef", "Bearer -0123456789abcdef"],
            ),
            ("Bearerk1 r", &["Bearerk1 r", "Bearer r", "Bearer k1", "Bearer 1 r"]),
            (
                "xBearer0123456789abcdef",
                &["xBearer0123456789abcdef", "Bearer xBearer0123456789abcdef", "Bearer 0123456789abcdef"],
            ),
            (
                "Bearer x-bearer0123456789abcdef",
                &["Bearer x-bearer0123456789abcdef", "Bearer 0123456789abcdef"],
            ),
            // What a scheme's name stands in is a key like others.
            ("ApiKey a-bearer-1", &["ApiKey a-bearer-1", "Bearer a-bearer-1"]),
            ("ApiKey aToken1", &["ApiKey aToken1", "Bearer aToken1"]),
            ("BasicAuth a-b_c", &["BasicAuth a-b_c", "Bearer a-b_c"]),
        ];
        for (sent, expected) in cases {
            assert_eq!(read(sent), *expected, "{sent}");
            assert_eq!(usual(sent.as_bytes()), expected[0].as_bytes(), "{sent}");
        }
    }

    #[test]
    fn what_servers_cut_in_different_ways_is_refused() {
        for sent in [
            // Several words, and characters that end a token
            "Bearer k1 x",
            "Bearer x Bearer k1",
            "k1 x y",
            "Bearer k1,x",
            "Bearer k1;x",
            "Bearer \"k1\"",
            "Bearer k1\"",
            "Mine 1;a",
            "k1,",
            "a=b, c=d",
            "Bearer k\u{e9}",
            "Bearer\u{a0}k1",
            "Bearer%20k1",
            "Bearer%20k1%20x",
            "kBearer 1",
            // What is no list of parameters
            "Mine a=b k1",
            "Mine a=\"b k1",
            "Mine a=\"b\"c",
            "Mine a=\"b\\\"",
            "Mine a=b, k1",
            "Mine a=b, azE=",
            "Mine azE== , a=b",
            "Mine a=b, azE==--0a",
            "Mine a=b,",
            "Digest username = \"a\"",
            "Digest username=\"a\", qop = auth",
            "Basic user=\"a\", key=\"b\"",
            // A list in which a server finds a token
            "Bearer a=b, c=d",
            "Token app=\"ios\", token=\"k1\"",
            "Token token=\"k1;x\"",
            "Token token=\"k\\1\"",
            "Digest a=\"b\", Bearer k1",
            "xBasic YTpi=~, r=1",
            "BasicYTpi ~=~,~=!",
            "Bearerk1 a=b,c=d",
            "MyBearer a=b,c=d",
            "%42earer a=b,c=d",
            "Mine a=Bearer0123456789abcdef,b=c",
            "Bearerk1, a=b",
            "Mine a=\"Bearer0123456789abcdef\",b=c",
            "Digest a=\"Bearer k1\"",
            "Digest a=\"xbasic YTpi\"",
            // Base64 that decoders read, or stop at, in different ways
            "Basic YTpiYw",
            "Basic YTpiYx==",
            "Basic YTpi-",
            "Basic YT*pi",
            "Basic YTpi=",
            "Basic YTpiYw===",
            "Basic YTpi!xxxx",
            "Basic YTpi.x",
            "Basic YTpi x",
            "Basic x=1 ~YTpi",
            "Basic \"YTpi\"",
            "Basic YTpiYw==x",
            "Basic azE=!",
            "Basic azE=cA==",
            "Basic key=k1",
            "Basic YTo-Pj4-",
            "Basic eyJhIjoiYiJ9.x.y",
            "BasicX YT.~!%pi",
            "Basic: YT!pi",
            "BasicXYT pi!~",
            "xBasic YTpi=!",
            "~BASIC  YT!pi",
            "BasicYT!pi",
            // A name and a password that servers change: \u{feff}a:b, a:b\0x, " a : b", "k1:pw\n", and ::k1:pw
            "Basic 77u/YTpi",
            "Basic YTpiAHg=",
            "Basic IGEgOiBi",
            "Basic azEg",
            "Basic azE6cHcK",
            "Basic OjprMTpwdw==",
        ] {
            assert_eq!(credentials(sent.as_bytes()), Err(TooManyReadings), "{sent}");
        }
        for sent in [&b"Bearer\xFFk1"[..], b"\xA0k1", b"Mine a=b,\xC2\xA0k1"] {
            assert_eq!(credentials(sent), Err(TooManyReadings));
        }
    }

    #[test]
    fn credentials_without_any_are_missing() {
        for sent in ["", " ", "Bearer", "basic", "Basic Og=="] {
            assert_eq!(credentials(sent.as_bytes()).unwrap().into_values()[..], [None], "{sent}");
        }
    }

    /// Some services issue such keys. Few are taken for a name and a password that servers change.
    #[test]
    fn keys_that_are_base64_by_chance_are_counted() {
        let refused = |keys: &mut dyn Iterator<Item = String>| {
            keys.filter(|key| credentials(format!("Basic {key}").as_bytes()).is_err()).count()
        };
        let hex = |seed: u64| format!("{:016x}", seed.wrapping_mul(0x9E37_79B9_7F4A_7C15));
        let hex_keys = &mut (1..2000).map(|seed| hex(seed) + &hex(seed << 20));
        assert!(refused(hex_keys) < 20);
        let binary = &mut (1..2000).map(|seed: u64| {
            let text = hex(seed) + &hex(seed << 20);
            let bytes: Vec<u8> = text
                .as_bytes()
                .chunks(2)
                .map(|pair| u8::from_str_radix(str::from_utf8(pair).unwrap(), 16).unwrap())
                .collect();
            String::from_utf8(encoded(&bytes)).unwrap()
        });
        assert!(refused(binary) < 40);
    }
}
