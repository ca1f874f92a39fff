use std::{ops::RangeInclusive, sync::Arc};

use arc_swap::ArcSwap;
use tokio::time::{Duration, Instant, advance};

use super::{ClientTimeouts, Watch};
use crate::server::{
    settings::ConnectionSettings,
    slots::{ConnectionSlots, PeerKind, ServedPlace},
};

const PATIENCE: Duration = Duration::from_secs(60);

/// The watch of an HTTP/2 connection that is being closed after a request.
fn ended() -> Watch {
    let settings = ConnectionSettings {
        max_header_bytes: 0,
        timeouts: ClientTimeouts { header: PATIENCE, idle: PATIENCE },
        drain_timeout: PATIENCE,
        http2: true,
        tls: Default::default(),
        clients_most: 1,
        streams_most: 1,
    };
    let slots = ConnectionSlots::new(Arc::new(ArcSwap::from_pointee(settings)));
    let watch = Watch::new(Arc::new(ServedPlace::new(slots, PeerKind::Client)));
    watch.begin_http2(false);
    ask(&watch);
    watch.end();
    watch
}

/// Receives a request and answers it.
fn ask(watch: &Watch) {
    watch.note_read();
    assert!(watch.has_place() || watch.take_free_place());
    watch.begin_request();
    watch.end_request(Instant::now());
}

/// Asserts how many milliseconds others wait for the room of an ended connection whose client does this every 100 ms.
async fn assert_makes_room(within: RangeInclusive<u128>, act: impl Fn(&Watch)) {
    let (watch, ended) = (ended(), Instant::now());
    while watch.idle_since().is_none() {
        assert!(ended.elapsed() < PATIENCE, "it makes no room");
        act(&watch);
        advance(Duration::from_millis(100)).await;
    }
    let waited = ended.elapsed().as_millis();
    assert!(within.contains(&waited), "{waited}");
}

#[tokio::test(start_paused = true)]
async fn who_is_silent_after_goaway_makes_room_soon() {
    assert_makes_room(250..=400, |_| {}).await;
}

#[tokio::test(start_paused = true)]
async fn who_sends_something_after_goaway_has_a_second() {
    assert_makes_room(1_000..=1_400, Watch::note_read).await;
}

#[tokio::test(start_paused = true)]
async fn who_goes_on_asking_after_goaway_has_a_second_too() {
    assert_makes_room(1_000..=1_400, ask).await;
}
