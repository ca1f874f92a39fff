//! The header of a message as it goes on: what belongs to one connection stays behind (RFC 9110,
//! section 7.6), and the upstream learns who asks.

use std::{fmt::Write, net::IpAddr};

use bytes::Bytes;
use hyper::{
    HeaderMap, Version,
    header::{
        CONNECTION, CONTENT_LENGTH, COOKIE, EXPECT, HOST, HeaderName, HeaderValue, PROXY_AUTHENTICATE,
        PROXY_AUTHORIZATION, TE, TRANSFER_ENCODING, UPGRADE, VIA,
    },
};

const KEEP_ALIVE: HeaderName = HeaderName::from_static("keep-alive");
const PROXY_CONNECTION: HeaderName = HeaderName::from_static("proxy-connection");
const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const X_FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
const X_FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");
/// What an exchange is called.
pub const X_REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// Fields that a request has more when it goes on: Via, three X-Forwarded ones, X-Request-Id, and perhaps Host.
const FIELDS_SET: usize = 6;

/// Who sent a request, as far as the gateway believes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Client {
    /// The other end of the connection.
    pub peer: IpAddr,
    /// Whether the peer is a proxy whose word on the client is taken.
    pub peer_is_trusted: bool,
    /// The client: the peer, or whom trusted proxies name.
    pub address: IpAddr,
    /// How the peer speaks: `http` or `https`.
    pub scheme: &'static str,
}

/// Removes from a request what doesn't reach the upstream, before anything looks at the rest: so it can't
/// choose a limit's key either.
///
/// That is what belongs to the connection, and fields with an underscore in their name, which CGI and its
/// heirs take for those with a hyphen (nginx drops them, too).
pub fn from_client(headers: &mut HeaderMap) {
    remove_hop_by_hop(headers);
    remove_named(headers, |name| name.contains('_'));
}

/// Joins the crumbs into which HTTP/2 may split a cookie (RFC 9113, section 8.2.3).
pub fn join_cookie(headers: &mut HeaderMap) {
    let mut crumbs = headers.get_all(COOKIE).into_iter();
    if let (Some(_), Some(_)) = (crumbs.next(), crumbs.next()) {
        let crumbs: Vec<&[u8]> = headers.get_all(COOKIE).into_iter().map(HeaderValue::as_bytes).collect();
        let cookie = HeaderValue::from_bytes(&crumbs.join(&b"; "[..])).expect("each was a value");
        headers.insert(COOKIE, cookie);
    }
}

/// Removes what belongs to the connection that a message came on, and what its `Connection` names.
fn remove_hop_by_hop(headers: &mut HeaderMap) {
    if headers.contains_key(CONNECTION) {
        let lines: Vec<HeaderValue> = headers.get_all(CONNECTION).into_iter().cloned().collect();
        for name in lines.iter().flat_map(|line| line.as_bytes().split(|byte| *byte == b',')) {
            if let Ok(name) = HeaderName::from_bytes(name.trim_ascii()) {
                headers.remove(name);
            }
        }
    }
    for name in [
        CONNECTION,
        KEEP_ALIVE,
        PROXY_CONNECTION,
        PROXY_AUTHENTICATE,
        PROXY_AUTHORIZATION,
        TRANSFER_ENCODING,
        UPGRADE,
    ] {
        headers.remove(name);
    }
}

/// Writes the header for the upstream. Hop-by-hop fields are gone already.
pub fn towards_upstream(headers: &mut HeaderMap, client: &Client, version: Version) {
    // The map grows by rehashing: once is enough for what is set below.
    headers.reserve(FIELDS_SET);
    if headers.contains_key(TE) && !takes_trailers(headers) {
        headers.remove(TE);
    }
    // hyper answers it when the body is first read; the upstream needn't be asked.
    headers.remove(EXPECT);
    set_via(headers, version);
    if !client.peer_is_trusted {
        remove_named(headers, |name| {
            name.starts_with("x-forwarded-") || name == "forwarded" || name == "x-real-ip"
        });
    }
    let forwarded_for = match headers.get(X_FORWARDED_FOR) {
        Some(_) => format!("{}, {}", joined(headers, X_FORWARDED_FOR), client.peer),
        None => client.peer.to_string(),
    };
    headers.insert(X_FORWARDED_FOR, text(forwarded_for));
    if !headers.contains_key(X_FORWARDED_PROTO) {
        headers.insert(X_FORWARDED_PROTO, HeaderValue::from_static(client.scheme));
    }
    if let Some(host) = headers.get(HOST).filter(|_| !headers.contains_key(X_FORWARDED_HOST)).cloned() {
        headers.insert(X_FORWARDED_HOST, host);
    }
    if !client.peer_is_trusted || !headers.contains_key(X_REQUEST_ID) {
        headers.insert(X_REQUEST_ID, text(format!("{:032x}", fastrand::u128(..))));
    }
}

/// Writes the header for the client.
pub fn towards_client(headers: &mut HeaderMap) {
    if headers.contains_key(TRANSFER_ENCODING) {
        // Of the two, it says how long the body is (RFC 9112, section 6.3); hyper frames it anew.
        headers.remove(CONTENT_LENGTH);
    }
    remove_hop_by_hop(headers);
}

fn remove_named(headers: &mut HeaderMap, is_meant: impl Fn(&str) -> bool) {
    let meant: Vec<HeaderName> = headers.keys().filter(|name| is_meant(name.as_str())).cloned().collect();
    for name in meant {
        headers.remove(name);
    }
}

/// Whether the client takes trailers: the one thing in TE that isn't for this connection alone.
fn takes_trailers(headers: &mut HeaderMap) -> bool {
    let members = joined(headers, TE);
    let trailers = members.split(',').any(|member| member.trim().eq_ignore_ascii_case("trailers"));
    if trailers {
        headers.insert(TE, HeaderValue::from_static("trailers"));
    }
    trailers
}

fn set_via(headers: &mut HeaderMap, version: Version) {
    let own = match version {
        Version::HTTP_2 => "2.0 tollgate",
        Version::HTTP_10 => "1.0 tollgate",
        _ => "1.1 tollgate",
    };
    if !headers.contains_key(VIA) {
        headers.insert(VIA, HeaderValue::from_static(own));
        return;
    }
    let via = format!("{}, {own}", joined(headers, VIA));
    headers.insert(VIA, text(via));
}

/// A field's lines as one list, without what isn't text.
fn joined(headers: &HeaderMap, name: HeaderName) -> String {
    let mut list = String::new();
    for line in headers.get_all(name).into_iter().filter_map(|line| line.to_str().ok()) {
        let separator = if list.is_empty() { "" } else { ", " };
        write!(list, "{separator}{line}").expect("writing to a string succeeds");
    }
    list
}

fn text(value: String) -> HeaderValue {
    HeaderValue::from_maybe_shared(Bytes::from(value)).expect("put together from what came in a header")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(lines: &[(&'static str, &'static str)]) -> HeaderMap {
        let lines = lines.iter();
        lines.map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value))).collect()
    }

    fn client(peer_is_trusted: bool) -> Client {
        let peer = IpAddr::from([192, 0, 2, 7]);
        Client { peer, peer_is_trusted, address: peer, scheme: "http" }
    }

    #[test]
    fn what_belongs_to_the_connection_stays_behind() {
        let mut headers = map(&[
            ("connection", "close, X-Private"),
            ("connection", "x-other,,  bad name"),
            ("x-private", "1"),
            ("x-other", "2"),
            ("keep-alive", "timeout=5"),
            ("proxy-connection", "keep-alive"),
            ("proxy-authorization", "Basic eA=="),
            ("transfer-encoding", "chunked"),
            ("upgrade", "h2c"),
            ("x-kept", "3"),
        ]);
        remove_hop_by_hop(&mut headers);
        assert_eq!(headers, map(&[("x-kept", "3")]));
    }

    #[test]
    fn fields_with_an_underscore_are_dropped() {
        let mut headers = map(&[("x_forwarded_for", "10.0.0.1"), ("x-kept", "3")]);
        from_client(&mut headers);
        assert_eq!(headers, map(&[("x-kept", "3")]));
    }

    #[test]
    fn what_an_untrusted_peer_says_of_itself_is_replaced() {
        let claims = [
            ("host", "api.example.com"),
            ("x-forwarded-for", "10.0.0.1"),
            ("x-forwarded-proto", "https"),
            ("x-forwarded-host", "evil.example"),
            ("x-forwarded-prefix", "/admin"),
            ("forwarded", "for=10.0.0.1"),
            ("x-real-ip", "10.0.0.1"),
            ("x-request-id", "mine"),
        ];
        let mut headers = map(&claims);
        towards_upstream(&mut headers, &client(false), Version::HTTP_11);
        assert_eq!(headers["x-forwarded-for"], "192.0.2.7");
        assert_eq!(headers["x-forwarded-proto"], "http");
        assert_eq!(headers["x-forwarded-host"], "api.example.com");
        assert_eq!(headers["x-request-id"].len(), 32);
        assert_eq!(
            headers
                .keys()
                .filter(|name| name.as_str().contains("real") || name.as_str().contains("prefix"))
                .count(),
            0
        );
        assert!(!headers.contains_key("forwarded"));

        let mut headers = map(&claims);
        towards_upstream(&mut headers, &client(true), Version::HTTP_11);
        assert_eq!(headers["x-forwarded-for"], "10.0.0.1, 192.0.2.7");
        assert_eq!(headers["x-forwarded-proto"], "https");
        assert_eq!(headers["x-forwarded-host"], "evil.example");
        assert_eq!(headers["x-request-id"], "mine");
    }

    #[test]
    fn via_is_set_and_te_keeps_only_trailers() {
        let mut headers = map(&[("via", "1.0 a"), ("te", "gzip, Trailers"), ("expect", "100-continue")]);
        towards_upstream(&mut headers, &client(false), Version::HTTP_10);
        assert_eq!(headers["via"], "1.0 a, 1.0 tollgate");
        assert_eq!(headers["te"], "trailers");
        assert!(!headers.contains_key("expect"));
        let mut headers = map(&[("te", "gzip")]);
        towards_upstream(&mut headers, &client(false), Version::HTTP_11);
        assert!(!headers.contains_key("te"));
    }

    #[test]
    fn of_two_framings_upstream_the_coding_counts() {
        let mut headers = map(&[("transfer-encoding", "chunked"), ("content-length", "5")]);
        towards_client(&mut headers);
        assert!(headers.is_empty());
    }
}
