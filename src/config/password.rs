//! No password is ever told: not in a message, not in a line of the file that is drawn below it.
//!
//! A url that is wrong can't be taken apart, so this looks at text. In any string in quotes and in any other
//! word, what stands before the last `@` is a password: after the first `:`, in a url the first after the
//! `//`, or if there is none all of it after the `//`; and so is the value of a parameter `…password=`. Only
//! `${NAME}` gives nothing away. Each byte becomes an asterisk, so that places in the text stay where they are.

use std::ops::Range;

/// The text with its passwords blanked.
pub(super) fn blank(text: &str) -> String {
    text.split_inclusive('\n').map(blank_line).collect()
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
        blanked += &blank_token(token);
        rest = after;
    }
    blanked
}

/// Bytes up to and with the closing quote, or all.
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

fn blank_token(token: &str) -> String {
    let before_host = token.rfind('@').and_then(|end| {
        let user = token[..end].find("://").map(|slashes| slashes + 3);
        let colon = token[user.unwrap_or(0)..end].find(':').map(|colon| user.unwrap_or(0) + colon + 1);
        colon.or(user).map(|start| start..end)
    });
    let mut blanked = token.to_owned();
    for secret in before_host.into_iter().chain(parameters(token)) {
        if !is_reference(&token[secret.clone()]) {
            blanked.replace_range(secret.clone(), &"*".repeat(secret.len()));
        }
    }
    blanked
}

/// Where the values of parameters stand whose name ends in `password`.
fn parameters(token: &str) -> impl Iterator<Item = Range<usize>> {
    const NAME: &str = "password=";
    let lower = token.to_ascii_lowercase();
    let starts: Vec<usize> = lower.match_indices(NAME).map(|(at, _)| at + NAME.len()).collect();
    starts.into_iter().map(|start| {
        let length = token[start..].find(['&', '"', '\'', '`', '#']).unwrap_or(token.len() - start);
        start..start + length
    })
}

/// Whether this is `${NAME}` and nothing else, which gives nothing away.
fn is_reference(text: &str) -> bool {
    let name = text.strip_prefix("${").and_then(|rest| rest.strip_suffix('}'));
    name.is_some_and(|name| name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_'))
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
            ("'h?sentinelPassword=${WORD}&service=a'", "'h?sentinelPassword=${WORD}&service=a'"),
            ("exempt = [\"a@b\", \"é\"]", "exempt = [\"a@b\", \"é\"]"),
        ] {
            assert_eq!(blank(text), blanked);
        }
    }
}
