//! Routes: what each one says, and which of them are equal or can never match.

use std::{collections::BTreeMap, mem, ops::Range};

use hyper::{
    StatusCode,
    header::{CONNECTION, CONTENT_LENGTH, TRANSFER_ENCODING, UPGRADE},
};

use super::{Check, duplicate, undefined};
use crate::{
    config::{
        Action, Route,
        error::Fault,
        file::{self, Spanned, Table},
    },
    route::{self, Matcher},
};

impl Check<'_, '_> {
    pub(super) fn routes(&mut self, mut tables: Vec<Table<file::Route>>) -> Vec<Route> {
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
            limits.filter_map(|limit| self.name_of_limit(limit)).collect::<Vec<_>>()
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
            timeout: route.timeout.map(|timeout| timeout.0),
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
}
