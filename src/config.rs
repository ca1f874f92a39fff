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

pub(crate) use self::jwt::read_jwks;
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
            String::from_utf8(bytes)
                .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error.utf8_error()))
        });
        match text {
            Ok(text) => {
                let outcome =
                    read(&name, &text, &|variable| env::var(variable).ok(), overrides, &mut sources);
                let shown = outcome.as_ref().map_or(Value::Null, |_| shown::shown(&text, overrides));
                Self { outcome, sources, shown }
            }
            Err(error) => {
                let remedy =
                    "name a readable UTF-8 file with --config FILE, or write one with `tollgate init`";
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
mod tests {
    use std::time::Duration;

    use super::*;
    use tollgate_routing::Matcher;

    use tollgate_limiter::{OnFailure, Prefixes, Rate, RatelimitHeaders, Scope, StoreUrl};

    const EVERYDAY: &str = r#"
        [server]
        listen = "127.0.0.1:8080"

        [store]
        url = "redis://127.0.0.1:6379"

        [upstreams.orders]
        servers = ["http://127.0.0.1:3000"]

        [limits.per-client]
        key  = "ip"
        rate = "100/10s"

        [[routes]]
        path     = "/v1/orders/{id}"
        upstream = "orders"
        limits   = ["per-client"]
    "#;

    fn config(text: &str) -> Config {
        let (config, warnings) =
            Config::parse("gateway.toml", text, &|_| None).unwrap_or_else(|faults| panic!("{faults}"));
        assert!(warnings.is_empty(), "{warnings}");
        config
    }

    fn read_with(overrides: &FlagOverrides, text: &str) -> Result<Config, String> {
        let read = read("gateway.toml", text, &|_| None, overrides, &mut Sources::default());
        read.map(|(config, _)| config).map_err(|faults| faults.to_string())
    }

    #[test]
    fn the_everyday_form_means_the_stated_defaults() {
        let second = Duration::from_secs(1);
        let expected = Config {
            server: ServerSettings {
                listen: vec![ListenAddress::Tcp(([127, 0, 0, 1], 8080).into())],
                workers: 0,
                trusted_proxies: vec![],
                proxy_protocol: false,
                http2: true,
                tls: None,
                ratelimit_headers: RatelimitHeaders::Draft11,
                max_header_bytes: 32 * 1024,
                max_body: None,
                max_connections: 20_000,
                escaped_slashes: EscapedSlashes::Keep,
                request_id: true,
                reuse_port: false,
                health: None,
                header_timeout: 10 * second,
                idle_timeout: 75 * second,
                drain_timeout: 30 * second,
            },
            store: StoreSettings {
                url: "redis://127.0.0.1:6379".parse().expect("a URL"),
                tls: None,
                timeout: second / 20,
                instances: 1,
                replicated: false,
                key_prefix: "tollgate".to_owned(),
                max_memory: 256 * 1024 * 1024,
            },
            admin: None,
            decisions: None,
            log: LogSettings { format: LogFormat::Text, level: tracing::Level::INFO },
            access_log: None,
            tracing: None,
            upstreams: BTreeMap::from([(
                "orders".to_owned(),
                UpstreamSettings {
                    target: Target::Servers(vec![Weighted {
                        url: ServerUrl::Tcp { tls: false, host: "127.0.0.1".to_owned(), port: 3000 },
                        weight: 1,
                    }]),
                    balance: Balance::LeastRequest,
                    connect_timeout: 2 * second,
                    response_timeout: 30 * second,
                    idle_timeout: 4 * second,
                    retries: Retries { attempts: 1, budget: Percent(20) },
                    health: None,
                    eject: None,
                    http2: false,
                    tls: None,
                    max_connections: 1024,
                },
            )]),
            limits: BTreeMap::from([(
                "per-client".to_owned(),
                Arc::new(LimitSettings {
                    name: "per-client".to_owned(),
                    key: vec![KeyPart::Ip],
                    quota: Rate { permits: 100, window_us: 10_000_000 }.into(),
                    cost: Cost::Fixed(1),
                    costs_vary: false,
                    when_status: vec![],
                    scope: Scope::Shared,
                    wait: Duration::ZERO,
                    mode: Mode::Enforce,
                    missing: Missing::Ip,
                    known_keys: None,
                    unknown: UnknownKey::Ip,
                    prefixes: Prefixes { ipv4: 32, ipv6: 64 },
                    exempt: vec![],
                    overrides: vec![],
                    rate_from: None,
                    plain: false,
                    on_failure: OnFailure::Local,
                    usage: CostUsage::Charged,
                    refunds: false,
                    ban: None,
                    redisson_name: None,
                }),
            )]),
            jwt: None,
            routes: vec![RouteSettings {
                name: "/v1/orders/{id}".to_owned(),
                matcher: Matcher {
                    host: None,
                    path: "/v1/orders/{id}".parse().expect("a pattern"),
                    methods: vec![],
                    headers: vec![],
                    query: vec![],
                    claims: vec![],
                },
                action: Action::Upstream("orders".to_owned()),
                limits: vec!["per-client".to_owned()],
                costs: BTreeMap::new(),
                rewrite: None,
                request_headers: None,
                response_headers: None,
                timeout: None,
                max_body: None,
                preserve_host: true,
                requires: None,
                on_limit: None,
            }],
            descriptors: vec![],
            domains: vec![],
            xds: None,
        };
        assert_eq!(config(EVERYDAY), expected);
        assert_eq!(
            config(&EVERYDAY.replace("[store]\n        url = \"redis://127.0.0.1:6379\"", "")).store.url,
            StoreUrl::Memory
        );
    }

    #[test]
    fn flags_replace_the_values_of_the_file_and_their_faults() {
        let text =
            EVERYDAY.replace("redis://127.0.0.1:6379", "${NOWHERE}").replace("127.0.0.1:8080", "nowhere");
        let flags = |listen: &str, store: &str| FlagOverrides {
            listen: Some(listen.to_owned()),
            store: Some(store.to_owned()),
        };
        let config = read_with(&flags("[::1]:1", "memory:"), &text).expect("the flags are good");
        assert_eq!(
            (config.server.listen, config.store.url),
            (vec![ListenAddress::Tcp("[::1]:1".parse().expect("an address"))], StoreUrl::Memory)
        );
        let faults = read_with(&flags("8080", "redis:secret@h"), EVERYDAY).expect_err("the flags are bad");
        assert!(
            faults.contains("error: --listen: `8080`") && faults.contains("error: --store: "),
            "{faults}"
        );
        assert!(faults.ends_with("gateway.toml: 2 errors") && !faults.contains("secret"), "{faults}");
    }

    #[test]
    fn a_store_has_the_defaults_of_the_file() {
        let at = |url| StoreSettings::at(url).expect("an url of a store");
        assert_eq!(at("redis://127.0.0.1:6379"), config(EVERYDAY).store);
        assert_eq!(at("memory:").url, StoreUrl::Memory);
        let fault = StoreSettings::at("redis:/me:secret@h").expect_err("it is none");
        assert!(fault.starts_with("this store URL has no scheme\n"), "{fault}");
        assert!(!fault.contains("secret"), "{fault}");
    }

    #[test]
    fn a_file_that_cannot_be_read_is_a_fault() {
        let faults = Config::read(Path::new("no/such.toml"), &FlagOverrides::default())
            .expect_err("there is none")
            .to_string();
        assert!(faults.starts_with("error: can't read `no/such.toml`: No such file"), "{faults}");
        assert!(faults.contains("--config FILE") && faults.ends_with("no/such.toml: 1 error"), "{faults}");
    }
}
