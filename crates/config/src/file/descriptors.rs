//! Rules for descriptors as they are typed.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::{RouteLimit, Spanned};
use crate::{KeyPart, ValuePattern, value::ParsedText};

/// `[[descriptors]]`: the limits of descriptors, by which Envoy and others ask through the rate limit service. The first
/// rule whose keys are exactly a descriptor's, in any order, and whose values match is used. A descriptor without a rule is
/// admitted.
#[derive(Debug, Default, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub(crate) struct DescriptorsTable {
    /// Domain that the caller states. Required.
    pub domain: Option<Spanned<ParsedText<String>>>,
    /// Values of the descriptor's entries by key, in which `*` stands for any text: `{ path = "/v1/*", api_key = "*" }`.
    /// Required.
    #[serde(rename = "match")]
    pub matches: Option<Spanned<BTreeMap<Spanned<String>, ParsedText<ValuePattern>>>>,
    /// Limits to apply: names, or tables with a `name`. Their keys consist of `"descriptor:KEY"`, `"global"`, and what `as`
    /// names. Required.
    pub limits: Vec<Spanned<RouteLimit>>,
    /// Parts of a limit's key that entries stand for, so that proxied requests and descriptors count together:
    /// `{ api_key = "header:x-api-key" }`. Default: none.
    #[serde(rename = "as")]
    pub counts_as: BTreeMap<Spanned<String>, Spanned<ParsedText<KeyPart>>>,
}
