//! How long the bodies of messages are, and how they are framed (RFC 9112, sections 6 and 7).

use std::{
    io,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use http::{
    HeaderMap,
    header::{HeaderName, TRAILER},
};
use http_body::{Frame, SizeHint};
use smallvec::SmallVec;
use tokio::io::AsyncRead;

use super::{Input, Output, head};

/// Bytes that the extensions of all chunks of a body may have together, with the sizes beside them.
const EXTENSIONS_MOST: usize = 16 << 10;
/// Bytes that the size of a chunk has at most, in hexadecimal.
const SIZE_MOST: usize = 16;
const LINE_END: &[u8] = b"\r\n";

/// Takes a body out of what comes.
#[derive(Debug)]
pub enum Decoder {
    /// So many bytes are to come yet.
    Length(u64),
    /// In chunks.
    Chunked(Chunks),
    /// All that comes until the connection ends.
    UntilClose,
}

/// Where in a chunked body one is.
#[derive(Debug)]
pub struct Chunks {
    place: Place,
    /// Bytes of extensions so far.
    extensions: usize,
    /// Bytes that the trailers may have.
    trailers_most: usize,
}

#[derive(Debug)]
enum Place {
    Size,
    /// So many bytes of the chunk are to come yet.
    Data(u64),
    DataEnd,
    Trailers,
}

/// What there is of a body.
enum Piece {
    Frame(Frame<Bytes>),
    /// More must come first.
    Nothing,
    End,
}

impl Decoder {
    /// Of a chunked body, whose trailers may have so many bytes.
    pub fn chunked(trailers_most: usize) -> Self {
        Self::Chunked(Chunks { place: Place::Size, extensions: 0, trailers_most })
    }

    /// Whether it has ended.
    pub fn has_ended(&self) -> bool {
        matches!(self, Self::Length(0))
    }

    /// How long the rest of it is.
    pub fn size_hint(&self) -> SizeHint {
        match self {
            Self::Length(rest) => SizeHint::with_exact(*rest),
            Self::Chunked(_) | Self::UntilClose => SizeHint::default(),
        }
    }

    /// The next of the body, which is read from the stream where it hasn't come yet.
    ///
    /// # Errors
    /// The connection broke, or ended before the body; or what came isn't chunked as it should be.
    pub fn poll_frame(
        &mut self,
        input: &mut Input,
        stream: &mut (impl AsyncRead + Unpin + ?Sized),
        context: &mut Context<'_>,
    ) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        loop {
            match self.decode(input) {
                Ok(Piece::Frame(frame)) => return Poll::Ready(Some(Ok(frame))),
                Ok(Piece::End) => return Poll::Ready(None),
                Ok(Piece::Nothing) => {}
                Err(malformed) => return Poll::Ready(Some(Err(malformed))),
            }
            if ready!(input.poll_more(stream, context))? == 0 {
                if !matches!(self, Self::UntilClose) {
                    return Poll::Ready(Some(Err(io::ErrorKind::UnexpectedEof.into())));
                }
                *self = Self::Length(0);
            }
        }
    }

    fn decode(&mut self, input: &mut Input) -> io::Result<Piece> {
        match self {
            Self::Length(0) => Ok(Piece::End),
            Self::Chunked(chunks) => {
                let piece = chunks.decode(input)?;
                let is_last = match &piece {
                    Piece::Frame(frame) => frame.is_trailers(),
                    Piece::Nothing => false,
                    Piece::End => true,
                };
                if is_last {
                    *self = Self::Length(0);
                }
                Ok(piece)
            }
            _ if input.bytes().is_empty() => Ok(Piece::Nothing),
            Self::Length(rest) => Ok(Piece::Frame(data(input, rest))),
            Self::UntilClose => Ok(Piece::Frame(Frame::data(input.take(input.bytes().len())))),
        }
    }
}

/// Data of which so many bytes are to come yet, as far as they are there.
fn data(input: &mut Input, rest: &mut u64) -> Frame<Bytes> {
    let there = input.bytes().len();
    let length = usize::try_from(*rest).map_or(there, |rest| rest.min(there));
    *rest -= length as u64;
    Frame::data(input.take(length))
}

impl Chunks {
    fn decode(&mut self, input: &mut Input) -> io::Result<Piece> {
        loop {
            match &mut self.place {
                Place::Size => {
                    let Some(size) = self.take_size(input)? else { return Ok(Piece::Nothing) };
                    self.place = if size == 0 { Place::Trailers } else { Place::Data(size) };
                }
                Place::Data(0) => self.place = Place::DataEnd,
                Place::Data(_) if input.bytes().is_empty() => return Ok(Piece::Nothing),
                Place::Data(rest) => return Ok(Piece::Frame(data(input, rest))),
                Place::DataEnd => {
                    let bytes = input.bytes();
                    if !LINE_END.starts_with(&bytes[..bytes.len().min(LINE_END.len())]) {
                        return Err(malformed("a chunk is longer than its size"));
                    }
                    if bytes.len() < LINE_END.len() {
                        return Ok(Piece::Nothing);
                    }
                    input.take(LINE_END.len());
                    self.place = Place::Size;
                }
                Place::Trailers => return take_trailers(input, self.trailers_most),
            }
        }
    }

    /// Takes the line of a chunk's size, if it is there (RFC 9112, section 7.1). Extensions are passed over.
    fn take_size(&mut self, input: &mut Input) -> io::Result<Option<u64>> {
        let bytes = input.bytes();
        let end = bytes.iter().position(|byte| *byte == b'\n');
        let line = &bytes[..end.unwrap_or(bytes.len())];
        let digits = line.iter().position(|byte| !byte.is_ascii_hexdigit()).unwrap_or(line.len());
        if self.extensions + line.len() - digits > EXTENSIONS_MOST || digits > SIZE_MOST {
            return Err(malformed("a chunk's size, or its extensions, are too long"));
        }
        let Some(end) = end else {
            // What can't become one needn't be waited for.
            return match digits == 0 && !line.is_empty() {
                true => Err(malformed("a chunk has no size")),
                false => Ok(None),
            };
        };
        let (size, rest) = line.split_at(digits);
        let rest = rest.strip_suffix(b"\r").ok_or_else(|| malformed("a chunk's size ends without CR"))?;
        let after = rest.iter().find(|byte| !matches!(byte, b' ' | b'\t'));
        if size.is_empty() || rest.contains(&b'\r') || !matches!(after, None | Some(b';')) {
            return Err(malformed("a chunk's size is none"));
        }
        let size = str::from_utf8(size).ok().and_then(|size| u64::from_str_radix(size, 16).ok());
        self.extensions += rest.len();
        input.take(end + 1);
        Ok(size)
    }
}

/// Takes the trailers, which may be none, if all of them are there (RFC 9112, section 7.1.2).
fn take_trailers(input: &mut Input, most: usize) -> io::Result<Piece> {
    let bytes = input.bytes();
    if bytes.starts_with(LINE_END) {
        input.take(LINE_END.len());
        return Ok(Piece::End);
    }
    let mut fields = [httparse::EMPTY_HEADER; head::FIELDS_MOST];
    let parsed = httparse::parse_headers(bytes, &mut fields);
    match parsed.map_err(|_| malformed("trailers are no fields, or too many"))? {
        httparse::Status::Complete((length, fields)) if length <= most => {
            // httparse takes LF alone for a line's end, as one may in a head (RFC 9112, section 2.2). Here it would be lenient
            // for nothing but who hides something.
            if bytes[..length].split_inclusive(|byte| *byte == b'\n').any(|line| !line.ends_with(LINE_END)) {
                return Err(malformed("a trailer ends without CR"));
            }
            let (trailers, _) =
                head::fields(bytes, fields, 0).map_err(|_| malformed("trailers are no fields"))?;
            input.take(length);
            Ok(Piece::Frame(Frame::trailers(trailers)))
        }
        httparse::Status::Partial if bytes.len() <= most => Ok(Piece::Nothing),
        _ => Err(malformed("trailers are too large")),
    }
}

fn malformed(what: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

/// Frames a body that is written.
#[derive(Debug)]
pub enum Encoder {
    /// So many bytes are to be written yet.
    Length(u64),
    /// In chunks, and at the end those trailers of which the head tells.
    Chunked(SmallVec<[HeaderName; 1]>),
    /// All of it until the connection ends.
    UntilClose,
}

impl Encoder {
    /// Of a chunked body, of a message with this head: only the trailers are written that it tells of (RFC 9110, section 6.6.2).
    pub fn chunked(head: &HeaderMap) -> Self {
        let lines = head.get_all(TRAILER).into_iter();
        let names = lines.flat_map(|line| line.as_bytes().split(|byte| *byte == b','));
        Self::Chunked(names.filter_map(|name| HeaderName::from_bytes(name.trim_ascii()).ok()).collect())
    }

    /// Whether nothing of the body is to be written any more.
    pub fn has_ended(&self) -> bool {
        matches!(self, Self::Length(0))
    }

    /// Writes a frame. There must be no data to be written yet. What is beyond the length is left out.
    pub fn encode(&mut self, frame: Frame<Bytes>, output: &mut Output) {
        let frame = match (frame.into_data(), &mut *self) {
            (Ok(data), _) if data.is_empty() => return,
            (Ok(mut data), Self::Length(rest)) => {
                data.truncate(usize::try_from(*rest).unwrap_or(usize::MAX));
                *rest -= data.len() as u64;
                return output.push(data, b"");
            }
            (Ok(data), Self::Chunked(_)) => {
                output.bytes().extend_from_slice(format!("{:X}\r\n", data.len()).as_bytes());
                return output.push(data, LINE_END);
            }
            (Ok(data), Self::UntilClose) => return output.push(data, b""),
            (Err(frame), _) => frame,
        };
        if let (Ok(mut trailers), Self::Chunked(told)) = (frame.into_trailers(), &*self) {
            let others: Vec<_> = trailers.keys().filter(|name| !told.contains(name)).cloned().collect();
            others.into_iter().for_each(|name| drop(trailers.remove(name)));
            let bytes = output.bytes();
            bytes.extend_from_slice(b"0\r\n");
            head::write(&trailers, None, bytes);
            bytes.extend_from_slice(LINE_END);
            *self = Self::Length(0);
        }
    }

    /// Ends the body. There must be no data to be written yet.
    ///
    /// # Errors
    /// It is shorter than it should be.
    pub fn end(&mut self, output: &mut Output) -> io::Result<()> {
        match std::mem::replace(self, Self::Length(0)) {
            Self::Length(0) | Self::UntilClose => {}
            Self::Length(_) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Self::Chunked(_) => output.bytes().extend_from_slice(b"0\r\n\r\n"),
        }
        Ok(())
    }
}
