//! The ends of responses in a replay: releases, costs that responses state, and requests in flight.

use std::cmp::Reverse;

use bytes::Bytes;
use hyper::{HeaderMap, StatusCode};
use smallvec::SmallVec;
use tollgate_limiter::{
    Ask, Quota,
    store::{Act, Decision, LeaseId, Operation},
};

use crate::rules::Rule;

use super::{super::line::Logged, DEMAND_BYTES_MOST, PendingAsk, Replay, store_time};

/// The most requests in flight. Beyond it, the earliest are taken to have ended.
const RUNNING_MOST: usize = 500_000;

/// An effect of the end of a response.
pub(super) enum ResponseEnd {
    /// Charges the debt of an admitted request.
    Owed { bucket: Bytes, quota: Quota, debt: u32 },
    /// Releases the lease of an admitted request.
    Leased { bucket: Bytes, quota: Quota, id: LeaseId },
    /// Adds to the demand of a key, for any request.
    Demanded { limit: usize, key: usize, quota: Quota, debt: u32 },
    /// Ends a request in flight, for any request.
    Ran { limit: usize, key: usize },
}

impl Replay {
    /// Schedules the release and the charges for the end of an admitted request.
    pub(super) fn settle(&mut self, asked: &[&PendingAsk], decision: &Decision, logged: &Logged) {
        let leases = decision.leases.iter().map(|lease| ResponseEnd::Leased {
            bucket: lease.bucket.clone(),
            quota: lease.quota,
            id: lease.id,
        });
        let charged = asked.iter().zip(&decision.outcomes).filter(|(_, outcome)| outcome.charged);
        let debts = charged.filter_map(|(PendingAsk { limit, ask, charge, .. }, _)| {
            let debt = debt(&self.limits[*limit].rule, ask, logged)?;
            Some(ResponseEnd::Owed { bucket: charge.bucket.clone(), quota: charge.quota, debt })
        });
        let ends = leases.chain(debts).collect();
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
            ResponseEnd::Owed { bucket, quota, debt } => (bucket, quota, Act::Record(debt)),
            ResponseEnd::Leased { bucket, quota, id } => (bucket, quota, Act::Release(id)),
            ResponseEnd::Demanded { limit, key, quota, debt } => {
                let is_coarse = self.demand_bytes > DEMAND_BYTES_MOST;
                let demand = &mut self.limits[limit].tally.of_key(key).demand;
                self.demand_bytes += demand.owe(quota, is_coarse, time_us, debt);
                return;
            }
            ResponseEnd::Ran { limit, key } => return self.limits[limit].tally.of_key(key).demand.end(),
        };
        // If the store is full, a debt is dropped, as in the gateway.
        let _ = self.store.operate_at(time_us, &Operation::On { bucket, quota, act });
    }
}

/// Returns what the response adds to the charge of its request.
pub(super) fn debt(rule: &Rule, ask: &Ask, logged: &Logged) -> Option<u32> {
    let fields: HeaderMap = logged.answer_headers.iter().cloned().collect();
    let debt = rule.debt(ask.settles()?, logged.status.unwrap_or(StatusCode::OK), &fields)?;
    (debt > 0).then_some(debt)
}
