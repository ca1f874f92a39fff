//! Descriptors by the rules of envoyproxy/ratelimit: level by level, and a limit counts only at the end of a descriptor.

use std::{
    collections::{BTreeMap, HashMap},
    ptr,
    sync::Arc,
};

use smallvec::SmallVec;

use crate::{
    config::{DescriptorEntry, KeyPart, ValuePattern, Verdict},
    rules::Rule,
};

use super::{Descriptor, DescriptorPlan};

/// The entries that can come next.
#[derive(Debug, Default)]
pub(super) struct EntryLevel {
    /// The children by key and value.
    exact: HashMap<Vec<u8>, HashMap<Vec<u8>, Branch>>,
    /// In the order of the file.
    patterns: Vec<(Vec<u8>, ValuePattern, Branch)>,
    /// The children by key, for values that nothing else matches.
    any: HashMap<Vec<u8>, Branch>,
}

/// An entry that has matched.
#[derive(Debug)]
struct Branch {
    leaf: Option<Leaf>,
    below: EntryLevel,
    /// The text that is counted instead of the value.
    shared: Option<Vec<u8>>,
}

/// The end of descriptors.
#[derive(Debug)]
struct Leaf {
    verdict: Arc<Verdict>,
    rule: Option<Arc<Rule>>,
}

impl EntryLevel {
    /// Prepares the entries of a level. The rules of the limits are `rules`, by name.
    pub(super) fn new(entries: &[DescriptorEntry], rules: &BTreeMap<String, Arc<Rule>>) -> Self {
        let mut level = Self::default();
        for entry in entries {
            let leaf = entry.verdict.as_ref().map(|verdict| Leaf {
                verdict: verdict.clone(),
                rule: verdict.limit.as_ref().map(|name| rules[name].clone()),
            });
            let shared =
                entry.value.as_ref().filter(|_| entry.shares).map(|value| value.to_string().into_bytes());
            let branch = Branch { leaf, below: Self::new(&entry.entries, rules), shared };
            let key = entry.key.clone().into_bytes();
            match &entry.value {
                None => drop(level.any.insert(key, branch)),
                Some(value) if value.is_fixed() => {
                    level.exact.entry(key).or_default().insert(value.to_string().into_bytes(), branch);
                }
                Some(pattern) => level.patterns.push((key, pattern.clone(), branch)),
            }
        }
        level
    }

    fn next(&self, key: &[u8], value: &[u8]) -> Option<&Branch> {
        let exact = self.exact.get(key).and_then(|values| values.get(value));
        let matches =
            |(of, pattern, _): &&(Vec<u8>, ValuePattern, Branch)| of == key && pattern.matches(value);
        let pattern = || self.patterns.iter().find(matches).map(|(_, _, branch)| branch);
        exact.or_else(pattern).or_else(|| self.any.get(key))
    }

    /// Returns the limit of a descriptor, if one is as deep as the descriptor. A descriptor that states its own rate is limited
    /// to that, also where the file has no limit.
    pub(super) fn plan(&self, descriptor: &Descriptor<'_>) -> Option<DescriptorPlan> {
        let mut level = self;
        let mut values = SmallVec::<[&[u8]; 4]>::new();
        let mut leaf = None;
        for (key, value) in &descriptor.entries {
            let branch = level.next(key, value)?;
            values.push(branch.shared.as_deref().unwrap_or(value));
            (level, leaf) = (&branch.below, branch.leaf.as_ref());
        }
        let Leaf { verdict, rule } = leaf.filter(|leaf| leaf.rule.is_some() || descriptor.rate.is_none())?;
        let terms = rule.as_ref().map(|rule| {
            // A key may come twice, so the place of the part counts.
            let parts = &rule.config().key;
            let place = |part: &KeyPart| parts.iter().position(|own| ptr::eq(own, part));
            let value = |part: &KeyPart| place(part).map(|place| values[place]);
            let terms = rule.terms_of_descriptor(value, descriptor.client, descriptor.hits, descriptor.rate);
            (rule.clone(), terms)
        });
        Some(DescriptorPlan { rules: terms.into_iter().collect(), verdict: Some(verdict.clone()) })
    }
}
