//! Warns of callers that ask whether there is room, and probably report costs that are not recorded in any case.

use crate::gateway::plan::descriptors::DescriptorPlan;

use super::messages::Descriptor;

/// Warns once of each limit that is asked for 0 hits, unless its costs are reported.
pub(super) fn warn(domain: &[u8], descriptor: &Descriptor, plan: &DescriptorPlan) {
    if descriptor.hits_addend != Some(0) {
        return;
    }
    for (rule, _) in plan.rules.iter().filter(|(rule, _)| !rule.takes_reports()) {
        if !rule.is_first_look() {
            continue;
        }
        let name = rule.limit().name();
        let remedy = if plan.verdict.is_some() {
            let keys = descriptor.entries.iter().map(|entry| String::from_utf8_lossy(&entry.key));
            let keys = keys.collect::<Vec<_>>().join(",");
            let named = format!("{}:{keys}", String::from_utf8_lossy(domain));
            format!(
                "[decisions] reported = [\"{named}\"], or of `tollgate ratelimit` TOLLGATE_REPORTED={named}"
            )
        } else {
            format!("[limits.{name}] usage = \"reported\"")
        };
        tracing::warn!(
            limit = name,
            "a caller asks for 0 hits, as callers do that report costs later: a report that doesn't fit isn't counted \
             without {remedy}"
        );
    }
}
