//! The keys of limits, and callers that are exempt from one.

use std::net::IpAddr;

use hyper::header::HeaderName;
use ipnet::IpNet;
use tollgate_http1::head::is_ambiguous;

use super::FromText;
use crate::{Exemption, KeyPart, ValuePattern};

impl FromText for KeyPart {
    const EXPECTED: &'static str = "a key such as \"ip\" or \"header:x-api-key\"";
    const FORM: Option<&'static str> =
        Some(r"ip|host|method|route|global|(header|cookie|query|path|jwt|descriptor):.+");

    fn read(text: &str) -> Result<Self, String> {
        let (kind, name) = text.split_once(':').map_or((text, None), |(kind, name)| (kind, Some(name)));
        match (kind, name) {
            _ if text.contains(',') && text.split(',').all(|part| Self::read(part.trim()).is_ok()) => {
                let parts: Vec<_> = text.split(',').map(|part| format!("\"{}\"", part.trim())).collect();
                Err(format!(
                    "`{text}` is not a single part of a key\nwrite a list of parts: [{}]",
                    parts.join(", ")
                ))
            }
            ("ip", None) => Ok(Self::Ip),
            ("host", None) => Ok(Self::Host),
            ("method", None) => Ok(Self::Method),
            ("route", None) => Ok(Self::Route),
            ("global", None) => Ok(Self::Global),
            ("header" | "cookie" | "query" | "path" | "jwt" | "descriptor", None | Some("")) => {
                Err(format!("`{text}` needs a name\nwrite \"{kind}:NAME\""))
            }
            ("header", Some(name)) => match HeaderName::read(name) {
                Ok(name) if is_ambiguous(name.as_str()) => Err(format!(
                    "`{text}` can never match: header fields are dropped if their name has other characters than letters, digits and hyphens, or ends in a hyphen\nuse a hyphen, here and in the clients: \"header:{}\"",
                    match name
                        .as_str()
                        .replace(|c: char| !c.is_ascii_alphanumeric(), "-")
                        .trim_end_matches('-')
                    {
                        "" => "NAME",
                        name => name,
                    }
                )),
                read => read
                    .map(Self::Header)
                    .map_err(|remedy| remedy.replace("\"x-api-key\"", "\"header:x-api-key\"")),
            },
            ("cookie", Some(name)) => cookie_name(name).map(Self::Cookie),
            ("query", Some(name)) => Ok(Self::Query(name.to_owned())),
            ("path", Some(name)) if name.contains(['{', '}', '*']) => Err(format!(
                "`{name}` is not the name of a parameter\nwrite it without braces and star: \"path:{}\"",
                name.trim_matches(['{', '}', '*'])
            )),
            ("path", Some(name)) => Ok(Self::Path(name.to_owned())),
            ("descriptor", Some(key)) => Ok(Self::Descriptor(key.to_owned())),
            ("jwt", Some(claim)) => Ok(Self::Jwt(claim.to_owned())),
            ("body", _) => Err(format!(
                "`{text}` is not a valid key: the bodies of requests aren't read\n{}\nor let the application ask: docs/login-protection.md",
                Self::ALL
            )),
            _ => Err(not_a_key(text)),
        }
    }
}

/// Returns what is wrong with a text that is no part of a key. Most header fields have a hyphen.
fn not_a_key(text: &str) -> String {
    let all = KeyPart::ALL;
    // As in `header.x-api-key` and `header=x-api-key`.
    let behind = text.strip_prefix("header").and_then(|rest| rest.strip_prefix(['.', '=', ' ', '/']));
    let name = behind.unwrap_or(text).trim();
    match name.contains('-') {
        true => format!("`{text}` is not a valid key\nfor a header field write \"header:{name}\", or {all}"),
        false => format!("`{text}` is not a valid key\n{all}"),
    }
}

impl KeyPart {
    const ALL: &str = "use \"ip\", \"header:NAME\", \"cookie:NAME\", \"query:NAME\", \"path:PARAM\", \"jwt:CLAIM\", \"host\", \"method\", \"route\", \"descriptor:KEY\" or \"global\"";
}

/// Checks a cookie name. It is a token like a header field's name, but case-sensitive (RFC 6265, section
/// 4.1.1).
fn cookie_name(name: &str) -> Result<String, String> {
    HeaderName::read(name).map(|_| name.to_owned()).map_err(|_| {
        format!("`{name}` is not a valid cookie name\nuse letters, digits, hyphens and underscores: \"cookie:sid\"")
    })
}

/// The part of a request that states a rate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RateSource(pub KeyPart);

impl FromText for RateSource {
    const EXPECTED: &'static str = "a claim such as \"jwt:quota\", or a header such as \"header:x-quota\"";
    const FORM: Option<&'static str> = Some(r"(jwt|header):.+");

    fn read(text: &str) -> Result<Self, String> {
        match text.split_once(':') {
            Some(("jwt" | "header", _)) => KeyPart::read(text).map(Self),
            _ => Err(format!("`{text}` doesn't state a rate\nwrite {}", Self::EXPECTED)),
        }
    }
}

impl FromText for ValuePattern {
    const EXPECTED: &'static str = "a value, in which `*` stands for any text";

    fn read(text: &str) -> Result<Self, String> {
        Ok(Self::new(text))
    }
}

impl FromText for Exemption {
    const EXPECTED: &'static str = "a network such as \"10.0.0.0/8\", or a key's value";

    fn read(text: &str) -> Result<Self, String> {
        match IpNet::read(text) {
            Ok(network) => Ok(Self::Network(network)),
            Err(fault) if looks_like_network(text) => Err(fault),
            Err(_) => Ok(Self::Key(vec![text.to_owned()])),
        }
    }
}

/// Returns true if the text was probably meant as a network or an address. That is the case if the part
/// before a `/` and digits, or all of it, consists of four numbers with dots or looks like an IPv6 address.
fn looks_like_network(text: &str) -> bool {
    let (address, prefix) = text.split_once('/').unwrap_or((text, "0"));
    let dotted = address.split('.').count() == 4 && address.bytes().all(|b| b.is_ascii_digit() || b == b'.');
    let coloned = address.contains("::") && address.bytes().all(|b| b.is_ascii_hexdigit() || b == b':');
    (dotted || coloned || address.parse::<IpAddr>().is_ok()) && prefix.bytes().all(|b| b.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_like_a_network_must_be_one() {
        assert_eq!(
            Exemption::read("10.1.2.3/8"),
            Ok(Exemption::Network("10.1.2.3/8".parse().expect("a network")))
        );
        assert_eq!(Exemption::read("::1"), Ok(Exemption::Network("::1/128".parse().expect("a network"))));
        for key in ["partner-key", "a/b", "[\"v1\",\"v2\"]", "1.2.3", "12/24", "http://a/8", "a::b c", ""] {
            assert_eq!(Exemption::read(key), Ok(Exemption::Key(vec![key.to_owned()])));
        }
        for text in ["10.0.0.0/33", "10.0.0.256", "10.0.0.0/", "::1/129", "fe80:::1", "1.2.3.4/"] {
            assert!(Exemption::read(text).is_err(), "{text}");
        }
    }

    #[test]
    fn the_remedy_for_a_header_names_the_header() {
        for text in ["x-api-key", "header.x-api-key", "header=x-api-key", "header x-api-key"] {
            let fault = KeyPart::read(text).unwrap_err();
            assert!(fault.contains("write \"header:x-api-key\""), "{fault}");
        }
    }

    #[test]
    fn keys_print_as_they_are_written() {
        for text in [
            "ip",
            "header:x-api-key",
            "cookie:sId",
            "query:k",
            "path:id",
            "jwt:https://example.com/tenant",
            "host",
            "method",
            "route",
            "descriptor:api_key",
            "global",
        ] {
            assert_eq!(KeyPart::read(text).map(|key| key.to_string()), Ok(text.to_owned()));
        }
        for text in [
            "",
            "IP",
            "ip:",
            "ip:x",
            "header",
            "header:",
            "header:a b",
            "header:x_api_key",
            "header:x-api-key-",
            "cookie:a=b",
            "jwt",
            "jwt:",
            "query:",
            "path:",
        ] {
            assert!(KeyPart::read(text).is_err(), "{text}");
        }
    }
}
