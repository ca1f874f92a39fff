//! Checks what a limit's key requires, and the values of the key in exemptions and overrides.

use std::{collections::BTreeMap, net::IpAddr, ops::Range};

use hyper::Method;
use ipnet::IpNet;

use super::Check;
use tollgate_limiter::Prefixes;

use crate::{
    Exemption, KeyPart, RateOverride,
    error::Diagnostic,
    file::{self, Spanned, ValueList},
    read_key,
    value::ParsedText,
};

impl Check<'_, '_> {
    /// Warns of a key whose value clients choose, where other programs have the client's address.
    pub(super) fn warn_of_stated_addresses(&mut self, key: &ValueList<KeyPart>) {
        const STATED: [&str; 5] =
            ["x-real-ip", "cf-connecting-ip", "true-client-ip", "x-client-ip", "forwarded"];
        let has_proxies = self.has_proxies;
        let is_stated = |part: &KeyPart| {
            matches!(part, KeyPart::Header(name)
                if name == "x-forwarded-for" || !has_proxies && STATED.contains(&name.as_str()))
        };
        for part in key.0.iter().filter(|part| is_stated(part.get_ref())) {
            let fault = Diagnostic::warning("clients choose this field, and so evade the limit");
            let help =
                "use key = \"ip\", and name the proxies in front: server.trusted_proxies = [\"10.0.0.0/8\"]";
            self.fault(fault.at(&part.span(), "").help(help));
        }
    }

    /// Warns of the field `Host`, which a client may send beside another host in the request's target.
    pub(super) fn warn_of_host_field(&mut self, key: &ValueList<KeyPart>) {
        let is_host = |part: &KeyPart| matches!(part, KeyPart::Header(name) if name == "host");
        for part in key.0.iter().filter(|part| is_host(part.get_ref())) {
            let fault = Diagnostic::warning(
                "clients may send this field beside another host in the target, and so evade the limit",
            );
            self.fault(
                fault.at(&part.span(), "").help("use key = \"host\", which is the one that is forwarded"),
            );
        }
    }

    /// Warns of `global` beside other parts, which doesn't make two limits of one.
    pub(super) fn warn_of_global_part(&mut self, key: &ValueList<KeyPart>) {
        let global = key.0.iter().find(|part| *part.get_ref() == KeyPart::Global).filter(|_| key.0.len() > 1);
        if let Some(part) = global {
            let fault = Diagnostic::warning(
                "`global` changes nothing here: each combination of the parts is counted alone",
            );
            let help = "for a rate of all clients together, write a limit of its own with key = \"global\", and list both in the route";
            self.fault(fault.at(&part.span(), "").help(help));
        }
    }

    /// Warns of credentials that `plain` leaves readable.
    pub(super) fn warn_of_plain_credentials(&mut self, key: &ValueList<KeyPart>) {
        let is_credential = |part: &KeyPart| match part {
            KeyPart::Header(name) => name == "authorization" || name == "cookie",
            part => matches!(part, KeyPart::Cookie(_)),
        };
        for part in key.0.iter().filter(|part| is_credential(part.get_ref())) {
            let what = part.get_ref().to_string();
            let fault =
                format!("with `plain`, credentials in `{what}` are readable in Redis, metrics and logs");
            let help = "leave `plain` out, so that they are hashed";
            self.fault(Diagnostic::warning(fault).at(&part.span(), "").help(help));
        }
    }

    /// Reports claims in a key if there is no `[jwt]` to verify them.
    pub(super) fn check_claims(&mut self, key: &ValueList<KeyPart>) {
        for part in key.0.iter().filter(|part| matches!(part.get_ref(), KeyPart::Jwt(_))) {
            let what = part.get_ref().to_string();
            self.check_verifies(&what, &part.span(), "claims can only be counted once they are verified");
            self.warn_of_dotted_claim(part.get_ref(), &part.span());
        }
    }

    /// Reports a use of tokens if there is no `[jwt]` to verify them.
    pub(super) fn check_verifies(&mut self, what: &str, place: &Range<usize>, why: &str) {
        if !self.verifies_tokens {
            let fault = Diagnostic::error(format!("`{what}` needs a table [jwt]"));
            self.fault(
                fault.at(place, why).help(
                    "add one with `jwks_url = \"https://…\"`, `jwks_file = \"keys.json\"` or `hmac_secret = \"${JWT_SECRET}\"`",
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
                Exemption::Key(text) if key == [KeyPart::Ip] => {
                    let fault =
                        Diagnostic::error(format!("`{}` is neither an address nor a network", text[0]));
                    self.fault(
                        fault
                            .at(&span, "")
                            .help("write an address, \"192.0.2.7\", or a network, \"10.0.0.0/24\""),
                    );
                    None
                }
                Exemption::Key(text) if key.len() > 1 => {
                    let values = self.key(&text[0], &span, key, prefixes);
                    let parts = values.as_deref().unwrap_or_default();
                    self.check_values(parts, key, &span);
                    if parts.iter().any(|part| part == "*") {
                        let fault = Diagnostic::warning("in `exempt`, `*` stands for itself only");
                        self.fault(fault.at(&span, "").help(
                            "write each key, or an override with a rate that is never reached: key = [\"pro\", \"*\"]",
                        ));
                    }
                    values.map(Exemption::Key)
                }
                Exemption::Key(text) => {
                    self.check_values(&text, key, &span);
                    self.warn_of_pattern(
                        &text[0],
                        &span,
                        "write each value: there are no patterns of values",
                    );
                    // Hosts are compared in lower case.
                    match key {
                        [KeyPart::Host | KeyPart::Method] => {
                            self.key(&text[0], &span, key, prefixes).map(Exemption::Key)
                        }
                        _ => Some(Exemption::Key(text)),
                    }
                }
                Exemption::Network(network) => Some(Exemption::Network(self.whole_network(network, &span))),
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
        let mut places: BTreeMap<Vec<Option<String>>, Range<usize>> = BTreeMap::new();
        let mut overrides = Vec::new();
        for file::SpannedTable { span, value: other } in &limit.overrides {
            if other.key.is_none() {
                self.missing(span, &["key"], "key = \"gold\"");
            }
            if other.rate.is_none() {
                self.missing(span, &["rate"], "rate = \"1000/10s\"");
            }
            let rate = other.rate.as_ref().and_then(|rate| self.override_rate(table, limit, rate));
            let Some(written) = &other.key else { continue };
            let Some(values) = self.key_pattern(written, key, prefixes) else { continue };
            if let Some(first) = places.insert(values.clone(), written.span()) {
                let fault = Diagnostic::error(format!("`{}` has two overrides", shown(&values)));
                let fault = fault.at(&written.span(), "again here").at(&first, "first here");
                self.fault(fault.help("remove one of the two"));
            }
            if rate.is_some_and(|rate| rate.permits == 0) {
                self.warn_of_blocked_unlimited(&values, &written.span());
            }
            self.warn_of_wide_address(written, key, prefixes);
            overrides.extend(rate.map(|rate| RateOverride { key: values, rate }));
        }
        let any = |other: &RateOverride| other.key.iter().map(Option::is_none).collect::<Vec<_>>();
        overrides.sort_by_key(|other| {
            let any = any(other);
            (any.iter().filter(|is_any| **is_any).count(), any)
        });
        overrides
    }

    /// Warns of a rate of 0 where none may have been meant.
    fn warn_of_blocked_unlimited(&mut self, values: &[Option<String>], place: &Range<usize>) {
        if values.iter().flatten().any(|value| value.eq_ignore_ascii_case("unlimited")) {
            let fault =
                Diagnostic::warning(format!("the rate 0 refuses all requests of `{}`", shown(values)));
            self.fault(fault.at(place, "").help(match values {
                [_] => "to leave it out of the limit, write it into `exempt` instead",
                _ => "write a rate that it never reaches, or an earlier route for these requests without the limit",
            }));
        }
    }

    /// Warns of an override for an address that is counted together with its network.
    fn warn_of_wide_address(
        &mut self,
        written: &Spanned<file::ValueList<String>>,
        key: &[KeyPart],
        prefixes: Prefixes,
    ) {
        let parts = parts_of(written.get_ref(), key);
        for (text, _) in parts.iter().zip(key).filter(|(_, part)| **part == KeyPart::Ip) {
            let Ok(address) = text.parse::<IpAddr>().map(|address| address.to_canonical()) else { continue };
            let network = prefixes.network(address);
            if network == address {
                continue;
            }
            let (length, remedy) = match address {
                IpAddr::V4(_) => (prefixes.ipv4, "leave `ipv4_prefix` out"),
                IpAddr::V6(_) => (prefixes.ipv6, "set ipv6_prefix = 128"),
            };
            let fault = Diagnostic::warning(format!("this is the rate of all of `{network}/{length}`"));
            let help = format!(
                "write \"{network}\" if that is meant, or {remedy}, so that addresses are counted alone"
            );
            self.fault(fault.at(&written.span(), "").help(help));
        }
    }

    /// Parses the key of an override, of which `*` stands for any value of a part.
    fn key_pattern(
        &mut self,
        written: &Spanned<file::ValueList<String>>,
        key: &[KeyPart],
        prefixes: Prefixes,
    ) -> Option<Vec<Option<String>>> {
        let parts = parts_of(written.get_ref(), key);
        let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
        if key.len() == 1 && (parts.len() > 1 || parts == ["*"]) {
            self.fault(pattern_of_one_part(&parts).at(&written.span(), ""));
            return None;
        }
        self.check_values(&parts, key, &written.span());
        for part in parts.iter().filter(|part| **part != "*") {
            self.warn_of_pattern(
                part,
                &written.span(),
                "write an override for each value, or count by a part that groups them, such as \"jwt:plan\"",
            );
        }
        if key.len() < 2 || parts.len() == key.len() && !parts.contains(&"*") {
            let written_key = match &parts[..] {
                [value] => (*value).to_owned(),
                values => serde_json::to_string(values).unwrap_or_default(),
            };
            let values = self.key(&written_key, &written.span(), key, prefixes)?;
            return Some(values.into_iter().map(Some).collect());
        }
        if parts.len() != key.len() || parts.iter().all(|part| *part == "*") {
            let fault = Diagnostic::error(format!("this is not a pattern of a key with {} parts", key.len()));
            let help = "write a value or \"*\" for each part, and at least one value: key = [\"pro\", \"*\"]";
            self.fault(fault.at(&written.span(), "").help(help));
            return None;
        }
        let part = |(value, part): (&&str, &KeyPart)| match *value {
            "*" => Some(None),
            value => {
                let values = self.key(value, &written.span(), std::slice::from_ref(part), prefixes)?;
                Some(values.into_iter().next())
            }
        };
        parts.iter().zip(key).map(part).collect()
    }

    /// Parses the values of a key.
    fn key(
        &mut self,
        written: &str,
        span: &Range<usize>,
        key: &[KeyPart],
        prefixes: Prefixes,
    ) -> Option<Vec<String>> {
        let values = read_key(written, key, prefixes).and_then(|values| {
            let is_never_counted = |(value, part): (&String, &KeyPart)| {
                let counted = |method: &Method| KeyPart::method_value(method) == value;
                *part == KeyPart::Method && value != "other" && !value.parse().is_ok_and(|method| counted(&method))
            };
            match values.iter().zip(key).any(is_never_counted) {
                true => Err(format!(
                    "`{written}` can never apply\nwrite a method of HTTP in capital letters, such as \"GET\", or \"other\", as which all others are counted"
                )),
                false => Ok(values),
            }
        });
        let network = written.parse::<IpNet>().ok().filter(|_| key == [KeyPart::Ip]);
        let remedy = |remedy: String| match network {
            Some(_) => format!(
                "`{written}` is a network, and an override is for one key\nwrite an override for each address; or exempt = [\"{written}\"], and for a higher rate of the network a second limit with that rate in the same route"
            ),
            None => remedy,
        };
        values.map_err(|fault| self.fault(Diagnostic::with_remedy(&remedy(fault)).at(span, ""))).ok()
    }
}

/// Returns the parts of an override's key. For a key of several parts they may be a string with a JSON array, as commands take it.
pub(super) fn parts_of(written: &ValueList<String>, key: &[KeyPart]) -> Vec<String> {
    let parts: Vec<String> = written.0.iter().map(|part| part.get_ref().clone()).collect();
    match &parts[..] {
        [text] if key.len() > 1 => serde_json::from_str(text).unwrap_or(parts),
        _ => parts,
    }
}

/// Describes a pattern for a key that has one part.
fn pattern_of_one_part(parts: &[&str]) -> Diagnostic {
    if parts == ["*"] {
        let fault = Diagnostic::error("`*` alone would be every value");
        return fault.help("change the `rate` of the limit itself");
    }
    let values: Vec<_> = parts.iter().map(|part| format!("{{ key = \"{part}\", … }}")).collect();
    Diagnostic::error(format!("the key of this limit has 1 part, not {}", parts.len()))
        .help(format!("write an override for each value: {}", values.join(", ")))
}

/// Returns the values of a key as they are written.
fn shown(values: &[Option<String>]) -> String {
    let values: Vec<&str> = values.iter().map(|value| value.as_deref().unwrap_or("*")).collect();
    match values[..] {
        [value] => value.to_owned(),
        _ => serde_json::to_string(&values).unwrap_or_default(),
    }
}
