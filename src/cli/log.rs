//! The log on stderr: a record per line, as text or as JSON.
//!
//! Lines go through a bounded queue to a thread that writes them, so that a slow reader blocks nothing. If the queue is full,
//! lines are lost.

use std::{
    env, fmt,
    io::{self, Write},
    time::SystemTime,
};

use serde_json::{Map, Value};
use tracing::{
    Event, Subscriber,
    field::{Field, Visit},
    level_filters::LevelFilter,
};
use tracing_appender::non_blocking::{NonBlocking, NonBlockingBuilder, WorkerGuard};
use tracing_subscriber::{
    filter::Targets,
    fmt::{FmtContext, FormatEvent, FormatFields, MakeWriter, format::Writer},
    layer::SubscriberExt,
    registry::LookupSpan,
    util::SubscriberInitExt,
};

use crate::config::{Diagnostics, LogFormat, LogSettings, Severity};

/// The most log lines that can wait to be written. The queue's memory is allocated from the start.
const LINES_WAITING_MOST: usize = 8_192;

/// Begins the log. TOLLGATE_LOG overrides the level. The queue is flushed when the returned guard is dropped.
pub(super) fn begin(settings: LogSettings) -> WorkerGuard {
    let (writer, guard) =
        NonBlockingBuilder::default().buffered_lines_limit(LINES_WAITING_MOST).finish(io::stderr());
    let level = env::var("TOLLGATE_LOG").ok().and_then(|level| level.parse().ok());
    let level = level.unwrap_or(LevelFilter::from_level(settings.level));
    // h2 warns of single frames, and a client can send any number of them. The gateway closes such connections and counts them.
    let of_h2 = if level >= LevelFilter::DEBUG { level } else { LevelFilter::ERROR.min(level) };
    let levels = Targets::new().with_default(level).with_target("h2", of_h2);
    let log = tracing_subscriber::fmt()
        .with_writer(Lines(writer))
        .with_ansi(super::stderr_takes_colour())
        .with_target(false)
        .with_max_level(level);
    match settings.format {
        LogFormat::Text => log.finish().with(levels).init(),
        LogFormat::Json => log.event_format(Json).finish().with(levels).init(),
    }
    guard
}

/// Logs the errors and warnings of a configuration, a record each.
pub(super) fn report(faults: &Diagnostics) {
    for fault in faults.records() {
        let (file, line, column) = (fault.file, fault.line, fault.column);
        let help = fault.help.join("; ");
        match fault.severity {
            Severity::Error => tracing::error!(file, line, column, help, "{}", fault.message),
            Severity::Warning => tracing::warn!(file, line, column, help, "{}", fault.message),
        }
    }
}

/// Writes each record as one line.
struct Lines(NonBlocking);

impl<'w> MakeWriter<'w> for Lines {
    type Writer = Self;

    fn make_writer(&'w self) -> Self {
        Self(self.0.clone())
    }
}

impl Write for Lines {
    fn write(&mut self, record: &[u8]) -> io::Result<usize> {
        // A message may have a remedy on a line of its own.
        let text = record.strip_suffix(b"\n").unwrap_or(record);
        if text.contains(&b'\n') {
            let lines = String::from_utf8_lossy(text).lines().collect::<Vec<_>>().join("; ");
            self.0.write_all(format!("{lines}\n").as_bytes())?;
        } else {
            self.0.write_all(record)?;
        }
        Ok(record.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

/// Formats records as JSON objects.
struct Json;

impl<S, N> FormatEvent<S, N> for Json
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        _context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let mut record = RecordFields(Map::new());
        let time = humantime::format_rfc3339_micros(SystemTime::now()).to_string();
        record.0.insert("time".to_owned(), time.into());
        let level = event.metadata().level().as_str().to_ascii_lowercase();
        record.0.insert("level".to_owned(), level.into());
        event.record(&mut record);
        writeln!(writer, "{}", Value::Object(record.0))
    }
}

/// The fields of a record.
struct RecordFields(Map<String, Value>);

impl RecordFields {
    fn insert(&mut self, field: &Field, value: impl Into<Value>) {
        self.0.insert(field.name().to_owned(), value.into());
    }
}

impl Visit for RecordFields {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.insert(field, value);
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.insert(field, value);
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.insert(field, value);
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.insert(field, value);
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        self.insert(field, value);
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.insert(field, format!("{value:?}").replace('\n', "; "));
    }
}
