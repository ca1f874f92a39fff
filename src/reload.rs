//! Replaces the running configuration with another one, one reload at a time.
//!
//! Reloads come from SIGHUP, a change of a file ([`watch`]) and operators. An invalid configuration changes
//! nothing. A valid one applies from the next request on. The limiter with its counts and the connections to
//! upstreams are kept. Requests in flight end with the configuration they began with, but requests that wait
//! for room use the new rates.

mod watch;

use std::{collections::BTreeMap, mem, net::SocketAddr, path::PathBuf, sync::Arc};

use arc_swap::ArcSwap;
use serde_json::Value;
use tokio::{sync::Mutex, task::spawn_blocking};
use tollgate_limiter::Limiter;

use crate::{
    config::{AdminTokens, Config, Diagnostics, FlagOverrides, LoadedConfig, RatelimitFolder, Sources},
    gateway::Gateway,
    server::{Control, Server, Status},
};

/// The source of a configuration.
#[derive(Clone, Debug)]
pub enum ConfigSource {
    /// A file, and the flags of the command line.
    File {
        /// The configuration file.
        path: PathBuf,
        /// The values of flags, which override those of the file.
        overrides: FlagOverrides,
    },
    /// The environment variables of envoyproxy/ratelimit.
    Environment,
}

impl ConfigSource {
    /// Reads and checks the configuration.
    pub fn read(&self) -> LoadedConfig {
        match self {
            Self::File { path, overrides } => LoadedConfig::of(path, overrides),
            Self::Environment => LoadedConfig::of_environment(),
        }
    }

    /// Returns the name of the file, or what else is read.
    pub fn name(&self) -> String {
        match self {
            Self::File { path, .. } => path.display().to_string(),
            Self::Environment => "the environment".to_owned(),
        }
    }
}

/// A running configuration and its sources.
#[derive(Debug)]
pub struct Running {
    /// The configuration.
    pub config: Config,
    /// The configuration as operators may see it.
    pub shown: Value,
    /// The rules that have come by xDS.
    pub rules: RatelimitFolder,
    /// The files in the state of the last attempt to read them, even if that failed.
    pub sources: Sources,
}

/// Reloads the configuration of a gateway.
pub struct Reloader {
    source: ConfigSource,
    running: Mutex<Running>,
    limiter: Arc<Limiter>,
    control: Arc<Control>,
    status: Arc<Status>,
    /// The address of the admin port, which only a restart changes.
    admin_listen: Option<SocketAddr>,
    tokens: Arc<ArcSwap<AdminTokens>>,
    /// Reports errors and warnings.
    complain: fn(&Diagnostics),
}

impl Reloader {
    /// Creates a reloader for a server that runs with this configuration.
    pub fn new(
        source: ConfigSource,
        running: Running,
        limiter: Arc<Limiter>,
        server: &Server,
        complain: fn(&Diagnostics),
    ) -> Self {
        let (control, status) = (server.control(), server.status());
        let admin = running.config.admin.as_ref();
        let admin_listen = admin.map(|admin| admin.listen);
        let tokens = admin.map(|admin| admin.tokens.clone()).unwrap_or_default();
        let tokens = Arc::new(ArcSwap::from_pointee(tokens));
        status.note_expiries(running.config.expiries());
        let running = Mutex::new(running);
        Self { source, running, limiter, control, status, admin_listen, tokens, complain }
    }

    /// Returns the tokens of the admin port, which a reload replaces.
    pub fn tokens(&self) -> Arc<ArcSwap<AdminTokens>> {
        self.tokens.clone()
    }

    /// Returns the name of the configuration file, or what else is read.
    pub fn source(&self) -> String {
        self.source.name()
    }

    /// Returns the running configuration as operators may see it.
    pub async fn shown(&self) -> Value {
        self.running.lock().await.shown.clone()
    }

    /// Reloads the configuration, and returns the changes, a line each. `by` names the source of the reload
    /// in the log. Must be called in the runtime of the health checks.
    ///
    /// # Errors
    /// The configuration is invalid. The running one stays as it is.
    pub async fn reload(&self, by: &str) -> Result<Vec<String>, Diagnostics> {
        self.reload_as(&mut *self.running.lock().await, by).await
    }

    /// Replaces the rules that come by xDS. Must be called in the runtime of the health checks.
    ///
    /// # Errors
    /// The rules can't be used, or the files have become invalid. The running rules stay as they are.
    pub async fn replace_rules(&self, rules: RatelimitFolder) -> Result<(), Diagnostics> {
        let running = &mut *self.running.lock().await;
        let before = mem::replace(&mut running.rules, rules);
        let outcome = self.reload_as(running, "xDS").await;
        if outcome.is_err() {
            running.rules = before;
        }
        outcome.map(drop)
    }

    /// Reloads the configuration if a file has changed since it was last read.
    async fn reload_if_changed(&self) {
        let running = &mut *self.running.lock().await;
        let now = running.sources.now();
        let changed = now.changed(&running.sources);
        if !changed.is_empty() {
            let names: Vec<String> = changed.iter().map(|path| format!("`{}`", path.display())).collect();
            // The result is in the log, too.
            let _ = self.reload_as(running, &format!("a change of {}", names.join(", "))).await;
        }
    }

    async fn reload_as(&self, running: &mut Running, by: &str) -> Result<Vec<String>, Diagnostics> {
        // Large files take long, and file systems may hang, so this thread goes on accepting connections.
        let source = self.source.clone();
        let LoadedConfig { outcome, sources, shown } = match spawn_blocking(move || source.read()).await {
            Ok(loaded) => loaded,
            Err(error) => return Err(self.refuse(Diagnostics::of(&self.source(), &error.to_string()), by)),
        };
        running.sources = sources;
        let (mut config, warnings) = match outcome {
            Ok(read) => read,
            Err(faults) => return Err(self.refuse(faults, by)),
        };
        config.add_rules(&running.rules);
        (self.complain)(&warnings);
        let changes = config.changes(&running.config, [&running.shown, &shown]);
        // The settings of the store change at the next start only, but for its login.
        mem::swap(&mut config.store, &mut running.config.store);
        let mut rules = BTreeMap::new();
        let build = |before: &_| {
            let gateway = Gateway::build(&config, &self.limiter, Some(before));
            rules.clone_from(gateway.rules());
            gateway
        };
        if let Err(error) = self.control.reload(&config, build).await {
            mem::swap(&mut config.store, &mut running.config.store);
            return Err(self.refuse(Diagnostics::of(&self.source(), &error.to_string()), by));
        }
        let url = &mut running.config.store.url;
        if config.store.url.is_same_place(url) && config.store.url != *url {
            mem::swap(&mut config.store.url, url);
            self.limiter.log_in(&config.store.url);
        }
        self.limiter.forget_refusals();
        self.limiter.renew_waits(rules.values().filter_map(|rule| rule.rates()));
        // A file with another address may have no token, because that address needs none.
        if let Some(admin) = config.admin.as_ref().filter(|admin| Some(admin.listen) == self.admin_listen) {
            self.tokens.store(Arc::new(admin.tokens.clone()));
        }
        self.status.note_expiries(config.expiries());
        (running.config, running.shown) = (config, shown);
        tracing::info!(by, changes = changes.len(), "reloaded `{}`", self.source());
        for change in &changes {
            tracing::info!("{change}");
        }
        self.status.note_reload(Ok(changes.clone()));
        Ok(changes)
    }

    /// Reports why a configuration was rejected.
    fn refuse(&self, faults: Diagnostics, by: &str) -> Diagnostics {
        (self.complain)(&faults);
        tracing::error!(by, "the configuration can't be used, the running one stays in use");
        self.status.note_reload(Err(faults.to_string()));
        faults
    }
}
