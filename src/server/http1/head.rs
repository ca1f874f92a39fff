//! What the head of a request says of what follows it, and what the head of its answer must say therefore (RFC 9112).

use std::{
    cell::RefCell,
    io::Write,
    time::{Duration, SystemTime},
};

use httpdate::HttpDate;
use hyper::{
    HeaderMap, Method, Request, StatusCode, Version,
    ext::ReasonPhrase,
    header::{CONNECTION, CONTENT_LENGTH, DATE, EXPECT, HeaderValue, TE, TRAILER, TRANSFER_ENCODING},
    http::response,
};

use crate::http1::{
    body::{Decoder, Encoder},
    head::{self, Unreadable},
};

/// Bytes of a head that are mostly enough.
const HEAD_BYTES: usize = 512;

/// A request, as far as it matters to what follows it on its connection.
#[derive(Debug)]
pub(crate) struct Asked {
    pub(super) version: Version,
    pub(super) is_head: bool,
    /// Another request may follow.
    pub(crate) persists: bool,
    /// The body is sent when it is asked for.
    pub(super) expects_continue: bool,
    takes_trailers: bool,
}

impl Asked {
    /// Of what can't be read as one.
    pub(super) const UNREADABLE: Self = Self {
        version: Version::HTTP_11,
        is_head: false,
        persists: false,
        expects_continue: false,
        takes_trailers: false,
    };
}

/// Reads how the body of a request is framed, and what else counts on its connection. A length that doesn't count is removed.
///
/// # Errors
/// It can't be told where the body ends (RFC 9112, section 6.3).
pub(crate) fn read(request: &mut Request<()>) -> Result<(Asked, Decoder), Unreadable> {
    let version = request.version();
    let mut asked = Asked {
        version,
        is_head: *request.method() == Method::HEAD,
        persists: version == Version::HTTP_11,
        expects_continue: false,
        takes_trailers: false,
    };
    let (mut is_coded, mut lengths, mut is_list) = (false, 0, false);
    // To look at each once costs less than to look fields up, and mostly there are none of them.
    for (name, value) in request.headers() {
        match *name {
            CONNECTION => asked.persists = head::persists(version, request.headers()),
            CONTENT_LENGTH => {
                lengths += 1;
                is_list |= value.as_bytes().contains(&b',');
            }
            TRANSFER_ENCODING => is_coded = true,
            EXPECT => {
                asked.expects_continue =
                    version == Version::HTTP_11 && value.as_bytes().eq_ignore_ascii_case(b"100-continue");
            }
            TE => asked.takes_trailers |= has_member(value, b"trailers"),
            _ => {}
        }
    }
    if lengths == 0 && !is_coded {
        return Ok((asked, Decoder::Length(0)));
    }
    let headers = request.headers_mut();
    if is_coded {
        if version == Version::HTTP_10 || head::is_chunked(headers) != Some(true) {
            return Err(Unreadable::Malformed);
        }
        // Who sends both may want to smuggle a request (RFC 9112, section 6.1).
        asked.persists &= lengths == 0;
        headers.remove(CONTENT_LENGTH);
        return Ok((asked, Decoder::chunked()));
    }
    let length = head::content_length(headers)?.filter(|_| !is_list).ok_or(Unreadable::Malformed)?;
    if lengths > 1 {
        headers.insert(CONTENT_LENGTH, length.into());
    }
    Ok((asked, Decoder::Length(length)))
}

fn has_member(list: &HeaderValue, member: &[u8]) -> bool {
    list.as_bytes().split(|byte| *byte == b',').any(|other| other.trim_ascii().eq_ignore_ascii_case(member))
}

/// Writes the head of the answer to a request, with a body of so many bytes, if that is known, on a connection that `persists`
/// if it can. Tells how the body is written, and whether the connection persists.
pub(super) fn write(
    head: &mut response::Parts,
    body: Option<u64>,
    asked: &Asked,
    persists: bool,
    out: &mut Vec<u8>,
) -> (Encoder, bool) {
    let is_http10 = asked.version == Version::HTTP_10;
    let (encoder, length) = frame(head, body, asked);
    let persists = persists && !matches!(encoder, Encoder::UntilClose);

    out.reserve(HEAD_BYTES + body.map_or(0, |length| length.min(HEAD_BYTES as u64) as usize));
    out.extend_from_slice(if is_http10 { b"HTTP/1.0 " } else { b"HTTP/1.1 " });
    out.extend_from_slice(head.status.as_str().as_bytes());
    out.push(b' ');
    out.extend_from_slice(match head.extensions.get::<ReasonPhrase>() {
        Some(reason) => reason.as_bytes(),
        None => head.status.canonical_reason().unwrap_or("<none>").as_bytes(),
    });
    out.extend_from_slice(b"\r\n");
    head::write(&head.headers, head.extensions.get(), out);
    if let Some(length) = length {
        out.extend_from_slice(b"content-length: ");
        out.extend_from_slice(itoa::Buffer::new().format(length).as_bytes());
        out.extend_from_slice(b"\r\n");
    }
    if matches!(encoder, Encoder::Chunked(_)) {
        out.extend_from_slice(b"transfer-encoding: chunked\r\n");
    }
    if head.status != StatusCode::SWITCHING_PROTOCOLS {
        match persists {
            true if is_http10 => out.extend_from_slice(b"connection: keep-alive\r\n"),
            // A client of HTTP/1.0 expects nothing else, unless it has asked for it.
            false if !is_http10 || asked.persists => out.extend_from_slice(b"connection: close\r\n"),
            _ => {}
        }
    }
    if !head.headers.contains_key(DATE) {
        write_date(out);
    }
    out.extend_from_slice(b"\r\n");
    (encoder, persists)
}

/// How the body of an answer is framed, and its length, unless the head tells of it already. Fields are removed that don't
/// agree.
fn frame(head: &mut response::Parts, known: Option<u64>, asked: &Asked) -> (Encoder, Option<u64>) {
    let headers = &mut head.headers;
    let has_length = headers.contains_key(CONTENT_LENGTH);
    let told = if has_length { head::content_length(headers).unwrap_or(None) } else { None };
    let is_bodiless = asked.is_head
        || matches!(head.status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED)
        || head.status.is_informational();
    let is_chunked = !is_bodiless && known.or(told).is_none() && asked.version == Version::HTTP_11;
    if !is_chunked && (is_bodiless || asked.version == Version::HTTP_10) {
        headers.remove(TRAILER);
    }
    let length = match head.status {
        _ if asked.is_head => told.or(known.filter(|length| *length > 0)),
        StatusCode::NOT_MODIFIED => told,
        _ if is_bodiless => None,
        _ => known.or(told),
    };
    let is_told = has_length && told == length;
    if has_length && !is_told {
        headers.remove(CONTENT_LENGTH);
    }
    let encoder = match length {
        _ if is_bodiless => Encoder::Length(0),
        Some(length) => Encoder::Length(length),
        None if !is_chunked => Encoder::UntilClose,
        None if asked.takes_trailers => Encoder::chunked(headers),
        None => Encoder::chunked(&HeaderMap::new()),
    };
    (encoder, length.filter(|_| !is_told))
}

/// Writes the time, in whole seconds (RFC 9110, section 6.6.1).
fn write_date(out: &mut Vec<u8>) {
    thread_local! {
        /// The line of the last answer, and when it is outdated.
        static DATE_LINE: RefCell<(SystemTime, Vec<u8>)> = const { RefCell::new((SystemTime::UNIX_EPOCH, Vec::new())) };
    }
    DATE_LINE.with_borrow_mut(|(until, line)| {
        let now = SystemTime::now();
        // The clock may have been set back.
        if now >= *until || *until > now + Duration::from_secs(1) {
            let since_second = now
                .duration_since(SystemTime::UNIX_EPOCH)
                .map_or(Duration::ZERO, |since| Duration::from_nanos(u64::from(since.subsec_nanos())));
            *until = now - since_second + Duration::from_secs(1);
            line.clear();
            write!(line, "date: {}\r\n", HttpDate::from(now)).expect("writing to memory succeeds");
        }
        out.extend_from_slice(line);
    });
}
