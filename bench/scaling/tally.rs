//! What was seen in a run, by phase: before a failure, during it, and after it.

use super::{Parameters, sampling::Times};

#[derive(Default)]
pub(super) struct Phase {
    pub(super) seconds: f64,
    pub(super) requests: u64,
    pub(super) ideal: u64,
    pub(super) admitted: u64,
    pub(super) refused_locally: u64,
    pub(super) without_store: u64,
    pub(super) calls: u64,
    pub(super) busy_ns: u64,
    /// The time that a decision has added to requests which weren't refused at once.
    pub(super) added: Times,
}

pub(super) struct Tally {
    begin: u64,
    silent: (u64, u64),
    pub(super) phases: [Phase; 3],
    pub(super) most_over: u64,
    pub(super) openings: u64,
    /// Decisions without the store, of the whole run.
    pub(super) without_store: u64,
    closed_at: u64,
    /// The last decision without the store after the failure's end.
    last_without: u64,
}

impl Tally {
    pub(super) fn new(parameters: &Parameters, silent: (u64, u64)) -> Self {
        let (begin, end) = (parameters.begin_ns(), parameters.end_ns());
        let mut phases: [Phase; 3] = Default::default();
        let bounds = [begin, silent.0.min(end), silent.1.min(end), end];
        for (phase, bounds) in phases.iter_mut().zip(bounds.windows(2)) {
            phase.seconds = bounds[1].saturating_sub(bounds[0]) as f64 / 1e9;
        }
        Self {
            begin,
            silent,
            phases,
            most_over: 0,
            openings: 0,
            without_store: 0,
            closed_at: 0,
            last_without: 0,
        }
    }

    /// Returns the phase of a time, unless the windows are still filling.
    fn phase(&mut self, now: u64) -> Option<&mut Phase> {
        let at = usize::from(now >= self.silent.0) + usize::from(now >= self.silent.1);
        (now >= self.begin).then_some(&mut self.phases[at])
    }

    pub(super) fn arrived(&mut self, now: u64, would_admit: bool) {
        let Some(phase) = self.phase(now) else { return };
        phase.requests += 1;
        phase.ideal += u64::from(would_admit);
    }

    pub(super) fn refused_locally(&mut self, now: u64, after: u64) {
        let Some(phase) = self.phase(now) else { return };
        phase.refused_locally += 1;
        if after > 0 {
            phase.added.add(after);
        }
    }

    pub(super) fn decided(&mut self, now: u64, is_admitted: bool, after: u64) {
        let Some(phase) = self.phase(now) else { return };
        phase.admitted += u64::from(is_admitted);
        phase.added.add(after);
    }

    pub(super) fn decided_without_store(&mut self, now: u64, is_admitted: bool, after: u64) {
        (self.last_without, self.without_store) = (now, self.without_store + 1);
        self.decided(now, is_admitted, after);
        if let Some(phase) = self.phase(now) {
            phase.without_store += 1;
        }
    }

    pub(super) fn called(&mut self, now: u64, busy_ns: u64) {
        let Some(phase) = self.phase(now) else { return };
        phase.calls += 1;
        phase.busy_ns += busy_ns;
    }

    pub(super) fn opened(&mut self) {
        self.openings += 1;
    }

    pub(super) fn closed(&mut self, now: u64) {
        self.closed_at = now;
    }

    /// Returns the milliseconds after the failure until the last breaker closed, and until the last decision without the store.
    pub(super) fn recovery_ms(&self) -> (f64, f64) {
        let after = |at: u64| at.saturating_sub(self.silent.1) as f64 / 1e6;
        (after(self.closed_at), after(self.last_without))
    }
}
