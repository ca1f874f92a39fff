//! The store, and the files that its TLS needs.

use std::path::Path;

use rustls::pki_types::ServerName;
use toml::Spanned;

use super::Check;
use crate::config::{
    Store, StoreUrl, Tls,
    error::Fault,
    file::{self, Table},
    tls::{self, Identity},
};

impl Check<'_, '_> {
    pub(super) fn store(&mut self, store: file::Store, folder: &Path) -> Store {
        let prefix = store.key_prefix.get_ref();
        if prefix.0.is_empty() || !prefix.0.bytes().all(|b| b.is_ascii_alphanumeric() || b"._:-".contains(&b))
        {
            let fault = Fault::error(format!("`{}` can't begin the keys of the store", prefix.0));
            self.fault(
                fault.at(&store.key_prefix.span(), "").help("use letters, digits and `.`, `_`, `:` and `-`"),
            );
        }
        let uses_tls = matches!(&store.url.0, StoreUrl::Redis(url) if url.tls);
        let tls = match (store.tls, uses_tls) {
            (None, true) => {
                self.complain_of_tls(&Tls::default(), None);
                Some(Tls::default())
            }
            (Some(table), true) => Some(self.tls(table, folder)),
            (Some(Table { span, value }), false) => {
                let fault = Fault::warning("`tls` is for a store with TLS, which the url doesn't ask for");
                self.fault(
                    fault.at(&span, "").help("write the url with rediss, as in \"rediss://HOST:6379\""),
                );
                // A file that is missing is told all the same.
                self.tls(Table { span, value }, folder);
                None
            }
            (None, false) => None,
        };
        Store {
            url: store.url.0,
            tls,
            timeout: store.timeout.0,
            on_failure: store.on_failure.0,
            instances: store.instances.0,
            max_memory: self.size_of_at_least(&store.max_memory, 1 << 20, "1MiB"),
            key_prefix: store.key_prefix.into_inner().0,
        }
    }

    fn tls(&mut self, table: Table<file::Tls>, folder: &Path) -> Tls {
        let Table { span, value } = table;
        let before = self.document.faults.len();
        if value.cert.is_some() != value.key.is_some() {
            let (has, lacks) = if value.cert.is_some() { ("cert", "key") } else { ("key", "cert") };
            let fault = Fault::error(format!("`{has}` is of no use without `{lacks}`")).at(&span, "");
            self.fault(fault.help(format!("add for example: {lacks} = \"gateway.pem\"")));
        }
        let ca = value.ca.and_then(|ca| self.file(&ca, |path| tls::read_certificates(folder, path)));
        let cert = value.cert.as_ref();
        let certificates = cert.and_then(|cert| self.file(cert, |path| tls::read_certificates(folder, path)));
        let key = value.key.as_ref();
        let key = key.and_then(|key| self.file(key, |path| tls::read_key(folder, path)));
        let server_name = value.server_name.and_then(|name| {
            self.file(&name, |name| {
                ServerName::try_from(name.to_owned()).map_err(|_| {
                    format!("`{name}` is no name of a server\nwrite a host or an address: \"redis.internal\"")
                })
            })
        });
        let identity = certificates.zip(key).map(|(certificates, key)| Identity { certificates, key });
        let tls = Tls { ca, identity, server_name };
        if self.document.faults.len() == before {
            self.complain_of_tls(&tls, value.cert.as_ref());
        }
        tls
    }

    /// What a value stands for, if it can be read.
    fn file<T>(&mut self, written: &Spanned<String>, read: impl Fn(&str) -> Result<T, String>) -> Option<T> {
        let read = read(written.get_ref());
        read.map_err(|fault| self.fault(Fault::with_remedy(&fault).at(&written.span(), ""))).ok()
    }

    /// Complains of files that can be read, but not be used.
    fn complain_of_tls(&mut self, tls: &Tls, cert: Option<&Spanned<String>>) {
        let Err(error) = tls.client() else { return };
        let fault = match (cert, &tls.ca) {
            (Some(cert), _) => Fault::error(format!("`{}` can't be used: {error}", cert.get_ref()))
                .at(&cert.span(), "")
                .help("give the certificate and the key that belong together"),
            (None, Some(_)) => Fault::error(format!("the certificates of `ca` can't be used: {error}"))
                .help("give certificates of X.509, version 3"),
            (None, None) => Fault::error("this system has no root certificates to trust the store by")
                .help("install them (the package is often called ca-certificates)")
                .help("or name those of the store: tls = { ca = \"ca.pem\" }"),
        };
        self.fault(fault);
    }
}
