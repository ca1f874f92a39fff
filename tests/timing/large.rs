//! Large configurations.

use std::{
    fs,
    process::Command,
    time::{Duration, Instant},
};

use crate::harness::gateway::Gateway;

const ROUTES: usize = 2_000;
/// A check of this file once took minutes.
const CHECKED_WITHIN: Duration = Duration::from_secs(10);
const ANSWERED_LEAST: usize = 10;

/// Returns a file with a warning for each route.
fn warned() -> String {
    let route = |at| format!("[[routes]]\npath = \"/orders-{at}/\"\nrespond = {{}}\nlimits = [\"l\"]\n");
    let routes: String = (0..ROUTES).map(route).collect();
    format!("[limits.l]\nkey = \"ip\"\nrate = \"1000000/s\"\n{routes}")
}

#[test]
fn a_large_file_with_many_warnings_is_checked_soon() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("gateway.toml"), warned()).unwrap();
    let since = Instant::now();
    let mut check = Command::new(env!("CARGO_BIN_EXE_tollgate"));
    let output = check.args(["check", "gateway.toml"]).current_dir(&folder).output().unwrap();
    let took = since.elapsed();
    let warnings = String::from_utf8(output.stderr).unwrap();
    assert!(warnings.contains(&format!("{ROUTES} warnings")), "{}", &warnings[warnings.len() - 99..]);
    assert!(took < CHECKED_WITHIN, "{took:?}");
}

/// Each of these connections is new. While the file was read on the thread that accepts them, one of them waited for all of it.
#[test]
fn connections_are_accepted_while_a_large_file_is_read() {
    let gateway = Gateway::start(&warned());
    gateway.signal("HUP");
    let mut answered = 0;
    while !gateway.log().contains("reloaded `gateway.toml`") {
        assert_eq!(gateway.ask("GET /orders-1/").status, 200);
        answered += 1;
    }
    assert!(answered >= ANSWERED_LEAST, "{answered}");
}
