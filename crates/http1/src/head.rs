//! The heads of messages: the first line and the header fields (RFC 9112, sections 3 to 5).

use std::{mem::MaybeUninit, ops::Range};

use bytes::Bytes;
use http::{
    HeaderMap, Method, Request, Response, StatusCode, Uri, Version,
    header::{CONNECTION, CONTENT_LENGTH, HeaderName, HeaderValue, TRANSFER_ENCODING},
};

use smallvec::SmallVec;

use super::Input;

/// The most fields of a head, or of the trailers of a body.
pub const FIELDS_MOST: usize = 100;
/// The number of fields that are usually added to a received head. Reserving room for them saves an
/// allocation.
const FIELDS_ADDED: usize = 6;

/// An error in a message head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unreadable {
    /// The head isn't HTTP/1.
    Malformed,
    /// The head has too many bytes, or more than [`FIELDS_MOST`] fields.
    TooLarge,
    /// The target has more bytes than a [`Uri`] can hold.
    TargetTooLong,
}

impl Unreadable {
    /// Returns the code of the problem that the client gets.
    pub fn code(self) -> &'static str {
        match self {
            Self::Malformed => "request-malformed",
            Self::TooLarge => "head-too-large",
            Self::TargetTooLong => "target-too-long",
        }
    }
}

impl From<httparse::Error> for Unreadable {
    fn from(error: httparse::Error) -> Self {
        match error {
            httparse::Error::TooManyHeaders => Self::TooLarge,
            _ => Self::Malformed,
        }
    }
}

/// The reason phrase of a response if it isn't the usual one of its status. It is an extension of the
/// response.
#[derive(Clone, Debug)]
pub struct ReasonPhrase(Bytes);

impl ReasonPhrase {
    /// Returns the phrase as received.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

/// The spelling of the field names of a head, if any isn't in lower case. [`HeaderName`] doesn't keep it, but
/// some servers and clients depend on it.
pub type Spelt = Option<Box<Spelling>>;

/// The spelling of the field names of a head.
#[derive(Debug)]
pub struct Spelling {
    head: Bytes,
    /// The ranges of the names in the head, in its order.
    names: SmallVec<[Range<usize>; 8]>,
}

impl Spelling {
    /// Returns the spelling of a name. The search begins at `place`, and `place` then moves behind the name
    /// found, since names are mostly asked for in the order of the head.
    fn find<'s>(&'s self, name: &'s HeaderName, place: &mut usize) -> &'s [u8] {
        let plain = name.as_str().as_bytes();
        let spelt =
            |range: &Range<usize>| Some(&self.head[range.clone()]).filter(|spelt| is_spelling(spelt, plain));
        let (before, after) = self.names.split_at(*place);
        for (at, range) in after.iter().enumerate() {
            if let Some(spelt) = spelt(range) {
                *place += at + 1;
                return spelt;
            }
        }
        before.iter().find_map(spelt).unwrap_or(plain)
    }
}

/// Returns true if this is a spelling of a name in lower case. Most bytes are equal, which is found out sooner than that they differ
/// in case only.
fn is_spelling(spelt: &[u8], plain: &[u8]) -> bool {
    let is_same = |(spelt, plain): (&u8, &u8)| spelt == plain || spelt.to_ascii_lowercase() == *plain;
    spelt.len() == plain.len() && spelt.iter().zip(plain).all(is_same)
}

/// Takes the head of a request of at most `most` bytes, if it has arrived. The body of the result is the
/// spelling of its field names. Empty lines before the head are skipped.
///
/// # Errors
/// The bytes can't become a valid head.
pub fn request(input: &mut Input, most: usize) -> Result<Option<Request<Spelt>>, Unreadable> {
    let bytes = input.bytes();
    let mut room = [const { MaybeUninit::uninit() }; FIELDS_MOST];
    let mut parsed = httparse::Request::new(&mut []);
    let Some(length) = whole(parsed.parse_with_uninit_headers(bytes, &mut room)?, bytes, most)? else {
        // A client that has sent only empty lines hasn't begun a head.
        if bytes.iter().all(|byte| matches!(byte, b'\r' | b'\n')) {
            let lines = bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |last| last + 1);
            input.take(lines);
        }
        return Ok(None);
    };
    let (Some(method), Some(path), Some(version)) = (parsed.method, parsed.path, parsed.version) else {
        return Err(Unreadable::Malformed);
    };
    if path.len() >= usize::from(u16::MAX) {
        return Err(Unreadable::TargetTooLong);
    }
    let method = Method::from_bytes(method.as_bytes()).map_err(|_| Unreadable::Malformed)?;
    let uri = Uri::from_maybe_shared(bytes.slice_ref(path.as_bytes())).map_err(|_| Unreadable::Malformed)?;
    let (headers, spelling) = fields(bytes, parsed.headers, FIELDS_ADDED)?;
    let mut request = Request::new(spelling);
    *request.method_mut() = method;
    *request.uri_mut() = uri;
    *request.version_mut() = if version == 0 { Version::HTTP_10 } else { Version::HTTP_11 };
    *request.headers_mut() = headers;
    input.take(length);
    Ok(Some(request))
}

/// Takes the head of a response of at most `most` bytes, if it has arrived. The body of the result is the
/// spelling of its field names. If the reason isn't the usual one, the response gets a [`ReasonPhrase`].
///
/// # Errors
/// The bytes can't become a valid head.
pub fn response(input: &mut Input, most: usize) -> Result<Option<Response<Spelt>>, Unreadable> {
    let bytes = input.bytes();
    let mut room = [const { MaybeUninit::uninit() }; FIELDS_MOST];
    let mut parsed = httparse::Response::new(&mut []);
    let parsing =
        httparse::ParserConfig::default().parse_response_with_uninit_headers(&mut parsed, bytes, &mut room);
    let Some(length) = whole(parsing?, bytes, most)? else { return Ok(None) };
    let (Some(code), Some(reason), Some(version)) = (parsed.code, parsed.reason, parsed.version) else {
        return Err(Unreadable::Malformed);
    };
    let status = StatusCode::from_u16(code).map_err(|_| Unreadable::Malformed)?;
    let (headers, spelling) = fields(bytes, parsed.headers, FIELDS_ADDED)?;
    let mut response = Response::new(spelling);
    *response.status_mut() = status;
    *response.version_mut() = if version == 0 { Version::HTTP_10 } else { Version::HTTP_11 };
    *response.headers_mut() = headers;
    if Some(reason) != status.canonical_reason() {
        response.extensions_mut().insert(ReasonPhrase(bytes.slice_ref(reason.as_bytes())));
    }
    input.take(length);
    Ok(Some(response))
}

/// Returns the length of a head, if it is complete.
fn whole(parsed: httparse::Status<usize>, bytes: &Bytes, most: usize) -> Result<Option<usize>, Unreadable> {
    match parsed {
        httparse::Status::Complete(length) if length <= most => Ok(Some(length)),
        httparse::Status::Partial if bytes.len() < most => Ok(None),
        _ => Err(Unreadable::TooLarge),
    }
}

/// Returns the fields in a map with room for `more` others, and their spelling. They share the memory of
/// `bytes`.
///
/// # Errors
/// A name or a value is invalid.
pub fn fields(
    bytes: &Bytes,
    parsed: &[httparse::Header<'_>],
    more: usize,
) -> Result<(HeaderMap, Spelt), Unreadable> {
    let mut headers = HeaderMap::with_capacity(parsed.len() + more);
    let is_spelt = |field: &httparse::Header<'_>| field.name.bytes().any(|byte| byte.is_ascii_uppercase());
    let spelling = || Box::new(Spelling { head: bytes.clone(), names: SmallVec::new() });
    let mut spelling = parsed.iter().any(is_spelt).then(spelling);
    for field in parsed {
        let name = HeaderName::from_bytes(field.name.as_bytes()).map_err(|_| Unreadable::Malformed)?;
        let value = HeaderValue::from_maybe_shared(bytes.slice_ref(field.value));
        if let Some(spelling) = &mut spelling {
            let begin = field.name.as_ptr() as usize - bytes.as_ptr() as usize;
            spelling.names.push(begin..begin + field.name.len());
        }
        headers.append(name, value.map_err(|_| Unreadable::Malformed)?);
    }
    Ok((headers, spelling))
}

/// Writes fields, in their original spelling.
pub fn write(fields: &HeaderMap, spelling: Option<&Spelling>, out: &mut Vec<u8>) {
    let mut place = 0;
    for (name, value) in fields {
        let plain = name.as_str().as_bytes();
        out.extend_from_slice(spelling.map_or(plain, |spelling| spelling.find(name, &mut place)));
        out.extend_from_slice(b": ");
        out.extend_from_slice(value.as_bytes());
        out.extend_from_slice(b"\r\n");
    }
}

/// Returns true if servers may confuse a field's name with another one: if it has other characters than letters, digits
/// and hyphens, or ends in a hyphen. CGI turns each of the former into `_`, so `x.real.ip` becomes `HTTP_X_REAL_IP`; nginx drops such
/// fields, too. Grape drops the hyphen.
pub fn is_ambiguous(name: &str) -> bool {
    const IS_PLAIN: [bool; 256] = {
        let mut is_plain = [false; 256];
        let mut byte = 0;
        while byte < 256 {
            is_plain[byte] = (byte as u8).is_ascii_alphanumeric() || byte as u8 == b'-';
            byte += 1;
        }
        is_plain
    };
    name.ends_with('-') || !name.bytes().fold(true, |is_plain, byte| is_plain & IS_PLAIN[usize::from(byte)])
}

/// Returns true if the list in a field has this member. Case doesn't matter.
pub fn has_member(fields: &HeaderMap, name: HeaderName, member: &str) -> bool {
    let lines = fields.get_all(name).into_iter();
    let mut members = lines.flat_map(|line| line.as_bytes().split(|byte| *byte == b','));
    members.any(|other| other.trim_ascii().eq_ignore_ascii_case(member.as_bytes()))
}

/// Returns true if another message may follow on the connection (RFC 9112, section 9.3).
pub fn persists(version: Version, fields: &HeaderMap) -> bool {
    let mut keeps = version == Version::HTTP_11;
    for line in fields.get_all(CONNECTION) {
        // A value that isn't text has no options.
        let text = line.to_str().unwrap_or_default().as_bytes();
        for option in text.split(|byte| *byte == b',').map(<[u8]>::trim_ascii) {
            if option.eq_ignore_ascii_case(b"close") {
                return false;
            }
            keeps |= option.eq_ignore_ascii_case(b"keep-alive");
        }
    }
    keeps
}

/// Returns whether `chunked` is the only transfer coding; `None` if there is no coding (RFC 9112, section
/// 6.1). Other codings can't be decoded here, and nested chunks are read differently by different servers.
pub fn is_chunked(fields: &HeaderMap) -> Option<bool> {
    let mut lines = fields.get_all(TRANSFER_ENCODING).into_iter();
    let coding = lines.next()?.as_bytes().trim_ascii();
    Some(lines.next().is_none() && coding.eq_ignore_ascii_case(b"chunked"))
}

/// Returns the length that a message states, if any. It may be stated several times with the same number (RFC
/// 9112, section 6.3).
///
/// # Errors
/// A value isn't a length, or the values differ.
pub fn content_length(fields: &HeaderMap) -> Result<Option<u64>, Unreadable> {
    let mut stated = None;
    for line in fields.get_all(CONTENT_LENGTH) {
        for member in line.as_bytes().split(|byte| *byte == b',').map(<[u8]>::trim_ascii) {
            let length = number(member).ok_or(Unreadable::Malformed)?;
            if stated.replace(length).is_some_and(|before| before != length) {
                return Err(Unreadable::Malformed);
            }
        }
    }
    Ok(stated)
}

/// Reads the length of a message, as [`content_length`] does, and leaves it in one field line, written in the
/// shortest form. So the next reader can't read it differently.
///
/// # Errors
/// The length is invalid, or there are different ones.
pub fn unify_length(fields: &mut HeaderMap) -> Result<Option<u64>, Unreadable> {
    let mut lines = fields.get_all(CONTENT_LENGTH).into_iter();
    if let (Some(only), None) = (lines.next(), lines.next())
        && matches!(only.as_bytes(), [b'0'] | [b'1'..=b'9', ..])
        && let Some(length) = number(only.as_bytes())
    {
        return Ok(Some(length));
    }
    let length = content_length(fields)?;
    if let Some(length) = length {
        fields.insert(CONTENT_LENGTH, length.into());
    }
    Ok(length)
}

/// Parses a number of decimal digits and nothing else, below 2^63: servers whose lengths are signed would take a greater one for a
/// negative one.
fn number(digits: &[u8]) -> Option<u64> {
    if digits.is_empty() {
        return None;
    }
    let number = digits.iter().try_fold(0_i64, |number, digit| {
        let digit = digit.is_ascii_digit().then(|| i64::from(digit - b'0'))?;
        number.checked_mul(10)?.checked_add(digit)
    })?;
    Some(number.cast_unsigned())
}
