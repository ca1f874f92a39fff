//! The listener for other proxies as it is typed.

use hyper::header::HeaderName;
use ipnet::IpNet;
use serde::Deserialize;

use super::{CertificateTable, ClientTlsTable, ServerTlsTable, Spanned, SpannedTable};
use crate::{
    ListenAddress, ServerUrl,
    value::{FieldName, ParsedText, ReportedDescriptors},
};

/// `[decisions]`: a listener for other proxies and services, which forward requests themselves and ask Tollgate whether
/// the limits admit them. It speaks HTTP/1.1 and HTTP/2. A change takes effect with a reload; a change of `tls` applies
/// to new connections.
#[derive(Debug, Default, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub(crate) struct DecisionsTable {
    /// Address to listen on: `"127.0.0.1:8081"`, `"unix:/run/tollgate-decisions.sock"`. Required.
    pub listen: Option<Spanned<ParsedText<ListenAddress>>>,
    /// Further address without TLS for the same calls: `/check`, `POST /json`, Envoy's services and health checks by gRPC, and
    /// `GET /healthcheck`. With `client_ca`, only this machine may ask there; anyone may probe
    /// `/healthcheck`. Default: none.
    pub plain_listen: Option<Spanned<ParsedText<ListenAddress>>>,
    /// Enables TLS. A unix socket stays without. Default: no TLS.
    pub tls: Option<SpannedTable<DecisionsTlsTable>>,
    /// Networks of the proxies and services that may ask. Processes on this machine always may. Required unless the
    /// address is loopback or `tls` has a `client_ca`. Default: this machine, or with `client_ca` everyone with a
    /// certificate.
    pub trusted_proxies: Vec<Spanned<ParsedText<IpNet>>>,
    /// Descriptors of `ratelimit_service` whose costs are reported, as `usage = "reported"` says of a limit: the domain, a
    /// colon, and the keys of the entries. Example: `["envoy:api_key,model"]`. Default: none.
    pub reported: Vec<Spanned<ParsedText<ReportedDescriptors>>>,
    /// Settings of Envoy's rate limit service. Default: none.
    pub ratelimit_service: Option<SpannedTable<RatelimitServiceTable>>,
}

/// `ratelimit_service` of `[decisions]`: what the configuration of envoyproxy/ratelimit says elsewhere.
#[derive(Debug, Default, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub(crate) struct RatelimitServiceTable {
    /// Folder with the configuration of envoyproxy/ratelimit, a YAML file for each domain, relative to the folder of this
    /// file: `"ratelimit/"`. It is watched. `[[descriptors]]` come first. Default: none.
    pub config: Option<Spanned<String>>,
    /// Management server that sends the rules instead, by xDS. Default: none.
    pub xds: Option<SpannedTable<XdsTable>>,
    /// Allows several files in that folder to have the same domain, each with descriptors of its own. Default: `false`.
    pub merge_domains: bool,
    /// Admits all calls in the end: limits count, and each descriptor's decision is told. Default: `false`.
    pub shadow: bool,
    /// Adds the domain and the descriptors of a call to the metadata of its response. Default: `false`.
    pub metadata: bool,
    /// Adds three header fields with the numbers of the tightest limit to responses. Default: none.
    pub headers: Option<SpannedTable<CountHeadersTable>>,
}

/// `xds` of `ratelimit_service`: rules that come by xDS (ADS, state of the world), as Envoy Gateway sends them. A change takes
/// effect at the next start.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub(crate) struct XdsTable {
    /// URL of the management server: `"http://127.0.0.1:18001"`. `https://` uses TLS. Required.
    pub server: Option<ParsedText<ServerUrl>>,
    /// Name by which the server knows this client. Default: `"default"`.
    pub node: String,
    /// TLS settings for the server. Default: trust the system's root certificates.
    pub tls: Option<SpannedTable<ClientTlsTable>>,
    /// Starts to listen only once the first rules have come. Default: `false`.
    pub wait: bool,
}

impl Default for XdsTable {
    fn default() -> Self {
        Self { server: None, node: "default".to_owned(), tls: None, wait: false }
    }
}

/// `headers` of `ratelimit_service`.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub(crate) struct CountHeadersTable {
    /// Name of the field with the permits of the limit. Default: `"ratelimit-limit"`.
    pub limit: ParsedText<FieldName>,
    /// Name of the field with the permits that are left. Default: `"ratelimit-remaining"`.
    pub remaining: ParsedText<FieldName>,
    /// Name of the field with the seconds until there is room, or more room. Default: `"ratelimit-reset"`.
    pub reset: ParsedText<FieldName>,
}

impl Default for CountHeadersTable {
    fn default() -> Self {
        let [limit, remaining, reset] = ["ratelimit-limit", "ratelimit-remaining", "ratelimit-reset"]
            .map(|name| ParsedText(FieldName(HeaderName::from_static(name))));
        Self { limit, remaining, reset }
    }
}

/// `tls` of `[decisions]`. Files are in PEM format. Their paths are relative to the folder of this file. A reload reads
/// them again.
#[derive(Debug, Default, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub(crate) struct DecisionsTlsTable {
    /// File with the certificate, followed by the intermediate ones. Required.
    pub cert: Option<Spanned<String>>,
    /// File with the private key of `cert`. Required.
    pub key: Option<Spanned<String>>,
    /// File with the authorities that must have issued the callers' certificates. Default: callers need no certificate.
    pub client_ca: Option<Spanned<String>>,
}

impl DecisionsTlsTable {
    /// Returns the same settings as the main listener has them.
    pub(crate) fn of_server(table: SpannedTable<Self>) -> SpannedTable<ServerTlsTable> {
        let SpannedTable { span, value: Self { cert, key, client_ca } } = table;
        let certificate = SpannedTable { span: span.clone(), value: CertificateTable { cert, key } };
        SpannedTable { span, value: ServerTlsTable { certs: vec![certificate], client_ca } }
    }
}
