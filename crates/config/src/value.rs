//! The types of single values, written as strings or numbers, and the rules for each.

mod address;
mod choice;
mod http;
mod key;
mod limit;
mod number;
mod reference;
mod upstream;
mod url;

use std::{fmt, marker::PhantomData, path::PathBuf, time::Duration};

use serde::{Deserialize, Deserializer, de};

pub(super) use self::{
    choice::{AlgorithmName, Echo, Layout},
    http::FieldName,
    key::RateSource,
    limit::{
        AnyRate, BanDuration, CalendarOffset, LeaseDuration, NO_LIMIT, RefreshTime, ReportedDescriptors, Wait,
    },
    number::{BodyMost, Fraction, GatewayCount, Size, Whole},
    upstream::Interval,
    url::{JwksLocation, Otlp},
};
use tollgate_limiter::duration;

use super::password::is_content;

/// A value that is written as a string.
pub(super) trait FromText: Sized {
    /// The expected form, for error messages: `a rate such as "100/10s"`.
    const EXPECTED: &'static str;
    /// A regular expression that all valid strings match. `None` if it wouldn't say much.
    #[cfg_attr(not(test), expect(dead_code, reason = "the schema is derived by a test"))]
    const FORM: Option<&'static str> = None;

    /// Parses the text. An error is a message and, on lines of their own, advice on how to fix it.
    fn read(text: &str) -> Result<Self, String>;
}

/// A value that deserializes from a string.
#[derive(Debug)]
pub(super) struct ParsedText<T>(pub T);

impl<'de, T: FromText> Deserialize<'de> for ParsedText<T> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_str(ParsedTextVisitor(PhantomData))
    }
}

struct ParsedTextVisitor<T>(PhantomData<T>);

impl<T: FromText> de::Visitor<'_> for ParsedTextVisitor<T> {
    type Value = ParsedText<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(T::EXPECTED)
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<ParsedText<T>, E> {
        // The content of a file, such as a key, isn't shown.
        let told = |fault: String| if is_content(text) { fault.replace(text, "******") } else { fault };
        T::read(text).map(ParsedText).map_err(|fault| E::custom(told(fault)))
    }
}

impl FromText for String {
    const EXPECTED: &'static str = "a string";

    fn read(text: &str) -> Result<Self, String> {
        Ok(text.to_owned())
    }
}

/// A file to write to. `None`, written as `-`, means stdout.
#[derive(Debug)]
pub(super) struct Output(pub Option<PathBuf>);

impl FromText for Output {
    const EXPECTED: &'static str = "\"-\" or a path";

    fn read(text: &str) -> Result<Self, String> {
        match text {
            "" => Err("the path is empty\nuse \"-\" for stdout, or a path".to_owned()),
            "-" => Ok(Self(None)),
            path => Ok(Self(Some(path.into()))),
        }
    }
}

/// A secret. Its `Debug` output hides it.
pub(super) struct Secret(pub String);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("******")
    }
}

impl FromText for Secret {
    const EXPECTED: &'static str = "a string such as \"${JWT_SECRET}\"";

    fn read(text: &str) -> Result<Self, String> {
        if text.is_empty() {
            return Err("this secret is empty\nuse at least 32 random bytes".to_owned());
        }
        reference::refuse_reference(text)?;
        Ok(Self(text.to_owned()))
    }
}

impl FromText for Duration {
    const EXPECTED: &'static str = "a duration such as \"50ms\" or \"10s\"";

    fn read(text: &str) -> Result<Self, String> {
        let mut words = text.split(|c: char| !c.is_ascii_alphabetic());
        if words.any(|word| matches!(word, "month" | "months" | "y" | "yr" | "year" | "years")) {
            return Err(format!(
                "`{text}` is not a valid duration\nwrite a number and a unit: \"50ms\", \"10s\", \"5m\", \"1h\", \"1d\""
            ));
        }
        match duration::parse_us(text)? {
            0 => Err(format!(
                "`{text}` is too short\nuse at least 1ms, or leave it out for its default, which for a route's `timeout` is none"
            )),
            us => Ok(Self::from_micros(us)),
        }
    }
}
