//! Operators inspect and change limits at run time, with `tollgate limits` and through the admin port.

mod agreement;
mod events;
mod kubernetes;
mod limits;
mod metrics;
mod openapi;
mod port;
mod probes;
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

/// The same with the rate 5/h and a token.
fn gateway_with_token() -> Gateway {
    Gateway::start(
        "[admin]\nlisten = \"127.0.0.1:0\"\ntoken = \"correct-horse-battery\"\n[limits.l]\nkey = \"ip\"\n\
         rate = \"5/h\"\n[[routes]]\npath = \"/\"\nrespond = { status = 200 }\nlimits = [\"l\"]\n",
    )
}

/// Returns the address of the admin port.
pub(super) fn admin(gateway: &Gateway) -> String {
    let (_, admin) = gateway.greeting().split_once("dashboard: http://").unwrap();
    admin.lines().next().unwrap().to_owned()
}

/// Runs `tollgate limits` for a gateway. Returns its exit status and output.
fn limits(gateway: &Gateway, words: &[&str]) -> (i32, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
    command.arg("limits").args(words).args(["--admin", &format!("http://{}", admin(gateway))]);
    let output = command.output().unwrap();
    let printed = [output.stdout, output.stderr].concat();
    (output.status.code().unwrap(), String::from_utf8(printed).unwrap())
}

/// Returns the current RateLimit-Policy of a request, or the status if it has none.
fn policy(gateway: &Gateway) -> String {
    let answer = gateway.get("/");
    answer.header("ratelimit-policy").map_or(answer.status.to_string(), str::to_owned)
}
