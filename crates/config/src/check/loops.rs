//! Finds servers and redirects that lead back to the gateway itself.

use std::{net::IpAddr, ops::Range};

use hyper::{Method, header::HeaderMap};
use tollgate_routing::{HostPattern, Matcher, Parameters, Table, View, path};

use super::{Check, listeners::entrances};
use crate::{Action, ListenAddress, RouteSettings, ServerUrl, error::Diagnostic, file::ConfigFile};

impl Check<'_, '_> {
    /// Warns of servers of upstreams that are listeners of this gateway.
    pub(super) fn warn_of_own_servers(&mut self, file: &ConfigFile) {
        let entrances = entrances(file);
        let servers = file.upstreams.values().filter_map(|upstream| upstream.value.servers.as_ref());
        let servers =
            servers.flat_map(|list| list.get_ref().0.iter().map(|server| (list.span(), &server.url)));
        for (place, url) in servers {
            let is_own = |(_, span, address): &&(_, Range<usize>, ListenAddress)| {
                leads_to(url, address) && !(span.is_empty() && self.document.had_defined("listen"))
            };
            let Some((key, own_place, _)) = entrances.iter().find(is_own) else { continue };
            let fault = match *key {
                "server.listen" => {
                    format!("`{url}` is this gateway itself: each request would come back to it")
                }
                key => format!("`{url}` is this gateway's {key}, which clients could reach then"),
            };
            let fault = Diagnostic::warning(fault).at(&place, "");
            let fault = if own_place.is_empty() { fault } else { fault.at(own_place, "listens here") };
            let help = match *key {
                "server.listen" => {
                    "name the port of the application; if that is this one, move the gateway: [server] listen = \"127.0.0.1:8000\""
                }
                _ => "name the port of the application",
            };
            self.fault(fault.help(help));
        }
    }

    /// Warns of redirects to a path that takes the same route again. `places` are those of the targets.
    pub(super) fn warn_of_redirect_loops(&mut self, routes: &[RouteSettings], places: &[Range<usize>]) {
        let numbered = routes.iter().enumerate().map(|(number, route)| (route.matcher.clone(), number));
        let table = Table::new(numbered);
        for (number, (route, place)) in routes.iter().zip(places).enumerate() {
            let Some((method, url)) = followed(route) else { continue };
            let (scheme, rest) = url.split_once("://").unwrap_or(("", &url));
            let (host, target) = match scheme {
                "" => (own_host(&route.matcher), rest),
                _ => rest.split_at(rest.find('/').unwrap_or(rest.len())),
            };
            // A URL leads here only if the route itself is for its host: without one, it may be any server's. Its scheme must be the
            // listener's, since a proxy in front may end TLS.
            let is_here = match scheme {
                "" => true,
                "https" => self.has_tls && route.matcher.host.is_some(),
                _ => !self.has_tls && route.matcher.host.is_some(),
            };
            if !is_here || target.contains('?') {
                continue;
            }
            let forwarded = path::forwarded(target);
            let headers: HeaderMap = route.matcher.headers.iter().cloned().collect();
            let path = path::matched(&forwarded);
            let parameters = Parameters::default();
            let view = View::new(&method, host, &path, &parameters, &headers, &());
            if table.find(&view).is_some_and(|found| *found.route == number) {
                let fault = Diagnostic::warning("this redirects to its own route, again and again");
                let help = "name another path or host, or give the target a route of its own";
                let fault = fault.at(place, "").help(help);
                self.fault(match scheme {
                    "https" => fault.help("to redirect from http: with `tls`, all of `listen` speaks TLS, also port 80, so that is done in front of this gateway, or by one without `tls`"),
                    _ => fault,
                });
            }
        }
    }
}

/// Returns true if a connection to this server reaches a listener of this machine.
fn leads_to(url: &ServerUrl, address: &ListenAddress) -> bool {
    match (url, address) {
        (ServerUrl::Unix(path), ListenAddress::Unix(own)) => path == own,
        (ServerUrl::Tcp { host, port, .. }, ListenAddress::Tcp(own)) if *port == own.port() => {
            let is_local = own.ip().is_unspecified() || own.ip().is_loopback();
            match host.parse::<IpAddr>() {
                Ok(ip) => {
                    let is_here =
                        ip.is_loopback() && own.ip().is_unspecified() || ip.is_unspecified() && is_local;
                    ip == own.ip() || is_here && ip.is_ipv4() == own.is_ipv4()
                }
                Err(_) => host == "localhost" && is_local,
            }
        }
        _ => false,
    }
}

/// Returns the method and the URL of the request that follows a route's redirect. `None` if it has none, or if requests that
/// follow it don't meet its conditions.
fn followed(route: &RouteSettings) -> Option<(Method, String)> {
    let Action::Redirect { to, status } = &route.action else { return None };
    let matcher = &route.matcher;
    let keeps_method = matches!(status.as_u16(), 307 | 308);
    let method = matcher.methods.iter().find(|method| keeps_method || **method == Method::GET);
    let method = if matcher.methods.is_empty() { Method::GET } else { method?.clone() };
    if !matcher.query.is_empty() || !matcher.claims.is_empty() {
        return None;
    }
    let pattern = matcher.path.to_string();
    let segments: Vec<&str> =
        pattern.split('/').map(|segment| if segment.starts_with('{') { "any" } else { segment }).collect();
    Some((method, to.fill(&matcher.path, &segments.join("/"), "")))
}

/// Returns a host that this route matches.
fn own_host(matcher: &Matcher) -> &str {
    match &matcher.host {
        Some(HostPattern::Exact(name) | HostPattern::Suffix(name)) => name,
        None => "",
    }
}
