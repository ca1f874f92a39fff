//! The access log: a line for each request, written when its answer has ended or broken off.
//!
//! Lines go through a bounded queue to a thread that writes them, so that a full disk or a reader who doesn't read
//! holds no request up: lines beyond the bound are lost, and counted. SIGUSR1 has the file opened again, as after a
//! rotation.
//!
//! A line shows no secret: keys as in the bucket's name, which hashes what may be a credential, and of a query only
//! the names of its parameters.

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

use super::entry::{End, Entry};

/// Lines that may wait to be written.
const WAITING_MOST: usize = 8_192;
/// Bytes that are written at a time.
const BUFFER: usize = 64 << 10;

/// Where lines are handed in.
#[derive(Debug)]
pub struct AccessLog {
    format: AccessLogFormat,
    queue: NonBlocking,
    beyond_bound: ErrorCounter,
    state: Arc<State>,
}

/// What the thread that writes shares with others.
#[derive(Debug, Default)]
struct State {
    /// The file is to be opened again.
    reopens: AtomicBool,
    /// Lines that couldn't be written.
    failed: AtomicU64,
}

impl AccessLog {
    /// Opens the log. What waits to be written is written when the guard is dropped.
    ///
    /// # Errors
    /// The file can't be opened: a message and, on a line of its own, the remedy.
    pub fn open(config: &config::AccessLogSettings) -> Result<(Arc<Self>, WorkerGuard), String> {
        let state = Arc::<State>::default();
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

    /// Has the file opened again, soon.
    pub fn reopen(&self) {
        self.state.reopens.store(true, Relaxed);
        // It wakes the thread.
        self.hand_in(&[]);
    }

    /// Writes the metrics of the log.
    pub fn write_metrics(&self, page: &mut Page<'_>) {
        let lost = self.beyond_bound.dropped_lines() as u64 + self.state.failed.load(Relaxed);
        page.counter("tollgate_access_log_lost", "Lines of the access log that weren't written", lost);
    }

    /// Writes the line of a request whose answer has ended so, soon.
    pub(super) fn log(&self, entry: &Entry, end: &End<'_>) {
        let line = match self.format {
            AccessLogFormat::Json => entry.json(end),
            AccessLogFormat::Combined => entry.combined(end),
        };
        self.hand_in(line.as_bytes());
    }

    fn hand_in(&self, line: &[u8]) {
        // Beyond the bound it is lost, which the queue counts.
        let _ = self.queue.clone().write(line);
    }
}

/// What lines are written to.
struct Output {
    path: Option<PathBuf>,
    to: BufWriter<Box<dyn Write + Send>>,
    state: Arc<State>,
    is_failing: bool,
}

impl Output {
    /// Goes on in another file of the same name, if that is asked for and can be opened.
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
                tracing::error!("can't open `{path}` again: {cause}\nthe access log goes on in the old file");
            }
        }
    }

    /// Says when it begins to fail, and when it works again.
    fn note<T>(&mut self, written: &io::Result<T>) {
        match written {
            Err(cause) if !self.is_failing => tracing::error!("can't write the access log: {cause}"),
            Ok(_) if self.is_failing => tracing::info!("the access log is written again"),
            _ => {}
        }
        self.is_failing = written.is_err();
    }
}

/// Opened to be read, too: a pipe that nobody reads couldn't be opened else.
fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).append(true).create(true).open(path)
}

impl Write for Output {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        if self.state.reopens.load(Relaxed) {
            // Whether that succeeds, the next line will show.
            let _ = self.flush();
        }
        let written = self.to.write(line);
        if written.is_err() {
            self.state.failed.fetch_add(1, Relaxed);
            self.note(&written);
        }
        written
    }

    /// Called, too, when no more lines wait.
    fn flush(&mut self) -> io::Result<()> {
        let flushed = self.to.flush();
        self.note(&flushed);
        self.reopen();
        flushed
    }
}
