//! Values that are one of a few words.

use std::fmt;

use super::FromText;
use tollgate_limiter::{OnFailure, RatelimitHeaders, RedissonType, Scope};

use tracing::Level;

use crate::{
    AccessLogFormat, Balance, CostUsage, EscapedSlashes, LogFormat, Missing, Mode, Requirement, UnknownKey,
};

impl FromText for RatelimitHeaders {
    const EXPECTED: &'static str = "\"draft-11\", \"x-ratelimit\", \"both\" or \"off\"";

    fn read(text: &str) -> Result<Self, String> {
        let forms = [
            ("draft-11", Self::Draft11),
            ("x-ratelimit", Self::XRatelimit),
            ("both", Self::Both),
            ("off", Self::Off),
        ];
        choose("`ratelimit_headers` value", forms, text)
    }
}

impl FromText for EscapedSlashes {
    const EXPECTED: &'static str = "\"keep\" or \"reject\"";

    fn read(text: &str) -> Result<Self, String> {
        choose("`escaped_slashes` value", [("keep", Self::Keep), ("reject", Self::Reject)], text)
    }
}

impl FromText for AccessLogFormat {
    const EXPECTED: &'static str = "\"json\" or \"combined\"";

    fn read(text: &str) -> Result<Self, String> {
        choose("access log format", [("json", Self::Json), ("combined", Self::Combined)], text)
    }
}

impl FromText for LogFormat {
    const EXPECTED: &'static str = "\"text\" or \"json\"";

    fn read(text: &str) -> Result<Self, String> {
        choose("log format", [("text", Self::Text), ("json", Self::Json)], text)
    }
}

impl FromText for Level {
    const EXPECTED: &'static str = "\"error\", \"warn\", \"info\", \"debug\" or \"trace\"";

    fn read(text: &str) -> Result<Self, String> {
        let levels = [
            ("error", Self::ERROR),
            ("warn", Self::WARN),
            ("info", Self::INFO),
            ("debug", Self::DEBUG),
            ("trace", Self::TRACE),
        ];
        choose("log level", levels, text)
    }
}

impl FromText for OnFailure {
    const EXPECTED: &'static str = "\"local\", \"allow\" or \"deny\"";

    fn read(text: &str) -> Result<Self, String> {
        let policies = [("local", Self::Local), ("allow", Self::Allow), ("deny", Self::Deny)];
        choose("failure policy", policies, text)
    }
}

/// An algorithm without its parameters. Displays as it is written in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AlgorithmName {
    SlidingWindow,
    SlidingCells,
    FixedWindow,
    Gcra,
    Concurrency,
}

impl AlgorithmName {
    const ALL: [(&str, Self); 5] = [
        ("sliding-window", Self::SlidingWindow),
        ("sliding-cells", Self::SlidingCells),
        ("fixed-window", Self::FixedWindow),
        ("gcra", Self::Gcra),
        ("concurrency", Self::Concurrency),
    ];
}

impl fmt::Display for AlgorithmName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Self::ALL.iter().filter(|(_, name)| name == self).try_for_each(|(text, _)| f.write_str(text))
    }
}

impl FromText for AlgorithmName {
    const EXPECTED: &'static str =
        "\"sliding-window\", \"sliding-cells\", \"fixed-window\", \"gcra\" or \"concurrency\"";

    fn read(text: &str) -> Result<Self, String> {
        choose("algorithm", Self::ALL, text).map_err(|remedy| match elsewhere(text) {
            Some(hint) => format!("unknown algorithm `{text}`\n{hint}"),
            None => remedy,
        })
    }
}

/// Returns what to write for the name of an algorithm in other programs.
fn elsewhere(name: &str) -> Option<&'static str> {
    Some(match name.replace(['_', ' '], "-").to_ascii_lowercase().as_str() {
        "token-bucket" | "leaky-bucket" => {
            "write \"gcra\", which admits the same requests: `rate` is the refill, and `burst` the size of the bucket"
        }
        "sliding-log" | "sliding-window-log" => "write \"sliding-window\", which is exact like a log",
        "sliding-window-counter" | "sliding-counter" => {
            "write \"sliding-cells\", which never admits more than the rate"
        }
        "fixed-window-counter" => "write \"fixed-window\"",
        _ => return None,
    })
}

/// The layout of a limit's counts in Redis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Layout {
    /// The gateway's own.
    Tollgate,
    /// That of Redisson's `RRateLimiter`.
    Redisson,
}

impl FromText for Layout {
    const EXPECTED: &'static str = "\"tollgate\" or \"redisson\"";

    fn read(text: &str) -> Result<Self, String> {
        choose("layout", [("tollgate", Self::Tollgate), ("redisson", Self::Redisson)], text)
    }
}

impl FromText for RedissonType {
    const EXPECTED: &'static str = "\"overall\" or \"per-client\"";

    fn read(text: &str) -> Result<Self, String> {
        choose("`redisson_type` value", [("overall", Self::Overall), ("per-client", Self::PerClient)], text)
    }
}

impl FromText for Scope {
    const EXPECTED: &'static str = "\"shared\" or \"instance\"";

    fn read(text: &str) -> Result<Self, String> {
        choose("scope", [("shared", Self::Shared), ("instance", Self::Instance)], text)
    }
}

impl FromText for Mode {
    const EXPECTED: &'static str = "\"enforce\" or \"shadow\"";

    fn read(text: &str) -> Result<Self, String> {
        choose("mode", [("enforce", Self::Enforce), ("shadow", Self::Shadow)], text)
    }
}

impl FromText for CostUsage {
    const EXPECTED: &'static str = "\"charged\" or \"reported\"";

    fn read(text: &str) -> Result<Self, String> {
        choose("`usage` value", [("charged", Self::Charged), ("reported", Self::Reported)], text)
    }
}

impl FromText for Missing {
    const EXPECTED: &'static str = "\"ip\", \"skip\" or \"deny\"";

    fn read(text: &str) -> Result<Self, String> {
        let treatments = [("ip", Self::Ip), ("skip", Self::Skip), ("deny", Self::Deny)];
        choose("`missing` value", treatments, text)
    }
}

impl FromText for UnknownKey {
    const EXPECTED: &'static str = "\"ip\" or \"deny\"";

    fn read(text: &str) -> Result<Self, String> {
        choose("`unknown` value", [("ip", Self::Ip), ("deny", Self::Deny)], text)
    }
}

impl FromText for Requirement {
    const EXPECTED: &'static str = "\"jwt\"";

    fn read(text: &str) -> Result<Self, String> {
        choose("`require` value", [("jwt", Self::Jwt)], text).map_err(|remedy| {
            format!("{remedy}, or remove it: which keys of an API pass is said by a limit: keys_file = \"keys.txt\", unknown = \"deny\", missing = \"deny\"")
        })
    }
}

impl FromText for Balance {
    const EXPECTED: &'static str = "\"least-request\", \"round-robin\" or \"random\"";

    fn read(text: &str) -> Result<Self, String> {
        let ways = [
            ("least-request", Self::LeastRequest),
            ("round-robin", Self::RoundRobin),
            ("random", Self::Random),
        ];
        choose("load balancing method", ways, text)
    }
}

/// The upstream that the gateway implements itself.
#[derive(Debug)]
pub(crate) struct Echo;

impl FromText for Echo {
    const EXPECTED: &'static str = "\"echo\"";

    fn read(text: &str) -> Result<Self, String> {
        choose("builtin upstream", [("echo", Self)], text)
    }
}

fn choose<T: FromText, const N: usize>(what: &str, choices: [(&str, T); N], text: &str) -> Result<T, String> {
    let chosen = choices.into_iter().find(|(name, _)| *name == text);
    chosen.map(|(_, value)| value).ok_or_else(|| format!("unknown {what} `{text}`\nuse {}", T::EXPECTED))
}
