//! Slots: which one a key is in, and which node has which.

use std::sync::Arc;

use fred::{error::Error, util::redis_keyslot};

use super::{Value, node::Node, url::Endpoint};

/// Slots of a Cluster.
pub(crate) const SLOTS: usize = 16_384;

/// The slot of a bucket or another key.
pub(super) fn slot_of(key: &[u8]) -> u16 {
    redis_keyslot(key)
}

/// Returns true if the error only says that another node has the slot.
pub(super) fn is_redirection(error: &Error) -> bool {
    let says = |word| error.details().starts_with(word);
    says("MOVED ") || says("ASK ") || says("TRYAGAIN")
}

/// The nodes by slot.
#[derive(Default)]
pub(super) struct Map {
    pub(super) owners: Vec<Option<Arc<Node>>>,
}

impl Map {
    pub(super) fn owner(&self, slot: u16) -> Option<&Arc<Node>> {
        self.owners.get(usize::from(slot))?.as_ref()
    }
}

/// A range of slots, and its primary.
pub(crate) struct Range {
    /// The first slot.
    pub first: u16,
    /// The last slot.
    pub last: u16,
    pub(super) owner: Endpoint,
}

/// Reads the answer to CLUSTER SLOTS: for each range its first and last slot, its primary, and its replicas.
/// A primary without a host is called as the node that answers.
pub(crate) fn read_ranges(answer: Value, asked: &str) -> Option<Vec<Range>> {
    let array = |value: Value| if let Value::Array(values) = value { Some(values) } else { None };
    let ranges = array(answer)?.into_iter().map(|range| {
        let range = array(range)?;
        let slot = |at: usize| range.get(at)?.as_u64().and_then(|slot| u16::try_from(slot).ok());
        let (first, last) = (slot(0)?, slot(1)?);
        let Value::Array(primary) = range.get(2)? else { return None };
        let host = primary.first()?.as_string().filter(|host| !host.is_empty() && host != "?");
        let owner = Endpoint {
            host: host.unwrap_or_else(|| asked.to_owned()),
            port: u16::try_from(primary.get(1)?.as_u64()?).ok()?,
        };
        (first <= last && usize::from(last) < SLOTS).then_some(Range { first, last, owner })
    });
    let ranges = ranges.collect::<Option<Vec<_>>>()?;
    (!ranges.is_empty()).then_some(ranges)
}
