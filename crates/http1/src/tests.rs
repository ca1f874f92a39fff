use std::{
    future::poll_fn,
    io::ErrorKind,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    task::{Context, Poll, Wake, Waker, ready},
};

use bytes::Bytes;
use http::{
    HeaderMap, Version,
    header::{CONNECTION, CONTENT_LENGTH, HeaderName, HeaderValue, TRAILER, TRANSFER_ENCODING},
};
use http_body::{Body as _, Frame};
use parking_lot::Mutex;
use tokio::io::{AsyncReadExt, duplex};

use super::{
    Incoming, Input, Output, Wire,
    body::{Decoder, Encoder},
    head::{self, Unreadable},
};

fn map(lines: &[(HeaderName, &'static str)]) -> HeaderMap {
    lines.iter().map(|(name, value)| (name.clone(), HeaderValue::from_static(value))).collect()
}

/// Data and trailers of a body that comes in two pieces, and what is left of them.
async fn read(
    mut decoder: Decoder,
    bytes: &[u8],
    at: usize,
) -> Result<(Vec<u8>, Option<HeaderMap>, Bytes), ErrorKind> {
    let (mut input, mut stream) = (Input::default(), (&bytes[..at]).chain(&bytes[at..]));
    let (mut data, mut trailers) = (Vec::new(), None);
    while let Some(frame) = poll_fn(|context| decoder.poll_frame(&mut input, &mut stream, context)).await {
        match frame.map_err(|error| error.kind())?.into_data() {
            Ok(more) => data.extend_from_slice(&more),
            Err(frame) => trailers = frame.into_trailers().ok(),
        }
    }
    assert!(decoder.has_ended());
    Ok((data, trailers, input.bytes().clone()))
}

#[tokio::test]
async fn a_turn_ends_after_some_chunks_however_small() {
    const CHUNKS: usize = 10_000;
    let (mut decoder, bytes) = (Decoder::chunked(0), b"1\r\nx\r\n".repeat(CHUNKS));
    let (mut input, mut stream, mut turns, mut count) = (Input::default(), &bytes[..], 0, 0);
    poll_fn(|context| {
        turns += 1;
        while count < CHUNKS {
            ready!(decoder.poll_frame(&mut input, &mut stream, context)).unwrap().unwrap();
            count += 1;
        }
        Poll::Ready(())
    })
    .await;
    assert!(turns > CHUNKS / 1_000, "{turns}");
}

#[tokio::test]
async fn chunks_are_a_body_however_they_come() {
    let bytes = b"5\r\nhello\r\n1;a=b ;c=\"d\"\r\n,\r\n006 \t\r\n world\r\n0\r\nX-Sum: 7\r\n\r\nGET";
    for at in 0..bytes.len() {
        let (data, trailers, rest) = read(Decoder::chunked(1_000), bytes, at).await.unwrap();
        assert_eq!(data, b"hello, world");
        assert_eq!(trailers.unwrap(), map(&[(HeaderName::from_static("x-sum"), "7")]));
        assert!(b"GET".starts_with(&rest[..]), "{rest:?}");
    }
}

#[tokio::test]
async fn invalid_chunks_are_rejected() {
    let (long, many) = (format!("1;{}\r\na", "x".repeat(17_000)), "1;x=0123456789\r\na\r\n".repeat(1_500));
    let trailers = format!("0\r\n{}\r\n", "a: b\r\n".repeat(101));
    let large = format!("0\r\na: {}\r\n\r\n", "b".repeat(1_000));
    for malformed in [
        "\r\n",
        "x\r\n",
        "+1\r\na\r\n0\r\n\r\n",
        "0x1\r\na\r\n0\r\n\r\n",
        " 1\r\na\r\n0\r\n\r\n",
        "1 1\r\na\r\n0\r\n\r\n",
        "1\na\r\n0\r\n\r\n",
        "1\r\nab\r\n0\r\n\r\n",
        "1\r\na\n0\r\n\r\n",
        "1;a\rb\r\na\r\n0\r\n\r\n",
        "1\x0c\r\na\r\n0\r\n\r\n",
        "1\x0b;a\r\na\r\n0\r\n\r\n",
        "10000000000000000\r\na",
        "0\r\na b: c\r\n\r\n",
        "0\r\na: b\n\r\n",
        &long,
        &many,
        &trailers,
        &large,
    ] {
        let read = read(Decoder::chunked(1_000), malformed.as_bytes(), 0).await;
        assert_eq!(read, Err(ErrorKind::InvalidData), "{malformed:?}");
    }
}

#[tokio::test]
async fn a_body_that_is_cut_short_has_not_ended() {
    let whole = b"5\r\nhello\r\n0\r\n\r\n";
    for end in 0..whole.len() {
        let read = read(Decoder::chunked(1_000), &whole[..end], 0).await;
        assert_eq!(read, Err(ErrorKind::UnexpectedEof), "{end}");
    }
    assert_eq!(read(Decoder::Length(6), b"hello", 2).await, Err(ErrorKind::UnexpectedEof));
    let (data, _, rest) = read(Decoder::Length(5), b"hello, world", 2).await.unwrap();
    assert_eq!((&data[..], &rest[..]), (&b"hello"[..], &b", world"[..]));
    assert_eq!(read(Decoder::UntilClose, b"hello", 2).await.unwrap().0, b"hello");
}

#[tokio::test]
async fn an_encoded_body_is_decoded_again() {
    let head = map(&[(TRAILER, "X-Sum, x-other")]);
    let mut encoder = Encoder::chunked(&head);
    let (large, mut output) = (vec![b'x'; 100_000], Output::default());
    let mut trailers = map(&[(HeaderName::from_static("x-sum"), "7")]);
    let mut wire = Vec::new();
    for data in [&b"a"[..], b"", &large, &large[..20]] {
        encoder.encode(Frame::data(Bytes::copy_from_slice(data)), &mut output);
        wire.extend(written(&mut output).await);
    }
    trailers.insert("x-untold", HeaderValue::from_static("1"));
    encoder.encode(Frame::trailers(trailers), &mut output);
    encoder.end(&mut output).unwrap();
    wire.extend(written(&mut output).await);
    let (data, trailers, rest) = read(Decoder::chunked(1_000), &wire, 3).await.unwrap();
    assert!(data == [b"a", &large[..], &large[..20]].concat() && rest.is_empty());
    assert_eq!(trailers.unwrap(), map(&[(HeaderName::from_static("x-sum"), "7")]));
}

#[test]
fn a_body_is_as_long_as_its_head_says() {
    let (mut encoder, mut output) = (Encoder::Length(5), Output::default());
    encoder.encode(Frame::data(Bytes::from("hel")), &mut output);
    assert!(encoder.end(&mut output).is_err(), "it is too short");
    let (mut encoder, mut output) = (Encoder::Length(5), Output::default());
    encoder.encode(Frame::data(Bytes::from("hello, world")), &mut output);
    encoder.end(&mut output).unwrap();
    assert_eq!(output.bytes(), b"hello");
}

/// What goes over a connection that takes a few bytes at a time.
async fn written(output: &mut Output) -> Vec<u8> {
    let (mut near, mut far) = duplex(1_000);
    let mut wire = Vec::new();
    let write = async {
        poll_fn(|context| output.poll_flush(&mut near, context)).await.unwrap();
        drop(near);
    };
    let ((), read) = tokio::join!(write, far.read_to_end(&mut wire));
    read.unwrap();
    assert!(output.is_empty() && output.takes_more());
    wire
}

#[test]
fn a_head_is_read_when_it_is_whole() {
    let whole = b"GET /a?b HTTP/1.1\r\nHost: a\r\nX-CamelCase: \xe9 1 \r\nx-camelcase:2\r\n\r\nrest";
    let end = whole.len() - b"rest".len();
    for at in 0..end {
        let mut input = Input::default();
        input.push(&whole[..at]);
        assert!(head::request(&mut input, 1_000).unwrap().is_none());
        input.push(&whole[at..]);
        let request = head::request(&mut input, 1_000).unwrap().unwrap();
        assert_eq!((request.method().as_str(), request.uri().to_string()), ("GET", "/a?b".to_owned()));
        assert_eq!(input.bytes(), &b"rest"[..]);
        let mut lines = Vec::new();
        head::write(request.headers(), request.body().as_deref(), &mut lines);
        assert_eq!(lines, b"Host: a\r\nX-CamelCase: \xe9 1\r\nx-camelcase: 2\r\n");
    }
}

#[tokio::test]
async fn reading_ahead_is_limited() {
    let mut stream = tokio::io::repeat(b'x');
    let mut input = Input::default();
    input.push(b"GET / HTTP/1.1\r\n\r\n");
    let mut context = Context::from_waker(Waker::noop());
    while let Poll::Ready(more) = input.poll_ahead(&mut stream, &mut context) {
        assert!(more.unwrap() > 0);
    }
    assert_eq!(input.bytes().len(), 64 << 10);
    input.push(b"more");
    assert!(input.poll_ahead(&mut stream, &mut context).is_pending());
}

#[test]
fn lines_before_a_head_leave_nothing_behind() {
    let mut input = Input::default();
    for (lines, left) in [(&b"\r\n"[..], &b""[..]), (b"\n\r\n\r", b"\r"), (b"\n", b"")] {
        input.push(lines);
        assert!(head::request(&mut input, 100).unwrap().is_none());
        assert_eq!(input.bytes(), left);
    }
    input.push(b"GET / HTTP/1.1\r\n\r\n");
    assert!(head::request(&mut input, 100).unwrap().is_some());
}

#[test]
fn names_are_written_as_they_were_spelt_in_whatever_order() {
    let mut input = Input::default();
    input.push(b"HTTP/1.1 200 OK\r\nB: 1\r\nsERVER: x\r\nAb: 2\r\nlow: 3\r\n\r\n");
    let mut response = head::response(&mut input, 1_000).unwrap().unwrap();
    let server = response.headers_mut().remove("server").unwrap();
    response.headers_mut().insert("new", HeaderValue::from_static("4"));
    response.headers_mut().insert("server", server);
    let mut lines = Vec::new();
    head::write(response.headers(), response.body().as_deref(), &mut lines);
    let mut lines: Vec<_> = str::from_utf8(&lines).unwrap().lines().collect();
    lines.sort_unstable();
    assert_eq!(lines, ["Ab: 2", "B: 1", "low: 3", "new: 4", "sERVER: x"]);
}

#[test]
fn a_head_has_its_bounds() {
    let unreadable = |text: &str, most| {
        let mut input = Input::default();
        input.push(text.as_bytes());
        head::request(&mut input, most).unwrap_err()
    };
    let fields = |count| format!("GET / HTTP/1.1\r\n{}\r\n", "a: b\r\n".repeat(count));
    assert_eq!(unreadable(&fields(101), 10_000), Unreadable::TooLarge);
    assert_eq!(unreadable(&fields(100), fields(100).len() - 1), Unreadable::TooLarge);
    assert_eq!(unreadable(&"GET / HTTP/1.1\r\nendless: "[..20], 20), Unreadable::TooLarge);
    let long = format!("GET /{} HTTP/1.1\r\n\r\n", "x".repeat(65_535));
    assert_eq!(unreadable(&long, 100_000), Unreadable::TargetTooLong);
    for malformed in
        ["GET / HTTP/2.0\r\n\r\n", "GET /\r\n\r\n", "G@T / HTTP/1.1\r\n", "GET / HTTP/1.1\r\na b: c\r\n\r\n"]
    {
        assert_eq!(unreadable(malformed, 1_000), Unreadable::Malformed, "{malformed:?}");
    }
    let mut input = Input::default();
    input.push(fields(100).as_bytes());
    assert_eq!(head::request(&mut input, fields(100).len()).unwrap().unwrap().headers().len(), 100);
}

#[test]
fn the_framing_of_a_body_is_read_from_its_head() {
    let length = |lines: &[&'static str]| {
        let lines = lines.iter().map(|line| (CONTENT_LENGTH, HeaderValue::from_static(line)));
        head::content_length(&lines.collect())
    };
    assert_eq!(length(&[]), Ok(None));
    for same in [&["5"][..], &["5", "5"], &["5, 5"], &["05"], &["5", "05"]] {
        assert_eq!(length(same), Ok(Some(5)), "{same:?}");
    }
    assert_eq!(length(&["9223372036854775807"]), Ok(Some(i64::MAX as u64)));
    for none in
        [&["5", "6"][..], &["5, 6"], &["+5"], &["-5"], &[""], &["5,"], &["5 5"], &["9223372036854775808"]]
    {
        assert_eq!(length(none), Err(Unreadable::Malformed), "{none:?}");
    }
    let chunked = |line| head::is_chunked(&map(&[(TRANSFER_ENCODING, line)]));
    assert_eq!(head::is_chunked(&HeaderMap::new()), None);
    assert!(["chunked", "Chunked", " chunked "].iter().all(|line| chunked(line) == Some(true)));
    for other in [
        "gzip",
        "chunked, gzip",
        "gzip, chunked",
        "chunked, chunked",
        ", chunked",
        "chunked;a",
        "xchunked",
        "",
    ] {
        assert_eq!(chunked(other), Some(false), "{other:?}");
    }
    let two = map(&[(TRANSFER_ENCODING, "chunked"), (TRANSFER_ENCODING, "chunked")]);
    assert_eq!(head::is_chunked(&two), Some(false));
    for stated in [&["5"][..], &["05"], &["5", "5"], &["5, 005"], &["0005", "5"]] {
        let lines = stated.iter().map(|line| (CONTENT_LENGTH, HeaderValue::from_static(line)));
        let mut fields: HeaderMap = lines.collect();
        assert_eq!(head::unify_length(&mut fields), Ok(Some(5)));
        assert_eq!(fields, map(&[(CONTENT_LENGTH, "5")]), "{stated:?}");
    }
}

#[test]
fn a_connection_persists_as_both_say() {
    let persists = |version, lines: &[&'static str]| {
        let lines = lines.iter().map(|line| (CONNECTION, HeaderValue::from_static(line)));
        head::persists(version, &lines.collect())
    };
    assert!(persists(Version::HTTP_11, &[]) && !persists(Version::HTTP_10, &[]));
    assert!(persists(Version::HTTP_10, &["x, Keep-Alive"]));
    assert!(!persists(Version::HTTP_11, &["keep-alive", "a,Close"]));
    assert!(!persists(Version::HTTP_11, &["close", "keep-alive"]));
}

/// True once a task is woken.
#[derive(Default)]
struct Woken(AtomicBool);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Relaxed);
    }
}

#[test]
fn a_body_ends_with_its_connection() {
    let (_client, stream) = duplex(64);
    let wire = Arc::new(Mutex::new(Wire::new(stream, Input::default())));
    let mut body = Incoming::begin(&wire, Decoder::Length(5), false);
    let reader = Arc::new(Woken::default());
    let waker = reader.clone().into();
    let mut read = || Pin::new(&mut body).poll_frame(&mut Context::from_waker(&waker));
    assert!(read().is_pending());
    assert!(!reader.0.load(Relaxed));
    drop(wire);
    assert!(reader.0.load(Relaxed), "the reader is woken");
    assert!(matches!(read(), Poll::Ready(Some(Err(error))) if error.kind() == ErrorKind::UnexpectedEof));
}
