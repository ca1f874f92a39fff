//! `tollgate check` in pipelines: several files, stdin, JSON, strictness, and the surroundings of a file.

mod meant;

use std::{
    fs,
    io::Write,
    net::TcpListener,
    path::Path,
    process::{Command, Output, Stdio},
};

use hyper::{Response, header::LOCATION};
use rcgen::{CertificateParams, KeyPair, date_time_ymd};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::harness::{
    redis::{Redis, free_port},
    upstream::{Upstream, whole},
};

const GOOD: &str = "[[routes]]\npath = \"/\"\nrespond = { status = 200 }\n";
const WARNED: &str = "";
const BAD: &str = "[[routes]]\npath = \"/orders/:id\"\nrespond = { status = 200 }\n";

pub(crate) fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

pub(crate) fn command(folder: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
    command.current_dir(folder).stdin(Stdio::null());
    command
}

/// Runs a command in a folder.
pub(crate) fn run(folder: &Path, arguments: &[&str]) -> Output {
    command(folder).args(arguments).output().unwrap()
}

fn folder() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    for (name, content) in [("good.toml", GOOD), ("warned.toml", WARNED), ("bad.toml", BAD)] {
        fs::write(folder.path().join(name), content).unwrap();
    }
    folder
}

/// Checks one file with --connect. Returns the exit status, and what was printed.
fn connect(toml: &str) -> (i32, String) {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("gateway.toml"), toml).unwrap();
    connect_in(&folder)
}

fn connect_in(folder: &TempDir) -> (i32, String) {
    let output = run(folder.path(), &["check", "--connect", "gateway.toml"]);
    (output.status.code().unwrap(), text(&[output.stdout, output.stderr].concat()).to_owned())
}

#[test]
fn the_exit_status_tells_valid_from_invalid_files() {
    let folder = folder();
    for (arguments, status) in [
        (&["good.toml"][..], 0),
        (&["good.toml", "good.toml"], 0),
        (&["--config", "good.toml"], 0),
        (&["good.toml", "--config", "bad.toml"], 2),
        (&["warned.toml"], 0),
        (&["--strict", "good.toml"], 0),
        (&["--strict", "warned.toml"], 2),
        (&["--strict", "--json", "warned.toml"], 2),
        (&["good.toml", "bad.toml"], 2),
        (&["bad.toml", "good.toml"], 2),
        (&["none.toml"], 2),
        (&[], 2),
    ] {
        let output = run(folder.path(), &[&["check"], arguments].concat());
        assert_eq!(output.status.code(), Some(status), "{arguments:?}: {output:?}");
    }
    let both = run(folder.path(), &["check", "bad.toml", "good.toml"]);
    assert_eq!(text(&both.stdout), "good.toml: ok\n");
    assert!(text(&both.stderr).contains("bad.toml:2"), "{}", text(&both.stderr));
}

#[test]
fn stdin_is_a_file_like_others() {
    for (toml, status) in [(GOOD, 0), (BAD, 2), ("\u{0}", 2)] {
        let folder = folder();
        let mut child = command(folder.path())
            .args(["check", "-"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        child.stdin.take().unwrap().write_all(toml.as_bytes()).unwrap();
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(status), "{output:?}");
        let told = if status == 0 { output.stdout } else { output.stderr };
        assert!(text(&told).contains("stdin"), "{}", text(&told));
    }
}

#[test]
fn json_has_each_file_with_its_faults_and_their_places() {
    let folder = folder();
    let output = run(folder.path(), &["check", "--json", "good.toml", "warned.toml", "bad.toml"]);
    assert_eq!((output.status.code(), text(&output.stderr)), (Some(2), ""));
    let files: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&files[0]["file"], &files[0]["valid"]), (&"good.toml".into(), &true.into()));
    assert_eq!((&files[1]["valid"], &files[1]["faults"][0]["severity"]), (&true.into(), &"warning".into()));
    let fault = &files[2]["faults"][0];
    assert_eq!(
        (&files[2]["valid"], &fault["line"], &fault["severity"]),
        (&false.into(), &2.into(), &"error".into())
    );
    assert_eq!(fault["help"][0], "write it in braces: path = \"/orders/{id}\"");
}

#[test]
fn what_people_bring_along_gets_its_remedy() {
    let limit = |terms: &str| format!("[limits.l]\nkey = \"ip\"\n{terms}\n{GOOD}limits = [\"l\"]\n");
    let server = |url: &str| {
        format!("[upstreams.u]\nservers = [\"{url}\"]\n[[routes]]\npath = \"/\"\nupstream = \"u\"\n")
    };
    for (toml, remedy) in [
        (limit("rate = \"10r/s\""), "write \"10/s\"; for `burst=`, add algorithm = \"gcra\" and burst"),
        (limit("rate = \"10r/m\""), "write \"10/min\""),
        (limit("rate = \"10/s\"\nalgorithm = \"token-bucket\""), "write \"gcra\", which admits the same"),
        (limit("rate = \"10/s\"\nalgorithm = \"Leaky_Bucket\""), "write \"gcra\""),
        (limit("rate = \"10/s\"\nalgorithm = \"sliding-window-counter\""), "write \"sliding-cells\""),
        (server("ws://a:1"), "write \"http://a:1\": WebSocket begins"),
        (server("wss://a"), "write \"https://a\""),
        (server("grpc://a:50051"), "write \"http://a:50051\", and add `http2 = true` to the upstream"),
        (server("grpcs://a"), "write \"https://a\", and add `http2 = true`"),
        (BAD.to_owned(), "write it in braces: path = \"/orders/{id}\""),
        (BAD.replace(":id", "<id>/x"), "path = \"/orders/{id}/x\""),
    ] {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("gateway.toml"), &toml).unwrap();
        let output = run(folder.path(), &["check", "gateway.toml"]);
        let told = text(&output.stderr);
        assert!(output.status.code() == Some(2) && told.contains(remedy), "{toml}: {told}");
    }
}

#[test]
fn connect_finds_taken_ports_unknown_names_and_servers_that_are_away() {
    let (good, taken) = (free_port(), TcpListener::bind("127.0.0.1:0").unwrap());
    let (taken, away) = (taken.local_addr().unwrap().port(), (free_port(), taken));
    let toml = |listen: u16, server: &str| {
        format!(
            "[server]\nlisten = \"127.0.0.1:{listen}\"\n[upstreams.u]\nservers = [\"{server}\"]\n\
             [[routes]]\npath = \"/\"\nupstream = \"u\"\n"
        )
    };
    let (status, told) = connect(&toml(good, &format!("http://127.0.0.1:{taken}")));
    assert_eq!(status, 0, "{told}");
    assert!(told.contains(&format!("gateway.toml: upstream `u`, http://127.0.0.1:{taken}: ok\n")), "{told}");
    assert!(told.contains("gateway.toml: store memory:: ok\n"), "{told}");
    let (status, told) = connect(&toml(taken, &format!("http://127.0.0.1:{}", away.0)));
    assert_eq!(status, 1, "{told}");
    assert!(
        told.contains(&format!("listen 127.0.0.1:{taken}: can't listen: Address already in use")),
        "{told}"
    );
    assert!(told.contains("can't connect: Connection refused"), "{told}");
    let (status, told) = connect(&toml(good, "http://no-such-host.invalid:80"));
    assert_eq!(status, 1, "{told}");
    assert!(told.contains("can't resolve `no-such-host.invalid`"), "{told}");
}

#[test]
fn connect_opens_the_access_log_and_leaves_no_file() {
    let folder = tempfile::tempdir().unwrap();
    let check = |path: &str| {
        let listen = format!("[server]\nlisten = \"127.0.0.1:{}\"\n", free_port());
        let toml = format!("{listen}[access_log]\npath = \"{path}\"\n{GOOD}");
        fs::write(folder.path().join("gateway.toml"), toml).unwrap();
        connect_in(&folder)
    };
    let (status, told) = check("access.log");
    assert!(status == 0 && told.contains("access.log: ok\n"), "{status}: {told}");
    assert!(!folder.path().join("access.log").exists());
    fs::write(folder.path().join("access.log"), "a line\n").unwrap();
    assert_eq!(check("access.log").0, 0);
    assert_eq!(fs::read_to_string(folder.path().join("access.log")).unwrap(), "a line\n");
    let (status, told) = check("none/access.log");
    assert!(status == 1 && told.contains("none/access.log: can't open it: No such file"), "{status}: {told}");
}

#[test]
fn connect_decides_in_redis_and_leaves_nothing_behind() {
    let redis = Redis::start();
    let listen = || format!("[server]\nlisten = \"127.0.0.1:{}\"\n", free_port());
    let (status, told) = connect(&format!("{}{}{GOOD}", listen(), redis.store()));
    assert_eq!(status, 0, "{told}");
    assert_eq!(redis.command(&["DBSIZE"]), "0");
    // It isn't counted as one of the gateways.
    let counted = redis.store().replace("[store]\n", "[store]\ninstances = \"auto\"\n");
    assert_eq!(connect(&format!("{}{counted}{GOOD}", listen())).0, 0, "{counted}");
    assert_eq!(redis.command(&["DBSIZE"]), "0");
    // A user that may do everything but write into sorted sets.
    redis.command(&["ACL", "SETUSER", "poor", "on", ">secret", "~*", "&*", "+@all", "-zadd"]);
    let url = redis.url().replace("redis://", "redis://poor:secret@");
    let (status, told) = connect(&format!("{}[store]\nurl = \"{url}\"\ntimeout = \"5s\"\n{GOOD}", listen()));
    assert!(status == 1 && told.contains("store redis://poor:"), "{status}: {told}");
    assert!(
        told.contains("it can't decide") && told.contains("the rights that docs/configuration.md lists"),
        "{told}"
    );
    assert!(!told.contains("secret"), "{told}");
    let away = Redis::away();
    let (status, told) = connect(&format!("{}{}{GOOD}", listen(), away.store()));
    assert!(status == 1 && told.contains("error: gateway.toml: store redis://"), "{status}: {told}");
}

/// Writes a certificate that is valid until the beginning of this year, and its key.
pub(crate) fn certify(folder: &Path, year: i32) {
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
    (params.not_before, params.not_after) = (date_time_ymd(2020, 1, 1), date_time_ymd(year, 1, 1));
    fs::write(folder.join("a.pem"), params.self_signed(&key).unwrap().pem()).unwrap();
    fs::write(folder.join("a.key"), key.serialize_pem()).unwrap();
}

#[test]
fn connect_finds_certificates_that_expire() {
    let file = |year: i32| {
        let folder = tempfile::tempdir().unwrap();
        certify(folder.path(), year);
        let port = free_port();
        let toml = format!(
            "[server]\nlisten = \"127.0.0.1:{port}\"\ntls = {{ certs = [{{ cert = \"a.pem\", key = \"a.key\" }}] }}\n{GOOD}"
        );
        fs::write(folder.path().join("gateway.toml"), toml).unwrap();
        folder
    };
    let (status, told) = connect_in(&file(2022));
    assert!(
        status == 1 && told.contains("server, tls.certs: expired on 2022-01-01T00:00:00Z"),
        "{status}: {told}"
    );
    let (status, told) = connect_in(&file(9000));
    assert!(status == 0 && told.contains("server, tls.certs: ok"), "{status}: {told}");
}

#[test]
fn connect_fetches_the_keys_of_tokens_and_says_what_is_wrong() {
    let key = json!({ "kty": "OKP", "crv": "Ed25519", "x": "11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo" });
    let secret = json!({ "kty": "oct", "k": "MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY" });
    let jwks = |keys: &[&Value]| json!({ "keys": keys }).to_string();
    let description =
        json!({ "issuer": "https://id.example.com", "jwks_uri": "https://id.example.com/keys" });
    let check = |jwks_url: &str, more: &str| {
        let listen = free_port();
        connect(&format!(
            "[server]\nlisten = \"127.0.0.1:{listen}\"\n[jwt]\njwks_url = \"{jwks_url}\"\n{more}{GOOD}require = \"jwt\"\n"
        ))
    };
    for (status, body, problem) in [
        (200, jwks(&[&key]), None),
        (404, jwks(&[&key]), Some("it answers 404 Not Found")),
        (302, jwks(&[&key]), Some("it answers 302 Found, and redirects aren't followed")),
        (200, "<html>".to_owned(), Some("the response is not a JWKS: line 1, column 1")),
        (200, description.to_string(), Some("the response is not a JWKS: line 1, column ")),
        (200, jwks(&[]), Some("it publishes no public key that can verify signatures")),
        (200, jwks(&[&secret]), Some("it publishes no public key that can verify signatures")),
    ] {
        let server = Upstream::start(move |_| {
            let response = Response::builder().status(status).header(LOCATION, "/elsewhere");
            let response = response.body(whole(body.clone())).unwrap();
            async { response }
        });
        let url = format!("{}/keys", server.url());
        let (exit, told) = check(&url, "issuer = \"https://id.example.com/\"\n");
        match problem {
            None => assert!(exit == 0 && told.contains(&format!("jwks_url {url}: ok\n")), "{exit}: {told}"),
            Some(problem) => {
                assert!(exit == 1 && told.contains(&format!("jwks_url {url}: {problem}")), "{exit}: {told}");
                let remedy = "the `jwks_uri` in https://id.example.com/.well-known/openid-configuration";
                assert!(told.contains(remedy), "{told}");
            }
        }
        assert_eq!(server.count(), 1, "{told}");
    }
    let (exit, told) = check(&format!("http://127.0.0.1:{}", free_port()), "");
    assert!(exit == 1 && told.contains("can't fetch the keys: Connection refused"), "{exit}: {told}");
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let (exit, told) = check(&format!("http://{}", silent.local_addr().unwrap()), "");
    assert!(exit == 1 && told.contains("can't fetch the keys: no response in time"), "{exit}: {told}");
    let upstream = Upstream::hello();
    let (exit, told) = check(&upstream.url(), "");
    assert!(exit == 1 && told.contains("`jwks_uri` in ISSUER/.well-known/openid-configuration"), "{told}");
}
