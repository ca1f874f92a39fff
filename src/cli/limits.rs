//! `tollgate limits`: shows and changes the limits of a running gateway, through its admin port.

use std::{process::ExitCode, time::Duration};

use clap::{Args, Subcommand};
use hyper::Method;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::{Value, json};

use super::{
    operator::{AdminCall, AdminPort},
    say,
};

/// The subcommand, and the address of the gateway.
#[derive(Debug, Args)]
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
    /// List the limits, and the rates that are set instead of the file's
    List,
    /// Show what a key has used, and its rate
    Show {
        /// Name of the limit
        limit: String,
        /// Key as clients send it; with several parts '["v1","v2"]'
        key: String,
    },
    /// Reset the count of a key
    Reset {
        /// Name of the limit
        limit: String,
        /// Key as clients send it; with several parts '["v1","v2"]'
        key: String,
    },
    /// Set the rate of a limit, or of one of its keys, on all gateways of the store; counts are kept
    #[command(override_usage = "tollgate limits set [OPTIONS] LIMIT [KEY] RATE")]
    Set {
        /// Name of the limit
        limit: String,
        /// Key (optional) and rate, written as in the file; rate 0 refuses every request
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
                say(format_args!("used  {}\nleft  {}\n", answer["used"], answer["remaining"]));
                match answer["retry_after_ms"].as_u64() {
                    Some(0) | None => {}
                    Some(retry_after_ms) => say(format_args!("retry in {retry_after_ms} ms\n")),
                }
            }
            LimitsCommand::Reset { .. } => say(format_args!("reset: {}\n", text(&answer["key"]))),
            LimitsCommand::Set { .. } if answer["set"] == false => {
                say(format_args!("not set: a rate is already set\n"));
            }
            LimitsCommand::Set { .. } => say(format_args!("set: {}\n", describe(answer))),
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
    let limits = answer.as_array().map(Vec::as_slice).unwrap_or_default();
    let rows: Vec<[String; 4]> = limits
        .iter()
        .flat_map(|limit| {
            let name = text(&limit["limit"]);
            let own = [name.clone(), "*".to_owned(), text(&limit["rate"]), describe(&limit["override"])];
            let keys = limit["keys"].as_array().map(Vec::as_slice).unwrap_or_default();
            let keys =
                keys.iter().map(move |set| [name.clone(), text(&set["key"]), String::new(), describe(set)]);
            [own].into_iter().chain(keys)
        })
        .collect();
    let head = ["LIMIT", "KEY", "RATE", "SET"].map(str::to_owned);
    let rows: Vec<_> = [head].into_iter().chain(rows).collect();
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let [limit, key, rate] = [0, 1, 2].map(width);
    for row in &rows {
        let line = format!("{:limit$}  {:key$}  {:rate$}  {}", row[0], row[1], row[2], row[3]);
        say(format_args!("{}\n", line.trim_end()));
    }
}

/// Describes a rate that is set.
fn describe(set: &Value) -> String {
    let scope = set["scope"].as_str().map(|scope| format!(", {scope}")).unwrap_or_default();
    let ends = set["ends_in_ms"].as_u64().map(|ms| {
        let seconds = Duration::from_secs(ms.div_ceil(1_000));
        format!(", for another {}", humantime::format_duration(seconds))
    });
    format!("{}{scope}{}", text(&set["rate"]), ends.unwrap_or_default())
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}
