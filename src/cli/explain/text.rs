//! An explanation as text for people.

use std::fmt::{self, Write};

use serde_json::Value;

use crate::cli::duration_text;

/// Returns the explanation as text for people.
pub(super) fn text(explained: &Value, in_colour: bool) -> String {
    let mut text = ExplanationText { text: String::new(), in_colour };
    write_request(&mut text, explained);
    write_route(&mut text, explained);
    for limit in list(&explained["limits"]) {
        write_limit(&mut text, limit);
    }
    write_next(&mut text, explained);
    text.text
}

/// Returns the explanation of a descriptor as text for people.
pub(super) fn descriptor_text(explained: &Value, in_colour: bool) -> String {
    let mut text = ExplanationText { text: String::new(), in_colour };
    let entries = names(&explained["entries"]);
    text.heading("descriptor", &format!("{} in the domain {}", entries, word(explained, "domain")));
    let limits = list(&explained["limits"]);
    if limits.is_empty() {
        text.line("limits", "none: no rule with a limit matches, so it is admitted");
    }
    for limit in limits {
        write_limit(&mut text, limit);
    }
    write_next(&mut text, explained);
    text.text
}

fn write_next(text: &mut ExplanationText, explained: &Value) {
    if let Some(next) = explained["next"].as_object() {
        let outcome = match (next["unknown"].as_str(), next["admitted"] == true) {
            (Some(unknown), _) => {
                let counted = list(&explained["limits"]).iter().filter(|limit| limit["outcome"] == "counted");
                let policies: Vec<_> = counted
                    .map(|limit| format!("{} {}", word(limit, "limit"), word(limit, "on_failure")))
                    .collect();
                format!("unknown: {unknown}. Meanwhile on_failure decides: {}", policies.join(", "))
            }
            (None, true) => "would be admitted".to_owned(),
            (None, false) => format!("would be refused by {}", names(&next["refused_by"])),
        };
        text.heading("next request", &outcome);
    }
}

fn write_request(text: &mut ExplanationText, explained: &Value) {
    let from = match (word(explained, "client"), word(explained, "peer")) {
        (client, peer) if client == peer => client.to_owned(),
        (client, peer) => format!("{client}, via the proxy {peer}"),
    };
    let [method, host, path] = ["method", "host", "path"].map(|name| word(explained, name));
    text.heading("request", &format!("{method} {host}{path} from {from}"));
    text.line("matched as", word(explained, "matched"));
    for reading in list(&explained["readings"]) {
        let route =
            reading["route"].as_str().map_or("no route".to_owned(), |name| format!("the route {name}"));
        text.line("or read as", &format!("{}, for {route}", word(reading, "path")));
    }
    if let Some(rejected) = explained["rejected"].as_object() {
        text.line("forwarded", "not at all");
        let [status, detail] = ["status", "detail"].map(|name| shown(&rejected[name]));
        text.heading("answer", &format!("{status}: {detail}"));
        // A gateway that runs has them.
        if rejected["code"] == "token-unverified" {
            text.line("", "the keys of jwks_url aren't fetched here: add --live to ask a gateway that runs");
        }
    }
}

fn write_route(text: &mut ExplanationText, explained: &Value) {
    let route = &explained["route"];
    if route.is_object() {
        text.heading("route", &format!("{}  ({})", word(route, "name"), word(route, "matches")));
        let [upstream, target, responds] = ["upstream", "target", "responds"].map(|name| &route[name]);
        match (upstream.as_str(), target.as_str(), responds.as_u64()) {
            (Some(upstream), target, _) => {
                text.line("upstream", &format!("{upstream}, as {}", target.unwrap_or_default()));
            }
            (None, Some(to), status) => {
                text.line("redirects", &format!("{} to {to}", status.unwrap_or_default()));
            }
            (None, None, Some(status)) => text.line("answers", &format!("{status}, from the gateway itself")),
            (None, None, None) => {}
        }
        if let Some(timeout_ms) = route["timeout_ms"].as_u64() {
            text.line("within", &duration_text(timeout_ms).to_string());
        }
        if route["requires"] == "jwt" {
            text.line("requires", "a valid token");
        }
    }
    for other in list(&explained["others"]) {
        text.line("not", &format!("{}: {}", word(other, "name"), word(other, "reason")));
    }
}

fn write_limit(text: &mut ExplanationText, limit: &Value) {
    let from = match word(limit, "rate_from") {
        "overrides" => ", an override of the file for this key",
        "request" => ", which the request states",
        "set" => ", set while the gateways run",
        _ => "",
    };
    let [name, rate, algorithm] = ["limit", "rate", "algorithm"].map(|name| word(limit, name));
    let calendar =
        limit["calendar"].as_str().map(|offset| format!(" by the calendar, {offset}")).unwrap_or_default();
    text.heading("limit", &format!("{name}  {rate} {algorithm}{calendar}{from}"));
    write_key(text, limit);
    text.line("costs", word(limit, "cost"));
    let mut terms = Vec::new();
    terms.extend((word(limit, "mode") == "shadow").then(|| "shadow mode: it refuses nothing".to_owned()));
    terms.extend((word(limit, "scope") == "instance").then(|| "each gateway counts alone".to_owned()));
    terms.extend(limit["ban"].as_str().map(|ban| format!("bans a key {ban}")));
    terms.extend(
        limit["wait_ms"].as_u64().map(|ms| format!("a refused request is held up to {}", duration_text(ms))),
    );
    if !terms.is_empty() {
        text.line("terms", &terms.join("; "));
    }
    if let Some(live) = limit["live"].as_object() {
        let outcome = match (live["admits"] == true, live["retry_after_ms"].as_u64()) {
            (true, _) => "the request would be admitted".to_owned(),
            (false, Some(ms)) if live.contains_key("banned_for_ms") => {
                format!("banned, retry in {}", duration_text(ms))
            }
            (false, Some(ms)) => format!("retry in {}", duration_text(ms)),
            (false, None) => "the request would be refused".to_owned(),
        };
        let scope = match live.contains_key("by_network") {
            true => " of the client's network, as the limit has no memory for more keys",
            false => "",
        };
        text.line("now", &format!("{} used, {} left{scope}: {outcome}", live["used"], live["remaining"]));
    }
}

/// Writes the key that a limit counts the request by, and the parts of all its keys.
fn write_key(text: &mut ExplanationText, limit: &Value) {
    let by = names(&limit["counts_by"]);
    match word(limit, "outcome") {
        "counted" => {
            let name = limit["known_as"].as_str().map(|name| format!(", known as {name}"));
            text.line("counts", &format!("{}{}", word(limit, "key"), name.unwrap_or_default()));
            for key in list(&limit["other_keys"]) {
                text.line("and", &format!("{}, as some servers read it", key.as_str().unwrap_or_default()));
            }
        }
        "exempt" => text.line("counts", &format!("no: exempt by `{}`", word(limit, "exempted_by"))),
        "skipped" => text.line("counts", &format!("no: the request has no {by}, and missing = \"skip\"")),
        _ => text.line("refuses", word(limit, "reason")),
    }
    let missing = match word(limit, "missing") {
        "ip" => "counted by its address",
        "skip" => "not counted",
        _ => "refused with 429",
    };
    let unknown = match limit["unknown"].as_str() {
        Some("ip") => "; with a key that the file lacks, it is counted by its address",
        Some(_) => "; with a key that the file lacks, it is refused with 401",
        None => "",
    };
    let may_lack = |part: &Value| !matches!(part.as_str(), Some("ip" | "method" | "route" | "global"));
    if list(&limit["counts_by"]).iter().any(may_lack) {
        text.line("counts by", &format!("{by}; without it, a request is {missing}{unknown}"));
    } else {
        text.line("counts by", &by);
    }
}

/// Returns a field that is a string, or nothing.
fn word<'v>(value: &'v Value, name: &str) -> &'v str {
    value[name].as_str().unwrap_or_default()
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map(Vec::as_slice).unwrap_or_default()
}

fn names(value: &Value) -> String {
    list(value).iter().map(shown).collect::<Vec<_>>().join(", ")
}

/// Returns a string without its quotes, any other value as JSON.
fn shown(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

/// An explanation in lines, each with a name and a value.
struct ExplanationText {
    text: String,
    in_colour: bool,
}

impl ExplanationText {
    fn heading(&mut self, name: &str, value: &str) {
        let (bold, plain) = if self.in_colour { ("\x1b[1m", "\x1b[0m") } else { ("", "") };
        let gap = if self.text.is_empty() { "" } else { "\n" };
        self.write(format_args!("{gap}{bold}{name:<13}{value}{plain}\n"));
    }

    fn line(&mut self, name: &str, value: &str) {
        let (dim, plain) = if self.in_colour { ("\x1b[2m", "\x1b[0m") } else { ("", "") };
        self.write(format_args!("  {dim}{name:<11}{plain}{value}\n"));
    }

    fn write(&mut self, line: fmt::Arguments<'_>) {
        self.text.write_fmt(line).expect("writing to a string succeeds");
    }
}
