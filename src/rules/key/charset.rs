//! The charset that a request states for its body, in which some servers decode its query, too (Django, and ASP.NET before Core).

use hyper::{HeaderMap, header::CONTENT_TYPE};

use super::readings::Readings;

/// Charsets in which bytes of ASCII mean the same as in UTF-8, and no others mean a character of ASCII.
const SUPERSETS_OF_ASCII: [&str; 12] = [
    "us-ascii",
    "ascii",
    "latin1",
    "koi8-r",
    "koi8-u",
    "euc-jp",
    "euc-kr",
    "gb2312",
    "gbk",
    "gb18030",
    "big5",
    "shift_jis",
];

/// Charsets of the same kind that are numbered.
const NUMBERED_SUPERSETS_OF_ASCII: [&str; 3] = ["iso-8859-", "windows-125", "cp125"];

/// Texts that aren't the name of a charset, but that clients send. Servers ignore them.
const NO_CHARSETS: [&str; 2] = ["", "binary"];

/// Returns true if servers that decode a query in the charset of the body find the same values of a parameter as those that take
/// it for UTF-8.
///
/// Other charsets write letters of ASCII in other bytes: in UTF-7, `+AGE-` is `a`. So a value has spellings without number there.
pub(super) fn is_without_effect(headers: &HeaderMap, readings: &Readings<'_>) -> bool {
    let lines = headers.get_all(CONTENT_TYPE);
    lines.into_iter().flat_map(|line| stated(line.as_bytes())).all(|charset| {
        is_one_of(charset, &["utf-8", "utf8"]) || agrees_in_ascii(charset) && readings.are_ascii()
    })
}

/// The charsets in a field, however they are quoted. What follows the word `charset` in a form that isn't understood is returned as it
/// is.
fn stated(field: &[u8]) -> impl Iterator<Item = &[u8]> {
    const WORD: &[u8] = b"charset";
    let places = (0..field.len())
        .filter(|at| field[*at..].get(..WORD.len()).is_some_and(|word| word.eq_ignore_ascii_case(WORD)));
    places.map(|at| {
        let rest = field[at + WORD.len()..].trim_ascii_start();
        let value = rest.strip_prefix(b"=").map(|value| {
            let value =
                value.split(|byte| matches!(byte, b';' | b',')).next().unwrap_or_default().trim_ascii();
            value.strip_prefix(b"\"").and_then(|value| value.strip_suffix(b"\"")).unwrap_or(value)
        });
        value.unwrap_or(rest)
    })
}

fn agrees_in_ascii(charset: &[u8]) -> bool {
    let is_numbered = |prefix: &&str| {
        let parts = charset.split_at_checked(prefix.len());
        parts.is_some_and(|(start, number)| {
            start.eq_ignore_ascii_case(prefix.as_bytes())
                && matches!(number.len(), 1 | 2)
                && number.iter().all(u8::is_ascii_digit)
        })
    };
    is_one_of(charset, &SUPERSETS_OF_ASCII)
        || is_one_of(charset, &NO_CHARSETS)
        || NUMBERED_SUPERSETS_OF_ASCII.iter().any(is_numbered)
}

fn is_one_of(charset: &[u8], names: &[&str]) -> bool {
    names.iter().any(|name| charset.eq_ignore_ascii_case(name.as_bytes()))
}

#[cfg(test)]
mod tests {
    use hyper::header::HeaderValue;

    use super::*;

    /// Returns true if a parameter with this value may be counted beside this field.
    fn is_counted(field: &str, value: &str) -> bool {
        let headers = HeaderMap::from_iter([(CONTENT_TYPE, HeaderValue::from_str(field).unwrap())]);
        is_without_effect(&headers, &Readings::one(value.as_bytes()))
    }

    #[test]
    fn charsets_that_write_ascii_in_other_bytes_are_not_counted() {
        for charset in [
            "utf-7",
            "UTF-7",
            "u7",
            "utf_16",
            "utf-32",
            "hz",
            "iso-2022-jp",
            "iso-8859-",
            "iso-8859-8-i",
            "cp1250x",
            "unicode_escape",
            "punycode",
            "cp037",
            "ibm037",
            "undefined",
            "utf-8x",
            "utf-8 utf-7",
        ] {
            for field in [
                format!("text/plain; charset={charset}"),
                format!("text/plain;CharSet =\t\"{charset}\" ; x=y"),
                format!("text/plain; charset=utf-8; charset={charset}"),
                format!("text/plain; charset*=utf-8''{charset}"),
                format!("text/plain, text/plain; charset={charset}, text/plain"),
            ] {
                assert!(!is_counted(&field, "k1"), "{field}");
            }
        }
        for field in ["x; charset: utf-8", "x; charset*0=utf-7", "x; charset='utf-8'"] {
            assert!(!is_counted(field, "k1"), "{field}");
        }
    }

    #[test]
    fn other_charsets_are_counted_as_far_as_they_agree() {
        for charset in [
            "us-ascii",
            "ISO-8859-1",
            "iso-8859-15",
            "windows-1252",
            "cp1251",
            "Shift_JIS",
            "GBK",
            "binary",
            "",
        ] {
            let field = format!("text/plain; charset={charset}");
            assert!(is_counted(&field, "k1"), "{field}");
            assert!(!is_counted(&field, "\u{e9}"), "{field}");
        }
        for field in [
            "",
            "application/json",
            "application/json; charset=utf-8",
            "text/html;charset=\"UTF-8\"",
            "text/html; charset=UTF8; x=y",
            "multipart/form-data; boundary=----x",
        ] {
            assert!(is_counted(field, "\u{e9}"), "{field}");
        }
    }

    #[test]
    fn every_line_counts() {
        let lines = ["text/plain; charset=utf-8", "text/plain; charset=utf-7"];
        let headers = lines.map(|line| (CONTENT_TYPE, HeaderValue::from_static(line))).into_iter().collect();
        assert!(!is_without_effect(&headers, &Readings::one(b"k1".as_slice())));
    }
}
