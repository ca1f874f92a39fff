//! gRPC calls with one message in each direction, over the server's own HTTP/2.
//!
//! A message is framed by five bytes: a flag that says whether it is compressed, and its length. The response ends with the
//! status of the call, in trailers or, if there is no message, in the header.

use std::{
    convert::Infallible,
    mem,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use bytes::{Buf, BufMut, Bytes, BytesMut};
use futures_util::Stream;
use http_body::{Body, Frame, SizeHint};
use http_body_util::BodyExt;
use hyper::{
    HeaderMap, Response,
    header::{CONTENT_TYPE, HeaderName, HeaderValue},
};
use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};
use prost::Message;

/// The most bytes of a message.
const MESSAGE_MOST: usize = 1 << 20;
/// The longest timeout that a caller can state. Nothing here takes as long, and a longer one can't be added to a time.
const TIMEOUT_MOST: Duration = Duration::from_secs(24 * 60 * 60);
/// Bytes before a message: whether it is compressed, and its length.
pub(crate) const PREFIX_BYTES: usize = 5;

const GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");
const GRPC_MESSAGE: HeaderName = HeaderName::from_static("grpc-message");
const GRPC_TIMEOUT: HeaderName = HeaderName::from_static("grpc-timeout");
/// Envoy states its own timeout of a call only here, in milliseconds.
const ENVOY_TIMEOUT: HeaderName = HeaderName::from_static("x-envoy-expected-rq-timeout-ms");
static CONTENT_TYPE_GRPC: HeaderValue = HeaderValue::from_static("application/grpc");

/// The characters that are escaped in a status message: all that aren't printable ASCII, and `%` itself.
const ESCAPED: &AsciiSet = &CONTROLS.add(b'%');

/// The status codes of calls that are used here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Code {
    /// The call succeeded.
    Ok = 0,
    /// The caller asks for something invalid.
    InvalidArgument = 3,
    /// The caller's deadline has passed.
    DeadlineExceeded = 4,
    /// The subject of the call doesn't exist.
    NotFound = 5,
    /// The message is too large.
    ResourceExhausted = 8,
    /// There is no such method, or no such way to call it.
    Unimplemented = 12,
    /// The call can't be answered now.
    Unavailable = 14,
}

/// The status of a call that has failed.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Status {
    /// The code.
    pub(crate) code: Code,
    /// The message for the people who operate the caller.
    pub(crate) message: String,
}

impl Status {
    /// Creates a status.
    pub(super) fn new(code: Code, message: impl Into<String>) -> Self {
        Self { code, message: message.into() }
    }

    /// Creates the status of a call that asks for something invalid.
    pub(super) fn invalid(message: impl Into<String>) -> Self {
        Self::new(Code::InvalidArgument, message)
    }

    fn write(&self, fields: &mut HeaderMap) {
        fields.insert(GRPC_STATUS, HeaderValue::from(self.code as u16));
        if !self.message.is_empty() {
            let message = utf8_percent_encode(&self.message, ESCAPED).to_string();
            fields
                .insert(GRPC_MESSAGE, HeaderValue::try_from(message).expect("escaped text is visible ASCII"));
        }
    }
}

/// The body of a response to a call.
#[derive(Default)]
pub(super) enum ReplyBody {
    /// Nothing more.
    #[default]
    Ended,
    /// The only message, then the trailers.
    Message(Bytes),
    /// The trailers of a call that succeeded.
    Trailers,
    /// Messages until the caller has enough of them.
    Messages(Messages),
}

/// Framed messages in the order in which they are sent.
pub(super) type Messages = Pin<Box<dyn Stream<Item = Bytes> + Send + Sync>>;

/// Reads the only message of a call.
///
/// # Errors
/// The status of a call whose message is too large, compressed, incomplete or malformed, or isn't the only one.
pub(super) async fn read<M: Message + Default>(
    mut body: impl Body<Data = Bytes, Error = impl std::fmt::Display> + Unpin,
) -> Result<M, Status> {
    let mut sent = BytesMut::new();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| Status::invalid(format!("can't read the message: {error}")))?;
        let Ok(data) = frame.into_data() else { continue };
        sent.extend_from_slice(&data);
        if message_length(&sent, MESSAGE_MOST)?.is_some_and(|length| sent.len() > PREFIX_BYTES + length) {
            return Err(Status::new(Code::Unimplemented, "the call has more than one message"));
        }
    }
    let length = message_length(&sent, MESSAGE_MOST)?;
    if length.is_none_or(|length| sent.len() < PREFIX_BYTES + length) {
        return Err(Status::invalid("the message is incomplete"));
    }
    M::decode(sent.freeze().split_off(PREFIX_BYTES))
        .map_err(|error| Status::invalid(format!("the message is malformed: {error}")))
}

/// Returns the length of the message that begins so, once its prefix has arrived.
///
/// # Errors
/// The message is compressed, or has more bytes than `most`.
pub(crate) fn message_length(mut sent: &[u8], most: usize) -> Result<Option<usize>, Status> {
    if sent.len() < PREFIX_BYTES {
        return Ok(None);
    }
    let is_compressed = sent.get_u8() != 0;
    let length = sent.get_u32() as usize;
    if is_compressed {
        return Err(Status::new(Code::Unimplemented, "compressed messages aren't supported"));
    }
    if length > most {
        let message = format!("the message has {length} bytes, more than {most}");
        return Err(Status::new(Code::ResourceExhausted, message));
    }
    Ok(Some(length))
}

/// Returns a message with its prefix.
pub(crate) fn framed(message: &impl Message) -> Bytes {
    let length = message.encoded_len();
    let mut framed = BytesMut::with_capacity(PREFIX_BYTES + length);
    framed.put_u8(0);
    framed.put_u32(u32::try_from(length).expect("a message of at most 4 GiB"));
    message.encode(&mut framed).expect("a buffer that grows");
    framed.freeze()
}

/// Returns the response to a call: its message and a status of 0, or the status of its failure.
pub(super) fn response(answer: Result<impl Message, Status>) -> Response<ReplyBody> {
    let mut response = Response::new(ReplyBody::default());
    response.headers_mut().insert(CONTENT_TYPE, CONTENT_TYPE_GRPC.clone());
    match answer {
        Ok(message) => *response.body_mut() = ReplyBody::Message(framed(&message)),
        Err(status) => status.write(response.headers_mut()),
    }
    response
}

/// Returns the time that a caller waits for the response, if it states one.
pub(super) fn timeout(headers: &HeaderMap) -> Option<Duration> {
    let text = |name: HeaderName| headers.get(name).and_then(|value| value.to_str().ok());
    let of_grpc = text(GRPC_TIMEOUT).and_then(read_timeout);
    let of_envoy = text(ENVOY_TIMEOUT).and_then(|digits| digits.parse().ok()).map(Duration::from_millis);
    let timeout = of_grpc.into_iter().chain(of_envoy).min()?;
    Some(timeout.min(TIMEOUT_MOST))
}

/// Reads a timeout of at most eight digits and a unit: `20m` are 20 ms.
fn read_timeout(text: &str) -> Option<Duration> {
    let (digits, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    if digits.is_empty() || digits.len() > 8 || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let number = digits.parse().ok()?;
    Some(match unit {
        "H" => Duration::from_secs(number * 3600),
        "M" => Duration::from_secs(number * 60),
        "S" => Duration::from_secs(number),
        "m" => Duration::from_millis(number),
        "u" => Duration::from_micros(number),
        "n" => Duration::from_nanos(number),
        _ => return None,
    })
}

/// Returns the response to a call that is answered by any number of messages.
pub(super) fn streamed(messages: Messages) -> Response<ReplyBody> {
    let mut response = Response::new(ReplyBody::Messages(messages));
    response.headers_mut().insert(CONTENT_TYPE, CONTENT_TYPE_GRPC.clone());
    response
}

impl Body for ReplyBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let (frame, next) = match mem::take(&mut *self) {
            Self::Ended => return Poll::Ready(None),
            Self::Message(message) => (Frame::data(message), Self::Trailers),
            Self::Trailers => {
                let status = (GRPC_STATUS, HeaderValue::from(Code::Ok as u16));
                (Frame::trailers(HeaderMap::from_iter([status])), Self::Ended)
            }
            Self::Messages(mut messages) => match messages.as_mut().poll_next(context) {
                Poll::Ready(Some(message)) => (Frame::data(message), Self::Messages(messages)),
                Poll::Ready(None) => {
                    *self = Self::Trailers;
                    return self.poll_frame(context);
                }
                Poll::Pending => {
                    *self = Self::Messages(messages);
                    return Poll::Pending;
                }
            },
        };
        *self = next;
        Poll::Ready(Some(Ok(frame)))
    }

    fn is_end_stream(&self) -> bool {
        matches!(self, Self::Ended)
    }

    fn size_hint(&self) -> SizeHint {
        if self.is_end_stream() { SizeHint::with_exact(0) } else { SizeHint::default() }
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::{Full, StreamBody};

    use super::*;

    #[derive(Clone, PartialEq, Message)]
    struct Text {
        #[prost(string, tag = "1")]
        text: String,
    }

    fn wait<T>(future: impl Future<Output = T>) -> T {
        tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(future)
    }

    /// Reads a message whose bytes arrive in pieces of this size.
    fn read_pieces(bytes: &[u8], size: usize) -> Result<Text, Status> {
        let pieces = bytes.chunks(size).map(|piece| Ok(Frame::data(Bytes::copy_from_slice(piece))));
        let pieces: Vec<Result<_, Infallible>> = pieces.collect();
        wait(read(StreamBody::new(futures_util::stream::iter(pieces))))
    }

    fn code(bytes: &[u8]) -> Code {
        read_pieces(bytes, bytes.len().max(1)).expect_err("the message is bad").code
    }

    #[test]
    fn a_message_is_read_in_any_pieces() {
        let text = Text { text: "all of it".to_owned() };
        let bytes = framed(&text);
        for size in 1..=bytes.len() {
            assert_eq!(read_pieces(&bytes, size).unwrap(), text);
        }
        assert_eq!(read_pieces(b"\0\0\0\0\0", 1).unwrap(), Text::default());
    }

    #[test]
    fn bad_messages_have_their_status() {
        assert_eq!(code(b""), Code::InvalidArgument);
        assert_eq!(code(b"\0\0\0\0"), Code::InvalidArgument);
        assert_eq!(code(b"\0\0\0\0\x02\x0a"), Code::InvalidArgument);
        assert_eq!(code(b"\0\0\0\0\x02\x0a\x05"), Code::InvalidArgument);
        assert_eq!(code(b"\x01\0\0\0\0"), Code::Unimplemented);
        assert_eq!(code(b"\0\0\0\0\0\0"), Code::Unimplemented);
        // It is rejected by its length, before it has arrived.
        assert_eq!(code(b"\0\0\x10\0\x01"), Code::ResourceExhausted);
        assert_eq!(code(b"\0\xff\xff\xff\xff"), Code::ResourceExhausted);
    }

    #[test]
    fn a_message_may_have_a_mebibyte() {
        let most = Text { text: "a".repeat(MESSAGE_MOST - 4) };
        let bytes = framed(&most);
        assert_eq!(bytes.len(), PREFIX_BYTES + MESSAGE_MOST);
        assert_eq!(wait(read::<Text>(Full::new(bytes))).unwrap(), most);
    }

    #[test]
    fn a_failure_is_told_in_the_header() {
        let response = response(Err::<(), _>(Status::invalid("100 % of\n`grün`")));
        let fields = response.headers();
        assert_eq!(
            (&fields["grpc-status"], &fields["content-type"]),
            (&"3".parse().unwrap(), &CONTENT_TYPE_GRPC)
        );
        assert_eq!(fields["grpc-message"], "100 %25 of%0A`gr%C3%BCn`");
        assert!(response.body().is_end_stream());
    }

    #[test]
    fn timeouts_are_read() {
        let timeout = |name: &'static str, value: &str| {
            timeout(&HeaderMap::from_iter([(HeaderName::from_static(name), value.parse().unwrap())]))
        };
        let of_grpc = |value| timeout("grpc-timeout", value).map(|timeout| timeout.as_nanos());
        let second = 1_000_000_000;
        for (value, nanoseconds) in [
            ("20m", second / 50),
            ("3S", 3 * second),
            ("2M", 120 * second),
            ("5u", 5_000),
            ("7n", 7),
            ("0n", 0),
            ("168H", 24 * 3600 * second),
            ("99999999H", 24 * 3600 * second),
        ] {
            assert_eq!(of_grpc(value), Some(nanoseconds), "{value}");
        }
        for value in ["", "m", "20", "20s", "+1m", "123456789m", "1.5S"] {
            assert_eq!(of_grpc(value), None, "{value}");
        }
        let of_envoy = |value| timeout("x-envoy-expected-rq-timeout-ms", value);
        assert_eq!(of_envoy("20"), Some(Duration::from_millis(20)));
        assert_eq!((of_envoy("soon"), of_envoy("-1")), (None, None));
        let both = [("grpc-timeout", "1S"), ("x-envoy-expected-rq-timeout-ms", "20")];
        let both = both.map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value)));
        assert_eq!(super::timeout(&HeaderMap::from_iter(both)), Some(Duration::from_millis(20)));
    }
}
