//! Access logs as one stream of requests in the order of their arrival.
//!
//! Servers write a line when its answer has ended, and restarts and clocks do the rest: so a log is nearly in order only.
//! As many lines as [`WAITING_MOST`] are held, from all files together, or fewer if they are long, and the earliest goes
//! on. One that comes later than that is replayed at the time that has been reached, and counted.

use std::{
    cmp::{Ordering, Reverse},
    collections::BinaryHeap,
    io::{self, BufRead, BufReader, Read},
};

use flate2::bufread::MultiGzDecoder;
use serde::Serialize;

use super::line::{Logged, Wanted};

/// Lines that wait for earlier ones.
pub const WAITING_MOST: usize = 65_536;
/// Bytes of these lines.
const WAITING_BYTES_MOST: usize = 64 << 20;
/// Longer lines are no requests.
const LINE_BYTES_MOST: usize = 64 << 10;
/// Lines that are named of those that can't be read.
const NAMED_MOST: usize = 5;
const BUFFER: usize = 64 << 10;
const GZIP: [u8; 2] = [0x1f, 0x8b];

/// Some logs that are read together.
pub struct Logs {
    files: Vec<LogFile>,
    waiting: BinaryHeap<Reverse<PendingLine>>,
    read: LinesRead,
    reached_us: u64,
}

/// What was read.
#[derive(Clone, Debug, Default, Serialize)]
pub struct LinesRead {
    /// Lines in all.
    pub lines: u64,
    /// Those that are no request.
    pub unreadable: u64,
    /// The first of these.
    pub named: Vec<UnreadableLine>,
    /// Requests that came too late to be put in order.
    pub late: u64,
}

/// A line that is no request.
#[derive(Clone, Debug, Serialize)]
pub struct UnreadableLine {
    /// The file.
    pub file: String,
    /// Its number, from 1.
    pub line: u64,
    /// What is wrong with it.
    pub reason: &'static str,
}

struct LogFile {
    name: String,
    from: Box<dyn BufRead>,
    line: u64,
    buffer: Vec<u8>,
    /// Lines of it that wait, and their bytes.
    waiting: usize,
    waiting_bytes: usize,
}

/// A request that waits for earlier ones. Of equal times the first read goes first.
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
    /// Logs by their names. What begins as gzip does is unpacked.
    ///
    /// # Errors
    /// One can't be read.
    pub fn open(files: Vec<(String, Box<dyn Read>)>) -> io::Result<Self> {
        let files =
            files.into_iter().map(|(name, from)| LogFile::open(name, from)).collect::<Result<_, _>>()?;
        let (waiting, read) = (BinaryHeap::new(), LinesRead::default());
        Ok(Self { files, waiting, read, reached_us: 0 })
    }

    /// What was read so far.
    pub fn read(&self) -> &LinesRead {
        &self.read
    }

    /// The next request.
    ///
    /// # Errors
    /// A file can't be read on.
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

    /// Reads on in a file, until as much of it waits as may. One line always may.
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

    /// Reads one more request of a file. False at its end.
    fn read_from(&mut self, file: usize, wanted: &Wanted) -> io::Result<bool> {
        let from = &mut self.files[file];
        while let Some(line) = from.next()? {
            self.read.lines += 1;
            let bytes = line.map_or(0, <[u8]>::len);
            let logged = line.ok_or("it is too long").and_then(|line| Logged::read(line, wanted));
            match logged {
                Ok(logged) => {
                    from.waiting += 1;
                    from.waiting_bytes += bytes;
                    let waiting = PendingLine { logged: Box::new(logged), file, line: from.line, bytes };
                    self.waiting.push(Reverse(waiting));
                    return Ok(true);
                }
                Err(reason) => {
                    self.read.unreadable += 1;
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
        Ok(false)
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
        Ok(Self { name, from, line: 0, buffer: Vec::new(), waiting: 0, waiting_bytes: 0 })
    }

    /// The next line; none of it, if it is too long.
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
