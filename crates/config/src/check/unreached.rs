//! Finds what a route expects of another part of the file, which doesn't provide it.

use rustls::pki_types::ServerName;
use tollgate_routing::HostPattern;
use webpki::EndEntityCert;

use super::Check;
use crate::{
    KeyPart,
    error::Diagnostic,
    file::{RouteTable, Spanned},
    value::ParsedText,
};

impl Check<'_, '_> {
    /// Warns of a field that the route sets for its upstream, and that a limit of the route counts by: it counts what the client sent.
    pub(super) fn warn_of_own_field_as_key(&mut self, route: &RouteTable, limits: &[Spanned<String>]) {
        let Some(edits) = &route.request_headers else { return };
        let keys = limits.iter().filter_map(|name| self.limits.get(name.get_ref())?.limit.as_ref());
        let fields: Vec<_> = keys
            .flat_map(|limit| &limit.key)
            .filter_map(|part| match part {
                KeyPart::Header(name) => Some(name.clone()),
                _ => None,
            })
            .collect();
        for (name, _) in edits.value.set.0.iter().chain(&edits.value.add.0) {
            let field = &name.get_ref().0;
            if fields.contains(field) {
                let fault = Diagnostic::warning(format!(
                    "limits count by the `{field}` that the client sent, not by this one"
                ));
                let help = "for one count of all requests of some routes, list a limit of their own there, with key = \"global\"; a count for each route is key = \"route\"";
                self.fault(fault.at(&name.span(), "").help(help));
            }
        }
    }

    /// Warns of a host that none of the gateway's certificates is for.
    pub(super) fn warn_of_uncertified_host(&mut self, host: &Spanned<ParsedText<HostPattern>>) {
        let HostPattern::Exact(name) = &host.get_ref().0 else { return };
        let Ok(server) = ServerName::try_from(name.as_str()) else { return };
        let is_for = |certificate: &_| {
            EndEntityCert::try_from(certificate)
                .is_ok_and(|certificate| certificate.verify_is_valid_for_subject_name(&server).is_ok())
        };
        if !self.certificates.is_empty() && !self.certificates.iter().any(is_for) {
            let fault = Diagnostic::warning(format!(
                "no certificate of the gateway is for `{name}`, so clients refuse it"
            ));
            self.fault(fault.at(&host.span(), "").help("add one that is, to the `certs` of [server.tls]"));
        }
    }
}
