//! How the gateway proves who it is to servers that it connects to, and to clients, and they to it.

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

/// What a connection with TLS needs to know. Files are read when the configuration is checked.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct ClientTls {
    /// The certificates to trust; none is the roots of the system.
    pub ca: Option<Vec<CertificateDer<'static>>>,
    /// The gateway's own certificates, with their key.
    pub identity: Option<Identity>,
    /// The name that must be in the server's certificate; none is the server's host.
    pub server_name: Option<ServerName<'static>>,
}

/// A certificate, those up to the root, and the key of the first.
#[derive(Debug, PartialEq, Eq)]
pub struct Identity {
    /// The certificates.
    pub certificates: Vec<CertificateDer<'static>>,
    /// The key, which doesn't print.
    pub key: PrivateKeyDer<'static>,
}

impl ClientTls {
    /// What rustls needs for it.
    ///
    /// # Errors
    /// There are no roots to trust, or the key isn't that of the certificate.
    pub fn client(&self) -> Result<ClientConfig, rustls::Error> {
        let mut roots = RootCertStore::empty();
        match &self.ca {
            Some(certificates) => {
                certificates.iter().try_for_each(|certificate| roots.add(certificate.clone()))?;
            }
            None => {
                // One root that can't be read, of many, is no reason to trust none.
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

/// How TLS is spoken with clients. Files are read when the configuration is checked.
#[derive(Debug, PartialEq, Eq)]
pub struct ServerTls {
    /// The gateway's certificates, at least one, of which the first is for clients who ask for no name of the others.
    pub identities: Vec<Identity>,
    /// Who must have signed the certificates of clients, who needn't have any if this is none.
    pub client_ca: Option<Vec<CertificateDer<'static>>>,
}

impl ServerTls {
    /// What rustls needs for it, without protocols to agree on.
    ///
    /// # Errors
    /// A key isn't that of its certificate, or there is nobody to trust clients by.
    pub fn server(&self) -> Result<ServerConfig, rustls::Error> {
        let builder =
            ServerConfig::builder_with_provider(provider()).with_safe_default_protocol_versions()?;
        let builder = match &self.client_ca {
            Some(authorities) => builder.with_client_cert_verifier(verifier_of_clients(authorities)?),
            None => builder.with_no_client_auth(),
        };
        let mut config = builder.with_cert_resolver(Arc::new(ByName::of(&self.identities)?));
        // Sessions are resumed by what clients keep, on any worker.
        config.ticketer = Ticketer::new()?;
        Ok(config)
    }
}

/// Verifies clients' certificates by these authorities.
///
/// # Errors
/// They are none.
pub(super) fn verifier_of_clients(
    authorities: &[CertificateDer<'static>],
) -> Result<Arc<dyn ClientCertVerifier>, rustls::Error> {
    let mut roots = RootCertStore::empty();
    authorities.iter().try_for_each(|certificate| roots.add(certificate.clone()))?;
    let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider());
    verifier.build().map_err(|error| rustls::Error::General(error.to_string()))
}

/// The gateway's certificates by the names that they bear, exact ones and such with a wildcard.
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
    /// The certificates with their key, which rustls can sign by.
    ///
    /// # Errors
    /// The key isn't that of the first certificate, or one of them can't be used.
    pub(super) fn certified(&self) -> Result<CertifiedKey, rustls::Error> {
        CertifiedKey::from_der(self.certificates.clone(), self.key.clone_key(), &provider())
    }

    /// What is wrong with the first certificate now, by its own dates: it `has expired`, or `isn't valid yet`.
    pub(super) fn untimely(&self) -> Option<&'static str> {
        let certificate = EndEntityCert::try_from(self.certificates.first()?).ok()?;
        // Its dates are looked at before anybody is looked for who could have signed it; and there is nobody.
        let usage = KeyUsage::server_auth();
        match certificate.verify_for_usage(&[], &[], &[], UnixTime::now(), usage, None, None) {
            Err(webpki::Error::CertExpired { .. }) => Some("has expired"),
            Err(webpki::Error::CertNotValidYet { .. }) => Some("isn't valid yet"),
            _ => None,
        }
    }
}

/// Verifies certificates as ever, but by one name, whatever host was connected to: Sentinels and Clusters name
/// their servers by address.
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

/// The one implementation of cryptography in the program.
pub fn provider() -> Arc<CryptoProvider> {
    Arc::new(aws_lc_rs::default_provider())
}

/// The certificates of a file, at least one.
///
/// # Errors
/// A message and, on a line of its own, the remedy.
pub(super) fn read_certificates(
    sources: &mut Sources,
    folder: &Path,
    written: &str,
) -> Result<Vec<CertificateDer<'static>>, String> {
    const REMEDY: &str = "it needs at least one `-----BEGIN CERTIFICATE-----`";
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

/// The private key of a file.
///
/// # Errors
/// A message and, on a line of its own, the remedy.
pub(super) fn read_key(
    sources: &mut Sources,
    folder: &Path,
    written: &str,
) -> Result<PrivateKeyDer<'static>, String> {
    const REMEDY: &str = "it needs a `-----BEGIN PRIVATE KEY-----`, not encrypted";
    let bytes = sources.read(folder.join(written)).map_err(pem::Error::Io);
    bytes
        .and_then(|bytes| PrivateKeyDer::from_pem_slice(&bytes))
        .map_err(|error| describe(&error, written, REMEDY))
}

fn describe(error: &pem::Error, written: &str, remedy: &str) -> String {
    match error {
        pem::Error::Io(error) => format!(
            "can't read `{written}`: {error}\nname a readable file in PEM form; its path is from the folder of the configuration"
        ),
        pem::Error::NoItemsFound => format!("`{written}` has nothing in PEM form\n{remedy}"),
        _ => format!("`{written}` is no file in PEM form\n{remedy}"),
    }
}
