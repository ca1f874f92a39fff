//! The settings of a store.

use std::{str::FromStr, time::Duration};

#[cfg(feature = "redis")]
use super::redis::{tls::ClientTls, url::RedisUrl};

/// The settings of the store that holds the counts.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use tollgate_limiter::StoreSettings;
///
/// # fn main() -> Result<(), String> {
/// let store = StoreSettings::at("memory:")?;
/// let settings = StoreSettings { timeout: Duration::from_millis(20), key_prefix: "mine".to_owned(), ..store };
/// # Ok(())
/// # }
/// ```
#[derive(Debug, PartialEq)]
pub struct StoreSettings {
    /// The store's URL.
    pub url: StoreUrl,
    /// The TLS settings for Redis. `None` means the default ones, if the URL asks for TLS.
    #[cfg(feature = "redis")]
    pub tls: Option<ClientTls>,
    /// The deadline of a decision, from when the limits are asked to the answer.
    pub timeout: Duration,
    /// The number of processes that share the limits: while the store can't answer, each counts its part of a quota. With 0
    /// they are counted by signs of life that they give in Redis. Until Redis has answered twice, limits that would count in
    /// this process reject.
    pub instances: u32,
    /// True if a decision counts only once all replicas of the server have it.
    pub replicated: bool,
    /// The prefix of all keys in the store. Never empty.
    pub key_prefix: String,
    /// The memory limit for counts kept in this process, in bytes.
    pub max_memory: usize,
}

impl StoreSettings {
    /// Returns the settings for a store URL, with defaults for everything else.
    ///
    /// # Examples
    ///
    /// ```
    /// # use tollgate_limiter::StoreSettings;
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let settings = StoreSettings { key_prefix: "shop".to_owned(), ..StoreSettings::at("memory:")? };
    /// assert_eq!(settings.instances, 1);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The URL is invalid. The text is a message, without the URL's password, and a line that says how to fix
    /// it.
    pub fn at(url: &str) -> Result<Self, String> {
        Ok(Self { url: url.parse()?, ..Self::default() })
    }
}

/// The memory of this process, with a timeout of 50 ms, one process, the prefix `tollgate`, and 256 MiB.
impl Default for StoreSettings {
    fn default() -> Self {
        Self {
            url: StoreUrl::Memory,
            #[cfg(feature = "redis")]
            tls: None,
            timeout: Duration::from_millis(50),
            instances: 1,
            replicated: false,
            key_prefix: "tollgate".to_owned(),
            max_memory: 256 << 20,
        }
    }
}

/// The kind and place of a store.
///
/// # Examples
///
/// ```
/// # use tollgate_limiter::StoreUrl;
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// assert_eq!("memory:".parse::<StoreUrl>()?, StoreUrl::Memory);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, PartialEq, Eq)]
pub enum StoreUrl {
    /// The memory of this process.
    Memory,
    /// A Redis server, Cluster or Sentinel setup.
    #[cfg(feature = "redis")]
    Redis(Box<RedisUrl>),
}

impl StoreUrl {
    /// Returns true if two URLs lead to the same store, whatever the users and passwords for it.
    ///
    /// # Examples
    ///
    /// ```
    /// # use tollgate_limiter::StoreUrl;
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// assert!("memory:".parse::<StoreUrl>()?.is_same_place(&StoreUrl::Memory));
    /// # Ok(())
    /// # }
    /// ```
    pub fn is_same_place(&self, other: &Self) -> bool {
        match (self, other) {
            #[cfg(feature = "redis")]
            (Self::Redis(url), Self::Redis(other)) => url.is_same_place(other),
            _ => self == other,
        }
    }
}

impl FromStr for StoreUrl {
    type Err = String;

    /// Parses the URL. The error is a message and a line that says how to fix it. It quotes nothing of the URL,
    /// which may contain a password.
    fn from_str(text: &str) -> Result<Self, String> {
        if text == "memory:" {
            return Ok(Self::Memory);
        }
        #[cfg(feature = "redis")]
        return RedisUrl::parse(text).map(Box::new).map(Self::Redis);
        #[cfg(not(feature = "redis"))]
        Err("this is not a valid store URL\nuse \"memory:\", or build with the feature `redis`".to_owned())
    }
}
