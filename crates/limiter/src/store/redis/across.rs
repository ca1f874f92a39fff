//! Charges of one request that lie on several slots: all are asked, and then all are charged.
//!
//! A slot's charges are still decided in one atomic step, so no bucket ever grants more than its limit. What
//! isn't atomic is the request: between the question and the charge others may take the room. Then it is
//! refused, and what other slots have charged by then stays behind; leases are given back. Shadowing
//! charges come last, and decide nothing: their nodes may fail.

use std::sync::atomic::Ordering::Relaxed;

use futures_util::future::join_all;
use smallvec::SmallVec;
use tokio::time::Instant;

use crate::{
    algorithm::Algorithm,
    store::{Outcome, total_of},
};

use super::{Act, Charges, Decision, Operation, RedisStore, Reply, StoreError, slot_of};

/// Returns true if the charges lie on several slots.
pub(super) fn is_across(charges: &Charges) -> bool {
    let mut slots = charges.iter().map(|charge| slot_of(&charge.bucket));
    let first = slots.next();
    slots.any(|slot| Some(slot) != first)
}

/// Decides a request. Its shadowing charges are asked last, and those whose node fails decide nothing.
pub(super) async fn take(
    store: &RedisStore,
    charges: Charges,
    deadline: Instant,
) -> Result<Decision, StoreError> {
    let outcomes = charges.iter().map(|_| Outcome::UNKNOWN_ROOM).collect();
    let mut decision = Decision { time_us: 0, admitted: true, outcomes, leases: Vec::new() };
    for (place, seen) in look(store, &charges, false, deadline).await {
        decision.outcomes[place] = seen?;
        decision.admitted &= decision.outcomes[place].delay_us == Some(0);
    }
    let mut granted = Vec::new();
    if decision.admitted {
        granted = take_enforcing(store, &charges, &mut decision, deadline).await?;
    }
    if !decision.admitted {
        for (place, seen) in look(store, &charges, true, deadline).await {
            decision.outcomes[place] = seen.unwrap_or(Outcome::UNKNOWN_ROOM);
        }
        return Ok(decision);
    }
    let shadowing = shares(&charges, true);
    let taken = join_all(shadowing.iter().map(|share| take_share(store, &charges, share, deadline))).await;
    // Nothing is awaited any more: what is kept from here on reaches the caller.
    for held in granted {
        decision.leases.extend(held.keep());
    }
    for (share, held) in shadowing.iter().zip(taken) {
        let Ok(held) = held else { continue };
        enter(&mut decision, share, &held.decision);
        decision.leases.extend(held.keep());
    }
    Ok(decision)
}

/// Makes the enforcing charges, or none of them if one is refused now. Returns what was granted.
async fn take_enforcing<'s>(
    store: &'s RedisStore,
    charges: &Charges,
    decision: &mut Decision,
    deadline: Instant,
) -> Result<Vec<HeldShare<'s>>, StoreError> {
    let enforcing = shares(charges, false);
    let taken = join_all(enforcing.iter().map(|share| take_share(store, charges, share, deadline))).await;
    // Each that was granted is held, also while another one's failure is told.
    let held = taken.into_iter().collect::<Vec<Result<HeldShare<'_>, StoreError>>>();
    decision.admitted = held.iter().flatten().all(|held| held.decision.admitted);
    let mut failure = None;
    let mut granted = Vec::new();
    for (share, held) in enforcing.iter().zip(held) {
        match held {
            Ok(mut held) => {
                if !decision.admitted {
                    held.give_back();
                }
                enter(decision, share, &held.decision);
                granted.push(held);
            }
            Err(error) => failure = Some(error),
        }
    }
    failure.map_or(Ok(granted), Err)
}

/// Returns how the buckets of the charges that shadow, or of those that don't, stand, each with its place. Charges nothing.
async fn look(
    store: &RedisStore,
    charges: &Charges,
    shadow: bool,
    deadline: Instant,
) -> Vec<(usize, Result<Outcome, StoreError>)> {
    let asked = charges.iter().enumerate().filter(|(_, charge)| charge.shadow == shadow);
    let looks = asked.map(async |(place, charge)| {
        let act = Act::Peek(total_of(charges, place).cost.max(1));
        let operation = Operation::On { bucket: charge.bucket.clone(), quota: charge.quota, act };
        // A request's own operations are never across.
        let seen = match Box::pin(store.operate(operation, deadline)).await {
            Ok(Reply::Usage(usage)) => Ok(usage.outcome(charge.quota, false)),
            Ok(_) => Err(StoreError::Malformed),
            Err(error) => Err(error),
        };
        (place, seen)
    });
    join_all(looks).await
}

/// The places of a slot's charges among the request's.
type Share = SmallVec<[usize; 2]>;

/// The charges that shadow, or those that don't, slot by slot.
fn shares(charges: &Charges, shadow: bool) -> Vec<Share> {
    let mut shares: Vec<(u16, Share)> = Vec::new();
    for (place, charge) in charges.iter().enumerate().filter(|(_, charge)| charge.shadow == shadow) {
        let slot = slot_of(&charge.bucket);
        match shares.iter_mut().find(|(found, _)| *found == slot) {
            Some((_, share)) => share.push(place),
            None => shares.push((slot, SmallVec::from_slice(&[place]))),
        }
    }
    shares.into_iter().map(|(_, share)| share).collect()
}

async fn take_share<'s>(
    store: &'s RedisStore,
    charges: &Charges,
    share: &Share,
    deadline: Instant,
) -> Result<HeldShare<'s>, StoreError> {
    let asked: Charges = share.iter().map(|place| charges[*place].clone()).collect();
    let reply = Box::pin(store.operate(Operation::Take(asked.clone()), deadline)).await?;
    let Reply::Decision(decision) = reply else { return Err(StoreError::Malformed) };
    Ok(HeldShare { store, charges: asked, decision, is_kept: false })
}

fn enter(decision: &mut Decision, share: &Share, part: &Decision) {
    // The earliest: a refund must not reach a later grant than its own.
    decision.time_us = if decision.time_us == 0 { part.time_us } else { decision.time_us.min(part.time_us) };
    for (place, outcome) in share.iter().zip(&part.outcomes) {
        decision.outcomes[*place] = *outcome;
    }
}

/// The decision of a slot. Unless the request is admitted, also when nobody waits for it any more, its leases
/// are given back and its charges are counted as left behind.
struct HeldShare<'s> {
    store: &'s RedisStore,
    charges: Charges,
    decision: Decision,
    is_kept: bool,
}

impl HeldShare<'_> {
    /// Keeps what was granted, and returns the leases.
    fn keep(mut self) -> Vec<super::Lease> {
        self.is_kept = true;
        std::mem::take(&mut self.decision.leases)
    }

    fn give_back(&mut self) {
        self.store.release(self.decision.leases.drain(..));
        for (charge, outcome) in self.charges.iter().zip(&mut self.decision.outcomes) {
            if charge.quota.algorithm == Algorithm::Concurrency && outcome.charged {
                outcome.charged = false;
                outcome.remaining += u64::from(charge.cost);
            }
        }
    }
}

impl Drop for HeldShare<'_> {
    fn drop(&mut self) {
        if self.is_kept {
            return;
        }
        self.give_back();
        let is_left =
            |(charge, outcome): &(&super::super::Charge, &Outcome)| outcome.charged && charge.cost > 0;
        let left = self.charges.iter().zip(&self.decision.outcomes).filter(is_left).count();
        self.store.left_behind.fetch_add(left as u64, Relaxed);
    }
}
