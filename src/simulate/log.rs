//! Access logs, merged into one stream of requests in the order of their arrival.
//!
//! Servers write a line when the response has ended, and restarts and clock changes add to that, so a log is
//! only nearly in order. Up to [`WAITING_MOST`] lines of all files together are held back, fewer if they are
//! long, and the earliest is replayed next. A line that is later than that is replayed at the time that has
//! been reached, and counted as late.

use std::{
    cmp::{Ordering, Reverse},
    collections::BinaryHeap,
    io::{self, BufRead, BufReader, Read},
};

use flate2::bufread::MultiGzDecoder;
use serde::Serialize;

use super::line::{Logged, Wanted};

/// The most lines that are held back.
pub const WAITING_MOST: usize = 65_536;
/// The most bytes of held lines.
const WAITING_BYTES_MOST: usize = 64 << 20;
/// The most bytes of a line. Longer ones are not parsed.
const LINE_BYTES_MOST: usize = 64 << 10;
/// The most unreadable lines to list.
const NAMED_MOST: usize = 5;
const BUFFER: usize = 64 << 10;
const GZIP: [u8; 2] = [0x1f, 0x8b];

/// A set of logs that are read together.
pub struct Logs {
    files: Vec<LogFile>,
    waiting: BinaryHeap<Reverse<PendingLine>>,
    read: LinesRead,
    reached_us: u64,
}

/// The number of lines that were read, and those that couldn't be parsed.
#[derive(Clone, Debug, Default, Serialize)]
pub struct LinesRead {
    /// All lines.
    pub lines: u64,
    /// The lines that aren't requests.
    pub unreadable: u64,
    /// The first unreadable lines.
    pub named: Vec<UnreadableLine>,
    /// The requests that came too late to be put in order.
    pub late: u64,
}

/// A line that can't be parsed as a request.
#[derive(Clone, Debug, Serialize)]
pub struct UnreadableLine {
    /// The file.
    pub file: String,
    /// The line number, from 1.
    pub line: u64,
    /// The reason.
    pub reason: &'static str,
}

struct LogFile {
    name: String,
    from: Box<dyn BufRead>,
    line: u64,
    /// True if one of its lines was a request.
    has_requests: bool,
    /// The reason why its first line isn't a request.
    first_reason: Option<&'static str>,
    buffer: Vec<u8>,
    /// The number of this file's lines that are held back, and their bytes.
    waiting: usize,
    waiting_bytes: usize,
}

/// A request that is held back. Of equal times, the one that was read first is replayed first.
struct PendingLine {
    logged: Box<Logged>,
    file: usize,
    line: u64,
    bytes: usize,
}

impl PendingLine {
    fn order(&self) -> impl Ord + use<> {
        (self.logged.at_us, self.file, self.line)
    }
}

impl Ord for PendingLine {
    fn cmp(&self, other: &Self) -> Ordering {
        self.order().cmp(&other.order())
    }
}

impl PartialOrd for PendingLine {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for PendingLine {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for PendingLine {}

impl Logs {
    /// Opens logs, given by name and content. Content that begins like gzip is decompressed.
    ///
    /// # Errors
    /// A log can't be read.
    pub fn open(files: Vec<(String, Box<dyn Read>)>) -> io::Result<Self> {
        let files =
            files.into_iter().map(|(name, from)| LogFile::open(name, from)).collect::<Result<_, _>>()?;
        let (waiting, read) = (BinaryHeap::new(), LinesRead::default());
        Ok(Self { files, waiting, read, reached_us: 0 })
    }

    /// Returns the counts of the lines that were read so far.
    pub fn read(&self) -> &LinesRead {
        &self.read
    }

    /// Returns the next request.
    ///
    /// # Errors
    /// A file can't be read.
    pub(super) fn next(&mut self, wanted: &Wanted) -> io::Result<Option<Box<Logged>>> {
        if self.read.lines == 0 {
            (0..self.files.len()).try_for_each(|file| self.fill(file, wanted))?;
        }
        let Some(Reverse(PendingLine { mut logged, file, bytes, .. })) = self.waiting.pop() else {
            return Ok(None);
        };
        self.files[file].waiting -= 1;
        self.files[file].waiting_bytes -= bytes;
        self.fill(file, wanted)?;
        self.read.late += u64::from(logged.at_us < self.reached_us);
        self.reached_us = self.reached_us.max(logged.at_us);
        logged.at_us = self.reached_us;
        Ok(Some(logged))
    }

    /// Reads from a file until its share of held lines is full. One line is always held.
    fn fill(&mut self, file: usize, wanted: &Wanted) -> io::Result<()> {
        let (most, bytes_most) = (WAITING_MOST / self.files.len(), WAITING_BYTES_MOST / self.files.len());
        loop {
            let LogFile { waiting, waiting_bytes, .. } = self.files[file];
            let has_room = waiting == 0 || waiting < most && waiting_bytes < bytes_most;
            if !has_room || !self.read_from(file, wanted)? {
                return Ok(());
            }
        }
    }

    /// Reads one more request of a file. Returns false at its end.
    ///
    /// # Errors
    /// The file can't be read, or it has lines and none of them is a request.
    fn read_from(&mut self, file: usize, wanted: &Wanted) -> io::Result<bool> {
        let from = &mut self.files[file];
        while let Some(line) = from.next()? {
            self.read.lines += 1;
            let bytes = line.map_or(0, <[u8]>::len);
            let logged = line.ok_or("line too long").and_then(|line| Logged::read(line, wanted));
            match logged {
                Ok(logged) => {
                    from.has_requests = true;
                    from.waiting += 1;
                    from.waiting_bytes += bytes;
                    let waiting = PendingLine { logged: Box::new(logged), file, line: from.line, bytes };
                    self.waiting.push(Reverse(waiting));
                    return Ok(true);
                }
                Err(reason) => {
                    self.read.unreadable += 1;
                    from.first_reason.get_or_insert(reason);
                    if self.read.named.len() < NAMED_MOST {
                        self.read.named.push(UnreadableLine {
                            file: from.name.clone(),
                            line: from.line,
                            reason,
                        });
                    }
                }
            }
        }
        match from.first_reason {
            Some(reason) if !from.has_requests => Err(from.is_no_log(reason)),
            _ => Ok(false),
        }
    }
}

impl LogFile {
    fn open(name: String, from: Box<dyn Read>) -> io::Result<Self> {
        let mut from = BufReader::with_capacity(BUFFER, from);
        let is_packed = in_file(&name, from.fill_buf())?.starts_with(&GZIP);
        let from: Box<dyn BufRead> = match is_packed {
            true => Box::new(BufReader::with_capacity(BUFFER, MultiGzDecoder::new(from))),
            false => Box::new(from),
        };
        let (has_requests, first_reason) = (false, None);
        Ok(Self {
            name,
            from,
            line: 0,
            has_requests,
            first_reason,
            buffer: Vec::new(),
            waiting: 0,
            waiting_bytes: 0,
        })
    }

    /// Returns the error about a file whose lines are no requests.
    fn is_no_log(&self, reason: &str) -> io::Error {
        let Self { name, line: lines, .. } = self;
        let fault = format!(
            "`{name}` is not an access log: none of its {lines} lines is a request (line 1: {reason}): \
             use the combined format, or JSON lines"
        );
        io::Error::new(io::ErrorKind::InvalidData, fault)
    }

    /// The next line; none of it, if line too long.
    fn next(&mut self) -> io::Result<Option<Option<&[u8]>>> {
        self.buffer.clear();
        let most = LINE_BYTES_MOST as u64;
        let read = (&mut self.from).take(most).read_until(b'\n', &mut self.buffer);
        if in_file(&self.name, read)? == 0 {
            return Ok(None);
        }
        self.line += 1;
        if self.buffer.len() < LINE_BYTES_MOST || self.buffer.ends_with(b"\n") {
            return Ok(Some(Some(&self.buffer)));
        }
        in_file(&self.name, self.from.skip_until(b'\n'))?;
        Ok(Some(None))
    }
}

/// Says in which file it failed.
fn in_file<T>(name: &str, read: io::Result<T>) -> io::Result<T> {
    read.map_err(|cause| io::Error::new(cause.kind(), format!("can't read `{name}`: {cause}")))
}
