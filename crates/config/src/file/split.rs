//! The upstreams of a route: one, or several with their weights.

use std::{collections::BTreeMap, fmt};

use serde::{
    Deserialize, Deserializer,
    de::{self, value::MapAccessDeserializer},
};

use super::Spanned;
use crate::value::Whole;

/// The weights of upstreams by name.
pub(crate) type Weights = BTreeMap<Spanned<String>, Whole<0, 1000>>;

/// The upstreams that a route forwards to.
#[derive(Debug)]
pub(crate) enum RouteUpstreams {
    /// The upstream of this name.
    One(String),
    /// Several, each with its weight.
    Split(Weights),
}

impl<'de> Deserialize<'de> for RouteUpstreams {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(RouteUpstreamsVisitor)
    }
}

struct RouteUpstreamsVisitor;

impl<'de> de::Visitor<'de> for RouteUpstreamsVisitor {
    type Value = RouteUpstreams;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the name of an upstream, or weights such as { stable = 95, canary = 5 }")
    }

    fn visit_str<E: de::Error>(self, name: &str) -> Result<RouteUpstreams, E> {
        Ok(RouteUpstreams::One(name.to_owned()))
    }

    fn visit_map<A: de::MapAccess<'de>>(self, map: A) -> Result<RouteUpstreams, A::Error> {
        Weights::deserialize(MapAccessDeserializer::new(map)).map(RouteUpstreams::Split)
    }
}
