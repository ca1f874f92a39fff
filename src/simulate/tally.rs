//! The statistics of limits and their keys, and of requests over time.

use std::collections::HashMap;

use tollgate_limiter::Quota;

use crate::config::KeyPart;

use super::demand::Demand;

/// The statistics of a limit. Its keys are numbered in the order of their first request.
#[derive(Debug, Default)]
pub(super) struct LimitTally {
    /// The requests of its routes.
    pub(super) requests: u64,
    pub(super) refused: u64,
    /// The refused requests that would have been admitted within the limit's `wait`.
    pub(super) within_wait: u64,
    /// The requests that were refused because they had no key.
    pub(super) denied: u64,
    pub(super) exempt: u64,
    pub(super) skipped: u64,
    /// The requests for which the log lacks a part of the key, and the first such part.
    pub(super) unknown: u64,
    pub(super) unknown_part: Option<String>,
    /// The requests without a duration in the log, if the limit counts those in flight.
    pub(super) unknown_time: u64,
    /// The requests whose cost isn't in the log.
    pub(super) unknown_costs: u64,
    /// The requests that may state a rate, which isn't in the log.
    pub(super) unknown_rates: u64,
    /// The requests whose usage somebody else reports.
    pub(super) unreported: u64,
    /// The requests of keys beyond the bound. They are decided, but not counted anywhere else.
    pub(super) beyond: u64,
    /// True if the demand of keys is an upper bound only.
    pub(super) is_coarse: bool,
    /// The requests that this configuration refuses and the other one doesn't.
    pub(super) differs: u64,
    places: HashMap<Box<str>, usize>,
    keys: Vec<KeyTally>,
}

/// The statistics of a key.
#[derive(Debug)]
pub(super) struct KeyTally {
    /// The quota that applies to the key.
    pub(super) quota: Quota,
    pub(super) requests: u64,
    pub(super) refused: u64,
    /// The requests that this configuration refuses and the other one doesn't.
    pub(super) differs: u64,
    pub(super) demand: Demand,
}

/// The index of a key.
pub(super) struct KeySlot {
    /// The index. `None` if there are too many keys.
    pub(super) place: Option<usize>,
    pub(super) is_new: bool,
}

impl LimitTally {
    /// Returns the index of a key. A new key gets one if `may_grow`.
    pub(super) fn place(&mut self, key: &str, may_grow: bool, quota: Quota) -> KeySlot {
        if let Some(place) = self.places.get(key) {
            return KeySlot { place: Some(*place), is_new: false };
        }
        if !may_grow {
            return KeySlot { place: None, is_new: false };
        }
        let place = self.keys.len();
        let demand = Demand::new(quota.algorithm);
        self.keys.push(KeyTally { quota, requests: 0, refused: 0, differs: 0, demand });
        self.places.insert(key.into(), place);
        KeySlot { place: Some(place), is_new: true }
    }

    /// Returns the statistics of the key at an index.
    pub(super) fn of_key(&mut self, place: usize) -> &mut KeyTally {
        &mut self.keys[place]
    }

    /// Counts a request of the key at an index.
    pub(super) fn arrive(&mut self, place: Option<usize>) -> Option<&mut KeyTally> {
        match place {
            Some(place) => {
                let key = &mut self.keys[place];
                key.requests += 1;
                Some(key)
            }
            None => {
                self.beyond += 1;
                None
            }
        }
    }

    /// Counts a refusal, and whether the request would have been admitted within the limit's `wait`.
    pub(super) fn refuse(&mut self, place: Option<usize>, is_within_wait: bool) {
        self.refused += 1;
        self.within_wait += u64::from(is_within_wait);
        if let Some(place) = place {
            self.keys[place].refused += 1;
        }
    }

    /// Counts a request that the other configuration doesn't refuse.
    pub(super) fn differ(&mut self, place: Option<usize>) {
        self.differs += 1;
        if let Some(place) = place {
            self.keys[place].differs += 1;
        }
    }

    /// Counts a request for which the log lacks this part of the key.
    pub(super) fn note_unknown(&mut self, part: &KeyPart) {
        self.unknown += 1;
        self.unknown_part.get_or_insert_with(|| part.to_string());
    }

    /// Returns all keys and their statistics.
    pub(super) fn keys(&self) -> impl Iterator<Item = (&str, &KeyTally)> {
        self.places.iter().map(|(text, place)| (&**text, &self.keys[*place]))
    }
}

/// The numbers of requests and refusals over time.
#[derive(Debug, Default)]
pub(super) struct Timeline {
    pub(super) start_us: u64,
    /// The duration of a bar.
    pub(super) bar_us: u64,
    /// The requests in each bar, and how many of them were refused.
    pub(super) bars: Vec<[u64; 2]>,
}

impl Timeline {
    const BARS_MOST: usize = 240;
    const SECOND_US: u64 = 1_000_000;

    /// Counts a request. Times never go back.
    pub(super) fn note(&mut self, at_us: u64, is_refused: bool) {
        if self.bars.is_empty() {
            (self.start_us, self.bar_us) = (at_us - at_us % Self::SECOND_US, Self::SECOND_US);
        }
        while (at_us - self.start_us) / self.bar_us >= Self::BARS_MOST as u64 {
            self.bar_us *= 2;
            let pairs = self.bars.chunks(2).map(|pair| [0, 1].map(|at| pair.iter().map(|bar| bar[at]).sum()));
            self.bars = pairs.collect();
        }
        let place = ((at_us - self.start_us) / self.bar_us) as usize;
        if self.bars.len() <= place {
            self.bars.resize(place + 1, [0, 0]);
        }
        self.bars[place][0] += 1;
        self.bars[place][1] += u64::from(is_refused);
    }
}
