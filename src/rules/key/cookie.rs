//! The values that servers may read in a cookie.

use std::iter;

use tollgate_limiter::key::credentials::is_visible_without;

use super::readings::{
    Readings, TooManyReadings, compare, form_decoded, from_latin, names_match, percent_decoded, unquoted,
    without_controls, without_wide_spaces,
};

/// The bytes that looking at a place where a name may begin counts as, so that there are at most 8,192. JSON of 8 KB has some 3,000.
const BYTES_OF_PLACE: usize = 8;

/// Reads a cookie from the line of `Cookie`, without an allocation if there is one plain value.
///
/// The ordinary values are those of RFC 6265: pairs end at `;`, without white space around name and value nor a pair
/// of quotes. Beside these are read: names that [match loosely](compare_name), pairs that end at white space and
/// quotes with escapes (Python), a leading quote alone (npm's cookie), percent-decoded values (PHP, Rack, Express), and
/// JSON (Express).
pub(super) fn cookie<'r>(line: &'r [u8], name: &str) -> Result<Readings<'r>, TooManyReadings> {
    let name = name.as_bytes();
    let mut readings = Readings::default();
    let is_by_rfc_2109 = begins_by_rfc_2109(line.trim_ascii());
    let mut is_plain = !is_by_rfc_2109;
    for pair in line.split(|byte| *byte == b';').map(<[u8]>::trim_ascii) {
        let Some(split) = pair.iter().position(|byte| *byte == b'=') else { continue };
        let (sent, value) = (pair[..split].trim_ascii_end(), &pair[split + 1..]);
        if sent == name {
            readings.add(unquoted(value.trim_ascii_start()))?;
            is_plain = is_plain
                && sent.len() == split
                && is_visible_without(value, *b"\"%+,\\[]")
                && !value.starts_with(b"j:");
        } else {
            let is_token = || last_token(sent) == sent && split > 0;
            is_plain = is_plain && !compare_name(sent, name).0 && !has_separator(pair) && is_token();
        }
    }
    if !is_plain {
        add_unusual(&mut readings, line, name)?;
        if is_by_rfc_2109 {
            add_between_commas(&mut readings, line, name)?;
        }
        readings.add_latin()?;
    }
    Ok(readings)
}

/// [Compares](compare) the name of a cookie as some servers read it: in quotes (Werkzeug 1), with quotes behind it (Jetty's
/// `RFC6265_LEGACY`), and with a prefix of RFC 6265bis, section 4.1.3, since Sanic looks for such cookies first, also behind white space.
fn compare_name(sent: &[u8], name: &[u8]) -> (bool, usize) {
    let is_behind = |byte: &u8| *byte == b'"' || byte.is_ascii_whitespace();
    let end = sent.iter().rposition(|byte| !is_behind(byte)).map_or(0, |last| last + 1);
    let unspaced = behind_spaces(&sent[..end]);
    // Each place has counted as some bytes already.
    let passed_over = (sent.len() - unspaced.len()).saturating_sub(BYTES_OF_PLACE);
    let sent = sent[..end].strip_prefix(b"\"").unwrap_or(&sent[..end]);
    let (matches, read) = compare(sent, name);
    let read = read + passed_over;
    match unspaced.strip_prefix(b"__Host-").or(unspaced.strip_prefix(b"__Secure-")) {
        Some(sent) if !matches => {
            let (matches, more) = compare(sent, name);
            (matches, read + more)
        }
        _ => (matches, read),
    }
}

/// Returns true if a text contains a byte behind which some servers begin another pair: white space, one that isn't
/// allowed in a value (RFC 6265, section 4.1.1), or a bracket (WebOb). It looks at all bytes, which is vectorized.
fn has_separator(text: &[u8]) -> bool {
    text.iter().fold(false, |has, byte| has | (*byte <= b' ') | ends_value(byte))
}

fn ends_value(byte: &u8) -> bool {
    matches!(byte, b'"' | b',' | b'[' | b'\\' | b']' | 0x7F..)
}

/// Returns true for the bytes that end a value and mean nothing before a name. A bracket may stand for a dot, and others begin a letter that
/// may be [taken for another one](compare): U+0130, U+0131, U+017F and U+212A.
fn means_nothing(byte: &u8) -> bool {
    matches!(byte, b',' | 0x80..) && !matches!(byte, 0xC4 | 0xC5 | 0xE2)
}

/// Returns the name behind the last character that can't be part of one (RFC 9110, section 5.6.2). WebOb and ASP.NET Core
/// begin a pair there.
fn last_token(name: &[u8]) -> &[u8] {
    let is_allowed = |byte: &u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(byte);
    let start = name.iter().rposition(|byte| !is_allowed(byte)).map_or(0, |last| last + 1);
    &name[start..]
}

/// Returns true if a line begins with `$Version`, as no browser writes it.
fn begins_by_rfc_2109(line: &[u8]) -> bool {
    let mark = b"$Version";
    line.get(..mark.len()).is_some_and(|start| start.eq_ignore_ascii_case(mark))
}

/// Adds the values of pairs that end at a comma, too, as they do by RFC 2109 (Tomcat up to 9).
fn add_between_commas<'r>(
    readings: &mut Readings<'r>,
    line: &'r [u8],
    name: &[u8],
) -> Result<(), TooManyReadings> {
    for pair in line.split(|byte| matches!(byte, b';' | b',')).map(<[u8]>::trim_ascii) {
        readings.read(BYTES_OF_PLACE)?;
        if let Some(split) = pair.iter().position(|byte| *byte == b'=')
            && readings.compared(compare_name(&pair[..split], name))?
        {
            add_values(readings, &pair[split + 1..])?;
        }
    }
    Ok(())
}

fn add_unusual<'r>(readings: &mut Readings<'r>, line: &'r [u8], name: &[u8]) -> Result<(), TooManyReadings> {
    let mut rest = line;
    while !rest.is_empty() {
        let pair = first_pair(rest);
        if let Some(last) = pair.iter().rposition(|byte| *byte == b'=') {
            add_of_pair(readings, rest, last, name)?;
        }
        rest = rest.get(pair.len() + 1..).unwrap_or_default();
    }
    Ok(())
}

/// Adds what may be read in the first pair of a text, whose `last` equals sign is at this place. A value in quotes may reach beyond the
/// pair.
fn add_of_pair<'r>(
    readings: &mut Readings<'r>,
    text: &'r [u8],
    last: usize,
    name: &[u8],
) -> Result<(), TooManyReadings> {
    let ends_name = |byte: &u8| *byte == b'=' || byte.is_ascii_whitespace();
    let ends = |byte: &u8| byte.is_ascii_whitespace() || ends_value(byte);
    let mut rest = text.trim_ascii_start();
    let mut spaced = behind_spaced(rest, name);
    // `behind` is the text after the name, `unspaced` that without its leading spaces, and `token` the name's last one. They stay
    // valid while `rest` begins within the name, so each byte is read once however many quotes stand before it.
    let (mut behind, mut unspaced, mut token) = (rest, rest, rest);
    while rest.len() >= text.len() - last {
        if rest.len() <= behind.len() {
            let end = rest.iter().position(ends_name).unwrap_or(rest.len());
            behind = &rest[end..];
            token = last_token(&rest[..end]);
            if behind.len() <= unspaced.len() {
                unspaced = behind_spaces(behind);
            }
        }
        let mut named = unspaced.strip_prefix(b"=");
        if named.is_some() {
            readings.read(BYTES_OF_PLACE)?;
            let sent = &rest[..rest.len() - behind.len()];
            let stands_for = readings.compared(compare_name(sent, name))?
                || token.len() < sent.len() && readings.compared(compare_name(token, name))?;
            named = named.filter(|_| stands_for);
        }
        for value in [named, spaced.take()].into_iter().flatten() {
            readings.add_missing();
            add_values(readings, value)?;
        }
        // ASP.NET Core looks for a name behind the `=` of a name that isn't a token.
        rest = if token.is_empty() && behind.starts_with(b"=") {
            &behind[1..]
        } else {
            // Only up to the last equals sign, as the line has many pairs.
            let within = &rest[..=rest.len() - (text.len() - last)];
            let start = within.iter().position(|byte| !means_nothing(byte)).unwrap_or(within.len()).max(1);
            let end = within[start..].iter().position(ends);
            end.map_or_else(Default::default, |end| &rest[start + end..])
        };
        rest = rest.trim_ascii_start();
    }
    Ok(())
}

/// Returns the text behind a name with spaces, which PHP takes for `_`, if that is how a pair begins.
fn behind_spaced<'r>(pair: &'r [u8], name: &[u8]) -> Option<&'r [u8]> {
    let end = first_pair(pair).iter().position(|byte| *byte == b'=')?;
    let sent = &pair[..end];
    if !sent.contains(&b' ') || !names_match(sent, name) {
        return None;
    }
    let decoded = form_decoded(sent);
    let after = decoded.trim_ascii_start().get(name.len());
    after.is_none_or(|byte| *byte == b'[').then(|| &pair[end + 1..])
}

/// Returns the text after leading white space, as which all bytes outside ASCII count, and quotes.
fn behind_spaces(text: &[u8]) -> &[u8] {
    let is_space = |byte: &u8| !byte.is_ascii() || byte.is_ascii_whitespace() || *byte == b'"';
    let start = text.iter().position(|byte| !is_space(byte));
    &text[start.unwrap_or(text.len())..]
}

/// Adds what may be read in a line behind the `=` of a cookie.
fn add_values<'r>(readings: &mut Readings<'r>, rest: &'r [u8]) -> Result<(), TooManyReadings> {
    let value = first_pair(rest).trim_ascii();
    readings.read_value(value)?;
    let unquoted = unquoted(value);
    for text in [unquoted, value] {
        readings.add(text)?;
        let percent = percent_decoded(text);
        let form = text.contains(&b'+').then(|| form_decoded(text));
        // Rust's cookie takes off quotes that are percent-encoded, too.
        let in_quotes = self::unquoted(&percent);
        for decoded in iter::once(&percent).chain(&form) {
            readings.add_copy(&without_controls(decoded))?;
            readings.add_copy(decoded)?;
        }
        readings.add_copy(in_quotes)?;
    }
    let rest = rest.trim_ascii_start();
    if rest.starts_with(b"\"") {
        add_quoted(readings, rest, value)?;
    } else {
        readings.add(first_word(value))?;
        readings.add(percent_decoded(first_word(value)))?;
        readings.add(before_quote(value))?;
    }
    for trimmed in without_wide_spaces(value).into_iter().flatten().filter(|trimmed| *trimmed != value) {
        add_values(readings, trimmed)?;
    }
    for text in [percent_decoded(unquoted), unquoted.into()] {
        if let Some(value) = text.strip_prefix(b"j:").and_then(json) {
            readings.add(value)?;
        }
    }
    Ok(())
}

/// Adds what may be read in a value behind a quote: of `rest`, which begins with it, or of the whole `value`, up to the `;`.
fn add_quoted<'r>(
    readings: &mut Readings<'r>,
    rest: &'r [u8],
    value: &'r [u8],
) -> Result<(), TooManyReadings> {
    let unquoted = unquoted(value);
    // Some servers drop the last byte, whatever it is.
    for form in [value, first_pair(rest)] {
        let inner = &form[1..];
        let inner = &inner[..inner.len().saturating_sub(1)];
        readings.add(inner)?;
        readings.add(percent_decoded(inner))?;
    }
    // In Python, a quoted string ends at its first quote that isn't escaped, or with the value.
    for inner in [quoted(rest), unquoted].into_iter().filter(|inner| inner.contains(&b'\\')) {
        let unescaped = unescaped(inner);
        // Litestar and web.py decode what Python has unquoted.
        readings.add(percent_decoded(&unescaped).into_owned())?;
        // Django and aiohttp take a byte that is escaped for a letter of Latin-1, and all else for UTF-8.
        readings.add(unescaped_as(inner, |byte, text| text.extend(from_latin(&[byte]))))?;
        readings.add(unescaped)?;
    }
    readings.add(quoted(rest))?;
    if unquoted == value {
        // Tomcat 10 takes off a quote that has no other.
        readings.add(&value[1..])?;
    }
    Ok(())
}

/// Returns a text up to the `;` that ends its first pair.
fn first_pair(text: &[u8]) -> &[u8] {
    text.split(|byte| *byte == b';').next().unwrap_or_default()
}

/// The value up to a space. One that may be JSON is left alone, since many such values have a first word in common.
fn first_word(value: &[u8]) -> &[u8] {
    let word = value.split(u8::is_ascii_whitespace).next().unwrap_or_default();
    if is_visible_without(word, *b"\"{}") { word } else { value }
}

/// The value up to a quote, or a backslash that escapes nothing, as WebOb reads it. Text that may be JSON is left alone, as
/// for its first word.
fn before_quote(value: &[u8]) -> Vec<u8> {
    let mut at = 0;
    while at < value.len() {
        match value[at] {
            b'"' => break,
            b'\\' if at + 1 == value.len() => break,
            b'\\' => at += 2,
            _ => at += 1,
        }
    }
    let read = &value[..at.min(value.len())];
    let may_be_json = value.starts_with(b"j:") || !is_visible_without(read, *b"[]{}");
    unescaped(if may_be_json { value } else { read })
}

/// Returns the text between the quote at the beginning and the next one that isn't escaped, or else the text as it is.
fn quoted(text: &[u8]) -> &[u8] {
    let mut is_escaped = false;
    let ends = |byte: &u8| {
        let ends = *byte == b'"' && !is_escaped;
        is_escaped = *byte == b'\\' && !is_escaped;
        ends
    };
    match text.strip_prefix(b"\"").and_then(|inner| Some((inner, inner.iter().position(ends)?))) {
        Some((inner, end)) => &inner[..end],
        None => first_pair(text).trim_ascii_end(),
    }
}

/// A text in which `\ooo` is an octal escape of a byte, and `\` quotes the next byte.
fn unescaped(text: &[u8]) -> Vec<u8> {
    unescaped_as(text, |byte, text| text.push(byte))
}

/// A text with what `add` adds for each byte that has an octal escape.
fn unescaped_as(text: &[u8], add: impl Fn(u8, &mut Vec<u8>)) -> Vec<u8> {
    let (mut rest, mut unescaped) = (text, Vec::with_capacity(text.len()));
    loop {
        rest = match rest {
            &[b'\\', high @ b'0'..=b'3', middle @ b'0'..=b'7', low @ b'0'..=b'7', ref rest @ ..] => {
                add((high - b'0') << 6 | (middle - b'0') << 3 | (low - b'0'), &mut unescaped);
                rest
            }
            [b'\\', byte, rest @ ..] | [byte, rest @ ..] => {
                unescaped.push(*byte);
                rest
            }
            [] => return unescaped,
        }
    }
}

/// The text that a JSON value becomes where a program takes it for a string; none of an object.
fn json(text: &[u8]) -> Option<Vec<u8>> {
    let mut value = serde_json::from_slice::<serde_json::Value>(text).ok()?;
    loop {
        value = match value {
            serde_json::Value::String(text) => return Some(text.into_bytes()),
            serde_json::Value::Number(number) => return Some(number.as_f64()?.to_string().into_bytes()),
            serde_json::Value::Bool(truth) => return Some(truth.to_string().into_bytes()),
            serde_json::Value::Array(mut members) if members.len() == 1 => members.pop()?,
            _ => return None,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::borrow::Cow;

    use super::{super::readings::combinations, *};

    /// A cookie's values as text.
    fn read(line: &str) -> Option<Vec<Option<String>>> {
        let text = |value: Option<Cow<'_, [u8]>>| Some(String::from_utf8_lossy(&value?).into_owned());
        let readings = cookie(line.as_bytes(), "sid").ok()?;
        Some(readings.into_values().into_iter().map(text).collect())
    }

    /// A cookie that is borrowed without a look at all readings has no other reading.
    #[test]
    fn plain_values_have_one_reading() {
        const PARTS: [&str; 20] = [
            "sid", "=", ";", " ", "k1", "x", "\"", "\\", "%41", "+", ",", "[", "]", "/", "{", "j:",
            "__Host-", "\u{a0}", "@", "",
        ];
        let mut borrowed = 0;
        for places in combinations::<4>(PARTS.len()) {
            // With a value, and with whatever else.
            let begin = if places[0] % 2 == 0 { "sid=" } else { "" };
            let line = begin.to_owned() + &places.map(|place| PARTS[place]).concat();
            if let Ok(fast) = cookie(line.as_bytes(), "sid") {
                let fast = fast.into_values();
                borrowed += usize::from(matches!(fast[..], [Some(Cow::Borrowed(_))]));
                let mut all = cookie(line.as_bytes(), "sid").unwrap();
                assert_eq!(add_unusual(&mut all, line.as_bytes(), b"sid"), Ok(()), "{line}");
                assert_eq!(all.into_values(), fast, "{line}");
            }
        }
        assert!(borrowed > 1_000, "{borrowed}");
    }

    #[test]
    fn plain_values_are_borrowed() {
        for line in ["sid=k1", "a=%20; sid=AbC/c==; b=\"x\"", "a=b; sid=k1; sid=k1"] {
            let values = cookie(line.as_bytes(), "sid").unwrap().into_values();
            assert!(matches!(&values[..], [Some(Cow::Borrowed(_))]), "{line}");
        }
    }

    /// Quadratic time would be minutes.
    #[test]
    fn a_long_line_is_read_in_linear_time() {
        for unit in [
            "\u{a0} ", "\u{a0}", "\"", "\"a", "a ", "%61\"", "\"%", "\"[", "[", "[\"", "sid\\", "=", "@=",
            "=\u{a0}", "a=;", "a=b;", "a;",
        ] {
            for (start, end) in [("", ""), ("", "="), ("", "x=1"), ("a=\",\";", ""), ("a", "\"=")] {
                let line = start.to_owned() + &unit.repeat(1 << 18) + end;
                assert!(read(&line).is_none_or(|values| values == [None]), "{unit}");
            }
        }
    }

    #[test]
    fn names_are_looked_for_at_few_places() {
        let line = |unit: &str, count: usize| format!("sid=k1; a=\"b\"; {}", unit.repeat(count));
        for (unit, count, is_read) in
            [("x=,", 8_100, true), ("x=,", 8_300, false), ("s=,", 2_000, true), ("s=,", 2_600, false)]
        {
            assert_eq!(read(&line(unit, count)).is_some(), is_read, "{unit}");
        }
        // Without anything unusual, they are only compared with the name.
        for name in ["x", "s"] {
            assert!(read(&format!("sid=k1; {}", format!("{name}=1; ").repeat(6_000))).is_some());
        }
    }

    /// A cookie of 8 KB as browsers and js-cookie send it.
    #[test]
    fn json_in_another_cookie_is_read() {
        for member in [
            "\"some\":\"value\",",
            "\"sid\":\"sid\",",
            "\"content\":\"category\",",
            "%22some%22:[%22product-4711%22]%2C",
            "\"Größe\":\"für\",",
            "\"размер\":\"большой\",",
            "sku-1,",
        ] {
            let members = member.repeat((8 << 10) / member.len());
            for (name, end) in ["sid", "connect.sid", ".AspNetCore.Session", "_sid", "__Host-sid"]
                .into_iter()
                .flat_map(|name| [(name, ""), (name, "==")])
            {
                let line = format!("{name}=k1; a={{{members}{end}}}");
                let values = cookie(line.as_bytes(), name).map(Readings::into_values);
                assert_eq!(values, Ok([Some(b"k1"[..].into())].into_iter().collect()), "{name} {member}");
            }
        }
    }

    /// Django writes `"jos\351"` for `josé`, and Flask `"jos\303\251"`.
    #[test]
    fn letters_outside_ascii_have_the_spellings_of_both_charsets() {
        let is_read = |line: &[u8], value: &str| {
            cookie(line, "sid").unwrap().into_values().contains(&Some(value.as_bytes().into()))
        };
        for line in [
            &b"sid=\"jos\\351\""[..],
            b"sid=\"jos\\303\\251\"",
            b"sid=jos\xE9",
            b"sid=jos\xC3\xA9",
            b"sid=jos%E9",
        ] {
            assert!(is_read(line, "josé"), "{}", line.escape_ascii());
        }
        assert!(is_read(b"sid=\"jos\\303\\251\"", "josÃ©"));
        assert!(!is_read("sid=josé".as_bytes(), "josÃ©"));
        // No server writes both.
        assert!(cookie("sid=\"é\\351\"".as_bytes(), "sid").is_err());
        // As Django writes a name with a space.
        assert!(is_read(b"sid=\"jos\\351 l\\363pez\"", "josé lópez"));
    }

    #[test]
    fn spaces_in_a_name_stand_for_what_php_takes_them_for() {
        for (line, expected) in [
            ("a b=k1; a_b=r", vec![Some("r"), Some("k1")]),
            ("x=1;  a b=k1", vec![None, Some("k1")]),
            ("%20a b=k1", vec![None, Some("k1")]),
            ("a b =k1; a b c=k1; a_b d=k1", vec![None]),
            ("a+b=k1; a.b=r", vec![None, Some("k1"), Some("r")]),
            ("x a b=k1; a\tb=k1; a  b=k1", vec![None]),
        ] {
            let readings = cookie(line.as_bytes(), "a_b").unwrap().into_values();
            let expected: Vec<_> = expected.iter().map(|value| value.map(str::as_bytes)).collect();
            assert_eq!(readings.iter().map(Option::as_deref).collect::<Vec<_>>(), expected, "{line}");
        }
    }

    #[test]
    fn each_spelling_has_the_values_that_servers_read() {
        let cases: &[(&str, &[Option<&str>])] = &[
            // One value, whatever it is.
            ("sid=k1", &[Some("k1")]),
            ("a=1; sid = k1 ;b=2", &[Some("k1")]),
            ("sid=K1", &[Some("K1")]),
            // Commas end pairs by RFC 2109 only.
            ("$Version=1; sid=k1,x=2", &[Some("k1,x=2"), Some("k1")]),
            ("$version=1, sid=k1", &[None, Some("k1")]),
            // Brackets within a name (Fiber)
            ("s[]id=k1; sid=r", &[Some("r"), Some("k1")]),
            ("sid=a/c==", &[Some("a/c==")]),
            ("sid=k,1", &[Some("k,1")]),
            ("xsid=k1; sids=k1; sid", &[None]),
            ("", &[None]),
            // Decoded once
            ("sid=%6b1", &[Some("%6b1"), Some("k1")]),
            ("sid=k%011", &[Some("k%011"), Some("k1"), Some("k\u{1}1")]),
            ("sid=%256b1", &[Some("%256b1"), Some("%6b1")]),
            ("sid=a+b", &[Some("a+b"), Some("a b")]),
            ("sid=a%2Bb", &[Some("a%2Bb"), Some("a+b")]),
            ("sid=a+%2B", &[Some("a+%2B"), Some("a++"), Some("a +")]),
            ("sid=100%", &[Some("100%")]),
            ("sid=%22k1%22", &[Some("%22k1%22"), Some("\"k1\""), Some("k1")]),
            // Quotes
            ("sid=\"k1\"", &[Some("k1"), Some("\"k1\"")]),
            ("sid=\"\\1531\"", &[Some("\\1531"), Some("\"\\1531\""), Some("k1")]),
            ("sid=\"\\k1\"", &[Some("\\k1"), Some("\"\\k1\""), Some("k1")]),
            ("sid=\"k1;x\"", &[Some("\"k1"), Some("k"), Some("k1;x"), Some("k1")]),
            ("sid=\"k1x", &[Some("\"k1x"), Some("k1"), Some("k1x")]),
            ("sid=\"k1 ;a=b", &[Some("\"k1"), Some("k"), Some("k1")]),
            // Names
            ("s%69d=k1; sid=r", &[Some("r"), Some("k1")]),
            ("s%69d=k1", &[None, Some("k1")]),
            ("s\u{130}d=k1; s%C4%B1d=r", &[None, Some("k1"), Some("r")]),
            ("SID=k1", &[None, Some("k1")]),
            ("sid[]=k1", &[None, Some("k1")]),
            (",sid=k1", &[None, Some("k1")]),
            ("a=b;, sid=k1", &[None, Some("k1")]),
            ("sid \u{a0}=k1", &[None, Some("k1")]),
            ("sid=r; __Host-sid=k1", &[Some("r"), Some("k1")]),
            ("\"sid\"=k1", &[None, Some("k1")]),
            ("sid\"=k1", &[None, Some("k1")]),
            ("a=b; sid\" \"\"=k1", &[None, Some("k1")]),
            ("\u{a0}__Host-sid\u{3000}=k1", &[None, Some("k1")]),
            ("__Secure-sid=k1", &[None, Some("k1")]),
            // Pairs
            ("a=1 sid=k1", &[None, Some("k1")]),
            ("sid=k1 x", &[Some("k1 x"), Some("k1")]),
            // As browsers send those of several paths, in whatever order
            ("sid=k1; sid=r", &[Some("k1"), Some("r")]),
            ("sid=s%3Aa; sid=s%3Ab", &[Some("s%3Aa"), Some("s%3Ab"), Some("s:a"), Some("s:b")]),
            // WebOb
            ("sid=k1\"x", &[Some("k1\"x"), Some("k1")]),
            ("sid=k1\\", &[Some("k1\\"), Some("k1")]),
            ("\"sid=k1", &[None, Some("k1")]),
            ("\\sid=k1", &[None, Some("k1")]),
            ("a=\"x\"sid=k1", &[None, Some("k1")]),
            ("a=b[sid=k1", &[None, Some("k1")]),
            ("sid=r]sid=k1", &[Some("r]sid=k1"), Some("k1")]),
            ("sid={\"a\":1}", &[Some("{\"a\":1}")]),
            // ASP.NET Core
            ("sid=r; /sid=k1", &[Some("r"), Some("k1")]),
            ("sid=r; a@(sid=k1", &[Some("r"), Some("k1")]),
            ("sid= r(sid=k1", &[Some("r(sid=k1"), Some("k1")]),
            ("sid =r(sid=k1", &[Some("r(sid=k1"), Some("k1")]),
            ("a=b\u{e9}sid=k1", &[None, Some("k1")]),
            ("sid=r; =sid=k1", &[Some("r"), Some("k1")]),
            ("sid=r; a@=b@sid=k1", &[Some("r"), Some("k1")]),
            ("==/=sid=k1", &[None, Some("k1")]),
            ("a=b,sid=k1", &[None, Some("k1")]),
            // Python's quotes, then percent-decoded (Litestar, web.py)
            ("sid=\"\\0456b1\"", &[Some("\\0456b1"), Some("\"\\0456b1\""), Some("k1"), Some("%6b1")]),
            ("sid=%6b1 x", &[Some("%6b1 x"), Some("k1 x"), Some("%6b1"), Some("k1")]),
            // JSON, in Express
            ("sid=j:\"k1\"", &[Some("j:\"k1\""), Some("k1")]),
            ("sid=j:[1e2]", &[Some("j:[1e2]"), Some("100")]),
            ("sid=j:{}", &[Some("j:{}")]),
            // Spaces that aren't ASCII
            ("sid=\u{a0}k1", &[Some("\u{a0}k1"), Some("k1")]),
        ];
        for (line, expected) in cases {
            let expected: Vec<_> = expected.iter().map(|value| value.map(str::to_owned)).collect();
            assert_eq!(read(line), Some(expected), "{line}");
        }
        assert_eq!(read("sid=1; sid=2; sid=3; sid=4").map(|values| values.len()), Some(4));
        assert_eq!(read("sid=1; sid=2; sid=3; sid=4; sid=5"), None);
    }
}
