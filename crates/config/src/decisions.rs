//! The settings of the listener for other proxies.

use std::{net::IpAddr, sync::Arc};

use hyper::header::HeaderName;
use ipnet::IpNet;
use tollgate_limiter::{ClientTls, OnFailure};

use super::{ListenAddress, ServerTls, ServerUrl};

/// The settings of the listener for other proxies.
#[derive(Debug, PartialEq)]
pub struct DecisionsSettings {
    /// The address to listen on.
    pub listen: ListenAddress,
    /// A further address, without TLS. `None` if there is none.
    pub plain_listen: Option<ListenAddress>,
    /// The TLS settings for a TCP address. `None` if TLS is off.
    pub tls: Option<Arc<ServerTls>>,
    /// The peers that may ask.
    pub callers: Callers,
    /// The failure policy of limits that the file doesn't define: the store's.
    pub on_failure: OnFailure,
    /// The settings of the rate limit service.
    pub ratelimit: RatelimitSettings,
}

/// The settings of the rate limit service, beside its limits.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RatelimitSettings {
    /// True if all calls are admitted in the end: limits count, and each descriptor's decision is told.
    pub shadow: bool,
    /// True if responses have the domain and the descriptors as metadata.
    pub metadata: bool,
    /// The names of three further header fields of responses. `None` if there are none.
    pub headers: Option<Arc<CountHeaders>>,
}

/// The settings of rules that come by xDS.
#[derive(Debug, PartialEq)]
pub struct XdsSettings {
    /// The management server.
    pub url: ServerUrl,
    /// The name of this client.
    pub node: String,
    /// The TLS settings. `None` if the URL doesn't ask for TLS.
    pub tls: Option<ClientTls>,
    /// True if several resources may have the same domain.
    pub merges: bool,
    /// True if the gateway starts to listen only once the first rules have come.
    pub is_awaited: bool,
    /// Domains, and the keys on the way to limits whose costs are reported.
    pub reported: Vec<(String, Vec<String>)>,
}

/// The names of header fields with the numbers of the tightest limit.
#[derive(Debug, PartialEq, Eq)]
pub struct CountHeaders {
    /// The field with the permits of the limit.
    pub limit: HeaderName,
    /// The field with the permits that are left.
    pub remaining: HeaderName,
    /// The field with the seconds until there is room, or more room.
    pub reset: HeaderName,
}

/// The peers that may ask for decisions. Processes on this machine always may.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Callers {
    /// The networks that they must be in. `None` if any will do.
    pub networks: Option<Vec<IpNet>>,
    /// True if they need a certificate, which the TLS handshake has verified.
    pub are_certified: bool,
}

impl Callers {
    /// Returns true if a peer with this address may ask, over TLS or without.
    pub fn admit(&self, peer: IpAddr, has_tls: bool) -> bool {
        let peer = peer.to_canonical();
        let is_named = |networks: &Vec<IpNet>| networks.iter().any(|network| network.contains(&peer));
        peer.is_loopback() || (has_tls || !self.are_certified) && self.networks.as_ref().is_none_or(is_named)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn callers_need_what_is_asked_of_them() {
        let networks = Some(vec!["10.0.0.0/8".parse().unwrap()]);
        let certified = Callers { networks: None, are_certified: true };
        let both = Callers { networks: networks.clone(), are_certified: true };
        let named = Callers { networks, are_certified: false };
        for (peer, has_tls, [by_certificate, by_both, by_name]) in [
            ("10.0.0.1", true, [true, true, true]),
            ("10.0.0.1", false, [false, false, true]),
            ("192.0.2.1", true, [true, false, false]),
            ("192.0.2.1", false, [false, false, false]),
            ("127.0.0.1", false, [true, true, true]),
        ] {
            let admits =
                [&certified, &both, &named].map(|callers| callers.admit(peer.parse().unwrap(), has_tls));
            assert_eq!(admits, [by_certificate, by_both, by_name], "{peer}");
        }
    }
}
