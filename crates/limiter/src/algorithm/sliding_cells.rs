//! The sliding window in cells: grants within a cell of W / m are one entry, at the time of the last.
//!
//! Twin of lua/sliding_cells.lua. The log is the sliding window's, with at most m + 1 entries alive. A permit
//! counts until the cell it is in leaves the window, so never too short, and too long by less than W / m.

/// The length of a cell in microseconds.
pub(super) fn cell_us(window_us: u64, cells: u32) -> u64 {
    (window_us / u64::from(cells)).max(1)
}

#[cfg(test)]
mod tests {
    use crate::algorithm::{Algorithm, Count, Quota, Rate, sliding_window::Log};

    #[test]
    fn a_cell_ends_a_window_after_its_last_grant() {
        let rate = Rate { permits: 9, window_us: 10_000 };
        let (quota, mut log) = (Quota::new(Algorithm::SlidingCells { cells: 10 }, rate), Log::default());
        for time_us in [5_000, 5_999, 6_000] {
            log.advance(quota, time_us);
            log.charge(quota, time_us, 1);
        }
        for (time_us, used, grow_us) in [(15_998, 3, 1), (15_999, 1, 1), (16_000, 0, 0)] {
            log.advance(quota, time_us);
            assert_eq!((log.used(quota), log.grow_us(quota, time_us)), (used, grow_us), "{time_us}");
        }
    }
}
