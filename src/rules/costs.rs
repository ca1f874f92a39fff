//! The cost of a request: what it states, what is estimated, and what its response settles.

use std::sync::atomic::Ordering;

use hyper::{HeaderMap, StatusCode, header::HeaderName};
use tollgate_limiter::Refusal;

use super::Rule;
use crate::config::Cost;

impl Rule {
    /// Returns the cost that the request states, or the estimate if the response will state it.
    pub(crate) fn cost(&self, headers: &HeaderMap) -> Result<u32, Refusal> {
        match &self.config.cost {
            // It asks whether there is room. Somebody else reports what it used.
            _ if self.takes_reports() => Ok(0),
            Cost::Fixed(_) => Ok(self.fixed_cost()),
            Cost::Response { estimate, .. } | Cost::ResponseJson { estimate, .. } => Ok(*estimate),
            Cost::Header(name) => match stated_cost(headers, name) {
                Some(Ok(cost)) => Ok(cost),
                None => Ok(1),
                Some(Err(NotACost)) => Err(Refusal::CostInvalid { header: name.to_string() }),
            },
        }
    }

    /// Returns the cost that a response adds to the `estimate` of its request. `None` if these fields don't state it yet. A lower
    /// cost adds nothing, and an invalid one leaves the estimate.
    pub(crate) fn debt(&self, estimate: u32, status: StatusCode, fields: &HeaderMap) -> Option<u32> {
        match &self.config.cost {
            Cost::Response { header, .. } => {
                let told = stated_cost(fields, header)?;
                if told.is_err() && fields[header] != "0" {
                    self.keep_estimate(status);
                }
                Some(told.map_or(0, |cost| cost.saturating_sub(estimate)))
            }
            Cost::ResponseJson { .. } => None,
            _ if self.config.when_status.iter().any(|range| range.matches(status)) => Some(estimate),
            _ => Some(0),
        }
    }

    /// Returns how much less than the `estimate` a response says that its request has cost: 0 if it doesn't say so.
    pub(crate) fn unused(&self, estimate: u32, fields: &HeaderMap) -> u32 {
        let Cost::Response { header, .. } = &self.config.cost else { return 0 };
        match stated_cost(fields, header) {
            Some(Ok(cost)) => estimate.saturating_sub(cost),
            // It has used nothing.
            Some(Err(NotACost)) if fields[header] == "0" => estimate,
            _ => 0,
        }
    }

    /// Counts a response that didn't state its cost. The first one that succeeded is logged, since a mistake in the file has
    /// this effect.
    pub(super) fn keep_estimate(&self, status: StatusCode) {
        let place = match &self.config.cost {
            Cost::Response { header, .. } => header.to_string(),
            Cost::ResponseJson { pointer, .. } => pointer.to_string(),
            Cost::Fixed(_) | Cost::Header(_) => return,
        };
        self.tally.estimates_kept.fetch_add(1, Ordering::Relaxed);
        if status.is_success() && !self.tally.has_warned_of_estimate.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                "limit `{}`: a response didn't state its cost (`{place}`), so the estimate stays charged; \
                 tollgate_estimates_kept_total counts such responses",
                self.limit.name()
            );
        }
    }
}

/// Something else than one integer of 1 to 2^31 - 1.
#[derive(Debug)]
pub(crate) struct NotACost;

/// The cost that a header states, if it is there.
pub(crate) fn stated_cost(headers: &HeaderMap, name: &HeaderName) -> Option<Result<u32, NotACost>> {
    let mut lines = headers.get_all(name).into_iter();
    let first = lines.next()?;
    let digits = first.to_str().ok().filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()));
    let cost = digits.and_then(|digits| digits.parse::<u32>().ok());
    let cost = cost.filter(|cost| (1..=i32::MAX as u32).contains(cost) && lines.all(|line| line == first));
    Some(cost.ok_or(NotACost))
}
