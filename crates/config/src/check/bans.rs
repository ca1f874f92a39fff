//! Checks the bans of limits.

use super::Check;

use crate::{
    Ban, KeyPart, Mode,
    error::Diagnostic,
    file::{self, SpannedTable},
};

impl Check<'_, '_> {
    /// Returns the bans of a limit with this key.
    pub(super) fn ban(&mut self, limit: &file::LimitTable, key: &[KeyPart]) -> Option<Ban> {
        let SpannedTable { span, value: table } = limit.ban.as_ref()?;
        if table.after.is_none() {
            self.missing(span, &["after"], "after = \"10/min\"");
        }
        if table.lasts.is_none() {
            self.missing(span, &["for"], "for = \"1h\"");
        }
        if limit.is_redisson() {
            let fault =
                Diagnostic::error("`layout = \"redisson\"` has no bans, which Java would not know of");
            self.fault(fault.at(span, "").help("remove one of the two"));
        }
        if limit.mode.0 == Mode::Shadow {
            let fault = Diagnostic::warning("`ban` has no effect with `mode = \"shadow\"`");
            self.fault(
                fault.at(span, "").help("it takes effect once the limit is enforced: remove the `mode`"),
            );
        } else if let Some(fault) = harm_to_others(key).filter(|_| limit.keys_file.is_none()) {
            // Nobody can guess a key that a file lists.
            let fault = Diagnostic::warning(fault).at(span, "");
            self.fault(fault.help(
                "count by \"ip\", also beside the key, or by a verified \"jwt:CLAIM\", or ban nobody here",
            ));
        }
        Some(Ban { after: table.after.as_ref()?.0, lasts: table.lasts.as_ref()?.0.0 })
    }
}

/// Returns the warning for a key with which clients can get others banned. `None` if they can't.
fn harm_to_others(key: &[KeyPart]) -> Option<String> {
    // Descriptors are chosen by the proxy that asks.
    let is_own = |part: &KeyPart| matches!(part, KeyPart::Ip | KeyPart::Jwt(_) | KeyPart::Descriptor(_));
    if key.iter().any(is_own) {
        return None;
    }
    let is_chosen = |part: &&KeyPart| {
        matches!(part, KeyPart::Header(_) | KeyPart::Cookie(_) | KeyPart::Query(_) | KeyPart::Path(_))
    };
    Some(match key.iter().find(is_chosen) {
        Some(part) => format!("clients choose `{part}`: any client can have the keys of others banned"),
        None => "all clients share this key: any client can have all others banned".to_owned(),
    })
}
