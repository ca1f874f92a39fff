//! Finds listeners that ask for the same address, of which only the first could be opened.

use std::ops::Range;

use ipnet::IpNet;

use super::Check;
use crate::{
    ListenAddress,
    error::Diagnostic,
    file::{ConfigFile, Spanned, SpannedTable},
    value::ParsedText,
};

/// The address of a listener, the key that has it, and its position.
pub(super) type ListenEntry = (&'static str, Range<usize>, ListenAddress);

impl Check<'_, '_> {
    /// Warns if the networks of trusted peers have all addresses of IPv4 or IPv6.
    pub(super) fn warn_of_trust_in_all(&mut self, networks: &[Spanned<ParsedText<IpNet>>], what: &str) {
        let all: Vec<IpNet> = networks.iter().map(|network| network.get_ref().0).collect();
        let is_all = IpNet::aggregate(&all).iter().any(|network| network.prefix_len() == 0);
        let widest = networks.iter().min_by_key(|network| network.get_ref().0.prefix_len());
        if let Some(widest) = widest.filter(|_| is_all) {
            let fault = Diagnostic::warning(what).at(&widest.span(), "");
            self.fault(fault.help("name only the proxies: trusted_proxies = [\"10.0.0.0/8\"]"));
        }
    }

    /// Returns the networks of trusted peers.
    pub(super) fn whole_networks(&mut self, networks: Vec<Spanned<ParsedText<IpNet>>>) -> Vec<IpNet> {
        let networks = networks.into_iter().map(|network| (network.span(), network.into_inner().0));
        networks.map(|(place, network)| self.whole_network(network, &place)).collect()
    }

    /// Returns a network without the bits of a host. Warns of those.
    pub(super) fn whole_network(&mut self, written: IpNet, place: &Range<usize>) -> IpNet {
        let whole = written.trunc();
        if whole != written {
            let fault = Diagnostic::warning(format!("`{written}` is one address of the network `{whole}`"));
            let help = format!(
                "write \"{whole}\", as it is understood, or \"{}\" for this address alone",
                written.addr()
            );
            self.fault(fault.at(place, "").help(help));
        }
        whole
    }

    /// Reports addresses that two listeners ask for. Those of flags have no position, and aren't compared.
    pub(super) fn refuse_equal_addresses(&mut self, file: &ConfigFile) {
        let mut entrances = entrances(file);
        let is_shared = file.server.value.reuse_port;
        entrances.retain(|(key, span, _)| !(span.is_empty() || is_shared && *key == "server.listen"));
        for (at, (key, span, address)) in entrances.iter().enumerate() {
            let taken = entrances[..at].iter().find(|(_, _, other)| collide(address, other));
            let Some((other_key, other_span, _)) = taken else { continue };
            let fault = Diagnostic::error(format!("`{address}` of {key} is taken by {other_key}"));
            let fault = fault.at(span, "again here").at(other_span, "first here");
            self.fault(fault.help("use another port, or remove one of the two"));
        }
    }
}

/// Returns the listeners of a file. Those of flags, and the default one, have an empty position.
pub(super) fn entrances(file: &ConfigFile) -> Vec<ListenEntry> {
    let listen = file.server.value.listen.0.iter();
    let mut entrances: Vec<ListenEntry> =
        listen.map(|address| ("server.listen", address.span(), address.get_ref().clone())).collect();
    let decisions = file.decisions.iter().flat_map(|SpannedTable { value, .. }| {
        [("decisions.listen", &value.listen), ("decisions.plain_listen", &value.plain_listen)]
    });
    let decisions = decisions.filter_map(|(key, listen)| Some((key, listen.as_ref()?)));
    entrances.extend(decisions.map(|(key, listen)| (key, listen.span(), listen.get_ref().0.clone())));
    let admin = file.admin.iter().flat_map(|SpannedTable { value, .. }| {
        [("admin.listen", &value.listen), ("admin.metrics_listen", &value.metrics_listen)]
    });
    let admin = admin.filter_map(|(key, listen)| Some((key, listen.as_ref()?)));
    entrances.extend(admin.map(|(key, listen)| (key, listen.span(), ListenAddress::Tcp(listen.get_ref().0))));
    entrances
}

/// Returns true if the system opens at most one of the two: they are equal, or one is for all addresses of a port.
fn collide(address: &ListenAddress, other: &ListenAddress) -> bool {
    match (address, other) {
        (ListenAddress::Tcp(a), ListenAddress::Tcp(b)) => {
            let is_any = a.ip().is_unspecified() || b.ip().is_unspecified();
            a.port() == b.port()
                && a.port() != 0
                && a.is_ipv4() == b.is_ipv4()
                && (is_any || a.ip() == b.ip())
        }
        (ListenAddress::Unix(path), ListenAddress::Unix(other)) => path == other,
        _ => false,
    }
}
