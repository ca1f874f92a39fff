//! The command line: arguments, output and exit status of each command.
//!
//! Exit status: 0 for success, 1 for a failure, 2 for wrong usage or an invalid file. Results go to stdout,
//! logs and errors to stderr. Colour is used only on a terminal and without NO_COLOR.

mod check;
mod connect;
#[cfg(feature = "commands")]
mod explain;
#[cfg(feature = "commands")]
mod init;
#[cfg(feature = "commands")]
mod limits;
mod log;
#[cfg(feature = "commands")]
mod man;
#[cfg(feature = "commands")]
mod operator;
mod ratelimit;
#[cfg(feature = "commands")]
mod ready;
#[cfg(feature = "commands")]
mod reload;
#[cfg(feature = "commands")]
mod routes;
mod run;
#[cfg(feature = "commands")]
mod simulate;
#[cfg(feature = "commands")]
mod table;

use std::{
    env, fmt,
    io::{self, IsTerminal, Write},
    process::{self, ExitCode},
};

use clap::{Parser, Subcommand};

use self::{check::CheckArgs, run::Run};
#[cfg(feature = "commands")]
use self::{
    explain::Explain, init::Init, limits::Limits, man::Man, ready::Ready, reload::ReloadArgs, routes::Routes,
    simulate::Simulate,
};
use crate::config::Diagnostics;

/// The end of the help of `tollgate` and `tollgate run`.
const RUN_HELP: &str = "\
Examples:
  tollgate init && tollgate                                   write ./gateway.toml and run with it
  tollgate run --config /etc/tollgate/gateway.toml --store redis://127.0.0.1:6379

Exit status: 0 ended after a signal; 1 couldn't start, or failed while running; 2 wrong usage or an invalid file.
Environment variables:
  TOLLGATE_LOG                 level of the log: error, warn, info (the default), debug or trace
  NO_COLOR                     turns colour off
  OTEL_SERVICE_NAME            name of the service in traces (default: tollgate)
  LISTEN_FDS, NOTIFY_SOCKET    set by systemd
  and those that the file names as ${NAME}";

/// The text that `--version` prints: the version with its commit, and how it was built. `-V` prints the first line.
const LONG_VERSION: &str = concat!(env!("TOLLGATE_VERSION"), "\nbuild: ", env!("TOLLGATE_BUILD"));

/// An HTTP gateway with exact distributed rate limits over Redis.
#[derive(Debug, Parser)]
#[command(
    version = env!("TOLLGATE_VERSION"),
    long_version = LONG_VERSION,
    args_conflicts_with_subcommands = true,
    after_help = RUN_HELP
)]
pub struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    run: Run,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run the gateway (the default command)
    #[command(after_help = RUN_HELP)]
    Run(Run),
    /// Write a configuration file to start with
    #[cfg(feature = "commands")]
    Init(Init),
    /// Check configurations and show their errors and warnings
    Check(CheckArgs),
    /// List the routes of a configuration
    #[cfg(feature = "commands")]
    Routes(Routes),
    /// Run the rate limit service in place of envoyproxy/ratelimit, configured by its environment variables
    #[command(after_help = ratelimit::HELP)]
    Ratelimit,
    /// Show which route and limits a request would hit
    #[cfg(feature = "commands")]
    Explain(Explain),
    /// Replay access logs to see which requests the limits would have rejected
    #[cfg(feature = "commands")]
    Simulate(Simulate),
    /// Show and change the limits of a running gateway
    #[cfg(feature = "commands")]
    Limits(Limits),
    /// Ask a running gateway to reload its configuration
    #[cfg(feature = "commands")]
    Reload(ReloadArgs),
    /// Probe whether a running gateway is ready, for container health checks
    #[cfg(feature = "commands")]
    Ready(Ready),
    /// Print the JSON Schema of gateway.toml, for editors
    #[cfg(feature = "commands")]
    #[command(after_help = "\
Example:
  tollgate schema > gateway.schema.json

Environment variables: none.")]
    Schema,
    /// Generate shell completions
    #[cfg(feature = "commands")]
    #[command(after_help = "\
Example:
  tollgate completions bash > /etc/bash_completion.d/tollgate

Environment variables: none.")]
    Completions {
        /// Shell to generate them for
        shell: clap_complete::Shell,
    },
    /// Write a manual page for each command
    #[cfg(feature = "commands")]
    Man(Man),
}

impl Cli {
    /// Parses the arguments of this process. It ends here if they are wrong, or ask for help.
    pub fn of_process() -> Self {
        Self::parse_from(ratelimit::arguments())
    }

    /// Runs the command.
    pub fn main(self) -> ExitCode {
        match self.command.unwrap_or(Command::Run(self.run)) {
            Command::Run(run) => run.main(),
            Command::Check(check) => check.main(),
            #[cfg(feature = "commands")]
            Command::Init(init) => init.main(),
            #[cfg(feature = "commands")]
            Command::Routes(routes) => routes.main(),
            Command::Ratelimit => ratelimit::main(),
            #[cfg(feature = "commands")]
            Command::Explain(explain) => explain.main(),
            #[cfg(feature = "commands")]
            Command::Simulate(simulate) => simulate.main(),
            #[cfg(feature = "commands")]
            Command::Limits(limits) => limits.main(),
            #[cfg(feature = "commands")]
            Command::Reload(reload) => reload.main(),
            #[cfg(feature = "commands")]
            Command::Ready(ready) => ready.main(),
            #[cfg(feature = "commands")]
            Command::Schema => print_schema(),
            #[cfg(feature = "commands")]
            Command::Completions { shell } => complete(shell),
            #[cfg(feature = "commands")]
            Command::Man(man) => man.main(),
        }
    }
}

#[cfg(feature = "commands")]
fn print_schema() -> ExitCode {
    say(format_args!("{}", include_str!("../gateway.schema.json")));
    ExitCode::SUCCESS
}

#[cfg(feature = "commands")]
fn complete(shell: clap_complete::Shell) -> ExitCode {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut <Cli as clap::CommandFactory>::command(), "tollgate", &mut script);
    say(format_args!("{}", String::from_utf8_lossy(&script)));
    ExitCode::SUCCESS
}

/// Prints a result. It is not a failure if nobody reads it to the end, as with `head`. Otherwise the command ends if it can't be
/// written, so that a full disk is not taken for success.
fn say(text: fmt::Arguments<'_>) {
    if let Err(error) = written(text)
        && error.kind() != io::ErrorKind::BrokenPipe
    {
        fail(&format!("can't write the output: {error}"));
        process::exit(1);
    }
}

/// Returns a duration as people write it, such as `1m 500ms`.
#[cfg(feature = "commands")]
fn duration_text(ms: u64) -> humantime::FormattedDuration {
    humantime::format_duration(std::time::Duration::from_millis(ms))
}

/// Writes a text to stdout.
fn written(text: fmt::Arguments<'_>) -> io::Result<()> {
    let mut stdout = io::stdout();
    stdout.write_fmt(text).and_then(|()| stdout.flush())
}

/// Prints a text for people to stderr, if a program reads stdout.
fn say_aside(text: fmt::Arguments<'_>) {
    let _ = io::stderr().write_fmt(text);
}

/// Prints errors and warnings.
fn complain(faults: &Diagnostics) {
    if !faults.is_empty() {
        let text = if stderr_takes_colour() { faults.coloured() } else { faults.to_string() };
        let _ = writeln!(io::stderr(), "{text}");
    }
}

/// Prints an error. It is not a failure if nobody reads it.
fn fail(message: &str) {
    let _ = writeln!(io::stderr(), "error: {message}");
}

fn stderr_takes_colour() -> bool {
    takes_colour(&io::stderr())
}

fn takes_colour(output: &impl IsTerminal) -> bool {
    output.is_terminal() && env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}
