//! The names of cookies and parameters that servers take for the one that a limit reads.

use std::{cell::Cell, iter};

use smallvec::SmallVec;

use super::Decoded;

/// Returns true if some servers take the name of a cookie or parameter, as it was sent (percent-encoded), for the one that a limit
/// reads.
///
/// They do so in any case (ASP.NET), with `.`, a space or `[` for `_` and with leading spaces (PHP), in brackets (qs, Rack), with
/// brackets anywhere (Fiber), after commas (Netty), and with anything behind a NUL, a bracket or a space.
pub(in crate::rules::key) fn names_match(sent: &[u8], name: &[u8]) -> bool {
    compare(sent, name).0
}

/// Returns whether a name that was sent [matches](names_match), and the bytes that were read to find out: none if the first ones show
/// that it doesn't.
pub(in crate::rules::key) fn compare(sent: &[u8], name: &[u8]) -> (bool, usize) {
    if sent == name {
        return (true, sent.len());
    }
    if sent.is_empty() || begins_otherwise(sent, name) {
        return (false, 0);
    }
    let read = Cell::new(0);
    (match_loosely(sent, name, &read), read.get())
}

/// Adds the bytes to those that were `read`.
fn match_loosely(sent: &[u8], name: &[u8], read: &Cell<usize>) -> bool {
    let bytes = || folded(sent).inspect(|_| read.set(read.get() + 1));
    let has_brackets = name.contains(&b'[');
    if !has_brackets && begins_with(bytes(), name.iter().copied()) {
        return true;
    }
    if (has_brackets || name.contains(&b'.')) && words_match(bytes, name) {
        return true;
    }
    begins_with(in_fiber(bytes()), in_fiber(name.iter().copied()))
        && Decoded::form(sent).any(|byte| byte == b'[')
}

/// Returns true if the name of a parameter that was sent has the letters and digits of this one, whatever else is between them:
/// GoFrame reads `api*key` for `api_key`, and grpc-gateway `apiKey`.
pub(in crate::rules::key) fn letters_match(sent: &[u8], name: &[u8]) -> bool {
    let is_letter = |byte: &u8| byte.is_ascii_alphanumeric();
    let mut wanted = name.iter().copied().filter(is_letter).peekable();
    let is_nested = name.iter().any(|byte| matches!(byte, b'[' | b'.'));
    // Without any separator, `username` isn't taken for `user[name]`.
    if wanted.peek().is_none() || is_first_other(sent, name) || is_nested && sent.iter().all(is_letter) {
        return false;
    }
    let mut sent = folded(sent).filter(is_letter);
    wanted.all(|wanted| sent.next().is_some_and(|byte| byte.eq_ignore_ascii_case(&wanted)))
        && sent.next().is_none()
}

/// Returns true if a name that was sent begins with another letter than this one, as most do.
fn is_first_other(sent: &[u8], name: &[u8]) -> bool {
    let is_letter = |byte: &&u8| byte.is_ascii_alphanumeric();
    let first = sent.first().filter(is_letter).zip(name.first().filter(is_letter));
    first.is_some_and(|(sent, wanted)| !sent.eq_ignore_ascii_case(wanted))
}

/// Returns true if the first bytes of a name that was sent show that it [doesn't match](names_match).
fn begins_otherwise(sent: &[u8], name: &[u8]) -> bool {
    let is_nested = name.iter().any(|byte| matches!(byte, b'[' | b'.'));
    let blanks = name.iter().take_while(|byte| is_blank_in_php(**byte)).count();
    let stands_before = |byte: &&u8| match byte {
        // qs passes over a word behind a bracket.
        b'[' => !is_nested,
        b'_' | b'.' | b'(' | b')' | b'\'' | b'"' if is_nested => true,
        // The name begins with such a byte itself.
        byte if blanks > 0 && is_blank_in_php(**byte) => true,
        byte => byte.is_ascii() && is_padding(byte),
    };
    let first = sent.iter().take(8).find(|byte| !stands_before(byte));
    let wanted = name.get(blanks).filter(|byte| byte.is_ascii_alphanumeric());
    first.zip(wanted).is_some_and(|(first, wanted)| {
        let may_be_letter =
            matches!(first, b'%' | b'+' | b'[' | 0x80..) || first.eq_ignore_ascii_case(wanted);
        !may_be_letter
    })
}

/// Returns true if a name that was sent has fewer bytes than this one letters and digits, so that no server can take it for this.
pub(in crate::rules::key) fn is_shorter(sent: &[u8], name: &[u8]) -> bool {
    sent.len() < name.iter().filter(|byte| byte.is_ascii_alphanumeric()).count()
}

/// The bytes of a name that was sent (percent-encoded), with the letters outside ASCII that servers take for `k`, `s` and
/// `i` in any case as these: U+212A and U+017F (Go), U+0130 and U+0131 (Ktor, Struts).
fn folded(sent: &[u8]) -> impl Iterator<Item = u8> {
    let mut bytes = Decoded::form(sent);
    iter::from_fn(move || {
        let byte = bytes.next()?;
        let mut letter = |rest: &[u8], letter| {
            let mut ahead = bytes.clone();
            let is_letter = rest.iter().all(|wanted| ahead.next() == Some(*wanted));
            is_letter.then(|| {
                bytes = ahead;
                letter
            })
        };
        Some(match byte {
            0xC4 => letter(&[0xB0], b'i').or_else(|| letter(&[0xB1], b'i')).unwrap_or(byte),
            0xC5 => letter(&[0xBF], b's').unwrap_or(byte),
            0xE2 => letter(&[0x84, 0xAA], b'k').unwrap_or(byte),
            _ => byte,
        })
    })
}

/// Returns a name as Fiber reads it: `[]` and `]` are dropped, and another `[` is a dot.
fn in_fiber(name: impl Iterator<Item = u8>) -> impl Iterator<Item = u8> {
    let mut name = name.peekable();
    iter::from_fn(move || {
        loop {
            match (name.next()?, name.peek()) {
                (b']', _) | (b'[', Some(b']')) => {}
                (b'[', _) => return Some(b'.'),
                (byte, _) => return Some(byte),
            }
        }
    })
}

/// Returns true if a name that was sent is this one, but for what stands before and behind it.
fn begins_with(sent: impl Iterator<Item = u8>, name: impl Iterator<Item = u8>) -> bool {
    let mut sent = sent.skip_while(is_padding);
    for wanted in name.skip_while(is_padding) {
        match sent.next() {
            Some(byte) if byte.eq_ignore_ascii_case(&wanted) => {}
            Some(byte) if is_blank_in_php(byte) && is_blank_in_php(wanted) => {}
            _ => return false,
        }
    }
    sent.next().is_none_or(|byte| is_padding(&byte))
}

/// Returns true if a name that was sent has the words of a nested name, such as `user[id]` or `user.id`. Rack, qs and Rocket read it in
/// many forms, `[user][id]` and `user][id]`, Spring and Struts with quotes, `user['id']`, and more words may follow.
fn words_match<I: Iterator<Item = u8>>(sent: impl Fn() -> I, name: &[u8]) -> bool {
    let has_brackets = name.contains(&b'[');
    let is_between = |byte: &u8| {
        let is_dot = if has_brackets { is_blank_in_php(*byte) } else { *byte == b'.' };
        is_dot || is_padding(byte) || matches!(byte, b'(' | b')' | b'\'' | b'"')
    };
    let wanted = || name.split(is_between).filter(|word| !word.is_empty());
    let mut rest = sent().peekable();
    let follows = |word: &[u8]| {
        while rest.next_if(is_between).is_some() {}
        let is_word =
            word.iter().all(|wanted| rest.next().is_some_and(|byte| byte.eq_ignore_ascii_case(wanted)));
        is_word && rest.peek().is_none_or(is_between)
    };
    wanted().all(follows)
        || may_be_of_qs(sent(), wanted()) && words_match_in_qs(&sent().collect::<Vec<_>>(), wanted)
}

/// Returns true unless the first word of a name shows that qs doesn't read these words in it.
fn may_be_of_qs<'n>(sent: impl Iterator<Item = u8>, mut wanted: impl Iterator<Item = &'n [u8]>) -> bool {
    let Some(wanted) = wanted.next() else { return true };
    let mut sent = sent.peekable();
    sent.next_if_eq(&b'?');
    if !matches!(sent.peek(), Some(b'[' | b'.')) {
        return wanted.iter().all(|wanted| sent.next().is_some_and(|byte| byte.eq_ignore_ascii_case(wanted)));
    }
    let mut word = SmallVec::<[u8; 64]>::new();
    for byte in sent {
        match byte {
            b'[' if !word.contains(&b'.') => word.clear(),
            b']' if word.is_empty() => {}
            b'[' | b']' => break,
            byte => word.push(byte),
        }
    }
    // A dot begins a word, too.
    word.eq_ignore_ascii_case(wanted) || word.contains(&b'.')
}

/// Returns true if qs reads these words in a name: it passes over what is between brackets, over a bracket in another, and, before 6.10.3,
/// over `[__proto__]`.
fn words_match_in_qs<'n, W: Iterator<Item = &'n [u8]>>(sent: &[u8], wanted: impl Fn() -> W) -> bool {
    let after_mark = sent.strip_prefix(b"?").unwrap_or(sent);
    let is_read = |sent: &[u8]| {
        let words = sent.split(|byte| *byte == b'[').enumerate().filter_map(|(place, part)| match place {
            0 => Some(part),
            _ => part.iter().position(|byte| *byte == b']').map(|end| &part[..end]),
        });
        let mut words = words.filter(|word| !word.is_empty() && *word != b"__proto__");
        wanted().all(|wanted| words.next().is_some_and(|word| word.eq_ignore_ascii_case(wanted)))
    };
    is_read(after_mark) || after_mark.contains(&b'.') && is_read(&with_brackets(after_mark))
}

/// Returns a name in which each word behind a dot is in brackets, as qs may put it.
fn with_brackets(name: &[u8]) -> Vec<u8> {
    let mut bracketed = Vec::with_capacity(2 * name.len());
    let mut rest = name;
    while let Some(dot) = rest.iter().position(|byte| *byte == b'.') {
        let word = &rest[dot + 1..];
        let length = word.iter().position(|byte| matches!(byte, b'.' | b'[')).unwrap_or(word.len());
        bracketed.extend_from_slice(&rest[..dot]);
        bracketed.push(b'[');
        bracketed.extend_from_slice(&word[..length]);
        bracketed.push(b']');
        rest = &word[length..];
    }
    bracketed.extend_from_slice(rest);
    bracketed
}

/// Returns true for what may stand around a name.
fn is_padding(byte: &u8) -> bool {
    matches!(byte, b'[' | b']' | b'?' | b',' | 0 | 0x80..) || byte.is_ascii_whitespace()
}

/// Returns true for what PHP takes for `_` in a name.
fn is_blank_in_php(byte: u8) -> bool {
    matches!(byte, b'_' | b'.' | b'[' | b' ')
}

#[cfg(test)]
mod tests {
    use super::{super::combinations, *};

    #[test]
    fn a_name_that_begins_otherwise_does_not_match() {
        const PARTS: [&str; 21] = [
            "user", "id", "u", "[", "]", ".", "_", " ", ",", "?", "\"", "'", "(", "{", "%5B", "%75", "+",
            "x", "\u{17f}", "\u{a0}", "\0",
        ];
        let mut others = 0;
        for places in combinations::<4>(PARTS.len()) {
            let sent = places.map(|place| PARTS[place]).concat();
            for name in ["user", "user[id]", "user.id", "_user", "sid"] {
                let (sent, name) = (sent.as_bytes(), name.as_bytes());
                if begins_otherwise(sent, name) {
                    others += 1;
                    assert!(!match_loosely(sent, name, &Cell::new(0)), "{}", sent.escape_ascii());
                }
            }
        }
        assert!(others > 100_000, "{others}");
    }
}
