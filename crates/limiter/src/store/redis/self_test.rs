//! The test of a server at the first connection. It names in one line of the log all rights that the gateway's user lacks;
//! otherwise each would show up with the first decision that needs it.

use fred::{error::Error, types::Value};

use super::connection::{CONNECT_TIMEOUT, Connection};

/// The script, which writes nothing.
const SOURCE: &str = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/lua/self_test.lua"));

/// The commands on keys, with the arguments that each needs. `*` is a key.
const ON_KEYS: [&str; 19] = [
    "GET *",
    "SET * 1",
    "ZADD * 1 1",
    "ZCARD *",
    "ZCOUNT * 1 1",
    "ZRANGE * 0 1",
    "ZREM * 1",
    "ZREMRANGEBYRANK * 0 1",
    "PTTL *",
    "PEXPIRE * 1",
    "UNLINK *",
    "HGET * 1",
    "HGETALL *",
    "HSET * 1 1",
    "HDEL * 1",
    "HLEN *",
    "HRANDFIELD *",
    "EVALSHA 1 1 *",
    "EVAL 1 1 *",
];
/// The commands on channels. `*` is a channel.
const ON_CHANNELS: [&str; 2] = ["PUBLISH * 1", "SUBSCRIBE *"];

/// Returns the rights that the user of a connection lacks, as ACL SETUSER takes them: `+zadd +hset`. Empty if the server
/// finds nothing, or can't tell.
///
/// # Errors
/// The server doesn't answer.
pub(super) async fn missing_rights(
    connection: &Connection,
    prefix: &str,
    others: &[&'static str],
) -> Result<String, Error> {
    let asked = ON_KEYS.iter().chain(&ON_CHANNELS).chain(others);
    let asked = asked.map(|command| Value::from(command.replace('*', &format!("{prefix}:self-test"))));
    let arguments = [Value::from_static_str(SOURCE), Value::Integer(0)].into_iter().chain(asked).collect();
    let (script, time, info) = tokio::join!(
        biased;
        ask(connection, "EVAL", arguments),
        ask(connection, "TIME", Vec::new()),
        ask(connection, "INFO", Vec::new()),
    );
    let mut missing: Vec<String> = match script? {
        Some(Value::Array(missing)) => {
            let names = missing.into_iter().filter_map(Value::into_string);
            names.filter(|name| name.bytes().all(|byte| byte.is_ascii_uppercase())).collect()
        }
        Some(_) => Vec::new(),
        None => vec!["EVAL".to_owned()],
    };
    for (name, answer) in [("TIME", time?), ("INFO", info?)] {
        if answer.is_none() && !missing.iter().any(|missing| missing == name) {
            missing.push(name.to_owned());
        }
    }
    Ok(rights(&missing, prefix))
}

/// Runs a command. `None` if the user may not.
async fn ask(
    connection: &Connection,
    name: &'static str,
    arguments: Vec<Value>,
) -> Result<Option<Value>, Error> {
    match connection.command(name, arguments, CONNECT_TIMEOUT).await {
        Ok(answer) => Ok(Some(answer)),
        Err(error) if error.details().contains("NOPERM") => Ok(None),
        Err(error) => Err(error),
    }
}

/// Returns the rights for these commands. If all commands on keys, or on channels, are missing, those may be what is.
fn rights(missing: &[String], prefix: &str) -> String {
    let name = |command: &&str| command.split(' ').next().unwrap_or_default().to_owned();
    let are_all_missing = |commands: &[&str]| commands.iter().all(|command| missing.contains(&name(command)));
    let keys = are_all_missing(&ON_KEYS).then(|| format!("~{prefix}:*"));
    let channels = are_all_missing(&ON_CHANNELS).then(|| format!("&{prefix}:*"));
    let commands = missing.iter().map(|command| match command.as_str() {
        "CLUSTER" => "+cluster|slots".to_owned(),
        command => format!("+{}", command.to_ascii_lowercase()),
    });
    keys.into_iter().chain(channels).chain(commands).collect::<Vec<_>>().join(" ")
}
