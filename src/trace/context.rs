//! W3C Trace Context: the trace and parent span of a request (<https://www.w3.org/TR/trace-context/>).

use bytes::Bytes;
use hyper::{
    HeaderMap,
    header::{HeaderName, HeaderValue},
};

/// The header field with the trace, the sender's span, and the sampled flag.
pub const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");
/// The header field with the data of other tracing systems. It is forwarded as it is.
pub const TRACESTATE: HeaderName = HeaderName::from_static("tracestate");

/// The length of a `traceparent` field. Later versions can be longer.
const LENGTH: usize = 55;
const SAMPLED: u8 = 1;
/// The supported flags: sampled, and a random trace id (Level 2).
const KNOWN_FLAGS: u8 = 0b11;

/// A span and its trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Context {
    /// The id of the trace. Never 0.
    pub trace_id: u128,
    /// The id of the span. Never 0.
    pub span_id: u64,
    /// The id of the parent span. 0 if there is none, or if it is unknown.
    pub parent_id: u64,
    flags: u8,
}

impl Context {
    /// Creates a span in a new, sampled trace.
    pub fn sampled() -> Self {
        Self::begin(SAMPLED)
    }

    /// Creates a span in a new trace that isn't sampled.
    pub fn unsampled() -> Self {
        Self::begin(0)
    }

    fn begin(flags: u8) -> Self {
        Self { trace_id: fastrand::u128(1..), span_id: fastrand::u64(1..), parent_id: 0, flags }
    }

    /// Creates a child span.
    pub fn child(&self) -> Self {
        Self { span_id: fastrand::u64(1..), parent_id: self.span_id, ..*self }
    }

    /// Returns the sender's span. `None` if the field is missing, invalid or repeated.
    pub fn read(header: &HeaderMap) -> Option<Self> {
        let mut lines = header.get_all(TRACEPARENT).into_iter();
        match (lines.next(), lines.next()) {
            (Some(line), None) => Self::parse(line.as_bytes()),
            _ => None,
        }
    }

    fn parse(field: &[u8]) -> Option<Self> {
        let (known, more) = field.split_at_checked(LENGTH)?;
        let has_dashes = [2, 35, 52].iter().all(|at| known[*at] == b'-');
        let version = hex(&known[..2])?;
        let is_whole = more.is_empty() || version > 0 && more[0] == b'-';
        if !has_dashes || !is_whole || version == 0xff {
            return None;
        }
        let (trace_id, span_id) = (hex(&known[3..35])?, hex(&known[36..52])? as u64);
        let flags = hex(&known[53..])? as u8 & KNOWN_FLAGS;
        (trace_id != 0 && span_id != 0).then_some(Self { trace_id, span_id, parent_id: 0, flags })
    }

    /// Returns true if the trace is sampled.
    pub fn is_sampled(&self) -> bool {
        self.flags & SAMPLED != 0
    }

    /// Returns the supported flags.
    pub fn flags(&self) -> u8 {
        self.flags
    }

    /// Returns the `traceparent` field for requests within this span.
    pub fn to_field(self) -> HeaderValue {
        let Self { trace_id, span_id, flags, .. } = self;
        let field = Bytes::from(format!("00-{trace_id:032x}-{span_id:016x}-{flags:02x}"));
        HeaderValue::from_maybe_shared(field).expect("digits and dashes")
    }
}

/// Parses lower-case hexadecimal digits.
fn hex(digits: &[u8]) -> Option<u128> {
    digits.iter().try_fold(0, |number: u128, digit| {
        let value = match digit {
            b'0'..=b'9' => digit - b'0',
            b'a'..=b'f' => digit - b'a' + 10,
            _ => return None,
        };
        Some(number << 4 | u128::from(value))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    fn read(lines: &[&str]) -> Option<Context> {
        let lines = lines.iter().map(|line| (TRACEPARENT, HeaderValue::from_str(line).unwrap()));
        Context::read(&lines.collect())
    }

    #[test]
    fn a_context_is_written_as_it_was_read() {
        let context = read(&[GOOD]).unwrap();
        assert_eq!(context.to_field(), GOOD);
        assert_eq!((context.trace_id >> 96, context.span_id >> 32), (0x0af7_6519, 0xb7ad_6b71));
        let child = context.child();
        assert_eq!((child.trace_id, child.parent_id), (context.trace_id, context.span_id));
        assert!(child.is_sampled() && child.span_id != context.span_id);
        assert_eq!(read(&[&GOOD.replace("-01", "-02")]).unwrap().to_field(), GOOD.replace("-01", "-02"));
        assert_eq!(read(&[&GOOD.replace("-01", "-fc")]).unwrap().to_field(), GOOD.replace("-01", "-00"));
    }

    #[test]
    fn a_later_version_may_have_more_fields() {
        for later in ["cc-", "01-"].map(|version| GOOD.replacen("00-", version, 1)) {
            for more in ["", "-", "-what-the-future-holds"] {
                assert_eq!(read(&[&format!("{later}{more}")]).unwrap().to_field(), GOOD);
            }
            assert_eq!(read(&[&format!("{later}.more")]), None);
        }
    }

    #[test]
    fn an_invalid_field_is_ignored() {
        let zeros = |from: &str| GOOD.replace(from, &"0".repeat(from.len()));
        for bad in [
            String::new(),
            GOOD[..54].to_owned(),
            format!("{GOOD}-"),
            format!("{GOOD}-more"),
            format!("{GOOD}1"),
            GOOD.replacen("00-", "ff-", 1),
            GOOD.replacen("00-", "0x-", 1),
            GOOD.replace("af", "AF"),
            GOOD.replace("-b7", "_b7"),
            GOOD.replace("-01", "-0g"),
            zeros("0af7651916cd43dd8448eb211c80319c"),
            zeros("b7ad6b7169203331"),
        ] {
            assert_eq!(read(&[&bad]), None, "{bad}");
        }
        assert_eq!((read(&[]), read(&[GOOD, GOOD])), (None, None));
    }
}
