//! The charset that a request states for its body or its response, in which some servers decode its query, too: Django and Javalin
//! that of the body, Micronaut either.

use hyper::{
    HeaderMap,
    header::{ACCEPT_CHARSET, CONTENT_TYPE, HeaderValue},
};

use super::readings::Readings;

const UTF_8: [&str; 2] = ["utf8", "utf8mb4"];

/// Charsets in which bytes of ASCII mean the same as in UTF-8, and no others mean a character of ASCII, in Java and Python (so
/// not cp932), without hyphens. Behind them are what says nothing, and a text that clients send and servers ignore.
const SUPERSETS_OF_ASCII: [&str; 28] = [
    "usascii",
    "ascii",
    "latin1",
    "koi8r",
    "koi8u",
    "eucjp",
    "euckr",
    "gb2312",
    "gbk",
    "xgbk",
    "gb18030",
    "big5",
    "big5hkscs",
    "shiftjis",
    "sjis",
    "xsjis",
    "windows31j",
    "ms932",
    "ms949",
    "windows949",
    "ksc56011987",
    "tis620",
    "macintosh",
    "xmacroman",
    "windows874",
    "*",
    "",
    "binary",
];

/// Charsets of the same kind that are numbered.
const NUMBERED_SUPERSETS_OF_ASCII: [&str; 3] = ["iso8859", "windows125", "cp125"];

/// Returns true if servers that decode a query in a charset of the request find the same values of a parameter as those that take
/// it for UTF-8.
///
/// Other charsets write letters of ASCII in other bytes: in UTF-7, `+AGE-` is `a`. So a value has spellings without number there.
pub(super) fn is_without_effect(headers: &HeaderMap, readings: &Readings<'_>) -> bool {
    let of_bodies = headers.get_all(CONTENT_TYPE).into_iter().map(HeaderValue::as_bytes).flat_map(stated);
    let of_responses = headers.get_all(ACCEPT_CHARSET).into_iter().map(|line| first_item(line.as_bytes()));
    of_bodies
        .chain(of_responses)
        .all(|charset| is_utf_8(charset) || agrees_in_ascii(charset) && readings.are_ascii())
}

/// Returns the texts behind the word `charset` in a field, wherever it stands.
fn stated(field: &[u8]) -> impl Iterator<Item = &[u8]> {
    const WORD: &[u8] = b"charset";
    let words = field.windows(WORD.len()).enumerate().filter(|(_, word)| word.eq_ignore_ascii_case(WORD));
    words.map(|(at, _)| {
        let rest = field[at + WORD.len()..].trim_ascii_start();
        first_item(rest.strip_prefix(b"=").unwrap_or(rest))
    })
}

/// Returns the first item of a list, without what is around it. A quote may end a parameter that this one stands in.
fn first_item(list: &[u8]) -> &[u8] {
    let is_around = |byte: &u8| byte.is_ascii_whitespace() || matches!(byte, b'"' | b'\'');
    let item = list.split(|byte| matches!(byte, b';' | b',')).next().unwrap_or_default();
    let start = item.iter().position(|byte| !is_around(byte)).unwrap_or(item.len());
    let end = item.iter().rposition(|byte| !is_around(byte)).map_or(start, |last| last + 1);
    &item[start..end]
}

fn is_utf_8(charset: &[u8]) -> bool {
    UTF_8.iter().any(|name| is_named(charset, name))
}

fn agrees_in_ascii(charset: &[u8]) -> bool {
    let is_numbered = |name: &&str| {
        let number = charset.iter().rev().take_while(|byte| byte.is_ascii_digit()).count();
        (1..=2).any(|digits| digits <= number && is_named(&charset[..charset.len() - digits], name))
    };
    SUPERSETS_OF_ASCII.iter().any(|name| is_named(charset, name))
        || NUMBERED_SUPERSETS_OF_ASCII.iter().any(is_numbered)
}

/// Returns true for the name of a charset, with hyphens or underscores in any place, as servers take it.
fn is_named(charset: &[u8], name: &str) -> bool {
    let letters = charset.iter().filter(|byte| !matches!(byte, b'-' | b'_')).map(u8::to_ascii_lowercase);
    letters.eq(name.bytes())
}

#[cfg(test)]
mod tests {
    use hyper::header::HeaderName;

    use super::*;

    /// Returns true if a parameter with this value may be counted beside this field.
    fn is_counted_beside(name: HeaderName, field: &str, value: &str) -> bool {
        let headers = HeaderMap::from_iter([(name, HeaderValue::from_str(field).unwrap())]);
        is_without_effect(&headers, &Readings::one(value.as_bytes()))
    }

    fn is_counted(content_type: &str, value: &str) -> bool {
        is_counted_beside(CONTENT_TYPE, content_type, value)
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
            "unicode",
            "utf-8x",
            "utf-8 utf-7",
        ] {
            for field in [
                format!("text/plain; charset={charset}"),
                format!("text/plain;CharSet =\t\"{charset}\" ; x=y"),
                format!("text/plain; charset='{charset}'"),
                format!("text/plain; charset=utf-8; charset={charset}"),
                format!("text/plain; charset*=utf-8''{charset}"),
                format!("text/plain, text/plain; charset={charset}, text/plain"),
            ] {
                assert!(!is_counted(&field, "k1"), "{field}");
            }
            for field in [charset.to_owned(), format!(" {charset};q=1, utf-8"), format!("{charset},*")] {
                assert!(!is_counted_beside(ACCEPT_CHARSET, &field, "k1"), "{field}");
            }
        }
        for field in ["x; charset: utf-8", "x; charset*0=utf-7"] {
            assert!(!is_counted(field, "k1"), "{field}");
        }
    }

    #[test]
    fn other_charsets_are_counted_as_far_as_they_agree() {
        for charset in [
            "us-ascii",
            "ISO-8859-1",
            "ISO8859_15",
            "windows-1252",
            "cp1251",
            "Shift_JIS",
            "shift-jis",
            "windows-31j",
            "ks_c_5601-1987",
            "TIS-620",
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
            "text/html; charset='UTF_8'; x=y",
            "multipart/form-data; boundary=----x",
            "multipart/related; type=\"application/xop+xml\"; start-info=\"application/soap+xml; charset=utf-8\"",
        ] {
            assert!(is_counted(field, "\u{e9}"), "{field}");
        }
        assert!(is_counted("application/soap+xml; action=\"http://x/charset\"", "k1"));
    }

    /// Micronaut uses the first charset only, and clients that accept all of them list more.
    #[test]
    fn what_clients_accept_behind_the_first_is_not_looked_at() {
        for field in [
            "utf-8",
            "*",
            "ISO-8859-1,utf-8;q=0.7,*;q=0.7",
            "x-gbk,utf-8;q=0.7,*;q=0.7",
            "windows-949,utf-8;q=0.7,*;q=0.3",
            "big5, big5-hkscs, ibm037, utf-7",
            "utf-8, utf-16",
        ] {
            assert!(is_counted_beside(ACCEPT_CHARSET, field, "k1"), "{field}");
        }
    }

    #[test]
    fn every_line_counts() {
        let lines = ["text/plain; charset=utf-8", "text/plain; charset=utf-7"];
        let headers = lines.map(|line| (CONTENT_TYPE, HeaderValue::from_static(line))).into_iter().collect();
        assert!(!is_without_effect(&headers, &Readings::one(b"k1".as_slice())));
    }
}
