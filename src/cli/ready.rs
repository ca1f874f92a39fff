//! `tollgate ready`: probes a running gateway, for container health checks.

use std::process::ExitCode;

use clap::Args;

use super::{fail, operator::AdminPort, say};

/// The gateway to probe.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  tollgate ready
  HEALTHCHECK CMD [\"tollgate\", \"ready\", \"--config\", \"/etc/tollgate/gateway.toml\"]

It asks the admin port, or without one the main listener, if the file has `server.health`.
A gateway whose store is down is `degraded`, but ready: each limit has a fallback. A draining one isn't ready.

Exit status: 0 ready; 1 not ready, or it can't be reached; 2 wrong usage or an invalid file.
Environment variables: TOLLGATE_ADMIN_TOKEN, the token of the admin port, and those that the file names as ${NAME}.")]
pub(super) struct Ready {
    #[command(flatten)]
    operator: AdminPort,
}

impl Ready {
    /// Runs the command.
    pub(super) fn main(self) -> ExitCode {
        match self.operator.probe() {
            Ok((true, state)) => {
                say(format_args!("{}\n", state.trim()));
                ExitCode::SUCCESS
            }
            Ok((false, state)) => {
                fail(&format!("not ready: {}", state.trim()));
                ExitCode::FAILURE
            }
            Err(status) => status,
        }
    }
}
