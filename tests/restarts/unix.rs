//! Listening on unix sockets.

use std::{
    fs,
    io::{Read, Write},
    os::unix::{
        fs::PermissionsExt,
        net::{UnixListener, UnixStream},
    },
    path::Path,
    process::Command,
};

use crate::{
    harness::{gateway::Gateway, upstream::Upstream},
    restarts::wait_for_end,
};

/// The answer to a GET by a unix socket.
pub(crate) fn ask(path: &Path, target: &str) -> String {
    let mut stream = UnixStream::connect(path).unwrap();
    let request = format!("GET {target} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

#[test]
fn a_gateway_listens_on_a_unix_socket_whose_callers_are_this_machine() {
    let (folder, upstream) = (tempfile::tempdir().unwrap(), Upstream::hello());
    let path = folder.path().join("socket");
    let toml = format!(
        "[server]\nlisten = [\"127.0.0.1:0\", \"unix:{}\"]\n[upstreams.api]\nservers = [\"{}\"]\n\
         [limits.per-client]\nkey = \"ip\"\nrate = \"2/h\"\n\
         [[routes]]\npath = \"/\"\nupstream = \"api\"\nlimits = [\"per-client\"]\n",
        path.display(),
        upstream.url()
    );
    let start = || Gateway::start_with(&toml, &["run"], &[]);
    // One that is killed leaves its file.
    drop(start());
    assert!(path.exists());
    let mut gateway = start();
    assert!(gateway.greeting().contains(&format!("tollgate listens on unix:{}\n", path.display())));
    assert!(ask(&path, "/").starts_with("HTTP/1.1 200 "));
    let mode = fs::metadata(&path).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o666, "its folder says who may use it");
    assert_eq!(upstream.last().headers["x-forwarded-for"], "127.0.0.1");
    assert_eq!(gateway.get("/").status, 200);
    assert!(ask(&path, "/").starts_with("HTTP/1.1 429 "));
    gateway.signal("TERM");
    wait_for_end(&mut gateway);
    assert!(!path.exists());
}

/// What is said to a gateway that is to listen on this path.
fn complaint(path: &Path) -> String {
    let folder = tempfile::tempdir().unwrap();
    let toml = "[[routes]]\npath = \"/\"\nrespond = {}\n";
    fs::write(folder.path().join("gateway.toml"), toml).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
    command.args(["--listen", &format!("unix:{}", path.display())]).current_dir(&folder);
    let output = command.output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    String::from_utf8(output.stderr).unwrap()
}

#[test]
fn what_is_used_or_no_socket_stays() {
    let folder = tempfile::tempdir().unwrap();
    let (used, file) = (folder.path().join("used"), folder.path().join("file"));
    let _used = UnixListener::bind(&used).unwrap();
    fs::write(&file, "precious").unwrap();
    for path in [&used, &file] {
        let told = complaint(path);
        let expected = format!("can't listen on `unix:{}`: Address already in use", path.display());
        assert!(told.contains(&expected), "{told}");
        assert!(path.exists());
    }
}
