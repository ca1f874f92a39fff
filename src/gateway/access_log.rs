//! The access log: a line per request, written when its response has ended or broken off.
//!
//! Lines pass through a bounded queue to a thread that writes them, so a full disk or a stalled reader delays no
//! request. Lines beyond the bound are dropped and counted. On SIGUSR1, the file is reopened, as after a rotation.
//!
//! Lines contain no secrets: keys appear as in the bucket's name, which hashes possible credentials, and queries
//! appear without values.

use std::{
    fs::{File, OpenOptions},
    io::{self, BufWriter, Write},
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
};

use tollgate_limiter::metrics::Page;
use tracing_appender::non_blocking::{ErrorCounter, NonBlocking, NonBlockingBuilder, WorkerGuard};

use crate::config::{self, AccessLogFormat};

use super::record::{Ending, Record};

/// The most lines that wait to be written.
const WAITING_MOST: usize = 8_192;
/// The size of the write buffer in bytes.
const BUFFER: usize = 64 << 10;

/// The sending end of the access log.
#[derive(Debug)]
pub struct AccessLog {
    format: AccessLogFormat,
    queue: NonBlocking,
    beyond_bound: ErrorCounter,
    state: Arc<WriterState>,
}

/// The state shared with the writing thread.
#[derive(Debug, Default)]
struct WriterState {
    /// True if the file must be reopened.
    reopens: AtomicBool,
    /// The number of lines that couldn't be written.
    failed: AtomicU64,
}

impl AccessLog {
    /// Opens the log. When the guard is dropped, the waiting lines are written.
    ///
    /// # Errors
    /// The file can't be opened. The message has the remedy on a line of its own.
    pub fn open(config: &config::AccessLogSettings) -> Result<(Arc<Self>, WorkerGuard), String> {
        let state = Arc::<WriterState>::default();
        let to: Box<dyn Write + Send> = match &config.path {
            Some(path) => Box::new(open(path).map_err(|cause| {
                let path = path.display();
                format!("can't open `{path}`: {cause}\nname a file that can be written in access_log.path, or \"-\"")
            })?),
            None => Box::new(io::stdout()),
        };
        let to = BufWriter::with_capacity(BUFFER, to);
        let output = Output { path: config.path.clone(), to, state: state.clone(), is_failing: false };
        let queue =
            NonBlockingBuilder::default().buffered_lines_limit(WAITING_MOST).thread_name("access-log");
        let (queue, guard) = queue.finish(output);
        let beyond_bound = queue.error_counter();
        Ok((Arc::new(Self { format: config.format, queue, beyond_bound, state }), guard))
    }

    /// Requests that the file is reopened.
    pub fn reopen(&self) {
        self.state.reopens.store(true, Relaxed);
        // Wakes the thread.
        self.hand_in(&[]);
    }

    /// Writes the metrics of the log.
    pub fn write_metrics(&self, page: &mut Page<'_>) {
        let lost = self.beyond_bound.dropped_lines() as u64 + self.state.failed.load(Relaxed);
        page.counter("tollgate_access_log_lost", "Access log lines that couldn't be written", lost);
    }

    /// Queues the line of a request whose response has ended.
    pub(super) fn log(&self, record: &Record, end: &Ending<'_>) {
        let line = match self.format {
            AccessLogFormat::Json => record.json(end),
            AccessLogFormat::Combined => record.combined(end),
        };
        self.hand_in(line.as_bytes());
    }

    fn hand_in(&self, line: &[u8]) {
        // If the queue is full, it drops and counts the line.
        let _ = self.queue.clone().write(line);
    }
}

/// The writing end of the access log.
struct Output {
    path: Option<PathBuf>,
    to: BufWriter<Box<dyn Write + Send>>,
    state: Arc<WriterState>,
    is_failing: bool,
}

impl Output {
    /// Reopens the file, if requested and possible.
    fn reopen(&mut self) {
        let Some(path) = self.path.as_deref().filter(|_| self.state.reopens.swap(false, Relaxed)) else {
            return;
        };
        match open(path) {
            Ok(file) => {
                let unwritten = self.to.buffer().iter().filter(|byte| **byte == b'\n').count();
                self.state.failed.fetch_add(unwritten as u64, Relaxed);
                self.to = BufWriter::with_capacity(BUFFER, Box::new(file));
            }
            Err(cause) => {
                let path = path.display();
                tracing::error!("can't reopen `{path}`: {cause}\nthe access log continues in the old file");
            }
        }
    }

    /// Logs the first failure, and the first success after it.
    fn note<T>(&mut self, written: &io::Result<T>) {
        match written {
            Err(cause) if !self.is_failing => tracing::error!("can't write the access log: {cause}"),
            Ok(_) if self.is_failing => tracing::info!("the access log can be written again"),
            _ => {}
        }
        self.is_failing = written.is_err();
    }
}

/// Opens the file. Also for reading, because a pipe without a reader couldn't be opened otherwise.
fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).append(true).create(true).open(path)
}

impl Write for Output {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        if self.state.reopens.load(Relaxed) {
            // The next line reports a failure.
            let _ = self.flush();
        }
        let written = self.to.write(line);
        if written.is_err() {
            self.state.failed.fetch_add(1, Relaxed);
            self.note(&written);
        }
        written
    }

    /// Flushes and reopens. Also called when no more lines wait.
    fn flush(&mut self) -> io::Result<()> {
        let flushed = self.to.flush();
        self.note(&flushed);
        self.reopen();
        flushed
    }
}
