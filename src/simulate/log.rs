//! Access logs as one stream of requests in the order of their arrival.
//!
//! Servers write a line when its answer has ended, and restarts and clocks do the rest: so a log is nearly in order only.
//! As many lines as [`WAITING_MOST`] are held, from all files together, and the earliest goes on. One that comes later
//! than that is replayed at the time that has been reached, and counted.

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
/// Longer lines are no requests.
const LINE_BYTES_MOST: usize = 64 << 10;
/// Lines that are named of those that can't be read.
const NAMED_MOST: usize = 5;
const BUFFER: usize = 64 << 10;
const GZIP: [u8; 2] = [0x1f, 0x8b];

/// Some logs that are read together.
pub struct Logs {
    files: Vec<File>,
    waiting: BinaryHeap<Reverse<Waiting>>,
    /// How many lines of a file wait.
    waiting_most: usize,
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
    pub named: Vec<Unreadable>,
    /// Requests that came too late to be put in order.
    pub late: u64,
}

/// A line that is no request.
#[derive(Clone, Debug, Serialize)]
pub struct Unreadable {
    /// The file.
    pub file: String,
    /// Its number, from 1.
    pub line: u64,
    /// What is wrong with it.
    pub reason: &'static str,
}

struct File {
    name: String,
    from: Box<dyn BufRead>,
    line: u64,
    buffer: Vec<u8>,
}

/// A request that waits for earlier ones. Of equal times the first read goes first.
struct Waiting {
    logged: Box<Logged>,
    file: usize,
    line: u64,
}

impl Waiting {
    fn order(&self) -> impl Ord + use<> {
        (self.logged.at_us, self.file, self.line)
    }
}

impl Ord for Waiting {
    fn cmp(&self, other: &Self) -> Ordering {
        self.order().cmp(&other.order())
    }
}

impl PartialOrd for Waiting {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Waiting {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Waiting {}

impl Logs {
    /// Logs by their names. What begins as gzip does is unpacked.
    ///
    /// # Errors
    /// One can't be read.
    pub fn open(files: Vec<(String, Box<dyn Read>)>) -> io::Result<Self> {
        let waiting_most = (WAITING_MOST / files.len().max(1)).max(1);
        let files = files.into_iter().map(|(name, from)| File::open(name, from)).collect::<Result<_, _>>()?;
        let (waiting, read) = (BinaryHeap::new(), LinesRead::default());
        Ok(Self { files, waiting, waiting_most, read, reached_us: 0 })
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
            for file in 0..self.files.len() {
                while self.waiting.len() < self.waiting_most * (file + 1) && self.read_from(file, wanted)? {}
            }
        }
        let Some(Reverse(Waiting { mut logged, file, .. })) = self.waiting.pop() else { return Ok(None) };
        self.read_from(file, wanted)?;
        self.read.late += u64::from(logged.at_us < self.reached_us);
        self.reached_us = self.reached_us.max(logged.at_us);
        logged.at_us = self.reached_us;
        Ok(Some(logged))
    }

    /// Reads one more request of a file. False at its end.
    fn read_from(&mut self, file: usize, wanted: &Wanted) -> io::Result<bool> {
        let from = &mut self.files[file];
        while let Some(line) = from.next()? {
            self.read.lines += 1;
            let logged = line.ok_or("it is too long").and_then(|line| Logged::read(line, wanted));
            match logged {
                Ok(logged) => {
                    let waiting = Waiting { logged: Box::new(logged), file, line: from.line };
                    self.waiting.push(Reverse(waiting));
                    return Ok(true);
                }
                Err(reason) => {
                    self.read.unreadable += 1;
                    if self.read.named.len() < NAMED_MOST {
                        self.read.named.push(Unreadable { file: from.name.clone(), line: from.line, reason });
                    }
                }
            }
        }
        Ok(false)
    }
}

impl File {
    fn open(name: String, from: Box<dyn Read>) -> io::Result<Self> {
        let mut from = BufReader::with_capacity(BUFFER, from);
        let is_packed = in_file(&name, from.fill_buf())?.starts_with(&GZIP);
        let from: Box<dyn BufRead> = match is_packed {
            true => Box::new(BufReader::with_capacity(BUFFER, MultiGzDecoder::new(from))),
            false => Box::new(from),
        };
        Ok(Self { name, from, line: 0, buffer: Vec::new() })
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
