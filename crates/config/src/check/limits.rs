//! Checks limits, in tables of their own or inline in routes, and their use by routes.
//!
//! A limit is checked key by key, so this file has a paragraph for each key.

use std::{
    collections::{BTreeMap, BTreeSet},
    mem,
    ops::Range,
};

use super::{Check, duplicate, undefined};
use tollgate_limiter::{Algorithm, Prefixes};

use crate::{
    Cost, CostUsage, KeyPart, LimitSettings, UnknownKey,
    error::Diagnostic,
    file::{self, RouteLimit, Spanned, SpannedTable},
    value::ParsedText,
};
use tollgate_routing::Pattern;

/// A limit that a route names.
pub(super) struct UsedLimit {
    pub(super) name: Spanned<String>,
    /// The cost that the route states.
    pub(super) cost: Option<Spanned<Cost>>,
}

/// A limit that routes can name.
pub(super) struct DefinedLimit {
    /// The position of its name.
    pub(super) place: Range<usize>,
    /// The settings. `None` if there is an error; the name is still defined.
    pub(super) limit: Option<LimitSettings>,
    /// The path parameters in its key.
    params: Vec<Spanned<String>>,
    is_used: bool,
}

impl Check<'_, '_> {
    /// Checks and defines a limit of the table `[limits]`.
    pub(super) fn named_limit(&mut self, name: Spanned<String>, table: SpannedTable<file::LimitTable>) {
        if let Some(inner) = &table.value.name {
            let fault = Diagnostic::error("this limit already has a name in its table header");
            self.fault(fault.at(&inner.span(), "").at(&name.span(), "here").help("remove the `name`"));
        }
        self.define(name, table);
    }

    fn define(&mut self, name: Spanned<String>, table: SpannedTable<file::LimitTable>) {
        let place = name.span();
        let name = name.into_inner();
        if !is_limit_name(&name) {
            let fault = Diagnostic::error(format!("`{name}` is not a valid limit name")).at(&place, "");
            self.fault(fault.help("use lower-case letters, digits and hyphens: \"per-client\""));
        }
        if let Some(first) = self.limits.get(&name) {
            let fault = duplicate("limit", &name, &place, &first.place);
            return self.fault(fault);
        }
        let key = table.value.key.as_ref().map(|key| key.get_ref().0.as_slice()).unwrap_or_default();
        let params = key.iter().filter_map(|part| match part.get_ref() {
            KeyPart::Path(param) => Some(Spanned::new(part.span(), param.clone())),
            _ => None,
        });
        let params = params.collect();
        let limit = self.limit(&name, table);
        self.limits.insert(name, DefinedLimit { place, limit, params, is_used: false });
    }

    fn limit(&mut self, name: &str, table: SpannedTable<file::LimitTable>) -> Option<LimitSettings> {
        let SpannedTable { span, value: mut limit } = table;
        if limit.key.is_none() {
            self.missing(&span, &["key"], "key = \"ip\"");
        }
        if limit.rate.is_none() {
            self.missing(&span, &["rate"], "rate = \"100/10s\"");
        }
        let quota = self.quota(&span, &limit);
        if let Cost::Header(header) = limit.cost.get_ref() {
            self.costs_by_header.push((limit.cost.span(), header.to_string()));
        }
        self.check_charging(&limit);
        self.check_usage(&limit);
        self.check_refunds(&limit);
        let redisson_name = self.redisson_name(&span, &limit);
        let prefixes = Prefixes { ipv4: limit.ipv4_prefix.0 as u8, ipv6: limit.ipv6_prefix.0 as u8 };
        // If a part of the key was removed, values of the key would have the wrong length.
        let key = limit.key.take().filter(|key| !self.document.had_within(&key.span()))?.into_inner();
        self.check_claims(&key);
        self.warn_of_stated_addresses(&key);
        self.warn_of_host_field(&key);
        self.warn_of_global_part(&key);
        if limit.plain && limit.layout.is_none() {
            self.warn_of_plain_credentials(&key);
        }
        let key = key.into_values();
        let overrides = self.overrides(&span, &limit, &key, prefixes);
        let ban = self.ban(&limit, &key);
        let rate_from = self.rate_from(&span, &limit, quota);
        let known_keys = self.known_keys(&span, &limit, &key);
        match &known_keys {
            Some(known) => self.warn_of_unknown_keys(&limit.overrides, &limit.exempt, &key, known),
            None if limit.keys_file.is_some() => {}
            None => self.warn_of_credentials(&limit.overrides, &limit.exempt, &key),
        }
        let exempt = self.exemptions(limit.exempt, &key, prefixes);
        self.warn_of_exempt_overrides(&limit.overrides, &key, &exempt);
        Some(LimitSettings {
            name: name.to_owned(),
            key,
            quota: quota?,
            cost: limit.cost.into_inner(),
            costs_vary: false,
            when_status: limit.when_status.map_or_else(Vec::new, |list| list.into_inner().into_values()),
            scope: limit.scope.0,
            wait: limit.wait.into_inner().0.0,
            mode: limit.mode.0,
            missing: limit.missing.0,
            known_keys,
            unknown: limit.unknown.map_or_else(UnknownKey::default, |unknown| unknown.into_inner().0),
            prefixes,
            exempt,
            overrides,
            rate_from,
            plain: limit.plain,
            on_failure: limit.on_failure.map_or(self.on_failure, |policy| policy.into_inner().0),
            usage: limit.usage.map_or_else(CostUsage::default, |usage| usage.into_inner().0),
            refunds: limit.refunds.is_some_and(Spanned::into_inner),
            ban,
            redisson_name,
        })
    }

    /// Returns the name of a route's limit, and the cost that the route states. An inline limit is defined.
    pub(super) fn name_of_limit(&mut self, limit: Spanned<RouteLimit>) -> Option<UsedLimit> {
        let span = limit.span();
        let mut limit = match limit.into_inner() {
            RouteLimit::Name(name) => return Some(UsedLimit { name: Spanned::new(span, name), cost: None }),
            RouteLimit::Inline(limit) => limit,
        };
        if let (Some(cost), Some(name)) = (limit.only_cost(), &limit.name) {
            let cost = Spanned::new(cost.span(), cost.get_ref().clone());
            return Some(UsedLimit { name: name.clone(), cost: Some(cost) });
        }
        let is_known = |name: &&Spanned<String>| self.limits.contains_key(name.get_ref());
        let known =
            limit.name.as_ref().filter(is_known).filter(|_| limit.key.is_none() && limit.rate.is_none());
        if let Some(name) = known {
            let fault = Diagnostic::error(format!("limit `{name}` is already defined"));
            let fault = fault.at(&name.span(), "").at(&self.limits[name.get_ref()].place, "here");
            self.fault(fault.help(format!(
                "to use it, write \"{name}\", or with a cost {{ name = \"{name}\", cost = 2 }}; other keys belong into its own table"
            )));
            return None;
        }
        let name = limit.name.take();
        if name.is_none() {
            self.missing(&span, &["name"], "name = \"per-client\"");
        }
        let table = SpannedTable { span, value: *limit };
        let Some(name) = name else {
            self.limit("", table);
            return None;
        };
        self.define(name.clone(), table);
        Some(UsedLimit { name, cost: None })
    }

    /// Returns the name of a limit of a rule for descriptors, whose calls state the cost.
    pub(super) fn without_cost(&mut self, used: UsedLimit) -> Spanned<String> {
        if let Some(cost) = &used.cost {
            let fault = Diagnostic::error("descriptors can't state a cost").at(&cost.span(), "");
            self.fault(fault.help("remove it: a call states its cost as `hits_addend`"));
        }
        used.name
    }

    /// Checks the cost that a route states for a limit. Returns it if it is good.
    pub(super) fn route_cost(&mut self, used: &UsedLimit) -> Option<u32> {
        let (name, stated) = (used.name.get_ref(), used.cost.as_ref()?);
        let limit = self.limits.get_mut(name)?.limit.as_mut()?;
        let fault = match (stated.get_ref(), &limit.cost) {
            _ if limit.quota.algorithm == Algorithm::Concurrency => {
                Diagnostic::error("`cost` doesn't apply to `concurrency`")
                    .help("remove it: each request takes one permit while it is in flight")
            }
            _ if limit.usage == CostUsage::Reported => {
                Diagnostic::error("`cost` doesn't apply to `usage = \"reported\"`")
                    .help("remove it: each report names its cost, and is recorded at once")
            }
            (Cost::Fixed(cost), Cost::Fixed(_)) if *cost <= limit.quota.capacity() => {
                limit.costs_vary |= Cost::Fixed(*cost) != limit.cost;
                return Some(*cost);
            }
            (Cost::Fixed(cost), Cost::Fixed(_)) => {
                let capacity = limit.quota.capacity();
                let bound = match limit.quota.algorithm {
                    Algorithm::Gcra { burst: Some(_) } => "`burst`",
                    _ => "rate",
                };
                Diagnostic::error(format!("a request that costs `{cost}` can never be admitted")).help(
                    format!("lower the cost to at most {capacity}, or raise the {bound} of limit `{name}`"),
                )
            }
            (Cost::Fixed(_), _) => Diagnostic::error(format!(
                "limit `{name}` takes its cost from requests or responses, so a route can't state one"
            ))
            .help("remove one of the two costs"),
            _ => Diagnostic::error("a route can only state a number as the cost")
                .help("write a number, or set the cost in the limit's own table"),
        };
        self.fault(fault.at(&stated.span(), ""));
        None
    }

    /// Warns of limits whose cost any client can state.
    pub(super) fn warn_of_costs_that_clients_choose(&mut self) {
        for (place, header) in mem::take(&mut self.costs_by_header) {
            let fault =
                Diagnostic::warning("clients can set their own price: any client can send this header");
            self.fault(fault.at(&place, "").help(format!(
                "let a proxy in front set `{header}` and list it in server.trusted_proxies, or write a number"
            )));
        }
    }

    /// Checks that the limits of a route or rule exist, and notes that they are used. Returns those that do, each once.
    pub(super) fn used_limits<'l>(
        &mut self,
        limits: &'l [Spanned<String>],
        what: &str,
    ) -> Vec<&'l Spanned<String>> {
        let mut named: BTreeMap<&str, Range<usize>> = BTreeMap::new();
        let mut used = Vec::with_capacity(limits.len());
        for limit in limits {
            let name = limit.get_ref().as_str();
            if let Some(first) = named.insert(name, limit.span()) {
                let fault = Diagnostic::error(format!("limit `{name}` is listed twice in one {what}"));
                self.fault(
                    fault
                        .at(&limit.span(), "again here")
                        .at(&first, "first here")
                        .help("remove one of the two"),
                );
            } else if let Some(defined) = self.limits.get_mut(name) {
                defined.is_used = true;
                used.push(limit);
            } else if !self.document.had_defined(name) {
                let fault = undefined("limit", "limits", limit, self.limits.keys());
                self.fault(fault);
            }
        }
        used
    }

    /// Checks that the limits of a route exist and fit its path.
    pub(super) fn check_limits(
        &mut self,
        limits: &[Spanned<String>],
        path: Option<&Spanned<ParsedText<Pattern>>>,
    ) {
        for limit in self.used_limits(limits, "route") {
            self.refuse_key_of_descriptors(limit);
            let defined = &self.limits[limit.get_ref()];
            let Some(path) = path else { continue };
            let name = limit.get_ref();
            let params = path.get_ref().0.params().collect::<BTreeSet<_>>();
            for param in defined.params.iter().filter(|param| !params.contains(param.get_ref().as_str())) {
                let fault = Diagnostic::error(format!(
                    "limit `{name}` counts by `path:{param}`, but the path of this route has no such parameter"
                ))
                .at(&path.span(), format!("no `{{{param}}}` here"))
                .at(&param.span(), "part of the key here")
                .at(&limit.span(), "used here");
                let fault = match &params.iter().collect::<Vec<_>>()[..] {
                    [own] => fault.help(format!(
                        "if `{{{own}}}` is what it counts by, give both one name: `{{{param}}}` in the path, or \"path:{own}\" in the key"
                    )),
                    _ => fault,
                };
                self.document.faults.push(
                    fault.help(format!("add a segment `{{{param}}}` to the path, or use another limit")),
                );
            }
        }
    }

    /// Reports a limit of a route that counts by entries of descriptors.
    fn refuse_key_of_descriptors(&mut self, limit: &Spanned<String>) {
        let Some(defined) = &self.limits[limit.get_ref()].limit else { return };
        let part = defined.key.iter().find(|part| matches!(part, KeyPart::Descriptor(_)));
        let Some(part) = part.map(ToString::to_string) else { return };
        let name = limit.get_ref();
        let fault =
            Diagnostic::error(format!("limit `{name}` counts by `{part}`, but a request has no descriptor"));
        self.fault(fault.at(&limit.span(), "").help(
            "count by what requests have, key = \"header:x-api-key\", and say in [[descriptors]] which entry that is: as = { api_key = \"header:x-api-key\" }",
        ));
    }

    /// Warns of limits that the listener for other proxies skips, as they depend on the response.
    pub(super) fn warn_of_skipped_limits(&mut self) {
        for (name, defined) in self.limits.iter().filter(|(_, defined)| defined.is_used) {
            if defined.limit.as_ref().is_none_or(LimitSettings::ends_with_decision) {
                continue;
            }
            let fault =
                format!("[decisions] skips limit `{name}`: it needs the response of a proxied request");
            self.document.faults.push(
                Diagnostic::warning(fault)
                    .at(&defined.place, "`concurrency`, a cost of the response, or `when_status`")
                    .help("only requests that Tollgate itself forwards are held to it"),
            );
        }
    }

    pub(super) fn warn_of_unused_limits(&mut self) {
        // A route that couldn't be read may use any of them.
        if !self.document.is_whole() {
            return;
        }
        let unused = self.limits.iter().filter(|(name, defined)| !defined.is_used && is_limit_name(name));
        for (name, defined) in unused {
            let fault = Diagnostic::warning(format!("limit `{name}` is not used by any route"))
                .at(&defined.place, "");
            self.document
                .faults
                .push(fault.help(format!("add it to a route, limits = [\"{name}\"], or remove it")));
        }
    }
}

fn is_limit_name(name: &str) -> bool {
    !name.is_empty() && name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
}
