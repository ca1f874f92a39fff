//! The plan of a descriptor: which limits of a configuration it has, and by which keys they count it.

mod tree;

use std::{
    collections::{BTreeMap, HashMap},
    net::IpAddr,
    sync::Arc,
    time::Duration,
};

use smallvec::SmallVec;
use tollgate_limiter::{Algorithm, OnFailure, Quota, Rate};

use crate::{
    config::{Config, DescriptorRule, EntryRule, KeyPart, LimitSettings, Verdict, algorithm_of_descriptors},
    rules::{Rule, Terms, key::descriptor::address},
};

use self::tree::EntryLevel;

/// The limits of descriptors that state their own rate and have no rule.
const STATED: [&str; 2] = ["descriptor-limit", "descriptor-limit-long"];

/// The entry that Envoy's action of this name adds: the address of the client.
pub(crate) const REMOTE_ADDRESS: &str = "remote_address";

/// A descriptor as a caller sends it.
#[derive(Debug, Default)]
pub(crate) struct Descriptor<'d> {
    /// Keys and values of the entries.
    entries: SmallVec<[(&'d [u8], &'d [u8]); 4]>,
    /// The cost. 0 asks whether there is room.
    hits: u32,
    /// The rate that the descriptor states.
    rate: Option<Rate>,
    /// The address of the client, if an entry states it.
    client: Option<IpAddr>,
}

impl<'d> Descriptor<'d> {
    /// Creates a descriptor with these keys and values. Spaces around values are removed: a value may come from a header of HTTP/2,
    /// which upstreams may read without them.
    pub(crate) fn new(
        entries: impl Iterator<Item = (&'d [u8], &'d [u8])>,
        hits: u32,
        rate: Option<Rate>,
    ) -> Self {
        let entries: SmallVec<[_; 4]> = entries.map(|(key, value)| (key, value.trim_ascii())).collect();
        let client = client_in(entries.iter().copied());
        Self { entries, hits, rate, client }
    }

    /// Sets the address of the client, if it isn't known and another descriptor of the call states it.
    pub(crate) fn or_of_client(self, client: Option<IpAddr>) -> Self {
        Self { client: self.client.or(client), ..self }
    }
}

/// Returns the address of the client that entries state, as Envoy's action `remote_address` does.
pub(crate) fn client_in<'d>(mut entries: impl Iterator<Item = (&'d [u8], &'d [u8])>) -> Option<IpAddr> {
    entries.find(|(key, _)| *key == REMOTE_ADDRESS.as_bytes()).and_then(|(_, value)| address(value))
}

/// The plan of a descriptor. By default it has no rules.
#[derive(Debug, Default)]
pub(crate) struct DescriptorPlan {
    /// The rules, each with its terms for the descriptor.
    pub(crate) rules: SmallVec<[(Arc<Rule>, Terms); 1]>,
    /// The settings beside the rate, such as the limits that are replaced, if a rule of the rate limit service's folder matched.
    pub(crate) verdict: Option<Arc<Verdict>>,
}

/// An entry of `[[descriptors]]`, and the rules of its limits.
type DescribedRules = (Arc<DescriptorRule>, Vec<Arc<Rule>>);

/// The rules for the descriptors of each domain.
#[derive(Debug)]
pub(crate) struct DescriptorPlanner {
    entries: HashMap<Vec<u8>, Vec<DescribedRules>>,
    /// The domains of the rate limit service's folder.
    domains: HashMap<Vec<u8>, EntryLevel>,
    /// The limits of descriptors that state their own rate and have no rule: in short windows, and in long ones. `None` if
    /// nobody asks for descriptors.
    stated: [Option<Arc<Rule>>; 2],
}

impl DescriptorPlanner {
    /// Prepares the descriptors of a configuration. The rules of its limits are `rules`, by name.
    pub(crate) fn new(config: &Config, rules: &BTreeMap<String, Arc<Rule>>) -> Self {
        let mut entries: HashMap<Vec<u8>, Vec<_>> = HashMap::new();
        for entry in &config.descriptors {
            let own = entry.limits.iter().map(|name| rules[name].clone()).collect();
            entries.entry(entry.domain.clone().into()).or_default().push((entry.clone(), own));
        }
        let domains = config.domains.iter();
        let domains =
            domains.map(|domain| (domain.name.clone().into(), EntryLevel::new(&domain.entries, rules)));
        Self { entries, domains: domains.collect(), stated: STATED.map(|name| rules.get(name).cloned()) }
    }

    /// Returns the rules for the descriptors of a domain.
    pub(crate) fn of_domain<'p>(&'p self, domain: &'p [u8]) -> DomainPlanner<'p> {
        let entries = self.entries.get(domain).map_or(&[][..], Vec::as_slice);
        DomainPlanner { domain, entries, level: self.domains.get(domain), stated: &self.stated }
    }
}

/// The rules for the descriptors of a domain.
pub(crate) struct DomainPlanner<'p> {
    domain: &'p [u8],
    entries: &'p [DescribedRules],
    level: Option<&'p EntryLevel>,
    stated: &'p [Option<Arc<Rule>>; 2],
}

impl DomainPlanner<'_> {
    /// Returns the plan of a descriptor. It has no rules if nothing matches and the descriptor states no rate.
    pub(crate) fn plan(&self, descriptor: &Descriptor<'_>) -> DescriptorPlan {
        let mut entries = self.entries.iter();
        let matched = entries.find_map(|(entry, rules)| Some((entry, rules, matching(entry, descriptor)?)));
        if let Some((entry, rules, places)) = matched {
            let value = |part: &KeyPart| Some(descriptor.entries[places[entry.entry_of(part)?]].1);
            let terms = |rule: &Rule| {
                rule.terms_of_descriptor(value, descriptor.client, descriptor.hits, descriptor.rate)
            };
            let rules = rules.iter().map(|rule| (rule.clone(), terms(rule))).collect();
            return DescriptorPlan { rules, verdict: None };
        }
        if let Some(plan) = self.level.and_then(|level| level.plan(descriptor)) {
            return plan;
        }
        let Some(rate) = descriptor.rate else { return DescriptorPlan::default() };
        let Some(rule) = &self.stated[place_of_stated(rate)] else {
            return DescriptorPlan::default();
        };
        let whole = whole(self.domain, descriptor);
        let terms =
            rule.terms_of_descriptor(|_| Some(&whole), descriptor.client, descriptor.hits, Some(rate));
        DescriptorPlan { rules: SmallVec::from_iter([(rule.clone(), terms)]), verdict: None }
    }
}

/// Returns the place of each entry of a rule in a descriptor that it matches.
fn matching(rule: &DescriptorRule, descriptor: &Descriptor<'_>) -> Option<SmallVec<[usize; 4]>> {
    if rule.entries.len() != descriptor.entries.len() {
        return None;
    }
    let place = |entry: &EntryRule| {
        let place = descriptor.entries.iter().position(|(key, _)| *key == entry.key.as_bytes())?;
        entry.value.matches(descriptor.entries[place].1).then_some(place)
    };
    rule.entries.iter().map(place).collect()
}

/// Returns the place of the limit among [`STATED`] that counts descriptors at this rate.
fn place_of_stated(rate: Rate) -> usize {
    usize::from(algorithm_of_descriptors(rate) != Algorithm::SlidingWindow)
}

/// Returns bytes that no other descriptor has.
fn whole(domain: &[u8], descriptor: &Descriptor<'_>) -> Vec<u8> {
    let texts = descriptor.entries.iter().flat_map(|(key, value)| [*key, *value]);
    let mut whole = Vec::new();
    for text in std::iter::once(domain).chain(texts) {
        whole.extend_from_slice(&(text.len() as u64).to_be_bytes());
        whole.extend_from_slice(text);
    }
    whole
}

/// Returns the limits of descriptors that state their own rate and have no rule, if anybody can ask for descriptors.
pub(crate) fn stated_limits(config: &Config) -> impl Iterator<Item = LimitSettings> {
    let windows = [Duration::from_secs(1), Duration::from_secs(24 * 3600)];
    let limits = STATED.into_iter().zip(windows).filter(|_| config.decisions.is_some());
    // Each descriptor states its own rate. The window only chooses the algorithm.
    limits.map(|(name, window)| {
        let rate = Rate { permits: Rate::MAX_PERMITS, window_us: window.as_micros() as u64 };
        let key = vec![KeyPart::Descriptor("entries".to_owned())];
        let on_failure = config.decisions.as_ref().map_or(OnFailure::Local, |decisions| decisions.on_failure);
        let quota = Quota::new(algorithm_of_descriptors(rate), Rate { window_us: 1_000_000, ..rate });
        LimitSettings::of_descriptors(name.to_owned(), key, quota, on_failure)
    })
}
