//! TLS for connections to servers.

use std::sync::Arc;

use rustls::{
    ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme,
    client::{
        WebPkiServerVerifier,
        danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    },
    crypto::{CryptoProvider, aws_lc_rs},
    pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime},
};

/// TLS settings for connections to servers. The files are read when the configuration is checked.
///
/// # Examples
///
/// ```
/// use tollgate_limiter::{ClientTls, StoreSettings};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// // The certificate must be for the name `redis`, whatever the address that Sentinels announce.
/// let tls = ClientTls { server_name: Some("redis".try_into()?), ..ClientTls::default() };
/// let settings = StoreSettings { tls: Some(tls), ..StoreSettings::at("rediss://10.0.0.1")? };
/// # Ok(())
/// # }
/// ```
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
///
/// # Examples
///
/// ```
/// # use rustls::pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject};
/// # use tollgate_limiter::{ClientTls, Identity};
/// # const CHAIN: &[u8] = b"-----BEGIN CERTIFICATE-----\nMAA=\n-----END CERTIFICATE-----\n";
/// # const KEY: &[u8] = b"-----BEGIN PRIVATE KEY-----\nMAA=\n-----END PRIVATE KEY-----\n";
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let certificates = CertificateDer::pem_slice_iter(CHAIN).collect::<Result<_, _>>()?; // or `pem_file_iter`
/// let identity = Identity { certificates, key: PrivateKeyDer::from_pem_slice(KEY)? };
/// let tls = ClientTls { identity: Some(identity), ..ClientTls::default() };
/// # Ok(())
/// # }
/// ```
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
    /// # Examples
    ///
    /// ```
    /// # use tollgate_limiter::ClientTls;
    /// // There is no certificate to trust.
    /// assert!(ClientTls { ca: Some(Vec::new()), ..ClientTls::default() }.client().is_err());
    /// ```
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
///
/// # Examples
///
/// ```
/// use tollgate_limiter::store::redis::tls::provider;
///
/// assert!(!provider().cipher_suites.is_empty());
/// ```
pub fn provider() -> Arc<CryptoProvider> {
    Arc::new(aws_lc_rs::default_provider())
}
