//! Resources → rules. They are written as the reference's files, in JSON, which is YAML, so that one reader checks both.

use prost::Message;
use prost_types::{Any, Struct, Value as ProtoValue, value::Kind};
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};
use tollgate_limiter::OnFailure;

use crate::{
    config::{Diagnostics, RatelimitFolder, VALUES_MOST},
    decisions::{Unit, json_of},
};

use super::messages::{RULES, RuleEntry, RulePolicy, RulesConfig};

/// The most levels of descriptors. In YAML, each is a list and a map, of which there may be 64.
const LEVELS_MOST: usize = 31;

/// Returns a hash of resources that doesn't depend on their order, which is random for servers that keep them in a map.
pub(super) fn hash(resources: &[Any]) -> [u8; 32] {
    let mut sorted: Vec<&Any> = resources.iter().collect();
    sorted.sort_unstable_by(|a, b| (&a.type_url, &a.value).cmp(&(&b.type_url, &b.value)));
    let mut hash = Sha256::new();
    for resource in sorted {
        // With their lengths, different resources can't give the same bytes.
        hash.update(resource.encode_length_delimited_to_vec());
    }
    hash.finalize().into()
}

/// Reads the rules of all resources.
///
/// # Errors
/// What is wrong with each of them.
pub(crate) fn read(
    resources: &[Any],
    on_failure: OnFailure,
    merges: bool,
) -> Result<RatelimitFolder, Diagnostics> {
    let mut texts = Vec::with_capacity(resources.len());
    for (place, resource) in resources.iter().enumerate() {
        let fault = |fault: String| Diagnostics::of(&format!("resource {place}"), &fault);
        if resource.type_url != RULES {
            return Err(fault(format!("this has the type `{}`\nsend `{RULES}`", resource.type_url)));
        }
        let config = RulesConfig::decode(&*resource.value)
            .map_err(|error| fault(format!("this is malformed: {error}\nsend `{RULES}`")))?;
        let name = if config.name.is_empty() { format!("resource {place}") } else { config.name.clone() };
        let text = written(&config).map_err(|error| Diagnostics::of(&name, &error))?;
        texts.push((name, text));
    }
    RatelimitFolder::of_texts(texts, on_failure, merges)
}

/// Returns rules as the reference's files have them.
///
/// # Errors
/// An entry is malformed, or there are more values than a file may have.
fn written(config: &RulesConfig) -> Result<String, String> {
    let descriptors = RuleWriter { values_left: VALUES_MOST }.entries(&config.descriptors, 1)?;
    let json = format!("{:#}", json!({ "domain": config.domain, "descriptors": descriptors }));
    // In YAML, some characters end a line or can't be written as they are.
    let mut text = String::with_capacity(json.len());
    for character in json.chars() {
        match u32::from(character) {
            code if code < 0x7f || character.is_alphanumeric() => text.push(character),
            code => text += &format!("\\U{code:08x}"),
        }
    }
    Ok(text)
}

/// Writes entries, as many as a file may have.
struct RuleWriter {
    values_left: usize,
}

impl RuleWriter {
    fn note(&mut self, values: usize) -> Result<(), String> {
        let left = self.values_left.checked_sub(values);
        self.values_left =
            left.ok_or_else(|| format!("there are more than {VALUES_MOST} values\nsend fewer"))?;
        Ok(())
    }

    fn entries(&mut self, entries: &[Vec<u8>], level: usize) -> Result<Value, String> {
        if level > LEVELS_MOST {
            return Err(format!("there are more than {LEVELS_MOST} levels of descriptors\nsend fewer"));
        }
        self.note(entries.len())?;
        entries.iter().map(|entry| self.entry(entry, level)).collect()
    }

    fn entry(&mut self, entry: &[u8], level: usize) -> Result<Value, String> {
        let entry = RuleEntry::decode(entry)
            .map_err(|error| format!("a descriptor is malformed: {error}\nsend `{RULES}`"))?;
        let replaced = entry.rate_limit.as_ref().map_or(0, |limit| limit.replaces.len());
        self.note(replaced + entry.metadata.as_ref().map_or(0, values_of))?;
        let below = match &entry.descriptors[..] {
            [] => None,
            below => Some(self.entries(below, level + 1)?),
        };
        Ok(written_entry(&entry, below))
    }
}

/// Returns the number of values in metadata.
fn values_of(metadata: &Struct) -> usize {
    metadata.fields.values().map(values_in).sum()
}

fn values_in(value: &ProtoValue) -> usize {
    1 + match &value.kind {
        Some(Kind::ListValue(list)) => list.values.iter().map(values_in).sum(),
        Some(Kind::StructValue(fields)) => values_of(fields),
        _ => 0,
    }
}

fn written_entry(entry: &RuleEntry, below: Option<Value>) -> Value {
    let mut fields = Map::new();
    fields.insert("key".to_owned(), entry.key.as_str().into());
    if !entry.value.is_empty() {
        fields.insert("value".to_owned(), entry.value.as_str().into());
    }
    if let Some(limit) = &entry.rate_limit {
        fields.insert("rate_limit".to_owned(), policy(limit));
    }
    if let Some(below) = below {
        fields.insert("descriptors".to_owned(), below);
    }
    for (name, flag) in [("shadow_mode", entry.shadow_mode), ("quota_mode", entry.quota_mode)] {
        if flag {
            fields.insert(name.to_owned(), true.into());
        }
    }
    if let Some(metadata) = &entry.metadata {
        fields.insert("metadata".to_owned(), json_of(metadata));
    }
    Value::Object(fields)
}

fn policy(limit: &RulePolicy) -> Value {
    let mut fields = Map::new();
    if limit.unlimited {
        fields.insert("unlimited".to_owned(), true.into());
    } else {
        let unit =
            Unit::try_from(limit.unit).map_or_else(|_| limit.unit.to_string(), |unit| format!("{unit:?}"));
        fields.insert("unit".to_owned(), unit.to_lowercase().into());
        fields.insert("requests_per_unit".to_owned(), limit.requests_per_unit.into());
    }
    if !limit.name.is_empty() {
        fields.insert("name".to_owned(), limit.name.as_str().into());
    }
    if !limit.replaces.is_empty() {
        let replaced = limit.replaces.iter().map(|replaced| json!({ "name": replaced.name }));
        fields.insert("replaces".to_owned(), replaced.collect());
    }
    Value::Object(fields)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::{super::messages::ReplacedRule, *};

    fn resource(config: &RulesConfig) -> Any {
        Any { type_url: RULES.to_owned(), value: config.encode_to_vec() }
    }

    fn rules(resources: &[Any]) -> Result<RatelimitFolder, String> {
        read(resources, OnFailure::Deny, false).map_err(|faults| faults.to_string())
    }

    fn limited(key: &str, value: &str, unit: Unit) -> RuleEntry {
        let limit = RulePolicy { unit: unit.into(), requests_per_unit: 5, ..RulePolicy::default() };
        RuleEntry { key: key.into(), value: value.into(), rate_limit: Some(limit), ..RuleEntry::default() }
    }

    fn shop(descriptors: &[RuleEntry]) -> RulesConfig {
        let descriptors = descriptors.iter().map(RuleEntry::encode_to_vec).collect();
        RulesConfig { name: "of-shop".into(), domain: "shop".into(), descriptors }
    }

    #[test]
    fn rules_are_those_of_the_same_file() {
        let replaces = vec![ReplacedRule { name: "all".into() }];
        let named = RulePolicy { name: "named".into(), replaces, unlimited: true, ..RulePolicy::default() };
        let level = ProtoValue { kind: Some(Kind::NumberValue(3.0)) };
        let metadata = Struct { fields: BTreeMap::from([("level".to_owned(), level)]) };
        let below = vec![limited("b", "\u{7f}\"\\\n\u{e4}: {", Unit::Week).encode_to_vec()];
        let one = RuleEntry { descriptors: below, shadow_mode: true, ..limited("a", "x*", Unit::Month) };
        let two = RuleEntry {
            rate_limit: Some(named),
            quota_mode: true,
            metadata: Some(metadata),
            ..limited("c", "", Unit::Day)
        };
        let read = rules(&[resource(&shop(&[one, two]))]).unwrap();
        let [domain] = &read.domains[..] else { panic!("{read:?}") };
        let yaml = "domain: shop
descriptors:
- key: a
  value: x*
  shadow_mode: true
  rate_limit: { unit: month, requests_per_unit: 5 }
  descriptors:
  - key: b
    value: \"\\x7f\\\"\\\\\\n\u{e4}: {\"
    rate_limit: { unit: week, requests_per_unit: 5 }
- key: c
  quota_mode: true
  metadata: { level: 3.0 }
  rate_limit: { unlimited: true, name: named, replaces: [{ name: all }] }
";
        let expected =
            RatelimitFolder::of_texts([("f".to_owned(), yaml.to_owned())], OnFailure::Deny, false).unwrap();
        assert_eq!((domain, &read.limits), (&expected.domains[0], &expected.limits));
    }

    #[test]
    fn wrong_rules_are_told() {
        let told = |entry| rules(&[resource(&shop(&[entry]))]).unwrap_err();
        let fault = told(limited("a", "", Unit::Unknown));
        assert!(fault.contains("`unknown` is not a unit of time") && fault.contains("of-shop"), "{fault}");
        let future = RulePolicy { unit: 99, ..RulePolicy::default() };
        let fault = told(RuleEntry { rate_limit: Some(future), ..limited("a", "", Unit::Day) });
        assert!(fault.contains("`99` is not a unit of time"), "{fault}");
        assert!(told(limited("", "b", Unit::Day)).contains("this descriptor has no `key`"));
        let fault = rules(&[resource(&shop(&[])), resource(&shop(&[]))]).unwrap_err();
        assert!(fault.contains("already a file for this domain"), "{fault}");
        let twice = [(); 2].map(|()| resource(&shop(&[limited("a", "", Unit::Day)])));
        let fault = read(&twice, OnFailure::Deny, true).unwrap_err().to_string();
        assert!(
            fault.contains("already a descriptor `a`") && fault.contains("first in of-shop:4"),
            "{fault}"
        );
        let malformed = Any { type_url: RULES.to_owned(), value: vec![0xff] };
        assert!(rules(&[malformed]).unwrap_err().contains("malformed"));
        assert!(rules(&[Any::default()]).unwrap_err().contains("this has the type ``"));
        assert!(rules(&[]).unwrap().domains.is_empty());
        let mut deep = limited("a", "", Unit::Day);
        for _ in 0..80 {
            deep = RuleEntry { descriptors: vec![deep.encode_to_vec()], ..limited("a", "", Unit::Day) };
        }
        assert!(rules(&[resource(&shop(&[deep]))]).unwrap_err().contains("more than 31 levels"));
        let many = RulesConfig {
            domain: "d".into(),
            descriptors: vec![vec![]; 2_000_000],
            ..RulesConfig::default()
        };
        assert!(rules(&[resource(&many)]).unwrap_err().contains("more than 200000 values"));
        let item = ProtoValue { kind: Some(Kind::BoolValue(true)) };
        let list = ProtoValue {
            kind: Some(Kind::ListValue(prost_types::ListValue { values: vec![item; 300_000] })),
        };
        let metadata = Some(Struct { fields: BTreeMap::from([("a".to_owned(), list)]) });
        let fault = told(RuleEntry { metadata, ..limited("a", "", Unit::Day) });
        assert!(fault.contains("more than 200000 values"), "{fault}");
    }
}
