//! The address of a server: a unix socket, or the IP addresses of its name.
//!
//! Names are resolved periodically in the background, so only the first requests wait for it. The last good answer is used until
//! there is another. Connections rotate through the addresses. An address that couldn't be reached is tried last, until the name
//! is resolved again.

use std::{
    fmt, io,
    net::{IpAddr, SocketAddr},
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use arc_swap::ArcSwap;
use smallvec::SmallVec;
use tokio::{
    net::{TcpStream, lookup_host},
    sync::watch,
    time::{Instant, sleep, timeout, timeout_at},
};

use crate::config::ServerUrl;

use super::{Failure, pool::UpstreamServer};

/// The interval at which names are resolved. The system doesn't report their time to live.
const RESOLVE_EVERY: Duration = Duration::from_secs(10);
/// The interval while a name has no address.
const RESOLVE_SOON: Duration = Duration::from_secs(1);

/// The address of a server.
#[derive(Debug)]
pub enum ServerAddress {
    /// The path of a unix socket.
    Unix(PathBuf),
    /// IP addresses.
    Tcp(Addresses),
}

/// The addresses of a name, or the single address in the URL.
#[derive(Debug)]
pub struct Addresses {
    /// `None` if the URL has an address.
    name: Option<(String, u16)>,
    known: ArcSwap<Vec<Arc<Address>>>,
    /// True once the name has been resolved, also if it has no address.
    was_resolved: watch::Sender<bool>,
    next: AtomicUsize,
}

/// An address of a name.
#[derive(Debug)]
pub struct Address {
    socket: SocketAddr,
    is_unreachable: AtomicBool,
    is_gone: AtomicBool,
}

impl Address {
    /// Returns true if the name no longer has this address.
    pub fn is_gone(&self) -> bool {
        self.is_gone.load(Relaxed)
    }
}

impl ServerAddress {
    /// Reads the host of a URL.
    pub fn of(url: &ServerUrl) -> Self {
        match url {
            ServerUrl::Unix(path) => Self::Unix(path.clone()),
            ServerUrl::Tcp { host, port, .. } => Self::Tcp(Addresses::of(host, *port)),
        }
    }

    /// Returns the addresses of its name, if it has a name.
    pub fn named(&self) -> Option<&Addresses> {
        match self {
            Self::Tcp(addresses) if addresses.name.is_some() => Some(addresses),
            _ => None,
        }
    }
}

impl fmt::Display for ServerAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix(path) => path.display().fmt(f),
            Self::Tcp(addresses) => {
                let known = addresses.known.load();
                let sockets: Vec<_> = known.iter().map(|address| address.socket.to_string()).collect();
                f.write_str(&sockets.join(","))
            }
        }
    }
}

impl Addresses {
    fn of(host: &str, port: u16) -> Self {
        let written = host.parse::<IpAddr>().ok().map(|ip| Address::new((ip, port).into()));
        Self {
            name: written.is_none().then(|| (host.to_owned(), port)),
            was_resolved: watch::Sender::new(written.is_some()),
            known: ArcSwap::from_pointee(written.into_iter().map(Arc::new).collect()),
            next: AtomicUsize::new(0),
        }
    }

    /// Connects to one of the addresses.
    ///
    /// # Errors
    /// No address can be reached in time, or there is none.
    pub async fn connect(&self, deadline: Instant) -> Result<(TcpStream, Arc<Address>), Failure> {
        if self.known.load().is_empty() {
            let mut was_resolved = self.was_resolved.subscribe();
            let resolved = timeout_at(deadline, was_resolved.wait_for(|was_resolved| *was_resolved)).await;
            resolved.map_err(|_| Failure::ConnectTimeout)?.expect("the sender is here");
        }
        let addresses = self.in_turn();
        let mut failure = Failure::Unresolved;
        for (at, address) in addresses.iter().enumerate() {
            // The remaining time is divided among the remaining addresses.
            let part = (deadline - Instant::now()) / (addresses.len() - at) as u32;
            failure = match timeout(part, TcpStream::connect(address.socket)).await {
                Ok(Ok(stream)) => return Ok((stream, address.clone())),
                Ok(Err(cause)) => Failure::Unreachable(cause),
                Err(_) => Failure::ConnectTimeout,
            };
            address.is_unreachable.store(true, Relaxed);
        }
        Err(failure)
    }

    fn in_turn(&self) -> SmallVec<[Arc<Address>; 4]> {
        let known = self.known.load();
        let first = self.next.fetch_add(1, Relaxed) % known.len().max(1);
        let mut addresses: SmallVec<[_; 4]> = known[first..].iter().chain(&known[..first]).cloned().collect();
        addresses.sort_by_key(|address| address.is_unreachable.load(Relaxed));
        addresses
    }

    async fn resolve(&self) -> io::Result<()> {
        let Some((host, port)) = &self.name else { return Ok(()) };
        let found = lookup_host((host.as_str(), *port)).await.map(Iterator::collect::<Vec<_>>);
        if let Ok(found) = &found
            && !found.is_empty()
        {
            self.replace(found);
        }
        self.was_resolved.send_replace(true);
        found.map(drop)
    }

    /// Replaces the known addresses.
    fn replace(&self, found: &[SocketAddr]) {
        let known = self.known.load();
        let mut addresses = Vec::<Arc<Address>>::with_capacity(found.len());
        for socket in found {
            if addresses.iter().all(|address| address.socket != *socket) {
                let address = known.iter().find(|address| address.socket == *socket);
                addresses.push(address.cloned().unwrap_or_else(|| Arc::new(Address::new(*socket))));
            }
        }
        addresses.iter().for_each(|address| address.is_unreachable.store(false, Relaxed));
        for gone in known.iter().filter(|address| !found.contains(&address.socket)) {
            gone.is_gone.store(true, Relaxed);
        }
        self.known.store(Arc::new(addresses));
    }
}

impl Address {
    fn new(socket: SocketAddr) -> Self {
        Self { socket, is_unreachable: AtomicBool::new(false), is_gone: AtomicBool::new(false) }
    }
}

/// Resolves the name of a server periodically, until the future is dropped.
pub async fn resolve(upstream: String, server: Arc<UpstreamServer>) {
    let Some(addresses) = server.location().named() else { return };
    let mut was_good = true;
    loop {
        let resolved = addresses.resolve().await;
        match &resolved {
            Err(cause) if was_good => {
                tracing::warn!(upstream, server = %server.url(), "can't resolve the server's name: {cause}");
            }
            Ok(()) if !was_good => {
                tracing::info!(upstream, server = %server.url(), "the server's name can be resolved again");
            }
            _ => {}
        }
        was_good = resolved.is_ok();
        let has_some = !addresses.known.load().is_empty();
        sleep(if has_some { RESOLVE_EVERY } else { RESOLVE_SOON }).await;
    }
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;

    fn sockets(addresses: &[&str]) -> Vec<SocketAddr> {
        addresses.iter().map(|address| address.parse().unwrap()).collect()
    }

    fn turn(addresses: &Addresses) -> Vec<String> {
        addresses.in_turn().iter().map(|address| address.socket.to_string()).collect()
    }

    #[test]
    fn each_address_has_its_turn_and_unreachable_ones_come_last() {
        let addresses = Addresses::of("orders.internal", 1);
        addresses.replace(&sockets(&["10.0.0.1:1", "10.0.0.2:1", "10.0.0.1:1"]));
        assert_eq!(turn(&addresses), ["10.0.0.1:1", "10.0.0.2:1"]);
        assert_eq!(turn(&addresses), ["10.0.0.2:1", "10.0.0.1:1"]);
        addresses.known.load()[0].is_unreachable.store(true, Relaxed);
        assert_eq!(turn(&addresses), ["10.0.0.2:1", "10.0.0.1:1"]);
        addresses.replace(&sockets(&["10.0.0.1:1", "10.0.0.2:1"]));
        assert_eq!([turn(&addresses), turn(&addresses)].concat()[0], "10.0.0.2:1");
    }

    #[test]
    fn an_address_that_is_not_the_names_any_more_is_gone() {
        let addresses = Addresses::of("orders.internal", 1);
        addresses.replace(&sockets(&["10.0.0.1:1", "10.0.0.2:1"]));
        let known = addresses.known.load_full();
        addresses.replace(&sockets(&["10.0.0.2:1", "10.0.0.3:1"]));
        assert_eq!([known[0].is_gone(), known[1].is_gone()], [true, false]);
        assert!(Arc::ptr_eq(&known[1], &addresses.known.load()[0]));
    }

    #[tokio::test]
    async fn an_address_that_refuses_is_passed_over() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let live = listener.local_addr().unwrap();
        let addresses = Addresses::of("localhost", live.port());
        let dead = ([127, 0, 0, 2], live.port()).into();
        addresses.replace(&[dead, live]);
        let deadline = || Instant::now() + Duration::from_secs(10);
        for _ in 0..4 {
            let (stream, _) = addresses.connect(deadline()).await.unwrap();
            assert_eq!(stream.peer_addr().unwrap(), live);
        }
        addresses.replace(&[dead]);
        assert!(matches!(addresses.connect(deadline()).await, Err(Failure::Unreachable(_))));
    }

    #[tokio::test]
    async fn a_name_without_an_address_fails_once_that_is_known() {
        let addresses = Addresses::of("no-such-name.invalid", 1);
        assert!(addresses.resolve().await.is_err());
        let deadline = Instant::now() + Duration::from_secs(10);
        assert!(matches!(addresses.connect(deadline).await, Err(Failure::Unresolved)));
    }

    #[tokio::test]
    async fn a_failure_leaves_the_last_good_answer() {
        let addresses = Addresses::of("no-such-name.invalid", 1);
        addresses.replace(&sockets(&["10.0.0.1:1"]));
        assert!(addresses.resolve().await.is_err());
        assert_eq!(turn(&addresses), ["10.0.0.1:1"]);
    }
}
