//! The client of a request: the peer, or the client that trusted proxies name.

use std::net::IpAddr;

use hyper::{HeaderMap, header::HeaderName};
use ipnet::IpNet;

use crate::forward::headers::{Client, from_client};

use super::Gateway;

const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");

/// The other end of a connection.
#[derive(Clone, Copy, Debug)]
pub struct Peer {
    /// The address, or the client's if a proxy sent a PROXY header.
    pub address: IpAddr,
    /// The scheme: `http`, or `https` with TLS.
    pub scheme: &'static str,
}

impl Gateway {
    /// Returns the client of a request from `peer`.
    pub(crate) fn client(&self, peer: Peer, headers: &HeaderMap) -> Client {
        identify(peer, headers, &self.trusted_proxies)
    }

    /// Removes the fields of a request that [aren't forwarded](from_client). Those that routes and limits read stay if a trusted
    /// proxy sends them, which may forward a client's `Connection` that names what the proxy says of the client.
    pub(crate) fn remove_unforwarded(&self, peer: Peer, headers: &mut HeaderMap) {
        let is_trusted = is_trusted(peer.address, &self.trusted_proxies);
        let kept: &[HeaderName] = if is_trusted { &self.planner.fields_known } else { &[] };
        from_client(headers, kept);
    }

    /// Returns the client of a request that `proxy` describes instead of forwarding it: the proxy itself is trusted.
    pub(crate) fn described_client(&self, proxy: Peer, headers: &HeaderMap) -> Client {
        read_forwarded_for(proxy, true, headers, &self.trusted_proxies)
    }
}

/// Identifies the client by reading X-Forwarded-For from the right, while the entries are trusted proxies.
///
/// The first entry that isn't a trusted proxy is the client. An invalid entry ends the search: then the proxy that
/// wrote it counts as the client. An IPv4 address in IPv6 form is read as IPv4.
pub(crate) fn identify(peer: Peer, headers: &HeaderMap, trusted_proxies: &[IpNet]) -> Client {
    read_forwarded_for(peer, is_trusted(peer.address, trusted_proxies), headers, trusted_proxies)
}

fn read_forwarded_for(
    peer: Peer,
    peer_is_trusted: bool,
    headers: &HeaderMap,
    trusted_proxies: &[IpNet],
) -> Client {
    let own = peer.address.to_canonical();
    let mut address = own;
    if peer_is_trusted {
        let lines = headers.get_all(X_FORWARDED_FOR).into_iter().rev();
        for entry in lines.flat_map(|line| line.as_bytes().rsplit(|byte| *byte == b',')) {
            let Some(named) = parse(entry) else { break };
            address = named;
            if !is_trusted(address, trusted_proxies) {
                break;
            }
        }
    }
    Client { peer: own, peer_is_trusted, address, scheme: peer.scheme }
}

/// Returns true for the address of a trusted proxy.
pub(crate) fn is_trusted(address: IpAddr, trusted_proxies: &[IpNet]) -> bool {
    let address = address.to_canonical();
    trusted_proxies.iter().any(|network| network.contains(&address))
}

/// Parses an address, with or without a port.
fn parse(entry: &[u8]) -> Option<IpAddr> {
    let entry = std::str::from_utf8(entry).ok()?.trim();
    let bare = entry.strip_prefix('[').and_then(|entry| entry.strip_suffix(']')).unwrap_or(entry);
    let with_port = || entry.parse().map(|address: std::net::SocketAddr| address.ip());
    bare.parse().or_else(|_| with_port()).ok().map(|address: IpAddr| address.to_canonical())
}

#[cfg(test)]
mod tests {
    use hyper::header::HeaderValue;

    use super::*;

    fn address(peer: &str, lines: &[&str]) -> String {
        let lines = lines.iter().map(|line| (X_FORWARDED_FOR, HeaderValue::from_str(line).unwrap()));
        let trusted = ["10.0.0.0/8".parse().unwrap(), "fd00::/8".parse().unwrap()];
        let peer = Peer { address: peer.parse().unwrap(), scheme: "http" };
        identify(peer, &lines.collect(), &trusted).address.to_string()
    }

    #[test]
    fn only_trusted_proxies_are_believed() {
        assert_eq!(address("192.0.2.1", &["203.0.113.5"]), "192.0.2.1");
        assert_eq!(address("10.0.0.1", &["203.0.113.5"]), "203.0.113.5");
        assert_eq!(address("10.0.0.1", &["203.0.113.5, 198.51.100.7, 10.0.0.2"]), "198.51.100.7");
        assert_eq!(address("10.0.0.1", &["203.0.113.5", "198.51.100.7"]), "198.51.100.7");
        assert_eq!(address("10.0.0.1", &["10.0.0.9, 10.0.0.2"]), "10.0.0.9");
        assert_eq!(address("10.0.0.1", &[]), "10.0.0.1");
    }

    #[test]
    fn an_invalid_address_ends_the_search() {
        assert_eq!(address("10.0.0.1", &["203.0.113.5, unknown, 10.0.0.2"]), "10.0.0.2");
        assert_eq!(address("10.0.0.1", &["203.0.113.5, "]), "10.0.0.1");
        // Obfuscated, with a zone, in uncommon notations, or with unusual separators.
        for none in [
            "_hidden",
            "fe80::1%eth0",
            "[2001:db8::7",
            "0203.0.113.5",
            "3405803781",
            "203.0.113.5:99999",
            "\"203.0.113.5\"",
            "for=203.0.113.5",
            "203.0.113.5;10.0.0.2",
            "203.0.113.5 10.0.0.2",
        ] {
            assert_eq!(address("10.0.0.1", &[none]), "10.0.0.1", "{none}");
        }
        let long = ["203.0.113.5", &", 10.0.0.2".repeat(1_000)].concat();
        assert_eq!(address("10.0.0.1", &[&long]), "203.0.113.5");
    }

    #[test]
    fn addresses_have_many_spellings() {
        assert_eq!(address("10.0.0.1", &["203.0.113.5:4711"]), "203.0.113.5");
        assert_eq!(address("fd00::1", &["[2001:db8::7]:80"]), "2001:db8::7");
        assert_eq!(address("fd00::1", &["[2001:db8::7]"]), "2001:db8::7");
        assert_eq!(address("::ffff:10.0.0.1", &["::ffff:203.0.113.5"]), "203.0.113.5");
    }
}
