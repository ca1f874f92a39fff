//! Recognizes references of other programs in secrets. Nothing replaces them, so everybody could know such a secret.

/// Checks that a secret isn't the text of a reference.
///
/// # Errors
/// It is one.
pub(super) fn refuse_reference(secret: &str) -> Result<(), String> {
    const ENCLOSED: [(&str, &str); 4] = [("$(", ")"), ("#{", "}"), ("{{", "}}"), ("${", "}")];
    const STARTS: [&str; 6] = ["env:", "vault:", "file:", "/run/", "/etc/", "/var/"];
    let is_name =
        |name: &str| !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
    let is_reference = ENCLOSED.iter().any(|(start, end)| secret.starts_with(start) && secret.ends_with(end))
        || STARTS.iter().any(|start| secret.starts_with(start))
        || secret.strip_prefix('%').and_then(|rest| rest.strip_suffix('%')).is_some_and(is_name);
    match is_reference {
        true => Err("this is the text of a reference, which nothing replaces\nwrite \"${NAME}\" for an environment variable, or \"${file:/run/secrets/token}\" for a file".to_owned()),
        false => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn references_are_told_from_random_text() {
        for text in
            ["%NAME%", "env:NAME", "$(cat a)", "file:///a", "/run/a", "vault:a#b", "#{A}", "{{ a }}", "${A}"]
        {
            assert!(refuse_reference(text).is_err(), "{text}");
        }
        for text in ["%a+b%", "%%", "/a/b=", "runs/a", "{a}", "a${B}", "#a"] {
            assert!(refuse_reference(text).is_ok(), "{text}");
        }
    }
}
