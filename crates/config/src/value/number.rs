//! Numbers, fractions and sizes.

use std::fmt;

use serde::{Deserialize, Deserializer, de};

use super::FromText;

/// A whole number from `MIN` to `MAX`.
#[derive(Debug)]
pub(crate) struct Whole<const MIN: u32, const MAX: u32>(pub u32);

impl<'de, const MIN: u32, const MAX: u32> Deserialize<'de> for Whole<MIN, MAX> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_i64(WholeVisitor)
    }
}

struct WholeVisitor<const MIN: u32, const MAX: u32>;

impl<const MIN: u32, const MAX: u32> de::Visitor<'_> for WholeVisitor<MIN, MAX> {
    type Value = Whole<MIN, MAX>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a whole number from {MIN} to {MAX}")
    }

    fn visit_i64<E: de::Error>(self, number: i64) -> Result<Self::Value, E> {
        let whole = u32::try_from(number).ok().filter(|whole| (MIN..=MAX).contains(whole));
        whole.map(Whole).ok_or_else(|| E::invalid_value(de::Unexpected::Signed(number), &self))
    }
}

/// The number of gateways that share the limits. 0, written as `auto`, means that they are counted.
#[derive(Debug)]
pub(crate) struct GatewayCount(pub u32);

impl GatewayCount {
    pub(crate) const MAX: u32 = 1_000_000;
}

impl<'de> Deserialize<'de> for GatewayCount {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(GatewayCountVisitor)
    }
}

struct GatewayCountVisitor;

impl de::Visitor<'_> for GatewayCountVisitor {
    type Value = GatewayCount;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a whole number from 1 to {}, or \"auto\"", GatewayCount::MAX)
    }

    fn visit_i64<E: de::Error>(self, number: i64) -> Result<GatewayCount, E> {
        WholeVisitor::<1, { GatewayCount::MAX }>
            .visit_i64(number)
            .map(|Whole(number)| GatewayCount(number))
            .map_err(|_: E| E::invalid_value(de::Unexpected::Signed(number), &self))
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<GatewayCount, E> {
        match text {
            "auto" => Ok(GatewayCount(0)),
            _ => Err(E::invalid_type(de::Unexpected::Str(text), &self)),
        }
    }
}

/// A number from 0 to 1.
#[derive(Debug)]
pub(crate) struct Fraction(pub f64);

impl<'de> Deserialize<'de> for Fraction {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_f64(FractionVisitor)
    }
}

struct FractionVisitor;

impl de::Visitor<'_> for FractionVisitor {
    type Value = Fraction;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a number from 0 to 1")
    }

    fn visit_f64<E: de::Error>(self, number: f64) -> Result<Fraction, E> {
        let is_share = (0.0..=1.0).contains(&number);
        is_share
            .then_some(Fraction(number))
            .ok_or_else(|| E::invalid_value(de::Unexpected::Float(number), &self))
    }

    fn visit_i64<E: de::Error>(self, number: i64) -> Result<Fraction, E> {
        let is_share = (0..=1).contains(&number);
        is_share
            .then_some(Fraction(number as f64))
            .ok_or_else(|| E::invalid_value(de::Unexpected::Signed(number), &self))
    }
}

/// A number of bytes, written as `32KiB`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Size(pub usize);

impl FromText for Size {
    const EXPECTED: &'static str = "a size such as \"32KiB\"";
    const FORM: Option<&'static str> = Some(r"\d+ *([KMG]i)?B");

    fn read(text: &str) -> Result<Self, String> {
        let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
        let (number, unit) = text.split_at(digits);
        let unit = match unit.trim_start() {
            "B" => Some(1_usize),
            "KiB" => Some(1 << 10),
            "MiB" => Some(1 << 20),
            "GiB" => Some(1 << 30),
            _ => None,
        };
        let size = number.parse::<usize>().ok().zip(unit).and_then(|(number, unit)| number.checked_mul(unit));
        size.map(Self).ok_or_else(|| {
            format!("`{text}` is not a valid size\nwrite a whole number and B, KiB, MiB or GiB: \"32KiB\", \"10MiB\"")
        })
    }
}

/// The largest request body in bytes. `None`, written as `none`, means unlimited.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct BodyMost(pub Option<u64>);

impl FromText for BodyMost {
    const EXPECTED: &'static str = "a size such as \"10MiB\", or \"none\"";

    fn read(text: &str) -> Result<Self, String> {
        match text {
            "none" => Ok(Self(None)),
            _ => Size::read(text)
                .map(|Size(bytes)| Self(Some(bytes as u64)))
                .map_err(|fault| fault + "; or \"none\""),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_binary_units() {
        assert_eq!(Size::read("32KiB"), Ok(Size(32 * 1024)));
        assert_eq!(Size::read("10 MiB"), Ok(Size(10 * 1024 * 1024)));
        assert_eq!(Size::read("1GiB"), Ok(Size(1 << 30)));
        assert_eq!(Size::read("512B"), Ok(Size(512)));
        for text in
            ["", "KiB", "32", "32KB", "32kib", "-1B", "1.5MiB", "99999999999999999999B", "99999999999999GiB"]
        {
            assert!(Size::read(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_body_may_have_no_bound() {
        assert_eq!(BodyMost::read("none"), Ok(BodyMost(None)));
        assert_eq!(BodyMost::read("10MiB"), Ok(BodyMost(Some(10 << 20))));
        assert_eq!(BodyMost::read("0B"), Ok(BodyMost(Some(0))));
        let fault = BodyMost::read("10MB").expect_err("no size");
        assert!(
            fault.starts_with("`10MB` is not a valid size\n") && fault.ends_with("; or \"none\""),
            "{fault}"
        );
    }
}
