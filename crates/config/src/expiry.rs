//! The dates at which the configuration's certificates expire.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustls::pki_types::{CertificateDer, UnixTime};
use tollgate_limiter::{ClientTls, Identity};
use webpki::{EndEntityCert, KeyUsage};

use super::{Config, ServerTls};

/// A certificate that expires within this time is reported.
pub const EXPIRES_SOON: Duration = Duration::from_secs(14 * 86_400);
/// The end of the year 9999, in seconds. No certificate is valid longer (RFC 5280, section 4.1.2.5).
const END_OF_TIME: Duration = Duration::from_secs(253_402_300_799);

/// The expiry of certificates in the configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Expiry {
    /// The place in the file: ``upstream `orders`, tls.cert``.
    pub place: String,
    /// The time from which they aren't valid any longer.
    pub at: SystemTime,
}

impl Config {
    /// Returns the expiry of each certificate that the gateway shows to others, and of each set of authorities that it trusts.
    pub fn expiries(&self) -> Vec<Expiry> {
        let decisions = self.decisions.as_ref().and_then(|decisions| decisions.tls.as_ref());
        let servers = [("server", self.server.tls.as_ref()), ("decisions", decisions)];
        let servers = servers.into_iter().filter_map(|(table, tls)| Some((table, tls?)));
        let mut expiries: Vec<_> = servers.flat_map(|(table, tls)| expiries_of_server(table, tls)).collect();
        let upstreams = self.upstreams.iter();
        let upstreams = upstreams
            .filter_map(|(name, upstream)| Some((format!("upstream `{name}`"), upstream.tls.as_deref()?)));
        let store = self.store.tls.as_ref().map(|tls| ("store".to_owned(), tls));
        expiries.extend(upstreams.chain(store).flat_map(|(table, tls)| expiries_of_client(&table, tls)));
        expiries
    }
}

fn expiries_of_server(table: &str, tls: &ServerTls) -> Vec<Expiry> {
    let own =
        tls.identities.iter().filter_map(|identity| own_expiry(&format!("{table}, tls.certs"), identity));
    own.chain(trusted_expiry(&format!("{table}, tls.client_ca"), tls.client_ca.as_deref())).collect()
}

fn expiries_of_client(table: &str, tls: &ClientTls) -> Vec<Expiry> {
    let own = tls.identity.iter().filter_map(|identity| own_expiry(&format!("{table}, tls.cert"), identity));
    own.chain(trusted_expiry(&format!("{table}, tls.ca"), tls.ca.as_deref())).collect()
}

/// Returns the expiry of a chain, which is that of its first certificate to expire.
fn own_expiry(place: &str, identity: &Identity) -> Option<Expiry> {
    let at = identity.certificates.iter().filter_map(not_after).min()?;
    Some(Expiry { place: place.to_owned(), at })
}

/// Returns the expiry of authorities, which is that of the last one. Files of authorities often have expired ones, too.
fn trusted_expiry(place: &str, authorities: Option<&[CertificateDer<'_>]>) -> Option<Expiry> {
    let at = authorities?.iter().filter_map(not_after).max()?;
    Some(Expiry { place: place.to_owned(), at })
}

/// Returns the time after which a certificate isn't valid, if it can be read and has one.
fn not_after(certificate: &CertificateDer<'_>) -> Option<SystemTime> {
    let certificate = EndEntityCert::try_from(certificate).ok()?;
    let (usage, end) = (KeyUsage::server_auth(), UnixTime::since_unix_epoch(END_OF_TIME));
    // The dates are checked before an issuer is looked for, so the empty list of issuers doesn't matter.
    match certificate.verify_for_usage(&[], &[], &[], end, usage, None, None) {
        Err(webpki::Error::CertExpired { not_after, .. }) => {
            Some(UNIX_EPOCH + Duration::from_secs(not_after.as_secs()))
        }
        _ => None,
    }
}
