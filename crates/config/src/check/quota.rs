//! Checks a limit's algorithm, its parameters, and combinations that can't be counted.

use std::ops::Range;

use super::Check;
use tollgate_limiter::{Algorithm, Calendar, CalendarRate, CalendarUnit, Quota, Rate, RedissonType, Scope};

use crate::{
    Cost,
    error::Diagnostic,
    file::{self, Spanned},
    value::{AlgorithmName, AnyRate, CalendarOffset, LeaseDuration, ParsedText},
};

impl Check<'_, '_> {
    /// Returns the quota of a limit. `None` if there is an error.
    pub(super) fn quota(&mut self, table: &Range<usize>, limit: &file::LimitTable) -> Option<Quota> {
        if self.document.had(table, "algorithm") {
            return None;
        }
        self.check_parameters(limit);
        if limit.algorithm.0 == AlgorithmName::Concurrency {
            self.check_concurrency(limit);
        }
        self.quota_of(table, limit, limit.rate.as_ref()?)
    }

    /// Reports parameters of other algorithms.
    fn check_parameters(&mut self, limit: &file::LimitTable) {
        let algorithm = limit.algorithm.0;
        let parameters = [
            ("burst", limit.burst.as_ref().map(Spanned::span), AlgorithmName::Gcra),
            ("cells", limit.cells.as_ref().map(Spanned::span), AlgorithmName::SlidingCells),
            ("lease", limit.lease.as_ref().map(Spanned::span), AlgorithmName::Concurrency),
            ("calendar", limit.calendar.as_ref().map(Spanned::span), AlgorithmName::FixedWindow),
        ];
        for (key, span, owner) in parameters {
            let Some(span) = span.filter(|_| owner != algorithm) else { continue };
            let fault = Diagnostic::error(format!(
                "`{key}` is only for `{owner}`, but this limit uses `{algorithm}`"
            ));
            self.fault(fault.at(&span, "").help(format!("remove it, or write algorithm = \"{owner}\"")));
        }
    }

    /// Reports keys that don't apply to `concurrency`.
    fn check_concurrency(&mut self, limit: &file::LimitTable) {
        for (key, span) in charging_keys(limit) {
            let fault = Diagnostic::error(format!("`{key}` doesn't apply to `concurrency`")).at(&span, "");
            self.fault(fault.help(
                "remove it: each request takes one permit while it is in flight, or is rejected at once",
            ));
        }
    }

    /// Returns the rate of an override. `None` if there is an error.
    pub(super) fn override_rate(
        &mut self,
        table: &Range<usize>,
        limit: &file::LimitTable,
        rate: &Spanned<file::RateOrZero>,
    ) -> Option<Rate> {
        let span = rate.span();
        match rate.get_ref().0 {
            Some(rate) => {
                let rate = Spanned::new(span, ParsedText(rate));
                self.quota_of(table, limit, &rate).map(Quota::rate)
            }
            // The window is that of the limit, so that counts have an end.
            None => {
                let own = self.rate(limit, limit.rate.as_ref()?)?;
                Some(Rate { permits: 0, ..own })
            }
        }
    }

    /// Returns the quota of a limit for its own rate or for that of an override.
    fn quota_of(
        &mut self,
        table: &Range<usize>,
        limit: &file::LimitTable,
        rate: &Spanned<ParsedText<AnyRate>>,
    ) -> Option<Quota> {
        // The form of a rate depends on these, and its bounds on the others.
        if self.had_any(table, &["algorithm", "calendar"]) {
            return None;
        }
        let found = self.rate(limit, rate)?;
        if self.had_any(table, &["burst", "cells", "lease"]) {
            return None;
        }
        let quota = Quota::new(algorithm(limit), found);
        self.check_countable(limit, quota, &rate.span());
        Some(quota)
    }

    /// Returns the rate. `None` if it isn't in the form that the algorithm needs.
    fn rate(&mut self, limit: &file::LimitTable, rate: &Spanned<ParsedText<AnyRate>>) -> Option<Rate> {
        let counts_running = limit.algorithm.0 == AlgorithmName::Concurrency;
        if let (Some(calendar), false) = (&limit.calendar, counts_running) {
            return self.calendar_rate(limit, calendar, rate);
        }
        let fault = match rate.get_ref().0 {
            AnyRate::AtATime(permits) if counts_running => {
                let LeaseDuration(window_us) =
                    limit.lease.as_ref().map(|lease| lease.get_ref().0).unwrap_or_default();
                return Some(Rate { permits, window_us });
            }
            AnyRate::InTime(rate) if !counts_running => return Some(rate),
            AnyRate::InCalendar(CalendarRate { permits, unit }) if !counts_running => {
                let days = if unit == CalendarUnit::Month { 30 } else { 365 };
                let unit = unit.name();
                let help = format!(
                    "write \"{permits}/{days}d\" for any {days} days, or count by the calendar: algorithm = \"fixed-window\" and calendar = \"UTC\""
                );
                Diagnostic::error(format!("`{permits}/{unit}` is ambiguous: {unit}s differ in length"))
                    .help(help)
            }
            AnyRate::AtATime(permits) => Diagnostic::error(format!("`{permits}` has no time")).help(format!(
                "write \"{permits}/s\", or count requests in flight: algorithm = \"concurrency\""
            )),
            AnyRate::InCalendar(CalendarRate { permits, unit }) => {
                let fault = format!(
                    "`{permits}/{}` has a time, but `concurrency` counts requests in flight",
                    unit.name()
                );
                Diagnostic::error(fault)
                    .help(format!("write the number of requests in flight: \"{permits}\""))
            }
            AnyRate::InTime(rate) => {
                Diagnostic::error(format!("`{rate}` has a time, but `concurrency` counts requests in flight"))
                    .help(format!("write the number of requests in flight: \"{}\"", rate.permits))
            }
        };
        self.fault(fault.at(&rate.span(), ""));
        None
    }

    /// Returns the rate of a limit that counts by the calendar. `None` if it isn't for one unit, or for another one than the
    /// limit's own.
    fn calendar_rate(
        &mut self,
        limit: &file::LimitTable,
        calendar: &Spanned<ParsedText<CalendarOffset>>,
        rate: &Spanned<ParsedText<AnyRate>>,
    ) -> Option<Rate> {
        let (found, own) = (in_calendar(&rate.get_ref().0), calendar_unit(limit));
        let fault = match found {
            Err(message) => Diagnostic::with_remedy(&message),
            Ok(found) => match own.filter(|own| *own != found.unit) {
                None => return Some(found.into()),
                Some(own) => {
                    let help = format!("write \"{}/{}\"", found.permits, own.name());
                    Diagnostic::error("this rate has another unit than the limit").help(help)
                }
            },
        };
        self.fault(fault.at(&rate.span(), "").at(&calendar.span(), "counts by the calendar"));
        None
    }

    /// Checks that the quota at this rate can be counted, and that the limit's cost fits into it.
    pub(super) fn check_countable(&mut self, limit: &file::LimitTable, quota: Quota, rate: &Range<usize>) {
        let capacity = quota.capacity();
        let is_gcra = limit.algorithm.0 == AlgorithmName::Gcra;
        if !quota.is_countable() {
            let fault =
                Diagnostic::error(format!("`{quota}` is too large for `gcra` to count exactly")).at(rate, "");
            self.fault(fault.help("use a shorter time or a smaller `burst`: their product, in microseconds, can be at most 2^53"));
        }
        let (Cost::Fixed(cost)
        | Cost::Response { estimate: cost, .. }
        | Cost::ResponseJson { estimate: cost, .. }) = *limit.cost.get_ref()
        else {
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

    /// Checks combinations of `cost`, `when_status`, `scope` and `on_failure`.
    pub(super) fn check_charging(&mut self, limit: &file::LimitTable) {
        if let Some(statuses) = limit.when_status.as_ref().filter(|_| limit.cost.get_ref().is_of_response()) {
            let fault = Diagnostic::error("`when_status` can't be combined with a cost from the response");
            let fault = fault.at(&statuses.span(), "either this").at(&limit.cost.span(), "or this");
            self.fault(fault.help(
                "keep `when_status` to charge some responses a fixed cost, or the `cost` to charge what each response states",
            ));
        }
        if let (Some(policy), Scope::Instance) = (&limit.on_failure, limit.scope.0) {
            let fault = Diagnostic::warning("`on_failure` has no effect with `scope = \"instance\"`");
            let fault = fault.at(&policy.span(), "this limit never uses the store");
            self.fault(fault.help("remove one of the two"));
        }
    }
}

/// Returns the keys of a limit that say what a request is charged, or that it waits, with their positions.
pub(super) fn charging_keys(limit: &file::LimitTable) -> impl Iterator<Item = (&'static str, Range<usize>)> {
    let keys = [
        ("cost", Some(limit.cost.span()).filter(|_| *limit.cost.get_ref() != Cost::Fixed(1))),
        ("when_status", limit.when_status.as_ref().map(Spanned::span)),
        ("wait", Some(limit.wait.span()).filter(|_| !limit.wait.get_ref().0.0.is_zero())),
    ];
    keys.into_iter().filter_map(|(key, span)| Some((key, span?)))
}

/// Returns the unit of a limit's own rate. `None` if it isn't one of the calendar.
fn calendar_unit(limit: &file::LimitTable) -> Option<CalendarUnit> {
    in_calendar(&limit.rate.as_ref()?.get_ref().0).ok().map(|rate| rate.unit)
}

/// Returns a rate as one in windows of the calendar, or a message and its remedy.
fn in_calendar(rate: &AnyRate) -> Result<CalendarRate, String> {
    match rate {
        AnyRate::InCalendar(rate) => Ok(*rate),
        AnyRate::InTime(rate) => rate.to_string().parse(),
        AnyRate::AtATime(permits) => Err(format!("`{permits}` has no time\nwrite \"{permits}/month\"")),
    }
}

/// Returns the algorithm of a limit with its parameters, in the layout that it needs.
fn algorithm(limit: &file::LimitTable) -> Algorithm {
    let has_refunds = limit.refunds.as_ref().is_some_and(|refunds| *refunds.get_ref());
    if has_refunds { named_algorithm(limit).with_refunds() } else { named_algorithm(limit) }
}

fn named_algorithm(limit: &file::LimitTable) -> Algorithm {
    if limit.is_redisson() {
        let counted =
            limit.redisson_type.as_ref().map_or(RedissonType::Overall, |counted| counted.get_ref().0);
        return Algorithm::Redisson(counted);
    }
    match limit.algorithm.0 {
        AlgorithmName::SlidingWindow => Algorithm::SlidingWindow,
        AlgorithmName::SlidingCells => {
            Algorithm::SlidingCells { cells: limit.cells.as_ref().map_or(60, |cells| cells.get_ref().0) }
        }
        AlgorithmName::FixedWindow => match (&limit.calendar, calendar_unit(limit)) {
            (Some(calendar), Some(unit)) => {
                Algorithm::Calendar(Calendar { unit, offset_minutes: calendar.get_ref().0.0 })
            }
            _ => Algorithm::FixedWindow,
        },
        AlgorithmName::Gcra => Algorithm::Gcra { burst: limit.burst.as_ref().map(|burst| burst.get_ref().0) },
        AlgorithmName::Concurrency => Algorithm::Concurrency,
    }
}
