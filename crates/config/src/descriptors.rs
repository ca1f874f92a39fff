//! The rules that give descriptors their limits.

use std::fmt;

use super::KeyPart;

/// A rule for descriptors: the first whose entries match a descriptor selects its limits.
#[derive(Debug, PartialEq, Eq)]
pub struct DescriptorRule {
    /// The domain.
    pub domain: String,
    /// The entries of a descriptor, in the order of their keys. A descriptor has all of them, and no others.
    pub entries: Vec<EntryRule>,
    /// The names of the limits, in the order of the file.
    pub limits: Vec<String>,
}

/// An entry that a rule asks for.
#[derive(Debug, PartialEq, Eq)]
pub struct EntryRule {
    /// The key.
    pub key: String,
    /// The values that match.
    pub value: ValuePattern,
    /// The part of a limit's key that the entry's value stands for, as in proxied requests.
    pub counts_as: Option<KeyPart>,
}

impl DescriptorRule {
    /// Returns true if this rule matches all descriptors that another matches. It may return false for some of such rules.
    pub(super) fn covers(&self, other: &Self) -> bool {
        let covers = |(entry, other): (&EntryRule, &EntryRule)| {
            entry.key == other.key && entry.value.covers(&other.value)
        };
        self.domain == other.domain
            && self.entries.len() == other.entries.len()
            && self.entries.iter().zip(&other.entries).all(covers)
    }

    /// Returns the index of the entry whose value is this part of a key.
    pub fn entry_of(&self, part: &KeyPart) -> Option<usize> {
        self.entries.iter().position(|entry| match part {
            KeyPart::Descriptor(key) => entry.key == *key,
            part => entry.counts_as.as_ref() == Some(part),
        })
    }
}

/// A pattern of values: text in which each `*` stands for any number of bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ValuePattern {
    /// The text before the first `*`, or all of it.
    start: String,
    /// The texts that follow a `*` each. Empty if there is no `*`.
    rest: Vec<String>,
}

impl ValuePattern {
    /// Reads a pattern. Any text is one.
    pub fn new(text: &str) -> Self {
        let mut pieces = text.split('*').map(str::to_owned);
        Self { start: pieces.next().unwrap_or_default(), rest: pieces.collect() }
    }

    /// Returns true if the pattern matches one value only.
    pub fn is_fixed(&self) -> bool {
        self.rest.is_empty()
    }

    fn covers(&self, other: &Self) -> bool {
        let is_any = self.start.is_empty() && self.rest.iter().all(String::is_empty) && !self.is_fixed();
        is_any || self == other || (other.is_fixed() && self.matches(other.start.as_bytes()))
    }

    /// Returns true if a value matches.
    pub fn matches(&self, value: &[u8]) -> bool {
        let Some(mut value) = value.strip_prefix(self.start.as_bytes()) else { return false };
        let Some((end, middle)) = self.rest.split_last() else { return value.is_empty() };
        for piece in middle {
            let Some(at) = find(value, piece.as_bytes()) else { return false };
            value = &value[at + piece.len()..];
        }
        value.ends_with(end.as_bytes())
    }
}

impl fmt::Display for ValuePattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.start)?;
        self.rest.iter().try_for_each(|piece| write!(f, "*{piece}"))
    }
}

/// Returns the first place of a piece in a value.
fn find(value: &[u8], piece: &[u8]) -> Option<usize> {
    if piece.is_empty() {
        return Some(0);
    }
    value.windows(piece.len()).position(|window| window == piece)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stars_match_any_bytes() {
        for (pattern, matching, others) in [
            ("", &[""][..], &["a"][..]),
            ("a", &["a"], &["", "aa", "b"]),
            ("*", &["", "a", "*", "a/b"], &[]),
            ("/v1/*", &["/v1/", "/v1/x"], &["/v1", "x/v1/"]),
            ("*.example.com", &[".example.com", "a.example.com"], &["example.com", "a.example.com."]),
            ("a*a", &["aa", "aba"], &["a", "ab"]),
            ("*a*b*", &["ab", "xaxbx", "aab"], &["ba", "a", "b"]),
            ("a**b", &["ab", "axb"], &["a", "b"]),
        ] {
            let read = ValuePattern::new(pattern);
            assert_eq!(read.to_string(), pattern);
            assert!(matching.iter().all(|value| read.matches(value.as_bytes())), "{pattern}: {matching:?}");
            assert!(!others.iter().any(|value| read.matches(value.as_bytes())), "{pattern}: {others:?}");
        }
        assert!(
            ValuePattern::new("\u{e4}*").matches(b"\xc3\xa4\xff") && ValuePattern::new("*").matches(b"\xff")
        );
    }
}
