//! Checks what a limit's key requires, and the values of the key in exemptions and overrides.

use std::{collections::BTreeMap, ops::Range};

use super::Check;
use tollgate_limiter::Prefixes;

use crate::config::{
    Exemption, KeyPart, RateOverride,
    error::Diagnostic,
    file::{self, Spanned, ValueList},
    read_key,
    value::ParsedText,
};

impl Check<'_, '_> {
    /// Reports claims in a key if there is no `[jwt]` to verify them.
    pub(super) fn check_claims(&mut self, key: &ValueList<KeyPart>) {
        if self.verifies_tokens {
            return;
        }
        for part in key.0.iter().filter(|part| matches!(part.get_ref(), KeyPart::Jwt(_))) {
            let fault = Diagnostic::error(format!("`{}` needs a table [jwt]", part.get_ref()));
            self.fault(
                fault.at(&part.span(), "claims can only be counted once they are verified").help(
                    "add one with `jwks_file = \"keys.json\"`, or with `hmac_secret = \"${JWT_SECRET}\"`",
                ),
            );
        }
    }

    /// Returns the exemptions of a limit with this key.
    pub(super) fn exemptions(
        &mut self,
        exempt: Vec<Spanned<ParsedText<Exemption>>>,
        key: &[KeyPart],
        prefixes: Prefixes,
    ) -> Vec<Exemption> {
        let mut exemptions = Vec::new();
        for exemption in exempt {
            let span = exemption.span();
            exemptions.extend(match exemption.into_inner().0 {
                Exemption::Key(text) if key.len() > 1 => {
                    self.key(&text[0], &span, key, prefixes).map(Exemption::Key)
                }
                exemption => Some(exemption),
            });
        }
        exemptions
    }

    /// Returns the overrides of a limit with this key. The quota has been checked before.
    pub(super) fn overrides(
        &mut self,
        table: &Range<usize>,
        limit: &file::LimitTable,
        key: &[KeyPart],
        prefixes: Prefixes,
    ) -> Vec<RateOverride> {
        let mut places: BTreeMap<Vec<String>, Range<usize>> = BTreeMap::new();
        let mut overrides = Vec::new();
        for file::SpannedTable { span, value: other } in &limit.overrides {
            if other.key.is_none() {
                self.missing(span, &["key"], "key = \"gold\"");
            }
            if other.rate.is_none() {
                self.missing(span, &["rate"], "rate = \"1000/10s\"");
            }
            let rate = other.rate.as_ref().and_then(|rate| self.quota_of(table, limit, rate));
            let Some(written) = &other.key else { continue };
            let Some(values) = self.key(&written.get_ref().0, &written.span(), key, prefixes) else {
                continue;
            };
            if let Some(first) = places.insert(values.clone(), written.span()) {
                let fault = Diagnostic::error(format!("`{}` has two overrides", written.get_ref().0));
                let fault = fault.at(&written.span(), "again here").at(&first, "first here");
                self.fault(fault.help("remove one of the two"));
            }
            overrides.extend(rate.map(|quota| RateOverride { key: values, rate: quota.rate() }));
        }
        overrides
    }

    /// Parses the values of a key.
    fn key(
        &mut self,
        written: &str,
        span: &Range<usize>,
        key: &[KeyPart],
        prefixes: Prefixes,
    ) -> Option<Vec<String>> {
        let values = read_key(written, key, prefixes);
        values.map_err(|remedy| self.fault(Diagnostic::with_remedy(&remedy).at(span, ""))).ok()
    }
}
