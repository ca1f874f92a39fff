//! `tollgate routes`: lists the routes of a configuration.

use std::{path::PathBuf, process::ExitCode};

use clap::Args;
use hyper::Method;
use serde_json::{Value, json};

use crate::config::{Action, Config, FlagOverrides, RouteSettings};

use super::{complain, say, table::TextTable};

/// The configuration whose routes are listed.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  tollgate routes
  tollgate routes --config /etc/tollgate/gateway.toml --json

`tollgate explain GET /path` shows which of them a request takes.

Exit status: 0 listed; 2 wrong usage or an invalid file.
Environment variables: those that the file names as ${NAME}; NO_COLOR turns colour off.")]
pub(super) struct Routes {
    /// Configuration file
    #[arg(long, value_name = "FILE", default_value = "gateway.toml")]
    config: PathBuf,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Routes {
    /// Runs the command.
    pub(super) fn main(self) -> ExitCode {
        let config = match Config::read(&self.config, &FlagOverrides::default()) {
            Ok((config, _)) => config,
            Err(faults) => {
                complain(&faults);
                return ExitCode::from(2);
            }
        };
        if self.json {
            let routes: Value = config.routes.iter().map(shown).collect();
            say(format_args!("{routes:#}\n"));
        } else {
            let mut table = TextTable::new(["ROUTE", "METHODS", "HOST", "PATH", "ALSO", "GOES TO", "LIMITS"]);
            config.routes.iter().for_each(|route| table.push(row(route)));
            say(format_args!("{table}"));
        }
        ExitCode::SUCCESS
    }
}

/// Returns a route as JSON.
fn shown(route: &RouteSettings) -> Value {
    let matcher = &route.matcher;
    json!({
        "route": route.name,
        "methods": matcher.methods.iter().map(Method::as_str).collect::<Vec<_>>(),
        "host": matcher.host.as_ref().map(ToString::to_string),
        "path": matcher.path.to_string(),
        "conditions": conditions(route),
        "action": action(route),
        "limits": route.limits,
    })
}

/// Returns the cells of a route, with `*` where it matches everything and `-` where it has nothing.
fn row(route: &RouteSettings) -> [String; 7] {
    let matcher = &route.matcher;
    let or = |text: String, instead: &str| if text.is_empty() { instead.to_owned() } else { text };
    let methods: Vec<_> = matcher.methods.iter().map(Method::as_str).collect();
    [
        route.name.clone(),
        or(methods.join(","), "*"),
        matcher.host.as_ref().map_or_else(|| "*".to_owned(), ToString::to_string),
        matcher.path.to_string(),
        or(conditions(route).join(" "), "-"),
        action(route),
        or(route.limits.join(","), "-"),
    ]
}

/// Returns the conditions on header fields, query parameters and claims. Values of header fields and query parameters are left
/// out, since they may be secrets.
fn conditions(route: &RouteSettings) -> Vec<String> {
    let headers = route.matcher.headers.iter().map(|(name, _)| name.to_string());
    let query = route.matcher.query.iter().map(|(name, _)| format!("?{name}"));
    let claims = route.matcher.claims.iter().map(|(name, value)| format!("jwt:{name}={value}"));
    headers.chain(query).chain(claims).collect()
}

fn action(route: &RouteSettings) -> String {
    match &route.action {
        Action::Upstream(name) => name.clone(),
        Action::Split(weights) => {
            let weights = weights.iter().map(|(name, weight)| format!("{name}={weight}"));
            weights.collect::<Vec<_>>().join(",")
        }
        Action::Respond { status, .. } => format!("responds {}", status.as_str()),
        Action::Redirect { status, .. } => format!("redirects {}", status.as_str()),
    }
}
