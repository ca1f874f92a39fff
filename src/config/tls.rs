//! TLS settings: how the gateway authenticates servers and clients, and how it authenticates itself to them.

use std::{collections::HashMap, path::Path, sync::Arc};

use rustls::{
    ClientConfig, DigitallySignedStruct, RootCertStore, ServerConfig, SignatureScheme,
    client::{
        WebPkiServerVerifier,
        danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    },
    crypto::{CryptoProvider, aws_lc_rs, aws_lc_rs::Ticketer},
    pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime, pem, pem::PemObject},
    server::{ClientHello, ResolvesServerCert, WebPkiClientVerifier, danger::ClientCertVerifier},
    sign::CertifiedKey,
};
use webpki::{EndEntityCert, KeyUsage};

use super::Sources;

/// TLS settings for connections to servers. The files are read when the configuration is checked.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct ClientTls {
    /// The certificates to trust. `None` means the system's root certificates.
    pub ca: Option<Vec<CertificateDer<'static>>>,
    /// The gateway's own certificate and key.
    pub identity: Option<Identity>,
    /// The name that the server's certificate must be valid for. `None` means the server's host.
    pub server_name: Option<ServerName<'static>>,
}

/// A certificate chain and the private key of its first certificate.
#[derive(Debug, PartialEq, Eq)]
pub struct Identity {
    /// The certificates, the gateway's own first.
    pub certificates: Vec<CertificateDer<'static>>,
    /// The private key. Its `Debug` output hides it.
    pub key: PrivateKeyDer<'static>,
}

impl ClientTls {
    /// Returns the settings in rustls's form.
    ///
    /// # Errors
    /// There are no root certificates to trust, or the key doesn't belong to the certificate.
    pub fn client(&self) -> Result<ClientConfig, rustls::Error> {
        let mut roots = RootCertStore::empty();
        match &self.ca {
            Some(certificates) => {
                certificates.iter().try_for_each(|certificate| roots.add(certificate.clone()))?;
            }
            None => {
                // If one of many root certificates can't be parsed, the others are still trusted.
                roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
            }
        }
        if roots.is_empty() {
            return Err(rustls::Error::General("no root certificates".to_owned()));
        }
        let builder =
            ClientConfig::builder_with_provider(provider()).with_safe_default_protocol_versions()?;
        let builder = match &self.server_name {
            None => builder.with_root_certificates(roots),
            Some(name) => {
                let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider());
                let verifier = verifier.build().map_err(|error| rustls::Error::General(error.to_string()))?;
                let verifier = Arc::new(Named { name: name.clone(), verifier });
                builder.dangerous().with_custom_certificate_verifier(verifier)
            }
        };
        match &self.identity {
            Some(Identity { certificates, key }) => {
                builder.with_client_auth_cert(certificates.clone(), key.clone_key())
            }
            None => Ok(builder.with_no_client_auth()),
        }
    }
}

/// TLS settings for connections from clients. The files are read when the configuration is checked.
#[derive(Debug, PartialEq, Eq)]
pub struct ServerTls {
    /// The gateway's certificates, at least one. Clients that ask for none of their names get the first one.
    pub identities: Vec<Identity>,
    /// The authorities that must have issued the clients' certificates. `None` if clients need no
    /// certificate.
    pub client_ca: Option<Vec<CertificateDer<'static>>>,
}

impl ServerTls {
    /// Returns the settings in rustls's form, without ALPN protocols.
    ///
    /// # Errors
    /// A key doesn't belong to its certificate, or there are no authorities to trust.
    pub fn server(&self) -> Result<ServerConfig, rustls::Error> {
        let builder =
            ServerConfig::builder_with_provider(provider()).with_safe_default_protocol_versions()?;
        let builder = match &self.client_ca {
            Some(authorities) => builder.with_client_cert_verifier(verifier_of_clients(authorities)?),
            None => builder.with_no_client_auth(),
        };
        let mut config = builder.with_cert_resolver(Arc::new(ByName::of(&self.identities)?));
        // The clients keep the session tickets, so any worker can resume a session.
        config.ticketer = Ticketer::new()?;
        Ok(config)
    }
}

/// Returns a verifier of clients' certificates that were issued by these authorities.
///
/// # Errors
/// The authorities can't be used.
pub(super) fn verifier_of_clients(
    authorities: &[CertificateDer<'static>],
) -> Result<Arc<dyn ClientCertVerifier>, rustls::Error> {
    let mut roots = RootCertStore::empty();
    authorities.iter().try_for_each(|certificate| roots.add(certificate.clone()))?;
    let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider());
    verifier.build().map_err(|error| rustls::Error::General(error.to_string()))
}

/// The gateway's certificates by the names that they are valid for, with and without wildcard.
#[derive(Debug)]
struct ByName {
    first: Arc<CertifiedKey>,
    named: HashMap<String, Arc<CertifiedKey>>,
}

impl ByName {
    fn of(identities: &[Identity]) -> Result<Self, rustls::Error> {
        let (mut first, mut named) = (None, HashMap::new());
        for identity in identities {
            let certified = Arc::new(identity.certified()?);
            for name in EndEntityCert::try_from(certified.end_entity_cert()?)
                .map_err(|error| rustls::Error::General(error.to_string()))?
                .valid_dns_names()
            {
                named.entry(name.to_ascii_lowercase()).or_insert_with(|| certified.clone());
            }
            first.get_or_insert(certified);
        }
        let first = first.ok_or_else(|| rustls::Error::General("no certificate".to_owned()))?;
        Ok(Self { first, named })
    }
}

impl ResolvesServerCert for ByName {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let name = hello.server_name().unwrap_or_default().to_ascii_lowercase();
        let by_wildcard = || self.named.get(&format!("*.{}", name.split_once('.')?.1));
        Some(self.named.get(&name).or_else(by_wildcard).unwrap_or(&self.first).clone())
    }
}

impl Identity {
    /// Returns the certificates and the key in rustls's form.
    ///
    /// # Errors
    /// The key doesn't belong to the first certificate, or one of the certificates can't be used.
    pub(super) fn certified(&self) -> Result<CertifiedKey, rustls::Error> {
        CertifiedKey::from_der(self.certificates.clone(), self.key.clone_key(), &provider())
    }

    /// Returns a complaint about the dates of the first certificate: `has expired` or `isn't valid yet`.
    pub(super) fn untimely(&self) -> Option<&'static str> {
        let certificate = EndEntityCert::try_from(self.certificates.first()?).ok()?;
        // The dates are checked before an issuer is looked for, so the empty list of issuers doesn't matter.
        let usage = KeyUsage::server_auth();
        match certificate.verify_for_usage(&[], &[], &[], UnixTime::now(), usage, None, None) {
            Err(webpki::Error::CertExpired { .. }) => Some("has expired"),
            Err(webpki::Error::CertNotValidYet { .. }) => Some("isn't valid yet"),
            _ => None,
        }
    }
}

/// A verifier that checks all certificates against one name, because Sentinels and Clusters announce their
/// servers by address.
#[derive(Debug)]
struct Named {
    name: ServerName<'static>,
    verifier: Arc<WebPkiServerVerifier>,
}

impl ServerCertVerifier for Named {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _host: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let Self { name, verifier } = self;
        verifier.verify_server_cert(certificate, intermediates, name, ocsp_response, now)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.verifier.verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.verifier.verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.verifier.supported_verify_schemes()
    }
}

/// Returns the only cryptography provider of the program.
pub fn provider() -> Arc<CryptoProvider> {
    Arc::new(aws_lc_rs::default_provider())
}

/// Reads the certificates of a file, at least one.
///
/// # Errors
/// The file can't be used. The error is a message and a line that says how to fix it.
pub(super) fn read_certificates(
    sources: &mut Sources,
    folder: &Path,
    written: &str,
) -> Result<Vec<CertificateDer<'static>>, String> {
    const REMEDY: &str = "the file needs at least one `-----BEGIN CERTIFICATE-----`";
    let certificates = sources
        .read(folder.join(written))
        .map_err(pem::Error::Io)
        .and_then(|bytes| CertificateDer::pem_slice_iter(&bytes).collect::<Result<Vec<_>, _>>())
        .map_err(|error| describe(&error, written, REMEDY))?;
    if certificates.is_empty() {
        return Err(format!("`{written}` has no certificate\n{REMEDY}"));
    }
    Ok(certificates)
}

/// Reads the private key of a file.
///
/// # Errors
/// The file can't be used. The error is a message and a line that says how to fix it.
pub(super) fn read_key(
    sources: &mut Sources,
    folder: &Path,
    written: &str,
) -> Result<PrivateKeyDer<'static>, String> {
    const REMEDY: &str = "the file needs an unencrypted `-----BEGIN PRIVATE KEY-----`";
    let bytes = sources.read(folder.join(written)).map_err(pem::Error::Io);
    bytes
        .and_then(|bytes| PrivateKeyDer::from_pem_slice(&bytes))
        .map_err(|error| describe(&error, written, REMEDY))
}

fn describe(error: &pem::Error, written: &str, remedy: &str) -> String {
    match error {
        pem::Error::Io(error) => format!(
            "can't read `{written}`: {error}\nname a readable PEM file, relative to the folder of the configuration"
        ),
        pem::Error::NoItemsFound => format!("`{written}` contains no PEM data\n{remedy}"),
        _ => format!("`{written}` is not a valid PEM file\n{remedy}"),
    }
}
