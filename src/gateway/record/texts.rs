//! Texts from clients in the access log and in traces: cut, quoted, and without secrets.

use std::{borrow::Cow, fmt::Write};

use hyper::{
    HeaderMap, Uri,
    header::{REFERER, USER_AGENT},
};

/// The most bytes of a target, and of other texts.
const TARGET_MOST: usize = 2_048;
pub(super) const TEXT_MOST: usize = 512;

/// Returns the target as it was sent, with the values of its query masked.
pub(super) fn target(uri: &Uri) -> String {
    let path = if uri.path().is_empty() { "-" } else { uri.path() };
    match uri.query() {
        Some(query) => cut(&[path, "?", &masked(query)].concat(), TARGET_MOST),
        None => cut(path, TARGET_MOST),
    }
}

/// Returns the Referer without secrets. It is cut last, because a cut URL couldn't be searched for them.
pub(super) fn referer(headers: &HeaderMap) -> Option<String> {
    let referer = String::from_utf8_lossy(headers.get(REFERER)?.as_bytes());
    Some(cut(&without_secrets(&referer), TEXT_MOST))
}

/// Returns a URL without user, password, query values, and fragment, which may contain a token.
fn without_secrets(url: &str) -> String {
    let url = url.split('#').next().unwrap_or_default();
    let (path, query) = url.split_once('?').map_or((url, None), |(path, query)| (path, Some(query)));
    let mut shown = String::with_capacity(url.len());
    let mut has_authority = false;
    // Browsers accept any number of slashes and backslashes before the authority.
    for part in path.split_inclusive(['/', '\\']) {
        let name = part.trim_end_matches(['/', '\\']);
        let is_authority = !has_authority && !name.is_empty() && !name.ends_with(':');
        has_authority |= is_authority;
        let host = if is_authority { part.rsplit('@').next().unwrap_or_default() } else { part };
        shown.push_str(host);
    }
    if let Some(query) = query {
        shown += "?";
        shown += &masked(query);
    }
    shown
}

/// Returns a query with its values masked, since they may be credentials. A parameter without a name is masked, too.
fn masked(query: &str) -> String {
    let pairs = query.split('&').map(|pair| match pair.split_once('=') {
        Some((name, _)) => format!("{name}=*"),
        None if pair.is_empty() => String::new(),
        None => "*".to_owned(),
    });
    pairs.collect::<Vec<_>>().join("&")
}

/// Returns the User-Agent.
pub(super) fn user_agent(headers: &HeaderMap) -> Option<String> {
    Some(cut(&String::from_utf8_lossy(headers.get(USER_AGENT)?.as_bytes()), TEXT_MOST))
}

/// Returns a text with its control characters escaped, cut to about `most` bytes.
pub(super) fn cut(text: &str, most: usize) -> String {
    let (shown, end) = match text.len() > most {
        true => (&text[..text.floor_char_boundary(most)], "..."),
        false => (text, ""),
    };
    let mut clean = String::with_capacity(shown.len() + end.len());
    for character in shown.chars() {
        match character.is_control() {
            true => write!(clean, "{}", character.escape_default()).expect("writing to a string succeeds"),
            false => clean.push(character),
        }
    }
    clean + end
}

/// Escapes a text for use between quotes, as nginx does.
pub(super) fn quotable(text: &str) -> Cow<'_, str> {
    let is_plain = |byte: u8| matches!(byte, b' '..=b'~') && byte != b'"' && byte != b'\\';
    if text.bytes().all(is_plain) {
        return text.into();
    }
    let mut quotable = String::with_capacity(text.len() + 16);
    for byte in text.bytes() {
        match is_plain(byte) {
            true => quotable.push(byte.into()),
            false => write!(quotable, "\\x{byte:02X}").expect("writing to a string succeeds"),
        }
    }
    quotable.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn query_values_are_masked() {
        let shown = |uri: &str| target(&uri.parse().unwrap());
        assert_eq!(shown("/a%2Fb//c/../d"), "/a%2Fb//c/../d");
        assert_eq!(shown("/?user=alice&token&&x="), "/?user=*&*&&x=*");
        assert_eq!(shown("http://me:secret@host/a?b=c=d"), "/a?b=*");
        assert_eq!(shown("host:80"), "-");
    }

    #[test]
    fn secrets_of_a_referer_are_not_shown() {
        for (referer, shown) in [
            ("https://a/b?c=d#e", "https://a/b?c=*"),
            ("https://a/b#token=secret", "https://a/b"),
            ("https://a/@b/c@d", "https://a/@b/c@d"),
            ("/b/c@d", "/b/c@d"),
            ("https://user:secret@a:8443/b", "https://a:8443/b"),
            ("https://user:sec@ret@a/b?c=d", "https://a/b?c=*"),
            ("https://secret@[::1]/", "https://[::1]/"),
            ("//user:secret@a/b", "//a/b"),
            ("https:///user:secret@a/b", "https:///a/b"),
            ("https:\\\\user:secret@a/b", "https:\\\\a/b"),
            ("https:user:secret@a/b", "a/b"),
            ("user:secret@a", "a"),
            ("", ""),
        ] {
            assert_eq!(without_secrets(referer), shown, "{referer}");
        }
        let long = format!("https://user:{}@a/b", "secret".repeat(200));
        let headers = HeaderMap::from_iter([(REFERER, long.parse().unwrap())]);
        assert_eq!(referer(&headers).unwrap(), "https://a/b");
    }

    #[test]
    fn texts_from_clients_stay_on_their_line() {
        assert_eq!(cut("a\tb\u{9b}c", 99), "a\\tb\\u{9b}c");
        assert_eq!(cut("grün", 3), "gr...");
        assert_eq!(quotable("a \"b\" \\ ü"), "a \\x22b\\x22 \\x5C \\xC3\\xBC");
        assert_eq!(quotable("Mozilla/5.0 (X11)"), "Mozilla/5.0 (X11)");
    }
}
