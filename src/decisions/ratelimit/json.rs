//! `POST /json`: the rate limit service for callers without gRPC. Messages are the same, as JSON.

use hyper::{
    Response, StatusCode,
    header::{CONTENT_TYPE, HeaderValue},
};
use serde::{Deserialize, Serialize};

use crate::gateway::Body;

use super::{
    Code, Status,
    messages::{
        CurrentLimit, Descriptor, DescriptorEntry, DescriptorStatus, Duration, LimitOverride, RateLimitCode,
        RateLimitRequest, RateLimitResponse,
    },
};

/// A call as JSON. Names may be spelt as in protobuf, too.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct JsonRequest {
    domain: String,
    descriptors: Vec<JsonDescriptor>,
    #[serde(rename = "hitsAddend", alias = "hits_addend")]
    hits_addend: u32,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct JsonDescriptor {
    entries: Vec<JsonEntry>,
    limit: Option<JsonLimit>,
    #[serde(rename = "hitsAddend", alias = "hits_addend")]
    hits_addend: Option<Number>,
    #[serde(rename = "isNegativeHits", alias = "is_negative_hits")]
    is_negative_hits: bool,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct JsonEntry {
    key: String,
    value: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct JsonLimit {
    #[serde(rename = "requestsPerUnit", alias = "requests_per_unit")]
    requests_per_unit: u32,
    unit: String,
}

/// A 64-bit number, which JSON has as a text, mostly.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Number {
    Written(String),
    Plain(u64),
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct JsonResponse<'r> {
    overall_code: &'static str,
    statuses: Vec<JsonStatus<'r>>,
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
    let descriptors = read.descriptors.into_iter().map(descriptor).collect::<Result<_, _>>()?;
    Ok(RateLimitRequest { domain: read.domain.into(), descriptors, hits_addend: read.hits_addend })
}

fn descriptor(read: JsonDescriptor) -> Result<Descriptor, Status> {
    let entries = read.entries.into_iter();
    let hits_addend = read.hits_addend.map(|hits| match hits {
        Number::Plain(number) => Ok(number),
        Number::Written(text) => {
            text.parse().map_err(|_| Status::invalid(format!("`{text}` is not a number of hits")))
        }
    });
    let limit = read.limit.map(|limit| {
        let name = limit.unit.to_uppercase();
        let unit = (0..).zip(UNITS).find(|(_, known)| *known == name).map(|(unit, _)| unit);
        let unit = unit.ok_or_else(|| Status::invalid(format!("`{}` is not a unit", limit.unit)))?;
        Ok(LimitOverride { requests_per_unit: limit.requests_per_unit, unit })
    });
    Ok(Descriptor {
        entries: entries
            .map(|JsonEntry { key, value }| DescriptorEntry { key: key.into(), value: value.into() })
            .collect(),
        limit: limit.transpose()?,
        hits_addend: hits_addend.transpose()?,
        is_negative_hits: read.is_negative_hits,
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
    JsonResponse { overall_code: code(answer.overall_code), statuses: statuses.collect() }
}
