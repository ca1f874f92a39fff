//! Lists of numbers and texts in MessagePack, as the script reads and writes them
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

/// A value that the script has written.
#[derive(Debug, PartialEq)]
pub(super) enum Value<'a> {
    Number(i64),
    Text(&'a [u8]),
    /// The beginning of a list. Its values follow as they would without it.
    ListStart,
}

/// Takes the first value of what the script has written. `None` if it is of another type, or isn't whole.
pub(super) fn take<'a>(rest: &mut &'a [u8]) -> Option<Value<'a>> {
    Some(match byte(rest)? {
        small @ (0..=0x7f | 0xe0..) => Value::Number(i64::from(small.cast_signed())),
        0xcc => Value::Number(i64::from(byte(rest)?)),
        0xcd => Value::Number(i64::from(u16::from_be_bytes(chunk(rest)?))),
        0xce => Value::Number(i64::from(u32::from_be_bytes(chunk(rest)?))),
        0xcf => Value::Number(i64::try_from(u64::from_be_bytes(chunk(rest)?)).ok()?),
        0xd0 => Value::Number(i64::from(i8::from_be_bytes(chunk(rest)?))),
        0xd1 => Value::Number(i64::from(i16::from_be_bytes(chunk(rest)?))),
        0xd2 => Value::Number(i64::from(i32::from_be_bytes(chunk(rest)?))),
        0xd3 => Value::Number(i64::from_be_bytes(chunk(rest)?)),
        // Redis cuts numbers with a fraction in this way.
        0xca => Value::Number(f32::from_be_bytes(chunk(rest)?) as i64),
        0xcb => Value::Number(f64::from_be_bytes(chunk(rest)?) as i64),
        length @ 0xa0..=0xbf => Value::Text(rest.split_off(..usize::from(length & 0x1f))?),
        0xd9 => {
            let length = byte(rest)?;
            Value::Text(rest.split_off(..usize::from(length))?)
        }
        0xda => {
            let length = u16::from_be_bytes(chunk(rest)?);
            Value::Text(rest.split_off(..usize::from(length))?)
        }
        0xdb => {
            let length = u32::from_be_bytes(chunk(rest)?);
            Value::Text(rest.split_off(..usize::try_from(length).ok()?)?)
        }
        0x90..=0x9f => Value::ListStart,
        0xdc => chunk::<2>(rest).map(|_| Value::ListStart)?,
        ARRAY_32 => chunk::<4>(rest).map(|_| Value::ListStart)?,
        _ => return None,
    })
}

fn byte(rest: &mut &[u8]) -> Option<u8> {
    rest.split_off_first().copied()
}

fn chunk<const SIZE: usize>(rest: &mut &[u8]) -> Option<[u8; SIZE]> {
    let (chunk, after) = rest.split_first_chunk()?;
    *rest = after;
    Some(*chunk)
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

    #[test]
    fn values_are_read_as_the_specification_says() {
        let numbers = [
            (&[0x00][..], 0),
            (&[0x7f], 127),
            (&[0xff], -1),
            (&[0xe0], -32),
            (&[0xcc, 0x80], 128),
            (&[0xcd, 1, 0], 256),
            (&[0xce, 0xff, 0xff, 0xff, 0xff], i64::from(u32::MAX)),
            (&[0xcf, 0, 6, 0x44, 0x5c, 0x7b, 0x4a, 0x90, 0x40], 0x0006_445c_7b4a_9040),
            (&[0xd0, 0x80], -128),
            (&[0xd1, 0x80, 0], -32_768),
            (&[0xd2, 0x80, 0, 0, 0], i64::from(i32::MIN)),
            (&[0xd3, 0x80, 0, 0, 0, 0, 0, 0, 0], i64::MIN),
            (&[0xca, 0x3f, 0xc0, 0, 0], 1),
            (&[0xcb, 0xbf, 0xf8, 0, 0, 0, 0, 0, 0], -1),
        ];
        for (bytes, number) in numbers {
            let mut rest = bytes;
            assert_eq!(take(&mut rest), Some(Value::Number(number)), "{bytes:x?}");
            assert!(rest.is_empty());
            assert_eq!(take(&mut &bytes[..bytes.len() - 1]), None, "{bytes:x?}");
        }
        for bytes in [&b"\xa2no"[..], b"\xd9\x02no", b"\xda\x00\x02no", b"\xdb\x00\x00\x00\x02no"] {
            assert_eq!(take(&mut &bytes[..]), Some(Value::Text(b"no")));
            assert_eq!(take(&mut &bytes[..bytes.len() - 1]), None, "{bytes:x?}");
        }
        for bytes in [&[0x91][..], &[0xdc, 0, 1], &[0xdd, 0, 0, 0, 1]] {
            assert_eq!(take(&mut &bytes[..]), Some(Value::ListStart));
        }
        // Greater than any number of the script; nothing, true, and a map.
        for bytes in [&[0xcf, 0x80, 0, 0, 0, 0, 0, 0, 0][..], &[0xc0], &[0xc3], &[0x80]] {
            assert_eq!(take(&mut &bytes[..]), None, "{bytes:x?}");
        }
    }
}
