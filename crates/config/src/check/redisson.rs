//! Checks a limit that shares the layout of Redisson.

use std::ops::Range;

use tollgate_limiter::{RedissonName, Scope};

use super::Check;

use crate::{
    KeyPart,
    error::Diagnostic,
    file::{self, Spanned},
    value::{AlgorithmName, Layout},
};

impl Check<'_, '_> {
    /// Returns the names of a limit in the layout of Redisson. `None` if it has another layout, or if there is an error.
    pub(super) fn redisson_name(
        &mut self,
        table: &Range<usize>,
        limit: &file::LimitTable,
    ) -> Option<RedissonName> {
        let layout = limit.layout.as_ref().filter(|layout| layout.get_ref().0 == Layout::Redisson);
        let Some(layout) = layout else {
            self.check_without_redisson(limit);
            return None;
        };
        self.check_counting(&layout.span(), limit);
        let Some(name) = &limit.redisson_name else {
            self.missing(table, &["redisson_name"], "redisson_name = \"logins:{key}\"");
            return None;
        };
        let value = &name.get_ref().0;
        if let Some(key) = &limit.key {
            self.check_name(&name.span(), value, &key.span(), &key.get_ref().0);
        }
        Some(value.clone())
    }

    /// Reports keys that only the layout of Redisson has.
    fn check_without_redisson(&mut self, limit: &file::LimitTable) {
        let keys = [
            ("redisson_name", limit.redisson_name.as_ref().map(Spanned::span)),
            ("redisson_type", limit.redisson_type.as_ref().map(Spanned::span)),
        ];
        for (key, span) in keys.into_iter().filter_map(|(key, span)| Some((key, span?))) {
            let fault = Diagnostic::error(format!("`{key}` is only for `layout = \"redisson\"`"));
            self.fault(fault.at(&span, "").help("remove it, or write layout = \"redisson\""));
        }
    }

    /// Checks that Redisson can count as the limit says.
    fn check_counting(&mut self, layout: &Range<usize>, limit: &file::LimitTable) {
        let algorithm = limit.algorithm.0;
        if algorithm != AlgorithmName::SlidingWindow {
            let fault = Diagnostic::error(format!(
                "`layout = \"redisson\"` is a sliding window, but this limit uses `{algorithm}`"
            ));
            self.fault(fault.at(layout, "").help("remove the `algorithm`, or the `layout`"));
        }
        if limit.scope.0 == Scope::Instance {
            let fault = Diagnostic::error(
                "a limit with `scope = \"instance\"` never uses the store, so it has no layout",
            );
            self.fault(
                fault.at(layout, "").help(
                    "remove the `scope`; for Redisson's PER_CLIENT, write redisson_type = \"per-client\"",
                ),
            );
        }
    }

    /// Checks that the name fits the key, and warns if it shows a credential.
    fn check_name(
        &mut self,
        place: &Range<usize>,
        name: &RedissonName,
        key_place: &Range<usize>,
        key: &[Spanned<KeyPart>],
    ) {
        let [part] = key else {
            let fault = Diagnostic::error("a key of several parts has no name in Redisson").at(key_place, "");
            return self.fault(fault.help("use a key of one part, or remove the `layout`"));
        };
        let part = part.get_ref();
        if name.has_key() == (*part == KeyPart::Global) {
            let (fault, help) = if name.has_key() {
                ("`global` has no value to put into the name", "remove `{key}` from the name")
            } else {
                ("the name is the same for all values of the key", "add `{key}`, or use key = \"global\"")
            };
            let fault = Diagnostic::error(fault).at(place, "this name").at(key_place, "this key");
            self.fault(fault.help(help));
        }
        if looks_secret(part) {
            let fault = Diagnostic::warning(format!("`{part}` may be a credential, and Redis shows it"));
            let fault = fault.at(place, "the value is part of the name, as Java writes it");
            self.fault(fault.help("count by something that isn't secret, such as \"jwt:sub\""));
        }
    }
}

/// Returns true if the part looks like something that only its owner may know.
fn looks_secret(part: &KeyPart) -> bool {
    let has_word = |name: &str| {
        let name = name.to_ascii_lowercase();
        ["authorization", "key", "token", "secret", "session"].iter().any(|word| name.contains(word))
    };
    match part {
        KeyPart::Header(name) => has_word(name.as_str()),
        KeyPart::Cookie(_) => true,
        KeyPart::Query(name) => has_word(name),
        _ => false,
    }
}
