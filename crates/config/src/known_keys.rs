//! The known keys of a limit: a file with a hash per line, so that it holds no credential.

use std::{
    collections::{BTreeMap, HashSet},
    fmt,
};

use sha2::{Digest, Sha256};

/// The most keys in a file.
pub(super) const KEYS_MOST: usize = 100_000;
/// The bytes of a SHA-256 hash.
const HASH_BYTES: usize = 32;

/// The keys that a limit knows, by the hashes of their values. Its `Debug` output has only their number.
#[derive(PartialEq, Eq)]
pub struct KnownKeys {
    /// The place of the part of the key that must be one of them.
    pub part: usize,
    /// The names by the hashes. Empty for keys without a name.
    names: BTreeMap<[u8; HASH_BYTES], String>,
    /// The names, each once.
    all_names: HashSet<String>,
}

impl KnownKeys {
    /// Reads the lines of a file: a SHA-256 hash in hexadecimal digits, and a name after it if there is one. Empty lines,
    /// those that begin with `#`, and a byte order mark are skipped.
    ///
    /// # Errors
    /// A message and, on a line of its own, the remedy. It doesn't repeat the line, which may be a key.
    pub(super) fn parse(path: &str, text: &[u8], part: usize) -> Result<Self, String> {
        let text = String::from_utf8_lossy(text);
        let mut names = BTreeMap::new();
        let text = text.strip_prefix('\u{feff}').unwrap_or(&text);
        for (number, line) in (1..).zip(text.lines()) {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let (hash, name) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
            let hash = read_hash(hash).ok_or_else(|| {
                format!(
                    "`{path}`: line {number} doesn't begin with the SHA-256 hash of a key\n\
                     write 64 hexadecimal digits, as `printf %s \"$KEY\" | sha256sum` prints them, then a name if you like"
                )
            })?;
            // sha256sum names its input so.
            let name = name.trim().trim_start_matches('#').trim_start();
            names.entry(hash).or_insert_with(|| if name == "-" { String::new() } else { name.to_owned() });
        }
        match names.len() {
            0 => Err(format!(
                "`{path}` contains no key\nwrite the SHA-256 hash of a key per line: `printf %s \"$KEY\" | sha256sum`"
            )),
            count if count > KEYS_MOST => Err(format!(
                "`{path}` contains {count} keys\nlist at most {KEYS_MOST}, or check keys in a service in front and count by the header that it sets"
            )),
            _ => {
                let all_names = names.values().filter(|name| !name.is_empty()).cloned().collect();
                Ok(Self { part, names, all_names })
            }
        }
    }

    /// Returns true if this is the value of a known key.
    pub fn contains(&self, value: &[u8]) -> bool {
        self.names.contains_key(&hash_of(value))
    }

    /// Returns the name of the key with this value, if it is known and has one.
    pub fn name_of(&self, value: &[u8]) -> Option<&str> {
        self.names.get(&hash_of(value)).filter(|name| !name.is_empty()).map(String::as_str)
    }

    /// Returns true if this is the name of at least one key.
    pub fn has_name(&self, name: &str) -> bool {
        self.all_names.contains(name)
    }

    /// Returns true if a text is the hash of a known key.
    pub(super) fn has_hash(&self, text: &str) -> bool {
        read_hash(text).is_some_and(|hash| self.names.contains_key(&hash))
    }

    /// Returns the hashes of the keys that have this name, in hexadecimal digits.
    pub fn hashes_of(&self, name: &str) -> Vec<String> {
        let named = self.names.iter().filter(|(_, own)| !own.is_empty() && *own == name);
        named.map(|(hash, _)| hash.iter().map(|byte| format!("{byte:02x}")).collect()).collect()
    }

    /// Returns the name of the key whose hash begins with these hexadecimal digits, if it has one.
    pub fn name_of_hash(&self, digits: &str) -> Option<&str> {
        let begin = digits.as_bytes().chunks(2).map(read_byte).collect::<Option<Vec<u8>>>()?;
        let mut least = [0; HASH_BYTES];
        least.get_mut(..begin.len())?.copy_from_slice(&begin);
        let (hash, name) = self.names.range(least..).next()?;
        (hash.starts_with(&begin) && !name.is_empty()).then_some(name)
    }
}

impl fmt::Debug for KnownKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "KnownKeys({} keys)", self.names.len())
    }
}

fn hash_of(value: &[u8]) -> [u8; HASH_BYTES] {
    Sha256::digest(value).into()
}

fn read_byte(digits: &[u8]) -> Option<u8> {
    let digits = digits.iter().all(u8::is_ascii_hexdigit).then_some(digits)?;
    u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()
}

fn read_hash(digits: &str) -> Option<[u8; HASH_BYTES]> {
    let is_whole = digits.len() == 2 * HASH_BYTES;
    let bytes = digits.as_bytes().chunks(2).map(read_byte).collect::<Option<Vec<u8>>>();
    bytes.filter(|_| is_whole)?.try_into().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEST: &str = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08";

    #[test]
    fn a_line_is_a_hash_and_a_name() {
        for (line, name) in [
            (TEST.to_owned(), None),
            (format!("  {TEST}  \r"), None),
            (format!("{TEST}  -"), None),
            (format!("{} shop", TEST.to_uppercase()), Some("shop")),
            (format!("{TEST}\tthe shop # 2"), Some("the shop # 2")),
            (format!("{TEST} # the shop"), Some("the shop")),
        ] {
            for text in [
                format!("# keys\n\n{line}\n"),
                format!("\u{feff}{line}\n"),
                format!("\u{feff}# keys\n{line}"),
            ] {
                let keys = KnownKeys::parse("k", text.as_bytes(), 0).expect(&text);
                assert!(keys.contains(b"test") && !keys.contains(b"tests") && !keys.contains(b""), "{line}");
                assert_eq!((keys.name_of(b"test"), keys.name_of(b"tests")), (name, None), "{line}");
                assert_eq!((keys.has_name(name.unwrap_or("-")), keys.has_name("")), (name.is_some(), false));
                assert_eq!(keys.name_of_hash(&TEST[..32]), name, "{line}");
                assert_eq!(keys.name_of_hash(&TEST[1..33]), None, "{line}");
                assert_eq!(
                    keys.hashes_of(name.unwrap_or("-")).first().map(|hash| &**hash),
                    name.map(|_| TEST)
                );
                assert_eq!(format!("{keys:?}"), "KnownKeys(1 keys)");
            }
        }
    }

    #[test]
    fn a_bad_line_is_told_by_its_number_only() {
        for bad in ["hunter2", &TEST[1..], &format!("{TEST}0"), &TEST.replace('9', "g"), "+f86d0"] {
            let fault = KnownKeys::parse("k", format!("{TEST}\n{bad}\n").as_bytes(), 0).unwrap_err();
            assert!(fault.starts_with("`k`: line 2 ") && !fault.contains(bad), "{fault}");
        }
        assert!(KnownKeys::parse("k", b"# none\n", 0).is_err());
        let many: String = (0..=KEYS_MOST).map(|number| format!("{number:064x}\n")).collect();
        assert!(KnownKeys::parse("k", many.as_bytes(), 0).unwrap_err().contains("100001 keys"));
    }
}
