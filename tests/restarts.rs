//! Restarts, as clients and supervisors see them.

mod clients;
mod draining;
mod rolling;
mod store;
mod supervisor;
mod unix;

use std::sync::{Mutex, mpsc};

use crate::harness::{gateway::Gateway, wait_until, wire::WireUpstream};

/// Starts an upstream that answers with these bytes, once per message on the channel, and signals its requests.
fn on_demand(answer: &'static str) -> (WireUpstream, mpsc::Receiver<()>, mpsc::Sender<()>) {
    let (release, released) = mpsc::channel::<()>();
    let released = Mutex::new(released);
    let (asked, is_asked) = mpsc::channel();
    let upstream = WireUpstream::start(move |mut wire| {
        while wire.request().is_some() {
            // The test may have ended.
            let _ = asked.send(());
            if released.lock().unwrap().recv().is_ok() {
                wire.send(answer.as_bytes());
            }
        }
    });
    (upstream, is_asked, release)
}

/// Waits until a gateway has ended by itself, with status 0.
fn wait_for_end(gateway: &mut Gateway) {
    wait_until("the gateway ends", || gateway.ended().is_some());
    assert_eq!(gateway.ended().unwrap().code(), Some(0), "{}", gateway.log());
}
