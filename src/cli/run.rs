//! `tollgate run`: runs the gateway until a signal ends it.

use std::{error::Error, fmt, net::SocketAddr, path::PathBuf, process::ExitCode, sync::Arc};

use clap::Args;
use hyper::Method;
use tokio::{
    net::TcpListener,
    signal::unix::{Signal, SignalKind, signal},
};
use tollgate_limiter::{Limiter, OnFailure, StoreUrl};
use tollgate_routing::{Matcher, pattern::Pattern};

use super::{complain, log, say_aside, written};
use crate::{
    admin,
    config::{
        Config, FlagOverrides, ListenAddress, LoadedConfig, LogFormat, Missing, RatelimitFolder,
        RouteSettings,
    },
    gateway::{AccessLog, Gateway},
    reload::{ConfigSource, Reloader, Running},
    server::Server,
    trace::Tracer,
    xds::{self, RulesFeed},
};

#[derive(Debug, Args)]
pub(super) struct Run {
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

impl Run {
    /// Runs the command.
    pub(super) fn main(self) -> ExitCode {
        let Self { config: path, listen, store } = self;
        let source = ConfigSource::File { path, overrides: FlagOverrides { listen, store } };
        let loaded = source.read();
        run(source, loaded)
    }
}

/// Runs a gateway with this configuration until a signal ends it.
pub(super) fn run(source: ConfigSource, loaded: LoadedConfig) -> ExitCode {
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
    let target = tried_path(config);
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

/// Returns the path of the example at the start: of a route that takes a request without a key, a token and conditions, if there is one.
fn tried_path(config: &Config) -> String {
    let needs_nothing = |route: &&RouteSettings| {
        let Matcher { methods, headers, query, claims, .. } = &route.matcher;
        route.requires.is_none()
            && (methods.is_empty() || methods.contains(&Method::GET))
            && (headers.is_empty() && query.is_empty() && claims.is_empty())
            && route.limits.iter().all(|limit| config.limits[limit].missing != Missing::Deny)
    };
    let tried = config.routes.iter().find(needs_nothing).or(config.routes.first());
    tried.map_or("/".to_owned(), |route| example_of(&route.matcher.path))
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
