//! `POST /json`: the rate limit service for callers without gRPC. Messages are the same, as JSON, but without the body for a rejected
//! client.

use hyper::{
    Response, StatusCode,
    header::{CONTENT_TYPE, HeaderValue},
};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::gateway::Body;

use super::{
    Code, Status, json_of,
    messages::{
        AddedHeader, CurrentLimit, Descriptor, DescriptorEntry, DescriptorStatus, Duration, LimitOverride,
        OverrideUnit, RateLimitCode, RateLimitRequest, RateLimitResponse,
    },
};

/// A call as protobuf's JSON: `null` is the default of a field, and names may be spelt as in protobuf, too.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct JsonRequest {
    domain: Option<String>,
    descriptors: Option<Vec<JsonDescriptor>>,
    #[serde(rename = "hitsAddend", alias = "hits_addend")]
    hits_addend: Option<Number>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct JsonDescriptor {
    entries: Option<Vec<JsonEntry>>,
    limit: Option<JsonLimit>,
    #[serde(rename = "hitsAddend", alias = "hits_addend")]
    hits_addend: Option<Number>,
    #[serde(rename = "isNegativeHits", alias = "is_negative_hits")]
    is_negative_hits: Option<bool>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct JsonEntry {
    key: Option<String>,
    value: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct JsonLimit {
    #[serde(rename = "requestsPerUnit", alias = "requests_per_unit")]
    requests_per_unit: Option<Number>,
    unit: Option<JsonUnit>,
}

/// A whole number, which may be written as a text.
#[derive(Debug, Default, Deserialize)]
#[serde(try_from = "Value")]
struct Number(u64);

/// A unit of time, by its name or number.
#[derive(Debug, Default, Deserialize)]
#[serde(try_from = "Value")]
struct JsonUnit(i32);

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct JsonResponse<'r> {
    overall_code: &'static str,
    statuses: Vec<JsonStatus<'r>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    response_headers_to_add: Vec<JsonHeader<'r>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    dynamic_metadata: Option<Value>,
}

#[derive(Serialize)]
struct JsonHeader<'r> {
    key: &'r str,
    value: &'r str,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct JsonStatus<'r> {
    code: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    current_limit: Option<JsonCurrentLimit<'r>>,
    limit_remaining: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    duration_until_reset: Option<String>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct JsonCurrentLimit<'r> {
    name: &'r str,
    requests_per_unit: u32,
    unit: &'static str,
}

/// The names of the units, by their numbers.
const UNITS: [&str; 8] = ["UNKNOWN", "SECOND", "MINUTE", "HOUR", "DAY", "MONTH", "YEAR", "WEEK"];

impl TryFrom<Value> for Number {
    type Error = String;

    fn try_from(value: Value) -> Result<Self, String> {
        let number = match &value {
            Value::String(text) => text.parse().ok(),
            Value::Number(number) => Some(number.clone()),
            _ => None,
        };
        let whole = |float: &f64| float.fract() == 0.0 && (0.0..u64::MAX as f64).contains(float);
        let number = number.and_then(|number: serde_json::Number| {
            number.as_u64().or_else(|| number.as_f64().filter(whole).map(|float| float as u64))
        });
        number.map(Self).ok_or_else(|| format!("`{value}` is not a whole number"))
    }
}

impl Number {
    /// Returns a number of 32 bits.
    fn narrow(&self) -> Result<u32, Status> {
        u32::try_from(self.0).map_err(|_| Status::invalid(format!("`{}` is more than 32 bits", self.0)))
    }
}

impl TryFrom<Value> for JsonUnit {
    type Error = String;

    fn try_from(value: Value) -> Result<Self, String> {
        let unit = match value.as_str().map(str::to_uppercase) {
            Some(name) => {
                let mut units = (0..).zip(UNITS).filter(|(unit, _)| OverrideUnit::is_valid(*unit));
                units.find(|(_, known)| *known == name).map(|(unit, _)| unit)
            }
            // Protobuf keeps numbers that it doesn't know.
            None => Number::try_from(value.clone()).ok().and_then(|number| number.0.try_into().ok()),
        };
        unit.map(Self).ok_or_else(|| format!("`{value}` is not a unit"))
    }
}

/// Returns the name of a decision.
fn code(code: i32) -> &'static str {
    if code == RateLimitCode::OverLimit as i32 { "OVER_LIMIT" } else { "OK" }
}

/// Reads a call.
///
/// # Errors
/// It isn't one.
pub(super) fn read(text: &[u8]) -> Result<RateLimitRequest, Status> {
    let read: JsonRequest =
        serde_json::from_slice(text).map_err(|error| Status::invalid(error.to_string()))?;
    let descriptors = read.descriptors.unwrap_or_default().into_iter().map(descriptor);
    Ok(RateLimitRequest {
        domain: read.domain.unwrap_or_default().into(),
        descriptors: descriptors.collect::<Result<_, _>>()?,
        hits_addend: read.hits_addend.unwrap_or_default().narrow()?,
    })
}

fn descriptor(read: JsonDescriptor) -> Result<Descriptor, Status> {
    let entries = read.entries.unwrap_or_default().into_iter();
    let entry = |JsonEntry { key, value }| DescriptorEntry {
        key: key.unwrap_or_default().into(),
        value: value.unwrap_or_default().into(),
    };
    let limit = read.limit.map(|JsonLimit { requests_per_unit, unit }| {
        let requests_per_unit = requests_per_unit.unwrap_or_default().narrow()?;
        Ok(LimitOverride { requests_per_unit, unit: unit.unwrap_or_default().0 })
    });
    Ok(Descriptor {
        entries: entries.map(entry).collect(),
        limit: limit.transpose()?,
        hits_addend: read.hits_addend.map(|hits| hits.0),
        is_negative_hits: read.is_negative_hits.unwrap_or_default(),
    })
}

/// Returns the response to a call: 200, or 429 if it is over a limit; 400 if it is invalid, and 500 if it can't be decided.
pub(super) fn response(answered: &Result<RateLimitResponse, Status>) -> Response<Body> {
    let (status, body) = match answered {
        Ok(answer) => {
            let status = match answer.overall_code() {
                RateLimitCode::OverLimit => StatusCode::TOO_MANY_REQUESTS,
                _ => StatusCode::OK,
            };
            (status, serde_json::to_vec(&json(answer)).unwrap_or_default())
        }
        Err(Status { code: Code::InvalidArgument, message }) => {
            (StatusCode::BAD_REQUEST, message.clone().into_bytes())
        }
        Err(Status { message, .. }) => (StatusCode::INTERNAL_SERVER_ERROR, message.clone().into_bytes()),
    };
    let mut response = Response::new(Body::Whole(Some(body.into())));
    *response.status_mut() = status;
    let content_type = if answered.is_ok() { "application/json" } else { "text/plain; charset=utf-8" };
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    response
}

fn json(answer: &RateLimitResponse) -> JsonResponse<'_> {
    let statuses = answer.statuses.iter().map(|status: &DescriptorStatus| JsonStatus {
        code: code(status.code),
        current_limit: status.current_limit.as_ref().map(|limit: &CurrentLimit| JsonCurrentLimit {
            name: &limit.name,
            requests_per_unit: limit.requests_per_unit,
            unit: UNITS.get(limit.unit as usize).copied().unwrap_or(UNITS[0]),
        }),
        limit_remaining: status.limit_remaining,
        duration_until_reset: status
            .duration_until_reset
            .map(|Duration { seconds, .. }| format!("{seconds}s")),
    });
    let headers = answer.response_headers_to_add.iter();
    JsonResponse {
        overall_code: code(answer.overall_code),
        statuses: statuses.collect(),
        response_headers_to_add: headers
            .map(|AddedHeader { key, value }| JsonHeader { key, value })
            .collect(),
        dynamic_metadata: answer.dynamic_metadata.as_ref().map(json_of),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the only descriptor of a call with these fields.
    fn of(fields: &str) -> Result<Descriptor, Status> {
        read(format!(r#"{{"descriptors":[{{{fields}}}]}}"#).as_bytes())
            .map(|mut call| call.descriptors.remove(0))
    }

    /// The expected values are those of Go's `protojson`, but for units in lower case, which it rejects.
    #[test]
    fn calls_are_read_as_by_protojson() {
        let default = Descriptor::default();
        assert_eq!(of("").unwrap(), default);
        let nulls = r#""entries":null,"limit":null,"hitsAddend":null,"isNegativeHits":null"#;
        assert_eq!(of(nulls).unwrap(), default);
        let call = read(br#"{"domain":null,"hitsAddend":null,"descriptors":null}"#).unwrap();
        assert_eq!(call, RateLimitRequest::default());
        let entries = of(r#""entries":[{"key":null,"value":null},{}]"#).unwrap().entries;
        assert_eq!(entries, vec![DescriptorEntry::default(); 2]);

        let limit = |fields: &str| of(&format!(r#""limit":{{{fields}}}"#)).ok().map(|of| of.limit.unwrap());
        for (fields, requests_per_unit, unit) in [
            ("", 0, 0),
            (r#""requestsPerUnit":null,"unit":null"#, 0, 0),
            (r#""requestsPerUnit":"3","unit":2"#, 3, 2),
            (r#""requests_per_unit":3.0,"unit":"HOUR""#, 3, 3),
            (r#""unit":99"#, 0, 99),
            (r#""unit":"year""#, 0, 6),
        ] {
            assert_eq!(limit(fields), Some(LimitOverride { requests_per_unit, unit }), "{fields}");
        }
        for fields in
            [r#""unit":"2""#, r#""unit":"WEEK""#, r#""unit":true"#, r#""requestsPerUnit":"4294967296""#]
        {
            assert_eq!(limit(fields), None, "{fields}");
        }

        for (written, hits) in [
            ("2", Some(2)),
            ("\"2\"", Some(2)),
            ("2.0", Some(2)),
            ("\"1e2\"", Some(100)),
            ("\"18446744073709551615\"", Some(u64::MAX)),
            ("18446744073709551616", None),
            ("1.5", None),
            ("-1", None),
            ("\"+2\"", None),
            ("\" 2\"", None),
            ("\"02\"", None),
            ("\"\"", None),
            ("true", None),
        ] {
            let read = of(&format!("\"hitsAddend\":{written}")).ok().map(|of| of.hits_addend.unwrap());
            assert_eq!(read, hits, "{written}");
            let call = read_hits(written);
            assert_eq!(call, hits.filter(|hits| *hits <= u32::MAX.into()), "{written}");
        }
        assert!(of(r#""isNegativeHits":true"#).unwrap().is_negative_hits);
        for bad in ["null", r#"{"descriptors":[null]}"#, r#"{"descriptors":{}}"#, r#"{"x":null}"#] {
            assert!(read(bad.as_bytes()).is_err(), "{bad}");
        }
    }

    fn read_hits(written: &str) -> Option<u64> {
        read(format!("{{\"hitsAddend\":{written}}}").as_bytes()).ok().map(|call| call.hits_addend.into())
    }
}
