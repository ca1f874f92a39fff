//! Requests that Envoy describes. A module of its external authorization, so that it can use private items.

use prost::Message;

use super::{
    super::grpc,
    CheckRequest, FIELDS_MOST, HOST, HeaderName, HeaderValue, HttpRequest,
    messages::{AttributeContext, AttributeRequest},
    parts,
};

/// A described request has the method, the target and the fields of its description, and nothing else: no
/// pseudo-header fields, and not more fields than a head may have.
pub fn authorization(bytes: &[u8]) {
    let described = CheckRequest::decode(bytes).ok().and_then(|call| call.attributes?.request?.http);
    let described = described.unwrap_or_else(|| HttpRequest {
        method: "GET".to_owned(),
        path: bytes.to_vec(),
        host: bytes.to_vec(),
        headers: [(String::from_utf8_lossy(bytes).into_owned(), bytes.to_vec())].into(),
        ..Default::default()
    });
    let (head, read) = parts(&described);
    if read.is_ok() {
        assert_eq!(head.method.as_str(), described.method);
        let is_path = described.path.starts_with(b"/");
        assert!(!is_path || described.path.starts_with(head.uri.path().as_bytes()));
    }
    assert!(head.headers.len() <= FIELDS_MOST + 1);
    for (name, value) in &head.headers {
        let states = |(other, stated): (&[u8], &[u8])| {
            HeaderName::from_bytes(other).is_ok_and(|other| other == *name)
                && HeaderValue::from_bytes(stated).is_ok_and(|stated| stated == *value)
        };
        let is_host = *name == HOST && value.as_bytes() == described.host;
        assert!(is_host || described.lines().any(states), "{name:?}: {value:?}");
    }
    let request = Some(AttributeRequest { http: Some(described) });
    let call = CheckRequest { attributes: Some(AttributeContext { source: None, request }) };
    assert_eq!(CheckRequest::decode(&grpc::framed(&call)[grpc::PREFIX_BYTES..]), Ok(call));
}
