//! `tollgate reload`: asks a running gateway to reload its configuration.

use std::process::ExitCode;

use clap::Args;
use hyper::Method;

use super::{
    operator::{AdminCall, AdminPort},
    say,
};

/// The gateway to ask.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  tollgate reload --config /etc/tollgate/gateway.toml
  tollgate reload --admin http://127.0.0.1:9901

An invalid file changes nothing, and its errors are shown.

Exit status: 0 reloaded; 1 the gateway can't be reached or refused; 2 wrong usage or an invalid file.
Environment variables: TOLLGATE_ADMIN_TOKEN, the token of the admin port, and those that the file names as ${NAME}.")]
pub(super) struct ReloadArgs {
    #[command(flatten)]
    operator: AdminPort,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl ReloadArgs {
    /// Runs the command.
    pub(super) fn main(self) -> ExitCode {
        let path = "/api/reload".to_owned();
        let answer = match self.operator.ask(AdminCall { method: Method::POST, path, body: String::new() }) {
            Ok(answer) => answer,
            Err(status) => return status,
        };
        if self.json {
            say(format_args!("{answer:#}\n"));
            return ExitCode::SUCCESS;
        }
        let changes = answer["changes"].as_array().map(Vec::as_slice).unwrap_or_default();
        match changes.len() {
            0 => say(format_args!("reloaded: no changes\n")),
            1 => say(format_args!("reloaded: 1 change\n")),
            many => say(format_args!("reloaded: {many} changes\n")),
        }
        changes
            .iter()
            .filter_map(|change| change.as_str())
            .for_each(|change| say(format_args!("{change}\n")));
        ExitCode::SUCCESS
    }
}
