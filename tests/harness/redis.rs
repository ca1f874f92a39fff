//! A Redis server of the test's own.

use std::{
    net::{Ipv4Addr, TcpListener},
    process::{Child, Command, Stdio},
};

use super::{resp::Connection, signal, wait_until};

/// A server that answers. It is killed with this value.
pub(crate) struct Redis {
    process: Option<Child>,
    port: u16,
}

impl Redis {
    /// Starts a server on a free port. A machine without redis-server fails the test.
    pub(crate) fn start() -> Self {
        let free = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let mut redis = Self { process: None, port: free.local_addr().unwrap().port() };
        drop(free);
        redis.restart();
        redis
    }

    /// A server that isn't there, on a port where one can be started.
    pub(crate) fn away() -> Self {
        let mut redis = Self::start();
        redis.kill();
        redis
    }

    /// Starts it (again), empty, on the same port.
    pub(crate) fn restart(&mut self) {
        let process = Command::new("redis-server")
            .args([
                "--port",
                &self.port.to_string(),
                "--bind",
                "127.0.0.1",
                "--save",
                "",
                "--appendonly",
                "no",
            ])
            .stdout(Stdio::null())
            .spawn()
            .expect("redis-server is needed: scripts/test.sh installs it");
        self.process = Some(process);
        wait_until("redis-server answers", || self.try_command(&["PING"]) == "PONG");
    }

    pub(crate) fn kill(&mut self) {
        if let Some(mut process) = self.process.take() {
            process.kill().unwrap();
            process.wait().unwrap();
        }
    }

    /// Stops it, so that it keeps its connections and answers nothing.
    pub(crate) fn pause(&self) {
        signal("STOP", self.process.as_ref().unwrap().id());
    }

    pub(crate) fn resume(&self) {
        signal("CONT", self.process.as_ref().unwrap().id());
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// A connection to it, which is faster than [`Self::command`].
    pub(crate) fn connect(&self) -> Connection {
        Connection::connect(self.port)
    }

    /// The configuration's table for it, with a deadline that no busy machine exceeds.
    pub(crate) fn store(&self) -> String {
        format!("[store]\nurl = \"{}\"\ntimeout = \"5s\"\n", self.url())
    }

    /// The answer to a command, as redis-cli prints it to a program: a line for each value.
    pub(crate) fn command(&self, words: &[&str]) -> String {
        let answer = self.try_command(words);
        assert!(!answer.starts_with("ERR") && !answer.starts_with("WRONGTYPE"), "{words:?}: {answer}");
        answer
    }

    /// How many calls of a script it has run.
    pub(crate) fn scripts(&self) -> u64 {
        let stats = self.command(&["INFO", "commandstats"]);
        let calls = stats.lines().filter_map(|line| {
            let of = line.strip_prefix("cmdstat_evalsha:calls=");
            of.or(line.strip_prefix("cmdstat_eval:calls="))?.split(',').next()?.parse::<u64>().ok()
        });
        calls.sum()
    }

    /// Names of the keys of a pattern.
    pub(crate) fn keys(&self, pattern: &str) -> Vec<String> {
        self.command(&["KEYS", pattern]).lines().map(str::to_owned).collect()
    }

    fn try_command(&self, words: &[&str]) -> String {
        let port = self.port.to_string();
        let output = Command::new("redis-cli").args(["-p", &port]).args(words).output().unwrap();
        String::from_utf8(output.stdout).unwrap().trim_end().to_owned()
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        self.kill();
    }
}
