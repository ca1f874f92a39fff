//! What a limit did, and for whom; and when.

use std::collections::HashMap;

use crate::{algorithm::Quota, config::KeyPart};

use super::demand::Demand;

/// What a limit did. Keys have places in the order in which they came.
#[derive(Debug, Default)]
pub(super) struct LimitTally {
    /// Requests of its routes.
    pub(super) requests: u64,
    pub(super) refused: u64,
    /// Of these, those that there would have been room for within the limit's `wait`.
    pub(super) within_wait: u64,
    /// Of these, those that it refused for want of a key.
    pub(super) denied: u64,
    pub(super) exempt: u64,
    pub(super) skipped: u64,
    /// Requests of which the log doesn't tell a part of the key, and which part that is.
    pub(super) unknown: u64,
    pub(super) unknown_part: Option<String>,
    /// Requests of which the log doesn't tell how long they took, and the limit is on those in flight.
    pub(super) unknown_time: u64,
    /// Requests of which the log doesn't tell the cost.
    pub(super) unknown_costs: u64,
    /// Requests of keys beyond the bound: they are decided, but nothing is told of them.
    pub(super) beyond: u64,
    /// What keys asked for is counted from above.
    pub(super) is_coarse: bool,
    /// Requests that it refuses and the other configuration doesn't.
    pub(super) differs: u64,
    places: HashMap<Box<str>, usize>,
    keys: Vec<KeyTally>,
}

/// What a limit did for a key.
#[derive(Debug)]
pub(super) struct KeyTally {
    /// The quota it is held to.
    pub(super) quota: Quota,
    pub(super) requests: u64,
    pub(super) refused: u64,
    /// Requests that the other configuration doesn't refuse.
    pub(super) differs: u64,
    pub(super) demand: Demand,
}

/// Where a key is.
pub(super) struct KeySlot {
    /// None, beyond the bound.
    pub(super) place: Option<usize>,
    pub(super) is_new: bool,
}

impl LimitTally {
    /// The place of a key, which is given one if there may be more.
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

    /// What it did for the key at a place.
    pub(super) fn of_key(&mut self, place: usize) -> &mut KeyTally {
        &mut self.keys[place]
    }

    /// Counts a request of the key at a place.
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

    /// Counts a refusal, which has room within the limit's wait or not.
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

    /// Counts a request of which the log doesn't tell this part of the key.
    pub(super) fn note_unknown(&mut self, part: &KeyPart) {
        self.unknown += 1;
        self.unknown_part.get_or_insert_with(|| part.to_string());
    }

    /// The keys with their texts.
    pub(super) fn keys(&self) -> impl Iterator<Item = (&str, &KeyTally)> {
        self.places.iter().map(|(text, place)| (&**text, &self.keys[*place]))
    }
}

/// How many requests came and were refused when.
#[derive(Debug, Default)]
pub(super) struct Timeline {
    pub(super) start_us: u64,
    /// How long each bar lasts.
    pub(super) bar_us: u64,
    /// Requests, and how many of them were refused.
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
