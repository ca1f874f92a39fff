//! A gateway: the real binary, in its own process.

use std::{
    fs,
    io::{BufRead, BufReader},
    net::SocketAddr,
    os::fd::OwnedFd,
    path::Path,
    process::{Child, Command, ExitStatus, Stdio},
    time::Duration,
};

use tempfile::TempDir;

use super::{
    client::{Answer, Client},
    signal, wait_until,
};

/// A gateway that listens. Dropping it kills the process.
pub(crate) struct Gateway {
    process: Child,
    folder: TempDir,
    address: SocketAddr,
    greeting: String,
}

impl Gateway {
    /// Starts a gateway with this configuration, on a free port.
    pub(crate) fn start(toml: &str) -> Self {
        Self::start_with(toml, &["run", "--listen", "127.0.0.1:0"], &[])
    }

    /// Starts a gateway with this gateway.toml, these arguments and these variables.
    pub(crate) fn start_with(toml: &str, arguments: &[&str], variables: &[(&str, &str)]) -> Self {
        Self::spawn(toml, |log| {
            let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
            command.args(arguments).envs(variables.iter().copied());
            command.stderr(fs::File::create(log).unwrap());
            command
        })
    }

    /// Starts a gateway with this file as /etc/hosts, in its own mount namespace, which needs no root.
    pub(crate) fn start_with_hosts(toml: &str, hosts: &Path) -> Self {
        let is_there = Command::new("unshare").arg("--version").stdout(Stdio::null()).status();
        is_there.expect("unshare is needed: a part of util-linux");
        Self::spawn(toml, |log| {
            let script = "mount --bind \"$0\" /etc/hosts && exec \"$1\" run --listen 127.0.0.1:0";
            let mut command = Command::new("unshare");
            command.args(["--mount", "--map-root-user", "sh", "-c", script]).arg(hosts);
            command.arg(env!("CARGO_BIN_EXE_tollgate")).stderr(fs::File::create(log).unwrap());
            command
        })
    }

    /// Starts a gateway with one or two passed sockets, as a supervisor does.
    pub(crate) fn start_with_sockets(toml: &str, sockets: Vec<OwnedFd>) -> Self {
        Self::spawn(toml, |log| handing_on(sockets, log))
    }

    fn spawn(toml: &str, command: impl FnOnce(&Path) -> Command) -> Self {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("gateway.toml"), toml).unwrap();
        let mut command = command(&folder.path().join("log"));
        let mut process = command.current_dir(&folder).stdout(Stdio::piped()).spawn().unwrap();
        let mut greeting = String::new();
        let mut stdout = BufReader::new(process.stdout.take().unwrap());
        while !greeting.contains("try: ") {
            if stdout.read_line(&mut greeting).unwrap() == 0 {
                panic!("no gateway: {}", fs::read_to_string(folder.path().join("log")).unwrap());
            }
        }
        let (_, address) = greeting.split_once("tollgate listens on http").expect(&greeting);
        let (_, address) = address.split_once("://").expect(&greeting);
        let address = address.lines().next().unwrap().parse().unwrap();
        Self { process, folder, address, greeting }
    }

    /// Returns the output up to the point at which it was ready.
    pub(crate) fn greeting(&self) -> &str {
        &self.greeting
    }

    /// Returns the folder of its configuration and log.
    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Connects to the gateway.
    pub(crate) fn client(&self) -> Client {
        Client::connect(self.address)
    }

    /// Returns the response to a GET on a new connection.
    pub(crate) fn get(&self, path: &str) -> Answer {
        self.client().get(path)
    }

    /// Returns the response to a request, in the form of [`Client::ask`], on a new connection.
    pub(crate) fn ask(&self, request: &str) -> Answer {
        self.client().ask(request)
    }

    /// Returns its log so far.
    pub(crate) fn log(&self) -> String {
        fs::read_to_string(self.folder.path().join("log")).unwrap()
    }

    /// Waits until its log has this text. What a line tells of may be seen before the line is written.
    pub(crate) fn wait_for_log(&self, text: &str) {
        wait_until(&format!("`{text}` is logged"), || self.log().contains(text));
    }

    /// Replaces the configuration, and waits until the gateway has read it.
    pub(crate) fn reload(&self, toml: &str) {
        fs::write(self.folder.path().join("gateway.toml"), toml).unwrap();
        self.read_again();
    }

    /// Asserts that it hasn't logged this text so far.
    pub(crate) fn assert_not_logged(&self, text: &str) {
        // A line may be written after what it tells of, but in its turn.
        self.read_again();
        let log = self.log();
        assert!(!log.contains(text), "`{text}` is logged: {log}");
    }

    /// Has the gateway read its configuration, and waits until it says so.
    fn read_again(&self) {
        // A change of the file may have it read, too.
        let is_outcome = |line: &&str| {
            line.contains("SIGHUP") && (line.contains("reloaded `") || line.contains("the running one stays"))
        };
        let outcomes = |log: &str| log.lines().filter(is_outcome).count();
        let before = outcomes(&self.log());
        self.signal("HUP");
        wait_until("the gateway reloads", || outcomes(&self.log()) > before);
    }

    pub(crate) fn signal(&self, name: &str) {
        signal(name, self.process.id());
    }

    /// Stops the process, so that it keeps its connections and does nothing. Returns when all its threads have stopped.
    pub(crate) fn pause(&self) {
        self.signal("STOP");
        let stands = |status: String| status.contains("State:\tT");
        wait_until("the gateway stands still", || {
            let mut threads = fs::read_dir(format!("/proc/{}/task", self.process())).unwrap();
            threads.all(|thread| stands(fs::read_to_string(thread.unwrap().path().join("status")).unwrap()))
        });
    }

    pub(crate) fn resume(&self) {
        self.signal("CONT");
    }

    /// Returns its process id, for /proc.
    pub(crate) fn process(&self) -> u32 {
        self.process.id()
    }

    /// Returns its current (`VmRSS`) or peak (`VmHWM`) memory in KiB.
    pub(crate) fn memory_kib(&self, which: &str) -> usize {
        let status = fs::read_to_string(format!("/proc/{}/status", self.process())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix(which)?.strip_prefix(':')).unwrap();
        line.trim().trim_end_matches(" kB").parse().unwrap()
    }

    /// Returns the growth of its peak memory in KiB.
    pub(crate) fn grew_kib(&self, before: usize) -> usize {
        // The kernel's figure is a sum of what threads have told so far, which may be less than an earlier one.
        self.memory_kib("VmHWM").saturating_sub(before)
    }

    /// Returns its CPU time.
    pub(crate) fn cpu(&self) -> Duration {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.process())).unwrap();
        let (_, fields) = stat.rsplit_once(") ").unwrap();
        let ticks = |field: usize| fields.split(' ').nth(field).unwrap().parse::<u64>().unwrap();
        // In hundredths of a second: proc_pid_stat(5), fields 14 and 15.
        Duration::from_millis(10 * (ticks(11) + ticks(12)))
    }

    /// Returns its exit status, if it has ended.
    pub(crate) fn ended(&mut self) -> Option<ExitStatus> {
        self.process.try_wait().unwrap()
    }
}

/// Returns a shell that passes sockets to a gateway with this log. The shell gets the sockets as stdin and stderr, since
/// it can't inherit others.
pub(crate) fn handing_on(sockets: Vec<OwnedFd>, log: &Path) -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", "exec 3<&0 4<&2 </dev/null 2>>$2; LISTEN_PID=$$ LISTEN_FDS=$1 exec $0"]);
    command.args([env!("CARGO_BIN_EXE_tollgate"), &sockets.len().to_string()]).arg(log);
    let mut sockets = sockets.into_iter();
    command.stdin(sockets.next().expect("a socket"));
    if let Some(second) = sockets.next() {
        command.stderr(second);
    }
    command
}

impl Drop for Gateway {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
