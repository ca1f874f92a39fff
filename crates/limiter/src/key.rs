//! Keys: the texts by which a limit tells its callers apart.
//!
//! A key is made of `<kind>=<value>`. The value is percent-encoded, or hashed if it is long or may be a secret. A hash
//! is marked by a `/`, which no encoded value contains.

pub mod credentials;

use std::{
    hash::{Hash, Hasher},
    net::IpAddr,
};

use http::header::{AUTHORIZATION, HeaderName, HeaderValue};
use ipnet::IpNet;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_encode, utf8_percent_encode};
use sha2::{Digest, Sha256};

use crate::text;

/// Longer values are hashed, so that a bucket's name stays short.
const LONGEST_VALUE: usize = 64;
/// Bytes of a value's SHA-256 that stand for it.
const HASH_BYTES: usize = 16;
/// Hexadecimal digits of a value's hash.
///
/// # Examples
///
/// ```
/// use tollgate_limiter::key;
///
/// let text = key::value_text(["header:", "x-api-key"], b"secret", false);
/// assert_eq!(text.rsplit('/').next().map(str::len), Some(key::HASH_DIGITS));
/// ```
pub const HASH_DIGITS: usize = 2 * HASH_BYTES;

const ENCODED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'.').remove(b'_').remove(b':').remove(b'-');

/// A caller as a limit counts it: the text that names its bucket.
///
/// # Examples
///
/// ```
/// use tollgate_limiter::Key;
///
/// assert_eq!(Key::from("Alice B."), Key::caller("Alice B."));
/// assert_eq!(Key::caller("Alice B.").as_str(), "caller=Alice%20B.");
/// assert_eq!(Key::address([192, 0, 2, 7].into()).as_str(), "ip=192.0.2.7");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Key {
    text: String,
    hash: u64,
}

impl Key {
    /// Returns the key of a caller with this name.
    ///
    /// # Examples
    ///
    /// ```
    /// use tollgate_limiter::Key;
    ///
    /// assert_eq!(Key::caller("alice").as_str(), "caller=alice");
    /// ```
    pub fn caller(name: &str) -> Self {
        Self::of_text(value_text(["caller", ""], name.as_bytes(), true))
    }

    /// Returns the key of a caller with a name that is never hashed, as limits need that are
    /// [shared with Redisson](crate::Limit::shared_with_redisson): their names hold the value as it is.
    ///
    /// # Examples
    ///
    /// ```
    /// use tollgate_limiter::Key;
    ///
    /// let long = "a".repeat(100);
    /// assert_eq!(Key::verbatim(&long).as_str(), format!("caller={long}"));
    /// assert!(Key::caller(&long).as_str().len() < 100);
    /// ```
    pub fn verbatim(name: &str) -> Self {
        Self::of_text(whole_value_text(["caller", ""], name.as_bytes()))
    }

    /// Returns the key of a client's address. The first 64 bits of an IPv6 address are one client.
    ///
    /// # Examples
    ///
    /// ```
    /// use tollgate_limiter::Key;
    ///
    /// let [one, other] = ["2001:db8::1", "2001:db8::2"].map(|text| text.parse().unwrap());
    /// assert_eq!(Key::address(one), Key::address(other));
    /// ```
    pub fn address(client: IpAddr) -> Self {
        Self::of_text(network_text(Prefixes { ipv4: 32, ipv6: 64 }.network(client.to_canonical())))
    }

    /// Returns the key of a header's value. It is hashed, as it may be a credential. In `Authorization`, the case of the scheme
    /// and the white space behind it make no difference.
    ///
    /// # Examples
    ///
    /// ```
    /// use http::header::{AUTHORIZATION, HeaderValue};
    /// use tollgate_limiter::Key;
    ///
    /// let [one, other] = ["Bearer secret", "bearer secret"].map(HeaderValue::from_static);
    /// assert_eq!(Key::header(&AUTHORIZATION, &one), Key::header(&AUTHORIZATION, &other));
    /// assert!(!Key::header(&AUTHORIZATION, &one).as_str().contains("secret"));
    /// ```
    pub fn header(name: &HeaderName, value: &HeaderValue) -> Self {
        let usual = match *name {
            AUTHORIZATION => credentials::usual(value.as_bytes()),
            _ => value.as_bytes().into(),
        };
        Self::of_text(value_text(["header:", name.as_str()], &usual, false))
    }

    /// Returns the key that all callers share.
    ///
    /// # Examples
    ///
    /// ```
    /// use tollgate_limiter::Key;
    ///
    /// assert_eq!(Key::global(), Key::global());
    /// ```
    pub fn global() -> Self {
        Self::of_text(value_text(["global", ""], b"", true))
    }

    /// Returns the key with this text.
    ///
    /// # Examples
    ///
    /// ```
    /// use tollgate_limiter::Key;
    ///
    /// assert_eq!(Key::of_text("caller=alice".to_owned()), Key::from("alice"));
    /// ```
    pub fn of_text(text: String) -> Self {
        let hash = text::hash(text.as_bytes());
        Self { text, hash }
    }

    /// Returns the text: letters, digits and punctuation that are safe in terminals and Redis keys.
    ///
    /// # Examples
    ///
    /// ```
    /// use tollgate_limiter::Key;
    ///
    /// assert_eq!(Key::from("alice").as_str(), "caller=alice");
    /// ```
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Returns the hash of the text, which differs between processes.
    ///
    /// # Examples
    ///
    /// ```
    /// use tollgate_limiter::Key;
    ///
    /// assert_eq!(Key::from("alice").text_hash(), Key::caller("alice").text_hash());
    /// ```
    pub fn text_hash(&self) -> u64 {
        self.hash
    }
}

impl Hash for Key {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.hash);
    }
}

impl From<String> for Key {
    fn from(caller: String) -> Self {
        Self::caller(&caller)
    }
}

impl From<&str> for Key {
    fn from(caller: &str) -> Self {
        Self::caller(caller)
    }
}

/// The prefix lengths by which addresses are one caller.
///
/// # Examples
///
/// ```
/// # use tollgate_limiter::Prefixes;
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let prefixes = Prefixes { ipv4: 32, ipv6: 64 };
/// assert_eq!(prefixes.network("2001:db8::17".parse()?).to_string(), "2001:db8::");
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prefixes {
    /// The prefix length of IPv4 addresses, 1 to 32.
    pub ipv4: u8,
    /// The prefix length of IPv6 addresses, 1 to 128.
    pub ipv6: u8,
}

impl Prefixes {
    /// Returns the network of an address: its prefix, followed by zeros.
    ///
    /// # Examples
    ///
    /// ```
    /// use tollgate_limiter::Prefixes;
    ///
    /// let prefixes = Prefixes { ipv4: 24, ipv6: 64 };
    /// assert_eq!(prefixes.network([192, 0, 2, 7].into()).to_string(), "192.0.2.0");
    /// ```
    pub fn network(self, address: IpAddr) -> IpAddr {
        let prefix = if address.is_ipv4() { self.ipv4 } else { self.ipv6 };
        IpNet::new(address, prefix).expect("a prefix within the address").trunc().addr()
    }
}

/// Returns the text of a value of this kind: its name, with a colon if another name follows, and that one.
///
/// # Examples
///
/// ```
/// use tollgate_limiter::key;
///
/// assert_eq!(key::value_text(["caller", ""], b"Alice B.", true), "caller=Alice%20B.");
/// assert!(key::value_text(["header:", "x-api-key"], b"secret", false).starts_with("header:x-api-key=sha256/"));
/// ```
pub fn value_text(kind: [&str; 2], value: &[u8], plain: bool) -> String {
    if plain && value.len() <= LONGEST_VALUE {
        return whole_value_text(kind, value);
    }
    let hash = text::hex::<HASH_DIGITS>(Sha256::digest(value));
    hashed_text(kind, str::from_utf8(&hash).expect("digits are ASCII"))
}

/// Returns the text of a value of this kind, however long it is.
///
/// # Examples
///
/// ```
/// use tollgate_limiter::key;
///
/// assert_eq!(key::whole_value_text(["query:", "q"], &[b'a'; 99]).len(), "query:q=".len() + 99);
/// ```
pub fn whole_value_text(kind: [&str; 2], value: &[u8]) -> String {
    let mut text = kind_text(kind);
    text.extend(percent_encode(value, ENCODED));
    text
}

/// Returns the text of a value of this kind that has this hash.
///
/// # Examples
///
/// ```
/// use tollgate_limiter::key;
///
/// assert_eq!(key::hashed_text(["header:", "x-api-key"], "2bb80d"), "header:x-api-key=sha256/2bb80d");
/// ```
pub fn hashed_text(kind: [&str; 2], hash: &str) -> String {
    let mut text = kind_text(kind);
    text.extend(["sha256/", hash]);
    text
}

/// Returns the text of a client's network, which needs no escapes.
///
/// # Examples
///
/// ```
/// use tollgate_limiter::key;
///
/// assert_eq!(key::network_text([192, 0, 2, 0].into()), "ip=192.0.2.0");
/// ```
pub fn network_text(network: IpAddr) -> String {
    let mut text = kind_text(["ip", ""]);
    text::write_address(&mut text, network);
    text
}

/// Returns the text of a value of this kind, up to the value.
///
/// # Examples
///
/// ```
/// use tollgate_limiter::key;
///
/// assert_eq!((key::kind_text(["ip", ""]), key::kind_text(["query:", "q"])), ("ip=".to_owned(), "query:q=".to_owned()));
/// ```
pub fn kind_text([kind, name]: [&str; 2]) -> String {
    let mut text = String::with_capacity(2 * LONGEST_VALUE);
    text.push_str(kind);
    if !name.is_empty() {
        text.extend(utf8_percent_encode(name, ENCODED));
    }
    text.push('=');
    text
}
