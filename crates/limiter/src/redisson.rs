//! The names of the layout that Redisson's `RRateLimiter` has in Redis: docs/redisson.md.

use std::{fmt, str::FromStr};
#[cfg(feature = "redis")]
use std::{fmt::Write, sync::LazyLock};

use percent_encoding::percent_decode_str;

/// The place of a key's value in a name.
const PLACE: &str = "{key}";
/// The mark before an address that is counted because a request lacks the key. No value of a key has a control character.
const ADDRESS_MARK: &str = "ip\t";
/// The longest value of a key, in bytes.
const LONGEST_VALUE: usize = 256;

/// The names by which Java knows the limiters of a limit: `logins:{key}`.
///
/// # Examples
///
/// ```
/// use tollgate_limiter::RedissonName;
///
/// let name: RedissonName = "logins:{key}".parse()?;
/// assert_eq!(name.of("alice"), "logins:alice");
/// # Ok::<(), String>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RedissonName {
    before: String,
    /// The text behind the key's value. `None` if the name has no key.
    behind: Option<String>,
    /// True if names of addresses have a mark.
    marks_addresses: bool,
}

impl RedissonName {
    /// Returns the name for a limit that counts by something else than addresses. Where it counts an address instead, that is another
    /// limiter than the one of an equal value.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use tollgate_limiter::{Ask, Key, Limit, Limiter, Rate, RedissonName, RedissonType};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let limiter = Limiter::connect("memory:")?;
    /// let name = "logins:{key}".parse::<RedissonName>()?.with_addresses_apart();
    /// let limit = Limit::new("logins", "1/s".parse::<Rate>()?);
    /// let logins = Arc::new(limit.shared_with_redisson(name, RedissonType::Overall));
    /// limiter.try_acquire(Ask::new(&logins, "192.0.2.7")).await?;
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn with_addresses_apart(self) -> Self {
        Self { marks_addresses: true, ..self }
    }

    /// Returns the name of the limiter for a value of the key.
    ///
    /// # Examples
    ///
    /// ```
    /// # use tollgate_limiter::RedissonName;
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// assert_eq!("logins:{key}".parse::<RedissonName>()?.of("alice"), "logins:alice");
    /// # Ok(())
    /// # }
    /// ```
    pub fn of(&self, value: &str) -> String {
        match &self.behind {
            Some(behind) => [&self.before, value, behind].concat(),
            None => self.before.clone(),
        }
    }

    /// Returns true if each value of the key has a limiter of its own.
    ///
    /// # Examples
    ///
    /// ```
    /// # use tollgate_limiter::RedissonName;
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// assert!("logins:{key}".parse::<RedissonName>()?.has_key() && !"orders".parse::<RedissonName>()?.has_key());
    /// # Ok(())
    /// # }
    /// ```
    pub fn has_key(&self) -> bool {
        self.behind.is_some()
    }

    /// Returns a pattern of Redis that all names match.
    #[cfg(feature = "redis")]
    pub(crate) fn pattern(&self) -> String {
        let is_special = |character: &char| matches!(character, '*' | '?' | '[' | ']' | '\\' | '^');
        let escaped = |text: &str| {
            let escape =
                |character: char| is_special(&character).then_some('\\').into_iter().chain([character]);
            text.chars().flat_map(escape).collect::<String>()
        };
        let behind = self.behind.as_ref().map(|behind| format!("*{}", escaped(behind)));
        escaped(&self.before) + &behind.unwrap_or_default()
    }

    /// Returns the name of the limiter for the text of a key.
    pub(crate) fn of_key(&self, text: &str) -> String {
        let (kind, value) = text.split_once('=').unwrap_or(("", text));
        let value = percent_decode_str(value).decode_utf8_lossy();
        match self.marks_addresses && kind == "ip" {
            true => self.of(&[ADDRESS_MARK, &value].concat()),
            false => self.of(&value),
        }
    }

    /// Returns true if a limiter can have this value in its name. Braces would choose another slot of a Cluster.
    ///
    /// # Examples
    ///
    /// ```
    /// use tollgate_limiter::RedissonName;
    ///
    /// assert!(RedissonName::accepts(b"alice") && !RedissonName::accepts(b"{alice}"));
    /// ```
    pub fn accepts(value: &[u8]) -> bool {
        let is_plain = |text: &str| !text.chars().any(|c| c.is_control() || c == '{' || c == '}');
        (1..=LONGEST_VALUE).contains(&value.len()) && str::from_utf8(value).is_ok_and(is_plain)
    }
}

impl FromStr for RedissonName {
    type Err = String;

    /// The error is a message and, on a line of its own, the remedy.
    fn from_str(text: &str) -> Result<Self, String> {
        let (before, behind) = match text.split_once(PLACE) {
            Some((before, behind)) => (before, Some(behind.to_owned())),
            None => (text, None),
        };
        if text.is_empty() || behind.as_ref().is_some_and(|behind| behind.contains(PLACE)) {
            return Err(format!(
                "`{text}` is not a name with one {PLACE}\nwrite the name that Java gives to getRateLimiter: \"logins:{PLACE}\""
            ));
        }
        let name = Self { before: before.to_owned(), behind, marks_addresses: false };
        // Redisson puts the name's keys on one slot only if the name has a whole tag, or no brace at all.
        let sample = name.of("k");
        let tag = sample.split_once('{').map(|(_, rest)| rest.split_once('}'));
        if matches!(tag, Some(None | Some(("", _)))) || (tag.is_none() && sample.contains('}')) {
            return Err(format!(
                "the braces of `{text}` are not a hash tag\nwrite none beside {PLACE}, or a whole tag: \"{{logins}}:{PLACE}\""
            ));
        }
        Ok(name)
    }
}

impl fmt::Display for RedissonName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.before)?;
        self.behind.iter().try_for_each(|behind| write!(f, "{PLACE}{behind}"))
    }
}

/// The id by which Redis knows this process in limiters of the type `PER_CLIENT`.
#[cfg(feature = "redis")]
pub(crate) static CLIENT: LazyLock<String> = LazyLock::new(|| {
    let mut id = String::with_capacity(36);
    for (at, byte) in fastrand::u128(..).to_be_bytes().into_iter().enumerate() {
        if matches!(at, 4 | 6 | 8 | 10) {
            id.push('-');
        }
        write!(id, "{byte:02x}").expect("writing to a string succeeds");
    }
    id
});

/// Returns the keys of a limiter beside the hash that has its name: the value and the permits, of all and of this
/// process.
#[cfg(feature = "redis")]
pub(crate) fn derived_keys(name: &[u8]) -> [Vec<u8>; 4] {
    let stem = if name.contains(&b'{') { name.to_vec() } else { [b"{", name, b"}"].concat() };
    let [value, permits] = [b":value".as_slice(), b":permits"].map(|suffix| [&stem[..], suffix].concat());
    let own = |key: &[u8]| [key, b":", CLIENT.as_bytes()].concat();
    [own(&value), value, own(&permits), permits]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_holds_the_value_as_it_is() {
        let name: RedissonName = "logins:{key}:web".parse().unwrap();
        assert_eq!(name.of_key("header:x-user=Alice%20B."), "logins:Alice B.:web");
        assert_eq!(name.to_string(), "logins:{key}:web");
        assert_eq!(
            "{logins}:{key}".parse::<RedissonName>().unwrap().of_key("ip=192.0.2.7"),
            "{logins}:192.0.2.7"
        );
        assert_eq!(name.with_addresses_apart().of_key("ip=192.0.2.7"), "logins:ip\t192.0.2.7:web");
        assert_eq!("orders".parse::<RedissonName>().unwrap().of("a"), "orders");
        assert_eq!("logins:{{key}}".parse::<RedissonName>().unwrap().of("a"), "logins:{a}");
    }

    #[test]
    fn a_name_that_would_lie_on_several_slots_is_rejected() {
        for text in ["", "{key}{key}", "{:{key}", "{}:{key}", "}:{key}", "{key}}"] {
            assert!(text.parse::<RedissonName>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_value_that_is_no_name_is_not_accepted() {
        for value in ["alice", "ü", &"x".repeat(256)] {
            assert!(RedissonName::accepts(value.as_bytes()), "{value}");
        }
        for value in [b"".as_slice(), b"a{b", b"}", b"a\nb", b"\xff", &[b'x'; 257]] {
            assert!(!RedissonName::accepts(value), "{value:?}");
        }
    }

    #[cfg(feature = "redis")]
    #[test]
    fn the_keys_of_a_limiter_are_those_of_java() {
        let text = |name: &str| derived_keys(name.as_bytes()).map(|key| String::from_utf8(key).unwrap());
        let client = &*CLIENT;
        assert_eq!(client.len(), 36);
        assert_eq!(
            text("logins"),
            [
                format!("{{logins}}:value:{client}"),
                "{logins}:value".to_owned(),
                format!("{{logins}}:permits:{client}"),
                "{logins}:permits".to_owned()
            ]
        );
        assert_eq!(text("{a}:b")[1], "{a}:b:value");
    }
}
