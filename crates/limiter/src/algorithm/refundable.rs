//! The cells of a sliding window with refunds: few enough that an entry can be changed, and all behind it moved.
//!
//! Twin of lua/refundable.lua. The log is the sliding window's.

use super::sliding_cells;

/// The number of alive entries that have a time each.
const EXACT: usize = 128;
/// The cells in a window of further entries.
const CELLS: u32 = 128;

/// Returns the length of a cell in microseconds, where so many entries are alive.
pub(crate) fn cell_us(window_us: u64, cells: Option<u32>, alive: usize) -> u64 {
    match cells {
        Some(cells) => sliding_cells::cell_us(window_us, cells),
        None if alive < EXACT => 1,
        None => sliding_cells::cell_us(window_us, CELLS),
    }
}
