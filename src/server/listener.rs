//! Listening sockets: opened here, or passed by a supervisor (sd_listen_fds(3)), so that no connection is
//! refused during a restart.
//!
//! A socket from the supervisor is used for the configured address that it is bound to.

use std::{
    fs, io,
    net::{self, Ipv4Addr, SocketAddr},
    os::unix::{
        fs::{FileTypeExt, PermissionsExt},
        net as unix,
    },
    path::{Path, PathBuf},
};

use listenfd::ListenFd;
use socket2::SockRef;
use tokio::{
    net::{TcpListener, TcpSocket, UnixListener, UnixStream},
    select,
    task::yield_now,
};

use super::StartError;
use crate::{
    config::{Config, ListenAddress},
    keepalive,
};

/// The most bytes of a response in the system's send buffer. With more, a client that reads slowly would seem
/// not to read for minutes.
#[cfg(target_os = "linux")]
const UNSENT_BYTES: u32 = 128 << 10;

/// The length of the backlog. The system reduces it to its own limit (`net.core.somaxconn`). A shorter one
/// has no advantage: a client that finds it full retries only after a second.
const BACKLOG: i32 = i32::MAX;

/// The service that a listener is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Door {
    /// Forwarding requests of clients.
    Requests,
    /// Answering other proxies, which ask whether to forward a request.
    Decisions,
    /// Decisions for other proxies, always without TLS.
    PlainDecisions,
}

/// An address to listen on, and the service there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Entrance {
    pub(super) address: ListenAddress,
    pub(super) door: Door,
}

impl Entrance {
    /// Returns the entrances of a configuration.
    pub(super) fn all(config: &Config) -> impl Iterator<Item = Self> {
        let of = |door| move |address: &ListenAddress| Self { address: address.clone(), door };
        let decisions = config.decisions.iter().map(|decisions| &decisions.listen);
        let plain = config.decisions.iter().filter_map(|decisions| decisions.plain_listen.as_ref());
        let decisions = decisions.map(of(Door::Decisions)).chain(plain.map(of(Door::PlainDecisions)));
        config.server.listen.iter().map(of(Door::Requests)).chain(decisions)
    }
}

/// The listeners of a gateway.
pub(super) struct Listeners {
    /// The listeners for requests and decisions, with their configured entrances.
    pub(super) open: Vec<(Entrance, Listener)>,
    /// The listener for operators.
    pub(super) admin: Option<TcpListener>,
    /// The listener for the metrics alone.
    pub(super) metrics: Option<TcpListener>,
}

impl Listeners {
    /// Opens all listeners, using the sockets of the supervisor. Must be called in a tokio runtime.
    ///
    /// # Errors
    /// An address can't be listened on, or the configuration doesn't contain that of a socket.
    pub(super) async fn open(config: &Config) -> Result<Self, StartError> {
        let mut inherited = inherited().map_err(StartError::Inherited)?;
        let mut open = Vec::new();
        for entrance in Entrance::all(config) {
            let listener =
                Listener::open(&entrance.address, config.server.reuse_port, &mut inherited).await?;
            open.push((entrance, listener));
        }
        let address = config.admin.as_ref().map(|admin| admin.listen);
        let admin = Listener::open_tcp(address, &mut inherited).await?;
        let address = config.admin.as_ref().and_then(|admin| admin.metrics_listen);
        let metrics = Listener::open_tcp(address, &mut inherited).await?;
        match inherited.first() {
            Some(socket) => Err(StartError::Unnamed(socket.address()?)),
            None => Ok(Self { open, admin, metrics }),
        }
    }
}

/// Returns the sockets from the supervisor.
fn inherited() -> io::Result<Vec<Socket>> {
    let mut passed = ListenFd::from_env();
    let mut sockets = Vec::with_capacity(passed.len());
    for index in 0..passed.len() {
        if let Ok(Some(listener)) = passed.take_tcp_listener(index) {
            listener.set_nonblocking(true)?;
            sockets.push(Socket::Tcp(TcpListener::from_std(listener)?));
        } else if let Some(listener) = passed.take_unix_listener(index)? {
            listener.set_nonblocking(true)?;
            sockets.push(Socket::Unix(UnixListener::from_std(listener)?));
        }
    }
    Ok(sockets)
}

/// A listening socket.
pub(super) struct Listener {
    socket: Socket,
    /// The file of a unix socket that was opened here.
    file: Option<SocketFile>,
}

pub(super) enum Socket {
    Tcp(TcpListener),
    Unix(UnixListener),
}

/// The file of a unix socket. Dropping this removes it.
struct SocketFile(PathBuf);

impl Drop for SocketFile {
    fn drop(&mut self) {
        // Another process may have removed it.
        let _ = fs::remove_file(&self.0);
    }
}

/// An accepted connection.
pub(super) enum ClientStream {
    Tcp(net::TcpStream),
    Unix(unix::UnixStream),
}

impl Listener {
    /// Opens a socket at an address, if there is one.
    async fn open_tcp(
        address: Option<SocketAddr>,
        inherited: &mut Vec<Socket>,
    ) -> Result<Option<TcpListener>, StartError> {
        let Some(address) = address else { return Ok(None) };
        match Self::open(&ListenAddress::Tcp(address), false, inherited).await?.socket {
            Socket::Tcp(listener) => Ok(Some(listener)),
            Socket::Unix(_) => Ok(None),
        }
    }

    /// Takes the socket of this address from the supervisor's, or opens one, and sets the longest backlog. With `reuse_port`,
    /// other processes may listen on a TCP address, too.
    pub(super) async fn open(
        address: &ListenAddress,
        reuse_port: bool,
        inherited: &mut Vec<Socket>,
    ) -> Result<Self, StartError> {
        let has_address = |socket: &Socket| socket.address().is_ok_and(|own| own == *address);
        let opened = match (inherited.iter().position(has_address), address) {
            (Some(place), _) => Ok(Self { socket: inherited.swap_remove(place), file: None }),
            (None, ListenAddress::Tcp(address)) => bind_tcp(*address, reuse_port)
                .map(|listener| Self { socket: Socket::Tcp(listener), file: None }),
            (None, ListenAddress::Unix(path)) => bind_unix(path).await.map(|listener| Self {
                socket: Socket::Unix(listener),
                file: Some(SocketFile(path.clone())),
            }),
        };
        let listening = opened.and_then(|listener| listener.socket.listen().map(|()| listener));
        listening.map_err(|cause| StartError::Listen(address.clone(), cause))
    }

    /// Returns the address, with the port that the system chose.
    pub(super) fn address(&self) -> io::Result<ListenAddress> {
        self.socket.address()
    }

    /// Removes the file of a unix socket, so that another gateway can listen at its path. Connections in the
    /// backlog remain.
    pub(super) fn hide(&mut self) {
        self.file = None;
    }

    /// Waits for a connection and returns it with its peer. A peer on a unix socket counts as 127.0.0.1.
    pub(super) async fn accept(&self) -> io::Result<(ClientStream, SocketAddr)> {
        match &self.socket {
            Socket::Tcp(listener) => {
                let (stream, peer) = listener.accept().await?;
                // Without it, a response in two writes would wait for the client's delayed acknowledgement.
                // If the client has left, the error doesn't matter.
                let _ = stream.set_nodelay(true);
                #[cfg(target_os = "linux")]
                let _ = SockRef::from(&stream).set_tcp_notsent_lowat(UNSENT_BYTES);
                Ok((ClientStream::Tcp(stream.into_std()?), peer))
            }
            Socket::Unix(listener) => {
                let (stream, _) = listener.accept().await?;
                Ok((ClientStream::Unix(stream.into_std()?), (Ipv4Addr::LOCALHOST, 0).into()))
            }
        }
    }

    /// Returns the next connection of the backlog, if there is one.
    pub(super) async fn accept_waiting(&self) -> Option<io::Result<(ClientStream, SocketAddr)>> {
        select! {
            biased;
            accepted = self.accept() => Some(accepted),
            // Yielding makes the runtime ask the system for events.
            () = yield_now() => None,
        }
    }
}

impl Socket {
    /// Sets the [backlog](BACKLOG), and keepalive for the connections it accepts. The socket listens already, with tokio's backlog of
    /// 128 or with its supervisor's.
    fn listen(&self) -> io::Result<()> {
        match self {
            Self::Tcp(listener) => {
                keepalive::enable(listener)?;
                SockRef::from(listener).listen(BACKLOG)
            }
            Self::Unix(listener) => SockRef::from(listener).listen(BACKLOG),
        }
    }

    fn address(&self) -> io::Result<ListenAddress> {
        match self {
            Self::Tcp(listener) => listener.local_addr().map(ListenAddress::Tcp),
            Self::Unix(listener) => {
                let address = listener.local_addr()?;
                Ok(ListenAddress::Unix(address.as_pathname().unwrap_or(Path::new("")).to_owned()))
            }
        }
    }
}

/// Opens a socket for a TCP address.
fn bind_tcp(address: SocketAddr, reuse_port: bool) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    // Connections of an earlier process may still be closing.
    socket.set_reuseaddr(true)?;
    socket.set_reuseport(reuse_port)?;
    socket.bind(address)?;
    socket.listen(BACKLOG as u32)
}

/// Opens a unix socket. Replaces the file of a gateway that was killed.
async fn bind_unix(path: &Path) -> io::Result<UnixListener> {
    let is_socket = fs::symlink_metadata(path).is_ok_and(|file| file.file_type().is_socket());
    if is_socket
        && UnixStream::connect(path)
            .await
            .is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused)
    {
        fs::remove_file(path)?;
    }
    let listener = UnixListener::bind(path)?;
    // The permissions of the folder decide about access, independently of the umask.
    fs::set_permissions(path, fs::Permissions::from_mode(0o666))?;
    Ok(listener)
}
