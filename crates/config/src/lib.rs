//! The configuration: a gateway.toml, checked as a whole before it is used.
//!
//! The text is parsed into a tree of TOML values (`document`), the tree into the file as typed (`file`), and
//! that into a [`Config`] (`check`). All errors and warnings on the way are collected as [`Diagnostics`] and
//! reported together; a `Config` holds no invalid value. Only constructors read it. The limits, which
//! requests need too, are shared and never cloned.

mod body;
mod changes;
mod check;
mod decisions;
mod descriptors;
mod difference;
mod document;
mod error;
mod expiry;
mod file;
mod jwt;
mod known_keys;
mod limit;
mod password;
pub mod ratelimit;
mod route;
#[cfg(test)]
mod schema;
mod server;
mod shown;
mod sources;
mod telemetry;
pub mod tls;
mod upstream;
mod value;
mod yaml;

use std::{collections::BTreeMap, env, io, path::Path, sync::Arc};

use serde_json::Value;
use tollgate_limiter::StoreSettings;

pub use self::{
    body::BodyTemplate,
    decisions::{Callers, CountHeaders, DecisionsSettings, RatelimitSettings, XdsSettings},
    descriptors::{DescriptorRule, EntryRule, ValuePattern},
    error::{Diagnostic, DiagnosticRecord, Diagnostics, LabeledSpan, Severity},
    expiry::{EXPIRES_SOON, Expiry},
    jwt::{JwksUrl, JwtKey, JwtSettings},
    known_keys::KnownKeys,
    limit::{
        Ban, Cost, CostUsage, Exemption, JsonPointer, KeyPart, LimitSettings, Missing, Mode, RateFrom,
        RateOverride, StatusRange, UnknownKey, read_key,
    },
    ratelimit::{DescriptorEntry, DomainSettings, RatelimitEnvironment, RatelimitFolder, Verdict},
    route::{Action, Edits, OnLimit, Requirement, RouteSettings},
    server::{AdminSettings, AdminToken, AdminTokens, EscapedSlashes, ListenAddress, ServerSettings},
    sources::Sources,
    telemetry::{AccessLogFormat, AccessLogSettings, LogFormat, LogSettings, TracingSettings},
    tls::ServerTls,
    upstream::{Balance, Eject, Health, Percent, Retries, ServerUrl, Target, UpstreamSettings, Weighted},
};
use self::{
    document::{Document, ReferenceSources},
    file::{ConfigFile, ValueList},
    value::{FromText, ParsedText},
};
pub use self::{jwt::read_jwks, limit::algorithm_of_descriptors, yaml::VALUES_MOST};

/// A complete, valid configuration. Every name that it uses is defined.
#[derive(Debug, PartialEq)]
pub struct Config {
    /// The listener settings.
    pub server: ServerSettings,
    /// The store settings.
    pub store: StoreSettings,
    /// The admin port. `None` if there is none.
    pub admin: Option<AdminSettings>,
    /// The listener for other proxies. `None` if there is none.
    pub decisions: Option<DecisionsSettings>,
    /// The gateway's own log.
    pub log: LogSettings,
    /// The access log. `None` if it is off.
    pub access_log: Option<AccessLogSettings>,
    /// The tracing settings. `None` if tracing is off.
    pub tracing: Option<TracingSettings>,
    /// The upstreams by name.
    pub upstreams: BTreeMap<String, UpstreamSettings>,
    /// The limits by name, including those defined inline in routes.
    pub limits: BTreeMap<String, Arc<LimitSettings>>,
    /// The trusted token issuers. Always present if a limit counts by a claim.
    pub jwt: Option<Arc<JwtSettings>>,
    /// The routes, in the order of the file.
    pub routes: Vec<RouteSettings>,
    /// The rules for descriptors, in the order of the file.
    pub descriptors: Vec<Arc<DescriptorRule>>,
    /// The domains of `decisions.ratelimit_service`.
    pub domains: Vec<DomainSettings>,
    /// The settings of rules that come by xDS. `None` if none do.
    pub xds: Option<Arc<XdsSettings>>,
}

/// Values from the command line that override those of the file.
#[derive(Clone, Debug, Default)]
pub struct FlagOverrides {
    /// The value of `--listen`, which overrides `server.listen`.
    pub listen: Option<String>,
    /// The value of `--store`, which overrides `store.url`.
    pub store: Option<String>,
}

/// The result of loading a configuration file.
#[derive(Debug)]
pub struct LoadedConfig {
    /// The configuration and its warnings.
    ///
    /// # Errors
    /// All errors and warnings of the file and the flags, or the reason why the file can't be read.
    pub outcome: Result<(Config, Diagnostics), Diagnostics>,
    /// The file itself and the files that it names.
    pub sources: Sources,
    /// The file as operators may see it, without credentials and with environment variables unexpanded. Null
    /// if it is invalid.
    pub shown: Value,
}

impl LoadedConfig {
    /// Reads and checks what the environment of this process says in the variables of envoyproxy/ratelimit.
    pub fn of_environment() -> Self {
        match RatelimitEnvironment::translate(&|name| env::var(name).ok()) {
            Ok(environment) => Self::of_translation(&environment.toml),
            Err(faults) => Self { outcome: Err(faults), sources: Sources::default(), shown: Value::Null },
        }
    }

    /// Checks what an environment says, apart from the rules.
    pub fn without_rules(environment: &RatelimitEnvironment) -> Self {
        Self::of_translation(&environment.without_rules())
    }

    /// Checks a translated environment. Nothing of it is for the main listener, so there is none.
    fn of_translation(toml: &str) -> Self {
        let (overrides, mut sources) = (FlagOverrides::default(), Sources::default());
        let outcome = read(ratelimit::ENVIRONMENT, toml, &|_| None, &overrides, &mut sources);
        let shown = outcome.as_ref().map_or(Value::Null, |_| shown::shown(toml, &overrides));
        let outcome = outcome.map(|(mut config, warnings)| {
            config.server.listen.clear();
            (config, warnings)
        });
        Self { outcome, sources, shown }
    }

    /// Reads and checks a file, with the environment of this process.
    pub fn of(path: &Path, overrides: &FlagOverrides) -> Self {
        let (name, mut sources) = (path.display().to_string(), Sources::default());
        let text = sources.read(path.to_owned()).and_then(|bytes| {
            String::from_utf8(bytes).map_err(|error| {
                let is_utf16 =
                    [b"\xff\xfe", b"\xfe\xff"].into_iter().any(|mark| error.as_bytes().starts_with(mark));
                let why = if is_utf16 {
                    "it is UTF-16, save it as UTF-8".to_owned()
                } else {
                    let readable = &error.as_bytes()[..error.utf8_error().valid_up_to()];
                    let line = 1 + readable.iter().filter(|byte| **byte == b'\n').count();
                    format!("line {line} has a byte that isn't UTF-8")
                };
                io::Error::new(io::ErrorKind::InvalidData, why)
            })
        });
        match text {
            Ok(text) => {
                let outcome =
                    read(&name, &text, &|variable| env::var(variable).ok(), overrides, &mut sources);
                let shown = outcome.as_ref().map_or(Value::Null, |_| shown::shown(&text, overrides));
                Self { outcome, sources, shown }
            }
            Err(error) => {
                let remedy = "name another file, in UTF-8, or write a new one with `tollgate init`";
                let fault = format!("can't read `{name}`: {error}\n{remedy}");
                Self { outcome: Err(Diagnostics::of(&name, &fault)), sources, shown: Value::Null }
            }
        }
    }
}

impl Config {
    /// Reads and checks a file, with the environment of this process. Returns the warnings, too.
    ///
    /// # Errors
    /// All errors and warnings of the file and the flags, or the reason why the file can't be read.
    pub fn read(path: &Path, overrides: &FlagOverrides) -> Result<(Self, Diagnostics), Diagnostics> {
        LoadedConfig::of(path, overrides).outcome
    }

    /// Adds rules that have come by xDS.
    pub fn add_rules(&mut self, rules: &RatelimitFolder) {
        self.domains.extend(rules.domains.iter().cloned());
        self.limits.extend(rules.limits.iter().map(|(name, limit)| (name.clone(), limit.clone())));
    }

    /// Checks the text of a file, which messages call `name`. Returns the warnings, too.
    ///
    /// # Errors
    /// All errors and warnings of the text.
    pub fn parse(
        name: &str,
        text: &str,
        environment: &dyn Fn(&str) -> Option<String>,
    ) -> Result<(Self, Diagnostics), Diagnostics> {
        read(name, text, environment, &FlagOverrides::default(), &mut Sources::default())
    }
}

fn read(
    name: &str,
    text: &str,
    environment: &dyn Fn(&str) -> Option<String>,
    overrides: &FlagOverrides,
    sources: &mut Sources,
) -> Result<(Config, Diagnostics), Diagnostics> {
    let mut document = Document::parse(text);
    let listen = flag(&mut document, "--listen", overrides.listen.as_deref(), ["server", "listen"]);
    let store = flag(&mut document, "--store", overrides.store.as_deref(), ["store", "url"]);
    let folder = Path::new(name).parent().unwrap_or(Path::new(""));
    document.expand(&mut ReferenceSources { environment, folder, files: sources });
    let config = document.read().and_then(|mut file: ConfigFile| {
        file.server.value.listen = listen.map(ValueList::of).unwrap_or(file.server.value.listen);
        file.store.value.url = store.map(ParsedText).unwrap_or(file.store.value.url);
        check::check(file, folder, &mut document, sources)
    });
    document.hide_secrets();
    let faults = Diagnostics::new(name, text, document.faults).with(document.included);
    match config {
        Some(config) => Ok((config, faults)),
        None => Err(faults),
    }
}

/// Returns the value of a flag, if it is given and valid. The value in the file is then ignored.
fn flag<T: FromText>(
    document: &mut Document<'_>,
    flag: &str,
    text: Option<&str>,
    key: [&str; 2],
) -> Option<T> {
    document.forget(key[0], text.map(|_| key[1])?);
    match T::read(text?) {
        Ok(value) => Some(value),
        Err(remedy) => {
            document.faults.push(Diagnostic::with_remedy(&format!("{flag}: {remedy}")));
            None
        }
    }
}

#[cfg(test)]
mod tests;
