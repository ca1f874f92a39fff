//! Methods, header fields, hosts and paths.

use hyper::{
    Method,
    header::{HeaderName, HeaderValue},
};
use tollgate_routing::{
    HostPattern, Pattern,
    template::{Location, Template},
};

use super::FromText;

impl FromText for Pattern {
    const EXPECTED: &'static str = "a path such as \"/v1/orders/{id}\"";
    const FORM: Option<&'static str> = Some(r"/.*");

    fn read(text: &str) -> Result<Self, String> {
        text.parse()
    }
}

impl FromText for HostPattern {
    const EXPECTED: &'static str = "a host such as \"api.example.com\" or \"*.example.com\"";

    fn read(text: &str) -> Result<Self, String> {
        text.parse()
    }
}

impl FromText for Method {
    const EXPECTED: &'static str = "a method such as \"GET\"";
    const FORM: Option<&'static str> = Some(r"[^a-z ]+");

    fn read(text: &str) -> Result<Self, String> {
        let method = Self::from_bytes(text.as_bytes());
        if matches!(text.to_ascii_uppercase().as_str(), "*" | "ANY" | "ALL") {
            return Err(format!("`{text}` is not a method\nleave `methods` out to match all of them"));
        }
        let is_word = |method: &Self| {
            method.as_str().bytes().all(|b| matches!(b, b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_'))
        };
        method.ok().filter(is_word).ok_or_else(|| {
            format!(
                "`{text}` is not a valid method\nwrite each by itself, in capital letters: [\"GET\", \"POST\"]"
            )
        })
    }
}

impl FromText for HeaderName {
    const EXPECTED: &'static str = "a header name such as \"x-version\"";

    fn read(text: &str) -> Result<Self, String> {
        text.parse().map_err(|_| {
            format!("`{text}` is not a valid header name\nuse letters, digits and hyphens: \"x-api-key\"")
        })
    }
}

/// The name of a header field that a route may change. That excludes `Host` and the fields for the connection
/// and framing, which the gateway sets itself (RFC 9110, sections 7.6.1 and 10.1.1).
#[derive(Debug)]
pub(crate) struct FieldName(pub HeaderName);

impl FromText for FieldName {
    const EXPECTED: &'static str = HeaderName::EXPECTED;

    fn read(text: &str) -> Result<Self, String> {
        const GATEWAYS_OWN: [&str; 11] = [
            "connection",
            "content-length",
            "expect",
            "keep-alive",
            "proxy-authenticate",
            "proxy-authorization",
            "proxy-connection",
            "te",
            "trailer",
            "transfer-encoding",
            "upgrade",
        ];
        let name = HeaderName::read(text)?;
        match name.as_str() {
            "host" => {
                Err("a route can't change the header field `host`\nto send the upstream's own host, use preserve_host = false"
                    .to_owned())
            }
            own if GATEWAYS_OWN.contains(&own) => Err(format!(
                "a route can't change the header field `{own}`\nremove it: the gateway sets this field itself"
            )),
            other if other.contains('*') => {
                Err(format!("`{text}` is not a valid header name\nlist each name: there are no wildcards"))
            }
            _ => Ok(Self(name)),
        }
    }
}

impl FromText for Template {
    const EXPECTED: &'static str = "a path such as \"/orders/{id}\"";

    fn read(text: &str) -> Result<Self, String> {
        text.parse()
    }
}

impl FromText for Location {
    const EXPECTED: &'static str = "a path or a URL such as \"https://shop.example/{*rest}\"";

    fn read(text: &str) -> Result<Self, String> {
        let host = text.split_once("://").map(|(_, rest)| rest.split('/').next().unwrap_or_default());
        if host.is_some_and(|host| host.contains('$')) {
            return Err(format!(
                "`{text}` has a variable in its host, which nothing replaces\nwrite the host itself: \"https://shop.example/{{*rest}}\""
            ));
        }
        text.parse()
    }
}

impl FromText for HeaderValue {
    const EXPECTED: &'static str = "a string";

    fn read(text: &str) -> Result<Self, String> {
        // The value may be a credential, so it isn't shown.
        text.parse().map_err(|_| {
            "this is not a valid header value\nuse visible ASCII characters and spaces".to_owned()
        })
    }
}
