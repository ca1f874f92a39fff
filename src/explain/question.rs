//! A request that is asked about.

use std::net::{IpAddr, Ipv4Addr};

use hyper::{
    HeaderMap, Method, Request, Uri, Version,
    header::{HOST, HeaderName, HeaderValue},
    http::request::Parts,
};

/// A request that nobody has sent.
#[derive(Debug)]
pub struct Question {
    pub(super) parts: Parts,
    pub(super) peer: IpAddr,
}

impl Question {
    /// A request for a url, `http://api.example.com/v1/orders/5` or only `/v1/orders/5`, with these lines as its
    /// header, that comes from a peer, or from this machine.
    ///
    /// # Errors
    /// A message and, on a line of its own, the remedy.
    pub fn new(method: &str, url: &str, headers: &[String], peer: Option<IpAddr>) -> Result<Self, String> {
        let no_method =
            |_| format!("`{}` is no method\nwrite GET or POST, for example", method.escape_debug());
        let method = Method::from_bytes(method.as_bytes()).map_err(no_method)?;
        let told = url.escape_debug();
        let no_url =
            |_| format!("`{told}` is no url\nwrite http://api.example.com/v1/orders/5, or only its path");
        let uri = url.parse::<Uri>().map_err(no_url)?;
        let mut fields = HeaderMap::new();
        for line in headers {
            let (name, value) = read_header(line)?;
            fields.append(name, value);
        }
        if let Some(authority) = uri.authority().filter(|_| !fields.contains_key(HOST)) {
            let host = HeaderValue::from_str(authority.as_str()).expect("an authority is visible ASCII");
            fields.insert(HOST, host);
        }
        let (mut parts, ()) = Request::new(()).into_parts();
        // It is sent as clients do, and a request without a host is one of HTTP/1.0.
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

    /// A request as a query of a url puts it: `method=GET&url=/v1/orders/5&ip=192.0.2.7`, and `header=name: value` for
    /// each line of its header.
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
                    return Err(format!("there is no parameter `{name}`\nuse method, url, ip and header"));
                }
            }
        }
        let url = url.ok_or("the request lacks its url\nwrite url=/v1/orders/5, for example")?;
        Self::new(&method, &url, &headers, peer)
    }
}

/// Reads an address of a client.
///
/// # Errors
/// A message and, on a line of its own, the remedy.
fn read_address(text: &str) -> Result<IpAddr, String> {
    let no_address =
        |_| format!("`{}` is no address\nwrite it as 192.0.2.7 or 2001:db8::7", text.escape_debug());
    text.parse().map_err(no_address)
}

fn read_header(line: &str) -> Result<(HeaderName, HeaderValue), String> {
    let read = || {
        let (name, value) = line.split_once(':')?;
        Some((name.trim().parse().ok()?, HeaderValue::from_str(value.trim()).ok()?))
    };
    // It may hold a credential, so it isn't repeated.
    read().ok_or_else(|| "this is no line of a header\nwrite name: value, as in 'x-api-key: mine'".to_owned())
}
