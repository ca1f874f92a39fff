//! Header fields of forwarded messages: hop-by-hop fields are removed (RFC 9110, section 7.6), and fields
//! about the client are set for the upstream.

use std::{fmt::Write, net::IpAddr};

use bytes::Bytes;
use hyper::{
    HeaderMap, Version,
    header::{
        ACCEPT_ENCODING, AUTHORIZATION, CACHE_CONTROL, CONNECTION, CONTENT_ENCODING, CONTENT_LENGTH,
        CONTENT_RANGE, CONTENT_TYPE, COOKIE, EXPECT, Entry, HOST, HeaderName, HeaderValue, MAX_FORWARDS,
        REFERER, SET_COOKIE, TE, TRAILER, TRANSFER_ENCODING, VIA,
    },
};
use smallvec::SmallVec;

use tollgate_http1::head;
use tollgate_limiter::text;

use crate::trace::context::{TRACEPARENT, TRACESTATE};

const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const X_FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
const X_FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");
/// Other names of fields: Apache httpd reads cookies from that of RFC 2965, which is obsolete, CherryPy and Zope credentials from the
/// second, Nextcloud from the third, and Express and Koa the last if both are there.
const OTHER_NAMES: [(&str, HeaderName); 4] = [
    ("cookie2", COOKIE),
    ("cgi-authorization", AUTHORIZATION),
    ("xauthorization", AUTHORIZATION),
    ("referrer", REFERER),
];
/// The header field with the request id.
pub const X_REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// The longest request id that is accepted from a trusted proxy.
const REQUEST_ID_MOST: usize = 128;
/// The number of fields that are added to a request: Via, three X-Forwarded fields, X-Request-Id, and perhaps
/// Host.
const FIELDS_SET: usize = 6;

/// The client of a request, as far as the gateway trusts the information.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Client {
    /// The address at the other end of the connection.
    pub peer: IpAddr,
    /// True if the peer is a trusted proxy, whose X-Forwarded fields are used.
    pub peer_is_trusted: bool,
    /// The address of the client: the peer, or the one that trusted proxies state.
    pub address: IpAddr,
    /// The scheme of the connection from the peer: `http` or `https`.
    pub scheme: &'static str,
}

/// Removes the fields of a request that aren't forwarded. This happens before anything reads the header, so
/// these fields can't choose a limit's key. Those in `kept` stay even if `Connection` names them.
///
/// They are the hop-by-hop fields, those with an [ambiguous name](head::is_ambiguous), those that servers take for another one, as
/// Symfony does since PHP has the credentials in variables of these names, and `Proxy`, which CGI programs take for the variable that names
/// their proxy.
pub fn from_client(headers: &mut HeaderMap, kept: &[HeaderName]) {
    remove_hop_by_hop(headers, |name| is_misread(name) || name == "proxy", kept);
}

/// Prepares the fields of a request that a proxy describes, and forwards itself, with fields that the gateway would remove.
///
/// Fields that servers may take for another one become lines of that one: `X_Api_Key` of `X-Api-Key`, as in PHP, and `Referrer` of
/// `Referer`. So a key with several values is ambiguous. Fields that `Connection` names stay, because not all
/// proxies remove them. Those received over HTTP/2 are prepared [as such](from_http2) first.
pub fn from_described(headers: &mut HeaderMap) {
    for name in named(headers, is_hop_by_hop) {
        headers.remove(name);
    }
    for name in named(headers, is_misread) {
        let other = read_as(&name);
        if let Entry::Occupied(field) = headers.entry(name) {
            let mut lines: Vec<_> = field.remove_entry_mult().1.collect();
            if other == AUTHORIZATION {
                // Symfony encodes a user and a password, so this alone isn't the key.
                lines.push(HeaderValue::from_static(""));
            }
            for line in lines {
                headers.append(other.clone(), line);
            }
        }
    }
}

/// Returns true if servers may take a field for another one.
fn is_misread(name: &str) -> bool {
    head::is_ambiguous(name)
        || name.starts_with("php-auth-")
        || OTHER_NAMES.iter().any(|(other, _)| name == *other)
}

/// Returns the name of the field that servers may take a field for.
fn read_as(name: &HeaderName) -> HeaderName {
    let plain = |byte: u8| if byte.is_ascii_alphanumeric() { byte } else { b'-' };
    let plain: Vec<u8> = name.as_str().bytes().map(plain).collect();
    if plain.starts_with(b"php-auth-") {
        return AUTHORIZATION;
    }
    if let Some((_, read)) = OTHER_NAMES.iter().find(|(other, _)| plain == other.as_bytes()) {
        return read.clone();
    }
    let end = plain.iter().rposition(|byte| *byte != b'-').map_or(plain.len(), |last| last + 1);
    HeaderName::from_bytes(&plain[..end]).expect("letters, digits and hyphens are a name")
}

/// Removes the trailers of a request that aren't forwarded, and all of them if one [has FF](has_ff). A server may merge trailers with
/// the header, and must not find fields there that the gateway has read, checked or set (RFC 9110, section 6.5.1).
pub fn trailers_from_client(trailers: &mut HeaderMap) {
    if trailers.values().any(has_ff) {
        return trailers.clear();
    }
    from_client(trailers, &[]);
    for name in named(trailers, is_of_proxy) {
        trailers.remove(name);
    }
    for name in [ACCEPT_ENCODING, COOKIE, EXPECT, VIA, X_REQUEST_ID, TRACEPARENT, TRACESTATE] {
        trailers.remove(name);
    }
    remove_head_only(trailers);
}

/// Returns true if a value has the byte FF, which UTF-8 doesn't have. POCO takes it for the end of what it reads, and so the rest of
/// the field for another request.
pub(crate) fn has_ff(value: &HeaderValue) -> bool {
    // Mostly, the first look is enough, which is vectorized.
    !value.as_bytes().is_ascii() && value.as_bytes().contains(&0xFF)
}

/// Returns true if a request has [binary metadata](is_metadata) that isn't base64. gRPC for Java ends its
/// HTTP/2 connection for that, with the calls of others, whatever the content is.
pub(crate) fn has_invalid_metadata(headers: &HeaderMap) -> bool {
    let is_base64 = |value: &[u8]| {
        let digits = value.len() - value.iter().rev().take_while(|byte| **byte == b'=').count();
        let is_digit = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'/');
        digits % 4 != 1 && value[..digits].iter().all(is_digit)
    };
    let is_valid = |value: &HeaderValue| {
        let mut values = value.as_bytes().split(|byte| *byte == b',');
        values.all(|value| is_base64(value.trim_ascii()))
    };
    headers.iter().any(|(name, value)| is_metadata(name) && !is_valid(value))
}

/// Returns true for the name of binary metadata of gRPC.
pub(super) fn is_metadata(name: &HeaderName) -> bool {
    name.as_str().ends_with("-bin")
}

/// Removes the trailers of a response that belong to a connection or to the head only.
pub fn trailers_towards_client(trailers: &mut HeaderMap) {
    remove_hop_by_hop(trailers, |name| name == SET_COOKIE, &[]);
    remove_head_only(trailers);
}

/// Removes trailers that concern framing, routing or processing (RFC 9110, section 6.5.1).
fn remove_head_only(trailers: &mut HeaderMap) {
    const HEAD_ONLY: [HeaderName; 10] = [
        AUTHORIZATION,
        CACHE_CONTROL,
        CONTENT_LENGTH,
        CONTENT_ENCODING,
        CONTENT_RANGE,
        CONTENT_TYPE,
        HOST,
        MAX_FORWARDS,
        TE,
        TRAILER,
    ];
    for name in HEAD_ONLY {
        trailers.remove(name);
    }
}

/// Returns true if a field is for proxies: it describes the client or the connection, or the target before a proxy changed it. Some servers
/// take that for the target (Yii, Pyramid).
fn is_of_proxy(name: &str) -> bool {
    name.starts_with("x-forwarded-")
        || matches!(
            name,
            "forwarded"
                | "x-real-ip"
                | "x-original-url"
                | "x-original-uri"
                | "x-original-host"
                | "x-rewrite-url"
                | "x-envoy-original-path"
                | "x-script-name"
                | "x-vhm-host"
                | "x-vhm-root"
        )
}

/// Puts a header received over HTTP/2 into the form of HTTP/1.1: values without spaces around them, one Cookie field and one
/// Content-Length.
pub fn from_http2(headers: &mut HeaderMap) {
    trim_values(headers);
    join_cookie(headers);
    unify_length(headers);
}

/// Removes spaces and tabs around values, as parsers of HTTP/1.1 do, so that no limit counts what no server sees. RFC 9113, section
/// 8.2.1, calls them malformed, but h2 and gRPC pass them on.
fn trim_values(headers: &mut HeaderMap) {
    for value in headers.values_mut() {
        let trimmed = value.as_bytes().trim_ascii();
        if trimmed.len() < value.len() {
            let mut trimmed = HeaderValue::from_bytes(trimmed).expect("a part of a value is valid");
            trimmed.set_sensitive(value.is_sensitive());
            *value = trimmed;
        }
    }
}

/// Joins a cookie that HTTP/2 has split into several fields (RFC 9113, section 8.2.3), and those of HTTP/1.1, which gunicorn would join
/// with a comma. Empty ones would leave a space at an end, for which some servers end an HTTP/2 connection.
pub fn join_cookie(headers: &mut HeaderMap) {
    // Most heads have no name twice, which is cheaper to see.
    if headers.len() > headers.keys_len() && headers.get_all(COOKIE).iter().nth(1).is_some() {
        let parts = headers.get_all(COOKIE).into_iter().map(HeaderValue::as_bytes);
        let parts: Vec<&[u8]> = parts.filter(|part| !part.is_empty()).collect();
        let cookie = HeaderValue::from_bytes(&parts.join(&b"; "[..])).expect("each was a value");
        headers.insert(COOKIE, cookie);
    }
}

/// Removes the hop-by-hop fields, the fields that `Connection` names, and those that `is_unwanted` selects.
/// Fields about the client, and those in `kept`, stay even if `Connection` names them: a proxy in front that forwards `Connection`,
/// such as HAProxy, would otherwise let the client remove them. TE also stays, because it must be named
/// there; its `trailers` is forwarded (RFC 9110, section 10.1.4).
fn remove_hop_by_hop(headers: &mut HeaderMap, is_unwanted: impl Fn(&str) -> bool, kept: &[HeaderName]) {
    let mut removed = named(headers, |name| is_hop_by_hop(name) || is_unwanted(name));
    if removed.contains(&CONNECTION) {
        // Usually Connection names only fields that are removed anyway.
        let lines = headers.get_all(CONNECTION).into_iter().filter(|line| *line != "keep-alive");
        let names = lines.flat_map(|line| line.as_bytes().split(|byte| *byte == b','));
        let names = names.filter_map(|name| HeaderName::from_bytes(name.trim_ascii()).ok());
        let stays = |name: &HeaderName| *name == TE || is_of_proxy(name.as_str()) || kept.contains(name);
        removed.extend(names.filter(|name| !stays(name)));
    }
    for name in removed {
        headers.remove(name);
    }
}

/// Returns the names that a condition selects. One look at each name is cheaper than looking up fields that
/// are rarely there.
fn named(headers: &HeaderMap, is_selected: impl Fn(&str) -> bool) -> SmallVec<[HeaderName; 4]> {
    headers.keys().filter(|name| is_selected(name.as_str())).cloned().collect()
}

fn is_hop_by_hop(name: &str) -> bool {
    matches!(
        name,
        "connection"
            | "keep-alive"
            | "proxy-connection"
            | "proxy-authenticate"
            | "proxy-authorization"
            | "transfer-encoding"
            | "upgrade"
    )
}

/// Prepares the header of a request with this id for the upstream. Hop-by-hop fields must be removed already.
pub fn towards_upstream(headers: &mut HeaderMap, client: &Client, version: Version, id: HeaderValue) {
    // Growing the map rehashes it, so room for all fields below is reserved at once.
    headers.reserve(FIELDS_SET);
    let is_claim = |name: &str| !client.peer_is_trusted && is_of_proxy(name);
    // The gateway itself answers Expect, when the body is first read.
    for name in named(headers, |name| matches!(name, "te" | "expect") || is_claim(name)) {
        if name != TE || !takes_trailers(headers) {
            headers.remove(name);
        }
    }
    let via = match version {
        Version::HTTP_2 => "2.0 tollgate",
        Version::HTTP_10 => "1.0 tollgate",
        _ => "1.1 tollgate",
    };
    append(headers, VIA, HeaderValue::from_static(via));
    append(headers, X_FORWARDED_FOR, value(text::address(client.peer)));
    headers.entry(X_FORWARDED_PROTO).or_insert(HeaderValue::from_static(client.scheme));
    if let Some(host) = headers.get(HOST).cloned() {
        headers.entry(X_FORWARDED_HOST).or_insert(host);
    }
    headers.insert(X_REQUEST_ID, id);
}

/// Appends a member to a field's list, and joins the list in one line.
fn append(headers: &mut HeaderMap, name: HeaderName, member: HeaderValue) {
    match headers.entry(name) {
        Entry::Vacant(none) => {
            none.insert(member);
        }
        Entry::Occupied(mut list) => {
            let mut text = joined(list.iter());
            text += if text.is_empty() { "" } else { ", " };
            text += member.to_str().unwrap_or_default();
            list.insert(value(text));
        }
    }
}

/// Returns the id of a request, if it is safe to log.
pub fn request_id(headers: &HeaderMap) -> Option<&HeaderValue> {
    let mut lines = headers.get_all(X_REQUEST_ID).into_iter();
    let (Some(id), None) = (lines.next(), lines.next()) else { return None };
    let is_plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"-._~:/+=@".contains(byte);
    let is_safe = (1..=REQUEST_ID_MOST).contains(&id.len()) && id.as_bytes().iter().all(is_plain);
    is_safe.then_some(id)
}

/// Returns an id of 128 random bits.
pub fn new_request_id() -> HeaderValue {
    let id = text::hex::<32>(fastrand::u128(..).to_be_bytes());
    let mut id = HeaderValue::from_bytes(&id).expect("digits");
    // HPACK would put it into its table, in the place of fields that come again (RFC 7541, section 7.1.3).
    id.set_sensitive(true);
    id
}

/// Prepares the header of a response for the client.
pub fn towards_client(headers: &mut HeaderMap) {
    let (mut is_coded, mut has_length) = (false, false);
    for name in headers.keys() {
        is_coded |= *name == TRANSFER_ENCODING;
        has_length |= *name == CONTENT_LENGTH;
    }
    if has_length && is_coded {
        // Transfer-Encoding takes precedence (RFC 9112, section 6.3), and the body will be framed again.
        headers.remove(CONTENT_LENGTH);
    } else if has_length {
        unify_length(headers);
    }
    remove_hop_by_hop(headers, |_| false, &[]);
}

/// Reduces Content-Length to one line, or removes it if it is invalid. If the body depended on it, the
/// message was rejected already.
fn unify_length(headers: &mut HeaderMap) {
    if head::unify_length(headers).is_err() {
        headers.remove(CONTENT_LENGTH);
    }
}

/// Keeps only `trailers` in TE. Returns false if the client doesn't accept trailers.
fn takes_trailers(headers: &mut HeaderMap) -> bool {
    let trailers = head::has_member(headers, TE, "trailers");
    if trailers {
        headers.insert(TE, HeaderValue::from_static("trailers"));
    }
    trailers
}

/// Joins the lines of a field to one list. Values that aren't text are left out.
fn joined<'h>(lines: impl IntoIterator<Item = &'h HeaderValue>) -> String {
    let mut list = String::new();
    for line in lines.into_iter().filter_map(|line| line.to_str().ok()) {
        let separator = if list.is_empty() { "" } else { ", " };
        write!(list, "{separator}{line}").expect("writing to a string succeeds");
    }
    list
}

fn value(text: String) -> HeaderValue {
    HeaderValue::from_maybe_shared(Bytes::from(text)).expect("built from valid values")
}

#[cfg(test)]
mod tests;
