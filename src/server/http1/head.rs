//! The framing of requests and responses, and the persistence of the connection (RFC 9112).

use std::{
    cell::RefCell,
    time::{Duration, SystemTime},
};

use httpdate::HttpDate;
use hyper::{
    HeaderMap, Method, Request, StatusCode, Version,
    header::{CONNECTION, CONTENT_LENGTH, DATE, EXPECT, TE, TRAILER, TRANSFER_ENCODING},
    http::response,
};
use tokio::time::Instant;

use tollgate_http1::{
    body::{Decoder, Encoder},
    head::{self, ReasonPhrase, Spelling, Unreadable},
};

/// A size in bytes that is enough for most heads.
const HEAD_BYTES: usize = 512;

/// The parts of a request's head that affect its response and its connection.
#[derive(Debug)]
pub(crate) struct RequestFraming {
    pub(super) version: Version,
    pub(super) is_head: bool,
    /// True if another request may follow.
    pub(crate) persists: bool,
    /// True if the client sends the body only after `100 Continue`.
    pub(super) expects_continue: bool,
    takes_trailers: bool,
}

impl RequestFraming {
    /// For a request that can't be read.
    pub(super) const UNREADABLE: Self = Self {
        version: Version::HTTP_11,
        is_head: false,
        persists: false,
        expects_continue: false,
        takes_trailers: false,
    };

    /// For a request that is identical to an earlier one.
    pub(super) const REPEATED: Self = Self { persists: true, ..Self::UNREADABLE };

    /// Returns true if an identical request may follow, and its response can have a body of known length.
    pub(super) fn may_repeat(&self) -> bool {
        self.persists && self.version == Version::HTTP_11 && !self.is_head
    }
}

/// Reads the framing of a request body, and the options for its connection. The trailers may be as large as a
/// head. Removes a Content-Length that isn't used.
///
/// # Errors
/// The end of the body is ambiguous (RFC 9112, section 6.3).
pub(crate) fn read<B>(
    request: &mut Request<B>,
    head_most: usize,
) -> Result<(RequestFraming, Decoder), Unreadable> {
    let version = request.version();
    let mut framing = RequestFraming {
        version,
        is_head: *request.method() == Method::HEAD,
        persists: version == Version::HTTP_11,
        expects_continue: false,
        takes_trailers: false,
    };
    let (mut is_coded, mut has_length, mut is_list) = (false, false, false);
    // One look at each name is cheaper than looking up fields that are rarely there. A field may have many lines.
    for name in request.headers().keys() {
        match *name {
            CONNECTION => framing.persists = head::persists(version, request.headers()),
            CONTENT_LENGTH => {
                let mut lines = request.headers().get_all(CONTENT_LENGTH).into_iter();
                has_length = true;
                is_list = lines.any(|line| line.as_bytes().contains(&b','));
            }
            TRANSFER_ENCODING => is_coded = true,
            EXPECT => {
                framing.expects_continue = version == Version::HTTP_11
                    && head::has_member(request.headers(), EXPECT, "100-continue");
            }
            TE => framing.takes_trailers = head::has_member(request.headers(), TE, "trailers"),
            _ => {}
        }
    }
    if !has_length && !is_coded {
        return Ok((framing, Decoder::Length(0)));
    }
    let headers = request.headers_mut();
    let length = head::unify_length(headers)?;
    if is_list || is_coded && (version == Version::HTTP_10 || head::is_chunked(headers) != Some(true)) {
        return Err(Unreadable::Malformed);
    }
    if is_coded {
        // A client that sends both may be trying to smuggle a request (RFC 9112, section 6.1).
        framing.persists &= length.is_none();
        headers.remove(CONTENT_LENGTH);
        return Ok((framing, Decoder::chunked(head_most)));
    }
    Ok((framing, Decoder::Length(length.unwrap_or(0))))
}

/// Writes the head of a response, without the empty line that ends it. `body` is the length of the body, if
/// it is known. Returns the encoder for the body, and whether the connection stays open, which it does only
/// if `persists`.
pub(super) fn write(
    head: &mut response::Parts,
    body: Option<u64>,
    framing: &RequestFraming,
    persists: bool,
    now: Instant,
    spelling: Option<&Spelling>,
    out: &mut Vec<u8>,
) -> (Encoder, bool) {
    let is_http10 = framing.version == Version::HTTP_10;
    let (mut has_length, mut has_date) = (false, false);
    for name in head.headers.keys() {
        has_length |= *name == CONTENT_LENGTH;
        has_date |= *name == DATE;
    }
    let (encoder, length) = frame(head, has_length, body, framing);
    let persists = persists && !matches!(encoder, Encoder::UntilClose);

    out.reserve(HEAD_BYTES + body.map_or(0, |length| length.min(HEAD_BYTES as u64) as usize));
    out.extend_from_slice(if is_http10 { b"HTTP/1.0 " } else { b"HTTP/1.1 " });
    out.extend_from_slice(head.status.as_str().as_bytes());
    out.push(b' ');
    out.extend_from_slice(match head.extensions.get::<ReasonPhrase>() {
        Some(reason) => reason.as_bytes(),
        None => head.status.canonical_reason().unwrap_or_default().as_bytes(),
    });
    out.extend_from_slice(b"\r\n");
    head::write(&head.headers, spelling, out);
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
            // An HTTP/1.0 client expects this unless it has asked for keep-alive.
            false if !is_http10 || framing.persists => out.extend_from_slice(b"connection: close\r\n"),
            _ => {}
        }
    }
    if !has_date {
        write_date(now, out);
    }
    (encoder, persists)
}

/// Returns the encoder for a response body, and the Content-Length to be added to the head, if it isn't there
/// yet. Removes framing fields that contradict it.
fn frame(
    head: &mut response::Parts,
    has_length: bool,
    known: Option<u64>,
    framing: &RequestFraming,
) -> (Encoder, Option<u64>) {
    let headers = &mut head.headers;
    let stated = if has_length { head::unify_length(headers).unwrap_or(None) } else { None };
    let is_bodiless = framing.is_head
        || matches!(head.status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED)
        || head.status.is_informational();
    let is_chunked = !is_bodiless && known.or(stated).is_none() && framing.version == Version::HTTP_11;
    if !is_chunked && (is_bodiless || framing.version == Version::HTTP_10) {
        headers.remove(TRAILER);
    }
    let length = match head.status {
        StatusCode::NO_CONTENT => None,
        _ if framing.is_head => stated.or(known.filter(|length| *length > 0)),
        StatusCode::NOT_MODIFIED => stated,
        _ if is_bodiless => None,
        _ => known.or(stated),
    };
    let is_stated = has_length && stated == length;
    if has_length && !is_stated {
        headers.remove(CONTENT_LENGTH);
    }
    let encoder = match length {
        _ if is_bodiless => Encoder::Length(0),
        Some(length) => Encoder::Length(length),
        None if !is_chunked => Encoder::UntilClose,
        None if framing.takes_trailers => Encoder::chunked(headers),
        None => Encoder::chunked(&HeaderMap::new()),
    };
    (encoder, length.filter(|_| !is_stated))
}

/// Writes the Date field, in whole seconds (RFC 9110, section 6.6.1).
fn write_date(now: Instant, out: &mut Vec<u8>) {
    thread_local! {
        /// The end of the current second, and the Date line until then.
        static DATE_LINE: RefCell<Option<(Instant, Vec<u8>)>> = const { RefCell::new(None) };
    }
    DATE_LINE.with_borrow_mut(|last| {
        if last.as_ref().is_none_or(|(until, _)| *until <= now) {
            let time = SystemTime::now();
            let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
            let rest = Duration::from_nanos(1_000_000_000 - u64::from(since.subsec_nanos()));
            *last = Some((now + rest, format!("date: {}\r\n", HttpDate::from(time)).into_bytes()));
        }
        if let Some((_, line)) = last {
            out.extend_from_slice(line);
        }
    });
}

#[cfg(test)]
mod tests {
    use hyper::{Response, header::HeaderValue};

    use super::*;
    use tollgate_http1::{Input, head::request};

    /// Reads the head of a request with this version and these fields.
    fn read_of(version: &str, fields: &str) -> Result<(String, bool, bool, Vec<String>), Unreadable> {
        let mut input = Input::default();
        input.push(format!("POST / HTTP/{version}\r\n{fields}\r\n").as_bytes());
        let mut request = request(&mut input, 1 << 16).unwrap().unwrap();
        let (framing, decoder) = read(&mut request, 1_000)?;
        let lengths = request.headers().get_all(CONTENT_LENGTH).into_iter();
        let lengths = lengths.map(|line| line.to_str().unwrap().to_owned()).collect();
        let body = match decoder {
            Decoder::Length(length) => length.to_string(),
            Decoder::Chunked(_) => "chunks".to_owned(),
            Decoder::UntilClose => unreachable!("a request never ends with its connection"),
        };
        Ok((body, framing.persists, framing.expects_continue, lengths))
    }

    #[test]
    fn the_end_of_a_request_is_unambiguous() {
        for (version, fields, body, persists, lengths) in [
            ("1.1", "", "0", true, &[][..]),
            ("1.1", "Content-Length: 5\r\n", "5", true, &["5"]),
            ("1.1", "Content-Length: 0\r\n", "0", true, &["0"]),
            ("1.1", "Content-Length: 5\r\nX: y\r\nContent-Length: 5\r\n", "5", true, &["5"]),
            ("1.1", "Transfer-Encoding: chunked\r\n", "chunks", true, &[]),
            ("1.1", "Content-Length: 005\r\n", "5", true, &["5"]),
            ("1.1", "Transfer-Encoding: \t Chunked \r\n", "chunks", true, &[]),
            ("1.1", "Transfer-Encoding: chunked\r\nContent-Length: 5\r\n", "chunks", false, &[]),
            ("1.1", "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n", "chunks", false, &[]),
            ("1.1", "Connection: x, Close\r\nConnection: keep-alive\r\n", "0", false, &[]),
            ("1.0", "Content-Length: 5\r\n", "5", false, &["5"]),
            ("1.0", "Connection: keep-alive\r\n", "0", true, &[]),
        ] {
            let read = read_of(version, fields).unwrap();
            let lengths = lengths.iter().map(ToString::to_string).collect();
            assert_eq!(read, (body.to_owned(), persists, false, lengths), "{version} {fields:?}");
        }
        for (version, fields) in [
            ("1.1", "Content-Length: 5\r\nContent-Length: 6\r\n"),
            ("1.1", "Content-Length: 5, 5\r\n"),
            ("1.1", "Content-Length: +5\r\n"),
            ("1.1", "Content-Length: \r\n"),
            ("1.1", "Content-Length: 18446744073709551616\r\n"),
            ("1.1", "Transfer-Encoding: chunked, gzip\r\n"),
            ("1.1", "Transfer-Encoding: gzip, chunked\r\n"),
            ("1.1", "Transfer-Encoding: chunked, chunked\r\n"),
            ("1.1", "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n"),
            ("1.1", "Transfer-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n"),
            ("1.1", "Transfer-Encoding: chunked\r\nTransfer-Encoding: gzip\r\n"),
            ("1.1", "Transfer-Encoding: xchunked\r\n"),
            ("1.0", "Transfer-Encoding: chunked\r\n"),
        ] {
            assert_eq!(read_of(version, fields), Err(Unreadable::Malformed), "{version} {fields:?}");
        }
        for (version, fields, expects) in [
            ("1.1", "Expect: 100-Continue\r\n", true),
            ("1.1", "Expect: x\r\n", false),
            ("1.0", "Expect: 100-continue\r\n", false),
        ] {
            assert_eq!(read_of(version, fields).unwrap().2, expects, "{version} {fields:?}");
        }
    }

    /// Writes a response head. Returns it without its date, the encoder, and whether the connection stays
    /// open.
    fn written(
        status: u16,
        fields: &[(&str, &str)],
        body: Option<u64>,
        framing: &RequestFraming,
    ) -> (String, String, bool) {
        let mut response = Response::builder().status(status);
        for (name, value) in fields {
            response = response.header(*name, *value);
        }
        let (mut head, ()) = response.body(()).unwrap().into_parts();
        let mut out = Vec::new();
        let (encoder, persists) =
            write(&mut head, body, framing, framing.persists, Instant::now(), None, &mut out);
        let (lines, date) = (String::from_utf8(out).unwrap(), "date: ");
        let (before, rest) = lines.split_once(date).unwrap();
        let (time, after) = rest.split_once("\r\n").unwrap();
        assert!(httpdate::parse_http_date(time).is_ok() && after.is_empty(), "{lines:?}");
        let encoder = match encoder {
            Encoder::Length(length) => length.to_string(),
            Encoder::Chunked(trailers) => format!("chunks {trailers:?}"),
            Encoder::UntilClose => "until close".to_owned(),
        };
        (before.to_owned(), encoder, persists)
    }

    /// Quadratic time would be minutes.
    #[test]
    fn a_field_of_many_lines_is_read_in_linear_time() {
        for name in [CONNECTION, TE, EXPECT] {
            let mut request = Request::new(());
            let line = HeaderValue::from_bytes(&b"b,".repeat(100)).unwrap();
            for _ in 0..20_000 {
                request.headers_mut().append(name.clone(), line.clone());
            }
            let (framing, _) = read(&mut request, usize::MAX).unwrap();
            assert!(framing.persists && !framing.takes_trailers && !framing.expects_continue);
        }
    }

    #[test]
    fn responses_are_framed_for_the_version_of_the_client() {
        let framing = RequestFraming { persists: true, takes_trailers: true, ..RequestFraming::UNREADABLE };
        let to_head = RequestFraming { is_head: true, persists: true, ..RequestFraming::UNREADABLE };
        let to_old =
            RequestFraming { version: Version::HTTP_10, persists: true, ..RequestFraming::UNREADABLE };
        let stated = &[("content-length", "5")][..];
        let trailed = &[("trailer", "x-sum")][..];
        for (framing, status, fields, body, head, encoder, persists) in [
            (&framing, 200, &[][..], Some(0), "1.1 200 OK|content-length: 0|", "0", true),
            (&framing, 200, &[], Some(5), "1.1 200 OK|content-length: 5|", "5", true),
            (&framing, 200, stated, Some(5), "1.1 200 OK|content-length: 5|", "5", true),
            (&framing, 200, stated, Some(4), "1.1 200 OK|content-length: 4|", "4", true),
            (&framing, 200, stated, None, "1.1 200 OK|content-length: 5|", "5", true),
            (&framing, 200, &[], None, "1.1 200 OK|transfer-encoding: chunked|", "chunks []", true),
            (
                &framing,
                200,
                trailed,
                None,
                "1.1 200 OK|trailer: x-sum|transfer-encoding: chunked|",
                "chunks [\"x-sum\"]",
                true,
            ),
            (&framing, 204, stated, None, "1.1 204 No Content|", "0", true),
            (&framing, 304, stated, None, "1.1 304 Not Modified|content-length: 5|", "0", true),
            (&framing, 304, &[], None, "1.1 304 Not Modified|", "0", true),
            (&framing, 299, &[], Some(0), "1.1 299 |content-length: 0|", "0", true),
            (
                &framing,
                101,
                &[("connection", "Upgrade")],
                None,
                "1.1 101 Switching Protocols|connection: Upgrade|",
                "0",
                true,
            ),
            (&to_head, 200, stated, Some(0), "1.1 200 OK|content-length: 5|", "0", true),
            (&to_head, 200, &[], Some(5), "1.1 200 OK|content-length: 5|", "0", true),
            (&to_head, 200, trailed, None, "1.1 200 OK|", "0", true),
            (&to_head, 204, stated, None, "1.1 204 No Content|", "0", true),
            (&to_old, 200, stated, None, "1.0 200 OK|content-length: 5|connection: keep-alive|", "5", true),
            (&to_old, 200, trailed, None, "1.0 200 OK|connection: close|", "until close", false),
            (
                &RequestFraming::UNREADABLE,
                400,
                &[],
                Some(5),
                "1.1 400 Bad Request|content-length: 5|connection: close|",
                "5",
                false,
            ),
            (
                &RequestFraming::UNREADABLE,
                200,
                trailed,
                None,
                "1.1 200 OK|trailer: x-sum|transfer-encoding: chunked|connection: close|",
                "chunks []",
                false,
            ),
        ] {
            let head = format!("HTTP/{}", head.replace('|', "\r\n"));
            let expected = (head, encoder.to_owned(), persists);
            assert_eq!(
                written(status, fields, body, framing),
                expected,
                "{status} {fields:?} {body:?} {framing:?}"
            );
        }
    }
}
