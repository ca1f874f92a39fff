//! Messages of `envoy.service.auth.v3`, with the fields that are used here.
//!
//! What a client can choose is bytes: a field that isn't UTF-8 must not make the call fail.

use std::collections::HashMap;

use bytes::{Buf, BufMut};
use prost::{
    DecodeError, Message, Oneof,
    encoding::{DecodeContext, WireType, message, skip_field},
};
use tollgate_http1::head::FIELDS_MOST;

/// The way to add a header field that the response may have already (`HeaderAppendAction`).
pub(super) const OVERWRITE_IF_EXISTS_OR_ADD: i32 = 2;

/// The number of lines that are kept of a header: more than a request may have, with its pseudo-header fields.
const LINES_MOST: usize = 2 * FIELDS_MOST;

#[derive(Clone, PartialEq, Message)]
pub(super) struct CheckRequest {
    #[prost(message, optional, tag = "1")]
    pub(super) attributes: Option<AttributeContext>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct AttributeContext {
    #[prost(message, optional, tag = "1")]
    pub(super) source: Option<AttributePeer>,
    #[prost(message, optional, tag = "4")]
    pub(super) request: Option<AttributeRequest>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct AttributePeer {
    #[prost(message, optional, tag = "1")]
    pub(super) address: Option<PeerAddress>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct PeerAddress {
    #[prost(message, optional, tag = "1")]
    pub(super) socket_address: Option<SocketAddress>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct SocketAddress {
    #[prost(string, tag = "2")]
    pub(super) address: String,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct AttributeRequest {
    #[prost(message, optional, tag = "2")]
    pub(super) http: Option<HttpRequest>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct HttpRequest {
    #[prost(string, tag = "2")]
    pub(super) method: String,
    /// Repeated lines are one, with commas between their values.
    #[prost(map = "string, bytes", tag = "3")]
    pub(super) headers: HashMap<String, Vec<u8>>,
    /// With the query.
    #[prost(bytes = "vec", tag = "4")]
    pub(super) path: Vec<u8>,
    #[prost(bytes = "vec", tag = "5")]
    pub(super) host: Vec<u8>,
    #[prost(string, tag = "6")]
    pub(super) scheme: String,
    /// The header in place of `headers`, if Envoy is told to `encode_raw_headers`.
    #[prost(message, optional, tag = "13")]
    pub(super) header_map: Option<HeaderLines>,
}

impl HttpRequest {
    /// Returns the names and values of the header's lines, pseudo-header fields included.
    pub(super) fn lines(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        let joined = self.headers.iter().map(|(name, value)| (name.as_bytes(), &**value));
        let raw = self.header_map.iter().flat_map(|map| &map.headers);
        joined.chain(raw.map(|line| (&*line.key, line.value())))
    }
}

/// The first [`LINES_MOST`] lines of a header. A line of two bytes takes 72 in memory, so further ones aren't kept.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct HeaderLines {
    headers: Vec<HeaderLine>,
}

impl Message for HeaderLines {
    fn encode_raw(&self, buffer: &mut impl BufMut) {
        message::encode_repeated(1, &self.headers, buffer);
    }

    fn merge_field(
        &mut self,
        tag: u32,
        wire_type: WireType,
        buffer: &mut impl Buf,
        context: DecodeContext,
    ) -> Result<(), DecodeError> {
        if tag != 1 || self.headers.len() == LINES_MOST {
            return skip_field(wire_type, tag, buffer, context);
        }
        message::merge_repeated(wire_type, &mut self.headers, buffer, context)
    }

    fn encoded_len(&self) -> usize {
        message::encoded_len_repeated(1, &self.headers)
    }

    fn clear(&mut self) {
        self.headers.clear();
    }
}

/// A line of a header. It has one of the two values.
#[derive(Clone, PartialEq, Message)]
pub(super) struct HeaderLine {
    #[prost(bytes = "vec", tag = "1")]
    pub(super) key: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    pub(super) value: Vec<u8>,
    #[prost(bytes = "vec", tag = "3")]
    pub(super) raw_value: Vec<u8>,
}

impl HeaderLine {
    fn value(&self) -> &[u8] {
        if self.raw_value.is_empty() { &self.value } else { &self.raw_value }
    }
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct CheckResponse {
    #[prost(message, optional, tag = "1")]
    pub(super) status: Option<RpcStatus>,
    #[prost(oneof = "HttpResponse", tags = "2, 3")]
    pub(super) http_response: Option<HttpResponse>,
}

/// `google.rpc.Status`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct RpcStatus {
    #[prost(int32, tag = "1")]
    pub(super) code: i32,
}

#[derive(Clone, PartialEq, Oneof)]
pub(super) enum HttpResponse {
    #[prost(message, tag = "2")]
    Denied(DeniedHttpResponse),
    #[prost(message, tag = "3")]
    Ok(OkHttpResponse),
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct DeniedHttpResponse {
    #[prost(message, optional, tag = "1")]
    pub(super) status: Option<HttpStatus>,
    #[prost(message, repeated, tag = "2")]
    pub(super) headers: Vec<HeaderOption>,
    #[prost(string, tag = "3")]
    pub(super) body: String,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct HttpStatus {
    #[prost(int32, tag = "1")]
    pub(super) code: i32,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct OkHttpResponse {
    #[prost(message, repeated, tag = "6")]
    pub(super) response_headers_to_add: Vec<HeaderOption>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct HeaderOption {
    #[prost(message, optional, tag = "1")]
    pub(super) header: Option<Header>,
    #[prost(int32, tag = "3")]
    pub(super) append_action: i32,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Header {
    #[prost(string, tag = "1")]
    pub(super) key: String,
    #[prost(string, tag = "2")]
    pub(super) value: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_of_many_lines_is_kept_in_part() {
        let line = |key: usize| HeaderLine { key: key.to_string().into(), ..Default::default() };
        let kept = HeaderLines { headers: (0..LINES_MOST).map(line).collect() };
        let further = b"\x0a\0".repeat(500_000);
        let sent = [&kept.encode_to_vec()[..], b"\x10\x07", &further].concat();
        let read = HeaderLines::decode(&*sent).unwrap();
        assert_eq!(read, kept);
        assert!(read.headers.capacity() < 2 * LINES_MOST);
    }
}
