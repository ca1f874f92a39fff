//! Choices about limits: the failure policy, the scope, the header fields.

/// The failure policy: what to do with a request while the store is unavailable.
///
/// # Examples
///
/// ```
/// # use tollgate_limiter::{Limit, OnFailure, Rate};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let strict = Limit::new("logins", "5/min".parse::<Rate>()?).on_failure(OnFailure::Deny);
/// let lenient = Limit::new("search", "50/min".parse::<Rate>()?).on_failure(OnFailure::Allow);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnFailure {
    /// Count in this process, against this gateway's share of the limit.
    Local,
    /// Allow the request.
    Allow,
    /// Reject the request with 503.
    Deny,
}

/// The gateways that count a limit together.
///
/// # Examples
///
/// ```
/// # use tollgate_limiter::{Limit, Limiter, Override, Rate, Scope, SetWhen};
/// # use std::time::Duration;
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let limiter = Limiter::connect("memory:")?;
/// let logins = Limit::new("logins", "5/min".parse::<Rate>()?);
/// // Each process counts alone for a while.
/// let own = Override { rate: "5/min".parse()?, scope: Some(Scope::Instance), lasts: Some(Duration::from_secs(60)) };
/// limiter.set_override(&logins, None, &own, SetWhen::Always).await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// All gateways on the store.
    Shared,
    /// This process alone. It doesn't use the store for the limit.
    Instance,
}

/// The header fields that tell clients about their limits.
///
/// # Examples
///
/// ```
/// # use std::sync::Arc;
/// # use http::HeaderMap;
/// # use tollgate_limiter::{Ask, Limit, Limiter, Rate, RatelimitHeaders, fields};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let limiter = Limiter::connect("memory:")?;
/// # let logins = Arc::new(Limit::new("logins", "5/min".parse::<Rate>()?));
/// let admission = limiter.try_acquire(Ask::new(&logins, "alice")).await?;
/// let mut headers = HeaderMap::new();
/// fields::write(&mut headers, admission.standings(), RatelimitHeaders::XRatelimit);
/// assert_eq!((&headers["x-ratelimit-limit"], &headers["x-ratelimit-remaining"]), (&"5".parse()?, &"4".parse()?));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RatelimitHeaders {
    /// `RateLimit` and `RateLimit-Policy` (draft-ietf-httpapi-ratelimit-headers-11).
    Draft11,
    /// `X-RateLimit-Limit`, `-Remaining` and `-Reset`.
    XRatelimit,
    /// Both forms.
    Both,
    /// No fields.
    Off,
}

/// The fate of what was counted when a rate changes.
///
/// # Examples
///
/// ```
/// # use std::sync::Arc;
/// # use tollgate_limiter::{Ask, Counted, Limit, Limiter, Rate};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let limiter = Limiter::connect("memory:")?;
/// let alice = Ask::new(&Arc::new(Limit::new("logins", "5/min".parse::<Rate>()?)), "alice");
/// limiter.try_acquire(alice.clone().cost(5)).await?;
/// limiter.set_rate(&alice, "8/min".parse()?, Counted::Kept).await?;
/// assert_eq!(limiter.peek(&alice).await?.remaining(), 3);
/// limiter.set_rate(&alice, "8/min".parse()?, Counted::Forgotten).await?;
/// assert_eq!(limiter.peek(&alice).await?.remaining(), 8);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Counted {
    /// The grants made before still count, so the new rate isn't exceeded.
    Kept,
    /// All permits of the new rate are free at once.
    Forgotten,
}
