//! From the file as typed to the configuration as run: what values say about each other.
//!
//! What was wrong by itself is missing here and has been complained of ([`Document`]): it is neither called
//! missing nor undefined again.

use std::{
    collections::{BTreeMap, BTreeSet},
    mem,
    ops::Range,
};

use hyper::{
    StatusCode,
    header::{CONNECTION, CONTENT_LENGTH, TRANSFER_ENCODING, UPGRADE},
};
use toml::Spanned;

use super::{
    Action, Config, KeyPart, Limit, OnFailure, Route, Server, Store, Target, Upstream,
    document::Document,
    error::{Fault, Severity, nearest},
    file::{self, File, LimitOfRoute, Table},
    value::{Size, Text},
};
use crate::route::{self, Matcher};

/// The configuration that the file describes, unless there are errors. Faults are left in the document.
pub(super) fn check(file: File, document: &mut Document<'_>) -> Option<Config> {
    let mut check = Check { document, upstreams: BTreeMap::new(), limits: BTreeMap::new() };
    let server = check.server(file.server.value);
    let store = check.store(file.store.value);
    for (name, upstream) in file.upstreams {
        let checked = check.upstream(name.get_ref(), upstream);
        check.upstreams.insert(name.into_inner(), checked);
    }
    for (name, limit) in file.limits {
        check.named_limit(name, limit, store.on_failure);
    }
    let routes = check.routes(file.routes, store.on_failure);
    check.warn_of_unused_limits();
    let upstreams =
        check.upstreams.into_iter().filter_map(|(name, upstream)| Some((name, upstream?))).collect();
    let limits =
        check.limits.into_iter().filter_map(|(name, defined)| Some((name, defined.limit?))).collect();
    let is_good = document.faults.iter().all(|fault| fault.severity == Severity::Warning);
    is_good.then_some(Config { server, store, upstreams, limits, routes })
}

struct Check<'d, 'i> {
    document: &'d mut Document<'i>,
    /// By name; none if there is a fault in it: it is defined all the same.
    upstreams: BTreeMap<String, Option<Upstream>>,
    limits: BTreeMap<String, DefinedLimit>,
}

struct DefinedLimit {
    /// Where its name stands.
    place: Range<usize>,
    /// None if there is a fault in it: it is defined all the same.
    limit: Option<Limit>,
    /// The path parameters that it counts by.
    params: Vec<Spanned<String>>,
    is_used: bool,
}

impl Check<'_, '_> {
    fn fault(&mut self, fault: Fault) {
        self.document.faults.push(fault);
    }

    fn server(&mut self, server: file::Server) -> Server {
        Server {
            listen: server.listen.into_values(),
            workers: server.workers.0 as usize,
            trusted_proxies: server.trusted_proxies.into_iter().map(|network| network.0).collect(),
            ratelimit_headers: server.ratelimit_headers.0,
            max_header_bytes: self.size_of_at_least(&server.max_header_bytes, 8 << 10, "8KiB"),
            max_connections: server.max_connections.0 as usize,
            escaped_slashes: server.escaped_slashes.0,
            header_timeout: server.timeouts.value.header.0,
            drain_timeout: server.timeouts.value.drain.0,
        }
    }

    fn store(&mut self, store: file::Store) -> Store {
        let prefix = store.key_prefix.get_ref();
        if prefix.0.is_empty() || !prefix.0.bytes().all(|b| b.is_ascii_alphanumeric() || b"._:-".contains(&b))
        {
            let fault = Fault::error(format!("`{}` can't begin the keys of the store", prefix.0));
            self.fault(
                fault.at(&store.key_prefix.span(), "").help("use letters, digits and `.`, `_`, `:` and `-`"),
            );
        }
        Store {
            url: store.url.0,
            timeout: store.timeout.0,
            on_failure: store.on_failure.0,
            instances: store.instances.0,
            max_memory: self.size_of_at_least(&store.max_memory, 1 << 20, "1MiB"),
            key_prefix: store.key_prefix.into_inner().0,
        }
    }

    fn size_of_at_least(&mut self, size: &Spanned<Text<Size>>, least: usize, written: &str) -> usize {
        let Text(Size(bytes)) = *size.get_ref();
        if bytes < least {
            let fault = Fault::error(format!("`{bytes}` bytes are too few")).at(&size.span(), "");
            self.fault(fault.help(format!("use at least \"{written}\"")));
        }
        bytes
    }

    fn upstream(&mut self, name: &str, table: Table<file::Upstream>) -> Option<Upstream> {
        let Table { span, value: upstream } = table;
        let target = match (upstream.servers, upstream.builtin) {
            (Some(servers), None) => Target::Servers(servers.into_inner().into_values()),
            (None, Some(_)) => Target::Echo,
            (Some(servers), Some(builtin)) => {
                let fault = Fault::error(format!("upstream `{name}` has both `servers` and `builtin`"));
                let fault = fault.at(&builtin.span(), "either this").at(&servers.span(), "or this");
                self.fault(fault.help("remove one of the two"));
                return None;
            }
            (None, None) => {
                self.missing(&span, &["servers", "builtin"], "servers = [\"http://127.0.0.1:3000\"]");
                return None;
            }
        };
        Some(Upstream {
            target,
            connect_timeout: upstream.timeouts.value.connect.0,
            response_timeout: upstream.timeouts.value.response.0,
            idle_timeout: upstream.timeouts.value.idle.0,
            max_connections: upstream.max_connections.0 as usize,
        })
    }

    /// Complains that a table has none of these keys, unless one was there and had a fault.
    fn missing(&mut self, table: &Range<usize>, keys: &[&str], example: &str) {
        if !keys.iter().any(|key| self.document.had(table, key)) {
            let fault = Fault::error(format!("missing key `{}`", keys.join("` or `")));
            self.fault(fault.at(table, "in this table").help(format!("add for example: {example}")));
        }
    }

    /// A limit of the table `[limits]`.
    fn named_limit(&mut self, name: Spanned<String>, table: Table<file::Limit>, on_failure: OnFailure) {
        if let Some(inner) = &table.value.name {
            let fault = Fault::error("the name of this limit is in the table's header already");
            self.fault(fault.at(&inner.span(), "").at(&name.span(), "here").help("remove the `name`"));
        }
        self.define(name, table, on_failure);
    }

    fn define(&mut self, name: Spanned<String>, table: Table<file::Limit>, on_failure: OnFailure) {
        let place = name.span();
        let name = name.into_inner();
        if name.is_empty() || !name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
        {
            let fault = Fault::error(format!("`{name}` can't be the name of a limit")).at(&place, "");
            self.fault(fault.help("use lower-case letters, digits and hyphens: \"per-client\""));
        }
        if let Some(first) = self.limits.get(&name) {
            let fault = duplicate("limit", &name, &place, &first.place);
            return self.fault(fault);
        }
        let key = table.value.key.as_ref().map(|key| key.0.as_slice()).unwrap_or_default();
        let params = key.iter().filter_map(|part| match part.get_ref() {
            KeyPart::Path(param) => Some(Spanned::new(part.span(), param.clone())),
            _ => None,
        });
        let params = params.collect();
        let limit = self.limit(&name, table, on_failure);
        self.limits.insert(name, DefinedLimit { place, limit, params, is_used: false });
    }

    fn limit(&mut self, name: &str, table: Table<file::Limit>, on_failure: OnFailure) -> Option<Limit> {
        let Table { span, value: limit } = table;
        if limit.key.is_none() {
            self.missing(&span, &["key"], "key = \"ip\"");
        }
        if limit.rate.is_none() {
            self.missing(&span, &["rate"], "rate = \"100/10s\"");
        }
        Some(Limit {
            name: name.to_owned(),
            key: limit.key?.into_values(),
            quota: limit.rate?.0,
            algorithm: limit.algorithm.0,
            mode: limit.mode.0,
            missing: limit.missing.0,
            ipv4_prefix: limit.ipv4_prefix.0 as u8,
            ipv6_prefix: limit.ipv6_prefix.0 as u8,
            exempt: limit.exempt.into_iter().map(|exemption| exemption.0).collect(),
            plain: limit.plain,
            on_failure: limit.on_failure.map_or(on_failure, |policy| policy.0),
        })
    }

    fn routes(&mut self, mut tables: Vec<Table<file::Route>>, on_failure: OnFailure) -> Vec<Route> {
        if tables.is_empty() && self.document.is_whole() {
            let fault = Fault::warning("there are no routes: every request is answered with 404");
            self.fault(
                fault.help("add for example: [[routes]], path = \"/{*rest}\" and upstream = \"NAME\""),
            );
        }
        self.refuse_equal_names(&tables);
        // All limits are defined before the first is looked up: a route may name one of a later route.
        let limits = tables.iter_mut().map(|table| {
            let limits = mem::take(&mut table.value.limits).into_iter();
            limits.filter_map(|limit| self.name_of_limit(limit, on_failure)).collect::<Vec<_>>()
        });
        let limits = limits.collect::<Vec<_>>();
        let starts = tables.iter().map(|table| table.span.start).chain([usize::MAX]).collect::<Vec<_>>();

        let mut routes = Vec::new();
        let mut understood = Vec::new();
        for ((table, limits), bounds) in tables.into_iter().zip(limits).zip(starts.windows(2)) {
            let path = table.value.path.as_ref().map(Spanned::span);
            let Some(route) = self.route(table, &limits) else { continue };
            if !self.document.had_within(&(bounds[0]..bounds[1])) {
                understood.extend(path.map(|path| (path, route.name.clone(), route.matcher.clone())));
            }
            routes.push(route);
        }
        self.refuse_hidden_routes(understood);
        routes
    }

    fn refuse_equal_names(&mut self, tables: &[Table<file::Route>]) {
        let mut names: BTreeMap<&str, Range<usize>> = BTreeMap::new();
        for name in tables.iter().filter_map(|table| table.value.name.as_ref()) {
            if let Some(first) = names.get(name.get_ref().as_str()) {
                self.fault(duplicate("route", name.get_ref(), &name.span(), first));
            } else {
                names.insert(name.get_ref(), name.span());
            }
        }
    }

    /// The name of a limit of a route, defined if it is inline.
    fn name_of_limit(
        &mut self,
        limit: Spanned<LimitOfRoute>,
        on_failure: OnFailure,
    ) -> Option<Spanned<String>> {
        let span = limit.span();
        let mut limit = match limit.into_inner() {
            LimitOfRoute::Name(name) => return Some(Spanned::new(span, name)),
            LimitOfRoute::Inline(limit) => limit,
        };
        let name = limit.name.take();
        if name.is_none() {
            self.missing(&span, &["name"], "name = \"per-client\"");
        }
        let table = Table { span, value: *limit };
        let Some(name) = name else {
            self.limit("", table, on_failure);
            return None;
        };
        self.define(name.clone(), table, on_failure);
        Some(name)
    }

    fn route(&mut self, table: Table<file::Route>, limits: &[Spanned<String>]) -> Option<Route> {
        let Table { span, value: route } = table;
        if route.path.is_none() {
            self.missing(&span, &["path"], "path = \"/v1/orders/{id}\"");
        }
        self.check_limits(limits, route.path.as_ref());
        let action = self.action(&span, route.upstream, route.respond);
        let matcher = Matcher {
            host: route.host.map(|host| host.0),
            path: route.path?.into_inner().0,
            methods: route.methods.map_or_else(Vec::new, file::List::into_values),
            headers: route.headers.0,
            query: route.query.0,
        };
        let made = || {
            format!("{}{}", matcher.host.as_ref().map(ToString::to_string).unwrap_or_default(), matcher.path)
        };
        Some(Route {
            name: route.name.map_or_else(made, Spanned::into_inner),
            action: action?,
            limits: limits.iter().map(|name| name.get_ref().clone()).collect(),
            matcher,
        })
    }

    fn action(
        &mut self,
        route: &Range<usize>,
        upstream: Option<Spanned<String>>,
        respond: Option<Table<file::Respond>>,
    ) -> Option<Action> {
        match (upstream, respond) {
            (Some(name), None) => {
                self.check_upstream(&name);
                Some(Action::Upstream(name.into_inner()))
            }
            (None, Some(respond)) => self.response(respond),
            (Some(upstream), Some(respond)) => {
                let fault = Fault::error("this route has both `upstream` and `respond`");
                let fault = fault.at(&respond.span, "either this").at(&upstream.span(), "or this");
                self.fault(fault.help("remove one of the two"));
                None
            }
            (None, None) => {
                self.missing(route, &["upstream", "respond"], "upstream = \"orders\"");
                None
            }
        }
    }

    fn response(&mut self, respond: Table<file::Respond>) -> Option<Action> {
        let Table { span, value: respond } = respond;
        let framing = [CONNECTION, CONTENT_LENGTH, TRANSFER_ENCODING, UPGRADE];
        for (name, _) in respond.headers.0.iter().filter(|(name, _)| framing.contains(name)) {
            let fault = Fault::error(format!("a route can't set the header `{name}`")).at(&span, "");
            self.fault(fault.help("leave it out: the gateway sets it to what it sends"));
        }
        let status = StatusCode::from_u16(respond.status.0 as u16).expect("from 200 to 599");
        Some(Action::Respond { status, body: respond.body, headers: respond.headers.0 })
    }

    fn check_upstream(&mut self, name: &Spanned<String>) {
        if !self.upstreams.contains_key(name.get_ref()) && !self.document.had_defined(name.get_ref()) {
            let fault = undefined("upstream", "upstreams", name, self.upstreams.keys());
            self.fault(fault);
        }
    }

    fn check_limits(&mut self, limits: &[Spanned<String>], path: Option<&Spanned<Text<route::Pattern>>>) {
        let mut named: BTreeMap<&str, Range<usize>> = BTreeMap::new();
        for limit in limits {
            let name = limit.get_ref().as_str();
            if let Some(first) = named.insert(name, limit.span()) {
                let fault = Fault::error(format!("limit `{name}` is named twice by one route"));
                self.fault(
                    fault
                        .at(&limit.span(), "again here")
                        .at(&first, "first here")
                        .help("remove one of the two"),
                );
                continue;
            }
            let Some(defined) = self.limits.get_mut(name) else {
                if !self.document.had_defined(name) {
                    let fault = undefined("limit", "limits", limit, self.limits.keys());
                    self.fault(fault);
                }
                continue;
            };
            defined.is_used = true;
            let Some(path) = path else { continue };
            let params = path.get_ref().0.params().collect::<BTreeSet<_>>();
            for param in defined.params.iter().filter(|param| !params.contains(param.get_ref().as_str())) {
                let fault = Fault::error(format!(
                    "limit `{name}` counts by `path:{param}`, which the path of this route lacks"
                ))
                .at(&path.span(), format!("no `{{{param}}}` here"))
                .at(&param.span(), "counted by here")
                .at(&limit.span(), "named here");
                self.document.faults.push(
                    fault.help(format!("add a segment `{{{param}}}` to the path, or use another limit")),
                );
            }
        }
    }

    /// Of the routes that were understood: no two may be equal, and one that another hides is useless.
    fn refuse_hidden_routes(&mut self, routes: Vec<(Range<usize>, String, Matcher)>) {
        let mut places = Vec::new();
        let mut matchers = Vec::new();
        for (path, name, matcher) in routes {
            places.push((path, name));
            matchers.push(matcher);
        }
        for hidden in route::hidden(&matchers) {
            let ((place, name), (by_place, by_name)) = (&places[hidden.route], &places[hidden.by]);
            self.fault(if hidden.equal {
                Fault::error(format!("two routes match the same requests, those of `{name}`"))
                    .at(place, "again here")
                    .at(by_place, "first here")
                    .help("remove one of the two, or tell them apart by host, methods, headers or query")
            } else {
                Fault::warning(format!("route `{name}` can never match"))
                    .at(place, "")
                    .at(by_place, format!("`{by_name}` takes all its requests"))
                    .help("remove it, or let the other route ask for more: a host, methods, headers or query")
            });
        }
    }

    fn warn_of_unused_limits(&mut self) {
        // A route that wasn't understood may use any of them.
        if !self.document.is_whole() {
            return;
        }
        for (name, defined) in self.limits.iter().filter(|(_, defined)| !defined.is_used) {
            let fault = Fault::warning(format!("no route names the limit `{name}`")).at(&defined.place, "");
            self.document.faults.push(
                fault.help(format!("add it to the routes it is for, limits = [\"{name}\"], or remove it")),
            );
        }
    }
}

fn duplicate(what: &str, name: &str, again: &Range<usize>, first: &Range<usize>) -> Fault {
    Fault::error(format!("duplicate name: there is a {what} `{name}` already"))
        .at(again, "again here")
        .at(first, "first here")
        .help("remove one of the two, or rename it")
}

fn undefined<'a>(
    what: &str,
    table: &str,
    name: &Spanned<String>,
    known: impl Iterator<Item = &'a String>,
) -> Fault {
    let meant = nearest(name.get_ref(), known.map(String::as_str));
    let label = meant.map(|meant| format!("did you mean `{meant}`?")).unwrap_or_default();
    let fault = Fault::error(format!("{what} `{name}` is not defined")).at(&name.span(), label);
    fault.help(format!("define it in a table [{table}.{name}], or name another one"))
}
