//! A gateway: the real binary, in a process of its own.

use std::{
    fs,
    io::{BufRead, BufReader},
    net::SocketAddr,
    process::{Child, Command, ExitStatus, Stdio},
};

use tempfile::TempDir;

use super::{
    client::{Answer, Client},
    signal, wait_until,
};

/// A gateway that listens. It is killed with this value.
pub(crate) struct Gateway {
    process: Child,
    folder: TempDir,
    address: SocketAddr,
}

impl Gateway {
    /// Starts a gateway with this configuration, on a free port.
    pub(crate) fn start(toml: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("gateway.toml"), toml).unwrap();
        let log = fs::File::create(folder.path().join("log")).unwrap();
        let mut process = Command::new(env!("CARGO_BIN_EXE_tollgate"))
            .args(["run", "--listen", "127.0.0.1:0"])
            .current_dir(&folder)
            .stdout(Stdio::piped())
            .stderr(log)
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(process.stdout.take().unwrap()).lines();
        let Some(Ok(line)) = lines.next() else {
            panic!("no gateway: {}", fs::read_to_string(folder.path().join("log")).unwrap());
        };
        let address = line.strip_prefix("tollgate listens on http://").expect(&line).parse().unwrap();
        Self { process, folder, address }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// A connection to it.
    pub(crate) fn client(&self) -> Client {
        Client::connect(self.address)
    }

    /// The answer to a GET on a connection of its own.
    pub(crate) fn get(&self, path: &str) -> Answer {
        self.client().get(path)
    }

    /// What it has logged so far.
    pub(crate) fn log(&self) -> String {
        fs::read_to_string(self.folder.path().join("log")).unwrap()
    }

    /// Replaces the configuration, and waits until the gateway has read it.
    pub(crate) fn reload(&self, toml: &str) {
        fs::write(self.folder.path().join("gateway.toml"), toml).unwrap();
        let outcomes =
            |log: &str| log.matches("reloaded `").count() + log.matches("the running one stays").count();
        let before = outcomes(&self.log());
        self.signal("HUP");
        wait_until("the gateway reloads", || outcomes(&self.log()) > before);
    }

    pub(crate) fn signal(&self, name: &str) {
        signal(name, self.process.id());
    }

    /// Its process, to read /proc of.
    pub(crate) fn process(&self) -> u32 {
        self.process.id()
    }

    /// How it ended, if it has.
    pub(crate) fn ended(&mut self) -> Option<ExitStatus> {
        self.process.try_wait().unwrap()
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
