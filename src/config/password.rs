//! Blanks passwords and secrets in messages and in the quoted lines of a file.
//!
//! An invalid URL can't be parsed reliably, so this works on text. In each quoted string and each other word,
//! the text before the last `@` counts as a password: from after the first `:`, or in a URL the first one
//! after `//`, or if there is none, everything after `//`. So does the value of a parameter `…password=`.
//! Only a lone `${NAME}` is kept. Each byte becomes an asterisk, so that positions in the text stay valid.
//! The values of `hmac_secret =` and `token =` are blanked, too, wherever they occur.

use std::ops::Range;

use tollgate_limiter::store::redis::password::{blank_word, is_reference};

/// Returns the text of a file with its passwords blanked.
pub(super) fn blank(text: &str) -> String {
    let mut blanked = text.to_owned();
    for secret in secrets(text) {
        blanked.replace_range(secret.clone(), &"*".repeat(secret.len()));
    }
    blank_lines(&blanked)
}

/// Returns a message about a file with the passwords of both blanked.
pub(super) fn blank_message(message: &str, text: &str) -> String {
    let blanked = secrets(text).fold(message.to_owned(), |message, secret| {
        ['`', '"'].into_iter().fold(message, |message, quote| {
            let quoted = format!("{quote}{}{quote}", &text[secret.clone()]);
            message.replace(&quoted, &format!("{quote}******{quote}"))
        })
    });
    blank_lines(&blanked)
}

fn blank_lines(text: &str) -> String {
    text.split_inclusive('\n').map(blank_line).collect()
}

/// Returns the positions of the values of `hmac_secret` and `token`, without their quotes. A value in triple
/// quotes ends at the next ones, any other at the end of its line.
fn secrets(text: &str) -> impl Iterator<Item = Range<usize>> {
    const KEYS: [&str; 2] = ["hmac_secret", "token"];
    KEYS.into_iter().flat_map(|key| text.match_indices(key)).filter_map(|(at, key)| {
        let after = text[at + key.len()..].trim_start_matches(['"', '\'', ' ', '\t']);
        let value = after.strip_prefix('=')?.trim_start_matches([' ', '\t']);
        let secret = match ["\"\"\"", "'''"].into_iter().find(|quotes| value.starts_with(quotes)) {
            Some(quotes) => value[3..].split(quotes).next()?,
            None => {
                let line = value.lines().next().unwrap_or_default();
                match line.chars().next()? {
                    quote @ ('"' | '\'') => line[1..quoted_length(line, quote)].trim_end_matches(quote),
                    _ => line.split([' ', '\t', ',', '}', '#']).next()?,
                }
            }
        };
        let start = secret.as_ptr() as usize - text.as_ptr() as usize;
        (!secret.is_empty() && !is_reference(secret)).then_some(start..start + secret.len())
    })
}

fn blank_line(line: &str) -> String {
    let mut blanked = String::with_capacity(line.len());
    let mut rest = line;
    while let Some(first) = rest.chars().next() {
        let length = if matches!(first, '"' | '\'' | '`') {
            quoted_length(rest, first)
        } else {
            let ends = |c: char| matches!(c, '"' | '\'' | '`' | ' ' | '\t');
            rest.char_indices().skip(1).find(|(_, c)| ends(*c)).map_or(rest.len(), |(end, _)| end)
        };
        let (token, after) = rest.split_at(length);
        blanked += &blank_word(token);
        rest = after;
    }
    blanked
}

/// Returns the length up to and including the closing quote, or of the whole text if there is none.
fn quoted_length(text: &str, quote: char) -> usize {
    let mut escaped = false;
    for (at, c) in text.char_indices().skip(1) {
        if c == quote && !escaped {
            return at + 1;
        }
        escaped = c == '\\' && quote == '"' && !escaped;
    }
    text.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passwords_are_blanked_and_nothing_else() {
        for (text, blanked) in [
            (r#"url = "redis://me:pa"#, r#"url = "redis://me:pa"#),
            (r#"url = "redis://me:päss@host:1/0" # a@b"#, r#"url = "redis://me:*****@host:1/0" # a@b"#),
            (r#"url = "redis://secret@host""#, r#"url = "redis://******@host""#),
            (r#"url = "redis:/me:pa ss\"@@host""#, r#"url = "redis:************@host""#),
            (r#"url = 'redis://:pa/ss"@host""#, r#"url = 'redis://:******@host""#),
            ("`rediss://:pass@h` is new", "`rediss://:****@h` is new"),
            ("x = redis://me:pass@h\ny = 1", "x = redis://me:****@h\ny = 1"),
            ("'redis://:${WORD}@h'", "'redis://:${WORD}@h'"),
            ("'redis://:${WORD:-pass}@h'", "'redis://:*************@h'"),
            (
                "url = \"redis-sentinel://u:pw@h?sentinelPassword=päss&node=a\"",
                "url = \"redis-sentinel://u:**@h?sentinelPassword=*****&node=a\"",
            ),
            ("`a?PASSWORD=secret` is", "`a?PASSWORD=******` is"),
            ("\"h?sentinelPassword=a\\\"b'#c&x=1\"", "\"h?sentinelPassword=*******&x=1\""),
            ("'h?sentinelPassword=${WORD}&service=a'", "'h?sentinelPassword=${WORD}&service=a'"),
            ("exempt = [\"a@b\", \"é\"]", "exempt = [\"a@b\", \"é\"]"),
        ] {
            assert_eq!(blank(text), blanked);
        }
    }

    #[test]
    fn secrets_are_blanked_however_they_are_written() {
        for (text, blanked) in [
            ("hmac_secret = \"a b\\\"c\" # x", "hmac_secret = \"******\" # x"),
            ("jwt = { hmac_secret='ab', issuer = \"i\" }", "jwt = { hmac_secret='**', issuer = \"i\" }"),
            ("\"hmac_secret\" = abc, x", "\"hmac_secret\" = ***, x"),
            ("hmac_secret = \"ab\nx = 1", "hmac_secret = \"**\nx = 1"),
            ("hmac_secret = \"\"\"\nab\n\"\"\"\nx = 1", "hmac_secret = \"\"\"****\"\"\"\nx = 1"),
            ("hmac_secret = \"${WORD}\"", "hmac_secret = \"${WORD}\""),
            ("hmac_secret = \"é", "hmac_secret = \"**"),
            ("hmac_secret =", "hmac_secret ="),
            ("token = \"ab\" # tokens", "token = \"**\" # tokens"),
        ] {
            assert_eq!(blank(text), blanked);
        }
        let message = "`123` is no string: \"123\", 1234";
        assert_eq!(blank_message(message, "hmac_secret = 123"), "`******` is no string: \"******\", 1234");
    }
}
