//! A value and its position in the file.

use std::{fmt, ops::Range};

use serde::{Deserialize, Deserializer};

/// A value and its byte range in the file. Wraps toml's type, so that it can implement `JsonSchema`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::config) struct Spanned<T>(toml::Spanned<T>);

impl<T> Spanned<T> {
    pub(in crate::config) fn new(span: Range<usize>, value: T) -> Self {
        Self(toml::Spanned::new(span, value))
    }

    pub(in crate::config) fn span(&self) -> Range<usize> {
        self.0.span()
    }

    pub(in crate::config) fn get_ref(&self) -> &T {
        self.0.get_ref()
    }

    pub(in crate::config) fn into_inner(self) -> T {
        self.0.into_inner()
    }
}

impl<T: fmt::Display> fmt::Display for Spanned<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Spanned<T> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        toml::Spanned::deserialize(from).map(Self)
    }
}
