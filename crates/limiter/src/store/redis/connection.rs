//! A connection to one server, made and kept by fred's client.
//!
//! The client restores it for as long as it takes. It sends nothing twice, and nothing while it isn't
//! connected. A primary that Sentinels name is looked for again whenever the connection breaks.

use std::{
    future::ready,
    sync::{Arc, Weak},
    time::Duration,
};

use fred::{
    clients::Client,
    error::{Error, ErrorKind},
    interfaces::{ClientLike, EventInterface},
    types::{
        Builder, ClusterHash, CustomCommand, Value,
        config::{
            Config, ConnectionConfig, Options, ReconnectPolicy, Server, ServerConfig, TcpConfig, TlsConfig,
        },
    },
};
use parking_lot::Mutex;
use socket2_v05::TcpKeepalive;
use tokio::{
    sync::broadcast::{self, error::TryRecvError},
    task::JoinHandle,
    time::{Instant, timeout, timeout_at},
};

use super::{
    StoreError,
    node::SharedNode,
    replicas::Replicas,
    tls::ClientTls,
    trouble::told,
    url::{Endpoint, RedisLogin, RedisServers, RedisUrl},
};

pub(super) const CONNECT_TIMEOUT: Duration = Duration::from_millis(500);
/// The client takes a timeout of zero for none.
pub(super) const SHORTEST_WAIT: Duration = Duration::from_millis(1);
/// The time after which a peer that acknowledges no sent bytes is given up.
const VANISHED_AFTER: Duration = Duration::from_secs(2);
const KEEPALIVE_AFTER: Duration = Duration::from_secs(5);
/// Between attempts to connect, at the least and at the most, and what is added to it by chance.
const RECONNECT_MS: (u32, u32) = (2, 100);
const RECONNECT_JITTER_MS: u32 = 10;

/// The settings of connections to servers: the part of a URL that all of them share.
#[derive(Clone)]
pub(super) struct Access {
    pub(super) base: Config,
    /// The server's name in its certificate. `None` if it is the host.
    server_name: Option<String>,
    /// The beginning of all keys.
    pub(super) key_prefix: Arc<str>,
}

impl Access {
    /// # Errors
    /// The files of `tls` can't be used together.
    pub(super) fn new(url: &RedisUrl, tls: Option<&ClientTls>, key_prefix: &str) -> Result<Self, StoreError> {
        let RedisLogin { user, password } = url.login.clone();
        let mut base = Config { username: user, password, database: url.database, ..Config::default() };
        if url.tls {
            let client = tls.map_or_else(|| ClientTls::default().client(), ClientTls::client);
            let client = client.map_err(|error| Error::new(ErrorKind::Tls, error.to_string()));
            base.tls = Some(TlsConfig::from(client.map_err(StoreError::Connection)?));
        }
        // The client's task would end for good if the server were away at the start.
        base.fail_fast = false;
        let server_name = tls.and_then(|tls| tls.server_name.as_ref());
        let server_name = server_name.map(|name| name.to_str().into_owned());
        Ok(Self { base, server_name, key_prefix: key_prefix.into() })
    }

    /// Access to one server.
    pub(super) fn to(&self, endpoint: &Endpoint) -> Config {
        let Endpoint { host, port } = endpoint;
        let server = Server::new_with_tls(host.clone(), *port, self.server_name.clone());
        Config { server: ServerConfig::Centralized { server }, ..self.base.clone() }
    }

    /// Access to the servers of a URL. Those of a Cluster have a connection each, see [`Self::to`].
    pub(super) fn to_servers(&self, servers: &RedisServers) -> Config {
        let server = match servers {
            RedisServers::One(endpoint) => return self.to(endpoint),
            RedisServers::Cluster(endpoints) => return self.to(&endpoints[0]),
            RedisServers::Socket(path) => ServerConfig::Unix { path: path.clone() },
            RedisServers::Sentinel { sentinels, service, login } => ServerConfig::Sentinel {
                hosts: sentinels
                    .iter()
                    .map(|Endpoint { host, port }| Server::new(host.clone(), *port))
                    .collect(),
                service_name: service.clone(),
                username: login.user.clone(),
                password: login.password.clone(),
            },
        };
        Config { server, ..self.base.clone() }
    }
}

/// A connection, and the task that drives it.
pub(super) struct Connection {
    pub(super) client: Client,
    pub(super) task: JoinHandle<Result<(), Error>>,
    /// The replicas that decisions wait for, if they do.
    pub(super) replicas: Option<Arc<Replicas>>,
    server: Mutex<LastServer>,
}

/// The server that a client is connected to. The client names it each time that it connects.
struct LastServer {
    named: broadcast::Receiver<Server>,
    last: Option<Server>,
}

impl Connection {
    /// Returns a connection that is restored whenever it breaks. The node learns why it can't be made.
    pub(super) fn start(config: &Config, shared: Weak<SharedNode>) -> Self {
        let mut builder = builder(config.clone());
        let (least, most) = RECONNECT_MS;
        let mut policy = ReconnectPolicy::new_exponential(0, least, most, 2);
        policy.set_jitter(RECONNECT_JITTER_MS);
        builder.set_policy(policy);
        let replicas = shared.upgrade().and_then(|shared| shared.replicas.get().cloned());
        let mut connection = Self::run(&builder, move |error, server| {
            let shared = shared.upgrade().ok_or_else(Error::new_canceled)?;
            // The client names the server whose connection was lost, and none if it couldn't make one.
            match server {
                Some(_) => shared.trouble.say_error(&error),
                None => shared.note_unreachable(error),
            }
            Ok(())
        });
        connection.replicas = replicas;
        connection
    }

    /// A connection that is made once: the task ends with it.
    pub(super) fn once(config: &Config) -> Self {
        let mut config = config.clone();
        config.fail_fast = true;
        Self::run(&builder(config), |_, _| Ok(()))
    }

    fn run(
        builder: &Builder,
        note: impl Fn(Error, Option<Server>) -> Result<(), Error> + Send + Sync + 'static,
    ) -> Self {
        let client = builder.build().expect("a configuration with servers builds");
        // Why it can't connect is told here alone: commands only say that there is no connection.
        client.on_error(move |(error, server)| ready(note(error, server)));
        let server = Mutex::new(LastServer { named: client.reconnect_rx(), last: None });
        let task = client.connect();
        Self { client, task, replicas: None, server }
    }

    /// Returns the server that it is connected to, or was before it broke. The client's own list of connections needs the right to
    /// CLIENT ID.
    pub(super) fn server(&self) -> Option<Server> {
        let mut server = self.server.lock();
        loop {
            match server.named.try_recv() {
                Ok(named) => server.last = Some(named),
                Err(TryRecvError::Lagged(_)) => {}
                Err(TryRecvError::Empty | TryRecvError::Closed) => return server.last.clone(),
            }
        }
    }

    pub(super) fn is_connected(&self) -> bool {
        self.client.is_connected()
    }

    /// Waits until it is connected, which it mostly is.
    pub(super) async fn connected(&self, deadline: Instant) -> Result<(), StoreError> {
        if self.is_connected() {
            return Ok(());
        }
        match timeout_at(deadline, self.client.wait_for_connect()).await {
            Ok(connected) => connected.map_err(failure),
            Err(_) => Err(StoreError::Timeout),
        }
    }

    /// Waits until one that is made [once](Self::once) is connected, or has ended, which says why.
    pub(super) async fn made(&mut self) -> Result<(), StoreError> {
        let client = self.client.clone();
        tokio::select! {
            biased;
            ended = &mut self.task => {
                let ended = ended.map_err(|_| Error::new_canceled()).flatten();
                Err(failure(ended.err().unwrap_or_else(Error::new_canceled)))
            }
            connected = timeout(CONNECT_TIMEOUT, client.wait_for_connect()) => match connected {
                Ok(connected) => connected.map_err(failure),
                Err(_) => Err(StoreError::Timeout),
            },
        }
    }

    pub(super) async fn command(
        &self,
        name: &'static str,
        arguments: Vec<Value>,
        wait: Duration,
    ) -> Result<Value, Error> {
        self.send(CustomCommand::new_static(name, ClusterHash::FirstKey, false), arguments, wait).await
    }

    /// Sends a command once, or not at all while the connection is down.
    pub(super) async fn send(
        &self,
        command: CustomCommand,
        arguments: Vec<Value>,
        wait: Duration,
    ) -> Result<Value, Error> {
        let options =
            Options { fail_fast: true, max_attempts: Some(1), timeout: Some(wait), ..Options::default() };
        self.client.with_options(&options).custom(command, arguments).await
    }

    /// Sends a command right after ASKING, to a server that a slot is moving to. Both are in the client's
    /// queue before anything else can be; and a server that didn't hear the one refuses the other.
    pub(super) async fn send_asking(
        &self,
        command: CustomCommand,
        arguments: Vec<Value>,
        wait: Duration,
    ) -> Result<Value, Error> {
        let asking = self.command("ASKING", Vec::new(), wait);
        let (_, answer) = tokio::join!(biased; asking, self.send(command, arguments, wait));
        answer
    }

    pub(super) async fn ping(&self, wait: Duration) -> Result<(), Error> {
        self.command("PING", Vec::new(), wait).await.map(drop)
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.task.abort();
    }
}

fn builder(mut config: Config) -> Builder {
    if let ServerConfig::Sentinel { hosts, .. } = &mut config.server {
        // The client believes the first that answers.
        fastrand::shuffle(hosts);
    }
    let mut builder = Builder::from_config(config);
    builder.set_connection_config(ConnectionConfig {
        connection_timeout: CONNECT_TIMEOUT,
        internal_command_timeout: CONNECT_TIMEOUT,
        // A bounded buffer breaks the client for good; what is bounded is what waits before it.
        max_command_buffer_len: 0,
        // None breaks the connection, which other calls are in flight on.
        reconnect_errors: Vec::new(),
        tcp: TcpConfig {
            nodelay: Some(true),
            user_timeout: Some(VANISHED_AFTER),
            keepalive: Some(TcpKeepalive::new().with_time(KEEPALIVE_AFTER).with_interval(VANISHED_AFTER)),
            ..TcpConfig::default()
        },
        ..ConnectionConfig::default()
    });
    builder
}

/// Returns the error of a command: of the server, which says nothing of the connection, or of the connection.
pub(super) fn failure(error: Error) -> StoreError {
    match error.kind() {
        ErrorKind::Timeout => StoreError::Timeout,
        ErrorKind::IO
        | ErrorKind::Protocol
        | ErrorKind::Canceled
        | ErrorKind::Routing
        | ErrorKind::Tls
        | ErrorKind::Sentinel => StoreError::Connection(error),
        // A client whose task has ended says so. (A server's ERR is of the same kind.)
        ErrorKind::Unknown if error.details().contains("send command to router") => {
            StoreError::Connection(error)
        }
        _ => StoreError::Answer(error),
    }
}

pub(super) fn describe(error: &StoreError) -> String {
    match error {
        StoreError::Connection(cause) | StoreError::Answer(cause) => format!("{error}: {}", told(cause)),
        _ => error.to_string(),
    }
}
