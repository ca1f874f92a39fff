//! `tollgate init`, `routes`, `reload` and `ready`, and the help of all commands.

use std::{fs, path::Path, process::Output};

use crate::{
    check::{command, run, text},
    harness::{gateway::Gateway, redis::free_port, wait_until},
};

const FILE: &str = "[upstreams.up]\nservers = [\"http://127.0.0.1:9\"]\n[limits.l]\nkey = \"header:x-api-key\"\nplain = true\nrate = \"5/h\"\n\
                    overrides = [{ key = \"gold\", rate = \"9/h\" }]\n\
                    [[routes]]\nname = \"orders\"\npath = \"/v1/orders/{id}\"\nmethods = [\"GET\", \"POST\"]\nupstream = \"up\"\nlimits = [\"l\"]\n\
                    [[routes]]\npath = \"/{*rest}\"\nhost = \"*.example.com\"\nrespond = { status = 204 }\n";

fn with_admin(port: u16, file: &str) -> String {
    format!("[admin]\nlisten = \"127.0.0.1:{port}\"\n{file}")
}

fn in_folder(gateway: &Gateway, arguments: &[&str]) -> Output {
    run(gateway.folder(), arguments)
}

#[test]
fn init_writes_a_file_that_passes_with_all_its_settings_and_overwrites_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let output = run(folder.path(), &["init"]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    assert!(text(&output.stdout).starts_with("wrote gateway.toml\n"));
    let written = fs::read_to_string(folder.path().join("gateway.toml")).unwrap();
    let strict = run(folder.path(), &["check", "--strict", "gateway.toml"]);
    assert_eq!(strict.status.code(), Some(0), "{}", text(&strict.stderr));
    let uncommented = written.lines().map(|line| match line.strip_prefix('#') {
        Some(setting) if !setting.starts_with(' ') => setting,
        _ => line,
    });
    let all = uncommented.collect::<Vec<_>>().join("\n");
    assert!(all.contains("\n[store]\nurl = ") && all.contains("\nmode = \"shadow\""), "{all}");
    fs::write(folder.path().join("all.toml"), &all).unwrap();
    let mut check = command(folder.path());
    let all = check
        .args(["check", "all.toml"])
        .env("TOLLGATE_ADMIN_TOKEN", "correct-horse-battery")
        .output()
        .unwrap();
    assert_eq!(all.status.code(), Some(0), "{}", text(&all.stderr));

    fs::write(folder.path().join("gateway.toml"), "mine").unwrap();
    let again = run(folder.path(), &["init"]);
    assert_eq!(again.status.code(), Some(1));
    assert!(text(&again.stderr).contains("`gateway.toml` exists, and is not overwritten"));
    assert_eq!(fs::read_to_string(folder.path().join("gateway.toml")).unwrap(), "mine");
    assert_eq!(run(folder.path(), &["init", "none/gateway.toml"]).status.code(), Some(1));
}

#[test]
fn routes_are_listed_with_their_actions_and_limits() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("gateway.toml"), FILE).unwrap();
    let output = run(folder.path(), &["routes"]);
    let lines: Vec<Vec<&str>> =
        text(&output.stdout).lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(lines[0].join(" "), "ROUTE METHODS HOST PATH ALSO GOES TO LIMITS");
    assert_eq!(lines[1], ["orders", "GET,POST", "*", "/v1/orders/{id}", "-", "up", "l"]);
    assert_eq!(lines[2][1..], ["*", "*.example.com", "/{*rest}", "-", "responds", "204", "-"]);
    let json: serde_json::Value =
        serde_json::from_slice(&run(folder.path(), &["routes", "--json"]).stdout).unwrap();
    assert_eq!((&json[0]["route"], &json[0]["limits"][0]), (&"orders".into(), &"l".into()));
    let conditions = "headers = { x-proof = \"hunter2\" }\nquery = { key = \"hunter2\" }\n";
    fs::write(folder.path().join("gateway.toml"), format!("{FILE}{conditions}")).unwrap();
    let listed = run(folder.path(), &["routes"]).stdout;
    assert!(text(&listed).contains("x-proof ?key  responds 204"), "{}", text(&listed));
    let json: serde_json::Value =
        serde_json::from_slice(&run(folder.path(), &["routes", "--json"]).stdout).unwrap();
    assert_eq!(json[1]["conditions"], serde_json::json!(["x-proof", "?key"]));
    fs::write(folder.path().join("gateway.toml"), "[[routes]]\n").unwrap();
    assert_eq!(run(folder.path(), &["routes"]).status.code(), Some(2));
}

#[test]
fn reload_says_what_has_changed_or_what_is_wrong() {
    let port = free_port();
    let gateway = Gateway::start(&with_admin(port, FILE));
    let file = gateway.folder().join("gateway.toml");
    // The port is in the file, so the file must stay readable for the command: the gateway may reload by itself first.
    let admin = format!("http://127.0.0.1:{port}");
    let same = in_folder(&gateway, &["reload"]);
    assert_eq!((same.status.code(), text(&same.stdout)), (Some(0), "reloaded: no changes\n"));
    let changed = with_admin(port, &FILE.replace("5/h", "7/h"));
    wait_until("a reload by the command, not by the watch of the file", || {
        let next = if fs::read_to_string(&file).unwrap() == changed {
            with_admin(port, FILE)
        } else {
            changed.clone()
        };
        fs::write(&file, next).unwrap();
        let told = in_folder(&gateway, &["reload", "--admin", &admin]);
        assert_eq!(told.status.code(), Some(0), "{}", text(&told.stderr));
        text(&told.stdout).starts_with("reloaded: 1 change\nlimit `l` ")
    });
    fs::write(&file, with_admin(port, &FILE.replace("limits = [\"l\"]", "limits = [\"m\"]"))).unwrap();
    let wrong = in_folder(&gateway, &["reload", "--admin", &admin]);
    assert_eq!((wrong.status.code(), text(&wrong.stdout)), (Some(2), ""));
    let told = text(&wrong.stderr);
    assert!(
        told.contains("the running one stays in use") && told.contains("`m`") && told.contains("line 15"),
        "{told}"
    );
    assert_eq!(in_folder(&gateway, &["reload"]).status.code(), Some(2));
    let nobody = in_folder(&gateway, &["reload", "--admin", &format!("http://127.0.0.1:{}", free_port())]);
    assert_eq!(nobody.status.code(), Some(1));
}

#[test]
fn ready_asks_the_admin_port_or_the_health_path_and_fails_without_a_gateway() {
    let port = free_port();
    let gateway = Gateway::start(&with_admin(port, FILE));
    let ready = in_folder(&gateway, &["ready"]);
    assert_eq!((ready.status.code(), text(&ready.stdout)), (Some(0), "ready\n"), "{}", text(&ready.stderr));
    drop(gateway);
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("gateway.toml"), with_admin(port, FILE)).unwrap();
    let gone = run(folder.path(), &["ready"]);
    assert_eq!(gone.status.code(), Some(1));
    assert!(text(&gone.stderr).contains("can't reach the gateway"), "{}", text(&gone.stderr));

    let port = free_port();
    let file = format!("[server]\nlisten = \"127.0.0.1:{port}\"\nhealth = \"/-/ready\"\n{FILE}");
    let gateway = Gateway::start_with(&file, &["run"], &[]);
    let ready = in_folder(&gateway, &["ready"]);
    assert_eq!((ready.status.code(), text(&ready.stdout)), (Some(0), "ready\n"), "{}", text(&ready.stderr));
    fs::write(folder.path().join("gateway.toml"), FILE).unwrap();
    assert_eq!(run(folder.path(), &["ready"]).status.code(), Some(2));
}

#[test]
fn limits_list_shows_the_overrides_of_the_file_and_those_that_are_set() {
    let port = free_port();
    let gateway = Gateway::start(&with_admin(port, FILE));
    for key in ["gold", "new"] {
        let set = in_folder(&gateway, &["limits", "set", "l", key, "3/h"]);
        assert_eq!(set.status.code(), Some(0), "{}", text(&set.stderr));
    }
    let output = in_folder(&gateway, &["limits", "list"]);
    let rows: Vec<Vec<&str>> =
        text(&output.stdout).lines().skip(1).map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(rows[0], ["l", "*", "5/h"]);
    assert_eq!(rows[1], ["l", "header:x-api-key=gold", "9/h", "3/h"]);
    assert_eq!(rows[2], ["l", "header:x-api-key=new", "3/h"]);
}

#[test]
fn every_help_has_an_example_and_its_environment_variables() {
    let help = |words: &[&str]| {
        let output = command(Path::new(".")).args(words).arg("--help").output().unwrap();
        assert!(output.status.success(), "{words:?}");
        text(&output.stdout).to_owned()
    };
    let commands = |help: &str| {
        let (_, list) = help.split_once("\nCommands:\n")?;
        let names = list.lines().take_while(|line| !line.is_empty());
        let names = names.filter_map(|line| line.strip_prefix("  ")?.split_whitespace().next());
        Some(names.filter(|name| *name != "help").map(str::to_owned).collect::<Vec<_>>())
    };
    let mut pending = vec![Vec::new()];
    let mut seen = 0;
    while let Some(words) = pending.pop() {
        let of = words.iter().map(String::as_str).collect::<Vec<_>>();
        let help = help(&of);
        assert!(help.contains("\nExample") && help.contains("tollgate "), "{words:?} has no example: {help}");
        assert!(
            help.contains("\nEnvironment variables:"),
            "{words:?} lists no environment variables: {help}"
        );
        for name in commands(&help).unwrap_or_default() {
            pending.push([words.clone(), vec![name]].concat());
        }
        seen += 1;
    }
    assert!(seen >= 17, "only {seen} commands found");
}
