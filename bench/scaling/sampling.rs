//! Random keys, random times, a hash for numbers, and quantiles.

use std::hash::{BuildHasherDefault, Hasher};

/// Keys by Zipf's law: the key of rank k is asked in proportion to k^-skew. Samples by rejection-inversion (Hörmann and
/// Derflinger, 1996), so no table of the keys is needed.
pub(super) struct Zipf {
    skew: f64,
    first: f64,
    last: f64,
    sure: f64,
    keys: f64,
}

impl Zipf {
    pub(super) fn new(keys: u32, skew: f64) -> Self {
        let mut zipf = Self { skew, first: 0.0, last: 0.0, sure: 0.0, keys: f64::from(keys) };
        zipf.first = zipf.integral(1.5) - 1.0;
        zipf.last = zipf.integral(zipf.keys + 0.5);
        zipf.sure = 2.0 - zipf.inverse(zipf.integral(2.5) - 2f64.powf(-skew));
        zipf
    }

    /// Returns the integral of x^-skew, up to a constant.
    fn integral(&self, x: f64) -> f64 {
        let log = x.ln();
        let exponent = (1.0 - self.skew) * log;
        if exponent.abs() < 1e-8 { log } else { exponent.exp_m1() / (1.0 - self.skew) }
    }

    fn inverse(&self, area: f64) -> f64 {
        let scaled = area * (1.0 - self.skew);
        if scaled.abs() < 1e-8 { area.exp() } else { (scaled.ln_1p() / (1.0 - self.skew)).exp() }
    }

    pub(super) fn sample(&self, random: &mut fastrand::Rng) -> u32 {
        loop {
            let area = self.last + random.f64() * (self.first - self.last);
            let x = self.inverse(area);
            let rank = x.round().clamp(1.0, self.keys);
            if rank - x <= self.sure || area >= self.integral(rank + 0.5) - rank.powf(-self.skew) {
                return rank as u32;
            }
        }
    }
}

/// Returns the time to the next arrival of a Poisson process, in nanoseconds.
pub(super) fn next_arrival_ns(random: &mut fastrand::Rng, per_second: f64) -> u64 {
    (-(1.0 - random.f64()).ln() / per_second * 1e9) as u64
}

/// Hashes one number, the same in each run.
#[derive(Default)]
pub(super) struct NumberHasher(u64);

pub(super) type Hash = BuildHasherDefault<NumberHasher>;

impl Hasher for NumberHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u64(u64::from(*byte)));
    }

    fn write_u32(&mut self, number: u32) {
        self.write_u64(u64::from(number));
    }

    fn write_u64(&mut self, number: u64) {
        let mixed = (self.0 ^ number).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        self.0 = mixed ^ (mixed >> 32);
    }
}

const BIN_NS: u64 = 5_000;
const BINS: usize = 20_000;

/// Times up to 100 ms, in bins of 5 µs.
pub(super) struct Times {
    bins: Vec<u64>,
    count: u64,
}

impl Default for Times {
    fn default() -> Self {
        Self { bins: vec![0; BINS], count: 0 }
    }
}

impl Times {
    pub(super) fn add(&mut self, ns: u64) {
        self.bins[((ns / BIN_NS) as usize).min(BINS - 1)] += 1;
        self.count += 1;
    }

    /// Returns the end of the bin that has the quantile, in milliseconds.
    pub(super) fn quantile_ms(&self, of: f64) -> f64 {
        let rank = (self.count as f64 * of) as u64;
        let mut below = 0;
        let at = self.bins.iter().position(|bin| {
            below += bin;
            below > rank
        });
        at.map_or(0.0, |at| (at as u64 + 1) as f64 * BIN_NS as f64 / 1e6)
    }
}
