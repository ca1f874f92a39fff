//! How the gateway and a server that it connects to prove to each other who they are.

use std::{path::Path, sync::Arc};

use rustls::{
    ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme,
    client::{
        WebPkiServerVerifier,
        danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    },
    crypto::{CryptoProvider, aws_lc_rs},
    pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime, pem, pem::PemObject},
};

use super::Sources;

/// What a connection with TLS needs to know. Files are read when the configuration is checked.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Tls {
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

impl Tls {
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
