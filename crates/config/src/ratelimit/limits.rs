//! The limit at the end of a descriptor.

use std::sync::Arc;

use sha2::{Digest, Sha256};
use tollgate_limiter::{Quota, Rate, text};

use super::read::{Reader, Way, YamlFields};
use crate::{
    KeyPart, LimitSettings, Mode, algorithm_of_descriptors,
    yaml::{YamlNode, YamlValue},
};

const DAY_S: u64 = 24 * 3600;
/// The units of time, with their seconds.
const UNITS: [(&str, u64); 7] = [
    ("second", 1),
    ("minute", 60),
    ("hour", 3600),
    ("day", DAY_S),
    ("week", 7 * DAY_S),
    ("month", 30 * DAY_S),
    ("year", 365 * DAY_S),
];
/// Bytes of a domain and keys in the name of a limit.
const NAME_BYTES: usize = 40;

impl Reader<'_> {
    pub(super) fn replaces(&mut self, fields: &YamlFields<'_>, own: Option<&str>) -> Vec<String> {
        let Some(node) = fields.get("replaces").filter(|node| !node.is_null()) else { return Vec::new() };
        let YamlValue::List(items) = &node.value else {
            self.error(
                "`replaces` must be a list",
                &node.span,
                "write for example: replaces: [{ name: other }]",
            );
            return Vec::new();
        };
        let mut names = Vec::new();
        for item in items {
            let Some(fields) = self.fields(item, &["name"]) else { continue };
            let Some(name) = self.text(&fields, "name").filter(|name| !name.is_empty()) else {
                self.error(
                    "this entry has no `name`",
                    &item.span,
                    "name the limit that is replaced: name: other",
                );
                continue;
            };
            if own == Some(&name) {
                self.error(format!("limit `{name}` replaces itself"), &item.span, "name another limit");
            }
            names.push(name);
        }
        names
    }

    pub(super) fn rate(&mut self, fields: &YamlFields<'_>, node: &YamlNode) -> Option<Rate> {
        let names = UNITS.map(|(name, _)| name).join(", ");
        let place = fields.values().map(|field| field.span.clone()).next().unwrap_or(node.span.clone());
        let unit = match fields.get("unit") {
            None => {
                self.error("missing key `unit`", &place, format!("use one of {names}"));
                None
            }
            Some(unit) => {
                let text = unit.text().unwrap_or_default().to_lowercase();
                let known = UNITS.iter().find(|(name, _)| *name == text);
                if known.is_none() {
                    self.error(
                        format!("`{text}` is not a unit of time"),
                        &unit.span,
                        format!("use one of {names}"),
                    );
                }
                known
            }
        };
        let permits = match fields.get("requests_per_unit") {
            // As in the reference, where a number that isn't given is zero.
            None => Some(0),
            Some(permits) => {
                let number = permits.text().and_then(|text| text.parse::<u32>().ok());
                if number.is_none() {
                    let help = "use a whole number from 0 to 4294967295";
                    self.error("this is not a number of requests", &permits.span, help);
                }
                number
            }
        };
        let (_, seconds) = unit?;
        Some(Rate { permits: permits?.min(Rate::MAX_PERMITS), window_us: seconds * 1_000_000 })
    }

    /// Defines the limit at the end of this way, and returns its name.
    pub(super) fn limit(&mut self, rate: Rate, mode: Mode, way: &Way) -> String {
        let mut name = limit_name::<8>(way);
        if self.limits.contains_key(&name) {
            // Another way has the same hash, and keeps its name.
            name = limit_name::<32>(way);
        }
        let key = way[1..].iter().map(|(key, _)| KeyPart::Descriptor(key.clone())).collect();
        let quota = Quota::new(algorithm_of_descriptors(rate), rate);
        let limit = LimitSettings::of_descriptors(name.clone(), key, quota, self.on_failure);
        self.limits.insert(name.clone(), Arc::new(LimitSettings { mode, ..limit }));
        name
    }
}

/// Returns the name of a limit: the domain and the keys on the way, and so many digits of a hash.
fn limit_name<const DIGITS: usize>(way: &Way) -> String {
    let words = way.iter().flat_map(|(key, value)| [Some(key.as_str()), value.as_deref()]).flatten();
    let words = words.collect::<Vec<_>>().join("-").to_lowercase();
    let plain =
        words.chars().map(|character| if character.is_ascii_alphanumeric() { character } else { '-' });
    let mut name = String::new();
    for character in plain.filter(char::is_ascii) {
        if character != '-' || !name.ends_with('-') && !name.is_empty() {
            name.push(character);
        }
    }
    name.truncate(NAME_BYTES);
    let hash = Sha256::digest(serde_json::to_vec(way).expect("texts can be written"));
    let hash = text::hex::<DIGITS>(hash);
    format!("{}-{}", name.trim_end_matches('-'), str::from_utf8(&hash).expect("digits are ASCII"))
}
