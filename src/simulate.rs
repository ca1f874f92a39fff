//! Replays access logs through the limits of a configuration: which requests would have been refused, and
//! which rates would fit. Time is that of the log: a day takes seconds, and the same log always gives the
//! same result.
//!
//! Requests take the gateway's routes, keys and algorithms, and are counted in its in-process store. In
//! addition, the demand of each key is counted as if nothing had been refused (`demand`). The smallest rates
//! come from that.
//!
//! Not simulated: clients that react to a refusal, waiting (a request that a limit would hold is refused),
//! several gateways, and a store that is down.

mod demand;
mod line;
mod log;
mod page;
mod replay;
mod report;
mod tally;

use std::io;

use hyper::header::HeaderValue;

use crate::config::Config;

use self::{
    line::Wanted,
    replay::{Replay, Replayed},
};

pub use self::{
    log::{LinesRead, Logs, UnreadableLine, WAITING_MOST},
    report::{
        AtLeast, Bars, Busy, Changed, Changes, LimitReport, Report, Requests, Smallest, requests_text,
        thousands,
    },
};

/// A simulation of one configuration, optionally compared with another.
#[derive(Debug)]
pub struct Simulation<'c> {
    /// The configuration.
    pub config: &'c Config,
    /// The configuration to compare with.
    pub against: Option<&'c Config>,
    /// The host of requests without one in the log.
    pub host: Option<HeaderValue>,
}

impl Simulation<'_> {
    /// Replays logs.
    ///
    /// # Errors
    /// A log can't be read.
    pub fn run(&self, mut logs: Logs) -> io::Result<Report> {
        let mut replay = Replay::new(self.config, self.host.clone());
        let mut against = self.against.map(|against| Replay::new(against, self.host.clone()));
        let mut wanted = Wanted::default();
        for replay in against.iter().chain([&replay]) {
            replay.want(&mut wanted);
        }
        let mut bounds = None;
        while let Some(logged) = logs.next(&wanted)? {
            bounds = Some((bounds.map_or(logged.at_us, |(first_us, _)| first_us), logged.at_us));
            let verdict = replay.decide(&logged);
            if let Some(against) = &mut against {
                match (verdict, against.decide(&logged)) {
                    (Replayed::Refused(_), Replayed::Refused(_)) => {}
                    (Replayed::Refused(by), _) => replay.differ(by),
                    (_, Replayed::Refused(by)) => against.differ(by),
                    _ => {}
                }
            }
        }
        Ok(Report::new(&replay, against.as_ref(), logs.read(), bounds))
    }
}
