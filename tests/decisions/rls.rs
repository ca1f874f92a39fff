//! A client of the rate limit service: its messages, as this client reads the protocol, and its calls.

use std::net::SocketAddr;

use bytes::Bytes;
use prost::Message;

use crate::harness::http2::{self, whole};

pub(crate) const SHOULD_RATE_LIMIT: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
pub(crate) const OK: i32 = 1;
pub(crate) const OVER_LIMIT: i32 = 2;

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Request {
    #[prost(string, tag = "1")]
    pub(crate) domain: String,
    #[prost(message, repeated, tag = "2")]
    pub(crate) descriptors: Vec<Descriptor>,
    #[prost(uint32, tag = "3")]
    pub(crate) hits_addend: u32,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Descriptor {
    #[prost(message, repeated, tag = "1")]
    pub(crate) entries: Vec<Entry>,
    #[prost(message, optional, tag = "2")]
    pub(crate) limit: Option<Limit>,
    #[prost(message, optional, tag = "3")]
    pub(crate) hits_addend: Option<u64>,
    #[prost(bool, tag = "4")]
    pub(crate) is_negative_hits: bool,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Entry {
    #[prost(string, tag = "1")]
    pub(crate) key: String,
    #[prost(bytes = "vec", tag = "2")]
    pub(crate) value: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Limit {
    #[prost(uint32, tag = "1")]
    pub(crate) requests_per_unit: u32,
    #[prost(int32, tag = "2")]
    pub(crate) unit: i32,
    #[prost(string, tag = "3")]
    pub(crate) name: String,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Response {
    #[prost(int32, tag = "1")]
    pub(crate) overall_code: i32,
    #[prost(message, repeated, tag = "2")]
    pub(crate) statuses: Vec<Status>,
    #[prost(message, repeated, tag = "3")]
    pub(crate) response_headers_to_add: Vec<Header>,
    #[prost(bytes = "vec", tag = "5")]
    pub(crate) raw_body: Vec<u8>,
    #[prost(message, optional, tag = "6")]
    pub(crate) dynamic_metadata: Option<prost_types::Struct>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Status {
    #[prost(int32, tag = "1")]
    pub(crate) code: i32,
    #[prost(message, optional, tag = "2")]
    pub(crate) current_limit: Option<Limit>,
    #[prost(uint32, tag = "3")]
    pub(crate) limit_remaining: u32,
    #[prost(message, optional, tag = "4")]
    pub(crate) duration_until_reset: Option<Time>,
}

#[derive(Clone, Copy, PartialEq, Message)]
pub(crate) struct Time {
    #[prost(int64, tag = "1")]
    pub(crate) seconds: i64,
    #[prost(int32, tag = "2")]
    pub(crate) nanos: i32,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Header {
    #[prost(string, tag = "1")]
    pub(crate) key: String,
    #[prost(string, tag = "2")]
    pub(crate) value: String,
}

impl Request {
    /// A call about these descriptors.
    pub(crate) fn new(domain: &str, descriptors: impl IntoIterator<Item = Descriptor>) -> Self {
        Self { domain: domain.to_owned(), descriptors: descriptors.into_iter().collect(), hits_addend: 0 }
    }

    /// The same with this cost.
    pub(crate) fn hits(self, hits_addend: u32) -> Self {
        Self { hits_addend, ..self }
    }
}

impl Descriptor {
    /// A descriptor with these entries.
    pub(crate) fn of(entries: &[(&str, &[u8])]) -> Self {
        let entry = |(key, value): &(&str, &[u8])| Entry { key: (*key).to_owned(), value: value.to_vec() };
        Self { entries: entries.iter().map(entry).collect(), ..Self::default() }
    }

    /// The same with a rate of its own.
    pub(crate) fn limited_to(self, requests_per_unit: u32, unit: i32) -> Self {
        Self { limit: Some(Limit { requests_per_unit, unit, name: String::new() }), ..self }
    }

    /// The same with a cost of its own.
    pub(crate) fn hits(self, hits: u64) -> Self {
        Self { hits_addend: Some(hits), ..self }
    }
}

impl Response {
    /// The value of an added header field.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let mut fields = self.response_headers_to_add.iter();
        fields.find(|field| field.key == name).map(|field| field.value.as_str())
    }

    /// Codes and remaining permits of the descriptors.
    pub(crate) fn left(&self) -> Vec<(i32, u32)> {
        self.statuses.iter().map(|status| (status.code, status.limit_remaining)).collect()
    }
}

/// The bytes of a message with its prefix.
pub(crate) fn framed(message: &[u8]) -> Vec<u8> {
    [&[0][..], &(message.len() as u32).to_be_bytes(), message].concat()
}

/// What a call gives: its message, or status and message of its failure.
pub(crate) fn call(
    address: SocketAddr,
    path: &str,
    fields: &[(&str, &str)],
    body: Vec<u8>,
) -> Result<Vec<u8>, (u32, String)> {
    let mut answer = Err((u32::MAX, "no status".to_owned()));
    http2::run(async {
        let mut client = http2::connect(address).await;
        let fields = [&[("content-type", "application/grpc"), ("te", "trailers")], fields].concat();
        let (response, mut sent) = client.begin("POST", path, &fields, true);
        let _ = sent.send_data(Bytes::from(body), true);
        let (head, body) = response.await.unwrap().into_parts();
        assert_eq!(
            (head.status.as_u16(), &head.headers["content-type"]),
            (200, &"application/grpc".parse().unwrap())
        );
        let (body, trailers) = whole(body).await.unwrap();
        let trailers = trailers.unwrap_or(head.headers);
        let text = |name| trailers.get(name).map_or("", |value| value.to_str().unwrap());
        answer = match text("grpc-status").parse().unwrap() {
            0 => Ok(body),
            status => Err((status, text("grpc-message").to_owned())),
        };
    });
    answer
}

/// What `ShouldRateLimit` answers.
pub(crate) fn ask(address: SocketAddr, request: &Request) -> Result<Response, (u32, String)> {
    ask_with(address, request, &[])
}

/// The same to a call with these header fields.
pub(crate) fn ask_with(
    address: SocketAddr,
    request: &Request,
    fields: &[(&str, &str)],
) -> Result<Response, (u32, String)> {
    let body = call(address, SHOULD_RATE_LIMIT, fields, framed(&request.encode_to_vec()))?;
    assert_eq!(body[..5], framed(&body[5..])[..5]);
    Ok(Response::decode(&body[5..]).unwrap())
}

/// The metadata of a response as JSON.
pub(crate) fn metadata_of(answer: &Response) -> serde_json::Value {
    use prost_types::value::Kind;
    fn json(value: &prost_types::Value) -> serde_json::Value {
        match value.kind.as_ref().unwrap() {
            Kind::NullValue(_) => serde_json::Value::Null,
            Kind::BoolValue(flag) => (*flag).into(),
            Kind::NumberValue(number) => (*number).into(),
            Kind::StringValue(text) => text.clone().into(),
            Kind::ListValue(list) => list.values.iter().map(json).collect(),
            Kind::StructValue(of) => {
                of.fields.iter().map(|(name, value)| (name.clone(), json(value))).collect()
            }
        }
    }
    let fields = &answer.dynamic_metadata.as_ref().unwrap().fields;
    fields.iter().map(|(name, value)| (name.clone(), json(value))).collect()
}
