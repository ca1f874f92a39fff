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
#[cfg(feature = "commands")]
mod simulate;
#[cfg(feature = "commands")]
mod table;

use std::{
    env,
    error::Error,
    fmt,
    io::{self, IsTerminal, Write},
    net::SocketAddr,
    path::PathBuf,
    process::{self, ExitCode},
    sync::Arc,
};

use clap::{Args, Parser, Subcommand};
use tokio::{
    net::TcpListener,
    signal::unix::{Signal, SignalKind, signal},
};

use self::check::CheckArgs;
#[cfg(feature = "commands")]
use self::{
    explain::Explain, init::Init, limits::Limits, man::Man, ready::Ready, reload::ReloadArgs, routes::Routes,
    simulate::Simulate,
};
use tollgate_limiter::{Limiter, OnFailure, StoreUrl};
use tollgate_routing::pattern::Pattern;

use crate::{
    admin,
    config::{Config, Diagnostics, FlagOverrides, ListenAddress, LoadedConfig, LogFormat, RatelimitFolder},
    gateway::{AccessLog, Gateway},
    reload::{ConfigSource, Reloader, Running},
    server::Server,
    trace::Tracer,
    xds::{self, RulesFeed},
};

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

#[derive(Debug, Args)]
struct Run {
    /// Configuration file
    #[arg(long, value_name = "FILE", default_value = "gateway.toml")]
    config: PathBuf,
    /// Address to listen on, overrides the file's `server.listen`
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<String>,
    /// URL of the store, overrides the file's `store.url`
    #[arg(long, value_name = "URL")]
    store: Option<String>,
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

impl Run {
    fn main(self) -> ExitCode {
        let Self { config: path, listen, store } = self;
        let source = ConfigSource::File { path, overrides: FlagOverrides { listen, store } };
        let loaded = source.read();
        run(source, loaded)
    }
}

/// Runs a gateway with this configuration until a signal ends it.
fn run(source: ConfigSource, loaded: LoadedConfig) -> ExitCode {
    let LoadedConfig { outcome, sources, shown } = loaded;
    let (config, warnings) = match outcome {
        Ok(read) => read,
        Err(faults) => {
            complain(&faults);
            return ExitCode::from(2);
        }
    };
    let _log = log::begin(config.log);
    match config.log.format {
        LogFormat::Text => complain(&warnings),
        LogFormat::Json => log::report(&warnings),
    }
    let running = Running { config, shown, rules: RatelimitFolder::default(), sources };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    match runtime.map_err(Into::into).and_then(|runtime| runtime.block_on(serve(source, running))) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("{error}");
            ExitCode::FAILURE
        }
    }
}

async fn serve(source: ConfigSource, mut running: Running) -> Result<(), Box<dyn Error>> {
    let feed = first_rules(&mut running).await;
    let config = &running.config;
    let limiter = Limiter::open(&config.store)?;
    let mut gateway = Gateway::build(config, &limiter, None);
    let (access_log, _unwritten) = config.access_log.as_ref().map(AccessLog::open).transpose()?.unzip();
    if let Some(log) = &access_log {
        gateway = gateway.log_to(log.clone());
    }
    let tracer = config.tracing.as_ref().map(Tracer::open).transpose()?;
    if let Some(tracer) = &tracer {
        gateway = gateway.trace_by(tracer.clone());
    }
    tokio::spawn(reopen_on_signal(signal(SignalKind::user_defined1())?, access_log));
    let mut server = Server::start(config, gateway).await?;
    let (admin, metrics) = (server.take_admin(), server.take_metrics());
    greet(config, &server, admin.as_ref().map(TcpListener::local_addr).transpose()?);
    let reloader = Arc::new(Reloader::new(source, running, limiter, &server, log::report));
    if let Some(listener) = admin {
        let (gateway, status) = (server.gateway(), server.status());
        tokio::spawn(admin::serve(listener, metrics, gateway, status, reloader.clone()));
    }
    if let Some(feed) = feed {
        server.status().note_rules_feed(feed.is_up.clone());
        tokio::spawn(follow_rules(feed, reloader.clone()));
    }
    reloader.clone().watch();
    // The result is in the log, too.
    server.run(async || drop(reloader.reload("SIGHUP").await)).await;
    if let Some(tracer) = tracer {
        tracer.flush().await;
    }
    Ok(())
}

/// Begins to receive rules by xDS, if they come so, and waits for the first ones, if that is wanted.
async fn first_rules(running: &mut Running) -> Option<RulesFeed> {
    let settings = running.config.xds.clone()?;
    let on_failure = running.config.decisions.as_ref().map(|decisions| decisions.on_failure);
    let mut feed = xds::follow(settings.clone(), on_failure.unwrap_or(OnFailure::Local));
    if settings.is_awaited {
        tracing::info!("waiting for the first rules from {}", settings.url);
        let update = feed.updates.recv().await?;
        running.config.add_rules(&update.rules);
        running.rules = update.rules.clone();
        update.conclude(Ok(()));
    }
    Some(feed)
}

/// Uses rules that come by xDS, for ever.
async fn follow_rules(mut feed: RulesFeed, reloader: Arc<Reloader>) {
    while let Some(update) = feed.updates.recv().await {
        let outcome = reloader.replace_rules(update.rules.clone()).await;
        update.conclude(outcome.map_err(|faults| faults.to_string()));
    }
}

/// Prints where the gateway listens and counts, and how to try it.
fn greet(config: &Config, server: &Server, admin: Option<SocketAddr>) {
    let scheme = if config.server.tls.is_some() { "https" } else { "http" };
    let listens = server.addresses().iter().map(|address| match address {
        ListenAddress::Tcp(address) => format!("tollgate listens on {scheme}://{address}"),
        ListenAddress::Unix(_) => format!("tollgate listens on {address}"),
    });
    let decisions =
        server.decisions_address().map(|address| format!("decisions for other proxies: {address}"));
    let store = match &config.store.url {
        StoreUrl::Memory => "store: in memory, this process only".to_owned(),
        StoreUrl::Redis(url) => format!("store: {url}"),
    };
    let dashboard = admin.map(|address| format!("dashboard: http://{address}"));
    let target = config.routes.first().map_or("/".to_owned(), |route| example_of(&route.matcher.path));
    let example = server.addresses().first().map(|address| match address {
        ListenAddress::Tcp(address) => format!("try: curl -i {scheme}://{address}{target}"),
        ListenAddress::Unix(path) => {
            format!("try: curl -i --unix-socket {} http://localhost{target}", path.display())
        }
    });
    let lines: Vec<_> = listens.chain(decisions).chain([store]).chain(dashboard).chain(example).collect();
    // A program may read the access log from stdout, so nothing else goes there.
    let logs_to_stdout = config.access_log.as_ref().is_some_and(|log| log.path.is_none());
    let print = if logs_to_stdout { say_aside } else { |text: fmt::Arguments<'_>| drop(written(text)) };
    print(format_args!("{}\n", lines.join("\n")));
}

/// Returns a path that a pattern matches: `/v1/orders/1` of `/v1/orders/{id}`.
fn example_of(pattern: &Pattern) -> String {
    let text = pattern.to_string();
    let segments = text.split('/').map(|segment| match segment.as_bytes() {
        [b'{', b'*', ..] => "",
        [b'{', ..] => "1",
        _ => segment,
    });
    segments.collect::<Vec<_>>().join("/")
}

/// Reopens the access log on SIGUSR1. Without a handler the signal would end the process.
async fn reopen_on_signal(mut signals: Signal, log: Option<Arc<AccessLog>>) {
    while signals.recv().await.is_some() {
        if let Some(log) = &log {
            log.reopen();
        }
    }
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
