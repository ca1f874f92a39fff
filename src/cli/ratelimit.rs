//! `tollgate ratelimit`: stands in for the binary of envoyproxy/ratelimit, configured by its environment variables.

use std::{env, ffi::OsString, path::Path, process::ExitCode};

use crate::{
    config::{LoadedConfig, RatelimitEnvironment},
    reload::ConfigSource,
};

use super::{complain, run::run};

/// The name of the reference's binary, and of the command.
const NAME: &str = "ratelimit";

/// The end of the command's help.
pub(super) const HELP: &str = "\
Example:
  RUNTIME_ROOT=/data RUNTIME_SUBDIRECTORY=ratelimit REDIS_SOCKET_TYPE=tcp REDIS_URL=redis:6379 tollgate ratelimit

Exit status: 0 ended after a signal; 1 couldn't start, or failed while running; 2 wrong usage, or an invalid variable or rule.
Environment variables: those of envoyproxy/ratelimit, such as RUNTIME_ROOT, REDIS_URL, GRPC_PORT, CONFIG_TYPE, LOG_LEVEL. A
variable that has no effect here is named at the start. docs/behind-envoy.md lists all.";

/// Returns the arguments of this process. If it is invoked by the reference's name, the command comes first.
pub(super) fn arguments() -> Vec<OsString> {
    let mut arguments: Vec<_> = env::args_os().collect();
    let is_reference = |path: &OsString| Path::new(path).file_name().is_some_and(|name| name == NAME);
    if arguments.first().is_some_and(is_reference) {
        arguments.insert(1, NAME.into());
    }
    arguments
}

/// Runs the service until a signal ends it.
pub(super) fn main() -> ExitCode {
    let variable = |name: &str| env::var(name).ok();
    let environment = match RatelimitEnvironment::translate(&variable) {
        Ok(environment) => environment,
        Err(faults) => {
            complain(&faults);
            return ExitCode::from(2);
        }
    };
    complain(&environment.warnings);
    let source = ConfigSource::Environment;
    let mut loaded = source.read();
    if let Err(faults) = &loaded.outcome
        && environment.starts_without_rules
    {
        complain(faults);
        // Changes of the files that were read are still noticed.
        loaded = LoadedConfig { sources: loaded.sources, ..LoadedConfig::without_rules(&environment) };
    }
    run(source, loaded)
}
