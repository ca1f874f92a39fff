//! Checks `[upstreams]`.

use std::{net::IpAddr, num::NonZero, ops::Range, sync::Arc, thread};

use super::Check;
use tollgate_limiter::ClientTls;

use crate::{
    Eject, Health, Retries, ServerUrl, Target, UpstreamSettings, Weighted,
    error::Diagnostic,
    file::{self, ConfigFile, ServerList, Spanned, SpannedTable},
    value::{Echo, ParsedText},
};

impl Check<'_, '_> {
    pub(super) fn upstream(
        &mut self,
        name: &str,
        table: SpannedTable<file::UpstreamTable>,
    ) -> Option<UpstreamSettings> {
        let SpannedTable { span, value: upstream } = table;
        let target = self.target(name, &span, upstream.servers, upstream.builtin)?;
        let tls = self.tls_of_upstream(name, &target, upstream.tls);
        self.warn_of_lone_server(&target, &upstream.retries);
        let (timeouts, retries) = (upstream.timeouts.value, upstream.retries.value);
        Some(UpstreamSettings {
            target,
            balance: upstream.balance.0,
            connect_timeout: timeouts.connect.0,
            response_timeout: timeouts.response.0,
            idle_timeout: timeouts.idle.0,
            retries: Retries { attempts: retries.attempts.0 as usize, budget: retries.budget.0 },
            health: upstream.health.and_then(|health| self.health(health)),
            eject: upstream.eject.map(
                |SpannedTable { value: file::EjectTable { failures, duration, max }, .. }| Eject {
                    failures: failures.0,
                    duration: duration.0,
                    most: max.0,
                },
            ),
            max_connections: upstream.max_connections.get_ref().0 as usize,
            http2: upstream.http2,
            tls: tls.map(Arc::new),
        })
    }

    /// Returns the origin of the responses: the servers, or the gateway itself.
    fn target(
        &mut self,
        name: &str,
        table: &Range<usize>,
        servers: Option<Spanned<ServerList>>,
        builtin: Option<Spanned<ParsedText<Echo>>>,
    ) -> Option<Target> {
        match (servers, builtin) {
            (Some(servers), None) => {
                self.warn_of_ports(&servers);
                let servers = servers.into_inner().0.into_iter();
                let weighted = servers.map(|server| Weighted { url: server.url, weight: server.weight });
                Some(Target::Servers(weighted.collect()))
            }
            (None, Some(_)) => Some(Target::Echo),
            (Some(servers), Some(builtin)) => {
                let fault = Diagnostic::error(format!("upstream `{name}` has both `servers` and `builtin`"));
                let fault = fault.at(&builtin.span(), "either this").at(&servers.span(), "or this");
                self.fault(fault.help("remove one of the two"));
                None
            }
            (None, None) => {
                self.missing(table, &["servers", "builtin"], "servers = [\"http://127.0.0.1:3000\"]");
                None
            }
        }
    }

    /// Warns of retries where there is no other server to try. A name may stand for several.
    fn warn_of_lone_server(&mut self, target: &Target, retries: &SpannedTable<file::RetriesTable>) {
        let is_lone = |url: &ServerUrl| match url {
            ServerUrl::Tcp { host, .. } => host.parse::<IpAddr>().is_ok(),
            ServerUrl::Unix(_) => true,
        };
        if let Target::Servers(servers) = target
            && let [server] = &servers[..]
            && is_lone(&server.url)
            && retries.value.attempts.0 > 1
        {
            let fault = Diagnostic::warning(
                "nothing is retried: this upstream has one server, and retries go to others",
            );
            self.fault(fault.at(&retries.span, "").help("add servers, or leave `retries` out"));
        }
    }

    /// Warns of bounds on HTTP/2 connections that the first connections of the workers exceed.
    pub(super) fn warn_of_exceeded_connections(&mut self, file: &ConfigFile) {
        let workers = match file.server.value.workers.0 {
            0 => thread::available_parallelism().map_or(1, NonZero::get),
            workers => workers as usize,
        };
        for SpannedTable { span, value: upstream } in file.upstreams.values() {
            let servers = upstream.servers.as_ref().map_or(0, |servers| servers.get_ref().0.len());
            let (first, most) = (workers * servers, &upstream.max_connections);
            if !upstream.http2 || first <= most.get_ref().0 as usize {
                continue;
            }
            let fault = Diagnostic::warning(format!(
                "this upstream may have {first} HTTP/2 connections: each of the {workers} workers may have one to each of the {servers} servers"
            ));
            let most = most.span();
            let fault = fault.at(if most.is_empty() { span } else { &most }, "");
            self.fault(
                fault.help(format!("write max_connections = {first}, or lower `workers` of [server]")),
            );
        }
    }

    /// Warns of servers whose scheme doesn't fit the well-known port.
    fn warn_of_ports(&mut self, servers: &Spanned<ServerList>) {
        for server in &servers.get_ref().0 {
            let (fault, scheme) = match &server.url {
                ServerUrl::Tcp { tls: false, port: 443, .. } => ("443 is the port of HTTPS", "https"),
                ServerUrl::Tcp { tls: true, port: 80, .. } => ("80 is the port of HTTP without TLS", "http"),
                _ => continue,
            };
            let url = server.url.to_string();
            let fault = Diagnostic::warning(format!("`{url}` can hardly connect: {fault}"));
            let host = url.split_once("://").map_or("", |(_, rest)| rest);
            let host = host.rsplit_once(':').map_or(host, |(host, _)| host);
            self.fault(
                fault
                    .at(&servers.span(), "")
                    .help(format!("write \"{scheme}://{host}\", or the port that the server listens on")),
            );
        }
    }

    fn tls_of_upstream(
        &mut self,
        name: &str,
        target: &Target,
        table: Option<SpannedTable<file::ClientTlsTable>>,
    ) -> Option<ClientTls> {
        let peer = format!("the upstream `{name}`");
        let uses_tls = match target {
            Target::Servers(servers) => servers.iter().any(|server| server.url.is_tls()),
            Target::Echo => false,
        };
        let unused = Diagnostic::warning(format!("`tls` has no effect: no server of `{name}` uses TLS"))
            .help("begin their URLs with https: \"https://orders.internal\"");
        self.client_tls(table, uses_tls, &peer, unused)
    }

    fn health(&mut self, table: SpannedTable<file::HealthTable>) -> Option<Health> {
        let SpannedTable { span, value: health } = table;
        let Some(path) = health.path else {
            self.missing(&span, &["path"], "path = \"/healthz\"");
            return None;
        };
        Some(Health {
            path: path.0,
            interval: health.interval.0.0,
            timeout: health.timeout.0,
            rise: health.rise.0,
            fall: health.fall.0,
        })
    }
}
