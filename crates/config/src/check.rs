//! Checks the rules between values, and turns the file as typed into the configuration.
//!
//! Values that were invalid by themselves have been reported and removed ([`Document`]). They aren't reported
//! again as missing or undefined.
//!
//! The order of the checks stands in this file; the parts of the configuration have files of their own.

mod bans;
mod decisions;
mod descriptors;
mod fields;
mod files;
mod health;
mod ineffective;
mod jwt;
mod keys;
mod known_keys;
mod limits;
mod listeners;
mod loops;
mod placeholders;
mod prefixes;
mod quota;
mod redisson;
mod routes;
mod stated_rate;
mod store;
mod tls;
mod unreached;
mod upstream;
mod usage;
mod values;

use std::{collections::BTreeMap, ops::Range, path::Path, sync::Arc};

use rustls::pki_types::CertificateDer;
use tollgate_limiter::{OnFailure, RatelimitHeaders};

use self::limits::DefinedLimit;
use super::{
    AccessLogSettings, AdminSettings, AdminToken, AdminTokens, Config, LogSettings, RatelimitFolder,
    ServerSettings, ServerUrl, Sources, TracingSettings, UpstreamSettings, XdsSettings,
    document::Document,
    error::{Diagnostic, Severity, nearest},
    file::{self, ConfigFile, Spanned, SpannedTable},
    value::{ParsedText, Secret, Size},
};

/// Returns the configuration that the file describes, or `None` if there are errors. Diagnostics are added to
/// the document. Paths in the file are relative to `folder`; the files are added to the sources.
pub(super) fn check(
    mut file: ConfigFile,
    folder: &Path,
    document: &mut Document<'_>,
    sources: &mut Sources,
) -> Option<Config> {
    let mut check = Check::new(&file, folder, document, sources);
    check.refuse_equal_addresses(&file);
    check.warn_of_own_servers(&file);
    check.warn_of_exceeded_connections(&file);
    let server = check.server(file.server);
    let store = check.store(file.store.value);
    let jwt = file.jwt.and_then(|table| check.jwt(table)).map(Arc::new);
    let admin = file.admin.and_then(|table| check.admin(table));
    let decisions = file.decisions.and_then(|table| check.decisions(table));
    let file::LogTable { format, level } = file.log.value;
    let log = LogSettings { format: format.0, level: level.0 };
    let access_log = file.access_log.map(|table| check.access_log(table));
    let tracing = file.tracing.map(|table| check.tracing(table));
    for (name, upstream) in file.upstreams {
        let checked = check.upstream(name.get_ref(), upstream);
        check.upstreams.insert(name.into_inner(), checked);
    }
    for (name, limit) in file.limits {
        check.named_limit(name, limit);
    }
    let limits_of_descriptors = check.limits_of_descriptors(&mut file.descriptors);
    let routes = check.routes(file.routes, decisions.is_some());
    let descriptors = check.descriptors(file.descriptors, limits_of_descriptors, decisions.is_some());
    check.warn_of_limits(&server, decisions.is_some());
    if decisions.is_none() && !check.has_errors() {
        check.warn_of_ineffective_limits(&routes);
        check.warn_of_fuller_upstreams(&routes, &store.url);
    }
    let upstreams =
        check.upstreams.into_iter().filter_map(|(name, upstream)| Some((name, upstream?))).collect();
    let limits =
        check.limits.into_iter().filter_map(|(name, defined)| Some((name, Arc::new(defined.limit?))));
    let (RatelimitFolder { domains, limits: more_limits }, xds) = (check.ratelimit, check.xds);
    let limits = more_limits.into_iter().chain(limits).collect();
    let is_good = document.faults.iter().all(|fault| fault.severity == Severity::Warning)
        && document.included.iter().all(|included| !included.has_errors());
    is_good.then_some(Config {
        server,
        store,
        admin,
        decisions,
        log,
        access_log,
        tracing,
        upstreams,
        limits,
        jwt,
        routes,
        descriptors,
        domains,
        xds,
    })
}

/// The least length of a token; a shorter one can be guessed.
const TOKEN_BYTES: usize = 16;

/// The port of OTLP over HTTP, which the gateway doesn't speak.
const OTLP_OVER_HTTP: u16 = 4318;

struct Check<'d, 'i> {
    document: &'d mut Document<'i>,
    /// The files that were read.
    sources: &'d mut Sources,
    /// The folder that paths in the file are relative to.
    folder: &'d Path,
    /// The store's failure policy, for limits without their own.
    on_failure: OnFailure,
    /// True if proxies in front are trusted, or ask for decisions.
    has_proxies: bool,
    /// True if there is a table `[decisions]`, valid or not.
    has_decisions_table: bool,
    /// True if there is a table `[jwt]`, valid or not.
    verifies_tokens: bool,
    /// True if the main listener uses TLS.
    has_tls: bool,
    /// The response fields that tell clients where limits stand.
    ratelimit_headers: RatelimitHeaders,
    /// The certificates of the main listener.
    certificates: Vec<CertificateDer<'static>>,
    /// The path at which the main listener answers health checks.
    health: Option<String>,
    /// The upstreams by name. `None` if one has an error; its name is still defined.
    upstreams: BTreeMap<String, Option<UpstreamSettings>>,
    limits: BTreeMap<String, DefinedLimit>,
    /// The costs that a request header states, and the header.
    costs_by_header: Vec<(Range<usize>, String)>,
    /// The rates that a request header states, and the header.
    rates_by_header: Vec<(Range<usize>, String)>,
    /// The names of routes that are values of a key.
    named_routes: Vec<(Range<usize>, String)>,
    /// The contents of the rate limit service's folder.
    ratelimit: RatelimitFolder,
    /// The settings of rules that come by xDS.
    xds: Option<Arc<XdsSettings>>,
}

impl<'d, 'i> Check<'d, 'i> {
    fn new(
        file: &ConfigFile,
        folder: &'d Path,
        document: &'d mut Document<'i>,
        sources: &'d mut Sources,
    ) -> Self {
        Self {
            on_failure: file.store.value.on_failure.0,
            has_proxies: !file.server.value.trusted_proxies.is_empty() || file.decisions.is_some(),
            has_decisions_table: file.decisions.is_some() || document.had_defined("decisions"),
            verifies_tokens: file.jwt.is_some() || document.had_defined("jwt"),
            document,
            sources,
            folder,
            has_tls: false,
            ratelimit_headers: RatelimitHeaders::Draft11,
            certificates: Vec::new(),
            health: None,
            upstreams: BTreeMap::new(),
            limits: BTreeMap::new(),
            costs_by_header: Vec::new(),
            rates_by_header: Vec::new(),
            named_routes: Vec::new(),
            ratelimit: RatelimitFolder::default(),
            xds: None,
        }
    }

    /// Returns true if an error was found so far. What it is about may be missing.
    fn has_errors(&self) -> bool {
        self.document.faults.iter().any(|fault| fault.severity == Severity::Error)
    }

    fn fault(&mut self, fault: Diagnostic) {
        self.document.faults.push(fault);
    }

    fn server(&mut self, table: SpannedTable<file::ServerTable>) -> ServerSettings {
        let SpannedTable { span, value: server } = table;
        let proxy_protocol = *server.proxy_protocol.get_ref();
        let is_nobody_trusted =
            server.trusted_proxies.is_empty() && !self.document.had(&span, "trusted_proxies");
        if proxy_protocol && is_nobody_trusted {
            let fault = Diagnostic::error("`proxy_protocol` needs `trusted_proxies`");
            let fault = fault.at(&server.proxy_protocol.span(), "");
            self.fault(
                fault.help("name the proxies that send the PROXY header: trusted_proxies = [\"10.0.0.0/8\"]"),
            );
        }
        let what = "every client may state its own address, and so evade limits by `ip`";
        self.warn_of_trust_in_all(&server.trusted_proxies, what);
        let listen = server.listen.into_values();
        let tls = server.tls.map(|table| self.server_tls(table, &listen));
        self.has_tls = tls.is_some();
        let identities = tls.iter().flat_map(|tls| &tls.identities);
        self.certificates =
            identities.filter_map(|identity| identity.certificates.first().cloned()).collect();
        self.ratelimit_headers = server.ratelimit_headers.0;
        self.health = server.health.as_ref().map(|path| path.0.path().to_owned());
        ServerSettings {
            listen,
            workers: server.workers.0 as usize,
            trusted_proxies: self.whole_networks(server.trusted_proxies),
            proxy_protocol,
            http2: server.http2,
            tls: tls.map(Arc::new),
            ratelimit_headers: server.ratelimit_headers.0,
            max_header_bytes: self.size_of_at_least(&server.max_header_bytes, 8 << 10, "8KiB"),
            max_body: server.max_body.0.0,
            max_connections: server.max_connections.0 as usize,
            escaped_slashes: server.escaped_slashes.0,
            request_id: server.request_id,
            reuse_port: server.reuse_port,
            health: server.health.map(|path| path.0),
            header_timeout: server.timeouts.value.header.0,
            idle_timeout: server.timeouts.value.idle.0,
            drain_timeout: server.timeouts.value.drain.0,
        }
    }

    fn admin(&mut self, table: SpannedTable<file::AdminTable>) -> Option<AdminSettings> {
        let SpannedTable { span, value: admin } = table;
        let Some(listen) = admin.listen else {
            self.missing(&span, &["listen"], "listen = \"127.0.0.1:9901\"");
            return None;
        };
        let address = listen.get_ref().0;
        for token in [&admin.token, &admin.metrics_token].into_iter().flatten() {
            if token.get_ref().0.0.len() < TOKEN_BYTES {
                let fault = Diagnostic::error("this token is too short").at(&token.span(), "");
                self.fault(fault.help(format!("use at least {TOKEN_BYTES} random characters")));
            }
            self.warn_of_scheme(token);
        }
        if let (Some(own), Some(metrics)) = (&admin.token, &admin.metrics_token)
            && own.get_ref().0.0 == metrics.get_ref().0.0
        {
            let fault =
                Diagnostic::error("the tokens are equal, so anyone who may read metrics may change limits");
            let fault = fault.at(&metrics.span(), "the same as").at(&own.span(), "this one");
            self.fault(fault.help("use another random `metrics_token`"));
        }
        if admin.token.is_none() && !address.ip().is_loopback() && !self.document.had(&span, "token") {
            let fault =
                Diagnostic::error(format!("without a token, anyone could change limits on `{address}`"));
            self.fault(
                fault
                    .at(&listen.span(), "")
                    .help("add token = \"${TOLLGATE_ADMIN_TOKEN}\", or listen on 127.0.0.1"),
            );
        }
        let [own, metrics] = [admin.token, admin.metrics_token]
            .map(|token| token.map(|token| AdminToken(token.into_inner().0.0)));
        let metrics_listen = admin.metrics_listen.map(|listen| listen.into_inner().0);
        let tokens = AdminTokens { admin: own, metrics };
        Some(AdminSettings { listen: address, metrics_listen, tokens })
    }

    /// Warns of limits that never apply, and of costs and rates in header fields that clients can set, or nobody can.
    fn warn_of_limits(&mut self, server: &ServerSettings, has_decisions: bool) {
        if has_decisions {
            // Services may ask for any limit by its name.
            self.warn_of_skipped_limits();
        } else {
            self.warn_of_unused_limits();
        }
        if server.trusted_proxies.is_empty() && !has_decisions {
            self.warn_of_costs_that_clients_choose();
            self.warn_of_rates_that_nobody_states();
        }
    }

    /// Warns of a token with the scheme that clients send before it.
    fn warn_of_scheme(&mut self, token: &Spanned<ParsedText<Secret>>) {
        let scheme = token.get_ref().0.0.split_once(' ').map(|(scheme, _)| scheme);
        if scheme.is_some_and(|scheme| scheme.eq_ignore_ascii_case("bearer")) {
            let fault =
                Diagnostic::warning("`Bearer` is part of this token, so clients have to send it twice");
            self.fault(
                fault.at(&token.span(), "").help("write the token alone: clients send `Bearer TOKEN`"),
            );
        }
    }

    fn access_log(&mut self, table: SpannedTable<file::AccessLogTable>) -> AccessLogSettings {
        let file::AccessLogTable { path, format } = table.value;
        let path = path.0.0.map(|path| self.folder.join(path));
        if let Some(path) = path.as_ref().filter(|path| path.is_dir()) {
            let place = self.document.place_of("access_log", "path").unwrap_or_default();
            let file = path.join("access.log");
            let fault = Diagnostic::error(format!("`{}` is a folder", path.display())).at(&place, "");
            self.fault(fault.help(format!("name a file in it: path = \"{}\"", file.display())));
        }
        AccessLogSettings { path, format: format.0 }
    }

    fn tracing(&mut self, table: SpannedTable<file::TracingTable>) -> TracingSettings {
        let file::TracingTable { otlp, sample } = table.value;
        let otlp = otlp.0.0;
        if let ServerUrl::Tcp { tls, host, port: OTLP_OVER_HTTP } = &otlp {
            let place = self.document.place_of("tracing", "otlp").unwrap_or_default();
            let own = ServerUrl::Tcp { tls: *tls, host: host.clone(), port: 4317 };
            let fault =
                Diagnostic::warning("4318 is the port of OTLP over HTTP, and this gateway speaks gRPC");
            self.fault(
                fault.at(&place, "").help(format!("name the port of OTLP over gRPC: otlp = \"{own}\"")),
            );
        }
        TracingSettings { otlp, sample: sample.0 }
    }

    fn size_of_at_least(&mut self, size: &Spanned<ParsedText<Size>>, least: usize, written: &str) -> usize {
        let ParsedText(Size(bytes)) = *size.get_ref();
        if bytes < least {
            let fault = Diagnostic::error(format!("`{bytes}` bytes are not enough")).at(&size.span(), "");
            self.fault(fault.help(format!("use at least \"{written}\"")));
        }
        bytes
    }

    /// Returns true if the value of one of these keys is unknown because of another error.
    fn had_any(&self, table: &Range<usize>, keys: &[&str]) -> bool {
        keys.iter().any(|key| self.document.had(table, key))
    }

    /// Reports that a table has none of these keys, unless one was there with an error.
    fn missing(&mut self, table: &Range<usize>, keys: &[&str], example: &str) {
        if !self.had_any(table, keys) {
            let fault = Diagnostic::error(format!("missing key `{}`", keys.join("` or `")));
            self.fault(fault.at(table, "in this table").help(format!("add for example: {example}")));
        }
    }
}

fn duplicate(what: &str, name: &str, again: &Range<usize>, first: &Range<usize>) -> Diagnostic {
    Diagnostic::error(format!("duplicate name: there is already a {what} `{name}`"))
        .at(again, "again here")
        .at(first, "first here")
        .help("remove or rename one of the two")
}

fn undefined<'a>(
    what: &str,
    table: &str,
    name: &Spanned<String>,
    known: impl Iterator<Item = &'a String> + Clone,
) -> Diagnostic {
    let meant = nearest(name.get_ref(), known.clone().map(String::as_str));
    let label = meant.map(|meant| format!("did you mean `{meant}`?")).unwrap_or_default();
    let fault = Diagnostic::error(format!("{what} `{name}` is not defined")).at(&name.span(), label);
    let text = name.get_ref();
    let is_bare = text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_');
    fault.help(match text.strip_prefix(&format!("{table}.")) {
        Some(bare) => format!("write the name alone: \"{bare}\""),
        None if is_bare => {
            let known: Vec<_> = known.map(|name| format!("`{name}`")).collect();
            let is_short = (1..=8).contains(&known.len());
            let known = if is_short { format!(": {}", known.join(", ")) } else { String::new() };
            format!("define it in a table [{table}.{name}], or use another one{known}")
        }
        None if table == "limits" => {
            "write a name, or a whole limit: { name = \"per-client\", key = \"ip\", rate = \"5/s\" }"
                .to_owned()
        }
        None => format!(
            "write a name, upstream = \"orders\", and define it: [{table}.orders], servers = \"{text}\""
        ),
    })
}
