//! The metadata of a response, for Envoy's filters and logs.

use std::{collections::BTreeMap, sync::Arc};

use prost_types::{ListValue, Struct, Value, value::Kind};

use crate::config::Verdict;

use super::messages::{Descriptor, RateLimitRequest};

/// Returns the metadata of the response to a call: of the call itself, if asked for, and of the rules that matched.
pub(super) fn of(request: Option<&RateLimitRequest>, verdicts: &[Option<Arc<Verdict>>]) -> Option<Struct> {
    let mut fields = BTreeMap::new();
    if let Some(request) = request {
        let descriptors = request.descriptors.iter().map(descriptor).collect();
        fields.insert("domain".to_owned(), text(&request.domain));
        fields.insert("descriptors".to_owned(), value(Kind::ListValue(ListValue { values: descriptors })));
        fields.insert("hitsAddend".to_owned(), value(Kind::NumberValue(request.hits_addend.into())));
    }
    for metadata in verdicts.iter().flatten().filter_map(|verdict| verdict.metadata.as_ref()) {
        if let Some(metadata) = metadata.as_object() {
            fields.extend(metadata.iter().map(|(name, json)| (name.clone(), of_json(json))));
        }
    }
    (!fields.is_empty()).then_some(Struct { fields })
}

fn descriptor(descriptor: &Descriptor) -> Value {
    let entries = descriptor.entries.iter().map(|entry| {
        let key = String::from_utf8_lossy(&entry.key);
        text(&[key.as_bytes(), b"=", &entry.value].concat())
    });
    let entries = value(Kind::ListValue(ListValue { values: entries.collect() }));
    value(Kind::StructValue(Struct { fields: BTreeMap::from([("entries".to_owned(), entries)]) }))
}

fn text(bytes: &[u8]) -> Value {
    value(Kind::StringValue(String::from_utf8_lossy(bytes).into_owned()))
}

fn value(kind: Kind) -> Value {
    Value { kind: Some(kind) }
}

fn of_json(json: &serde_json::Value) -> Value {
    value(match json {
        serde_json::Value::Null => Kind::NullValue(0),
        serde_json::Value::Bool(flag) => Kind::BoolValue(*flag),
        serde_json::Value::Number(number) => Kind::NumberValue(number.as_f64().unwrap_or_default()),
        serde_json::Value::String(text) => Kind::StringValue(text.clone()),
        serde_json::Value::Array(items) => {
            Kind::ListValue(ListValue { values: items.iter().map(of_json).collect() })
        }
        serde_json::Value::Object(fields) => {
            let fields = fields.iter().map(|(name, json)| (name.clone(), of_json(json)));
            Kind::StructValue(Struct { fields: fields.collect() })
        }
    })
}

/// Returns metadata as protobuf's JSON.
pub(crate) fn json_of(metadata: &Struct) -> serde_json::Value {
    metadata.fields.iter().map(|(name, value)| (name.clone(), json_of_value(value))).collect()
}

fn json_of_value(value: &Value) -> serde_json::Value {
    match &value.kind {
        None | Some(Kind::NullValue(_)) => serde_json::Value::Null,
        Some(Kind::BoolValue(flag)) => (*flag).into(),
        Some(Kind::NumberValue(number)) => serde_json::Number::from_f64(*number).into(),
        Some(Kind::StringValue(text)) => text.as_str().into(),
        Some(Kind::ListValue(list)) => list.values.iter().map(json_of_value).collect(),
        Some(Kind::StructValue(fields)) => json_of(fields),
    }
}
