//! Envoy's rate limit service (RLS): `ShouldRateLimit` decides the descriptors of a call together.

mod answer;
mod json;
mod looks;
mod messages;
mod metadata;
#[cfg(any(test, feature = "fuzzing"))]
#[path = "../../fuzz/properties/descriptors.rs"]
pub(super) mod properties;

use std::{collections::BTreeSet, mem, sync::Arc, time::Duration};

use hyper::{Request, Response};
use tokio::time::Instant;
use tollgate_limiter::{Rate, Refusal};

use crate::gateway::{
    AnswerBody, Body, CallDecision, Exchange, Gateway, Peer, Upload,
    plan::descriptors::{self, DescriptorPlan},
};

use super::grpc::{self, Code, Status};
use answer::CallAnswer;
pub(crate) use messages::Unit;
use messages::{Descriptor, LimitOverride, OverrideUnit, RateLimitRequest, RateLimitResponse};
pub(crate) use metadata::json_of;

/// The path of the only method.
pub(super) const SHOULD_RATE_LIMIT: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
/// The most descriptors of a call.
const DESCRIPTORS_MOST: usize = 256;
/// The most entries of a descriptor.
const ENTRIES_MOST: usize = 16;

/// Answers `ShouldRateLimit`.
pub(super) async fn answer(gateway: Arc<Gateway>, peer: Peer, call: Request<Upload>) -> Response<AnswerBody> {
    let (parts, body) = call.into_parts();
    let timeout = grpc::timeout(&parts.headers);
    let mut exchange = Exchange::begin(gateway, peer, &parts);
    let answered = match grpc::read(body).await {
        Ok(request) => decide(&mut exchange, &request, timeout).await,
        Err(status) => Err(status),
    };
    let response = grpc::response(answered);
    exchange.conclude(Ok(response.map(|reply| Body::Local(axum::body::Body::new(reply)))))
}

/// Answers a call in JSON: 200, or 429 if it is over a limit.
pub(super) async fn answer_json(
    gateway: Arc<Gateway>,
    peer: Peer,
    call: Request<Upload>,
) -> Response<AnswerBody> {
    let (parts, body) = call.into_parts();
    let mut exchange = Exchange::begin(gateway, peer, &parts);
    let body = match super::whole(body).await {
        Ok(body) => body,
        Err(rejection) => return exchange.conclude(Err(rejection)),
    };
    let answered = match json::read(&body) {
        Ok(request) => decide(&mut exchange, &request, None).await,
        Err(status) => Err(status),
    };
    exchange.conclude(Ok(json::response(&answered)))
}

/// Decides the descriptors of a call.
///
/// # Errors
/// The call is invalid, or can't be decided in time or at all.
async fn decide(
    exchange: &mut Exchange,
    request: &RateLimitRequest,
    timeout: Option<Duration>,
) -> Result<RateLimitResponse, Status> {
    check(request)?;
    let too_late = || Status::new(Code::DeadlineExceeded, "the caller waits too short a time for a decision");
    let deadline = timeout.map(|timeout| exchange.deadline(timeout).ok_or_else(too_late)).transpose()?;
    let gateway = exchange.gateway().clone();
    let planner = gateway.planner.descriptors.of_domain(&request.domain);
    let entries = request.descriptors.iter().flat_map(|descriptor| &descriptor.entries);
    let client = descriptors::client_in(entries.map(|entry| (&*entry.key, &*entry.value)));
    let plan = |descriptor: &Descriptor| match descriptor.is_negative_hits {
        // A refund, which no limit must charge.
        true => DescriptorPlan::default(),
        false => {
            let plan = planner.plan(&view(request, descriptor).or_of_client(client));
            looks::warn(&request.domain, descriptor, &plan);
            plan
        }
    };
    let mut plans: Vec<_> = request.descriptors.iter().map(plan).collect();
    let refunds = request.descriptors.iter().filter(|descriptor| descriptor.is_negative_hits);
    let refunds = refunds.map(|descriptor| planner.plan(&view(request, descriptor).or_of_client(client)));
    exchange.give_back(refunds.collect(), deadline).await;
    drop_replaced(&mut plans);
    let verdicts: Vec<_> = plans.iter().map(|plan| plan.verdict.clone()).collect();
    let is_quota = |plan: &DescriptorPlan| plan.verdict.as_ref().is_some_and(|verdict| verdict.quota_mode);
    let mut answer = if plans.iter().filter(|plan| is_quota(plan)).count() > 1 {
        decide_quotas(exchange, plans, is_quota, deadline).await?
    } else {
        let decided = exchange.decide_descriptors(plans, deadline).await;
        CallAnswer::new(verdicts.len(), answered(decided)?)
    };
    answer.note_verdicts(&verdicts);
    let settings = gateway.ratelimit_service();
    if settings.shadow {
        answer.admit();
        exchange.note_refused(false);
    }
    let counts = settings.headers.as_ref().and_then(|names| answer.counts(names));
    let mut response = answer.into_response(gateway.ratelimit_headers());
    response.response_headers_to_add.extend(counts.into_iter().flatten());
    response.dynamic_metadata = metadata::of(settings.metadata.then_some(request), &verdicts);
    Ok(response)
}

/// Returns a decision.
///
/// # Errors
/// The store can't answer, and a limit rejects then.
fn answered(decided: CallDecision) -> Result<CallDecision, Status> {
    match &decided.outcome {
        Err(refusal @ Refusal::StoreUnavailable { .. }) => {
            Err(Status::new(Code::Unavailable, refusal.to_string()))
        }
        _ => Ok(decided),
    }
}

/// Removes the limits that others of the same call replace.
fn drop_replaced(plans: &mut [DescriptorPlan]) {
    let replaced =
        plans.iter().filter_map(|plan| plan.verdict.as_ref()).flat_map(|verdict| verdict.replaces.clone());
    let replaced: BTreeSet<String> = replaced.collect();
    let name = |plan: &DescriptorPlan| plan.verdict.as_ref().and_then(|verdict| verdict.name.clone());
    for plan in plans.iter_mut().filter(|plan| name(plan).is_some_and(|name| replaced.contains(&name))) {
        *plan = DescriptorPlan::default();
    }
}

/// Decides a call in which several limits are quotas: it is rejected by them only if all of them reject it. Each quota is
/// asked by itself, then all other limits together.
async fn decide_quotas(
    exchange: &mut Exchange,
    mut plans: Vec<DescriptorPlan>,
    is_quota: impl Fn(&DescriptorPlan) -> bool,
    deadline: Option<Instant>,
) -> Result<CallAnswer, Status> {
    let mut answer = CallAnswer::admitted(plans.len());
    let (mut admits, mut refused) = (false, Vec::new());
    for (place, plan) in plans.iter_mut().enumerate().filter(|(_, plan)| is_quota(plan)) {
        let decided = answered(exchange.decide_descriptors([mem::take(plan)], deadline).await)?;
        answer.statuses[place] = answer::status(&decided, 0);
        match decided.outcome {
            Ok(admission) => {
                admits = true;
                answer.standings.extend_from_slice(admission.standings());
            }
            Err(refusal) => refused.push(refusal),
        }
    }
    // The call fits as soon as one of the quotas has room.
    let soonest = refused.into_iter().min_by_key(|refusal| refusal.retry_after().unwrap_or(Duration::MAX));
    if let Some(refusal) = soonest.filter(|_| !admits) {
        // Reports are recorded whatever others answer.
        plans.iter_mut().for_each(|plan| plan.rules.retain(|(rule, _)| rule.takes_reports()));
        exchange.decide_descriptors(plans, deadline).await;
        exchange.note_refused(true);
        return Ok(CallAnswer { refusal: Some(refusal), ..answer });
    }
    let quotas = mem::take(&mut answer.statuses);
    let rest = CallAnswer::new(plans.len(), answered(exchange.decide_descriptors(plans, deadline).await)?);
    exchange.note_refused(rest.refusal.is_some());
    let statuses = quotas.into_iter().zip(rest.statuses);
    answer.statuses =
        statuses.map(|(quota, other)| if quota.current_limit.is_some() { quota } else { other }).collect();
    answer.standings.extend(rest.standings);
    Ok(CallAnswer { refusal: rest.refusal, ..answer })
}

/// Checks what the operators of the caller are responsible for. Whatever a client puts into a value is decided.
fn check(request: &RateLimitRequest) -> Result<(), Status> {
    if request.domain.is_empty() {
        return Err(Status::invalid("the domain is empty"));
    }
    let count = request.descriptors.len();
    if !(1..=DESCRIPTORS_MOST).contains(&count) {
        return Err(Status::invalid(format!(
            "the call has {count} descriptors, not 1 to {DESCRIPTORS_MOST}"
        )));
    }
    let entries = request.descriptors.iter().map(|descriptor| descriptor.entries.len());
    if let Some(count) = entries.into_iter().find(|count| !(1..=ENTRIES_MOST).contains(count)) {
        return Err(Status::invalid(format!("a descriptor has {count} entries, not 1 to {ENTRIES_MOST}")));
    }
    Ok(())
}

/// Returns a descriptor as limits see it.
fn view<'d>(request: &RateLimitRequest, descriptor: &'d Descriptor) -> descriptors::Descriptor<'d> {
    let entries = descriptor.entries.iter().map(|entry| (&*entry.key, &*entry.value));
    let hits = match descriptor.hits_addend {
        Some(own) => u32::try_from(own).unwrap_or(u32::MAX),
        None => request.hits_addend.max(1),
    };
    let rate = descriptor.limit.and_then(stated_rate);
    descriptors::Descriptor::new(entries, hits.min(Rate::MAX_PERMITS), rate)
}

/// Returns the rate that a descriptor states. `None` if it has no unit that is known.
fn stated_rate(limit: LimitOverride) -> Option<Rate> {
    const DAY: u64 = 24 * 3600;
    let seconds = match limit.unit() {
        OverrideUnit::Unknown => return None,
        OverrideUnit::Second => 1,
        OverrideUnit::Minute => 60,
        OverrideUnit::Hour => 3600,
        OverrideUnit::Day => DAY,
        OverrideUnit::Month => 30 * DAY,
        OverrideUnit::Year => 365 * DAY,
    };
    let permits = limit.requests_per_unit.min(Rate::MAX_PERMITS);
    Some(Rate { permits, window_us: seconds * 1_000_000 })
}
