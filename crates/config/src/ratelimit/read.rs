//! Reads a file of envoyproxy/ratelimit, and reports all that is wrong with it.

use std::{collections::BTreeMap, ops::Range, sync::Arc};

use tollgate_limiter::OnFailure;

use super::{DescriptorEntry, DomainSettings, Verdict, fields::json};
use crate::{
    LimitSettings, Mode, ValuePattern,
    error::Diagnostic,
    yaml::{self, YamlNode, YamlValue},
};

const ENTRY_KEYS: [&str; 10] = [
    "key",
    "value",
    "rate_limit",
    "descriptors",
    "shadow_mode",
    "quota_mode",
    "share_threshold",
    "detailed_metric",
    "value_to_metric",
    "metadata",
];
const LIMIT_KEYS: [&str; 5] = ["unit", "requests_per_unit", "unlimited", "name", "replaces"];

/// Reads a file.
pub(super) struct Reader<'l> {
    pub(super) faults: Vec<Diagnostic>,
    pub(super) on_failure: OnFailure,
    pub(super) limits: &'l mut BTreeMap<String, Arc<LimitSettings>>,
}

/// The fields of a map by their keys.
pub(super) type YamlFields<'n> = BTreeMap<&'n str, &'n YamlNode>;

/// The key of an entry, and its value as it is written.
pub(super) type EntryName = (String, Option<String>);

/// The places of the entries of a level.
pub(super) type EntryPlaces = BTreeMap<EntryName, Range<usize>>;

/// The entries on the way to one: keys, and values as they are written.
pub(super) type Way = Vec<EntryName>;

impl<'l> Reader<'l> {
    /// Creates a reader that adds limits.
    pub(super) fn new(on_failure: OnFailure, limits: &'l mut BTreeMap<String, Arc<LimitSettings>>) -> Self {
        Self { faults: Vec::new(), on_failure, limits }
    }

    pub(super) fn into_faults(self) -> Vec<Diagnostic> {
        self.faults
    }

    /// Reads the domain of a file, and the places of its name and of the entries that descriptors can begin with. `None` if the
    /// file has none.
    pub(super) fn domain(&mut self, text: &str) -> Option<(DomainSettings, Range<usize>, EntryPlaces)> {
        let root = match yaml::parse(text) {
            Ok(root) => root,
            Err(fault) => {
                self.faults.push(fault);
                return None;
            }
        };
        let Some(root) = root else {
            self.error("this file is empty", &(0..0), "write for example: domain: shop");
            return None;
        };
        let fields = self.fields(&root, &["domain", "descriptors"])?;
        let place = fields.get("domain").map(|node| node.span.clone());
        let name = self.text(&fields, "domain").filter(|name| !name.is_empty());
        if name.is_none() {
            let place = place.clone().unwrap_or(first_line(text));
            self.error("missing key `domain`", &place, "name the domain that Envoy states: domain: shop");
        }
        let mut way = vec![(name.clone().unwrap_or_default(), None)];
        let (entries, places) = self.entries(&fields, &mut way);
        Some((DomainSettings { name: name?, entries }, place?, places))
    }

    /// Reads the entries that can come next, and their places.
    fn entries(&mut self, fields: &YamlFields<'_>, way: &mut Way) -> (Vec<DescriptorEntry>, EntryPlaces) {
        let (mut entries, mut places) = (Vec::new(), EntryPlaces::new());
        let Some(node) = fields.get("descriptors").filter(|node| !node.is_null()) else {
            return (entries, places);
        };
        let YamlValue::List(items) = &node.value else {
            self.error(
                "`descriptors` must be a list",
                &node.span,
                "begin each descriptor with a hyphen: - key: …",
            );
            return (entries, places);
        };
        for item in items {
            let Some((entry, place)) = self.entry(item, way) else { continue };
            let own = (entry.key.clone(), entry.value.as_ref().map(ToString::to_string));
            if let Some(first) = places.insert(own, place.clone()) {
                let fault = duplicate(&entry.key).at(&place, "again here").at(&first, "first here");
                self.faults.push(fault.help("remove one of the two, or give it another value"));
            }
            entries.push(entry);
        }
        (entries, places)
    }

    fn entry(&mut self, node: &YamlNode, way: &mut Way) -> Option<(DescriptorEntry, Range<usize>)> {
        let fields = self.fields(node, &ENTRY_KEYS)?;
        let place = fields.get("key").map_or(node.span.start..node.span.start + 1, |key| key.span.clone());
        let key = self.text(&fields, "key").filter(|key| !key.is_empty());
        if key.is_none() {
            self.error("this descriptor has no `key`", &place, "add for example: key: api_key");
        }
        let value = self.text(&fields, "value").filter(|value| !value.is_empty());
        way.push((key.clone().unwrap_or_default(), value.clone()));
        let (entries, _) = self.entries(&fields, way);
        let verdict = self.verdict(&fields, way);
        way.pop();
        let value = value.map(|value| ValuePattern::new(&value));
        let shares = self.flag(&fields, "share_threshold");
        if shares && value.as_ref().is_none_or(ValuePattern::is_fixed) {
            let place = &fields["share_threshold"].span;
            self.error(
                "`share_threshold` needs a value with `*`",
                place,
                "remove it, or write for example: value: /v1/*",
            );
        }
        for key in ["detailed_metric", "value_to_metric"] {
            self.flag(&fields, key);
        }
        Some((DescriptorEntry { key: key?, value, shares, verdict: verdict.map(Arc::new), entries }, place))
    }

    /// Reads what holds for descriptors that end here. `None` if there is no limit.
    fn verdict(&mut self, fields: &YamlFields<'_>, way: &Way) -> Option<Verdict> {
        let shadows = self.flag(fields, "shadow_mode");
        let quota_mode = self.flag(fields, "quota_mode");
        let metadata = fields.get("metadata").filter(|node| !node.is_null()).map(|node| json(node));
        let node = fields.get("rate_limit").filter(|node| !node.is_null())?;
        let own = self.fields(node, &LIMIT_KEYS)?;
        let name = self.text(&own, "name").filter(|name| !name.is_empty());
        let replaces = self.replaces(&own, name.as_deref());
        let limit = if self.flag(&own, "unlimited") {
            for key in ["unit", "requests_per_unit"] {
                if let Some(node) = own.get(key) {
                    self.error(
                        format!("`{key}` has no effect with `unlimited`"),
                        &node.span,
                        "remove one of the two",
                    );
                }
            }
            None
        } else {
            let rate = self.rate(&own, node)?;
            let mode = if shadows { Mode::Shadow } else { Mode::Enforce };
            Some(self.limit(rate, mode, way))
        };
        Some(Verdict { limit, name, replaces, quota_mode, metadata })
    }
}

/// Returns the fault of an entry that is defined twice, without its places.
pub(super) fn duplicate(key: &str) -> Diagnostic {
    Diagnostic::error(format!("there is already a descriptor `{key}` with this value"))
}

fn first_line(text: &str) -> Range<usize> {
    0..text.lines().next().map_or(0, str::len)
}
