//! The environment variables of envoyproxy/ratelimit, translated into a gateway.toml.
//!
//! The text is checked as a file is, and each line names its variables, so that drawn errors do, too.

use std::{fmt::Display, net::Ipv6Addr};

use crate::{Diagnostics, error::Diagnostic};

mod names;
mod store;

/// The name of the text in messages.
pub(crate) const NAME: &str = "the environment";

/// The variable of our own: descriptors whose costs are reported, which the rules can't say.
const REPORTED: &str = "TOLLGATE_REPORTED";

/// The source of rules that come by xDS.
const XDS: &str = "GRPC_XDS_SOTW";

/// The settings that environment variables give.
#[derive(Debug)]
pub struct RatelimitEnvironment {
    /// The text of a gateway.toml with the same settings.
    pub(crate) toml: String,
    /// Warnings about variables without effect, and about open ports.
    pub warnings: Diagnostics,
    /// True if the service starts even if its rules can't be read.
    pub starts_without_rules: bool,
}

impl RatelimitEnvironment {
    /// Translates the variables.
    ///
    /// # Errors
    /// All variables with a wrong value.
    pub fn translate(environment: &dyn Fn(&str) -> Option<String>) -> Result<Self, Diagnostics> {
        let mut translator = Translator { environment, faults: Vec::new(), toml: String::new() };
        translator.refuse_unsupported();
        translator.log();
        let starts_without_rules = translator.flag("FORCE_START_WITHOUT_INITIAL_CONFIG", false);
        translator.store();
        let is_verified = translator.decisions();
        translator.rules();
        translator.operators();
        let Translator { faults, toml, .. } = translator;
        if !faults.is_empty() {
            return Err(Diagnostics::new(NAME, "", faults));
        }
        let warnings = Diagnostics::new(NAME, "", warnings(environment, is_verified));
        Ok(Self { toml, warnings, starts_without_rules })
    }

    /// Returns the text without the rules.
    pub(crate) fn without_rules(&self) -> String {
        self.toml
            .lines()
            .filter(|line| !line.starts_with("config = ") && !line.starts_with("reported = "))
            .fold(String::new(), |text, line| text + line + "\n")
    }
}

/// Returns warnings about variables without effect, and about ports that are open, unless callers are verified.
fn warnings(environment: &dyn Fn(&str) -> Option<String>, is_verified: bool) -> Vec<Diagnostic> {
    let open = (!is_verified).then(|| {
        Diagnostic::warning("anyone who reaches this service's ports can use up limits")
            .help("verify callers by GRPC_SERVER_USE_TLS and GRPC_CLIENT_TLS_CACERT, or admit only Envoy by a network policy")
    });
    let ignored: Vec<_> = names::IGNORED.into_iter().filter(|name| environment(name).is_some()).collect();
    let ignored = (!ignored.is_empty()).then(|| {
        let (these, them) =
            if ignored.len() > 1 { ("these variables have", "them") } else { ("this variable has", "it") };
        Diagnostic::warning(format!("{these} no effect: {}", ignored.join(", ")))
            .help(format!("remove {them}; docs/behind-envoy.md lists the variables that have one"))
    });
    open.into_iter().chain(ignored).collect()
}

struct Translator<'e> {
    environment: &'e dyn Fn(&str) -> Option<String>,
    faults: Vec<Diagnostic>,
    toml: String,
}

impl Translator<'_> {
    /// Returns the value of a variable. An empty one counts as absent.
    fn text(&self, name: &str) -> Option<String> {
        (self.environment)(name).filter(|value| !value.is_empty())
    }

    fn text_or(&self, name: &str, default: &str) -> String {
        self.text(name).unwrap_or_else(|| default.to_owned())
    }

    fn flag(&mut self, name: &str, default: bool) -> bool {
        let Some(text) = self.text(name) else { return default };
        match text.to_lowercase().as_str() {
            "1" | "t" | "true" => true,
            "0" | "f" | "false" => false,
            _ => {
                self.error(
                    format!("{name}: `{text}` is neither true nor false"),
                    format!("set {name}=true or {name}=false"),
                );
                default
            }
        }
    }

    /// Returns an address whose host and port are variables.
    fn address(&mut self, host: &str, port: &str, default: u16) -> String {
        let host = self.text_or(host, "0.0.0.0");
        let host = host.parse::<Ipv6Addr>().map_or(host, |host| format!("[{host}]"));
        format!("{host}:{}", self.port(port, default))
    }

    fn port(&mut self, name: &str, default: u16) -> u16 {
        let Some(text) = self.text(name) else { return default };
        text.parse().unwrap_or_else(|_| {
            self.error(
                format!("{name}: `{text}` is not a port"),
                format!("use a number from 1 to 65535: {name}={default}"),
            );
            default
        })
    }

    fn error(&mut self, message: impl Into<String>, help: impl Into<String>) {
        self.faults.push(Diagnostic::error(message).help(help));
    }

    /// Writes the header of a table.
    fn table(&mut self, name: &str) {
        self.toml += &format!("[{name}]\n");
    }

    /// Writes a key, and the variables that it comes from.
    fn key(&mut self, key: &str, value: impl Display, variables: &str) {
        self.toml += &format!("{key} = {value}  # {variables}\n");
    }

    /// Writes a table of files that variables name, those that are set.
    fn files(&mut self, key: &str, files: &[(&str, &str)]) {
        let set =
            files.iter().filter_map(|(key, name)| Some(format!("{key} = {}", quoted(&self.text(name)?))));
        let set: Vec<_> = set.collect();
        let names: Vec<_> = files.iter().map(|(_, name)| *name).collect();
        if !set.is_empty() {
            self.key(key, format!("{{ {} }}", set.join(", ")), &names.join(", "));
        }
    }

    /// Reports variables whose meaning can't be had, and without which the service would be less safe or not work.
    fn refuse_unsupported(&mut self) {
        let backend = self.text_or("BACKEND_TYPE", "redis");
        if backend != "redis" {
            self.error(
                format!("BACKEND_TYPE: there is no backend `{backend}`"),
                "use Redis: BACKEND_TYPE=redis",
            );
        }
        if let Some(name) = self.text("GRPC_CLIENT_TLS_SAN") {
            self.error(
                format!("GRPC_CLIENT_TLS_SAN: callers can't be chosen by the name `{name}` of their certificate"),
                "issue their certificates by an authority of their own, name it in GRPC_CLIENT_TLS_CACERT, and unset this",
            );
        }
        let kind = self.text_or("CONFIG_TYPE", "FILE");
        if kind != "FILE" && kind != XDS {
            self.error(
                format!("CONFIG_TYPE: there is no source of rules `{kind}`"),
                "use FILE or GRPC_XDS_SOTW",
            );
        }
    }

    fn log(&mut self) {
        let written = self.text_or("LOG_LEVEL", "warn");
        let level = match written.to_lowercase().as_str() {
            "trace" => "trace",
            "debug" => "debug",
            "info" => "info",
            "warn" | "warning" => "warn",
            "error" | "fatal" | "panic" => "error",
            _ => {
                self.error(
                    format!("LOG_LEVEL: there is no level `{written}`"),
                    "use trace, debug, info, warn or error",
                );
                "warn"
            }
        };
        self.table("log");
        self.key("level", quoted(level), "LOG_LEVEL");
    }

    /// Writes the listener. Returns true if it asks callers for certificates.
    fn decisions(&mut self) -> bool {
        let grpc = self.address("GRPC_HOST", "GRPC_PORT", 8081);
        let http = self.address("HOST", "PORT", 8080);
        self.table("decisions");
        self.key("listen", quoted(&grpc), "GRPC_HOST, GRPC_PORT");
        self.key("plain_listen", quoted(&http), "HOST, PORT");
        self.toml += "trusted_proxies = [\"0.0.0.0/0\", \"::/0\"]\n";
        if let Some(reported) = self.text(REPORTED) {
            let each: Vec<_> = reported.split_whitespace().map(quoted).collect();
            self.key("reported", format!("[{}]", each.join(", ")), REPORTED);
        }
        let has_tls = self.flag("GRPC_SERVER_USE_TLS", false);
        if has_tls {
            let files = ["GRPC_SERVER_TLS_CERT", "GRPC_SERVER_TLS_KEY", "GRPC_CLIENT_TLS_CACERT"];
            for name in &files[..2] {
                if self.text(name).is_none() {
                    self.error(
                        format!("{name} is not set"),
                        format!("name a PEM file, which GRPC_SERVER_USE_TLS needs: {name}=/certs/tls.pem"),
                    );
                }
            }
            self.files("tls", &[("cert", files[0]), ("key", files[1]), ("client_ca", files[2])]);
        }
        has_tls && self.text("GRPC_CLIENT_TLS_CACERT").is_some()
    }

    fn rules(&mut self) {
        self.table("decisions.ratelimit_service");
        let is_fed = self.text("CONFIG_TYPE").is_some_and(|kind| kind == XDS);
        if !is_fed {
            self.folder();
        }
        for (key, name) in [
            ("merge_domains", "MERGE_DOMAIN_CONFIG"),
            ("shadow", "SHADOW_MODE"),
            ("metadata", "RESPONSE_DYNAMIC_METADATA"),
        ] {
            let flag = self.flag(name, false);
            self.key(key, flag, name);
        }
        if self.flag("LIMIT_RESPONSE_HEADERS_ENABLED", false) {
            for (key, name, default) in [
                ("headers.limit", "LIMIT_LIMIT_HEADER", "RateLimit-Limit"),
                ("headers.remaining", "LIMIT_REMAINING_HEADER", "RateLimit-Remaining"),
                ("headers.reset", "LIMIT_RESET_HEADER", "RateLimit-Reset"),
            ] {
                let header = self.text_or(name, default);
                self.key(key, quoted(&header), name);
            }
        }
        if is_fed {
            self.xds();
        }
    }

    fn folder(&mut self) {
        let root = self.text_or("RUNTIME_ROOT", "/srv/runtime_data/current");
        let below =
            [self.text_or("RUNTIME_SUBDIRECTORY", ""), self.text_or("RUNTIME_APPDIRECTORY", "config")];
        let below = below.iter().filter(|part| !part.is_empty());
        let folder = below.fold(root, |folder, part| format!("{}/{part}", folder.trim_end_matches('/')));
        self.key("config", quoted(&folder), "RUNTIME_ROOT, RUNTIME_SUBDIRECTORY, RUNTIME_APPDIRECTORY");
        // Files are watched wherever they are, and those with a dot are never read.
        for name in ["RUNTIME_WATCH_ROOT", "RUNTIME_IGNOREDOTFILES"] {
            self.flag(name, true);
        }
    }

    fn xds(&mut self) {
        self.table("decisions.ratelimit_service.xds");
        let server = self.text_or("CONFIG_GRPC_XDS_SERVER_URL", "localhost:18000");
        let scheme = if self.flag("CONFIG_GRPC_XDS_SERVER_USE_TLS", false) { "https" } else { "http" };
        let variables = "CONFIG_GRPC_XDS_SERVER_URL, CONFIG_GRPC_XDS_SERVER_USE_TLS";
        self.key("server", quoted(&format!("{scheme}://{server}")), variables);
        let node = self.text_or("CONFIG_GRPC_XDS_NODE_ID", "default");
        self.key("node", quoted(&node), "CONFIG_GRPC_XDS_NODE_ID");
        let is_awaited = !self.flag("FORCE_START_WITHOUT_INITIAL_CONFIG", false);
        self.key("wait", is_awaited, "FORCE_START_WITHOUT_INITIAL_CONFIG");
        if scheme == "https" {
            self.files(
                "tls",
                &[
                    ("ca", "CONFIG_GRPC_XDS_SERVER_TLS_CACERT"),
                    ("cert", "CONFIG_GRPC_XDS_CLIENT_TLS_CERT"),
                    ("key", "CONFIG_GRPC_XDS_CLIENT_TLS_KEY"),
                    ("server_name", "CONFIG_GRPC_XDS_SERVER_TLS_SAN"),
                ],
            );
        }
    }

    fn operators(&mut self) {
        self.table("admin");
        // Rates can be changed there, so it isn't for everyone, whatever DEBUG_HOST says.
        let debug = format!("127.0.0.1:{}", self.port("DEBUG_PORT", 6070));
        self.key("listen", quoted(&debug), "DEBUG_PORT");
        if self.flag("USE_PROMETHEUS", false) {
            let address = self.text_or("PROMETHEUS_ADDR", ":9090");
            let address = if address.starts_with(':') { format!("0.0.0.0{address}") } else { address };
            self.key("metrics_listen", quoted(&address), "PROMETHEUS_ADDR");
        }
    }
}

/// Returns a text as TOML writes it. References to variables in it mean nothing.
fn quoted(text: &str) -> String {
    let json = serde_json::to_string(&text.replace('$', "$$")).expect("a text can be written");
    json.replace('\u{7f}', "\\u007f")
}

#[cfg(test)]
mod tests;
