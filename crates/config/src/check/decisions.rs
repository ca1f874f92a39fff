//! Checks the listener for other proxies.

use std::{path::Path, sync::Arc};

use super::Check;
use crate::{
    Callers, CountHeaders, DecisionsSettings, ListenAddress, RatelimitFolder, RatelimitSettings, XdsSettings,
    error::Diagnostic,
    file::{
        CountHeadersTable, DecisionsTable, DecisionsTlsTable, RatelimitServiceTable, Spanned, SpannedTable,
        XdsTable,
    },
    value::{ParsedText, ReportedDescriptors},
};

impl Check<'_, '_> {
    /// Returns the settings of the listener for other proxies.
    pub(super) fn decisions(&mut self, table: SpannedTable<DecisionsTable>) -> Option<DecisionsSettings> {
        let SpannedTable { span, value } = table;
        if value.listen.is_none() {
            self.missing(&span, &["listen"], "listen = \"127.0.0.1:8081\"");
        }
        // The other keys are checked without an address, too.
        let anywhere =
            || Spanned::new(span.clone(), ParsedText(ListenAddress::Tcp(([127, 0, 0, 1], 8081).into())));
        let is_named = value.listen.is_some();
        let listen = value.listen.unwrap_or_else(anywhere);
        let address = listen.get_ref().0.clone();
        let has_client_ca = value.tls.as_ref().is_some_and(|tls| tls.value.client_ca.is_some());
        let is_faulty = self.had_any(&span, &["trusted_proxies", "tls"]);
        if value.trusted_proxies.is_empty() && !has_client_ca && !is_faulty {
            self.refuse_open_listener(&listen);
        }
        let plain = value.plain_listen.as_ref().map(|listen| &listen.get_ref().0);
        if !has_client_ca && plain.into_iter().chain([&address]).any(is_for_others) {
            self.warn_of_trust_in_all(&value.trusted_proxies, "anyone may ask, and so use up limits");
        }
        let tls = value.tls.map(|tls| {
            let tls = DecisionsTlsTable::of_server(tls);
            Arc::new(self.server_tls(tls, std::slice::from_ref(&address)))
        });
        let is_for_all = value.trusted_proxies.is_empty() && has_client_ca;
        let networks = self.whole_networks(value.trusted_proxies);
        let callers = Callers { networks: (!is_for_all).then_some(networks), are_certified: has_client_ca };
        let ratelimit = self.ratelimit_service(value.ratelimit_service, &value.reported);
        is_named.then_some(DecisionsSettings {
            listen: address,
            plain_listen: value.plain_listen.map(|listen| listen.into_inner().0),
            tls,
            callers,
            on_failure: self.on_failure,
            ratelimit,
        })
    }

    /// Reports that peers on other machines may ask, although nobody is trusted.
    fn refuse_open_listener(&mut self, listen: &Spanned<ParsedText<ListenAddress>>) {
        let address = &listen.get_ref().0;
        if is_for_others(address) {
            let fault = Diagnostic::error(format!("anyone who reaches `{address}` could use up limits"));
            self.fault(
                fault
                    .at(&listen.span(), "")
                    .help("name the proxies that may ask, in [decisions]: trusted_proxies = [\"10.0.0.0/8\"]")
                    .help("or ask for certificates: tls = { cert = …, key = …, client_ca = \"callers.pem\" }")
                    .help("or listen on 127.0.0.1"),
            );
        }
    }

    /// Marks the limits of the rate limit service's folder whose costs are reported.
    fn mark_reported(&mut self, reported: &[Spanned<ParsedText<ReportedDescriptors>>]) {
        for descriptors in reported {
            let ReportedDescriptors { domain, keys } = &descriptors.get_ref().0;
            if self.ratelimit.mark_reported(domain, keys) || !self.document.included.is_empty() {
                continue;
            }
            let fault = Diagnostic::warning("no limit of `ratelimit_service` is for these descriptors");
            self.fault(
                fault
                    .at(&descriptors.span(), "")
                    .help("name the domain and all keys on the way to the limit, as the YAML files have them")
                    .help("a limit of this file says so itself: usage = \"reported\""),
            );
        }
    }

    /// Reads the folder of the rate limit service, if there is one, and marks the limits whose costs are reported.
    fn ratelimit_service(
        &mut self,
        table: Option<SpannedTable<RatelimitServiceTable>>,
        reported: &[Spanned<ParsedText<ReportedDescriptors>>],
    ) -> RatelimitSettings {
        let table = table.map_or_else(RatelimitServiceTable::default, |table| table.value);
        if let (Some(config), Some(xds)) = (&table.config, &table.xds) {
            let fault = Diagnostic::error("the rules come either from `config` or from `xds`");
            let fault = fault.at(&config.span(), "either this").at(&xds.span, "or this");
            self.fault(fault.help("remove one of the two"));
        }
        if let Some(config) = &table.config {
            let path = self.folder.join(config.get_ref());
            if self.has_rules(config, &path) {
                match RatelimitFolder::read(&path, self.on_failure, table.merge_domains, self.sources) {
                    Ok(read) => self.ratelimit = read,
                    Err(faulty) => self.document.included.extend(faulty),
                }
            }
        }
        self.xds = table.xds.and_then(|xds| {
            let settings = self.xds(xds, table.merge_domains)?;
            let reported = reported.iter().map(|descriptors| {
                let ReportedDescriptors { domain, keys } = &descriptors.get_ref().0;
                (domain.clone(), keys.clone())
            });
            Some(Arc::new(XdsSettings { reported: reported.collect(), ..settings }))
        });
        if self.xds.is_none() {
            self.mark_reported(reported);
        }
        let headers = table.headers.as_ref().map(|headers| &headers.value);
        let headers = headers.map(|CountHeadersTable { limit, remaining, reset }| CountHeaders {
            limit: limit.0.0.clone(),
            remaining: remaining.0.0.clone(),
            reset: reset.0.0.clone(),
        });
        RatelimitSettings { shadow: table.shadow, metadata: table.metadata, headers: headers.map(Arc::new) }
    }

    /// Returns true if the folder of the rate limit service has files. Reports it if not.
    fn has_rules(&mut self, config: &Spanned<String>, path: &Path) -> bool {
        let (written, place) = (config.get_ref(), config.span());
        let fault = match self.sources.read_folder(path) {
            Ok(files) if !files.is_empty() => return true,
            Ok(_) => {
                Diagnostic::warning(format!("`{written}` has no YAML file, so no call is limited by it"))
                    .help("put a YAML file for each domain into it")
            }
            Err(error) => Diagnostic::error(format!("can't read the folder `{written}`: {error}"))
                .help("name a folder with a YAML file for each domain, relative to the folder of this file"),
        };
        self.fault(fault.at(&place, ""));
        false
    }

    /// Returns the settings of rules that come by xDS.
    fn xds(&mut self, table: SpannedTable<XdsTable>, merges: bool) -> Option<XdsSettings> {
        let SpannedTable { span, value: XdsTable { server, node, tls, wait: is_awaited } } = table;
        let Some(ParsedText(url)) = server else {
            self.missing(&span, &["server"], "server = \"http://127.0.0.1:18001\"");
            return None;
        };
        let unused = Diagnostic::warning("`tls` has no effect: the server's URL doesn't ask for TLS")
            .help("begin the URL with https://");
        let tls = self.client_tls(tls, url.is_tls(), "the management server", unused);
        Some(XdsSettings { url, node, tls, merges, is_awaited, reported: Vec::new() })
    }
}

/// Returns true if other machines can connect to this address.
fn is_for_others(address: &ListenAddress) -> bool {
    matches!(address, ListenAddress::Tcp(address) if !address.ip().is_loopback())
}
