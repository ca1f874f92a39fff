//! Values that are one of a few words.

use super::Written;
use crate::config::{EscapedSlashes, Missing, Mode, OnFailure, RatelimitHeaders};

impl Written for RatelimitHeaders {
    const EXPECTED: &'static str = "\"draft-11\", \"x-ratelimit\", \"both\" or \"off\"";

    fn read(text: &str) -> Result<Self, String> {
        let forms = [
            ("draft-11", Self::Draft11),
            ("x-ratelimit", Self::XRatelimit),
            ("both", Self::Both),
            ("off", Self::Off),
        ];
        choose("form of rate limit headers", forms, text)
    }
}

impl Written for EscapedSlashes {
    const EXPECTED: &'static str = "\"keep\" or \"reject\"";

    fn read(text: &str) -> Result<Self, String> {
        choose("treatment of escaped slashes", [("keep", Self::Keep), ("reject", Self::Reject)], text)
    }
}

impl Written for OnFailure {
    const EXPECTED: &'static str = "\"local\", \"allow\" or \"deny\"";

    fn read(text: &str) -> Result<Self, String> {
        let policies = [("local", Self::Local), ("allow", Self::Allow), ("deny", Self::Deny)];
        choose("failure policy", policies, text)
    }
}

/// An algorithm, without the numbers that go with it.
#[derive(Clone, Copy, Debug)]
pub(in crate::config) enum AlgorithmName {
    SlidingWindow,
}

impl Written for AlgorithmName {
    const EXPECTED: &'static str = "\"sliding-window\"";

    fn read(text: &str) -> Result<Self, String> {
        choose("algorithm", [("sliding-window", Self::SlidingWindow)], text)
    }
}

impl Written for Mode {
    const EXPECTED: &'static str = "\"enforce\" or \"shadow\"";

    fn read(text: &str) -> Result<Self, String> {
        choose("mode", [("enforce", Self::Enforce), ("shadow", Self::Shadow)], text)
    }
}

impl Written for Missing {
    const EXPECTED: &'static str = "\"ip\", \"skip\" or \"deny\"";

    fn read(text: &str) -> Result<Self, String> {
        let treatments = [("ip", Self::Ip), ("skip", Self::Skip), ("deny", Self::Deny)];
        choose("treatment of a missing key", treatments, text)
    }
}

/// An upstream that the gateway plays itself.
#[derive(Debug)]
pub(in crate::config) struct Echo;

impl Written for Echo {
    const EXPECTED: &'static str = "\"echo\"";

    fn read(text: &str) -> Result<Self, String> {
        choose("builtin upstream", [("echo", Self)], text)
    }
}

fn choose<T: Written, const N: usize>(what: &str, choices: [(&str, T); N], text: &str) -> Result<T, String> {
    let chosen = choices.into_iter().find(|(name, _)| *name == text);
    chosen.map(|(_, value)| value).ok_or_else(|| format!("unknown {what} `{text}`\nuse {}", T::EXPECTED))
}
