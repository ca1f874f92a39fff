//! How a limit counts: its algorithm, the numbers that go with it, and what it can't count.

use std::ops::Range;

use super::Check;
use crate::{
    algorithm::{Algorithm, Quota, Rate},
    config::{
        Cost, Scope,
        error::Diagnostic,
        file::{self, Spanned},
        value::{AlgorithmName, AnyRate, LeaseDuration, ParsedText},
    },
};

impl Check<'_, '_> {
    /// The quota of a limit, unless there is a fault in what makes it.
    pub(super) fn quota(&mut self, table: &Range<usize>, limit: &file::LimitTable) -> Option<Quota> {
        if self.document.had(table, "algorithm") {
            return None;
        }
        let algorithm = limit.algorithm.0;
        let owned = [
            ("burst", limit.burst.as_ref().map(Spanned::span), AlgorithmName::Gcra),
            ("cells", limit.cells.as_ref().map(Spanned::span), AlgorithmName::SlidingCells),
            ("lease", limit.lease.as_ref().map(Spanned::span), AlgorithmName::Concurrency),
        ];
        for (key, span, owner) in owned {
            let Some(span) = span.filter(|_| owner != algorithm) else { continue };
            let fault = Diagnostic::error(format!(
                "`{key}` is for `{owner}`, but this limit counts by `{algorithm}`"
            ));
            self.fault(fault.at(&span, "").help(format!("remove it, or write algorithm = \"{owner}\"")));
        }
        let charging = [
            ("cost", Some(limit.cost.span()).filter(|_| *limit.cost.get_ref() != Cost::Fixed(1))),
            ("when_status", limit.when_status.as_ref().map(Spanned::span)),
            ("wait", Some(limit.wait.span()).filter(|_| !limit.wait.get_ref().0.0.is_zero())),
        ];
        for (key, span) in charging {
            let Some(span) = span.filter(|_| algorithm == AlgorithmName::Concurrency) else { continue };
            let fault = Diagnostic::error(format!("`{key}` means nothing to `concurrency`")).at(&span, "");
            self.fault(
                fault.help("remove it: each request counts as one while it runs, or is refused at once"),
            );
        }
        self.quota_of(table, limit, limit.rate.as_ref()?)
    }

    /// The quota of a limit at its own rate, or at that of an override.
    pub(super) fn quota_of(
        &mut self,
        table: &Range<usize>,
        limit: &file::LimitTable,
        rate: &Spanned<ParsedText<AnyRate>>,
    ) -> Option<Quota> {
        if ["algorithm", "burst", "cells", "lease"].iter().any(|key| self.document.had(table, key)) {
            return None;
        }
        let quota = Quota::new(algorithm(limit), self.rate(limit, rate)?);
        self.check_countable(limit, quota, &rate.span());
        Some(quota)
    }

    /// The rate, if it is written as the algorithm takes it.
    fn rate(&mut self, limit: &file::LimitTable, rate: &Spanned<ParsedText<AnyRate>>) -> Option<Rate> {
        let counts_running = limit.algorithm.0 == AlgorithmName::Concurrency;
        let fault = match rate.get_ref().0 {
            AnyRate::AtATime(permits) if counts_running => {
                let LeaseDuration(window_us) =
                    limit.lease.as_ref().map(|lease| lease.get_ref().0).unwrap_or_default();
                return Some(Rate { permits, window_us });
            }
            AnyRate::InTime(rate) if !counts_running => return Some(rate),
            AnyRate::AtATime(permits) => Diagnostic::error(format!("`{permits}` doesn't say in which time"))
                .help(format!(
                    "write \"{permits}/s\", or count requests while they run: algorithm = \"concurrency\""
                )),
            AnyRate::InTime(rate) => Diagnostic::error(format!(
                "`{rate}` has a time, but `concurrency` counts requests while they run"
            ))
            .help(format!("write how many may run at a time: \"{}\"", rate.permits)),
        };
        self.fault(fault.at(&rate.span(), ""));
        None
    }

    /// Whether the quota at this rate can be counted, and the limit's cost be admitted by it.
    fn check_countable(&mut self, limit: &file::LimitTable, quota: Quota, rate: &Range<usize>) {
        let capacity = quota.capacity();
        let is_gcra = limit.algorithm.0 == AlgorithmName::Gcra;
        if !quota.is_countable() {
            let fault =
                Diagnostic::error(format!("`{quota}` is more than `gcra` can count exactly")).at(rate, "");
            self.fault(fault.help("use a shorter time or a smaller `burst`: one times the other, in microseconds, is at most 2^53"));
        }
        let (Cost::Fixed(cost) | Cost::Response { estimate: cost, .. }) = *limit.cost.get_ref() else {
            return;
        };
        if cost > capacity {
            let fault = Diagnostic::error(format!("a request that costs `{cost}` can never be admitted"))
                .at(&limit.cost.span(), "")
                .at(rate, format!("at most `{capacity}` at once"));
            let burst = if is_gcra { " or the `burst`" } else { "" };
            self.fault(fault.help(format!("lower the cost, or raise the rate{burst}")));
        }
    }

    /// What the ways to charge say about each other.
    pub(super) fn check_charging(&mut self, limit: &file::LimitTable) {
        if let (Some(statuses), Cost::Response { .. }) = (&limit.when_status, limit.cost.get_ref()) {
            let fault =
                Diagnostic::error("`when_status` and a cost by the response's header exclude each other");
            let fault = fault.at(&statuses.span(), "either this").at(&limit.cost.span(), "or this");
            self.fault(fault.help(
                "keep `when_status` to charge some responses alike, or the header to charge what each one says",
            ));
        }
        if let (Some(policy), Scope::Instance) = (&limit.on_failure, limit.scope.0) {
            let fault =
                Diagnostic::warning("`on_failure` means nothing to a limit of `scope = \"instance\"`");
            let fault = fault.at(&policy.span(), "this limit never asks the store");
            self.fault(fault.help("remove one of the two"));
        }
    }
}

/// The algorithm of a limit, with its numbers.
fn algorithm(limit: &file::LimitTable) -> Algorithm {
    match limit.algorithm.0 {
        AlgorithmName::SlidingWindow => Algorithm::SlidingWindow,
        AlgorithmName::SlidingCells => {
            Algorithm::SlidingCells { cells: limit.cells.as_ref().map_or(60, |cells| cells.get_ref().0) }
        }
        AlgorithmName::FixedWindow => Algorithm::FixedWindow,
        AlgorithmName::Gcra => Algorithm::Gcra { burst: limit.burst.as_ref().map(|burst| burst.get_ref().0) },
        AlgorithmName::Concurrency => Algorithm::Concurrency,
    }
}
