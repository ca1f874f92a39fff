//! The limits' decision on the descriptors of a call. They are charged together, like the limits of one request.

use std::{ops::Range, sync::Arc, time::Duration};

use futures_util::future::join_all;
use tokio::time::Instant;
use tollgate_limiter::{Admission, Asks, Refusal, Standing};

use crate::rules::{self, Terms};

use super::{Exchange, Gateway, call::REPLY_TIME, plan::descriptors::DescriptorPlan};

/// The decision on the descriptors of a call.
#[derive(Debug)]
pub(crate) struct CallDecision {
    /// The admission of all of them, or the refusal.
    pub(crate) outcome: Result<Admission, Refusal>,
    /// The index of the descriptor whose values can't be counted, if that is the reason of the refusal.
    pub(crate) uncountable: Option<usize>,
    asks: Asks,
    /// The asks of each descriptor.
    of: Vec<Range<usize>>,
}

impl CallDecision {
    /// Returns where the limits of a descriptor stand. Nothing is known of a limit that wasn't asked because another one
    /// refused the call.
    pub(crate) fn standings(&self, descriptor: usize) -> impl Iterator<Item = &Standing> {
        let standings = self.all_standings();
        let places = self.of.get(descriptor).cloned().unwrap_or_default();
        places.filter_map(|place| rules::standing_of(place, &self.asks, standings))
    }

    /// Returns where the limits stand that were asked.
    pub(crate) fn all_standings(&self) -> &[Standing] {
        match &self.outcome {
            Ok(admission) => admission.standings(),
            Err(refusal) => refusal.standings(),
        }
    }
}

impl Exchange {
    /// Returns the gateway.
    pub(crate) fn gateway(&self) -> &Arc<Gateway> {
        &self.gateway
    }

    /// Returns when the store must have answered, for a caller that waits this long. `None` if that is over already.
    pub(crate) fn deadline(&self, timeout: Duration) -> Option<Instant> {
        let deadline = self.facts.arrival + timeout.checked_sub(REPLY_TIME)?;
        (deadline > Instant::now()).then_some(deadline)
    }

    /// Lets limits decide on the descriptors of a call, before this deadline: all are charged, or none.
    pub(crate) async fn decide_descriptors(
        &mut self,
        plans: impl IntoIterator<Item = DescriptorPlan>,
        deadline: Option<Instant>,
    ) -> CallDecision {
        let Self { gateway, facts } = self;
        facts.note_asked();
        let (mut rules, mut asks, mut of) = (Vec::new(), Asks::new(), Vec::new());
        let mut uncountable = None;
        for (place, plan) in plans.into_iter().enumerate() {
            let start = asks.len();
            for (rule, terms) in plan.rules {
                match rule.ask(terms, &mut facts.decided) {
                    Ok(asked) => asked.into_iter().for_each(|ask| asks.push(ask.number(asks.len() as u16))),
                    Err(refusal) => {
                        asks.truncate(start);
                        uncountable.get_or_insert((place, refusal));
                        break;
                    }
                }
                rules.push(rule);
            }
            of.push(start..asks.len());
        }
        let (limiter, decided) = (&gateway.limiter, &mut facts.decided);
        if let Some((place, refusal)) = uncountable {
            rules::record_reports(limiter, &rules, &asks, deadline).await;
            facts.note_decided();
            facts.is_refused = true;
            return CallDecision { outcome: Err(refusal), uncountable: Some(place), asks, of };
        }
        // What only shadows bans nobody.
        let banning = (!gateway.ratelimit_service().shadow).then_some(limiter);
        let outcome = match asks.is_empty() {
            true => Ok(Admission::default()),
            false => {
                let arrival = facts.arrival;
                rules::admit_descriptors(limiter, &rules, &asks, arrival, deadline, banning, decided).await
            }
        };
        facts.note_decided();
        facts.is_refused = outcome.is_err();
        CallDecision { outcome, uncountable: None, asks, of }
    }

    /// Gives permits back where limits do that: the oldest in use, since the grants aren't known. What the store hasn't done by the
    /// deadline may be lost.
    pub(crate) async fn give_back(&self, plans: Vec<DescriptorPlan>, deadline: Option<Instant>) {
        let rules = plans.into_iter().flat_map(|plan| plan.rules);
        let rules = rules.filter(|(rule, _)| rule.limit().has_refunds());
        let asks = rules.filter_map(|(_, terms)| match terms {
            Terms::Counts(asks) => Some(asks),
            _ => None,
        });
        let asks: Asks = asks.flatten().filter(|ask| ask.permits() > 0).collect();
        let limiter = &self.gateway.limiter;
        let releases = asks.iter().map(|ask| limiter.release_before(ask, None, deadline));
        for released in join_all(releases).await {
            if let Err(error) = released {
                tracing::debug!("a refund is lost: {error}");
            }
        }
    }

    /// Notes whether limits have refused the call in the end.
    pub(crate) fn note_refused(&mut self, is_refused: bool) {
        self.facts.is_refused = is_refused;
    }
}
