//! Finds values of a key that no request has, and overrides of keys that are exempt.

use std::ops::Range;

use tollgate_routing::HostPattern;

use super::{Check, keys::parts_of};
use crate::{
    Exemption, KeyPart, RouteSettings,
    error::{Diagnostic, nearest},
    file,
};

impl Check<'_, '_> {
    /// Warns of values that no request has in these parts of a key.
    pub(super) fn check_values<V: AsRef<str>>(
        &mut self,
        values: &[V],
        key: &[KeyPart],
        place: &Range<usize>,
    ) {
        for (value, part) in values.iter().map(AsRef::as_ref).zip(key).filter(|(value, _)| *value != "*") {
            let named = value.strip_prefix(&format!("{part}="));
            if let Some(alone) = named {
                let fault = Diagnostic::warning(format!("`{value}` is hardly a value of `{part}`"));
                self.fault(fault.at(place, "").help(format!("write the value alone: \"{alone}\"")));
            }
            let value = named.unwrap_or(value);
            let fault = match part {
                KeyPart::Route => {
                    self.named_routes.push((place.clone(), value.to_owned()));
                    None
                }
                KeyPart::Host => fault_of_host(value),
                _ => None,
            };
            if let Some((fault, help)) = fault {
                self.fault(Diagnostic::warning(fault).at(place, "").help(help));
            }
        }
    }

    /// Warns of values of the key `route` that are not names of routes.
    pub(super) fn warn_of_unknown_routes(&mut self, routes: &[RouteSettings]) {
        for (place, value) in std::mem::take(&mut self.named_routes) {
            let names = || routes.iter().map(|route| route.name.as_str());
            if names().any(|name| name == value) {
                continue;
            }
            let meant = nearest(&value, names()).map(|meant| format!("did you mean `{meant}`?"));
            let known: Vec<_> = names().map(|name| format!("\"{name}\"")).collect();
            let fault = Diagnostic::warning(format!("there is no route `{value}`, so this never applies"));
            let help = format!("write the `name` of a route: {}", known.join(", "));
            self.fault(fault.at(&place, meant.unwrap_or_default()).help(help));
        }
    }

    /// Warns of overrides of keys that are exempt, which are never counted.
    pub(super) fn warn_of_exempt_overrides(
        &mut self,
        overrides: &[file::SpannedTable<file::OverrideTable>],
        key: &[KeyPart],
        exempt: &[Exemption],
    ) {
        for written in overrides.iter().filter_map(|other| other.value.key.as_ref()) {
            let values = parts_of(written.get_ref(), key);
            let is_exempt = |exemption: &Exemption| match exemption {
                Exemption::Key(exempt) => *exempt == values,
                Exemption::Network(network) => match (key, &values[..]) {
                    ([KeyPart::Ip], [value]) => {
                        value.parse().is_ok_and(|ip: std::net::IpAddr| network.contains(&ip))
                    }
                    _ => false,
                },
            };
            if exempt.iter().any(is_exempt) {
                let fault = Diagnostic::warning("this override has no effect: `exempt` has its key");
                let help = "remove one of the two: a key that is exempt isn't counted";
                self.fault(fault.at(&written.span(), "").help(help));
            }
        }
    }
}

/// Returns what is wrong with a value of the key `host`, and the remedy.
fn fault_of_host(value: &str) -> Option<(String, String)> {
    let lower = value.to_ascii_lowercase();
    let authority = lower.split_once("://").map_or(&*lower, |(_, rest)| rest);
    let authority = authority.split('/').next().unwrap_or_default();
    let host = match authority.rsplit_once(':') {
        Some((host, port)) if port.bytes().all(|b| b.is_ascii_digit()) && !host.ends_with(':') => host,
        _ => authority,
    };
    match host.parse::<HostPattern>() {
        Ok(HostPattern::Exact(name)) if name == lower => None,
        Ok(HostPattern::Exact(name)) => Some((
            format!("no request has the host `{value}`: it is counted without scheme, port and path"),
            format!("write \"{name}\""),
        )),
        _ => Some((
            format!("no request has the host `{value}`"),
            "write each host by itself: \"api.example.com\"".to_owned(),
        )),
    }
}
