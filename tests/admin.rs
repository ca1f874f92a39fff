//! Operators look at limits and change them while gateways run: by `tollgate limits`, and by the admin port.

mod agreement;
mod events;
mod limits;
mod metrics;
mod openapi;
mod port;
mod rules;

use std::process::Command;

use crate::harness::gateway::Gateway;

/// A limit by address at this rate, an admin port, and more of the file.
fn gateway(rate: &str, more: &str) -> Gateway {
    Gateway::start(&format!(
        "{more}\n[admin]\nlisten = \"127.0.0.1:0\"\n[limits.l]\nkey = \"ip\"\nrate = \"{rate}\"\n\
         [[routes]]\npath = \"/\"\nrespond = {{ status = 200 }}\nlimits = [\"l\"]\n"
    ))
}

/// The same with the rate 5/h, and a token that operators must bear.
fn gateway_with_token() -> Gateway {
    Gateway::start(
        "[admin]\nlisten = \"127.0.0.1:0\"\ntoken = \"correct-horse-battery\"\n[limits.l]\nkey = \"ip\"\n\
         rate = \"5/h\"\n[[routes]]\npath = \"/\"\nrespond = { status = 200 }\nlimits = [\"l\"]\n",
    )
}

/// Where a gateway's operators turn to.
fn admin(gateway: &Gateway) -> String {
    let (_, admin) = gateway.greeting().split_once("dashboard: http://").unwrap();
    admin.lines().next().unwrap().to_owned()
}

/// Runs `tollgate limits` for a gateway: its exit status, and what it prints.
fn limits(gateway: &Gateway, words: &[&str]) -> (i32, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
    command.arg("limits").args(words).args(["--admin", &format!("http://{}", admin(gateway))]);
    let output = command.output().unwrap();
    let printed = [output.stdout, output.stderr].concat();
    (output.status.code().unwrap(), String::from_utf8(printed).unwrap())
}

/// The policy that a request is held to now, or the status of what is refused for ever.
fn policy(gateway: &Gateway) -> String {
    let answer = gateway.get("/");
    answer.header("ratelimit-policy").map_or(answer.status.to_string(), str::to_owned)
}
