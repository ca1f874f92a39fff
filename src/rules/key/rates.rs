//! The rates that requests and the file give to keys.

use std::sync::Arc;

use tollgate_limiter::{Key, Rate};

use super::{
    Subject,
    known::{is_name, is_only_name, name_of},
    of_values, single, text_of_written, texts_of,
    written::value_in,
};
use crate::config::{KeyPart, LimitSettings, RateOverride};

/// Returns the rate that a request states, if the limit goes by that: a whole number for the time of its own rate.
pub(super) fn stated_rate(limit: &LimitSettings, subject: &Subject<'_>) -> Option<Rate> {
    let from = limit.rate_from.as_ref()?;
    let stated = match &from.source {
        KeyPart::Jwt(claim) => subject.claims.text(claim).ok()??,
        KeyPart::Header(name) if subject.peer_is_trusted => {
            std::str::from_utf8(single(subject.headers, name).ok()??).ok()?.to_owned()
        }
        _ => return None,
    };
    let most = match &from.source {
        // Not all servers believe such a token, so it gives no more than others have.
        KeyPart::Jwt(_) if !subject.claims.are_usual() => from.max.min(limit.quota.rate().permits),
        _ => from.max,
    };
    let is_number = !stated.is_empty() && stated.bytes().all(|byte| byte.is_ascii_digit());
    // A number with more digits is above any bound.
    let permits = is_number.then(|| stated.parse().unwrap_or(u32::MAX))?;
    Some(Rate { permits: permits.min(most), ..limit.quota.rate() })
}

/// The sign for any value in the keys of a file's overrides.
const ANY: &str = "*";

/// Returns true if a key, as operators write it, has the sign for any value in place of a part.
pub(crate) fn is_pattern(limit: &LimitSettings, written: &str) -> bool {
    match &*limit.key {
        [_] => written == ANY,
        _ => serde_json::from_str::<Vec<String>>(written)
            .is_ok_and(|values| values.iter().any(|value| value == ANY)),
    }
}

/// Returns the key of an override as text: the key's own, or `["pro","*"]` if it applies to several keys. Values that may be
/// credentials are hashed, and names of known keys are as the file writes them.
pub(crate) fn own_text(limit: &LimitSettings, own: &RateOverride) -> String {
    let named = |(place, value): (usize, &Option<String>)| {
        value.as_ref().is_some_and(|value| is_only_name(limit, place, value))
    };
    let has_name = own.key.iter().enumerate().any(named);
    if let Some(values) = own.single().filter(|_| !has_name) {
        return of_values(limit, &values).as_str().to_owned();
    }
    let part = |(place, (part, value)): (usize, (&KeyPart, &Option<String>))| match value {
        None => ANY.to_owned(),
        Some(value) if is_only_name(limit, place, value) => value.clone(),
        Some(value) => {
            let text = text_of_written(limit, part, value);
            value_in(limit, part, &text).unwrap_or(text)
        }
    };
    let mut parts: Vec<_> = limit.key.iter().zip(&own.key).enumerate().map(part).collect();
    match parts.len() {
        1 => parts.remove(0),
        _ => serde_json::json!(parts).to_string(),
    }
}

/// The rates that a file's overrides give to keys.
#[derive(Debug)]
pub(crate) struct OwnRates {
    limit: Arc<LimitSettings>,
    /// The texts of the parts of each override's key. `None` stands for any text.
    texts: Vec<Vec<Option<String>>>,
}

impl OwnRates {
    pub(crate) fn new(limit: &Arc<LimitSettings>) -> Self {
        let text = |(place, (part, value)): (usize, (&KeyPart, &Option<String>))| match value {
            // No key has an empty text. A question in JSON may have the name as a key, which isn't looked for in the file.
            Some(value) if is_only_name(limit, place, value) => Some(String::new()),
            Some(value) => Some(text_of_written(limit, part, value)),
            None => None,
        };
        let own = |other: &RateOverride| limit.key.iter().zip(&other.key).enumerate().map(text).collect();
        Self { limit: limit.clone(), texts: limit.overrides.iter().map(own).collect() }
    }

    /// Returns the rate of a key. `None` if it has the limit's.
    pub(crate) fn of(&self, key: &Key) -> Option<Rate> {
        let Self { limit, texts: own_texts } = self;
        let texts = (!own_texts.is_empty()).then(|| texts_of(key.as_str(), limit.key.len()))??;
        let name = name_of(limit, key.as_str());
        let is_own = |(other, own): &(&RateOverride, &Vec<Option<String>>)| {
            other.key.iter().zip(*own).zip(&texts).enumerate().all(|(place, ((value, own), text))| {
                own.as_ref().is_none_or(|own| own == text)
                    || value.as_ref().is_some_and(|value| is_name(limit, place, name, value))
            })
        };
        limit.overrides.iter().zip(own_texts).find(is_own).map(|(other, _)| other.rate)
    }
}
