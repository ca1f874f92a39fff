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

/// A decision, and the time of each charge by the clock of its server: 0 if that wasn't asked.
type TimedDecision = (Decision, Vec<u64>);

/// Decides a request. Its shadowing charges are asked last, and those whose node fails decide nothing.
///
/// A shadowing charge on the bucket of an enforcing one isn't recorded. Its delay is read in the first look, before the enforcing
/// charge takes room.
pub(super) async fn take(
    store: &RedisStore,
    charges: Charges,
    deadline: Instant,
) -> Result<TimedDecision, StoreError> {
    let outcomes = charges.iter().map(|_| Outcome::UNKNOWN_ROOM).collect();
    let decision = Decision { time_us: 0, admitted: true, outcomes, leases: Vec::new() };
    let mut timed = (decision, vec![0; charges.len()]);
    let decision = &mut timed.0;
    let only_looks = |place: usize| total_of(&charges, place).only_looks;
    let is_first = |place: usize| !charges[place].shadow || only_looks(place);
    for (place, seen) in look(store, &charges, is_first, deadline).await {
        let shadow = charges[place].shadow;
        let seen = seen.or_else(|error| if shadow { Ok(Outcome::UNKNOWN_ROOM) } else { Err(error) })?;
        decision.outcomes[place] = seen;
        decision.admitted &= shadow || seen.delay_us == Some(0);
    }
    let mut granted = Vec::new();
    if decision.admitted {
        granted = take_enforcing(store, &charges, &mut timed, deadline).await?;
    }
    let is_admitted = timed.0.admitted;
    // Of a bucket that has been charged, all but the delay is read again.
    let is_next = |place: usize| charges[place].shadow && only_looks(place) == is_admitted;
    for (place, seen) in look(store, &charges, is_next, deadline).await {
        let outcome = &mut timed.0.outcomes[place];
        let seen = seen.unwrap_or(Outcome::UNKNOWN_ROOM);
        *outcome = Outcome { delay_us: if is_admitted { outcome.delay_us } else { seen.delay_us }, ..seen };
    }
    if is_admitted {
        take_shadowing(store, &charges, granted, &mut timed, deadline).await;
    }
    Ok(timed)
}

/// Makes the shadowing charges, and keeps those that were granted and these.
async fn take_shadowing(
    store: &RedisStore,
    charges: &Charges,
    granted: Vec<HeldShare<'_>>,
    timed: &mut TimedDecision,
    deadline: Instant,
) {
    let slots = by_slot(charges, true);
    let taken = join_all(slots.iter().map(|places| take_share(store, charges, places, deadline))).await;
    // Nothing is awaited any more: what is kept from here on reaches the caller.
    for held in granted {
        timed.0.leases.extend(held.keep());
    }
    for (places, held) in slots.iter().zip(taken) {
        let Ok(held) = held else { continue };
        enter(timed, places, &held.decision);
        timed.0.leases.extend(held.keep());
    }
}

/// Makes the enforcing charges, or none of them if one is refused now. Returns what was granted.
async fn take_enforcing<'s>(
    store: &'s RedisStore,
    charges: &Charges,
    timed: &mut TimedDecision,
    deadline: Instant,
) -> Result<Vec<HeldShare<'s>>, StoreError> {
    let slots = by_slot(charges, false);
    let taken = join_all(slots.iter().map(|places| take_share(store, charges, places, deadline))).await;
    // If one fails, those that were granted are dropped.
    let mut granted = taken.into_iter().collect::<Result<Vec<_>, _>>()?;
    timed.0.admitted = granted.iter().all(|held| held.decision.admitted);
    for (places, held) in slots.iter().zip(&mut granted) {
        if !timed.0.admitted {
            held.release_leases();
        }
        enter(timed, places, &held.decision);
    }
    Ok(granted)
}

/// Returns how the buckets of such charges stand, each with the charge's place. Charges nothing.
async fn look(
    store: &RedisStore,
    charges: &Charges,
    is_such: impl Fn(usize) -> bool,
    deadline: Instant,
) -> Vec<(usize, Result<Outcome, StoreError>)> {
    let asked = charges.iter().enumerate().filter(|(place, _)| is_such(*place));
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
type SlotCharges = SmallVec<[usize; 2]>;

/// Returns the charges to make that shadow, or those that don't, slot by slot.
fn by_slot(charges: &Charges, shadow: bool) -> Vec<SlotCharges> {
    let mut slots: Vec<(u16, SlotCharges)> = Vec::new();
    let is_made = |place: usize| charges[place].shadow == shadow && !total_of(charges, place).only_looks;
    for (place, charge) in charges.iter().enumerate().filter(|(place, _)| is_made(*place)) {
        let slot = slot_of(&charge.bucket);
        match slots.iter_mut().find(|(found, _)| *found == slot) {
            Some((_, places)) => places.push(place),
            None => slots.push((slot, SmallVec::from_slice(&[place]))),
        }
    }
    slots.into_iter().map(|(_, places)| places).collect()
}

async fn take_share<'s>(
    store: &'s RedisStore,
    charges: &Charges,
    places: &SlotCharges,
    deadline: Instant,
) -> Result<HeldShare<'s>, StoreError> {
    let asked: Charges = places.iter().map(|place| charges[*place].clone()).collect();
    let reply = Box::pin(store.operate(Operation::Take(asked.clone()), deadline)).await?;
    let Reply::Decision(decision) = reply else { return Err(StoreError::Malformed) };
    Ok(HeldShare { store, charges: asked, decision, is_kept: false })
}

fn enter((decision, times): &mut TimedDecision, places: &SlotCharges, part: &Decision) {
    decision.time_us = if decision.time_us == 0 { part.time_us } else { decision.time_us.min(part.time_us) };
    for (place, outcome) in places.iter().zip(&part.outcomes) {
        (decision.outcomes[*place], times[*place]) = (*outcome, part.time_us);
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

    fn release_leases(&mut self) {
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
        self.release_leases();
        let is_left =
            |(charge, outcome): &(&super::super::Charge, &Outcome)| outcome.charged && charge.cost > 0;
        let left = self.charges.iter().zip(&self.decision.outcomes).filter(is_left).count();
        self.store.left_behind.fetch_add(left as u64, Relaxed);
    }
}
