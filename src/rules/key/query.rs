//! The values that servers may read in a parameter of a query.

use std::iter;

use super::readings::{
    Decoded, Readings, TooManyReadings, compare, form_decoded, has_invalid_escape, is_shorter, letters_match,
    names_match, percent_decoded, without_blanks, without_controls,
};

/// The bytes that looking at a pair counts as, beside those of its name. Shorter names than the parameter's don't count.
const BYTES_OF_PAIR: usize = 16;

/// Reads a query parameter, without an allocation if there is one plain value.
///
/// The ordinary values are those of the WHATWG's URL standard: pairs end at `&`, and are form-decoded. Beside these
/// are read: pairs that end at `;`, names that [match loosely](super::readings::names_match), `+` as itself, nothing behind a NUL,
/// values without the space around them, or without control characters, values behind the first `=` after a bracket (qs), pairs behind
/// a further `?` (Hono, Koa), and values that aren't UTF-8 as they are and as Latin-1. So are all of these in the queries `in_path`, which
/// some servers read instead.
///
/// # Errors
/// The value, or any name, has a `%` that two hexadecimal digits don't follow: uWebSockets decodes any characters there, and Jetty some.
/// Or there are too many readings, or pairs to look for them.
pub(super) fn parameter<'r>(
    query: &'r str,
    in_path: &'r [String],
    name: &str,
) -> Result<Readings<'r>, TooManyReadings> {
    let name = name.as_bytes();
    let mut readings = Readings::default();
    let mut is_plain = !query.contains(';') && !query.contains('?');
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let (sent, value) = split(pair);
        is_plain = is_plain && split_in_qs(pair).next().is_none();
        if is_exactly(sent, name) {
            readings.add(form_decoded(value))?;
            // Among the characters outside ASCII is white space, which may be sent without escapes.
            is_plain &= !value.iter().any(|byte| matches!(byte, b'%' | b'+' | 0x80..));
        } else if has_invalid_escape(sent) {
            return Err(TooManyReadings);
        } else {
            // Behind an empty name, Netty and Spring WebFlux begin the next.
            let is_name_empty = sent.is_empty() && !value.is_empty();
            is_plain = is_plain && !is_name_empty && !may_be(&mut readings, sent, name)?;
        }
    }
    if !is_plain {
        add_unusual(&mut readings, query, name)?;
    }
    for query in in_path {
        add_unusual(&mut readings, query, name)?;
    }
    if !is_plain || !in_path.is_empty() {
        readings.add_latin()?;
    }
    Ok(readings)
}

fn add_unusual<'r>(readings: &mut Readings<'r>, query: &'r str, name: &[u8]) -> Result<(), TooManyReadings> {
    for whole in query.split('&') {
        let parts = whole.contains(';').then(|| whole.split(';')).into_iter().flatten();
        let parts = parts.chain(whole.split('?').skip(1));
        let pairs = iter::once(whole).chain(parts).map(|pair| pair.trim_start_matches('='));
        let pairs = pairs.filter(|pair| !pair.is_empty());
        let divided = pairs.flat_map(|pair| iter::once(split(pair)).chain(split_in_qs(pair)));
        for (sent, value) in divided.filter(|(sent, _)| !is_shorter(sent, name)) {
            readings.read(BYTES_OF_PAIR + sent.len())?;
            if may_be(readings, sent, name)? {
                readings.add_missing();
                add_values(readings, value)?;
            }
        }
    }
    Ok(())
}

/// Returns true if some servers read a name as that of the parameter, also without the `!` of a default value (Spring's data
/// binding), without the fields of a nested value, which begin with a dot (Rocket), without a type, which begins with a colon (Zope), or
/// without the prefixes of Next's own or of Struts.
fn may_be(readings: &mut Readings<'_>, sent: &[u8], name: &[u8]) -> Result<bool, TooManyReadings> {
    if is_shorter(sent, name) {
        return Ok(false);
    }
    if names_match(sent, name) || letters_match(sent, name) {
        return Ok(true);
    }
    let is_mark = |byte: &u8| matches!(byte, b'.' | b'!');
    let has_prefix = [&b"nxt"[..], b"top[", b"model["].iter().any(|prefix| sent.starts_with(prefix));
    // Most names have none of these.
    if !has_prefix && !sent.iter().any(|byte| is_mark(byte) || matches!(byte, b':' | b'%')) {
        return Ok(false);
    }
    let decoded = form_decoded(sent);
    let start = decoded.iter().position(|byte| !is_mark(byte)).unwrap_or(decoded.len());
    let unmarked = &decoded[start..];
    let before = |mark| unmarked.split(|byte| *byte == mark).next().unwrap_or_default();
    let of_next = decoded.strip_prefix(b"nxtP").or(decoded.strip_prefix(b"nxtI"));
    // `top.api_key`, `model['api_key']`
    let behind_struts = decoded.strip_prefix(b"top").or(decoded.strip_prefix(b"model"));
    let of_struts = behind_struts.and_then(|rest| {
        let is_around = |byte: &u8| matches!(byte, b'.' | b'[' | b']' | b'\'' | b'"');
        let start = rest.iter().position(|byte| !is_around(byte))?;
        let end = rest.iter().rposition(|byte| !is_around(byte))?;
        (start > 0).then(|| &rest[start..=end])
    });
    for part in [unmarked, before(b'.'), before(b':')].into_iter().chain(of_next).chain(of_struts) {
        if part.len() < decoded.len() && readings.compared(compare(part, name))? {
            return Ok(true);
        }
    }
    Ok(false)
}

fn add_values<'r>(readings: &mut Readings<'r>, sent: &'r [u8]) -> Result<(), TooManyReadings> {
    if has_invalid_escape(sent) {
        return Err(TooManyReadings);
    }
    readings.read_value(sent)?;
    let value = form_decoded(sent);
    readings.add(value.clone())?;
    if let Some(nul) = value.iter().position(|byte| *byte == 0) {
        readings.add(value[..nul].to_vec())?;
    }
    readings.add(trimmed(&value).to_vec())?;
    readings.add(without_controls(&value).into_owned())?;
    // Tornado puts a space in the place of each.
    let spaced = value.iter().map(|byte| if matches!(byte, 0..=8 | 0x0E..=0x1F) { b' ' } else { *byte });
    readings.add(trimmed(&spaced.collect::<Vec<_>>()).to_vec())?;
    readings.add(percent_decoded(sent))?;
    if str::from_utf8(&percent_decoded(sent)).is_err() {
        let with_spaces = sent.iter().map(|byte| if *byte == b'+' { b' ' } else { *byte });
        readings.add(with_spaces.collect::<Vec<_>>())?;
    }
    Ok(())
}

/// A value without white space around it, nor what is as invisible, as Laravel takes it.
fn trimmed(value: &[u8]) -> &[u8] {
    // Java trims all control characters, Python those from U+001C on.
    let is_blank = |c: char| c <= ' ' || c.is_whitespace() || is_invisible(c);
    match str::from_utf8(value) {
        Ok(text) => text.trim_matches(is_blank).as_bytes(),
        Err(_) => without_blanks(value),
    }
}

/// Returns true for a character that isn't white space, but that Laravel takes off a value like it
/// (`Str::INVISIBLE_CHARACTERS`).
fn is_invisible(c: char) -> bool {
    matches!(
        c,
        '\u{AD}' | '\u{34F}' | '\u{61C}' | '\u{115F}' | '\u{1160}' | '\u{17B4}' | '\u{17B5}' | '\u{180E}'
            | '\u{200B}'..='\u{200F}' | '\u{2060}'..='\u{206F}' | '\u{2800}' | '\u{3164}' | '\u{FEFF}'
            | '\u{FFA0}' | '\u{1D159}' | '\u{1D173}'..='\u{1D17A}' | '\u{E0020}'
    )
}

/// The name and the value of a pair, as they were sent.
fn split(pair: &str) -> (&[u8], &[u8]) {
    let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
    (name.as_bytes(), value.as_bytes())
}

/// Returns the names and the values of a pair as qs and its users divide them: at the first `=` behind a bracket, which an escaped one is
/// since qs 6.12.2. The division at the first `=` of all isn't among them.
fn split_in_qs(pair: &str) -> impl Iterator<Item = (&[u8], &[u8])> {
    let pair = pair.as_bytes();
    let is_plain = |end: &usize| pair[..*end].ends_with(b"]");
    let is_any =
        |end: &usize| is_plain(end) || [b"%5D", b"%5d"].iter().any(|escape| pair[..*end].ends_with(*escape));
    let mut ends = (0..pair.len()).filter(|at| pair[*at] == b'=');
    let first = ends.next();
    let any = ends.clone().find(is_any).filter(|_| !first.as_ref().is_some_and(is_any));
    let plain = ends.find(is_plain).filter(|end| !first.as_ref().is_some_and(is_plain) && any != Some(*end));
    any.into_iter().chain(plain).map(|end| (&pair[..end], &pair[end + 1..]))
}

fn is_exactly(sent: &[u8], name: &[u8]) -> bool {
    // Without an escape, a name is as long as it is decoded.
    let may_be = sent.len() == name.len() || sent.len() > name.len() && sent.contains(&b'%');
    may_be && Decoded::form(sent).eq(name.iter().copied())
}

#[cfg(test)]
mod tests {
    use std::borrow::Cow;

    use smallvec::SmallVec;

    use super::{super::readings::combinations, *};

    /// A parameter's values as text.
    fn read(query: &str) -> Option<Vec<Option<String>>> {
        let text = |value: Option<Cow<'_, [u8]>>| Some(String::from_utf8_lossy(&value?).into_owned());
        Some(parameter(query, &[], "api_key").ok()?.into_values().into_iter().map(text).collect())
    }

    /// A parameter that is borrowed without a look at all readings has no other reading.
    #[test]
    fn plain_values_have_one_reading() {
        const PARTS: [&str; 20] = [
            "api_key", "apikey", "key", "=", "&", ";", "%", "+", "k1", "[", "]", ".", "%41", "\u{ad}", "!",
            "nxtP", "?", "top.", ",", "",
        ];
        let mut borrowed = 0;
        for places in combinations::<4>(PARTS.len()) {
            let query = places.map(|place| PARTS[place]).concat();
            if let Ok(fast) = parameter(&query, &[], "api_key") {
                let fast = fast.into_values();
                borrowed += usize::from(matches!(fast[..], [Some(Cow::Borrowed(_))]));
                let mut all = parameter(&query, &[], "api_key").unwrap();
                assert_eq!(add_unusual(&mut all, &query, b"api_key"), Ok(()), "{query}");
                assert_eq!(all.into_values(), fast, "{query}");
            }
        }
        assert!(borrowed > 200, "{borrowed}");
    }

    #[test]
    fn unusual_names_are_looked_for_in_few_pairs() {
        for (query, is_read) in [
            (format!("api_key=k1&{}", "a;".repeat(20_000)), true),
            (format!("api_key=k1&{}", "api_kex;".repeat(2_000)), true),
            (format!("api_key=k1&{}", "api_kex;".repeat(2_200)), false),
            // A value with an escape has other pairs read for its name, too.
            (format!("api_key=k%201&{}", "attribute=1&".repeat(2_000)), true),
            (format!("api_key=k1&{}", "attribute=1&".repeat(20_000)), true),
            // Values, and names that begin as the parameter's, are read whole.
            (format!("api_key=k1;{}", "api_key=k1&".repeat(200)), true),
            (format!("api_key=k1;{}&", "a".repeat(1_000)).repeat(20), true),
            (format!("api_key=k1;{}&", "a".repeat(1_000)).repeat(100), false),
            (format!("api_key=k1&{};", "&;".repeat(100_000)), true),
            (format!("api_key=k1&{}", "a=1&".repeat(3_000)), true),
            (format!("api_key=k1&{}", "b=1&".repeat(10_000)), true),
        ] {
            assert_eq!(parameter(&query, &[], "api_key").is_ok(), is_read, "{}", query.len());
        }
    }

    #[test]
    fn plain_values_are_borrowed() {
        for query in ["api_key=k1", "a=%20&api_key=k1&b=100%", "api_key=AbC==&api_key=AbC=="] {
            let values = parameter(query, &[], "api_key").unwrap().into_values();
            assert!(matches!(&values[..], [Some(Cow::Borrowed(_))]), "{query}");
        }
    }

    #[test]
    fn values_that_are_not_utf_8_are_latin_1_too() {
        let values = |query| parameter(query, &[], "api_key").unwrap().into_values();
        let of = |texts: &[&[u8]]| {
            texts.iter().map(|text| Some(text.to_vec().into())).collect::<SmallVec<[_; 1]>>()
        };
        assert_eq!(values("api_key=caf%E9"), of(&[b"caf\xE9", b"caf%E9", "café".as_bytes()]));
        assert_eq!(values("api_key=caf%C3%A9"), of(&["café".as_bytes()]));
    }

    #[test]
    fn a_query_may_begin_in_the_path() {
        for (query, in_path, expected) in [
            ("api_key=k2", "api_key=k1", &[Some("k2"), Some("k1")][..]),
            ("", "api_key=k1", &[None, Some("k1")]),
            ("api_key=k1", "api_key=k1?api_key=k1", &[Some("k1"), Some("k1?api_key=k1")]),
            ("api_key=k1", "zoom=3/tile?api_key=k1", &[Some("k1")]),
            ("", "x", &[None]),
        ] {
            let in_path = [in_path.to_owned()];
            let values = parameter(query, &in_path, "api_key").unwrap().into_values();
            let values: Vec<_> = values.iter().map(|value| value.as_deref().map(str::from_utf8)).collect();
            assert_eq!(values, expected.iter().map(|value| value.map(Ok)).collect::<Vec<_>>(), "{in_path:?}");
        }
    }

    #[test]
    fn nested_names_may_have_text_between_brackets() {
        for (query, name) in [
            ("[user]z1=[id]=k1", "user[id]"),
            ("[user]%3D=x[id]=k1", "user[id]"),
            ("[user%5Da=[id]]=k1", "user[id]"),
            ("?[user]x[id]=k1", "user[id]"),
            ("[user]z==[id]=k1", "user.id"),
            ("a[b]x1=[c]=k1", "a[b][c]"),
            ("a[b].x1[c]=k1", "a[b][c]"),
            ("user[__proto__][id]=k1", "user[id]"),
            ("user.id.x=k1", "user.id"),
            ("!user.id=k1", "user.id"),
        ] {
            let values = parameter(query, &[], name).unwrap().into_values();
            assert!(values.iter().any(|value| value.as_deref() == Some(b"k1")), "{query}: {values:?}");
        }
    }

    #[test]
    fn each_spelling_has_the_values_that_servers_read() {
        let cases: &[(&str, &[Option<&str>])] = &[
            // One value, whatever it is.
            ("api_key=k1", &[Some("k1")]),
            ("a=1&api%5Fkey=%6b1", &[Some("k1")]),
            ("api_key", &[None]),
            ("api_key=K1", &[Some("K1")]),
            ("api_key=a%2Bb%2Fc%3D%3D", &[Some("a+b/c==")]),
            ("api_key=100%25", &[Some("100%")]),
            ("api_key=%2541", &[Some("%41")]),
            ("api_key=k1%3B1", &[Some("k1;1")]),
            ("x_api_key=k1&api_keys=k1", &[None]),
            ("", &[None]),
            // Separators
            ("api_key=k1;1", &[Some("k1;1"), Some("k1")]),
            ("a=1;api_key=k1", &[None, Some("k1")]),
            ("api_key=r;api_key=k1", &[Some("r;api_key=k1"), Some("r"), Some("k1")]),
            // Names
            ("api_key=r&api.key=k1", &[Some("r"), Some("k1")]),
            ("api.key=k1&api_key=r", &[Some("r"), Some("k1")]),
            ("%20api_key=k1", &[None, Some("k1")]),
            ("+api_key=k1", &[None, Some("k1")]),
            ("api_key%00=k1", &[None, Some("k1")]),
            ("api_key%00x=k1", &[None, Some("k1")]),
            ("api_key[]=k1", &[None, Some("k1")]),
            ("api_key%5B0%5D=k1", &[None, Some("k1")]),
            ("[api_key]=k1", &[None, Some("k1")]),
            ("ap[]i_key=k1&api_key=r", &[Some("r"), Some("k1")]),
            ("a%5B%5Dpi[]_key=k1", &[None, Some("k1")]),
            ("?api_key=k1", &[None, Some("k1")]),
            ("API_KEY=k1", &[None, Some("k1")]),
            ("=api_key=k1", &[None, Some("k1")]),
            ("a=b&==api_key=k1", &[None, Some("k1")]),
            ("[api_key]z=a]=k1", &[None, Some("a]=k1"), Some("k1")]),
            ("[api_key%5D=x]=k1", &[None, Some("x]=k1"), Some("k1")]),
            ("a=1?api_key=k1&api_key=r", &[Some("r"), Some("k1")]),
            ("api_key=k1?x", &[Some("k1?x")]),
            ("api_key=r&api_key%5B%5d=%5D=k1", &[Some("r"), Some("]=k1")]),
            ("api_key=r&[]x=[api_key]=k1", &[Some("r")]),
            ("api_key=r&api_key[]x=%5D=k1", &[Some("r"), Some("]=k1"), Some("k1")]),
            ("=a", &[None]),
            // Fields of nested values (Rocket), and default values (Spring)
            (".api_key=k1&api_key=r", &[Some("r"), Some("k1")]),
            ("api_key.x=k1&api_key=r", &[Some("r"), Some("k1")]),
            ("%2Eapi_key%2ex.y=k1", &[None, Some("k1")]),
            ("!api_key=k1", &[None, Some("k1")]),
            ("api_key=r&nxtPapi_key=k1", &[Some("r"), Some("k1")]),
            ("api_key=r&top.api_key=k1", &[Some("r"), Some("k1")]),
            ("api_key=r&api_key:utf8:string=k1", &[Some("r"), Some("k1")]),
            ("api_key=r&api_key%3Alist=k1", &[Some("r"), Some("k1")]),
            ("top%5B'api_key'%5D=k1", &[None, Some("k1")]),
            ("api_key=r&model.api_key=k1", &[Some("r"), Some("k1")]),
            ("topapi_key=k1&top_api_key=k1", &[None]),
            ("api_key=r&apiKey=k1", &[Some("r"), Some("k1")]),
            ("api_%E2%84%AAey=k1", &[None, Some("k1")]),
            ("ap%C4%B0_key=k1&ap\u{131}_key=r", &[None, Some("k1"), Some("r")]),
            ("a.api_key=k1&.a=b", &[None]),
            // Values
            ("api_key=a+b", &[Some("a b"), Some("a+b")]),
            ("api_key=a%20b", &[Some("a b")]),
            ("api_key=%20k1", &[Some(" k1"), Some("k1")]),
            ("api_key=k1%E2%80%8B", &[Some("k1\u{200B}"), Some("k1")]),
            ("api_key=k1%C2%AD", &[Some("k1\u{AD}"), Some("k1")]),
            (
                "api_key=%CD%8F+k1%E2%A0%80",
                &[Some("\u{34F} k1\u{2800}"), Some("k1"), Some("\u{34F}+k1\u{2800}")],
            ),
            ("api_key=%F0%9D%85%B3k1%F3%A0%80%A0", &[Some("\u{1D173}k1\u{E0020}"), Some("k1")]),
            ("api_key=\u{3000}k1\u{A0}", &[Some("\u{3000}k1\u{A0}"), Some("k1")]),
            ("api_key=%1C%01k1%1F", &[Some("\u{1c}\u{1}k1\u{1f}"), Some("k1")]),
            ("api_key=k1%00x", &[Some("k1\0x"), Some("k1"), Some("k1x"), Some("k1 x")]),
            ("api_key=k%011%7F", &[Some("k\u{1}1\u{7f}"), Some("k1"), Some("k 1\u{7f}")]),
            ("api_key=k1%0D%0A", &[Some("k1\r\n"), Some("k1")]),
            ("api_key=r&api_key=k1", &[Some("r"), Some("k1")]),
        ];
        for (query, expected) in cases {
            let expected = expected.iter().map(|value| value.map(str::to_owned)).collect();
            assert_eq!(read(query), Some(expected), "{query}");
        }
        let four = "api_key=1&api_key=2&api_key=3&api_key=4";
        assert_eq!(read(four).map(|values| values.len()), Some(4));
        assert_eq!(read(&format!("{four}&api_key=5")), None);
        for query in ["api_key=a%41%", "api_key=%mb1", "a=b&api%6@key=k1", "b;api_key=%6;1", "%=1"] {
            assert_eq!(read(query), None, "{query}");
        }
    }
}
