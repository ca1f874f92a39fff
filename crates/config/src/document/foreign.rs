//! Recognizes text in the syntax of other programs and formats.

/// Returns the format of a text that is not TOML at all.
pub(super) fn format(text: &str) -> Option<&'static str> {
    let mut lines =
        text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with(['#', '/']));
    let first = lines.next()?;
    let ends_with = |ends: &[char]| text.lines().any(|line| line.trim_end().ends_with(ends));
    if first.starts_with('{') && !first.contains('=') {
        return Some(if ends_with(&[',', ':']) || text.contains("\":") { "JSON" } else { "a Caddyfile" });
    }
    let is_mapping = |line: &str| {
        line.trim_start_matches("- ").split_once(':').is_some_and(|(key, value)| {
            !key.is_empty() && is_bare(key) && (value.is_empty() || value.starts_with(' '))
        })
    };
    if first == "---" || (is_mapping(first) && !text.contains(['=', '['])) {
        return Some("YAML");
    }
    (first.ends_with(['{', ';']) && !first.contains('=')).then_some("nginx's configuration")
}

/// Returns what is wrong with a line that has a syntax error, and the remedy, if it is recognized.
pub(super) fn line(line: &str) -> Option<(String, String)> {
    let text = line.trim();
    let rows: [(bool, &str, &str); 6] = [
        (
            text.starts_with("//") || text.starts_with("/*") || text.contains(" // "),
            "this is not a comment",
            "begin comments with `#`",
        ),
        (
            ["<<<<<<<", "=======", ">>>>>>>"].iter().any(|marker| text.starts_with(marker)),
            "this is a conflict marker of Git",
            "keep one of the two versions, and remove the markers",
        ),
        (text.contains('\u{a0}'), "this line has a no-break space (U+00A0)", "write an ordinary space"),
        (
            text.contains(":\\") && text.contains('"'),
            "a backslash in double quotes begins an escape",
            "write single quotes: 'C:\\certs\\a.pem'",
        ),
        (
            text.contains("\"{\"") || text.contains("\"[{\""),
            "a double quote ends this string",
            "put JSON into single quotes: '{\"error\":\"slow down\"}'",
        ),
        (text.ends_with(';'), "no line ends with `;`", "remove it"),
    ];
    if let Some((_, message, help)) = rows.into_iter().find(|(applies, ..)| *applies) {
        return Some((message.to_owned(), help.to_owned()));
    }
    let (key, value) = text.split_once(':')?;
    let is_pair = is_bare(key) && !key.is_empty() && !value.trim().is_empty();
    is_pair.then(|| {
        let value = value.trim().trim_end_matches(',');
        let is_value = value.starts_with(['"', '\'', '[', '{']) || value.parse::<f64>().is_ok();
        let value = match value {
            text if !is_value && text != "true" && text != "false" => format!("\"{text}\""),
            value => value.to_owned(),
        };
        ("a key is followed by `=`, not by `:`".to_owned(), format!("write {key} = {value}"))
    })
}

/// Returns the remedy for a value that is not one in TOML. `line` is the rest of its line.
pub(super) fn value(raw: &str, line: &str) -> Option<String> {
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    let digits: String = line.chars().take_while(|c| c.is_ascii_digit() || *c == ',').collect();
    Some(match raw {
        "True" | "TRUE" | "yes" | "Yes" | "on" | "On" => "write `true`, or text in quotes".to_owned(),
        "False" | "FALSE" | "no" | "No" | "off" | "Off" => "write `false`, or text in quotes".to_owned(),
        "None" | "null" | "nil" => "leave the key out".to_owned(),
        _ if raw.starts_with("${") => {
            format!(
                "variables are replaced in quotes only: \"{raw}\"; where a number is needed, write it here"
            )
        }
        _ if is_number(raw) && digits.trim_end_matches(',').contains(',') => {
            format!("write the number without a comma: {}", digits.replace(',', ""))
        }
        _ if is_number(raw) && raw.len() > 1 && raw.starts_with('0') => {
            format!("write the number without a leading zero: {}", raw.trim_start_matches('0'))
        }
        _ => return None,
    })
}

/// Returns true if the text can be a key without quotes.
fn is_bare(text: &str) -> bool {
    text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_')
}
