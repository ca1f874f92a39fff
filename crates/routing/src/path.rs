//! Readings of a request's path: as it is forwarded, as it is matched, and as other servers might read it.
//!
//! [`forwarded`] removes the dot segments and nothing else, so that signed URLs stay valid.
//! [`matched`] is the canonical form of the forwarded path, never of the path as received. So the route and its
//! limits are those of the path that the upstream sees, however it is spelled.
//!
//! Upstreams read paths differently. [`readings`] returns the other paths that they may see; [`has_escaped_slash`] serves
//! gateways that reject some of these. Letter case is significant here.

use std::{borrow::Cow, mem, ops::Range};

use percent_encoding::{percent_decode_str, percent_encode_byte};

/// Returns the form of [`matched`] of a path that all servers read alike but for a slash at its end: one of digits, `-`, `_` and letters in
/// lower case, without empty segments. It is also [`forwarded`] as it is, and has no other [`readings`]. Most paths are such, and one look at
/// each byte is cheaper than those of these functions.
pub fn plain(path: &str) -> Option<&str> {
    let mut before = b'a';
    let mut is_plain = |byte| match (mem::replace(&mut before, byte), byte) {
        (b'/', b'/') => false,
        (_, b'/' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_') => true,
        _ => false,
    };
    let is_plain = path.starts_with('/') && path.bytes().all(&mut is_plain);
    is_plain.then(|| without_last_slashes(path))
}

/// Returns the path as it is sent upstream: without dot segments, otherwise byte for byte as received.
///
/// It follows RFC 3986, section 5.2.4, without merging slashes first: an empty segment is a segment, so `/a//../b`
/// becomes `/a/b`. A dot segment may be percent-encoded (`%2e`, `.%2E`). The result begins with `/` and never leaves the root.
/// As in the RFC, it may begin with `//`: send it in a request line, but don't resolve it as a reference.
pub fn forwarded(path: &str) -> Cow<'_, str> {
    let is_rooted = path.starts_with('/');
    // A dot segment begins with a dot or an escape. Searching for these first is much cheaper.
    let may_have_dots = path.as_bytes().windows(2).any(|pair| matches!(pair, b"/." | b"/%"));
    if is_rooted && (!may_have_dots || !path.split('/').any(is_dot_segment)) {
        return Cow::Borrowed(path);
    }
    let mut kept = String::with_capacity(path.len() + 1);
    let mut segments = path.strip_prefix('/').unwrap_or(path).split('/').peekable();
    while let Some(segment) = segments.next() {
        match dots(segment) {
            Some(Dots::Current) => {}
            Some(Dots::Parent) => kept.truncate(kept.rfind('/').unwrap_or(0)),
            None => {
                kept.push('/');
                kept.push_str(segment);
                continue;
            }
        }
        if segments.peek().is_none() {
            kept.push('/');
        }
    }
    Cow::Owned(kept)
}

/// Returns true if servers that resolve a path as a reference, as browsers do, take its first segment for a host: behind `//` or `/\`
/// (WHATWG URL, section 4.4).
pub fn begins_with_host(path: &str) -> bool {
    path.starts_with("//") || path.starts_with("/\\")
}

/// Returns the host with which a [`forwarded`] path [begins](begins_with_host) to some servers, with a port and a user, if there are any.
pub fn host_in(path: &str) -> Option<&str> {
    let rest = begins_with_host(path).then(|| path.trim_start_matches(['/', '\\']))?;
    rest.split(['/', '\\', '?', '#']).next()
}

/// Returns the canonical form of a [`forwarded`] path, which routes are compared with.
///
/// - Percent-escapes are decoded, once. On purpose this goes beyond the unreserved characters of RFC 3986:
///   many upstreams read `%24` and `$` alike, and no spelling may escape its limit.
/// - Escapes remain for `/`, for `%` and for bytes that are not UTF-8, in upper-case hex. A `%` that
///   doesn't begin an escape is a literal `%`, as for lenient upstreams: `%zz` becomes `%25zz`.
///   So every `%` in the result begins an escape, and the result is its own canonical form.
/// - Empty segments are merged, and a trailing slash is dropped; the root is `/`.
///
/// Decoding never creates a slash or a dot segment: `%2F` and `%252e` stay. A path that is canonical already is
/// borrowed, unless it has escapes of bytes that are not UTF-8.
pub fn matched(forwarded: &str) -> Cow<'_, str> {
    let path = without_last_slashes(forwarded);
    if is_canonical(path) {
        return Cow::Borrowed(path);
    }
    Cow::Owned(canonical(path, false))
}

/// Returns a [`forwarded`] path with the escapes of [`matched`], with its empty segments or without.
fn canonical(path: &str, keeps_empty: bool) -> String {
    let mut canonical = String::with_capacity(path.len() + 1);
    let segments = path.strip_prefix('/').unwrap_or(path).split('/');
    for segment in segments.filter(|segment| keeps_empty || !segment.is_empty()) {
        canonical.push('/');
        push_canonical(segment, &mut canonical);
    }
    canonical
}

/// The most [`readings`] of a path. It bounds what a request costs.
const MOST_PATHS: usize = 32;
/// The length in bytes of the longest path whose readings are looked for.
const LONGEST: usize = 2 << 10;
/// The bytes of all paths that are made to find them.
const MOST_BYTES: usize = 8 << 10;

/// A path has too many readings, or is too long to find them.
#[derive(Debug, PartialEq, Eq)]
pub struct TooManyReadings;

/// Returns the other paths that servers may see in a [`forwarded`] path, each once; usually none. They are in the form of [`matched`],
/// but may have empty segments.
///
/// - Some resolve the path as a reference, as browsers do: `\` is a slash, and what is behind `//` is a host (Node, PHP).
/// - Some end the path at the first `;` (Fastify 4, Restify), some at an escaped `?` (h3).
/// - Some treat an escaped slash as a slash (nginx, PHP), some treat an escaped `\` as a slash (IIS), some drop what
///   follows a `;` in a segment, before or after they decode it (servlet containers), or a line feed at the end (Starlette).
/// - Bytes that aren't UTF-8 are dropped (Bottle), taken for Latin-1, with the whole path (CherryPy), with what is escaped (Jetty) or
///   with their segment (Mojolicious).
/// - Some take `index.php` for the script that handles what comes behind it (Laravel, Symfony), some any `.php` for the end of the path (Apache).
/// - Some take an empty segment for a parameter (Fastify, gin), some of these only behind the first slashes (Falcon).
///
/// Any of these may come together.
///
/// # Errors
/// There are too many, or the path is too long and may have some.
pub fn readings(forwarded: &str, matched: &str) -> Result<Vec<String>, TooManyReadings> {
    let is_special = |byte| matches!(byte, b'%' | b'\\' | b';' | b'?' | b'\n');
    let has_empty_segment = matched.len() < forwarded.len() && forwarded.contains("//");
    if !has_empty_segment && !names_script(matched) && !matched.bytes().any(is_special) {
        return Ok(Vec::new());
    }
    if forwarded.len() > LONGEST {
        return Err(TooManyReadings);
    }
    let mut spellings = vec![Cow::Borrowed(forwarded)];
    if forwarded.contains('\\') {
        spellings.push(self::forwarded(&forwarded.replace('\\', "/")).into_owned().into());
    }
    let hosts: Vec<_> = spellings.iter().filter_map(|spelling| behind_host(spelling)).collect();
    spellings.extend(hosts.into_iter().map(Cow::Owned));
    let cut = spellings.iter().filter_map(|spelling| Some(spelling.split_once(';')?.0.to_owned().into()));
    let cut: Vec<_> = cut.collect();
    let mut readings: Vec<String> = Vec::new();
    let mut left = MOST_BYTES;
    for spelling in spellings.into_iter().chain(cut) {
        for path in with_liberties(canonical(&spelling, true), &mut left)? {
            let path = self::forwarded(&path);
            let whole = without_last_slashes(&path);
            let without_first = format!("/{}", whole.trim_start_matches('/'));
            for reading in [self::matched(&path), whole.into(), without_first.into()] {
                if *reading != *matched && !readings.iter().any(|known| *known == *reading) {
                    readings.push(reading.into_owned());
                }
            }
            if readings.len() > MOST_PATHS {
                return Err(TooManyReadings);
            }
        }
    }
    Ok(readings)
}

/// Returns the path behind a host, with which a path may begin.
fn behind_host(path: &str) -> Option<String> {
    let host = path.strip_prefix("//")?.trim_start_matches('/');
    Some(forwarded(host.find('/').map_or("/", |end| &host[end..])).into_owned())
}

/// Returns a path with the escapes of [`matched`] as servers see it that take any of these liberties, one after the other. Their bytes are
/// taken from those that are `left`.
fn with_liberties(path: String, left: &mut usize) -> Result<Vec<String>, TooManyReadings> {
    const LIBERTIES: [fn(&str) -> Cow<'_, str>; 12] = [
        without_invalid,
        in_latin,
        |path| with_invalid(path, latin_of),
        |path| match has_invalid(path) {
            true => joined(path.split('/').map(in_latin)).into(),
            false => path.into(),
        },
        |path| path.split('?').next().unwrap_or_default().into(),
        without_parameters,
        |path| replaced(path, "%2F"),
        |path| replaced(path, "\\"),
        // Again, since decoding may have separated further segments.
        without_parameters,
        without_path_info,
        without_front_controller,
        |path| path.trim_end_matches('\n').into(),
    ];
    let mut paths = vec![path];
    for liberty in LIBERTIES {
        for at in 0..paths.len() {
            let path = liberty(&paths[at]);
            if !paths.iter().any(|known| *known == path) {
                *left = left.checked_sub(path.len()).ok_or(TooManyReadings)?;
                let path = path.into_owned();
                paths.push(path);
            }
        }
        // Different ones may be read alike, but not many.
        if paths.len() > 2 * MOST_PATHS {
            return Err(TooManyReadings);
        }
    }
    Ok(paths)
}

/// Returns a path with slashes in place of this.
fn replaced<'p>(path: &'p str, part: &str) -> Cow<'p, str> {
    if path.contains(part) { path.replace(part, "/").into() } else { path.into() }
}

/// Returns a path of these segments.
fn joined<S: AsRef<str>>(segments: impl Iterator<Item = S>) -> String {
    let mut path = String::new();
    for (at, segment) in segments.enumerate() {
        path.push_str(if at == 0 { "" } else { "/" });
        path.push_str(segment.as_ref());
    }
    path
}

/// Returns the range of the first place where a path has this part, in any case.
fn find_any_case(path: &str, part: &str) -> Option<Range<usize>> {
    let mut windows = path.as_bytes().windows(part.len());
    let at = windows.position(|window| window.eq_ignore_ascii_case(part.as_bytes()))?;
    Some(at..at + part.len())
}

/// Returns a path without the script that handles all requests, `index.php`. What comes behind it needs no slash.
fn without_front_controller(path: &str) -> Cow<'_, str> {
    match find_any_case(path, "/index.php") {
        Some(script) => {
            [&path[..script.start], "/", path[script.end..].trim_start_matches('/')].concat().into()
        }
        None => path.into(),
    }
}

/// Returns a path up to the script in it, behind which there is what CGI calls the path info (RFC 3875, section 4.1.5).
fn without_path_info(path: &str) -> Cow<'_, str> {
    path[..find_any_case(path, ".php/").map_or(path.len(), |script| script.end - 1)].into()
}

/// Returns true if a path names a script that may handle what comes behind it.
fn names_script(path: &str) -> bool {
    let is_in = |part| find_any_case(path, part).is_some();
    path.as_bytes().contains(&b'.') && (is_in(".php/") || is_in("/index.php"))
}

fn without_parameters(path: &str) -> Cow<'_, str> {
    match path.contains(';') {
        true => joined(path.split('/').map(|segment| segment.split(';').next().unwrap_or_default())).into(),
        false => path.into(),
    }
}

/// Returns a path without slashes at its end; the root is `/`.
fn without_last_slashes(path: &str) -> &str {
    let path = path.trim_end_matches('/');
    if path.is_empty() { "/" } else { path }
}

/// Returns true if a path with the escapes of [`matched`] has a byte that isn't UTF-8.
fn has_invalid(canonical: &str) -> bool {
    canonical.split('%').skip(1).any(is_invalid)
}

/// Returns true if what stands behind a `%` makes it the escape of a byte that isn't UTF-8.
fn is_invalid(behind: &str) -> bool {
    !behind.starts_with("25") && !behind.starts_with("2F")
}

/// Returns a path with the escapes of [`matched`], and this in place of each byte that isn't UTF-8, whose escape has these digits.
fn with_invalid(canonical: &str, replaced: impl Fn(&str) -> String) -> Cow<'_, str> {
    if !has_invalid(canonical) {
        return canonical.into();
    }
    let mut path = String::with_capacity(canonical.len());
    for (at, part) in canonical.split('%').enumerate() {
        match at {
            0 => path.push_str(part),
            _ if is_invalid(part) => path.extend([&replaced(&part[..2]), &part[2..]]),
            _ => path.extend(["%", part]),
        }
    }
    path.into()
}

/// Returns a path with the escapes of [`matched`] without the bytes that aren't UTF-8.
fn without_invalid(canonical: &str) -> Cow<'_, str> {
    with_invalid(canonical, |_| String::new())
}

/// Returns the letter of Latin-1 whose escape has these digits.
fn latin_of(digits: &str) -> String {
    char::from(u8::from_str_radix(digits, 16).unwrap_or_default()).into()
}

/// Returns a path with the escapes of [`matched`] as Latin-1, if it has a byte that isn't UTF-8.
fn in_latin(canonical: &str) -> Cow<'_, str> {
    if !has_invalid(canonical) {
        return canonical.into();
    }
    let latin = canonical.bytes().map(char::from).collect::<String>();
    with_invalid(&latin, latin_of).into_owned().into()
}

/// Returns true if a path has a `%` that two hexadecimal digits don't follow, which URIs don't have (RFC 3986, section 2.1), or an escaped
/// NUL. Servers drop it, or decode what isn't a digit (Jetty, uWSGI), or stop at the NUL, so that such a path has spellings without number.
/// All other functions expect a path without one.
pub fn has_invalid_escape(path: &str) -> bool {
    has_escapes(path)
        && path.split('%').skip(1).any(|behind| !is_escape(behind.as_bytes()) || behind.starts_with("00"))
}

/// Returns true if a segment has an escape of a character that stands for itself in any segment (RFC 3986, section 3.3).
pub(crate) fn has_needless_escape(segment: &str) -> bool {
    let is_needless = |escape: &str| {
        let byte = u8::from_str_radix(escape.get(..2).unwrap_or_default(), 16).unwrap_or_default();
        byte.is_ascii_alphanumeric() || b"-._~!$&'()*+,;=:@".contains(&byte)
    };
    segment.split('%').skip(1).any(is_needless)
}

/// Returns true if what stands behind a `%` makes it an escape: two hexadecimal digits (RFC 3986, section 2.1).
pub fn is_escape(behind: &[u8]) -> bool {
    matches!(behind, [high, low, ..] if high.is_ascii_hexdigit() && low.is_ascii_hexdigit())
}

/// Folds the case of letters, so that texts are equal if some server that ignores it takes them for the same: one makes capitals of all
/// letters (Java, Python), so that U+0131 is an `i`; to another U+0130 is one (Go), or one with a dot of its own (JavaScript).
pub(crate) fn folded(text: &str) -> Cow<'_, str> {
    match is_folded(text) {
        true => text.into(),
        false => fold(text).collect::<String>().into(),
    }
}

/// Returns true if texts are the same to a server that ignores the case of letters. It ends at the first difference.
pub(crate) fn are_alike(one: &str, other: &str) -> bool {
    fold(one).eq(fold(other))
}

/// Returns true for a text in ASCII without capitals.
pub(crate) fn is_folded(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii() && !byte.is_ascii_uppercase())
}

fn fold(text: &str) -> impl Iterator<Item = char> {
    let lower = |c: char| c.to_lowercase().next();
    let letters = text.chars().filter(|c| *c != '\u{307}');
    letters.filter_map(lower).flat_map(char::to_uppercase).filter_map(lower)
}

/// Returns true if a path contains a `%`.
fn has_escapes(path: &str) -> bool {
    path.as_bytes().contains(&b'%')
}

/// Returns true if a path contains `%2F` or `%5C`, which some upstreams treat as a slash.
pub fn has_escaped_slash(path: &str) -> bool {
    has_escapes(path)
        && path.split('%').skip(1).any(|after| {
            let hex = after.get(..2).unwrap_or_default();
            hex.eq_ignore_ascii_case("2f") || hex.eq_ignore_ascii_case("5c")
        })
}

/// Returns true if a [`forwarded`] path has a dot segment to some servers: to one that treats `\`, `%2F` or `%5C` as a slash, drops
/// `;parameters`, or ends the path at an escaped `?`, before or after it removes dot segments. So it may leave its parent directory.
pub fn has_hidden_dots(path: &str) -> bool {
    let decoded: Cow<'_, [u8]> = percent_decode_str(path).into();
    let mut names = decoded.split(|byte| matches!(byte, b'/' | b'\\'));
    names.any(|name| matches!(name.split(|byte| matches!(byte, b';' | b'?')).next(), Some(b"." | b"..")))
}

/// Returns true if a segment is `.` or `..`, in any spelling.
pub(crate) fn is_dot_segment(segment: &str) -> bool {
    dots(segment).is_some()
}

/// Returns the canonical form of one segment, as [`matched`] defines it.
pub(crate) fn canonical_segment(segment: &str) -> String {
    let mut canonical = String::with_capacity(segment.len());
    push_canonical(segment, &mut canonical);
    canonical
}

enum Dots {
    Current,
    Parent,
}

fn dots(segment: &str) -> Option<Dots> {
    match strip_dot(segment)? {
        "" => Some(Dots::Current),
        after => strip_dot(after)?.is_empty().then_some(Dots::Parent),
    }
}

fn strip_dot(text: &str) -> Option<&str> {
    text.strip_prefix('.').or_else(|| text.strip_prefix("%2e")).or_else(|| text.strip_prefix("%2E"))
}

/// Returns true only if a path without trailing slash is canonical. It may return false for a canonical path, since it
/// recognises only the escapes `%25` and `%2F`.
fn is_canonical(path: &str) -> bool {
    path.starts_with('/')
        && !path.as_bytes().windows(2).any(|pair| pair == b"//")
        && (!has_escapes(path)
            || path.split('%').skip(1).all(|after| after.starts_with("25") || after.starts_with("2F")))
}

fn push_canonical(segment: &str, canonical: &mut String) {
    let decoded: Cow<'_, [u8]> = percent_decode_str(segment).into();
    for chunk in decoded.utf8_chunks() {
        for character in chunk.valid().chars() {
            match character {
                '/' => canonical.push_str("%2F"),
                '%' => canonical.push_str("%25"),
                _ => canonical.push(character),
            }
        }
        canonical.extend(chunk.invalid().iter().map(|byte| percent_encode_byte(*byte)));
    }
}

#[cfg(test)]
mod tests {
    use proptest::{collection::vec, prelude::*, sample::select};

    use super::*;

    #[test]
    fn only_dot_segments_are_removed_from_a_forwarded_path() {
        for (path, expected) in [
            // RFC 3986, 5.2.4 and the paths of 5.4
            ("/a/b/c/./../../g", "/a/g"),
            ("/b/c/.", "/b/c/"),
            ("/b/c/./", "/b/c/"),
            ("/b/c/./g", "/b/c/g"),
            ("/b/c/..", "/b/"),
            ("/b/c/../", "/b/"),
            ("/b/c/../..", "/"),
            ("/b/c/../../../g", "/g"),
            ("/./g", "/g"),
            ("/../g", "/g"),
            ("/b/c/g.", "/b/c/g."),
            ("/b/c/.g", "/b/c/.g"),
            ("/b/c/..g", "/b/c/..g"),
            ("/b/c/...", "/b/c/..."),
            // The path isn't merged.
            ("/a//../b", "/a/b"),
            ("/a/..//b", "//b"),
            ("/a///../../b", "/a/b"),
            ("//..//..//b/", "//b/"),
            // Encoded dots, and what only looks like them.
            ("/a/%2e%2E/b", "/b"),
            ("/a/.%2e/%2E/b", "/b"),
            ("/a/%252e%252e/b", "/a/%252e%252e/b"),
            ("/a/..%2fb", "/a/..%2fb"),
            ("/a/..;/b", "/a/..;/b"),
            // Everything else is unchanged.
            ("/A/%7euser/%c3%A9//%zz/", "/A/%7euser/%c3%A9//%zz/"),
            ("/a/../%7euser//", "/%7euser//"),
            // No leading slash: authority and asterisk form.
            ("", "/"),
            ("*", "/*"),
            ("..", "/"),
            ("a/../b", "/b"),
        ] {
            assert_eq!(forwarded(path), expected, "{path}");
        }
    }

    #[test]
    fn hidden_dot_segments_are_found() {
        for path in [
            "/a/..%2Fb",
            "/a/%2e%2e%5cb",
            "/a/..\\b",
            "/..;/b",
            "/a/.%2E;x=1/b",
            "/a%2F..",
            "/..%3Bx",
            "/a/..%3Fb",
            "/.;/b",
            "/a%2F.",
            "/a/.%3F",
        ] {
            assert!(has_hidden_dots(path), "{path}");
        }
        for path in [
            "/",
            "/a%2Fb",
            "/a/...",
            "/a/..b",
            "/a..",
            "/a;..",
            "/%252e%252e%252fb",
            "/.well-known",
            "/a%3F..",
        ] {
            assert!(!has_hidden_dots(path), "{path}");
        }
    }

    #[test]
    fn spellings_of_a_path_match_alike() {
        for (path, expected) in [
            ("/", "/"),
            ("", "/"),
            ("//", "/"),
            ("/a/", "/a"),
            ("//a///b//", "/a/b"),
            ("/%61%2Db%24", "/a-b$"),
            ("/caf%c3%a9", "/café"),
            ("/a%2fb", "/a%2Fb"),
            ("/a%5cb", "/a\\b"),
            ("/a%3fb%23", "/a?b#"),
            ("/%252e%252e/b", "/%252e%252e/b"),
            ("/%25%32e", "/%252e"),
            // Bytes that are not UTF-8: alone, cut short, overlong, a surrogate
            ("/%ff", "/%FF"),
            ("/%c3/%a9", "/%C3/%A9"),
            ("/%e2%82x", "/%E2%82x"),
            ("/%c0%af", "/%C0%AF"),
            ("/%ed%a0%80", "/%ED%A0%80"),
            // A malformed escape is a literal percent sign.
            ("/%zz", "/%25zz"),
            ("/%25zz", "/%25zz"),
            ("/100%", "/100%25"),
            ("/%4", "/%254"),
            ("/%%34", "/%254"),
        ] {
            assert_eq!(matched(path), expected, "{path}");
        }
    }

    #[test]
    fn a_path_that_needs_no_change_is_borrowed() {
        for path in ["/", "/v1/orders/7", "/v1//orders/", "/%7e/%2F/.well-known/a.b"] {
            assert!(matches!(forwarded(path), Cow::Borrowed(_)), "{path}");
        }
        for path in ["/", "/v1/orders/7", "/v1/orders/", "/a%2Fb%25/café/$"] {
            assert!(matches!(matched(path), Cow::Borrowed(_)), "{path}");
        }
    }

    #[test]
    fn other_readings_of_a_path_are_returned() {
        for (path, expected) in [
            ("/a/b%20c/%7e//", &[][..]),
            ("/a%2fb", &["/a/b"]),
            ("/a%5cb", &["/a/b"]),
            ("/a\\b", &["/a/b"]),
            ("/a%3bx/b", &["/a/b"]),
            ("/x/..%3b/a", &["/a"]),
            ("/x%2f..%2F%2e%2E%2f%2fa%2f", &["/a", "//a"]),
            ("/x%3b%2f..%2fa", &["/a", "/x"]),
            // Parameters that end at a slash, and not at an escaped one.
            ("/a%2Fb;c%2Fd/8", &["/a/b", "/a%2Fb", "/a%2Fb/8", "/a/b/8", "/a/b/d/8", "/a/b;c/d/8"]),
            // Escapes that end a path.
            ("/a%3Fb/c", &["/a"]),
            ("/a%23b", &[]),
            ("/a%23b%3F", &["/a#b"]),
            ("/a%0a", &["/a"]),
            ("/a%0ab", &[]),
            ("/a%ff%25b", &["/a%25b", "/aÿ%25b"]),
            ("/a%ff%3bx", &["/a", "/a%FF", "/a;x", "/aÿ", "/aÿ;x"]),
            ("/a%0a%3bx", &["/a\n", "/a"]),
            ("/a%0a%80", &["/a\n", "/a", "/a\n\u{80}"]),
            // Servers that decode twice are not covered.
            ("/a%252fb", &[]),
            // A path that ends at a semicolon, which isn't an escape.
            ("/a;x=1/b", &["/a/b", "/a"]),
            ("/a/;x/b;y", &["/a/b", "/a", "/a//b"]),
            ("/;/a", &["/a", "/", "//a"]),
            // Backslashes, which aren't escapes, as in the URLs of browsers.
            ("/a%5Cb/..\\c", &["/a/c", "/c"]),
            ("/a\\..\\c", &["/c"]),
            // Behind what may be a host.
            ("//a/b/../c", &["/c", "//a/c"]),
            ("/\\a\\b", &["/a/b", "/b", "//a/b"]),
            ("//x\\y/b", &["/x/y/b", "/b", "/y/b", "//x\\y/b", "//x/y/b"]),
            ("///a/b/", &["/b", "///a/b"]),
            ("//a", &["/", "//a"]),
            ("//a/b;c", &["/a/b", "/b;c", "/b", "//a/b;c", "//a/b"]),
            // The script of a PHP framework, and what comes behind any script.
            ("/index.php/a", &["/a", "/index.php", "/"]),
            ("/x/Index%2ePHPa/b", &["/x/a/b"]),
            ("/index.php", &["/"]),
            ("/a.php/b", &["/a.php"]),
            ("/a.php%2Fb", &["/a.php/b", "/a.php"]),
            ("/a.php", &[]),
            // Bytes that aren't UTF-8
            ("/caf%e9", &["/caf", "/café"]),
            ("/%C3%A9/%E9", &["/é", "/Ã©/é", "/é/é"]),
            // The first é in UTF-8, the second in Latin-1
            ("/é%E9", &["/é", "/Ã©é", "/éé"]),
            // An empty segment may be a parameter.
            ("/a//b/", &["/a//b"]),
            ("//a//b", &["//a//b", "/a//b", "//b", "/b"]),
            ("/a//", &[]),
            ("/%2Fa/b", &["/a/b", "//a/b"]),
        ] {
            let forwarded = forwarded(path);
            let mut readings = readings(&forwarded, &matched(&forwarded)).unwrap();
            let mut expected = expected.to_vec();
            readings.sort();
            expected.sort();
            assert_eq!(readings, expected, "{path}");
        }
        let many = "/a;b%2Fc\\d%5Ce%80".repeat(3) + "%0a";
        assert_eq!(readings(&many, &matched(&many)), Err(TooManyReadings));
        // Few readings of a long path, and many
        for (path, is_read) in [("/a%2Fb;c/d", true), ("/\\%FF/\\a;b?c/d.php/", false)] {
            let long = path.to_owned() + &"/e".repeat(LONGEST / 2 - 20);
            assert_eq!(readings(&long, &matched(&long)).is_ok(), is_read, "{path}");
        }
        let long = "/a;b".to_owned() + &"c".repeat(LONGEST);
        assert_eq!(readings(&long, &matched(&long)), Err(TooManyReadings));
    }

    #[test]
    fn invalid_escapes_are_found() {
        for path in ["/%", "/a%4", "/%zz", "/%6@n", "/%41%", "/a%00b", "/%u006e", "/%4%41", "/%é"] {
            assert!(has_invalid_escape(path), "{path}");
        }
        for path in ["/", "/%41", "/%e9%C3", "/%2500", "/a+b"] {
            assert!(!has_invalid_escape(path), "{path}");
        }
    }

    #[test]
    fn escaped_slashes_are_found_in_any_case() {
        for path in ["/a%2fb", "/a%2F", "/%5c", "/%5C..", "/%%2f"] {
            assert!(has_escaped_slash(path), "{path}");
        }
        for path in ["/", "/a/b", "/a\\b", "/%252f", "/%2", "/%", "/%é", "/%2g%5d"] {
            assert!(!has_escaped_slash(path), "{path}");
        }
    }

    /// Generates a canonical path and another spelling of it.
    fn respelt() -> impl Strategy<Value = (String, String)> {
        (vec((detours(), segment()), 0..5), detours()).prop_map(|(segments, tail)| {
            let (mut canonical, mut spelling) = (String::new(), String::new());
            for (detours, (segment, respelt)) in segments {
                canonical += &format!("/{segment}");
                spelling += &format!("{detours}/{respelt}");
            }
            let root = if canonical.is_empty() { "/" } else { "" };
            (canonical + root, spelling + root + &tail)
        })
    }

    /// Generates path segments that lead back to where they started.
    fn detours() -> impl Strategy<Value = String> {
        const DETOURS: &[&str] =
            &["/", "/.", "/%2e", "/%2E", "/x/..", "/x/%2e.", "//..", "/%2F/.%2E", "/x//../%2E%2e", "/x/./.."];
        vec(select(DETOURS), 0..3).prop_map(|detours| detours.concat())
    }

    fn segment() -> impl Strategy<Value = (String, String)> {
        vec(character(), 1..6)
            .prop_map(|characters| characters.into_iter().unzip())
            .prop_filter("a dot segment", |(segment, _): &(String, String)| segment != "." && segment != "..")
    }

    /// Generates a character or a byte in its canonical form and in another spelling.
    fn character() -> impl Strategy<Value = (String, String)> {
        let literal = prop_oneof![select(vec!['.', 'e', '2', '$', '\\', '?', 'é']), any::<char>()]
            .prop_filter("kept as an escape", |c| !matches!(c, '/' | '%'))
            .prop_flat_map(|c| {
                let escapes = c.to_string().bytes().map(escape).collect::<Vec<_>>();
                let spelling = prop_oneof![Just(c.to_string()), escapes.prop_map(|bytes| bytes.concat())];
                (Just(c.to_string()), spelling)
            });
        let kept = select(vec![b'/', b'%', 0xC0, 0xC1, 0xF5, 0xFF])
            .prop_flat_map(|byte| (Just(format!("%{byte:02X}")), escape(byte)));
        prop_oneof![3 => literal, 1 => kept]
    }

    fn escape(byte: u8) -> impl Strategy<Value = String> {
        let (high, low) = (byte >> 4, byte & 15);
        select(vec![
            format!("%{high:x}{low:x}"),
            format!("%{high:X}{low:x}"),
            format!("%{high:x}{low:X}"),
            format!("%{high:X}{low:X}"),
        ])
    }

    fn arbitrary() -> impl Strategy<Value = String> {
        prop_oneof!["[/.%25eEfFcC3aé]{0,24}", any::<String>()]
    }

    fn normal(path: &str) -> String {
        matched(&forwarded(path)).into_owned()
    }

    /// Returns the decoded segments of a path, as an upstream sees them that merges slashes.
    fn bytes(path: &str) -> Vec<Vec<u8>> {
        path.split('/').filter(|s| !s.is_empty()).map(|s| percent_decode_str(s).collect()).collect()
    }

    proptest! {
        #[test]
        fn every_spelling_matches_as_the_canonical_path((canonical, spelling) in respelt()) {
            prop_assert_eq!(normal(&spelling), canonical);
        }

        #[test]
        fn a_plain_path_is_read_alike(path in prop_oneof!["/[a-c/]{0,9}", "/[a-z0-9/_.%;A-C\\\\é-]{0,9}", any::<String>()]) {
            if let Some(plain) = plain(&path) {
                prop_assert_eq!(forwarded(&path), path.as_str());
                prop_assert_eq!(matched(&path), plain);
                prop_assert_eq!(readings(&path, plain), Ok(Vec::new()));
                prop_assert!(!has_invalid_escape(&path) && !has_escaped_slash(&path) && host_in(&path).is_none());
                prop_assert!(is_folded(&path));
            }
        }

        #[test]
        fn normal_forms_are_final(path in arbitrary()) {
            let sent = forwarded(&path);
            let canonical = matched(&sent);
            prop_assert_eq!(&forwarded(&sent), &sent);
            prop_assert_eq!(&normal(&sent), &canonical);
            prop_assert_eq!(&matched(&canonical), &canonical);
            prop_assert_eq!(&forwarded(&canonical), &canonical);
        }

        #[test]
        fn the_matched_path_names_what_is_forwarded(path in arbitrary()) {
            let sent = forwarded(&path);
            prop_assert!(sent.starts_with('/'));
            let named = bytes(&matched(&sent));
            prop_assert!(!named.iter().any(|name| name == b"." || name == b".."));
            prop_assert_eq!(named, bytes(&sent));
        }
    }
}
