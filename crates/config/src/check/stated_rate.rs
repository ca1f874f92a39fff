//! Checks the rates that requests state.

use std::{mem, ops::Range};

use super::Check;
use crate::{KeyPart, RateFrom, error::Diagnostic, file};
use tollgate_limiter::{Quota, Rate};

impl Check<'_, '_> {
    /// Returns the source of the rates that requests state. `None` if the limit has none, or if there is an error.
    pub(super) fn rate_from(
        &mut self,
        table: &Range<usize>,
        limit: &file::LimitTable,
        quota: Option<Quota>,
    ) -> Option<RateFrom> {
        let Some(from) = &limit.rate_from else {
            if let Some(max) = limit.max.as_ref().filter(|_| !self.document.had(table, "rate_from")) {
                let fault = Diagnostic::error("`max` needs `rate_from`").at(&max.span(), "");
                self.fault(fault.help("say who states the rate: rate_from = \"jwt:quota\""));
            }
            return None;
        };
        let (place, source) = (from.span(), from.get_ref().0.0.clone());
        if limit.is_redisson() {
            let fault = Diagnostic::error("`rate_from` doesn't apply to `layout = \"redisson\"`");
            self.fault(fault.at(&place, "").help("remove it: the rate that Redis holds for Java applies"));
        }
        match &source {
            KeyPart::Header(name) => self.rates_by_header.push((place, name.to_string())),
            claim => {
                let what = format!("rate_from = \"{claim}\"");
                self.check_verifies(&what, &place, "claims only count once they are verified");
                self.warn_of_dotted_claim(claim, &place);
            }
        }
        let Some(max) = &limit.max else {
            self.missing(table, &["max"], "max = 10000");
            return None;
        };
        let permits = max.get_ref().0;
        let quota = quota?;
        let most = Quota::new(quota.algorithm, Rate { permits, ..quota.rate() });
        self.check_countable(limit, most, &max.span());
        Some(RateFrom { source, max: permits })
    }

    /// Warns of rates in header fields that nobody is trusted to set.
    pub(super) fn warn_of_rates_that_nobody_states(&mut self) {
        for (place, header) in mem::take(&mut self.rates_by_header) {
            let fault =
                Diagnostic::warning(format!("the rate in `{header}` never applies: no proxy is trusted"));
            self.fault(fault.at(&place, "only trusted proxies can state it").help(
                "list the proxies that set it: [server] trusted_proxies = [\"10.0.0.0/8\"], or use a claim",
            ));
        }
    }
}
