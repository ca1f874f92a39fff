//! The collector of a build without the feature `opentelemetry`: it never opens.

use tollgate_limiter::metrics::Page;

use crate::config::ServerUrl;

/// The spans of a request: there are none.
pub type Spans = ();

/// A collector of spans: there is none.
#[derive(Debug)]
pub enum Collector {}

impl Collector {
    /// Returns an error.
    ///
    /// # Errors
    /// This build can't export traces.
    pub fn open(url: &ServerUrl) -> Result<Self, String> {
        Err(format!(
            "can't send traces to `{url}`: this build has no OpenTelemetry\nremove `[tracing]`, or build with `--features opentelemetry`"
        ))
    }

    /// Never called.
    pub fn allows_forced(&self) -> bool {
        match *self {}
    }

    /// Never called.
    pub fn queue(&self, (): Spans) {
        match *self {}
    }

    /// Never called.
    pub async fn flush(&self) {
        match *self {}
    }

    /// Never called.
    pub fn write_metrics(&self, _: &mut Page<'_>) {
        match *self {}
    }
}
