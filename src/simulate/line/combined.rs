//! The combined format: `192.0.2.7 - - [21/Nov/2026:07:45:12 +0000] "GET / HTTP/1.1" 200 5 "-" "curl"`.
//!
//! nginx is often configured to append `$request_time`. That is recognized as a number with a decimal point,
//! by itself or as `rt=0.012`. nginx writes a line when the response has ended, so the duration gives the
//! time of arrival.

use std::{borrow::Cow, str};

use hyper::header::{HeaderValue, REFERER, USER_AGENT};

use super::{Logged, Wanted, read_clf_time, read_client, read_request};

pub(super) fn read(line: &[u8], wanted: &Wanted) -> Result<Logged, &'static str> {
    let mut rest = line;
    let first = word(&mut rest)?;
    let (client, host) = match read_client(first) {
        Ok(client) => (client, None),
        // The virtual host may be in front.
        Err(fault) => (read_client(word(&mut rest)?).map_err(|_| fault)?, HeaderValue::from_str(first).ok()),
    };
    // The next two fields are the identity and the user. The second one may contain spaces.
    let bracket = rest.iter().position(|byte| *byte == b'[').ok_or("no time")?;
    rest = &rest[bracket + 1..];
    let end = rest.iter().position(|byte| *byte == b']').ok_or("no time")?;
    let at_us = read_clf_time(str::from_utf8(&rest[..end]).unwrap_or_default())?;
    rest = &rest[end + 1..];
    let (method, target) = read_request(&quoted(&mut rest).ok_or("no request")?)?;
    let status = word(&mut rest).ok().and_then(|status| status.parse().ok());
    let _bytes = word(&mut rest);
    let mut logged = Logged {
        at_us,
        took_us: None,
        client,
        method,
        target,
        host,
        status,
        headers: Vec::new(),
        has_all_headers: false,
        hidden: Vec::new(),
        answer_headers: Vec::new(),
        limits: Vec::new(),
    };
    for name in [REFERER, USER_AGENT] {
        if let Some(value) = quoted(&mut rest) {
            logged.note_header(wanted, &name, &value);
        }
    }
    if let Some(took_us) = duration_us(rest) {
        logged.took_us = Some(took_us);
        logged.at_us = at_us.saturating_sub(took_us);
    }
    Ok(logged)
}

/// Returns the duration among the fields at the end of a line: a number of seconds with a decimal point.
fn duration_us(rest: &[u8]) -> Option<u64> {
    let others = str::from_utf8(rest).unwrap_or_default().split_ascii_whitespace();
    let took = others.map(|other| other.trim_start_matches("rt=").trim_start_matches("request_time="));
    let mut took = took.filter(|other| other.contains('.') && !other.contains('"'));
    let seconds = took.find_map(|other| other.parse::<f64>().ok()).filter(|seconds| *seconds >= 0.0)?;
    Some((seconds * 1e6) as u64)
}

/// Returns the text before the next space.
fn word<'l>(rest: &mut &'l [u8]) -> Result<&'l str, &'static str> {
    let line = rest.trim_ascii_start();
    let end = line.iter().position(|byte| *byte == b' ').unwrap_or(line.len());
    let word;
    (word, *rest) = line.split_at(end);
    str::from_utf8(word).ok().filter(|word| !word.is_empty()).ok_or("unknown format")
}

/// Returns the text within the next quotes, without the escapes of nginx and Apache: `\xHH`, `\"`, `\\`,
/// `\n`, `\r`, `\t`.
fn quoted<'l>(rest: &mut &'l [u8]) -> Option<Cow<'l, [u8]>> {
    let text = rest.trim_ascii_start().strip_prefix(b"\"")?;
    let mut at = 0;
    loop {
        match text.get(at)? {
            b'"' => break,
            b'\\' => at += 2,
            _ => at += 1,
        }
    }
    *rest = &text[at + 1..];
    let text = &text[..at];
    Some(if text.contains(&b'\\') { Cow::Owned(unescaped(text)) } else { Cow::Borrowed(text) })
}

fn unescaped(text: &[u8]) -> Vec<u8> {
    let mut plain = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((byte, after)) = rest.split_first() {
        rest = after;
        if *byte != b'\\' {
            plain.push(*byte);
            continue;
        }
        let Some((escape, after)) = rest.split_first() else { break };
        rest = after;
        let hex = || u8::from_str_radix(str::from_utf8(after.get(..2)?).ok()?, 16).ok();
        match (escape, hex()) {
            (b'x', Some(byte)) => {
                plain.push(byte);
                rest = &after[2..];
            }
            (b'n', _) => plain.push(b'\n'),
            (b'r', _) => plain.push(b'\r'),
            (b't', _) => plain.push(b'\t'),
            _ => plain.push(*escape),
        }
    }
    plain
}
