//! The export of spans to a collector, by OTLP over gRPC.
//!
//! The spans of a request go into a bounded queue. A task takes them from there in batches, and retries each
//! batch until a deadline. So a collector that is slow or down delays no request, and memory stays bounded.
//! Spans that don't fit or can't be delivered in time are lost, and counted.

use std::{
    env,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use opentelemetry::KeyValue;
use opentelemetry_otlp::{
    SpanExporter, WithExportConfig, WithTonicConfig, tonic_types::transport::ClientTlsConfig,
};
use opentelemetry_sdk::{
    Resource,
    error::OTelSdkResult,
    resource::{EnvResourceDetector, TelemetryResourceDetector},
    trace::{SpanData, SpanExporter as _},
};
use tokio::{
    sync::mpsc::{self, Receiver, Sender},
    time::{Instant, timeout},
};
use tollgate_limiter::metrics::Page;

use crate::config::ServerUrl;

/// The spans of a request.
pub type Spans = Vec<SpanData>;

/// The most requests whose spans are queued.
const QUEUED_MOST: usize = 2_048;
/// The number of spans that completes a batch, and the longest time to wait for them.
const BATCH: usize = 512;
const GATHERED_FOR: Duration = Duration::from_secs(1);
/// The deadline for delivering a batch.
const SENT_WITHIN: Duration = Duration::from_secs(10);
/// The deadline for delivering everything at shutdown.
const FLUSHED_WITHIN: Duration = Duration::from_secs(2);
/// The time after which an ongoing problem is logged again.
const LOG_AGAIN_AFTER: Duration = Duration::from_secs(60);
/// The most traces per second that untrusted clients can force.
const FORCED_MOST: u64 = 100;

/// A collector of spans.
#[derive(Debug)]
pub struct Collector {
    /// The queue. `None` ends the task.
    queue: Sender<Option<Spans>>,
    counts: Arc<SpanCounts>,
    since: Instant,
    /// The second of the last forced trace, and in the lower half the number of traces forced in it.
    forced: AtomicU64,
}

/// The numbers of spans by outcome.
#[derive(Debug, Default)]
struct SpanCounts {
    exported: AtomicU64,
    /// Spans that the collector didn't accept.
    failed: AtomicU64,
    /// Spans that didn't fit into the queue.
    dropped: AtomicU64,
}

impl Collector {
    /// Creates the export to a URL. Must be called in a tokio runtime. Doesn't connect yet.
    ///
    /// # Errors
    /// One of the environment variables `OTEL_…` is invalid.
    pub fn open(url: &ServerUrl) -> Result<Self, String> {
        let mut exporter = SpanExporter::builder().with_tonic();
        if url.is_tls() {
            exporter = exporter.with_tls_config(ClientTlsConfig::new().with_enabled_roots());
        }
        let exporter = exporter.with_endpoint(url.to_string()).with_timeout(SENT_WITHIN).build();
        let mut exporter = exporter.map_err(|cause| {
            format!(
                "can't send traces to `{url}`: {cause}\nchange tracing.otlp, or the variables OTEL_EXPORTER_OTLP_…"
            )
        })?;
        exporter.set_resource(&resource());
        let (queue, queued) = mpsc::channel(QUEUED_MOST);
        let counts = Arc::<SpanCounts>::default();
        tokio::spawn(send_all(queued, exporter, url.to_string(), counts.clone()));
        Ok(Self { queue, counts, since: Instant::now(), forced: AtomicU64::new(0) })
    }

    /// Counts a trace that an untrusted client forces. Returns false if there were too many in this second.
    pub fn allows_forced(&self) -> bool {
        let now = self.since.elapsed().as_secs();
        let another = |forced: u64| {
            let (second, count) = (forced >> 32, forced & u64::from(u32::MAX));
            let before = if second == now { count } else { 0 };
            (before < FORCED_MOST).then_some(now << 32 | (before + 1))
        };
        self.forced.fetch_update(Relaxed, Relaxed, another).is_ok()
    }

    /// Queues spans for export. They are dropped if the queue is full.
    pub fn queue(&self, spans: Spans) {
        let count = spans.len() as u64;
        if self.queue.try_send(Some(spans)).is_err() {
            self.counts.dropped.fetch_add(count, Relaxed);
        }
    }

    /// Exports all queued spans and ends the task.
    pub async fn flush(&self) {
        let sent = async {
            // Sending fails if the task has ended.
            let _ = self.queue.send(None).await;
            self.queue.closed().await;
        };
        if timeout(FLUSHED_WITHIN, sent).await.is_err() {
            tracing::warn!("spans that couldn't be exported at shutdown are lost");
        }
    }

    /// Writes the metrics of spans.
    pub fn write_metrics(&self, page: &mut Page<'_>) {
        let SpanCounts { exported, failed, dropped } = &*self.counts;
        let counts = [("exported", exported), ("failed", failed), ("dropped", dropped)];
        page.counters(
            "tollgate_spans",
            "Spans of traced requests, by outcome",
            counts.map(|(outcome, count)| ([("outcome", outcome)], count.load(Relaxed))),
        );
    }
}

/// Returns the origin of the spans: this program, unless the environment overrides it as in other
/// OpenTelemetry SDKs.
fn resource() -> Resource {
    let own = [
        KeyValue::new("service.name", env!("CARGO_PKG_NAME")),
        KeyValue::new("service.version", env!("CARGO_PKG_VERSION")),
    ];
    let resource = Resource::builder_empty()
        .with_attributes(own)
        .with_detectors(&[Box::new(TelemetryResourceDetector), Box::new(EnvResourceDetector::new())]);
    match env::var("OTEL_SERVICE_NAME") {
        Ok(name) if !name.is_empty() => resource.with_service_name(name).build(),
        _ => resource.build(),
    }
}

/// Exports spans in batches until the queue is closed.
async fn send_all(
    mut queue: Receiver<Option<Spans>>,
    exporter: SpanExporter,
    url: String,
    counts: Arc<SpanCounts>,
) {
    let (mut logged_at, mut is_ending) = (None::<Instant>, false);
    while !is_ending {
        let Some(Some(mut batch)) = queue.recv().await else { return };
        let gathered = async {
            while batch.len() < BATCH {
                match queue.recv().await {
                    Some(Some(spans)) => batch.extend(spans),
                    _ => return true,
                }
            }
            false
        };
        is_ending = timeout(GATHERED_FOR, gathered).await.unwrap_or(false);
        let count = batch.len() as u64;
        let Err(cause) = send(&exporter, batch).await else {
            counts.exported.fetch_add(count, Relaxed);
            continue;
        };
        let failed = counts.failed.fetch_add(count, Relaxed) + count;
        if logged_at.is_none_or(|logged_at| logged_at.elapsed() >= LOG_AGAIN_AFTER) {
            logged_at = Some(Instant::now());
            tracing::warn!(
                "can't send traces to `{url}`: {cause}\n\
                 run a collector for OTLP over gRPC there, or change tracing.otlp; spans lost so far: {failed}"
            );
        }
    }
}

/// Exports a batch. The exporter's own deadline doesn't cover connecting, so there is a second one.
async fn send(exporter: &SpanExporter, batch: Spans) -> Result<(), String> {
    let sent: Result<OTelSdkResult, _> = timeout(SENT_WITHIN, exporter.export(batch)).await;
    match sent {
        Ok(sent) => sent.map_err(|cause| cause.to_string()),
        Err(_) => Err(format!("no response within {SENT_WITHIN:?}")),
    }
}
