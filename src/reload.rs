//! A reload puts another configuration in the running one's place: one at a time, whoever wants it.
//!
//! SIGHUP, a change of a file ([`watch`]) and operators all come here. A wrong configuration changes nothing. A good
//! one holds from the next request on: the limiter with its counts and the connections to upstreams are taken over, and
//! requests in flight, those that wait for room among them, end on the configuration they began with.

mod watch;

use std::{
    mem,
    path::{Path, PathBuf},
    sync::Arc,
};

use serde_json::Value;
use tokio::sync::Mutex;

use crate::{
    config::{Config, Diagnostics, FlagOverrides, LoadedConfig, Sources},
    gateway::Gateway,
    limit::Limiter,
    server::{Control, Server, Status},
};

/// Where a configuration is read from.
#[derive(Clone, Debug)]
pub struct ConfigSource {
    /// The file.
    pub path: PathBuf,
    /// What the command line says in its place.
    pub overrides: FlagOverrides,
}

impl ConfigSource {
    /// Reads and checks it.
    pub fn read(&self) -> LoadedConfig {
        LoadedConfig::of(&self.path, &self.overrides)
    }
}

/// A configuration that runs, and what it was made from.
#[derive(Debug)]
pub struct Running {
    /// The configuration.
    pub config: Config,
    /// As operators may see it.
    pub shown: Value,
    /// The files as they were when they were read last, also if what was read then was wrong.
    pub sources: Sources,
}

/// Reloads the configuration of a gateway.
pub struct Reloader {
    source: ConfigSource,
    running: Mutex<Running>,
    limiter: Arc<Limiter>,
    control: Arc<Control>,
    status: Arc<Status>,
    /// Tells people of faults and warnings.
    complain: fn(&Diagnostics),
}

impl Reloader {
    /// Of a server that runs by this configuration.
    pub fn new(
        source: ConfigSource,
        running: Running,
        limiter: Arc<Limiter>,
        server: &Server,
        complain: fn(&Diagnostics),
    ) -> Self {
        let (control, status) = (server.control(), server.status());
        Self { source, running: Mutex::new(running), limiter, control, status, complain }
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.source.path
    }

    /// The running configuration as operators may see it.
    pub async fn shown(&self) -> Value {
        self.running.lock().await.shown.clone()
    }

    /// Reads the configuration again for somebody, and tells what changes, a line each. It must be called in the
    /// runtime by which servers are watched.
    ///
    /// # Errors
    /// What is wrong with it. What runs goes on unchanged.
    pub async fn reload(&self, by: &str) -> Result<Vec<String>, Diagnostics> {
        self.reload_as(&mut *self.running.lock().await, by).await
    }

    /// The same, if a file differs from what was read last.
    async fn reload_if_changed(&self) {
        let running = &mut *self.running.lock().await;
        let now = running.sources.now();
        let changed = now.changed(&running.sources);
        if !changed.is_empty() {
            let names: Vec<String> = changed.iter().map(|path| format!("`{}`", path.display())).collect();
            // Who wants to know is told by the log.
            let _ = self.reload_as(running, &format!("a change of {}", names.join(", "))).await;
        }
    }

    async fn reload_as(&self, running: &mut Running, by: &str) -> Result<Vec<String>, Diagnostics> {
        let LoadedConfig { outcome, sources, shown } = self.source.read();
        running.sources = sources;
        let (mut config, warnings) = match outcome {
            Ok(read) => read,
            Err(faults) => return Err(self.refuse(faults, by)),
        };
        (self.complain)(&warnings);
        let changes = config.changes(&running.config);
        // The store goes on as it is until the next start.
        mem::swap(&mut config.store, &mut running.config.store);
        let build = |before: &_| Gateway::build(&config, &self.limiter, Some(before));
        if let Err(error) = self.control.reload(&config.server, build).await {
            mem::swap(&mut config.store, &mut running.config.store);
            return Err(
                self.refuse(Diagnostics::of(&self.source.path.display().to_string(), &error.to_string()), by)
            );
        }
        self.limiter.forget_refusals();
        (running.config, running.shown) = (config, shown);
        tracing::info!(by, changes = changes.len(), "reloaded `{}`", self.source.path.display());
        for change in &changes {
            tracing::info!("{change}");
        }
        self.status.note_reload(Ok(changes.clone()));
        Ok(changes)
    }

    /// Tells whoever wants to know what is wrong.
    fn refuse(&self, faults: Diagnostics, by: &str) -> Diagnostics {
        (self.complain)(&faults);
        tracing::error!(by, "the configuration is wrong: the running one stays");
        self.status.note_reload(Err(faults.to_string()));
        faults
    }
}
