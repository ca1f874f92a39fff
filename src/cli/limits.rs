//! `tollgate limits`: shows and changes the limits of a running gateway, through its admin port.

use std::{collections::BTreeMap, process::ExitCode, time::Duration};

use clap::{Args, Subcommand};
use hyper::Method;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::{Value, json};

use super::{
    duration_text,
    operator::{AdminCall, AdminPort},
    say,
    table::TextTable,
};

/// The end of the help of `tollgate limits` and its subcommands.
const LIMITS_HELP: &str = "\
Examples:
  tollgate limits list
  tollgate limits show per-key gold
  tollgate limits reset per-client 192.0.2.7
  tollgate limits set per-key gold 2000/min --for 1h
  tollgate limits unset per-key gold

Exit status: 0 done; 1 the gateway can't be reached or refused, or --if-absent and a rate is set; 2 wrong usage or an
invalid file.
Environment variables: TOLLGATE_ADMIN_TOKEN, the token of the admin port, and those that the file names as ${NAME}.";

/// The subcommand, and the address of the gateway.
#[derive(Debug, Args)]
#[command(after_help = LIMITS_HELP)]
pub(super) struct Limits {
    #[command(subcommand)]
    command: LimitsCommand,
    #[command(flatten)]
    operator: AdminPort,
    /// Print JSON
    #[arg(long, global = true)]
    json: bool,
}

#[derive(Debug, Subcommand)]
enum LimitsCommand {
    /// List the limits, the file's overrides, the rates that are set, and the bans that this gateway gave
    #[command(after_help = LIMITS_HELP)]
    List,
    /// Show what a key has used, and its rate
    #[command(after_help = LIMITS_HELP)]
    Show {
        /// Name of the limit
        limit: String,
        /// Key as clients send it or as it is shown; with several parts '["v1","v2"]'; ip:192.0.2.7 for a client without the key
        key: String,
    },
    /// Reset the count of a key, and lift its ban
    #[command(after_help = LIMITS_HELP)]
    Reset {
        /// Name of the limit
        limit: String,
        /// Key as clients send it or as it is shown; with several parts '["v1","v2"]'; ip:192.0.2.7 for a client without the key
        key: String,
    },
    /// Set the rate of a limit, or of one of its keys, on all gateways of the store; counts are kept
    #[command(override_usage = "tollgate limits set [OPTIONS] LIMIT [KEY] RATE", after_help = LIMITS_HELP)]
    Set {
        /// Name of the limit
        limit: String,
        /// Key (optional), written as for show, and rate, as in the file; rate 0 refuses every request
        #[arg(num_args = 1..=2, required = true, value_name = "[KEY] RATE")]
        key_and_rate: Vec<String>,
        /// Time after which the file's rate applies again, such as 1h
        #[arg(long, value_name = "DURATION")]
        r#for: Option<String>,
        /// Gateways that count together: shared or instance
        #[arg(long, value_name = "SCOPE")]
        scope: Option<String>,
        /// Set the rate only if none is set; otherwise exit with status 1
        #[arg(long)]
        if_absent: bool,
    },
    /// Return to the file's rate
    #[command(after_help = LIMITS_HELP)]
    Unset {
        /// Name of the limit
        limit: String,
        /// Key (optional)
        key: Option<String>,
    },
}

impl Limits {
    /// Runs the command.
    pub(super) fn main(self) -> ExitCode {
        match self.operator.ask(self.command.call()) {
            Ok(answer) => {
                self.print(&answer);
                let is_done = answer.get("set").or(answer.get("unset")) != Some(&json!(false));
                if is_done { ExitCode::SUCCESS } else { ExitCode::FAILURE }
            }
            Err(status) => status,
        }
    }

    fn print(&self, answer: &Value) {
        if self.json {
            return say(format_args!("{answer:#}\n"));
        }
        match &self.command {
            LimitsCommand::List => print_list(answer),
            LimitsCommand::Show { .. } => {
                let [limit, key, rate] = ["limit", "key", "rate"].map(|name| text(&answer[name]));
                let set = if answer["override"] == true { " (set)" } else { "" };
                say(format_args!("limit {limit}\nkey   {key}\nrate  {rate}{set}\n"));
                if answer["by_network"] == true {
                    say(format_args!(
                        "The limit has no memory for this key: it is counted with others of its client's network.\n\
                         `tollgate explain --live` shows that count.\n"
                    ));
                } else {
                    say(format_args!("used  {}\nleft  {}\n", answer["used"], answer["remaining"]));
                }
                if let Some(ms) = answer["banned_for_ms"].as_u64() {
                    let left = Duration::from_secs(ms.div_ceil(1_000));
                    say(format_args!("banned for another {}\n", humantime::format_duration(left)));
                }
                match answer["retry_after_ms"].as_u64() {
                    Some(0) | None => {}
                    Some(retry_after_ms) => say(format_args!("retry in {}\n", duration_text(retry_after_ms))),
                }
            }
            LimitsCommand::Reset { .. } => say(format_args!("reset: {}\n", text(&answer["key"]))),
            LimitsCommand::Set { .. } if answer["set"] == false => {
                say(format_args!("not set: a rate is already set\n"));
            }
            LimitsCommand::Set { .. } => {
                let network = answer["network"].as_str().map(|network| format!(" for all of {network}"));
                let key = answer["key"].as_str().map(|key| format!(" for {key}"));
                let replaced = &answer["replaced"];
                let replaced = replaced.is_object().then(|| format!("; replaced {}", describe(replaced)));
                say(format_args!(
                    "set: {}{}{}\n",
                    describe(answer),
                    network.or(key).unwrap_or_default(),
                    replaced.unwrap_or_default()
                ));
            }
            LimitsCommand::Unset { .. } if answer["unset"] == false => say(format_args!("no rate was set\n")),
            LimitsCommand::Unset { .. } => say(format_args!("unset\n")),
        }
    }
}

impl LimitsCommand {
    fn call(&self) -> AdminCall {
        let path = |limit: &str, key: Option<&str>, last: &str| {
            let encode = |text: &str| utf8_percent_encode(text, NON_ALPHANUMERIC).to_string();
            let key = key.map(|key| format!("/keys/{}", encode(key))).unwrap_or_default();
            format!("/api/limits/{}{key}{last}", encode(limit))
        };
        let (method, path, body) = match self {
            Self::List => (Method::GET, "/api/limits".to_owned(), String::new()),
            Self::Show { limit, key } => (Method::GET, path(limit, Some(key), ""), String::new()),
            Self::Reset { limit, key } => (Method::DELETE, path(limit, Some(key), ""), String::new()),
            Self::Set { limit, key_and_rate, r#for, scope, if_absent } => {
                let (rate, key) = key_and_rate.split_last().expect("clap demands one");
                let key = key.first().map(String::as_str);
                let body = json!({ "rate": rate, "for": r#for, "scope": scope, "if_absent": if_absent });
                (Method::PUT, path(limit, key, "/override"), body.to_string())
            }
            Self::Unset { limit, key } => {
                (Method::DELETE, path(limit, key.as_deref(), "/override"), String::new())
            }
        };
        AdminCall { method, path, body }
    }
}

fn print_list(answer: &Value) {
    let mut table = TextTable::new(["LIMIT", "KEY", "RATE", "SET"]);
    for limit in list(answer) {
        let name = text(&limit["limit"]);
        table.push([name.clone(), "*".to_owned(), text(&limit["rate"]), describe(&limit["override"])]);
        // The rates of the file, and those that are set, by key.
        let mut keys: BTreeMap<String, [String; 2]> = BTreeMap::new();
        for own in list(&limit["file_keys"]) {
            keys.entry(text(&own["key"])).or_default()[0] = text(&own["rate"]);
        }
        for set in list(&limit["keys"]) {
            keys.entry(text(&set["key"])).or_default()[1] = describe(set);
        }
        keys.into_iter().for_each(|(key, [rate, set])| table.push([name.clone(), key, rate, set]));
    }
    say(format_args!("{table}"));
    match list(answer).iter().find_map(|limit| limit["store_error"].as_str()) {
        None => print_bans(answer),
        Some(error) => say(format_args!(
            "\nThe store gives no answer: {error}.\n\
             SET has what this gateway knows. Later changes and bans are not known.\n"
        )),
    }
}

/// Prints the bans that the gateway gave, if there are any. Keys are written as `limits reset` takes them.
fn print_bans(answer: &Value) {
    let mut table = TextTable::new(["LIMIT", "KEY", "ENDS IN"]);
    let bans = list(answer).iter().flat_map(|limit| list(&limit["bans"]).iter().map(move |ban| (limit, ban)));
    for (limit, ban) in bans.clone() {
        let key = ban["written"].as_str().or(ban["key"].as_str()).unwrap_or_default();
        let left = Duration::from_secs(ban["ends_in_ms"].as_u64().unwrap_or_default().div_ceil(1_000));
        let left = humantime::format_duration(left).to_string();
        table.push([text(&limit["limit"]), key.to_owned(), left]);
    }
    if bans.count() > 0 {
        say(format_args!(
            "\nBans that this gateway gave, the latest first, at most 100 of a limit:\n{table}"
        ));
    }
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map(Vec::as_slice).unwrap_or_default()
}

/// Describes a rate that is set.
fn describe(set: &Value) -> String {
    let scope = set["scope"].as_str().map(|scope| format!(", {scope}")).unwrap_or_default();
    let ends = set["ends_in_ms"].as_u64().map(|ms| {
        let seconds = Duration::from_secs(ms.div_ceil(1_000));
        format!(" (ends in {})", humantime::format_duration(seconds))
    });
    format!("{}{scope}{}", text(&set["rate"]), ends.unwrap_or_default())
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}
