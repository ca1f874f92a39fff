//! What the limits make of a descriptor, by which Envoy asks.

use serde::Serialize;

use super::{DescribedLimit, NextDecision, look};
use crate::{
    gateway::{Gateway, plan::descriptors::Descriptor},
    rules::Terms,
};
use tollgate_limiter::Asks;

/// A descriptor that nobody has sent.
#[derive(Debug)]
pub struct DescriptorQuestion {
    domain: String,
    entries: Vec<(String, String)>,
}

/// The plan of a descriptor, described.
#[derive(Debug, Serialize)]
pub struct DescriptorExplanation {
    /// The domain.
    pub domain: String,
    /// The entries, as `key=value`.
    pub entries: Vec<String>,
    /// The limits.
    pub limits: Vec<DescribedLimit>,
    /// The decision on the next such descriptor. Only a live look knows whether there is room.
    pub next: Option<NextDecision>,
}

impl DescriptorQuestion {
    /// Reads a descriptor as people write it: `shop:path=/v1/orders,api_key=gold`.
    ///
    /// # Errors
    /// A message and, on a line of its own, the remedy.
    pub fn read(written: &str) -> Result<Self, String> {
        let malformed = || {
            let written = written.escape_debug();
            format!(
                "`{written}` is not a descriptor\nwrite its domain and entries: shop:path=/v1/orders,api_key=gold"
            )
        };
        let (domain, entries) =
            written.split_once(':').filter(|(domain, _)| !domain.is_empty()).ok_or_else(malformed)?;
        let entry = |entry: &str| {
            let (key, value) = entry.split_once('=').filter(|(key, _)| !key.is_empty())?;
            Some((key.to_owned(), value.to_owned()))
        };
        let entries = entries.split(',').map(entry).collect::<Option<Vec<_>>>().ok_or_else(malformed)?;
        Ok(Self { domain: domain.to_owned(), entries })
    }

    /// Reads the parameter `descriptor` of a query. `None` if it has none.
    ///
    /// # Errors
    /// A message and, on a line of its own, the remedy.
    pub fn from_query(query: &str) -> Option<Result<Self, String>> {
        let mut parameters = form_urlencoded::parse(query.as_bytes());
        parameters.find(|(name, _)| name == "descriptor").map(|(_, written)| Self::read(&written))
    }
}

impl DescriptorExplanation {
    /// Returns what the configuration of a gateway makes of a descriptor.
    pub fn of(gateway: &Gateway, question: &DescriptorQuestion) -> Self {
        explain(gateway, question).0
    }

    /// Returns the same with the current counts, and the next decision.
    pub async fn live(gateway: &Gateway, question: &DescriptorQuestion) -> Self {
        let (mut explanation, asks) = explain(gateway, question);
        explanation.next = Some(look(gateway, &mut explanation.limits, &asks).await);
        explanation
    }
}

fn explain(gateway: &Gateway, question: &DescriptorQuestion) -> (DescriptorExplanation, Vec<Asks>) {
    let entries = question.entries.iter().map(|(key, value)| (key.as_bytes(), value.as_bytes()));
    let descriptor = Descriptor::new(entries, 1, None);
    let plan = gateway.planner.descriptors.of_domain(question.domain.as_bytes()).plan(&descriptor);
    let limits = plan.rules.into_iter().map(|(rule, terms): (_, Terms)| DescribedLimit::new(&rule, terms));
    let (limits, asks) = limits.unzip();
    let entries = question.entries.iter().map(|(key, value)| format!("{key}={value}")).collect();
    (DescriptorExplanation { domain: question.domain.clone(), entries, limits, next: None }, asks)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_no_caller_can_send_is_no_descriptor() {
        assert!(DescriptorQuestion::read("shop:path=/v1/orders,api_key=").is_ok());
        for written in ["shop", "shop:", "shop:path", ":a=b", "shop:=b", "shop:a=b,"] {
            assert!(DescriptorQuestion::read(written).is_err(), "{written}");
        }
    }
}
