//! The URLs of servers and stores.

use std::net::IpAddr;

use hyper::{
    Uri,
    http::uri::{Authority, PathAndQuery},
};
use rustls::pki_types::ServerName;

use super::{
    FromText,
    address::{UNIX_PATH_MOST, unix_path},
    reference::refuse_reference,
};
use tollgate_limiter::{StoreUrl, store::redis::url::bare_host};

use crate::ServerUrl;

impl FromText for ServerUrl {
    const EXPECTED: &'static str = "a URL such as \"http://127.0.0.1:3000\"";
    const FORM: Option<&'static str> = Some(r"(https?://|unix:/).+");

    fn read(text: &str) -> Result<Self, String> {
        if let Some(path) = text.strip_prefix("unix:") {
            return unix_path(path).map(Self::Unix).ok_or_else(|| {
                format!(
                    "`{text}` is not a valid socket path\nwrite an absolute path of at most {UNIX_PATH_MOST} bytes: \"unix:/run/app.sock\""
                )
            });
        }
        refuse_lists_and_bare_addresses(text)?;
        let fault = |why| {
            format!(
                "`{text}` {why}\nwrite scheme, host and port: \"http://127.0.0.1:3000\", \"https://orders.internal\"; or \"unix:/run/app.sock\""
            )
        };
        let url = text.parse::<Uri>().map_err(|_| fault("is not a valid URL"))?;
        let authority = url.authority().ok_or_else(|| fault("is not a valid URL"))?;
        let tls = match url.scheme_str() {
            Some("http") => false,
            Some("https") => true,
            Some(other @ ("ws" | "wss" | "grpc" | "grpcs" | "h2" | "h2c")) => {
                return Err(fault_of_scheme(other, authority));
            }
            _ => return Err(fault("does not begin with http://, https:// or unix:")),
        };
        if authority.as_str().contains('@') {
            return Err(fault(
                "has a user name, which is not forwarded: leave it out (a route's `request_headers` can set `authorization`)",
            ));
        }
        let (_, rest) = text.split_once("://").unwrap_or_default();
        if rest.trim_end_matches('/') != authority.as_str() {
            return Err(fault(
                "has a path or a query, which would be ignored: leave only the server (a route's `rewrite` changes paths)",
            ));
        }
        let port = port(authority.as_str()).ok_or_else(|| fault("has no valid port"))?;
        let host = bare_host(authority.host()).ok_or_else(|| fault("has no valid host"))?;
        if tls && ServerName::try_from(host).is_err() {
            return Err(fault("has a host that no certificate can be valid for"));
        }
        Ok(Self::Tcp { tls, host: host.to_owned(), port: port.unwrap_or(if tls { 443 } else { 80 }) })
    }
}

/// Refuses several URLs in one text, and an IPv6 address without brackets.
fn refuse_lists_and_bare_addresses(text: &str) -> Result<(), String> {
    if text.matches("://").count() > 1 && text.contains(',') {
        let each: Vec<_> = text.split(',').map(|url| format!("\"{}\"", url.trim())).collect();
        return Err(format!("`{text}` is more than one URL\nwrite a list: [{}]", each.join(", ")));
    }
    if let Some((url, _)) = text.split_once(' ').filter(|(_, settings)| settings.contains('=')) {
        return Err(format!(
            "`{text}` is more than a URL\nwrite the settings of a server as keys: {{ url = \"{url}\", weight = 3 }}"
        ));
    }
    let host = text.split_once("://").map_or("", |(_, rest)| rest.trim_end_matches('/'));
    if host.matches(':').count() > 1 && host.bytes().all(|b| b.is_ascii_hexdigit() || b == b':') {
        return Err(format!(
            "`{text}` has no brackets around its address\nwrite \"http://[2001:db8::1]:3000\""
        ));
    }
    Ok(())
}

/// Returns the fault of a URL whose scheme is that of a protocol over HTTP.
fn fault_of_scheme(scheme: &str, authority: &Authority) -> String {
    let remedy = match scheme {
        "ws" | "wss" => format!(
            "write \"{}://{authority}\": WebSocket begins with a request of HTTP/1.1, and is forwarded without a setting",
            scheme.replace("ws", "http")
        ),
        "grpc" | "h2c" => format!("write \"http://{authority}\", and add `http2 = true` to the upstream"),
        _ => format!("write \"https://{authority}\", and add `http2 = true` to the upstream"),
    };
    format!("`{scheme}://` is not a scheme of servers\n{remedy}")
}

/// The URL of a collector that takes OTLP.
#[derive(Debug)]
pub(crate) struct Otlp(pub ServerUrl);

impl FromText for Otlp {
    const EXPECTED: &'static str = "a URL such as \"http://127.0.0.1:4317\"";
    const FORM: Option<&'static str> = Some(r"https?://.+");

    fn read(text: &str) -> Result<Self, String> {
        let fault = match ServerUrl::read(text) {
            Ok(url @ ServerUrl::Tcp { .. }) => return Ok(Self(url)),
            Ok(ServerUrl::Unix(_)) => format!("`{text}` is not a valid URL"),
            Err(fault) => {
                let fault = fault.lines().next().unwrap_or_default();
                let fault = fault.replace(" (a route's `rewrite` changes paths)", "");
                fault.replace(", https:// or unix:", " or https://")
            }
        };
        Err(format!(
            "{fault}\nwrite scheme, host and the port of OTLP over gRPC: \"http://127.0.0.1:4317\", \"https://otlp.example.com:4317\""
        ))
    }
}

/// The place of a JWKS.
#[derive(Debug)]
pub(crate) struct JwksLocation {
    pub server: ServerUrl,
    pub target: PathAndQuery,
}

impl FromText for JwksLocation {
    const EXPECTED: &'static str = "a URL such as \"https://id.example.com/.well-known/jwks.json\"";
    const FORM: Option<&'static str> = Some(r"https?://.+");

    fn read(text: &str) -> Result<Self, String> {
        let fault = |why| format!("`{text}` {why}\nwrite {}", Self::EXPECTED);
        let url = text.parse::<Uri>().map_err(|_| fault("is not a valid URL"))?;
        let (Some(scheme), Some(authority)) = (url.scheme_str(), url.authority()) else {
            return Err(fault("is not a valid URL"));
        };
        let server = ServerUrl::read(&format!("{scheme}://{authority}"))
            .map_err(|_| fault("does not name an http server"))?;
        let ServerUrl::Tcp { tls, host, .. } = &server else {
            return Err(fault("does not name an http server"));
        };
        let is_here = host == "localhost" || host.parse().is_ok_and(|address: IpAddr| address.is_loopback());
        if !*tls && !is_here {
            return Err(format!(
                "`{text}` is not encrypted, so anybody on the way could replace the keys\nwrite https://, or the address of a server on this machine: \"http://127.0.0.1:8090/jwks.json\""
            ));
        }
        let target = url.path_and_query().cloned().unwrap_or_else(|| PathAndQuery::from_static("/"));
        Ok(Self { server, target })
    }
}

/// Returns the port of an authority: `Some(None)` if it names none, `None` if it names an invalid one.
fn port(authority: &str) -> Option<Option<u16>> {
    let after_host = authority.rsplit(['@', ']']).next().unwrap_or(authority);
    match after_host.rsplit_once(':') {
        None => Some(None),
        Some((_, port)) => port.parse().ok().filter(|port| *port != 0).map(Some),
    }
}

impl FromText for StoreUrl {
    const EXPECTED: &'static str = "a URL such as \"memory:\" or \"redis://127.0.0.1:6379\"";
    const FORM: Option<&'static str> = Some(r"memory:|rediss?(-cluster|-sentinel|\+unix)?://.+");

    fn read(text: &str) -> Result<Self, String> {
        let url = text.parse::<Self>().map_err(|fault| match store_remedy(text, &fault) {
            Some(remedy) => format!("{}\n{remedy}", fault.lines().next().unwrap_or_default()),
            None => fault,
        })?;
        if let StoreUrl::Redis(redis) = &url {
            redis.login.password.as_deref().map_or(Ok(()), refuse_reference)?;
        }
        Ok(url)
    }
}

/// Returns what to write instead of a URL in the form of other programs, which has this fault. It quotes nothing of the
/// URL but a known scheme.
fn store_remedy(text: &str, fault: &str) -> Option<String> {
    let (kind, rest) = text.strip_prefix("redis")?.split_once("://")?;
    let (place, query) = rest.split_once('?').unwrap_or((rest, ""));
    let host = place.rsplit('@').next().unwrap_or_default();
    if matches!(kind, "-sentinel" | "s-sentinel") && host.contains('#') {
        return Some(format!(
            "name the primary in a parameter: \"redis{kind}://HOST:26379?service=mymaster\""
        ));
    }
    let can_have_tls = fault.contains("parameter") && matches!(kind, "" | "-cluster" | "-sentinel");
    query.split('&').filter_map(|parameter| parameter.split_once('=')).find_map(|(name, value)| match name {
        "node" if value.contains("://") && !value.contains(',') => {
            Some("write only host and port: node=HOST:6379".to_owned())
        }
        "ssl" | "tls" | "useSsl" if can_have_tls && value.eq_ignore_ascii_case("true") => {
            Some(format!("for TLS, begin the URL with rediss{kind}://, and remove the parameter"))
        }
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn server_urls_are_scheme_host_and_port() {
        for (text, printed) in [
            ("http://a:1", "http://a:1"),
            ("http://a", "http://a:80"),
            ("http://10.0.0.1:3000/", "http://10.0.0.1:3000"),
            ("http://[::1]:3000", "http://[::1]:3000"),
            ("https://a", "https://a:443"),
            ("https://10.0.0.1:3000", "https://10.0.0.1:3000"),
            ("unix:/run/app.sock", "unix:/run/app.sock"),
        ] {
            assert_eq!(ServerUrl::read(text).map(|url| url.to_string()), Ok(printed.to_owned()));
        }
        for text in [
            "",
            "a:1",
            "/",
            "http://",
            "http://:1",
            "http://a:",
            "http://a:0",
            "http://a:99999",
            "https://a..b:1",
            "unix:app.sock",
            "unix:",
            "ftp://a:1",
            "http://a:1/b",
            "http://a:1?b",
            "http://a:1#b",
            "http://u@a:1",
            "http://u:p@a:1",
            "http://a b:1",
            "http://[::1:1",
            "http://a[::1]:1",
            "http://[a]:1",
        ] {
            assert!(ServerUrl::read(text).is_err(), "{text}");
        }
    }

    #[test]
    fn keys_come_over_tls_or_from_this_machine() {
        for text in [
            "https://id.example.com/jwks",
            "https://id.example.com:8443/a/b?c=d",
            "http://localhost:1/k",
            "http://127.0.0.2/k",
            "http://[::1]:1/k",
            "https://10.0.0.1",
        ] {
            assert!(JwksLocation::read(text).is_ok(), "{text}");
        }
        for text in [
            "",
            "/jwks",
            "id.example.com/jwks",
            "http://id.example.com/jwks",
            "http://10.0.0.1/jwks",
            "http://localhost.example.com/",
            "https://u:p@id.example.com/",
            "ftp://id.example.com/",
            "unix:/run/id.sock",
        ] {
            assert!(JwksLocation::read(text).is_err(), "{text}");
        }
    }

    #[test]
    fn store_urls_hide_their_password() {
        let url = StoreUrl::read("redis://me:secret@cache:6379/2");
        assert_eq!(format!("{url:?}"), "Ok(Redis(redis://me:******@cache:6379/2))");
        assert_eq!(StoreUrl::read("memory:"), Ok(StoreUrl::Memory));
        for text in ["", "memory", "memory://", "redis:", "valkey://h"] {
            assert!(StoreUrl::read(text).is_err(), "{text}");
        }
    }
}
