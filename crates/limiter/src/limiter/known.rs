//! Rejections that need no question: what the store said lately, and still holds.

use bytes::Bytes;
use tokio::time::Instant;

use crate::{
    Algorithm, Ask, Limited, Origin, Refusal, Scope, Standings,
    charged_ask::{ChargedAsk, ChargedAsks},
    refusals::{KnownAnswer, Recollection, Sending, Turns},
    store::{Charge, Decision, Outcome, Placed, Store, StoreError, Usage},
};

use super::{Limiter, outcome::refused};

impl Limiter {
    /// Refuses a request that a limit refused lately and still would. Otherwise the result must be kept until the store
    /// has answered.
    pub(super) async fn refuse_locally(
        &self,
        asked: &ChargedAsks<'_>,
        now: Instant,
        deadline: Instant,
    ) -> Result<Turns<'_>, Refusal> {
        let enforcing = || asked.iter().filter(|asked| self.remembers(&asked.charge, asked.scope));
        let charges = || enforcing().map(|asked| (&asked.charge, asked.costs()));
        let ask_by = self.store.ask_by(deadline);
        match self.refusals.check(charges, now, ask_by, || self.store.answers()).await {
            KnownAnswer::Ask(turns) => Ok(turns),
            KnownAnswer::Refused(outcomes) => {
                let mut standings = Standings::new();
                for (asked, outcome) in enforcing().zip(outcomes) {
                    outcome.inspect(|outcome| asked.stand(*outcome, Origin::LocalRefusal, &mut standings));
                }
                // The delay is the longest of all limits', also of those that this process counts.
                let now = Instant::now();
                for asked in asked.iter().filter(|asked| !asked.charge.shadow) {
                    if let Store::Memory(store) = &**self.store_of(asked.scope) {
                        let refused = store.refuse(&asked.charge, now.into_std());
                        refused.inspect(|outcome| asked.stand(*outcome, Origin::Store, &mut standings));
                    }
                }
                Err(Refusal::Limited(Box::new(Limited { standings })))
            }
        }
    }

    /// Refuses a request that was refused lately and surely still would be, if nobody has to ask for it or waits for it.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use tokio::time::Instant;
    /// # use tollgate_limiter::{Ask, Limit, Limiter, Rate};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let limiter = Limiter::connect("memory:")?;
    /// # let logins = Arc::new(Limit::new("logins", "5/min".parse::<Rate>()?));
    /// let all = Ask::new(&logins, "alice").cost(5);
    /// limiter.try_acquire(&all).await?;
    /// limiter.try_acquire(&all).await.unwrap_err();
    /// assert!(limiter.refuse_again(&[all], Instant::now()).is_some());
    /// # Ok(())
    /// # }
    /// ```
    pub fn refuse_again(&self, asks: &[Ask], now: Instant) -> Option<Box<Limited>> {
        let asked = match self.charges_of(asks) {
            Ok(asked) => asked,
            Err(Refusal::Limited(never)) => return Some(never),
            Err(_) => return None,
        };
        let is_awaited = |ChargedAsk { charge, .. }: &ChargedAsk<'_>| self.waits.has_waiters(&charge.bucket);
        if !self.waits.are_empty() && asked.iter().any(is_awaited) {
            return None;
        }
        // With the store in this process, a refusal lists all limits of the request, also those with room. So several are left to it.
        if asked.len() > 1 && matches!(*self.store, Store::Memory(_)) {
            return None;
        }
        let (standings, is_all_known) = self.known_refusals(&mut asked.iter(), now);
        (is_all_known && !standings.is_empty()).then(|| Box::new(Limited { standings }))
    }

    /// Refuses a request that is to wait for a bucket, if it is known that a limit which nobody waits for refuses it.
    pub(super) fn refuse_known_beside(
        &self,
        asks: &[Ask],
        awaited: &Bytes,
        now: Instant,
    ) -> Option<Box<Limited>> {
        let asked = self.charges_of(asks).ok()?;
        let is_other = |own: &&ChargedAsk<'_>| {
            own.charge.bucket != *awaited
                && own.charge.quota.algorithm != Algorithm::Concurrency
                && !self.waits.has_waiters(&own.charge.bucket)
        };
        let (standings, _) = self.known_refusals(&mut asked.iter().filter(is_other), now);
        (!standings.is_empty()).then(|| Box::new(Limited { standings }))
    }

    /// Returns how these charges are surely refused now, and whether none of the others may refuse for longer.
    fn known_refusals<'r>(
        &self,
        asked: &mut dyn Iterator<Item = &'r ChargedAsk<'r>>,
        now: Instant,
    ) -> (Standings, bool) {
        let (mut standings, mut is_all_known) = (Standings::new(), true);
        for own in asked.filter(|own| !own.charge.shadow) {
            match &**self.store_of(own.scope) {
                Store::Memory(store) => {
                    let refused = store.refuse(&own.charge, now.into_std());
                    refused.inspect(|outcome| own.stand(*outcome, Origin::Store, &mut standings));
                }
                Store::Redis(_) => match self.refusals.recollection(&own.charge, own.costs(), now) {
                    Recollection::Refused(outcome) => {
                        own.stand(outcome, Origin::LocalRefusal, &mut standings);
                    }
                    Recollection::RefusedForUnknownTime => is_all_known = false,
                    Recollection::Nothing => {
                        is_all_known &= !self.remembers(&own.charge, own.scope)
                            || self.refusals.has_room(&own.charge, now);
                    }
                },
            }
        }
        (standings, is_all_known)
    }

    /// Refuses a request that this decision of limits in the process refuses. The delay is the longest of all limits', also of those
    /// that Redis counts: where it isn't known, Redis is asked, as far as the allowance goes.
    pub(super) async fn refuse_beside(
        &self,
        own: &ChargedAsks<'_>,
        decision: &Decision,
        shared: &mut ChargedAsks<'_>,
    ) -> Box<Limited> {
        let mut limited = refused(own, decision, Origin::Store);
        let now = Instant::now();
        let refusing = own
            .iter()
            .zip(&decision.outcomes)
            .find(|(asked, outcome)| !asked.charge.shadow && outcome.delay_us != Some(0));
        // The allowance is asked once, and only if something is unknown.
        let allow = || refusing.is_some_and(|(asked, _)| self.refusals.may_ask(&asked.charge.bucket, now));
        let mut is_allowed = None;
        for asked in shared.iter_mut().filter(|asked| self.remembers(&asked.charge, asked.scope)) {
            let mut is_to_ask = || {
                !self.refusals.has_room(&asked.charge, now)
                    && self.store.answers()
                    && *is_allowed.get_or_insert_with(allow)
            };
            match self.refusals.recollection(&asked.charge, asked.costs(), now) {
                Recollection::Refused(outcome) => {
                    asked.stand(outcome, Origin::LocalRefusal, &mut limited.standings);
                }
                _ if is_to_ask() => {
                    if let Ok(outcome) = self.look_at(asked).await
                        && outcome.delay_us != Some(0)
                    {
                        asked.stand(outcome, Origin::Store, &mut limited.standings);
                    }
                }
                _ => {}
            }
        }
        limited
    }

    /// Remembers what a decision of the store implies for the next ones.
    pub(super) fn learn(&self, all: &ChargedAsks<'_>, decision: &Decision, sent: Sending, is_alone: bool) {
        let remembered = (all.iter().zip(&decision.outcomes))
            .filter(|(asked, _)| self.remembers(&asked.charge, asked.scope));
        for (asked, outcome) in remembered {
            let ChargedAsk { ask, charge, .. } = asked;
            if asked.is_repeated() {
                // Each of them ends what is known by another quota than its own.
                if outcome.charged {
                    self.refusals.charged(charge, outcome.remaining, sent);
                }
                continue;
            }
            // A permit frees a window after it was granted, so this one will be granted in a window or later.
            if outcome.grow_us > 2 * charge.quota.window_us
                && charge.quota.algorithm == Algorithm::SlidingWindow
            {
                self.set_back.add(0);
            }
            self.refusals.learn(charge, outcome, sent, is_alone);
            if ask.limit.has_refunds() {
                self.refusals.refresh_soon(&charge.bucket);
            }
        }
    }

    /// Returns true if refusals of a charge are remembered. The in-process store is asked as fast.
    pub(super) fn remembers(&self, charge: &Charge, scope: Scope) -> bool {
        self.is_shared(scope) && !charge.shadow && !charge.quota.algorithm.is_changed_by_others()
    }

    /// Looks up how a request would be refused now, or that it wouldn't.
    pub(super) async fn look_at(&self, asked: &mut ChargedAsk<'_>) -> Result<Outcome, StoreError> {
        let sent = self.refusals.sending();
        let (usage, _) = self.peek_at(asked).await?;
        let outcome = usage.outcome(asked.charge().quota, false);
        if self.remembers(&asked.charge, asked.scope) {
            match outcome.delay_us {
                Some(0) => self.refusals.note_room(&asked.charge, sent),
                _ => self.refusals.note(&asked.charge, &outcome, sent),
            }
            if asked.ask.limit.has_refunds() {
                self.refusals.refresh_soon(&asked.charge.bucket);
            }
        }
        Ok(outcome)
    }

    /// Forgets what is known of a bucket that has been reset.
    pub(super) fn forget(&self, bucket: &Bytes) {
        self.refusals.forget(bucket);
        self.waits.forget(Some(bucket));
    }

    /// Forgets what is known of all buckets, since limits have been changed.
    pub(super) fn forget_all(&self) {
        self.refusals.forget_all();
        self.waits.forget(None);
    }

    /// Looks up the use of the bucket in which a request is counted, and whether that is by network.
    pub(super) async fn peek_at(&self, asked: &mut ChargedAsk<'_>) -> Result<(Usage, bool), StoreError> {
        let deadline = Instant::now() + self.timeout;
        self.store_of(asked.scope).peek_placed(asked, deadline).await
    }
}
