//! Who may use the admin port, and what it says to others.

use std::process::Command;

use crate::{
    admin, gateway,
    harness::{client::Client, gateway::Gateway, wait_until},
    limits,
};

/// Sends a head and a body to a gateway's admin port: the status and the body of the answer.
fn ask(gateway: &Gateway, head: &str, body: &str) -> (u16, String) {
    let mut client = Client::connect(admin(gateway).parse().unwrap());
    client.send(format!("{head}\r\nContent-Length: {}\r\n\r\n{body}", body.len()).as_bytes());
    let answer = client.answer();
    (answer.status, answer.text())
}

const SET: &str = "PUT /api/limits/l/override HTTP/1.1\r\nHost: localhost";
const JSON: &str = "Content-Type: application/json";
const RATE: &str = r#"{"rate": "7/h"}"#;

#[test]
fn a_page_of_another_site_changes_nothing() {
    let gateway = gateway("5/h", "");
    let set = |head: &str| ask(&gateway, head, RATE).0;
    // A name that somebody has pointed here, a form, and a script elsewhere.
    assert_eq!(set(&format!("PUT /api/limits/l/override HTTP/1.1\r\nHost: evil.example\r\n{JSON}")), 403);
    assert_eq!(set(&format!("{SET}\r\nContent-Type: text/plain")), 415);
    assert_eq!(set(SET), 415);
    assert_eq!(set(&format!("{SET}\r\n{JSON}\r\nOrigin: http://evil.example")), 403);
    assert_eq!(set(&format!("{SET}\r\n{JSON}\r\nOrigin: null")), 403);
    assert_eq!(gateway.get("/").header("ratelimit-policy"), Some("\"l\";q=5;w=3600"));
    assert_eq!(set(&format!("{SET}\r\n{JSON}\r\nOrigin: http://localhost")), 200);
    assert_eq!(gateway.get("/").header("ratelimit-policy"), Some("\"l\";q=7;w=3600"));
    wait_until("it is logged", || gateway.log().contains("limit `l`: the rate is set to 7/h: counts kept"));
}

#[test]
fn what_is_wrong_is_said_and_changes_nothing() {
    let gateway = gateway("5/h", "");
    for (body, status, told) in [
        (r#"{"rate": "7/0s"}"#, 400, "no whole number of milliseconds"),
        (r#"{"rate": "20"}"#, 400, "is no rate"),
        (r#"{"rate": "7/h", "for": "0s"}"#, 400, "no time"),
        (r#"{"rate": "7/h", "scope": "all"}"#, 400, "unknown scope `all`"),
        (r#"{"rate": "7/h", "fro": "1h"}"#, 422, "unknown field `fro`"),
        (r#"{"rate""#, 400, "EOF"),
        (&format!("{{\"rate\": \"{}\"}}", "9".repeat(20_000)), 413, ""),
    ] {
        let (answered, problem) = ask(&gateway, &format!("{SET}\r\n{JSON}"), body);
        assert_eq!(answered, status, "{body}: {problem}");
        assert!(problem.contains(told), "{problem}");
    }
    let (status, problem) = ask(&gateway, "GET /api/limits/m/keys/1.2.3.4 HTTP/1.1\r\nHost: localhost", "");
    assert_eq!(status, 404);
    assert!(problem.contains("there is no limit `m`; there are: l"), "{problem}");
    assert_eq!(gateway.get("/").header("ratelimit-policy"), Some("\"l\";q=5;w=3600"));
}

#[test]
fn a_token_is_demanded_and_never_shown() {
    let token = "correct-horse-battery";
    let gateway = gateway("5/h", "");
    let with_token = Gateway::start(
        "[admin]\nlisten = \"127.0.0.1:0\"\ntoken = \"correct-horse-battery\"\n[limits.l]\nkey = \"ip\"\n\
         rate = \"5/h\"\n[[routes]]\npath = \"/\"\nrespond = { status = 200 }\nlimits = [\"l\"]\n",
    );
    assert_eq!(limits(&gateway, &["list"]).0, 0);
    let (status, told) = limits(&with_token, &["list"]);
    assert_eq!((status, told.contains("Bearer")), (1, true), "{told}");
    for borne in ["wrong", "", "correct-horse-batter"] {
        let head = format!("GET /api/limits HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {borne}");
        assert_eq!(ask(&with_token, &head, "").0, 401, "{borne}");
    }
    let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
    command.args(["limits", "list", "--json", "--admin", &format!("http://{}", admin(&with_token))]);
    let output = command.env("TOLLGATE_ADMIN_TOKEN", token).output().unwrap();
    assert!(output.status.success());
    assert!(!String::from_utf8(output.stdout).unwrap().contains(token));
    assert!(!with_token.log().contains(token));
}

#[test]
fn who_says_nothing_on_the_admin_port_takes_nothing_from_others() {
    let gateway = gateway("1000000/h", "");
    let mut silent: Vec<Client> =
        (0..200).map(|_| Client::connect(admin(&gateway).parse().unwrap())).collect();
    silent.iter_mut().for_each(|client| client.send(b"GET /livez HTTP/1.1\r\nHost: local"));
    let files = || std::fs::read_dir(format!("/proc/{}/fd", gateway.process())).unwrap().count();
    assert!(files() < 150, "{} files are open", files());
    assert_eq!(gateway.get("/").status, 200);
    // Their time is up before an operator's patience is.
    drop(silent.split_off(100));
    assert_eq!(limits(&gateway, &["list"]).0, 0);
}
