//! Questions in JSON, for services in any language: `{"limits": [{"name": "logins", "key": "alice", "cost": 1}]}`.

use std::{net::IpAddr, sync::Arc};

use hyper::{Method, Response, header::CONTENT_TYPE, http::request::Parts};
use serde::Deserialize;
use serde_json::Value;
use smallvec::smallvec;
use tollgate_limiter::Ask;

use super::{PATH, X_FORWARDED_METHOD, X_FORWARDED_URI};
use crate::{
    config::KeyPart,
    decisions::{self, grpc},
    gateway::{AnswerBody, Exchange, Gateway, Peer, Upload, plan::descriptors::REMOTE_ADDRESS},
    reject::Rejection,
    rules::{
        Rule, Terms,
        key::{descriptor::address, key_of_values},
    },
};

/// The most limits of a question.
const LIMITS_MOST: usize = 256;

/// A question: whether these limits, all of them, can be charged.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct CheckQuestion {
    limits: Vec<LimitInQuestion>,
}

/// A limit of a question, and the charge.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct LimitInQuestion {
    name: String,
    /// The value of the key, or a list of the values of its parts. A limit by `global` needs none.
    #[serde(default)]
    key: Value,
    /// The permits. With 0 it asks whether there is room.
    #[serde(default = "one")]
    cost: u32,
}

fn one() -> u32 {
    1
}

/// Returns true if a call is a question in JSON, and not the description of a request whose client sent JSON.
pub(super) fn is_question(call: &Parts) -> bool {
    let is_json = || {
        let content_type = call.headers.get(CONTENT_TYPE).and_then(|line| line.to_str().ok());
        let media_type = content_type.and_then(|line| line.split(';').next()).unwrap_or_default();
        media_type.trim().eq_ignore_ascii_case("application/json")
    };
    let describes = [X_FORWARDED_METHOD, X_FORWARDED_URI].iter().any(|name| call.headers.contains_key(name));
    call.method == Method::POST && call.uri.path() == PATH && !describes && is_json()
}

/// Answers a question like a request that is charged the same: with 200 or 429.
pub(super) async fn answer(
    gateway: Arc<Gateway>,
    peer: Peer,
    call: &Parts,
    body: Upload,
) -> Response<AnswerBody> {
    let timeout = grpc::timeout(&call.headers);
    let mut exchange = Exchange::begin_described(gateway.clone(), peer, call).waiting_at_most(timeout);
    let outcome = match read(&gateway, body).await {
        Ok((rules, terms)) => exchange.decide(&rules, terms).await,
        Err(rejection) => Err(rejection),
    };
    exchange.conclude(outcome)
}

/// Reads a question.
///
/// # Errors
/// It can't be read, or names a limit or a key that isn't valid.
async fn read(gateway: &Gateway, body: Upload) -> Result<(Vec<Arc<Rule>>, Vec<Terms>), Rejection> {
    let bytes = decisions::whole(body).await?;
    let question: CheckQuestion =
        serde_json::from_slice(&bytes).map_err(|error| Rejection::QuestionInvalid(error.to_string()))?;
    if !(1..=LIMITS_MOST).contains(&question.limits.len()) {
        return Err(Rejection::QuestionInvalid(format!("a question names 1 to {LIMITS_MOST} limits")));
    }
    let client = question.limits.iter().find_map(|limit| limit.client(gateway));
    // Numbered, since a limit may be asked for several keys.
    let asked = (0..).zip(&question.limits).map(|(place, limit)| limit.terms(gateway, client, place));
    let asked: Result<Vec<_>, _> = asked.collect();
    Ok(asked.map_err(Rejection::QuestionInvalid)?.into_iter().unzip())
}

impl LimitInQuestion {
    /// Returns the limit and its charge.
    fn terms(
        &self,
        gateway: &Gateway,
        client: Option<IpAddr>,
        place: u16,
    ) -> Result<(Arc<Rule>, Terms), String> {
        let Self { name, key, cost } = self;
        let Some(rule) = gateway.rules().get(name) else { return Err(format!("there is no limit `{name}`")) };
        if !rule.config().ends_with_decision() {
            return Err(format!("limit `{name}` needs a response, so only proxied requests can use it"));
        }
        if *cost > i32::MAX as u32 {
            return Err(format!("limit `{name}`: the cost must be 0 to {}", i32::MAX));
        }
        let written = match key {
            Value::Null if rule.config().key != [KeyPart::Global] => {
                return Err(format!("limit `{name}`: the key is missing"));
            }
            Value::Null => "global".to_owned(),
            Value::String(value) => value.clone(),
            Value::Array(values) if rule.config().key.len() == 1 => match &values[..] {
                [Value::String(value)] => value.clone(),
                _ => return Err(format!("limit `{name}`: the key has one part, so it is one text")),
            },
            values => values.to_string(),
        };
        let key =
            key_of_values(rule.config(), &written).map_err(|fault| format!("limit `{name}`: {fault}"))?;
        let ask = client.into_iter().fold(rule.ask_for(key), Ask::from_client);
        Ok((rule.clone(), Terms::Counts(smallvec![ask.cost(*cost).number(place)])))
    }

    /// Returns the address of the client, if the key has one.
    fn client(&self, gateway: &Gateway) -> Option<IpAddr> {
        let parts = &gateway.rules().get(&self.name)?.config().key;
        let is_address = |part: &KeyPart| match part {
            KeyPart::Ip => true,
            KeyPart::Descriptor(name) => name == REMOTE_ADDRESS,
            _ => false,
        };
        let value = match &self.key {
            Value::Array(values) => values.get(parts.iter().position(is_address)?)?,
            value => Some(value).filter(|_| parts.iter().all(is_address))?,
        };
        address(value.as_str()?.as_bytes())
    }
}
