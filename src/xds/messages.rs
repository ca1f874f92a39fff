//! The messages of the aggregated discovery service, and the rules of envoyproxy/ratelimit as it sends them.

use prost::Message;
use prost_types::{Any, Struct};

use crate::decisions::Unit;

/// The type of the rules.
pub(crate) const RULES: &str = "type.googleapis.com/ratelimit.config.ratelimit.v3.RateLimitConfig";

/// A request for resources, or the verdict on a response.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct DiscoveryRequest {
    /// The last version that was accepted.
    #[prost(string, tag = "1")]
    pub(crate) version_info: String,
    /// This client.
    #[prost(message, optional, tag = "2")]
    pub(crate) node: Option<ClientNode>,
    /// The type of the resources.
    #[prost(string, tag = "4")]
    pub(crate) type_url: String,
    /// The nonce of the response that this is a verdict on.
    #[prost(string, tag = "5")]
    pub(crate) response_nonce: String,
    /// The reason why a response is rejected.
    #[prost(message, optional, tag = "6")]
    pub(crate) error_detail: Option<RejectionStatus>,
}

/// The name of a client.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct ClientNode {
    /// The name.
    #[prost(string, tag = "1")]
    pub(crate) id: String,
}

/// The reason of a rejection.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct RejectionStatus {
    /// The code of gRPC.
    #[prost(int32, tag = "1")]
    pub(crate) code: i32,
    /// The reason.
    #[prost(string, tag = "2")]
    pub(crate) message: String,
}

/// All resources of a type.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct DiscoveryResponse {
    /// The version of the resources.
    #[prost(string, tag = "1")]
    pub(crate) version_info: String,
    /// The resources.
    #[prost(message, repeated, tag = "2")]
    pub(crate) resources: Vec<Any>,
    /// The type of the resources.
    #[prost(string, tag = "4")]
    pub(crate) type_url: String,
    /// The name of this response.
    #[prost(string, tag = "5")]
    pub(crate) nonce: String,
}

/// The rules of a domain.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct RulesConfig {
    /// The name of the resource.
    #[prost(string, tag = "1")]
    pub(crate) name: String,
    /// The domain.
    #[prost(string, tag = "2")]
    pub(crate) domain: String,
    /// The entries that descriptors can begin with, each a [`RuleEntry`]. They are read one by one, because two bytes of an empty one
    /// take hundreds in memory.
    #[prost(bytes = "vec", repeated, tag = "3")]
    pub(crate) descriptors: Vec<Vec<u8>>,
}

/// An entry of a descriptor.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct RuleEntry {
    /// The key.
    #[prost(string, tag = "1")]
    pub(crate) key: String,
    /// The value. Empty for any.
    #[prost(string, tag = "2")]
    pub(crate) value: String,
    /// The limit of descriptors that end here.
    #[prost(message, optional, tag = "3")]
    pub(crate) rate_limit: Option<RulePolicy>,
    /// The entries that can follow, each a [`RuleEntry`].
    #[prost(bytes = "vec", repeated, tag = "4")]
    pub(crate) descriptors: Vec<Vec<u8>>,
    /// True if the limit only counts.
    #[prost(bool, tag = "5")]
    pub(crate) shadow_mode: bool,
    /// Accepted, without effect.
    #[prost(bool, tag = "6")]
    pub(crate) detailed_metric: bool,
    /// True if a call is rejected only if all of its quotas reject it.
    #[prost(bool, tag = "7")]
    pub(crate) quota_mode: bool,
    /// Metadata of responses.
    #[prost(message, optional, tag = "8")]
    pub(crate) metadata: Option<Struct>,
}

/// A limit.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct RulePolicy {
    /// The unit of time.
    #[prost(enumeration = "Unit", tag = "1")]
    pub(crate) unit: i32,
    /// The permits.
    #[prost(uint32, tag = "2")]
    pub(crate) requests_per_unit: u32,
    /// True if there is no limit.
    #[prost(bool, tag = "3")]
    pub(crate) unlimited: bool,
    /// The name.
    #[prost(string, tag = "4")]
    pub(crate) name: String,
    /// The limits that don't count if this one does.
    #[prost(message, repeated, tag = "5")]
    pub(crate) replaces: Vec<ReplacedRule>,
}

/// A limit that is replaced.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct ReplacedRule {
    /// The name.
    #[prost(string, tag = "1")]
    pub(crate) name: String,
}
