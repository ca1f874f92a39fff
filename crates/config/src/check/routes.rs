//! Checks routes, and finds those that are equal or can never match.
//!
//! A route is checked key by key, so this file has a paragraph for each key.

use std::{collections::BTreeMap, mem, ops::Range};

use hyper::{StatusCode, header::HeaderValue};

use super::{Check, duplicate, limits::UsedLimit, placeholders::placeholder, undefined};
use crate::{
    Action, BodyTemplate, Edits, OnLimit, RouteSettings,
    error::Diagnostic,
    file::{self, RouteUpstreams, Spanned, SpannedTable, ValueList},
    value::{FieldName, ParsedText},
};
use tollgate_routing::{Matcher, Pattern, hidden, template::Template};

const TEXT: HeaderValue = HeaderValue::from_static("text/plain; charset=utf-8");

impl Check<'_, '_> {
    /// Returns the routes. There may be none if other proxies ask for decisions.
    pub(super) fn routes(
        &mut self,
        mut tables: Vec<SpannedTable<file::RouteTable>>,
        has_decisions: bool,
    ) -> Vec<RouteSettings> {
        if tables.is_empty() && !has_decisions && self.document.is_whole() {
            let fault = Diagnostic::warning("there are no routes: every request gets a 404");
            self.fault(
                fault.help("add for example: [[routes]], path = \"/{*rest}\" and upstream = \"NAME\""),
            );
        }
        self.refuse_equal_names(&tables);
        let limits = self.limits_of_routes(&mut tables);
        let count = tables.len();
        let starts = tables.iter().map(|table| table.span.start).chain([usize::MAX]).collect::<Vec<_>>();

        let mut routes = Vec::new();
        let (mut places, mut targets, mut understood) = (Vec::new(), Vec::new(), Vec::new());
        for ((table, limits), bounds) in tables.into_iter().zip(limits).zip(starts.windows(2)) {
            let path = table.value.path.as_ref().map(Spanned::span);
            let place = path.clone().unwrap_or_default();
            let target = table.value.redirect.as_ref().and_then(|redirect| redirect.value.to.as_ref());
            let target = target.map(Spanned::span).unwrap_or_default();
            let Some(route) = self.route(table, &limits) else { continue };
            if !self.document.had_within(&(bounds[0]..bounds[1])) {
                understood.extend(path.map(|path| (path, route.name.clone(), route.matcher.clone())));
            }
            routes.push(route);
            places.push(place);
            targets.push(target);
        }
        self.refuse_hidden_routes(understood);
        self.warn_of_prefixes(&routes, &places);
        self.warn_of_hidden_by_health(&routes, &places);
        if self.document.is_whole() && routes.len() == count {
            self.warn_of_redirect_loops(&routes, &targets);
            if !has_decisions {
                self.warn_of_unknown_routes(&routes);
            }
        }
        routes
    }

    /// Returns the limits of each route. All are defined before the first is looked up, because a route can name an inline limit
    /// of a later one.
    fn limits_of_routes(&mut self, tables: &mut [SpannedTable<file::RouteTable>]) -> Vec<Vec<UsedLimit>> {
        let limits = tables.iter_mut().map(|table| {
            let limits = mem::take(&mut table.value.limits).into_iter();
            limits.filter_map(|limit| self.name_of_limit(limit)).collect()
        });
        limits.collect()
    }

    fn refuse_equal_names(&mut self, tables: &[SpannedTable<file::RouteTable>]) {
        let mut names: BTreeMap<&str, Range<usize>> = BTreeMap::new();
        for name in tables.iter().filter_map(|table| table.value.name.as_ref()) {
            if let Some(first) = names.get(name.get_ref().as_str()) {
                self.fault(duplicate("route", name.get_ref(), &name.span(), first));
            } else {
                names.insert(name.get_ref(), name.span());
            }
        }
    }

    fn route(&mut self, table: SpannedTable<file::RouteTable>, used: &[UsedLimit]) -> Option<RouteSettings> {
        let SpannedTable { span, value: route } = table;
        if route.path.is_none() {
            self.missing(&span, &["path"], "path = \"/v1/orders/{id}\"");
        }
        let limits: Vec<_> = used.iter().map(|used| used.name.clone()).collect();
        self.check_limits(&limits, route.path.as_ref());
        let costs =
            used.iter().filter_map(|used| Some((used.name.get_ref().clone(), self.route_cost(used)?)));
        let costs = costs.collect();
        self.check_parts(&route);
        self.warn_of_own_field_as_key(&route, &limits);
        let action = self.action(&span, route.path.as_ref(), route.upstream, route.respond, route.redirect);
        let matcher = Matcher {
            host: route.host.map(|host| host.into_inner().0),
            path: route.path?.into_inner().0,
            methods: route.methods.map_or_else(Vec::new, ValueList::into_values),
            headers: route.headers.into_pairs(),
            query: route.query.into_pairs(),
            claims: route.claims.into_pairs(),
        };
        Some(RouteSettings {
            name: route.name.map_or_else(|| name_of(&matcher), Spanned::into_inner),
            action: action?,
            limits: limits.iter().map(|name| name.get_ref().clone()).collect(),
            costs,
            rewrite: route.rewrite.map(|rewrite| rewrite.into_inner().0),
            request_headers: route.request_headers.map(edits),
            response_headers: route.response_headers.map(edits),
            timeout: route.timeout.map(|timeout| timeout.0),
            max_body: route.max_body.map(|most| most.0.0),
            preserve_host: route.preserve_host.is_none_or(Spanned::into_inner),
            requires: route.require.map(|require| require.into_inner().0),
            on_limit: route.on_limit.map(|on_limit| self.on_limit(on_limit, used.is_empty())),
            matcher,
        })
    }

    /// Checks what a route states besides its limits and its action.
    fn check_parts(&mut self, route: &file::RouteTable) {
        let path = route.path.as_ref();
        self.refuse_params_of_others(path);
        self.refuse_keys_of_upstreams(route);
        if let Some(require) = &route.require {
            self.check_verifies("require = \"jwt\"", &require.span(), "it says which tokens are valid");
        }
        self.check_compared_claims(&route.claims);
        self.check_fields(route);
        if let Some(host) = &route.host {
            self.warn_of_uncertified_host(host);
        }
        if let Some(rewrite) = &route.rewrite {
            self.check_params(rewrite.get_ref().0.params(), &rewrite.span(), path);
            self.warn_of_lost_rest(rewrite, path);
        }
    }

    /// Warns of a rewrite that looks like the prefix of other proxies, but is the whole path: the upstream gets no other.
    fn warn_of_lost_rest(
        &mut self,
        rewrite: &Spanned<ParsedText<Template>>,
        path: Option<&Spanned<ParsedText<Pattern>>>,
    ) {
        let Some(pattern) = path.map(|path| &path.get_ref().0) else { return };
        let (template, path) = (&rewrite.get_ref().0, pattern.to_string());
        let Some(rest) = path.find("{*").map(|at| &path[at..]) else { return };
        let text = template.fill(pattern, "/");
        if text.ends_with('/') && template.params().next().is_none() {
            let fault =
                Diagnostic::warning(format!("each request of this route gets to the upstream as `{text}`"));
            let remedy =
                format!("to replace what is before `{rest}`, write it behind: rewrite = \"{text}{rest}\"");
            self.fault(fault.at(&rewrite.span(), "").help(remedy));
        }
    }

    /// Reports `:id` and `<id>`, which are parameters in other programs.
    fn refuse_params_of_others(&mut self, path: Option<&Spanned<ParsedText<Pattern>>>) {
        let Some(path) = path else { return };
        let text = path.get_ref().0.to_string();
        let name = |segment: &str| {
            let angled = segment.strip_prefix('<').and_then(|rest| rest.strip_suffix('>'));
            segment.strip_prefix(':').or(angled).filter(|name| !name.is_empty()).map(str::to_owned)
        };
        let found = text.split('/').find_map(|segment| Some((segment, name(segment)?)));
        if let Some((segment, name)) = found {
            let fault = Diagnostic::error(format!("`{segment}` is not a parameter"));
            let fixed = text.replace(segment, &format!("{{{name}}}"));
            self.fault(fault.at(&path.span(), "").help(format!("write it in braces: path = \"{fixed}\"")));
        }
    }

    /// Reports keys that change what the upstream gets, on a route without an upstream.
    fn refuse_keys_of_upstreams(&mut self, route: &file::RouteTable) {
        if route.respond.is_none() && route.redirect.is_none() || route.upstream.is_some() {
            return;
        }
        let keys = [
            ("rewrite", route.rewrite.as_ref().map(Spanned::span)),
            ("request_headers", route.request_headers.as_ref().map(|table| table.span.clone())),
            ("preserve_host", route.preserve_host.as_ref().map(Spanned::span)),
        ];
        for (key, place) in keys.into_iter().filter_map(|(key, place)| Some((key, place?))) {
            let fault = Diagnostic::error(format!("`{key}` is only for routes with an upstream"));
            self.fault(fault.at(&place, "").help("remove it, or name an upstream: upstream = \"orders\""));
        }
    }

    fn action(
        &mut self,
        route: &Range<usize>,
        path: Option<&Spanned<ParsedText<Pattern>>>,
        upstream: Option<Spanned<RouteUpstreams>>,
        respond: Option<SpannedTable<file::RespondTable>>,
        redirect: Option<SpannedTable<file::RedirectTable>>,
    ) -> Option<Action> {
        let given = [
            ("upstream", upstream.as_ref().map(Spanned::span)),
            ("respond", respond.as_ref().map(|table| table.span.clone())),
            ("redirect", redirect.as_ref().map(|table| table.span.clone())),
        ];
        let mut given = given.into_iter().filter_map(|(key, place)| Some((key, place?)));
        if let (Some((key, place)), Some((other, other_place))) = (given.next(), given.next()) {
            let fault = Diagnostic::error(format!("this route has both `{key}` and `{other}`"));
            let fault = fault.at(&other_place, "either this").at(&place, "or this");
            self.fault(fault.help("remove one of the two"));
            return None;
        }
        if let Some(upstream) = upstream {
            return self.upstream_action(upstream);
        }
        if let Some(SpannedTable { value: respond, .. }) = respond {
            let headers = respond.headers.into_pairs().into_iter();
            let headers = headers.map(|(name, value)| (name.0, value)).collect();
            return Some(Action::Respond { status: status(respond.status.0), body: respond.body, headers });
        }
        if let Some(redirect) = redirect {
            return self.redirect(redirect, path);
        }
        self.missing(route, &["upstream", "respond", "redirect"], "upstream = \"orders\"");
        None
    }

    fn upstream_action(&mut self, upstream: Spanned<RouteUpstreams>) -> Option<Action> {
        let span = upstream.span();
        let weights = match upstream.into_inner() {
            RouteUpstreams::One(name) => {
                let name = Spanned::new(span, name);
                self.check_upstream(&name);
                return Some(Action::Upstream(name.into_inner()));
            }
            RouteUpstreams::Split(weights) => weights,
        };
        weights.keys().for_each(|name| self.check_upstream(name));
        if weights.values().all(|weight| weight.0 == 0) && !self.document.had_within(&span) {
            let fault = Diagnostic::error("no upstream of this route has a weight").at(&span, "");
            self.fault(fault.help("give at least one a weight: upstream = { stable = 95, canary = 5 }"));
            return None;
        }
        Some(Action::Split(weights.into_iter().map(|(name, weight)| (name.into_inner(), weight.0)).collect()))
    }

    fn redirect(
        &mut self,
        redirect: SpannedTable<file::RedirectTable>,
        path: Option<&Spanned<ParsedText<Pattern>>>,
    ) -> Option<Action> {
        let SpannedTable { span, value: file::RedirectTable { to, status: code } } = redirect;
        let (place, code) = (code.span(), code.into_inner().0);
        if !matches!(code, 301 | 302 | 303 | 307 | 308) {
            let fault = Diagnostic::error(format!("`{code}` is not a redirect status")).at(&place, "");
            self.fault(fault.help(
                "use 308 or 301 (permanent), 307 or 302 (temporary), or 303 (followed with GET); 308 and 307 keep the method",
            ));
        }
        let Some(to) = to else {
            self.missing(&span, &["to"], "to = \"https://shop.example/orders/{id}\"");
            return None;
        };
        self.check_params(to.get_ref().0.params(), &to.span(), path);
        Some(Action::Redirect { to: to.into_inner().0, status: status(code) })
    }

    /// Reports parameters that the route's path doesn't have.
    fn check_params<'p>(
        &mut self,
        params: impl Iterator<Item = &'p str>,
        place: &Range<usize>,
        path: Option<&Spanned<ParsedText<Pattern>>>,
    ) {
        let Some(path) = path else { return };
        let known = path.get_ref().0.to_string();
        for param in params.filter(|param| !known.split('/').any(|segment| segment == *param)) {
            let fault = Diagnostic::error(format!("the path of this route has no `{param}`"));
            self.fault(
                fault.at(place, "used here").at(&path.span(), "not here").help(
                    "use a parameter of the path, written exactly as there, or add this one to the path",
                ),
            );
        }
    }

    fn on_limit(&mut self, on_limit: SpannedTable<file::OnLimitTable>, is_unlimited: bool) -> OnLimit {
        if is_unlimited && self.document.is_whole() {
            let fault = Diagnostic::warning("`on_limit` has no effect: this route has no limits");
            self.fault(fault.at(&on_limit.span, "").help("add for example: limits = [\"per-client\"]"));
        }
        let file::OnLimitTable { status: code, body, content_type } = on_limit.value;
        if let (None, Some(content_type)) = (&body, &content_type) {
            let fault =
                Diagnostic::error("`content_type` has no effect without `body`").at(&content_type.span(), "");
            self.fault(fault.help("add for example: body = '{\"error\":\"slow down\"}'"));
        }
        let content_type = content_type.map_or(TEXT, |content_type| content_type.into_inner().0);
        let body = body.and_then(|body| self.body_template(&body));
        OnLimit { status: status(code.0), body: body.map(|body| (body, content_type)) }
    }

    /// Returns the template of a body, after a check of its placeholders. `None` if there is an error.
    fn body_template(&mut self, body: &Spanned<String>) -> Option<BodyTemplate> {
        let (text, place) = (body.get_ref(), body.span());
        let last = text.rsplit('{').next().unwrap_or_default();
        if let Some(name) = ["retry_after", "limit"].into_iter().find(|name| last.trim_end() == *name) {
            let fault = Diagnostic::error(format!("`{{{name}` is not closed")).at(&place, "");
            self.fault(fault.help(format!("write `{{{name}}}`")));
        }
        if let Some(word) = BodyTemplate::misspelt(text).or_else(|| placeholder(text)) {
            let fault = Diagnostic::warning(format!("`{word}` is not replaced here")).at(&place, "");
            self.fault(
                fault.help("write `{retry_after}` or `{limit}`, in one pair of braces and without spaces"),
            );
        }
        match BodyTemplate::parse(text) {
            Ok(template) => Some(template),
            Err(unknown) => {
                let fault = Diagnostic::error(format!("unknown placeholder `{{{unknown}}}`")).at(&place, "");
                self.fault(fault.help("use `{retry_after}` or `{limit}`"));
                None
            }
        }
    }

    fn check_upstream(&mut self, name: &Spanned<String>) {
        if !self.upstreams.contains_key(name.get_ref()) && !self.document.had_defined(name.get_ref()) {
            let fault = undefined("upstream", "upstreams", name, self.upstreams.keys());
            self.fault(fault);
        }
    }

    /// Reports equal routes and routes that are hidden by another, among those that could be read.
    fn refuse_hidden_routes(&mut self, routes: Vec<(Range<usize>, String, Matcher)>) {
        let routes = routes.into_iter().map(|(path, name, matcher)| ((path, name), matcher));
        let (places, matchers): (Vec<_>, Vec<_>) = routes.unzip();
        for hidden in hidden(&matchers) {
            let ((place, name), (by_place, by_name)) = (&places[hidden.route], &places[hidden.by]);
            self.fault(if hidden.equal {
                Diagnostic::error(format!("route `{name}` matches the same requests as an earlier one"))
                    .at(place, "again here")
                    .at(by_place, "first here")
                    .help("remove one of the two, or distinguish them by host, methods, headers, query or claims")
            } else {
                Diagnostic::warning(format!("route `{name}` can never match"))
                    .at(place, "")
                    .at(by_place, format!("`{by_name}` matches all its requests"))
                    .help(
                        "put it before the other route, since of equally specific ones the first counts, or give that one a condition that these requests don't meet: host, methods, headers, query or claims",
                    )
            });
        }
    }
}

/// Returns the name of a route that has no other: the host and path that it matches.
fn name_of(matcher: &Matcher) -> String {
    format!("{}{}", matcher.host.as_ref().map(ToString::to_string).unwrap_or_default(), matcher.path)
}

fn edits(table: SpannedTable<file::EditsTable>) -> Edits {
    let file::EditsTable { set, add, remove } = table.value;
    let lines = |pairs: Vec<(FieldName, HeaderValue)>| pairs.into_iter().map(|(name, value)| (name.0, value));
    let remove = remove.map_or_else(Vec::new, ValueList::into_values);
    Edits {
        remove: remove.into_iter().map(|name| name.0).collect(),
        set: lines(set.into_pairs()).collect(),
        add: lines(add.into_pairs()).collect(),
    }
}

fn status(code: u32) -> StatusCode {
    StatusCode::from_u16(code as u16).expect("a number of three digits")
}
