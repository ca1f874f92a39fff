//! The length and the framing of message bodies (RFC 9112, sections 6 and 7).

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
use tokio::{io::AsyncRead, task::coop::poll_proceed};

use super::{Input, Output, head};

/// The most bytes of chunk extensions in a body, including the white space after the sizes.
const EXTENSIONS_MOST: usize = 16 << 10;
/// The most hexadecimal digits of a chunk size.
const SIZE_MOST: usize = 16;
const LINE_END: &[u8] = b"\r\n";

/// Decodes a body from the bytes of a connection.
#[derive(Debug)]
pub enum Decoder {
    /// The number of bytes still to come.
    Length(u64),
    /// A chunked body.
    Chunked(Chunks),
    /// A body that ends with the connection.
    UntilClose,
}

/// The state of decoding a chunked body.
#[derive(Debug)]
pub struct Chunks {
    state: ChunkState,
    /// The bytes of extensions so far.
    extensions: usize,
    /// The most bytes of trailers.
    trailers_most: usize,
}

#[derive(Debug)]
enum ChunkState {
    Size,
    /// The number of bytes of the chunk still to come.
    Data(u64),
    DataEnd,
    Trailers,
}

/// The result of one decoding step.
enum Piece {
    Frame(Frame<Bytes>),
    /// More bytes must be read first.
    Nothing,
    End,
}

impl Decoder {
    /// Creates a decoder for a chunked body whose trailers have at most this many bytes.
    pub fn chunked(trailers_most: usize) -> Self {
        Self::Chunked(Chunks { state: ChunkState::Size, extensions: 0, trailers_most })
    }

    /// Returns true if the body has ended.
    pub fn has_ended(&self) -> bool {
        matches!(self, Self::Length(0))
    }

    /// Returns the length of the rest, as far as it is known.
    pub fn size_hint(&self) -> SizeHint {
        match self {
            Self::Length(rest) => SizeHint::with_exact(*rest),
            Self::Chunked(_) | Self::UntilClose => SizeHint::default(),
        }
    }

    /// Returns the next frame of the body. Reads from the stream if the frame hasn't been read yet. A task's turn ends after some chunks,
    /// however small they are: otherwise all that have arrived would keep others waiting.
    ///
    /// # Errors
    /// The connection failed or ended before the body did, or the chunked framing is invalid.
    pub fn poll_frame(
        &mut self,
        input: &mut Input,
        stream: &mut (impl AsyncRead + Unpin + ?Sized),
        context: &mut Context<'_>,
    ) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        loop {
            let turn = ready!(poll_proceed(context));
            match self.decode(input) {
                Ok(Piece::Frame(frame)) => {
                    turn.made_progress();
                    return Poll::Ready(Some(Ok(frame)));
                }
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

/// Takes the bytes of a chunk or body that have arrived. `rest` is the number of bytes still to come.
fn data(input: &mut Input, rest: &mut u64) -> Frame<Bytes> {
    let there = input.bytes().len();
    let length = usize::try_from(*rest).map_or(there, |rest| rest.min(there));
    *rest -= length as u64;
    Frame::data(input.take(length))
}

impl Chunks {
    fn decode(&mut self, input: &mut Input) -> io::Result<Piece> {
        loop {
            match &mut self.state {
                ChunkState::Size => {
                    let Some(size) = self.take_size(input)? else { return Ok(Piece::Nothing) };
                    self.state = if size == 0 { ChunkState::Trailers } else { ChunkState::Data(size) };
                }
                ChunkState::Data(0) => self.state = ChunkState::DataEnd,
                ChunkState::Data(_) if input.bytes().is_empty() => return Ok(Piece::Nothing),
                ChunkState::Data(rest) => return Ok(Piece::Frame(data(input, rest))),
                ChunkState::DataEnd => {
                    let bytes = input.bytes();
                    if !LINE_END.starts_with(&bytes[..bytes.len().min(LINE_END.len())]) {
                        return Err(malformed("a chunk is longer than its stated size"));
                    }
                    if bytes.len() < LINE_END.len() {
                        return Ok(Piece::Nothing);
                    }
                    input.take(LINE_END.len());
                    self.state = ChunkState::Size;
                }
                ChunkState::Trailers => return take_trailers(input, self.trailers_most),
            }
        }
    }

    /// Takes the line with a chunk's size, if it has arrived (RFC 9112, section 7.1). Extensions are ignored.
    fn take_size(&mut self, input: &mut Input) -> io::Result<Option<u64>> {
        let bytes = input.bytes();
        let end = bytes.iter().position(|byte| *byte == b'\n');
        let line = &bytes[..end.unwrap_or(bytes.len())];
        let digits = line.iter().position(|byte| !byte.is_ascii_hexdigit()).unwrap_or(line.len());
        if self.extensions + line.len() - digits > EXTENSIONS_MOST || digits > SIZE_MOST {
            return Err(malformed("a chunk size, or the chunk extensions, are too long"));
        }
        let Some(end) = end else {
            // A line that can't become valid is rejected at once.
            return match digits == 0 && !line.is_empty() {
                true => Err(malformed("a chunk has no size")),
                false => Ok(None),
            };
        };
        let (size, rest) = line.split_at(digits);
        let rest =
            rest.strip_suffix(b"\r").ok_or_else(|| malformed("the line of a chunk size ends without CR"))?;
        let after = rest.iter().find(|byte| !matches!(byte, b' ' | b'\t'));
        if size.is_empty() || rest.contains(&b'\r') || !matches!(after, None | Some(b';')) {
            return Err(malformed("a chunk size is invalid"));
        }
        let size = str::from_utf8(size).ok().and_then(|size| u64::from_str_radix(size, 16).ok());
        self.extensions += rest.len();
        input.take(end + 1);
        Ok(size)
    }
}

/// Takes the trailers, if all of them have arrived (RFC 9112, section 7.1.2). There may be none.
fn take_trailers(input: &mut Input, most: usize) -> io::Result<Piece> {
    let bytes = input.bytes();
    if bytes.starts_with(LINE_END) {
        input.take(LINE_END.len());
        return Ok(Piece::End);
    }
    let mut fields = [httparse::EMPTY_HEADER; head::FIELDS_MOST];
    let parsed = httparse::parse_headers(bytes, &mut fields);
    match parsed.map_err(|_| malformed("the trailers are invalid, or there are too many"))? {
        httparse::Status::Complete((length, fields)) if length <= most => {
            // httparse accepts LF alone as the end of a line, which is allowed in a head (RFC 9112, section
            // 2.2). In trailers it would only help to smuggle requests.
            if bytes[..length].split_inclusive(|byte| *byte == b'\n').any(|line| !line.ends_with(LINE_END)) {
                return Err(malformed("a trailer line ends without CR"));
            }
            let (trailers, _) =
                head::fields(bytes, fields, 0).map_err(|_| malformed("the trailers are invalid"))?;
            input.take(length);
            Ok(Piece::Frame(Frame::trailers(trailers)))
        }
        httparse::Status::Partial if bytes.len() <= most => Ok(Piece::Nothing),
        _ => Err(malformed("the trailers are too large")),
    }
}

fn malformed(what: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

/// Encodes a body for sending.
#[derive(Debug)]
pub enum Encoder {
    /// The number of bytes still to be written.
    Length(u64),
    /// A chunked body, and the trailers that the head announced.
    Chunked(SmallVec<[HeaderName; 1]>),
    /// A body that ends with the connection.
    UntilClose,
}

impl Encoder {
    /// Creates an encoder for the chunked body of a message with this head. It writes only the trailers that
    /// the head announces in `Trailer` (RFC 9110, section 6.6.2).
    pub fn chunked(head: &HeaderMap) -> Self {
        let lines = head.get_all(TRAILER).into_iter();
        let names = lines.flat_map(|line| line.as_bytes().split(|byte| *byte == b','));
        Self::Chunked(names.filter_map(|name| HeaderName::from_bytes(name.trim_ascii()).ok()).collect())
    }

    /// Returns true if nothing more of the body will be written.
    pub fn has_ended(&self) -> bool {
        matches!(self, Self::Length(0))
    }

    /// Writes a frame. `output` must [take more](Output::takes_more). Bytes beyond the length are left out.
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
        if let (Ok(mut trailers), Self::Chunked(announced)) = (frame.into_trailers(), &*self) {
            let others: Vec<_> = trailers.keys().filter(|name| !announced.contains(name)).cloned().collect();
            others.into_iter().for_each(|name| drop(trailers.remove(name)));
            let bytes = output.bytes();
            bytes.extend_from_slice(b"0\r\n");
            head::write(&trailers, None, bytes);
            bytes.extend_from_slice(LINE_END);
            *self = Self::Length(0);
        }
    }

    /// Ends the body. `output` must [take more](Output::takes_more).
    ///
    /// # Errors
    /// The body is shorter than its stated length.
    pub fn end(&mut self, output: &mut Output) -> io::Result<()> {
        match std::mem::replace(self, Self::Length(0)) {
            Self::Length(0) | Self::UntilClose => {}
            Self::Length(_) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Self::Chunked(_) => output.bytes().extend_from_slice(b"0\r\n\r\n"),
        }
        Ok(())
    }
}
