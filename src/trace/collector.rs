//! The collector, to which spans go by OTLP over gRPC.
//!
//! Spans of a request wait together in a bounded queue, from which a task takes them in batches, each with a deadline
//! within which it is tried again: a collector that is slow or away holds no request up and makes nothing grow. What
//! doesn't fit, or isn't taken in time, is lost, and counted.

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

use crate::{config::ServerUrl, metrics::Page};

/// The spans of a request.
pub type Spans = Vec<SpanData>;

/// Requests whose spans may wait to be sent.
const WAITING_MOST: usize = 2_048;
/// Spans after which no more are waited for, and how long that takes at most.
const BATCH: usize = 512;
const GATHERED_FOR: Duration = Duration::from_secs(1);
/// For a batch to be taken.
const SENT_WITHIN: Duration = Duration::from_secs(10);
/// For all that waits when the gateway ends.
const FLUSHED_WITHIN: Duration = Duration::from_secs(2);
/// How often trouble is told that goes on.
const SAY_AGAIN_AFTER: Duration = Duration::from_secs(60);
/// Requests in a second that are traced because somebody says so who isn't trusted.
const ASKED_MOST: u64 = 100;

/// Where spans go.
#[derive(Debug)]
pub struct Collector {
    /// Nothing is what ends the task.
    waiting: Sender<Option<Spans>>,
    fates: Arc<Fates>,
    since: Instant,
    /// The last second of these, and how many requests were asked for in it, in the lower half.
    asked: AtomicU64,
}

/// What became of spans.
#[derive(Debug, Default)]
struct Fates {
    exported: AtomicU64,
    /// The collector didn't take them.
    failed: AtomicU64,
    /// Too many were waiting.
    dropped: AtomicU64,
}

impl Collector {
    /// The collector at a url. Must be called in a tokio runtime. Nothing is connected yet.
    ///
    /// # Errors
    /// What of the environment's variables `OTEL_…` can't be used.
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
        let (waiting, taken) = mpsc::channel(WAITING_MOST);
        let fates = Arc::<Fates>::default();
        tokio::spawn(send_all(taken, exporter, url.to_string(), fates.clone()));
        Ok(Self { waiting, fates, since: Instant::now(), asked: AtomicU64::new(0) })
    }

    /// Whether one more request is traced in this second because somebody says so who isn't trusted.
    pub fn has_room_for_asked(&self) -> bool {
        let now = self.since.elapsed().as_secs();
        let another = |asked: u64| {
            let (second, count) = (asked >> 32, asked & u64::from(u32::MAX));
            let before = if second == now { count } else { 0 };
            (before < ASKED_MOST).then_some(now << 32 | (before + 1))
        };
        self.asked.fetch_update(Relaxed, Relaxed, another).is_ok()
    }

    /// Has spans sent, soon, unless too many wait already.
    pub fn hand_in(&self, spans: Spans) {
        let count = spans.len() as u64;
        if self.waiting.try_send(Some(spans)).is_err() {
            self.fates.dropped.fetch_add(count, Relaxed);
        }
    }

    /// Sends what waits, and after that nothing any more.
    pub async fn flush(&self) {
        let sent = async {
            // It fails if the task has ended.
            let _ = self.waiting.send(None).await;
            self.waiting.closed().await;
        };
        if timeout(FLUSHED_WITHIN, sent).await.is_err() {
            tracing::warn!("spans that the collector didn't take at the end are lost");
        }
    }

    /// Writes the metrics of spans.
    pub fn write_metrics(&self, page: &mut Page<'_>) {
        let Fates { exported, failed, dropped } = &*self.fates;
        let counts = [("exported", exported), ("failed", failed), ("dropped", dropped)];
        page.counters(
            "tollgate_spans",
            "Spans of requests that were traced, by what became of them",
            counts.map(|(outcome, count)| ([("outcome", outcome)], count.load(Relaxed))),
        );
    }
}

/// What spans are of: this program, unless the environment says otherwise, as SDKs of OpenTelemetry let it.
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

/// Sends what comes, in batches, until it is told to end.
async fn send_all(
    mut waiting: Receiver<Option<Spans>>,
    exporter: SpanExporter,
    url: String,
    fates: Arc<Fates>,
) {
    let (mut said_at, mut is_ending) = (None::<Instant>, false);
    while !is_ending {
        let Some(Some(mut batch)) = waiting.recv().await else { return };
        let gathered = async {
            while batch.len() < BATCH {
                match waiting.recv().await {
                    Some(Some(spans)) => batch.extend(spans),
                    _ => return true,
                }
            }
            false
        };
        is_ending = timeout(GATHERED_FOR, gathered).await.unwrap_or(false);
        let count = batch.len() as u64;
        let Err(cause) = send(&exporter, batch).await else {
            fates.exported.fetch_add(count, Relaxed);
            continue;
        };
        let failed = fates.failed.fetch_add(count, Relaxed) + count;
        if said_at.is_none_or(|said_at| said_at.elapsed() >= SAY_AGAIN_AFTER) {
            said_at = Some(Instant::now());
            tracing::warn!(
                "can't send traces to `{url}`: {cause}\n\
                 have a collector take OTLP over gRPC there, or name another one in tracing.otlp; spans not taken so far: {failed}"
            );
        }
    }
}

/// Sends a batch. The exporter has a deadline of its own, which ends no connection that is being made.
async fn send(exporter: &SpanExporter, batch: Spans) -> Result<(), String> {
    let sent: Result<OTelSdkResult, _> = timeout(SENT_WITHIN, exporter.export(batch)).await;
    match sent {
        Ok(sent) => sent.map_err(|cause| cause.to_string()),
        Err(_) => Err(format!("it didn't answer within {SENT_WITHIN:?}")),
    }
}
