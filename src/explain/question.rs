//! The request to explain.

use std::net::{IpAddr, Ipv4Addr};

use hyper::{
    HeaderMap, Method, Request, Uri, Version,
    header::{HOST, HeaderName, HeaderValue},
    http::request::Parts,
};

use crate::forward::headers::join_cookie;

/// A made-up request.
#[derive(Debug)]
pub struct Question {
    pub(crate) parts: Parts,
    pub(crate) peer: IpAddr,
}

impl Question {
    /// Returns a request for a URL (`http://api.example.com/v1/orders/5`, or only `/v1/orders/5`) with these header
    /// lines. Without a `peer`, it comes from this machine.
    ///
    /// # Errors
    /// A message and, on a line of its own, the remedy.
    pub fn new(method: &str, url: &str, headers: &[String], peer: Option<IpAddr>) -> Result<Self, String> {
        let invalid_method =
            |_| format!("`{}` is not a valid method\nwrite GET or POST, for example", method.escape_debug());
        let method = Method::from_bytes(method.as_bytes()).map_err(invalid_method)?;
        let shown = url.escape_debug();
        let invalid_url = |_| {
            format!(
                "`{shown}` is not a valid URL\nwrite http://api.example.com/v1/orders/5, or only its path"
            )
        };
        let uri = url.parse::<Uri>().map_err(invalid_url)?;
        let mut fields = HeaderMap::new();
        for line in headers {
            let (name, value) = read_header(line)?;
            fields.append(name, value);
        }
        join_cookie(&mut fields);
        if let Some(authority) = uri.authority().filter(|_| !fields.contains_key(HOST)) {
            let host = HeaderValue::from_str(authority.as_str()).expect("an authority is visible ASCII");
            fields.insert(HOST, host);
        }
        let (mut parts, ()) = Request::new(()).into_parts();
        // The target is a path, as clients send it. A request without a host is HTTP/1.0.
        let is_path = |uri: &Uri| uri.authority().is_none() || method == Method::CONNECT;
        parts.uri = match uri.path_and_query() {
            Some(target) if !is_path(&uri) => target.clone().into(),
            _ => uri,
        };
        parts.version = if fields.contains_key(HOST) { Version::HTTP_11 } else { Version::HTTP_10 };
        parts.method = method;
        parts.headers = fields;
        Ok(Self { parts, peer: peer.unwrap_or(Ipv4Addr::LOCALHOST.into()) })
    }

    /// Reads a request from a query string: `method=GET&url=/v1/orders/5&ip=192.0.2.7`, and `header=name: value` for
    /// each header line.
    ///
    /// # Errors
    /// A message and, on a line of its own, the remedy.
    pub fn from_query(query: &str) -> Result<Self, String> {
        let (mut method, mut url, mut peer, mut headers) = ("GET".to_owned(), None, None, Vec::new());
        for (name, value) in form_urlencoded::parse(query.as_bytes()) {
            match &*name {
                "method" => method = value.into_owned(),
                "url" => url = Some(value.into_owned()),
                "ip" => peer = Some(read_address(&value)?),
                "header" => headers.push(value.into_owned()),
                _ => {
                    let name = name.escape_debug();
                    return Err(format!("unknown parameter `{name}`\nuse method, url, ip and header"));
                }
            }
        }
        let url = url.ok_or("missing parameter `url`\nwrite url=/v1/orders/5, for example")?;
        Self::new(&method, &url, &headers, peer)
    }
}

/// Reads a client's address.
///
/// # Errors
/// A message and, on a line of its own, the remedy.
fn read_address(text: &str) -> Result<IpAddr, String> {
    let invalid_address =
        |_| format!("`{}` is not an IP address\nwrite it as 192.0.2.7 or 2001:db8::7", text.escape_debug());
    text.parse().map_err(invalid_address)
}

fn read_header(line: &str) -> Result<(HeaderName, HeaderValue), String> {
    let read = || {
        let (name, value) = line.split_once(':')?;
        Some((name.trim().parse().ok()?, HeaderValue::from_str(value.trim()).ok()?))
    };
    // The line may contain a credential, so the message doesn't repeat it.
    read().ok_or_else(|| "a header is not valid\nwrite name: value, for example 'x-api-key: mine'".to_owned())
}
