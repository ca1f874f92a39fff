//! A request that may not pass, and when it may.

use std::{error::Error, fmt, time::Duration};

use crate::{
    algorithm::Algorithm,
    duration,
    standing::{Standing, Standings, tightest_of_each},
    store::StoreError,
};

/// A request that may not pass.
///
/// # Examples
///
/// ```
/// use std::{sync::Arc, time::Duration};
/// use tollgate_limiter::{Ask, Limit, Limiter, Rate, Refusal};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let limiter = Limiter::connect("memory:")?;
/// let logins = Arc::new(Limit::new("logins", "1/min".parse::<Rate>()?));
/// let ask = Ask::new(&logins, "alice");
///
/// limiter.try_acquire(&ask).await?;
/// match limiter.try_acquire(&ask).await {
///     Ok(_) => unreachable!("one a minute"),
///     Err(Refusal::Limited(limited)) => {
///         assert!(limited.violated().eq(["logins"]));
///         assert!(limited.retry_after() <= Some(Duration::from_secs(60)));
///     }
///     Err(other) => println!("{other}"),
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub enum Refusal {
    /// A limit has no room.
    Limited(Box<Limited>),
    /// The request lacks the key of a limit that refuses such requests.
    KeyMissing {
        /// The limit's name.
        limit: String,
        /// The parts of the key, as in the configuration: `header:x-api-key`.
        parts: String,
    },
    /// The request has a key that isn't one of those that a limit knows.
    KeyUnknown {
        /// The part of the key, as in the configuration: `header:x-api-key`.
        part: String,
    },
    /// A limit counts by a claim of the request's token, which can't be verified now.
    TokenUnverified,
    /// The request has two different values for one part of a limit's key.
    KeyAmbiguous {
        /// The part, as in the configuration: `header:x-api-key`.
        part: String,
    },
    /// The request doesn't say in a header what it costs, as one of its limits demands, but something else.
    CostInvalid {
        /// The header's name.
        header: String,
    },
    /// The store can't answer, and a limit says to refuse then.
    StoreUnavailable {
        /// The cause.
        cause: StoreError,
        /// The limits that say so.
        denied_by: Vec<Standing>,
    },
}

impl Refusal {
    /// Returns the time after which the request is admitted, if nobody else takes the room. `None` if it never is, or if
    /// that isn't known.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use tollgate_limiter::{Ask, Limit, Limiter, Rate};
    /// # use std::time::Duration;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let limiter = Limiter::connect("memory:")?;
    /// let logins = Arc::new(Limit::new("logins", "1/min".parse::<Rate>()?));
    /// let alice = Ask::new(&logins, "alice");
    /// limiter.try_acquire(&alice).await?;
    /// let refusal = limiter.try_acquire(&alice).await.unwrap_err();
    /// assert!(refusal.retry_after() <= Some(Duration::from_secs(60)));
    /// # Ok(())
    /// # }
    /// ```
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Limited(limited) => limited.retry_after(),
            _ => None,
        }
    }

    /// Returns the standings of the limits that decided.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use tollgate_limiter::{Ask, Limit, Limiter, Rate};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let limiter = Limiter::connect("memory:")?;
    /// # let logins = Arc::new(Limit::new("logins", "5/min".parse::<Rate>()?));
    /// let refusal = limiter.try_acquire(Ask::new(&logins, "alice").cost(6)).await.unwrap_err();
    /// assert_eq!(refusal.standings()[0].limit.name(), "logins");
    /// # Ok(())
    /// # }
    /// ```
    pub fn standings(&self) -> &[Standing] {
        match self {
            Self::Limited(limited) => limited.standings(),
            Self::StoreUnavailable { denied_by, .. } => denied_by,
            Self::KeyMissing { .. }
            | Self::KeyUnknown { .. }
            | Self::TokenUnverified
            | Self::KeyAmbiguous { .. }
            | Self::CostInvalid { .. } => &[],
        }
    }
}

/// Writes the message for the caller.
impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Limited(limited) => limited.fmt(f),
            Self::KeyMissing { limit, parts } => {
                write!(f, "the request lacks a part of the key of limit `{limit}`: {parts}")
            }
            Self::KeyUnknown { part } => write!(f, "the key in `{part}` is not known"),
            Self::TokenUnverified => f.write_str("the token can't be verified now"),
            Self::KeyAmbiguous { part } => {
                write!(
                    f,
                    "servers may read another value in `{part}`, a part of the request's key, or none: send it once, in its usual spelling"
                )
            }
            Self::CostInvalid { header } => {
                write!(f, "`{header}` must state the cost of the request: an integer from 1 to 2147483647")
            }
            Self::StoreUnavailable { .. } => f.write_str("the limits can't be checked now"),
        }
    }
}

impl Error for Refusal {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::StoreUnavailable { cause, .. } => Some(cause),
            _ => None,
        }
    }
}

/// The limits that refused, and the time until there is room.
///
/// # Examples
///
/// ```
/// # use std::sync::Arc;
/// # use tollgate_limiter::{Ask, Limit, Limiter, Rate, Refusal};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let limiter = Limiter::connect("memory:")?;
/// let logins = Arc::new(Limit::new("logins", "1/min".parse::<Rate>()?));
/// let Err(Refusal::Limited(limited)) = limiter.try_acquire(Ask::new(&logins, "alice").cost(2)).await else {
///     unreachable!("it costs too much")
/// };
/// assert!(limited.violated().eq(["logins"]) && limited.standings()[0].refuses());
/// // It costs more than the limit ever permits.
/// assert_eq!((limited.delay_us(), limited.retry_after()), (None, None));
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Limited {
    pub(crate) standings: Standings,
}

impl Limited {
    /// Returns the standings of the limits that were asked.
    pub fn standings(&self) -> &[Standing] {
        &self.standings
    }

    /// Returns the names of the limits that refused.
    pub fn violated(&self) -> impl Iterator<Item = &str> {
        tightest_of_each(&self.standings)
            .filter(|standing| standing.refuses())
            .map(|standing| standing.limit.name())
    }

    /// Returns the microseconds until the request fits, if nobody else takes the room; `None` if it never does.
    pub fn delay_us(&self) -> Option<u64> {
        let mut delays = self.refusing().map(|standing| standing.outcome.delay_us);
        delays.try_fold(0, |greatest, delay_us| Some(delay_us?.max(greatest)))
    }

    /// Returns the delay as a duration.
    pub fn retry_after(&self) -> Option<Duration> {
        self.delay_us().map(Duration::from_micros)
    }

    /// Returns true if the delay is a promise. Nobody knows when a request in flight ends.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use tollgate_limiter::{Ask, Limit, Limiter, Rate, Refusal};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let limiter = Limiter::connect("memory:")?;
    /// # let logins = Arc::new(Limit::new("logins", "5/min".parse::<Rate>()?));
    /// let refusal = limiter.try_acquire(Ask::new(&logins, "alice").cost(6)).await.unwrap_err();
    /// assert!(matches!(refusal, Refusal::Limited(limited) if limited.is_exact()));
    /// # Ok(())
    /// # }
    /// ```
    pub fn is_exact(&self) -> bool {
        self.refusing().all(|standing| standing.quota.algorithm != Algorithm::Concurrency)
    }

    /// Returns true if a limit is set to no permits at all.
    pub(crate) fn lets_nothing_pass(&self) -> bool {
        self.refusing().any(|standing| standing.quota.capacity() == 0)
    }

    pub(crate) fn refusing(&self) -> impl Iterator<Item = &Standing> {
        self.standings.iter().filter(|standing| standing.refuses())
    }
}

impl Limited {
    /// Writes the reason for the caller. It needs no escapes in JSON.
    pub(crate) fn write(&self, text: &mut String) {
        let has_several = self.standings.len() > 1 && self.violated().nth(1).is_some();
        text.push_str(if has_several { "limits " } else { "limit " });
        for (at, name) in self.violated().enumerate() {
            text.extend([if at == 0 { "`" } else { ", `" }, name, "`"]);
        }
        text.push_str(match self.delay_us() {
            Some(_) if !self.is_exact() => " exceeded: too many requests are in flight",
            Some(delay_us) => {
                text.push_str(" exceeded: retry in ");
                return duration::DurationText(delay_us.div_ceil(1_000) * 1_000).write(text);
            }
            None if self.lets_nothing_pass() => " exceeded: no requests are admitted at present",
            None => " exceeded: the request costs more than the limit ever allows",
        });
    }
}

impl fmt::Display for Limited {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = String::new();
        self.write(&mut text);
        f.write_str(&text)
    }
}
