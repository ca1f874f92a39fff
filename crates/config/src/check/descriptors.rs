//! Checks the rules for descriptors.

use std::{collections::BTreeMap, mem, sync::Arc};

use super::Check;
use crate::{
    DescriptorRule, EntryRule, KeyPart, ValuePattern,
    error::Diagnostic,
    file::{DescriptorsTable, Spanned, SpannedTable},
    value::ParsedText,
};

/// The most entries of a descriptor.
pub(crate) const ENTRIES_MOST: usize = 16;

impl Check<'_, '_> {
    /// Returns the names of the limits of each rule. Inline limits are defined.
    pub(super) fn limits_of_descriptors(
        &mut self,
        tables: &mut [SpannedTable<DescriptorsTable>],
    ) -> Vec<Vec<Spanned<String>>> {
        let limits = tables.iter_mut().map(|table| {
            let limits = mem::take(&mut table.value.limits).into_iter();
            let named: Vec<_> = limits.filter_map(|limit| self.name_of_limit(limit)).collect();
            named.into_iter().map(|used| self.without_cost(used)).collect()
        });
        limits.collect()
    }

    /// Returns the rules for descriptors.
    pub(super) fn descriptors(
        &mut self,
        tables: Vec<SpannedTable<DescriptorsTable>>,
        limits: Vec<Vec<Spanned<String>>>,
        are_asked_for: bool,
    ) -> Vec<Arc<DescriptorRule>> {
        let mut rules: Vec<Arc<DescriptorRule>> = Vec::new();
        let mut places = Vec::new();
        if let Some(first) = tables.first().filter(|_| !are_asked_for && self.document.is_whole()) {
            let fault = Diagnostic::warning("nothing can ask for descriptors without a table [decisions]");
            self.fault(
                fault
                    .at(&first.span, "")
                    .help("add for example: [decisions] and listen = \"127.0.0.1:8081\""),
            );
        }
        for (table, limits) in tables.into_iter().zip(limits) {
            let place = table.span.clone();
            let Some(rule) = self.descriptor_rule(table, &limits) else { continue };
            let is_same_entry =
                |(own, other): (&EntryRule, &EntryRule)| own.key == other.key && own.value == other.value;
            let is_same = |other: &Arc<DescriptorRule>| {
                other.domain == rule.domain
                    && other.entries.len() == rule.entries.len()
                    && other.entries.iter().zip(&rule.entries).all(is_same_entry)
            };
            if let Some(first) = rules.iter().position(is_same) {
                let fault = Diagnostic::error("this rule matches the same descriptors as an earlier one");
                let fault = fault.at(&place, "again here").at(&places[first], "first here");
                self.fault(fault.help("remove one of the two, or list all limits in one rule"));
            } else if let Some(earlier) = rules.iter().position(|other| other.covers(&rule)) {
                let fault = Diagnostic::warning("this rule is never used: the first rule that matches is");
                let fault = fault.at(&place, "").at(&places[earlier], "matches all its descriptors");
                self.fault(fault.help("move it up, before the other one"));
            }
            rules.push(Arc::new(rule));
            places.push(place);
        }
        rules
    }

    fn descriptor_rule(
        &mut self,
        table: SpannedTable<DescriptorsTable>,
        limits: &[Spanned<String>],
    ) -> Option<DescriptorRule> {
        let SpannedTable { span, value: DescriptorsTable { domain, matches, counts_as, .. } } = table;
        if domain.is_none() {
            self.missing(&span, &["domain"], "domain = \"shop\"");
        }
        if matches.is_none() {
            self.missing(&span, &["match"], "match = { api_key = \"*\" }");
        }
        if limits.is_empty() {
            self.missing(&span, &["limits"], "limits = [\"per-key\"]");
        }
        let entries = self.entry_rules(matches?, counts_as);
        let domain = domain?;
        if domain.get_ref().0.is_empty() {
            let fault = Diagnostic::error("this domain is empty").at(&domain.span(), "");
            self.fault(fault.help("write the `domain` that the caller is configured with: \"shop\""));
        }
        let domain = domain.into_inner().0;
        let names = limits.iter().map(|name| name.get_ref().clone()).collect();
        let rule = DescriptorRule { domain, entries, limits: names };
        self.check_limits_of_rule(limits, &rule);
        Some(rule)
    }

    /// Returns the rules for the entries of a descriptor: what they match, and what they count as.
    fn entry_rules(
        &mut self,
        matches: Spanned<BTreeMap<Spanned<String>, ParsedText<ValuePattern>>>,
        counts_as: BTreeMap<Spanned<String>, Spanned<ParsedText<KeyPart>>>,
    ) -> Vec<EntryRule> {
        let (place, matches) = (matches.span(), matches.into_inner());
        if matches.is_empty() || matches.len() > ENTRIES_MOST {
            let fault = Diagnostic::error(format!("a descriptor has 1 to {ENTRIES_MOST} entries"));
            self.fault(
                fault.at(&place, "").help("name the keys of its entries: match = { api_key = \"*\" }"),
            );
        }
        let mut parts: Vec<_> = counts_as.into_iter().map(|(key, part)| (key, part.into_inner().0)).collect();
        let mut entries = Vec::with_capacity(matches.len());
        for (key, value) in matches {
            self.warn_of_expression(&value.0.to_string(), &key.span());
            if value.0.to_string().is_empty() {
                let fault =
                    Diagnostic::warning(format!("this matches only an empty `{key}`")).at(&key.span(), "");
                self.fault(fault.help(format!("for any value write {key} = \"*\"")));
            }
            let is_of = |(of, _): &(Spanned<String>, _)| of.get_ref() == key.get_ref();
            let counts_as = parts.iter().position(is_of).map(|at| parts.remove(at).1);
            entries.push(EntryRule { key: key.into_inner(), value: value.0, counts_as });
        }
        self.refuse_strays(&parts, &entries);
        entries
    }

    /// Reports keys of `as` that the rule doesn't match.
    fn refuse_strays<T>(&mut self, strays: &[(Spanned<String>, T)], entries: &[EntryRule]) {
        for (key, _) in strays {
            let fault = Diagnostic::error(format!("`match` has no entry `{key}`")).at(&key.span(), "");
            let known: Vec<_> = entries.iter().map(|entry| format!("`{}`", entry.key)).collect();
            self.fault(fault.help(format!("name one of its keys: {}", known.join(", "))));
        }
    }

    /// Checks that the limits of a rule exist, and count by what the rule's descriptors have.
    fn check_limits_of_rule(&mut self, limits: &[Spanned<String>], rule: &DescriptorRule) {
        for name in self.used_limits(limits, "rule") {
            let limit = self.limits.get_mut(name.get_ref()).and_then(|defined| defined.limit.as_mut());
            let Some(limit) = limit else { continue };
            // A call states what it costs, if there can be calls.
            limit.costs_vary |= self.has_decisions_table;
            let is_lacking = |part: &&KeyPart| **part != KeyPart::Global && rule.entry_of(part).is_none();
            let lacking = limit.key.iter().find(is_lacking).map(ToString::to_string);
            let has_no_end = !limit.ends_with_decision();
            if let Some(part) = lacking {
                let fault = format!("limit `{name}` counts by `{part}`, which these descriptors don't have");
                let keys: Vec<_> = rule.entries.iter().map(|entry| entry.key.as_str()).collect();
                let other = match part.strip_prefix("descriptor:") {
                    Some(key) => format!("add `{key}` to `match`"),
                    None => {
                        let first = keys.first().copied().unwrap_or("api_key");
                        format!("say which entry it is: as = {{ {first} = \"{part}\" }}")
                    }
                };
                self.fault(Diagnostic::error(fault).at(&name.span(), "").help(format!(
                    "count by an entry, key = \"descriptor:{}\", or {other}",
                    keys.join("\" or \"descriptor:"),
                )));
            }
            if has_no_end {
                let fault = Diagnostic::error(format!(
                    "limit `{name}` depends on the response, which the caller doesn't show"
                ));
                let help = "use a limit without `concurrency`, `when_status` and a cost of the response";
                self.fault(fault.at(&name.span(), "").help(help));
            }
        }
    }
}
