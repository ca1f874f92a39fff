//! The parts of an input.

/// Splits bytes into N parts: N - 1 lines, and the rest.
pub(super) fn parts<const N: usize>(bytes: &[u8]) -> [&[u8]; N] {
    let mut parts = bytes.splitn(N, |byte| *byte == b'\n');
    std::array::from_fn(|_| parts.next().unwrap_or_default())
}
