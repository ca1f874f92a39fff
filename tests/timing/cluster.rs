//! Several gateways on one Redis, under load.

use std::{
    thread,
    time::{Duration, Instant},
};

use crate::{
    gateway,
    harness::{
        gateway::Gateway,
        judge::{in_time, judge},
        load::{Answered, most_within},
        redis::Redis,
    },
};

const LIMIT: &str = r#"{ name = "all", key = "global", rate = "50/s" }"#;
const PERMITS: usize = 50;
const WINDOW: Duration = Duration::from_secs(1);
const WINDOWS: u32 = 5;
const CLIENTS: usize = 32;
/// Three in a hundred permits may come late, and so may a window.
const PAUSE: Duration = Duration::from_millis(20);

#[test]
fn three_gateways_admit_the_limit_and_no_more_in_any_window() {
    let redis = Redis::start();
    let gateways = [(); 3].map(|()| gateway(&redis.url(), &[LIMIT]));
    judge(PAUSE, || {
        let admitted = hammer(&gateways);
        let most = most_within(&admitted, WINDOW);
        assert!(most <= PERMITS, "{most} were admitted in one window");
        let expected = PERMITS * WINDOWS as usize;
        in_time(admitted.len() * 100 >= expected * 97, || {
            format!("{} of {expected} were admitted", admitted.len())
        })
    });
}

/// Asks for as much as can be had in some windows. The first of them may begin with what an earlier call has left.
fn hammer(gateways: &[Gateway]) -> Vec<Answered> {
    let until = Instant::now() + WINDOWS * WINDOW;
    let hammer = |turn: usize| {
        let mut client = gateways[turn % gateways.len()].client();
        let mut admitted = Vec::new();
        while Instant::now() < until {
            let sent = Instant::now();
            match client.get("/").status {
                status @ 200 => admitted.push(Answered { sent, received: Instant::now(), status }),
                status => assert_eq!(status, 429),
            }
        }
        admitted
    };
    let hammer = &hammer;
    thread::scope(|scope| {
        let clients: Vec<_> = (0..CLIENTS).map(|turn| scope.spawn(move || hammer(turn))).collect();
        clients.into_iter().flat_map(|client| client.join().unwrap()).collect()
    })
}
