//! The settings of the log, of the access log and of tracing.

use std::path::PathBuf;

use tracing::Level;

use super::ServerUrl;

/// The settings of the gateway's own log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogSettings {
    /// The format of a line.
    pub format: LogFormat,
    /// The least severe level that is logged.
    pub level: Level,
}

impl Default for LogSettings {
    fn default() -> Self {
        Self { format: LogFormat::Text, level: Level::INFO }
    }
}

/// The format of a log line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFormat {
    /// Text for people, with fields as `name=value`.
    Text,
    /// A JSON object per line.
    Json,
}

/// The settings of the access log.
#[derive(Debug, PartialEq, Eq)]
pub struct AccessLogSettings {
    /// The file to write to. `None` means stdout.
    pub path: Option<PathBuf>,
    /// The format of a line.
    pub format: AccessLogFormat,
}

/// The format of an access log line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AccessLogFormat {
    /// A JSON object per line.
    Json,
    /// The `combined` format of nginx and Apache.
    Combined,
}

/// The settings of tracing.
#[derive(Debug, PartialEq)]
pub struct TracingSettings {
    /// The collector, which takes OTLP over gRPC. Never a unix socket.
    pub otlp: ServerUrl,
    /// The fraction of requests to trace if the client doesn't say, from 0 to 1.
    pub sample: f64,
}
