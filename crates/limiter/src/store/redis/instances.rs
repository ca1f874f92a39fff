//! The processes that share a Redis server, counted by their signs of life: one sorted set, kept by lua/instances.lua.

use std::time::Duration;

use bytes::Bytes;
use tokio::time::Instant;

use crate::store::StoreError;

use super::{RedisStore, Topology};

const SOURCE: &str = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/lua/instances.lua"));
/// A process counts for this long after its last sign of life, by the server's clock: two of them may be missing.
const LIFETIME: Duration = Duration::from_secs(15);

impl RedisStore {
    /// Gives a sign of life of this process, and returns how many processes with this prefix have lately given one.
    pub(in crate::store) async fn count_instances(
        &self,
        key_prefix: &str,
        deadline: Instant,
    ) -> Result<u32, StoreError> {
        let (set, lifetime_us) = (format!("{key_prefix}:instances"), LIFETIME.as_micros().to_string());
        let words = ["EVAL", SOURCE, "1", &set, &self.process, &lifetime_us];
        let words = words.iter().map(|word| Bytes::copy_from_slice(word.as_bytes())).collect();
        let answer = self.command(&set, words, deadline).await;
        if let Err(StoreError::Answer(error)) = &answer {
            let trouble = match &self.topology {
                Topology::One(node) => &node.shared.trouble,
                Topology::Cluster(cluster) => &cluster.trouble,
            };
            trouble.say_error_with("the gateways that share the limits can't be counted", error);
        }
        answer?.as_u64().and_then(|count| u32::try_from(count).ok()).ok_or(StoreError::Malformed)
    }
}
