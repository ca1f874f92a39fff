//! Where connections come from: sockets that are bound here, or that a supervisor holds and hands on
//! (sd_listen_fds(3)), so that none who connects during a restart is turned away.
//!
//! A socket that is handed on is the one that the configuration would have bound: it is told by its address.

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
    net::{TcpListener, UnixListener, UnixStream},
    select,
    task::yield_now,
};

use super::StartError;
use crate::config::{Config, ListenAddress};

/// What the system buffers of an answer while the client takes no more. With more of it a client who reads slowly
/// would seem to take nothing for minutes.
#[cfg(target_os = "linux")]
const UNSENT_BYTES: u32 = 128 << 10;

/// Connections that may wait to be accepted. The system lowers it to what it allows (`net.core.somaxconn`): there is no
/// reason for less, since a client that finds no room waits a second until it tries again.
const BACKLOG: i32 = i32::MAX;

/// The service that a listener is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Door {
    /// Forwarding requests of clients.
    Requests,
    /// Answering other proxies, which ask whether to forward a request.
    Decisions,
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
        config.server.listen.iter().map(of(Door::Requests)).chain(decisions.map(of(Door::Decisions)))
    }
}

/// All listeners of a gateway.
pub(super) struct Listeners {
    /// For requests and decisions, with their addresses as the configuration has them.
    pub(super) open: Vec<(Entrance, Listener)>,
    /// For operators.
    pub(super) admin: Option<TcpListener>,
}

impl Listeners {
    /// Takes what the supervisor holds, and listens on all else. Must be called in a tokio runtime.
    ///
    /// # Errors
    /// An address that can't be listened on, or a socket that the configuration doesn't name.
    pub(super) async fn open(config: &Config) -> Result<Self, StartError> {
        let mut inherited = inherited().map_err(StartError::Inherited)?;
        let mut open = Vec::new();
        for entrance in Entrance::all(config) {
            let listener = Listener::open(&entrance.address, &mut inherited).await?;
            open.push((entrance, listener));
        }
        let mut admin = None;
        if let Some(config) = &config.admin {
            let listener = Listener::open(&ListenAddress::Tcp(config.listen), &mut inherited).await?;
            if let Socket::Tcp(listener) = listener.socket {
                admin = Some(listener);
            }
        }
        match inherited.first() {
            Some(socket) => Err(StartError::Unnamed(socket.address()?)),
            None => Ok(Self { open, admin }),
        }
    }
}

/// What the supervisor has handed on.
fn inherited() -> io::Result<Vec<Socket>> {
    let mut handed = ListenFd::from_env();
    let mut sockets = Vec::with_capacity(handed.len());
    for index in 0..handed.len() {
        if let Ok(Some(listener)) = handed.take_tcp_listener(index) {
            listener.set_nonblocking(true)?;
            sockets.push(Socket::Tcp(TcpListener::from_std(listener)?));
        } else if let Some(listener) = handed.take_unix_listener(index)? {
            listener.set_nonblocking(true)?;
            sockets.push(Socket::Unix(UnixListener::from_std(listener)?));
        }
    }
    Ok(sockets)
}

/// A socket that listens.
pub(super) struct Listener {
    socket: Socket,
    /// A unix socket's that was bound here.
    file: Option<File>,
}

pub(super) enum Socket {
    Tcp(TcpListener),
    Unix(UnixListener),
}

/// A unix socket's file. It is removed with this value.
struct File(PathBuf);

impl Drop for File {
    fn drop(&mut self) {
        // It may have been removed by somebody else.
        let _ = fs::remove_file(&self.0);
    }
}

/// A connection that was accepted.
pub(super) enum Stream {
    Tcp(net::TcpStream),
    Unix(unix::UnixStream),
}

impl Listener {
    /// Takes the socket of this address from those that were handed on, or binds it, and gives it the longest backlog.
    pub(super) async fn open(
        address: &ListenAddress,
        inherited: &mut Vec<Socket>,
    ) -> Result<Self, StartError> {
        let is_it = |socket: &Socket| socket.address().is_ok_and(|own| own == *address);
        let opened = match (inherited.iter().position(is_it), address) {
            (Some(place), _) => Ok(Self { socket: inherited.swap_remove(place), file: None }),
            (None, ListenAddress::Tcp(address)) => TcpListener::bind(address)
                .await
                .map(|listener| Self { socket: Socket::Tcp(listener), file: None }),
            (None, ListenAddress::Unix(path)) => bind_unix(path)
                .await
                .map(|listener| Self { socket: Socket::Unix(listener), file: Some(File(path.clone())) }),
        };
        let listening = opened.and_then(|listener| listener.socket.listen().map(|()| listener));
        listening.map_err(|cause| StartError::Listen(address.clone(), cause))
    }

    /// Its address, with the port that the system chose.
    pub(super) fn address(&self) -> io::Result<ListenAddress> {
        self.socket.address()
    }

    /// Nobody finds it any more; another gateway may listen there. Who has connected waits to be accepted.
    pub(super) fn hide(&mut self) {
        self.file = None;
    }

    /// The next connection, and who made it. Who comes by a unix socket is on this machine.
    pub(super) async fn accept(&self) -> io::Result<(Stream, SocketAddr)> {
        match &self.socket {
            Socket::Tcp(listener) => {
                let (stream, peer) = listener.accept().await?;
                // Without it, an answer in two writes waits for the client's delayed acknowledgement. A client that
                // has gone doesn't care.
                let _ = stream.set_nodelay(true);
                #[cfg(target_os = "linux")]
                let _ = SockRef::from(&stream).set_tcp_notsent_lowat(UNSENT_BYTES);
                Ok((Stream::Tcp(stream.into_std()?), peer))
            }
            Socket::Unix(listener) => {
                let (stream, _) = listener.accept().await?;
                Ok((Stream::Unix(stream.into_std()?), (Ipv4Addr::LOCALHOST, 0).into()))
            }
        }
    }

    /// The next connection, if one waits to be accepted.
    pub(super) async fn accept_waiting(&self) -> Option<io::Result<(Stream, SocketAddr)>> {
        select! {
            biased;
            accepted = self.accept() => Some(accepted),
            // By then the runtime has asked the system for news.
            () = yield_now() => None,
        }
    }
}

impl Socket {
    /// Sets the [backlog](BACKLOG). The socket listens already, with tokio's backlog of 128 or with its supervisor's.
    fn listen(&self) -> io::Result<()> {
        match self {
            Self::Tcp(listener) => SockRef::from(listener).listen(BACKLOG),
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

/// The file of a gateway that was killed is replaced.
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
    // Its folder says who may use it, whatever the process leaves out of the permissions of new files.
    fs::set_permissions(path, fs::Permissions::from_mode(0o666))?;
    Ok(listener)
}
