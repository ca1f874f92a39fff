//! The types of single values, written as strings or numbers, and the rules for each.

mod choice;
mod limit;
mod upstream;
mod url;

use std::{
    fmt,
    marker::PhantomData,
    net::{IpAddr, SocketAddr},
    path::PathBuf,
    time::Duration,
};

use hyper::{
    Method,
    header::{HeaderName, HeaderValue},
};
use ipnet::IpNet;
use serde::{Deserialize, Deserializer, de};

pub(super) use self::{
    choice::{AlgorithmName, Echo},
    limit::{AnyRate, LeaseDuration, Wait},
    upstream::Interval,
    url::Otlp,
};
use super::{Exemption, KeyPart, ListenAddress};
use crate::duration;
use tollgate_routing::{
    HostPattern, Pattern,
    template::{Location, Template},
};

/// The longest path of a unix socket on all supported systems.
const UNIX_PATH_MOST: usize = 103;

/// A value that is written as a string.
pub(super) trait FromText: Sized {
    /// The expected form, for error messages: `a rate such as "100/10s"`.
    const EXPECTED: &'static str;
    /// A regular expression that all valid strings match. `None` if it wouldn't say much.
    const FORM: Option<&'static str> = None;

    /// Parses the text. An error is a message and, on lines of their own, advice on how to fix it.
    fn read(text: &str) -> Result<Self, String>;
}

/// A value that deserializes from a string.
#[derive(Debug)]
pub(super) struct ParsedText<T>(pub T);

impl<'de, T: FromText> Deserialize<'de> for ParsedText<T> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_str(ParsedTextVisitor(PhantomData))
    }
}

struct ParsedTextVisitor<T>(PhantomData<T>);

impl<T: FromText> de::Visitor<'_> for ParsedTextVisitor<T> {
    type Value = ParsedText<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(T::EXPECTED)
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<ParsedText<T>, E> {
        T::read(text).map(ParsedText).map_err(E::custom)
    }
}

/// A whole number from `MIN` to `MAX`.
#[derive(Debug)]
pub(super) struct Whole<const MIN: u32, const MAX: u32>(pub u32);

impl<'de, const MIN: u32, const MAX: u32> Deserialize<'de> for Whole<MIN, MAX> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_i64(WholeVisitor)
    }
}

struct WholeVisitor<const MIN: u32, const MAX: u32>;

impl<const MIN: u32, const MAX: u32> de::Visitor<'_> for WholeVisitor<MIN, MAX> {
    type Value = Whole<MIN, MAX>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a whole number from {MIN} to {MAX}")
    }

    fn visit_i64<E: de::Error>(self, number: i64) -> Result<Self::Value, E> {
        let whole = u32::try_from(number).ok().filter(|whole| (MIN..=MAX).contains(whole));
        whole.map(Whole).ok_or_else(|| E::invalid_value(de::Unexpected::Signed(number), &self))
    }
}

/// A number from 0 to 1.
#[derive(Debug)]
pub(super) struct Fraction(pub f64);

impl<'de> Deserialize<'de> for Fraction {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_f64(FractionVisitor)
    }
}

struct FractionVisitor;

impl de::Visitor<'_> for FractionVisitor {
    type Value = Fraction;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a number from 0 to 1")
    }

    fn visit_f64<E: de::Error>(self, number: f64) -> Result<Fraction, E> {
        let is_share = (0.0..=1.0).contains(&number);
        is_share
            .then_some(Fraction(number))
            .ok_or_else(|| E::invalid_value(de::Unexpected::Float(number), &self))
    }

    fn visit_i64<E: de::Error>(self, number: i64) -> Result<Fraction, E> {
        let is_share = (0..=1).contains(&number);
        is_share
            .then_some(Fraction(number as f64))
            .ok_or_else(|| E::invalid_value(de::Unexpected::Signed(number), &self))
    }
}

/// A number of bytes, written as `32KiB`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Size(pub usize);

impl FromText for Size {
    const EXPECTED: &'static str = "a size such as \"32KiB\"";
    const FORM: Option<&'static str> = Some(r"\d+ *([KMG]i)?B");

    fn read(text: &str) -> Result<Self, String> {
        let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
        let (number, unit) = text.split_at(digits);
        let unit = match unit.trim_start() {
            "B" => Some(1_usize),
            "KiB" => Some(1 << 10),
            "MiB" => Some(1 << 20),
            "GiB" => Some(1 << 30),
            _ => None,
        };
        let size = number.parse::<usize>().ok().zip(unit).and_then(|(number, unit)| number.checked_mul(unit));
        size.map(Self).ok_or_else(|| {
            format!("`{text}` is not a valid size\nwrite a whole number and B, KiB, MiB or GiB: \"32KiB\", \"10MiB\"")
        })
    }
}

/// The largest request body in bytes. `None`, written as `none`, means unlimited.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct BodyMost(pub Option<u64>);

impl FromText for BodyMost {
    const EXPECTED: &'static str = "a size such as \"10MiB\", or \"none\"";

    fn read(text: &str) -> Result<Self, String> {
        match text {
            "none" => Ok(Self(None)),
            _ => Size::read(text)
                .map(|Size(bytes)| Self(Some(bytes as u64)))
                .map_err(|fault| fault + "; or \"none\""),
        }
    }
}

impl FromText for String {
    const EXPECTED: &'static str = "a string";

    fn read(text: &str) -> Result<Self, String> {
        Ok(text.to_owned())
    }
}

/// A file to write to. `None`, written as `-`, means stdout.
#[derive(Debug)]
pub(super) struct Output(pub Option<PathBuf>);

impl FromText for Output {
    const EXPECTED: &'static str = "\"-\" or a path";

    fn read(text: &str) -> Result<Self, String> {
        match text {
            "" => Err("the path is empty\nuse \"-\" for stdout, or a path".to_owned()),
            "-" => Ok(Self(None)),
            path => Ok(Self(Some(path.into()))),
        }
    }
}

/// A secret. Its `Debug` output hides it.
pub(super) struct Secret(pub String);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("******")
    }
}

impl FromText for Secret {
    const EXPECTED: &'static str = "a string such as \"${JWT_SECRET}\"";

    fn read(text: &str) -> Result<Self, String> {
        if text.is_empty() {
            return Err("this secret is empty\nuse at least 32 random bytes".to_owned());
        }
        Ok(Self(text.to_owned()))
    }
}

impl FromText for Duration {
    const EXPECTED: &'static str = "a duration such as \"50ms\" or \"10s\"";

    fn read(text: &str) -> Result<Self, String> {
        match duration::parse_us(text)? {
            0 => Err(format!("`{text}` is too short\nuse at least 1ms")),
            us => Ok(Self::from_micros(us)),
        }
    }
}

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

impl FromText for SocketAddr {
    const EXPECTED: &'static str = "an address such as \"127.0.0.1:8080\"";

    fn read(text: &str) -> Result<Self, String> {
        text.parse().map_err(|_| {
            format!("`{text}` is not a valid listen address\nwrite an IP address and a port: \"127.0.0.1:8080\", \"0.0.0.0:8080\", \"[::1]:8080\"")
        })
    }
}

impl FromText for ListenAddress {
    const EXPECTED: &'static str = "an address such as \"127.0.0.1:8080\"";

    fn read(text: &str) -> Result<Self, String> {
        let Some(path) = text.strip_prefix("unix:") else {
            let address =
                SocketAddr::read(text).map_err(|remedy| remedy + "; or \"unix:/run/tollgate.sock\"")?;
            return Ok(Self::Tcp(address));
        };
        unix_path(path).map(Self::Unix).ok_or_else(|| {
            format!(
                "`{text}` is not a valid listen address\nwrite an absolute path of at most {UNIX_PATH_MOST} bytes: \"unix:/run/tollgate.sock\""
            )
        })
    }
}

/// Checks the path of a unix socket.
fn unix_path(text: &str) -> Option<PathBuf> {
    (text.starts_with('/') && text.len() <= UNIX_PATH_MOST).then(|| text.into())
}

impl FromText for IpNet {
    const EXPECTED: &'static str = "a network such as \"10.0.0.0/8\"";

    fn read(text: &str) -> Result<Self, String> {
        let network = text.parse().or_else(|_| text.parse::<IpAddr>().map(Self::from));
        network.map(|network| network.trunc()).map_err(|_| {
            format!(
                "`{text}` is not a valid network\nwrite an address and a prefix length, at most 32 for IPv4 and 128 for IPv6: \"10.0.0.0/8\", \"2001:db8::/32\""
            )
        })
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

impl FromText for Method {
    const EXPECTED: &'static str = "a method such as \"GET\"";
    const FORM: Option<&'static str> = Some(r"[^a-z ]+");

    fn read(text: &str) -> Result<Self, String> {
        let method = Self::from_bytes(text.as_bytes());
        method.ok().filter(|method| method.as_str() == text.to_ascii_uppercase()).ok_or_else(|| {
            format!(
                "`{text}` is not a valid method\nwrite it in capital letters: \"GET\", \"POST\", \"DELETE\""
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
pub(super) struct FieldName(pub HeaderName);

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
        text.parse()
    }
}

impl FromText for HeaderValue {
    const EXPECTED: &'static str = "a string";

    fn read(text: &str) -> Result<Self, String> {
        text.parse().map_err(|_| {
            format!(
                "`{}` is not a valid header value\nuse visible ASCII characters and spaces",
                text.escape_debug()
            )
        })
    }
}

impl FromText for KeyPart {
    const EXPECTED: &'static str = "a key such as \"ip\" or \"header:x-api-key\"";
    const FORM: Option<&'static str> = Some(r"ip|host|method|route|global|(header|cookie|query|path|jwt):.+");

    fn read(text: &str) -> Result<Self, String> {
        let (kind, name) = text.split_once(':').map_or((text, None), |(kind, name)| (kind, Some(name)));
        match (kind, name) {
            ("ip", None) => Ok(Self::Ip),
            ("host", None) => Ok(Self::Host),
            ("method", None) => Ok(Self::Method),
            ("route", None) => Ok(Self::Route),
            ("global", None) => Ok(Self::Global),
            ("header" | "cookie" | "query" | "path" | "jwt", None | Some("")) => {
                Err(format!("`{text}` needs a name\nwrite \"{kind}:NAME\""))
            }
            ("header", Some(name)) if name.contains('_') => Err(format!(
                "`{text}` can never match: header fields with an underscore in their name are dropped\nuse a hyphen, here and in the clients: \"{}\"",
                text.replace('_', "-")
            )),
            ("header", Some(name)) => HeaderName::read(name).map(Self::Header),
            ("cookie", Some(name)) => cookie_name(name).map(Self::Cookie),
            ("query", Some(name)) => Ok(Self::Query(name.to_owned())),
            ("path", Some(name)) => Ok(Self::Path(name.to_owned())),
            ("jwt", Some(claim)) => Ok(Self::Jwt(claim.to_owned())),
            _ => Err(format!("`{text}` is not a valid key\n{}", Self::ALL)),
        }
    }
}

impl KeyPart {
    const ALL: &str = "use \"ip\", \"header:NAME\", \"cookie:NAME\", \"query:NAME\", \"path:PARAM\", \"jwt:CLAIM\", \"host\", \"method\", \"route\" or \"global\"";
}

/// Checks a cookie name. It is a token like a header field's name, but case-sensitive (RFC 6265, section
/// 4.1.1).
fn cookie_name(name: &str) -> Result<String, String> {
    HeaderName::read(name).map(|_| name.to_owned()).map_err(|_| {
        format!("`{name}` is not a valid cookie name\nuse letters, digits, hyphens and underscores: \"cookie:sid\"")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_binary_units() {
        assert_eq!(Size::read("32KiB"), Ok(Size(32 * 1024)));
        assert_eq!(Size::read("10 MiB"), Ok(Size(10 * 1024 * 1024)));
        assert_eq!(Size::read("1GiB"), Ok(Size(1 << 30)));
        assert_eq!(Size::read("512B"), Ok(Size(512)));
        for text in
            ["", "KiB", "32", "32KB", "32kib", "-1B", "1.5MiB", "99999999999999999999B", "99999999999999GiB"]
        {
            assert!(Size::read(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_body_may_have_no_bound() {
        assert_eq!(BodyMost::read("none"), Ok(BodyMost(None)));
        assert_eq!(BodyMost::read("10MiB"), Ok(BodyMost(Some(10 << 20))));
        assert_eq!(BodyMost::read("0B"), Ok(BodyMost(Some(0))));
        let fault = BodyMost::read("10MB").expect_err("no size");
        assert!(
            fault.starts_with("`10MB` is not a valid size\n") && fault.ends_with("; or \"none\""),
            "{fault}"
        );
    }

    #[test]
    fn what_looks_like_a_network_must_be_one() {
        assert_eq!(
            Exemption::read("10.1.2.3/8"),
            Ok(Exemption::Network("10.0.0.0/8".parse().expect("a network")))
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
