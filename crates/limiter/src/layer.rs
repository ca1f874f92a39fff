//! Rate limits for an axum application, or any HTTP service based on tower, without the gateway.
//!
//! The [`RateLimitLayer`] does what the gateway does between routing and forwarding: it asks the [`Limiter`]
//! and rejects requests in the same way. It reads no configuration file. Its limits are values, and functions
//! of the request identify the callers.

pub mod by;

use std::{
    error::Error,
    fmt, mem,
    net::SocketAddr,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use axum::{body::Body, extract::ConnectInfo};
use bytes::Bytes;
use futures_util::future::{BoxFuture, FutureExt};
use http::{HeaderMap, Request, Response, request, response::Parts as ResponseParts};
use http_body::{Body as HttpBody, Frame, SizeHint};
use tokio::time::Instant;
use tower::{Layer, Service};

use crate::{Admission, Ask, Asks, Key, Limit, Limiter, RatelimitHeaders, Refusal, fields, grpc, response};

/// A function that returns the question of a request to a limit, if the limit counts it.
type Asking = dyn Fn(&request::Parts) -> Option<Ask> + Send + Sync;
/// A function that records the final cost of an admitted request.
type Settle = dyn Fn(&ResponseParts, &Admission) + Send + Sync;

/// A tower layer that admits requests through limits before they reach the service.
///
/// 1. All limits are asked in one step. If one of them rejects a request, none is charged.
/// 2. A rejected request doesn't reach the service. The response is 429 with `Retry-After` and the limits in
///    `application/problem+json`, or RESOURCE_EXHAUSTED for gRPC. It is 503 if the store is down and the limit
///    [fails closed](Limit::on_failure). A limit can also [hold](Limit::wait_at_most) a request until there is room.
/// 3. The response to an admitted request has the fields `RateLimit-Policy` and `RateLimit`. Its permits of limits
///    on requests in flight are released when the body has ended or the client has disconnected.
/// 4. Errors of the service are passed on.
///
/// # Examples
///
/// ```
/// use axum::{Router, routing::get};
/// use tollgate_limiter::{Ask, Limit, Limiter, Quota, RateLimitLayer, Rate, layer::by};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let limiter = Limiter::connect("memory:")?;
/// let limits = RateLimitLayer::new(&limiter)
///     .limit(Limit::new("per-client", "100/10s".parse::<Rate>()?), by::address)
///     .limit(Limit::new("per-key", "1000/min".parse::<Rate>()?), by::header("x-api-key"));
///
/// let app: Router = Router::new().route("/", get(async || "hello")).layer(limits);
/// # Ok(())
/// # }
/// ```
///
/// The key and the cost can be any function of the request:
///
/// ```
/// # use std::sync::Arc;
/// # use tollgate_limiter::{Ask, Key, Limit, Limiter, Rate, RateLimitLayer};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let limiter = Limiter::connect("memory:")?;
/// let exports = Arc::new(Limit::new("exports", "1000/h".parse::<Rate>()?));
/// let layer = RateLimitLayer::new(&limiter).ask(move |request| {
///     let tenant = request.headers.get("x-tenant")?.to_str().ok()?;
///     let cost = if request.uri.path().ends_with("/all") { 100 } else { 1 };
///     Some(Ask::new(&exports, Key::caller(tenant)).cost(cost))
/// });
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct RateLimitLayer {
    limiter: Arc<Limiter>,
    limits: Vec<Arc<Asking>>,
    settle: Option<Arc<Settle>>,
    headers: RatelimitHeaders,
}

impl RateLimitLayer {
    /// Creates a layer without limits. Layers of one limiter share the counts of limits with the same name,
    /// and so do limiters on one Redis.
    ///
    /// # Examples
    ///
    /// ```
    /// # use tollgate_limiter::{Limiter, RateLimitLayer};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let limiter = Limiter::connect("memory:")?;
    /// let layer = RateLimitLayer::new(&limiter);
    /// # Ok(())
    /// # }
    /// ```
    pub fn new(limiter: &Arc<Limiter>) -> Self {
        let headers = RatelimitHeaders::Draft11;
        Self { limiter: limiter.clone(), limits: Vec::new(), settle: None, headers }
    }

    /// Adds a limit and the function that returns a request's key. A request takes one permit; without a key
    /// it isn't counted. The module [`by`] has functions for common keys.
    ///
    /// # Examples
    ///
    /// ```
    /// # use tollgate_limiter::{Key, Limit, Limiter, Rate, RateLimitLayer};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let limiter = Limiter::connect("memory:")?;
    /// let tenants = Limit::new("tenants", "100/s".parse::<Rate>()?);
    /// let layer = RateLimitLayer::new(&limiter)
    ///     .limit(tenants, |request| request.headers.get("x-tenant")?.to_str().ok().map(Key::caller));
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn limit(
        self,
        limit: impl Into<Arc<Limit>>,
        key: impl Fn(&request::Parts) -> Option<Key> + Send + Sync + 'static,
    ) -> Self {
        let limit = limit.into();
        self.ask(move |request| Some(Ask::new(&limit, key(request)?)))
    }

    /// Adds a function that returns a request's question to a limit, if any. Each function must ask about
    /// another limit.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use tollgate_limiter::{Ask, Key, Limit, Limiter, Rate, RateLimitLayer};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let limiter = Limiter::connect("memory:")?;
    /// # let logins = Arc::new(Limit::new("logins", "5/min".parse::<Rate>()?));
    /// let layer = RateLimitLayer::new(&limiter).ask(move |request| {
    ///     (request.uri.path() == "/login").then(|| Ask::new(&logins, Key::global()).cost(2))
    /// });
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn ask(mut self, ask: impl Fn(&request::Parts) -> Option<Ask> + Send + Sync + 'static) -> Self {
        self.limits.push(Arc::new(ask));
        self
    }

    /// Sets a function that [records](Admission::record) the final cost of a request when its response
    /// arrives. It applies to limits that were asked to [settle later](Ask::settled_later).
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use tollgate_limiter::{Ask, Key, Limit, Limiter, Rate, RateLimitLayer};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let limiter = Limiter::connect("memory:")?;
    /// # let logins = Arc::new(Limit::new("logins", "5/min".parse::<Rate>()?));
    /// // A login that failed costs one more.
    /// let layer = RateLimitLayer::new(&limiter)
    ///     .ask(move |_| Some(Ask::new(&logins, Key::global()).settled_later(1)))
    ///     .settle(|response, admission| admission.record("logins", u32::from(response.status == 401)));
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn settle(self, settle: impl Fn(&ResponseParts, &Admission) + Send + Sync + 'static) -> Self {
        Self { settle: Some(Arc::new(settle)), ..self }
    }

    /// Sets the header fields that tell clients about their limits. By default they are those of
    /// draft-ietf-httpapi-ratelimit-headers-11.
    ///
    /// # Examples
    ///
    /// ```
    /// # use tollgate_limiter::{Limiter, RateLimitLayer, RatelimitHeaders};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let limiter = Limiter::connect("memory:")?;
    /// let layer = RateLimitLayer::new(&limiter).headers(RatelimitHeaders::XRatelimit);
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn headers(self, headers: RatelimitHeaders) -> Self {
        Self { headers, ..self }
    }

    async fn admit(&self, request: &request::Parts) -> Result<Admission, Refusal> {
        let asks = self.limits.iter().filter_map(|ask| ask(request));
        let asks: Asks = match request.extensions.get::<ConnectInfo<SocketAddr>>() {
            Some(ConnectInfo(client)) => asks.map(|ask| ask.or_from_client(client.ip())).collect(),
            None => asks.collect(),
        };
        self.limiter.acquire_within_waits(&asks, Instant::now()).await
    }

    fn refuse(&self, refusal: &Refusal, request: &HeaderMap) -> Response<Body> {
        response::respond(refusal, grpc::is_call(request), self.headers).map(Body::from)
    }

    /// Adds the rate limit header fields. The body keeps the permits of limits on requests in flight until it
    /// ends.
    fn annotate(&self, response: Response<Body>, admission: Admission) -> Response<Body> {
        let (mut parts, body) = response.into_parts();
        if let Some(settle) = &self.settle {
            settle(&parts, &admission);
        }
        fields::write(&mut parts.headers, admission.standings(), self.headers);
        let body = match admission.has_leases() {
            true => Body::new(HoldingBody { body, _admission: admission }),
            false => body,
        };
        Response::from_parts(parts, body)
    }
}

impl fmt::Debug for RateLimitLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RateLimitLayer").field("limits", &self.limits.len()).finish_non_exhaustive()
    }
}

impl<S> Layer<S> for RateLimitLayer {
    type Service = RateLimit<S>;

    fn layer(&self, inner: S) -> RateLimit<S> {
        RateLimit { inner, layer: Arc::new(self.clone()) }
    }
}

/// A service behind the limits of a [`RateLimitLayer`].
///
/// # Examples
///
/// ```
/// # use tollgate_limiter::{Limiter, RateLimitLayer, layer::RateLimit};
/// # use axum::{Router, routing::get};
/// # use tower::Layer;
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let limiter = Limiter::connect("memory:")?;
/// let app: Router = Router::new().route("/", get(async || "hello"));
/// let limited: RateLimit<Router> = RateLimitLayer::new(&limiter).layer(app);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct RateLimit<S> {
    inner: S,
    layer: Arc<RateLimitLayer>,
}

impl<S, RequestBody, ResponseBody> Service<Request<RequestBody>> for RateLimit<S>
where
    S: Service<Request<RequestBody>, Response = Response<ResponseBody>> + Clone + Send + 'static,
    S::Future: Send,
    RequestBody: Send + 'static,
    ResponseBody: HttpBody<Data = Bytes> + Send + 'static,
    ResponseBody::Error: Into<Box<dyn Error + Send + Sync>>,
{
    type Response = Response<Body>;
    type Error = S::Error;
    type Future = BoxFuture<'static, Result<Self::Response, Self::Error>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<RequestBody>) -> Self::Future {
        // The service that is ready handles the request. Its clone may not be ready.
        let next = self.inner.clone();
        let mut inner = mem::replace(&mut self.inner, next);
        let layer = self.layer.clone();
        async move {
            let (parts, body) = request.into_parts();
            let admission = match layer.admit(&parts).await {
                Ok(admission) => admission,
                Err(refusal) => return Ok(layer.refuse(&refusal, &parts.headers)),
            };
            let response = inner.call(Request::from_parts(parts, body)).await?;
            Ok(layer.annotate(response.map(Body::new), admission))
        }
        .boxed()
    }
}

/// The body of a response whose request holds permits until it ends.
struct HoldingBody<B> {
    body: B,
    _admission: Admission,
}

impl<B: HttpBody<Data = Bytes> + Unpin> HttpBody for HoldingBody<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
