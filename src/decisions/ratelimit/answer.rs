//! The response to a call: a decision for all descriptors, one for each, and what the client is to be told.

use std::sync::Arc;

use hyper::{
    HeaderMap,
    header::{HeaderName, HeaderValue},
};
use tollgate_limiter::{
    Algorithm, Calendar, CalendarUnit, Quota, RatelimitHeaders, Refusal, Standing, fields,
};

use crate::{
    config::{CountHeaders, Verdict},
    gateway::CallDecision,
    reject::Rejection,
};

use super::messages::{
    AddedHeader, CurrentLimit, DescriptorStatus, Duration, RateLimitCode, RateLimitResponse, Unit,
};

/// The decision on a call.
pub(super) struct CallAnswer {
    /// The decisions on each descriptor.
    pub(super) statuses: Vec<DescriptorStatus>,
    /// The standings of the limits of an admitted call.
    pub(super) standings: Vec<Standing>,
    /// The reason why the call is rejected, if it is.
    pub(super) refusal: Option<Refusal>,
}

impl CallAnswer {
    /// Creates the answer to a call whose descriptors have no limits.
    pub(super) fn admitted(descriptors: usize) -> Self {
        Self { statuses: vec![unlimited(); descriptors], standings: Vec::new(), refusal: None }
    }

    /// Creates the answer to a call with so many descriptors.
    pub(super) fn new(descriptors: usize, decided: CallDecision) -> Self {
        let statuses = (0..descriptors).map(|place| status(&decided, place)).collect();
        match decided.outcome {
            Ok(admission) => Self { statuses, standings: admission.standings().to_vec(), refusal: None },
            Err(refusal) => Self { statuses, standings: Vec::new(), refusal: Some(refusal) },
        }
    }

    /// Notes what the configuration says of each descriptor beside numbers.
    pub(super) fn note_verdicts(&mut self, verdicts: &[Option<Arc<Verdict>>]) {
        for (status, verdict) in self.statuses.iter_mut().zip(verdicts) {
            let Some(verdict) = verdict else { continue };
            if verdict.limit.is_none() {
                status.limit_remaining = u32::MAX;
            }
            if let (Some(limit), Some(name)) = (&mut status.current_limit, &verdict.name) {
                limit.name.clone_from(name);
            }
        }
    }

    /// Admits the call, whatever its limits say.
    pub(super) fn admit(&mut self) {
        self.refusal = None;
    }

    /// Returns header fields with the numbers of the tightest limit. `None` if no descriptor has a limit.
    pub(super) fn counts(&self, names: &CountHeaders) -> Option<[AddedHeader; 3]> {
        let order = |status: &&DescriptorStatus| (status.code != over(), status.limit_remaining);
        let limited = self.statuses.iter().filter(|status| status.current_limit.is_some());
        let tightest = limited.min_by_key(order)?;
        let permits = tightest.current_limit.as_ref().map_or(0, |limit| limit.requests_per_unit);
        let reset = tightest.duration_until_reset.map_or(0, |reset| reset.seconds);
        let header = |(name, value): (&HeaderName, String)| AddedHeader { key: name.to_string(), value };
        Some(
            [
                (&names.limit, permits.to_string()),
                (&names.remaining, tightest.limit_remaining.to_string()),
                (&names.reset, reset.to_string()),
            ]
            .map(header),
        )
    }

    /// Returns the response.
    pub(super) fn into_response(self, form: RatelimitHeaders) -> RateLimitResponse {
        let Self { statuses, standings, refusal } = self;
        let response = RateLimitResponse { statuses, ..RateLimitResponse::default() };
        match refusal {
            None => {
                let mut fields = HeaderMap::new();
                fields::write(&mut fields, &standings, form);
                let response_headers_to_add = added(&fields);
                RateLimitResponse {
                    overall_code: RateLimitCode::Ok.into(),
                    response_headers_to_add,
                    ..response
                }
            }
            Some(refusal) => {
                let (head, body) = Rejection::from(refusal).into_response(false, form, None).into_parts();
                let response_headers_to_add = added(&head.headers);
                RateLimitResponse {
                    overall_code: over(),
                    response_headers_to_add,
                    raw_body: body,
                    ..response
                }
            }
        }
    }
}

/// Returns the decision on a descriptor of a call.
pub(super) fn status(decided: &CallDecision, place: usize) -> DescriptorStatus {
    match decided.uncountable {
        Some(uncountable) if uncountable == place => {
            DescriptorStatus { code: over(), ..DescriptorStatus::default() }
        }
        _ => standing(decided.standings(place)),
    }
}

fn unlimited() -> DescriptorStatus {
    DescriptorStatus { code: RateLimitCode::Ok.into(), ..DescriptorStatus::default() }
}

fn over() -> i32 {
    RateLimitCode::OverLimit.into()
}

/// Returns the decision on a descriptor whose limits stand so.
fn standing<'s>(standings: impl Iterator<Item = &'s Standing>) -> DescriptorStatus {
    let known = standings.filter(|standing| standing.remaining().is_some());
    let tightest = known.max_by(|one, other| {
        let order = |standing: &Standing| (standing.refuses(), standing.tightness());
        let (one, other) = (order(one), order(other));
        one.0.cmp(&other.0).then(one.1.total_cmp(&other.1))
    });
    let Some(standing) = tightest else { return unlimited() };
    let refuses = standing.refuses();
    let outcome = &standing.outcome;
    let reset_us = if refuses { outcome.delay_us } else { Some(outcome.grow_us) };
    DescriptorStatus {
        code: if refuses { over() } else { RateLimitCode::Ok.into() },
        current_limit: Some(CurrentLimit {
            requests_per_unit: standing.quota.permits,
            unit: unit(standing.quota).into(),
            name: standing.limit.name().to_owned(),
        }),
        limit_remaining: u32::try_from(outcome.remaining).unwrap_or(u32::MAX),
        duration_until_reset: reset_us.map(whole_seconds),
    }
}

/// Returns a duration rounded up to seconds: Envoy cuts off fractions, and clients would come back too early.
fn whole_seconds(us: u64) -> Duration {
    Duration { seconds: us.div_ceil(1_000_000).try_into().unwrap_or(i64::MAX), nanos: 0 }
}

/// Returns the unit of a quota's window.
fn unit(Quota { algorithm, window_us, .. }: Quota) -> Unit {
    const DAY: u64 = 24 * 3600;
    match algorithm {
        Algorithm::Calendar(Calendar { unit: CalendarUnit::Month, .. }) => return Unit::Month,
        Algorithm::Calendar(Calendar { unit: CalendarUnit::Year, .. }) => return Unit::Year,
        _ => {}
    }
    match (window_us % 1_000_000, window_us / 1_000_000) {
        (0, 1) => Unit::Second,
        (0, 60) => Unit::Minute,
        (0, 3600) => Unit::Hour,
        (0, DAY) => Unit::Day,
        (0, seconds) if seconds == 7 * DAY => Unit::Week,
        (0, seconds) if seconds == 30 * DAY => Unit::Month,
        (0, seconds) if seconds == 365 * DAY => Unit::Year,
        _ => Unit::Unknown,
    }
}

/// Returns header fields for Envoy to add to its response.
fn added(fields: &HeaderMap<HeaderValue>) -> Vec<AddedHeader> {
    let fields = fields.iter().filter_map(|(name, value)| Some((name, value.to_str().ok()?)));
    fields.map(|(name, value)| AddedHeader { key: name.to_string(), value: value.to_owned() }).collect()
}
