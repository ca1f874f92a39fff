//! The rates that requests and the file give to keys.

use tollgate_limiter::{Key, Rate};

use super::{Subject, of_values, single, text_of_written, texts_of, written::value_in};
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
/// credentials are hashed.
pub(crate) fn own_text(limit: &LimitSettings, own: &RateOverride) -> String {
    if let Some(values) = own.single() {
        return of_values(limit, &values).as_str().to_owned();
    }
    let part = |(part, value): (&KeyPart, &Option<String>)| match value {
        None => ANY.to_owned(),
        Some(value) => {
            let text = text_of_written(limit, part, value);
            value_in(limit, part, &text).unwrap_or(text)
        }
    };
    let parts: Vec<_> = limit.key.iter().zip(&own.key).map(part).collect();
    serde_json::json!(parts).to_string()
}

/// The rates that a file's overrides give to keys.
#[derive(Debug)]
pub(crate) struct OwnRates {
    parts: usize,
    /// The rates in the order in which they apply, and the texts of the parts of their keys. `None` stands for any text.
    rates: Vec<(Vec<Option<String>>, Rate)>,
}

impl OwnRates {
    pub(crate) fn new(limit: &LimitSettings) -> Self {
        let text = |(part, value): (&KeyPart, &Option<String>)| {
            value.as_ref().map(|value| text_of_written(limit, part, value))
        };
        let own = |other: &RateOverride| (limit.key.iter().zip(&other.key).map(text).collect(), other.rate);
        Self { parts: limit.key.len(), rates: limit.overrides.iter().map(own).collect() }
    }

    /// Returns the rate of a key. `None` if it has the limit's.
    pub(crate) fn of(&self, key: &Key) -> Option<Rate> {
        let texts = (!self.rates.is_empty()).then(|| texts_of(key.as_str(), self.parts))??;
        let is_own = |(own, _): &&(Vec<Option<String>>, Rate)| {
            own.iter().zip(&texts).all(|(own, text)| own.as_ref().is_none_or(|own| own == text))
        };
        self.rates.iter().find(is_own).map(|(_, rate)| *rate)
    }
}
