//! Replays access logs through the limits of a configuration: who would have been refused, and what the limits should
//! be. Time is the log's: a day takes seconds, and the same log always gives the same result.
//!
//! Requests take the routes, keys and algorithms of the gateway, and are counted in its in-process store. What is added
//! is what each key asked for, had nothing been refused (`demand`): from that come the smallest rates.
//!
//! What isn't replayed: clients that would have acted otherwise on a refusal, waiting (a request that a limit would hold
//! is one that it refuses), paths that some servers would read as another route's, several gateways, and a store that is
//! away.

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
    replay::{Replay, Verdict},
};

pub use self::{
    log::{LinesRead, Logs, UnreadableLine, WAITING_MOST},
    report::{AtLeast, Bars, Busy, Changed, Changes, LimitReport, Report, Requests, Smallest, thousands},
};

/// What is simulated.
#[derive(Debug)]
pub struct Simulation<'c> {
    /// The configuration.
    pub config: &'c Config,
    /// Another one, to tell what would change from it.
    pub against: Option<&'c Config>,
    /// The host of requests whose log doesn't tell it.
    pub host: Option<HeaderValue>,
}

impl Simulation<'_> {
    /// Replays logs.
    ///
    /// # Errors
    /// A log can't be read on.
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
                    (Verdict::Refused(_), Verdict::Refused(_)) => {}
                    (Verdict::Refused(by), _) => replay.differ(by),
                    (_, Verdict::Refused(by)) => against.differ(by),
                    _ => {}
                }
            }
        }
        Ok(Report::new(&replay, against.as_ref(), logs.read(), bounds))
    }
}
