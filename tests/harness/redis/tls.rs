//! TLS servers, and certificates for them.

use std::{fs, path::PathBuf, sync::Arc};

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, date_time_ymd};
use rustls::{
    RootCertStore, ServerConfig,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
    server::WebPkiClientVerifier,
};
use tempfile::TempDir;

use super::{Redis, free_port};

/// An authority and its certificates, in files.
pub(crate) struct Certificates {
    folder: TempDir,
}

impl Certificates {
    /// Creates `ca.pem`; `server.pem` and `server.key` for these names; `expired.pem` and `expired.key`, which have expired;
    /// `client.pem` and `client.key`.
    pub(crate) fn for_server(names: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let key = KeyPair::generate().unwrap();
        let mut authority = CertificateParams::default();
        // With the name that all have by default, all would seem to have signed themselves.
        authority.distinguished_name.push(DnType::CommonName, "an authority");
        authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let write = |name: &str, text: String| fs::write(folder.path().join(name), text).unwrap();
        write("ca.pem", authority.self_signed(&key).unwrap().pem());
        let issuer = Issuer::new(authority, key);
        for (who, names) in [("server", names), ("expired", names), ("client", &["gateway"])] {
            let names: Vec<String> = names.iter().map(|&name| name.to_owned()).collect();
            let key = KeyPair::generate().unwrap();
            let mut holds = CertificateParams::new(names).unwrap();
            if who == "expired" {
                holds.not_after = date_time_ymd(2020, 1, 1);
            }
            let certificate = holds.signed_by(&key, &issuer).unwrap();
            write(&format!("{who}.pem"), certificate.pem());
            write(&format!("{who}.key"), key.serialize_pem());
        }
        Self { folder }
    }

    /// Returns the settings of an upstream with `server.pem` and these protocols. With `asks_clients`, clients need a
    /// certificate of the authority.
    pub(crate) fn server(&self, protocols: &[&str], asks_clients: bool) -> Arc<ServerConfig> {
        let provider = tollgate_limiter::store::redis::tls::provider();
        let certificates = |name| CertificateDer::pem_file_iter(self.path(name)).unwrap().map(Result::unwrap);
        let builder =
            ServerConfig::builder_with_provider(provider.clone()).with_safe_default_protocol_versions();
        let builder = builder.unwrap();
        let builder = if asks_clients {
            let mut roots = RootCertStore::empty();
            certificates("ca.pem").for_each(|root| roots.add(root).unwrap());
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
            builder.with_client_cert_verifier(verifier.build().unwrap())
        } else {
            builder.with_no_client_auth()
        };
        let key = PrivateKeyDer::from_pem_file(self.path("server.key")).unwrap();
        let mut config = builder.with_single_cert(certificates("server.pem").collect(), key).unwrap();
        config.alpn_protocols = protocols.iter().map(|protocol| protocol.as_bytes().to_vec()).collect();
        Arc::new(config)
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Returns the arguments of a server with TLS on this port, in addition to its plain port. `clients` says whether clients
    /// need a certificate: `yes`, `no` or `optional`.
    pub(crate) fn start(&self, clients: &str, arguments: &[&str]) -> (Redis, u16) {
        let port = free_port();
        let path = |name: &str| self.path(name).to_str().unwrap().to_owned();
        let port_text = port.to_string();
        let files = [
            "--tls-port",
            &port_text,
            "--tls-cert-file",
            &path("server.pem"),
            "--tls-key-file",
            &path("server.key"),
            "--tls-ca-cert-file",
            &path("ca.pem"),
            "--tls-auth-clients",
            clients,
        ];
        (Redis::start_with(&[&files[..], arguments].concat()), port)
    }
}
