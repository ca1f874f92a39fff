//! The limits of a folder whose costs are reported. The files themselves can't say so.

use std::{collections::BTreeMap, sync::Arc};

use super::{DescriptorEntry, RatelimitFolder};
use crate::{CostUsage, LimitSettings};

impl RatelimitFolder {
    /// Marks the limits of descriptors with these keys. Returns true if there are any.
    pub fn mark_reported(&mut self, domain: &str, keys: &[String]) -> bool {
        let Self { domains, limits } = self;
        domains
            .iter()
            .find(|known| known.name == domain)
            .is_some_and(|known| mark(&known.entries, keys, limits))
    }
}

/// Marks the limits of the entries with these keys, level by level.
fn mark(
    entries: &[DescriptorEntry],
    keys: &[String],
    limits: &mut BTreeMap<String, Arc<LimitSettings>>,
) -> bool {
    let Some((key, below)) = keys.split_first() else { return false };
    let mut found = false;
    for entry in entries.iter().filter(|entry| entry.key == *key) {
        if !below.is_empty() {
            found |= mark(&entry.entries, below, limits);
        } else if let Some(name) = entry.verdict.as_ref().and_then(|verdict| verdict.limit.as_ref())
            && let Some(limit) = limits.get_mut(name).and_then(Arc::get_mut)
        {
            limit.usage = CostUsage::Reported;
            found = true;
        }
    }
    found
}
