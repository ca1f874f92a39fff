//! A trace collector, which receives OTLP over gRPC and keeps it.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
};

use bytes::Bytes;
use http_body_util::{BodyExt, StreamBody, combinators::BoxBody};
use hyper::{Response, body::Frame, header::HeaderMap, server::conn::http2};
use hyper_util::rt::TokioExecutor;
use opentelemetry_proto::tonic::{
    collector::trace::v1::ExportTraceServiceRequest,
    common::v1::{KeyValue, any_value::Value},
    trace::v1::{Span as Sent, status::StatusCode},
};
use prost::Message;

use super::{
    upstream::{Speech, Upstream},
    wait_until,
};

/// The only method that there is.
const EXPORT: &str = "/opentelemetry.proto.collector.trace.v1.TraceService/Export";

/// A collector. It ends with the test's process.
pub(crate) struct Collector {
    server: Upstream,
    taken: Arc<Mutex<Taken>>,
}

#[derive(Default)]
struct Taken {
    resource: BTreeMap<String, String>,
    spans: Vec<Span>,
}

/// A span. Its ids are in hexadecimal digits; a parent that isn't is empty.
#[derive(Clone, Debug)]
pub(crate) struct Span {
    pub(crate) trace: String,
    pub(crate) id: String,
    pub(crate) parent: String,
    pub(crate) name: String,
    /// The kind's number in the protocol: 1 internal, 2 server, 3 client.
    pub(crate) kind: i32,
    pub(crate) is_error: bool,
    /// In nanoseconds since 1970.
    pub(crate) start: u64,
    pub(crate) end: u64,
    /// The values as text, with commas between those of a list.
    pub(crate) attributes: BTreeMap<String, String>,
}

impl Span {
    fn of(sent: &Sent) -> Self {
        let hex = |id: &[u8]| id.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        Self {
            trace: hex(&sent.trace_id),
            id: hex(&sent.span_id),
            parent: hex(&sent.parent_span_id),
            name: sent.name.clone(),
            kind: sent.kind,
            is_error: sent.status.as_ref().is_some_and(|status| status.code() == StatusCode::Error),
            start: sent.start_time_unix_nano,
            end: sent.end_time_unix_nano,
            attributes: texts(&sent.attributes),
        }
    }

    /// Returns an attribute. Empty if it is missing.
    pub(crate) fn of_attribute(&self, name: &str) -> &str {
        self.attributes.get(name).map_or("", String::as_str)
    }
}

impl Collector {
    /// Starts a cleartext collector.
    pub(crate) fn start() -> Self {
        Self::speaking(Speech::Http2(http2::Builder::new(TokioExecutor::new())))
    }

    /// Starts a collector with a protocol.
    pub(crate) fn speaking(speech: Speech) -> Self {
        let taken = Arc::<Mutex<Taken>>::default();
        let server = Upstream::speaking(speech, {
            let taken = taken.clone();
            move |request| {
                let taken = taken.clone();
                async move {
                    assert_eq!(request.uri().path(), EXPORT);
                    let message = request.into_body().collect().await.unwrap().to_bytes();
                    // The message follows its compression flag and length.
                    taken.lock().unwrap().take(&ExportTraceServiceRequest::decode(&message[5..]).unwrap());
                    let ok = HeaderMap::from_iter([("grpc-status".parse().unwrap(), "0".parse().unwrap())]);
                    let frames = [Frame::data(Bytes::from_static(&[0; 5])), Frame::trailers(ok)].map(Ok);
                    let body = BoxBody::new(StreamBody::new(futures_util::stream::iter(frames)));
                    Response::builder().header("content-type", "application/grpc").body(body).unwrap()
                }
            }
        });
        Self { server, taken }
    }

    pub(crate) fn url(&self) -> String {
        self.server.url()
    }

    /// Returns the `[tracing]` table for it.
    pub(crate) fn table(&self, sample: &str) -> String {
        format!("[tracing]\notlp = \"{}\"\nsample = {sample}\n", self.url())
    }

    /// Returns the spans so far.
    pub(crate) fn spans(&self) -> Vec<Span> {
        self.taken.lock().unwrap().spans.clone()
    }

    /// Waits for this number of spans, and returns them. Fails if there are more.
    pub(crate) fn await_spans(&self, count: usize) -> Vec<Span> {
        wait_until(&format!("the collector has {count} spans"), || self.spans().len() >= count);
        let spans = self.spans();
        assert_eq!(spans.len(), count, "{spans:#?}");
        spans
    }

    /// Returns the attributes of the sender.
    pub(crate) fn resource(&self) -> BTreeMap<String, String> {
        self.taken.lock().unwrap().resource.clone()
    }
}

impl Taken {
    fn take(&mut self, sent: &ExportTraceServiceRequest) {
        for of_resource in &sent.resource_spans {
            self.resource = texts(&of_resource.resource.as_ref().unwrap().attributes);
            let spans = of_resource.scope_spans.iter().flat_map(|of_scope| &of_scope.spans);
            self.spans.extend(spans.map(Span::of));
        }
    }
}

fn texts(attributes: &[KeyValue]) -> BTreeMap<String, String> {
    let value =
        |attribute: &KeyValue| attribute.value.as_ref().and_then(|value| value.value.as_ref()).map(text);
    attributes.iter().map(|attribute| (attribute.key.clone(), value(attribute).unwrap_or_default())).collect()
}

fn text(value: &Value) -> String {
    match value {
        Value::StringValue(text) => text.clone(),
        Value::BoolValue(value) => value.to_string(),
        Value::IntValue(value) => value.to_string(),
        Value::ArrayValue(list) => {
            let values = list.values.iter().map(|value| value.value.as_ref().map(text).unwrap_or_default());
            values.collect::<Vec<_>>().join(",")
        }
        other => panic!("no such attribute is sent: {other:?}"),
    }
}
