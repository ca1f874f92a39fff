//! Tables and lists that know their position in the file.

use std::{fmt, marker::PhantomData, ops::Range};

use serde::{
    Deserialize, Deserializer,
    de::{self, value::MapAccessDeserializer},
};

use super::Spanned;
use crate::value::{FromText, ParsedText};

/// A table and its position in the file: that of its header, or of the whole inline table.
///
/// Unlike serde's derived implementation for structs, it doesn't accept a list as a table.
#[derive(Debug, Default)]
pub(crate) struct SpannedTable<T> {
    pub span: Range<usize>,
    pub value: T,
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for SpannedTable<T> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let table = Spanned::<Entries<T>>::deserialize(from)?;
        Ok(Self { span: table.span(), value: table.into_inner().0 })
    }
}

/// A [`SpannedTable`] without its position.
struct Entries<T>(T);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Entries<T> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_map(EntriesVisitor(PhantomData))
    }
}

struct EntriesVisitor<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> de::Visitor<'de> for EntriesVisitor<T> {
    type Value = Entries<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a map")
    }

    fn visit_map<A: de::MapAccess<'de>>(self, map: A) -> Result<Entries<T>, A::Error> {
        T::deserialize(MapAccessDeserializer::new(map)).map(Entries)
    }
}

/// A list of at least one value. A single value may be written without brackets.
#[derive(Debug)]
pub(crate) struct ValueList<T>(pub Vec<Spanned<T>>);

impl<T> ValueList<T> {
    /// Returns a list of one value, without a position in the file.
    pub(crate) fn of(value: T) -> Self {
        Self(vec![Spanned::new(0..0, value)])
    }

    pub(crate) fn into_values(self) -> Vec<T> {
        self.0.into_iter().map(Spanned::into_inner).collect()
    }
}

impl<'de, T: FromText> Deserialize<'de> for ValueList<T> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let list = Spanned::<OneOrMany<T>>::deserialize(from)?;
        let span = list.span();
        Ok(match list.into_inner() {
            OneOrMany::One(value) => Self(vec![Spanned::new(span, value)]),
            OneOrMany::Many(values) => Self(values),
        })
    }
}

/// A [`ValueList`] without positions.
enum OneOrMany<T> {
    One(T),
    Many(Vec<Spanned<T>>),
}

impl<'de, T: FromText> Deserialize<'de> for OneOrMany<T> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(OneOrManyVisitor(PhantomData))
    }
}

struct OneOrManyVisitor<T>(PhantomData<T>);

impl<'de, T: FromText> de::Visitor<'de> for OneOrManyVisitor<T> {
    type Value = OneOrMany<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, or a list of such", T::EXPECTED)
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<OneOrMany<T>, E> {
        T::read(text).map(OneOrMany::One).map_err(E::custom)
    }

    fn visit_seq<A: de::SeqAccess<'de>>(self, mut list: A) -> Result<OneOrMany<T>, A::Error> {
        let mut values = Vec::new();
        while let Some(value) = list.next_element::<Spanned<ParsedText<T>>>()? {
            values.push(Spanned::new(value.span(), value.into_inner().0));
        }
        if values.is_empty() {
            let text = format!("this list is empty\nwrite at least one: {}", T::EXPECTED);
            return Err(de::Error::custom(text));
        }
        Ok(OneOrMany::Many(values))
    }
}

/// A table whose keys the user chooses.
#[derive(Debug)]
pub(crate) struct Pairs<K, V>(pub Vec<(Spanned<K>, V)>);

impl<K, V> Pairs<K, V> {
    pub(crate) fn into_pairs(self) -> Vec<(K, V)> {
        self.0.into_iter().map(|(key, value)| (key.into_inner(), value)).collect()
    }
}

impl<K, V> Default for Pairs<K, V> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<'de, K: FromText, V: FromText> Deserialize<'de> for Pairs<K, V> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_map(PairsVisitor(PhantomData))
    }
}

struct PairsVisitor<K, V>(PhantomData<(K, V)>);

impl<'de, K: FromText, V: FromText> de::Visitor<'de> for PairsVisitor<K, V> {
    type Value = Pairs<K, V>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a map")
    }

    fn visit_map<A: de::MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut pairs = Vec::new();
        while let Some((key, ParsedText(value))) = map.next_entry::<Spanned<ParsedText<K>>, _>()? {
            pairs.push((Spanned::new(key.span(), key.into_inner().0), value));
        }
        Ok(Pairs(pairs))
    }
}
