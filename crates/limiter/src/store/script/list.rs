//! A list of numbers and texts in MessagePack, as the script reads it
//! (<https://github.com/msgpack/msgpack/blob/master/spec.md>).

use bytes::Bytes;

/// Code of a list whose length follows in four bytes.
const ARRAY_32: u8 = 0xdd;
const HEADER: usize = 5;

/// A list that is being written.
#[derive(Debug)]
pub(super) struct List {
    length: u32,
    bytes: Vec<u8>,
}

impl List {
    /// An empty list with room for about so many values.
    pub(super) fn with_capacity(values: usize) -> Self {
        let mut bytes = Vec::with_capacity(HEADER + 3 * values);
        bytes.extend([ARRAY_32, 0, 0, 0, 0]);
        Self { length: 0, bytes }
    }

    /// Adds an integer, in as few bytes as the common ones allow.
    pub(super) fn push(&mut self, number: i64) {
        self.length += 1;
        if let Ok(small @ -32..=127) = i8::try_from(number) {
            self.bytes.extend(small.to_be_bytes());
        } else if let Ok(number) = i32::try_from(number) {
            self.bytes.push(0xd2);
            self.bytes.extend(number.to_be_bytes());
        } else {
            self.bytes.push(0xd3);
            self.bytes.extend(number.to_be_bytes());
        }
    }

    /// Adds a text of at most 255 bytes.
    pub(super) fn push_text(&mut self, text: &str) {
        self.push_bytes(text.as_bytes());
    }

    /// Adds at most 255 bytes, which the script reads as it does a text.
    pub(super) fn push_bytes(&mut self, bytes: &[u8]) {
        self.length += 1;
        let length = u8::try_from(bytes.len()).expect("words, names of leases and parameters are short");
        self.bytes.extend([0xd9, length]);
        self.bytes.extend(bytes);
    }

    /// The list as it is sent.
    pub(super) fn finish(mut self) -> Bytes {
        self.bytes[1..HEADER].copy_from_slice(&self.length.to_be_bytes());
        self.bytes.into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_written_as_the_specification_says() {
        let mut list = List::with_capacity(0);
        for number in [0, 127, -1, -32, 128, -33, i64::from(i32::MAX), 1 << 40] {
            list.push(number);
        }
        list.push_text("sw");
        let expected: Vec<u8> = [
            &[0xdd, 0, 0, 0, 9][..],
            &[0x00, 0x7f, 0xff, 0xe0],
            &[0xd2, 0, 0, 0, 128],
            &[0xd2, 0xff, 0xff, 0xff, 0xdf],
            &[0xd2, 0x7f, 0xff, 0xff, 0xff],
            &[0xd3, 0, 0, 1, 0, 0, 0, 0, 0],
            &[0xd9, 2, b's', b'w'],
        ]
        .concat();
        assert_eq!(list.finish(), expected);
    }
}
