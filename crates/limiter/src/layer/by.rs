//! Functions that return the key of a request, for [`RateLimitLayer::limit`](super::RateLimitLayer::limit).

use std::net::SocketAddr;

use axum::extract::ConnectInfo;
use http::{header::HeaderName, request::Parts};

use crate::Key;

/// Returns the address that a request came from.
///
/// It needs axum's `into_make_service_with_connect_info::<SocketAddr>()`; without it, all requests count
/// together. The first 64 bits of an IPv6 address are one client. Behind a proxy this is the proxy's address:
/// read the client's address from a header field that the proxy sets, and use [`Key::address`].
///
/// # Examples
///
/// ```
/// # use std::net::SocketAddr;
/// # use axum::extract::ConnectInfo;
/// # use http::Request;
/// use tollgate_limiter::{Key, layer::by};
///
/// let (mut request, ()) = Request::new(()).into_parts();
/// request.extensions.insert(ConnectInfo(SocketAddr::from(([192, 0, 2, 7], 50_000))));
/// assert_eq!(by::address(&request), Some(Key::address([192, 0, 2, 7].into())));
/// ```
pub fn address(request: &Parts) -> Option<Key> {
    let client = request.extensions.get::<ConnectInfo<SocketAddr>>();
    Some(client.map_or_else(Key::global, |ConnectInfo(client)| Key::address(client.ip())))
}

/// Returns a function for the value of a header field, hashed so that the store contains no credentials. Of
/// several values the first counts, as with `HeaderMap::get`. Requests without the field aren't counted.
///
/// # Examples
///
/// ```
/// # use http::Request;
/// use tollgate_limiter::{Key, layer::by};
///
/// let (request, ()) = Request::new(()).into_parts();
/// assert_eq!(by::header("x-api-key")(&request), None);
/// ```
///
/// # Panics
/// The name isn't a valid header name in lower case.
pub fn header(name: &'static str) -> impl Fn(&Parts) -> Option<Key> + Clone + Send + Sync + 'static {
    let name = HeaderName::from_static(name);
    move |request| request.headers.get(&name).map(|value| Key::header(&name, value))
}

/// Returns the same key for all requests.
///
/// # Examples
///
/// ```
/// # use http::Request;
/// use tollgate_limiter::{Key, layer::by};
///
/// let (request, ()) = Request::new(()).into_parts();
/// assert_eq!(by::global(&request), Some(Key::global()));
/// ```
pub fn global(_: &Parts) -> Option<Key> {
    Some(Key::global())
}
