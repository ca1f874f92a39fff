//! Checks limits whose costs are reported, or given back.

use super::{Check, quota::charging_keys};

use crate::{CostUsage, error::Diagnostic, file, value::AlgorithmName};

impl Check<'_, '_> {
    /// Reports keys that can't be combined with `usage = "reported"`.
    pub(super) fn check_usage(&mut self, limit: &file::LimitTable) {
        let Some(usage) = limit.usage.as_ref().filter(|usage| usage.get_ref().0 == CostUsage::Reported)
        else {
            return;
        };
        let usage = usage.span();
        if !self.has_decisions_table {
            let fault =
                Diagnostic::warning("nobody can report costs without [decisions]: this limit admits all");
            self.fault(
                fault
                    .at(&usage, "")
                    .help("to charge what responses state, write instead of `usage`: cost = { response_json = \"/usage/total_tokens\", estimate = 500 }")
                    .help("if a service will report costs, add the listener for it: [decisions] and listen = \"127.0.0.1:8081\""),
            );
        }
        if limit.algorithm.0 == AlgorithmName::Concurrency {
            let fault = Diagnostic::error("`concurrency` counts requests in flight, which nobody reports");
            self.fault(fault.at(&usage, "").help("remove the `usage`, or use another algorithm"));
        }
        for (key, span) in charging_keys(limit) {
            let fault = Diagnostic::error(format!("`{key}` doesn't apply to `usage = \"reported\"`"));
            let fault = fault.at(&span, "").at(&usage, "here");
            self.fault(fault.help("remove it: each report names its cost, and is recorded at once"));
        }
    }

    /// Reports keys that can't be combined with `refunds`.
    pub(super) fn check_refunds(&mut self, limit: &file::LimitTable) {
        let Some(refunds) = limit.refunds.as_ref().filter(|refunds| *refunds.get_ref()) else { return };
        let running = limit.algorithm.0 == AlgorithmName::Concurrency;
        let faults = [
            (
                running,
                "`concurrency` takes one permit for each request in flight, and gives it back by itself",
            ),
            (
                limit.is_redisson(),
                "`layout = \"redisson\"` has no refunds: Java gives permits back by `release`",
            ),
            (limit.when_status.is_some(), "with `when_status`, nothing is charged that could be given back"),
        ];
        for (_, fault) in faults.into_iter().filter(|(applies, _)| *applies) {
            self.fault(Diagnostic::error(fault).at(&refunds.span(), "").help("remove the `refunds`"));
        }
    }
}
