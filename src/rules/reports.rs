//! Costs that callers report: they are recorded whatever the other limits of the call decide.

use std::sync::Arc;

use tokio::time::Instant;
use tollgate_limiter::{Admission, Ask, Asks, Limiter, Refusal};

use super::Rule;

/// The asks of a call that reports costs.
pub(super) struct SplitAsks {
    reports: Asks,
    /// The asks to be decided.
    pub(super) others: Asks,
}

/// Splits the asks of a call that reports costs. `None` if it reports none.
pub(super) fn split(rules: &[Arc<Rule>], asks: &[Ask]) -> Option<SplitAsks> {
    let mut reporting = rules.iter().filter(|rule| rule.takes_reports()).peekable();
    reporting.peek()?;
    let reporting: Vec<_> = reporting.map(|rule| Arc::as_ptr(rule.limit())).collect();
    let is_report = |ask: &Ask| ask.permits() > 0 && reporting.contains(&Arc::as_ptr(ask.limit()));
    let (reports, others): (Asks, Asks) = asks.iter().cloned().partition(is_report);
    (!reports.is_empty()).then_some(SplitAsks { reports, others })
}

/// Records the costs that a call reports which is refused for another reason.
pub(crate) async fn record_reports(
    limiter: &Limiter,
    rules: &[Arc<Rule>],
    asks: &[Ask],
    deadline: Option<Instant>,
) {
    if let Some(SplitAsks { reports, .. }) = split(rules, asks) {
        // The call is refused already.
        let _ = limiter.report(&reports, deadline).await;
    }
}

impl SplitAsks {
    /// Records the reports, then lets the others be decided, unless a report didn't fit: then nothing else is charged.
    ///
    /// # Errors
    /// The refusal.
    pub(super) async fn record(
        &self,
        limiter: &Limiter,
        deadline: Option<Instant>,
        others: impl Future<Output = Result<Admission, Refusal>>,
    ) -> Result<Admission, Refusal> {
        let recorded = limiter.report(&self.reports, deadline).await?;
        if self.others.is_empty() { Ok(recorded) } else { recorded.and(others.await) }
    }
}
