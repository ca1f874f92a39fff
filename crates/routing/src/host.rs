//! The pattern of a route's host.

use std::{fmt, net::Ipv6Addr, str::FromStr};

/// The host of a route: a name, an IP address, or `*.` and a name.
///
/// It is held in lower case, without a port; IPv6 addresses in brackets and in the form of RFC 5952.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum HostPattern {
    /// `api.example.com`: this host.
    Exact(String),
    /// `*.example.com`, held as `example.com`: one or more labels before it, but not the name itself.
    Suffix(String),
}

impl HostPattern {
    /// The most bytes of a host name in its text form (RFC 1035, section 2.3.4).
    pub const MAX_LENGTH: usize = 253;
}

impl FromStr for HostPattern {
    type Err = String;

    /// Parses a host. The error is a message and, on a line of its own, the remedy.
    fn from_str(text: &str) -> Result<Self, String> {
        let unbracketed = text.strip_prefix('[').and_then(|text| text.strip_suffix(']')).unwrap_or(text);
        if let Ok(address) = unbracketed.parse::<Ipv6Addr>() {
            return Ok(Self::Exact(format!("[{address}]")));
        }
        if text == "*" {
            return Err("`*` is not a host\nleave `host` out to match every host".to_owned());
        }
        if !text.is_ascii() {
            return Err(format!(
                "`{text}` is not ASCII\nwrite an international name as it is sent: `xn--bcher-kva.example`"
            ));
        }
        let (name, suffix) = match text.strip_prefix("*.") {
            Some(name) => (name, true),
            None => (text, false),
        };
        if !is_name(name) {
            return Err(format!(
                "`{text}` is not a host\n\
                 write `api.example.com`, `*.example.com` or an IP address, without scheme, port and path"
            ));
        }
        let name = name.to_ascii_lowercase();
        Ok(if suffix { Self::Suffix(name) } else { Self::Exact(name) })
    }
}

impl fmt::Display for HostPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exact(name) => write!(f, "{name}"),
            Self::Suffix(name) => write!(f, "*.{name}"),
        }
    }
}

fn is_name(text: &str) -> bool {
    let is_label = |label: &str| {
        (1..=63).contains(&label.len())
            && label.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_'))
    };
    text.len() <= HostPattern::MAX_LENGTH && text.split('.').all(is_label)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_prints_in_its_canonical_form() {
        for (text, printed) in [
            ("api.example.com", "api.example.com"),
            ("API.Example.com", "api.example.com"),
            ("*.Example.com", "*.example.com"),
            ("localhost", "localhost"),
            ("my_service", "my_service"),
            ("127.0.0.1", "127.0.0.1"),
            ("[::1]", "[::1]"),
            ("::1", "[::1]"),
            ("[2001:DB8:0::1]", "[2001:db8::1]"),
        ] {
            assert_eq!(text.parse::<HostPattern>().map(|host| host.to_string()), Ok(printed.to_owned()));
        }
    }

    #[test]
    fn an_invalid_host_is_rejected() {
        for (text, message) in [
            ("", "`` is not a host"),
            ("*", "`*` is not a host"),
            ("*.", "`*.` is not a host"),
            ("*.*.a", "`*.*.a` is not a host"),
            ("api.*", "`api.*` is not a host"),
            ("*api.a", "`*api.a` is not a host"),
            ("a.example.com.", "`a.example.com.` is not a host"),
            ("a:80", "`a:80` is not a host"),
            ("[::1]:80", "`[::1]:80` is not a host"),
            ("[127.0.0.1]", "`[127.0.0.1]` is not a host"),
            ("*.[::1]", "`*.[::1]` is not a host"),
            ("http://a", "`http://a` is not a host"),
            ("a/b", "`a/b` is not a host"),
            ("bücher.example", "`bücher.example` is not ASCII"),
        ] {
            assert_fault(text.parse::<HostPattern>(), message);
        }
        for long in ["a".repeat(64), "a.".repeat(127) + "a"] {
            assert_fault(long.parse::<HostPattern>(), &format!("`{long}` is not a host"));
        }
    }

    fn assert_fault<T: fmt::Debug>(parsed: Result<T, String>, message: &str) {
        let fault = parsed.expect_err(message);
        let (found, remedy) = fault.split_once('\n').expect("a message and a remedy");
        assert_eq!(found, message);
        assert!(!remedy.is_empty() && !remedy.contains('\n'), "{remedy}");
    }
}
