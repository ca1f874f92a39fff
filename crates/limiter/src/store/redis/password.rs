//! Blanks the passwords of URLs, which may be invalid.

use std::ops::Range;

/// Returns a quoted string or a word with its password blanked. Any character that the token can contain can
/// be part of the password.
///
/// # Examples
///
/// ```
/// use tollgate_limiter::store::redis::password::blank_word;
///
/// assert_eq!(blank_word("redis://gateway:secret@10.0.0.1"), "redis://gateway:******@10.0.0.1");
/// ```
pub fn blank_word(token: &str) -> String {
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

/// Returns the positions of the values of parameters with a name that ends in `password`.
fn parameters(token: &str) -> impl Iterator<Item = Range<usize>> {
    const NAME: &str = "password=";
    let lower = token.to_ascii_lowercase();
    let starts: Vec<usize> = lower.match_indices(NAME).map(|(at, _)| at + NAME.len()).collect();
    let is_closed = token.starts_with(['"', '\'', '`']) && token.len() > 1 && token.ends_with(&token[..1]);
    let end = token.len() - usize::from(is_closed);
    starts
        .into_iter()
        .map(move |start| start..token[start..end].find('&').map_or(end, |length| start + length))
}

/// Returns true if the text is just `${NAME}`, which discloses nothing.
///
/// # Examples
///
/// ```
/// use tollgate_limiter::store::redis::password::is_reference;
///
/// assert!(is_reference("${REDIS_PASSWORD}") && !is_reference("secret"));
/// ```
pub fn is_reference(text: &str) -> bool {
    let name = text.strip_prefix("${").and_then(|rest| rest.strip_suffix('}'));
    name.is_some_and(|name| name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_'))
}
