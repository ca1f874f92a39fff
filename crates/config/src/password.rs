//! Blanks passwords and secrets in messages and in the quoted lines of a file.
//!
//! An invalid URL can't be parsed reliably, so this works on text. In each quoted string and each other word,
//! the text before the last `@` counts as a password: from after the first `:`, or in a URL the first one
//! after `//`, or if there is none, everything after `//`. So does the value of a parameter `…password=`.
//! Only a lone `${NAME}` is kept. Each byte becomes an asterisk, so that positions in the text stay valid.
//! The values of keys whose name tells of a secret, or nearly, are blanked, too, wherever they occur, and so
//! are the fields of `request_headers`, and keys in PEM.

use std::{collections::BTreeSet, ops::Range};

use tollgate_limiter::store::redis::password::{blank_word, is_reference};

use super::error::nearest;

/// Parts of the names of keys that hold a secret.
const SECRETS: [&str; 10] = [
    "token",
    "secret",
    "passw",
    "pwd",
    "api_key",
    "api-key",
    "apikey",
    "authorization",
    "cookie",
    "credential",
];

/// Returns true if a key of this name, or the one that was probably meant, holds a secret.
pub(super) fn is_of_secret(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    SECRETS.iter().any(|secret| name.contains(secret))
        || nearest(&name, ["token", "secret", "password", "hmac_secret"]).is_some()
}

/// Returns true if a value is the content of a file, which may be a key.
pub(super) fn is_content(value: &str) -> bool {
    value.contains(['\n', '\r']) || value.starts_with("-----BEGIN")
}

/// Returns the text of a file with its passwords blanked.
pub(super) fn blank(text: &str) -> String {
    let mut blanked = text.to_owned();
    for secret in secrets(text).chain(pem(text)) {
        let asterisks = |line: &str| "*".repeat(line.len());
        let lines: Vec<_> = text[secret.clone()].split('\n').map(asterisks).collect();
        blanked.replace_range(secret, &lines.join("\n"));
    }
    blank_lines(&blanked)
}

/// Returns a message about a file with its passwords and these secrets of the file blanked.
pub(super) fn blank_message(message: &str, secrets: &BTreeSet<&str>) -> String {
    let blanked = secrets.iter().filter(|secret| message.contains(**secret)).fold(
        message.to_owned(),
        |message, secret| {
            ['`', '"', '\''].into_iter().fold(message, |message, quote| {
                let quoted = format!("{quote}{secret}{quote}");
                message.replace(&quoted, &format!("{quote}******{quote}"))
            })
        },
    );
    blank_lines(&blanked)
}

/// Returns the values in a file that are secrets.
pub(super) fn secrets_of(text: &str) -> BTreeSet<&str> {
    secrets(text).map(|secret| &text[secret]).collect()
}

fn blank_lines(text: &str) -> String {
    text.split_inclusive('\n').map(blank_line).collect()
}

/// Returns the positions of keys and certificates in PEM.
fn pem(text: &str) -> impl Iterator<Item = Range<usize>> {
    text.match_indices("-----BEGIN ").map(|(start, _)| {
        let rest = &text[start..];
        let end = rest.find("-----END ").map(|end| end + rest[end..].find(['\n', '"', '\'']).unwrap_or(0));
        start..start + end.unwrap_or_else(|| rest.find('\n').unwrap_or(rest.len()))
    })
}

/// Returns the positions of the values that are secrets, without their quotes. A value in triple quotes ends
/// at the next ones, a list at its bracket, any other at the end of its line.
fn secrets(text: &str) -> impl Iterator<Item = Range<usize>> {
    let headers: Vec<_> = text.match_indices("\n[").map(|(end, _)| end + 1).collect();
    text.match_indices(['=', ':']).filter_map(move |(at, sign)| {
        let name = name_before(text, at, sign)?;
        let value = text[at + 1..].trim_start_matches([' ', '\t']);
        let is_field = || &text[name.clone()] != "remove" && is_in_fields(text, name.start, &headers);
        let is_secret = is_of_secret(&text[name.clone()]) || is_field();
        let is_inline = text[name.clone()].ends_with("_file")
            && value.trim_start_matches(['"', '\'', '\n']).starts_with('{');
        let secret = match value_in(value)? {
            value if is_secret || is_inline => value,
            // Without a scheme, a user name may be the password.
            value if &text[name] == "url" => {
                value.rsplit_once('@').map(|(user, _)| user).filter(|user| !user.contains(':'))?
            }
            _ => return None,
        };
        let start = secret.as_ptr() as usize - text.as_ptr() as usize;
        let is_plain = !secret.contains(char::is_alphanumeric)
            || is_reference(secret)
            || secret.starts_with("${file:") && !secret.contains(":-")
            || secret.starts_with("header:")
            || secret
                .strip_prefix('$')
                .is_some_and(|name| name.bytes().all(|b| b.is_ascii_lowercase() || b == b'_'));
        (!is_plain).then_some(start..start + secret.len())
    })
}

/// Returns the position of the name that is before this sign. A `:` follows only the first word of a line.
fn name_before(text: &str, at: usize, sign: &str) -> Option<Range<usize>> {
    let end = text[..at].trim_end_matches([' ', '\t']).trim_end_matches(['"', '\'']).len();
    let is_of_name = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    let start = text[..end].trim_end_matches(is_of_name).len();
    let before = text[..start].trim_end_matches(['"', '\'']);
    let is_first =
        || before.trim_end_matches([' ', '\t', '-', '{']).chars().next_back().is_none_or(|c| c == '\n');
    let is_name = match sign {
        ":" => is_first(),
        _ => before.chars().next_back().is_none_or(|c| matches!(c, '\n' | ' ' | '\t' | '{' | ',' | '.')),
    };
    (start < end && is_name).then_some(start..end)
}

/// Returns true if a key at this place is in a table with the header fields of requests. The headers of tables begin at `headers`.
fn is_in_fields(text: &str, place: usize, headers: &[usize]) -> bool {
    const FIELDS: &str = "request_headers";
    let before = &text[..place];
    let line = before.rsplit('\n').next().unwrap_or_default();
    let above = headers.partition_point(|start| *start < place).checked_sub(1);
    let header = above.and_then(|at| before[headers[at]..].lines().next());
    line.contains(FIELDS) || header.is_some_and(|header| header.contains(FIELDS))
}

/// Returns the value that the text begins with, without its quotes. `None` for a table.
fn value_in(text: &str) -> Option<&str> {
    if let Some(quotes) = ["\"\"\"", "'''"].into_iter().find(|quotes| text.starts_with(quotes)) {
        return text[3..].split(quotes).next();
    }
    let line = text.lines().next().unwrap_or_default();
    match line.chars().next()? {
        quote @ ('"' | '\'') => Some(line[1..quoted_length(line, quote)].trim_end_matches(quote)),
        '{' => None,
        '[' => line[1..].split(']').next(),
        _ => line.split([' ', '\t', ',', '}', '#']).next(),
    }
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
            ("hmac_secret = \"\"\"\nab\n\"\"\"\nx = 1", "hmac_secret = \"\"\"\n**\n\"\"\"\nx = 1"),
            ("tokn = \"ab\"\nmy_Password='ab'", "tokn = \"**\"\nmy_Password='**'"),
            ("token: \"ab\"\n- \"api_key\": ab", "token: \"**\"\n- \"api_key\": **"),
            ("url = \"ab@h:1\"", "url = \"**@h:1\""),
            ("token = [\"ab\"] # x", "token = [****] # x"),
            ("match = { api_key = \".*\" }", "match = { api_key = \".*\" }"),
            ("as = { api_key = \"header:x-a\" }", "as = { api_key = \"header:x-a\" }"),
            ("per-token = { key = \"ip\" }", "per-token = { key = \"ip\" }"),
            ("token = \"${file:ab}\"", "token = \"${file:ab}\""),
            ("request_headers = { set = { x-a = \"ab\" } }", "request_headers = { set = { x-a = \"**\" } }"),
            ("\n[routes.request_headers.add]\nx-a = \"ab\"", "\n[routes.request_headers.add]\nx-a = \"**\""),
            ("jwks_file = '''{\"k\":1}'''", "jwks_file = '''*******'''"),
            (
                "key = \"-----BEGIN KEY-----\nab\n-----END KEY-----\n\"",
                "key = \"*******************\n**\n*****************\n\"",
            ),
            ("hmac_secret = \"${WORD}\"", "hmac_secret = \"${WORD}\""),
            ("hmac_secret = \"é", "hmac_secret = \"**"),
            ("hmac_secret =", "hmac_secret ="),
            ("token = \"ab\" # tokens", "token = \"**\" # tokens"),
        ] {
            assert_eq!(blank(text), blanked);
        }
        let message = "`123` is no string: \"123\", 1234";
        let secrets = secrets_of("hmac_secret = 123");
        assert_eq!(blank_message(message, &secrets), "`******` is no string: \"******\", 1234");
    }
}
