//! Formatting for texts that each request needs. The standard library's formatting costs several times as
//! much.

use std::{
    fmt::Write,
    hash::{BuildHasher, Hasher, RandomState},
    net::IpAddr,
    sync::LazyLock,
};

/// The keys are random, so clients can't choose texts with the same hash.
static HASHER: LazyLock<RandomState> = LazyLock::new(RandomState::new);

/// Returns the hash of a text. It differs between processes.
///
/// # Examples
///
/// ```
/// use tollgate_limiter::text;
///
/// assert_eq!(text::hash(b"alice"), text::hash(b"alice"));
/// ```
pub fn hash(text: &[u8]) -> u64 {
    let mut hasher = HASHER.build_hasher();
    // `Hash` would also write the length, which a single text doesn't need.
    hasher.write(text);
    hasher.finish()
}

/// Formats an address.
///
/// # Examples
///
/// ```
/// use tollgate_limiter::text;
///
/// assert_eq!(text::address([192, 0, 2, 7].into()), "192.0.2.7");
/// ```
pub fn address(address: IpAddr) -> String {
    let mut text = String::with_capacity("255.255.255.255".len());
    write_address(&mut text, address);
    text
}

/// Appends an address to a text.
pub(crate) fn write_address(text: &mut String, address: IpAddr) {
    let IpAddr::V4(address) = address else {
        return write!(text, "{address}").expect("writing to a string succeeds");
    };
    for (at, octet) in address.octets().into_iter().enumerate() {
        text.extend([if at == 0 { "" } else { "." }, itoa::Buffer::new().format(octet)]);
    }
}

/// Concatenates texts without excess capacity. For a few texts, `[&str]::concat` costs several times as much.
pub(crate) fn concat<const PARTS: usize>(parts: [&str; PARTS]) -> String {
    let mut text = String::with_capacity(parts.iter().map(|part| part.len()).sum());
    parts.iter().for_each(|part| text.push_str(part));
    text
}

/// Returns the first bytes as hexadecimal digits, two per byte.
///
/// # Examples
///
/// ```
/// use tollgate_limiter::text;
///
/// assert_eq!(&text::hex::<4>([0x0f, 0xa0, 0xff]), b"0fa0");
/// ```
pub fn hex<const DIGITS: usize>(bytes: impl IntoIterator<Item = u8>) -> [u8; DIGITS] {
    let digit = |four_bits: u8| four_bits + if four_bits < 10 { b'0' } else { b'a' - 10 };
    let mut text = [b'0'; DIGITS];
    for (digits, byte) in text.chunks_exact_mut(2).zip(bytes) {
        digits.copy_from_slice(&[digit(byte >> 4), digit(byte & 15)]);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_those_of_the_standard_library() {
        for text in ["0.0.0.0", "192.0.2.7", "255.255.255.255", "::1", "2001:db8::7"] {
            assert_eq!(address(text.parse().unwrap()), text);
        }
        assert_eq!(hex::<6>([0x0f, 0xa0, 0xff, 0x12]), *b"0fa0ff");
    }
}
