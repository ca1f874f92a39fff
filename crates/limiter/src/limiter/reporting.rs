//! Costs that are known only after they have arisen: they are recorded in any case.

use futures_util::future::join_all;
use tokio::time::Instant;

use crate::{
    Admission, Ask, Limited, OnFailure, Origin, Refusal, Standing,
    charged_ask::ChargedAsk,
    store::{Charge, Outcome, Placed, Store, StoreError},
};

use super::{Limiter, failure::denial};

impl Limiter {
    /// Records costs that have arisen already, whether they fit or not: each ask by itself, also if another one doesn't
    /// fit. What doesn't fit is a debt, which delays the next requests. To ask beforehand whether there is room, acquire a
    /// cost of 0.
    ///
    /// # Errors
    /// The refusal of those that didn't fit. They are recorded, too. If the store gives no answer, the failure policies
    /// decide.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::sync::Arc;
    /// use tollgate_limiter::{Ask, Limit, Limiter, Rate};
    /// use tokio::time::Instant;
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let limiter = Limiter::connect("memory:")?;
    /// let tokens = Arc::new(Limit::new("tokens", "100/min".parse::<Rate>()?));
    /// let look = [Ask::new(&tokens, "alice").cost(0)];
    /// let used = [Ask::new(&tokens, "alice").cost(500)];
    ///
    /// limiter.try_acquire(&look).await?;
    /// // The tokens were used, so they count, although there was room for fewer.
    /// assert!(limiter.report(&used, None).await.is_err());
    /// assert!(limiter.try_acquire(&look).await.is_err());
    /// # Ok(())
    /// # }
    /// ```
    pub async fn report(&self, asks: &[Ask], deadline: Option<Instant>) -> Result<Admission, Refusal> {
        let deadline = self.within_timeout(Instant::now(), deadline);
        let reported = join_all(asks.iter().map(|ask| self.report_one(ask, deadline))).await;
        let mut standings = Vec::with_capacity(asks.len());
        let (mut denied_by, mut denied) = (Vec::new(), None);
        for (standing, failure) in reported {
            match failure {
                Some(cause) => {
                    denied_by.push(standing);
                    denied = Some(cause);
                }
                None => standings.push(standing),
            }
        }
        if let Some(cause) = denied {
            return Err(Refusal::StoreUnavailable { cause, denied_by });
        }
        if standings.iter().any(Standing::refuses) {
            return Err(Refusal::Limited(Box::new(Limited { standings: standings.into() })));
        }
        Ok(Admission { standings: standings.into(), ..Admission::default() })
    }

    /// Records a cost. Returns where its limit stands then, and why it could not be recorded if the limit refuses for that.
    async fn report_one(&self, ask: &Ask, deadline: Instant) -> (Standing, Option<StoreError>) {
        let mut asked = self.charged(ask);
        // A debt lengthens the delays that were told.
        self.refusals.forget(&asked.charge.bucket);
        let (store, sent) = (self.store_of(asked.scope), self.refusals.sending());
        let error = match store.report_placed(&mut asked, deadline).await {
            Ok(usage) => {
                let outcome = usage.outcome(asked.charge().quota, true);
                if outcome.delay_us != Some(0) && self.remembers(&asked.charge, asked.scope) {
                    let refused = Outcome { charged: false, ..outcome };
                    self.refusals.note(&Charge { cost: 1, ..asked.charge.clone() }, &refused, sent);
                    if ask.limit.has_refunds() {
                        self.refusals.refresh_soon(&asked.charge.bucket);
                    }
                }
                return (asked.standing(outcome, Origin::Store), None);
            }
            Err(error) => error,
        };
        self.failures.add(error.kind());
        let instances = match **store {
            Store::Redis(_) => self.instances(),
            Store::Memory(_) => None,
        };
        if ask.limit.on_failure != OnFailure::Deny {
            store.note_unreported(asked.charge(), &error);
        }
        match (ask.limit.on_failure, instances) {
            (OnFailure::Allow, _) => (asked.standing(Outcome::UNKNOWN_ROOM, Origin::FallbackAllow), None),
            (OnFailure::Local, Some(instances)) => {
                self.report_without_store(asked, instances, deadline).await
            }
            _ => (denial(ask, asked.charge.quota), Some(error)),
        }
    }

    /// Records a cost in this process, since the store can't be asked.
    async fn report_without_store(
        &self,
        mut asked: ChargedAsk<'_>,
        instances: u32,
        deadline: Instant,
    ) -> (Standing, Option<StoreError>) {
        asked.charge.quota = asked.charge.quota.share(instances);
        asked.common = asked.common.share(instances);
        match self.local.report_placed(&mut asked, deadline).await {
            Ok(usage) => {
                let outcome = usage.outcome(asked.charge().quota, true);
                (asked.standing(outcome, Origin::FallbackLocal), None)
            }
            Err(error) => (denial(asked.ask, asked.charge.quota), Some(error)),
        }
    }
}
