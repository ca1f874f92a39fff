//! What the head of a request says of what follows it, and what the head of its answer must say therefore (RFC 9112).

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

    /// Of a request that is the same as one that was read.
    pub(super) const AGAIN: Self = Self { persists: true, ..Self::UNREADABLE };

    /// Whether one like it may follow, and have an answer with a body, of a known length.
    pub(super) fn may_come_again(&self) -> bool {
        self.persists && self.version == Version::HTTP_11 && !self.is_head
    }
}

/// Reads how the body of a request is framed, whose trailers may be as large as a head, and what else counts on its connection.
/// A length that doesn't count is removed.
///
/// # Errors
/// It can't be told where the body ends (RFC 9112, section 6.3).
pub(crate) fn read<B>(request: &mut Request<B>, head_most: usize) -> Result<(Asked, Decoder), Unreadable> {
    let version = request.version();
    let mut asked = Asked {
        version,
        is_head: *request.method() == Method::HEAD,
        persists: version == Version::HTTP_11,
        expects_continue: false,
        takes_trailers: false,
    };
    let (mut is_coded, mut has_length, mut is_list) = (false, false, false);
    // To look at each once costs less than to look fields up, and mostly there are none of them.
    for (name, value) in request.headers() {
        match *name {
            CONNECTION => asked.persists = head::persists(version, request.headers()),
            CONTENT_LENGTH => {
                has_length = true;
                is_list |= value.as_bytes().contains(&b',');
            }
            TRANSFER_ENCODING => is_coded = true,
            EXPECT => {
                asked.expects_continue =
                    version == Version::HTTP_11 && value.as_bytes().eq_ignore_ascii_case(b"100-continue");
            }
            TE => asked.takes_trailers = head::has_member(request.headers(), TE, "trailers"),
            _ => {}
        }
    }
    if !has_length && !is_coded {
        return Ok((asked, Decoder::Length(0)));
    }
    let headers = request.headers_mut();
    let length = head::unify_length(headers)?;
    if is_list || is_coded && (version == Version::HTTP_10 || head::is_chunked(headers) != Some(true)) {
        return Err(Unreadable::Malformed);
    }
    if is_coded {
        // Who sends both may want to smuggle a request (RFC 9112, section 6.1).
        asked.persists &= length.is_none();
        headers.remove(CONTENT_LENGTH);
        return Ok((asked, Decoder::chunked(head_most)));
    }
    Ok((asked, Decoder::Length(length.unwrap_or(0))))
}

/// Writes the head of the answer to a request, but for the empty line that ends it, with a body of so many bytes, if that is
/// known, on a connection that `persists` if it can. Tells how the body is written, and whether the connection persists.
pub(super) fn write(
    head: &mut response::Parts,
    body: Option<u64>,
    asked: &Asked,
    persists: bool,
    now: Instant,
    spelling: Option<&Spelling>,
    out: &mut Vec<u8>,
) -> (Encoder, bool) {
    let is_http10 = asked.version == Version::HTTP_10;
    let (mut has_length, mut has_date) = (false, false);
    for name in head.headers.keys() {
        has_length |= *name == CONTENT_LENGTH;
        has_date |= *name == DATE;
    }
    let (encoder, length) = frame(head, has_length, body, asked);
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
            // A client of HTTP/1.0 expects nothing else, unless it has asked for it.
            false if !is_http10 || asked.persists => out.extend_from_slice(b"connection: close\r\n"),
            _ => {}
        }
    }
    if !has_date {
        write_date(now, out);
    }
    (encoder, persists)
}

/// How the body of an answer is framed, and its length, unless the head tells of it already. Fields are removed that don't
/// agree.
fn frame(
    head: &mut response::Parts,
    has_length: bool,
    known: Option<u64>,
    asked: &Asked,
) -> (Encoder, Option<u64>) {
    let headers = &mut head.headers;
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
fn write_date(now: Instant, out: &mut Vec<u8>) {
    thread_local! {
        /// The line of the last answer, and until when it holds.
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
    use hyper::Response;

    use super::*;
    use tollgate_http1::{Input, head::request};

    /// How a request with these fields is read that came by this version, which has to be there whole.
    fn read_of(version: &str, fields: &str) -> Result<(String, bool, bool, Vec<String>), Unreadable> {
        let mut input = Input::default();
        input.push(format!("POST / HTTP/{version}\r\n{fields}\r\n").as_bytes());
        let mut request = request(&mut input, 1 << 16).unwrap().unwrap();
        let (asked, decoder) = read(&mut request, 1_000)?;
        let lengths = request.headers().get_all(CONTENT_LENGTH).into_iter();
        let lengths = lengths.map(|line| line.to_str().unwrap().to_owned()).collect();
        let body = match decoder {
            Decoder::Length(length) => length.to_string(),
            Decoder::Chunked(_) => "chunks".to_owned(),
            Decoder::UntilClose => unreachable!("a request never ends with its connection"),
        };
        Ok((body, asked.persists, asked.expects_continue, lengths))
    }

    #[test]
    fn where_a_request_ends_is_told_in_one_way_or_not_at_all() {
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

    /// What an answer is written as, but for its date, and whether its connection is kept.
    fn written(
        status: u16,
        fields: &[(&str, &str)],
        body: Option<u64>,
        asked: &Asked,
    ) -> (String, String, bool) {
        let mut response = Response::builder().status(status);
        for (name, value) in fields {
            response = response.header(*name, *value);
        }
        let (mut head, ()) = response.body(()).unwrap().into_parts();
        let mut out = Vec::new();
        let (encoder, persists) =
            write(&mut head, body, asked, asked.persists, Instant::now(), None, &mut out);
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

    #[test]
    fn where_an_answer_ends_is_told_as_its_client_understands_it() {
        let asked = Asked { persists: true, takes_trailers: true, ..Asked::UNREADABLE };
        let to_head = Asked { is_head: true, persists: true, ..Asked::UNREADABLE };
        let to_old = Asked { version: Version::HTTP_10, persists: true, ..Asked::UNREADABLE };
        let told = &[("content-length", "5")][..];
        let trailed = &[("trailer", "x-sum")][..];
        for (asked, status, fields, body, head, encoder, persists) in [
            (&asked, 200, &[][..], Some(0), "1.1 200 OK|content-length: 0|", "0", true),
            (&asked, 200, &[], Some(5), "1.1 200 OK|content-length: 5|", "5", true),
            (&asked, 200, told, Some(5), "1.1 200 OK|content-length: 5|", "5", true),
            (&asked, 200, told, Some(4), "1.1 200 OK|content-length: 4|", "4", true),
            (&asked, 200, told, None, "1.1 200 OK|content-length: 5|", "5", true),
            (&asked, 200, &[], None, "1.1 200 OK|transfer-encoding: chunked|", "chunks []", true),
            (
                &asked,
                200,
                trailed,
                None,
                "1.1 200 OK|trailer: x-sum|transfer-encoding: chunked|",
                "chunks [\"x-sum\"]",
                true,
            ),
            (&asked, 204, told, None, "1.1 204 No Content|", "0", true),
            (&asked, 304, told, None, "1.1 304 Not Modified|content-length: 5|", "0", true),
            (&asked, 304, &[], None, "1.1 304 Not Modified|", "0", true),
            (&asked, 299, &[], Some(0), "1.1 299 <none>|content-length: 0|", "0", true),
            (
                &asked,
                101,
                &[("connection", "Upgrade")],
                None,
                "1.1 101 Switching Protocols|connection: Upgrade|",
                "0",
                true,
            ),
            (&to_head, 200, told, Some(0), "1.1 200 OK|content-length: 5|", "0", true),
            (&to_head, 200, &[], Some(5), "1.1 200 OK|content-length: 5|", "0", true),
            (&to_head, 200, trailed, None, "1.1 200 OK|", "0", true),
            (&to_old, 200, told, None, "1.0 200 OK|content-length: 5|connection: keep-alive|", "5", true),
            (&to_old, 200, trailed, None, "1.0 200 OK|connection: close|", "until close", false),
            (
                &Asked::UNREADABLE,
                400,
                &[],
                Some(5),
                "1.1 400 Bad Request|content-length: 5|connection: close|",
                "5",
                false,
            ),
            (
                &Asked::UNREADABLE,
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
                written(status, fields, body, asked),
                expected,
                "{status} {fields:?} {body:?} {asked:?}"
            );
        }
    }
}
