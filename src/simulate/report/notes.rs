//! Notes on how far the numbers of a report can be trusted.

use crate::config::Missing;

use super::{
    super::{
        log::LinesRead,
        replay::{Replay, ReplayedLimit},
        tally::LimitTally,
    },
    requests_text,
};

/// Returns true if the log has the key, the duration and the usage of at least one of a limit's requests.
pub(super) fn is_judged(tally: &LimitTally) -> bool {
    tally.unknown + tally.unknown_time + tally.unreported < tally.requests || tally.requests == 0
}

/// Returns the notes on a replay.
pub(super) fn notes(replay: &Replay, lines: &LinesRead) -> Vec<String> {
    let mut notes = Vec::new();
    let counts = &replay.counts;
    if counts.without_host > 0 && replay.has_hosts() {
        notes.push(format!(
            "the log has no host for {}, but some routes match only one host: set it with --host",
            requests_text(counts.without_host)
        ));
    }
    if counts.without_condition > 0 {
        notes.push(format!(
            "some routes match header fields or query values that the log lacks for {}: these took other routes, or none",
            requests_text(counts.without_condition)
        ));
    }
    if counts.without_claims > 0 {
        notes.push(format!(
            "some routes match claims of tokens, which no log has: {} that may have matched took other routes, or none",
            requests_text(counts.without_claims)
        ));
    }
    if lines.late > 0 {
        notes.push(format!(
            "{} lines were too late to be put in order, and were replayed at the time that had been reached",
            lines.late
        ));
    }
    if counts.undecided > 0 {
        notes.push(format!("memory was full: {} not decided", requests_text(counts.undecided)));
    }
    notes.extend(replay.limits.iter().flat_map(notes_on_limit));
    notes
}

/// Returns the notes on a limit.
fn notes_on_limit(ReplayedLimit { rule, tally, .. }: &ReplayedLimit) -> Vec<String> {
    let mut notes = Vec::new();
    let (name, config) = (rule.limit().name(), rule.config());
    if let Some(part) = &tally.unknown_part {
        let treated = match config.missing {
            Missing::Ip => "were counted by address",
            Missing::Skip | Missing::Deny => "weren't counted",
        };
        let judged = if is_judged(tally) { "" } else { "; so the limit can't be judged" };
        notes.push(format!(
            "limit `{name}`: the log lacks `{part}` for {} of {} requests, which {treated}{judged}",
            tally.unknown, tally.requests
        ));
    }
    if config.ban.is_some() {
        notes.push(format!("limit `{name}`: its bans aren't replayed, so more requests would be refused"));
    }
    if tally.unknown_time > 0 {
        notes.push(format!(
            "limit `{name}`: the log lacks the duration of {} of {} requests, which weren't counted",
            tally.unknown_time, tally.requests
        ));
    }
    if tally.unknown_costs > 0 {
        notes.push(format!(
            "limit `{name}`: the log lacks the cost of {} of {} requests, which were charged as if it had not been stated",
            tally.unknown_costs, tally.requests
        ));
    }
    if tally.unknown_rates > 0
        && let Some(from) = &config.rate_from
    {
        notes.push(format!(
            "limit `{name}`: the log lacks `{}` for {} of {} requests, which were held to the file's rate",
            from.source, tally.unknown_rates, tally.requests
        ));
    }
    if tally.unreported > 0 {
        notes.push(format!(
            "limit `{name}`: no log has the usage that is reported for {} of {} requests, which weren't counted",
            tally.unreported, tally.requests
        ));
    }
    notes.extend(notes_on_figures(name, tally));
    notes
}

/// Returns the notes on what the figures of a limit leave out.
fn notes_on_figures(name: &str, tally: &LimitTally) -> Vec<String> {
    let mut notes = Vec::new();
    if tally.within_wait > 0 {
        notes.push(format!(
            "limit `{name}`: {} of the refused requests would have been admitted within its `wait`, if each had waited alone",
            tally.within_wait
        ));
    }
    if tally.beyond > 0 {
        notes.push(format!(
            "limit `{name}`: there were too many keys for statistics; {} requests of further keys are in no other number of its",
            tally.beyond
        ));
    }
    if tally.is_coarse {
        notes.push(format!("limit `{name}`: memory was full, so the demand of its keys is an upper bound"));
    }
    notes
}
