//! `/events`: server-sent events with a sample of the gateway's state each second, and a history of ten
//! minutes.
//!
//! The first event is `history`. After that there is an event `state` each second. A client that doesn't keep
//! up misses some. The stream ends when its client loses access: with its login, or when the token changes.

use std::{collections::VecDeque, convert::Infallible, future, sync::Arc, time::Duration};

use axum::{
    extract::State,
    http::{HeaderMap, StatusCode},
    response::{
        IntoResponse,
        sse::{Event, Sse},
    },
};
use futures_util::{StreamExt, stream};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::{
    sync::{Semaphore, watch},
    time::{MissedTickBehavior, interval},
};

use crate::metrics::STATUS_CLASSES;

use super::{
    Admin, Problem,
    views::{self, Period, RouteCounts, Snapshot, milliseconds, milliseconds_since_1970},
};

const EVERY: Duration = Duration::from_secs(1);
/// The number of seconds in the history.
const SAMPLES_MOST: usize = 600;
/// The number of seconds that rates are averaged over.
const RECENT: usize = 10;
const LISTENERS_MOST: usize = 16;
/// The names of the numbers in a sample.
const COLUMNS: [&str; 10] =
    ["time_ms", "seconds", "1xx", "2xx", "3xx", "4xx", "5xx", "refused", "p50_ms", "p99_ms"];

/// The recent history of the gateway.
pub(super) struct History {
    recent: Mutex<Recent>,
    state: watch::Sender<String>,
    listeners: Arc<Semaphore>,
}

struct Recent {
    /// The last snapshots, the oldest first. Never empty.
    readings: VecDeque<Snapshot>,
    samples: VecDeque<Value>,
}

impl History {
    pub(super) fn begin(reading: Snapshot) -> Self {
        let recent = Recent { readings: VecDeque::from([reading]), samples: VecDeque::new() };
        let (state, _) = watch::channel(String::new());
        Self { recent: Mutex::new(recent), state, listeners: Arc::new(Semaphore::new(LISTENERS_MOST)) }
    }
}

impl Admin {
    /// Takes a sample each second, and sends it to the clients of `/events`.
    pub(super) async fn keep_history(self: Arc<Self>) {
        let mut seconds = interval(EVERY);
        seconds.set_missed_tick_behavior(MissedTickBehavior::Delay);
        seconds.tick().await;
        loop {
            seconds.tick().await;
            self.read();
            if self.history.state.receiver_count() > 0 {
                self.history.state.send_replace(self.state());
            }
        }
    }

    /// Shows a view of the last seconds.
    pub(super) fn view(&self, show: fn(&Period<'_>) -> Value) -> Value {
        let gateway = self.gateway.load_full();
        let recent = self.history.recent.lock();
        let before = recent.readings.front().expect("there is always one");
        show(&Period { gateway: &gateway, status: &self.status, now: &Snapshot::of(&gateway), before })
    }

    /// Adds a sample of the time since the last one.
    fn read(&self) {
        let reading = Snapshot::of(&self.gateway.load());
        let mut recent = self.history.recent.lock();
        let before = recent.readings.back().expect("there is always one");
        let RouteCounts { answers, refused, durations } = reading.traffic_since(before);
        let time = milliseconds_since_1970(reading.time);
        let mut sample = vec![json!(time), json!(reading.seconds_since(before))];
        sample.extend(answers.iter().map(|count| json!(count)));
        sample.push(json!(refused));
        sample.extend([0.5, 0.99].map(|share| json!(milliseconds(durations.quantile(share)))));
        recent.readings.push_back(reading);
        if recent.readings.len() > RECENT {
            recent.readings.pop_front();
        }
        recent.samples.push_back(Value::Array(sample));
        if recent.samples.len() > SAMPLES_MOST {
            recent.samples.pop_front();
        }
    }

    fn samples(&self) -> String {
        const { assert!(COLUMNS.len() == 5 + STATUS_CLASSES.len()) };
        json!({ "columns": COLUMNS, "samples": self.history.recent.lock().samples }).to_string()
    }

    fn state(&self) -> String {
        let mut state = self.view(views::all);
        state["sample"] = self.history.recent.lock().samples.back().cloned().unwrap_or_default();
        state.to_string()
    }
}

pub(super) async fn events(
    State(admin): State<Arc<Admin>>,
    headers: HeaderMap,
) -> Result<impl IntoResponse, Problem> {
    let Ok(place) = admin.history.listeners.clone().try_acquire_owned() else {
        return Err(Problem::new(StatusCode::SERVICE_UNAVAILABLE, "too many open dashboards: close one"));
    };
    let states = admin.history.state.subscribe();
    let event = |name, data| Ok::<_, Infallible>(Event::default().event(name).data(data));
    let first = [event("history", admin.samples()), event("state", admin.state())];
    let next = stream::unfold((states, place), move |(mut states, place)| async move {
        states.changed().await.ok()?;
        let state = states.borrow_and_update().clone();
        Some((event("state", state), (states, place)))
    });
    let all = stream::iter(first).chain(next);
    Ok(Sse::new(all.take_while(move |_| future::ready(admin.still_admits(&headers)))))
}

#[cfg(test)]
mod tests {
    use arc_swap::ArcSwap;

    use super::*;
    use crate::{config::Config, gateway::Gateway, server::Status};
    use tollgate_limiter::Limiter;

    #[tokio::test]
    async fn no_more_is_kept_than_ten_minutes() {
        let text = "[[routes]]\npath = \"/\"\nrespond = {}";
        let (config, _) = Config::parse("gateway.toml", text, &|_| None).unwrap();
        let gateway = Gateway::build(&config, &Limiter::open(&config.store).unwrap(), None);
        let status = Arc::new(Status::new(Vec::new()));
        let admin = Admin::new(Default::default(), Arc::new(ArcSwap::from_pointee(gateway)), status);
        (0..SAMPLES_MOST + 7).for_each(|_| admin.read());
        let recent = admin.history.recent.lock();
        assert_eq!((recent.samples.len(), recent.readings.len()), (SAMPLES_MOST, RECENT));
        assert!(recent.samples.iter().all(|sample| sample.as_array().unwrap().len() == COLUMNS.len()));
    }
}
