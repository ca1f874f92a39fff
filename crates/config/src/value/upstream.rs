//! The types of an upstream's values.

use std::time::Duration;

use hyper::http::uri::PathAndQuery;

use super::{
    FromText,
    limit::{HOUR_US, within},
};
use crate::Percent;

/// The time between two probes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Interval(pub Duration);

impl FromText for Interval {
    const EXPECTED: &'static str = "a duration from \"10ms\" to \"1h\"";

    fn read(text: &str) -> Result<Self, String> {
        within(text, 10_000..=HOUR_US, Self::EXPECTED).map(|us| Self(Duration::from_micros(us)))
    }
}

impl FromText for Percent {
    const EXPECTED: &'static str = "a percentage such as \"20%\"";
    const FORM: Option<&'static str> = Some(r"\d+%");

    fn read(text: &str) -> Result<Self, String> {
        let number = text.strip_suffix('%').filter(|number| number.bytes().all(|byte| byte.is_ascii_digit()));
        let percent = number.and_then(|number| number.parse().ok()).filter(|percent| *percent <= 100);
        percent.map(Self).ok_or_else(|| {
            format!("`{text}` is not a valid percentage\nwrite a whole number from 0 to 100 and a percent sign: \"20%\"")
        })
    }
}

impl FromText for PathAndQuery {
    const EXPECTED: &'static str = "a path such as \"/healthz\"";
    const FORM: Option<&'static str> = Some(r"/.*");

    fn read(text: &str) -> Result<Self, String> {
        let path = text.parse().ok().filter(|path: &Self| text.starts_with('/') && path.as_str() == text);
        path.ok_or_else(|| {
            format!("`{text}` is not a valid path\nwrite the path as it is sent, beginning with a slash: \"/healthz\"")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_whole_percents() {
        assert_eq!((Percent::read("0%"), Percent::read("100%")), (Ok(Percent(0)), Ok(Percent(100))));
        for text in ["", "%", "20", "101%", "-1%", "+1%", "1.5%", "20 %"] {
            assert!(Percent::read(text).is_err(), "{text}");
        }
    }

    #[test]
    fn probed_paths_are_sent_as_they_are() {
        assert!(PathAndQuery::read("/healthz?deep=1").is_ok());
        for text in ["", "healthz", "*", "/a b", "/a#b", "http://a/"] {
            assert!(PathAndQuery::read(text).is_err(), "{text}");
        }
    }
}
