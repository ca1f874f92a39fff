//! TLS settings: how the gateway authenticates servers and clients, and how it authenticates itself to them.

use std::{collections::HashMap, io, path::Path, sync::Arc};

use rustls::{
    RootCertStore, ServerConfig,
    crypto::aws_lc_rs::Ticketer,
    pki_types::{CertificateDer, PrivateKeyDer, UnixTime, pem::PemObject},
    server::{ClientHello, ResolvesServerCert, WebPkiClientVerifier, danger::ClientCertVerifier},
    sign::CertifiedKey,
};
use tollgate_limiter::{Identity, store::redis::tls::provider};
use webpki::{EndEntityCert, KeyUsage};

use super::Sources;

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
            let certified = Arc::new(certified(identity)?);
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

/// Returns the certificates and the key in rustls's form.
///
/// # Errors
/// The key doesn't belong to the first certificate, or one of the certificates can't be used.
pub(super) fn certified(identity: &Identity) -> Result<CertifiedKey, rustls::Error> {
    CertifiedKey::from_der(identity.certificates.clone(), identity.key.clone_key(), &provider())
}

/// Returns a complaint about the dates of the first certificate: `has expired` or `isn't valid yet`.
pub(super) fn untimely(identity: &Identity) -> Option<&'static str> {
    let certificate = EndEntityCert::try_from(identity.certificates.first()?).ok()?;
    // The dates are checked before an issuer is looked for, so the empty list of issuers doesn't matter.
    let usage = KeyUsage::server_auth();
    match certificate.verify_for_usage(&[], &[], &[], UnixTime::now(), usage, None, None) {
        Err(webpki::Error::CertExpired { .. }) => Some("has expired"),
        Err(webpki::Error::CertNotValidYet { .. }) => Some("isn't valid yet"),
        _ => None,
    }
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
    let bytes = sources.read(folder.join(written)).map_err(|error| unreadable(&error, written))?;
    let read = CertificateDer::pem_slice_iter(&bytes).collect::<Result<Vec<_>, _>>();
    let certificates = read.map_err(|_| format!("`{written}` is not a valid PEM file\n{REMEDY}"))?;
    if certificates.is_empty() {
        let what = if has_block(&bytes, "PRIVATE KEY") { "is a private key" } else { "has no certificate" };
        return Err(format!("`{written}` {what}\n{REMEDY}"));
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
    let bytes = sources.read(folder.join(written)).map_err(|error| unreadable(&error, written))?;
    PrivateKeyDer::from_pem_slice(&bytes).map_err(|_| unusable_key(&bytes, written))
}

fn unreadable(error: &io::Error, written: &str) -> String {
    format!(
        "can't read `{written}`: {error}\nname a readable PEM file, relative to the folder of the configuration"
    )
}

/// Describes a file that has no key that can be used.
fn unusable_key(bytes: &[u8], written: &str) -> String {
    const REMEDY: &str = "the file needs an unencrypted `-----BEGIN PRIVATE KEY-----`";
    if has_block(bytes, "ENCRYPTED") {
        return format!(
            "`{written}` is encrypted\n{REMEDY}; decrypt it: openssl pkey -in {written} -out gateway.key"
        );
    }
    let what = match (has_block(bytes, "-----BEGIN"), has_block(bytes, "CERTIFICATE")) {
        (false, _) => "contains no PEM data",
        (true, true) => "is a certificate, not a private key",
        (true, false) => "is not a valid PEM file",
    };
    format!("`{written}` {what}\n{REMEDY}")
}

/// Returns true if a file in PEM has this word.
fn has_block(bytes: &[u8], word: &str) -> bool {
    String::from_utf8_lossy(bytes).contains(word)
}
