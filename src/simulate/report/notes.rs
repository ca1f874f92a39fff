//! What is to be known before the numbers are believed.

use crate::config::Missing;

use super::super::{
    log::LinesRead,
    replay::{OfLimit, Replay},
    tally::LimitTally,
};

/// Whether a log tells the keys and times of any of a limit's requests.
pub(super) fn is_judged(tally: &LimitTally) -> bool {
    tally.unknown + tally.unknown_time < tally.requests || tally.requests == 0
}

/// All notes on a replay.
pub(super) fn notes(replay: &Replay, lines: &LinesRead) -> Vec<String> {
    let mut notes = Vec::new();
    let counts = &replay.counts;
    if counts.without_host > 0 && replay.has_hosts() {
        notes.push(format!(
            "the log doesn't tell the host of {} requests, and some routes are for one host: name it with --host",
            counts.without_host
        ));
    }
    if counts.without_condition > 0 {
        notes.push(format!(
            "some routes ask for headers, which the log doesn't tell of {} requests: those took other routes, or none",
            counts.without_condition
        ));
    }
    if lines.late > 0 {
        notes.push(format!(
            "{} lines came too late to be put in order, and count for the time that had been reached",
            lines.late
        ));
    }
    if counts.undecided > 0 {
        notes.push(format!("{} requests weren't decided, for want of memory", counts.undecided));
    }
    for OfLimit { rule, tally, .. } in &replay.limits {
        let (name, config) = (rule.limit().name(), rule.config());
        if let Some(part) = &tally.unknown_part {
            let treated = match config.missing {
                Missing::Ip => "were counted by their addresses",
                Missing::Skip | Missing::Deny => "weren't counted",
            };
            let judged = if is_judged(tally) { "" } else { "; so it can't be judged" };
            notes.push(format!(
                "limit `{name}`: the log doesn't tell `{part}` of {} of {} requests, which {treated}{judged}",
                tally.unknown, tally.requests
            ));
        }
        if tally.unknown_time > 0 {
            notes.push(format!(
                "limit `{name}`: the log doesn't tell how long {} of {} requests took, which weren't counted",
                tally.unknown_time, tally.requests
            ));
        }
        if tally.unknown_costs > 0 {
            notes.push(format!(
                "limit `{name}`: the log doesn't tell what {} of {} requests cost, which count as if nothing had been said",
                tally.unknown_costs, tally.requests
            ));
        }
        if tally.within_wait > 0 {
            notes.push(format!(
                "limit `{name}`: of the refused requests {} would have had room within its `wait`, if alone",
                tally.within_wait
            ));
        }
        if tally.beyond > 0 {
            notes.push(format!(
                "limit `{name}`: {} requests of more keys than are followed were decided, and are in no other number",
                tally.beyond
            ));
        }
        if tally.is_coarse {
            notes.push(format!(
                "limit `{name}`: for want of memory what keys asked for is counted from above"
            ));
        }
    }
    notes
}
