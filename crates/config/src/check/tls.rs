//! Checks TLS settings for the store, upstreams and clients, and reads the files that they name.

use rustls::pki_types::ServerName;

use super::Check;
use tollgate_limiter::{ClientTls, Identity};

use crate::{
    ListenAddress, ServerTls,
    error::Diagnostic,
    file::{self, Spanned, SpannedTable},
    password::is_content,
    tls,
};

impl Check<'_, '_> {
    /// Returns the TLS settings for connections to `peer`. `None` if its URL doesn't ask for TLS: then `unused` warns of a table,
    /// whose files are still checked.
    pub(super) fn client_tls(
        &mut self,
        table: Option<SpannedTable<file::ClientTlsTable>>,
        uses_tls: bool,
        peer: &str,
        unused: Diagnostic,
    ) -> Option<ClientTls> {
        let tls = match table {
            Some(table) => {
                if !uses_tls {
                    self.fault(unused.at(&table.span, ""));
                }
                self.tls(table, peer)
            }
            None => {
                let tls = ClientTls::default();
                if uses_tls {
                    self.report_tls(&tls, None, peer);
                }
                tls
            }
        };
        uses_tls.then_some(tls)
    }

    /// Returns the TLS settings of a table for connections to `peer`.
    fn tls(&mut self, table: SpannedTable<file::ClientTlsTable>, peer: &str) -> ClientTls {
        let SpannedTable { span, value } = table;
        let before = self.document.faults.len();
        if value.cert.is_some() != value.key.is_some() {
            let (has, lacks) = if value.cert.is_some() { ("cert", "key") } else { ("key", "cert") };
            let fault = Diagnostic::error(format!("`{has}` is given without `{lacks}`")).at(&span, "");
            let extension = if lacks == "key" { "key" } else { "pem" };
            self.fault(fault.help(format!("name its file, too: {lacks} = \"client.{extension}\"")));
        }
        let ca = value.ca.and_then(|ca| self.read_file(ca.get_ref(), &ca.span(), tls::read_certificates));
        let cert = value.cert.as_ref();
        let certificates =
            cert.and_then(|cert| self.read_file(cert.get_ref(), &cert.span(), tls::read_certificates));
        let key = value.key.as_ref();
        let key = key.and_then(|key| self.read_file(key.get_ref(), &key.span(), tls::read_key));
        let server_name = value.server_name.and_then(|name| {
            let parsed = ServerName::try_from(name.get_ref().clone());
            let refuse = |_| {
                let shown = if is_content(name.get_ref()) { "******" } else { name.get_ref() };
                let fault = Diagnostic::error(format!("`{shown}` is not a valid server name"));
                self.fault(fault.at(&name.span(), "").help("write a host or an address: \"redis.internal\""));
            };
            parsed.map_err(refuse).ok()
        });
        let identity = certificates.zip(key).map(|(certificates, key)| Identity { certificates, key });
        let tls = ClientTls { ca, identity, server_name };
        if self.document.faults.len() == before {
            self.report_tls(&tls, value.cert.as_ref(), peer);
        }
        tls
    }

    /// Returns the TLS settings for clients that connect to these addresses.
    pub(super) fn server_tls(
        &mut self,
        table: SpannedTable<file::ServerTlsTable>,
        listen: &[ListenAddress],
    ) -> ServerTls {
        let SpannedTable { span, value } = table;
        if !listen.iter().any(|address| matches!(address, ListenAddress::Tcp(_))) {
            let fault = Diagnostic::warning("`tls` has no effect: all listen addresses are unix sockets");
            self.fault(fault.at(&span, "").help("remove it, or listen on a TCP address: \"0.0.0.0:8443\""));
        }
        if value.certs.is_empty() {
            self.missing(&span, &["certs"], "certs = [{ cert = \"gateway.pem\", key = \"gateway.key\" }]");
        }
        let client_ca = value.client_ca.and_then(|written| {
            let authorities = self.read_file(written.get_ref(), &written.span(), tls::read_certificates)?;
            if let Err(error) = tls::verifier_of_clients(&authorities) {
                let fault = Diagnostic::error(format!("`{}` can't be used: {error}", written.get_ref()));
                self.fault(fault.at(&written.span(), "").help("use X.509 certificates of version 3"));
            }
            Some(authorities)
        });
        let identities = value.certs.into_iter().filter_map(|table| self.identity(table)).collect();
        ServerTls { identities, client_ca }
    }

    /// Returns one of the gateway's certificates with its key.
    fn identity(&mut self, table: SpannedTable<file::CertificateTable>) -> Option<Identity> {
        let SpannedTable { span, value: file::CertificateTable { cert, key } } = table;
        if cert.is_none() {
            self.missing(&span, &["cert"], "cert = \"gateway.pem\"");
        }
        if key.is_none() {
            self.missing(&span, &["key"], "key = \"gateway.key\"");
        }
        let (cert, key) = (cert?, key?);
        let certificates = self.read_file(cert.get_ref(), &cert.span(), tls::read_certificates);
        let private = self.read_file(key.get_ref(), &key.span(), tls::read_key);
        let identity = Identity { certificates: certificates?, key: private? };
        if let Err(error) = tls::certified(&identity) {
            let fault = Diagnostic::error(format!("`{}` can't be used: {error}", cert.get_ref()));
            let fault = fault.at(&cert.span(), "").at(&key.span(), "with this key");
            self.fault(fault.help("use a certificate and a key that belong together"));
        } else if let Some(untimely) = tls::untimely(&identity) {
            let fault = Diagnostic::warning(format!("the certificate in `{}` {untimely}", cert.get_ref()));
            let fault = fault.at(&cert.span(), "clients won't trust it");
            self.fault(fault.help("renew it; a running gateway picks it up with a reload"));
        }
        Some(identity)
    }

    /// Reports files that can be read, but not used.
    fn report_tls(&mut self, tls: &ClientTls, cert: Option<&Spanned<String>>, peer: &str) {
        let Err(error) = tls.client() else { return };
        let fault = match (cert, &tls.ca) {
            (Some(cert), _) => Diagnostic::error(format!("`{}` can't be used: {error}", cert.get_ref()))
                .at(&cert.span(), "")
                .help("use a certificate and a key that belong together"),
            (None, Some(_)) => Diagnostic::error(format!("the certificates of `ca` can't be used: {error}"))
                .help("use X.509 certificates of version 3"),
            (None, None) => {
                Diagnostic::error(format!("this system has no root certificates to verify {peer} with"))
                    .help("install them (the package is often called ca-certificates)")
                    .help(format!("or name those of {peer}: tls = {{ ca = \"ca.pem\" }}"))
            }
        };
        self.fault(fault);
    }
}
