//! Asks the limiter for a request and for descriptors, and notes what each limit decided.

use std::sync::Arc;

use smallvec::SmallVec;
use tokio::time::Instant;
use tollgate_limiter::{Admission, Ask, Asks, Limiter, Quota, Refusal, Standing, tightest_of_each};

use super::{Decided, DecisionLog, Rule, Terms, reports};

/// Returns what a request asks of the limits that count it, where `terms` is what each limit makes of it.
///
/// # Errors
/// A limit refuses it by its terms alone.
pub fn asks(
    rules: &[Arc<Rule>],
    terms: impl IntoIterator<Item = Terms>,
    log: &mut DecisionLog,
) -> Result<Asks, Refusal> {
    let mut asks = Asks::with_capacity(rules.len());
    for (rule, terms) in rules.iter().zip(terms) {
        asks.extend(rule.ask(terms, log)?);
    }
    Ok(asks)
}

/// Admits a request that arrived at this time and asks this, or refuses it, and notes what its limits decided. It waits for
/// room as long as its limits say, but not beyond `end`.
///
/// # Errors
/// The refusal.
pub async fn admit(
    limiter: &Arc<Limiter>,
    rules: &[Arc<Rule>],
    asks: &[Ask],
    arrival: Instant,
    end: Option<Instant>,
    log: &mut DecisionLog,
) -> Result<Admission, Refusal> {
    let taken = match reports::split(rules, asks) {
        None => limiter.acquire_within_waits_until(asks, arrival, end).await,
        Some(split) => {
            let others = limiter.acquire_within_waits_until(&split.others, arrival, end);
            Box::pin(split.record(limiter, end, others)).await
        }
    };
    let (standings, admitted) = match &taken {
        Ok(admission) => (admission.standings(), true),
        Err(refusal) => (refusal.standings(), false),
    };
    note(Some(limiter), rules, asks, standings, admitted, arrival, log);
    taken
}

/// Admits what descriptors ask, all of it or nothing, and notes what each of them got. Nobody waits beyond the deadline. Without a
/// limiter for that, refusals ban nobody.
///
/// # Errors
/// The refusal.
pub(crate) async fn admit_descriptors(
    limiter: &Arc<Limiter>,
    rules: &[Arc<Rule>],
    asks: &[Ask],
    arrival: Instant,
    deadline: Option<Instant>,
    banning: Option<&Arc<Limiter>>,
    log: &mut DecisionLog,
) -> Result<Admission, Refusal> {
    let taken = match reports::split(rules, asks) {
        None => limiter.try_acquire_before(asks, arrival, deadline).await,
        Some(split) => {
            let others = limiter.try_acquire_before(&split.others, arrival, deadline);
            Box::pin(split.record(limiter, deadline, others)).await
        }
    };
    let (standings, admitted) = match &taken {
        Ok(admission) => (admission.standings(), true),
        Err(refusal) => (refusal.standings(), false),
    };
    for standing in standings {
        note(banning, rules, asks, std::slice::from_ref(standing), admitted, arrival, log);
    }
    taken
}

/// Returns where the limit of the ask at this place stands. Asks of the same limit for the same key share a standing, if they have the same
/// rate. `None` if nothing is known, since the limit wasn't asked for it.
pub(crate) fn standing_of<'s>(place: usize, asks: &[Ask], standings: &'s [Standing]) -> Option<&'s Standing> {
    // Mostly, each ask has a standing, in the same order.
    let own = |place: usize| {
        let is_own = |standing: &&Standing| standing.is_of(&asks[place]);
        standings.get(place).filter(is_own).or_else(|| standings.iter().find(is_own))
    };
    let ask = &asks[place];
    let is_same = |other: &Ask| Arc::ptr_eq(other.limit(), ask.limit()) && other.key() == ask.key();
    let has_same_rate = |other: &Ask| is_same(other) && other.rate_of_file() == ask.rate_of_file();
    // An override replaces all rates, so that other ones have become the same.
    let is_overridden = |place: usize, Standing { quota, .. }: &Standing| {
        *quota != Quota::new(quota.algorithm, asks[place].rate_of_file())
    };
    let overridden = |place| own(place).filter(|standing| is_overridden(place, standing));
    let places = || 0..asks.len();
    own(place)
        .or_else(|| places().filter(|other| has_same_rate(&asks[*other])).find_map(own))
        .or_else(|| places().filter(|other| is_same(&asks[*other])).find_map(overridden))
}

/// Notes where the limits of a request stand that arrived then. Enough refusals ban its key, if there is a limiter to do that.
fn note(
    banning: Option<&Arc<Limiter>>,
    rules: &[Arc<Rule>],
    asks: &[Ask],
    standings: &[Standing],
    admitted: bool,
    arrival: Instant,
    log: &mut DecisionLog,
) {
    for standing in tightest_of_each(standings) {
        let Some(rule) = rules.iter().find(|rule| Arc::ptr_eq(&rule.limit, &standing.limit)) else {
            continue;
        };
        let (effect, origin) = (standing.effect(admitted), standing.origin);
        let is_asked = |ask: &&Ask| standing.is_of(ask);
        // The asks of descriptors are numbered in order.
        let numbered = asks.get(usize::from(standing.number)).filter(is_asked);
        let ask = numbered.or_else(|| asks.iter().find(is_asked));
        let key = ask.map(Ask::key);
        rule.note(effect, origin, key, arrival);
        if let (Some(limiter), Some(ask)) = (banning, ask) {
            rule.note_breach(limiter, ask, standing);
        }
        if let Some(log) = log {
            let (limit, remaining, key) = (standing.limit.clone(), standing.remaining(), key.cloned());
            log.push(Decided { limit, effect, origin, remaining, delay_us: standing.outcome.delay_us, key });
        }
    }
}

/// The asks of a refused request, which an identical request repeats.
#[derive(Debug)]
pub struct Repeat {
    rules: SmallVec<[Arc<Rule>; 1]>,
    asks: Asks,
}

impl Repeat {
    /// Returns the asks of a refused request. `None` if an identical request may need more than a refusal.
    pub fn of(rules: &[Arc<Rule>], terms: impl IntoIterator<Item = Terms>) -> Option<Self> {
        let mut asks = Asks::with_capacity(rules.len());
        for terms in terms {
            // Each limit for one key, since otherwise all of them would have to be asked together.
            match terms {
                Terms::Counts(its) if its.len() == 1 => asks.extend(its),
                _ => return None,
            }
        }
        let waits = asks.iter().any(|ask| !ask.limit().wait().is_zero());
        (!waits).then(|| Self { rules: rules.iter().cloned().collect(), asks })
    }

    /// Refuses it again, and notes that, if it surely is refused now and no store in another process has to be asked.
    pub fn refuse(&self, limiter: &Arc<Limiter>, arrival: Instant) -> Option<Refusal> {
        let limited = limiter.refuse_again(&self.asks, arrival)?;
        note(Some(limiter), &self.rules, &self.asks, limited.standings(), false, arrival, &mut None);
        Some(Refusal::Limited(limited))
    }
}
