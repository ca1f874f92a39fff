//! The ends of responses in a replay: releases, costs that responses state, and requests in flight.

use std::cmp::Reverse;

use bytes::Bytes;
use hyper::{HeaderMap, StatusCode};
use smallvec::SmallVec;
use tollgate_limiter::{
    Ask, Quota,
    store::{Act, Decision, Operation, Refund},
};

use crate::rules::Rule;

use super::{super::line::Logged, DEMAND_BYTES_MOST, PendingAsk, Replay, store_time};

/// The most requests in flight. Beyond it, the earliest are taken to have ended.
const RUNNING_MOST: usize = 500_000;

/// An effect of the end of a response.
pub(super) enum ResponseEnd {
    /// Corrects the charge of an admitted request, or releases its lease.
    Settled { bucket: Bytes, quota: Quota, act: Act },
    /// Corrects the demand of a key, for any request.
    Demanded { limit: usize, key: usize, quota: Quota, act: Act },
    /// Ends a request in flight, for any request.
    Ran { limit: usize, key: usize },
}

impl Replay {
    /// Schedules the release and the corrections for the end of an admitted request.
    pub(super) fn settle(&mut self, asked: &[&PendingAsk], decision: &Decision, logged: &Logged) {
        let leases = decision.leases.iter().map(|lease| ResponseEnd::Settled {
            bucket: lease.bucket.clone(),
            quota: lease.quota,
            act: Act::Release(lease.id),
        });
        let charged = asked.iter().zip(&decision.outcomes).filter(|(_, outcome)| outcome.charged);
        let corrections = charged.filter_map(|(PendingAsk { limit, ask, charge, .. }, _)| {
            let act = correction(&self.limits[*limit].rule, ask, logged)?;
            Some(ResponseEnd::Settled { bucket: charge.bucket.clone(), quota: charge.quota, act })
        });
        let ends = leases.chain(corrections).collect();
        self.end_later(logged, ends);
    }

    /// Schedules effects for the end of a response, or applies them if its duration is zero.
    pub(super) fn end_later(&mut self, logged: &Logged, ends: SmallVec<[ResponseEnd; 2]>) {
        if ends.is_empty() {
            return;
        }
        let ends_us = logged.at_us.saturating_add(logged.took_us.unwrap_or(0));
        if ends_us == logged.at_us {
            return ends.into_iter().for_each(|end| self.end(ends_us, end));
        }
        self.started += 1;
        self.running.push(Reverse((ends_us, self.started)));
        self.ends.insert(self.started, ends);
        if self.running.len() > RUNNING_MOST
            && let Some(Reverse((_, earliest))) = self.running.pop()
        {
            let ends = self.ends.remove(&earliest).unwrap_or_default();
            ends.into_iter().for_each(|end| self.end(logged.at_us, end));
        }
    }

    /// Applies the effects of the responses that have ended by this time.
    pub(super) fn end_until(&mut self, time_us: u64) {
        while let Some(Reverse((ends_us, number))) = self.running.peek().copied()
            && ends_us <= time_us
        {
            self.running.pop();
            let ends = self.ends.remove(&number).unwrap_or_default();
            ends.into_iter().for_each(|end| self.end(ends_us, end));
        }
    }

    /// Applies an effect.
    fn end(&mut self, time_us: u64, end: ResponseEnd) {
        let time_us = store_time(time_us);
        let (bucket, quota, act) = match end {
            ResponseEnd::Settled { bucket, quota, act } => (bucket, quota, act),
            ResponseEnd::Demanded { limit, key, quota, act } => {
                let is_coarse = self.demand_bytes > DEMAND_BYTES_MOST;
                let demand = &mut self.limits[limit].tally.of_key(key).demand;
                self.demand_bytes += demand.correct(quota, is_coarse, time_us, act);
                return;
            }
            ResponseEnd::Ran { limit, key } => return self.limits[limit].tally.of_key(key).demand.end(),
        };
        // If the store is full, a debt is dropped, as in the gateway.
        let _ = self.store.operate_at(time_us, &Operation::On { bucket, quota, act });
    }
}

/// Returns what the response changes in the charge of its request: a debt, or a refund of what it has not used.
pub(super) fn correction(rule: &Rule, ask: &Ask, logged: &Logged) -> Option<Act> {
    let estimate = ask.settles()?;
    let fields: HeaderMap = logged.answer_headers.iter().cloned().collect();
    let debt = rule.debt(estimate, logged.status.unwrap_or(StatusCode::OK), &fields)?;
    let unused = if rule.limit().has_refunds() { rule.unused(estimate, &fields) } else { 0 };
    let granted_us = Some(store_time(logged.at_us));
    match (debt, unused) {
        (0, 0) => None,
        (0, permits) => Some(Act::Refund(Refund { permits, granted_us })),
        (debt, _) => Some(Act::Record(debt)),
    }
}
