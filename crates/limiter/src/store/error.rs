//! The reasons why a store gives no decision.

use std::fmt;

/// The reason why a store gave no decision. The failure policy of each limit then decides.
///
/// # Examples
///
/// ```
/// use tollgate_limiter::{Limiter, StoreError};
///
/// let error = Limiter::connect("not a URL").unwrap_err();
/// assert!(matches!(error, StoreError::Url(_)), "{error}");
/// ```
#[derive(Clone, Debug)]
pub enum StoreError {
    /// The URL is invalid: a message and a line that says how to fix it.
    Url(String),
    /// No answer within the deadline; the charge may or may not have been made.
    Timeout,
    /// The breaker is open: the store failed lately and hasn't answered a probe since.
    Open,
    /// More decisions wait than the bound allows.
    Overloaded,
    /// The in-process store is at its bound, and the bucket would have made it grow.
    Full,
    /// The number of overridden rates has reached its bound.
    OverridesFull,
    /// The limit or the store can't do this.
    Unsupported(&'static str),
    /// The server couldn't be reached, or the connection broke.
    #[cfg(feature = "redis")]
    Connection(fred::error::Error),
    /// The server answered with an error.
    #[cfg(feature = "redis")]
    Answer(fred::error::Error),
    /// The server's answer has another shape than the script's.
    Malformed,
}

impl StoreError {
    /// The names of the causes in metrics.
    ///
    /// # Examples
    ///
    /// ```
    /// use tollgate_limiter::StoreError;
    ///
    /// assert!(StoreError::KINDS.contains(&StoreError::Timeout.kind()));
    /// ```
    pub const KINDS: [&str; 8] =
        ["timeout", "open", "overloaded", "full", "connection", "answer", "malformed", "other"];

    /// Returns the name of its cause in metrics.
    ///
    /// # Examples
    ///
    /// ```
    /// use tollgate_limiter::StoreError;
    ///
    /// assert_eq!(StoreError::Timeout.kind(), "timeout");
    /// ```
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Timeout => "timeout",
            Self::Open => "open",
            Self::Overloaded => "overloaded",
            Self::Full => "full",
            #[cfg(feature = "redis")]
            Self::Connection(_) => "connection",
            #[cfg(feature = "redis")]
            Self::Answer(_) => "answer",
            Self::Malformed => "malformed",
            // No decision fails of these.
            Self::Url(_) | Self::OverridesFull | Self::Unsupported(_) => "other",
        }
    }
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Url(fault) => fault,
            Self::Timeout => "the store did not answer in time",
            Self::Open => "the store can't be reached or failed lately, and is being probed",
            Self::Overloaded => "too many decisions wait for the store",
            Self::Full => "the in-process store is full",
            Self::OverridesFull => "too many rates are set already",
            Self::Unsupported(reason) => reason,
            #[cfg(feature = "redis")]
            Self::Connection(_) => "the connection to the store failed",
            #[cfg(feature = "redis")]
            Self::Answer(_) => "the store answered with an error",
            Self::Malformed => "the store's answer is not the script's",
        })
    }
}

impl std::error::Error for StoreError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            #[cfg(feature = "redis")]
            Self::Connection(cause) | Self::Answer(cause) => Some(cause),
            _ => None,
        }
    }
}
