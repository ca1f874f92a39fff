//! Rules by xDS from a real go-control-plane server, as Envoy Gateway has it. Needs Go; skipped where it is missing.

#![allow(clippy::print_stderr, reason = "a skipped test says so")]

use std::{
    io::{BufRead, BufReader, Write},
    path::{Path, PathBuf},
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    sync::LazyLock,
};

use super::{reference::Service, rls::OK};
use crate::harness::{redis::Redis, wait_until};

/// The server's program. `None` if this machine has no Go.
static BUILT: LazyLock<Option<PathBuf>> = LazyLock::new(|| {
    if Command::new("go").arg("version").stdout(Stdio::null()).status().is_err() {
        eprintln!("\n*** SKIPPED: no go on PATH, so the real go-control-plane server wasn't run ***\n");
        return None;
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let program = root.join("target/interop/xds");
    let mut command = Command::new("go");
    command.args(["build", "-o"]).arg(&program).arg(".").current_dir(root.join("interop/xds"));
    assert!(command.status().unwrap().success(), "interop/xds doesn't build");
    Some(program)
});

/// A management server in a process of its own.
struct Server {
    process: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    address: String,
}

impl Server {
    fn start(program: &Path, address: &str) -> Self {
        let mut command = Command::new(program);
        command.arg(address).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = command.spawn().unwrap();
        let (input, output) = (process.stdin.take().unwrap(), BufReader::new(process.stdout.take().unwrap()));
        let mut server = Self { process, input, output, address: String::new() };
        server.address = server.line();
        server
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        assert!(self.output.read_line(&mut line).unwrap() > 0, "the server has ended");
        line.trim_end().to_owned()
    }

    fn obey(&mut self, command: &str) {
        writeln!(self.input, "{command}").unwrap();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[test]
fn rules_of_go_control_plane_are_acknowledged() {
    let Some(program) = &*BUILT else { return };
    let redis = Redis::start();
    let mut server = Server::start(program, "127.0.0.1:0");
    let address = server.address.clone();
    let mut service = Service::spawn(
        &redis,
        &[],
        &[
            ("CONFIG_TYPE", "GRPC_XDS_SOTW"),
            ("CONFIG_GRPC_XDS_SERVER_URL", &address),
            ("CONFIG_GRPC_XDS_NODE_ID", "interop"),
        ],
    );
    assert_eq!(server.line(), "begin interop");
    server.obey("set 1 3");
    assert_eq!(server.line(), "ack 1");
    service.wait();
    assert_eq!(service.left("d", "k"), (OK, 2));
    server.obey("wrong 2");
    assert_eq!(server.line(), "nack 1 error");
    assert_eq!(service.left("d", "k"), (OK, 1));
    server.obey("set 3 30");
    // The server may have offered the wrong ones again.
    while server.line() != "ack 3" {}
    assert_eq!(service.left("d", "k"), (OK, 27));

    drop(server);
    assert_eq!(service.left("d", "k"), (OK, 26));
    let mut server = Server::start(program, &address);
    assert_eq!(server.line(), "begin interop");
    // A server that has restarted may give a version to other rules.
    server.obey("set 3 40");
    assert_eq!(server.line(), "ack 3");
    assert_eq!(service.metric("tollgate_rules_feed_up"), 1.0);
    wait_until("the new rules are in use", || service.left("d", "k").1 > 30);
}
