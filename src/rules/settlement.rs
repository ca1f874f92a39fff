//! The costs of admitted requests that their responses state.

use std::sync::Arc;

use hyper::{HeaderMap, StatusCode};
use smallvec::SmallVec;
use tollgate_limiter::{Admission, Limit};

use crate::config::Cost;

use super::{Rule, body_cost::BodyCost};

/// The costs of an admitted request that its response has yet to state.
#[derive(Debug)]
pub struct Settlement {
    admission: Admission,
    status: StatusCode,
    open: SmallVec<[Open; 1]>,
}

/// A limit whose cost isn't known yet.
#[derive(Debug)]
struct Open {
    rule: Arc<Rule>,
    estimate: u32,
    /// The search of the body for the cost, if it is stated there.
    body: Option<BodyCost>,
}

impl Settlement {
    /// Records what the head of the response tells. What is left to be told, or to be held until the body has
    /// ended, is in the settlement, if anything.
    pub fn begin(
        admission: Admission,
        rules: &[Arc<Rule>],
        status: StatusCode,
        headers: &HeaderMap,
    ) -> Option<Self> {
        if admission.is_settled() {
            return None;
        }
        let rule_of = |limit: &Arc<Limit>| rules.iter().find(|rule| Arc::ptr_eq(&rule.limit, limit));
        let mut open = SmallVec::<[Open; 1]>::new();
        for (limit, estimate) in admission.owed() {
            // What a limit is owed is recorded for all keys that the request counts for.
            if let Some(known) = open.iter_mut().find(|open| Arc::ptr_eq(&open.rule.limit, limit)) {
                // Routes that servers may see in the path may state different costs.
                known.estimate = known.estimate.max(estimate);
            } else if let Some(rule) = rule_of(limit) {
                let body = match &rule.config.cost {
                    Cost::ResponseJson { pointer, .. } => match BodyCost::of(headers, pointer) {
                        Some(body) => Some(body),
                        None => {
                            rule.keep_estimate(status);
                            continue;
                        }
                    },
                    _ => None,
                };
                open.push(Open { rule: rule.clone(), estimate, body });
            }
        }
        let mut settlement = Self { admission, status, open };
        settlement.settle(headers);
        let is_over = settlement.open.is_empty() && !settlement.admission.has_leases();
        (!is_over).then_some(settlement)
    }

    /// Records what a part of the response's fields tells: its head, or its trailers.
    pub fn settle(&mut self, fields: &HeaderMap) {
        let Self { admission, status, open } = self;
        open.retain(|Open { rule, estimate, .. }| match rule.debt(*estimate, *status, fields) {
            Some(debt) => {
                correct(admission, &rule.limit, debt, rule.unused(*estimate, fields));
                false
            }
            None => true,
        });
    }

    /// Reads a piece of the response's body, which may state costs.
    pub fn read(&mut self, piece: &[u8]) {
        self.open.iter_mut().filter_map(|open| open.body.as_mut()).for_each(|body| body.read(piece));
    }

    /// Records the costs that the body has stated, when it has ended or broken off. What nothing has stated stays estimated.
    pub fn end_body(&mut self) {
        let Self { admission, status, open } = self;
        for Open { rule, estimate, body } in open.drain(..) {
            match body.and_then(BodyCost::end) {
                Some(cost) => {
                    let (debt, unused) = (cost.saturating_sub(estimate), estimate.saturating_sub(cost));
                    correct(admission, &rule.limit, debt, unused);
                }
                None => rule.keep_estimate(*status),
            }
        }
    }
}

/// Charges what a response has cost beyond the estimate, or gives back what it hasn't used of it.
fn correct(admission: &Admission, limit: &Limit, debt: u32, unused: u32) {
    admission.record(limit.name(), debt);
    if limit.has_refunds() {
        admission.give_back(limit.name(), unused);
    }
}

/// A body that its client no longer reads may have stated its cost already.
impl Drop for Settlement {
    fn drop(&mut self) {
        self.end_body();
    }
}
