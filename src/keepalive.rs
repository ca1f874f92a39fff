//! TCP keepalive: a peer that vanished without closing its connection, with its power or its network, is noticed on a connection
//! on which nothing is sent.

use std::{io, os::fd::AsFd, time::Duration};

use socket2::{SockRef, TcpKeepalive};

/// The time without data after which a peer is probed.
const PROBED_AFTER: Duration = Duration::from_secs(60);
/// The time for the answer to a probe, and the number of probes without one after which the connection has failed.
const ANSWERED_WITHIN: Duration = Duration::from_secs(10);
const UNANSWERED_MOST: u32 = 6;

/// Probes silent peers of a connection, or of all connections that a listening socket accepts.
///
/// # Errors
/// The socket isn't one of TCP.
pub(crate) fn enable(socket: &impl AsFd) -> io::Result<()> {
    let probes = TcpKeepalive::new()
        .with_time(PROBED_AFTER)
        .with_interval(ANSWERED_WITHIN)
        .with_retries(UNANSWERED_MOST);
    SockRef::from(socket).set_tcp_keepalive(&probes)
}
