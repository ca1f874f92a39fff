//! Addresses, sockets and networks.

use std::{
    net::{IpAddr, SocketAddr},
    path::PathBuf,
};

use ipnet::IpNet;

use super::FromText;
use crate::ListenAddress;

/// The longest path of a unix socket on all supported systems.
pub(super) const UNIX_PATH_MOST: usize = 103;

impl FromText for SocketAddr {
    const EXPECTED: &'static str = "an address such as \"127.0.0.1:8080\"";

    fn read(text: &str) -> Result<Self, String> {
        text.parse().map_err(|_| {
            format!("`{text}` is not a valid listen address\nwrite an IP address and a port: \"127.0.0.1:8080\", \"0.0.0.0:8080\", \"[::1]:8080\"")
        })
    }
}

impl FromText for ListenAddress {
    const EXPECTED: &'static str = "an address such as \"127.0.0.1:8080\"";

    fn read(text: &str) -> Result<Self, String> {
        let Some(path) = text.strip_prefix("unix:") else {
            let more = match text.contains(',') {
                true => "; each of several by itself, in a list",
                false => "; or \"unix:/run/tollgate.sock\"",
            };
            let address = SocketAddr::read(text).map_err(|remedy| remedy + more)?;
            return Ok(Self::Tcp(address));
        };
        unix_path(path).map(Self::Unix).ok_or_else(|| {
            format!(
                "`{text}` is not a valid listen address\nwrite an absolute path of at most {UNIX_PATH_MOST} bytes: \"unix:/run/tollgate.sock\""
            )
        })
    }
}

/// Checks the path of a unix socket.
pub(super) fn unix_path(text: &str) -> Option<PathBuf> {
    (text.starts_with('/') && text.len() <= UNIX_PATH_MOST).then(|| text.into())
}

impl FromText for IpNet {
    const EXPECTED: &'static str = "a network such as \"10.0.0.0/8\"";

    fn read(text: &str) -> Result<Self, String> {
        let network = text.parse().or_else(|_| text.parse::<IpAddr>().map(Self::from));
        network.map_err(|_| {
            format!(
                "`{text}` is not a valid network\nwrite an address and a prefix length, at most 32 for IPv4 and 128 for IPv6: \"10.0.0.0/8\", \"2001:db8::/32\""
            )
        })
    }
}
