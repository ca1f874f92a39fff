//! Reads the file with the known keys of a limit, and finds overrides and exemptions that never apply.

use std::ops::Range;

use super::{Check, keys::parts_of};
use crate::{
    Exemption, KeyPart, KnownKeys, Missing, UnknownKey,
    error::Diagnostic,
    file::{self, Spanned},
    value::ParsedText,
};

impl Check<'_, '_> {
    /// Returns the known keys of a limit with this key. `None` if it has no file, or if there is an error.
    pub(super) fn known_keys(
        &mut self,
        table: &Range<usize>,
        limit: &file::LimitTable,
        key: &[KeyPart],
    ) -> Option<KnownKeys> {
        let Some(path) = &limit.keys_file else {
            if let Some(unknown) = limit.unknown.as_ref().filter(|_| !self.document.had(table, "keys_file")) {
                let fault = Diagnostic::error("`unknown` needs `keys_file`").at(&unknown.span(), "");
                self.fault(fault.help("name the file with the known keys: keys_file = \"keys.txt\""));
            }
            return None;
        };
        let is_denied = limit.unknown.as_ref().filter(|unknown| unknown.get_ref().0 == UnknownKey::Deny);
        if let Some(unknown) = is_denied.filter(|_| limit.missing.0 == Missing::Skip) {
            let fault = Diagnostic::warning(
                "requests with an unknown key are rejected, but requests without a key aren't limited",
            );
            let remedy = "refuse both, with missing = \"deny\", or count those without a key by address: leave out missing = \"skip\"";
            self.fault(fault.at(&unknown.span(), "").help(remedy));
        }
        let part = self.credential(path, key)?;
        self.read_file(&path.get_ref().0, &path.span(), |sources, folder, name| {
            let text = sources.read(folder.join(name)).map_err(|error| {
                format!("can't read `{name}`: {error}\nname a readable file, relative to the folder of the configuration")
            })?;
            KnownKeys::parse(name, &text, part)
        })
    }

    /// Warns of overrides and exemptions of a key that isn't known.
    pub(super) fn warn_of_unknown_keys(
        &mut self,
        overrides: &[file::SpannedTable<file::OverrideTable>],
        exempt: &[Spanned<ParsedText<Exemption>>],
        key: &[KeyPart],
        known: &KnownKeys,
    ) {
        let part = &key[known.part];
        let is_known = |value: &str| {
            value == "*" || known.contains(&part.usual(value.as_bytes())) || known.has_name(value)
        };
        for (what, place, parts) in written_keys(overrides, exempt, key) {
            if let Some(value) = parts.get(known.part).filter(|value| !is_known(value)) {
                let problem = match known.has_hash(value) {
                    true => "this is the hash of a known key",
                    false => "`keys_file` has no such key, and none of this name",
                };
                let fault = format!("{problem}, so this {what} has no effect");
                let help = "write the key itself, \"${KEY}\", or the name that the file gives to it";
                self.fault(Diagnostic::warning(fault).at(&place, "").help(help));
            }
        }
    }

    /// Warns of overrides and exemptions of a credential that no request has.
    pub(super) fn warn_of_credentials(
        &mut self,
        overrides: &[file::SpannedTable<file::OverrideTable>],
        exempt: &[Spanned<ParsedText<Exemption>>],
        key: &[KeyPart],
    ) {
        for (_, place, parts) in written_keys(overrides, exempt, key) {
            for (value, part) in parts.iter().zip(key).filter(|(value, _)| *value != "*") {
                if let Some((fault, help)) = fault_of_credential(value, part) {
                    self.fault(Diagnostic::warning(fault).at(&place, "").help(help));
                }
            }
        }
    }

    /// Returns the place of the only part of the key that may be a credential.
    fn credential<T>(&mut self, path: &Spanned<T>, key: &[KeyPart]) -> Option<usize> {
        let places =
            key.iter().enumerate().filter(|(_, part)| part.may_be_credential()).map(|(place, _)| place);
        if let [place] = places.collect::<Vec<_>>()[..] {
            return Some(place);
        }
        let fault = Diagnostic::error("`keys_file` needs a key with one credential").at(&path.span(), "");
        let fault = fault.help(
            "count by one header, cookie, query parameter or descriptor's entry that holds it: key = \"header:x-api-key\"",
        );
        self.fault(match key.len() {
            1 => fault,
            _ => fault.help("to count by the others, too, leave this limit's key and move `keys_file` to another limit by the credential alone: a route can have both"),
        });
        None
    }
}

/// Returns the keys that overrides and exemptions are written for, with their kind and place.
fn written_keys(
    overrides: &[file::SpannedTable<file::OverrideTable>],
    exempt: &[Spanned<ParsedText<Exemption>>],
    key: &[KeyPart],
) -> Vec<(&'static str, Range<usize>, Vec<String>)> {
    let of_overrides = overrides.iter().filter_map(|other| {
        let written = other.value.key.as_ref()?;
        Some(("override", written.span(), parts_of(written.get_ref(), key)))
    });
    let of_exemptions = exempt.iter().filter_map(|exemption| match &exemption.get_ref().0 {
        // It isn't divided into the parts of the key yet.
        Exemption::Key(text) => Some((
            "exemption",
            exemption.span(),
            match key {
                [_] => text.clone(),
                _ => serde_json::from_str(&text[0]).unwrap_or_default(),
            },
        )),
        Exemption::Network(_) => None,
    });
    of_overrides.chain(of_exemptions).collect()
}

/// Returns what is wrong with a value that may be a credential, which isn't shown, and the remedy.
fn fault_of_credential(value: &str, part: &KeyPart) -> Option<(String, String)> {
    if !part.may_be_credential() {
        return None;
    }
    if value.starts_with("sha256:") || value.starts_with("sha256/") {
        let fault = "this is compared with the value itself, and looks like its hash".to_owned();
        let help = "write the value: \"${PARTNER_KEY}\"; only commands and the dashboard take `sha256:…`";
        return Some((fault, help.to_owned()));
    }
    let is_authorization = matches!(part, KeyPart::Header(name) if name == "authorization");
    (is_authorization && !value.contains(' ')).then(|| {
        let fault = "this has no scheme, with which `authorization` usually begins".to_owned();
        (fault, "write the whole value of the field, if it has one: \"Bearer TOKEN\"".to_owned())
    })
}
