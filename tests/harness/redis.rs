//! Redis servers started by a test: standalone, Cluster, Sentinels.

pub(crate) mod cluster;
pub(crate) mod sentinel;
pub(crate) mod tls;

use std::{
    env,
    net::{Ipv4Addr, SocketAddr, TcpListener},
    path::Path,
    process::{Child, Command, Stdio},
    sync::{
        LazyLock,
        atomic::{AtomicU32, Ordering::Relaxed},
    },
};

use tempfile::TempDir;

use super::{
    resp::{Connection, Value},
    signal, wait_until,
};

/// A server that is ready. Dropping it kills the process.
pub(crate) struct Redis {
    process: Option<Child>,
    port: u16,
    arguments: Vec<String>,
    folder: TempDir,
}

/// Returns a free port, which no other call here returns soon. It isn't one that the system gives
/// to connections, of which there are many while tests run.
pub(crate) fn free_port() -> u16 {
    const FIRST: u32 = 10_000;
    const PORTS: u32 = 20_000;
    static NEXT: LazyLock<AtomicU32> = LazyLock::new(|| AtomicU32::new(fastrand::u32(..PORTS)));
    let ports = (0..PORTS).map(|_| (FIRST + NEXT.fetch_add(1, Relaxed) % PORTS) as u16);
    let mut free = ports.filter(|port| TcpListener::bind((Ipv4Addr::LOCALHOST, *port)).is_ok());
    free.next().expect("one of them is free")
}

/// Returns an address at which nobody listens, nor will another test.
pub(crate) fn free_address() -> SocketAddr {
    (Ipv4Addr::LOCALHOST, free_port()).into()
}

impl Redis {
    /// Starts a server on a free port. A machine without redis-server fails the test.
    pub(crate) fn start() -> Self {
        Self::start_with(&[])
    }

    /// Starts a server with these additional arguments.
    pub(crate) fn start_with(arguments: &[&str]) -> Self {
        let arguments = arguments.iter().map(|&argument| argument.to_owned()).collect();
        let folder = tempfile::tempdir().unwrap();
        let mut redis = Self { process: None, port: free_port(), arguments, folder };
        redis.restart();
        redis
    }

    /// Returns a server that isn't running, on a port where it can be started.
    pub(crate) fn away() -> Self {
        let mut redis = Self::start();
        redis.kill();
        redis
    }

    /// Starts it (again), empty, on the same port.
    pub(crate) fn restart(&mut self) {
        self.launch();
        wait_until("redis-server answers", || self.try_command(&["PING"]) == "PONG");
    }

    /// Starts it (again) on the same port, and waits until it says that it is loading what it had saved.
    pub(crate) fn restart_loading(&mut self) {
        self.launch();
        wait_until("redis-server is loading", || self.try_command(&["PING"]).starts_with("LOADING"));
    }

    fn launch(&mut self) {
        // interop/stores.sh names others.
        let program = env::var_os("TOLLGATE_TEST_REDIS").unwrap_or("redis-server".into());
        let process = Command::new(program)
            .args([
                "--port",
                &self.port.to_string(),
                "--bind",
                "127.0.0.1",
                "--save",
                "",
                "--appendonly",
                "no",
                "--lazyfree-lazy-expire",
                "yes",
                "--dir",
                self.folder().to_str().unwrap(),
            ])
            .args(&self.arguments)
            .stdout(Stdio::null())
            .spawn()
            .expect("redis-server is needed: scripts/test.sh installs it");
        self.process = Some(process);
    }

    pub(crate) fn kill(&mut self) {
        if let Some(mut process) = self.process.take() {
            process.kill().unwrap();
            process.wait().unwrap();
        }
    }

    /// Stops the process, so that it keeps its connections and answers nothing.
    pub(crate) fn pause(&self) {
        signal("STOP", self.process.as_ref().unwrap().id());
    }

    pub(crate) fn resume(&self) {
        signal("CONT", self.process.as_ref().unwrap().id());
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// Returns the folder of its files.
    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Returns a field of its INFO.
    pub(crate) fn info(&self, field: &str) -> String {
        let info = self.command(&["INFO"]);
        let line = info.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
        line.unwrap_or_default().trim_end().to_owned()
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// Connects to the server, which is faster than [`Self::command`].
    pub(crate) fn connect(&self) -> Connection {
        Connection::connect(self.port)
    }

    /// Returns the `[store]` table for it, with a timeout that even a busy machine doesn't exceed.
    pub(crate) fn store(&self) -> String {
        format!("[store]\nurl = \"{}\"\ntimeout = \"5s\"\n", self.url())
    }

    /// Returns the reply to a command as redis-cli prints it without a terminal: a line for each value.
    pub(crate) fn command(&self, words: &[&str]) -> String {
        let answer = self.try_command(words);
        assert!(!answer.starts_with("ERR") && !answer.starts_with("WRONGTYPE"), "{words:?}: {answer}");
        answer
    }

    /// How many calls of a script it has run.
    pub(crate) fn scripts(&self) -> u64 {
        let stats = self.connect().command(&["INFO", "commandstats"]);
        let calls = stats.text().lines().filter_map(|line| {
            let of = line.strip_prefix("cmdstat_evalsha:calls=");
            of.or(line.strip_prefix("cmdstat_eval:calls="))?.split(',').next()?.parse::<u64>().ok()
        });
        calls.sum()
    }

    /// Returns the keys that match a pattern.
    pub(crate) fn keys(&self, pattern: &str) -> Vec<String> {
        self.command(&["KEYS", pattern]).lines().map(str::to_owned).collect()
    }

    /// Returns the reply to a command, which may be an error.
    pub(crate) fn try_command(&self, words: &[&str]) -> String {
        let port = self.port.to_string();
        let output = Command::new("redis-cli").args(["-p", &port]).args(words).output().unwrap();
        String::from_utf8(output.stdout).unwrap().trim_end().to_owned()
    }
}

/// Names the gateways' keys that have no expiry, but for the one that may lack it.
const LASTING: &str = "local lasting = {} for _, key in ipairs(redis.call('KEYS', 'tollgate:*')) do \
    if redis.call('PTTL', key) == -1 and key ~= 'tollgate:overrides' then table.insert(lasting, key) end end \
    return table.concat(lasting, ' ')";

/// No bucket is without an expiry after any test.
impl Drop for Redis {
    fn drop(&mut self) {
        // One that is gone, paused or demands a password can't be looked into.
        let mut lasting = None;
        if self.process.is_some() && !std::thread::panicking() {
            lasting = Connection::try_command(self.port, &["EVAL", LASTING, "0"]);
        }
        self.kill();
        if let Some(Value::Text(lasting)) = lasting {
            assert!(lasting.is_empty(), "buckets without an expiry: {:?}", str::from_utf8(&lasting));
        }
    }
}
