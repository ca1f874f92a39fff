//! The messages of Envoy's rate limit service, `envoy.service.ratelimit.v3`.
//!
//! What comes from clients is bytes: the value of a header field needn't be UTF-8.

use bytes::Bytes;
use prost::{Enumeration, Message};
pub(crate) use prost_types::{Duration, Struct};

/// A call that asks for a decision.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct RateLimitRequest {
    /// The domain of the descriptors.
    #[prost(bytes = "bytes", tag = "1")]
    pub(crate) domain: Bytes,
    /// The descriptors to decide together.
    #[prost(message, repeated, tag = "2")]
    pub(crate) descriptors: Vec<Descriptor>,
    /// The cost of each descriptor that doesn't state its own. 0 means 1.
    #[prost(uint32, tag = "3")]
    pub(crate) hits_addend: u32,
}

/// Names and values that a request is counted by.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Descriptor {
    /// The entries, of which all have to match.
    #[prost(message, repeated, tag = "1")]
    pub(crate) entries: Vec<DescriptorEntry>,
    /// The rate in place of the configured one.
    #[prost(message, optional, tag = "2")]
    pub(crate) limit: Option<LimitOverride>,
    /// The cost in place of the call's. 0 asks whether there is room.
    #[prost(message, optional, tag = "3")]
    pub(crate) hits_addend: Option<u64>,
    /// True for a refund: the limits with refunds give back as many permits.
    #[prost(bool, tag = "4")]
    pub(crate) is_negative_hits: bool,
}

/// An entry of a descriptor.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct DescriptorEntry {
    /// The name.
    #[prost(bytes = "bytes", tag = "1")]
    pub(crate) key: Bytes,
    /// The value.
    #[prost(bytes = "bytes", tag = "2")]
    pub(crate) value: Bytes,
}

/// The rate that a descriptor states.
#[derive(Clone, Copy, PartialEq, Message)]
pub(crate) struct LimitOverride {
    /// The permits. 0 rejects all.
    #[prost(uint32, tag = "1")]
    pub(crate) requests_per_unit: u32,
    /// The time that they are for.
    #[prost(enumeration = "OverrideUnit", tag = "2")]
    pub(crate) unit: i32,
}

/// The units of `envoy.type.v3.RateLimitUnit`, in descriptors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Enumeration)]
pub(crate) enum OverrideUnit {
    /// No unit is stated.
    Unknown = 0,
    /// A second.
    Second = 1,
    /// A minute.
    Minute = 2,
    /// An hour.
    Hour = 3,
    /// A day.
    Day = 4,
    /// 30 days.
    Month = 5,
    /// 365 days.
    Year = 6,
}

/// The response to a call.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct RateLimitResponse {
    /// The decision on all descriptors together.
    #[prost(enumeration = "RateLimitCode", tag = "1")]
    pub(crate) overall_code: i32,
    /// The decisions on each descriptor, in the order of the call.
    #[prost(message, repeated, tag = "2")]
    pub(crate) statuses: Vec<DescriptorStatus>,
    /// Header fields for the response to the client.
    #[prost(message, repeated, tag = "3")]
    pub(crate) response_headers_to_add: Vec<AddedHeader>,
    /// The body of the response to a rejected client.
    #[prost(bytes = "bytes", tag = "5")]
    pub(crate) raw_body: Bytes,
    /// Metadata for Envoy's filters and logs.
    #[prost(message, optional, tag = "6")]
    pub(crate) dynamic_metadata: Option<Struct>,
}

/// A decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Enumeration)]
pub(crate) enum RateLimitCode {
    /// The call isn't decided.
    Unknown = 0,
    /// Admitted.
    Ok = 1,
    /// Rejected.
    OverLimit = 2,
}

/// The decision on a descriptor.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct DescriptorStatus {
    /// The decision.
    #[prost(enumeration = "RateLimitCode", tag = "1")]
    pub(crate) code: i32,
    /// The limit that decided. Absent if the descriptor has none.
    #[prost(message, optional, tag = "2")]
    pub(crate) current_limit: Option<CurrentLimit>,
    /// The permits left.
    #[prost(uint32, tag = "3")]
    pub(crate) limit_remaining: u32,
    /// The time until there is room, or more room.
    #[prost(message, optional, tag = "4")]
    pub(crate) duration_until_reset: Option<Duration>,
}

/// A limit as Envoy shows it.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct CurrentLimit {
    /// The permits.
    #[prost(uint32, tag = "1")]
    pub(crate) requests_per_unit: u32,
    /// The time that they are for.
    #[prost(enumeration = "Unit", tag = "2")]
    pub(crate) unit: i32,
    /// The name.
    #[prost(string, tag = "3")]
    pub(crate) name: String,
}

/// The units of limits, in responses and in the configuration of envoyproxy/ratelimit. Envoy leaves out the window of an
/// unknown one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Enumeration)]
pub(crate) enum Unit {
    /// Another window.
    Unknown = 0,
    /// A second.
    Second = 1,
    /// A minute.
    Minute = 2,
    /// An hour.
    Hour = 3,
    /// A day.
    Day = 4,
    /// 30 days.
    Month = 5,
    /// 365 days.
    Year = 6,
    /// 7 days.
    Week = 7,
}

/// A header field.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct AddedHeader {
    /// The name.
    #[prost(string, tag = "1")]
    pub(crate) key: String,
    /// The value.
    #[prost(string, tag = "2")]
    pub(crate) value: String,
}
