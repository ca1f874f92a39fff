//! The credentials that servers may read in `Authorization`.
//!
//! RFC 9110, section 11.4: a scheme in any case, white space, and one token or a list of parameters. Servers read more
//! than that: any white space, further words, or no scheme at all.

mod basic;

use std::borrow::Cow;

use tollgate_limiter::key::credentials::{
    BASIC, BEARER, is_usual, is_usual_basic, joined, known, scheme, usual,
};

use self::basic::{add_basic, add_only_with_password, is_name_and_password};
pub(super) use self::basic::{encoded, is_digit};
use super::readings::{Readings, TooManyReadings, has_encoded_word, percent_decoded};

/// The name of the parameter that Rails takes the token from, with its `=`.
const TOKEN: &[u8] = b"token=";
/// The fewest bytes of a token behind a `Bearer` within a word. Fewer may be the same for many clients.
const SHORTEST_WITHIN_WORD: usize = 16;

/// Reads credentials, without an allocation if they are written as usual.
///
/// The ordinary value has the scheme as it is usually written, one space, and the rest as it came. A scheme that isn't
/// known, or none, may also be one that the server doesn't look at: then the rest is read as a bearer's token, too. Of
/// several words, which RFC 9110 doesn't allow, the first, the last and the one behind the first space may be the token. A
/// parameter isn't: it may be the same for many clients. The base64 of Basic may be without padding, or in the other alphabet.
/// BlackSheep decodes escapes; those of parameters may be of a text that many clients have in common.
pub(super) fn credentials(sent: &[u8]) -> Result<Readings<'_>, TooManyReadings> {
    let mut readings = undecoded(sent)?;
    if let Cow::Owned(decoded) = percent_decoded(sent) {
        let has_parameters = decoded.contains(&b'"');
        let others = if has_parameters { Readings::one(usual(&decoded)) } else { undecoded(&decoded)? };
        for value in others.into_values().into_iter().flatten() {
            readings.add(value.into_owned())?;
        }
    }
    Ok(readings)
}

fn undecoded(sent: &[u8]) -> Result<Readings<'_>, TooManyReadings> {
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
        add_behind_scheme(readings, sent)?;
        return add_behind_bearer(readings, sent);
    };
    let known = known(scheme);
    readings.add(joined(known.unwrap_or(scheme), rest))?;
    if known == Some(BASIC) {
        if is_usual_basic(rest) {
            return Ok(());
        }
        add_basic(readings, rest)?;
        if is_name_and_password(rest) {
            return Ok(());
        }
        // Zope takes the last word.
        let last = rest.rsplit(u8::is_ascii_whitespace).next().unwrap_or_default();
        add_only_with_password(readings, last)?;
    }
    add_basic_anywhere(readings, sent)?;
    let is_rails = known == Some(BEARER) || scheme.eq_ignore_ascii_case(b"Token");
    let ends_token = |byte: &u8| *byte == b',' || is_rails && matches!(byte, b';' | b'\t');
    let [first, last] = outer_words(rest, ends_token)?;
    if known.is_none() || known == Some(BEARER) || !is_parameter(first) {
        readings.add(joined(BEARER, rest))?;
    }
    add_behind_later_bearers(readings, rest)?;
    // `authorization.split(" ")[1]` ends words at spaces only.
    let behind_space = sent.split(|byte| *byte == b' ').nth(1).unwrap_or_default();
    for word in [first, last, behind_space] {
        let token = token(word, ends_token);
        if !token.is_empty() && (word.starts_with(TOKEN) || !is_parameter(word)) {
            readings.add(joined(BEARER, token))?;
        }
    }
    add_behind_bearer(readings, sent)
}

/// Adds a name and a password behind `Basic` wherever servers look for it: Passport before the first space, and it takes the word
/// behind that; Yii skips the byte behind `Basic`, and Sanic doesn't; slim-basic-auth takes the first that white space follows.
fn add_basic_anywhere(readings: &mut Readings<'_>, sent: &[u8]) -> Result<(), TooManyReadings> {
    let has_basic = |word: &&[u8]| word.windows(BASIC.len()).any(|part| part.eq_ignore_ascii_case(BASIC));
    let mut parts = sent.split(|byte| *byte == b' ');
    let second = parts.next().filter(has_basic).and_then(|_| parts.next());
    let behind = behind_scheme(BASIC, sent).map(|(_, rest)| rest);
    let blank = |word: &[u8]| {
        word[..BASIC.len()].eq_ignore_ascii_case(BASIC) && word[BASIC.len()].is_ascii_whitespace()
    };
    let before_blank = sent.windows(BASIC.len() + 1).position(blank).map(|at| &sent[at + BASIC.len()..]);
    for text in [second, behind, before_blank, basic_at_once(sent), basic_within(sent)].into_iter().flatten()
    {
        add_only_with_password(readings, text.trim_ascii())?;
    }
    Ok(())
}

/// Adds the tokens behind words that end with `Bearer`.
fn add_behind_later_bearers(readings: &mut Readings<'_>, rest: &[u8]) -> Result<(), TooManyReadings> {
    let mut words = rest.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty()).peekable();
    while let Some(word) = words.next() {
        if word.len() >= BEARER.len()
            && word[word.len() - BEARER.len()..].eq_ignore_ascii_case(BEARER)
            && let Some(next) = words.peek()
        {
            readings.add(joined(BEARER, token(next, |byte| matches!(byte, b',' | b';'))))?;
        }
    }
    Ok(())
}

/// Adds the tokens that follow `Bearer` at once, as PHP's `sscanf` and tymon/jwt-auth read them, the latter also within a word.
fn add_behind_bearer(readings: &mut Readings<'_>, sent: &[u8]) -> Result<(), TooManyReadings> {
    let ends = |byte: &u8| byte.is_ascii_whitespace() || matches!(byte, b',' | b';');
    for (at, word) in sent.windows(BEARER.len()).enumerate() {
        let behind = &sent[at + BEARER.len()..];
        // A long token is another reading each time, so few are looked for.
        if !word.eq_ignore_ascii_case(BEARER) || !behind.first().is_some_and(u8::is_ascii_alphanumeric) {
            continue;
        }
        let token = behind.split(ends).next().unwrap_or_default();
        if at == 0 || token.len() >= SHORTEST_WITHIN_WORD {
            readings.add(joined(BEARER, token))?;
        }
    }
    Ok(())
}

/// Returns the first and the last word. Leading separators are skipped, and white space in quotes doesn't end a word.
///
/// # Errors
/// There is white space beside the `=` of a parameter, which no client may send (RFC 9110, section 5.6.3). So a name or a value that
/// many clients have looks like a token.
fn outer_words(rest: &[u8], ends_token: impl Fn(&u8) -> bool) -> Result<[&[u8]; 2], TooManyReadings> {
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
    let mut words = text.split(ends_word).filter(|word| !word.is_empty()).peekable();
    let first = words.peek().copied().unwrap_or_default();
    let mut last = first;
    // Split from the front, since only there it is known which quotes open.
    while let Some(word) = words.next() {
        let is_name = word.ends_with(b"=") && !word.ends_with(b"==") && !is_parameter(word);
        if word.starts_with(b"=") && word != first || is_name && words.peek().is_some() {
            return Err(TooManyReadings);
        }
        last = word;
    }
    Ok([first, last])
}

/// Adds the credentials of a server that looks at the first letters only and skips the byte behind the scheme, whatever it
/// is. Spring Security and Yii do so for Basic.
fn add_behind_scheme(readings: &mut Readings<'_>, sent: &[u8]) -> Result<(), TooManyReadings> {
    if let Some((_, rest)) = behind_scheme(BASIC, sent) {
        add_basic(readings, rest)?;
    }
    for rest in [basic_at_once(sent), basic_within(sent)].into_iter().flatten() {
        add_only_with_password(readings, rest)?;
    }
    // In UTF-8, the byte is part of a longer character.
    if let Some((skipped, rest)) = behind_scheme(BEARER, sent)
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

/// Returns what follows `Basic` without a space. A byte that can't be base64 is one that is skipped.
fn basic_at_once(sent: &[u8]) -> Option<&[u8]> {
    directly_behind(BASIC, sent).filter(|rest| rest.first().is_some_and(u8::is_ascii_alphanumeric))
}

/// Returns what follows the first `Basic` within other words, as Sanic looks for it, or the first `basic` (Kong).
fn basic_within(sent: &[u8]) -> Option<&[u8]> {
    let at = sent.windows(BASIC.len()).position(|word| matches!(word, b"Basic" | b"basic"))?;
    Some(&sent[at + BASIC.len()..]).filter(|_| at > 0)
}

/// Returns what follows a scheme.
fn directly_behind<'s>(scheme: &[u8], sent: &'s [u8]) -> Option<&'s [u8]> {
    let (word, rest) = sent.split_at_checked(scheme.len())?;
    word.eq_ignore_ascii_case(scheme).then_some(rest)
}

/// Returns the byte behind a scheme and what follows it, if there is anything.
fn behind_scheme<'s>(scheme: &[u8], sent: &'s [u8]) -> Option<(&'s u8, &'s [u8])> {
    directly_behind(scheme, sent)?.split_first().filter(|(_, rest)| !rest.is_empty())
}

/// Returns true if a word is `name=value`, and no token. A token may end with `=`, be in quotes, of which Rails drops one alone, too, or
/// have a signature behind `--` (Rails' `MessageVerifier`).
fn is_parameter(word: &[u8]) -> bool {
    let ends = |byte: &u8| matches!(byte, b',' | b';');
    let word = word.split(ends).find(|part| !part.is_empty()).unwrap_or_default();
    let word = word.strip_suffix(b"\"").filter(|word| word.ends_with(b"=")).unwrap_or(word);
    let equals = word.iter().position(|byte| *byte == b'=').filter(|_| !word.starts_with(b"\""));
    let value = equals.map_or(&b""[..], |at| &word[at + 1..]);
    !value.is_empty() && !value.starts_with(b"=") && !value.starts_with(b"--")
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
    let mut wide = Vec::with_capacity(sent.len());
    for chunk in sent.utf8_chunks() {
        wide.extend(chunk.valid().chars().map(spaced).collect::<String>().into_bytes());
        wide.extend_from_slice(chunk.invalid());
    }
    [wide, latin].map(|respaced| Some(respaced).filter(|respaced| respaced != sent))
}

#[cfg(test)]
mod tests {
    use std::borrow::Cow;

    use super::{super::readings::combinations, *};

    fn read(sent: &str) -> Vec<String> {
        let values = credentials(sent.as_bytes()).unwrap_or_else(|_| panic!("{sent}")).into_values();
        values.into_iter().map(|value| String::from_utf8_lossy(&value.unwrap()).into_owned()).collect()
    }

    /// A recursion would overflow the stack, and quadratic time would be minutes.
    #[test]
    fn long_credentials_are_read_step_by_step() {
        for unit in [&b"\xEF\xBB\xBF"[..], b":", b" ", b"\0", b"%41", b"\"", b"a:", b"Bearer-", b"Bearera,"] {
            let sent = [b"Basic ", &encoded(&[&unit.repeat(1 << 18)[..], b"u:p"].concat())[..]].concat();
            let _ = (credentials(&sent), credentials(&[BEARER, b" ", &unit.repeat(1 << 18)].concat()));
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
            // A scheme that servers may not look at.
            ("k1", &["k1", "Bearer k1"]),
            ("Token k1", &["Token k1", "Bearer k1"]),
            ("token k1", &["token k1", "Bearer k1"]),
            ("Basic k1", &["Basic k1", "Basic wpM6", "Bearer k1"]),
            // Escapes
            ("Bearer %6b1", &["Bearer %6b1", "Bearer k1"]),
            ("k%20x", &["k%20x", "Bearer k%20x", "k x", "Bearer x"]),
            ("bearer%20k1", &["bearer%20k1", "Bearer bearer%20k1", "Bearer 20k1", "Bearer k1"]),
            ("JWT k%31", &["JWT k%31", "Bearer k%31", "JWT k1", "Bearer k1"]),
            ("Digest uri=\"/a%20b\"", &["Digest uri=\"/a%20b\"", "Digest uri=\"/a b\""]),
            (
                "Basic az%456cHc=",
                &["Basic az%456cHc=", "Basic az45w6nDgcOcOg==", "Bearer az%456cHc=", "Basic azE6cHc="],
            ),
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
            ("Hawk id=\"a\" , mac=\"b=\"", &["Hawk id=\"a\" , mac=\"b=\""]),
            ("Digest a=\"b = c\", d=e=", &["Digest a=\"b = c\", d=e="]),
            ("Bearer eA== x", &["Bearer eA== x", "Bearer eA==", "Bearer x"]),
            // What isn't in quotes, and no parameter, may be the token.
            ("Mine a=b k1", &["Mine a=b k1", "Bearer a=b k1", "Bearer k1"]),
            ("Mine a=\"b k1", &["Mine a=\"b k1", "Bearer a=\"b k1", "Bearer k1"]),
            ("Mine user=a, key=b", &["Mine user=a, key=b", "Bearer user=a, key=b"]),
            // Base64 as lenient decoders read it
            ("basic YWxpY2U6c2VjcmV0", &["Basic YWxpY2U6c2VjcmV0"]),
            ("Basic YTpiYx==", &["Basic YTpiYx==", "Basic YTpiYw=="]),
            ("Basic eA==", &["Basic eA==", "Basic eDo=", "Bearer eA=="]),
            ("Basic YTpi-", &["Basic YTpi-", "Basic YTpi"]),
            ("Basic x=1 YTpi", &["Basic x=1 YTpi", "Basic YTpi", "Bearer YTpi"]),
            ("Basic 77u/YTpi", &["Basic 77u/YTpi", "Basic YTpi"]),
            // Passwords that end at a NUL (nginx)
            ("Basic YTpiAHg=", &["Basic YTpiAHg=", "Basic YTpi"]),
            // Passwords that end at a further colon (passport-http): k1::x, k::x, :k:x, but not ::x and {"a":"b","c":1}
            ("Basic azE6Yjp4", &["Basic azE6Yjp4", "Basic azE6Yg=="]),
            ("Basic azo6eA==", &["Basic azo6eA==", "Basic azo="]),
            ("Basic OmsxOng=", &["Basic OmsxOng=", "Basic Omsx", "Basic azE6eA=="]),
            ("Basic Ojp4", &["Basic Ojp4"]),
            ("Basic eyJhIjoiYiIsImMiOjF9", &["Basic eyJhIjoiYiIsImMiOjF9"]),
            // Blanks around name and password (Tomcat): " a : b\n"
            ("Basic IGEgOiBiCg==", &["Basic IGEgOiBiCg==", "Basic IGEgOiBi", "Basic YTpi"]),
            // White space within them (APISIX): k 1:p w
            ("Basic ayAxOnAgdw==", &["Basic ayAxOnAgdw==", "Basic azE6cHc="]),
            ("Basic awsxOnB3", &["Basic awsxOnB3", "Basic azE6cHc="]),
            // A line feed in a password (Kong): k1:pw, and k1: with a line feed behind
            ("Basic azE6cHcKeA==", &["Basic azE6cHcKeA==", "Basic azE6cHc=", "Basic azE6cHd4"]),
            ("xbasicazE6cHc=", &["xbasicazE6cHc=", "Bearer xbasicazE6cHc=", "Basic azE6cHc="]),
            // Colons in front (Kong): ::k1:pw, but not one before a password alone, as for a token: ":pat"
            ("Basic OjprMTpwdw==", &["Basic OjprMTpwdw==", "Basic azE6cHc="]),
            ("Basic OnBhdA==", &["Basic OnBhdA=="]),
            // A `+` or Latin-1 beside them: :a:b+c and é w:x
            ("Basic OmE6Yitj", &["Basic OmE6Yitj", "Basic OmE6YiBj", "Basic OmE=", "Basic YTpiK2M="]),
            ("Basic 6SB3Ong=", &["Basic 6SB3Ong=", "Basic w6kgdzp4", "Basic w6l3Ong="]),
            // What isn't UTF-8 is read as Latin-1: a:\xFF, a:\xFF:x and \xFF:b, which is charged with other characters
            ("Basic YTr/", &["Basic YTr/", "Basic YTrDvw=="]),
            ("Basic YTrDvw==", &["Basic YTrDvw=="]),
            ("Basic YTr/Ong=", &["Basic YTr/Ong=", "Basic YTrDvzp4", "Basic YTrDvw=="]),
            ("Basic /zpi", &["Basic /zpi", "Basic w786Yg=="]),
            ("Basic /z!pi", &["Basic /z!pi", "Basic w786Yg==", "Bearer /z!pi"]),
            // Escapes, which OAuth's servers decode: alic%65:s, a:b+c, a:%2B+, 100%:b, and behind a colon, too: %61:b:c
            ("Basic YWxpYyU2NTpz", &["Basic YWxpYyU2NTpz", "Basic YWxpY2U6cw=="]),
            ("Basic YTpiK2M=", &["Basic YTpiK2M=", "Basic YTpiIGM="]),
            ("Basic YTolMkIr", &["Basic YTolMkIr", "Basic YTorKw==", "Basic YTorIA=="]),
            ("Basic MTAwJTpi", &["Basic MTAwJTpi"]),
            ("Basic JTYxOmI6Yw==", &["Basic JTYxOmI6Yw==", "Basic YTpiOmM=", "Basic JTYxOmI=", "Basic YTpi"]),
            // The other alphabet
            (
                "Basic YWxpY2U6Pj4-Pz8_",
                &[
                    "Basic YWxpY2U6Pj4-Pz8_",
                    "Basic YWxpY2U6Pj4+Pz8/",
                    "Basic YWxpY2U6Pj4Pw48=",
                    "Basic YWxpY2U6Pj4=",
                ],
            ),
            ("Basic YTo-Pj4-", &["Basic YTo-Pj4-", "Basic YTo+Pj4+", "Basic YToPwo8="]),
            // What isn't base64: no part of it is shared
            ("Basic alice:key", &["Basic alice:key", "Basic aljCnHpHwrI6", "Bearer alice:key"]),
            ("Basic a2V5!MTI=", &["Basic a2V5!MTI=", "Basic a2V5MTI6", "Bearer a2V5!MTI="]),
            ("Basic azE=cA==", &["Basic azE=cA==", "Basic azE6"]),
            ("Basic azE=!", &["Basic azE=!", "Basic azE6"]),
            ("Basic a=z!E=:p", &["Basic a=z!E=:p", "Basic azE6"]),
            ("Basic azEy=!", &["Basic azEy=!", "Basic azEyOg=="]),
            ("Basic azEy=abcd", &["Basic azEy=abcd", "Basic azEyOg=="]),
            ("Basic key=k1", &["Basic key=k1"]),
            ("Basic eyJhIjoiYiJ9.x.y", &["Basic eyJhIjoiYiJ9.x.y", "Bearer eyJhIjoiYiJ9.x.y"]),
            ("Basic user=\"a\", key=\"b\"", &["Basic user=\"a\", key=\"b\""]),
            // Any byte behind the scheme
            ("Basic: YTpi", &["Basic: YTpi", "Basic YTpi", "Bearer YTpi"]),
            ("BasicXYTpi", &["BasicXYTpi", "Bearer BasicXYTpi", "Basic YTpi"]),
            ("basic:YTpiYw==", &["basic:YTpiYw==", "Bearer basic:YTpiYw==", "Basic YTpiYw=="]),
            ("BasicYTpi", &["BasicYTpi", "Bearer BasicYTpi", "Basic TsKYOg==", "Basic YTpi"]),
            ("Bearer_k1", &["Bearer_k1", "Bearer Bearer_k1", "Bearer k1"]),
            ("Bearer k1\"", &["Bearer k1\"", "Bearer k1"]),
            // Rails drops a quote alone, also behind padding.
            ("Bearer eA==\",x=1", &["Bearer eA==\",x=1", "Bearer eA=="]),
            ("Token eA=\", x", &["Token eA=\", x", "Bearer eA=\", x", "Bearer eA=", "Bearer x"]),
            ("Digest a=\"\",b=\"c\"", &["Digest a=\"\",b=\"c\""]),
            ("Bearer eA==--0a, x=1", &["Bearer eA==--0a, x=1", "Bearer eA==--0a"]),
            ("Bearer eA=--0a;x=1", &["Bearer eA=--0a;x=1", "Bearer eA=--0a"]),
            ("Bearerk1", &["Bearerk1", "Bearer Bearerk1", "Bearer 1", "Bearer k1"]),
            ("bearerk1", &["bearerk1", "Bearer bearerk1", "Bearer 1", "Bearer k1"]),
            // Words that PHP's `sscanf` and tymon/jwt-auth pass over
            ("Bearerk1 r", &["Bearerk1 r", "Bearer r", "Bearer k1"]),
            ("Bearer\tx k1 y", &["Bearer x k1 y", "Bearer x", "Bearer y", "Bearer k1"]),
            (
                "x bearer0123456789abcdef,r",
                &[
                    "x bearer0123456789abcdef,r",
                    "Bearer bearer0123456789abcdef,r",
                    "Bearer bearer0123456789abcdef",
                    "Bearer 0123456789abcdef",
                ],
            ),
            (
                "xBearer0123456789abcdef",
                &["xBearer0123456789abcdef", "Bearer xBearer0123456789abcdef", "Bearer 0123456789abcdef"],
            ),
            ("ApiKey a-bearer-1", &["ApiKey a-bearer-1", "Bearer a-bearer-1"]),
            // What a scheme's name stands in is a key like others.
            ("ApiKey aToken1", &["ApiKey aToken1", "Bearer aToken1"]),
            ("xbasic\tYTpi", &["xbasic YTpi", "Basic YTpi", "Bearer YTpi"]),
            ("~BASIC  YTpi", &["~BASIC YTpi", "Basic YTpi", "Bearer YTpi"]),
            ("xBasicYTpi", &["xBasicYTpi", "Bearer xBasicYTpi", "Basic YTpi"]),
            ("Bearer x1Basic-YTpi", &["Bearer x1Basic-YTpi", "Basic w7nChMOpOg==", "Basic YTpi"]),
            (
                "Bearer x-bearer0123456789abcdef",
                &["Bearer x-bearer0123456789abcdef", "Bearer 0123456789abcdef"],
            ),
            ("BasicAuth a-b_c", &["BasicAuth a-b_c", "Bearer a-b_c"]),
            // A tab in quotes ends a token in Rails.
            ("Bearer \"k1\tx\"", &["Bearer \"k1\tx\"", "Bearer k1"]),
        ];
        for (sent, expected) in cases {
            assert_eq!(read(sent), *expected, "{sent}");
            assert_eq!(usual(sent.as_bytes()), expected[0].as_bytes(), "{sent}");
        }
        // Around the `=` of a parameter, white space makes words that many clients have.
        for sent in [
            "Digest username=\"a\", qop = auth",
            "Digest username = \"a\"",
            "Digest a=b, qop =auth",
            "Mine key= k1",
        ] {
            assert_eq!(credentials(sent.as_bytes()), Err(TooManyReadings), "{sent}");
        }
        // Nobody sends as many readings.
        for sent in [&b"Bearerk1,r"[..], b"x\ty k1 z", b"x Basic YTpi"] {
            assert_eq!(credentials(sent), Err(TooManyReadings));
        }
        // Decoders skip other characters, or stop at them or at one `=` or another.
        for sent in [
            "YT*pi",
            "YTpi=",
            "YTpiYw===",
            "YTpi!xxxx",
            "YTpi.x",
            "YTpi x",
            "x=1 ~YTpi",
            "\"YTpi\"",
            "YTpiYw==x",
            "Y=TpiYw==x",
            "YWIxMjo=x",
            "=YWxpY2U6c2VjcmV0MQ=x",
            "e2E6YmM=x",
            "eyJhOmJjZA==x",
            "eyJhOmJjZH0=.x.y",
        ] {
            assert_eq!(credentials(format!("Basic {sent}").as_bytes()), Err(TooManyReadings), "{sent}");
        }
        // Also with other bytes behind the scheme or around it
        for sent in [
            "BasicX YT.~!%pi",
            "Basic\tx=1 YT!pi",
            "Basic. YTpi=!",
            "Basic: YT!pi",
            "BasicXYT pi!~",
            "BasicXYTpi =!~",
            "xBasic YTpi=!",
            "xbasic\tYT.pi",
            "~BASIC  YT!pi",
            "BasicYT!pi",
            "xBasicYT!pi",
            "xBasic YT pi",
            "BasicY! T! p!i",
            "basic.\tYT!pi",
        ] {
            assert_eq!(credentials(sent.as_bytes()), Err(TooManyReadings), "{sent}");
        }
        let latin = credentials(b"bearer\xFFk1").unwrap().into_values();
        assert!(latin.iter().flatten().any(|value| **value == *b"Bearer k1"), "{latin:?}");
        assert!(read("Bearer\u{a0}k1").contains(&"Bearer k1".to_owned()));
        assert!(read("Bearer k1\u{3000}").contains(&"Bearer k1".to_owned()));
        // Whatever else they contain
        for sent in
            [&b"Bearer k1\xE2\x80\x83\xFF1"[..], b"Bearer\xE2\x80\x83k1 \xFF3", b"Bearer k1\xE3\x80\x80\xFF"]
        {
            let values = credentials(sent).unwrap().into_values();
            assert!(values.iter().flatten().any(|value| **value == *b"Bearer k1"), "{values:?}");
        }
    }
}
