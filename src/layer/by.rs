//! Whom requests are counted for, in the common cases: for [`RateLimitLayer::limit`](super::RateLimitLayer::limit).

use std::net::SocketAddr;

use axum::extract::ConnectInfo;
use hyper::{header::HeaderName, http::request::Parts};

use crate::limit::Key;

/// The address that a request came from, as axum's `into_make_service_with_connect_info::<SocketAddr>()` tells
/// it; the first 64 bits of an IPv6 address are one client. A server that isn't run with it has all its requests
/// counted together. Behind a proxy this is the proxy's address: read the client's from a header that the proxy
/// sets, into a [`Key::address`].
pub fn address(request: &Parts) -> Option<Key> {
    let client = request.extensions.get::<ConnectInfo<SocketAddr>>();
    Some(client.map_or_else(Key::global, |ConnectInfo(client)| Key::address(client.ip())))
}

/// The value of a header, which is hashed, so that no credential can be read in the store. Of several values it is
/// the first, the one that `HeaderMap::get` gives. Requests without the header aren't counted.
///
/// # Panics
/// If this is no name of a header, in lower case.
pub fn header(name: &'static str) -> impl Fn(&Parts) -> Option<Key> + Clone + Send + Sync + 'static {
    let name = HeaderName::from_static(name);
    move |request| request.headers.get(&name).map(|value| Key::header(&name, value))
}

/// Everybody together.
pub fn global(_: &Parts) -> Option<Key> {
    Some(Key::global())
}
