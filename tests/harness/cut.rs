//! A proxy in front of a server that breaks connections on demand.
//!
//! A broken connection stays broken, since TCP never loses bytes in the middle of a stream: a connection that has swallowed
//! bytes swallows all later ones until it is closed.

use std::{
    future::pending,
    net::{Ipv4Addr, SocketAddr},
    sync::{
        Arc,
        atomic::{AtomicU16, Ordering::SeqCst},
    },
    thread,
    time::Duration,
};

use socket2_v05::{Domain, SockRef, Socket, Type};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{
        TcpListener, TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
    runtime::Builder,
    sync::{mpsc, watch},
    time::{Instant, sleep_until},
};

/// The most pieces in transit in one direction.
const PIECES_MOST: usize = 1_024;

/// The fault of connections from now on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// None: everything passes.
    None,
    /// Data arrives this much later.
    Delay(Duration),
    /// Data is accepted, and none arrives in either direction.
    Swallow,
    /// Requests arrive, and no reply returns.
    SwallowReplies,
    /// Each connection is reset after this many more bytes of replies, before the next one.
    ResetAfter(usize),
    /// Replies are garbage.
    Garble,
    /// Connections are reset, and so are new ones once they are established.
    Reset,
    /// Connections are reset, and new ones refused.
    Refuse,
}

/// A proxy on its own port, in front of a server on this machine. Dropping it ends the proxy.
pub(crate) struct Cut {
    port: u16,
    server: Arc<AtomicU16>,
    fault: watch::Sender<Fault>,
    /// Keeps the port while the proxy doesn't listen.
    _port: Socket,
}

impl Cut {
    /// Starts a proxy without a fault, in front of the server on this port.
    pub(crate) fn before(server: u16) -> Self {
        let held = socket(0);
        let port = held.local_addr().unwrap().as_socket().unwrap().port();
        let (fault, faults) = watch::channel(Fault::None);
        let (first, server) = (listen(port), Arc::new(AtomicU16::new(server)));
        let leads_to = server.clone();
        thread::spawn(move || {
            let runtime = Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(run(first, port, leads_to, faults));
        });
        Self { port, server, fault, _port: held }
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// Returns the server's URL through the proxy.
    pub(crate) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// Leads new connections to another server, as a moved name or virtual address does.
    pub(crate) fn lead_to(&self, server: u16) {
        self.server.store(server, SeqCst);
    }

    /// Applies a fault to all connections, or lets new ones pass again.
    pub(crate) fn set(&self, fault: Fault) {
        self.fault.send_replace(fault);
    }
}

/// Binds a socket to the port, in addition to other sockets of this process, without listening.
fn socket(port: u16) -> Socket {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    socket.set_reuse_address(true).unwrap();
    socket.set_reuse_port(true).unwrap();
    socket.bind(&SocketAddr::from((Ipv4Addr::LOCALHOST, port)).into()).unwrap();
    socket
}

fn listen(port: u16) -> std::net::TcpListener {
    let listener = socket(port);
    listener.listen(128).unwrap();
    listener.set_nonblocking(true).unwrap();
    listener.into()
}

/// Serves until the [`Cut`] is dropped.
async fn run(
    first: std::net::TcpListener,
    port: u16,
    server: Arc<AtomicU16>,
    mut faults: watch::Receiver<Fault>,
) {
    let mut listener = Some(TcpListener::from_std(first).unwrap());
    loop {
        let accepted = async {
            match &listener {
                Some(listener) => listener.accept().await.unwrap().0,
                None => pending().await,
            }
        };
        tokio::select! {
            stream = accepted => {
                tokio::spawn(serve(stream, server.load(SeqCst), faults.clone()));
            }
            changed = faults.changed() => {
                if changed.is_err() {
                    return;
                }
                match *faults.borrow_and_update() {
                    Fault::Refuse => listener = None,
                    _ if listener.is_none() => listener = Some(TcpListener::from_std(listen(port)).unwrap()),
                    _ => {}
                }
            }
        }
    }
}

async fn serve(client: TcpStream, server: u16, mut faults: watch::Receiver<Fault>) {
    // To close it is to reset it.
    SockRef::from(&client).set_linger(Some(Duration::ZERO)).unwrap();
    let Ok(upstream) = TcpStream::connect((Ipv4Addr::LOCALHOST, server)).await else { return };
    client.set_nodelay(true).unwrap();
    upstream.set_nodelay(true).unwrap();
    let is_reset = |fault: &Fault| matches!(fault, Fault::Reset | Fault::Refuse);
    let (sent, replies) = (faults.clone(), faults.clone());
    let ((from_client, to_client), (from_server, to_server)) = (client.into_split(), upstream.into_split());
    let sent = Pump { from: from_client, to: to_server, faults: sent, are_replies: false };
    let replies = Pump { from: from_server, to: to_client, faults: replies, are_replies: true };
    tokio::select! {
        () = sent.run() => {}
        () = replies.run() => {}
        _ = faults.wait_for(is_reset) => {}
    }
}

/// One direction of a connection.
struct Pump {
    from: OwnedReadHalf,
    to: OwnedWriteHalf,
    faults: watch::Receiver<Fault>,
    are_replies: bool,
}

impl Pump {
    /// Copies bytes until either end, or a fault, closes the connection.
    async fn run(self) {
        let Self { from, to, faults, are_replies } = self;
        let (line, due) = mpsc::channel(PIECES_MOST);
        let reading = async move {
            read(from, faults, are_replies, line).await;
            // What is still on the line arrives.
            pending::<()>().await;
        };
        tokio::select! {
            () = reading => {}
            () = write(to, due) => {}
        }
    }
}

/// Bytes, and the time at which they arrive.
type Piece = (Instant, Vec<u8>);

async fn read(
    mut from: OwnedReadHalf,
    mut faults: watch::Receiver<Fault>,
    are_replies: bool,
    line: mpsc::Sender<Piece>,
) {
    let mut buffer = [0; 16 << 10];
    let mut fault = *faults.borrow_and_update();
    let (mut swallows, mut before_reset) = (false, None);
    loop {
        let Ok(length @ 1..) = from.read(&mut buffer).await else { return };
        if faults.has_changed().unwrap_or(false) {
            (fault, before_reset) = (*faults.borrow_and_update(), None);
        }
        let (mut passed, mut due) = (length, Instant::now());
        match fault {
            Fault::Swallow => swallows = true,
            Fault::SwallowReplies => swallows |= are_replies,
            Fault::Delay(delay) => due += delay,
            Fault::Garble if are_replies => buffer[..length].fill(b'?'),
            Fault::ResetAfter(bytes) if are_replies => {
                let left = before_reset.get_or_insert(bytes);
                passed = length.min(*left);
                *left -= passed;
            }
            _ => {}
        }
        if swallows {
            continue;
        }
        if line.send((due, buffer[..passed].to_vec())).await.is_err() || passed < length {
            return;
        }
    }
}

async fn write(mut to: OwnedWriteHalf, mut line: mpsc::Receiver<Piece>) {
    while let Some((due, bytes)) = line.recv().await {
        if due > Instant::now() {
            sleep_until(due).await;
        }
        if to.write_all(&bytes).await.is_err() {
            return;
        }
    }
}
