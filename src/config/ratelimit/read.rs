//! Reads a file of envoyproxy/ratelimit, and reports all that is wrong with it.

use std::{collections::BTreeMap, ops::Range, sync::Arc};

use tollgate_limiter::OnFailure;

use super::{DescriptorEntry, DomainSettings, Verdict, fields::json};
use crate::config::{
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
pub(super) type Fields<'n> = BTreeMap<&'n str, &'n YamlNode>;

/// The entries on the way to one: keys, and values as they are written.
pub(super) type Way = Vec<(String, Option<String>)>;

impl<'l> Reader<'l> {
    /// Creates a reader that adds limits.
    pub(super) fn new(on_failure: OnFailure, limits: &'l mut BTreeMap<String, Arc<LimitSettings>>) -> Self {
        Self { faults: Vec::new(), on_failure, limits }
    }

    pub(super) fn into_faults(self) -> Vec<Diagnostic> {
        self.faults
    }

    /// Reads the domain of a file, and where it is named. `None` if the file has none.
    pub(super) fn domain(&mut self, text: &str) -> Option<(DomainSettings, Range<usize>)> {
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
        let entries = self.entries(&fields, &mut way);
        Some((DomainSettings { name: name?, entries }, place?))
    }

    /// Reads the entries that can come next.
    fn entries(&mut self, fields: &Fields<'_>, way: &mut Way) -> Vec<DescriptorEntry> {
        let Some(node) = fields.get("descriptors").filter(|node| !node.is_null()) else { return Vec::new() };
        let YamlValue::List(items) = &node.value else {
            self.error(
                "`descriptors` must be a list",
                &node.span,
                "begin each descriptor with a hyphen: - key: …",
            );
            return Vec::new();
        };
        let mut places = BTreeMap::new();
        let mut entries = Vec::new();
        for item in items {
            let Some((entry, place)) = self.entry(item, way) else { continue };
            let own = (entry.key.clone(), entry.value.as_ref().map(ToString::to_string));
            if let Some(first) = places.insert(own, place.clone()) {
                let fault = Diagnostic::error(format!(
                    "there is already a descriptor `{}` with this value",
                    entry.key
                ));
                let fault = fault.at(&place, "again here").at(&first, "first here");
                self.faults.push(fault.help("remove one of the two, or give it another value"));
            }
            entries.push(entry);
        }
        entries
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
        let entries = self.entries(&fields, way);
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
    fn verdict(&mut self, fields: &Fields<'_>, way: &Way) -> Option<Verdict> {
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

fn first_line(text: &str) -> Range<usize> {
    0..text.lines().next().map_or(0, str::len)
}
