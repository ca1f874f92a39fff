//! Choices about limits: the failure policy, the scope, the header fields.

/// The failure policy: what to do with a request while the store is unavailable.
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
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// All gateways on the store.
    Shared,
    /// This process alone. It doesn't use the store for the limit.
    Instance,
}

/// The header fields that tell clients about their limits.
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
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Counted {
    /// The grants made before still count, so the new rate isn't exceeded.
    Kept,
    /// All permits of the new rate are free at once.
    Forgotten,
}
